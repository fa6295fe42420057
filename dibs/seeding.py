"""Random streams: one seed sequence keyed by what the numbers are for.

Every stage draws from `stream(stage, family, split, index, seed, …)`, so results do not depend on the order
or the number of processes in which jobs run.
"""

from __future__ import annotations

import hashlib

import numpy as np


def _words(key: tuple[object, ...]) -> list[int]:
    digest = hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()
    return [int.from_bytes(digest[i : i + 4], "little") for i in range(0, 32, 4)]


def stream(*key: object) -> np.random.Generator:
    """Return the generator for `key`; equal keys give equal streams, different keys independent ones."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(_words(key))))


def torch_seed(*key: object) -> int:
    """Return a 31-bit seed for libraries that take an integer."""
    return _words(key)[0] & 0x7FFFFFFF
