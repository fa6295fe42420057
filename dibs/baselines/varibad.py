"""VariBAD (Zintgraf et al. 2020) on whole specifications: a policy that acts on its belief about the task.

Every training index is a task, and which one it is must be inferred while acting. A recurrent encoder reads
actions, next observations and rewards, and gives a belief: mean and logarithm of the variance of a Gaussian
latent. A decoder predicts rewards from a sample of it; both are trained by the evidence lower bound, in which
the posterior after every step explains the rewards of the whole episode, those to come included, and is held
close to the posterior before it (the first one to the standard normal). The policy sees the observation and the
belief and is trained by PPO, whose gradient does not reach the encoder. It is measured in its first episode,
from the prior on, so what it learns about an unseen index it learns from the rollout that is counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from dibs.baselines.flat import FlatTask, Last, RewardKind, evaluate_flat
from dibs.baselines.ppo_core import (
    Episodes,
    Running,
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
    """Settings of VariBAD."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    steps: int = 3_000_000
    """Environment steps after which training ends, if it has not converged before."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the policy and of its value function."""
    rollouts: int = 16
    """Episodes per task and iteration."""
    tasks: int = 10
    """Most tasks in an iteration; with more training indices, so many are drawn each time."""
    gamma: float = 0.95
    """Discount."""
    trace: float = 0.95
    """λ of generalised advantage estimation."""
    clip: float = 0.2
    """How far PPO lets the probability of an action change."""
    epochs: int = 8
    """Passes of PPO over the episodes of an iteration."""
    minibatch: int = 2048
    """Steps per minibatch of PPO."""
    learning_rate: float = 3e-3
    """Adam's step for the policy."""
    grad_norm: float = 0.5
    """Largest norm of a gradient of the policy."""
    initial_std: float = 0.5
    """Standard deviation of the exploration at first; it is learnt."""
    entropy: float = 0.0
    """Weight of the policy's entropy."""
    latent: int = 5
    """Size of the latent; 0: a policy without belief, for comparison."""
    recurrent: int = 64
    """Units of the encoder's recurrent layer."""
    embedding: int = 32
    """Units that read one transition before it."""
    decoder: tuple[int, ...] = (64, 32)
    """Hidden layers of the reward decoder."""
    vae_learning_rate: float = 3e-3
    """Adam's step for encoder and decoder."""
    vae_updates: int = 10
    """Updates of encoder and decoder in an iteration."""
    vae_episodes: int = 64
    """Episodes of an update, drawn from the most recent ones."""
    vae_buffer: int = 2000
    """Episodes kept for that."""
    posteriors: int = 12
    """Posteriors of an episode that are decoded in an update, drawn at random."""
    decoded: int = 24
    """Rewards of an episode that each of them explains in an update, drawn at random."""
    kl_weight: float = 0.1
    """Weight of the divergence from the previous posterior."""
    observe_stage: bool = True
    """Whether policy and encoder see how many stages lie behind them."""
    reward: RewardKind = "progress"
    """Reward per step: distance covered (progress) or minus the distance to go (distance)."""
    bonus: float = 0.3
    """Reward for every stage completed."""
    depth: float = 0.0
    """How deep inside a target counts as reached while training; below 0: as for the teachers."""
    penalty: float = 0.1
    """Share of the family's penalty for unsafe states: in full, who explores had better stand still."""
    check_every: int = 5
    """Iterations between two measurements of the training tasks."""
    check_rollouts: int = 20
    """Episodes per task of a measurement."""
    converged: float = 0.99
    """Training ends once all training tasks are solved and their mean rate is this high."""
    patience: int = 2
    """Successive measurements that must say so."""


# --- the parts -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Sizes of all parts; the parameters are named arrays outside."""

    observation: int
    action: int
    latent: int
    recurrent: int
    embedding: int
    decoder_hidden: tuple[int, ...]
    hidden: tuple[int, ...]

    @property
    def actor(self) -> Network:
        return Network(self.observation + 2 * self.latent, self.hidden, self.action)

    @property
    def critic(self) -> Network:
        return Network(self.observation + 2 * self.latent, self.hidden, 1)

    @property
    def decoder(self) -> Network:
        """Reward of a transition, from the latent, both observations and the action."""
        return Network(self.latent + 2 * self.observation + self.action, self.decoder_hidden, 1, "relu")


def shape_of(task: Task, settings: Settings) -> Shape:
    """The parts' sizes for a task."""
    return Shape(
        task.observation_dim,
        task.action_dim,
        settings.latent,
        settings.recurrent,
        settings.embedding,
        tuple(settings.decoder),
        tuple(settings.hidden),
    )


POLICY = ("actor", "critic", "log_std")
ENCODER = (
    "embed",
    "embed_bias",
    "gru_input",
    "gru_input_bias",
    "gru_hidden",
    "gru_hidden_bias",
    "belief",
    "belief_bias",
)


def initial(shape: Shape, std: float, rng: np.random.Generator) -> dict[str, Array]:
    """Random parameters of all parts, as arrays by name."""

    def weights(rows: int, columns: int) -> Array:
        return rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(rows))

    h, e, read = shape.recurrent, shape.embedding, shape.observation + shape.action + 1
    actor = shape.actor.initial(rng)
    last, bias = shape.actor.layers(actor)[-1]
    last *= np.float32(0.1)  # actions near 0 at first
    bias[...] = 0.0
    parameters = {
        "actor": actor,
        "critic": shape.critic.initial(rng),
        "log_std": np.full(shape.action, np.log(std), dtype=np.float32),
        "reward_scale": np.ones(1, dtype=np.float32),
    }
    if shape.latent:
        parameters |= {
            "decoder": shape.decoder.initial(rng),
            "embed": weights(read, e),
            "embed_bias": np.zeros(e, dtype=np.float32),
            "gru_input": weights(e, 3 * h),
            "gru_input_bias": np.zeros(3 * h, dtype=np.float32),
            "gru_hidden": weights(h, 3 * h),
            "gru_hidden_bias": np.zeros(3 * h, dtype=np.float32),
            "belief": weights(h, 2 * shape.latent),
            "belief_bias": np.zeros(2 * shape.latent, dtype=np.float32),
        }
    return parameters


def linear(network: Network, theta: Array, x: Array) -> Array:
    """A network's output (*batch, n) without the final tanh, for networks of one output."""
    weights, bias = network.layers(theta)[-1]
    return np.asarray((np.matmul(network.trunk(theta, x), weights) + bias)[..., 0])


class Acting:
    """The policy of `flat.rollout`: it reads what happened, updates its belief, and acts on both."""

    def __init__(self, shape: Shape, parameters: Mapping[str, Array]) -> None:
        self.shape, self.parameters = shape, parameters
        self.seen: list[Array] = []  # what the actor was shown (tasks, rollouts, n), step by step

    def start(self, indices: Sequence[int], rollouts: int) -> None:
        self.seen = []
        self._memory = np.zeros((len(indices), rollouts, self.shape.recurrent), dtype=np.float32)

    def act(self, observations: Array, last: Last | None) -> Array:
        self.seen.append(self.look(observations, last))
        return self.shape.actor.forward(self.parameters["actor"], self.seen[-1])

    def look(self, observations: Array, last: Last | None) -> Array:
        """The observation and the belief that follows from it (tasks, rollouts, n)."""
        p = self.parameters
        if not self.shape.latent:
            return observations
        if last is not None:
            rewards = (last.rewards / p["reward_scale"])[..., None]
            read = np.concatenate([np.clip(last.actions, -1.0, 1.0), observations, rewards], axis=-1)
            embedded = np.maximum(np.matmul(read, p["embed"]) + p["embed_bias"], 0.0)
            self._memory = _gru(p, embedded, self._memory)
        belief = np.matmul(self._memory, p["belief"]) + p["belief_bias"]
        return np.concatenate([observations, belief], axis=-1)


def _gru(p: Mapping[str, Array], x: Array, h: Array) -> Array:
    """One step of a gated recurrent unit, as torch defines it."""
    of_input = np.matmul(x, p["gru_input"]) + p["gru_input_bias"]
    of_memory = np.matmul(h, p["gru_hidden"]) + p["gru_hidden_bias"]
    n = h.shape[-1]
    gates = np.tanh(0.5 * (of_input[..., : 2 * n] + of_memory[..., : 2 * n])) * 0.5 + 0.5  # the logistic function
    proposed = np.tanh(of_input[..., 2 * n :] + gates[..., :n] * of_memory[..., 2 * n :])
    return np.asarray(proposed + gates[..., n:] * (h - proposed))


# --- learning what the task is ---------------------------------------------------------------------------


def encode(p: Mapping[str, Tensor], actions: Tensor, observations: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and log-variance (time + 1, episodes, latent) after 0, 1, … steps of actions (time, episodes, m) etc."""
    import torch

    read = torch.cat([actions.clamp(-1.0, 1.0), observations, rewards[..., None]], dim=-1)
    embedded = (read @ p["embed"] + p["embed_bias"]).relu()
    nothing = embedded.new_zeros(1, embedded.shape[1], len(p["gru_hidden"]))
    weights = [p["gru_input"].t(), p["gru_hidden"].t(), p["gru_input_bias"], p["gru_hidden_bias"]]
    memory, _ = torch.gru(embedded, nothing, weights, True, 1, 0.0, True, False, False)
    belief = torch.cat([nothing, memory]) @ p["belief"] + p["belief_bias"]
    mean, log_var = belief.chunk(2, dim=-1)
    return mean, log_var


def divergence(mean: Tensor, log_var: Tensor) -> Tensor:
    """KL (time, episodes) of every posterior from the one before it, the first from the standard normal."""
    import torch

    before, before_log_var = (torch.cat([torch.zeros_like(x[:1]), x[:-1]]) for x in (mean, log_var))
    gap = (log_var - before_log_var).exp() + (mean - before) ** 2 / before_log_var.exp()
    return 0.5 * (before_log_var - log_var + gap - 1.0).sum(-1)


class Told(NamedTuple):
    """Episodes as encoder and decoder need them, as torch tensors; rewards are scaled."""

    observations: Any  # (time + 1, episodes, n)
    actions: Any  # (time, episodes, m)
    rewards: Any  # (time, episodes)
    alive: Any  # (time, episodes)


def elbo_loss(
    shape: Shape, p: Mapping[str, Tensor], told: Told, settings: Settings, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Reconstruction and divergence of the evidence lower bound, mean over posteriors and episodes.

    A posterior's reconstruction is the sum of squared errors over its whole episode, estimated from some of them.
    """
    import torch

    lengths = told.alive.sum(0)  # (episodes,): steps taken
    mean, log_var = encode(p, told.actions, told.observations[1:], told.rewards)
    kl = divergence(mean, log_var)
    real = torch.cat([torch.ones_like(told.alive[:1]), told.alive])  # the prior, then a posterior per step
    kl_term = ((kl * real).sum(0) / real.sum(0)).mean()

    episodes = told.rewards.shape[1]
    column = torch.arange(episodes)
    posterior = _some(rng, settings.posteriors, lengths + 1)  # (posteriors, episodes)
    noise = torch.from_numpy(rng.standard_normal((*posterior.shape, shape.latent), dtype=np.float32))
    sample = mean[posterior, column] + (0.5 * log_var[posterior, column]).exp() * noise
    step = _some(rng, settings.decoded, lengths)  # (decoded, episodes)
    known = torch.cat(
        [told.observations[step, column], told.observations[step + 1, column], told.actions[step, column]], dim=-1
    )
    predicted = decode(shape, p["decoder"], sample, known)
    error = (predicted - told.rewards[step, column]) ** 2  # (posteriors, decoded, episodes)
    return (error.mean((0, 1)) * lengths).mean(), kl_term


def decode(shape: Shape, theta: Tensor, latent: Tensor, known: Tensor) -> Tensor:
    """Rewards (posteriors, decoded, episodes) of transitions (decoded, episodes, …), by every latent sample."""
    from dibs.policies.torch import layers

    network = shape.decoder
    (weights, bias), *others = layers(network, theta)
    # The first layer of latent and transition apart: their sum is needed for all pairs, their product is not.
    x = (latent @ weights[: shape.latent])[:, None] + (known @ weights[shape.latent :] + bias)
    for weights, bias in others:
        x = x.relu() @ weights + bias
    return x[..., 0]


def _some(rng: np.random.Generator, count: int, below: Tensor) -> Tensor:
    """Whole numbers (count, n) drawn evenly below each of `below` (n,)."""
    import torch

    drawn = torch.from_numpy(rng.random((count, len(below)), dtype=np.float32))
    return torch.minimum((drawn * below).long(), (below.long() - 1).clamp(min=0))


class Buffer:
    """The most recent episodes."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.kept: list[Told] = []

    def add(self, episodes: Episodes, horizon: int) -> None:
        """Keep a batch of episodes, padded to the horizon."""

        def flat(array: Array, time: int) -> Array:
            joined = array.reshape(array.shape[0], -1, *array.shape[3:])
            return np.pad(joined, [(0, time - len(joined)), *[(0, 0)] * (joined.ndim - 1)])

        actions = np.clip(episodes.actions, -1.0, 1.0)
        self.kept.append(
            Told(
                flat(episodes.observations, horizon + 1),
                flat(actions, horizon),
                flat(episodes.rewards, horizon),
                flat(episodes.alive, horizon),
            )
        )
        while sum(told.rewards.shape[1] for told in self.kept[1:]) >= self.capacity:
            self.kept.pop(0)

    def sample(self, count: int, scale: float, rng: np.random.Generator) -> Told:
        """Draw episodes, cut to the longest of them, rewards over `scale`."""
        import torch

        sizes = [told.rewards.shape[1] for told in self.kept]
        rows = np.sort(rng.integers(0, sum(sizes), count))
        batch, ends = [], np.cumsum(sizes)
        for told, end, size in zip(self.kept, ends, sizes, strict=True):
            own = rows[(rows >= end - size) & (rows < end)] - (end - size)
            batch.append(Told(*(array[:, own] for array in told)))
        joined = Told(*(np.concatenate(arrays, axis=1) for arrays in zip(*batch, strict=True)))
        time = max(int(joined.alive.sum(0).max()), 1)
        cut = Told(
            joined.observations[: time + 1], joined.actions[:time], joined.rewards[:time] / scale, joined.alive[:time]
        )
        return Told(*(torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)) for array in cut))


# --- learning to act -------------------------------------------------------------------------------------


class Learner:
    """All parameters and both optimisers."""

    def __init__(self, task: Task, settings: Settings, rng: np.random.Generator) -> None:
        import torch

        self.settings, self.rng = settings, rng
        self.shape = shape_of(task, settings)
        self.parameters = initial(self.shape, settings.initial_std, rng)
        # Tensors share the arrays' memory: the optimisers' steps show in `parameters`.
        self._tensors = {name: torch.from_numpy(array) for name, array in self.parameters.items()}
        self._policy = [self._tensors[name].requires_grad_() for name in POLICY]
        self._adam = torch.optim.Adam(self._policy, lr=settings.learning_rate)
        self._returns = Running()
        self.buffer = Buffer(settings.vae_buffer)
        self._vae: list[Tensor] = []
        if settings.latent:
            self._vae = [self._tensors[name].requires_grad_() for name in (*ENCODER, "decoder")]
            self._vae_adam = torch.optim.Adam(self._vae, lr=settings.vae_learning_rate)
        self._first = True

    def iterate(self, task: Task) -> Episodes:
        """Meet every task, then improve the policy, then encoder and decoder."""
        acting = Acting(self.shape, self.parameters)
        draws = task.draw(self.settings.rollouts, self.rng)
        episodes = collect(task, acting, draws, gaussian_spread(self.rng, self.parameters["log_std"]))
        if self._first:
            taken = episodes.rewards[episodes.alive > 0]
            self.parameters["reward_scale"][:] = max(float(taken.std()), 1e-3) if taken.size else 1.0
            self._first = False
        last = Last(episodes.actions[-1], episodes.rewards[-1], episodes.alive[-1] > 0)
        seen = np.stack([*acting.seen, acting.look(episodes.observations[-1], last)])
        self._improve_policy(episodes, seen)
        if self.settings.latent:
            self.buffer.add(episodes, task.horizon)
            for _ in range(self.settings.vae_updates):
                self._improve_belief()
        return episodes

    def _improve_policy(self, episodes: Episodes, seen: Array) -> None:
        import torch

        from dibs.policies.torch import forward, layers, trunk

        s, p = self.settings, self.parameters
        self._returns.update(_discounted(episodes, s.gamma)[episodes.alive > 0])
        scaled = replace(episodes, rewards=episodes.rewards / np.float32(self._returns.std))
        values = linear(self.shape.critic, p["critic"], seen)
        gained = advantages(scaled, values, s.gamma, s.trace, cut_off=True)
        mean = self.shape.actor.forward(p["actor"], seen[:-1])
        taken = episodes.alive > 0
        arrays = (
            seen[:-1][taken],
            episodes.actions[taken],
            log_probability(mean, p["log_std"], episodes.actions, np.exp)[taken],
            standardise(gained, episodes.alive)[taken],
            (gained + values[:-1])[taken],
        )
        rows = [torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32)) for array in arrays]
        actor, critic, log_std = self._policy
        for _ in range(s.epochs):
            order = torch.from_numpy(self.rng.permutation(len(rows[0])))
            for part in order.split(s.minibatch):
                x, actions, sampled, advantage, target = (row[part] for row in rows)
                mean_now = forward(self.shape.actor, actor, x)
                ratio = log_probability(mean_now, log_std, actions, torch.exp) - sampled
                loss = clipped_loss(ratio, advantage, torch.ones_like(advantage), s.clip)
                weights, bias = layers(self.shape.critic, critic)[-1]
                value = (trunk(self.shape.critic, critic, x) @ weights + bias)[:, 0]
                loss = loss + 0.5 * ((value - target) ** 2).mean() - s.entropy * log_std.sum()
                self._adam.zero_grad()
                loss.backward()
                for part_of in ([actor, log_std], [critic]):
                    torch.nn.utils.clip_grad_norm_(part_of, s.grad_norm)
                self._adam.step()

    def _improve_belief(self) -> None:
        import torch

        told = self.buffer.sample(self.settings.vae_episodes, float(self.parameters["reward_scale"][0]), self.rng)
        reconstruction, kl = elbo_loss(self.shape, self._tensors, told, self.settings, self.rng)
        self._vae_adam.zero_grad()
        (reconstruction + self.settings.kl_weight * kl).backward()
        torch.nn.utils.clip_grad_norm_(self._vae, 1.0)
        self._vae_adam.step()


def _discounted(episodes: Episodes, gamma: float) -> Array:
    """Discounted sums of rewards so far, whose spread is the scale of returns."""
    sums, running = np.zeros_like(episodes.rewards), np.zeros_like(episodes.rewards[0])
    for t, reward in enumerate(episodes.rewards):
        running = gamma * running + reward
        sums[t] = running
    return sums


def train(run: Run, settings: Settings) -> Trained:
    """Train encoder, decoder and policy on the training indices of a benchmark."""
    rng = stream("varibad", run.benchmark, run.gap, run.seed)
    task = FlatTask.of(run.family, run.text, run.train, settings)
    measured = replace(task, depth=0.0)
    learner = Learner(task, settings, rng)
    watch = Watch(settings.converged, settings.patience)
    steps, iteration, converged, diverged = 0, 0, False, False
    while steps < settings.steps and not converged and not diverged:
        steps += learner.iterate(task.some(settings.tasks, rng)).steps
        iteration += 1
        diverged = not finite(learner.parameters)
        if not diverged and (iteration % settings.check_every == 0 or steps >= settings.steps):
            acting = Acting(learner.shape, learner.parameters)
            tested = collect(measured, acting, measured.draw(settings.check_rollouts, rng), lambda mean: mean)
            steps += tested.steps
            converged = watch.report(steps, [tested.success], learner.parameters)
            if run.progress:
                run.progress(f"{steps} steps  {watch}")
    return Trained(
        tensors=watch.tensors or {name: np.zeros_like(array) for name, array in learner.parameters.items()},
        metadata={"shape": asdict(learner.shape), "diverged": diverged, "settings": asdict(settings)},
        steps=steps,
        metrics={"iterations": iteration, **watch.metrics(converged, diverged)},
    )


# --- measuring -------------------------------------------------------------------------------------------


def count(
    family: Family, text: str, artefact: Path, seed: int, indices: Sequence[int], settings: EvaluationSettings
) -> dict[int, int]:
    """Satisfying rollouts per index in the first episode, from the prior on."""
    tensors, metadata = read_tensors(artefact)
    if metadata["diverged"]:
        return dict.fromkeys(indices, 0)
    sizes = metadata["shape"]
    shape = Shape(**{**sizes, "decoder_hidden": tuple(sizes["decoder_hidden"]), "hidden": tuple(sizes["hidden"])})
    own = parse_settings(Settings, metadata["settings"], str(artefact))
    seen = (own.observe_stage, own.reward, own.bonus, own.penalty)
    return evaluate_flat(family, text, Acting(shape, tensors), indices, settings, seed, *seen)
