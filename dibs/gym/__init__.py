"""Tasks as Gymnasium and Stable-Baselines3 environments.

    import dibs.gym

    env = dibs.gym.make("my_family.yaml", index=5)
    envs = dibs.gym.make_vec("my_family.yaml", num_envs=64, edge="start>dock")

Importing this package registers one Gymnasium id per environment, such as `dibs/Car2D-v0`. The `VecEnv` for
Stable-Baselines3 is in `dibs.gym.sb3`, which is not imported here because it needs torch.
"""

from __future__ import annotations

from dibs.gym.environments import TaskEnv, TaskVectorEnv, make, make_vec, register

__all__ = ["TaskEnv", "TaskVectorEnv", "make", "make_vec", "register"]

register()
