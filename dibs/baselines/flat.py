"""A whole specification as one task (paper, section 5.1): what methods without graph or branching train on.

The policy sees the state, scaled by constants of the benchmark, and (`observe_stage`) a one-hot of how many
stages of the specification lie behind it; it never sees the index. Arrays end in (tasks, rollouts[, dim]),
one task per index, and may have any axes before: candidates of a search, for one. The stages follow the
equations of `dibs.spectrl.stages`, on float32 arrays grounded over all indices at once, so that thousands of
rollouts advance in one array program; tests hold them against `dibs.spectrl.Monitor`. What an evaluation
counts is decided by `dibs.spectrl.satisfied` on the recorded states alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dibs.envs import Array, sample_noise
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family, ReachAvoid, ground, reach_avoid
from dibs.seeding import stream
from dibs.spectrl import Box, dnf, graph, parse, satisfied
from dibs.spectrl.stages import QUANTITATIVE, Stages, evaluate, stages_of
from dibs.spectrl.syntax import Predicate, Spec

Bools = npt.NDArray[np.bool_]
RewardKind = Literal["distance", "progress"]

CHUNK = 8  # indices evaluated together: enough to amortise numpy's overhead, few enough to stay in cache


class Draws(NamedTuple):
    """The randomness of a batch of episodes."""

    starts: Array  # (tasks, rollouts, dim)
    noise: Array  # (horizon, tasks, rollouts, dim)


class Seen(NamedTuple):
    """Where a batch of episodes stands; `stage`, `to_go` and `alive` are (..., tasks, rollouts)."""

    states: Array  # (..., tasks, rollouts, dim)
    waiting: Bools  # (achieves, ..., tasks, rollouts): the `achieve` has begun and all was safe since
    done: Bools  # (achieves, ..., tasks, rollouts): it has also reached its target since
    stage: npt.NDArray[np.int8]  # stages behind on the furthest surviving way; the depth once satisfied
    to_go: Array  # distance through all targets that are left, in units of reward
    alive: Bools  # neither satisfied nor violated so far
    time: int  # steps taken


class Last(NamedTuple):
    """What the previous step did, for policies with a memory."""

    actions: Array  # (..., tasks, rollouts, m)
    rewards: Array  # (..., tasks, rollouts)
    alive: Bools  # (..., tasks, rollouts): the episode goes on


class Policy(Protocol):
    """Anything that acts. It may keep a memory between `start` and the last `act` of a batch of episodes.

    Tasks must not influence each other: what is done at one index may not depend on its neighbours.
    """

    def start(self, indices: Sequence[int], rollouts: int) -> None:
        """A batch of episodes begins, `rollouts` at each of `indices` (which choose adapted parameters)."""

    def act(self, observations: Array, last: Last | None) -> Array:
        """Actions (..., tasks, rollouts, m) for observations (..., tasks, rollouts, n); `last` is None at first."""


class Outcome(NamedTuple):
    """What became of a batch of episodes."""

    returns: Array  # (..., tasks, rollouts)
    stage: npt.NDArray[np.int8]  # (..., tasks, rollouts): the furthest stage
    success: Bools  # (..., tasks, rollouts): satisfied, by the task's own stages
    steps: int  # environment steps taken, not counting those after an episode's end
    states: Array | None  # (..., tasks, rollouts, time, dim) if recorded; what follows an episode's end is void
    lengths: npt.NDArray[np.int64]  # (..., tasks, rollouts): states up to and including the last one


@dataclass(frozen=True, eq=False)
class FlatTask:
    """One specification, grounded at several indices."""

    family: Family
    text: str
    indices: tuple[int, ...]
    observe_stage: bool = True
    """Append a one-hot of the stage to the scaled state."""
    reward_kind: RewardKind = "distance"
    """Per step: minus the distance to go (as the teachers'), or how much of it the step has covered."""
    bonus: float = 1.0
    """Reward for every stage completed."""
    depth: float = 0.0
    """A target counts as reached this deep inside: 0 as the specification says, more to aim at the middle."""

    # --- shape ---------------------------------------------------------------------------------------

    @cached_property
    def spec(self) -> Spec:
        return parse(self.text)

    @cached_property
    def program(self) -> Stages:
        return stages_of(self.spec)

    @property
    def tasks(self) -> int:
        return len(self.indices)

    @property
    def stages(self) -> int:
        """Stages on the longest way through the specification."""
        return self.program.depth

    @property
    def horizon(self) -> int:
        return self.stages * self.family.horizon

    @property
    def state_dim(self) -> int:
        return len(self.family.dynamics.state_names)

    @property
    def observation_dim(self) -> int:
        return self.state_dim + (self.stages if self.observe_stage else 0)

    @property
    def action_dim(self) -> int:
        return len(self.family.dynamics.action_names)

    # --- episodes ------------------------------------------------------------------------------------

    def draw(self, rollouts: int, rng: np.random.Generator) -> Draws:
        """Initial states and noise of `rollouts` episodes at every index, from one generator."""
        starts = self._edges.initial(rng.random((self.tasks, rollouts, self.state_dim), dtype=np.float32))
        return Draws(starts, sample_noise(rng, (self.horizon, self.tasks, rollouts, self.state_dim)))

    def evaluation_draws(self, rollouts: int, seed: int) -> Draws:
        """Initial states and noise, each index from a stream of its own: those of the composed evaluation."""
        uniforms = np.empty((self.tasks, rollouts, self.state_dim), dtype=np.float32)
        noise = np.empty((self.horizon, self.tasks, rollouts, self.state_dim), dtype=np.float32)
        for i, index in enumerate(self.indices):
            rng = stream("evaluation", self.family.name, index, seed)
            uniforms[i] = rng.random((rollouts, self.state_dim), dtype=np.float32)
            noise[:, i] = sample_noise(rng, (self.horizon, rollouts, self.state_dim))
        return Draws(self._edges.initial(uniforms), noise)

    def begin(self, states: Array) -> Seen:
        """Episodes that start in the given states (..., tasks, rollouts, dim)."""
        waiting = np.zeros((len(self.program.stages), *states.shape[:-1]), dtype=bool)
        for number, stage in enumerate(self.program.stages):
            waiting[number] = not stage.after
        return self._look(states, waiting, np.zeros_like(waiting), None)[0]

    def step(self, seen: Seen, actions: Array, noise: Array) -> tuple[Seen, Array]:
        """One step of every episode and its rewards (..., tasks, rollouts), 0 for episodes that were over."""
        states = self.family.dynamics.step(seen.states, actions, noise)
        return self._look(states, seen.waiting.copy(), seen.done.copy(), seen)

    def observe(self, states: Array, stage: npt.NDArray[np.integer]) -> Array:
        """What a policy sees (..., n) of states (..., dim) at stages (...)."""
        center, half = self.scaling
        if not self.observe_stage:
            return (states - center) / half
        seen = np.zeros((*states.shape[:-1], self.observation_dim), dtype=np.float32)
        np.subtract(states, center, out=seen[..., : self.state_dim])
        seen[..., : self.state_dim] /= half
        for k in range(self.stages):
            seen[..., self.state_dim + k] = stage == k
        return seen

    def satisfied(self, seen: Seen) -> Bools:
        """Which episodes have satisfied the specification, by the stages."""
        return np.asarray(seen.done[list(self.program.exits)].any(axis=0))

    def violated(self, seen: Seen) -> Bools:
        """Which episodes nothing can make satisfy the specification any more, by the stages."""
        return np.asarray(~seen.waiting.any(axis=0))

    # --- grounding -----------------------------------------------------------------------------------

    @cached_property
    def scaling(self) -> tuple[Array, Array]:
        """Centre and half-width of the box around the benchmark's edges at the first and the last index."""
        names = [edge.name for edge in graph(self.spec).edges]
        low, high = reach_avoid(self.family, [0, self.family.last_index], names).extent()
        low, high = low.min(axis=0), high.max(axis=0)
        return ((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32)

    @cached_property
    def _edges(self) -> ReachAvoid:
        """Some first edge at every index: all of them start from the same states."""
        first = graph(self.spec).outgoing("start")[0].name
        return ground(self.family, [(index, first) for index in self.indices])

    @cached_property
    def _boxes(self) -> dict[str, Box]:
        """Every region of the specification, as boxes (tasks, dim)."""
        return {name: self.family.regions[name].box(np.asarray(self.indices)) for name in self.program.regions}

    @cached_property
    def _rest(self) -> list[Array]:
        """Distance (tasks,) from each stage's target through those that must come after it, on the shortest way."""
        places = [self._place(stage.target) for stage in self.program.stages]
        rest: list[Array] = [np.zeros(self.tasks)] * len(places)
        for before in reversed(range(len(places))):
            ways = [
                np.linalg.norm(places[after] - places[before], axis=-1) + rest[after]
                for a, after in self.program.links
                if a == before
            ]
            if ways:
                rest[before] = np.minimum.reduce(ways)
        return rest

    def _place(self, target: Predicate) -> Array:
        """A point (tasks, dim) that stands for a target; variables it leaves free are 0."""
        names = [name for name, inside in dnf(target)[0] if inside]
        return np.asarray(np.mean([self._boxes[name].center for name in names], axis=0))

    @cached_property
    def _grounded(self) -> dict[tuple[int, ...], _Ground]:
        return {}

    def _ground(self, batch: tuple[int, ...]) -> _Ground:
        """The task's constants, repeated for every episode of a batch (..., tasks, rollouts)."""
        if batch not in self._grounded:

            def each(per_task: Array) -> Array:
                return np.broadcast_to(per_task[:, None], batch).astype(np.float32)

            self._grounded.clear()  # a search uses one shape at a time
            self._grounded[batch] = _Ground(
                {
                    name: [
                        (d, each(box.center[:, d]), each(box.half_width[:, d]))
                        for d in range(self.state_dim)
                        if np.isfinite(box.half_width[..., d]).any()
                    ]
                    for name, box in self._boxes.items()
                },
                [each(rest) for rest in self._rest],
            )
        return self._grounded[batch]

    # --- the equations of dibs.spectrl.stages --------------------------------------------------------

    def _look(self, states: Array, waiting: Bools, done: Bools, before: Seen | None) -> tuple[Seen, Array]:
        """What is known once the given states have been seen; changes `waiting` and `done` in place."""
        program = self.program
        distances = _Distances(self._ground(states.shape[:-1]), states)
        for earlier, later in program.links if before is not None else ():
            waiting[later] |= done[earlier]
        safety = self._safe(distances, waiting, done)
        for number, stage in enumerate(program.stages):
            due = waiting[number] & ~done[number]
            if due.any():
                done[number] |= due & (distances.of(stage.target) >= self.depth)

        alive: Bools = np.logical_or.reduce(waiting, axis=0)
        for number in program.exits:
            alive &= ~done[number]
        if before is not None:
            alive &= before.alive
        stage_now = np.zeros(alive.shape, dtype=np.int8)
        for number, (level, entry) in enumerate(zip(program.levels, program.entries, strict=True)):
            np.maximum(stage_now, done[number] * np.int8(level), out=stage_now)
            if entry:
                np.maximum(stage_now, waiting[number] * np.int8(entry), out=stage_now)
        to_go = self._to_go(distances, waiting, done, stage_now, alive)
        seen = Seen(states, waiting, done, stage_now, to_go, alive, 0 if before is None else before.time + 1)
        if before is None:
            return seen, np.zeros(alive.shape, dtype=np.float32)
        return seen, self._reward(before, seen, safety)

    def _safe(self, distances: _Distances, waiting: Bools, done: Bools) -> Array | None:
        """End what is not safe; returns the distance to the unsafe on the safest surviving way, None: all is safe."""
        best: Array | None = None
        for number, stage in enumerate(self.program.stages):
            if stage.safe is None:
                continue
            safety = distances.of(stage.safe)
            safe = safety >= 0.0
            here = np.where(waiting[number], safety, -np.inf)
            best = here if best is None else np.maximum(best, here)
            waiting[number] &= safe
            done[number] &= safe
        return best

    def _to_go(
        self, distances: _Distances, waiting: Bools, done: Bools, stage_now: npt.NDArray[np.int8], alive: Bools
    ) -> Array:
        """Distance through the nearest next target and all after it, in units; 0 for episodes that are over."""
        best = np.full(alive.shape, np.inf, dtype=np.float32)
        for number, (stage, entry) in enumerate(zip(self.program.stages, self.program.entries, strict=True)):
            begun = waiting[number]
            for earlier in stage.after:
                begun = begun | done[earlier]
            next_up = begun & ~done[number] & (stage_now == entry) & alive
            if next_up.any():
                way = distances.ground.rest[number] - np.minimum(distances.of(stage.target) - self.depth, 0.0)
                np.minimum(best, way, out=best, where=next_up)
        return np.where(alive, best, 0.0) / np.float32(self.family.reward.unit)

    def _reward(self, before: Seen, seen: Seen, safety: Array | None) -> Array:
        constants = self.family.reward
        failed = before.alive & self.violated(seen)
        gained = np.maximum(seen.stage - before.stage, 0)
        if self.reward_kind == "distance":
            # Failing must not pay: it costs what standing still until the end would have cost.
            reward = -np.where(failed, before.to_go * (self.horizon - before.time), seen.to_go)
        else:
            reward = np.where(failed, 0.0, before.to_go - seen.to_go)
        reward = reward + np.float32(self.bonus) * gained
        if safety is not None:
            near = np.clip((constants.margin - safety) / max(constants.margin, 1e-6), 0.0, 1.0)
            reward -= np.float32(constants.unsafe_penalty) * np.where(failed, 1.0, 0.5 * near)
        return np.where(before.alive, reward, 0.0).astype(np.float32)


class _Ground(NamedTuple):
    """Constants as large as the batch: numpy is several times faster on equal shapes than on broadcast ones."""

    boxes: dict[str, list[tuple[int, Array, Array]]]  # region: variable, centre and half-width (..., tasks, rollouts)
    rest: list[Array]  # per `achieve`: (..., tasks, rollouts)


class _Distances:
    """Signed distances of one batch of states to regions and predicates, each worked out once and when asked for."""

    def __init__(self, ground: _Ground, states: Array) -> None:
        self.ground, self._states = ground, states
        self._atoms: dict[str, Array] = {}
        self._known: dict[Predicate, Array] = {}

    def of(self, predicate: Predicate) -> Array:
        if predicate not in self._known:
            self._known[predicate] = evaluate(predicate, self, QUANTITATIVE)  # type: ignore[arg-type]
        return self._known[predicate]

    def __getitem__(self, region: str) -> Array:
        if region not in self._atoms:
            self._atoms[region] = _box_distance(self._states, self.ground.boxes[region])
        return self._atoms[region]


def _box_distance(states: Array, box: list[tuple[int, Array, Array]]) -> Array:
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


def rollout(
    task: FlatTask, policy: Policy, draws: Draws, candidates: tuple[int, ...] = (), record: bool = False
) -> Outcome:
    """Run `policy` on all tasks; with `candidates`, every candidate meets the same initial states and noise."""
    starts = np.broadcast_to(draws.starts, (*candidates, *draws.starts.shape)).copy()
    rollouts = draws.starts.shape[1]
    policy.start(task.indices, rollouts)
    seen = task.begin(starts)
    shape = seen.alive.shape
    returns, lengths = np.zeros(shape, dtype=np.float32), np.ones(shape, dtype=np.int64)
    furthest, success = seen.stage.copy(), task.satisfied(seen)
    kept = [seen.states] if record else []
    last: Last | None = None
    steps = 0
    for noise in draws.noise:
        running = int(np.count_nonzero(seen.alive))
        if running == 0:
            break
        steps += running
        actions = policy.act(task.observe(seen.states, seen.stage), last)
        after, rewards = task.step(seen, actions, noise)
        returns += rewards
        lengths += seen.alive
        np.maximum(furthest, after.stage, out=furthest, where=seen.alive)
        success |= seen.alive & task.satisfied(after)
        if record:
            kept.append(after.states)
        last = Last(actions, rewards, after.alive)
        seen = after
    if not record:
        return Outcome(returns, furthest, success, steps, None, lengths)
    states = np.stack(kept, axis=-2)
    # A policy that has diverged leaves states that are no numbers: they count as never visited.
    finite = np.isfinite(states).all(axis=-1)
    if not finite.all():
        states = np.where(finite[..., None], states, 0.0)
        lengths = np.minimum(lengths, np.where(finite.all(axis=-1), lengths, finite.argmin(axis=-1)))
    return Outcome(returns, furthest, success, steps, states, lengths)


def evaluate_flat(
    family: Family,
    text: str,
    policy: Policy,
    indices: Sequence[int],
    settings: EvaluationSettings,
    seed: int,
    observe_stage: bool = True,
) -> dict[int, int]:
    """Number of rollouts of each index that satisfy the specification, as the semantics of SPECTRL decide."""
    spec, counts = parse(text), {}
    ordered = sorted(set(indices))
    for at in range(0, len(ordered), CHUNK):
        task = FlatTask(family, text, tuple(ordered[at : at + CHUNK]), observe_stage)
        outcome = rollout(task, policy, task.evaluation_draws(settings.rollouts, seed), record=True)
        assert outcome.states is not None
        for i, index in enumerate(task.indices):
            won = satisfied(spec, family.boxes(index), outcome.states[i], outcome.lengths[i])
            counts[index] = int(won.sum())
    return counts
