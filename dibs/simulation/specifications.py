"""A whole specification as a task of the simulator, and the trackers that follow its stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dibs.envs import Array, Environment
from dibs.families import ReachAvoid, Tasks
from dibs.simulation.distance import Columns, columns, signed_distance
from dibs.simulation.tasks import Bools, Levels, Progress, Rewards, Rows, step_reward
from dibs.spectrl import Monitor, MonitorState, Reach, Region, dnf, where
from dibs.spectrl.stages import QUANTITATIVE, Stages, evaluate, stages_of
from dibs.spectrl.syntax import Predicate

WITH_BONUS = Rewards(bonus=1.0)


@dataclass(frozen=True, eq=False)
class SpecTask:
    """A whole specification at several indices: over when satisfied or violated."""

    grounded: Tasks
    rewards: Rewards = WITH_BONUS
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
