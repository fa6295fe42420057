"""The simulator: tasks, the rollout loop, the signed distance and the reward that everything else uses."""

from __future__ import annotations

from dibs.simulation.distance import signed_distance
from dibs.simulation.loop import (
    BasePolicy,
    Draws,
    Episodes,
    Moment,
    NetworkPolicy,
    Outcome,
    Policy,
    Recorder,
    StateRecorder,
    Stopped,
    draw,
    evaluation_draws,
    rollout,
)
from dibs.simulation.specifications import SpecTask
from dibs.simulation.tasks import Bools, EdgeTask, Levels, Progress, RewardKind, Rewards, Rows, Task

__all__ = [
    "BasePolicy",
    "Bools",
    "Draws",
    "EdgeTask",
    "Episodes",
    "Levels",
    "Moment",
    "NetworkPolicy",
    "Outcome",
    "Policy",
    "Progress",
    "Recorder",
    "RewardKind",
    "Rewards",
    "Rows",
    "SpecTask",
    "StateRecorder",
    "Stopped",
    "Task",
    "draw",
    "evaluation_draws",
    "rollout",
    "signed_distance",
]
