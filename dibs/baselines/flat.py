"""A whole specification as one task (paper, section 5.1): what methods without graph or branching train on.

The policy sees the state, scaled by constants of the benchmark, and (`observe_stage`) a flag for every stage of
the specification that lies behind it; it never sees the index. (Flags that stay up, rather than one that moves on:
a stage that is met for the first time then looks like the one before, and what was learnt there still holds.)
Arrays end in (tasks, rollouts[, dim]), one task per index, and may have any axes before: candidates of a search,
for one; thousands of episodes advance in one array program. How far an episode has come is followed by
`dibs.baselines.tracking`, which tests hold against `dibs.spectrl.Monitor`; what an evaluation counts is decided by
`dibs.spectrl.satisfied` on the recorded states alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dibs.baselines.tracking import Bools, Levels, Track, Tracker, tracker
from dibs.envs import Array, sample_noise
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family, ReachAvoid, ground, reach_avoid
from dibs.seeding import stream
from dibs.spectrl import graph, parse, satisfied
from dibs.spectrl.stages import stages_of
from dibs.spectrl.syntax import Spec

RewardKind = Literal["distance", "progress"]

CHUNK = 8  # indices evaluated together: enough to amortise numpy's overhead, few enough to stay in cache


class Draws(NamedTuple):
    """The randomness of a batch of episodes."""

    starts: Array  # (tasks, rollouts, dim)
    noise: Array  # (horizon, tasks, rollouts, dim)


class Seen(NamedTuple):
    """Where a batch of episodes stands."""

    states: Array  # (..., tasks, rollouts, dim)
    track: Track
    time: int  # steps taken

    @property
    def stage(self) -> Levels:
        """Stages (..., tasks, rollouts) behind each episode; the specification's depth once satisfied."""
        return self.track.stage

    @property
    def alive(self) -> Bools:
        """Which episodes (..., tasks, rollouts) are neither satisfied nor violated so far."""
        return self.track.alive


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
    stage: Levels  # (..., tasks, rollouts): where the episode ended
    success: Bools  # (..., tasks, rollouts): satisfied, by the task's own stages
    steps: int  # environment steps taken, not counting those after an episode's end
    states: Array | None  # (..., tasks, rollouts, time, dim) if recorded; what follows an episode's end is void
    lengths: npt.NDArray[np.intp]  # (..., tasks, rollouts): states up to and including the last one


class TaskSettings(Protocol):
    """What the settings of a method say about its task."""

    @property
    def observe_stage(self) -> bool: ...
    @property
    def reward(self) -> RewardKind: ...
    @property
    def bonus(self) -> float: ...
    @property
    def depth(self) -> float: ...
    @property
    def penalty(self) -> float: ...


@dataclass(frozen=True, eq=False)
class FlatTask:
    """One specification, grounded at several indices."""

    family: Family
    text: str
    indices: tuple[int, ...]
    observe_stage: bool = True
    """Append flags of the stages behind to the scaled state."""
    reward_kind: RewardKind = "distance"
    """Per step: minus the distance to go (as the teachers'), or how much of it the step has covered."""
    bonus: float = 1.0
    """Reward for every stage completed."""
    depth: float = 0.0
    """A target counts as reached this deep inside: 0 as the specification says, more to aim at the middle."""
    penalty: float = 1.0
    """Share of the family's penalty for unsafe states that the reward has."""

    @classmethod
    def of(cls, family: Family, text: str, indices: Sequence[int], settings: TaskSettings) -> FlatTask:
        """The task as a method's settings have it; a negative depth stands for the family's."""
        depth = family.reward.depth if settings.depth < 0 else settings.depth
        own = (settings.observe_stage, settings.reward, settings.bonus, depth, settings.penalty)
        return cls(family, text, tuple(indices), *own)

    def some(self, count: int, rng: np.random.Generator) -> FlatTask:
        """The same at so many of its indices, drawn at random; at all of them if there are no more."""
        if self.tasks <= count:
            return self
        drawn = np.sort(rng.choice(self.indices, count, replace=False))
        return replace(self, indices=tuple(int(i) for i in drawn))

    # --- shape ---------------------------------------------------------------------------------------

    @cached_property
    def spec(self) -> Spec:
        return parse(self.text)

    @cached_property
    def stages(self) -> int:
        """Stages on the longest way through the specification."""
        return stages_of(self.spec).depth

    @property
    def tasks(self) -> int:
        return len(self.indices)

    @property
    def horizon(self) -> int:
        return self.stages * self.family.horizon

    @property
    def state_dim(self) -> int:
        return len(self.family.dynamics.state_names)

    @property
    def observation_dim(self) -> int:
        return self.state_dim + (self.stages - 1 if self.observe_stage else 0)

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
        return Seen(states, self._tracker.begin(states), 0)

    def step(self, seen: Seen, actions: Array, noise: Array) -> tuple[Seen, Array]:
        """One step of every episode and its rewards (..., tasks, rollouts), 0 for episodes that were over."""
        states = self.family.dynamics.step(seen.states, actions, noise)
        after = Seen(states, self._tracker.advance(seen.track, states), seen.time + 1)
        return after, self._reward(seen, after)

    def observe(self, states: Array, stage: Levels) -> Array:
        """What a policy sees (..., n) of states (..., dim) at stages (...)."""
        center, half = self.scaling
        if not self.observe_stage:
            return (states - center) / half
        seen = np.empty((*states.shape[:-1], self.observation_dim), dtype=np.float32)
        scaled = seen[..., : self.state_dim]
        np.subtract(states, center, out=scaled)
        scaled /= half
        seen[..., self.state_dim :] = self._flags.take(stage, axis=0)
        return seen

    def satisfied(self, seen: Seen) -> Bools:
        """Which episodes have satisfied the specification, as far as training is concerned."""
        return np.asarray(seen.stage == self.stages)

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
    def _tracker(self) -> Tracker:
        at = np.asarray(self.indices)
        boxes = {name: self.family.regions[name].box(at) for name in stages_of(self.spec).regions}
        return tracker(self.spec, boxes, self.depth)

    @cached_property
    def _flags(self) -> Array:
        """(stages + 1, stages − 1): which stages are behind; the last one never is while an episode lasts."""
        return np.tri(self.stages + 1, self.stages - 1, -1, dtype=np.float32)

    def _reward(self, before: Seen, after: Seen) -> Array:
        constants, was, now = self.family.reward, before.track, after.track
        unit, penalty = np.float32(constants.unit), np.float32(self.penalty * constants.unsafe_penalty)
        reward = now.distance / -unit if self.reward_kind == "distance" else (was.distance - now.distance) / unit
        won = self.satisfied(after)
        failed = was.alive & ~now.alive & ~won
        if failed.any():
            # Failing must not pay: it costs as much as standing still until the end would have.
            standing = was.distance / -unit * (self.horizon - before.time) if self.reward_kind == "distance" else 0.0
            reward = np.where(failed, standing - penalty, reward)
        if now.safety is not None and constants.margin > 0.0:
            near = np.clip((constants.margin - now.safety) / np.float32(constants.margin), 0.0, 1.0)
            near *= ~failed
            reward -= np.float32(0.5) * penalty * near
        reward += np.float32(self.bonus) * (now.stage > was.stage)
        reward *= was.alive
        return reward


def rollout(
    task: FlatTask, policy: Policy, draws: Draws, candidates: tuple[int, ...] = (), record: bool = False
) -> Outcome:
    """Run `policy` on all tasks; with `candidates`, every candidate meets the same initial states and noise."""
    starts = np.broadcast_to(draws.starts, (*candidates, *draws.starts.shape)).copy()
    rollouts = draws.starts.shape[1]
    policy.start(task.indices, rollouts)
    seen = task.begin(starts)
    shape = seen.alive.shape
    returns, lengths = np.zeros(shape, dtype=np.float32), np.ones(shape, dtype=np.intp)
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
        if record:
            kept.append(after.states)
        last = Last(actions, rewards, after.alive)
        seen = after
    if not record:
        return Outcome(returns, seen.stage, task.satisfied(seen), steps, None, lengths)
    states = np.stack(kept, axis=-2)
    # A policy that has diverged leaves states that are no numbers: they count as never visited.
    finite: Bools = np.logical_and.reduce(np.isfinite(states), axis=-1)
    if not finite.all():
        states = np.where(finite[..., None], states, 0.0)
        lengths = np.minimum(lengths, np.where(finite.all(axis=-1), lengths, finite.argmin(axis=-1)))
    return Outcome(returns, seen.stage, task.satisfied(seen), steps, states, lengths)


def evaluate_flat(
    family: Family,
    text: str,
    policy: Policy,
    indices: Sequence[int],
    settings: EvaluationSettings,
    seed: int,
    observe_stage: bool = True,
    reward_kind: RewardKind = "distance",
    bonus: float = 1.0,
    penalty: float = 1.0,
) -> dict[int, int]:
    """Number of rollouts of each index that satisfy the specification, as the semantics of SPECTRL decide.

    `reward_kind`, `bonus` and `penalty` matter to a policy that reads rewards: they must be those it was trained with.
    """
    spec, counts = parse(text), {}
    ordered = sorted(set(indices))
    for at in range(0, len(ordered), CHUNK):
        chunk = tuple(ordered[at : at + CHUNK])
        task = FlatTask(family, text, chunk, observe_stage, reward_kind, bonus, penalty=penalty)
        outcome = rollout(task, policy, task.evaluation_draws(settings.rollouts, seed), record=True)
        assert outcome.states is not None
        for i, index in enumerate(task.indices):
            won = satisfied(spec, family.boxes(index), outcome.states[i], outcome.lengths[i])
            counts[index] = int(won.sum())
    return counts
