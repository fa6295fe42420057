"""Teachers by PPO and A2C of Stable-Baselines3 (paper, appendix E: Reacher, SimpleDrone, DroneAttitude).

The mean of the Gaussian policy is exactly the assignment's network: trunk, action head, tanh. The value network is
separate and not part of the teacher. The anchor and the confidence loss enter before each step of the optimizer
(`dibs.teachers.joint`), so nothing of the library's own optimization is rewritten.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.vec_env import VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn
from torch import nn

from dibs.envs import Array
from dibs.policies.network import Network
from dibs.policies.optimizers import Adam
from dibs.policies.torch import Actor, linears
from dibs.teachers.base import Assignment, Learned
from dibs.teachers.joint import EdgeAssignment, JointObjective, Search, Watch, make_model, train_edges
from dibs.teachers.sb3 import PpoSettings, Sb3Settings

GOOD = 0.99  # success of a search from scratch after which no other one begins


class TeacherPolicy(ActorCriticPolicy):
    """SB3's actor-critic policy with the assignment's network as its mean."""

    def __init__(self, *args: Any, network: Network, theta: Array, std_rate: float, **kwargs: Any) -> None:
        self._network, self._theta, self._std_rate = network, theta, std_rate
        super().__init__(*args, **kwargs)

    def _build(self, lr_schedule: Any) -> None:
        super()._build(lr_schedule)
        self.actor = Actor(self._network)
        self.actor.load_flat(self._theta)
        self.mlp_extractor.policy_net = self.actor.trunk
        self.action_net = nn.Sequential(self.actor.head, nn.Tanh())
        with torch.no_grad():  # in units of 1 / std_rate it is learned that much faster
            self.log_std.div_(self._std_rate)
        make: Any = self.optimizer_class
        self.optimizer = make(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _get_action_dist_from_latent(self, latent_pi: torch.Tensor) -> Any:
        mean = self.action_net(latent_pi)
        return self.action_dist.proba_distribution(mean, self._std_rate * self.log_std)


class Bootstrapped(VecEnvWrapper):
    """Adds the value of the state in which an episode ran out of time, for all such episodes in one call.

    SB3 does the same one environment at a time, which costs more than stepping them all.
    """

    model: OnPolicyAlgorithm | None = None

    def reset(self) -> VecEnvObs:
        return self.venv.reset()

    def step_wait(self) -> VecEnvStepReturn:
        states, rewards, dones, infos = self.venv.step_wait()
        cut = [i for i in np.flatnonzero(dones) if infos[i]["TimeLimit.truncated"]]
        if cut and self.model is not None:
            last = torch.from_numpy(np.stack([infos[i].pop("terminal_observation") for i in cut]))
            with torch.no_grad():
                rewards[cut] += self.model.gamma * self.model.policy.predict_values(last).numpy()[:, 0]
        return states, rewards, dones, infos


class WatchIterations(Watch):
    """Measures before each iteration; on a warm start the value network learns first, while the actor is frozen."""

    at_end = False

    def __init__(self, part: EdgeAssignment, policy: TeacherPolicy, settings: PpoSettings) -> None:
        super().__init__(part, linears(policy.actor), 0, settings.checks, settings.patience)
        self.policy = policy
        self.frozen = settings.frozen if part.warm else 0

    def _on_rollout_start(self) -> None:
        super()._on_rollout_start()
        if not self.converged:
            self.measure()
        for parameter in (*self.policy.actor.parameters(), self.policy.log_std):
            parameter.requires_grad_(self.measured > self.frozen)


def train_ppo(assignment: Assignment, settings: PpoSettings) -> Learned:
    """Train one actor per edge, one edge after the other; if a search from scratch fails, another begins."""
    options = {
        "n_steps": settings.n_steps,
        "batch_size": settings.batch,
        "n_epochs": settings.epochs,
        "learning_rate": lambda left: settings.rate * (settings.final_rate + (1.0 - settings.final_rate) * left),
        "gamma": settings.gamma,
        "gae_lambda": settings.gae_lambda,
        "clip_range": settings.clip,
    }
    total = settings.iterations * settings.n_envs * settings.n_steps
    search = partial(_search, kind=PPO, settings=settings, options=options, total=total)
    return train_edges(assignment, settings.n_envs, search, settings.restarts, GOOD)


def train_a2c(assignment: Assignment, settings: Sb3Settings) -> Learned:
    """Train one actor per edge by A2C, with the same policy."""
    options = {"n_steps": 8, "learning_rate": 3e-3, "gamma": 0.9, "use_rms_prop": False, **settings.options}
    shape = PpoSettings(n_envs=settings.n_envs, checks=settings.checks, patience=settings.patience)
    search = partial(_search, kind=A2C, settings=shape, options=options, total=settings.steps)
    return train_edges(assignment, shape.n_envs, search, shape.restarts, GOOD)


def _search(
    part: EdgeAssignment, kind: type[OnPolicyAlgorithm], settings: PpoSettings, options: dict[str, Any], total: int
) -> dict[str, Any]:
    """Train one edge's actor once."""
    assignment, env = part.assignment, Bootstrapped(part.env)
    model: Any = make_model(
        kind,
        options,
        policy=TeacherPolicy,
        env=env,
        seed=part.seed,
        device="cpu",
        policy_kwargs={
            "network": assignment.network,
            "theta": part.start(settings.head_gain),
            "std_rate": settings.std_rate,
            "net_arch": {"pi": list(assignment.network.hidden), "vf": list(settings.value)},
            "activation_fn": nn.ReLU,
            "log_std_init": float(np.log(settings.std)),
            "optimizer_class": Adam,
            "optimizer_kwargs": {"eps": 1e-5, "fused": True},
        },
    )
    env.model = model
    policy = model.policy
    assert isinstance(policy, TeacherPolicy)
    joint = JointObjective(part, linears(policy.actor), policy.actor.trunk, policy.optimizer)
    watch = WatchIterations(part, policy, settings)
    return Search(model, watch, joint).learn(total, log_interval=10**9)
