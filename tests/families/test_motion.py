"""Balls, half-spaces, rotations and dilations, against complex numbers, matrices and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation as SciPyRotation
from scipy.stats import kstest

from dibs.errors import DibsError
from dibs.families import Family, load_family
from dibs.families.description import RegionModel
from dibs.families.tasks import uniform_in_ball
from dibs.simulation import EdgeTask, SpecTask, draw, signed_distance
from dibs.simulation.distance import columns
from dibs.spectrl import Region, satisfied

XYZ = ("x", "y", "z")


def description(**changes) -> dict:
    return {
        "name": "turning",
        "environment": {"name": "Car2D"},
        "specification": "(achieve reach(a); achieve reach(b)) ensuring avoid(w)",
        "start": {"center": [0.0, 0.0], "noise": 0.1},
        "regions": {
            "a": {"center": [6.0, 0.0], "radius": 1.0, "rotate": 9.0},
            "b": {"center": [6.0, 6.0], "half_width": 1.0, "rotate": {"degrees": 9.0, "about": [0.0, 0.0]}},
            "w": {"center": [0.0, -9.0], "normal": [0.0, -1.0]},
        },
        "last_index": 8,
        "horizon": 20,
        "network": {"hidden": [8]},
        **changes,
    }


@given(st.floats(-180, 180), st.integers(0, 50), *[st.floats(-5, 5)] * 4)
def test_rotation_is_multiplication_of_complex_numbers(degrees, index, x, y, u, v):
    region = RegionModel(center=[x, y], half_width=1.0, rotate={"degrees": degrees, "about": [u, v]})
    turned = complex(u, v) + complex(x - u, y - v) * np.exp(1j * np.deg2rad(degrees * index))
    found = region.ground(index, ("x", "y"))
    np.testing.assert_allclose(found.center, [turned.real, turned.imag], atol=1e-9)
    assert found.half_width.tolist() == [1.0, 1.0]  # boxes stay parallel to the axes


@pytest.mark.parametrize("plane", [["x", "y"], ["y", "z"], ["z", "x"], ["x", "z"]])
def test_rotation_in_space_agrees_with_scipy(plane):
    about, center = np.array([1.0, -2.0, 0.5]), np.array([3.0, 1.0, -1.0])
    model = RegionModel(
        center=center.tolist(), radius=0.5, rotate={"degrees": 7.0, "about": about.tolist(), "plane": plane}
    )
    first, second = (np.eye(3)[XYZ.index(name)] for name in plane)
    for index in (0, 1, 13):
        rotation = SciPyRotation.from_rotvec(np.cross(first, second) * np.deg2rad(7.0 * index))
        np.testing.assert_allclose(model.ground(index, XYZ).center, about + rotation.apply(center - about), atol=1e-12)


def test_dilation_after_rotation_after_shift():
    model = RegionModel(
        center=[2.0, 0.0],
        shift=[1.0, 0.0],
        drift=[0.0, 0.5],
        radius=0.5,
        scale=1.1,
        rotate={"degrees": 90.0, "about": [1.0, 0.0]},
        dilate={"factor": 0.5, "about": [0.0, 1.0]},
    )
    # index 2: (4, 2) is turned by 180° about (1, 0) to (-2, -2), then quartered towards (0, 1)
    found = model.ground(2, ("x", "y"))
    np.testing.assert_allclose(found.center, [-0.5, 0.25], atol=1e-12)
    assert float(found.radius) == pytest.approx(0.5 * 1.1**2 * 0.25)


def test_a_half_space_turns_with_its_normal():
    model = RegionModel(center=[1.0, 0.0], normal=[2.0, 0.0], rotate=90.0)
    turned = model.ground(1, ("x", "y"))
    assert turned.contains([[0.0, 1.5], [0.0, 0.5], [9.0, 1.0 + 1e-9]]).tolist() == [True, False, True]
    np.testing.assert_allclose(turned.signed_distance([[3.0, 4.0], [3.0, 0.0]]), [3.0, -1.0])


@given(st.integers(0, 2**32 - 1), st.integers(1, 4))
def test_distances_to_mixed_regions_agree_with_closed_forms(seed, dim):
    rng = np.random.default_rng(seed)
    center, states = rng.normal(size=(3, dim)), 3.0 * rng.normal(size=(20, 1, dim))
    half = np.stack([rng.uniform(0.2, 2.0, dim), np.zeros(dim), np.full(dim, np.inf)])
    radius, normal = np.array([0.0, rng.uniform(0.2, 2.0), 0.0]), np.zeros((3, dim))
    normal[2] = rng.normal(size=dim)
    mixed = Region(center, half, radius, normal)
    found = mixed.signed_distance(states)
    np.testing.assert_allclose(found[:, 0], Region(center[0], half[0]).signed_distance(states[:, 0]))
    np.testing.assert_allclose(found[:, 1], radius[1] - np.linalg.norm(states[:, 0] - center[1], axis=-1))
    height = (states[:, 0] - center[2]) @ normal[2] / np.linalg.norm(normal[2])
    np.testing.assert_allclose(found[:, 2], height, atol=1e-9)
    np.testing.assert_array_equal(mixed.contains(states), found >= 0.0)
    broadcast = np.broadcast_to(states, (20, 3, dim))
    np.testing.assert_allclose(signed_distance(broadcast, columns(mixed, np.float64)), found, atol=1e-9)


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_points_are_uniform_in_a_ball(dim):
    points = uniform_in_ball(np.random.default_rng(dim).random((20_000, dim)))
    radii = np.linalg.norm(points, axis=-1)
    assert radii.max() <= 1.0
    assert kstest(radii**dim, "uniform").pvalue > 1e-3
    assert np.abs(points.mean(axis=0)).max() < 0.02


def test_edges_start_uniformly_in_the_ball_before_them():
    tasks = load_family(description()).tasks([0, 5])
    task = EdgeTask(tasks.reach_avoid(edges=["a>b"]))
    starts = draw(task, 4000, np.random.default_rng(0)).starts
    for row, index in enumerate(tasks.indices):
        region = tasks.regions_at(index)["a"]
        assert region.contains(starts[row].astype(float) * (1 - 1e-6) + 1e-6 * region.center).all()
        assert kstest(np.linalg.norm(starts[row] - region.center, axis=-1) ** 2, "uniform").pvalue > 1e-3


def test_the_simulator_and_the_semantics_agree_on_all_kinds_of_regions():
    tasks = load_family(description()).tasks([0, 3, 8])
    task, rng = SpecTask(tasks), np.random.default_rng(3)
    walks = np.cumsum(rng.normal(0.0, 1.5, (3, 500, 41, 2)), axis=2).astype(np.float32)
    progress = task.begin(walks[:, :, 0])
    for time in range(1, 41):
        progress = task.advance(progress, walks[:, :, time])
    for row, index in enumerate(tasks.indices):
        ended = satisfied(tasks.spec, tasks.regions_at(index), walks[row].astype(float))
        tracked = task.success(progress)[row]
        assert (tracked >= ended).all() and tracked.any()  # an episode is over once it is satisfied


def test_smaller_balls_and_half_spaces():
    tasks = load_family(description(specification="achieve reach(w)")).tasks([0])
    for edges in (tasks.reach_avoid(), load_family(description()).tasks([0]).reach_avoid(edges=["start>a"])):
        states = np.random.default_rng(6).uniform(-12.0, 12.0, (1, 3000, 2))
        inside = EdgeTask(edges.shrunk(0.3)).target_distance(states) >= 0.0
        np.testing.assert_array_equal(inside, EdgeTask(edges).target_distance(states) >= 0.3)
        assert inside.any()


def test_python_and_yaml_give_the_same_family(tmp_path):
    family = load_family(description())
    family.save(tmp_path / "f.yaml")
    assert Family.load(tmp_path / "f.yaml") == family
    assert load_family(yaml.safe_load(family.to_yaml())) == family
    assert Family.load(tmp_path / "f.yaml").tasks_digest([0, 5, 8]) == family.tasks_digest([0, 5, 8])


def test_an_edge_cannot_start_in_a_half_space():
    with pytest.raises(DibsError, match="edge w>a starts in the half-space w"):
        load_family(description(specification="achieve reach(w); achieve reach(a)"))


def test_a_start_in_a_ball_or_half_space_to_avoid_is_refused_by_index():
    for region, index in (
        ({"center": [0.0, 4.0], "radius": 1.0, "shift": [0.0, -0.5]}, 6),
        ({"center": [0.0, -4.0], "normal": [0.0, -1.0], "shift": [0.0, 1.0]}, 4),
    ):
        data = description()
        data["regions"]["w"] = region
        with pytest.raises(DibsError, match=f"start: overlaps w, which must be avoided, at index {index}"):
            load_family(data)
