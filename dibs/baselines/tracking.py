"""How far episodes have come through a specification, for training: which stage, and the distance to go.

`Layered` follows specifications in which every level, `achieve reach(a)` or a choice of such, comes after all
of the level before, with one safe context throughout. That is all of the paper's, and an episode's state is then
one number: a step costs a few table look-ups however many stages there are. `Monitored` follows any other one
with `dibs.spectrl.Monitor`. Arrays end in (tasks, rollouts[, dim]) and may have any axes before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dibs.envs import Array
from dibs.spectrl import Box, Monitor, MonitorState, Reach, dnf
from dibs.spectrl.stages import QUANTITATIVE, Stages, evaluate, stages_of
from dibs.spectrl.syntax import Predicate, Spec

Bools = npt.NDArray[np.bool_]
Levels = npt.NDArray[np.intp]


class Track(NamedTuple):
    """Where episodes stand; arrays are (..., tasks, rollouts)."""

    stage: Levels  # levels behind; the specification's depth once satisfied
    distance: Array  # through the next target and all after it, on the shortest way; 0 once over
    alive: Bools  # neither satisfied nor violated so far
    safety: Array | None  # distance to the nearest unsafe state, positive while safe; None: everything is safe
    memory: MonitorState | None = None


class Tracker(Protocol):
    """Follows a batch of episodes; tracks are values, nothing is changed in place."""

    def begin(self, states: Array) -> Track:
        """Episodes that start in states (..., tasks, rollouts, dim)."""

    def advance(self, track: Track, states: Array) -> Track:
        """The same episodes one step later; those that were over stay as they were."""


def tracker(spec: Spec, boxes: Mapping[str, Box], depth: float) -> Tracker:
    """The fastest tracker that can follow `spec` over boxes (tasks, dim); targets count as reached `depth` inside."""
    program = stages_of(spec)
    return Layered(program, boxes, depth) if layered(program) else Monitored(spec, boxes)


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
    """One number per episode: the level it is at. Constants are tables over (level, task)."""

    def __init__(self, program: Stages, boxes: Mapping[str, Box], depth: float) -> None:
        self.depth, self.safe, self.boxes = depth, program.stages[0].safe, boxes
        self.levels = program.depth
        self.tasks = next(iter(boxes.values())).center.shape[0]
        rest = _rest(program, boxes)
        choices: list[list[int]] = [[] for _ in range(self.levels)]
        for number, level in enumerate(program.levels):
            choices[level - 1].append(number)
        most = max(len(level) for level in choices)
        # Levels with fewer choices repeat one, and the last level stands for episodes that are over.
        rows = [[level[min(a, len(level) - 1)] for level in [*choices, choices[-1]]] for a in range(most)]
        self.choices = [self._tables(program, [program.stages[n].target for n in row]) for row in rows]
        self.rest = [np.concatenate([rest[n] for n in row]).astype(np.float32) for row in rows]
        self._sized: dict[tuple[int, ...], tuple[Levels, _Boxes]] = {}

    def _tables(self, program: Stages, targets: list[Any]) -> _Box:
        boxes = [self.boxes[target.region] for target in targets]
        center, half = (
            np.concatenate([getattr(box, name) for box in boxes]).astype(np.float32)
            for name in ("center", "half_width")
        )
        return _columns(center, half)

    def begin(self, states: Array) -> Track:
        batch = states.shape[:-1]
        before = Track(np.zeros(batch, dtype=np.intp), np.zeros(0), np.ones(batch, dtype=bool), None)
        return self.advance(before, states)

    def advance(self, track: Track, states: Array) -> Track:
        tasks, boxes = self._ground(states.shape[:-1])
        alive, safety = track.alive, None
        if self.safe is not None:
            safety = evaluate(self.safe, _Atoms(boxes, states), QUANTITATIVE)
            alive = alive & (safety >= 0.0)
        key = track.stage * self.tasks + tasks
        inside, distance = self._targets(states, key)
        reached = inside >= self.depth
        reached &= alive
        stage = track.stage + reached
        alive = alive & (stage < self.levels)
        if reached.any():
            rows = np.flatnonzero(reached)
            key = stage.reshape(-1)[rows] * self.tasks + tasks.reshape(-1)[rows]
            distance.reshape(-1)[rows] = self._targets(states.reshape(-1, states.shape[-1])[rows], key)[1]
        distance *= alive
        return Track(stage, distance, alive, safety)

    def _targets(self, states: Array, key: Levels) -> tuple[Array, Array]:
        """Signed distance to the nearest target at the keys (…), and the distance through it and all after it."""
        inside = distance = None
        for columns, rest in zip(self.choices, self.rest, strict=True):
            here = _signed(states, [(d, center.take(key), half.take(key)) for d, center, half in columns])
            way = rest.take(key)
            way -= np.minimum(here - np.float32(self.depth), 0.0)
            inside = here if inside is None else np.maximum(inside, here)
            distance = way if distance is None else np.minimum(distance, way)
        assert inside is not None and distance is not None
        return inside, distance

    def _ground(self, batch: tuple[int, ...]) -> tuple[Levels, _Boxes]:
        """Number of the task and the safe context's boxes, for every episode: equal shapes are fastest in numpy."""
        if batch not in self._sized:

            def each(per_task: Array) -> Array:
                return np.broadcast_to(per_task[:, None], batch).copy()

            names = {name for clause in dnf(self.safe) for name, _ in clause} if self.safe is not None else set()
            columns = {
                name: _columns(
                    self.boxes[name].center.astype(np.float32), self.boxes[name].half_width.astype(np.float32)
                )
                for name in names
            }
            boxes = {name: [(d, each(c), each(h)) for d, c, h in box] for name, box in columns.items()}
            self._sized.clear()  # one shape at a time is in use
            numbers = np.broadcast_to(np.arange(self.tasks)[:, None], batch).copy()
            self._sized[batch] = (numbers, boxes)
        return self._sized[batch]


class Monitored:
    """Any specification, by its monitor: slower, and `depth` is not honoured."""

    def __init__(self, spec: Spec, boxes: Mapping[str, Box]) -> None:
        self.monitor = Monitor(spec, {n: Box(b.center[:, None], b.half_width[:, None]) for n, b in boxes.items()})
        program = stages_of(spec)
        rest = _rest(program, boxes)
        at = [[r for r, entry in zip(rest, program.entries, strict=True) if entry == n] for n in range(program.depth)]
        zero = np.zeros_like(rest[0])
        # (levels + 1, tasks): levels that a short branch skips have nothing that begins there.
        self.rest = np.stack([np.minimum.reduce(level) if level else zero for level in [*at, []]]).astype(np.float32)

    def begin(self, states: Array) -> Track:
        return self._track(self.monitor.start(states), None)

    def advance(self, track: Track, states: Array) -> Track:
        assert track.memory is not None
        return self._track(self.monitor.advance(track.memory, states), track)

    def _track(self, memory: MonitorState, before: Track | None) -> Track:
        over = self.monitor.satisfied(memory) | self.monitor.violated(memory)
        stage = self.monitor.stage(memory).astype(np.intp)
        distance = self.rest[stage, np.arange(self.rest.shape[1])[:, None]]
        distance = distance - np.minimum(self.monitor.progress_robustness(memory), 0.0).astype(np.float32)
        alive = ~over if before is None else before.alive & ~over
        return Track(stage, np.where(alive, distance, 0.0), alive, None, memory)


_Box = list[tuple[int, Array, Array]]  # (variable, centre, half-width) of the variables that are not free
_Boxes = dict[str, _Box]


def _columns(center: Array, half: Array) -> _Box:
    """Centres and half-widths (n, dim) by variable."""
    return [
        (d, np.ascontiguousarray(center[:, d]), np.ascontiguousarray(half[:, d]))
        for d in range(center.shape[1])
        if np.isfinite(half[:, d]).any()
    ]


class _Atoms(dict[str, Array]):
    """Signed distances to regions, worked out when asked for."""

    def __init__(self, boxes: _Boxes, states: Array) -> None:
        super().__init__()
        self.boxes, self.states = boxes, states

    def __missing__(self, region: str) -> Array:
        self[region] = _signed(self.states, self.boxes[region])
        return self[region]


def _signed(states: Array, box: _Box) -> Array:
    """Euclidean signed distance (...) of states (..., dim) to one box each, positive inside."""
    deepest = squares = None
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


def _rest(program: Stages, boxes: Mapping[str, Box]) -> list[Array]:
    """Distance (tasks,) from each stage's target through those that must come after it, on the shortest way."""
    places = [_place(stage.target, boxes) for stage in program.stages]
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


def _place(target: Predicate, boxes: Mapping[str, Box]) -> Array:
    """A point (tasks, dim) that stands for a target."""
    clause = dnf(target)[0]
    names = [name for name, inside in clause if inside] or [name for name, _ in clause]
    return np.asarray(np.mean([boxes[name].center for name in names], axis=0))
