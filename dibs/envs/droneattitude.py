"""DroneAttitude: 3-D navigation with body-frame velocities and angular rates (paper, section 5.1).

The command (forward, sideways, up) is rotated by pitch about the body's left axis and then by yaw about the
vertical; yaw and pitch follow the commanded rates. Yaw wraps into (-π, π], pitch stops at its limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dibs.envs.base import Array, Environment


@dataclass(frozen=True)
class DroneAttitude(Environment):
    """position' = position + R_z(ψ) R_y(θ) (speed · a_v) + noise; attitude' = attitude + rate · a_ω + noise."""

    name: ClassVar[str] = "DroneAttitude"
    state_names: ClassVar[tuple[str, ...]] = ("x", "y", "z", "psi", "theta")
    action_names: ClassVar[tuple[str, ...]] = ("vf", "vs", "vu", "w_psi", "w_theta")
    icon = "drone"
    space = (0, 1, 2)

    speed: float = 1.0
    """Largest distance covered along each body axis in a step."""
    rate: float = 0.15
    """Largest change of yaw and pitch in a step, radians."""
    pitch_limit: float = 0.6
    """Largest pitch either way, radians."""
    noise: float = 0.05
    """Standard deviation of the position noise, truncated at one standard deviation."""
    attitude_noise: float = 0.01
    """Standard deviation of the attitude noise, truncated at one standard deviation."""

    @property
    def noise_scale(self) -> tuple[float, ...]:
        return (self.noise,) * 3 + (self.attitude_noise,) * 2

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        high = (np.inf, np.inf, np.inf, np.pi, self.pitch_limit)
        return tuple(-h for h in high), high

    @property
    def periods(self) -> tuple[float, ...]:
        return (0.0, 0.0, 0.0, 2.0 * np.pi, 0.0)

    def step(self, states: Array, actions: Array, noise: Array) -> Array:
        a = np.clip(actions, -1.0, 1.0)
        psi, theta = states[..., 3], states[..., 4]
        forward, sideways, up = (self.speed * a[..., i] for i in range(3))
        cos_psi, sin_psi, cos_theta, sin_theta = np.cos(psi), np.sin(psi), np.cos(theta), np.sin(theta)
        level = forward * cos_theta + up * sin_theta  # the forward command seen in the horizontal plane
        moved = states + np.asarray(self.noise_scale, dtype=states.dtype) * noise
        moved[..., 0] += level * cos_psi - sideways * sin_psi
        moved[..., 1] += level * sin_psi + sideways * cos_psi
        moved[..., 2] += up * cos_theta - forward * sin_theta
        moved[..., 3] += self.rate * a[..., 3]
        moved[..., 4] += self.rate * a[..., 4]
        # Wrapping must not disturb angles that are in range already, to the last bit.
        yaw = moved[..., 3]
        moved[..., 3] = np.where(np.abs(yaw) > np.pi, np.pi - (np.pi - yaw) % (2 * np.pi), yaw)
        moved[..., 4] = np.clip(moved[..., 4], -self.pitch_limit, self.pitch_limit)
        return moved

    def least_steps(self, offsets: Array) -> Array:
        moved = np.linalg.norm(offsets[..., :3], axis=-1) / (np.sqrt(3.0) * self.speed)  # full speed on all body axes
        return np.asarray(np.maximum(moved, np.abs(offsets[..., 3:]).max(axis=-1) / self.rate))

    def attitude(self, state: Array) -> tuple[float, float]:
        return float(state[3]), float(state[4])
