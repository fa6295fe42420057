"""Teachers by the off-policy algorithms of Stable-Baselines3: SAC, TD3, DDPG."""

from __future__ import annotations

import numpy as np
import stable_baselines3
import torch

from dibs.policies.optimizers import Adam
from dibs.policies.torch import ACTIVATIONS, linears, load_flat
from dibs.teachers.base import Assignment, Learned
from dibs.teachers.joint import EdgeAssignment, JointObjective, Watch, quiet
from dibs.teachers.sb3 import Sb3Settings


def train(assignment: Assignment, algorithm: str, settings: Sb3Settings) -> Learned:
    """Train one actor per edge with the named algorithm of Stable-Baselines3."""
    torch.set_num_threads(1)
    kind = getattr(stable_baselines3, algorithm.upper())
    thetas, heads, curve, steps = [], [], [], 0
    for edge in range(assignment.edges.tasks):
        part = EdgeAssignment(assignment, edge, settings.n_envs)
        model = kind(
            "MlpPolicy",
            part.env,
            seed=part.seed,
            device="cpu",
            policy_kwargs={
                "net_arch": {"pi": list(assignment.network.hidden), "qf": [64, 64]},
                "activation_fn": ACTIVATIONS[assignment.network.activation],
                "optimizer_class": Adam,
            },
            **{"learning_starts": 1_000, "train_freq": 1, "gradient_steps": 4, "gamma": 0.9, **settings.options},
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
        watch = Watch(part, layers, settings.check_every, settings.checks)
        quiet(model)
        model.learn(settings.steps, callback=watch, log_interval=None)
        if not watch.converged:
            watch.measure()
        thetas.append(watch.theta)
        heads.append(joint.weights())
        curve += watch.curve
        steps += model.num_timesteps
    return Learned(np.stack(thetas), np.stack(heads), steps, len(curve), curve)
