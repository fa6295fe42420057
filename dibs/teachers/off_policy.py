"""Teachers by the off-policy algorithms of Stable-Baselines3: SAC, TD3, DDPG."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import stable_baselines3
from stable_baselines3.common.noise import NormalActionNoise

from dibs.policies.optimizers import Adam
from dibs.policies.torch import ACTIVATIONS, linears, load_flat
from dibs.teachers.base import Assignment, Learned
from dibs.teachers.joint import EdgeAssignment, JointObjective, Search, Watch, make_model, train_edges
from dibs.teachers.sb3 import Sb3Settings

NOISE = 0.1  # standard deviation that TD3 and DDPG add to actions while they explore, as in their papers


def train(assignment: Assignment, settings: Sb3Settings, algorithm: str) -> Learned:
    """Train one actor per edge with the named algorithm of Stable-Baselines3."""
    return train_edges(assignment, settings.n_envs, partial(_search, algorithm=algorithm, settings=settings))


def _search(part: EdgeAssignment, algorithm: str, settings: Sb3Settings) -> dict[str, Any]:
    """Train one edge's actor."""
    network, options = part.assignment.network, dict(settings.options)
    if algorithm != "sac":  # their policies are deterministic: without noise they hardly explore
        scale, actions = options.get("action_noise", NOISE), part.assignment.edges.environment.action_dim
        if isinstance(scale, int | float):
            options["action_noise"] = NormalActionNoise(np.zeros(actions), np.full(actions, float(scale)))
    usual: dict[str, Any] = {"learning_starts": 1_000, "train_freq": 1, "gradient_steps": 4}
    usual["gamma"] = max(0.9, 1.0 - 2.0 / part.assignment.edges.horizon)  # looks at least half the horizon ahead
    model: Any = make_model(
        getattr(stable_baselines3, algorithm.upper()),
        {**usual, **options},
        policy="MlpPolicy",
        env=part.env,
        seed=part.seed,
        device="cpu",
        policy_kwargs={
            "net_arch": {"pi": list(network.hidden), "qf": [64, 64]},
            "activation_fn": ACTIVATIONS[network.activation],
            "optimizer_class": Adam,
        },
    )
    actor = model.policy.actor
    if algorithm == "sac":  # deterministic action: tanh(mu(latent_pi(x)))
        layers, trunk = linears(actor.latent_pi, actor.mu), actor.latent_pi
    else:  # mu is Linear, activation, …, Linear, Tanh
        layers, trunk = linears(actor.mu), actor.mu[:-2]
    load_flat(layers, part.start())
    if hasattr(model.policy, "actor_target"):
        model.policy.actor_target.load_state_dict(actor.state_dict())
    joint = JointObjective(part, layers, trunk, actor.optimizer)
    watch = Watch(part, layers, settings.check_every, settings.checks, settings.patience)
    return Search(model, watch, joint).learn(settings.steps, log_interval=None)


train_sac, train_td3, train_ddpg = (partial(train, algorithm=name) for name in ("sac", "td3", "ddpg"))
