"""Teachers by any algorithm of Stable-Baselines3: that they may come from any RL algorithm is the paper's point.

What all of them share is here. The library's optimisation stays as it is: a hook that runs before every step
of the actor's optimiser adds the gradients of λ_x‖θ − θ_prev‖² and of λ_conf L_conf, which makes the step one
on the joint objective (section 4.1). The deterministic actor is the lesson's `Network` to the last weight.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from torch import Tensor, nn
from torch.nn import functional

from dibs.envs import Array
from dibs.envs.sb3 import EpisodeRecorder, ReachAvoidVecEnv
from dibs.families import ReachAvoid
from dibs.policies.torch import ACTIVATIONS, flat, linears, load_flat, parameters, split_flat
from dibs.teachers.adam import Adam
from dibs.teachers.base import Learnt, Lesson
from dibs.teachers.ppo_settings import Sb3Settings
from dibs.teachers.rollouts import draw, roll

SAMPLE = 256  # states of either quality per evaluation of the confidence loss


class Pupil:
    """One edge of a lesson: its task (with the target shrunk by the lesson's depth), buffers and environment."""

    def __init__(self, lesson: Lesson, edge: int, n_envs: int, attempt: int = 0) -> None:
        self.lesson, self.edge, self.attempt = lesson, edge, attempt
        task = lesson.tasks.take([edge])
        inside = np.sign(task.target_sign)[..., None] * lesson.depth
        self.task: ReachAvoid = dataclasses.replace(task, target_half=task.target_half - inside)
        self.rng = np.random.default_rng([lesson.seed, edge, *[attempt] * (attempt > 0)])
        self.scaling = lesson.scaling.take(np.array([edge]))
        self.recorder = EpisodeRecorder(n_envs, task.horizon, lesson.network.inputs)
        self.env = ReachAvoidVecEnv(
            self.task,
            n_envs,
            rng=self.rng,
            scale=(self.scaling.center[0], self.scaling.half[0]),
            episode_info=False,
            recorder=self.recorder,
        )
        self.previous = None if lesson.previous is None else lesson.previous[edge].astype(np.float32)
        self.warm = lesson.start is not None

    @property
    def seed(self) -> int:
        return (self.lesson.seed + 7919 * self.edge + 104_729 * self.attempt) % 2**31

    def start(self, head_gain: float = 1.0) -> Array:
        """The actor to start from: the previous teacher, or random weights with a small action head."""
        if self.previous is not None and self.warm:
            return self.previous
        theta = self.lesson.network.initial(self.rng)
        weights, biases = self.lesson.network.layers(theta)[-1]
        weights *= head_gain
        biases *= head_gain
        return theta

    def check(self, theta: Array, rollouts: int) -> tuple[float, float]:
        """Success and return of the deterministic actor."""
        network = self.lesson.network
        folded = network.fold(theta[None], self.scaling.center, self.scaling.half)[:, None]
        outcome = roll(network, folded, self.task, draw(self.task, rollouts, self.rng))
        return float(outcome.success[0, 0]), float(outcome.returns[0, 0])

    def keep_episodes(self) -> None:
        """Offer the episodes that have ended since the last call to the lesson's buffers."""
        episodes = self.recorder.drain()
        if len(episodes.length) == 0:
            return
        states = np.moveaxis(episodes.states, 0, 1)  # (time, episodes, dim)
        valid = np.arange(len(states))[:, None] < episodes.length
        self.lesson.buffers.add_episodes(self.edge, states, valid, episodes.success)

    def sample(self, kind: str) -> Tensor | None:
        """Scaled states of one quality, as network inputs; None while there are too few."""
        view = self.lesson.buffers.edges[self.edge][kind].view()
        if len(view) < SAMPLE:
            return None
        states = view[self.rng.integers(len(view), size=SAMPLE)]
        return torch.from_numpy((states - self.scaling.center) / self.scaling.half)


class JointObjective:
    """Adds the gradients of the anchor and of the confidence loss before each step of the actor's optimiser."""

    def __init__(self, pupil: Pupil, layers: list[nn.Linear], trunk: nn.Module, optimizer: Any) -> None:
        self.pupil, self.layers, self.trunk = pupil, layers, trunk
        self.head = nn.Linear(pupil.lesson.network.hidden[-1], 1)
        self.calls = 0
        if pupil.lesson.confidence > 0.0:
            optimizer.add_param_group({"params": list(self.head.parameters())})
        self.anchors = None
        if pupil.previous is not None and pupil.lesson.anchor > 0.0:
            self.anchors = split_flat(layers, pupil.previous)
        optimizer.register_step_pre_hook(lambda *_: self.add())

    def add(self) -> None:
        """Accumulate 2 λ_x (θ − θ_prev) and λ_conf ∇L_conf into the gradients at hand."""
        self.calls += 1
        lesson = self.pupil.lesson
        if self.anchors is not None:
            for parameter, anchor in zip(parameters(self.layers), self.anchors, strict=True):
                if parameter.grad is not None:
                    parameter.grad.add_(parameter.detach() - anchor, alpha=2.0 * lesson.anchor)
        if lesson.confidence > 0.0:
            loss = self.confidence_loss()
            if loss is not None:
                (lesson.confidence * loss).backward()

    def confidence_loss(self) -> Tensor | None:
        """E_high[−log p] + E_low[−log(1 − p)] on a sample of the buffers."""
        high, low = self.pupil.sample("high"), self.pupil.sample("low")
        if high is None or low is None:
            return None
        good, bad = self.head(self.trunk(high)), self.head(self.trunk(low))
        return functional.softplus(-good).mean() + functional.softplus(bad).mean()

    def weights(self) -> Array:
        """The confidence head as a vector (features + 1,)."""
        return flat([self.head])


class Watch(BaseCallback):
    """Looks at the deterministic actor now and then, keeps the best, and stops when it has converged."""

    def __init__(self, pupil: Pupil, layers: list[nn.Linear], every: int, checks: int) -> None:
        super().__init__()
        self.pupil, self.layers, self.every, self.checks = pupil, layers, every, checks
        self.best = (-1.0, -np.inf)
        self.theta = flat(layers)
        self.looks, self.due, self.converged = 0, 0, False
        self.curve: list[dict[str, float]] = []

    def look(self) -> None:
        """Estimate the actor's success; 1.0 here and on three times as many rollouts is convergence."""
        self.pupil.keep_episodes()
        theta = flat(self.layers)
        success, returns = self.pupil.check(theta, self.checks)
        if success == 1.0:
            success = self.pupil.check(theta, 3 * self.checks)[0]
            self.converged = success == 1.0
        if (success, returns) > self.best:
            self.best, self.theta = (success, returns), theta
        self.curve.append({"edge": self.pupil.edge, "steps": self.num_timesteps, "success": success, "return": returns})
        if self.pupil.lesson.progress is not None:
            self.pupil.lesson.progress(
                f"edge {self.pupil.edge + 1} of {self.pupil.lesson.tasks.tasks}"
                + (f", begun anew ({self.pupil.attempt + 1})" if self.pupil.attempt else "")
                + f": success {success:.3f} after {self.num_timesteps} steps"
            )
        self.looks += 1

    def _on_step(self) -> bool:
        if self.every and self.num_timesteps >= self.due and not self.converged:
            self.due += self.every
            self.look()
        return not self.converged


def quiet(model: BaseAlgorithm) -> None:
    """Set a logger that writes nowhere: the default makes a temporary directory at every `learn`."""
    model.set_logger(Logger(folder=None, output_formats=[]))


def train(lesson: Lesson, algorithm: str, settings: Sb3Settings) -> Learnt:
    """Train one actor per edge with the named algorithm of Stable-Baselines3."""
    torch.set_num_threads(1)
    if algorithm == "a2c":
        from dibs.teachers.ppo import train_a2c

        return train_a2c(lesson, settings)
    kind = getattr(stable_baselines3, algorithm.upper())
    thetas, heads, curve, steps = [], [], [], 0
    for edge in range(lesson.tasks.tasks):
        pupil = Pupil(lesson, edge, settings.n_envs)
        model = kind(
            "MlpPolicy",
            pupil.env,
            seed=pupil.seed,
            device="cpu",
            policy_kwargs={
                "net_arch": {"pi": list(lesson.network.hidden), "qf": [64, 64]},
                "activation_fn": ACTIVATIONS[lesson.network.activation],
                "optimizer_class": Adam,
            },
            **{"learning_starts": 1_000, "train_freq": 1, "gradient_steps": 4, "gamma": 0.9, **settings.options},
        )
        actor = model.policy.actor
        if algorithm == "sac":  # deterministic action: tanh(mu(latent_pi(x)))
            layers, trunk = linears(actor.latent_pi, actor.mu), actor.latent_pi
        else:  # mu is Linear, activation, …, Linear, Tanh
            layers, trunk = linears(actor.mu), actor.mu[:-2]
        load_flat(layers, pupil.start())
        if hasattr(model.policy, "actor_target"):
            model.policy.actor_target.load_state_dict(actor.state_dict())
        joint = JointObjective(pupil, layers, trunk, actor.optimizer)
        watch = Watch(pupil, layers, settings.check_every, settings.checks)
        quiet(model)
        model.learn(settings.steps, callback=watch, log_interval=None)
        watch.look() if not watch.converged else None
        thetas.append(watch.theta)
        heads.append(joint.weights())
        curve += watch.curve
        steps += model.num_timesteps
    return Learnt(np.stack(thetas), np.stack(heads), steps, len(curve), curve)
