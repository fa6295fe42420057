"""What the two meta-RL baselines share: batched episodes, advantages, PPO's clipped loss, convergence.

Episodes are arrays of shape (time, tasks, rollouts[, dim]); acting is numpy, so only training needs torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from dibs.baselines.flat import Bools, Draws, Last, Policy
from dibs.envs import Array

if TYPE_CHECKING:
    from torch import Tensor

LOG_2PI = float(np.log(2.0 * np.pi))


class Task(Protocol):
    """What is asked of a task; `dibs.baselines.flat.FlatTask` offers it, `Seen` being its own affair."""

    @property
    def indices(self) -> tuple[int, ...]: ...
    @property
    def horizon(self) -> int: ...
    @property
    def observation_dim(self) -> int: ...
    @property
    def action_dim(self) -> int: ...

    def draw(self, rollouts: int, rng: np.random.Generator) -> Draws:
        """Initial states and noise of `rollouts` episodes of every task."""

    def begin(self, states: Array) -> Any:
        """Episodes that start in the given states."""

    def step(self, seen: Any, actions: Array, noise: Array) -> tuple[Any, Array]:
        """One step of every episode and its rewards."""

    def observe(self, states: Array, stage: Any) -> Array:
        """What a policy sees."""

    def satisfied(self, seen: Any) -> Bools:
        """Which episodes have done what they should."""


@dataclass(frozen=True, eq=False)
class Episodes:
    """Recorded episodes; what comes after an episode's end is masked by `alive`."""

    observations: Array  # (time + 1, tasks, rollouts, n)
    actions: Array  # (time, tasks, rollouts, m): as drawn, before the dynamics clip them
    rewards: Array  # (time, tasks, rollouts)
    alive: Array  # (time, tasks, rollouts), 1 or 0: the step was taken
    ended: Array  # (time, tasks, rollouts), 1 or 0: the task was over after the step
    success: Bools  # (tasks, rollouts)

    @property
    def steps(self) -> int:
        return int(self.alive.sum())

    @property
    def returns(self) -> Array:
        """Undiscounted returns (tasks, rollouts)."""
        return np.asarray(self.rewards.sum(axis=0))


def collect(task: Task, policy: Policy, draws: Draws, spread: Callable[[Array], Array]) -> Episodes:
    """Run `policy` with `spread` added to its actions, and record everything."""
    policy.start(task.indices, draws.starts.shape[1])
    seen = task.begin(draws.starts)
    success = task.satisfied(seen)
    observations = [task.observe(seen.states, seen.stage)]
    actions, rewards, alive, ended = [], [], [], []
    last: Last | None = None
    for noise in draws.noise:
        if not seen.alive.any():
            break
        drawn = spread(policy.act(observations[-1], last))
        after, reward = task.step(seen, drawn, noise)
        actions.append(drawn)
        rewards.append(reward)
        alive.append(seen.alive)
        ended.append(seen.alive & ~after.alive)
        success = success | (seen.alive & task.satisfied(after))
        last = Last(drawn, reward, after.alive)
        seen = after
        observations.append(task.observe(seen.states, seen.stage))
    recorded = {"observations": observations, "actions": actions, "rewards": rewards, "alive": alive, "ended": ended}
    return Episodes(**{name: np.array(steps, dtype=np.float32) for name, steps in recorded.items()}, success=success)


def gaussian_spread(rng: np.random.Generator, log_std: Array) -> Callable[[Array], Array]:
    """Exploration: Gaussian noise with standard deviations exp(log_std), broadcast against (tasks, rollouts, m)."""
    std = np.exp(log_std)
    return lambda mean: mean + std * rng.standard_normal(mean.shape, dtype=np.float32)


def log_probability(mean: Any, log_std: Any, actions: Any, exp: Callable[[Any], Any]) -> Any:
    """Log density (...) of actions (..., m); for numpy and torch, each with its own `exp`."""
    scaled = (actions - mean) * exp(-log_std)
    return (-0.5 * scaled * scaled - log_std - 0.5 * LOG_2PI).sum(-1)


def advantages(episodes: Episodes, values: Array, gamma: float, trace: float, cut_off: bool) -> Array:
    """Generalised advantages (time, tasks, rollouts) from values (time + 1, tasks, rollouts).

    `cut_off`: the time limit only cuts an episode off, so what would have come after it counts by its value.
    """
    result = np.zeros_like(episodes.rewards)
    running = np.zeros_like(episodes.rewards[0])
    for t in reversed(range(len(result))):
        goes_on = episodes.alive[t] * (1.0 - episodes.ended[t])
        follows = goes_on if cut_off or t + 1 < len(result) else 0.0 * goes_on
        error = episodes.rewards[t] + gamma * follows * values[t + 1] - values[t]
        running = episodes.alive[t] * (error + gamma * trace * follows * running)
        result[t] = running
    return result


def standardise(values: Array, weight: Array, axes: tuple[int, ...] | None = None) -> Array:
    """Values less their mean, over their standard deviation, where weight is 1; 0 elsewhere."""
    count = np.maximum(weight.sum(axis=axes, keepdims=True), 1.0)
    centred = weight * (values - (weight * values).sum(axis=axes, keepdims=True) / count)
    return np.asarray(centred / (np.sqrt((centred**2).sum(axis=axes, keepdims=True) / count) + 1e-8))


def clipped_loss(log_ratio: Tensor, advantage: Tensor, weight: Tensor, clip: float) -> Tensor:
    """PPO's objective, to be minimised: the pessimistic one of the plain and the clipped surrogate."""
    ratio = log_ratio.exp()
    surrogate = (ratio * advantage).minimum(ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
    return -(weight * surrogate).sum() / weight.sum().clamp(min=1.0)


class Running:
    """Variance of all numbers seen so far: the scale of returns."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0.0, 0.0, 0.0

    def update(self, numbers: Array) -> None:
        """Take in more numbers."""
        self.count += numbers.size
        self.total += float(numbers.sum(dtype=float))
        self.squares += float((numbers.astype(float) ** 2).sum())

    @property
    def std(self) -> float:
        mean = self.total / max(self.count, 1.0)
        return float(np.sqrt(max(self.squares / max(self.count, 1.0) - mean**2, 0.0))) + 1e-6


class Check(NamedTuple):
    """How the policies did on the training tasks at some point of training, acting without exploration."""

    steps: int
    solved: float  # share of training tasks whose rate exceeds 0.9
    rate: float  # mean satisfaction rate


class Watch:
    """Keeps the parameters that did best on the training tasks, and says when training may end."""

    def __init__(self, rate: float, patience: int) -> None:
        self.rate, self.patience = rate, patience
        self.checks: list[Check] = []
        self.best: Check | None = None
        self.tensors: dict[str, np.ndarray] = {}

    def report(self, steps: int, success: Sequence[Bools], tensors: Mapping[str, np.ndarray]) -> bool:
        """Take in successes (tasks, rollouts) of one or more policies; returns whether training has converged."""
        rates = np.concatenate([s.mean(axis=-1) for s in success])
        check = Check(steps, float((rates > 0.9).mean()), float(rates.mean()))
        self.checks.append(check)
        if self.best is None or check[1:] >= self.best[1:]:
            self.best, self.tensors = check, {name: np.array(tensor) for name, tensor in tensors.items()}
        recent = self.checks[-self.patience :]
        return len(recent) == self.patience and all(c.solved == 1.0 and c.rate >= self.rate for c in recent)

    def __str__(self) -> str:
        if self.best is None:
            return "not measured yet"
        return f"solved {self.checks[-1].solved:.2f} (best {self.best.solved:.2f})  rate {self.checks[-1].rate:.2f}"

    def metrics(self, converged: bool, diverged: bool) -> dict[str, Any]:
        """What the metrics of a run say of its course."""
        return {
            "converged": converged,
            "diverged": diverged,
            "best": None if self.best is None else self.best._asdict(),
            "curve": [check._asdict() for check in self.checks],
        }


def finite(tensors: Mapping[str, np.ndarray]) -> bool:
    """Whether every number is finite."""
    return all(bool(np.isfinite(tensor).all()) for tensor in tensors.values())
