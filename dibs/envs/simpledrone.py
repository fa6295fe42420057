"""SimpleDrone: holonomic navigation in three dimensions with velocity commands (paper, section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dibs.envs.base import Array, Environment


@dataclass(frozen=True)
class SimpleDrone(Environment):
    """next = state + speed · a + noise."""

    name: ClassVar[str] = "SimpleDrone"
    state_names: ClassVar[tuple[str, ...]] = ("x", "y", "z")
    action_names: ClassVar[tuple[str, ...]] = ("vx", "vy", "vz")
    icon = "drone"
    space = (0, 1, 2)

    speed: float = 1.0
    """Largest distance covered along each axis in a step."""
    noise: float = 0.05
    """Standard deviation of the position noise, truncated at one standard deviation."""

    @property
    def noise_scale(self) -> tuple[float, ...]:
        return (self.noise,) * 3

    def step(self, states: Array, actions: Array, noise: Array) -> Array:
        return states + self.speed * np.clip(actions, -1.0, 1.0) + self.noise * noise

    def least_steps(self, offsets: Array) -> Array:
        return np.asarray(np.abs(offsets).max(axis=-1) / self.speed)
