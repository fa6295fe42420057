"""Methods that receive the index: what reaches their networks, and that they use it where it is needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.baselines import bc, bc_index, ppo_core, ppo_index
from dibs.baselines.flat import FlatView, scaled_index
from dibs.datasets.store import load_dataset
from dibs.errors import DibsError
from dibs.evaluation.evaluate import count_satisfied
from dibs.families import Family, load_family
from dibs.methods import Model, Training
from dibs.paths import Layout
from dibs.policies.network import Network
from dibs.simulation import Moment, Rewards, SpecTask, draw


def training_of(pipeline: Any, family: Family) -> Training:
    """The training set of the tiny pipeline, seed 0."""
    layout: Layout = pipeline.layout
    split = family.split("gap2")
    teachers = [layout.teacher("tiny", "gap2", index, 0) for index in split.indices]
    datasets = [layout.dataset("tiny", "gap2", index, 0) for index in split.indices]
    return Training(family.tasks(split.indices), "tiny", split, 0, teachers, datasets)


@pytest.fixture(scope="module")
def training(pipeline: Any, tiny: Family) -> Training:
    return training_of(pipeline, tiny)


@pytest.fixture(scope="module")
def cloned(training: Training) -> Model:
    return bc_index.METHOD.train(training, bc.Cloning(hidden=(16, 16), max_steps=1500))


# --- bc-index --------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.lists(st.integers(1, 6), max_size=3))
def test_an_absorbed_index_is_an_index_as_input(seed: int, hidden: list[int]) -> None:
    rng = np.random.default_rng(seed)
    actor = Network(3, tuple(hidden), 2)
    receiving = replace(actor, inputs=4)
    theta, index = receiving.initial(rng, (2,)), rng.uniform(-1, 1, 5).astype(np.float32)
    actors = bc_index.weights(actor, {"theta": theta}, index)
    assert actors.shape == (5, 2, actor.size)
    states = rng.standard_normal((7, 3)).astype(np.float32)
    for n, x in enumerate(index):
        inputs = np.concatenate([states, np.full((7, 1), x, dtype=np.float32)], axis=-1)
        for e in range(2):
            np.testing.assert_allclose(
                actor.forward(actors[n, e], states), receiving.forward(theta[e], inputs), atol=1e-5
            )


def test_rows_carry_the_index_of_their_dataset() -> None:
    states, actions = np.arange(24.0).reshape(3, 4, 2), np.arange(12.0).reshape(3, 4, 1)
    index = np.array([-1.0, 0.0, 1.0])
    inputs, labels = bc_index.rows_of_edge(states, actions, np.array([True, False, True]), index)
    assert inputs[:, -1].tolist() == [-1.0] * 4 + [1.0] * 4
    assert np.array_equal(inputs[:, :2], np.concatenate([states[0], states[2]]))
    assert labels[:, 0].tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


def test_it_clones_the_teachers_at_training_indices(tiny: Family, training: Training, cloned: Model) -> None:
    """Actions on the rows of the datasets, and rollouts of the composed policies."""
    actors = bc_index.IndexedActors.from_model(cloned, bc_index.weights)
    for index, file in zip(training.tasks.indices, training.datasets, strict=True):
        found, _ = load_dataset(file)
        weights = actors.actors([index])[0]
        for e, name in enumerate(actors.edges):
            states, actions = found[name]
            inputs = (states - actors.scaling.center[e]) / actors.scaling.half[e]
            error = actors.network.forward(weights[e], inputs) - actions
            assert np.mean(error**2) < 0.05 * np.mean((actions - actions.mean(axis=0)) ** 2) + 1e-3
    counts = count_satisfied(bc_index.METHOD, cloned, tiny, tiny.specification, [0, 1, 2, 3, 4], 100, 0)
    assert min(counts.values()) > 80, counts


def test_its_steps_are_those_of_its_teachers_by_edge(training: Training, cloned: Model) -> None:
    assert isinstance(cloned.steps, dict) and set(cloned.steps) == {"start>a", "a>b"}
    assert sum(cloned.steps.values()) == pytest.approx(training.teacher_steps(), abs=3)


# --- ppo-index -------------------------------------------------------------------------------------------


def test_a_view_with_an_index_has_one_more_input_per_task(tiny: Family) -> None:
    tasks = tiny.tasks([0, 2, 4])
    plain = FlatView.of_tasks(tasks, observe_stage=True)
    view = FlatView.of_tasks(tasks, observe_stage=True, observe_index=True).at([1, 4])
    assert view.size == plain.size + 1
    observation = np.random.default_rng(0).standard_normal((3, 2, 5, 2)).astype(np.float32)
    stage = np.ones((3, 2, 5), dtype=np.intp)
    inputs = view.inputs(observation, stage)
    assert np.array_equal(inputs[..., :-1], plain.inputs(observation, stage))
    assert np.array_equal(inputs[:, 0, :, -1], np.full((3, 5), -0.5))
    assert np.array_equal(inputs[:, 1, :, -1], np.full((3, 5), 1.0))
    kept = FlatView.of_model(view.model({}, {}, 0, {}))
    assert kept.last == 4 and kept.size == view.size
    assert "last" not in plain.model({}, {}, 0, {}).metadata


def test_scaled_indices_span_the_training_set() -> None:
    assert scaled_index([0, 10, 40, 80], 40).tolist() == [-1.0, -0.5, 1.0, 3.0]


OPPOSITE: dict[str, Any] = {
    "name": "opposite",
    "environment": {"name": "Car2D"},
    "specification": "achieve reach(a)",
    "start": {"center": [0.0, 0.0], "noise": 0.1},
    "regions": {"a": {"table": [{"center": [x, 0.0], "half_width": 0.8} for x in (2.0, 0.0, -2.0)]}},
    "last_index": 2,
    "horizon": 6,
    "network": {"hidden": [8]},
    "reward": {"unit": 5.0},
}


def test_it_solves_tasks_that_differ_only_by_their_index() -> None:
    """One start, goals on opposite sides: without the index, no policy solves both."""
    family = load_family(OPPOSITE)
    split = family.split("gap2")
    training = Training(family.tasks(split.indices), "opposite", split, 0)
    rates = {}
    for observe in (True, False):
        settings = ppo_index.Settings(
            steps=6_000, hidden=(16,), minibatch=256, observe_index=observe, check_every=5, learning_rate=1e-2, epochs=4
        )
        model = ppo_index.METHOD.train(training, settings)
        counts = count_satisfied(ppo_index.METHOD, model, family, family.specification, [0, 2], 50, 0)
        rates[observe] = min(counts.values()) / 50
        assert model.steps == model.metrics["curve"][-1]["steps"]
    assert rates[True] > 0.9 and rates[False] < 0.6, rates


def test_the_policy_is_told_the_index_of_the_task_it_acts_in(tiny: Family) -> None:
    tasks = tiny.tasks([0, 2, 4])
    view = FlatView.of_tasks(tasks, observe_stage=True, observe_index=True)
    network = Network(view.size, (4,), 2)
    theta = network.initial(np.random.default_rng(0))
    metadata = {"diverged": False, "settings": {"hidden": [4]}}
    model = view.model({"actor": theta}, metadata, 0, {})
    states = np.zeros((1, 3, 2), dtype=np.float32)
    now = Moment(states, states, None, np.zeros((1, 3), dtype=np.intp), np.ones((1, 3), dtype=bool))
    for index in (1, 3):
        acts, _ = ppo_index.policy(model, tiny.tasks([index])).act(now, None)
        inputs = view.at([index]).inputs(states, now.stage)
        np.testing.assert_allclose(acts, network.forward(theta, inputs), rtol=1e-6)
    assert not np.allclose(view.at([1]).inputs(states, now.stage), view.at([3]).inputs(states, now.stage))


def test_the_learning_rate_falls_with_the_budget(tiny: Family) -> None:
    task = SpecTask(tiny.tasks([0, 4]), Rewards("distance", 1.0))
    settings = ppo_index.Settings(steps=1000, hidden=(4,), rollouts=2)
    rng = np.random.default_rng(0)
    learner = ppo_index.Learner(task, FlatView.of_tasks(tiny.tasks([0, 4]), True, True), settings, rng)
    rates = [learner.model.learning_rate]
    for used in (0.5, 0.99, 2.0):
        learner.model.anneal(used)
        rates.append(learner.model.learning_rate)
    assert rates == pytest.approx([3e-3, 1.5e-3, 1.5e-4, 1.5e-4])


def test_the_budget_is_that_of_the_teachers(training: Training, tiny: Family) -> None:
    bare = replace(training, teachers=())
    with pytest.raises(DibsError, match="budget"):
        ppo_index.METHOD.train(bare, ppo_index.Settings())
    settings = ppo_index.Settings(hidden=(4,), rollouts=200, epochs=1, check_every=1, converged=0.0, patience=1)
    model = ppo_index.METHOD.train(replace(training, progress=None), replace(settings, converged=2.0, check_every=50))
    budget = training.teacher_steps()
    most = 3 * 250 * 2 * tiny.horizon
    assert budget <= model.steps <= budget + most


def test_ppo_improves_the_reward_of_a_bandit() -> None:
    """One step, reward −|a − x|: the mean action must move to its input."""
    rng = np.random.default_rng(0)
    settings = ppo_core.PPOSettings(hidden=(16,), minibatch=128, learning_rate=1e-2, steps=1)
    model = ppo_core.ActorCritic.initial(1, 1, settings, rng)
    x = rng.uniform(-0.8, 0.8, (1, 1, 256, 1)).astype(np.float32)

    def error() -> float:
        return float(np.abs(model.actor.forward(model.parameters["actor"], x) - x).mean())

    before = error()
    for _ in range(30):
        mean = model.actor.forward(model.parameters["actor"], x)
        actions = ppo_core.gaussian_noise(rng, model.parameters["log_std"])(mean)
        ones = np.ones((1, 1, 256), dtype=np.float32)
        inputs = np.concatenate([x, x])
        episodes = ppo_core.Experience(inputs, actions, -np.abs(actions - x)[..., 0], ones, ones)
        model.improve(episodes, inputs)
    assert error() < before / 3


def test_episodes_of_a_batch_have_the_inputs_of_their_task(tiny: Family) -> None:
    task = SpecTask(tiny.tasks([0, 4]), Rewards("distance", 1.0))
    view = FlatView.of_tasks(tiny.tasks([0, 4]), True, True)
    learner = ppo_index.Learner(
        task, view, ppo_index.Settings(steps=100, hidden=(4,), rollouts=3), np.random.default_rng(0)
    )
    policy = learner.policy(task, ppo_core.gaussian_noise(learner.rng, learner.parameters["log_std"]))
    episodes = ppo_core.collect(task, policy, learner.inputs(task), draw(task, 3, np.random.default_rng(1)))
    assert np.array_equal(episodes.inputs[0, :, :, -1], [[-1.0] * 3, [1.0] * 3])
