"""The rollout loop: any batched policy on any task. There is no other one in the package.

Shapes are (..., tasks, rollouts[, dim]). Axes in front of the tasks are candidates of a search, which all meet the same
initial states and noise. What a learner or a figure needs of the steps in between is collected by a `Recorder`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from dibs.envs import Array, Environment, sample_noise
from dibs.policies.network import Network
from dibs.seeding import stream
from dibs.simulation.specifications import SpecTask
from dibs.simulation.tasks import Bools, Levels, Progress, Rewards, Rows, Task


class Moment(NamedTuple):
    """What a policy may know when it acts; arrays are (..., tasks, rollouts[, dim])."""

    observation: Array  # what the environment shows of the states
    states: Array  # for policies that switch edges inside a region
    reward: Array | None  # of the step before; None at first
    stage: Levels  # stages of the specification completed so far
    alive: Bools  # episodes that go on; actions of the others are ignored


class Policy(Protocol):
    """Anything that acts on a batch of episodes. Tasks must not influence each other."""

    @property
    def stops(self) -> bool:
        """Whether it may give up: an episode ends where its action is not finite."""

    @property
    def rewards(self) -> Rewards | None:
        """Rewards that it was trained with, if it reads them; None: it does not."""

    def begin(self, shape: tuple[int, ...]) -> Any:
        """Return the memory of episodes (..., tasks, rollouts) that are about to start."""

    def act(self, now: Moment, memory: Any) -> tuple[Array, Any]:
        """Return actions (..., tasks, rollouts, m) and the new memory."""


class BasePolicy:
    """Defaults of a policy without memory; subclasses define `act`."""

    stops: bool = False
    rewards: Rewards | None = None

    def begin(self, shape: tuple[int, ...]) -> Any:
        return None


class NetworkPolicy(BasePolicy):
    """One network per task, or per candidate and task: parameters (..., tasks, size) that act on observations."""

    def __init__(self, network: Network, theta: Array) -> None:
        self.network, self.theta = network, theta

    def act(self, now: Moment, memory: None) -> tuple[Array, None]:
        return self.network.forward(self.theta, now.observation), None


class Stopped(BasePolicy):
    """A policy that never acts: what a diverged method is measured as."""

    stops = True

    def __init__(self, actions: int) -> None:
        self.actions = actions

    def act(self, now: Moment, memory: None) -> tuple[Array, None]:
        return np.full((*now.states.shape[:-1], self.actions), np.nan, dtype=np.float32), None


@dataclass(frozen=True, eq=False)
class Draws:
    """The randomness of a batch of episodes, shared by all candidates."""

    starts: Array  # (tasks, rollouts, dim)
    noise: Array  # (horizon, tasks, rollouts, dim)


def draw(task: Task, rollouts: int, rng: np.random.Generator) -> Draws:
    """Draw initial states and noise of `rollouts` episodes of every task from one generator."""
    dim = len(task.environment.state_names)
    starts = task.initial(rng.random((task.tasks, rollouts, dim), dtype=np.float32))
    return Draws(starts, sample_noise(rng, (task.horizon, task.tasks, rollouts, dim)))


def evaluation_draws(task: SpecTask, rollouts: int, seed: int, dtype: npt.DTypeLike = np.float32) -> Draws:
    """Draw each index from a stream of its own, so no result depends on which other indices are measured.

    The same draws in double precision make a rollout in double precision.
    """
    dim = len(task.environment.state_names)
    uniforms = np.empty((task.tasks, rollouts, dim), dtype=np.float32)
    noise = np.empty((task.horizon, task.tasks, rollouts, dim), dtype=np.float32)
    for i, index in enumerate(task.indices):
        rng = stream("evaluation", task.grounded.name, index, seed)
        uniforms[i] = rng.random((rollouts, dim), dtype=np.float32)
        noise[:, i] = sample_noise(rng, (task.horizon, rollouts, dim))
    return Draws(task.initial(uniforms.astype(dtype, copy=False)), noise.astype(dtype, copy=False))


class Recorder(Protocol):
    """Something that sees every step. It must copy what may change; arrays given to it are not changed later."""

    def begin(self, states: Array, progress: Progress) -> None:
        """Episodes start."""

    def step(self, now: Moment, actions: Array, rewards: Array, states: Array, after: Progress) -> None:
        """A step has led from `now` to `states`."""


class StateRecorder:
    """Keeps the states of all candidates, or of one."""

    def __init__(self, candidate: int | None = None) -> None:
        self.candidate = candidate
        self._kept: list[Array] = []

    def begin(self, states: Array, progress: Progress) -> None:
        self._kept = [self._chosen(states)]

    def step(self, now: Moment, actions: Array, rewards: Array, states: Array, after: Progress) -> None:
        self._kept.append(self._chosen(states))

    def _chosen(self, states: Array) -> Array:
        return states if self.candidate is None else states[self.candidate]

    def states(self, axis: int = 0) -> Array:
        """Return the states with time as the given axis; what follows an episode's end means nothing."""
        return np.stack(self._kept, axis=axis)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a batch of episodes; arrays are (..., tasks, rollouts)."""

    returns: Array
    success: Bools  # satisfied, by the task's own stages
    stage: Levels  # where each episode ended
    steps: int  # environment steps taken, not counting those after an episode's end
    moved: list[Bools]  # per time: which episodes took the step

    @cached_property
    def lengths(self) -> Rows:
        """States of each episode up to and including the last one; computed on demand, since most callers need none."""
        lengths = np.ones(self.success.shape, dtype=np.intp)
        for taken in self.moved:
            lengths += taken
        return lengths


def rollout(
    task: Task,
    policy: Policy,
    draws: Draws,
    candidates: Sequence[int] = (),
    recorder: Recorder | None = None,
    alive: Bools | None = None,
) -> Outcome:
    """Run `policy` on all tasks; every one of `candidates` meets the same initial states and noise.

    Episodes that are not in `alive` (..., tasks, rollouts) take no step.
    """
    environment = task.environment
    states = np.broadcast_to(draws.starts, (*candidates, *draws.starts.shape))
    if candidates:
        states = states.copy()
    progress = task.begin(states)
    if alive is not None:
        progress = progress._replace(alive=progress.alive & alive)
    shape = progress.alive.shape
    memory = policy.begin(shape)
    returns = np.zeros(shape, dtype=np.float32)
    moved: list[Bools] = []
    if recorder is not None:
        recorder.begin(states, progress)
    rewards: Array | None = None
    steps = 0
    for time, noise in enumerate(draws.noise):
        running = int(np.count_nonzero(progress.alive))
        if running == 0:
            break
        now = Moment(environment.observe(states), states, rewards, progress.stage, progress.alive)
        actions, memory = policy.act(now, memory)
        if policy.stops:
            finite: Bools = np.asarray(np.isfinite(actions).all(axis=-1))
            if not finite.all():
                actions = np.where(finite[..., None], actions, np.float32(0.0))
                progress = progress._replace(alive=progress.alive & finite)
                running = int(np.count_nonzero(progress.alive))
        steps += running
        if environment.by_row and running < progress.alive.size:
            states = _step_some(environment, states, actions, noise, progress.alive)
        else:
            states = environment.step(states, actions, noise)
        after = task.advance(progress, states)
        rewards = task.reward(progress, after, time)
        returns += rewards * progress.alive
        moved.append(progress.alive)
        if recorder is not None:
            recorder.step(now, actions, rewards, states, after)
        progress = after
        del now, actions, after  # their memory is used again in the next step
    return Outcome(returns, task.success(progress), progress.stage, steps, moved)


def _step_some(environment: Environment, states: Array, actions: Array, noise: Array, alive: Bools) -> Array:
    """Step only the episodes that go on; the others stay where they are."""
    moved = np.array(states)
    noise = np.broadcast_to(noise, states.shape)
    moved[alive] = environment.step(
        states[alive], np.broadcast_to(actions, (*alive.shape, actions.shape[-1]))[alive], noise[alive]
    )
    return moved


class Episodes:
    """Episodes of one task that are stepped from outside: what Gymnasium and Stable-Baselines3 environments are made
    of."""

    states: Array  # (n, dim)
    steps: Rows  # (n,) since the episode began
    progress: Progress  # (1, n)

    def __init__(self, task: Any, n: int) -> None:
        """`task` is an `EdgeTask` or `SpecTask` with a single task."""
        self.task, self.n = task, n

    def begin(self, states: Array) -> None:
        """Start all episodes in states (n, dim)."""
        self.states, self.steps = states, np.zeros(self.n, dtype=np.intp)
        self.progress = self.task.begin(states[None])

    def step(self, actions: Array, noise: Array) -> tuple[Array, Bools, Bools]:
        """Move every episode one step; return reward, terminated and truncated (n,)."""
        self.states = self.task.environment.step(self.states, actions, noise)
        after = self.task.advance(self.progress, self.states[None])
        reward = self.task.reward(self.progress, after, self.steps)[0]
        self.progress = after
        self.steps += 1
        terminated = ~after.alive[0]
        return reward, terminated, (self.steps >= self.task.horizon) & ~terminated

    def restart(self, rows: Rows, states: Array) -> None:
        """Start the episodes in `rows` again, in states (rows, dim)."""
        self.states[rows] = states
        self.steps[rows] = 0
        self.progress = self.task.restart(self.progress, self.states[None], rows)

    @property
    def success(self) -> Bools:
        """Which episodes have done what they should."""
        return np.asarray(self.task.success(self.progress)[0])
