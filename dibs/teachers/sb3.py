"""Teachers by Stable-Baselines3: settings and records. Teachers may come from any RL algorithm.

This module stays free of torch, because configs and plans read it. Training is in `on_policy` (PPO, A2C) and
`off_policy` (SAC, TD3, DDPG).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dibs.settings import Count, Natural, Positive, Share
from dibs.teachers.base import Algorithm


@dataclass(frozen=True)
class PpoSettings:
    """Settings of PPO: large minibatches on many environments, stopped as soon as the teacher has converged."""

    n_envs: Count = 256
    """Environments stepped together."""
    n_steps: Count = 16
    """Steps per environment and iteration."""
    batch: Count = 2048
    """Minibatch size."""
    epochs: Count = 6
    """Passes over an iteration's steps."""
    rate: Positive = 3e-3
    """Adam's rate at the start."""
    final_rate: Share = 0.05
    """Share of that rate left in the last iteration, to which it falls linearly."""
    gamma: Share = 0.85
    """Discount: an edge takes about ten steps."""
    gae_lambda: Share = 0.95
    """Weight of longer advantages."""
    clip: Positive = 0.2
    """Clipping range of the probability ratio."""
    std: Positive = 0.6
    """Initial standard deviation of the exploration."""
    std_rate: Positive = 1.0
    """How much faster than the weights the (log) standard deviation is learned."""
    value: tuple[int, ...] = (64, 64)
    """Hidden layers of the value network, which is not part of the teacher."""
    head_gain: Positive = 0.1
    """Scale of the initial action head: first actions are small."""
    iterations: Count = 100
    """Most iterations per edge."""
    restarts: Count = 3
    """Most searches of an edge when there is no previous teacher: if one fails, another begins."""
    frozen: Natural = 1
    """First iterations of a warm start in which only the value network learns."""
    checks: Count = 200
    """Rollouts of the mean actor between iterations; 1.0 on them and on three times as many is convergence."""
    patience: Natural = 0
    """Checks without a better return after which an actor with full success has converged; 0: it has at once."""


@dataclass(frozen=True)
class Sb3Settings:
    """Settings of any other algorithm of Stable-Baselines3."""

    n_envs: Count = 16
    """Environments stepped together."""
    steps: Count = 60_000
    """Most environment steps per edge."""
    check_every: Count = 2_000
    """Environment steps between two checks of the mean actor."""
    checks: Count = 200
    """Rollouts of such a check."""
    patience: Natural = 0
    """Checks without a better return after which an actor with full success has converged; 0: it has at once."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the library's constructor, e.g. {"learning_rate": 1e-3, "gradient_steps": 8}. `action_noise` of TD3
    and DDPG may be a number, the standard deviation of normal noise (default: 0.1). `gamma` is 0.9, or 1 - 2/horizon if
    that is larger."""


PPO_ALGORITHM = Algorithm("ppo", PpoSettings, "dibs.teachers.on_policy:train_ppo", minutes=60)
A2C_ALGORITHM = Algorithm("a2c", Sb3Settings, "dibs.teachers.on_policy:train_a2c", minutes=60)
SAC_ALGORITHM = Algorithm(
    "sac", Sb3Settings, "dibs.teachers.off_policy:train_sac", version=2, memory_mb=3000, minutes=240
)
TD3_ALGORITHM = Algorithm(
    "td3", Sb3Settings, "dibs.teachers.off_policy:train_td3", version=2, memory_mb=3000, minutes=240
)
DDPG_ALGORITHM = Algorithm(
    "ddpg", Sb3Settings, "dibs.teachers.off_policy:train_ddpg", version=2, memory_mb=3000, minutes=240
)
