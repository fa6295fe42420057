"""Candidates, filter and labels (algorithm 1, lines 1 to 9)."""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest

from dibs.datasets import build as module
from dibs.datasets.build import SOURCES, Block, DatasetSettings, _Candidates, build
from dibs.datasets.store import save_dataset
from dibs.errors import DibsError
from dibs.families import Split, Tasks
from dibs.provenance import Origin
from dibs.settings import parse_settings
from dibs.simulation import Draws, EdgeTask, NetworkPolicy, StateRecorder, draw, rollout
from dibs.spectrl import parse, satisfied
from dibs.teachers.store import load_replay
from dibs.teachers.train import Teacher


@pytest.fixture(scope="module")
def replay(teacher_file, teacher) -> list[np.ndarray]:
    return load_replay(teacher_file, teacher.edges)


@pytest.fixture
def given(tasks, split) -> tuple[Tasks, Split]:
    return tasks, split


def rows(given, teacher, replay, **settings) -> dict[int, dict[str, np.ndarray]]:
    """All rows of every edge."""
    blocks: dict[int, list] = {}
    for block in build(*given, teacher, replay, DatasetSettings(**settings)):
        blocks.setdefault(block.edge, []).append(block)
    fields = ("states", "actions", "source", "confidence")
    return {edge: {f: np.concatenate([getattr(b, f) for b in made]) for f in fields} for edge, made in blocks.items()}


def confidence_by_hand(teacher: Teacher, edge: int, state: np.ndarray) -> float:
    """p_conf of one state from the stored numbers, in plain Python: one tanh layer of eight, then the head."""
    x = [
        (float(s) - float(c)) / float(h)
        for s, c, h in zip(state, teacher.scaling.center[edge], teacher.scaling.half[edge], strict=True)
    ]
    theta, head = teacher.actor[edge].tolist(), teacher.head[edge].tolist()
    hidden = [math.tanh(x[0] * theta[j] + x[1] * theta[8 + j] + theta[16 + j]) for j in range(8)]
    return 1.0 / (1.0 + math.exp(-(sum(h * w for h, w in zip(hidden, head[:8], strict=True)) + head[8])))


@pytest.mark.parametrize("threshold", [0.0, 0.7, 0.9])
def test_every_kept_row_is_trusted_and_labeled_by_the_teacher(given, teacher, replay, threshold):
    made = rows(given, teacher, replay, size=400, threshold=threshold)
    assert sorted(made) == [0, 1]
    for edge, got in made.items():
        assert got["confidence"].astype(float).min() >= threshold
        np.testing.assert_allclose(got["actions"], teacher.act(edge, got["states"]), atol=1e-5)
        by_hand = [confidence_by_hand(teacher, edge, state) for state in got["states"][:50]]
        np.testing.assert_allclose(got["confidence"][:50], by_hand, atol=1e-4)


@pytest.mark.parametrize("size", [1, 399, 5000])
def test_there_are_m_rows_per_edge(given, teacher, replay, size):
    made = rows(given, teacher, replay, size=size)
    assert [len(got[f]) for got in made.values() for f in got] == [size] * 8


@pytest.mark.parametrize("rates", [(0.8, 0.3, 0.6), (1.0, 0.1, 0.9), (0.0, 1.0, 1.0), (2.0, 0.0, 0.0)])
def test_sources_stand_in_the_proportions_of_the_rates(given, teacher, replay, rates):
    made = rows(given, teacher, replay, size=20_000, threshold=0.0, alpha=rates[0], beta=rates[1], gamma=rates[2])
    share = np.array(rates) / sum(rates)
    for got in made.values():
        found = np.bincount(got["source"], minlength=3) / 20_000
        # Four standard deviations of a share of 20 000.
        np.testing.assert_allclose(found, share, atol=4 * math.sqrt(0.25 / 20_000))
        assert np.all((found == 0.0) == (share == 0.0))


def test_the_proportions_are_those_before_filtering(given, teacher, replay):
    """The filter rejects states of resets more often than those of the teacher's own rollouts."""
    before = rows(given, teacher, replay, size=5000, threshold=0.0)
    after = rows(given, teacher, replay, size=5000, threshold=0.8)
    for edge in (0, 1):
        on_policy = [np.mean(made[edge]["source"] == SOURCES.index("on-policy")) for made in (before, after)]
        assert on_policy[1] > on_policy[0]


def test_a_source_means_what_it_says(given, teacher, replay):
    made = rows(given, teacher, replay, size=3000, threshold=0.0)
    for edge, got in made.items():
        held = {tuple(state) for state in replay[edge].tolist()}
        from_replay = got["states"][got["source"] == SOURCES.index("replay")]
        assert len(from_replay) > 100 and all(tuple(state) in held for state in from_replay.tolist())
        reset = got["states"][got["source"] == SOURCES.index("reset")]
        plain = np.all(np.abs(reset - [[0.5, 0.0], [2.5, 3.0]][edge]) <= [0.1, 1.0][edge] + 1e-5, axis=1)
        assert 0.4 < plain.mean() < 0.8  # half plain, half randomized; some of these fall among the plain ones


def test_on_policy_states_come_from_satisfying_rollouts(given, teacher, replay, monkeypatch):
    """Let half of the starts be hopeless: none of their states may come up."""

    def half_hopeless(task, count, rng):
        draws = draw(task, count, rng)
        starts = draws.starts.copy()
        starts[:, ::2] += 1000.0
        return Draws(starts, draws.noise)

    monkeypatch.setattr(module, "draw", half_hopeless)
    made = rows(given, teacher, replay, size=2000, threshold=0.0, alpha=1.0, beta=0.0, gamma=0.0)
    assert all(got["states"].max() < 500.0 for got in made.values())


def test_the_pool_of_on_policy_states_favours_no_part_of_a_rollout(given, teacher, replay, monkeypatch):
    """Where the pool is full, whole rollouts are dropped, not the late states of all of them."""
    heights = []
    for block in (module.BLOCK, 300):
        monkeypatch.setattr(module, "BLOCK", block)
        rng = np.random.default_rng(0)
        candidates = _Candidates(given[0], teacher, 0, replay[0], np.array([1.0, 0.0, 0.0]), rng)
        states = np.concatenate([candidates.next(700)[0] for _ in range(20)])
        heights.append(states[:, 1])  # y grows along the edge
    assert len(candidates.pool) == 300
    early, late = ([np.mean(h < 0.5) for h in heights], [np.mean(h > 1.8) for h in heights])
    assert early[0] == pytest.approx(early[1], abs=0.03) and late[0] == pytest.approx(late[1], abs=0.03)


def test_rows_are_in_random_order(given, teacher, replay):
    """A prefix of a dataset is a sample of it."""
    got = rows(given, teacher, replay, size=8000, threshold=0.0)[0]
    first, second = (np.bincount(half, minlength=3) / 4000 for half in np.split(got["source"], 2))
    np.testing.assert_allclose(first, second, atol=0.05)
    np.testing.assert_allclose(*(half.mean(axis=0) for half in np.split(got["states"], 2)), atol=0.15)


def test_the_same_seed_gives_the_same_rows_whatever_else_is_built(given, teacher, replay):
    one, two = (rows(given, teacher, replay, size=200) for _ in range(2))
    assert all(one[e]["states"].tobytes() == two[e]["states"].tobytes() for e in (0, 1))
    failed = {**teacher.metrics, "edges": {**teacher.metrics["edges"], "start>a": {"success": 0.0}}}
    alone = rows(given, replace(teacher, metrics=failed), replay, size=200)
    assert alone[1]["states"].tobytes() == one[1]["states"].tobytes()  # edges have streams of their own
    other = rows(given, replace(teacher, seed=1), replay, size=200)
    assert other[1]["states"].tobytes() != one[1]["states"].tobytes()


# --- what cannot be built --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 50_000])
def test_a_filter_that_rejects_everything_is_reported_after_a_bounded_effort(given, teacher, replay, size, monkeypatch):
    """Without α, no candidate is good for certain."""
    hopeless = replace(teacher, head=np.zeros_like(teacher.head))  # p_conf = 0.5 everywhere
    tried = []
    plain = _Candidates.next
    monkeypatch.setattr(_Candidates, "next", lambda self, count: tried.append(count) or plain(self, count))
    began = time.monotonic()
    with pytest.raises(DibsError) as found:
        rows(given, hopeless, replay, size=size, alpha=0.0)
    assert time.monotonic() - began < 30.0
    assert 20_000 <= sum(tried) <= 20_000 + module.BLOCK
    expected = (
        rf"tiny index 2 seed 0, edge start>a: the confidence filter kept 0 of {sum(tried)} candidates \(0\.00%\) at "
    )
    assert re.match(expected, str(found.value))
    assert "lower datasets.threshold, or raise datasets.alpha or teachers.confidence" in str(found.value)


def test_nearly_everything_rejected_is_reported_too(given, teacher, replay):
    with pytest.raises(DibsError) as found:
        rows(given, teacher, replay, size=10**9, threshold=0.9, least_acceptance=0.99, alpha=0.0)
    kept, tried, share = re.search(
        r"kept (\d+) of (\d+) candidates \((.+)%\) at threshold 0.9", str(found.value)
    ).groups()
    assert 0 < int(kept) < int(tried) and float(share) == pytest.approx(100 * int(kept) / int(tried), abs=0.01)


def test_a_dataset_that_is_complete_is_no_failure(given, teacher, replay):
    """Few candidates were kept, but enough."""
    made = rows(given, teacher, replay, size=30_000, threshold=0.9, least_acceptance=0.99)
    assert len(made[0]["states"]) == 30_000


def test_a_head_that_never_reaches_the_threshold_keeps_its_highest_states(given, teacher, replay, capsys):
    """The head ranks as before, but hardly any p reaches it. As many are kept as α says are good for certain."""
    timid = np.array(teacher.head)
    timid[:, -1] -= 20.0
    timid_teacher = replace(teacher, head=timid)
    plain = rows(given, teacher, replay, size=30_000, threshold=0.0)
    blocks: dict[int, list[Block]] = {}
    for block in build(*given, timid_teacher, replay, DatasetSettings(size=3000)):
        blocks.setdefault(block.edge, []).append(block)
    shown = capsys.readouterr().err.splitlines()
    for edge, line in zip((0, 1), shown, strict=True):
        made = np.concatenate([b.confidence for b in blocks[edge]])
        assert len(made) == 3000
        last = blocks[edge][-1]
        share = np.mean(timid_teacher.confidence(edge, plain[edge]["states"]) >= last.threshold)
        assert share == pytest.approx(0.8 / 1.7, abs=0.03)  # (α, β, γ) = (0.8, 0.3, 0.6)
        assert made.min() >= last.threshold and last.acceptance < 0.01  # at the asked threshold
        assert re.match(rf"warning: tiny index 2 seed 0, edge {teacher.edges[edge]}: .* kept .*; lowered", line)


def test_a_head_that_gives_one_value_leaves_the_states_of_satisfying_rollouts(given, teacher, replay):
    constant = np.zeros_like(teacher.head)
    constant[:, -1] = -1.0
    made = rows(given, replace(teacher, head=constant), replay, size=500)
    for got in made.values():
        assert len(got["states"]) == 500 and np.all(got["source"] == SOURCES.index("on-policy"))


def test_a_file_says_which_threshold_held(given, teacher, replay, tmp_path):
    timid = np.array(teacher.head)
    timid[0, -1] -= 20.0
    blocks = build(*given, replace(teacher, head=timid), replay, DatasetSettings(size=300))
    names = given[0].environment.state_names, given[0].environment.action_names
    origin = Origin("dataset", {"family": "tiny", "split": "gap2", "index": 2, "seed": 0}, "", "", {"datasets": 1}, ())
    save_dataset(tmp_path / "d.parquet", teacher, *names, blocks, origin)
    stored = json.loads(pq.read_metadata(tmp_path / "d.parquet").metadata[b"dibs"])["thresholds"]
    assert stored["a>b"] == 0.7 and 0.0 < stored["start>a"] < 0.7


def test_an_effort_without_bound_cannot_be_asked_for():
    with pytest.raises(DibsError, match="least_acceptance: Input should be greater than 0"):
        parse_settings(DatasetSettings, {"least_acceptance": 0})


def test_edges_that_the_teacher_failed_get_no_rows(given, teacher, replay):
    edges = {**teacher.metrics["edges"], "start>a": {**teacher.metrics["edges"]["start>a"], "success": 0.49}}
    partial = replace(teacher, metrics={**teacher.metrics, "edges": edges})
    assert list(rows(given, partial, replay, size=50)) == [1]
    assert list(rows(given, partial, replay, size=50, require=0.4)) == [0, 1]


def test_a_teacher_that_never_succeeds_has_no_on_policy_states(given, teacher, replay):
    lost = replace(teacher, actor=np.zeros_like(teacher.actor))
    with pytest.raises(DibsError, match="edge start>a@2: the teacher satisfied none of 64 rollouts"):
        rows(given, lost, replay, size=50, threshold=0.0)


def test_rates_must_make_sense(given, teacher, replay):
    with pytest.raises(DibsError, match=r"\(alpha, beta, gamma\) = \[0\.0, 0\.0, 0\.0\] must be ≥ 0 and not all 0"):
        rows(given, teacher, replay, alpha=0.0, beta=0.0, gamma=0.0)


def test_without_a_replay_buffer_its_share_goes_to_the_teachers_rollouts(given, teacher):
    made = rows(given, teacher, [np.empty((0, 2), np.float32)] * 2, size=5000, threshold=0.0)
    found = np.bincount(made[0]["source"], minlength=3) / 5000
    np.testing.assert_allclose(found, [1.1 / 1.7, 0.0, 0.6 / 1.7], atol=0.03)


def test_imitating_the_rows_is_imitating_success(given, teacher):
    """The teacher whose labels these are satisfies its edge's specification: the labels are worth having."""
    task = EdgeTask(given[0].reach_avoid([2], ["start>a"]))
    network, scaling = teacher.network, teacher.scaling
    policy = NetworkPolicy(network, network.fold(teacher.actor[:1], scaling.center[:1], scaling.half[:1]))
    recorder = StateRecorder()
    outcome = rollout(task, policy, draw(task, 200, np.random.default_rng(0)), recorder=recorder)
    verdict = satisfied(
        parse("achieve reach(a)"), given[0].regions_at(2), recorder.states(axis=-2)[0], outcome.lengths[0]
    )
    assert np.array_equal(verdict, outcome.success[0]) and verdict.mean() > 0.95


@pytest.mark.parametrize("index, key", [(2, "2"), (0, "base")])
def test_streams_are_keyed_by_split_and_edge(given, teacher, replay, monkeypatch, index, key):
    keys, plain = [], module.stream
    monkeypatch.setattr(module, "stream", lambda *key: keys.append(key) or plain(*key))
    rows(given, replace(teacher, index=index, seed=7), replay, size=10, threshold=0.0, alpha=0.0)
    assert keys == [("dataset", "tiny", key, index, 7, edge) for edge in ("start>a", "a>b")]


def test_labels_and_confidence_are_those_of_observations(given, teacher, replay, monkeypatch):
    """States are stored; the teacher is asked about what the environment shows of them."""
    tasks, split = given
    plain = type(tasks.environment).observe
    monkeypatch.setattr(type(tasks.environment), "observe", lambda self, states: 0.9 * plain(self, states) + 0.1)
    made = rows((tasks, split), teacher, replay, size=300, alpha=0.0)
    for edge, got in made.items():
        shown = 0.9 * got["states"] + 0.1
        np.testing.assert_allclose(got["actions"], teacher.act(edge, shown), atol=1e-5)
        np.testing.assert_allclose(got["confidence"], teacher.confidence(edge, shown), atol=1e-5)


def test_acceptance_is_the_share_of_candidates_that_pass(given, teacher, replay):
    """Of all that were tried, whether or not there was room for them; against a large sample of candidates."""
    for block in build(*given, teacher, replay, DatasetSettings(size=300, threshold=0.0)):
        assert block.acceptance == 1.0
    settings = DatasetSettings(size=20_000, threshold=0.9)
    rates = np.array([settings.alpha, settings.beta, settings.gamma])
    last = {block.edge: block.acceptance for block in build(*given, teacher, replay, settings)}
    for edge, acceptance in last.items():
        candidates = _Candidates(given[0], teacher, edge, replay[edge], rates / rates.sum(), np.random.default_rng(1))
        states, _ = candidates.next(40_000)
        assert acceptance == pytest.approx((teacher.confidence(edge, states) >= 0.9).mean(), abs=0.02)
        assert acceptance < 1.0
