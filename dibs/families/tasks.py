"""Grounded tasks: regions, start and horizon as numbers. Methods are trained on these, never on families.

`Tasks` holds the tasks of some indices of one family. It knows nothing about other indices, so a method that is given
the training tasks cannot use an unseen one. `Tasks.ground` turns (index, edge) pairs into a batch of reach-avoid tasks
φ(G, S) (paper, section 3.2), the arrays on which teachers are trained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from dibs.envs import Array, Environment, truncated_normal
from dibs.errors import DibsError, unknown
from dibs.provenance import digest
from dibs.spectrl import Box, Edge, Graph, cnf, conjuncts, graph, parse
from dibs.spectrl.syntax import Spec

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
AtLeastZero = Annotated[float, Field(ge=0, allow_inf_nan=False)]
POOL = 256  # states kept of those in which an edge's predecessor arrived


class NetworkModel(BaseModel):
    """The actor: a multilayer perceptron with a tanh output."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    hidden: Annotated[list[Annotated[int, Field(gt=0)]], Field(min_length=1)]
    activation: Annotated[str, Field(pattern="^(tanh|relu)$")] = "tanh"


class RewardModel(BaseModel):
    """Reward per step: signed distance to the target, over `unit`, minus a penalty while unsafe."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    unit: Positive = 1.0
    """Distance that counts as one unit of reward."""
    unsafe_penalty: AtLeastZero = 10.0
    """Subtracted for every step spent in an unsafe state, in units of reward."""
    margin: AtLeastZero = 0.0
    """While training, states closer than this to an unsafe one are penalized, too."""
    depth: AtLeastZero = 0.0
    """While training, the target counts as reached only this deep inside: teachers aim at the middle."""


@dataclass(frozen=True, eq=False)
class Tasks:
    """The tasks of some indices of one family, under one specification."""

    name: str
    """The family's name, for messages and random streams."""
    environment: Environment
    specification: str
    indices: tuple[int, ...]
    start_center: Array  # (indices, dim)
    start_half: Array  # (indices, dim): noise of the initial states, truncated at one standard deviation
    regions: Mapping[str, Box]  # centers and half-widths (indices, dim)
    horizon: int
    """Steps per edge."""
    reward: RewardModel
    network: NetworkModel
    start_wide: Array | None = None  # (indices, dim): half-widths of wider starts; only with derived variables
    start_reset: Array | None = None  # (indices, dim) bool: variables that the environment's own reset draws
    arrivals: Mapping[tuple[int, str], Array] = field(default_factory=dict)
    """States (n, dim) in which teachers of the edges before have arrived, by index and edge."""

    @cached_property
    def spec(self) -> Spec:
        return parse(self.specification)

    @cached_property
    def graph(self) -> Graph:
        return graph(self.spec)

    @property
    def edges(self) -> tuple[Edge, ...]:
        return self.graph.edges

    @property
    def edge_names(self) -> tuple[str, ...]:
        return tuple(edge.name for edge in self.edges)

    @cached_property
    def digest(self) -> str:
        """Digest of everything that training on these tasks can depend on."""
        constants = dataclasses.asdict(self.environment)  # type: ignore[call-overload]
        more = {"wide": self.start_wide, "reset": self.start_reset}
        return digest(
            {
                "environment": [self.environment.name, self.environment.version, constants],
                "specification": self.specification,
                "indices": self.indices,
                "start": [self.start_center, self.start_half],
                "regions": {
                    name: [box.center, np.where(np.isinf(box.half_width), -1.0, box.half_width)]
                    for name, box in self.regions.items()
                },
                "horizon": self.horizon,
                "reward": self.reward.model_dump(),
                "network": self.network.model_dump(),
            }
            | {name: value for name, value in more.items() if value is not None}
        )

    def at(self, indices: Sequence[int]) -> Tasks:
        """Return the tasks of some of the indices."""
        rows = self._rows(indices)
        return replace(
            self,
            indices=tuple(int(i) for i in indices),
            start_center=self.start_center[rows],
            start_half=self.start_half[rows],
            regions={name: Box(box.center[rows], box.half_width[rows]) for name, box in self.regions.items()},
            start_wide=None if self.start_wide is None else self.start_wide[rows],
            start_reset=None if self.start_reset is None else self.start_reset[rows],
        )

    def arriving(self, arrivals: Mapping[tuple[int, str], Array]) -> Tasks:
        """Return the same tasks whose edges start from the given states, where an edge has any."""
        return replace(self, arrivals={**self.arrivals, **arrivals})

    def from_arrivals(self, edge: Edge) -> bool:
        """Whether an edge's source constrains derived variables, so that states cannot be drawn in it."""
        derived = [name in self.environment.derived for name in self.environment.state_names]
        sources = [name for name, inside in conjuncts(edge.source) if inside] if edge.source is not None else []
        return any(np.isfinite(self.regions[name].half_width[..., derived]).any() for name in sources)

    def under(self, specification: str) -> Tasks:
        """Return the same tasks under another specification over the same regions."""
        return replace(self, specification=specification)

    def boxes(self, index: int) -> dict[str, Box]:
        """Return all regions at one index."""
        (row,) = self._rows([index])
        return {name: Box(box.center[row], box.half_width[row]) for name, box in self.regions.items()}

    def ground(self, pairs: Sequence[tuple[int, str]]) -> ReachAvoid:
        """Return (index, edge) pairs as one batch of reach-avoid tasks."""
        edges = {edge.name: edge for edge in self.edges}
        for _, name in pairs:
            if name not in edges:
                raise unknown(f"edge of {self.name}", name, edges)
        rows = self._rows([index for index, _ in pairs])
        chosen = [edges[name] for _, name in pairs]
        starts = [self._start(row, edge) for row, edge in zip(rows, chosen, strict=True)]
        target = self._stack(rows, [[conjuncts(edge.target)] for edge in chosen])
        safe = self._stack(rows, [list(cnf(edge.safe)) if edge.safe is not None else [] for edge in chosen])
        return ReachAvoid(
            environment=self.environment,
            horizon=self.horizon,
            reward=self.reward,
            names=tuple(f"{name}@{index}" for index, name in pairs),
            start_center=np.stack([s[0] for s in starts]),
            start_half=np.stack([s[1] for s in starts]),
            start_uniform=np.stack([s[2] for s in starts]),
            target_center=target[0][:, 0],
            target_half=target[1][:, 0],
            target_sign=target[2][:, 0],
            safe_center=safe[0],
            safe_half=safe[1],
            safe_sign=safe[2],
            start_wide=None if self.start_wide is None else self.start_wide[rows],
            start_reset=None if self.start_reset is None else self.start_reset[rows],
            pool=self._pool(pairs, chosen),
        )

    def _pool(self, pairs: Sequence[tuple[int, str]], edges: Sequence[Edge]) -> Array | None:
        """Return known starts (tasks, POOL, dim); NaN: none is known, empty axis: not needed."""
        if not self.environment.derived or not any(self.from_arrivals(edge) for edge in edges):
            return None
        pool = np.full((len(pairs), POOL, len(self.environment.state_names)), np.nan, dtype=np.float32)
        for row, ((index, name), edge) in enumerate(zip(pairs, edges, strict=True)):
            known = self.arrivals.get((index, name), ())
            if not self.from_arrivals(edge):
                pool[row] = np.inf
            elif len(known):
                pool[row] = np.resize(known, pool[row].shape)
        return pool

    def reach_avoid(self, indices: Sequence[int] | None = None, edges: Sequence[str] | None = None) -> ReachAvoid:
        """Return all given edges (all by default) at all given indices (all by default), index by index."""
        names = self.edge_names if edges is None else edges
        return self.ground([(i, name) for i in (self.indices if indices is None else indices) for name in names])

    @cached_property
    def _derived(self) -> np.ndarray:
        return np.array([name in self.environment.derived for name in self.environment.state_names])

    def _rows(self, indices: Sequence[int]) -> list[int]:
        missing = [i for i in indices if i not in self.indices]
        if missing:
            raise DibsError(f"{self.name}: index {missing[0]} is not among these tasks: {list(self.indices)}")
        return [self.indices.index(i) for i in indices]

    def _start(self, row: int, edge: Edge) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Center, half-width and kind of the states an edge starts from: the box its predecessor reached."""
        low = self.start_center[row] - self.start_half[row]
        high = self.start_center[row] + self.start_half[row]
        center, half = (low + high) / 2, (high - low) / 2
        uniform = np.zeros(len(center), dtype=bool)
        if edge.source is not None:
            for name, inside in conjuncts(edge.source):
                if not inside:
                    continue
                box_center, box_half = self.regions[name].center[row], self.regions[name].half_width[row]
                fixed = np.isfinite(box_half) & ~self._derived
                if np.any(uniform & fixed):
                    raise DibsError(f"{self.name}: edge {edge.name} starts from two overlapping regions; name one")
                center = np.where(fixed, box_center, center)
                half = np.where(fixed, box_half, half)
                uniform |= fixed
        return center, half, uniform

    def _stack(
        self, rows: Sequence[int], clauses: Sequence[Sequence[Sequence[tuple[str, bool]]]]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Stack clauses of literals into padded arrays (tasks, clauses, literals[, dim])."""
        most = max((len(c) for c in clauses), default=0)
        literals = max((len(clause) for c in clauses for clause in c), default=0)
        center = np.zeros((len(rows), most, literals, len(self.environment.state_names)))
        half = np.ones_like(center)
        sign = np.zeros((len(rows), most, literals))
        for t, row in enumerate(rows):
            for k, clause in enumerate(clauses[t]):
                for j, (name, inside) in enumerate(clause):
                    box = self.regions[name]
                    center[t, k, j], half[t, k, j] = box.center[row], box.half_width[row]
                    sign[t, k, j] = 1 if inside else -1
        return center, half, sign


@dataclass(frozen=True, eq=False)
class ReachAvoid:
    """A batch of reach-avoid tasks; every array leads with the batch axis (tasks)."""

    environment: Environment
    horizon: int
    reward: RewardModel
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
    start_wide: Array | None = None  # (tasks, dim): half-widths of wider starts
    start_reset: Array | None = None  # (tasks, dim) bool: variables that the environment's own reset draws
    pool: Array | None = None  # (tasks, POOL, dim): known starts; NaN: none, so starts are wide; inf: not needed
    wide_share: float = 0.0
    """Share of wider starts among those from the pool."""

    @property
    def tasks(self) -> int:
        return len(self.names)

    @property
    def dim(self) -> int:
        """Number of state variables."""
        return int(self.start_center.shape[1])

    def take(self, tasks: Sequence[int]) -> ReachAvoid:
        """Return the sub-batch of the given tasks."""
        rows = list(tasks)
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return replace(
            self,
            names=tuple(self.names[i] for i in rows),
            **{name: value[rows] for name, value in values.items() if isinstance(value, np.ndarray)},  # type: ignore[arg-type]
        )

    def shrunk(self, depth: float) -> ReachAvoid:
        """Return the same tasks with targets that are smaller by `depth` on every side."""
        return replace(self, target_half=self.target_half - np.sign(self.target_sign)[..., None] * depth)

    def initial(self, uniforms: Array) -> Array:
        """Map uniforms (tasks, ..., dim) in [0, 1) to initial states."""
        shape = (self.tasks,) + (1,) * (uniforms.ndim - 2) + (-1,)
        box = 2.0 * uniforms - 1.0
        unit = np.where(self.start_uniform.reshape(shape), box, truncated_normal(uniforms))
        center, half = self.start_center.reshape(shape), self.start_half.reshape(shape)
        states = np.asarray(center + half * unit, dtype=uniforms.dtype)
        if self.start_reset is not None:
            drawn = self.environment.reset(uniforms)
            assert drawn is not None
            states = np.where(self.start_reset.reshape(shape), drawn, states)
        if self.pool is not None:
            states = self._from_pool(states, uniforms)
        return self.allowed(states)

    def _from_pool(self, states: Array, uniforms: Array) -> Array:
        """Return starts from the pool or wider ones; the last uniform, which no start uses, decides."""
        assert self.pool is not None
        chance, wide = uniforms[..., -1], self.wide(uniforms)
        states = states.copy()
        for task, pool in enumerate(self.pool):
            if np.isnan(pool[0, 0]):
                states[task] = wide[task]
            elif np.isfinite(pool[0, 0]):
                share = self.wide_share
                rows = ((chance[task] - share) / (1.0 - share) * len(pool)).astype(int)
                known = pool[np.clip(rows, 0, len(pool) - 1)]
                states[task] = np.where((chance[task] < share)[..., None], wide[task], known)
        return states

    def wide(self, uniforms: Array) -> Array:
        """Map uniforms (tasks, ..., dim) to states around the start; derived variables are not computed yet."""
        assert self.start_wide is not None
        shape = (self.tasks,) + (1,) * (uniforms.ndim - 2) + (-1,)
        center, half = self.start_center.reshape(shape), self.start_wide.reshape(shape)
        return np.asarray(center + half * (2.0 * uniforms - 1.0), dtype=uniforms.dtype)

    def allowed(self, states: Array) -> Array:
        """Return the nearest states that the environment allows."""
        low, high = (np.asarray(bound, dtype=states.dtype) for bound in self.environment.bounds)
        return self.environment.project(np.clip(states, low, high))

    def extent(self) -> tuple[Array, Array]:
        """Return the lowest and highest corner (tasks, dim) of where each edge starts and what it must reach.

        With derived variables, of the wider starts: what a region asks of derived variables bounds no state.
        """
        if self.start_wide is not None:
            return self.start_center - self.start_wide, self.start_center + self.start_wide
        reached = np.where(self.target_sign > 0, 1.0, np.nan)[..., None]
        half = np.where(np.isinf(self.target_half), np.nan, self.target_half)
        low, high = reached * (self.target_center - half), reached * (self.target_center + half)
        low = np.fmin(self.start_center - self.start_half, np.fmin.reduce(low, axis=1))
        high = np.fmax(self.start_center + self.start_half, np.fmax.reduce(high, axis=1))
        return low, high
