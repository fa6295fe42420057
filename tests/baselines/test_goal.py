"""PPO with regions: what it sees of boxes, balls and half-spaces, and that it learns from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.baselines import ppo_goal
from dibs.evaluation.evaluate import count_satisfied
from dibs.families import Family, load_family
from dibs.methods import Training
from dibs.simulation import Stopped
from dibs.spectrl import Region

KINDS: dict[str, Any] = {
    "name": "kinds",
    "environment": {"name": "Car2D"},
    "specification": "(achieve reach(ball); achieve reach(half)) ensuring avoid(near) & avoid(far)",
    "start": {"center": [0.0, 0.0], "noise": 0.1, "shift": [0.5, 0.0]},
    "regions": {
        "ball": {"center": [3.0, 0.0], "radius": 1.0, "shift": [0.5, 0.0]},
        "half": {"center": [0.0, 3.0], "normal": [0.0, 1.0]},
        "near": {"center": [1.5, 2.0], "half_width": 0.3, "shift": [0.5, 0.0]},
        "far": {"center": [9.0, -4.0], "half_width": 0.3, "shift": [0.5, 0.0]},
    },
    "last_index": 4,
    "horizon": 8,
    "network": {"hidden": [8]},
    "reward": {"unit": 5.0},
}


@pytest.fixture(scope="module")
def kinds() -> Family:
    return load_family(KINDS)


def row(state: list[float], region: Region, sign: float = 1.0) -> np.ndarray:
    states = np.array(state, dtype=np.float32)[None, None]  # one task, one rollout
    return ppo_goal.describe(states, region, np.array([[sign]]), 2.0)[0][0, 0, 0]


def test_a_box_is_described_by_its_center_and_extents() -> None:
    box = Region(np.array([[[4.0, 1.0]]])[0], np.array([[1.0, np.inf]]))[None]
    found = row([1.0, 7.0], box)
    way, direction, extent, normal = found[0:2], found[2:4], found[4:6], found[6:8]
    assert way.tolist() == [1.5, 0.0] and extent.tolist() == [0.5, 0.0]  # y is free
    assert direction.tolist() == [1.0, 0.0] and normal.tolist() == [0.0, 0.0]
    assert found[8:].tolist() == [0.0, -1.0, 1.0]  # radius, signed distance, sign
    inside = row([3.9, 7.0], box)
    assert inside[2] == pytest.approx(0.1, abs=1e-5) and inside[9] == pytest.approx(0.45, abs=1e-5)


def test_a_ball_and_a_half_space_are_described() -> None:
    ball = Region(np.array([[0.0, 3.0]]), np.array([[0.0, 0.0]]), np.array([1.0]))[None]
    found = row([0.0, 0.0], ball, -1.0)
    assert found[:2].tolist() == [0.0, 1.5] and found[4:6].tolist() == [0.5, 0.5]
    assert found[8:].tolist() == [0.5, -1.0, -1.0]
    plane = Region(np.array([[5.0, 3.0]]), np.array([[np.inf, np.inf]]), 0.0, np.array([[0.0, 1.0]]))[None]
    found = row([-7.0, 1.0], plane)
    assert found[:2].tolist() == [0.0, 1.0] and found[2:4].tolist() == [0.0, 1.0]  # the nearest point of the plane
    assert found[6:8].tolist() == [0.0, 1.0] and found[9] == -1.0


@settings(max_examples=50)
@given(st.lists(st.lists(st.integers(0, 4), min_size=4, max_size=4), min_size=1, max_size=3))
def test_training_is_measured_on_the_best_path_of_every_index(counts: list[list[int]]) -> None:
    """Two ways to the second edge's end: over edges 0 and 2, or over edges 1 and 3."""
    success = np.array([[k < n for k in range(4)] for row in counts for n in row])  # n of 4 rollouts succeed
    found = ppo_goal.on_best_paths(success, [[0, 2], [1, 3]])
    chosen = [(0, 2) if min(row[0], row[2]) >= min(row[1], row[3]) else (1, 3) for row in counts]
    expected = [success[4 * n + edge] for n, path in enumerate(chosen) for edge in path]
    assert np.array_equal(found, np.array(expected))


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1))
def test_what_is_seen_moves_with_state_and_regions(seed: int) -> None:
    """Shifting a state and all regions by the same vector changes nothing but the observation."""
    rng = np.random.default_rng(seed)
    family = load_family(KINDS)
    tasks = family.tasks([0, 4])
    view = ppo_goal.GoalView.of_tasks(tasks, ppo_goal.Settings(observe_state=False))
    states = rng.uniform(-5, 5, (2, 2, 6, 2)).astype(np.float32)  # index 4 is index 0 shifted by 2
    edges = tasks.ground([(0, "start>ball"), (4, "start>ball")])
    states[:, 1] = states[:, 0] + np.array([2.0, 0.0], dtype=np.float32)
    inputs = view.inputs(states, edges)
    np.testing.assert_allclose(inputs[:, 0], inputs[:, 1], atol=1e-4)


def test_the_nearest_obstacles_are_seen_first(kinds: Family) -> None:
    tasks = kinds.tasks([0, 4])
    view = ppo_goal.GoalView.of_tasks(tasks, ppo_goal.Settings(obstacles=1, observe_state=False))
    assert view.obstacles == 1 and view.targets == 1
    edges = tasks.ground([(0, "start>ball")])
    states = np.array([[[1.0, 2.0], [9.0, -3.0]]], dtype=np.float32)
    seen = view.inputs(states, edges)[0, :, 11:]  # after the target
    centers = states[0] + 5.0 * seen[:, :2]
    np.testing.assert_allclose(centers, [[1.5, 2.0], [9.0, -4.0]], atol=1e-5)
    wide = replace(view, obstacles=4)  # more than there are: the rest is 0
    assert not wide.inputs(states, edges)[0, :, 11 + 2 * 11 :].any()
    assert wide.inputs(states, edges).shape[-1] == wide.size(2)


def test_an_unsafe_place_that_matters_most_is_chosen_by_sign() -> None:
    """Inside a region to avoid counts as nearer than far from it."""
    regions = Region(np.array([[[0.0, 0.0], [1.0, 0.0]]]), np.array([[[0.5, 0.5], [3.0, 3.0]]]))
    states = np.zeros((1, 1, 2), dtype=np.float32)
    _, satisfied = ppo_goal.describe(states, regions, np.array([[-1.0, -1.0]]), 1.0)
    assert satisfied[0, 0].tolist() == [-0.5, -2.0]


def test_it_learns_edges_of_all_kinds_and_reaches_unseen_indices(kinds: Family) -> None:
    split = kinds.split("gap2")
    training = Training(kinds.tasks(split.indices), "kinds", split, 0)
    chosen = ppo_goal.Settings(
        steps=25_000, hidden=(32,), rollouts=16, minibatch=512, learning_rate=1e-2, check_every=5, patience=1, epochs=4
    )
    model = ppo_goal.METHOD.train(training, chosen)
    assert model.steps_on(["start>ball", "ball>half"]) <= 25_000 + 20_000
    counts = count_satisfied(ppo_goal.METHOD, model, kinds, kinds.specification, [0, 1, 3, 4], 50, 0)
    assert min(counts.values()) > 40, counts
    assert tuple(model.metadata["records"]["start>ball"]["indices"]) == (0, 2, 4)
    failed = replace(model, metadata={**model.metadata, "diverged": True})
    assert isinstance(ppo_goal.METHOD.policy(failed, kinds.tasks([0])), Stopped)
