"""Tasks as the simulator sees them: where episodes start, how far they have come, and what a step is worth.

`EdgeTask` is a batch of reach-avoid edges, `SpecTask` a whole specification at several indices. Both follow a batch of
episodes as values of type `Progress`; nothing is changed in place. Arrays are (..., tasks, rollouts[, dim]); axes in
front, such as the candidates of a search, are free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dibs.envs import Array, Environment
from dibs.families import ReachAvoid, RewardModel, Tasks
from dibs.spectrl import Monitor, MonitorState, Reach, Region, dnf, where
from dibs.spectrl.regions import Bools
from dibs.spectrl.stages import QUANTITATIVE, Stages, evaluate, stages_of
from dibs.spectrl.syntax import Predicate

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


# --- signed distances ------------------------------------------------------------------------------------


class Columns(NamedTuple):
    """Regions by variable; all arrays broadcast against the states without their last axis."""

    box: list[tuple[int, Array, Array]]  # variable, center, half-width of those that are not free
    radius: Array | None = None  # None: no ball among them
    plane: tuple[tuple[int, Array], ...] = ()  # variable, normal; empty: no half-space among them
    offset: Array | None = None

    def map(self, change: Callable[[Array], Array]) -> Columns:
        """Return the same regions with every array changed."""
        return Columns(
            [(d, change(center), change(half)) for d, center, half in self.box],
            None if self.radius is None else change(self.radius),
            tuple((d, change(normal)) for d, normal in self.plane),
            None if self.offset is None else change(self.offset),
        )


def columns(region: Region, dtype: Any) -> Columns:
    """Return an array of regions by variable."""
    arrays = region.arrays()
    center, half = arrays["center"].astype(dtype), arrays["half_width"].astype(dtype)
    box = [
        (d, np.ascontiguousarray(center[..., d]), np.ascontiguousarray(half[..., d]))
        for d in range(center.shape[-1])
        if np.isfinite(half[..., d]).any()
    ]
    if region.is_boxes:
        return Columns(box)
    normal = arrays["normal"].astype(dtype)
    cut = [d for d in range(normal.shape[-1]) if normal[..., d].any()]
    return Columns(
        box,
        arrays["radius"].astype(dtype) if arrays["radius"].any() else None,
        tuple((d, np.ascontiguousarray(normal[..., d])) for d in cut),
        np.broadcast_to(region.offset, region.batch_shape).astype(dtype) if cut else None,
    )


def signed_distance(states: Array, region: Columns) -> Array:
    """Return the Euclidean signed distance (...) of states (..., dim) to regions, positive inside."""
    inside = _box_distance(states, region.box)
    if region.radius is not None:
        inside = inside + region.radius
    if region.offset is not None:
        height = -region.offset
        for d, normal in region.plane:
            height = height + normal * states[..., d]
        inside = np.minimum(inside, height)
    return inside


def _box_distance(states: Array, box: list[tuple[int, Array, Array]]) -> Array:
    deepest = squares = None
    # One variable at a time: on large batches three times faster than over the last axis.
    for d, center, half in box:
        excess = states[..., d] - center
        np.abs(excess, out=excess)
        excess -= half
        outside = np.maximum(excess, 0.0)
        outside *= outside
        deepest = excess if deepest is None else np.maximum(deepest, excess, out=deepest)
        squares = outside if squares is None else np.add(squares, outside, out=squares)
    if deepest is None or squares is None:
        return np.full(states.shape[:-1], np.inf, dtype=states.dtype)
    np.sqrt(squares, out=squares)
    np.copyto(squares, deepest, where=deepest <= 0.0)
    return np.negative(squares, out=squares)


# --- reach-avoid edges -----------------------------------------------------------------------------------


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


# --- whole specifications --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SpecTask:
    """A whole specification at several indices: over when satisfied or violated."""

    grounded: Tasks
    rewards: Rewards = Rewards(bonus=1.0)
    depth: float = 0.0
    """Targets count as reached this deep inside; honored by layered specifications only."""

    @property
    def environment(self) -> Environment:
        return self.grounded.environment

    @property
    def indices(self) -> tuple[int, ...]:
        return self.grounded.indices

    @property
    def tasks(self) -> int:
        return len(self.grounded.indices)

    def take(self, rows: Iterable[int]) -> SpecTask:
        """Return the task at some of the indices."""
        return replace(self, grounded=self.grounded.at([self.indices[int(row)] for row in rows]))

    @cached_property
    def stages(self) -> int:
        """Stages on the longest way through the specification."""
        return stages_of(self.grounded.spec).depth

    @property
    def horizon(self) -> int:
        return self.stages * self.grounded.horizon

    def initial(self, uniforms: Array) -> Array:
        return self._starts.initial(uniforms)

    def begin(self, states: Array) -> Progress:
        return self._tracker.begin(states)

    def advance(self, progress: Progress, states: Array) -> Progress:
        return self._tracker.advance(progress, states)

    def reward(self, before: Progress, after: Progress, time: Any) -> Array:
        reward = step_reward(self.grounded.reward, self.rewards, before, after, self.horizon - time, ends_unsafe=True)
        return np.asarray(reward * before.alive)

    def success(self, progress: Progress) -> Bools:
        return np.asarray(progress.stage == self.stages)

    def restart(self, progress: Progress, states: Array, rows: Rows) -> Progress:
        """Return `progress` of a single task with the episodes in `rows` begun again in states (..., rollouts, dim)."""
        mask = np.zeros(states.shape[:-1], dtype=bool)
        mask[..., rows] = True
        joined: Any = (_joined(mask, new, old) for new, old in zip(self.begin(states), progress, strict=True))
        return Progress(*joined)

    @cached_property
    def _starts(self) -> ReachAvoid:
        """Some first edge at every index: all of them start from the same states."""
        first = self.grounded.graph.outgoing("start")[0].name
        return self.grounded.reach_avoid(edges=[first])

    @cached_property
    def _tracker(self) -> Layered | Monitored:
        spec, regions = self.grounded.spec, self.grounded.regions
        program = stages_of(spec)
        used = {name: regions[name] for name in program.regions}
        return Layered(program, used, self.depth) if layered(program) else Monitored(self.grounded, used)


def _joined(mask: Bools, new: Any, old: Any) -> Any:
    """Return what is `new` for the episodes in `mask` and `old` elsewhere; None if there is nothing."""
    if new is None:
        return None
    return where(mask, new, old) if isinstance(new, MonitorState) else np.where(mask, new, old)


def layered(program: Stages) -> bool:
    """Whether every level comes after all of the one before, with single regions to reach and one safe context."""
    levels: list[list[int]] = [[] for _ in range(program.depth)]
    for number, level in enumerate(program.levels):
        levels[level - 1].append(number)
    follows = all(
        set(program.stages[number].after) == set(before)
        for before, level in zip([[], *levels[:-1]], levels, strict=True)
        for number in level
    )
    simple = all(isinstance(stage.target, Reach) for stage in program.stages)
    return follows and simple and len({stage.safe for stage in program.stages}) == 1


class Layered:
    """Follows specifications in which every level, `achieve reach(a)` or a choice of such, comes after all of the level
    before.

    All of the paper's specifications are of this kind. An episode's state is then one number, the level it is at, and a
    step costs a few table look-ups for any number of stages. Constants are tables over (level, task).
    """

    def __init__(self, program: Stages, regions: Mapping[str, Region], depth: float) -> None:
        self.depth, self.safe, self.regions = depth, program.stages[0].safe, regions
        self.levels = program.depth
        self.tasks = next(iter(regions.values())).center.shape[0]
        rest = _rest(program, regions)
        choices: list[list[int]] = [[] for _ in range(self.levels)]
        for number, level in enumerate(program.levels):
            choices[level - 1].append(number)
        most = max(len(level) for level in choices)
        # Levels with fewer choices repeat one, and the last level stands for episodes that are over.
        rows = [[level[min(a, len(level) - 1)] for level in [*choices, choices[-1]]] for a in range(most)]
        self.choices = [self._tables([program.stages[n].target for n in row]) for row in rows]
        self.rest = [np.concatenate([rest[n] for n in row]).astype(np.float32) for row in rows]
        self._sized: dict[tuple[int, ...], tuple[Levels, dict[str, Columns]]] = {}

    def _tables(self, targets: list[Any]) -> Columns:
        arrays = [self.regions[target.region].arrays() for target in targets]
        joined = {name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]}
        return columns(Region(**joined), np.float32)

    def begin(self, states: Array) -> Progress:
        batch = states.shape[:-1]
        yes = np.ones(batch, dtype=bool)
        return self.advance(Progress(np.zeros(batch, dtype=np.intp), np.zeros(0), yes, yes, None), states)

    def advance(self, progress: Progress, states: Array) -> Progress:
        tasks, regions = self._ground(states.shape[:-1])
        alive, safe, safety = progress.alive, progress.safe, None
        if self.safe is not None:
            safety = evaluate(self.safe, _Atoms(regions, states), QUANTITATIVE)
            inside = safety >= 0.0
            safe = safe & (inside | ~alive)
            alive = alive & inside
        key = progress.stage * self.tasks + tasks
        depth, distance = self._targets(states, key)
        reached = depth >= self.depth
        reached &= alive
        stage = progress.stage + reached
        alive = alive & (stage < self.levels)
        if reached.any():
            rows = np.flatnonzero(reached)
            key = stage.reshape(-1)[rows] * self.tasks + tasks.reshape(-1)[rows]
            distance.reshape(-1)[rows] = self._targets(states.reshape(-1, states.shape[-1])[rows], key)[1]
        distance *= alive
        return Progress(stage, distance, alive, safe, safety)

    def _targets(self, states: Array, key: Levels) -> tuple[Array, Array]:
        """Signed distance to the nearest target at the keys (…), and the distance through it and all after it."""
        inside = distance = None
        for table, rest in zip(self.choices, self.rest, strict=True):
            here = signed_distance(states, table.map(lambda values: values.take(key)))
            way = rest.take(key)
            way -= np.minimum(here - np.float32(self.depth), 0.0)
            inside = here if inside is None else np.maximum(inside, here)
            distance = way if distance is None else np.minimum(distance, way)
        assert inside is not None and distance is not None
        return inside, distance

    def _ground(self, batch: tuple[int, ...]) -> tuple[Levels, dict[str, Columns]]:
        """Number of the task and the safe context's regions, for every episode: equal shapes are fastest in numpy."""
        if batch not in self._sized:

            def each(per_task: Array) -> Array:
                return np.broadcast_to(per_task[:, None], batch).copy()

            names = {name for clause in dnf(self.safe) for name, _ in clause} if self.safe is not None else set()
            regions = {name: columns(self.regions[name], np.float32).map(each) for name in names}
            self._sized.clear()  # one shape at a time is in use
            self._sized[batch] = (np.broadcast_to(np.arange(self.tasks)[:, None], batch).copy(), regions)
        return self._sized[batch]


class _Atoms(dict[str, Array]):
    """Signed distances to regions, computed when asked for."""

    def __init__(self, regions: dict[str, Columns], states: Array) -> None:
        super().__init__()
        self.regions, self.states = regions, states

    def __missing__(self, region: str) -> Array:
        self[region] = signed_distance(self.states, self.regions[region])
        return self[region]


class Monitored:
    """Follows any specification with `dibs.spectrl.Monitor`: slower, and `depth` is not honored."""

    def __init__(self, grounded: Tasks, regions: Mapping[str, Region]) -> None:
        spec = grounded.spec
        self.monitor = Monitor(spec, {name: region[:, None] for name, region in regions.items()})
        program = stages_of(spec)
        rest = _rest(program, regions)
        at = [[r for r, entry in zip(rest, program.entries, strict=True) if entry == n] for n in range(program.depth)]
        zero = np.zeros_like(rest[0])
        # (levels + 1, tasks): nothing begins at levels that a short branch skips.
        self.rest = np.stack([np.minimum.reduce(level) if level else zero for level in [*at, []]]).astype(np.float32)

    def begin(self, states: Array) -> Progress:
        return self._progress(self.monitor.start(states), None)

    def advance(self, progress: Progress, states: Array) -> Progress:
        assert progress.memory is not None
        return self._progress(self.monitor.advance(progress.memory, states), progress)

    def _progress(self, memory: MonitorState, before: Progress | None) -> Progress:
        violated, satisfied = self.monitor.violated(memory), self.monitor.satisfied(memory)
        stage = self.monitor.stage(memory).astype(np.intp)
        distance = self.rest[stage, np.arange(self.rest.shape[1])[:, None]]
        distance = distance - np.minimum(self.monitor.progress_robustness(memory), 0.0).astype(np.float32)
        was = np.ones_like(violated) if before is None else before.alive
        if before is not None:
            stage = np.where(was, stage, before.stage)  # an episode that is over stays where it was
        safe = ~violated if before is None else before.safe & (~violated | ~was)
        alive = was & ~(satisfied | violated)
        return Progress(stage, np.where(alive, distance, 0.0), alive, safe, None, memory)


def _rest(program: Stages, regions: Mapping[str, Region]) -> list[Array]:
    """Distance (tasks,) from each stage's target through those that must come after it, on the shortest way."""
    places = [_place(stage.target, regions) for stage in program.stages]
    rest: list[Array] = [np.zeros(len(place)) for place in places]
    for before in reversed(range(len(places))):
        ways = [
            np.linalg.norm(places[after] - places[before], axis=-1) + rest[after]
            for earlier, after in program.links
            if earlier == before
        ]
        if ways:
            rest[before] = np.minimum.reduce(ways)
    return rest


def _place(target: Predicate, regions: Mapping[str, Region]) -> Array:
    """A point (tasks, dim) that stands for a target."""
    clause = dnf(target)[0]
    names = [name for name, inside in clause if inside] or [name for name, _ in clause]
    return np.asarray(np.mean([regions[name].center for name in names], axis=0))
