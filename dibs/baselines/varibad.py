"""VariBAD (Zintgraf et al. 2020) on whole specifications: a policy that acts on its belief about the task.

Every training index is a task, and the policy must infer which one it is while acting. A recurrent encoder reads
actions, next inputs and rewards, and returns a belief: mean and log-variance of a Gaussian latent. A decoder predicts
rewards from a sample of it. Both are trained by the evidence lower bound, in which the posterior after every step
explains the rewards of the whole episode, including those to come, and stays close to the posterior before it (the
first one to the standard normal). The policy sees its usual inputs and the belief, and is trained by PPO, whose
gradient does not reach the encoder. It is measured in its first episode, from the prior on, so what it learns about
an unseen index it learns from the rollout that is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from dibs.baselines import ppo_core as ppo
from dibs.baselines.flat import FlatView
from dibs.envs import Array
from dibs.families import Tasks
from dibs.methods import Method, Model, Training
from dibs.policies.network import Network
from dibs.settings import parse_settings
from dibs.simulation import Bools, Moment, Policy, Rewards, SpecTask, Stopped, Task, draw

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Settings(ppo.GradientSettings, ppo.SpecSettings):
    """Settings of VariBAD."""

    steps: int = 3_000_000
    """Environment steps after which training ends, if it has not converged before."""
    minibatch: int = 2048
    """Steps per minibatch of PPO."""
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
    """Most recent episodes that are kept for these updates."""
    posteriors: int = 12
    """Posteriors of an episode that are decoded in an update, drawn at random."""
    decoded: int = 24
    """Rewards of an episode that each of these posteriors explains in an update, drawn at random."""
    kl_weight: float = 0.1
    """Weight of the divergence from the previous posterior."""
    check_every: int = 5
    """Iterations between two measurements of the training tasks."""


# --- the parts -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Sizes of all parts; the parameters are named arrays outside."""

    inputs: int
    actions: int
    settings: Settings

    @property
    def actor(self) -> Network:
        return Network(self.inputs + 2 * self.settings.latent, self.settings.hidden, self.actions)

    @property
    def critic(self) -> Network:
        return replace(self.actor, outputs=1)

    @property
    def decoder(self) -> Network:
        """Reward of a transition, from the latent, the inputs before and after it, and the action."""
        inputs = self.settings.latent + 2 * self.inputs + self.actions
        return Network(inputs, self.settings.decoder, 1, "relu")


ENCODER = [part + kind for part in ("embed", "gru_input", "gru_hidden", "belief") for kind in ("", "_bias")]


def initial(sizes: Sizes, rng: np.random.Generator) -> dict[str, Array]:
    """Return random parameters of all parts, as arrays by name."""
    s = sizes.settings
    parameters = {
        "actor": ppo.initial_actor(sizes.actor, rng),
        "critic": sizes.critic.initial(rng),
        "log_std": np.full(sizes.actions, np.log(s.initial_std), dtype=np.float32),
        "reward_scale": np.ones(1, dtype=np.float32),
    }
    if s.latent:
        parameters["decoder"] = sizes.decoder.initial(rng)
        read, units = sizes.inputs + sizes.actions + 1, s.recurrent
        matrices = ((read, s.embedding), (s.embedding, 3 * units), (units, 3 * units), (units, 2 * s.latent))
        for (rows, columns), name in zip(matrices, ENCODER[::2], strict=True):
            weights = rng.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(rows))
            parameters |= {name: weights, f"{name}_bias": np.zeros(columns, dtype=np.float32)}
    return parameters


class Memory(NamedTuple):
    """What the policy remembers of its episodes."""

    units: Array  # (tasks, rollouts, recurrent): of the encoder's recurrent layer
    actions: Array | None  # (tasks, rollouts, m): the last ones, as drawn; None at first


@dataclass(eq=False)
class BeliefPolicy:
    """Reads what the last step did, updates its belief, and acts on both; `explore` adds exploration noise."""

    sizes: Sizes
    parameters: Mapping[str, Array]
    view: FlatView
    explore: Callable[[Array], Array] | None = None
    rewards: Rewards | None = None
    stops: ClassVar[bool] = False
    # For the learner: the actor's inputs (tasks, rollouts, n) of every step if it explores, and the last memory.
    believed: list[Array] = field(default_factory=list)
    memory: Memory = field(init=False)

    def begin(self, shape: tuple[int, ...]) -> Memory:
        self.believed = []
        return Memory(np.zeros((*shape, self.sizes.settings.recurrent), dtype=np.float32), None)

    def act(self, now: Moment, memory: Memory) -> tuple[Array, Memory]:
        inputs, units = self.believe(self.view.inputs(now.observation, now.stage), now.reward, memory)
        actions = self.sizes.actor.forward(self.parameters["actor"], inputs)
        if self.explore is not None:
            actions = self.explore(actions)
            self.believed.append(inputs)
        self.memory = Memory(units, actions)
        return actions, self.memory

    def believe(self, inputs: Array, reward: Array | None, memory: Memory) -> tuple[Array, Array]:
        """Return the inputs of the actor, which end with the new belief, and the encoder's units."""
        p, units = self.parameters, memory.units
        if not self.sizes.settings.latent:
            return inputs, units
        if reward is not None and memory.actions is not None:
            scaled = (reward / p["reward_scale"])[..., None]
            read = np.concatenate([np.clip(memory.actions, -1.0, 1.0), inputs, scaled], axis=-1)
            embedded = np.maximum(np.matmul(read, p["embed"]) + p["embed_bias"], 0.0)
            units = _gru(p, embedded, units)
        belief = np.matmul(units, p["belief"]) + p["belief_bias"]
        return np.concatenate([inputs, belief], axis=-1), units


def _gru(p: Mapping[str, Array], x: Array, h: Array) -> Array:
    """Return the memory of a gated recurrent unit after one step, as torch defines it."""
    of_input = np.matmul(x, p["gru_input"]) + p["gru_input_bias"]
    of_memory = np.matmul(h, p["gru_hidden"]) + p["gru_hidden_bias"]
    n = h.shape[-1]
    gates = np.tanh(0.5 * (of_input[..., : 2 * n] + of_memory[..., : 2 * n])) * 0.5 + 0.5  # the logistic function
    proposed = np.tanh(of_input[..., 2 * n :] + gates[..., :n] * of_memory[..., 2 * n :])
    return np.asarray(proposed + gates[..., n:] * (h - proposed))


# --- learning what the task is ---------------------------------------------------------------------------


def encode(p: Mapping[str, Tensor], actions: Tensor, inputs: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and log-variance (time + 1, episodes, latent) after 0, 1, … steps (time, episodes, ...)."""
    import torch

    read = torch.cat([actions.clamp(-1.0, 1.0), inputs, rewards[..., None]], dim=-1)
    embedded = (read @ p["embed"] + p["embed_bias"]).relu()
    nothing = embedded.new_zeros(1, embedded.shape[1], len(p["gru_hidden"]))
    weights = [p["gru_input"].t(), p["gru_hidden"].t(), p["gru_input_bias"], p["gru_hidden_bias"]]
    memory, _ = torch.gru(embedded, nothing, weights, True, 1, 0.0, True, False, False)
    belief = torch.cat([nothing, memory]) @ p["belief"] + p["belief_bias"]
    mean, log_var = belief.chunk(2, dim=-1)
    return mean, log_var


def divergence(mean: Tensor, log_var: Tensor) -> Tensor:
    """Return the KL divergence (time, episodes) of every posterior from the one before it, the first from the prior."""
    import torch

    before, before_log_var = (torch.cat([torch.zeros_like(x[:1]), x[:-1]]) for x in (mean, log_var))
    gap = (log_var - before_log_var).exp() + (mean - before) ** 2 / before_log_var.exp()
    return 0.5 * (before_log_var - log_var + gap - 1.0).sum(-1)


class History(NamedTuple):
    """Episodes as encoder and decoder need them, as torch tensors; rewards are scaled."""

    inputs: Any  # (time + 1, episodes, n)
    actions: Any  # (time, episodes, m)
    rewards: Any  # (time, episodes)
    alive: Any  # (time, episodes)


def elbo_loss(
    sizes: Sizes, p: Mapping[str, Tensor], history: History, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Return reconstruction and divergence of the evidence lower bound, mean over posteriors and episodes.

    A posterior's reconstruction is the sum of squared errors over its whole episode, estimated from some of its steps.
    """
    import torch

    s = sizes.settings
    inputs, actions, rewards, alive = history
    lengths = alive.sum(0)  # (episodes,): steps taken
    mean, log_var = encode(p, actions, inputs[1:], rewards)
    real = torch.cat([torch.ones_like(alive[:1]), alive])  # the prior, then a posterior per step
    kl = ((divergence(mean, log_var) * real).sum(0) / real.sum(0)).mean()
    column = torch.arange(len(lengths))
    posterior = _some(rng, s.posteriors, lengths + 1)  # (posteriors, episodes)
    noise = torch.from_numpy(rng.standard_normal((*posterior.shape, s.latent), dtype=np.float32))
    sample = mean[posterior, column] + (0.5 * log_var[posterior, column]).exp() * noise
    step = _some(rng, s.decoded, lengths)  # (decoded, episodes)
    known = torch.cat([inputs[step, column], inputs[step + 1, column], actions[step, column]], dim=-1)
    predicted = decode(sizes, p["decoder"], sample, known)
    error = (predicted - rewards[step, column]) ** 2  # (posteriors, decoded, episodes)
    return (error.mean((0, 1)) * lengths).mean(), kl


def decode(sizes: Sizes, theta: Tensor, latent: Tensor, known: Tensor) -> Tensor:
    """Return rewards (posteriors, decoded, episodes) of transitions (decoded, episodes, …) for every latent sample."""
    latents = sizes.settings.latent
    (weights, bias), *others = sizes.decoder.layers(theta)
    # The first layer is applied to latents and transitions separately and then summed over pairs: fewer products.
    x = (latent @ weights[:latents])[:, None] + (known @ weights[latents:] + bias)
    for weights, bias in others:
        x = x.relu() @ weights + bias
    return x[..., 0]


def _some(rng: np.random.Generator, count: int, below: Tensor) -> Tensor:
    """Return integers (count, n), drawn uniformly below each of `below` (n,)."""
    import torch

    drawn = torch.from_numpy(rng.random((count, len(below)), dtype=np.float32))
    return torch.minimum((drawn * below).long(), (below.long() - 1).clamp(min=0))


# --- learning to act -------------------------------------------------------------------------------------


class Learner:
    """All parameters, both optimizers, and the most recent episodes."""

    def __init__(self, task: Task, view: FlatView, settings: Settings, rng: np.random.Generator) -> None:
        import torch

        from dibs.policies.optimizers import Adam

        self.view, self.settings, self.rng = view, settings, rng
        self.sizes = Sizes(view.size, task.environment.action_dim, settings)
        self.parameters = initial(self.sizes, rng)
        self._policy = ppo.ActorCritic(self.sizes.actor, self.parameters, settings, rng)
        # Tensors share the arrays' memory: the optimizer's steps show in `parameters`.
        self._tensors = {name: torch.from_numpy(array) for name, array in self.parameters.items()}
        self.history: History | None = None
        self._first = True  # no iteration so far
        if settings.latent:
            self._vae = [self._tensors[name].requires_grad_() for name in (*ENCODER, "decoder")]
            self._vae_adam = Adam(self._vae, lr=settings.vae_learning_rate)

    def acting(self, explore: bool) -> BeliefPolicy:
        """Return the policy of the current parameters."""
        noise = ppo.gaussian_noise(self.rng, self.parameters["log_std"]) if explore else None
        return BeliefPolicy(self.sizes, self.parameters, self.view, noise)

    def iterate(self, task: Task) -> int:
        """Run every task, then improve the policy, then encoder and decoder; return the environment steps taken."""
        acting = self.acting(explore=True)
        episodes = ppo.collect(
            task, acting, self.view.seen(task.environment), draw(task, self.settings.rollouts, self.rng)
        )
        taken = episodes.rewards[episodes.alive > 0]
        if self._first and taken.size:
            self.parameters["reward_scale"][:] = max(float(taken.std()), 1e-3)
        last, _ = acting.believe(episodes.inputs[-1], episodes.rewards[-1], acting.memory)
        self._policy.improve(episodes, np.stack([*acting.believed, last]))
        self._first = False
        if self.settings.latent:
            self._remember(episodes, task.horizon)
            for _ in range(self.settings.vae_updates):
                self._improve_belief()
        return episodes.steps

    def check(self, task: SpecTask) -> tuple[list[Bools], int]:
        """Return successes without exploration, and the steps this took."""
        return ppo.check(task, self.acting(explore=False), self.settings.check_rollouts, self.rng)

    def _remember(self, episodes: ppo.Experience, horizon: int) -> None:
        """Keep episodes, padded to the horizon, and drop the oldest ones."""

        def flat(array: Array, time: int) -> Array:
            joined = array.reshape(array.shape[0], -1, *array.shape[3:])
            return np.pad(joined, [(0, time - len(joined)), *[(0, 0)] * (joined.ndim - 1)])

        arrays = (np.clip(episodes.actions, -1.0, 1.0), episodes.rewards, episodes.alive)
        new = History(flat(episodes.inputs, horizon + 1), *(flat(array, horizon) for array in arrays))
        size = new.rewards.shape[1]
        kept = size * -(-self.settings.vae_buffer // size)  # whole iterations
        old = (array[:, :0] for array in new) if self.history is None else self.history
        self.history = History(*(np.concatenate(both, axis=1)[:, -kept:] for both in zip(old, new, strict=True)))

    def _improve_belief(self) -> None:
        """Take one step on the evidence lower bound of some episodes, cut to the longest of them."""
        import torch

        assert self.history is not None
        rows = np.sort(self.rng.integers(0, self.history.rewards.shape[1], self.settings.vae_episodes))
        inputs, actions, rewards, alive = (array[:, rows] for array in self.history)
        time = max(int(alive.sum(0).max()), 1)
        scaled = rewards[:time] / float(self.parameters["reward_scale"][0])
        history = History(*ppo.tensors(inputs[: time + 1], actions[:time], scaled, alive[:time]))
        reconstruction, kl = elbo_loss(self.sizes, self._tensors, history, self.rng)
        self._vae_adam.zero_grad()
        (reconstruction + self.settings.kl_weight * kl).backward()
        torch.nn.utils.clip_grad_norm_(self._vae, 1.0)
        self._vae_adam.step()


def train(training: Training, settings: Settings) -> Model:
    """Train encoder, decoder and policy on the training tasks of a benchmark."""
    return ppo.meta_train(training, settings, "varibad", Learner)


def policy(model: Model, tasks: Tasks) -> Policy:
    """Return the policy in its first episode, from the prior on; it must be given the rewards it was trained with."""
    if model.metadata["diverged"]:
        return Stopped(tasks.environment.action_dim)
    settings = parse_settings(Settings, model.metadata["settings"], "settings of the model")
    view = FlatView.of_model(model)
    sizes = Sizes(view.size, tasks.environment.action_dim, settings)
    rewards = Rewards(settings.reward, settings.bonus, settings.penalty)
    return BeliefPolicy(sizes, model.tensors, view, rewards=rewards)


LOOK: dict[str, Any] = {"color": "#8C564B", "marker": "^", "hatch": "|||", "dashes": (), "order": 5}
COST: dict[str, Any] = {"memory_mb": 3000, "minutes": 120, "evaluation_factor": 8.0}
METHOD = Method("varibad", "VariBAD", Settings, train, policy, **COST, **LOOK)
