"""Reacher: a two-link planar arm whose state is the end effector's position (paper, section 5.1).

The action commands both joint angles and each joint turns towards its command at a limited rate, so a reach
takes several steps. The elbow bends one way only (θ₂ in [0, π]), which makes the joint angles a function of
the position; the shoulder's range [-π/2, π] then covers every position above the floor. The floor y = 0 is
solid, and a position out of reach is pulled back along its ray to the nearest reachable one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dibs.envs.base import Array, Environment


@dataclass(frozen=True)
class Reacher(Environment):
    """joints' = joints + clip(command − joints, ±rate); position' = forward kinematics + noise, made reachable."""

    name: ClassVar[str] = "Reacher"
    state_names: ClassVar[tuple[str, ...]] = ("x", "y")
    action_names: ClassVar[tuple[str, ...]] = ("theta1", "theta2")

    link: float = 5.0
    """Length of each of the two links."""
    rate: float = 0.2
    """Largest change of a joint angle in a step, radians."""
    noise: float = 0.03
    """Standard deviation of the position noise, truncated at one standard deviation."""
    nearest: float = 0.5
    """Smallest distance between the end effector and the shoulder."""

    @property
    def noise_scale(self) -> tuple[float, ...]:
        return (self.noise, self.noise)

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        reach = 2.0 * self.link
        return (-reach, 0.0), (reach, reach)

    def step(self, states: Array, actions: Array, noise: Array) -> Array:
        command = np.clip(actions, -1.0, 1.0)
        theta1, theta2 = self.joints(states)
        wanted1 = (0.25 + 0.75 * command[..., 0]) * np.pi  # [-π/2, π]
        wanted2 = (0.5 + 0.5 * command[..., 1]) * np.pi  # [0, π]
        theta1 = theta1 + np.clip(wanted1 - theta1, -self.rate, self.rate)
        theta2 = theta2 + np.clip(wanted2 - theta2, -self.rate, self.rate)
        return self.project(self.position(theta1, theta2) + self.noise * noise)

    def joints(self, states: Array) -> tuple[Array, Array]:
        """Joint angles of reachable positions, elbow bent counter-clockwise."""
        x, y = states[..., 0], states[..., 1]
        radius = np.sqrt(x * x + y * y)
        half = np.arccos(np.clip(radius / (2.0 * self.link), -1.0, 1.0))  # links are equal
        return np.arctan2(y, x) - half, 2.0 * half

    def position(self, theta1: Array, theta2: Array) -> Array:
        """End effector's position for the joint angles."""
        x = self.link * (np.cos(theta1) + np.cos(theta1 + theta2))
        y = self.link * (np.sin(theta1) + np.sin(theta1 + theta2))
        return np.stack([x, y], axis=-1)

    def project(self, states: Array) -> Array:
        """Return the nearest position above the floor, neither too near the shoulder nor out of reach."""
        x, y = states[..., 0], np.maximum(states[..., 1], 0.0)
        radius = np.sqrt(x * x + y * y)
        allowed = np.clip(radius, self.nearest, 2.0 * self.link * (1.0 - 1e-6))
        scale = allowed / np.maximum(radius, 1e-9)
        at_shoulder = radius < 1e-9  # no ray to follow: straight up
        x = np.where(at_shoulder, 0.0, x * scale)
        y = np.where(at_shoulder, allowed, y * scale)
        return np.stack([x, y], axis=-1).astype(states.dtype, copy=False)

    def least_steps(self, offsets: Array) -> Array:
        # Per step, the tip moves at most rate · 2 link about the shoulder and rate · link about the elbow.
        return np.asarray(np.linalg.norm(offsets, axis=-1) / (3.0 * self.link * self.rate))

    def skeleton(self, states: Array) -> Array:
        """Return shoulder, elbow and end effector (..., 3, 2)."""
        theta1, theta2 = self.joints(states)
        elbow = self.link * np.stack([np.cos(theta1), np.sin(theta1)], axis=-1)
        return np.stack([np.zeros_like(elbow), elbow, self.position(theta1, theta2)], axis=-2)
