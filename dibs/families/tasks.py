"""Batches of reach-avoid tasks φ(G, S) as arrays (paper, section 3.2): what teachers train on.

A `ReachAvoid` holds any batch of (index, edge) pairs of one family: boxes to reach, boxes to stay in or out
of, initial states. All methods are numpy calls over the whole batch, with rollouts (and candidates) behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from dibs.envs import Array, Dynamics
from dibs.envs.base import truncated_normal
from dibs.errors import DibsError, unknown
from dibs.families.model import Family, start_box
from dibs.spectrl import Edge, cnf, conjuncts


@dataclass(frozen=True, eq=False)
class ReachAvoid:
    """A batch of reach-avoid tasks; every array leads with the batch axis (tasks)."""

    dynamics: Dynamics
    horizon: int
    names: tuple[str, ...]  # one per task
    start_center: Array  # (tasks, dim)
    start_half: Array  # (tasks, dim)
    start_uniform: Array  # (tasks, dim) bool: uniform in the box, or truncated normal
    target_center: Array  # (tasks, literals, dim)
    target_half: Array  # (tasks, literals, dim)
    target_sign: Array  # (tasks, literals): +1 reach, −1 avoid
    safe_center: Array  # (tasks, clauses, literals, dim); no clauses: always safe
    safe_half: Array
    safe_sign: Array  # (tasks, clauses, literals); 0: padding
    unit: float
    unsafe_penalty: float
    margin: float

    @property
    def tasks(self) -> int:
        return len(self.names)

    def take(self, tasks: Sequence[int]) -> ReachAvoid:
        """The sub-batch of the given tasks."""
        rows = list(tasks)
        arrays = {
            key: getattr(self, key)[rows]
            for key in self.__dataclass_fields__
            if isinstance(getattr(self, key), np.ndarray)
        }
        rest = {key: getattr(self, key) for key in ("dynamics", "horizon", "unit", "unsafe_penalty", "margin")}
        return ReachAvoid(names=tuple(self.names[i] for i in rows), **rest, **arrays)

    def initial(self, uniforms: Array) -> Array:
        """Map uniforms (tasks, ..., dim) in [0, 1) to initial states."""
        shape = (self.tasks,) + (1,) * (uniforms.ndim - 2) + (-1,)
        box = 2.0 * uniforms - 1.0
        unit = np.where(self.start_uniform.reshape(shape), box, truncated_normal(uniforms))
        center, half = self.start_center.reshape(shape), self.start_half.reshape(shape)
        return self.allowed(np.asarray(center + half * unit, dtype=uniforms.dtype))

    def allowed(self, states: Array) -> Array:
        """The nearest states that the dynamics allow."""
        low, high = (np.asarray(bound, dtype=states.dtype) for bound in self.dynamics.bounds)
        states = np.clip(states, low, high)
        reachable = getattr(self.dynamics, "reachable", None)
        return states if reachable is None else np.asarray(reachable(states))

    def extent(self) -> tuple[Array, Array]:
        """Lowest and highest corner (tasks, dim) of where each edge starts and what it must reach."""
        reached = np.where(self.target_sign > 0, 1.0, np.nan)[..., None]
        half = np.where(np.isinf(self.target_half), np.nan, self.target_half)
        low, high = reached * (self.target_center - half), reached * (self.target_center + half)
        low = np.fmin(self.start_center - self.start_half, np.fmin.reduce(low, axis=1))
        high = np.fmax(self.start_center + self.start_half, np.fmax.reduce(high, axis=1))
        return low, high

    def target_distance(self, states: Array) -> Array:
        """Signed distance (tasks, ...) to the target of states (tasks, ..., dim), positive inside."""
        best = None
        for j in range(self.target_sign.shape[1]):
            d = _box_distance(states, self.target_center[:, j], self.target_half[:, j])
            d = d * _expand(self.target_sign[:, j], d) if np.any(self.target_sign[:, j] < 0) else d
            pad = self.target_sign[:, j] == 0
            if pad.any():
                d = np.where(_expand(pad, d), np.inf, d)
            best = d if best is None else np.minimum(best, d)
        assert best is not None
        return best

    def safe_distance(self, states: Array) -> Array | None:
        """Signed distance (tasks, ...) to the nearest unsafe state, positive while safe; None: always safe."""
        worst = None
        for k in range(self.safe_sign.shape[1]):
            clause = None
            for j in range(self.safe_sign.shape[2]):
                sign = self.safe_sign[:, k, j]
                if not sign.any():
                    continue
                d = _box_distance(states, self.safe_center[:, k, j], self.safe_half[:, k, j])
                d = np.where(_expand(sign == 0, d), -np.inf, d * _expand(sign, d))
                clause = d if clause is None else np.maximum(clause, d)
            if clause is None:
                continue
            empty = np.asarray(~self.safe_sign[:, k].any(axis=-1))  # this task has fewer clauses
            clause = np.where(_expand(empty, clause), np.inf, clause)
            worst = clause if worst is None else np.minimum(worst, clause)
        return worst

    def reward(self, distance: Array, safety: Array | None) -> Array:
        """Reward per step from the two signed distances: progress, less a penalty while unsafe."""
        reward = np.minimum(distance, 0.0) / self.unit
        if safety is not None:
            # Graded within the margin, so that "closer to the wall is worse" has a slope to follow.
            depth = np.clip((self.margin - safety) / max(self.margin, 1e-6), 0.0, 1.0)
            reward = reward - self.unsafe_penalty * np.where(safety < 0.0, 1.0, 0.5 * depth)
        return np.asarray(reward)


def reach_avoid(family: Family, indices: Iterable[int], edges: Sequence[str] | None = None) -> ReachAvoid:
    """Ground the given edges (all by default) of `family` at the given indices; tasks are index-major."""
    names = list(edges) if edges is not None else [edge.name for edge in family.edges]
    return ground(family, [(index, name) for index in indices for name in names])


def ground(family: Family, tasks: Sequence[tuple[int, str]]) -> ReachAvoid:
    """Ground (index, edge) pairs as one batch of reach-avoid tasks."""
    for index, _ in tasks:
        family.check_index(index, beyond=True)
    pairs = [(int(index), edge_named(family, name)) for index, name in tasks]
    starts = [_start(family, index, edge) for index, edge in pairs]
    targets = [[conjuncts(edge.target)] for _, edge in pairs]
    safes = [list(cnf(edge.safe)) if edge.safe is not None else [] for _, edge in pairs]
    target = _stack(family, pairs, targets)
    safe = _stack(family, pairs, safes)
    return ReachAvoid(
        dynamics=family.dynamics,
        horizon=family.horizon,
        names=tuple(f"{edge.name}@{index}" for index, edge in pairs),
        start_center=np.stack([s[0] for s in starts]),
        start_half=np.stack([s[1] for s in starts]),
        start_uniform=np.stack([s[2] for s in starts]),
        target_center=target[0][:, 0],
        target_half=target[1][:, 0],
        target_sign=target[2][:, 0],
        safe_center=safe[0],
        safe_half=safe[1],
        safe_sign=safe[2],
        unit=family.reward.unit,
        unsafe_penalty=family.reward.unsafe_penalty,
        margin=family.reward.margin,
    )


def edge_named(family: Family, name: str) -> Edge:
    """Find an edge of the family by its name."""
    for edge in family.edges:
        if edge.name == name:
            return edge
    raise unknown(f"edge of {family.name}", name, [edge.name for edge in family.edges])


def _start(family: Family, index: int, edge: Edge) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Centre, half-width and kind of the states an edge starts from: the box its predecessor reached."""
    low, high = start_box(family, index)
    center, half = (low + high) / 2, (high - low) / 2
    uniform = np.zeros(len(center), dtype=bool)
    if edge.source is not None:
        for name, inside in conjuncts(edge.source):
            if not inside:
                continue
            box = family.regions[name].box(index)
            fixed = np.isfinite(box.half_width)
            if np.any(uniform & fixed):
                raise DibsError(f"{family.name}: edge {edge.name} starts from two overlapping regions; name one")
            center = np.where(fixed, box.center, center)
            half = np.where(fixed, box.half_width, half)
            uniform |= fixed
    return center, half, uniform


def _stack(
    family: Family,
    pairs: list[tuple[int, Edge]],
    clauses: Sequence[Sequence[Sequence[tuple[str, bool]]]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Stack clauses of literals into padded arrays (tasks, clauses, literals[, dim])."""
    dim = len(family.dynamics.state_names)
    most = max((len(c) for c in clauses), default=0)
    literals = max((len(clause) for c in clauses for clause in c), default=0)
    center = np.zeros((len(pairs), most, literals, dim))
    half = np.ones_like(center)
    sign = np.zeros((len(pairs), most, literals))
    for t, (index, _) in enumerate(pairs):
        for k, clause in enumerate(clauses[t]):
            for j, (name, inside) in enumerate(clause):
                box = family.regions[name].box(index)
                center[t, k, j], half[t, k, j], sign[t, k, j] = (
                    box.center,
                    box.half_width,
                    1 if inside else -1,
                )
    return center, half, sign


def _box_distance(states: Array, center: np.ndarray, half: np.ndarray) -> Array:
    """Euclidean signed distance of states (tasks, ..., dim) to one box per task, positive inside."""
    shape = (center.shape[0],) + (1,) * (states.ndim - 2)
    center, half = center.astype(states.dtype), half.astype(states.dtype)
    deepest = squares = None
    # One variable at a time: on large batches three times faster than over the last axis.
    for d in range(states.shape[-1]):
        excess = np.abs(states[..., d] - center[:, d].reshape(shape))
        excess -= half[:, d].reshape(shape)
        deepest = excess if deepest is None else np.maximum(deepest, excess)
        outside = np.maximum(excess, 0.0)
        outside *= outside
        squares = outside if squares is None else np.add(squares, outside, out=squares)
    assert deepest is not None and squares is not None
    return np.where(deepest > 0.0, -np.sqrt(squares), -deepest)


def _expand(per_task: np.ndarray, like: Array) -> np.ndarray:
    return per_task.reshape((-1,) + (1,) * (like.ndim - 1))
