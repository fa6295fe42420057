"""PPO with the index: one policy for all training tasks that receives the index and the stage of the specification.

This is multi-task reinforcement learning as anybody would try it first: no teachers, no graph, no rule of how policies
evolve. The budget is the environment steps that DIBS's teachers used on the benchmark's edges, all of them together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dibs.baselines import ppo_core as ppo
from dibs.baselines.flat import FlatPolicy, FlatView
from dibs.families import Tasks
from dibs.methods import Method, Model, Training, teachers_for_budget
from dibs.policies.network import Network
from dibs.simulation import Bools, Policy, RewardKind, SpecTask, Stopped, draw


@dataclass(frozen=True)
class Settings(ppo.PPOSettings, ppo.SpecSettings):
    """Settings of PPO on whole specifications."""

    observe_index: bool = True
    """Whether the policy sees the index; without it, this is plain multi-task PPO."""
    reward: RewardKind = "distance"
    """Reward per step: minus the distance to go (distance) or how much of it the step covers (progress)."""
    bonus: float = 1.0
    """Reward for every stage completed."""


class Learner:
    """The policy and its value function."""

    def __init__(self, task: SpecTask, view: FlatView, settings: Settings, rng: np.random.Generator) -> None:
        self.view, self.settings, self.rng = view, settings, rng
        self.model = ppo.ActorCritic.initial(view.size, task.environment.action_dim, settings, rng)
        self.parameters = self.model.parameters

    def acting(self, task: SpecTask, explore: bool) -> FlatPolicy:
        """Return the policy of the current parameters for the given tasks."""
        noise = ppo.gaussian_noise(self.rng, self.parameters["log_std"]) if explore else None
        return FlatPolicy(self.model.actor, self.parameters["actor"], self.view.at(task.indices), noise)

    def iterate(self, task: SpecTask) -> int:
        """Run every task and improve the policy; return the environment steps taken."""
        acting = self.acting(task, explore=True)
        return self.model.learn(ppo.collect(task, acting, acting.view, draw(task, self.settings.rollouts, self.rng)))

    def check(self, task: SpecTask) -> tuple[list[Bools], int]:
        """Return successes without exploration, and the steps this took."""
        success, steps = ppo.check(task, self.acting(task, explore=False), self.settings.check_rollouts, self.rng)
        self.model.used += steps
        return success, steps


def train(training: Training, settings: Settings) -> Model:
    """Train one policy on the training tasks of a benchmark."""
    settings = replace(settings, steps=settings.steps or training.teacher_steps())
    view = FlatView.of_tasks(training.tasks, settings.observe_stage, settings.observe_index)
    return ppo.meta_train(training, settings, "ppo-index", Learner, view)


def policy(model: Model, tasks: Tasks) -> Policy:
    """Return the policy of the given tasks, which receives their indices."""
    if model.metadata["diverged"]:
        return Stopped(tasks.environment.action_dim)
    view = FlatView.of_model(model)
    hidden = tuple(model.metadata["settings"]["hidden"])
    network = Network(view.size, hidden, tasks.environment.action_dim)
    return FlatPolicy(network, model.tensors["actor"], view.at(tasks.indices))


LOOK: dict[str, Any] = {"color": "#004488", "marker": "H", "hatch": "||.", "dashes": (6.0, 1.5), "order": 21}
METHOD = Method(
    "ppo-index", "PPO (index)", Settings, train, policy, ("teachers",), teachers_for_budget, minutes=240, **LOOK
)
