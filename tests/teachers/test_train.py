"""Stage I for one index: settings, metrics, predecessors and files of a teacher."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dibs import paths, registry
from dibs.envs import Array
from dibs.envs.car2d import Car2D
from dibs.errors import DibsError
from dibs.families import Family, load_family
from dibs.files import read_json, read_table, write_tensors
from dibs.policies.scaling import edge_scaling
from dibs.provenance import Origin, digest
from dibs.settings import parse_settings
from dibs.simulation import EdgeTask
from dibs.statistics import wilson
from dibs.teachers.base import Algorithm, Assignment, Learned, get_algorithm
from dibs.teachers.buffers import KINDS, StateBuffers
from dibs.teachers.confidence import fit_heads
from dibs.teachers.sb3 import PpoSettings
from dibs.teachers.store import load_replay, load_teacher, save_teacher
from dibs.teachers.train import Teacher, TeacherSettings, random_resets, resolve, train_teacher


@pytest.fixture(scope="module")
def settings(tiny_teachers) -> TeacherSettings:
    return resolve(parse_settings(TeacherSettings, tiny_teachers), "ars", {})


def train(
    family: Family, gap: int, index: int, seed: int, previous: Teacher | None, settings: TeacherSettings
) -> tuple[Teacher, StateBuffers]:
    tasks = family.tasks(sorted({0, index, family.last_index}))
    teacher, buffers, seconds = train_teacher(tasks, family.split(f"gap{gap}"), index, seed, previous, settings)
    assert seconds > 0
    return teacher, buffers


@pytest.fixture(scope="module")
def base(tiny, settings) -> tuple[Teacher, StateBuffers]:
    return train(tiny, 2, 0, 0, None, settings)


def untrained(settings: TeacherSettings, **changes) -> TeacherSettings:
    """Settings with which a teacher stays what it started as."""
    data = {**json.loads(json.dumps(settings.__dict__)), **changes}
    data["options"] = {**data["options"], "iterations": 0, "restarts": 1}
    return parse_settings(TeacherSettings, data)


def save(path: Path, family, teacher: Teacher, buffers: StateBuffers, settings: TeacherSettings) -> dict[str, bytes]:
    identity = {"family": family.name, "split": teacher.split, "index": teacher.index, "seed": teacher.seed}
    versions = {"teachers": 1, "ars": 1}
    origin = Origin("teacher", identity, family.tasks([0, 4]).digest, digest(settings), versions, ("before",))
    save_teacher(path, teacher, buffers, origin, 1.5)
    return {file.name: file.read_bytes() for file in sorted(path.parent.iterdir())}


# --- metrics ---------------------------------------------------------------------------------------------


def test_metrics_of_a_teacher(tiny, base):
    teacher, _ = base
    found = teacher.metrics
    assert list(found["edges"]) == ["start>a", "a>b"] == list(teacher.edges)
    for edge in found["edges"].values():
        assert edge["success"] > 0.95 and edge["lower"] < edge["success"] <= edge["upper"]
        low, high = wilson(edge["success"] * 200, 200)
        assert (edge["lower"], edge["upper"]) == (pytest.approx(float(low)), pytest.approx(float(high)))
        assert edge["drift"] is None and edge["return"] < 0
        assert 0.5 < edge["confidence"]["accuracy"] <= 1.0 and 0.0 <= edge["confidence"]["calibration"] < 0.5
        assert edge["confidence"]["high_kept"] > edge["confidence"]["low_kept"]
    assert found["success"] == min(edge["success"] for edge in found["edges"].values())
    assert found["failed"] == [] and found["algorithm"] == "ars"


def test_steps_are_those_of_the_search_and_of_all_rollouts_after_it(tiny, base, settings):
    teacher, _ = base
    searched = teacher.metrics["curve"][-1]["steps"]
    # After it: probes, relabelled states and the 200 measured rollouts of both edges, at least one step each.
    assert teacher.metrics["steps"] > searched + 2 * (settings.probes + 200)
    assert teacher.metrics["steps"] < searched + 2 * 10 * (settings.probes + 200 + 2 * settings.capacity)


def test_steps_of_relabelling_are_counted(tiny, settings):
    steps = {}
    for relabel in (True, False):
        teacher, buffers = train(tiny, 2, 0, 0, None, untrained(settings, relabel=relabel))
        steps[relabel] = teacher.metrics["steps"]
    states = max(len(edge["high"]) + len(edge["low"]) for edge in buffers.edges)
    assert steps[True] > steps[False] + states  # every state is a start of at least one step


def test_the_next_teacher_tells_its_drift(tiny, base, settings):
    teacher, _ = train(tiny, 2, 2, 0, base[0], settings)
    expected = np.linalg.norm(teacher.actor - base[0].actor, axis=1)
    found = [edge["drift"] for edge in teacher.metrics["edges"].values()]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert teacher.metrics["drift"] == pytest.approx(expected.mean())
    assert (teacher.split, teacher.index, teacher.seed) == ("gap2", 2, 0)


def test_independent_teachers_are_not_pulled_but_know_their_drift(tiny, base, settings):
    alone = parse_settings(TeacherSettings, {**settings.__dict__, "cross_index": 0, "warm_start": False})
    teacher, _ = train(tiny, 2, 2, 0, base[0], alone)
    warm, _ = train(tiny, 2, 2, 0, base[0], settings)
    assert teacher.metrics["drift"] > 2 * warm.metrics["drift"]
    assert teacher.metrics["success"] > 0.95


def test_a_teacher_that_failed_says_so_and_the_chain_goes_on(tiny, settings):
    failed, _ = train(tiny, 2, 0, 0, None, untrained(settings))
    assert failed.metrics["failed"] and failed.metrics["success"] <= 0.9
    for name in failed.metrics["failed"]:
        assert failed.metrics["edges"][name]["success"] <= 0.9
    after, _ = train(tiny, 2, 2, 0, failed, untrained(settings))
    assert after.index == 2


def test_an_edge_that_the_previous_teacher_failed_starts_afresh(tiny, base, settings):
    """Its weights are neither start nor anchor; the other edge learns as it would have."""
    before = base[0]
    first = before.edges[0]
    metrics = {**before.metrics, "edges": {**before.metrics["edges"], first: {**before.metrics["edges"][first]}}}
    metrics["edges"][first]["success"] = 0.49
    actor = before.actor.copy()
    actor[0] = 5.0  # a policy that is stuck
    stuck = replace(before, metrics=metrics, actor=actor)
    found, _ = train(tiny, 2, 2, 0, stuck, replace(settings, cross_index=100.0))
    assert found.metrics["edges"][first]["success"] > 0.9
    assert np.linalg.norm(found.actor[0] - actor[0]) > 10.0 and np.linalg.norm(found.actor[1] - actor[1]) < 0.5
    metrics["edges"][first]["success"] = 0.5
    held, _ = train(tiny, 2, 2, 0, stuck, replace(settings, cross_index=100.0))
    assert np.linalg.norm(held.actor[0] - actor[0]) < 0.5


def test_require_makes_it_an_error(tiny, settings):
    with pytest.raises(DibsError, match=r"tiny index 0 seed 0: edge \S+ succeeds in 0\.\d+ of rollouts, below .*0\.8"):
        train(tiny, 2, 0, 0, None, untrained(settings, require=0.8))


@pytest.mark.parametrize("kind, p", [("high", 1.0), ("low", 0.0)])
def test_a_head_with_nothing_to_tell_apart_says_so(tiny, base, assign, kind, p):
    """All states were of one quality: there is nothing to learn, and all are like those."""
    teacher, rng = base[0], np.random.default_rng(0)
    buffers = StateBuffers(2, ["x", "y"], rng)
    states = rng.uniform(0, 3, (1, 100, 2)).astype(np.float32)
    for edge in (0, 1):
        buffers.add_episodes(edge, states, np.ones((1, 100), bool), np.full(100, kind == "high"))
    heads, reports = fit_heads(assign(tiny, buffers=buffers), teacher.actor, None, 0.7)
    assert reports == [None, None]
    one_sided = replace(teacher, head=heads)
    np.testing.assert_allclose(one_sided.confidence(1, states[0]), p, atol=1e-3)


@pytest.mark.parametrize("good", [0.95, 0.4])
def test_a_head_that_cannot_tell_gives_the_share_of_good_states(tiny, base, assign, good):
    teacher, _ = base
    rng = np.random.default_rng(0)
    buffers = StateBuffers(2, ["x", "y"], rng)
    for edge in buffers.edges:  # both kinds are everywhere
        edge["high"].add(rng.normal(size=(int(4000 * good), 2)).astype(np.float32))
        edge["low"].add(rng.normal(size=(4000 - int(4000 * good), 2)).astype(np.float32))
    head, reports = fit_heads(assign(tiny, buffers=buffers), teacher.actor, None, 0.7)
    states = rng.normal(size=(100, 2)).astype(np.float32)
    for e in range(2):
        assert reports[e]["accuracy"] < 0.6
        assert np.allclose(replace(teacher, head=head).confidence(e, states), good, atol=1e-3)


def test_the_report_is_about_states_that_were_held_out(tiny, base, assign):
    """With labels drawn by chance there is nothing to learn: a fifth of the states, unseen by the fit, shows it."""
    teacher, rng = base[0], np.random.default_rng(1)
    buffers = StateBuffers(2, ["x", "y"], rng, capacity=60)
    states = rng.uniform(0, 3, (1, 100, 2)).astype(np.float32)
    for edge in (0, 1):
        buffers.add_episodes(edge, states, np.ones((1, 100), bool), np.arange(100) % 2 == 0)
    seen = []

    def spy(features, labels, start=None):
        seen.append(len(labels))
        return np.zeros(features.shape[1] + 1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dibs.teachers.confidence.fit_logistic", spy)
        _, reports = fit_heads(assign(tiny, buffers=buffers), teacher.actor, None, 0.7)
    assert seen == [80, 80]
    assert reports[0]["accuracy"] == 0.5  # ten of each kind, all called high


def test_randomized_resets_reach_beyond_the_edge(tiny):
    task = EdgeTask(tiny.tasks([0]).reach_avoid(edges=["start>a"]))
    starts = random_resets(task, 5000, np.random.default_rng(0)).starts[0]
    low, high = np.array([-0.1, -0.1]), np.array([3.0, 4.0])  # start and target
    assert np.all(starts.min(axis=0) < low - 0.5) and np.all(starts.max(axis=0) > high + 0.5)
    assert np.all(starts.min(axis=0) > low - 1.5) and np.all(starts.max(axis=0) < high + 1.5)


# --- predecessors ----------------------------------------------------------------------------------------


def test_a_predecessor_of_another_shape_is_refused(tiny_description, base, settings):
    wider = load_family(tiny_description(network={"hidden": [9]}))
    with pytest.raises(DibsError, match="teacher of tiny index 0 was trained with other edges, another network"):
        train(wider, 2, 2, 0, base[0], settings)
    elsewhere = load_family(tiny_description(start={"center": [-3.0, 0.0], "noise": 0.1}))
    with pytest.raises(DibsError, match="other regions than the family now has; train it again"):
        train(elsewhere, 2, 2, 0, base[0], settings)


# --- files -----------------------------------------------------------------------------------------------


def test_files_read_back_the_same(tmp_path, tiny, base, settings):
    teacher, buffers = base
    path = tmp_path / "0.safetensors"
    files = save(path, tiny, teacher, buffers, settings)
    assert list(files) == ["0.buffers.parquet", "0.curve.parquet", "0.json", "0.safetensors", "0.timing.json"]
    again = load_teacher(path)
    for name in ("family", "split", "index", "seed", "edges", "network"):
        assert getattr(again, name) == getattr(teacher, name)
    assert np.array_equal(again.actor, teacher.actor) and again.actor.dtype == np.float32
    assert np.array_equal(again.head, teacher.head)
    assert np.array_equal(again.scaling.center, teacher.scaling.center)
    assert np.array_equal(again.scaling.half, teacher.scaling.half)
    assert again.settings == json.loads(json.dumps(teacher.settings))
    assert again.id == read_json(tmp_path / "0.json")["id"] != ""
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
    assert {"format", "id", "tasks", "settings_digest", "libraries"} <= meta.keys()
    assert meta["versions"] == {"teachers": 1, "ars": 1} and meta["inputs"] == ["before"]
    expected = {"kind": "teacher", "family": "tiny", "split": "base", "index": 0, "seed": 0, "states": ["x", "y"]}
    assert {key: meta[key] for key in expected} == expected
    metrics = read_json(tmp_path / "0.json")
    assert {key: metrics[key] for key in expected} == expected and metrics["edges"] == ["start>a", "a>b"]
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
        teacher, buffers = train(tiny, 2, 0, seed, None, settings)
        files.append(save(tmp_path / str(n) / "0.safetensors", tiny, teacher, buffers, settings))
    assert files[0] == files[1]
    assert all(files[0][name] != files[2][name] for name in files[0] if "timing" not in name)


def test_the_base_teacher_is_the_same_file_for_all_splits(tmp_path, tiny, settings):
    """All splits share it, so it must not matter which of them was made first."""
    quick = untrained(settings)
    files = []
    for gap in (2, 4):
        teacher, buffers = train(tiny, gap, 0, 0, None, quick)
        assert teacher.split == "base"
        files.append(save(tmp_path / str(gap) / "0.safetensors", tiny, teacher, buffers, quick))
    assert files[0] == files[1]


def test_later_teachers_of_two_splits_differ(tiny, base, settings):
    quick = untrained(settings)
    two, four = (train(tiny, gap, 4, 0, base[0], quick) for gap in (2, 4))
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


def test_buffers_of_another_teacher_are_refused(tmp_path, tiny, base, settings):
    """A run that is killed between its files leaves new buffers next to old weights."""
    path, other = tmp_path / "0.safetensors", tmp_path / "other" / "0.safetensors"
    save(path, tiny, *base, settings)
    save(other, tiny, *base, replace(settings, probes=settings.probes + 1))
    paths.buffers(other).replace(paths.buffers(path))
    with pytest.raises(DibsError, match=r"0\.buffers\.parquet: was not written together with .*0\.safetensors"):
        load_replay(path, base[0].edges)


def test_a_file_of_another_kind_is_not_taken_for_a_teacher(tmp_path):
    origin = Origin("model", {"method": "dibs"}, "", "", {})
    write_tensors(tmp_path / "m.safetensors", {"kappa": np.zeros(3)}, origin.metadata())
    with pytest.raises(DibsError, match="expected kind 'teacher', found 'model'"):
        load_teacher(tmp_path / "m.safetensors")
    write_tensors(tmp_path / "old.safetensors", {"actor": np.zeros(3)}, {"kind": "teacher", "gap": 5})
    with pytest.raises(DibsError, match=r"was written by dibs 0\.1.*make it again"):
        load_teacher(tmp_path / "old.safetensors")


# --- algorithms ------------------------------------------------------------------------------------------


@pytest.fixture
def broken():
    """An algorithm whose weights are not finite."""

    def train(assignment: Assignment, settings: PpoSettings) -> Learned:
        return Learned(np.full((assignment.edges.tasks, assignment.network.size), np.nan), None, 0, 0)

    registry.register("teachers", "broken", Algorithm("broken", PpoSettings, train))
    yield "broken"
    registry._added["teachers"].pop("broken", None)


def test_weights_that_are_not_finite_are_an_error(tiny, broken):
    with pytest.raises(DibsError, match="tiny index 0 seed 0: broken gave weights that are not finite"):
        train(tiny, 2, 0, 0, None, TeacherSettings(algorithm=broken))


def test_settings_are_completed_by_the_family():
    family = {"iterations": 50, "value": [32]}
    plain = resolve(TeacherSettings(), "ppo", family)
    assert plain.algorithm == "ppo" and plain.options["iterations"] == 50 and plain.options["batch"] == 2048
    assert resolve(TeacherSettings(options={"iterations": 7}), "ppo", family).options["iterations"] == 7
    other = resolve(TeacherSettings(algorithm="ars"), "ppo", family)  # the family's options are not for ARS
    assert other.options["iterations"] == 300 and "value" not in other.options
    assert resolve(TeacherSettings(algorithm="ppo"), "ppo", family) == plain
    assert resolve(plain, "ppo", {}) == plain  # nothing is left to complete
    assert digest(plain) != digest(resolve(TeacherSettings(), "ppo", {}))


def test_options_are_checked():
    with pytest.raises(DibsError, match=r"unknown setting of ars 'direction'. Did you mean 'directions'"):
        resolve(TeacherSettings(options={"direction": 8}), "ars", {})
    with pytest.raises(DibsError, match=r"teachers.options \(ars\).*\n.*iterations: .*\(found 'many'\)"):
        resolve(TeacherSettings(options={"iterations": "many"}), "ars", {})
    with pytest.raises(DibsError, match=r"unknown teacher algorithm 'arss'. Did you mean 'ars'"):
        resolve(TeacherSettings(algorithm="arss"), "ars", {})


def test_the_settings_of_all_algorithms_load_without_torch():
    """Configs and plans read them, in every job."""
    program = (
        "import sys; from dibs import registry; from dibs.teachers.train import algorithm_settings\n"
        "for name in registry.names('teachers'): algorithm_settings(name, {})\n"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "dibs.teachers.sb3" in loaded
    assert not {"torch", "stable_baselines3", "gymnasium", "scipy", "pandas"} & set(loaded)


@pytest.mark.parametrize("name", ["ars", "ppo", "a2c", "sac", "td3", "ddpg"])
def test_algorithms_are_registered_under_their_names(name):
    algorithm = get_algorithm(name)
    assert algorithm.name == name and algorithm.version >= 1
    assert algorithm.minutes > 0 and algorithm.memory_mb >= 1000


# --- observations ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Watched(Car2D):
    """Car2D whose policies see the position on a larger scale, and its sum."""

    name = "Watched"

    def observe(self, states: Array) -> Array:
        return np.concatenate([10.0 * states, states.sum(axis=-1, keepdims=True)], axis=-1)


@pytest.fixture
def watched(tiny_description):
    registry.register("environments", "Watched", Watched)
    yield load_family(tiny_description(environment={"name": "Watched"}))
    registry._added["environments"].pop("Watched", None)


@pytest.mark.parametrize("algorithm", ["ars", "ppo"])
def test_actors_and_heads_act_on_observations(watched, settings, algorithm):
    options: dict[str, Any] = {"n_envs": 32, "batch": 256, "iterations": 60, "checks": 50}
    chosen = settings if algorithm == "ars" else replace(settings, algorithm="ppo", options=options)
    teacher, buffers = train(watched, 2, 0, 0, None, chosen)
    assert teacher.network.inputs == 3 and teacher.scaling.center.shape == (2, 3)
    np.testing.assert_allclose(teacher.scaling.center[:, :2], 10 * edge_scaling(load_tiny(watched)).center, rtol=1e-5)
    assert teacher.metrics["success"] > 0.9  # measured by the simulator, which observes by itself
    for e in range(2):
        high, low = (buffers.edges[e][kind].view() for kind in ("high", "low"))
        assert high.shape[1] == low.shape[1] == 2  # states are stored
        p = [teacher.confidence(e, Watched().observe(view)).mean() for view in (high, low)]
        assert p[0] > p[1]
        assert teacher.act(e, Watched().observe(high)).shape == (len(high), 2)


def load_tiny(family: Family) -> Any:
    """The tasks of the same family without the other observation."""
    return load_family({**family.description_data(), "environment": {"name": "Car2D"}}).tasks([0, family.last_index])


# --- what training may know ------------------------------------------------------------------------------


def test_tasks_of_other_indices_do_not_matter(tiny, settings):
    """More tasks than needed change nothing; without its own, a teacher cannot be trained."""
    split, quick = tiny.split("gap2"), untrained(settings)
    few, all_of_them = (train_teacher(tiny.tasks(i), split, 2, 0, None, quick)[0] for i in ([0, 2, 4], [0, 1, 2, 3, 4]))
    assert np.array_equal(few.actor, all_of_them.actor) and few.metrics == all_of_them.metrics
    with pytest.raises(DibsError, match="tiny: index 2 is not among these tasks"):
        train_teacher(tiny.tasks([0, 4]), split, 2, 0, None, quick)


@pytest.mark.parametrize("index, key", [(2, "2"), (0, "base")])
def test_streams_are_keyed_by_split_index_and_seed(tiny, settings, monkeypatch, index, key):
    keys = []
    monkeypatch.setattr("dibs.teachers.train.stream", lambda *key: keys.append(key) or np.random.default_rng(0))
    train(tiny, 2, index, 7, None, untrained(settings))
    assert keys == [("teacher", "tiny", key, index, 7)]
