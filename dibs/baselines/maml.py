"""MAML (Finn et al. 2017) on whole specifications: parameters from which one policy-gradient step solves a task.

Every training index is a task. In each iteration the shared parameters θ act on every task, one policy-gradient step
on these episodes gives the task's own θᵢ = θ − α ∇Lᵢ(θ), and θ follows the gradient of PPO's loss of all θᵢ on fresh
episodes, through the step (second order: `torch.func`, one program over all tasks). Two policies are measured: θ
itself (`maml`, zero-shot) and, because it is what MAML trains for, θ after one step on exploratory episodes of the
measured index (`maml-adapted`, not zero-shot).

The inner loss weighs advantages by exp(log π(θ) − log π of the sampling policy) rather than by log π: at the sampling
parameters the gradient is the same, but its derivative is that of the expected gradient (Rothfuss et al. 2019), and
it stays right while PPO moves θ away from where the episodes were sampled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from dibs.baselines import ppo_core as ppo
from dibs.baselines.flat import FlatPolicy, FlatView
from dibs.envs import Array, Environment
from dibs.families import Tasks
from dibs.methods import Method, Model, Training
from dibs.policies.network import Network
from dibs.seeding import stream
from dibs.settings import Share, parse_settings
from dibs.simulation import Bools, Policy, SpecTask, Stopped, Task, draw, rollout

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Settings(ppo.GradientSettings, ppo.SpecSettings):
    """Settings of MAML."""

    steps: int = 2_000_000
    """Environment steps after which training ends, if it has not converged before."""
    activation: Literal["relu", "tanh"] = "relu"
    """Activation of the hidden layers."""
    rollouts: int = 4
    """Episodes per task, both before and after adaptation."""
    before: Share = 0.0
    """Weight of the loss before adaptation, which is what zero-shot measures; 0: after adaptation only (Finn)."""
    inner_step: float = 0.03
    """α: size of the adaptation step."""
    trace: float = 0.97
    """λ of generalized advantage estimation."""
    epochs: int = 10
    """Steps of PPO on the episodes of an iteration."""
    min_std: float = 0.2
    """Smallest standard deviation: the less a policy explores, the further an adaptation step of a given size goes."""
    converged: float = 0.99
    """Training ends once all tasks are solved and their mean rate is this high, before and after adaptation."""


# --- the policy ------------------------------------------------------------------------------------------
# Parameters are one vector: those of the network, then the logarithm of the standard deviations.


def policy_network(environment: Environment, view: FlatView, settings: Settings) -> Network:
    """Return the network of the policy."""
    return Network(view.size, settings.hidden, environment.action_dim, settings.activation)


def acting(network: Network, theta: Array, view: FlatView, rng: np.random.Generator | None = None) -> FlatPolicy:
    """Return the policy of parameters (size,) for all tasks, or (tasks, size); with `rng` it explores."""
    explore = None if rng is None else ppo.gaussian_noise(rng, log_std(network, theta))
    return FlatPolicy(network, theta[..., : network.size], view, explore)


def initial(network: Network, std: float, rng: np.random.Generator) -> Array:
    """Return random parameters."""
    return np.append(ppo.initial_actor(network, rng), np.full(network.outputs, np.log(std), dtype=np.float32))


def log_std(network: Network, theta: Array) -> Array:
    """Return the logarithms of the standard deviations: (m,) of parameters (size,), (tasks, 1, m) of (tasks, size)."""
    return theta[network.size :] if theta.ndim == 1 else theta[:, None, network.size :]


# --- learning --------------------------------------------------------------------------------------------


class PolicyBatch(NamedTuple):
    """Episodes as a policy gradient needs them, task by task; all of (tasks, n)."""

    inputs: Any  # (tasks, n, inputs)
    actions: Any  # (tasks, n, m)
    advantages: Any  # standardized in each task
    weight: Any  # 1: the step was taken
    sampled: Any  # log-probability under the parameters that sampled


def fit_values(episodes: ppo.Experience, gamma: float) -> Array:
    """Return values (time + 1, tasks, rollouts) of each task: ridge regression of returns on inputs and time.

    All products of two are features as well, because the value of a state depends on the stage. Without them, the
    last stage was overrated, and every action taken there looked worse than it was.
    """
    x = np.clip(episodes.inputs, -10.0, 10.0).astype(np.float64)
    clock = np.broadcast_to((np.arange(len(x)) / 100.0)[:, None, None, None], (*x.shape[:-1], 1))
    linear = np.concatenate([x, clock, np.ones_like(clock)], axis=-1)
    one, other = np.triu_indices(linear.shape[-1])
    features = np.concatenate([linear[..., one] * linear[..., other], clock**3], axis=-1)
    rows = _by_task(features[:-1] * episodes.alive[..., None])
    target = _by_task(ppo.discounted(episodes.rewards[::-1], gamma)[::-1] * episodes.alive)[..., None]
    gram = np.swapaxes(rows, 1, 2) @ rows + 1e-3 * np.eye(rows.shape[-1])
    coefficients = np.linalg.solve(gram, np.swapaxes(rows, 1, 2) @ target)  # (tasks, features, 1)
    return np.asarray(np.einsum("tkrf,kf->tkr", features, coefficients[..., 0]), dtype=np.float32)


def batch(network: Network, theta: Array, episodes: ppo.Experience, settings: Settings) -> PolicyBatch:
    """Return episodes that theta (size,) or (tasks, size) sampled, as torch tensors."""
    values = fit_values(episodes, settings.gamma)
    gained = ppo.advantages(episodes, values, settings.gamma, settings.trace, cut_off=False)
    gained = ppo.standardize(gained, episodes.alive, axes=(0, 2))
    inputs, actions = _by_task(episodes.inputs[:-1]), _by_task(episodes.actions)
    mean = network.forward(theta[..., : network.size], inputs)
    sampled = ppo.log_probability(mean, log_std(network, theta), actions)
    return PolicyBatch(*ppo.tensors(inputs, actions, _by_task(gained), _by_task(episodes.alive), sampled))


def _by_task(array: Array) -> Array:
    """Return (time, tasks, rollouts, …) as (tasks, time · rollouts, …)."""
    return np.moveaxis(array, 1, 0).reshape(array.shape[1], array.shape[0] * array.shape[2], *array.shape[3:])


def log_ratio(network: Network, theta: Tensor, b: PolicyBatch) -> Tensor:
    """Return how much more probable (as a logarithm) one task's actions are under theta than when sampled."""
    from dibs.policies.torch import forward

    mean = forward(network, theta[: network.size], b.inputs)
    log_prob: Tensor = ppo.log_probability(mean, theta[network.size :], b.actions)
    return log_prob - b.sampled


def adapt(network: Network, theta: Tensor, b: PolicyBatch, step: float) -> Tensor:
    """Return all tasks' parameters (tasks, size) after a policy-gradient step from theta on their episodes."""
    from torch.func import grad, vmap

    def loss(parameters: Tensor, own: PolicyBatch) -> Tensor:
        gain = log_ratio(network, parameters, own).exp() * own.advantages
        return -(own.weight * gain).sum() / own.weight.sum().clamp(min=1.0)

    return vmap(lambda own: theta - step * grad(loss)(theta, own))(b)


def meta_loss(network: Network, theta: Tensor, before: PolicyBatch, after: PolicyBatch, settings: Settings) -> Tensor:
    """Return PPO's loss of the adapted policies on the episodes they sampled, averaged over tasks."""
    from torch.func import vmap

    def of_task(own: Tensor, b: PolicyBatch, fresh: PolicyBatch) -> Tensor:
        loss = ppo.clipped_loss(log_ratio(network, own, fresh), fresh.advantages, fresh.weight, settings.clip)
        loss = loss - settings.entropy * own[network.size :].sum()
        if settings.before == 0.0:
            return loss
        shared = ppo.clipped_loss(log_ratio(network, theta, b), b.advantages, b.weight, settings.clip)
        return (1.0 - settings.before) * loss + settings.before * shared

    return vmap(of_task)(adapt(network, theta, before, settings.inner_step), before, after).mean()


class Learner:
    """The shared parameters θ (given, or else random) and their optimizer."""

    def __init__(
        self, task: Task, view: FlatView, settings: Settings, rng: np.random.Generator, theta: Array | None = None
    ) -> None:
        import torch

        from dibs.policies.optimizers import Adam

        self.view, self.settings, self.rng = view, settings, rng
        self.network = policy_network(task.environment, view, settings)
        self.theta = initial(self.network, settings.initial_std, rng) if theta is None else theta
        self.parameters = {"theta": self.theta}
        self._theta = torch.from_numpy(self.theta)  # shares memory: Adam's steps show in theta
        self._adam = Adam([self._theta], lr=settings.learning_rate)

    def sample(self, theta: Array, task: Task) -> tuple[ppo.Experience, PolicyBatch]:
        """Run theta (size,) or (tasks, size) on every task, with exploration."""
        policy = acting(self.network, theta, self.view, self.rng)
        episodes = ppo.collect(
            task, policy, self.view.seen(task.environment), draw(task, self.settings.rollouts, self.rng)
        )
        return episodes, batch(self.network, theta, episodes, self.settings)

    def explore(self, task: Task) -> tuple[ppo.Experience, PolicyBatch, Array]:
        """Return episodes of θ on every task, and the parameters (tasks, size) adapted to each by them."""
        episodes, before = self.sample(self.theta, task)
        return episodes, before, adapt(self.network, self._theta, before, self.settings.inner_step).numpy()

    def iterate(self, task: Task) -> int:
        """Run every task before and after adaptation, and improve θ; return the environment steps this took."""
        import torch
        from torch.func import grad

        episodes, before, own = self.explore(task)
        fresh, after = self.sample(own, task)
        gradient = grad(lambda theta: meta_loss(self.network, theta, before, after, self.settings))
        for _ in range(self.settings.epochs):
            self._theta.grad = gradient(self._theta)
            torch.nn.utils.clip_grad_norm_([self._theta], self.settings.grad_norm)
            self._adam.step()
            self._theta[self.network.size :].clamp_(min=float(np.log(self.settings.min_std)))
        return episodes.steps + fresh.steps

    def check(self, task: SpecTask) -> tuple[list[Bools], int]:
        """Return successes at the targets' full size before and after adaptation, and the steps this took."""
        episodes, _, own = self.explore(task)
        measured = replace(task, depth=0.0)
        draws = draw(measured, self.settings.check_rollouts, self.rng)
        tested = [rollout(measured, acting(self.network, theta, self.view), draws) for theta in (self.theta, own)]
        return [outcome.success for outcome in tested], episodes.steps + sum(outcome.steps for outcome in tested)


def train(training: Training, settings: Settings) -> Model:
    """Meta-train on the training tasks of a benchmark."""
    return ppo.meta_train(training, settings, "maml", Learner)


# --- acting ----------------------------------------------------------------------------------------------


def policy(model: Model, tasks: Tasks) -> Policy:
    """Return the policy of θ itself: zero-shot."""
    if model.metadata["diverged"]:
        return Stopped(tasks.environment.action_dim)
    settings = parse_settings(Settings, model.metadata["settings"], "settings of the model")
    view = FlatView.of_model(model)
    return acting(policy_network(tasks.environment, view, settings), model.tensors["theta"], view)


def adapted_policy(model: Model, tasks: Tasks) -> Policy:
    """Return the policies after one step on episodes of each task: not zero-shot."""
    if model.metadata["diverged"]:
        return Stopped(tasks.environment.action_dim)
    settings = parse_settings(Settings, model.metadata["settings"], "settings of the model")
    view, own = FlatView.of_model(model), []
    for index in tasks.indices:  # one by one, so that no index depends on the others
        rng = stream("maml", "adaptation", tasks.name, index, model.metadata["seed"])
        task = ppo.training_task(tasks.at([index]), settings)
        own.append(Learner(task, view, settings, rng, model.tensors["theta"]).explore(task)[2][0])
    return acting(policy_network(tasks.environment, view, settings), np.stack(own), view)


LOOK: dict[str, Any] = {"color": "#FF7F0E", "marker": "D", "hatch": "xxx", "dashes": (), "order": 3}
METHOD = Method("maml", "MAML", Settings, train, policy, version=2, memory_mb=3000, minutes=120, **LOOK)
KIND: dict[str, Any] = {"policy": adapted_policy, "zero_shot": False, "trained_as": "maml", "evaluation_factor": 2.0}
LOOK = {"color": "#B35400", "hatch": "+++", "dashes": (3.0, 1.5), "hollow": True, "order": 4}
ADAPTED = replace(METHOD, name="maml-adapted", label="MAML (adapted)", **KIND, **LOOK)
