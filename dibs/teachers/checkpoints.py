"""Copies of finished teachers, so that a chain that was interrupted continues where it stopped.

On a cluster the teachers of a chain run as one job. If one of them fails, Snakemake deletes the outputs of all. (Its
`--keep-incomplete` would keep them, but it also records outdated files of a job that never started as up to date.) So
`dibs teacher --resume` keeps a hard link of what it made, under a key of everything that determines the bytes. The
next attempt takes the copy, if every byte is still the same, instead of training again.

    results/teachers/…/seed0/.checkpoints/{index}-{key}/    the teacher's files and manifest.json with their hashes
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from dibs import paths
from dibs.errors import DibsError
from dibs.files import atomic, read_json, write_json
from dibs.provenance import Origin, digest, installed
from dibs.teachers.journal import Journal

FOLDER = ".checkpoints"
MANIFEST = "manifest.json"
INTERVAL = "DIBS_CHECKPOINT"
LIBRARIES = (
    "numpy",
    "scipy",
    "torch",
    "stable-baselines3",
    "sb3-contrib",
    "gymnasium",
    "mujoco",
    "pyarrow",
    "safetensors",
)


def checkpoint_key(origin: Origin, previous: Path | None) -> str:
    """Return a digest of all that a teacher's bytes depend on: origin, previous teacher's bytes, libraries."""
    before = None if previous is None else _hash(previous)
    libraries = {"python": platform.python_version(), **installed(LIBRARIES)}
    return digest({"id": origin.id, "previous": before, "libraries": libraries})


def keep(output: Path, key: str) -> None:
    """Keep a copy of a teacher's files; copies under other keys are deleted."""
    folder = _folder(output, key)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".part", dir=folder.parent))
        try:
            for file in _files(output):
                _link(file, part / file.name)
            write_json(part / MANIFEST, {"key": key, "files": {f.name: _hash(f) for f in _files(output)}})
            for old in folder.parent.glob(f"{output.stem}-*"):
                shutil.rmtree(old, ignore_errors=True)
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        # The teacher itself is complete. Only a later failure in its chain would cost more.
        print(f"{output}: could not be kept for a later attempt ({error})", file=sys.stderr)


def restore(output: Path, key: str) -> bool:
    """Restore the copy under a key; False if there is none that can be trusted."""
    folder = _folder(output, key)
    if not folder.is_dir():
        return False
    try:
        manifest = read_json(folder / MANIFEST)
        expected = {file.name: manifest["files"][file.name] for file in _files(output)}
        wrong = [name for name, sha256 in expected.items() if _hash(folder / name) != sha256]
        if wrong or manifest["key"] != key:
            raise DibsError(f"{', '.join(wrong) or MANIFEST} changed since")
        for file in _files(output):
            with atomic(file) as part:
                part.unlink()
                _link(folder / file.name, part)
                os.utime(part)  # newer than the previous teacher, whenever that was made
    except (OSError, DibsError, KeyError, TypeError) as error:
        print(f"{folder}: not trusted ({error}); training again", file=sys.stderr)
        return False
    return True


def open_journal(output: Path | None, origin: Origin, previous: Path | None, seconds: float | None = None) -> Journal:
    """Return the journal of a teacher in training, written every so many seconds (`interval` by default; 0: never)."""
    every = interval() if seconds is None else seconds
    if output is None or not every > 0.0:
        return Journal()
    file = output.parent / FOLDER / f"{output.stem}.partial.safetensors"
    return Journal(file, checkpoint_key(origin, previous), every)


def interval() -> float:
    """Return the seconds between two checkpoints of a teacher in training: DIBS_CHECKPOINT, or five minutes."""
    given = os.environ.get(INTERVAL, "300")
    try:
        return float(given)
    except ValueError:
        raise DibsError(f"{INTERVAL}: expected seconds, found {given!r}") from None


def _files(output: Path) -> list[Path]:
    """Return a teacher's files, the weights last: where these are, the others are complete."""
    return [paths.buffers(output), paths.curve(output), paths.metrics(output), paths.timing(output), output]


def _folder(output: Path, key: str) -> Path:
    return output.parent / FOLDER / f"{output.stem}-{key}"


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without hard links
        shutil.copyfile(source, target)


def _hash(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
