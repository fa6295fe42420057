"""Guesses between training indices: how states are paired and carried, and what is guessed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dibs.envs import Array, Car2D
from dibs.families import Tasks
from dibs.policies.network import Network
from dibs.templates.bridges import PAIRS, Guide, between, bridged, carries, pair
from dibs.templates.objective import Supervision

from .moving import SMALL, tasks_of


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


def bridge(data: Supervision, seed: int = 0) -> Supervision:
    """Pairs need no guide."""
    return bridged(data, ["pairs"] * len(data.base), [], np.random.default_rng(seed))


def test_where_all_moves_evenly_the_guess_is_right():
    data = moving([0, 4, 8], [[True] * 3] * 2)
    more = bridge(data)
    truth = moving(more.indices.tolist(), [[True] * len(more.indices)] * 2)
    assert more.indices.tolist()[:3] == [0, 4, 8] and len(more.indices) > 3 and more.present.all()
    for e, n in itertools.product(range(2), range(3, len(more.indices))):
        for row, action in zip(more.states[e, n], more.actions[e, n], strict=True):
            nearest = np.abs(truth.states[e, n] - row).sum(axis=-1).argmin()
            np.testing.assert_allclose(row, truth.states[e, n, nearest], atol=1e-5)
            np.testing.assert_allclose(action, truth.actions[e, n, nearest], atol=1e-5)


def test_the_training_indices_stay_as_they_are_and_so_do_edges_without_bridges():
    data = moving([0, 4, 8], [[True] * 3, [True, False, True]])
    more = bridged(data, ["pairs", None], [], np.random.default_rng(0))
    for name in ("states", "actions", "present"):
        assert np.array_equal(getattr(more, name)[:, :3], getattr(data, name))
    assert np.array_equal(more.base, data.base) and np.array_equal(more.base_index, data.base_index)
    assert more.present[0, 3:].all() and not more.present[1, 3:].any()


def test_nothing_is_guessed_beyond_an_edges_teachers_nor_from_a_teacher_that_is_left_out():
    late = [False, False, True, True]
    data = moving([0, 4, 8, 12], [late, [True, False, True, True]])
    spoilt = np.where(data.present[..., None, None], data.states, np.nan).astype(np.float32)
    more = bridge(Supervision(**{**data.__dict__, "states": spoilt}))
    added = more.indices[4:]
    assert np.array_equal(more.present[0, 4:], added > 8)
    assert more.present[1, 4:].all() and np.isfinite(more.states[1, 4:]).all()


def test_the_same_seed_gives_the_same_guesses_and_rows_are_bounded():
    data = moving([0, 4], [[True] * 2] * 2, rows=PAIRS + 100)
    first, second = (bridge(data, seed=5) for _ in range(2))
    assert np.array_equal(first.states, second.states) and first.states.shape[2] == PAIRS + 100
    assert len(np.unique(first.states[0, 2], axis=0)) == PAIRS


# --- task coordinates ------------------------------------------------------------------------------------

SHIFT = np.array([0.5, 0.25])


def car(last: int = 8, gap: int = 4, shift: Array = SHIFT) -> Tasks:
    """A car that drives from around (0, 0) to a box around (4, 3), both of which shift with the index."""
    start = {"center": [0.0, 0.0], "noise": 0.3, "shift": shift.tolist()}
    target = {"center": [4.0, 3.0], "half_width": 1.0, "shift": shift.tolist()}
    return tasks_of("Car2D", {"start": start, "a": target}, gap=gap, last_index=last)


def linear(weights: Array, bias: Array) -> tuple[Network, Array]:
    """A network that computes tanh(W s + b), about."""
    m, n = weights.shape
    network = Network(n, (n,), m)
    theta = np.zeros(network.size)
    (first, _), (second, last) = network.layers(theta[None])
    first[0], second[0], last[0, 0] = SMALL * np.eye(n), weights.T / SMALL, bias
    return network, theta


def guide_of(tasks: Tasks, network: Network, actors: Array) -> Guide:
    (edge,) = tasks.edge_names
    scale = np.zeros(network.inputs), np.ones(network.inputs)
    return Guide.of(tasks, edge, network, scale, actors)


def shifted_car() -> tuple[Guide, Array]:
    """Teachers that are images of each other under the shift: what they do at any index is known exactly."""
    tasks = car()
    weights = np.array([[0.2, -0.1], [0.05, 0.1]])
    network, theta = linear(weights, np.array([0.1, -0.2]))
    actors = np.repeat(theta[None], len(tasks.indices), axis=0)
    for n, index in enumerate(tasks.indices):
        network.layers(actors[n : n + 1])[1][1][0, 0] -= weights @ SHIFT * index
    return guide_of(tasks, network, actors), theta


def test_places_are_those_of_the_regions_and_interpolated_between_training_tasks():
    guide, _ = shifted_car()
    for index in (0, 3, 8):
        source, target = guide.place(index)
        np.testing.assert_allclose(source, SHIFT * index, atol=1e-6)
        np.testing.assert_allclose(target, np.array([4.0, 3.0]) + SHIFT * index, atol=1e-6)


def test_a_state_moves_with_the_source_near_the_source_and_with_the_target_near_the_target():
    tasks = tasks_of(
        "Car2D",
        {
            "start": {"center": [0.0, 0.0], "noise": 0.3},
            "a": {"center": [4.0, 0.0], "half_width": 1.0, "shift": [0.0, 1.0]},
        },
        last_index=10,
    )
    network, theta = linear(np.zeros((2, 2)), np.zeros(2))
    guide = guide_of(tasks, network, np.repeat(theta[None], len(tasks.indices), axis=0))
    ends = np.array([[0.0, 0.0], [4.0, 5.0], [2.0, 2.5]])  # source, target, and half way, at index 5
    np.testing.assert_allclose(guide.carry(ends, 5, 10), [[0.0, 0.0], [4.0, 10.0], [2.0, 5.0]], atol=1e-6)


def test_what_a_target_leaves_free_moves_with_the_source():
    start = {"center": [0.0, 1.0], "noise": 0.3, "shift": [0.0, 1.0]}
    free = {"center": {"x": 4.0}, "half_width": 1.0}
    tasks = tasks_of("Car2D", {"start": start, "a": free}, last_index=10)
    network, theta = linear(np.zeros((2, 2)), np.zeros(2))
    guide = guide_of(tasks, network, np.repeat(theta[None], len(tasks.indices), axis=0))
    assert guide.place(5)[1].tolist() == [4.0, 6.0]


def test_the_guess_is_right_where_teachers_are_images_of_each_other():
    guide, base = shifted_car()
    states = np.random.default_rng(0).uniform(-1.0, 4.0, (50, 2))
    for index in (1, 3, 6):
        truth = guide.network.forward(base, states - SHIFT * index)
        np.testing.assert_allclose(guide.guess(states, index), truth, atol=0.02)


def test_half_way_between_two_headings_is_the_shorter_way_around():
    """Headings of 0.9 and −0.9 half turns: actions half way point backwards, not forwards."""
    network, theta = linear(np.zeros((2, 2)), np.zeros(2))
    tasks = car(last=4, gap=4)
    actors = np.repeat(theta[None], 2, axis=0)
    for n, heading in enumerate((0.9, -0.9)):
        network.layers(actors[n : n + 1])[1][1][0, 0, 1] = np.arctanh(heading)
    found = guide_of(tasks, network, actors).guess(np.zeros((1, 2)), 2)
    assert abs(found[0, 1]) == pytest.approx(1.0, abs=1e-3)


def test_carried_states_and_their_guesses_fill_the_columns_in_between():
    guide, _ = shifted_car()
    rng = np.random.default_rng(3)
    rows = rng.uniform(-1.0, 4.0, (1, 1, 300, 2)) + SHIFT * np.array([0, 4, 8])[None, :, None, None]
    actions = guide.network.forward(guide.actors[None], rows.astype(np.float32))
    base = guide.actors[:1].astype(np.float32)
    data = Supervision(
        np.array([0, 4, 8]),
        rows.astype(np.float32),
        actions.astype(np.float32),
        np.ones((1, 3), bool),
        base,
        np.zeros(1, dtype=int),
    )
    more = bridged(data, ["actions"], [guide], np.random.default_rng(0))
    assert more.present.all()
    for n, index in enumerate(more.indices[3:], start=3):
        home = more.states[0, n] - SHIFT * index
        np.testing.assert_allclose(more.actions[0, n], guide.network.forward(guide.actors[0], home), atol=0.02)


def test_states_are_carried_only_where_they_are_observed_as_they_are():
    class Hidden(Car2D):
        def observe(self, states: Array) -> Array:
            return states[..., :1]

    assert carries(Car2D()) and not carries(Hidden())
