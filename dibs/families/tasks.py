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
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from dibs.envs import Array, Environment, truncated_normal
from dibs.errors import DibsError, unknown
from dibs.provenance import digest
from dibs.settings import Positive, Weight
from dibs.spectrl import Edge, Graph, Region, cnf, conjuncts, graph, parse
from dibs.spectrl.syntax import Spec

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
    unsafe_penalty: Weight = 10.0
    """Subtracted for every step spent in an unsafe state, in units of reward."""
    margin: Weight = 0.0
    """While training, states closer than this to an unsafe one are penalized, too."""
    depth: Weight = 0.0
    """While training, the target counts as reached only this deep inside: teachers aim at the middle."""


class Specified:
    """What follows from the text of a specification."""

    if TYPE_CHECKING:
        specification: str

    @cached_property
    def spec(self) -> Spec:
        return parse(self.specification)

    @cached_property
    def graph(self) -> Graph:
        return graph(self.spec)

    @property
    def edges(self) -> tuple[Edge, ...]:
        return self.graph.edges


@dataclass(frozen=True, eq=False)
class Tasks(Specified):
    """The tasks of some indices of one family, under one specification."""

    name: str
    """The family's name, for messages and random streams."""
    environment: Environment
    specification: str
    indices: tuple[int, ...]
    start_center: Array  # (indices, dim)
    start_half: Array  # (indices, dim): noise of the initial states, truncated at one standard deviation
    regions: Mapping[str, Region]  # each an array (indices,)
    horizon: int
    """Steps per edge."""
    reward: RewardModel
    network: NetworkModel
    start_wide: Array | None = None  # (indices, dim): half-widths of wider starts; None: not needed
    start_reset: Array | None = None  # (indices, dim) bool: variables that the environment's own reset draws
    arrivals: Mapping[tuple[int, str], Array] = field(default_factory=dict)
    """States (n, dim) in which teachers of the edges before have arrived, by index and edge."""

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
                "regions": {name: _facts(region) for name, region in self.regions.items()},
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
            regions={name: region[rows] for name, region in self.regions.items()},
            start_wide=None if self.start_wide is None else self.start_wide[rows],
            start_reset=None if self.start_reset is None else self.start_reset[rows],
        )

    def arriving(self, arrivals: Mapping[tuple[int, str], Array]) -> Tasks:
        """Return the same tasks whose edges start from the given states, where an edge has any."""
        return replace(self, arrivals={**self.arrivals, **arrivals})

    def from_arrivals(self, edge: Edge) -> bool:
        """Whether an edge starts from the states in which the one before has arrived.

        It does unless its source determines the whole state: what regions do not constrain, such as velocities, is as
        the edge before leaves it.
        """
        if edge.source is None:
            return False
        fixed = np.zeros(len(self._derived), dtype=bool)
        for name, inside in conjuncts(edge.source):
            fixed |= inside & np.isfinite(self.regions[name].half_width[0])
        return bool((fixed & self._derived).any() or not (fixed | self._derived).all())

    def regions_at(self, index: int) -> dict[str, Region]:
        """Return all regions at one index."""
        (row,) = self._rows([index])
        return {name: region[row] for name, region in self.regions.items()}

    def ground(self, pairs: Sequence[tuple[int, str]]) -> ReachAvoid:
        """Return (index, edge) pairs as one batch of reach-avoid tasks."""
        edges = {edge.name: edge for edge in self.edges}
        for _, name in pairs:
            if name not in edges:
                raise unknown(f"edge of {self.name}", name, edges)
        rows = self._rows([index for index, _ in pairs])
        chosen = [edges[name] for _, name in pairs]
        start_center, start_half, start_uniform, start_ball = self._starts(rows, chosen)
        target, target_sign = self._stack(rows, [[conjuncts(edge.target)] for edge in chosen])
        safe, safe_sign = self._stack(rows, [list(cnf(edge.safe)) if edge.safe is not None else [] for edge in chosen])
        return ReachAvoid(
            environment=self.environment,
            horizon=self.horizon,
            reward=self.reward,
            names=tuple(f"{name}@{index}" for index, name in pairs),
            start_center=start_center,
            start_half=start_half,
            start_uniform=start_uniform,
            start_ball=start_ball,
            target=target[:, 0],
            target_sign=target_sign[:, 0],
            safe=safe,
            safe_sign=safe_sign,
            start_wide=None if self.start_wide is None else self.start_wide[rows],
            start_reset=None if self.start_reset is None else self.start_reset[rows],
            pool=self._pool(pairs, chosen),
        )

    def _pool(self, pairs: Sequence[tuple[int, str]], edges: Sequence[Edge]) -> Array | None:
        """Return known starts (tasks, POOL, dim); NaN: none is known, empty axis: not needed."""
        if self.start_wide is None or not any(self.from_arrivals(edge) for edge in edges):
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

    def _starts(self, rows: Sequence[int], edges: Sequence[Edge]) -> tuple[Array, Array, np.ndarray, np.ndarray]:
        """Center, half-width and kind (tasks, dim) of where edges start: in the region their predecessor reached."""
        low = self.start_center[rows] - self.start_half[rows]
        high = self.start_center[rows] + self.start_half[rows]
        center, half = (low + high) / 2, (high - low) / 2
        uniform, ball = np.zeros(center.shape, dtype=bool), np.zeros(center.shape, dtype=bool)
        for edge in dict.fromkeys(edges):
            mine = [n for n, other in enumerate(edges) if other is edge]
            for name, inside in conjuncts(edge.source) if edge.source is not None else ():
                if not inside:
                    continue
                at = list(self.regions).index(name), [rows[n] for n in mine]
                middle, width, radius = (self._stacked[key][at] for key in ("center", "half_width", "radius"))
                fixed = np.isfinite(width) & ~self._derived
                if np.any(uniform[mine] & fixed):
                    raise DibsError(f"{self.name}: edge {edge.name} starts from two overlapping regions; name one")
                center[mine] = np.where(fixed, middle, center[mine])
                half[mine] = np.where(fixed, width + radius[:, None], half[mine])
                uniform[mine] |= fixed
                ball[mine] |= fixed & (radius > 0)[:, None]
        return center, half, uniform, ball

    @cached_property
    def _stacked(self) -> dict[str, Array]:
        """All regions as arrays (regions, indices, …)."""
        regions, shape = self.regions.values(), (len(self.indices),)
        parts = [region.arrays() | {"offset": np.broadcast_to(region.offset, shape)} for region in regions]
        return {key: np.stack([part[key] for part in parts]) for key in parts[0]}

    def _stack(
        self, rows: Sequence[int], clauses: Sequence[Sequence[Sequence[tuple[str, bool]]]]
    ) -> tuple[Region, np.ndarray]:
        """Stack clauses of literals into a padded array of regions (tasks, clauses, literals), and their signs."""
        most = max((len(c) for c in clauses), default=0)
        literals = max((len(clause) for c in clauses for clause in c), default=0)
        sign = np.zeros((len(rows), most, literals))
        which = np.zeros(sign.shape, dtype=np.intp)
        number = {name: n for n, name in enumerate(self.regions)}
        for t, of_task in enumerate(clauses):
            for k, clause in enumerate(of_task):
                for j, (name, inside) in enumerate(clause):
                    which[t, k, j], sign[t, k, j] = number[name], 1 if inside else -1
        at = which, np.array(rows)[:, None, None]
        arrays = {key: values[at] for key, values in self._stacked.items()}
        padding = {"half_width": 1.0, "offset": -np.inf}
        for key, values in arrays.items():
            values[sign == 0] = padding.get(key, 0.0)
        return Region.trusted(arrays), sign


@dataclass(frozen=True, eq=False)
class ReachAvoid:
    """A batch of reach-avoid tasks; every array leads with the batch axis (tasks)."""

    environment: Environment
    horizon: int
    reward: RewardModel
    names: tuple[str, ...]  # one per task
    start_center: Array  # (tasks, dim)
    start_half: Array  # (tasks, dim)
    start_uniform: Array  # (tasks, dim) bool: uniform in a region, or truncated normal
    start_ball: Array  # (tasks, dim) bool: the region is a ball in these variables
    target: Region  # (tasks, literals)
    target_sign: Array  # (tasks, literals): +1 reach, −1 avoid
    safe: Region  # (tasks, clauses, literals); no clauses: always safe
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
            **{name: value[rows] for name, value in values.items() if isinstance(value, np.ndarray | Region)},  # type: ignore[arg-type]
        )

    def shrunk(self, depth: float) -> ReachAvoid:
        """Return the same tasks with targets that are smaller by `depth` on every side."""
        arrays, change = self.target.arrays(), np.sign(self.target_sign) * depth
        round_ = arrays["radius"] > 0
        cut = arrays["normal"].any(axis=-1)
        return replace(
            self,
            target=Region(
                arrays["center"] + np.where(cut, change, 0.0)[..., None] * arrays["normal"],
                arrays["half_width"] - np.where(round_, 0.0, change)[..., None],
                arrays["radius"] - np.where(round_, change, 0.0),
                arrays["normal"],
            ),
        )

    def initial(self, uniforms: Array) -> Array:
        """Map uniforms (tasks, ..., dim) in [0, 1) to initial states."""
        shape = (self.tasks,) + (1,) * (uniforms.ndim - 2) + (-1,)
        box = 2.0 * uniforms - 1.0
        unit = np.where(self.start_uniform.reshape(shape), box, truncated_normal(uniforms))
        for task in np.flatnonzero(self.start_ball.any(axis=-1)):
            round_ = self.start_ball[task]
            unit[task, ..., round_] = np.moveaxis(uniform_in_ball(uniforms[task][..., round_]), -1, 0)
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
        arrays, half = self.target.arrays(), self.target.reach
        # Of a half-space, the point of its plane counts, in the variables that it constrains.
        half = np.where(np.isinf(half), np.where(arrays["normal"] != 0.0, 0.0, np.nan), half)
        low, high = reached * (arrays["center"] - half), reached * (arrays["center"] + half)
        low = np.fmin(self.start_center - self.start_half, np.fmin.reduce(low, axis=1))
        high = np.fmax(self.start_center + self.start_half, np.fmax.reduce(high, axis=1))
        return low, high


def uniform_in_ball(uniforms: Array) -> Array:
    """Map uniforms (..., k) in [0, 1) to points that are uniform in the unit ball of k dimensions."""
    from scipy.special import gammainc, ndtri

    count = uniforms.shape[-1]
    normal = ndtri(np.clip(uniforms.astype(np.float64), 1e-9, 1.0 - 1e-9))
    squares = np.square(normal).sum(axis=-1, keepdims=True)
    # Direction and length of normal vectors are independent, and the length's distribution function is uniform.
    length = gammainc(count / 2.0, squares / 2.0) ** (1.0 / count)
    return np.asarray(normal / np.sqrt(np.maximum(squares, 1e-300)) * length, dtype=uniforms.dtype)


def _facts(region: Region) -> list[Any]:
    """Return what a digest of tasks contains of a region."""
    facts: list[Any] = [region.center, np.where(np.isinf(region.half_width), -1.0, region.half_width)]
    return facts if region.is_boxes else [*facts, region.radius, region.normal]
