"""State buffers: uniform samples of all that was offered, in bounded memory."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2

from dibs.teachers.buffers import KINDS, Reservoir, StateBuffers


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
