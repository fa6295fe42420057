"""Templates: gathered from files, unrolled to any index, composed into policies, saved and loaded."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from dibs.envs import Environment
from dibs.errors import DibsError
from dibs.families import get_family, load_family
from dibs.files import plain
from dibs.methods import Model, Training, load_model, save_model
from dibs.provenance import Origin
from dibs.simulation import SpecTask, evaluation_draws
from dibs.simulation.composed import record
from dibs.spectrl import graph, parse, satisfied
from dibs.teachers.store import load_teacher
from dibs.teachers.train import Teacher
from dibs.templates import methods
from dibs.templates import template as module
from dibs.templates.fit import FitSettings, Supervision
from dibs.templates.polynomial import unroll
from dibs.templates.prediction import curves, with_prediction
from dibs.templates.template import (
    RUNAWAY,
    Source,
    Template,
    assemble,
    compose,
    evolution_of,
    gather,
    load_sources,
    template_policy,
)

ORIGIN = Origin("model", {"method": "dibs", "family": "tiny", "split": "gap2", "seed": 0}, "", "", {})


@pytest.fixture(scope="module")
def sources(training: Training) -> list[Source]:
    return load_sources(training)


@pytest.fixture(scope="module")
def teachers(sources: list[Source]) -> list[Teacher]:
    return [source.teacher for source in sources]


@pytest.fixture
def template(model: Model) -> Template:
    return Template.from_model(model, "the model")


def without(source: Source, folder: Path, edge: str) -> Source:
    """Copy a dataset without the rows of one edge."""
    table = pq.read_table(source.dataset_file)
    kept = table.filter(np.asarray(table["edge"].combine_chunks().dictionary_decode()) != edge)
    pq.write_table(kept, folder / source.dataset_file.name)
    return source._replace(dataset_file=folder / source.dataset_file.name)


# --- gathering -------------------------------------------------------------------------------------------


def test_gathered_states_are_scaled_and_actions_unchanged(training, sources, teachers):
    data = gather(training.tasks, sources, FitSettings())
    assert data.indices.tolist() == [0, 2, 4] and data.states.shape == (2, 3, 300, 2)
    assert data.present.all() and data.base_index.tolist() == [0, 0]
    assert np.array_equal(data.base, teachers[0].actor)
    for n, teacher in enumerate(teachers):
        for edge in (0, 1):
            # What the fit compares: the network on scaled states against the stored labels.
            actions = teacher.network.forward(teacher.actor[edge], data.states[edge, n])
            np.testing.assert_allclose(actions, data.actions[edge, n], atol=1e-5)


def test_networks_see_observations_not_states(training, sources, monkeypatch):
    plain_data = gather(training.tasks, sources, FitSettings())
    monkeypatch.setattr(type(training.tasks.environment), "observe", lambda self, states: 2.0 * states + 1.0)
    assert type(training.tasks.environment).observe is not Environment.observe
    seen = gather(training.tasks, sources, FitSettings())
    scaling = sources[0].teacher.scaling
    center, half = scaling.center[:, None, None], scaling.half[:, None, None]
    np.testing.assert_allclose(
        seen.states, (2.0 * (plain_data.states * half + center) + 1.0 - center) / half, rtol=1e-4, atol=1e-4
    )


def test_the_number_of_rows_is_bounded(training, sources):
    assert gather(training.tasks, sources, FitSettings(samples=70)).states.shape == (2, 3, 70, 2)


def test_a_teacher_that_failed_an_edge_leaves_a_gap(training, sources, tmp_path):
    some = [sources[0], without(sources[1], tmp_path, "a>b"), sources[2]]
    data = gather(training.tasks, some, FitSettings())
    assert data.present.tolist() == [[True, True, True], [True, False, True]]
    assert data.base_index.tolist() == [0, 0]


def test_an_edge_whose_first_teacher_fails_starts_at_the_next(training, sources, teachers, tmp_path):
    data = gather(training.tasks, [without(sources[0], tmp_path, "a>b"), *sources[1:]], FitSettings())
    assert data.base_index.tolist() == [0, 2]
    assert np.array_equal(data.base[1], teachers[1].actor[1]) and np.array_equal(data.base[0], teachers[0].actor[0])


def test_an_edge_that_no_teacher_can_do_is_an_error(training, sources, tmp_path):
    with pytest.raises(DibsError, match="edge a>b: no teacher of any training index succeeded on it"):
        gather(training.tasks, [without(source, tmp_path, "a>b") for source in sources], FitSettings())


def test_datasets_must_be_made_from_their_teachers(training, sources):
    swapped = [s._replace(dataset_file=sources[n].dataset_file) for s, n in zip(sources, (0, 2, 1), strict=True)]
    with pytest.raises(DibsError, match=r"4\.parquet: was not made from .*2\.safetensors as it is now; make it again"):
        gather(training.tasks, swapped, FitSettings())
    retrained = sources[1]._replace(teacher=replace(sources[1].teacher, id="another"))
    with pytest.raises(DibsError, match=r"2\.parquet: was not made from .*2\.safetensors .*`dibs dataset`"):
        gather(training.tasks, [sources[0], retrained, sources[2]], FitSettings())


def test_teachers_must_be_those_of_the_training_indices(training):
    with pytest.raises(DibsError, match=r"the training indices \[0, 2, 4\] of tiny, found those of \[0, 4, 2\]"):
        load_sources(replace(training, teachers=[training.teachers[n] for n in (0, 2, 1)]))


def test_teachers_of_different_shapes_cannot_share_a_template(training, monkeypatch, teachers):
    changes = [
        {"network": replace(teachers[1].network, hidden=(9,))},
        {"edges": ("start>a",)},
        {"scaling": replace(teachers[1].scaling, center=teachers[1].scaling.center + 1.0)},
    ]
    for change in changes:
        odd = {training.teachers[1]: replace(teachers[1], **change)}
        monkeypatch.setattr(module, "load_teacher", lambda file, odd=odd: odd.get(file) or load_teacher(file))
        with pytest.raises(DibsError, match=r"2\.safetensors and .*0\.safetensors: .* different edges, networks"):
            load_sources(training)


def test_records_are_the_teachers_own_measurements(teachers):
    zeros = np.zeros(2)
    records = assemble(teachers, Supervision(*[zeros] * 6), zeros).records
    assert list(records) == ["start>a", "a>b"]
    for name, found in records.items():
        assert found.indices == (0, 2, 4)
        assert found.success == tuple(t.metrics["edges"][name]["success"] for t in teachers)
        assert found.returns == tuple(t.metrics["edges"][name]["return"] for t in teachers)


# --- unrolling -------------------------------------------------------------------------------------------


def test_the_base_policy_is_the_index_0_teacher(template, teachers):
    assert np.array_equal(template.actors([0])[0], teachers[0].actor)


def test_actors_are_the_unrolled_base(template):
    policies = unroll(template.kappa, template.base.astype(float), 9)
    for index, actors in template.actors([3, 9, 0]).items():
        np.testing.assert_array_equal(actors, policies[index].astype(np.float32))
        assert actors.dtype == np.float32


def test_an_index_has_the_same_policy_whatever_else_is_asked(template):
    alone = template.actors([3])[3]
    for others in ([3, 8], [0, 3], [8, 3, 1], list(range(9))):
        assert np.array_equal(template.actors(others)[3], alone)
    assert template.actors([]) == {}


def test_before_a_later_base_the_base_is_used(template):
    late = replace(template, base_index=np.array([0, 2]))
    policies = unroll(template.kappa, template.base.astype(float), 4)
    actors = late.actors([0, 1, 2, 3, 4])
    for index in (0, 1, 2):
        assert np.array_equal(actors[index][1], template.base[1])
    np.testing.assert_allclose(actors[4][1], policies[2][1], rtol=1e-6)
    np.testing.assert_allclose(actors[4][0], policies[4][0], rtol=1e-6)


def test_there_is_nothing_before_index_0(template):
    with pytest.raises(DibsError, match="index -1: a template unrolls to indices ≥ 0"):
        template.actors([2, -1])


@pytest.mark.parametrize("degree", [1, 2])
def test_a_template_that_runs_away_has_finite_parameters_that_show_it(template, degree):
    kappa = np.zeros((degree + 1, *template.base.shape))
    kappa[1] = 50.0
    kappa[1, :, ::2] *= -1.0
    with np.errstate(over="ignore", invalid="ignore"):
        raw = unroll(kappa, template.base.astype(float), 4000)[-1]
    assert np.isnan(raw).any() if degree == 2 else np.isinf(raw).any()  # 0 · ∞ in the second
    actors = replace(template, kappa=kappa).actors([4000])[4000]
    assert np.isfinite(actors).all()
    assert np.all(np.abs(actors[~np.isfinite(raw)]) == RUNAWAY)  # a NaN must not look like a small weight


# --- policies --------------------------------------------------------------------------------------------


def test_the_path_comes_from_the_guard(template):
    assert template.path(graph(parse("achieve reach(a); achieve reach(b)")), 3) == ("start>a", "a>b")
    assert template.path(graph(parse("achieve reach(a)")), 3) == ("start>a",)


def test_a_composed_policy_satisfies_seen_and_unseen_indices(model, tiny):
    tasks = tiny.tasks(range(5))
    task = SpecTask(tasks)
    recorded = record(template_policy(model, tasks), task, evaluation_draws(task, 100, 0))
    for n, index in enumerate(tasks.indices):
        good = satisfied(tasks.spec, tasks.regions_at(index), recorded.states[n], recorded.lengths[n])
        assert good.mean() > 0.9, index


def test_an_index_behaves_the_same_whatever_else_is_composed(model, tiny):
    def lengths(indices: list[int]) -> np.ndarray:
        task = SpecTask(tiny.tasks(indices))
        return record(template_policy(model, task.grounded), task, evaluation_draws(task, 20, 0)).lengths

    assert np.array_equal(lengths([3])[0], lengths([0, 3, 1])[1])


def test_a_benchmark_may_use_some_of_the_edges(model, tiny):
    assert template_policy(model, tiny.tasks([3], "achieve reach(a)")).paths == (("start>a",),)


def test_other_tasks_are_refused(template, tiny):
    with pytest.raises(DibsError, match=r"a template with edges start>a, a>b, .* does not fit car2d-reach with edges"):
        compose(template, get_family("car2d-reach").tasks([0]))
    with pytest.raises(DibsError, match=r"does not fit tiny with edges start>b, 2 inputs and 2 outputs; fit it again"):
        compose(template, tiny.tasks([0], "achieve reach(b)"))
    wider = replace(template, network=replace(template.network, inputs=3))
    with pytest.raises(DibsError, match=r"3 inputs and 2 outputs does not fit tiny"):
        compose(wider, tiny.tasks([0]))


# --- training --------------------------------------------------------------------------------------------


QUICK = FitSettings(max_steps=60, batch=64)
EVERY = (
    methods.DIBS,
    methods.DIBS_PLUS,
    methods.DIBS_PLUS_STILL,
    methods.DIBS_WEIGHTS,
    methods.DIBS_BRANCHED,
)


@pytest.mark.usefixtures("quick_selection")
@pytest.mark.parametrize("method", EVERY)
def test_every_method_trains_repeats_and_acts(method, training, tiny):
    settings = replace(QUICK, **method.defaults)
    first, second = (method.train(training, settings) for _ in range(2))
    assert all(first.tensors[name].tobytes() == second.tensors[name].tobytes() for name in second.tensors)
    tasks = tiny.tasks([0, 3])
    task = SpecTask(tasks)
    assert record(method.policy(first, tasks), task, evaluation_draws(task, 5, 0)).lengths.shape == (2, 5)
    json.dumps(plain(dict(first.metrics)), allow_nan=False)


def test_seeds_and_splits_have_streams_of_their_own(training):
    def kappa(training: Training) -> bytes:
        return methods.DIBS.train(training, QUICK).tensors["kappa"].tobytes()

    assert len({kappa(training), kappa(replace(training, seed=1))}) == 2
    renamed = replace(training, split=replace(training.split, name="other"))
    assert kappa(renamed) != kappa(training)


@pytest.mark.usefixtures("quick_selection")
def test_unseen_tasks_do_not_change_the_model(training, tiny_description, tiny):
    """Training gets grounded tasks: a table whose unseen entries are nonsense gives the same bytes."""

    def table(name: str, spoilt: bool) -> dict[str, list]:
        boxes = [tiny.regions[name].ground(i) for i in range(5)]
        odd = {"center": [900.0, -900.0], "half_width": 0.5}
        entries = [{"center": box.center.tolist(), "half_width": box.half_width.tolist()} for box in boxes]
        return {"table": [odd if spoilt and i in (1, 3) else entry for i, entry in enumerate(entries)]}

    found = []
    for spoilt in (False, True):
        family = load_family(tiny_description(regions={name: table(name, spoilt) for name in ("a", "b")}))
        some = replace(training, tasks=family.tasks(training.split.indices))
        made = [train(some, QUICK) for train in (methods.DIBS.train, methods.DIBS_PLUS_STILL.train)]
        found.append([{name: tensor.tobytes() for name, tensor in model.tensors.items()} for model in made])
    assert found[0] == found[1]


def test_metrics_describe_the_fit(model, teachers):
    metrics = plain(dict(model.metrics))
    assert set(metrics) == {"edges", "per_index", "steps", "curve", "train", "evidence"}
    assert set(metrics["edges"]) == {"start>a", "a>b"} and metrics["curve"][0][0] == 0
    assert metrics["train"] == [0, 2, 4]
    for name, loss in metrics["edges"].items():
        assert loss == pytest.approx(sum(metrics["per_index"][name]), rel=1e-6)


def test_steps_are_those_of_the_teachers(model, teachers):
    total = sum(t.metrics["steps"] for t in teachers)
    assert set(model.steps) == {"start>a", "a>b"}
    assert model.steps_on(["start>a", "a>b"]) == pytest.approx(total, abs=len(teachers))
    assert model.steps_on(["start>a"]) == pytest.approx(total / 2, abs=len(teachers))


def test_the_methods_record_what_they_need():
    assert [method.name for method in EVERY] == [
        "dibs",
        "dibs-plus",
        "dibs-plus-still",
        "dibs-weights",
        "dibs-branched",
    ]
    assert all(method.needs == ("teachers", "datasets") and method.per_family for method in EVERY)
    for one, other in itertools.combinations(EVERY, 2):
        assert one.color != other.color and one.marker != other.marker and one.order != other.order


# --- files -----------------------------------------------------------------------------------------------


def test_it_reads_back_the_same(model, template, tmp_path):
    file = tmp_path / "t.safetensors"
    save_model(file, model, ORIGIN, {})
    loaded, meta = load_model(file)
    again = evolution_of(loaded, str(file))
    assert isinstance(again, Template) and meta["method"] == "dibs" and meta["steps"] == model.steps
    for name in ("train", "edges", "network", "records"):
        assert getattr(again, name) == getattr(template, name)
    for name in ("kappa", "base", "base_index"):
        assert getattr(again, name).tobytes() == getattr(template, name).tobytes()
    whole = with_prediction(again.to_model(model.steps, {}), curves(loaded))
    save_model(tmp_path / "u.safetensors", whole, ORIGIN, {})
    assert file.read_bytes() == (tmp_path / "u.safetensors").read_bytes()
    assert template.kappa.dtype == np.float64 and file.stat().st_size < 50_000


def test_values_that_are_not_finite_are_not_written(template, tmp_path):
    broken = replace(template, kappa=np.full_like(template.kappa, np.nan)).to_model({}, {})
    with pytest.raises(DibsError, match="refusing to write kappa, which has values that are not finite"):
        save_model(tmp_path / "t.safetensors", broken, ORIGIN, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["kappa", "base", "base_index", "scaling_center", "scaling_half"])
def test_a_missing_or_misshapen_tensor_is_named(model, missing):
    tensors = {name: tensor for name, tensor in model.tensors.items() if name != missing}
    with pytest.raises(DibsError, match=rf"t\.safetensors: damaged .*no tensor {missing}"):
        evolution_of(replace(model, tensors=tensors), "t.safetensors")
    tensors[missing] = model.tensors[missing][..., :1]
    with pytest.raises(DibsError, match=r"t\.safetensors: damaged .*expected"):
        evolution_of(replace(model, tensors=tensors), "t.safetensors")


def test_a_model_of_another_class_is_refused(model):
    for metadata in ({}, {**model.metadata, "class": "neural"}):
        with pytest.raises(DibsError, match=r"m\.safetensors: expected a template of class polynomial or branched"):
            evolution_of(replace(model, metadata=metadata), "m.safetensors")
    other = replace(model, metadata={**model.metadata, "class": "branched"})
    with pytest.raises(DibsError, match="expected a polynomial template, found class 'branched'"):
        Template.from_model(other, "m.safetensors")


def test_a_fit_that_diverges_names_the_settings(training):
    with pytest.raises(DibsError, match=r"the fit diverged \(degree 2, 4 unrolled steps\); use a smaller rate"):
        methods.DIBS.train(training, FitSettings(degree=2, rate=1e6, max_steps=200))


def test_a_damaged_dataset_is_named(training, tmp_path):
    file = tmp_path / "2.parquet"
    file.write_bytes(training.datasets[1].read_bytes()[:1000])
    some = replace(training, datasets=[training.datasets[0], file, training.datasets[2]])
    with pytest.raises(DibsError, match=r"2\.parquet: damaged or not what it should be"):
        methods.DIBS.train(some, QUICK)


def test_assembled_records_are_those_of_the_teachers(training, sources, teachers, template):
    data = gather(training.tasks, sources, FitSettings())
    assert assemble(teachers, data, template.kappa).records == template.records
