"""Environments against scalar re-implementations that share no code with them, and their contract."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dibs import registry
from dibs.envs import (
    Car2D,
    DroneAttitude,
    Environment,
    Reacher,
    SimpleDrone,
    check_array,
    sample_noise,
    truncated_normal,
)
from dibs.errors import DibsError

Vector = Sequence[float]
CLASSES: dict[str, type[Environment]] = {kind.name: kind for kind in (Car2D, DroneAttitude, Reacher, SimpleDrone)}
KINDS = sorted(CLASSES)


def environment_of(kind: str) -> Environment:
    return CLASSES[kind]()


def clip(x: float, low: float, high: float) -> float:
    return min(max(x, low), high)


def car(d: Car2D, s: Vector, a: Vector, z: Vector) -> list[float]:
    v = d.speed * (clip(a[0], -1, 1) + 1) / 2
    theta = math.pi * clip(a[1], -1, 1)
    return [s[0] + v * math.cos(theta) + d.noise * z[0], s[1] + v * math.sin(theta) + d.noise * z[1]]


def simpledrone(d: SimpleDrone, s: Vector, a: Vector, z: Vector) -> list[float]:
    return [s[i] + d.speed * clip(a[i], -1, 1) + d.noise * z[i] for i in range(3)]


def matmul(m: list[list[float]], v: Vector) -> list[float]:
    return [sum(m[i][k] * v[k] for k in range(3)) for i in range(3)]


def attitude(d: DroneAttitude, s: Vector, a: Vector, z: Vector) -> list[float]:
    a = [clip(x, -1, 1) for x in a]
    cy, sy, cp, sp = math.cos(s[3]), math.sin(s[3]), math.cos(s[4]), math.sin(s[4])
    about_z = [[cy, -sy, 0.0], [sy, cy, 0.0], [0.0, 0.0, 1.0]]
    about_y = [[cp, 0.0, sp], [0.0, 1.0, 0.0], [-sp, 0.0, cp]]
    moved = matmul(about_z, matmul(about_y, [d.speed * x for x in a[:3]]))
    position = [s[i] + moved[i] + d.noise * z[i] for i in range(3)]
    yaw = s[3] + d.rate * a[3] + d.attitude_noise * z[3]
    while yaw > math.pi:
        yaw -= 2 * math.pi
    while yaw <= -math.pi:
        yaw += 2 * math.pi
    pitch = s[4] + d.rate * a[4] + d.attitude_noise * z[4]
    return [*position, yaw, clip(pitch, -d.pitch_limit, d.pitch_limit)]


def arm_joints(d: Reacher, x: float, y: float) -> tuple[float, float]:
    """Inverse kinematics by the law of cosines on the triangle shoulder, elbow, end effector."""
    square = x * x + y * y
    inner = math.acos(clip((2 * d.link**2 - square) / (2 * d.link**2), -1, 1))  # angle at the elbow
    theta2 = math.pi - inner
    theta1 = math.atan2(y, x) - math.atan2(d.link * math.sin(theta2), d.link * (1 + math.cos(theta2)))
    return theta1, theta2


def arm(d: Reacher, s: Vector, a: Vector, z: Vector) -> list[float]:
    theta1, theta2 = arm_joints(d, s[0], s[1])
    low1, high1, low2, high2 = -math.pi / 2, math.pi, 0.0, math.pi
    wanted1 = low1 + (high1 - low1) * (clip(a[0], -1, 1) + 1) / 2
    wanted2 = low2 + (high2 - low2) * (clip(a[1], -1, 1) + 1) / 2
    theta1 += clip(wanted1 - theta1, -d.rate, d.rate)
    theta2 += clip(wanted2 - theta2, -d.rate, d.rate)
    x = d.link * math.cos(theta1) + d.link * math.cos(theta1 + theta2) + d.noise * z[0]
    y = d.link * math.sin(theta1) + d.link * math.sin(theta1 + theta2) + d.noise * z[1]
    y = max(y, 0.0)
    radius = math.hypot(x, y)
    if radius == 0.0:
        return [0.0, d.nearest]
    allowed = clip(radius, d.nearest, 2 * d.link * (1 - 1e-6))
    return [x / radius * allowed, y / radius * allowed]


SCALAR: dict[str, Callable[..., list[float]]] = {
    "Car2D": car,
    "SimpleDrone": simpledrone,
    "DroneAttitude": attitude,
    "Reacher": arm,
}


def examples(kind: str, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """States, actions (some beyond their range) and noise, in double precision."""
    rng = np.random.default_rng(seed)
    environment = environment_of(kind)
    dim, m = len(environment.state_names), len(environment.action_names)
    low, high = (np.clip(bound, -30, 30) for bound in environment.bounds)
    states: np.ndarray = rng.uniform(low, high, (n, dim))
    if isinstance(environment, Reacher):
        states = environment.project(states)
    return states, rng.uniform(-1.3, 1.3, (n, m)), sample_noise(rng, (n, dim), np.float64)


@pytest.mark.parametrize("kind", KINDS)
def test_step_is_what_the_docstring_says(kind: str) -> None:
    environment = environment_of(kind)
    states, actions, noise = examples(kind, 400)
    moved = environment.step(states, actions, noise)
    expected = [SCALAR[kind](environment, *row) for row in zip(states, actions, noise, strict=True)]
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_constants_are_used(kind: str) -> None:
    other: dict[str, Environment] = {"Car2D": Car2D(2.0, 0.3), "SimpleDrone": SimpleDrone(2.0, 0.3)}
    other |= {"DroneAttitude": DroneAttitude(2.0, 0.4, 0.3, 0.2, 0.1), "Reacher": Reacher(3.0, 0.1, 0.2, 1.0)}
    environment = other[kind]
    states, actions, noise = examples(kind, 50)
    if isinstance(environment, Reacher):
        states = environment.project(states)
    expected = [SCALAR[kind](environment, *row) for row in zip(states, actions, noise, strict=True)]
    np.testing.assert_allclose(environment.step(states, actions, noise), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_contract(kind: str) -> None:
    """Single precision stays single, the arguments are left alone, and states stay within the bounds."""
    environment = environment_of(kind)
    assert isinstance(environment, Environment)
    arrays = [array.astype(np.float32) for array in examples(kind, 5000)]
    before = [array.copy() for array in arrays]
    moved = environment.step(*arrays)
    assert moved.dtype == np.float32
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)
        assert not np.shares_memory(array, moved)
    low, high = (np.asarray(bound, dtype=np.float32) for bound in environment.bounds)
    assert ((moved >= low) & (moved <= high)).all()
    assert len(environment.noise_scale) == len(low) == len(high) == len(environment.state_names)
    np.testing.assert_array_equal(
        environment.step(arrays[0], np.clip(arrays[1], -1, 1), arrays[2]), moved, "actions are clipped"
    )


@pytest.mark.parametrize("kind", KINDS)
@given(shape=st.lists(st.integers(1, 5), max_size=3).map(tuple), seed=st.integers(0, 99))
def test_batch_shape_does_not_matter(kind: str, shape: tuple[int, ...], seed: int) -> None:
    environment = environment_of(kind)
    n = math.prod(shape)
    flat = [array.astype(np.float32) for array in examples(kind, n, seed)]
    shaped = [array.reshape(*shape, array.shape[-1]) for array in flat]
    moved = environment.step(*shaped)
    assert moved.shape == shaped[0].shape
    np.testing.assert_array_equal(moved.reshape(flat[0].shape), environment.step(*flat))
    one_by_one = np.stack([environment.step(*(array[i] for array in flat)) for i in range(n)])
    np.testing.assert_allclose(moved.reshape(flat[0].shape), one_by_one, rtol=0, atol=4e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_projection_keeps_states_that_exist(kind: str) -> None:
    environment = environment_of(kind)
    moved = environment.step(*(array.astype(np.float32) for array in examples(kind, 2000)))
    projected = environment.project(moved)
    assert projected.dtype == np.float32
    np.testing.assert_allclose(projected, moved, rtol=0, atol=2e-6)
    far = environment.project(np.full((3, len(environment.state_names)), 1e3))
    low, high = (np.asarray(bound) for bound in environment.bounds)
    assert ((far >= low) & (far <= high)).all()
    np.testing.assert_allclose(environment.project(far), far, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_periods(kind: str) -> None:
    """A state and the same state one period further lead to the same state."""
    environment = environment_of(kind)
    periods = np.array(environment.periods)
    assert periods.shape == (len(environment.state_names),)
    states, actions, noise = examples(kind, 200)
    moved, turned = environment.step(states, actions, noise), environment.step(states + periods, actions, noise)
    np.testing.assert_allclose(turned, moved, rtol=0, atol=1e-9)
    assert (periods > 0).tolist() == [name == "psi" for name in environment.state_names]


@pytest.mark.parametrize("kind", KINDS)
def test_action_periods(kind: str) -> None:
    """An action that is an angle covers exactly one period, so both ends of its range are the same."""
    environment = environment_of(kind)
    periods = np.array(environment.action_periods)
    assert periods.shape == (len(environment.action_names),)
    assert periods.tolist() == [2.0 if (kind, name) == ("Car2D", "theta") else 0.0 for name in environment.action_names]
    states, actions, noise = examples(kind, 200)
    low, high = (np.where(periods > 0, end, actions) for end in (-1.0, 1.0))
    np.testing.assert_allclose(
        environment.step(states, low, noise), environment.step(states, high, noise), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("kind", KINDS)
def test_registered(kind: str) -> None:
    assert registry.load("environments", kind) is CLASSES[kind]


def test_defaults_of_the_interface() -> None:
    """Names, noise and a step are enough."""

    @dataclass(frozen=True)
    class Boat(Environment):
        name = "Boat"
        state_names = ("x", "y", "heading")
        action_names = ("rudder",)

        @property
        def noise_scale(self) -> tuple[float, ...]:
            return (0.0, 0.0, 0.0)

        def step(self, states: np.ndarray, actions: np.ndarray, noise: np.ndarray) -> np.ndarray:
            return states

    boat, states = Boat(), np.array([[1.0, -2.0, 300.0]])
    assert boat.observe(states) is states
    np.testing.assert_array_equal(boat.project(states), states)
    assert boat.bounds == ((-np.inf,) * 3, (np.inf,) * 3) and boat.periods == (0.0, 0.0, 0.0)
    assert boat.skeleton(states) is None
    assert (boat.observation_dim, boat.action_dim) == (3, 1)


def test_yaw_wraps_and_pitch_stops() -> None:
    drone = DroneAttitude()
    turn = np.array([0.0, 0.0, 0.0, 1.0, 1.0])
    state = np.array([0.0, 0.0, 0.0, math.pi - 0.01, 0.55])
    moved = drone.step(state, turn, np.zeros(5))
    assert moved[3] == pytest.approx(-math.pi + 0.14)
    assert moved[4] == drone.pitch_limit
    edge = drone.step(np.array([0.0, 0.0, 0.0, math.pi, 0.0]), np.zeros(5), np.zeros(5))
    assert edge[3] == math.pi, "an angle in range keeps every bit"


# --- the arm ----------------------------------------------------------------------------------------------


def arm_positions(n: int = 2000) -> np.ndarray:
    rng = np.random.default_rng(3)
    radius, angle = rng.uniform(0.5, 9.99, n), rng.uniform(0, math.pi, n)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1)


def test_arm_kinematics_invert_each_other() -> None:
    d = Reacher()
    positions = arm_positions()
    theta1, theta2 = d.joints(positions)
    np.testing.assert_allclose(d.position(theta1, theta2), positions, atol=1e-9)
    np.testing.assert_allclose(np.stack([theta1, theta2], -1), [arm_joints(d, x, y) for x, y in positions], atol=1e-6)
    assert theta1.min() >= -math.pi / 2 and theta1.max() <= math.pi
    assert theta2.min() >= 0.0 and theta2.max() <= math.pi


def test_arm_skeleton_links_the_shoulder_to_the_end_effector() -> None:
    d = Reacher(link=4.0)
    positions = arm_positions(50) * 0.8
    skeleton = d.skeleton(positions.reshape(5, 10, 2))
    assert skeleton.shape == (5, 10, 3, 2) and not skeleton[..., 0, :].any()
    np.testing.assert_allclose(np.linalg.norm(np.diff(skeleton, axis=-2), axis=-1), 4.0)
    np.testing.assert_allclose(skeleton[..., -1, :].reshape(-1, 2), positions, atol=1e-9)


def test_arm_turns_no_faster_than_its_rate() -> None:
    """Where neither the floor nor the reach interferes, the joints are where the rate allows them to be."""
    d = Reacher()
    positions = arm_positions()
    actions = np.random.default_rng(4).uniform(-1, 1, positions.shape)
    moved = d.step(positions, actions, np.zeros_like(positions))
    before, after = np.stack(d.joints(positions)), np.stack(d.joints(moved))
    wanted = np.stack([(0.25 + 0.75 * actions[:, 0]) * math.pi, (0.5 + 0.5 * actions[:, 1]) * math.pi])
    turned = before + np.clip(wanted - before, -d.rate, d.rate)
    free = np.abs(d.project(d.position(*turned)) - d.position(*turned)).max(axis=-1) == 0.0
    assert free.mean() > 0.5
    change = np.abs(after - before)[:, free]
    assert change.max() <= d.rate + 1e-9
    np.testing.assert_allclose(after[:, free], turned[:, free], atol=1e-6)
    assert (np.abs(change - d.rate) < 1e-9).any() and (change < d.rate - 1e-3).any()


def test_arm_holds_still_on_its_own_command() -> None:
    d = Reacher()
    positions = arm_positions(200)
    theta1, theta2 = d.joints(positions)
    hold = np.stack([(theta1 / math.pi - 0.25) / 0.75, (theta2 / math.pi - 0.5) / 0.5], axis=-1)
    np.testing.assert_allclose(d.step(positions, hold, np.zeros_like(positions)), positions, atol=1e-9)


def test_arm_reaches_any_command_in_time() -> None:
    d = Reacher()
    goal = np.array([-4.0, 5.1])
    theta1, theta2 = d.joints(goal)
    command = np.array([(theta1 / math.pi - 0.25) / 0.75, (theta2 / math.pi - 0.5) / 0.5])
    state = np.array([5.0, 0.3])
    steps = 0
    while np.abs(state - goal).max() > 1e-6:
        state, steps = d.step(state, command, np.zeros(2)), steps + 1
        assert steps < 30
    assert steps > 5, "it cannot be there at once"


@pytest.mark.parametrize(
    ("position", "allowed"),
    [
        ((3.0, -2.0), (3.0, 0.0)),  # the floor is solid
        ((30.0, 40.0), (6.0, 8.0)),  # out of reach: back along the ray
        ((0.03, 0.04), (0.3, 0.4)),  # too near the shoulder: out along the ray
        ((0.0, 0.0), (0.0, 0.5)),  # no ray to follow
        ((0.0, -1.0), (0.0, 0.5)),
        ((-20.0, -1.0), (-10.0, 0.0)),
        ((2.0, 3.0), (2.0, 3.0)),
    ],
)
def test_arm_projects_to_what_it_can_reach(position: Vector, allowed: Vector) -> None:
    d = Reacher()
    np.testing.assert_allclose(d.project(np.array(position)), allowed, atol=2e-5)
    twice = d.project(d.project(np.array(position)))
    np.testing.assert_allclose(twice, d.project(np.array(position)), atol=1e-9)


# --- noise ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_noise_is_a_truncated_normal(dtype: type) -> None:
    noise = sample_noise(np.random.default_rng(0), (100_000,), dtype)
    assert noise.dtype == dtype
    assert np.abs(noise).max() <= 1.0 + 1e-6
    assert stats.kstest(noise.astype(np.float64), stats.truncnorm(-1, 1).cdf).pvalue > 0.01
    assert stats.kstest(noise.astype(np.float64), stats.uniform(-1, 2).cdf).pvalue < 1e-6, "nor uniform"


def test_noise_is_the_inverse_of_the_distribution() -> None:
    uniforms = np.linspace(0, 1, 1001)
    np.testing.assert_allclose(truncated_normal(uniforms), stats.truncnorm(-1, 1).ppf(uniforms), atol=1e-9)
    ends = truncated_normal(np.array([0.0, np.nextafter(np.float32(1), np.float32(0))], dtype=np.float32))
    assert np.isfinite(ends).all() and np.abs(ends).max() <= 1.0 + 1e-6


def test_noise_is_reproducible() -> None:
    first, second = (sample_noise(np.random.default_rng(7), (4, 3)) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert (sample_noise(np.random.default_rng(8), (4, 3)) != first).all()


# --- input ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, math.nan], r"action: nan at position \(1,\)"),
        ([[0.0, 0.0], [math.inf, 0.0]], r"inf at position \(1, 0\)"),
        ([1.0, 2.0, 3.0], r"length 2, found shape \(3,\)"),
        (1.0, r"found shape \(\)"),
        (["a", "b"], "expected numbers, found dtype"),
        ([True, False], "expected numbers, found dtype bool"),
        ([None, 1.0], "expected numbers, found dtype object"),
    ],
)
def test_check_array_refuses(values: object, message: str) -> None:
    with pytest.raises(DibsError, match=message):
        check_array("action", values, 2)  # type: ignore[arg-type]


def test_check_array_accepts() -> None:
    single = np.zeros((3, 2), dtype=np.float32)
    assert check_array("x", single, 2) is single
    assert check_array("x", [1, 2], 2).dtype == np.float64


def test_importing_the_environments_is_light() -> None:
    heavy = ("torch", "gymnasium", "pydantic", "scipy", "PIL")
    code = f"import sys, dibs.envs; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
