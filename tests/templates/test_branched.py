"""The branched template: routes are distinguished, indices assigned, modes fitted, saved and measured."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dibs.datasets.build import DatasetSettings, build
from dibs.datasets.store import save_dataset
from dibs.errors import DibsError
from dibs.families import load_family
from dibs.files import plain
from dibs.methods import Training, load_model, save_model
from dibs.policies.scaling import edge_scaling
from dibs.provenance import Origin
from dibs.simulation import SpecTask, evaluation_draws
from dibs.simulation.composed import record
from dibs.spectrl import graph, parse, satisfied
from dibs.teachers.store import load_teacher
from dibs.teachers.train import Teacher, network_of
from dibs.templates import branched
from dibs.templates.branched import (
    Branched,
    Modes,
    detour,
    find_modes,
    fit_branches,
    nearest,
    resample,
    routing_modes,
    ways,
)
from dibs.templates.fit import FitSettings, fit
from dibs.templates.methods import DIBS_BRANCHED
from dibs.templates.template import Source, Template, assemble, compose, evolution_of, gather

# --- ways ------------------------------------------------------------------------------------------------


def bend(start: float, aside: float, rng: np.random.Generator, noise: float = 0.05) -> np.ndarray:
    """A way from (start, 0) to (0, 10) with a bump to one side; the speed varies."""
    t = np.sort(np.concatenate([[0.0, 1.0], rng.random(18)]))
    line = np.outer(1.0 - t, [start, 0.0]) + np.outer(t, [0.0, 10.0])
    return line + np.outer(np.sin(np.pi * t), [aside, 0.0]) + noise * rng.standard_normal((20, 2))


def modes_of(sides: list[float], starts: np.ndarray | None = None, seed: int = 0) -> Modes:
    rng = np.random.default_rng(seed)
    starts = np.linspace(-8.0, 8.0, len(sides)) if starts is None else starts
    found = [resample(bend(x, s, rng)) for x, s in zip(starts, sides, strict=True)]
    return find_modes(np.stack([detour(way, found[0]) for way in found]))


def test_resampling_forgets_the_speed():
    slow = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [3.0, 1.0]])
    fast = np.array([[0.0, 0.0], [3.0, 0.0], [3.0, 1.0]])
    np.testing.assert_allclose(resample(slow, 9), resample(fast, 9))
    np.testing.assert_allclose(resample(fast, 9)[[0, 2, -1]], [[0.0, 0.0], [1.0, 0.0], [3.0, 1.0]])
    np.testing.assert_allclose(np.linalg.norm(np.diff(resample(fast, 9), axis=0), axis=1), 0.5)
    assert np.array_equal(resample(np.ones((4, 2)), 3), np.ones((3, 2)))  # one that stands still


def test_a_detour_is_a_side_not_a_size():
    rng = np.random.default_rng(0)
    like = resample(bend(0.0, -2.0, rng, 0.0))
    small, large, other = (detour(resample(bend(0.0, s, rng, 0.0)), like) for s in (-2.0, -5.0, 2.0))
    assert np.linalg.norm(large) == pytest.approx(1.0)
    assert np.linalg.norm(small - large) < 0.3
    assert np.linalg.norm(small - other) == pytest.approx(2.0, abs=0.05)
    assert np.linalg.norm(detour(resample(bend(3.0, 0.0, rng, 0.0)), like)) < 1e-6
    assert np.linalg.norm(detour(resample(bend(3.0, 0.0, rng, 0.05)), like)) < 0.5  # noise has no side
    assert np.isfinite(detour(np.ones((5, 2)), like)).all()


@pytest.mark.parametrize("dim", [2, 3])
def test_a_turned_way_makes_the_same_detour(dim):
    t = np.linspace(0.0, 1.0, 32)
    way = np.stack([10.0 * t, 2.0 * np.sin(np.pi * t), *[0.0 * t] * (dim - 2)], axis=1)
    turn = np.eye(dim)
    for angle in (0.3, 1.5, 2.9):
        turn[:2, :2] = [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
        np.testing.assert_allclose(detour(way @ turn.T + 3.0, way), detour(way, way), atol=1e-9)
        assert np.linalg.norm(detour(way * [1.0, -1.0, *[1.0] * (dim - 2)] @ turn.T, way) - detour(way, way)) > 1.9
    assert np.isfinite(detour(-way, way)).all()  # the opposite way


# --- modes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("sides", "labels"),
    [
        ([-3.0] * 6, [0] * 6),
        ([-1.0, -2.0, -4.0, -4.0, -2.0, -1.0], [0] * 6),
        ([0.0] * 6, [0] * 6),
        ([-2.0, -3.0, -4.0, 4.0, 3.0, 2.0], [0, 0, 0, 1, 1, 1]),
        ([2.0, 3.0, 4.0, 4.0, -4.0], [0, 0, 0, 0, 1]),
        ([-3.0, 3.0, -3.0, 3.0], [0, 1, 0, 1]),
        ([-4.0, -4.0, -4.0, 0.0, 0.0, 0.0, 4.0, 4.0, 4.0], [0, 0, 0, 1, 1, 1, 2, 2, 2]),
    ],
)
def test_the_number_of_modes_comes_from_the_data(sides, labels, seed):
    assert list(modes_of(sides, seed=seed).labels) == labels


def test_tasks_that_only_move_are_one_mode():
    """However far: the same way from ever further to the right is no other route."""
    rng = np.random.default_rng(0)
    shifted = [np.add(bend(-3.0, 2.0, rng), [2.0 * n, 0.0]) for n in range(11)]
    assert set(find_modes(np.stack([detour(resample(way), resample(shifted[0])) for way in shifted])).labels) == {0}


def test_modes_are_numbered_as_they_appear():
    for sides in itertools.permutations([-3.0, -3.0, 3.0, 3.0]):
        labels = modes_of(list(sides), np.zeros(4)).labels
        assert labels == tuple(int(side != sides[0]) for side in sides)


def test_too_few_ways_are_one_mode():
    assert modes_of([-3.0]).labels == (0,)
    assert modes_of([-3.0, 3.0]).labels == (0, 0)
    assert modes_of([-3.0, 3.0]).silhouette == {}


def test_the_nearest_training_index_decides_and_of_two_the_earlier():
    train = (0, 4, 8, 12)
    assert [nearest(i, train) for i in range(16)] == [0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12, 12]
    assert nearest(100, train) == 12
    assert nearest(2, (4, 0)) == 0  # whatever their order


# --- a planted family ------------------------------------------------------------------------------------

TRAIN = (0, 2, 4, 6, 8)
SIDES = (-1, -1, -1, 1, 1)
ROLLOUTS = 100
STEPS = {"start>goal": 7}


@pytest.fixture(scope="module")
def family():
    """The start moves below a block; both ways around it are open everywhere."""
    return load_family(
        {
            "name": "planted",
            "environment": {"name": "Car2D"},
            "specification": "achieve reach(goal) ensuring avoid(block)",
            "start": {"center": [-1.0, 0.0], "noise": 0.1, "shift": [0.25, 0.0]},
            "regions": {
                "goal": {"center": [0.0, 10.0], "half_width": 1.8},
                "block": {"center": [0.0, 5.0], "half_width": [2.0, 0.7]},
            },
            "last_index": 8,
            "gaps": [2],
            "horizon": 20,
            "network": {"hidden": [8]},
        }
    )


@pytest.fixture(scope="module")
def split(family):
    return family.split("gap2")


@pytest.fixture(scope="module")
def tasks(family):
    return family.tasks(TRAIN)


def teacher(tasks, index: int, side: int, success: float = 1.0) -> Teacher:
    """One that drives at full speed up and to a side, then back from half way on."""
    network, scaling = network_of(tasks), edge_scaling(tasks)
    actor = 0.05 * network.initial(np.random.default_rng(0), (1,))
    (first, threshold), (last, biases) = network.layers(actor)
    first[0, 1, 0] = 10.0  # half way up, at y = 5?
    threshold[0, 0, 0] = -10.0 * (5.0 - scaling.center[0, 1]) / scaling.half[0, 1]
    out, back = np.arctanh([0.5 - 0.25 * side, 0.5 + 0.25 * side])  # headings over π
    last[0, 0] = [0.0, (back - out) / 2]
    biases[0, 0] = [3.0, (back + out) / 2]
    metrics = {"steps": 10, "edges": {"start>goal": {"success": success, "return": 0.0}}}
    head = np.zeros((1, 9), dtype=np.float32)
    head[:, -1] = 10.0
    name = "base" if index == 0 else "gap2"
    edges = ("start>goal",)
    return Teacher("planted", name, index, 0, edges, network, scaling, actor, head, metrics, {}, f"teacher {index}")


@pytest.fixture(scope="module")
def teachers(tasks):
    return [teacher(tasks, i, side) for i, side in zip(TRAIN, SIDES, strict=True)]


@pytest.fixture(scope="module")
def sources(tasks, split, teachers, tmp_path_factory) -> list[Source]:
    folder = tmp_path_factory.mktemp("planted")
    settings = DatasetSettings(size=600, threshold=0.0)
    found = []
    for t in teachers:
        file = folder / f"{t.index}.parquet"
        blocks = build(tasks, split, t, [np.zeros((1, 2), dtype=np.float32)], settings)
        names = tasks.environment.state_names, tasks.environment.action_names
        identity = {"family": "planted", "split": t.split, "index": t.index, "seed": 0}
        save_dataset(file, t, *names, blocks, Origin("dataset", identity, "", "", {}, (t.id,)))
        found.append(Source(t, Path(f"{t.index}.safetensors"), file))
    return found


@pytest.fixture(scope="module")
def planted(tasks, split) -> Training:
    return Training(tasks, "planted", split, 0)


SETTINGS = FitSettings(max_steps=600, batch=128)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def fitted(planted, sources) -> Branched:
    return fit_branches(planted, sources, SETTINGS, rng())[0]


def rates(family, template) -> np.ndarray:
    tasks = family.tasks(range(9))
    task = SpecTask(tasks)
    recorded = record(compose(template, tasks), task, evaluation_draws(task, ROLLOUTS, 0))
    return np.array(
        [satisfied(tasks.spec, tasks.regions_at(i), recorded.states[i], recorded.lengths[i]).mean() for i in range(9)]
    )


def test_planted_ways_go_around_their_side(tasks, split, teachers):
    for t, side in zip(teachers, SIDES, strict=True):
        (way,) = ways(tasks, split, t)
        assert way is not None and way.shape == (branched.POINTS, 2)
        assert side * way[branched.POINTS // 2, 0] > 2.0
    assert np.array_equal(ways(tasks, split, teachers[1])[0], ways(tasks, split, teachers[1])[0])
    assert ways(tasks, split, teacher(tasks, 4, 0)) == [None]  # straight into the block


def test_the_teacher_of_index_0_takes_the_same_way_in_every_split(tasks, split, teachers):
    other = replace(split, name="gap4")
    assert np.array_equal(ways(tasks, split, teachers[0])[0], ways(tasks, other, teachers[0])[0])
    assert not np.array_equal(ways(tasks, split, teachers[1])[0], ways(tasks, other, teachers[1])[0])


def test_planted_modes_are_recovered(tasks, split, teachers, fitted):
    assert routing_modes(tasks, split, teachers).labels == (0, 0, 0, 1, 1)
    assert fitted.labels == (0, 0, 0, 1, 1) and [t.train for t in fitted.modes] == [(0, 2, 4), (6, 8)]
    assert [fitted.mode(i) for i in range(12)] == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    for mode, first in zip(fitted.modes, (0, 3), strict=True):  # each starts at its first teacher
        assert mode.base_index.tolist() == [TRAIN[first]] and np.array_equal(mode.base, teachers[first].actor)
    assert np.array_equal(fitted.actors([6])[6], teachers[3].actor)


def test_two_modes_succeed_where_a_single_template_fails(family, planted, teachers, sources, fitted):
    data = gather(planted.tasks, sources, SETTINGS)
    single = assemble(teachers, data, fit(data, teachers[0].network, SETTINGS, rng()).kappa)
    alone, by_mode = rates(family, single), rates(family, fitted)
    assert (by_mode > 0.9).all(), by_mode
    assert (alone[[4, 5, 6]] < 0.5).any(), alone


def test_teachers_that_never_succeed_go_with_their_neighbors(tasks, split, teachers):
    lost = [*teachers[:2], teacher(tasks, 4, 0, 0.0), *teachers[3:]]
    assert routing_modes(tasks, split, lost).labels == (0, 0, 0, 1, 1)
    none = [teacher(tasks, i, 0, 0.0) for i in TRAIN]
    with pytest.raises(DibsError, match="planted: no teacher has a satisfying rollout"):
        routing_modes(tasks, split, none)


def test_an_index_has_the_same_policy_in_any_company_and_order(fitted, family):
    every = fitted.actors(list(range(17)))
    draws = np.random.default_rng(0)
    for _ in range(20):
        indices = draws.permutation(17)[: draws.integers(1, 17)].tolist()
        found = fitted.actors(indices)
        assert list(found) == indices
        assert all(np.array_equal(found[i], every[i]) for i in indices)
    assert fitted.actors([]) == {}
    with pytest.raises(DibsError, match="index -1: a template unrolls to indices ≥ 0"):
        fitted.actors([-1])
    assert fitted.path(graph(parse(family.specification)), 5) == ("start>goal",)


def test_with_one_mode_it_is_the_single_template(planted, teachers, sources, monkeypatch):
    monkeypatch.setattr(branched, "routing_modes", lambda *_: Modes((0,) * 5, {}))
    settings = FitSettings(max_steps=50, batch=64)
    one, _, _ = fit_branches(planted, sources, settings, rng())
    data = gather(planted.tasks, sources, settings)
    assert one.modes[0].kappa.tobytes() == fit(data, teachers[0].network, settings, rng()).kappa.tobytes()


@pytest.mark.parametrize("settings", [FitSettings(motion=True), FitSettings(space="weights")])
def test_settings_that_it_ignores_are_refused(planted, sources, settings):
    with pytest.raises(DibsError, match=r"dibs-branched fits actions .* leave out `motion` and `space`"):
        fit_branches(planted, sources, settings, rng())


# --- files -----------------------------------------------------------------------------------------------


def test_it_reads_back_the_same(fitted, tmp_path):
    origin = Origin("model", {"method": "dibs-branched"}, "", "", {})
    file = tmp_path / "b.safetensors"
    save_model(file, fitted.to_model(STEPS, {}), origin, {})
    model, _ = load_model(file)
    again = evolution_of(model, str(file))
    assert isinstance(again, Branched) and again.labels == fitted.labels and again.train == fitted.train
    for one, other in zip(again.modes, fitted.modes, strict=True):
        for name in ("train", "edges", "network", "records"):
            assert getattr(one, name) == getattr(other, name)
        for name in ("kappa", "base", "base_index"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    for index, actors in fitted.actors(list(range(12))).items():
        assert np.array_equal(again.actors([index])[index], actors)
    save_model(tmp_path / "c.safetensors", again.to_model(STEPS, {}), origin, {})
    assert file.read_bytes() == (tmp_path / "c.safetensors").read_bytes()


def test_classes_are_not_confused(fitted, model):
    many = fitted.to_model(STEPS, {})
    with pytest.raises(DibsError, match=r"b\.safetensors: expected a polynomial template, found class 'branched'"):
        Template.from_model(many, "b.safetensors")
    assert isinstance(evolution_of(model, "t.safetensors"), Template)
    with pytest.raises(DibsError, match="expected a branched template, found class 'polynomial'"):
        Branched.from_model(model, "t.safetensors")


def test_damage_is_named(fitted):
    model = fitted.to_model(STEPS, {})

    def read(tensors=model.tensors, **changes):
        return evolution_of(replace(model, tensors=tensors, metadata={**model.metadata, **changes}), "b.safetensors")

    for missing in model.tensors:
        with pytest.raises(DibsError, match=rf"b\.safetensors: damaged .*no tensor {missing}"):
            read({name: tensor for name, tensor in model.tensors.items() if name != missing})
    with pytest.raises(DibsError, match="one of 2 modes for each of 5 indices"):
        read(labels=[0, 0, 0, 1, 2])
    with pytest.raises(DibsError, match="base: expected 2 modes, found 1"):
        read({**model.tensors, "base": model.tensors["base"][:1]})
    with pytest.raises(DibsError, match=r"damaged .*expected \(any, 1, "):
        read({**model.tensors, "kappa": model.tensors["kappa"][..., :-1]})


# --- training --------------------------------------------------------------------------------------------


def test_training_reports_modes_and_silhouettes(training):
    model = DIBS_BRANCHED.train(training, FitSettings(max_steps=60, batch=64))
    metrics = plain(dict(model.metrics))
    assert set(metrics) == {"train", "modes", "silhouette"} and metrics["train"] == [0, 2, 4]
    assert sorted(i for mode in metrics["modes"] for i in mode["train"]) == [0, 2, 4]
    assert all(set(mode) == {"edges", "per_index", "steps", "curve", "train"} for mode in metrics["modes"])
    assert all(isinstance(count, str) for count in metrics["silhouette"])
    assert set(model.steps) == {"start>a", "a>b"}


def test_trained_teachers_have_ways(training):
    for file in training.teachers:
        found = ways(training.tasks, training.split, load_teacher(file))
        assert len(found) == 2 and all(way is not None for way in found)
