"""Car2D: a planar car that picks a heading and a forward speed at every step (paper, section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dibs.envs.base import Array, Environment


@dataclass(frozen=True)
class Car2D(Environment):
    """next = state + v (cos θ, sin θ) + noise, with v = speed (a₀ + 1) / 2 and θ = π a₁."""

    name: ClassVar[str] = "Car2D"
    state_names: ClassVar[tuple[str, ...]] = ("x", "y")
    action_names: ClassVar[tuple[str, ...]] = ("v", "theta")
    icon = "car"

    speed: float = 1.0
    """Largest distance covered in a step."""
    noise: float = 0.05
    """Standard deviation of the position noise, truncated at one standard deviation."""

    @property
    def noise_scale(self) -> tuple[float, ...]:
        return (self.noise, self.noise)

    @property
    def action_periods(self) -> tuple[float, ...]:
        return (0.0, 2.0)

    def step(self, states: Array, actions: Array, noise: Array) -> Array:
        v = (np.clip(actions[..., 0], -1.0, 1.0) + 1.0) * (0.5 * self.speed)
        theta = np.clip(actions[..., 1], -1.0, 1.0) * np.pi
        moved = self.noise * noise + states
        moved[..., 0] += v * np.cos(theta)
        moved[..., 1] += v * np.sin(theta)
        return moved

    def least_steps(self, offsets: Array) -> Array:
        return np.asarray(np.hypot(offsets[..., 0], offsets[..., 1]) / self.speed)
