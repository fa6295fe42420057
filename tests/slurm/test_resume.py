"""`dibs teacher --resume`: teachers of a broken chain are restored, but only if nothing has changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dibs import cli, paths
from dibs.paths import Layout
from dibs.teachers import checkpoints
from dibs.teachers.base import get_algorithm

Teach = Callable[..., str]
RESTORED, TRAINED = "restored from an earlier attempt", " steps → "
"""What the command prints."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, tiny_description: Any, tiny_teachers: dict[str, Any]) -> Path:
    """A folder with a family and its teacher of index 0."""
    folder = tmp_path_factory.mktemp("resume")
    (folder / "tiny.yaml").write_text(json.dumps(tiny_description()))
    (folder / "settings.json").write_text(json.dumps(tiny_teachers))
    assert _teach(folder, 0) == 0
    return folder


@pytest.fixture
def chain(base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Path, Teach]:
    """A copy of the folder, and a function that trains a teacher in it and returns what it printed."""
    folder = tmp_path / "run"
    shutil.copytree(base, folder)

    def teach(index: int = 2, *more: str) -> str:
        capsys.readouterr()
        assert _teach(folder, index, "--resume", *more) == 0
        output = capsys.readouterr()
        return output.out + output.err

    return Layout(folder / "results").teacher("tiny", "gap2", 2, 0), teach


def _teach(folder: Path, index: int, *more: str) -> int:
    argv = ["teacher", str(folder / "tiny.yaml"), "--gap", "2", "--index", str(index), "--quiet"]
    return cli.main([*argv, "--results", str(folder / "results"), "--settings", str(folder / "settings.json"), *more])


def _files(teacher: Path) -> list[Path]:
    return [teacher, paths.buffers(teacher), paths.curve(teacher), paths.metrics(teacher), paths.timing(teacher)]


def _delete(teacher: Path) -> dict[str, bytes]:
    """Delete a teacher, as Snakemake deletes the outputs of a failed group."""
    contents = {file.name: file.read_bytes() for file in _files(teacher)}
    for file in _files(teacher):
        file.unlink()
    return contents


def _kept(teacher: Path) -> list[Path]:
    return list((teacher.parent / checkpoints.FOLDER).iterdir())


def test_deleted_teacher_comes_back_unchanged_and_newer_than_the_previous_one(chain: tuple[Path, Teach]) -> None:
    teacher, teach = chain
    assert TRAINED in teach()
    contents = _delete(teacher)
    previous = Layout(teacher.parents[4]).teacher("tiny", "gap2", 0, 0)
    os.utime(previous)
    assert RESTORED in teach()
    assert {file.name: file.read_bytes() for file in _files(teacher)} == contents
    assert min(file.stat().st_mtime_ns for file in _files(teacher)) >= previous.stat().st_mtime_ns
    assert not [file for file in teacher.parent.iterdir() if file.name.endswith(".part")]


def test_checkpoints_take_no_space_and_go_with_the_folder(chain: tuple[Path, Teach]) -> None:
    teacher, teach = chain
    teach()
    (kept,) = _kept(teacher)
    assert all(os.path.samefile(file, kept / file.name) for file in _files(teacher))
    assert kept.is_relative_to(teacher.parent)


def test_without_the_option_nothing_is_kept(base: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(base, folder)
    assert _teach(folder, 2) == 0
    assert not list(folder.rglob(checkpoints.FOLDER))


@pytest.mark.parametrize("damage", ["weights", "manifest", "missing"])
def test_damaged_checkpoint_is_not_trusted(chain: tuple[Path, Teach], damage: str) -> None:
    teacher, teach = chain
    teach()
    contents = _delete(teacher)
    (kept,) = _kept(teacher)
    if damage == "weights":
        bent = bytearray(contents[teacher.name])
        bent[-1] ^= 1
        (kept / teacher.name).write_bytes(bent)
    elif damage == "manifest":
        (kept / checkpoints.MANIFEST).write_text("{")
    else:
        (kept / teacher.name).unlink()
    output = teach()
    assert "not trusted" in output and str(kept) in output and TRAINED in output
    del contents[paths.timing(teacher).name]
    assert {name: (teacher.parent / name).read_bytes() for name in contents} == contents
    assert len(_kept(teacher)) == 1


@pytest.mark.parametrize("change", ["settings", "family", "version", "algorithm", "library"])
def test_teacher_that_would_be_another_is_trained(
    chain: tuple[Path, Teach], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, teach = chain
    folder = teacher.parents[4].parent
    teach()
    _delete(teacher)
    if change == "settings":
        settings = json.loads((folder / "settings.json").read_text())
        (folder / "settings.json").write_text(json.dumps(settings | {"probes": 101}))
        assert _teach(folder, 0) == 0  # all teachers of a split have the same settings
    elif change == "family":
        family = json.loads((folder / "tiny.yaml").read_text())
        family["reward"]["unit"] = 9.0
        (folder / "tiny.yaml").write_text(json.dumps(family))
        assert _teach(folder, 0) == 0  # the previous teacher, too
    elif change == "version":
        monkeypatch.setattr("dibs.teachers.VERSION", 99)
        assert _teach(folder, 0) == 0
    elif change == "algorithm":
        monkeypatch.setitem(vars(get_algorithm("ars")), "version", 99)
        assert _teach(folder, 0) == 0
    else:
        monkeypatch.setattr(checkpoints, "installed", lambda names: dict.fromkeys(names, "another"))
    assert TRAINED in teach()
    assert len(_kept(teacher)) == 1, "outdated copies are deleted"


def test_nothing_is_restored_after_another_previous_teacher(
    chain: tuple[Path, Teach], capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, teach = chain
    folder = teacher.parents[4].parent
    teach()
    _delete(teacher)
    settings = json.loads((folder / "settings.json").read_text())
    (folder / "other.json").write_text(json.dumps(settings | {"probes": 101}))
    assert _teach(folder, 0, "--settings", str(folder / "other.json")) == 0
    assert _teach(folder, 2, "--resume") == 1 and not teacher.exists()
    assert "was trained with other settings than requested for index 2 (probes 101" in capsys.readouterr().err


def test_full_disk_costs_the_checkpoint_and_not_the_teacher(
    chain: tuple[Path, Teach], monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher, teach = chain

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints.tempfile, "mkdtemp", full)
    assert "could not be kept for a later attempt" in teach()
    assert all(file.is_file() for file in _files(teacher))


def test_file_systems_without_hard_links_get_copies(chain: tuple[Path, Teach], monkeypatch: pytest.MonkeyPatch) -> None:
    teacher, teach = chain

    def refuse(*_: Any) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(checkpoints.os, "link", refuse)
    teach()
    contents = _delete(teacher)
    assert RESTORED in teach()
    assert {file.name: file.read_bytes() for file in _files(teacher)} == contents
