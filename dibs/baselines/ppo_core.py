"""What the two meta-RL baselines share: the training loop, recorded episodes, advantages, PPO's clipped loss.

Episodes are arrays of shape (time, tasks, rollouts[, dim]). Acting is NumPy, so only training needs torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dibs.baselines.flat import FlatView
from dibs.envs import Array
from dibs.families import Tasks
from dibs.methods import Model, Training
from dibs.policies.network import Network
from dibs.seeding import stream
from dibs.simulation import Bools, Draws, Levels, Moment, Policy, Progress, Rewards, SpecTask, Task, rollout

if TYPE_CHECKING:
    from torch import Tensor

LOG_2PI = float(np.log(2.0 * np.pi))


# --- training --------------------------------------------------------------------------------------------


class Learner(Protocol):
    """A method's parameters and how they improve."""

    parameters: dict[str, Array]

    def iterate(self, task: SpecTask) -> int:
        """Improve the parameters on all tasks; return the environment steps this took."""

    def check(self, task: SpecTask) -> tuple[list[Bools], int]:
        """Return successes (tasks, rollouts) of one or more policies without exploration, and the steps this took."""


def meta_train(training: Training, settings: Any, name: str, learner_of: Callable[..., Learner]) -> Model:
    """Train until the budget is spent, all training tasks are solved, or a parameter is no longer finite.

    `learner_of(task, view, settings, rng)` makes the learner; `name` is that of the method, for its random stream.
    The model is the best one on the training tasks: most of them solved (a rate above 0.9), then the highest rate.
    """
    rng = stream(name, training.benchmark, training.split.key, training.seed)
    task = training_task(training.tasks, settings)
    view = FlatView.of_tasks(training.tasks, settings.observe_stage)
    learner = learner_of(task, view, settings, rng)
    best: dict[str, float] | None = None
    tensors = {name: np.zeros_like(array) for name, array in learner.parameters.items()}
    curve: list[dict[str, float]] = []
    steps, iteration, converged, diverged = 0, 0, False, False
    while steps < settings.steps and not converged and not diverged:
        steps += learner.iterate(some_of(task, settings.tasks, rng))
        iteration += 1
        diverged = not all(np.isfinite(array).all() for array in learner.parameters.values())
        if not diverged and (iteration % settings.check_every == 0 or steps >= settings.steps):
            success, taken = learner.check(task)
            steps += taken
            rates = np.concatenate([s.mean(axis=-1) for s in success])
            check = {"steps": steps, "solved": float((rates > 0.9).mean()), "rate": float(rates.mean())}
            curve.append(check)
            if best is None or (check["solved"], check["rate"]) >= (best["solved"], best["rate"]):
                best, tensors = check, {name: array.copy() for name, array in learner.parameters.items()}
            if training.progress:
                solved = f"solved {check['solved']:.2f} (best {best['solved']:.2f})"
                training.progress(f"{steps} steps  {solved}  rate {check['rate']:.2f}")
            recent = [c["solved"] == 1.0 and c["rate"] >= settings.converged for c in curve[-settings.patience :]]
            converged = len(recent) == settings.patience and all(recent)
    metrics = {"iterations": iteration, "converged": converged, "diverged": diverged, "best": best, "curve": curve}
    metadata = {"settings": asdict(settings), "seed": training.seed, "diverged": diverged}
    return view.model(tensors, metadata, steps, metrics)


def training_task(tasks: Tasks, settings: Any) -> SpecTask:
    """Return the task that a method's settings describe; a negative depth stands for the family's."""
    depth = tasks.reward.depth if settings.depth < 0 else settings.depth
    return SpecTask(tasks, Rewards(settings.reward, settings.bonus, settings.penalty), depth)


def some_of(task: SpecTask, count: int, rng: np.random.Generator) -> SpecTask:
    """Return the task at `count` of its indices, drawn at random; at all of them if there are no more."""
    if task.tasks <= count:
        return task
    drawn = np.sort(rng.choice(task.indices, count, replace=False))
    return replace(task, grounded=task.grounded.at([int(i) for i in drawn]))


# --- episodes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Episodes:
    """Recorded episodes; what comes after an episode's end is masked by `alive`."""

    inputs: Array  # (time + 1, tasks, rollouts, n): of the policy's network
    actions: Array  # (time, tasks, rollouts, m): as drawn, before the environment clips them
    rewards: Array  # (time, tasks, rollouts)
    alive: Array  # (time, tasks, rollouts), 1 or 0: the step was taken
    ended: Array  # (time, tasks, rollouts), 1 or 0: the task was over after the step

    @property
    def steps(self) -> int:
        return int(self.alive.sum())


class _Collector:
    """A `Recorder` of what a policy gradient needs."""

    def begin(self, states: Array, progress: Progress) -> None:
        self.met: list[tuple[Array, Levels]] = [(states, progress.stage)]
        self.steps: list[tuple[Array, Array, Bools, Bools]] = []

    def step(self, now: Moment, actions: Array, rewards: Array, states: Array, after: Progress) -> None:
        self.met.append((states, after.stage))
        self.steps.append((actions, rewards, now.alive, now.alive & ~after.alive))


def collect(task: Task, policy: Policy, view: FlatView, draws: Draws) -> Episodes:
    """Run `policy` on all tasks and return all that it met."""
    collector = _Collector()
    rollout(task, policy, draws, recorder=collector)
    states, stage = (np.stack(arrays) for arrays in zip(*collector.met, strict=True))
    inputs = view.inputs(task.environment.observe(states), stage)
    actions, rewards, alive, ended = (np.array(x, dtype=np.float32) for x in zip(*collector.steps, strict=True))
    return Episodes(inputs, actions, rewards, alive, ended)


def initial_actor(network: Network, rng: np.random.Generator) -> Array:
    """Return random parameters whose actions are near 0."""
    theta = network.initial(rng)
    weights, biases = network.layers(theta)[-1]
    weights *= np.float32(0.1)
    biases[...] = 0.0
    return theta


def gaussian_noise(rng: np.random.Generator, log_std: Array) -> Callable[[Array], Array]:
    """Return a function that adds Gaussian noise with standard deviations exp(log_std) to (tasks, rollouts, m)."""
    std = np.exp(log_std)
    return lambda mean: mean + std * rng.standard_normal(mean.shape, dtype=np.float32)


def log_probability(mean: Any, log_std: Any, actions: Any) -> Any:
    """Return the log density (...) of actions (..., m), for arrays and for torch tensors."""
    scaled = (actions - mean) * (np.exp(-log_std) if isinstance(log_std, np.ndarray) else (-log_std).exp())
    return (-0.5 * scaled * scaled - log_std - 0.5 * LOG_2PI).sum(-1)


# --- policy gradients ------------------------------------------------------------------------------------


def discounted(rewards: Array, gamma: float) -> Array:
    """Return the discounted sums of rewards (time, ...) so far."""
    sums: list[Any] = list(accumulate(rewards, lambda total, reward: gamma * np.asarray(total) + reward))
    return np.stack(sums)


def advantages(episodes: Episodes, values: Array, gamma: float, trace: float, cut_off: bool) -> Array:
    """Return generalized advantages (time, tasks, rollouts) from values (time + 1, tasks, rollouts).

    With `cut_off`, the time limit only cuts an episode off, so the value of the last state counts for what would have
    followed.
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


def standardize(values: Array, weight: Array, axes: tuple[int, ...] | None = None) -> Array:
    """Return values minus their mean, over their standard deviation, where weight is 1; 0 elsewhere."""
    count = np.maximum(weight.sum(axis=axes, keepdims=True), 1.0)
    centered = weight * (values - (weight * values).sum(axis=axes, keepdims=True) / count)
    return np.asarray(centered / (np.sqrt((centered**2).sum(axis=axes, keepdims=True) / count) + 1e-8))


def clipped_loss(log_ratio: Tensor, advantage: Tensor, weight: Tensor, clip: float) -> Tensor:
    """Return PPO's loss: minus the smaller of the plain and the clipped surrogate."""
    ratio = log_ratio.exp()
    surrogate = (ratio * advantage).minimum(ratio.clamp(1.0 - clip, 1.0 + clip) * advantage)
    return -(weight * surrogate).sum() / weight.sum().clamp(min=1.0)


def tensors(*arrays: Array) -> list[Tensor]:
    """Return arrays as torch tensors in single precision."""
    import torch

    return [torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)) for array in arrays]
