"""Tasks as the simulator sees them: where episodes start, how far they have come, and what a step is worth.

`EdgeTask` is a batch of reach-avoid edges; `SpecTask` in `specifications.py` is a whole specification at several
indices. Both follow a batch of episodes as values of type `Progress`; nothing is changed in place. Arrays are
(..., tasks, rollouts[, dim]); axes in front, such as the candidates of a search, are free.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dibs.envs import Array, Environment
from dibs.families import ReachAvoid, RewardModel
from dibs.simulation.distance import Columns, columns, signed_distance
from dibs.spectrl import MonitorState, Region
from dibs.spectrl.regions import Bools

Levels = npt.NDArray[np.intp]
Rows = npt.NDArray[np.intp]
RewardKind = Literal["distance", "progress"]


class Progress(NamedTuple):
    """How far episodes have come; arrays are (..., tasks, rollouts)."""

    stage: Levels  # stages completed; the number of stages once satisfied (of a single edge: always 0)
    distance: Array  # still to go: to the next target and on through all after it, on the shortest way
    alive: Bools  # neither satisfied nor over for another reason
    safe: Bools  # no unsafe state so far
    safety: Array | None  # distance to the nearest unsafe state, positive while safe; None: everything is safe
    memory: MonitorState | None = None


@dataclass(frozen=True)
class Rewards:
    """What a step is worth; the defaults are those of a reach-avoid edge."""

    kind: RewardKind = "distance"
    """Minus the distance to go, or how much of it the step has covered."""
    bonus: float = 0.0
    """Added for every completed stage."""
    penalty: float = 1.0
    """Share of the family's penalty for unsafe states."""


class Task(Protocol):
    """What the rollout loop asks of a task."""

    @property
    def environment(self) -> Environment: ...
    @property
    def horizon(self) -> int:
        """Steps after which an episode is cut off."""

    @property
    def tasks(self) -> int:
        """Number of tasks in the batch."""

    def initial(self, uniforms: Array) -> Array:
        """Map uniforms (tasks, ..., dim) in [0, 1) to initial states."""

    def begin(self, states: Array) -> Progress:
        """Episodes that start in states (..., tasks, rollouts, dim)."""

    def advance(self, progress: Progress, states: Array) -> Progress:
        """The same episodes one step later."""

    def reward(self, before: Progress, after: Progress, time: Any) -> Array:
        """Rewards (..., tasks, rollouts) of the step from `before` to `after`.

        `time` is the number of steps before it.
        """

    def success(self, progress: Progress) -> Bools:
        """Which episodes have done what they should."""


def step_reward(
    model: RewardModel, rewards: Rewards, before: Progress, after: Progress, left: Any, ends_unsafe: bool
) -> Array:
    """Return the reward of one step of every episode (..., tasks, rollouts): the only reward in the package.

    The distance to go counts in units of `model.unit`. An unsafe state costs the penalty, one within the margin up to
    half of it. If an unsafe state ends the episode, it also costs what standing still for the `left` steps would have
    cost: otherwise ending early would be a gain.
    """
    unit, penalty = np.float32(model.unit), np.float32(rewards.penalty * model.unsafe_penalty)
    far = rewards.kind == "distance"
    reward = after.distance / -unit if far else (before.distance - after.distance) / unit
    failed = None
    if ends_unsafe:
        failed = before.alive & ~after.alive & ~after.safe
        if failed.any():
            standing = before.distance / -unit * left if far else np.float32(0.0)
            reward = np.where(failed, standing - penalty, reward)
        else:
            failed = None
    if after.safety is not None:
        if ends_unsafe:
            hazard = _near(after.safety, model.margin) if model.margin > 0.0 else None
            if hazard is not None and failed is not None:
                hazard = hazard * ~failed
        else:
            hazard = np.where(after.safety < 0.0, np.float32(1.0), _near(after.safety, model.margin))
        if hazard is not None:
            reward = reward - penalty * hazard
    if rewards.bonus:
        reward = reward + np.float32(rewards.bonus) * (after.stage > before.stage)
    return np.asarray(reward)


def _near(safety: Array, margin: float) -> Array:
    """Half of how deep states are in the margin around what is unsafe, from 0 to 0.5."""
    depth = np.clip((margin - safety) / max(margin, 1e-6), 0.0, 1.0)
    return np.asarray(np.float32(0.5) * depth)


@dataclass(frozen=True, eq=False)
class EdgeTask:
    """A batch of reach-avoid edges: over when the target is reached, a success if no state on the way was unsafe.

    As in `dibs.spectrl.Edge`, safety is asked of every state after the first. Unsafe states cost reward but do not end
    an episode.
    """

    edges: ReachAvoid
    depth: float = 0.0
    """The target counts as reached this deep inside."""

    @property
    def environment(self) -> Environment:
        return self.edges.environment

    @property
    def horizon(self) -> int:
        return self.edges.horizon

    @property
    def tasks(self) -> int:
        return self.edges.tasks

    def take(self, rows: Iterable[int]) -> EdgeTask:
        """Return some of the edges."""
        return replace(self, edges=self.edges.take([int(row) for row in rows]))

    def initial(self, uniforms: Array) -> Array:
        return self.edges.initial(uniforms)

    def begin(self, states: Array) -> Progress:
        batch = states.shape[:-1]
        yes = np.ones(batch, dtype=bool)
        # Rewards by distance never read the distance before the first step, so it is not computed.
        return Progress(np.zeros(batch, dtype=np.intp), np.zeros(1, dtype=states.dtype), yes, yes, None)

    def advance(self, progress: Progress, states: Array) -> Progress:
        inside = self.target_distance(states)
        safety = self.safe_distance(states)
        safe = progress.safe if safety is None else progress.safe & ((safety >= 0.0) | ~progress.alive)
        alive = progress.alive & ~(inside >= self.depth)  # a NaN has not arrived
        distance = np.minimum(inside, 0.0)
        return Progress(progress.stage, np.negative(distance, out=distance), alive, safe, safety)

    def reward(self, before: Progress, after: Progress, time: Any) -> Array:
        return step_reward(self.edges.reward, Rewards(), before, after, 0, ends_unsafe=False)

    def success(self, progress: Progress) -> Bools:
        return np.asarray(progress.safe & ~progress.alive)

    def restart(self, progress: Progress, states: Array, rows: Rows) -> Progress:
        """Return `progress` of a single task with the episodes in `rows` begun again."""
        alive, safe = progress.alive.copy(), progress.safe.copy()
        alive[..., rows] = safe[..., rows] = True
        return progress._replace(alive=alive, safe=safe)

    def target_distance(self, states: Array) -> Array:
        """Return the signed distance (...) of states (..., tasks, rollouts, dim) to the target, positive inside."""
        best = None
        for sign, box in self._targets(states.dtype):
            d = signed_distance(states, box)
            if sign is not None:
                d = np.where(sign == 0, np.inf, d * sign)
            best = d if best is None else np.minimum(best, d)
        assert best is not None
        return best

    def safe_distance(self, states: Array) -> Array | None:
        """Return the signed distance to the nearest unsafe state, positive while safe; None: always safe."""
        worst = None
        for empty, literals in self._safe(states.dtype):
            clause = None
            for sign, box in literals:
                d = signed_distance(states, box)
                d = d * np.float64(-1.0) if sign is None else np.where(sign == 0, -np.inf, d * sign)
                clause = d if clause is None else np.maximum(clause, d)
            assert clause is not None
            if empty is not None:
                clause = np.where(empty, np.inf, clause)
            worst = clause if worst is None else np.minimum(worst, clause)
        return worst

    # Signs are None where all tasks agree on the usual one (+1 in targets, −1 in safe sets), and (tasks, 1) otherwise.

    @cached_property
    def _grounded(self) -> dict[Any, Any]:
        return {}

    def _targets(self, dtype: Any) -> list[tuple[Array | None, Columns]]:
        key, e = ("target", np.dtype(dtype)), self.edges
        if key not in self._grounded:
            self._grounded[key] = [
                (_sign(e.target_sign[:, j], 1), _columns(e.target[:, j], dtype)) for j in range(e.target_sign.shape[1])
            ]
        return self._grounded[key]

    def _safe(self, dtype: Any) -> list[tuple[Bools | None, list[tuple[Array | None, Columns]]]]:
        key = ("safe", np.dtype(dtype))
        if key not in self._grounded:
            e, clauses = self.edges, []
            for k in range(e.safe_sign.shape[1]):
                literals = [
                    (_sign(e.safe_sign[:, k, j], -1), _columns(e.safe[:, k, j], dtype))
                    for j in range(e.safe_sign.shape[2])
                    if e.safe_sign[:, k, j].any()
                ]
                empty = np.asarray(~e.safe_sign[:, k].any(axis=-1))  # this task has fewer clauses
                if literals:
                    clauses.append((empty[:, None] if empty.any() else None, literals))
            self._grounded[key] = clauses
        return self._grounded[key]


def _sign(signs: Array, usual: int) -> Array | None:
    return None if (signs == usual).all() else signs[:, None]


def _columns(regions: Region, dtype: Any) -> Columns:
    """Return regions (tasks,) such that they broadcast against (tasks, rollouts)."""
    return columns(regions[:, None], dtype)
