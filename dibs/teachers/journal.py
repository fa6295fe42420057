"""Checkpoints within the training of one teacher, so that a run that was killed continues where it stopped.

Training is a sequence of named pieces: the search of one edge, the arrivals of another. The journal keeps the results
of finished pieces and, every so many seconds, writes them to one file together with the state of the piece that is
running, the random stream and the buffers. A run that finds the file takes the results of finished pieces from it and
continues the running one. The file is removed when the teacher is saved.

    results/teachers/…/seed0/.checkpoints/{index}.partial.safetensors
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dibs.errors import DibsError
from dibs.files import KEY, atomic, damaged, existing
from dibs.teachers.buffers import StateBuffers

Tree = Any
"""Nested mappings and lists of arrays, numbers and strings; keys are strings or integers."""


@dataclass(eq=False)
class Journal:
    """What a killed run of one teacher leaves behind; without a file, nothing is written."""

    file: Path | None = None
    key: str = ""
    """Digest of all that the teacher depends on: a file with another key is not used."""
    seconds: float = 300.0
    """Time between two checkpoints."""
    finished: dict[str, Tree] = field(default_factory=dict)
    """Results of finished pieces, by name."""
    _running: Tree | None = None
    _last: float = field(default_factory=time.monotonic)

    def begin(self, rng: np.random.Generator, buffers: StateBuffers) -> Journal:
        """Watch the given stream and buffers, and read what an earlier run has left, if anything."""
        self._rng, self._buffers = rng, buffers
        if self.file is None or not self.file.exists():
            return self
        try:
            found = read_tree(self.file)
            if found["key"] != self.key:
                raise DibsError("it belongs to other settings, tasks or versions")
            self.finished, self._running = found["finished"], found
            print(f"{self.file}: continuing an interrupted run ({found['piece']})", file=sys.stderr)
        except (DibsError, KeyError, TypeError) as error:
            print(f"{self.file}: not used ({error}); training from the beginning", file=sys.stderr)
        return self

    def once(self, piece: str, make: Callable[[], Tree]) -> Tree:
        """Return the result of a piece, made now unless it was finished before."""
        if piece not in self.finished:
            self.finished[piece] = make()
        return self.finished[piece]

    def resume(self, piece: str) -> Tree | None:
        """Return the state in which the piece was interrupted, and restore stream and buffers; None: begin it."""
        if self._running is None or self._running["piece"] != piece:
            return None
        found, self._running = self._running, None
        self._rng.bit_generator.state = found["rng"]
        self._buffers.restore(found["buffers"])
        return found["state"]

    def tick(self, piece: str, state: Callable[[], Tree]) -> None:
        """Write a checkpoint if it is time for one; `state` returns that of the running piece."""
        if self.file is None or time.monotonic() - self._last < self.seconds:
            return
        now = {"piece": piece, "state": state(), "rng": self._rng.bit_generator.state, "buffers": self._buffers.saved()}
        write_tree(self.file, {"key": self.key, "finished": self.finished, **now})
        self._last = time.monotonic()

    def close(self) -> None:
        """Remove the file and what a kill while writing left of it: the teacher is complete."""
        if self.file is not None:
            self.file.unlink(missing_ok=True)
            for part in self.file.parent.glob(f".{self.file.name}.*.part"):
                part.unlink(missing_ok=True)


def write_tree(path: Path, tree: Tree) -> None:
    """Write nested mappings and lists as one safetensors file; infinite numbers are allowed."""
    from safetensors.numpy import save_file

    arrays: dict[str, np.ndarray] = {}

    def pack(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {"map": [[k, pack(v)] for k, v in value.items()]}
        if isinstance(value, list | tuple):
            return {"list": [pack(v) for v in value]}
        if isinstance(value, np.ndarray):
            arrays[str(len(arrays))] = np.asarray(value, order="C")
            return {"array": str(len(arrays) - 1)}
        return value.item() if isinstance(value, np.generic) else value

    skeleton = json.dumps(pack(tree))
    with atomic(path) as temporary:
        save_file(arrays, temporary, metadata={KEY: skeleton})


def read_tree(path: Path) -> Tree:
    """Read what `write_tree` has written; tuples come back as lists."""
    from safetensors import SafetensorError, safe_open

    def unpack(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        ((kind, inside),) = value.items()
        if kind == "array":
            return file.get_tensor(inside)
        return {k: unpack(v) for k, v in inside} if kind == "map" else [unpack(v) for v in inside]

    try:
        with safe_open(str(existing(path)), framework="numpy") as file:
            return unpack(json.loads((file.metadata() or {})[KEY]))
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise damaged(path, error) from None
