"""2-D navigation to a goal that is not seen, where the papers of MAML and VariBAD say that they must succeed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dibs.baselines.flat import Draws


class Point(NamedTuple):
    states: np.ndarray
    stage: np.ndarray
    alive: np.ndarray


@dataclass(frozen=True, eq=False)
class Navigation:
    """Points that start at the origin and should go to a goal, one per task, that they do not see."""

    goals: np.ndarray  # (tasks, 2)
    horizon: int = 20
    observation_dim: int = 2
    action_dim: int = 2

    @property
    def indices(self) -> tuple[int, ...]:
        return tuple(range(len(self.goals)))

    def draw(self, rollouts: int, rng: np.random.Generator) -> Draws:
        starts = np.zeros((len(self.goals), rollouts, 2), dtype=np.float32)
        return Draws(starts, np.zeros((self.horizon, *starts.shape), dtype=np.float32))

    def begin(self, states: np.ndarray) -> Point:
        return Point(states, np.zeros(states.shape[:-1], dtype=np.intp), np.ones(states.shape[:-1], dtype=bool))

    def step(self, seen: Point, actions: np.ndarray, noise: np.ndarray) -> tuple[Point, np.ndarray]:
        after = seen.states + np.float32(0.1) * np.clip(actions, -1.0, 1.0)
        return seen._replace(states=after), -np.linalg.norm(after - self.goals[:, None], axis=-1)

    def observe(self, states: np.ndarray, stage: np.ndarray) -> np.ndarray:
        return states

    def satisfied(self, seen: Point) -> np.ndarray:
        return np.zeros(seen.alive.shape, dtype=bool)
