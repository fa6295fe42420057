"""PPO with the index: one policy for all training tasks that receives the index and the stage of the specification.

This is multi-task reinforcement learning as anybody would try it first: no teachers, no graph, no rule of how policies
evolve. The budget is the environment steps that DIBS's teachers used on the benchmark's edges, all of them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dibs.baselines import ppo_core as ppo
from dibs.baselines.flat import FlatPolicy, FlatView
from dibs.envs import Array
from dibs.families import Tasks
from dibs.methods import Method, Model, Training, teachers_for_budget
from dibs.policies.network import Network
from dibs.simulation import Levels, Policy, RewardKind, SpecTask, Stopped


@dataclass(frozen=True)
class Settings(ppo.PPOSettings, ppo.SpecSettings):
    """Settings of PPO on whole specifications."""

    observe_index: bool = True
    """Whether the policy sees the index; without it, this is plain multi-task PPO."""
    reward: RewardKind = "distance"
    """Reward per step: minus the distance to go (distance) or how much of it the step covers (progress)."""
    bonus: float = 1.0
    """Reward for every stage completed."""


class Learner(ppo.PolicyLearner):
    """The policy and its value function."""

    def __init__(self, task: SpecTask, view: FlatView, settings: Settings, rng: np.random.Generator) -> None:
        super().__init__(view.size, task, settings, rng)
        self.view = view

    def inputs(self, task: SpecTask) -> Callable[[Array, Levels], Array]:
        return self.view.at(task.indices).seen(task.environment)

    def policy(self, task: SpecTask, explore: ppo.Noise | None = None) -> FlatPolicy:
        return FlatPolicy(self.model.actor, self.parameters["actor"], self.view.at(task.indices), explore)


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
