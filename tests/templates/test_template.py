"""Templates: gathered from files, unrolled to any index, saved and loaded."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from dibs import cli
from dibs.errors import DibsError
from dibs.families import get_family, load_family
from dibs.files import KEY, plain
from dibs.spectrl import graph, parse
from dibs.teachers.store import load_teacher
from dibs.templates.fit import FitSettings
from dibs.templates.polynomial import unroll
from dibs.templates.template import RUNAWAY, Template, edge_records, gather, load_template, save_template


@pytest.fixture(scope="module")
def teachers(pipeline):
    return [load_teacher(pipeline.places.teacher("tiny", 2, i, 0)) for i in (0, 2, 4)]


@pytest.fixture(scope="module")
def files(pipeline):
    return [pipeline.places.dataset("tiny", 2, i, 0) for i in (0, 2, 4)]


@pytest.fixture
def template(pipeline) -> Template:
    return load_template(pipeline.places.template("dibs", "tiny", 2, 0))


def without(source, target, edge: str) -> None:
    """Copy a dataset but for the rows of one edge."""
    table = pq.read_table(source)
    kept = table.filter(np.asarray(table["edge"].combine_chunks().dictionary_decode()) != edge)
    pq.write_table(kept, target)


# --- gathering -------------------------------------------------------------------------------------------


def test_gathered_states_are_scaled_and_actions_are_as_they_were(teachers, files):
    data, records = gather(teachers, files, FitSettings())
    assert data.indices.tolist() == [0, 2, 4] and data.states.shape == (2, 3, 300, 2)
    assert data.present.all() and data.base_index.tolist() == [0, 0]
    assert np.array_equal(data.base, teachers[0].actor)
    for n, teacher in enumerate(teachers):
        for edge in (0, 1):
            # What the fit compares: the network on scaled states against the stored labels.
            actions = teacher.network.forward(teacher.actor[edge], data.states[edge, n])
            np.testing.assert_allclose(actions, data.actions[edge, n], atol=1e-5)
    assert list(records) == ["start>a", "a>b"] and records["a>b"].indices == (0, 2, 4)


def test_at_most_so_many_rows_are_gathered(teachers, files):
    data, _ = gather(teachers, files, FitSettings(samples=70))
    assert data.states.shape == (2, 3, 70, 2)


def test_a_teacher_that_failed_an_edge_leaves_a_gap(teachers, files, tmp_path):
    without(files[1], tmp_path / "2.parquet", "a>b")
    data, _ = gather(teachers, [files[0], tmp_path / "2.parquet", files[2]], FitSettings())
    assert data.present.tolist() == [[True, True, True], [True, False, True]]
    assert data.base_index.tolist() == [0, 0]


def test_a_branch_whose_teachers_begin_later_starts_there(teachers, files, tmp_path):
    without(files[0], tmp_path / "0.parquet", "a>b")
    data, _ = gather(teachers, [tmp_path / "0.parquet", *files[1:]], FitSettings())
    assert data.base_index.tolist() == [0, 2]
    assert np.array_equal(data.base[1], teachers[1].actor[1]) and np.array_equal(data.base[0], teachers[0].actor[0])


def test_an_edge_that_no_teacher_can_do_is_an_error(teachers, files, tmp_path):
    for n, file in enumerate(files):
        without(file, tmp_path / f"{n}.parquet", "a>b")
    copies = [tmp_path / f"{n}.parquet" for n in range(3)]
    with pytest.raises(DibsError, match="edge a>b: no teacher of any training index succeeded on it"):
        gather(teachers, copies, FitSettings())


def test_datasets_must_belong_to_their_teachers(teachers, files):
    with pytest.raises(
        DibsError, match=r"4\.parquet: expected the dataset of .*'index': 2.* found that of .*'index': 4"
    ):
        gather(teachers, [files[0], files[2], files[1]], FitSettings())


def test_teachers_of_different_shapes_cannot_share_a_template(teachers, files):
    wider = replace(teachers[1], network=replace(teachers[1].network, hidden=(9,)))
    with pytest.raises(DibsError, match="those of index 2 and 0 have different edges, networks or scalings"):
        gather([teachers[0], wider, teachers[2]], files, FitSettings())


def test_records_are_the_teachers_own_measurements(teachers):
    records = edge_records(teachers)
    for name, record in records.items():
        assert record.success == tuple(t.metrics["edges"][name]["success"] for t in teachers)
        assert record.returns == tuple(t.metrics["edges"][name]["return"] for t in teachers)


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


def test_a_later_base_stands_in_before_it(template):
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
def test_what_runs_away_stays_a_number_that_shows_it(template, degree):
    kappa = np.zeros((degree + 1, *template.base.shape))
    kappa[1] = 50.0
    kappa[1, :, ::2] *= -1.0
    with np.errstate(over="ignore", invalid="ignore"):
        raw = unroll(kappa, template.base.astype(float), 4000)[-1]
    assert np.isnan(raw).any() if degree == 2 else np.isinf(raw).any()  # 0 · ∞ in the second
    actors = replace(template, kappa=kappa).actors([4000])[4000]
    assert np.isfinite(actors).all()
    assert np.all(np.abs(actors[~np.isfinite(raw)]) == RUNAWAY)  # a NaN must not look like a small weight


def test_the_path_comes_from_the_guard(template):
    assert template.path(graph(parse("achieve reach(a); achieve reach(b)")), 3) == ("start>a", "a>b")
    assert template.path(graph(parse("achieve reach(a)")), 3) == ("start>a",)


def test_another_family_is_refused(template, tiny, tiny_description):
    template.check(tiny)
    with pytest.raises(
        DibsError, match="template of tiny with edges start>a, a>b: does not fit car2d-reach with edges"
    ):
        template.check(get_family("car2d-reach"))
    with pytest.raises(DibsError, match="does not fit tiny with edges start>a; fit it again"):
        template.check(load_family(tiny_description(specification="achieve reach(a)")))


# --- files -----------------------------------------------------------------------------------------------


def test_it_reads_back_the_same(pipeline, template, tmp_path):
    original = pipeline.places.template("dibs", "tiny", 2, 0)
    save_template(tmp_path / "t.safetensors", template, {"config_digest": "x"})
    again = load_template(tmp_path / "t.safetensors")
    for name in ("method", "family", "gap", "seed", "train", "edges", "network", "records"):
        assert getattr(again, name) == getattr(template, name)
    for name in ("kappa", "base", "base_index"):
        assert getattr(again, name).tobytes() == getattr(template, name).tobytes()
    save_template(tmp_path / "u.safetensors", again, {"config_digest": "x"})
    assert (tmp_path / "t.safetensors").read_bytes() == (tmp_path / "u.safetensors").read_bytes()
    assert template.kappa.dtype == np.float64 and original.stat().st_size < 50_000


def test_the_file_says_what_made_it(pipeline):
    from dibs.files import read_tensors

    _, meta = read_tensors(pipeline.places.template("dibs", "tiny", 2, 0))
    assert {"config_digest", "code_digest", "family_digest", "version"} <= meta.keys()
    assert (meta["kind"], meta["method"], meta["train"], meta["gap"]) == ("template", "dibs", [0, 2, 4], 2)
    told = json.loads(pipeline.places.template("dibs", "tiny", 2, 0).with_suffix(".json").read_text())
    assert set(told["edges"]) == {"start>a", "a>b"} and told["curve"][0][0] == 0
    for name, loss in told["edges"].items():
        assert loss == pytest.approx(sum(told["per_index"][name]), rel=1e-6)


def test_values_that_are_not_finite_are_not_written(template, tmp_path):
    broken = replace(template, kappa=np.full_like(template.kappa, np.nan))
    with pytest.raises(DibsError, match="refusing to write kappa, which has values that are not finite"):
        save_template(tmp_path / "t.safetensors", broken, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("missing", ["kappa", "base", "base_index", "scaling_center", "scaling_half"])
def test_a_missing_tensor_is_named(pipeline, tmp_path, missing):
    from safetensors.numpy import save_file

    from dibs.files import read_tensors

    tensors, meta = read_tensors(pipeline.places.template("dibs", "tiny", 2, 0))
    del tensors[missing]
    save_file(tensors, tmp_path / "t.safetensors", metadata={KEY: json.dumps(plain(meta))})
    with pytest.raises(DibsError, match=rf"t\.safetensors: damaged .*no tensor {missing}"):
        load_template(tmp_path / "t.safetensors")


def test_a_fit_that_fails_writes_nothing(pipeline, tmp_path, capsys):
    root = tmp_path / "results"
    shutil.copytree(pipeline.root, root, ignore=shutil.ignore_patterns("templates", "evaluations"))
    argv = ["fit", str(pipeline.file), "--gap", "2", "--results", str(root), "--quiet"]
    assert cli.main([*argv, "--settings", '{"degree": 2, "rate": 1e6, "max_steps": 200}']) == 1
    assert "error: the fit diverged (degree 2, 4 unrolled steps)" in capsys.readouterr().err
    dataset = root / "datasets/tiny/gap2/seed0/2.parquet"
    dataset.write_bytes(dataset.read_bytes()[:1000])
    assert cli.main(argv) == 1
    assert f"error: {dataset}: damaged or not what it should be" in capsys.readouterr().err
    assert not (root / "templates").exists()
