from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.errors import DibsError
from dibs.spectrl import Region

from .strategies import examples

INF = float("inf")
coordinates = st.floats(-1e3, 1e3, allow_subnormal=True)


def test_signed_distance_of_points_worked_out_by_hand():
    box = Region((1.0, 2.0), (1.0, 3.0))
    states = [(1, 2), (1.75, 2), (2, 2), (3, 2), (1, 6), (5, 9), (0, -1)]
    assert box.signed_distance(states).tolist() == [1, 0.25, 0, -1, -1, -5, 0]
    assert box.contains(states).tolist() == [True, True, True, False, False, False, True]


def test_a_single_state_gives_a_single_answer():
    box = Region((1.0, 2.0), (1.0, 3.0))
    for state, inside, distance in [((1.0, 2.0), True, 1.0), ((5.0, 9.0), False, -5.0)]:
        contained, measured = box.contains(state), box.signed_distance(state)
        assert contained.shape == measured.shape == ()
        assert (contained.item(), measured.item()) == (inside, distance)


def test_free_dimensions_do_not_count():
    stripe = Region((0.0, 0.0), (1.0, INF))
    assert stripe.signed_distance([(0.25, 1e9), (-3, -INF)]).tolist() == [0.75, -2]
    assert stripe.contains([(0.25, INF), (-3, 0)]).tolist() == [True, False]
    everywhere = Region((0.0,), (INF,))
    assert everywhere.signed_distance(np.zeros((4, 3, 1))).tolist() == np.full((4, 3), INF).tolist()
    assert everywhere.contains([7.0]).item() is True


def test_a_dimension_may_be_free_for_some_boxes_of_a_batch_only():
    boxes = Region(np.zeros(2), [[1.0, INF], [1.0, 1.0]])
    assert boxes.signed_distance([(0.0, 3.0), (0.0, 3.0)]).tolist() == [1, -2]
    assert boxes.signed_distance([(0.0, INF), (0.0, INF)]).tolist() == [1, -INF]
    assert boxes.contains([0.0, INF]).tolist() == [True, False]


def test_boxes_broadcast_against_states():
    boxes = Region(np.arange(3.0)[:, None, None] * np.ones(2), 0.5)
    states = np.zeros((3, 4, 2))
    assert boxes.batch_shape == (3, 1)
    assert boxes.contains(states).tolist() == [[True] * 4, [False] * 4, [False] * 4]
    assert boxes.signed_distance(states).shape == (3, 4)


@examples()
@given(st.lists(st.tuples(coordinates, coordinates, st.floats(1e-300, 1e3)), min_size=1, max_size=4))
def test_the_sign_says_whether_the_box_contains_the_state(dims):
    state, center, half_width = (np.array(column) for column in zip(*dims, strict=True))
    box = Region(center, half_width)
    distance, inside = box.signed_distance(state).item(), box.contains(state).item()
    assert inside if distance > 0 else True
    assert not inside if distance < 0 else True
    excess = np.abs(state - center) - half_width
    expected = -excess.max() if inside else -np.linalg.norm(np.maximum(excess, 0))
    assert distance == pytest.approx(expected, rel=1e-12, abs=1e-150)


def test_a_distance_whose_square_underflows_keeps_its_sign():
    assert Region((0.0, 0.0), (1e-250, 1.0)).signed_distance((3e-250, 0.0)).item() < 0


def test_a_box_keeps_its_own_copy():
    center = np.zeros(2)
    box = Region(center, (1.0, 1.0))
    center += 5
    assert box.contains((0.0, 0.0))
    with pytest.raises(ValueError, match="read-only"):
        box.center += 1


@pytest.mark.parametrize(
    ("center", "half_width", "words"),
    [
        ((0, 0), (1, 0), r"half_width: expected numbers above 0 .*found \[1.0, 0.0\]"),
        ((0, 0), (1, -2), "half_width"),
        ((0, 0), (1, float("nan")), "half_width.*NaN"),
        ((0, float("nan")), (1, 1), "center.*NaN"),
        ((0, INF), (1, 1), "center: expected finite"),
        ((0, 0), (1, 1, 1), r"center has shape \(2,\), half_width \(3,\)"),
        ((0, 0), (1,), "same dimension"),
        (np.zeros((3, 2)), np.ones((4, 2)), "shapes that broadcast"),
        (0.0, 1.0, r"center: expected shape \(..., dim\)"),
        (("x", "y"), (1, 1), "center: expected an array of numbers"),
    ],
)
def test_what_is_no_box_is_refused(center, half_width, words):
    with pytest.raises(DibsError, match=words):
        Region(center, half_width)


def test_states_of_another_dimension_are_refused():
    with pytest.raises(DibsError, match=r"shape \(5, 3\), but the region has 2"):
        Region((0, 0), (1, 1)).contains(np.zeros((5, 3)))
