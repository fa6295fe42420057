"""Guesses between training indices: how states are paired, and what is guessed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dibs.templates.bridges import PAIRS, between, bridged, pair
from dibs.templates.fit import Supervision


@pytest.mark.parametrize(
    "indices, expected",
    [
        ([0, 20, 40], [4, 8, 12, 16, 24, 28, 32, 36]),
        ([0, 3, 6, 9], [1, 2, 4, 5, 7, 8]),
        ([0, 2, 4], [1, 3]),
        ([0, 1, 2], []),
        ([7], []),
        (list(range(0, 41, 2)), list(range(1, 40, 2))),
    ],
)
def test_indices_in_between(indices, expected):
    assert between(np.array(indices)) == expected


def test_pairs_are_the_nearest_ones_of_all_ways_to_pair():
    """Against brute force, about the common mean."""
    rng = np.random.default_rng(0)
    first, second = rng.normal(size=(6, 2)), rng.normal((30.0, -4.0), size=(6, 2))
    rows, columns = pair(first, second, rng)
    assert sorted(rows) == sorted(columns) == list(range(6))
    a, b = first - first.mean(axis=0), second - second.mean(axis=0)
    cost = min(((a - b[list(order)]) ** 2).sum() for order in itertools.permutations(range(6)))
    assert ((a[rows] - b[columns]) ** 2).sum() == pytest.approx(cost)


def moving(indices: list[int], present: list[list[bool]], rows: int = 60) -> Supervision:
    """Two edges whose states shift evenly with the index, as do the actions, which are linear in the state."""
    rng = np.random.default_rng(1)
    cloud = rng.normal(size=(2, 1, rows, 3))
    at = np.array(indices, dtype=float)[None, :, None, None]
    states = cloud + at * np.array([0.5, 0.0, -0.2])
    actions = cloud[..., :2] * np.array([0.3, -0.1]) + 0.02 * at
    base, start = np.zeros((2, 5), dtype=np.float32), np.zeros(2, dtype=int)
    return Supervision(
        np.array(indices), states.astype(np.float32), actions.astype(np.float32), np.array(present), base, start
    )


def test_where_all_moves_evenly_the_guess_is_right():
    data = moving([0, 4, 8], [[True] * 3] * 2)
    more = bridged(data, np.random.default_rng(0))
    truth = moving(more.indices.tolist(), [[True] * len(more.indices)] * 2)
    assert more.indices.tolist()[:3] == [0, 4, 8] and len(more.indices) > 3 and more.present.all()
    for e, n in itertools.product(range(2), range(3, len(more.indices))):
        for row, action in zip(more.states[e, n], more.actions[e, n], strict=True):
            nearest = np.abs(truth.states[e, n] - row).sum(axis=-1).argmin()
            np.testing.assert_allclose(row, truth.states[e, n, nearest], atol=1e-5)
            np.testing.assert_allclose(action, truth.actions[e, n, nearest], atol=1e-5)


def test_the_training_indices_stay_as_they_are():
    data = moving([0, 4, 8], [[True] * 3, [True, False, True]])
    more = bridged(data, np.random.default_rng(0))
    for name in ("states", "actions", "present"):
        assert np.array_equal(getattr(more, name)[:, :3], getattr(data, name))
    assert np.array_equal(more.base, data.base) and np.array_equal(more.base_index, data.base_index)


def test_nothing_is_guessed_beyond_an_edges_teachers_nor_from_a_teacher_that_is_left_out():
    late = [False, False, True, True]
    data = moving([0, 4, 8, 12], [late, [True, False, True, True]])
    spoilt = np.where(data.present[..., None, None], data.states, np.nan).astype(np.float32)
    more = bridged(Supervision(**{**data.__dict__, "states": spoilt}), np.random.default_rng(0))
    added = more.indices[4:]
    assert np.array_equal(more.present[0, 4:], added > 8)
    assert more.present[1, 4:].all() and np.isfinite(more.states[1, 4:]).all()


def test_the_same_seed_gives_the_same_guesses_and_rows_are_bounded():
    data = moving([0, 4], [[True] * 2] * 2, rows=PAIRS + 100)
    first, second = (bridged(data, np.random.default_rng(5)) for _ in range(2))
    assert np.array_equal(first.states, second.states) and first.states.shape[2] == PAIRS + 100
    assert len(np.unique(first.states[0, 2], axis=0)) == PAIRS
