"""Finished teachers kept beside the declared outputs, so that a broken chain resumes where it broke.

On a cluster the teachers of a chain run as one job, and when one of them fails, Snakemake deletes the outputs of
all. (Its `--keep-incomplete` would leave them, but also records outdated files of a job that never started as
up to date.) So `dibs teacher --resume` keeps a hard link of what it made, under a key of everything that decides
the bytes, and takes it from there, if every byte is still the same, instead of training again.

    results/teachers/…/seed0/.checkpoints/{index}-{key}/    the teacher's files and manifest.json with their hashes
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dibs import paths
from dibs.errors import DibsError
from dibs.files import atomic, read_json, write_json
from dibs.provenance import digest

FOLDER = ".checkpoints"
MANIFEST = "manifest.json"
LIBRARIES = ("numpy", "scipy", "torch", "stable-baselines3", "sb3-contrib", "gymnasium", "pyarrow", "safetensors")


def checkpoint_key(provenance: Mapping[str, Any], gap: int, index: int, seed: int, previous: Path | None) -> str:
    """Digest of all that a teacher's bytes depend on: settings, family, code, libraries, the previous teacher."""
    before = None if previous is None else _hash(previous)
    libraries = {"python": platform.python_version(), **{name: _version(name) for name in LIBRARIES}}
    return digest({**provenance, "run": [gap, index, seed], "previous": before, "libraries": libraries})


def keep(output: Path, key: str) -> None:
    """Keep a teacher's files; those kept of it under another key go."""
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
        # The teacher itself is safe; only a later failure in its chain would cost more.
        print(f"{output}: could not be kept for a later attempt ({error})", file=sys.stderr)


def restore(output: Path, key: str) -> bool:
    """Bring back a teacher kept under the key; False if there is none that can be trusted."""
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


def _files(output: Path) -> list[Path]:
    """A teacher's files, the weights last: whoever sees these finds the others."""
    return [paths.buffers(output), paths.metrics(output), paths.timing(output), output]


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


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return ""
