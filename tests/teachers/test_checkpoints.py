"""Copies of finished teachers: under which key they are kept, and which are trusted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dibs import paths
from dibs.provenance import Origin
from dibs.teachers import checkpoints
from dibs.teachers.checkpoints import FOLDER, checkpoint_key, keep, restore

ORIGIN = Origin("teacher", {"family": "tiny", "index": 2}, "tasks", "settings", {"teachers": 1}, ("before",))


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A teacher's files, which need not be real ones."""
    output = tmp_path / "seed0" / "2.safetensors"
    output.parent.mkdir()
    for file in (output, paths.buffers(output), paths.curve(output), paths.metrics(output), paths.timing(output)):
        file.write_text(file.name)
    return output


def remove(output: Path) -> dict[str, str]:
    """Delete the outputs, as Snakemake does when a job fails; return what they contained."""
    files = [file for file in output.parent.iterdir() if file.is_file()]
    contents = {file.name: file.read_text() for file in files}
    for file in files:
        file.unlink()
    return contents


def test_a_copy_is_restored_byte_by_byte(output: Path) -> None:
    keep(output, "key")
    contents = remove(output)
    assert restore(output, "key")
    assert remove(output) == contents and len(contents) == 5
    assert restore(output, "key")  # the copy is still there


def test_nothing_is_restored_under_another_key(output: Path) -> None:
    assert not restore(output, "key")
    keep(output, "key")
    remove(output)
    assert not restore(output, "other") and not output.exists()


def test_only_the_last_copy_is_kept(output: Path) -> None:
    keep(output, "first")
    keep(output, "second")
    assert [folder.name for folder in (output.parent / FOLDER).iterdir()] == ["2-second"]


@pytest.mark.parametrize("name", ["2.safetensors", "2.json", "manifest.json"])
def test_a_copy_that_was_changed_is_not_trusted(output: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    keep(output, "key")
    remove(output)
    copy = output.parent / FOLDER / "2-key" / name
    copy.unlink()
    copy.write_text("{}")
    assert not restore(output, "key") and not output.exists()
    assert "not trusted" in capsys.readouterr().err


def test_a_copy_that_cannot_be_made_is_no_error(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoints, "_link", full)
    keep(output, "key")
    assert "disk full" in capsys.readouterr().err
    assert list((output.parent / FOLDER).iterdir()) == []


def test_the_key_depends_on_all_that_determines_the_bytes(output: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = [
        checkpoint_key(ORIGIN, output),
        checkpoint_key(ORIGIN, None),
        checkpoint_key(replace(ORIGIN, settings="other"), output),
        checkpoint_key(replace(ORIGIN, versions={"teachers": 2}), output),
    ]
    assert checkpoint_key(replace(ORIGIN), output) == keys[0]
    output.write_text("other weights")  # the previous teacher was trained again, and is another one
    keys.append(checkpoint_key(ORIGIN, output))
    monkeypatch.setattr(checkpoints, "installed", lambda names: dict.fromkeys(names, "99"))
    keys.append(checkpoint_key(ORIGIN, output))
    assert len(set(keys)) == len(keys)
