"""Input scaling: boxes of the first and last task, and of what is observed there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.envs import Array, Car2D, Environment
from dibs.families import NetworkModel, RewardModel, Tasks, get_family, load_family
from dibs.policies.scaling import Scaling, edge_scaling, joint_scaling, observed_bounds
from dibs.spectrl import Region


@dataclass(frozen=True)
class Polar(Car2D):
    """A car that knows its distance and direction from the origin, and where it is along a diagonal."""

    name: ClassVar[str] = "Polar"

    def observe(self, states: Array) -> Array:
        x, y = states[..., 0], states[..., 1]
        return np.stack([np.hypot(x, y), np.arctan2(y, x), x - 2.0 * y, np.ones_like(x)], axis=-1)


def ends(family: Any) -> Tasks:
    tasks: Tasks = family.tasks([0, family.last_index])
    return tasks


# --- states as they are ----------------------------------------------------------------------------------


def test_it_is_the_box_around_source_and_target_of_the_first_and_last_index(tiny):
    scaling = edge_scaling(ends(tiny))
    # start>a: from (0 ± 0.1, 0 ± 0.1) to (2 ± 1, 3 ± 1), both 1 further right at index 4.
    np.testing.assert_allclose(scaling.center[0] - scaling.half[0], [-0.1, -0.1], atol=1e-6)
    np.testing.assert_allclose(scaling.center[0] + scaling.half[0], [4.0, 4.0], atol=1e-6)
    # a>b: from a to b, wherever they are.
    np.testing.assert_allclose(scaling.center[1] - scaling.half[1], [-1.0, 2.0], atol=1e-6)
    np.testing.assert_allclose(scaling.center[1] + scaling.half[1], [4.0, 7.0], atol=1e-6)


def test_methods_without_a_graph_have_one_box_around_all_edges(tiny):
    center, half = joint_scaling(ends(tiny))
    np.testing.assert_allclose(center - half, [-1.0, -0.1], atol=1e-6)
    np.testing.assert_allclose(center + half, [4.0, 7.0], atol=1e-6)
    assert center.dtype == half.dtype == np.float32


def test_it_does_not_depend_on_the_indices_between(tiny, tiny_description):
    """A region that bulges out between index 0 and L, but stands at both ends where it would anyway."""
    regions: dict[str, Any] = {
        "a": {"center": [2.0, 3.0], "half_width": 1.0, "shift": [4.0, 0.0], "drift": [-1.0, 0.0]},
        "b": {"center": [0.0, 6.0], "half_width": 1.0},
    }
    bulging = load_family(tiny_description(regions=regions)).tasks(range(5))
    del regions["a"]["shift"], regions["a"]["drift"]
    standing = load_family(tiny_description(regions=regions)).tasks([0, 4])
    one, other = edge_scaling(bulging), edge_scaling(standing)
    assert np.array_equal(one.center, other.center) and np.array_equal(one.half, other.half)
    for part, same in zip(joint_scaling(bulging), joint_scaling(standing), strict=True):
        assert np.array_equal(part, same)


def test_a_variable_that_nothing_varies_is_not_divided_by_zero(tiny_description):
    family = load_family(
        tiny_description(
            specification="achieve reach(a)",
            start={"center": [0.0, 5.0]},
            regions={"a": {"center": [3.0, None], "half_width": 1.0}},
        )
    )
    scaling = edge_scaling(ends(family))
    assert scaling.half.tolist() == [[2.0, 1.0]] and scaling.center.tolist() == [[2.0, 5.0]]
    center, half = joint_scaling(ends(family))
    assert half.tolist() == [2.0, 1.0] and center.tolist() == [2.0, 5.0]


def test_take_selects_edges():
    scaling = Scaling(np.arange(6.0).reshape(3, 2), np.ones((3, 2)))
    assert scaling.take(np.array([2, 0])).center.tolist() == [[4.0, 5.0], [0.0, 1.0]]


# --- observations ----------------------------------------------------------------------------------------


def grid(low: Array, high: Array, n: int = 60) -> Array:
    """States (n², 2) that fill a box, corners included."""
    axes = [np.linspace(a, b, n) for a, b in zip(low, high, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(low))


BOXES = st.tuples(*[st.floats(-9.0, 9.0)] * 2, *[st.floats(0.1, 5.0)] * 2)


@given(BOXES)
def test_observed_bounds_are_those_of_a_fine_grid(box):
    low, high = np.array(box[:2]), np.array(box[:2]) + box[2:]
    found_low, found_high = observed_bounds(Polar(), low, high)
    seen = Polar().observe(grid(low, high))
    assert found_low.shape == found_high.shape == (4,)
    span = np.maximum(seen.max(axis=0) - seen.min(axis=0), 1e-9)
    # Monotone parts are exact, because corners are among the samples; minima inside or on a side are nearly met.
    assert (np.abs(found_low - seen.min(axis=0)) <= 0.1 * span + 1e-9).all()
    assert (np.abs(found_high - seen.max(axis=0)) <= 0.1 * span + 1e-9).all()
    linear = [low[0] - 2.0 * high[1], high[0] - 2.0 * low[1]]
    np.testing.assert_allclose([found_low[2], found_high[2]], linear, atol=1e-9)


@given(st.lists(BOXES, min_size=2, max_size=4))
def test_boxes_are_bounded_each_on_its_own(boxes):
    low = np.array([box[:2] for box in boxes])
    high = low + np.array([box[2:] for box in boxes])
    together = observed_bounds(Polar(), low, high)
    for n in range(len(boxes)):
        for part, alone in zip(together, observed_bounds(Polar(), low[n], high[n]), strict=True):
            np.testing.assert_array_equal(part[n], alone)


def test_networks_see_the_bounds_of_observations(tiny):
    tasks = replace(ends(tiny), environment=Polar())
    scaling = edge_scaling(tasks)
    assert scaling.center.shape == scaling.half.shape == (2, 4) and tasks.environment.observation_dim == 4
    assert scaling.half[:, 3].tolist() == [1.0, 1.0] and scaling.center[:, 3].tolist() == [1.0, 1.0]  # a constant
    edges = tasks.reach_avoid()
    rng = np.random.default_rng(0)
    uniforms = rng.random((edges.tasks, 500, 2))
    targets = edges.target.center[:, :1] + edges.target.half_width[:, :1] * rng.uniform(-1, 1, (edges.tasks, 500, 2))
    # Inputs lie in the unit box, or nearly, wherever an edge starts or ends. (The direction jumps at the origin.)
    for row in range(edges.tasks):
        seen = Polar().observe(np.concatenate([edges.initial(uniforms)[row], targets[row]]))
        inputs = (seen - scaling.center[row % 2]) / scaling.half[row % 2]
        assert np.abs(inputs[:, [0, 2, 3]]).max() < 1.05
    center, half = joint_scaling(tasks)
    assert center.shape == half.shape == (4,) and half[3] == 1.0
    lowest, highest = (scaling.center - scaling.half).min(axis=0), (scaling.center + scaling.half).max(axis=0)
    span = np.maximum(highest - lowest, 1.0)
    assert (center - half <= lowest + 0.1 * span).all() and (center + half >= highest - 0.1 * span).all()


def test_bounds_repeat():
    one, other = (observed_bounds(Polar(), np.array([-1.0, -2.0]), np.array([3.0, 4.0])) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_an_environment_that_shows_its_states_is_bounded_exactly():
    low, high = np.array([[-1.0, 2.0]]), np.array([[3.0, 2.0]])
    found = observed_bounds(Car2D(), low, high)
    assert found[0] is low and found[1] is high
    arm = get_family("reacher-drop-same-8")
    assert type(arm.environment).observe is Environment.observe
    assert edge_scaling(ends(arm)).center.shape == (len(arm.edges), 2)


@pytest.mark.parametrize("dim", [1, 5, 9])
def test_states_of_any_dimension(dim):
    """Corners are among the samples up to eight variables, where there are not too many."""

    @dataclass(frozen=True)
    class Sum(Environment):
        name: ClassVar[str] = "Sum"
        state_names: ClassVar[tuple[str, ...]] = tuple("abcdefghi"[:dim])
        action_names: ClassVar[tuple[str, ...]] = ("u",)

        @property
        def noise_scale(self) -> tuple[float, ...]:
            return (0.0,) * dim

        def step(self, states: Array, actions: Array, noise: Array) -> Array:
            return states

        def observe(self, states: Array) -> Array:
            return states.sum(axis=-1, keepdims=True)

    tasks = Tasks(
        "sum",
        Sum(),
        "achieve reach(g)",
        (0, 1),
        np.zeros((2, dim)),
        np.zeros((2, dim)),
        {"g": Region(np.full((2, dim), 2.0), np.ones((2, dim)))},
        5,
        RewardModel(),
        NetworkModel(hidden=[2]),
    )
    scaling = edge_scaling(tasks)
    high = float(scaling.center[0, 0] + scaling.half[0, 0])
    assert scaling.center.shape == (1, 1)
    assert high == pytest.approx(3.0 * dim) if dim <= 8 else 0.6 * 3.0 * dim < high <= 3.0 * dim
