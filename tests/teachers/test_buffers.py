"""State buffers: uniform samples of all that was offered, in bounded memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from dibs.teachers.buffers import KINDS, Perturbation, Reservoir, StateBuffers


def offer(reservoir: Reservoir, items: int, batches: list[int]) -> None:
    """Offer the states 0, 1, … in batches of the given sizes, the last of which repeats."""
    at = 0
    while at < items:
        size = batches.pop(0) if len(batches) > 1 else batches[0]
        reservoir.add(np.arange(at, min(at + size, items), dtype=np.float32)[:, None])
        at += size


@pytest.mark.parametrize(
    "items, capacity, trials, batches",
    [
        (60, 6, 800, [1]),
        (60, 6, 800, [7]),
        (60, 6, 800, [60]),
        (60, 6, 800, [5, 11, 2, 30]),
        (9, 4, 4000, [1]),  # few, so that being off by one shows
        (9, 4, 4000, [9]),
        (9, 4, 4000, [2, 3]),
    ],
)
def test_every_state_is_kept_with_the_same_probability(items, capacity, trials, batches):
    rng = np.random.default_rng(0)
    counts = np.zeros(items)
    for _ in range(trials):
        reservoir = Reservoir(capacity, 1, rng)
        offer(reservoir, items, list(batches))
        kept = reservoir.view()[:, 0].astype(int)
        assert len(set(kept)) == capacity  # a sample without replacement
        counts[kept] += 1
    expected = trials * capacity / items
    # Drawing without replacement makes the counts a little less variable than independent ones.
    statistic = ((counts - expected) ** 2 / expected).sum() / (1 - capacity / items)
    assert chi2.ppf(0.001, items - 1) < statistic < chi2.ppf(0.999, items - 1)


def test_memory_is_bounded_and_the_states_are_the_offered_ones():
    reservoir = Reservoir(100, 3, np.random.default_rng(1))
    size = reservoir.states.nbytes
    for n in range(50):
        reservoir.add(np.full((37, 3), n, dtype=np.float32))
    assert reservoir.states.nbytes == size and reservoir.view().shape == (100, 3)
    assert (len(reservoir), reservoir.offered) == (100, 50 * 37)
    assert set(np.unique(reservoir.view())) <= set(range(50))


def test_all_is_kept_in_order_while_there_is_room():
    reservoir = Reservoir(10, 1, np.random.default_rng(2))
    assert reservoir.view().shape == (0, 1)
    reservoir.add(np.array([[1.0], [2.0]]))
    reservoir.add(np.empty((0, 1)))
    reservoir.add(np.array([[3.0]]))
    assert reservoir.view()[:, 0].tolist() == [1.0, 2.0, 3.0]


def test_the_same_stream_keeps_the_same_states():
    kept = []
    for _ in range(2):
        reservoir = Reservoir(5, 1, np.random.default_rng(3))
        offer(reservoir, 1000, [13])
        kept.append(reservoir.view().tobytes())
    assert kept[0] == kept[1]


def rollouts() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two tasks, three rollouts of up to four states; the state's number says where it comes from."""
    states = np.zeros((4, 2, 3, 1), dtype=np.float32)
    for t, task, rollout in np.ndindex(4, 2, 3):
        states[t, task, rollout] = 100 * task + 10 * rollout + t
    lengths = np.array([[4, 2, 1], [3, 4, 4]])
    satisfied = np.array([[True, False, True], [False, False, False]])
    return states, lengths, satisfied


def numbers(buffers: StateBuffers, edge: int, kind: str) -> list[int]:
    return sorted(buffers.edges[edge][kind].view()[:, 0].astype(int).tolist())


def test_episodes_are_sorted_by_outcome_up_to_their_end():
    buffers = StateBuffers(3, ["x"], np.random.default_rng(4), capacity=100)
    buffers.add(np.array([2, 0]), *rollouts())  # the tasks are edges 2 and 0
    assert numbers(buffers, 2, "high") == [0, 1, 2, 3, 20]
    assert numbers(buffers, 2, "low") == [10, 11]
    assert numbers(buffers, 2, "replay") == [0, 1, 2, 3, 10, 11, 20]
    assert numbers(buffers, 0, "high") == []
    assert numbers(buffers, 0, "low") == [100, 101, 102, 110, 111, 112, 113, 120, 121, 122, 123]
    assert all(numbers(buffers, 1, kind) == [] for kind in KINDS)


def perturbed(std: list[list[float]], **more: Any) -> StateBuffers:
    """Buffers of one-dimensional states that the environment keeps below 130."""
    perturbation = Perturbation(np.array(std, np.float32), lambda states: np.minimum(states, 130.0))
    return StateBuffers(len(std), ["x"], np.random.default_rng(9), perturbation=perturbation, **more)


def test_perturbed_observations_are_low_quality():
    """Every tenth state of any rollout comes again, moved by the edge's noise, and nowhere else."""
    buffers = perturbed([[0.0], [5.0]])
    states = np.full((100, 80, 1), 100.0, np.float32)
    for edge in (0, 1):
        buffers.add_episodes(edge, states, np.ones((100, 80), bool), np.arange(80) < 60)
    for edge in (0, 1):
        assert np.all(buffers.edges[edge]["high"].view() == 100.0) and buffers.edges[edge]["high"].offered == 6000
        assert np.all(buffers.edges[edge]["replay"].view() == 100.0) and buffers.edges[edge]["replay"].offered == 8000
        again = buffers.edges[edge]["low"].offered - 2000  # the rest failed
        assert again == pytest.approx(0.1 * 8000, abs=4 * np.sqrt(8000 * 0.09))
    assert np.all(buffers.edges[0]["low"].view() == 100.0)
    moved = buffers.edges[1]["low"].view()[2000:, 0]  # failed rollouts come first
    assert moved.mean() == pytest.approx(100.0, abs=1.0) and moved.std() == pytest.approx(5.0, abs=0.5)


def test_only_states_within_a_rollout_are_perturbed_and_stay_allowed():
    buffers = perturbed([[100.0]])
    states = np.full((50, 40, 1), 100.0, np.float32)
    valid = np.arange(50)[:, None] < np.arange(40)
    states[~valid] = np.nan
    buffers.add_episodes(0, states, valid, np.ones(40, bool))
    low = buffers.edges[0]["low"].view()
    assert len(low) > 50 and np.isfinite(low).all() and low.max() == 130.0


def test_a_part_of_the_buffers_perturbs_by_the_same_noise():
    buffers = perturbed([[0.0], [5.0], [1.0]])
    part = buffers.take([2, 1])
    part.add_episodes(1, np.zeros((100, 50, 1), np.float32), np.ones((100, 50), bool), np.ones(50, bool))
    found = buffers.edges[1]["low"].view()
    assert len(found) > 300 and found.std() == pytest.approx(5.0, abs=0.6)


def test_two_searches_of_one_edge_share_its_buffers():
    buffers = StateBuffers(1, ["x"], np.random.default_rng(5), capacity=100)
    buffers.add(np.array([0, 0]), *rollouts())
    assert len(numbers(buffers, 0, "replay")) == 7 + 11


def test_ready_asks_both_qualities_of_the_given_edges_only():
    buffers = StateBuffers(2, ["x"], np.random.default_rng(6), capacity=100)
    buffers.add(np.array([0, 1]), *rollouts())
    assert buffers.ready(np.array([0]), least=2)
    assert not buffers.ready(np.array([0]), least=3)  # two low states
    assert not buffers.ready(np.array([0, 1]), least=1)  # edge 1 has no high ones


def test_samples_come_from_the_edge_and_the_buffer_that_are_asked_for():
    buffers = StateBuffers(3, ["x"], np.random.default_rng(7), capacity=100)
    buffers.add(np.array([2, 0]), *rollouts())
    edges = np.array([0, 2, 0, 2])
    for kind, expected in (
        ("low", [set(range(100, 124)), {10, 11}]),
        ("replay", [set(range(100, 124)), set(range(21))]),
    ):
        sample = buffers.sample(edges, kind, 50, np.random.default_rng(8))
        assert sample.shape == (4, 50, 1)
        for edge, states in zip(edges, sample, strict=True):
            assert set(states[:, 0].astype(int)) <= expected[edge // 2]
    assert not np.array_equal(sample[0], sample[2])  # every row has its own draw
