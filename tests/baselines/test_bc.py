"""BC: what it clones, and that it acts like its teachers where one policy can."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest

from dibs.baselines import bc, hyper
from dibs.baselines.flat import FlatView
from dibs.datasets.build import DatasetSettings, build
from dibs.datasets.store import Dataset
from dibs.errors import DibsError
from dibs.evaluation.evaluate import count_satisfied
from dibs.families import Family, get_family, load_family
from dibs.methods import Model
from dibs.policies.network import Network, network_of
from dibs.seeding import stream
from dibs.spectrl import graph, parse
from dibs.teachers.train import TeacherSettings, resolve, train_teacher
from dibs.templates.fit import FitSettings

from .small import ROWS, SETTINGS, TEACHER_STEPS, Small


def test_stages_of_edges_count_what_is_completed() -> None:
    text = "(achieve reach(g1) or achieve reach(g2)); achieve reach(goal)"
    found = bc.stage_of_edges(graph(parse(text)))
    assert found == {"start>g1": 0, "start>g2": 0, "g1>goal": 1, "g2>goal": 1}


def test_rows_of_all_indices_are_pooled_with_the_stage_of_their_edge(small: Small) -> None:
    training = small.training()
    view = FlatView.of_tasks(training.tasks, observe_stage=True)
    inputs, actions = bc.pooled(training, view, samples=100)
    assert inputs.shape == (3 * 2 * 100, view.size) and actions.shape == (600, 2)
    assert inputs.dtype == actions.dtype == np.float32
    assert inputs[:, -1].tolist() == ([0.0] * 100 + [1.0] * 100) * 3
    states, labels = small.rows(2)["a>b"]
    np.testing.assert_allclose(inputs[300:400, :2], (states[:100] - view.center) / view.half, rtol=1e-6)
    assert np.array_equal(actions[300:400], labels[:100])


def test_no_row_that_a_dataset_has_is_left_out(small: Small) -> None:
    """A larger M must have an effect: none of the default settings stops at fewer rows."""
    training, many = small.training(), 30_000
    rng = np.random.default_rng(0)
    rows = {name: (rng.random((many, 2)), rng.random((many, 2))) for name in small.rows(0)}
    training = replace(training, datasets=[Dataset(index, rows, {}) for index in training.split.indices])
    inputs, actions = bc.pooled(training, FlatView.of_tasks(training.tasks, True), bc.Settings().samples)
    assert len(inputs) == len(actions) == 3 * 2 * many
    assert {bc.Settings().samples, bc.Cloning().samples, hyper.Settings().samples, FitSettings().samples} == {500_000}


def test_its_network_is_wider_than_the_teachers(small: Small) -> None:
    training = small.training()
    model = bc.train(training, bc.Settings(max_steps=1))
    assert model.metadata["network"]["hidden"] == (64, 64)
    assert sum(training.tasks.network.hidden) < 64


def test_edges_of_other_benchmarks_are_left_out(small: Small) -> None:
    training = small.training()
    shorter = replace(training, tasks=replace(training.tasks, specification="achieve reach(a)"))
    inputs, _ = bc.pooled(shorter, FlatView.of_tasks(shorter.tasks, True), samples=100)
    assert inputs.shape == (300, 2)


def test_datasets_without_rows_are_refused(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bc, "load_dataset", lambda path, most: ({}, {}))
    with pytest.raises(DibsError, match="tiny gap2 seed 0: no dataset has rows"):
        bc.train(small.training(), SETTINGS["bc"])


def test_its_steps_are_those_of_its_teachers(trained: Callable[[str], Model]) -> None:
    assert trained("bc").steps == 3 * 2 * TEACHER_STEPS
    assert trained("bc").metrics["rows"] == 3 * 2 * ROWS


def test_cloning_finds_a_policy_of_the_same_shape() -> None:
    rng = np.random.default_rng(0)
    network = Network(3, (8,), 2)
    inputs = rng.normal(size=(2000, 3)).astype(np.float32)
    actions = network.forward(network.initial(rng), inputs)
    _, losses = bc.clone(network, inputs, actions, bc.Settings(max_steps=3000), rng)
    assert min(losses) < losses[0] / 50


def test_it_does_what_it_was_shown(tiny: Family, trained: Callable[[str], Model]) -> None:
    """One policy for all indices: at the training indices it mostly arrives."""
    assert trained("bc").metrics["loss"][-1] < trained("bc").metrics["loss"][0] / 5
    counts = count_satisfied(bc.METHOD, trained("bc"), tiny, tiny.specification, [0, 2, 4], 100, 0)
    assert max(counts.values()) > 50


@pytest.mark.slow
def test_it_clones_one_index_to_its_teachers_level() -> None:
    """Car2D's first edge as a family of its own."""
    described = get_family("car2d-reach").model_dump(by_alias=True)
    described |= {"name": "car2d-one", "specification": "achieve reach(g1)", "benchmarks": {}}
    described["regions"] = {"g1": described["regions"]["g1"]}
    family = load_family(described)
    tasks, split = family.tasks((0, family.last_index)), family.split("gap20")
    teacher, buffers, _ = train_teacher(tasks, split, 0, 0, None, resolve(TeacherSettings(), family.teacher, {}))
    assert teacher.metrics["success"] > 0.99
    replay = [buffers.edges[0]["replay"].view()]
    blocks = list(build(tasks, split, teacher, replay, DatasetSettings(size=5000)))
    states, actions = (np.concatenate([getattr(b, k) for b in blocks]) for k in ("states", "actions"))
    settings, view = bc.Settings(), FlatView.of_tasks(tasks, observe_stage=True)
    network = network_of(tasks, settings.hidden, view.size)
    inputs = view.inputs(states, np.zeros(len(states), dtype=np.intp))
    theta, losses = bc.clone(network, inputs, actions, settings, stream("test", "bc"))
    model = view.model({"theta": theta}, {"network": asdict(network)}, 0, {})
    counts = count_satisfied(bc.METHOD, model, family, family.specification, [0], 300, 0)
    assert losses[-1] < losses[0] / 50
    assert counts[0] / 300 > teacher.metrics["success"] - 0.02
