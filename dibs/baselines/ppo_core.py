"""What the baselines with policy gradients share: the training loop, recorded episodes, advantages, and PPO.

Episodes are arrays of shape (time, tasks, rollouts[, dim]). Acting is NumPy, so only training needs torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from dibs.baselines.flat import FlatView
from dibs.envs import Array
from dibs.families import Tasks
from dibs.methods import Model, Training
from dibs.policies.network import Network
from dibs.progress import Reporter
from dibs.seeding import stream
from dibs.settings import STRICT
from dibs.simulation import (
    Bools,
    Draws,
    EdgeTask,
    Levels,
    Moment,
    Policy,
    Progress,
    RewardKind,
    Rewards,
    SpecTask,
    Task,
    draw,
    rollout,
)

if TYPE_CHECKING:
    from torch import Tensor

AnyTask = TypeVar("AnyTask", SpecTask, EdgeTask)
Noise = Callable[[Array], Array]
"""Adds exploration noise to actions."""
LOG_2PI = float(np.log(2.0 * np.pi))


# --- training --------------------------------------------------------------------------------------------


class Learner(Protocol):
    """A method's parameters and how they improve."""

    parameters: dict[str, Array]

    def iterate(self, task: Any) -> int:
        """Improve the parameters on all tasks; return the environment steps this took."""

    def check(self, task: Any) -> tuple[list[Bools], int]:
        """Return successes (tasks, rollouts) of one or more policies without exploration, and the steps this took."""


class Trained(NamedTuple):
    """The best parameters found, and how."""

    tensors: dict[str, Array]
    steps: int
    diverged: bool
    metrics: dict[str, Any]


def learn(learner: Learner, task: Any, sample: Callable[[], Any], settings: Any, progress: Reporter | None) -> Trained:
    """Train until the budget is spent, all training tasks are solved, or a parameter is no longer finite.

    Each iteration is on the tasks of `sample()`, each measurement on those of `task`. The best parameters are those
    with most training tasks solved (a rate above 0.9), then with the highest rate.
    """
    best: dict[str, float] | None = None
    tensors = {name: np.zeros_like(array) for name, array in learner.parameters.items()}
    curve: list[dict[str, float]] = []
    steps, iteration, converged, diverged = 0, 0, False, False
    while steps < settings.steps and not converged and not diverged:
        steps += learner.iterate(sample())
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
            if progress:
                solved = f"solved {check['solved']:.2f} (best {best['solved']:.2f})"
                measured = {name: check[name] for name in ("solved", "rate")}
                progress(f"{steps} steps  {solved}  rate {check['rate']:.2f}", steps / settings.steps, steps, measured)
            recent = [c["solved"] == 1.0 and c["rate"] >= settings.converged for c in curve[-settings.patience :]]
            converged = len(recent) == settings.patience and all(recent)
    metrics = {"iterations": iteration, "converged": converged, "diverged": diverged, "best": best, "curve": curve}
    return Trained(tensors, steps, diverged, metrics)


def meta_train(
    training: Training, settings: Any, name: str, learner_of: Callable[..., Learner], view: FlatView | None = None
) -> Model:
    """Train one policy on the training tasks of a whole specification.

    `learner_of(task, view, settings, rng)` makes the learner; `name` is that of the method, for its random stream.
    """
    rng = stream(name, training.benchmark, training.split.key, training.seed)
    task = training_task(training.tasks, settings)
    view = view or FlatView.of_tasks(training.tasks, settings.observe_stage)
    learner = learner_of(task, view, settings, rng)
    found = learn(learner, task, lambda: some_of(task, settings.tasks, rng), settings, training.progress)
    metadata = {"settings": asdict(settings), "seed": training.seed, "diverged": found.diverged}
    return view.model(found.tensors, metadata, found.steps, found.metrics)


def training_task(tasks: Tasks, settings: Any) -> SpecTask:
    """Return the task that a method's settings describe; a negative depth stands for the family's."""
    depth = tasks.reward.depth if settings.depth < 0 else settings.depth
    return SpecTask(tasks, Rewards(settings.reward, settings.bonus, settings.penalty), depth)


def some_of(task: AnyTask, count: int, rng: np.random.Generator) -> AnyTask:
    """Return `count` tasks of the batch, drawn at random; all of them if there are no more."""
    return task if task.tasks <= count else task.take(np.sort(rng.choice(task.tasks, count, replace=False)))


def check(
    task: SpecTask | EdgeTask, policy: Policy, rollouts: int, rng: np.random.Generator
) -> tuple[list[Bools], int]:
    """Return successes (tasks, rollouts) at the targets' full size, and the environment steps this took."""
    measured = replace(task, depth=0.0)
    tested = rollout(measured, policy, draw(measured, rollouts, rng))
    return [tested.success], tested.steps


# --- episodes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Experience:
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


def collect(task: Task, policy: Policy, inputs: Callable[[Array, Levels], Array], draws: Draws) -> Experience:
    """Run `policy` on all tasks; `inputs(states, stages)` are what its network was given."""
    collector = _Collector()
    rollout(task, policy, draws, recorder=collector)
    states, stage = (np.stack(arrays) for arrays in zip(*collector.met, strict=True))
    actions, rewards, alive, ended = (np.array(x, dtype=np.float32) for x in zip(*collector.steps, strict=True))
    return Experience(inputs(states, stage), actions, rewards, alive, ended)


def initial_actor(network: Network, rng: np.random.Generator) -> Array:
    """Return random parameters whose actions are near 0."""
    theta = network.initial(rng)
    weights, biases = network.layers(theta)[-1]
    weights *= np.float32(0.1)
    biases[...] = 0.0
    return theta


def gaussian_noise(rng: np.random.Generator, log_std: Array) -> Noise:
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


def advantages(episodes: Experience, values: Array, gamma: float, trace: float, cut_off: bool) -> Array:
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


# --- PPO -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpecSettings:
    """What a policy for whole specifications is given and rewarded for."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    observe_stage: bool = True
    """Whether the policy sees how many stages are completed."""
    reward: RewardKind = "progress"
    """Reward per step: distance covered (progress) or minus the distance to go (distance)."""
    bonus: float = 0.3
    """Reward for every stage completed."""
    depth: float = 0.0
    """How deep inside a target counts as reached while training; below 0: as for the teachers."""
    penalty: float = 0.1
    """Share of the family's penalty for unsafe states. At 1.0 it outweighs progress: exploring policies stop moving."""


@dataclass(frozen=True)
class GradientSettings:
    """What all policies that PPO's loss improves have in common."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    steps: int = 0
    """Environment steps after which training ends, if it has not converged before; 0: as many as the teachers used."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the policy, and of its value function if that is a network."""
    rollouts: int = 16
    """Episodes per task and iteration."""
    tasks: int = 10
    """Most tasks in an iteration; with more training tasks, this many are drawn each time."""
    gamma: float = 0.95
    """Discount."""
    trace: float = 0.95
    """λ of generalized advantage estimation."""
    clip: float = 0.2
    """How far PPO lets the probability of an action change."""
    epochs: int = 8
    """Passes over the episodes of an iteration."""
    learning_rate: float = 3e-3
    """Adam's step for the policy."""
    grad_norm: float = 0.5
    """Largest norm of a gradient of the policy."""
    initial_std: float = 0.5
    """Standard deviation of the exploration at first; it is learned."""
    entropy: float = 0.0
    """Weight of the policy's entropy."""
    check_every: int = 10
    """Iterations between two measurements of the training tasks."""
    check_rollouts: int = 20
    """Episodes per task of a measurement."""
    converged: float = 0.99
    """Training ends once all training tasks are solved and their mean rate is this high."""
    patience: int = 2
    """Successive measurements that must say so."""


@dataclass(frozen=True)
class PPOSettings(GradientSettings):
    """Settings of PPO (Schulman et al. 2017) on several tasks at once."""

    gamma: float = 0.9
    """Discount."""
    minibatch: int = 2048
    """Steps per minibatch."""
    learning_rate: float = 3e-3
    """Adam's step at first; it falls linearly."""
    final_rate: float = 0.05
    """Share of the learning rate that is left when the budget is spent."""
    entropy: float = 0.005
    """Weight of the policy's entropy."""
    check_rollouts: int = 50
    """Episodes per task of a measurement."""
    converged: float = 0.995
    """Training ends once all training tasks are solved and their mean rate is this high."""
    patience: int = 3
    """Successive measurements that must say so."""


class ActorCritic:
    """A policy and its value function, improved by PPO.

    `parameters` has entries actor, critic and log_std, which are changed in place. `settings` has the fields of
    `PPOSettings` that `improve` reads.
    """

    def __init__(self, actor: Network, parameters: dict[str, Array], settings: Any, rng: np.random.Generator) -> None:
        import torch

        from dibs.policies.optimizers import Adam

        self.actor, self.critic = actor, replace(actor, outputs=1)
        self.parameters, self.settings, self.rng = parameters, settings, rng
        # Tensors share the arrays' memory: the optimizer's steps show in `parameters`.
        self._tensors = [torch.from_numpy(parameters[name]).requires_grad_() for name in ("actor", "critic", "log_std")]
        self._adam = Adam(self._tensors, lr=settings.learning_rate)
        self._moments = np.zeros(3)  # count, sum and sum of squares of all returns so far
        self.used = 0  # environment steps of the budget

    @classmethod
    def initial(cls, inputs: int, actions: int, settings: PPOSettings, rng: np.random.Generator) -> ActorCritic:
        """Return an actor whose actions are near 0, and a random critic."""
        actor = Network(inputs, settings.hidden, actions)
        log_std = np.full(actions, np.log(settings.initial_std), dtype=np.float32)
        critic = replace(actor, outputs=1).initial(rng)
        return cls(actor, {"actor": initial_actor(actor, rng), "critic": critic, "log_std": log_std}, settings, rng)

    @property
    def learning_rate(self) -> float:
        """Adam's step."""
        return float(self._adam.param_groups[0]["lr"])

    def anneal(self, used: float) -> None:
        """Set Adam's step after a share `used` of the budget."""
        share = max(1.0 - used, self.settings.final_rate)
        self._adam.param_groups[0]["lr"] = self.settings.learning_rate * share

    def learn(self, episodes: Experience) -> int:
        """Improve on episodes of the actor at the rate that the rest of the budget allows; return their steps."""
        self.anneal(self.used / self.settings.steps)
        self.improve(episodes, episodes.inputs)
        self.used += episodes.steps
        return episodes.steps

    def improve(self, episodes: Experience, inputs: Array) -> None:
        """Run PPO on episodes with the actor's inputs (time + 1, tasks, rollouts, n)."""
        import torch

        from dibs.policies.torch import forward, linear

        s, p, taken = self.settings, self.parameters, episodes.alive > 0
        scaled = replace(episodes, rewards=episodes.rewards / np.float32(self._return_scale(episodes)))
        values = self.critic.linear(p["critic"], inputs)[..., 0]
        gained = advantages(scaled, values, s.gamma, s.trace, cut_off=True)
        mean = self.actor.forward(p["actor"], inputs[:-1])
        sampled = log_probability(mean, p["log_std"], episodes.actions)
        weights = standardize(gained, episodes.alive)
        arrays = (inputs[:-1], episodes.actions, sampled, weights, gained + values[:-1])
        rows = tensors(*(array[taken] for array in arrays))
        actor, critic, log_std = self._tensors
        for _ in range(s.epochs):
            order = torch.from_numpy(self.rng.permutation(len(rows[0])))
            for part in order.split(s.minibatch):
                x, actions, before, advantage, target = (row[part] for row in rows)
                ratio = log_probability(forward(self.actor, actor, x), log_std, actions) - before
                loss = clipped_loss(ratio, advantage, torch.ones_like(advantage), s.clip)
                value = linear(self.critic, critic, x)[:, 0]
                loss = loss + 0.5 * ((value - target) ** 2).mean() - s.entropy * log_std.sum()
                self._adam.zero_grad()
                loss.backward()
                for part_of in ([actor, log_std], [critic]):
                    torch.nn.utils.clip_grad_norm_(part_of, s.grad_norm)
                self._adam.step()

    def _return_scale(self, episodes: Experience) -> float:
        """Return the standard deviation of all returns so far, those of the given episodes included."""
        returns = discounted(episodes.rewards, self.settings.gamma)[episodes.alive > 0].astype(float)
        self._moments += [returns.size, returns.sum(), (returns**2).sum()]
        _, mean, square = self._moments / max(self._moments[0], 1.0)
        return float(np.sqrt(max(square - mean**2, 0.0))) + 1e-6


class PolicyLearner:
    """A `Learner` of one policy for all tasks by PPO; a subclass says what its network is given and how it acts."""

    def __init__(self, inputs: int, task: Task, settings: PPOSettings, rng: np.random.Generator) -> None:
        self.settings, self.rng = settings, rng
        self.model = ActorCritic.initial(inputs, task.environment.action_dim, settings, rng)
        self.parameters = self.model.parameters

    def inputs(self, task: Any) -> Callable[[Array, Levels], Array]:
        """Return the function from states and stages of the given tasks to the network's inputs."""
        raise NotImplementedError

    def policy(self, task: Any, explore: Noise | None = None) -> Policy:
        """Return the policy of the current parameters on the given tasks."""
        raise NotImplementedError

    def iterate(self, task: Any) -> int:
        """Run every task and improve the policy; return the environment steps taken."""
        policy = self.policy(task, gaussian_noise(self.rng, self.parameters["log_std"]))
        return self.model.learn(collect(task, policy, self.inputs(task), draw(task, self.settings.rollouts, self.rng)))

    def check(self, task: Any) -> tuple[list[Bools], int]:
        """Return successes without exploration, and the steps this took."""
        success, steps = check(task, self.policy(task), self.settings.check_rollouts, self.rng)
        self.model.used += steps
        return success, steps
