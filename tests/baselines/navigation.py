"""2-D navigation to a goal that is not observed, where the papers of MAML and VariBAD say that they must succeed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dibs.baselines.flat import FlatView
from dibs.envs import Array, Environment
from dibs.simulation import Bools, Progress

VIEW = FlatView(np.zeros(2, dtype=np.float32), np.ones(2, dtype=np.float32), stages=1, observe_stage=False)


@dataclass(frozen=True)
class Point(Environment):
    """A point that moves by up to 0.1 per step and axis."""

    name: ClassVar[str] = "Point"
    state_names: ClassVar[tuple[str, ...]] = ("x", "y")
    action_names: ClassVar[tuple[str, ...]] = ("dx", "dy")

    @property
    def noise_scale(self) -> tuple[float, ...]:
        return 0.0, 0.0

    def step(self, states: Array, actions: Array, noise: Array) -> Array:
        return states + np.float32(0.1) * np.clip(actions, -1.0, 1.0)


@dataclass(frozen=True, eq=False)
class Navigation:
    """Points that start at the origin and should go to a goal, one per task, that they do not observe."""

    goals: np.ndarray  # (tasks, 2)
    horizon: int = 20
    environment: Environment = Point()

    @property
    def tasks(self) -> int:
        return len(self.goals)

    def initial(self, uniforms: Array) -> Array:
        return np.zeros_like(uniforms)

    def begin(self, states: Array) -> Progress:
        yes = np.ones(states.shape[:-1], dtype=bool)
        return Progress(np.zeros(yes.shape, dtype=np.intp), self._distance(states), yes, yes, None)

    def advance(self, progress: Progress, states: Array) -> Progress:
        return progress._replace(distance=self._distance(states))

    def reward(self, before: Progress, after: Progress, time: Any) -> Array:
        return -after.distance

    def success(self, progress: Progress) -> Bools:
        return ~progress.alive

    def _distance(self, states: Array) -> Array:
        return np.asarray(np.linalg.norm(states - self.goals[:, None], axis=-1))
