"""A boat that drifts with a current and is seen from a buoy at the origin."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dibs.envs import Array, Environment


@dataclass(frozen=True)
class Boat(Environment):
    """next = state + speed · a + (current, 0) + noise."""

    name: ClassVar[str] = "Boat"
    state_names: ClassVar[tuple[str, ...]] = ("x", "y")
    action_names: ClassVar[tuple[str, ...]] = ("east", "north")

    speed: float = 1.0
    """Largest distance covered along each axis in a step."""
    current: float = 0.1
    """Drift to the east in a step."""
    noise: float = 0.05
    """Standard deviation of the position noise, truncated at one standard deviation."""

    @property
    def noise_scale(self) -> tuple[float, ...]:
        return (self.noise, self.noise)

    def step(self, states: Array, actions: Array, noise: Array) -> Array:
        moved = states + self.speed * np.clip(actions, -1.0, 1.0) + self.noise * noise
        moved[..., 0] += self.current
        return moved

    def observe(self, states: Array) -> Array:
        """Show the position and its distance to the buoy."""
        distance = np.sqrt(np.sum(states * states, axis=-1, keepdims=True))
        return np.concatenate([states, distance], axis=-1)

    def recover(self, observations: Array) -> Array:
        """Read the position off an observation, so that policies know when they have reached a buoy."""
        return observations[..., :2]
