"""Batched rollouts of reach-avoid tasks: tasks × candidates × rollouts advance in one array program."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dibs.envs import Array, sample_noise
from dibs.families import ReachAvoid
from dibs.policies.network import Network

Rows = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Draws:
    """The randomness of a batch of rollouts, shared by all candidates (common random numbers)."""

    starts: Array  # (tasks, rollouts, dim)
    noise: Array  # (horizon, tasks, rollouts, dim)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What happened in the rollouts of each candidate."""

    returns: Array  # (tasks, candidates)
    success: Array  # (tasks, candidates): share of rollouts that reached the target and stayed safe
    steps: int  # environment steps taken, not counting those after an episode's end
    states: Array | None = None  # (horizon + 1, tasks, rollouts, dim) of the recorded candidate
    lengths: Rows | None = None  # (tasks, rollouts): states up to and including the last one
    satisfied: Bools | None = None  # (tasks, rollouts)


def draw(tasks: ReachAvoid, rollouts: int, rng: np.random.Generator) -> Draws:
    """Draw initial states and noise for `rollouts` rollouts of every task."""
    dim = tasks.start_center.shape[1]
    starts = tasks.initial(rng.random((tasks.tasks, rollouts, dim), dtype=np.float32))
    return Draws(starts, sample_noise(rng, (tasks.horizon, tasks.tasks, rollouts, dim)))


def roll(
    network: Network,
    theta: Array,
    tasks: ReachAvoid,
    draws: Draws,
    depth: float = 0.0,
    record: int | None = None,
) -> Outcome:
    """Run candidates theta (tasks, candidates, size), acting on raw states, on all tasks.

    An episode ends where the state is `depth` inside the target. `record` keeps the states of one candidate.
    """
    n_tasks, n_candidates, _ = theta.shape
    shape = (n_tasks, n_candidates, draws.starts.shape[1])
    states = np.repeat(draws.starts[:, None], n_candidates, axis=1)
    alive = np.ones(shape, dtype=bool)
    safe = np.ones(shape, dtype=bool)
    returns = np.zeros(shape, dtype=np.float32)
    kept = [states[:, record]] if record is not None else []
    lengths = np.ones((n_tasks, shape[2]), dtype=np.intp)
    steps = 0
    for noise in draws.noise:
        running = int(np.count_nonzero(alive))
        if running == 0:
            break
        steps += running
        states = tasks.dynamics.step(states, network.forward(theta, states), noise[:, None])
        distance, safety = tasks.target_distance(states), tasks.safe_distance(states)
        returns += tasks.reward(distance, safety) * alive
        if safety is not None:
            safe &= (safety >= 0.0) | ~alive
        if record is not None:
            kept.append(states[:, record])
            lengths += alive[:, record]
        alive &= ~(distance >= depth)  # a NaN has not arrived
    success = safe & ~alive
    mean_return, rate = returns.mean(axis=-1), success.mean(axis=-1)
    if record is None:
        return Outcome(mean_return, rate, steps)
    return Outcome(mean_return, rate, steps, np.stack(kept), lengths, success[:, record])
