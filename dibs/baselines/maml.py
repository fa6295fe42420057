"""MAML (Finn et al. 2017) on whole specifications: parameters from which one policy-gradient step solves a task.

Every training index is a task. In each iteration the shared parameters θ act on every task, one
policy-gradient step on what they met gives the task's own θᵢ = θ − α ∇Lᵢ(θ), and θ follows the gradient of
PPO's loss of all θᵢ on fresh episodes, through the step (second order: `torch.func`, one program over all
tasks). Two things are measured: θ itself (`maml`, zero-shot) and, because it is what MAML trains for, θ after
one step on exploratory episodes of the index that is measured (`maml-adapted`, not zero-shot).

The inner loss weighs advantages by exp(log π(θ) − log π of the sampling policy) rather than by log π: at the
sampling parameters the gradient is the same, but its derivative is that of the expected gradient (Rothfuss et
al. 2019), and it stays right while PPO moves θ away from where the episodes were sampled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np

from dibs.baselines.flat import FlatTask, Last, RewardKind, evaluate_flat
from dibs.baselines.ppo_core import (
    Episodes,
    Task,
    Watch,
    advantages,
    clipped_loss,
    collect,
    finite,
    gaussian_spread,
    log_probability,
    standardise,
)
from dibs.baselines.registry import Run, Trained
from dibs.baselines.tracking import Bools
from dibs.envs import Array
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family
from dibs.files import read_tensors
from dibs.policies.network import Network
from dibs.seeding import stream
from dibs.settings import STRICT, parse_settings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Settings:
    """Settings of MAML."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    steps: int = 2_000_000
    """Environment steps after which training ends, if it has not converged before."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the policy."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation of the hidden layers."""
    rollouts: int = 4
    """Episodes per task, before and again after adaptation."""
    tasks: int = 10
    """Most tasks in an iteration; with more training indices, so many are drawn each time."""
    before: float = 0.5
    """Weight of the loss before adaptation, which is what zero-shot measures; 0: after adaptation only (Finn)."""
    inner_step: float = 0.03
    """α: size of the adaptation step."""
    gamma: float = 0.95
    """Discount."""
    trace: float = 0.97
    """λ of generalised advantage estimation."""
    clip: float = 0.2
    """How far PPO lets the probability of an action change."""
    epochs: int = 10
    """Steps of PPO on the episodes of an iteration."""
    learning_rate: float = 3e-3
    """Adam's step."""
    grad_norm: float = 0.5
    """Largest norm of a meta-gradient."""
    initial_std: float = 0.5
    """Standard deviation of the exploration at first; it is learnt."""
    min_std: float = 0.2
    """Smallest standard deviation: the less a policy explores, the further an adaptation step of a given size goes."""
    entropy: float = 0.0
    """Weight of the policy's entropy."""
    observe_stage: bool = True
    """Whether the policy sees how many stages lie behind it."""
    reward: RewardKind = "progress"
    """Reward per step: distance covered (progress) or minus the distance to go (distance)."""
    bonus: float = 0.3
    """Reward for every stage completed."""
    depth: float = 0.0
    """How deep inside a target counts as reached while training; below 0: as for the teachers."""
    penalty: float = 0.1
    """Share of the family's penalty for unsafe states: in full, who explores had better stand still."""
    check_every: int = 10
    """Iterations between two measurements of the training tasks."""
    check_rollouts: int = 20
    """Episodes per task of a measurement."""
    converged: float = 0.99
    """Training ends once all tasks are solved and their mean rate is this high, before and after adaptation."""
    patience: int = 2
    """Successive measurements that must say so."""


# --- the policy ------------------------------------------------------------------------------------------
# Parameters are one vector: those of the network, then the logarithm of the standard deviations.


def mean_action(network: Network, theta: Array, observations: Array) -> Array:
    """Mean actions (*batch, n, m) of observations (*batch, n, inputs)."""
    return network.forward(theta[..., : network.size], observations)


@dataclass
class Acting:
    """The policy of `flat.rollout`: parameters (size,) for all tasks, or one vector per index."""

    network: Network
    theta: Array | Mapping[int, Array]

    def start(self, indices: Sequence[int], rollouts: int) -> None:
        chosen = self.theta
        self._now = np.stack([chosen[i] for i in indices]) if isinstance(chosen, Mapping) else chosen

    def act(self, observations: Array, last: Last | None) -> Array:
        return mean_action(self.network, self._now, observations)


def initial(network: Network, std: float, rng: np.random.Generator) -> Array:
    """Random parameters whose mean actions are near 0."""
    theta = network.initial(rng)
    last, bias = network.layers(theta)[-1]
    last *= np.float32(0.1)
    bias[...] = 0.0
    return np.concatenate([theta, np.full(network.outputs, np.log(std), dtype=np.float32)])


def log_std(network: Network, theta: Array) -> Array:
    """Logarithms of the standard deviations: (m,) of parameters (size,), (tasks, 1, m) of (tasks, size)."""
    tail = theta[..., network.size :]
    return tail if theta.ndim == 1 else tail[:, None, :]


# --- learning --------------------------------------------------------------------------------------------


class Batch(NamedTuple):
    """Episodes as a policy gradient needs them, task by task; all of (tasks, n)."""

    observations: Any  # (tasks, n, inputs)
    actions: Any  # (tasks, n, m)
    advantages: Any  # standardised in each task
    weight: Any  # 1: the step was taken
    sampled: Any  # log-probability under the parameters that sampled


def fit_values(episodes: Episodes, gamma: float) -> Array:
    """Values (time + 1, tasks, rollouts) of each task: ridge regression of returns on observations and time.

    All products of two are features as well: what the state is worth depends on the stage. With sums alone, the last
    stage was overrated, and every action taken there looked worse than it was.
    """
    time, tasks, rollouts = episodes.rewards.shape
    to_go = np.zeros_like(episodes.rewards)
    running = np.zeros((tasks, rollouts), dtype=np.float32)
    for t in reversed(range(time)):
        running = episodes.rewards[t] + gamma * running
        to_go[t] = running
    x = np.clip(episodes.observations, -10.0, 10.0).astype(np.float64)
    clock = np.broadcast_to((np.arange(time + 1) / 100.0)[:, None, None, None], (*x.shape[:-1], 1))
    linear = np.concatenate([x, clock, np.ones_like(clock)], axis=-1)
    one, other = np.triu_indices(linear.shape[-1])
    features = np.concatenate([linear[..., one] * linear[..., other], clock**3], axis=-1)
    rows = np.moveaxis(features[:-1] * episodes.alive[..., None], 1, 0).reshape(tasks, time * rollouts, -1)
    target = np.moveaxis(to_go * episodes.alive, 1, 0).reshape(tasks, time * rollouts, 1)
    gram = np.swapaxes(rows, 1, 2) @ rows + 1e-3 * np.eye(rows.shape[-1])
    coefficients = np.linalg.solve(gram, np.swapaxes(rows, 1, 2) @ target)  # (tasks, features, 1)
    return np.asarray(np.einsum("tkrf,kf->tkr", features, coefficients[..., 0]), dtype=np.float32)


def batch(network: Network, theta: Array, episodes: Episodes, settings: Settings) -> Batch:
    """Episodes sampled by theta (size,) or (tasks, size), as torch tensors."""
    import torch

    estimate = advantages(episodes, fit_values(episodes, settings.gamma), settings.gamma, settings.trace, cut_off=False)
    estimate = standardise(estimate, episodes.alive, axes=(0, 2))
    seen = episodes.observations[:-1]
    mean = mean_action(network, theta, np.moveaxis(seen, 1, 0).reshape(seen.shape[1], -1, seen.shape[-1]))
    actions = _by_task(episodes.actions)
    sampled = log_probability(mean, log_std(network, theta), actions, np.exp)
    arrays = (_by_task(seen), actions, _by_task(estimate), _by_task(episodes.alive), sampled)
    return Batch(*(torch.from_numpy(np.ascontiguousarray(a, dtype=np.float32)) for a in arrays))


def _by_task(array: Array) -> Array:
    """(time, tasks, rollouts, …) as (tasks, time · rollouts, …)."""
    return np.moveaxis(array, 1, 0).reshape(array.shape[1], array.shape[0] * array.shape[2], *array.shape[3:])


def log_ratio(network: Network, theta: Tensor, b: Batch) -> Tensor:
    """How much more probable (as a logarithm) one task's actions are under theta than when sampled."""
    import torch

    from dibs.policies.torch import forward

    mean = forward(network, theta[: network.size], b.observations)
    log_prob: Tensor = log_probability(mean, theta[network.size :], b.actions, torch.exp)
    return log_prob - b.sampled


def adapt(network: Network, theta: Tensor, b: Batch, step: float) -> Tensor:
    """One task's parameters after a policy-gradient step from theta on its episodes."""
    from torch.func import grad

    def loss(parameters: Tensor) -> Tensor:
        gain = log_ratio(network, parameters, b).exp() * b.advantages
        return -(b.weight * gain).sum() / b.weight.sum().clamp(min=1.0)

    return theta - step * grad(loss)(theta)


def adapt_all(network: Network, theta: Tensor, b: Batch, step: float) -> Tensor:
    """All tasks' parameters (tasks, size) after their adaptation step."""
    from torch.func import vmap

    return vmap(lambda own: adapt(network, theta, own, step))(b)


def meta_loss(network: Network, theta: Tensor, before: Batch, after: Batch, settings: Settings) -> Tensor:
    """PPO's loss of the adapted policies on the episodes they sampled, averaged over tasks."""
    from torch.func import vmap

    def of_task(b: Batch, fresh: Batch) -> Tensor:
        own = adapt(network, theta, b, settings.inner_step)
        loss = clipped_loss(log_ratio(network, own, fresh), fresh.advantages, fresh.weight, settings.clip)
        loss = loss - settings.entropy * own[network.size :].sum()
        if settings.before == 0.0:
            return loss
        shared = clipped_loss(log_ratio(network, theta, b), b.advantages, b.weight, settings.clip)
        return (1.0 - settings.before) * loss + settings.before * shared

    return vmap(of_task)(before, after).mean()


def explore(
    network: Network, theta: Array, task: Task, settings: Settings, rng: np.random.Generator
) -> tuple[Episodes, Batch, Array]:
    """Episodes of theta (size,) on every task, and the parameters (tasks, size) adapted to each by them."""
    import torch

    spread = gaussian_spread(rng, log_std(network, theta))
    met = collect(task, Acting(network, theta), task.draw(settings.rollouts, rng), spread)
    before = batch(network, theta, met, settings)
    return met, before, adapt_all(network, torch.from_numpy(theta), before, settings.inner_step).numpy()


class Learner:
    """The shared parameters θ and their optimiser."""

    def __init__(self, task: Task, settings: Settings, rng: np.random.Generator) -> None:
        import torch

        self.settings, self.rng = settings, rng
        self.network = Network(task.observation_dim, tuple(settings.hidden), task.action_dim, settings.activation)
        self.theta = initial(self.network, settings.initial_std, rng)
        self._parameters = torch.from_numpy(self.theta)  # shares memory: Adam's steps show in theta
        self._adam = torch.optim.Adam([self._parameters], lr=settings.learning_rate)

    def iterate(self, task: Task) -> tuple[Episodes, Episodes]:
        """Meet every task before and after adaptation, and improve θ; returns both batches of episodes."""
        import torch
        from torch.func import grad

        met, before, own = explore(self.network, self.theta, task, self.settings, self.rng)
        policy = Acting(self.network, dict(zip(task.indices, own, strict=True)))
        spread = gaussian_spread(self.rng, log_std(self.network, own))
        fresh = collect(task, policy, task.draw(self.settings.rollouts, self.rng), spread)
        after = batch(self.network, own, fresh, self.settings)
        gradient = grad(lambda theta: meta_loss(self.network, theta, before, after, self.settings))
        for _ in range(self.settings.epochs):
            self._parameters.grad = gradient(self._parameters)
            torch.nn.utils.clip_grad_norm_([self._parameters], self.settings.grad_norm)
            self._adam.step()
            self._parameters[self.network.size :].clamp_(min=float(np.log(self.settings.min_std)))
        return met, fresh


def train(run: Run, settings: Settings) -> Trained:
    """Meta-train on the training indices of a benchmark."""
    rng = stream("maml", run.benchmark, run.gap, run.seed)
    task = FlatTask.of(run.family, run.text, run.train, settings)
    measured = replace(task, depth=0.0)
    learner = Learner(task, settings, rng)
    watch = Watch(settings.converged, settings.patience)
    steps, iteration, converged, diverged = 0, 0, False, False
    while steps < settings.steps and not converged and not diverged:
        steps += sum(episodes.steps for episodes in learner.iterate(task.some(settings.tasks, rng)))
        iteration += 1
        diverged = not finite({"theta": learner.theta})
        if not diverged and (iteration % settings.check_every == 0 or steps >= settings.steps):
            success, taken = _check(learner, task, measured)
            steps += taken
            converged = watch.report(steps, success, {"theta": learner.theta})
            if run.progress:
                run.progress(f"{steps} steps  {watch}")
    return Trained(
        tensors=watch.tensors or {"theta": np.zeros_like(learner.theta)},
        metadata={"network": asdict(learner.network), "diverged": diverged, "settings": asdict(settings)},
        steps=steps,
        metrics={"iterations": iteration, **watch.metrics(converged, diverged)},
    )


def _check(learner: Learner, task: Task, measured: Task) -> tuple[list[Bools], int]:
    """Successes on `measured` before and after adaptation to `task`, and the steps this took."""
    met, _, own = explore(learner.network, learner.theta, task, learner.settings, learner.rng)
    draws = measured.draw(learner.settings.check_rollouts, learner.rng)
    thetas = (learner.theta, dict(zip(task.indices, own, strict=True)))
    tested = [collect(measured, Acting(learner.network, theta), draws, lambda mean: mean) for theta in thetas]
    return [episodes.success for episodes in tested], met.steps + sum(episodes.steps for episodes in tested)


# --- measuring -------------------------------------------------------------------------------------------


def count(
    family: Family, text: str, artefact: Path, seed: int, indices: Sequence[int], settings: EvaluationSettings
) -> dict[int, int]:
    """Satisfying rollouts per index of θ itself: zero-shot."""
    network, theta, own, diverged = _load(artefact)
    if diverged:
        return dict.fromkeys(indices, 0)
    return evaluate_flat(family, text, Acting(network, theta), indices, settings, seed, own.observe_stage)


def count_adapted(
    family: Family, text: str, artefact: Path, seed: int, indices: Sequence[int], settings: EvaluationSettings
) -> dict[int, int]:
    """Satisfying rollouts per index after one step on episodes of that index: not zero-shot."""
    network, theta, own, diverged = _load(artefact)
    if diverged:
        return dict.fromkeys(indices, 0)
    adapted = {}
    for index in indices:  # one by one, so that no index depends on its neighbours
        rng = stream("maml", "adaptation", family.name, index, seed)
        adapted[index] = explore(network, theta, FlatTask.of(family, text, (index,), own), own, rng)[2][0]
    return evaluate_flat(family, text, Acting(network, adapted), indices, settings, seed, own.observe_stage)


def _load(artefact: Path) -> tuple[Network, Array, Settings, bool]:
    tensors, metadata = read_tensors(artefact)
    shape = metadata["network"]
    network = Network(shape["inputs"], tuple(shape["hidden"]), shape["outputs"], shape["activation"])
    own = parse_settings(Settings, metadata["settings"], str(artefact))
    return network, tensors["theta"], own, bool(metadata["diverged"])
