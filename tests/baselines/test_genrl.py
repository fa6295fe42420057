"""GenRL: how it unrolls, combines and searches, where it must succeed, and what its models are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dibs.baselines import genrl
from dibs.families import Family, get_family, load_family
from dibs.methods import Model, Training
from dibs.paths import Layout
from dibs.pipeline import make_teacher
from dibs.policies.network import Network
from dibs.policies.scaling import edge_scaling
from dibs.seeding import stream
from dibs.settings import parse_settings
from dibs.simulation import NetworkPolicy, SpecTask, draw, evaluation_draws, rollout
from dibs.simulation.composed import record
from dibs.spectrl import satisfied
from dibs.stages import teacher_tasks
from dibs.teachers.store import load_teacher
from dibs.teachers.train import TeacherSettings, resolve, train_teacher
from dibs.templates.polynomial import identity
from dibs.templates.template import Template, evolution_of

QUICK = genrl.Settings(steps=200_000)


@pytest.fixture(scope="module")
def training(tiny: Family, tiny_teachers: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Training:
    files, split, seed = Layout(tmp_path_factory.mktemp("genrl")), tiny.split("gap2"), 0
    settings = parse_settings(TeacherSettings, tiny_teachers)
    teachers: list[Path] = []
    for index in split.indices:
        file = files.teacher("tiny", split.name, index, seed)
        make_teacher(tiny, split, index, seed, settings, file, teachers[-1] if teachers else None)
        teachers.append(file)
    return Training(tiny.tasks(split.indices), "tiny", split, seed, teachers)


@pytest.fixture(scope="module")
def model(training: Training) -> Model:
    return genrl.METHOD.train(training, QUICK)


def searching(
    tiny: Family,
    settings: genrl.Settings,
    seed: int = 1,
    base_index: tuple[int, int] = (0, 0),
    indices: tuple[int, ...] = (0, 2, 4),
) -> genrl.KappaSearch:
    tasks, network = tiny.tasks(indices), Network(2, (8,), 2)
    base = network.initial(np.random.default_rng(0), (2,))
    shared = (indices, tasks.edge_names, network, edge_scaling(tasks))
    start = Template(*shared, identity(0, base.shape), base, np.array(base_index), {})
    return genrl.KappaSearch(tasks, start, settings, np.random.default_rng(seed))


# --- unrolling and combining -----------------------------------------------------------------------------


def test_softmin_leans_to_the_worst_task_and_ignores_tasks_without_a_policy() -> None:
    returns = np.array([[[-1.0], [-5.0], [-100.0]]])
    there = np.array([[True, True, False]])
    soft = genrl._combined(returns, there, genrl.Settings(aggregation="softmin"), 10.0)[0, 0]
    mean = genrl._combined(returns, there, genrl.Settings(aggregation="mean"), 10.0)[0, 0]
    assert mean == -3.0
    assert -5.0 < soft < -4.8


@pytest.mark.parametrize("start", ["random", "identity", "additive"])
def test_candidates_are_unrolled_as_the_template_will_be(tiny: Family, start: str) -> None:
    settings = genrl.Settings(start=start, rescale=start != "random")  # type: ignore[arg-type]
    search = searching(tiny, settings, base_index=(0, 2))
    p = search.start
    z = np.random.default_rng(1).normal(size=(search.origin.shape[0], 4, *search.origin.shape[1:]))  # four candidates
    kappa = search.origin[:, None] + z / search.scale[:, None]
    edges = np.arange(2)
    folded = search.policies(edges, kappa).reshape(4, 2, 3, p.network.size)
    for c in range(4):
        template = replace(p, kappa=kappa[:, c])
        for t, actors in enumerate(template.actors([0, 2, 4]).values()):
            expected = p.network.fold(actors, p.scaling.center, p.scaling.half)
            np.testing.assert_allclose(folded[c, :, t], expected, rtol=1e-5)
    assert (search.ahead >= 0).tolist() == [[True, True, True], [False, True, True]]


def test_candidates_and_edges_are_measured_as_if_they_were_alone(tiny: Family) -> None:
    """One array program against one rollout per candidate, edge and task."""
    search = searching(tiny, genrl.Settings(start="identity", rescale=True), seed=2)
    network = search.start.network
    z = np.random.default_rng(3).normal(size=(2, 3, 2, network.size))
    edges = np.arange(2)
    returns, success = search._measure(edges, z, 20)
    assert returns.shape == success.shape == (2, 3, 3)  # edges, tasks, candidates
    task = search.edge_task(edges)
    draws = draw(task, 20, np.random.default_rng(2))
    policies = search.policies(edges, search.origin[:, None] + z / search.scale[:, None])
    for c in range(3):
        alone = rollout(task, NetworkPolicy(network, policies[c]), draws)
        np.testing.assert_allclose(returns[..., c].ravel(), alone.returns.mean(axis=-1), rtol=1e-5)
        np.testing.assert_allclose(success[..., c].ravel(), alone.success.mean(axis=-1))


# --- the search ------------------------------------------------------------------------------------------


def test_a_search_continues_where_it_stopped(tiny: Family) -> None:
    settings = genrl.Settings(directions=2, best=2, check_every=1, check_rollouts=5, rollouts=1)

    def searched(*stops: int) -> genrl.KappaSearch:
        search = searching(tiny, settings, indices=(0, 4))
        for stop in stops:
            search.advance(stop)
        return search

    assert np.array_equal(searched(3000).best_kappa, searched(1000, 3000).best_kappa)
    assert searched(3000).steps >= 3000


def test_edges_that_do_not_fit_into_memory_are_searched_in_turn(tiny: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = genrl.Settings(directions=2, best=2, check_every=1, check_rollouts=5, rollouts=1)
    monkeypatch.setattr(genrl, "MOST", 1)
    search = searching(tiny, settings)
    assert [part.tolist() for part in search._parts()] == [[0], [1]]
    search.advance(2000)
    assert np.isfinite(search.best_kappa).all() and (search.edge_steps > 0).all()


def test_an_edge_starts_from_the_first_teacher_that_succeeds(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    teachers = [load_teacher(file) for file in training.teachers]
    found, steps = genrl.base_template(training)
    assert found.base_index.tolist() == [0, 0] and np.array_equal(found.base, teachers[0].actor)
    assert steps == teachers[0].metrics["steps"]
    failed = {
        name: {**edge, "success": 0.2 if name == "a>b" else 1.0} for name, edge in teachers[0].metrics["edges"].items()
    }
    first = replace(teachers[0], metrics={**teachers[0].metrics, "edges": failed})
    known = dict(zip(training.teachers, [first, *teachers[1:]], strict=True))
    monkeypatch.setattr(genrl, "load_teacher", known.__getitem__)
    found, steps = genrl.base_template(training)
    assert found.base_index.tolist() == [0, 2]
    assert np.array_equal(found.base, np.stack([teachers[0].actor[0], teachers[1].actor[1]]))
    assert steps == sum(t.metrics["steps"] for t in teachers[:2])


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["softmin", "mean", "public"])
def test_it_solves_one_reach_with_three_training_tasks(variant: str) -> None:
    described = get_family("car2d-reach").model_dump(by_alias=True)
    described |= {"name": "car2d-one", "specification": "achieve reach(g1)", "benchmarks": {}}
    described["regions"] = {"g1": described["regions"]["g1"]}
    family = load_family(described)
    split = family.split("gap20")
    teaching = resolve(TeacherSettings(), family.teacher, family.teacher_options)
    taught, _, _ = train_teacher(teacher_tasks(family, 0), split, 0, 0, None, teaching)
    assert taught.metrics["success"] > 0.99
    tasks = family.tasks(split.indices)
    shared = (split.indices, tasks.edge_names, taught.network, taught.scaling)
    start = Template(*shared, identity(0, taught.actor.shape), taught.actor, np.zeros(1, dtype=np.int64), {})
    settings = genrl.Settings(rollouts=4, **genrl.VARIANTS[variant])
    search = genrl.KappaSearch(tasks, start, settings, stream("test", "genrl", variant))
    search.advance(4_000_000)
    edges = np.arange(1)
    task = replace(search.edge_task(edges), depth=0.0)
    policies = search.policies(edges, search.best_kappa[:, None])[0]
    outcome = rollout(task, NetworkPolicy(taught.network, policies), draw(task, 300, stream("test", "measure")))
    assert (outcome.success.mean(axis=-1) > 0.9).all()


# --- the model -------------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bytes(training: Training, model: Model) -> None:
    again = genrl.METHOD.train(training, QUICK)
    assert {n: t.tobytes() for n, t in model.tensors.items()} == {n: t.tobytes() for n, t in again.tensors.items()}
    other = genrl.METHOD.train(replace(training, seed=1), QUICK)
    assert model.tensors["kappa"].tobytes() != other.tensors["kappa"].tobytes()


def test_its_model_is_a_template_that_solves_training_tasks(tiny: Family, model: Model) -> None:
    template = evolution_of(model, "the model")
    assert isinstance(template, Template) and template.train == (0, 2, 4)
    tasks = tiny.tasks([0, 2, 4])
    task = SpecTask(tasks)
    recorded = record(genrl.METHOD.policy(model, tasks), task, evaluation_draws(task, 100, 0))
    for n, index in enumerate(tasks.indices):
        good = satisfied(tasks.spec, tasks.regions_at(index), recorded.states[n], recorded.lengths[n])
        assert good.mean() > 0.8, index


def test_its_records_are_its_own_measurements(model: Model) -> None:
    template = evolution_of(model, "the model")
    assert isinstance(template, Template)
    for name, success in model.metrics["edges"].items():
        assert np.mean(template.records[name].success) == pytest.approx(success)


def test_the_budget_includes_the_base_teachers_and_all_variants(training: Training, model: Model) -> None:
    metrics = model.metrics
    assert set(metrics["variants"]) == set(genrl.VARIANTS) and metrics["variant"] in genrl.VARIANTS
    used = metrics["base_steps"] + sum(variant["steps"] for variant in metrics["variants"].values())
    assert model.steps_on(["start>a", "a>b"]) == pytest.approx(used, abs=4)
    assert metrics["budget"] == QUICK.steps
    default = genrl.METHOD.train(training, replace(QUICK, steps=0, variant="softmin"))
    assert default.metrics["budget"] == training.teacher_steps()
    assert set(default.metrics["variants"]) == {"softmin"}


def test_the_record_says_what_it_needs() -> None:
    assert genrl.METHOD.needs == ("teachers",) and genrl.METHOD.per_family and genrl.METHOD.zero_shot
