"""Stage I for one index: what a teacher is, what it says of itself, and its files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dibs import paths
from dibs.analysis.statistics import wilson
from dibs.arguments import provenance
from dibs.errors import DibsError
from dibs.families import load_family
from dibs.files import read_table
from dibs.settings import parse_settings
from dibs.teachers.buffers import KINDS, StateBuffers
from dibs.teachers.store import load_replay, load_teacher, save_teacher
from dibs.teachers.train import Teacher, TeacherSettings, _confidence, random_resets, train_teacher


@pytest.fixture(scope="module")
def settings(tiny_teachers) -> TeacherSettings:
    return parse_settings(TeacherSettings, tiny_teachers)


@pytest.fixture(scope="module")
def base(tiny, settings) -> tuple[Teacher, StateBuffers]:
    teacher, buffers, seconds = train_teacher(tiny, 2, 0, 0, None, settings)
    assert seconds > 0
    return teacher, buffers


def untrained(settings: TeacherSettings, **changes) -> TeacherSettings:
    """Settings with which a teacher stays what it started as."""
    data = {**json.loads(json.dumps(settings.__dict__)), **changes}
    data["options"] = {**data["options"], "iterations": 0, "restarts": 1}
    return parse_settings(TeacherSettings, data)


def save(path: Path, family, teacher: Teacher, buffers: StateBuffers, settings: TeacherSettings) -> dict[str, bytes]:
    save_teacher(path, teacher, buffers, provenance(family, settings, "dibs.teachers.train"), 1.5)
    return {file.name: file.read_bytes() for file in sorted(path.parent.iterdir())}


# --- what it says of itself ------------------------------------------------------------------------------


def test_metrics_of_a_teacher(tiny, base):
    teacher, _ = base
    told = teacher.metrics
    assert list(told["edges"]) == ["start>a", "a>b"] == list(teacher.edges)
    for edge in told["edges"].values():
        assert edge["success"] > 0.95 and edge["lower"] < edge["success"] <= edge["upper"]
        low, high = wilson(edge["success"] * 200, 200)
        assert (edge["lower"], edge["upper"]) == (pytest.approx(float(low)), pytest.approx(float(high)))
        assert edge["drift"] is None and edge["return"] < 0
        assert 0.5 < edge["confidence"]["accuracy"] <= 1.0 and 0.0 <= edge["confidence"]["calibration"] < 0.5
        assert edge["confidence"]["high_kept"] > edge["confidence"]["low_kept"]
    assert told["success"] == min(edge["success"] for edge in told["edges"].values())
    assert told["failed"] == [] and told["algorithm"] == "ars"


def test_steps_are_those_of_the_search_and_of_all_rollouts_after_it(tiny, base, settings):
    teacher, _ = base
    searched = teacher.metrics["curve"][-1]["steps"]
    # After it: probes, relabelled states and the 200 measured rollouts of both edges, at least one step each.
    assert teacher.metrics["steps"] > searched + 2 * (settings.probes + 200)
    assert teacher.metrics["steps"] < searched + 2 * 10 * (settings.probes + 200 + 2 * settings.capacity)


def test_steps_of_relabelling_are_counted(tiny, settings):
    steps = {}
    for relabel in (True, False):
        teacher, buffers, _ = train_teacher(tiny, 2, 0, 0, None, untrained(settings, relabel=relabel))
        steps[relabel] = teacher.metrics["steps"]
    states = max(len(edge["high"]) + len(edge["low"]) for edge in buffers.edges)
    assert steps[True] > steps[False] + states  # every state is a start of at least one step


def test_the_next_teacher_tells_its_drift(tiny, base, settings):
    teacher, _, _ = train_teacher(tiny, 2, 2, 0, base[0], settings)
    expected = np.linalg.norm(teacher.actor - base[0].actor, axis=1)
    told = [edge["drift"] for edge in teacher.metrics["edges"].values()]
    np.testing.assert_allclose(told, expected, rtol=1e-6)
    assert teacher.metrics["drift"] == pytest.approx(expected.mean())
    assert (teacher.gap, teacher.index, teacher.seed) == (2, 2, 0)


def test_independent_teachers_are_not_pulled_but_know_their_drift(tiny, base, settings):
    alone = parse_settings(TeacherSettings, {**settings.__dict__, "cross_index": 0, "warm_start": False})
    teacher, _, _ = train_teacher(tiny, 2, 2, 0, base[0], alone)
    warm, _, _ = train_teacher(tiny, 2, 2, 0, base[0], settings)
    assert teacher.metrics["drift"] > 2 * warm.metrics["drift"]
    assert teacher.metrics["success"] > 0.95


def test_a_teacher_that_failed_says_so_and_the_chain_goes_on(tiny, settings):
    failed, _, _ = train_teacher(tiny, 2, 0, 0, None, untrained(settings))
    assert failed.metrics["failed"] and failed.metrics["success"] <= 0.9
    for name in failed.metrics["failed"]:
        assert failed.metrics["edges"][name]["success"] <= 0.9
    after, _, _ = train_teacher(tiny, 2, 2, 0, failed, untrained(settings))
    assert after.index == 2


def test_require_makes_it_an_error(tiny, settings):
    with pytest.raises(DibsError, match=r"tiny index 0 seed 0: edge \S+ succeeds in 0\.\d+ of rollouts, below .*0\.8"):
        train_teacher(tiny, 2, 0, 0, None, untrained(settings, require=0.8))


@pytest.mark.parametrize("kind, p", [("high", 1.0), ("low", 0.0)])
def test_a_head_with_nothing_to_tell_apart_says_so(tiny, base, kind, p):
    """All states were of one quality: there is nothing to learn, and all are like those."""
    teacher, rng = base[0], np.random.default_rng(0)
    buffers = StateBuffers(2, 2, rng)
    states = rng.uniform(0, 3, (1, 100, 2)).astype(np.float32)
    for edge in (0, 1):
        buffers.add_episodes(edge, states, np.ones((1, 100), bool), np.full(100, kind == "high"))
    heads, reports = _confidence(teacher.network, teacher.actor, teacher.scaling, buffers, None, 0.7)
    assert reports == [None, None]
    one_sided = replace(teacher, head=heads)
    np.testing.assert_allclose(one_sided.confidence(1, states[0]), p, atol=1e-3)


@pytest.mark.parametrize("good", [0.95, 0.4])
def test_a_head_that_cannot_tell_says_how_often_states_are_good(tiny, base, good):
    teacher, _ = base
    rng = np.random.default_rng(0)
    buffers = StateBuffers(2, 2, rng)
    for edge in buffers.edges:  # both kinds are everywhere
        edge["high"].add(rng.normal(size=(int(4000 * good), 2)).astype(np.float32))
        edge["low"].add(rng.normal(size=(4000 - int(4000 * good), 2)).astype(np.float32))
    head, reports = _confidence(teacher.network, teacher.actor, teacher.scaling, buffers, None, 0.7)
    states = rng.normal(size=(100, 2)).astype(np.float32)
    for e in range(2):
        assert reports[e]["accuracy"] < 0.6
        assert np.allclose(replace(teacher, head=head).confidence(e, states), good, atol=1e-3)


def test_the_report_is_about_states_that_were_held_out(tiny, base):
    """With labels drawn by chance there is nothing to learn: a fifth of the states, unseen by the fit, shows it."""
    teacher, rng = base[0], np.random.default_rng(1)
    buffers = StateBuffers(2, 2, rng, capacity=60)
    states = rng.uniform(0, 3, (1, 100, 2)).astype(np.float32)
    for edge in (0, 1):
        buffers.add_episodes(edge, states, np.ones((1, 100), bool), np.arange(100) % 2 == 0)
    seen = []

    def spy(features, labels, start=None):
        seen.append(len(labels))
        return np.zeros(features.shape[1] + 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dibs.teachers.train.fit_logistic", spy)
        _, reports = _confidence(teacher.network, teacher.actor, teacher.scaling, buffers, None, 0.7)
    assert seen == [80, 80]
    assert reports[0]["accuracy"] == 0.5  # ten of each kind, all called high


def test_randomised_resets_reach_beyond_the_edge(tiny):
    from dibs.families import reach_avoid

    tasks = reach_avoid(tiny, [0], ["start>a"])
    starts = random_resets(tasks, 5000, np.random.default_rng(0)).starts[0]
    low, high = np.array([-0.1, -0.1]), np.array([3.0, 4.0])  # start and target
    assert np.all(starts.min(axis=0) < low - 0.5) and np.all(starts.max(axis=0) > high + 0.5)
    assert np.all(starts.min(axis=0) > low - 1.5) and np.all(starts.max(axis=0) < high + 1.5)


# --- predecessors ----------------------------------------------------------------------------------------


def test_a_predecessor_of_another_shape_is_refused(tiny_description, base, settings):
    wider = load_family(tiny_description(network={"hidden": [9]}))
    with pytest.raises(DibsError, match="teacher of tiny index 0 was trained with other edges, another network"):
        train_teacher(wider, 2, 2, 0, base[0], settings)
    elsewhere = load_family(tiny_description(start={"center": [-3.0, 0.0], "noise": 0.1}))
    with pytest.raises(DibsError, match="other regions than the family now has; train it again"):
        train_teacher(elsewhere, 2, 2, 0, base[0], settings)


# --- files -----------------------------------------------------------------------------------------------


def test_files_read_back_the_same(tmp_path, tiny, base, settings):
    teacher, buffers = base
    path = tmp_path / "0.safetensors"
    files = save(path, tiny, teacher, buffers, settings)
    assert list(files) == ["0.buffers.parquet", "0.json", "0.safetensors", "0.timing.json"]
    again = load_teacher(path)
    for name in ("family", "gap", "index", "seed", "edges", "network"):
        assert getattr(again, name) == getattr(teacher, name)
    assert np.array_equal(again.actor, teacher.actor) and again.actor.dtype == np.float32
    assert np.array_equal(again.head, teacher.head)
    assert np.array_equal(again.scaling.center, teacher.scaling.center)
    assert np.array_equal(again.scaling.half, teacher.scaling.half)
    assert again.settings == json.loads(json.dumps(teacher.settings))
    assert again.metrics == json.loads(files["0.json"])["metrics"]
    assert again.metrics["edges"]["a>b"]["success"] == teacher.metrics["edges"]["a>b"]["success"]
    states = np.random.default_rng(0).uniform(-1, 4, (50, 2)).astype(np.float32)
    for edge in (0, 1):
        assert np.array_equal(again.act(edge, states), teacher.act(edge, states))
        assert np.array_equal(again.confidence(edge, states), teacher.confidence(edge, states))
    assert json.loads(files["0.timing.json"]) == {"seconds": 1.5}


def test_files_say_what_made_them(tmp_path, tiny, base, settings):
    save(tmp_path / "0.safetensors", tiny, *base, settings)
    table, meta = read_table(tmp_path / "0.buffers.parquet")
    assert {"config_digest", "code_digest", "family_digest", "version"} <= meta.keys()
    assert (meta["kind"], meta["family"], meta["index"], meta["seed"]) == ("teacher", "tiny", 0, 0)
    assert table.column_names == ["edge", "buffer", "x", "y"]
    assert set(table["edge"].unique().to_pylist()) == {"start>a", "a>b"}
    assert set(table["buffer"].unique().to_pylist()) == set(KINDS)


def test_the_replay_buffer_reads_back(tmp_path, tiny, base, settings):
    path = tmp_path / "0.safetensors"
    save(path, tiny, *base, settings)
    for edge, states in enumerate(load_replay(path, base[0].edges)):
        assert np.array_equal(states, base[1].edges[edge]["replay"].view())


def test_two_runs_give_the_same_bytes_and_another_seed_does_not(tmp_path, tiny, settings):
    files = []
    for n, seed in enumerate((0, 0, 1)):
        teacher, buffers, _ = train_teacher(tiny, 2, 0, seed, None, settings)
        files.append(save(tmp_path / str(n) / "0.safetensors", tiny, teacher, buffers, settings))
    assert files[0] == files[1]
    assert all(files[0][name] != files[2][name] for name in files[0] if "timing" not in name)


def test_the_base_teacher_is_the_same_file_whatever_the_gap(tmp_path, tiny, settings):
    """All gaps share it, so it must not matter which of them was made first."""
    quick = untrained(settings)
    files = []
    for gap in (2, 4):
        teacher, buffers, _ = train_teacher(tiny, gap, 0, 0, None, quick)
        assert teacher.gap == 0
        files.append(save(tmp_path / str(gap) / "0.safetensors", tiny, teacher, buffers, quick))
    assert files[0] == files[1]


def test_later_teachers_of_two_gaps_differ(tiny, base, settings):
    quick = untrained(settings)
    two, four = (train_teacher(tiny, gap, 4, 0, base[0], quick) for gap in (2, 4))
    assert np.array_equal(two[0].actor, four[0].actor)  # neither has moved
    assert not np.array_equal(two[1].edges[0]["replay"].view(), four[1].edges[0]["replay"].view())


@pytest.mark.parametrize(
    "suffix, damage, message",
    [
        (".safetensors", b"junk", r"0\.safetensors: damaged or not what it should be"),
        (".json", b"{", r"0\.json: damaged or not what it should be"),
        (".json", None, r"0\.json: no such file; run the step that makes it first"),
    ],
)
def test_damage_is_named(tmp_path, tiny, base, settings, suffix, damage, message):
    path = tmp_path / "0.safetensors"
    save(path, tiny, *base, settings)
    victim = path.with_suffix(suffix)
    victim.unlink() if damage is None else victim.write_bytes(damage)
    with pytest.raises(DibsError, match=message):
        load_teacher(path)


def test_a_damaged_buffer_is_named(tmp_path, tiny, base, settings):
    path = tmp_path / "0.safetensors"
    save(path, tiny, *base, settings)
    buffers = paths.buffers(path)
    buffers.write_bytes(buffers.read_bytes()[:-100])
    with pytest.raises(DibsError, match=r"0\.buffers\.parquet: damaged or not what it should be"):
        load_replay(path, base[0].edges)


def test_a_file_of_another_kind_is_not_taken_for_a_teacher(pipeline):
    with pytest.raises(DibsError, match="expected a teacher, found a file of kind 'template'"):
        load_teacher(pipeline.places.template("dibs", "tiny", 2, 0))


def test_weights_that_are_not_finite_are_an_error(monkeypatch, tiny, settings):
    from dibs.teachers import train as module
    from dibs.teachers.base import Learnt

    def broken(algorithm, lesson, options):
        return Learnt(np.full((2, lesson.network.size), np.nan), None, 0, 0)

    monkeypatch.setattr(module, "train_with", broken)
    with pytest.raises(DibsError, match="tiny index 0 seed 0: ars gave weights that are not finite"):
        train_teacher(tiny, 2, 0, 0, None, settings)
