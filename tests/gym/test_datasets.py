"""Datasets of Gymnasium environments: the filter keeps what a converged teacher does."""

from __future__ import annotations

import numpy as np
import pytest

from dibs.datasets.build import SOURCES, DatasetSettings, build
from dibs.families import load_family
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.simulation import EdgeTask, NetworkPolicy, StateRecorder, draw, rollout
from dibs.teachers.train import Teacher

SMALL = 1e-3  # a hidden layer that is scaled by this is linear

HILL = {
    "name": "hill",
    "environment": {"gymnasium": "MountainCarContinuous-v0", "variables": ["position", "velocity"]},
    "specification": "achieve reach(hill)",
    "start": {"center": {"position": -0.5, "velocity": 0.0}, "noise": {"position": 0.05}},
    "regions": {"hill": {"center": {"position": 0.3}, "half_width": 0.1, "shift": {"position": 0.01}}},
    "last_index": 2,
    "horizon": 150,
    "network": {"hidden": [5]},
}


def pumping(head: np.ndarray) -> Teacher:
    """A car that always accelerates in the direction in which it moves."""
    network = Network(2, (2,), 1)
    theta = np.zeros((1, network.size), dtype=np.float32)
    (first, _), (second, _) = network.layers(theta)
    first[0], second[0] = SMALL * np.eye(2), [[0.0], [1000.0 / SMALL]]
    scaling = Scaling(np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32))
    metrics = {"edges": {"start>hill": {"success": 1.0}}}
    return Teacher("hill", "base", 0, 0, ("start>hill",), network, scaling, theta, head, metrics, {})


@pytest.mark.parametrize("scale", [1.0, 20.0])
def test_nearly_all_states_of_satisfying_rollouts_pass(scale: float) -> None:
    family = load_family(HILL)
    tasks = family.tasks([0, 2])
    # Confident to the right of position 0 only: with scale 1, p is at most 0.65, with scale 20, it is 0.7 at 0.04.
    sure = pumping(head=np.array([[scale / SMALL, 0.0, 0.0]]))
    task = EdgeTask(tasks.reach_avoid([0]))
    network = NetworkPolicy(
        sure.network, sure.network.fold(sure.actor[0], sure.scaling.center[0], sure.scaling.half[0])
    )
    recorder = StateRecorder()
    outcome = rollout(task, network, draw(task, 100, np.random.default_rng(5)), recorder=recorder)
    assert outcome.success.all()
    visited = recorder.states(axis=-2)[0][np.arange(len(outcome.moved) + 1) < outcome.lengths[0][:, None]]
    expected = 1.0 / (1.0 + np.exp(-scale * np.tanh(SMALL * visited[:, 0]) / SMALL))
    settings = DatasetSettings(size=400)
    blocks = list(build(tasks, family.split("gap2"), sure, [np.empty((0, 4), np.float32)], settings))
    threshold = blocks[0].threshold
    assert threshold < 0.7 and 0.87 < (expected >= threshold).mean() < 0.93
    source = np.concatenate([b.source for b in blocks])
    kept = np.concatenate([b.states for b in blocks])[source == SOURCES.index("on-policy")]
    # The whole way is there, except for the tenth that the head trusts least.
    assert kept[:, 0].min() < np.quantile(visited[:, 0], 0.15) and kept[:, 0].max() > np.quantile(visited[:, 0], 0.95)
