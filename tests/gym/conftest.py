"""Shared by the tests of the environments: recorded random numbers, and a driver for Car2D."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


class Tape:
    """A random generator that plays back uniforms (draws, n, dim), for all environments or for one."""

    def __init__(self, uniforms: np.ndarray, only: int | None = None) -> None:
        self.uniforms = uniforms if only is None else uniforms[:, only : only + 1]
        self.draws = 0

    def random(self, shape: tuple[int, ...], dtype: Any = np.float64) -> np.ndarray:
        drawn = self.uniforms[self.draws].astype(dtype)
        assert drawn.shape == tuple(shape), "an episode ended: the tape is for those that go on"
        self.draws += 1
        return drawn


@pytest.fixture
def tape() -> type[Tape]:
    return Tape


def towards(states: np.ndarray, goal: Any) -> np.ndarray:
    """Car2D actions (..., 2) that drive straight to the goal."""
    ahead = np.asarray(goal, dtype=np.float32) - states
    speed = 2.0 * np.minimum(np.linalg.norm(ahead, axis=-1), 1.0) - 1.0
    return np.stack([speed, np.arctan2(ahead[..., 1], ahead[..., 0]) / np.pi], axis=-1).astype(np.float32)


@pytest.fixture
def drive() -> Any:
    return towards
