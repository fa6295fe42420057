"""The branched template: routes told apart, indices assigned, each mode fitted, saved and measured."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from dibs import cli
from dibs.datasets.build import DatasetSettings, build
from dibs.datasets.store import save_dataset
from dibs.errors import DibsError
from dibs.evaluation.branched import count_template
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import load_family
from dibs.files import KEY, plain, read_tensors
from dibs.policies.scaling import edge_scaling
from dibs.spectrl import graph, parse
from dibs.teachers.store import load_teacher
from dibs.teachers.train import Teacher, network_of
from dibs.templates import branched
from dibs.templates.branched import (
    Branched,
    Modes,
    detour,
    find_modes,
    fit_branches,
    load_any,
    load_branched,
    nearest,
    resample,
    routing_modes,
    save_branched,
    ways,
)
from dibs.templates.commands import CODE, code_of
from dibs.templates.fit import FitSettings, fit
from dibs.templates.template import Template, assemble, gather, load_template, save_template

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
EVALUATE = EvaluationSettings(rollouts=100)


@pytest.fixture(scope="module")
def family():
    """The start moves below a block; both ways round are open everywhere."""
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


def teacher(family, index: int, side: int, success: float = 1.0) -> Teacher:
    """One that drives at full speed up and to a side, then back from half way on."""
    network, scaling = network_of(family), edge_scaling(family)
    actor = 0.05 * network.initial(np.random.default_rng(0), (1,))
    (first, threshold), (last, biases) = network.layers(actor)
    first[0, 1, 0] = 10.0  # half way up, at y = 5?
    threshold[0, 0, 0] = -10.0 * (5.0 - scaling.center[0, 1]) / scaling.half[0, 1]
    out, back = np.arctanh([0.5 - 0.25 * side, 0.5 + 0.25 * side])  # headings over π
    last[0, 0] = [0.0, (back - out) / 2]
    biases[0, 0] = [3.0, (back + out) / 2]
    metrics = {"edges": {"start>goal": {"success": success, "return": 0.0}}}
    head = np.zeros((1, 9), dtype=np.float32)
    head[:, -1] = 10.0
    gap = 0 if index == 0 else 2
    return Teacher("planted", gap, index, 0, ("start>goal",), network, scaling, actor, head, metrics, {})


@pytest.fixture(scope="module")
def teachers(family):
    return [teacher(family, i, side) for i, side in zip(TRAIN, SIDES, strict=True)]


@pytest.fixture(scope="module")
def files(family, teachers, tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("planted")
    settings = DatasetSettings(size=600, threshold=0.0)
    for t in teachers:
        blocks = build(family, t, [np.zeros((1, 2), dtype=np.float32)], settings)
        names = family.dynamics.state_names, family.dynamics.action_names
        save_dataset(folder / f"{t.index}.parquet", t, *names, blocks, {})
    return [folder / f"{t.index}.parquet" for t in teachers]


SETTINGS = FitSettings(max_steps=600, batch=128)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="module")
def fitted(family, teachers, files) -> Branched:
    return fit_branches("dibs-branched", family, teachers, files, SETTINGS, rng())[0]


def rates(family, template, path: Path) -> np.ndarray:
    save = save_branched if isinstance(template, Branched) else save_template
    save(path, template, {})
    counts = count_template(family, family.specification, path, 0, range(9), EVALUATE)
    return np.array([counts[i] for i in range(9)]) / EVALUATE.rollouts


def test_planted_ways_go_round_their_side(family, teachers):
    for t, side in zip(teachers, SIDES, strict=True):
        (way,) = ways(family, t)
        assert way is not None and way.shape == (branched.POINTS, 2)
        assert side * way[branched.POINTS // 2, 0] > 2.0
    assert np.array_equal(ways(family, teachers[1])[0], ways(family, teachers[1])[0])
    assert ways(family, teacher(family, 4, 0)) == [None]  # straight into the block


def test_planted_modes_are_recovered(family, teachers, fitted):
    assert routing_modes(family, teachers).labels == (0, 0, 0, 1, 1)
    assert fitted.labels == (0, 0, 0, 1, 1) and [t.train for t in fitted.modes] == [(0, 2, 4), (6, 8)]
    assert [fitted.mode(i) for i in range(12)] == [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]
    for mode, first in zip(fitted.modes, (0, 3), strict=True):  # each starts at its first teacher
        assert mode.base_index.tolist() == [TRAIN[first]] and np.array_equal(mode.base, teachers[first].actor)
        assert mode.gap == 2
    assert np.array_equal(fitted.actors([6])[6], teachers[3].actor)


def test_two_modes_succeed_where_a_single_template_fails(family, teachers, files, fitted, tmp_path):
    data, records = gather(teachers, files, SETTINGS)
    single = assemble("dibs", teachers, data, records, fit(data, teachers[0].network, SETTINGS, rng()))
    alone, by_mode = (
        rates(family, single, tmp_path / "s.safetensors"),
        rates(family, fitted, tmp_path / "b.safetensors"),
    )
    assert (by_mode > 0.9).all(), by_mode
    assert (alone[[4, 5, 6]] < 0.5).any(), alone


def test_teachers_that_never_succeed_go_with_their_neighbours(family, teachers):
    lost = [*teachers[:2], teacher(family, 4, 0, 0.0), *teachers[3:]]
    assert routing_modes(family, lost).labels == (0, 0, 0, 1, 1)
    none = [teacher(family, i, 0, 0.0) for i in TRAIN]
    with pytest.raises(DibsError, match="planted: no teacher has a satisfying rollout"):
        routing_modes(family, none)


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


def test_with_one_mode_it_is_the_single_template(family, teachers, files, monkeypatch):
    monkeypatch.setattr(branched, "routing_modes", lambda *_: Modes((0,) * 5, {}))
    settings = FitSettings(max_steps=50, batch=64)
    one, _, _ = fit_branches("dibs-branched", family, teachers, files, settings, rng())
    data, _ = gather(teachers, files, settings)
    assert one.modes[0].kappa.tobytes() == fit(data, teachers[0].network, settings, rng()).kappa.tobytes()


@pytest.mark.parametrize("settings", [FitSettings(select=True), FitSettings(space="weights")])
def test_what_it_does_not_do_is_refused(family, teachers, files, settings):
    with pytest.raises(DibsError, match=r"dibs-branched: .* leave out select, space"):
        fit_branches("dibs-branched", family, teachers, files, settings, rng())


# --- files -----------------------------------------------------------------------------------------------


def test_it_reads_back_the_same(fitted, tmp_path):
    save_branched(tmp_path / "b.safetensors", fitted, {"config_digest": "x"})
    again = load_any(tmp_path / "b.safetensors")
    assert isinstance(again, Branched) and again.labels == fitted.labels and again.train == fitted.train
    for one, other in zip(again.modes, fitted.modes, strict=True):
        for name in ("method", "family", "gap", "seed", "train", "edges", "network", "records"):
            assert getattr(one, name) == getattr(other, name)
        for name in ("kappa", "base", "base_index"):
            assert getattr(one, name).tobytes() == getattr(other, name).tobytes()
    for index, actors in fitted.actors(list(range(12))).items():
        assert np.array_equal(again.actors([index])[index], actors)
    save_branched(tmp_path / "c.safetensors", again, {"config_digest": "x"})
    assert (tmp_path / "b.safetensors").read_bytes() == (tmp_path / "c.safetensors").read_bytes()


def test_kinds_are_not_confused(fitted, pipeline, tmp_path):
    save_branched(tmp_path / "b.safetensors", fitted, {})
    with pytest.raises(DibsError, match="expected a template, found a file of kind 'branched template'"):
        load_template(tmp_path / "b.safetensors")
    single = pipeline.places.template("dibs", "tiny", 2, 0)
    assert isinstance(load_any(single), Template)
    with pytest.raises(DibsError, match="expected a branched template, found a file of kind 'template'"):
        load_branched(single)


def test_damage_is_named(fitted, tmp_path):
    from safetensors.numpy import save_file

    file = tmp_path / "b.safetensors"
    save_branched(file, fitted, {})
    tensors, meta = read_tensors(file)

    def rewrite(tensors, **changes):
        save_file(tensors, file, metadata={KEY: json.dumps(plain({**meta, **changes}))})

    for missing in tensors:
        rewrite({name: tensor for name, tensor in tensors.items() if name != missing})
        with pytest.raises(DibsError, match=f"damaged .*no tensor {missing}"):
            load_branched(file)
    rewrite(tensors, labels=[0, 0, 0, 1, 2])
    with pytest.raises(DibsError, match="for each of 5 training indices one of 2 modes"):
        load_branched(file)
    rewrite({**tensors, "base": tensors["base"][:1]})
    with pytest.raises(DibsError, match="expected 2 modes of"):
        load_branched(file)


# --- commands --------------------------------------------------------------------------------------------


def test_it_goes_through_the_commands(pipeline, tmp_path, capsys):
    root = tmp_path / "results"
    shutil.copytree(pipeline.root, root)
    common = ["--gap", "2", "--results", str(root), "--method", "dibs-branched"]
    assert cli.main(["fit", str(pipeline.file), *common, "--quiet", "--settings", pipeline.settings["fit"]]) == 0
    assert "mode 0 of indices 0" in capsys.readouterr().out
    file = root / "templates-branched/tiny/gap2/seed0.safetensors"
    told = json.loads(file.with_suffix(".json").read_text())
    assert told["train"] == [0, 2, 4] and sorted(i for mode in told["modes"] for i in mode["train"]) == [0, 2, 4]
    _, meta = read_tensors(file)
    assert {"config_digest", "code_digest", "family_digest", "version"} <= meta.keys()
    assert cli.main(["evaluate", str(pipeline.file), *common, "--settings", '{"rollouts": 50}']) == 0
    assert "dibs-branched tiny gap 2 seed 0: training" in capsys.readouterr().out
    policy = str(tmp_path / "p.safetensors")
    assert cli.main(["policy", str(pipeline.file), *common, "--index", "3", "--output", policy]) == 0
    assert cli.main(["rollout", policy, "--episodes", "2"]) == 0
    assert "of 2 episodes satisfy index 3" in capsys.readouterr().out


def test_teachers_of_a_real_pipeline_have_ways(pipeline, tiny):
    for index in (0, 2, 4):
        found = ways(tiny, load_teacher(pipeline.places.teacher("tiny", 2, index, 0)))
        assert len(found) == 2 and all(way is not None for way in found)


def test_only_the_branched_method_depends_on_its_code():
    assert code_of("dibs") == code_of("dibs-plus") == CODE
    assert code_of("dibs-branched") == (*CODE, "dibs.templates.branched")
