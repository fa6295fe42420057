"""Files: whole or not there, free of NaN, and named when they are damaged."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from dibs.errors import DibsError
from dibs.files import (
    atomic,
    plain,
    read_json,
    read_metadata,
    read_table,
    read_tensors,
    with_metadata,
    write_json,
    write_table,
    write_tensors,
)

TENSORS = {"b": np.arange(6.0).reshape(2, 3), "a": np.array([1, 2], dtype=np.int64)}
META = {"seed": 0, "edges": ("x", "y"), "rate": np.float32(0.5)}


def write(kind: str, path: Path) -> None:
    if kind == "json":
        write_json(path, META)
    elif kind == "tensors":
        write_tensors(path, TENSORS, META)
    else:
        write_table(path, pa.table({"x": [1.0, 2.0]}), META)


READ = {"json": read_json, "tensors": read_tensors, "table": read_table}
KINDS = sorted(READ)


# --- atomicity -------------------------------------------------------------------------------------------


def test_a_file_appears_when_it_is_complete(tmp_path):
    target = tmp_path / "deep" / "down" / "file.txt"
    with atomic(target) as temporary:
        temporary.write_text("half")
        assert not target.exists() and temporary.parent == target.parent
        written = temporary.stat().st_ino
    assert target.stat().st_ino == written  # renamed, not copied
    assert target.read_text() == "half" and list(target.parent.iterdir()) == [target]
    assert stat.S_IMODE(target.stat().st_mode) == 0o644  # readable by everyone who shares the results


def test_a_failure_leaves_what_was_there(tmp_path):
    target = tmp_path / "file.txt"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), atomic(target) as temporary:
        temporary.write_text("new")
        raise ZeroDivisionError
    assert target.read_text() == "old" and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("kind", KINDS)
def test_a_process_killed_while_it_writes_leaves_no_file(tmp_path, kind):
    """Killed after the bytes are written, right before the file would take its name."""
    script = f"""
import os, signal
from pathlib import Path
import numpy as np, pyarrow as pa
from dibs import files
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
target = Path({str(tmp_path / "result")!r})
files.write_json(target, {{"x": 1}}) if {kind!r} == "json" else None
files.write_tensors(target, {{"x": np.ones(9)}}, {{}}) if {kind!r} == "tensors" else None
files.write_table(target, pa.table({{"x": [1.0]}}), {{}})
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "result").exists()
    assert all(file.name.startswith(".result.") and file.suffix == ".part" for file in tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_content_gives_the_same_bytes(tmp_path, kind):
    write(kind, tmp_path / "a")
    write(kind, tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_order_of_keys_does_not_show(tmp_path):
    write_tensors(tmp_path / "a", TENSORS, {"x": 1, "y": 2})
    write_tensors(tmp_path / "b", dict(reversed(TENSORS.items())), {"y": 2, "x": 1})
    write_json(tmp_path / "c", {"x": 1, "y": 2})
    write_json(tmp_path / "d", {"y": 2, "x": 1})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "c").read_bytes() == (tmp_path / "d").read_bytes()


# --- content ---------------------------------------------------------------------------------------------


def test_content_reads_back(tmp_path):
    for kind in KINDS:
        write(kind, tmp_path / kind)
    tensors, meta = read_tensors(tmp_path / "tensors")
    expected = {"seed": 0, "edges": ["x", "y"], "rate": 0.5}
    assert meta == expected == read_json(tmp_path / "json")
    assert {name: (t.dtype, t.tolist()) for name, t in tensors.items()} == {
        name: (t.dtype, t.tolist()) for name, t in TENSORS.items()
    }
    table, meta = read_table(tmp_path / "table")
    assert meta == expected and table["x"].to_pylist() == [1.0, 2.0]
    assert read_table(tmp_path / "table", columns=["x"])[0].column_names == ["x"]


def test_views_are_written_as_what_they_show(tmp_path):
    array = np.arange(12.0).reshape(3, 4)
    write_tensors(tmp_path / "t", {"x": array.T[::2]}, {})
    assert np.array_equal(read_tensors(tmp_path / "t")[0]["x"], array.T[::2])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_tensors_that_are_not_finite_are_refused(tmp_path, bad):
    with pytest.raises(DibsError, match=r"t\.safetensors: refusing to write x, which has values that are not finite"):
        write_tensors(tmp_path / "t.safetensors", {"ok": np.ones(2), "x": np.array([1.0, bad])}, {})
    assert list(tmp_path.iterdir()) == []


def test_json_has_null_where_there_is_no_number(tmp_path):
    write_json(tmp_path / "m.json", {"a": float("nan"), "b": [np.float32("inf"), 1.0], "c": np.array([np.nan])})
    assert json.loads((tmp_path / "m.json").read_text()) == {"a": None, "b": [None, 1.0], "c": [None]}


def test_plain_leaves_only_plain_values():
    value = {1: (np.int64(2), np.bool_(True)), "x": np.array([[1.5]]), "y": None, "z": {"deep": np.float64(3.0)}}
    assert plain(value) == {"1": [2, True], "x": [[1.5]], "y": None, "z": {"deep": 3.0}}
    assert type(plain(np.bool_(True))) is bool and type(plain(np.int32(1))) is int


def test_metadata_replaces_whatever_a_table_had():
    table = pa.table({"x": [1]}).replace_schema_metadata({"pandas": "{}"})
    assert list(with_metadata(table, {"seed": 1}).schema.metadata) == [b"dibs"]


# --- damage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_missing_file_is_named(tmp_path, kind):
    with pytest.raises(DibsError, match=r"gone: no such file; run the step that makes it first"):
        READ[kind](tmp_path / "gone")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("damage", ["empty", "half", "last byte", "text", "zeros", "binary"])
def test_a_damaged_file_is_named(tmp_path, kind, damage):
    file = tmp_path / "result.x"
    write(kind, file)
    content = file.read_bytes()
    changed = {
        "empty": b"",
        "half": content[: len(content) // 2],
        "last byte": content[:-3],
        "text": b"<html>not found</html>",
        "zeros": bytes(len(content)),
        "binary": bytes(range(256)),
    }
    file.write_bytes(changed[damage])
    with pytest.raises(DibsError, match=r"result\.x: damaged or not what it should be \(.+\); delete it and rerun"):
        READ[kind](file)


def test_files_of_other_makers_are_named(tmp_path):
    from safetensors.numpy import save_file

    save_file({"x": np.ones(2)}, tmp_path / "t")
    with pytest.raises(DibsError, match="t: damaged or not what it should be"):
        read_tensors(tmp_path / "t")
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1]}), tmp_path / "p")
    with pytest.raises(DibsError, match="p: damaged or not what it should be"):
        read_table(tmp_path / "p")


def test_nothing_is_pickled(tmp_path):
    with pytest.raises((TypeError, DibsError)):
        write_tensors(tmp_path / "t", {"x": np.array([object()])}, {})
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(DibsError, match="no such file"):
        read_json(tmp_path)


# --- metadata without contents ---------------------------------------------------------------------------

SUFFIXES = {"tensors": ".safetensors", "table": ".parquet"}


@pytest.mark.parametrize("kind", SUFFIXES)
def test_metadata_are_read_without_the_contents(tmp_path, kind):
    file = tmp_path / f"file{SUFFIXES[kind]}"
    write(kind, file)
    assert read_metadata(file) == read_metadata(str(file)) == READ[kind](file)[1]


@pytest.mark.parametrize("kind", SUFFIXES)
@pytest.mark.parametrize("damage", ["empty", "half", "last byte", "text", "other"])
def test_metadata_of_a_damaged_file(tmp_path, kind, damage):
    file = tmp_path / f"file{SUFFIXES[kind]}"
    write(kind, file)
    content = file.read_bytes()
    write("table" if kind == "tensors" else "tensors", tmp_path / "other")
    changed = {
        "empty": b"",
        "half": content[: len(content) // 2],
        "last byte": content[:-3],
        "text": b"<html>not found</html>",
        "other": (tmp_path / "other").read_bytes(),
    }
    file.write_bytes(changed[damage])
    with pytest.raises(DibsError, match=rf"file\{SUFFIXES[kind]}: damaged or not what it should be \(.+\); delete it"):
        read_metadata(file)


@pytest.mark.parametrize("kind", SUFFIXES)
def test_metadata_of_a_missing_file(tmp_path, kind):
    with pytest.raises(DibsError, match=rf"gone\{SUFFIXES[kind]}: no such file; run the step that makes it first"):
        read_metadata(tmp_path / f"gone{SUFFIXES[kind]}")


def test_metadata_of_files_of_other_makers(tmp_path):
    import pyarrow.parquet as pq
    from safetensors.numpy import save_file

    save_file({"x": np.ones(2)}, tmp_path / "t.safetensors")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "p.parquet")
    for name in ("t.safetensors", "p.parquet"):
        with pytest.raises(DibsError, match=f"{name}: damaged or not what it should be"):
            read_metadata(tmp_path / name)
