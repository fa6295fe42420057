"""Frames of episodes: what they show, for the paper's environments and for any other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from dibs.drawing.film import BANNER, OUTCOMES, QUIET, TRAIL, Frame, Scene
from dibs.drawing.style import COLORS
from dibs.envs import Array, Car2D, Environment
from dibs.errors import DibsError
from dibs.families import Tasks, get_benchmark
from dibs.families.tasks import NetworkModel, RewardModel
from dibs.spectrl import Region

BENCHMARKS = ["car2d-choice-l2", "reacher-drop-opposite-9", "simpledrone-reach-k2", "droneattitude-reach-k3"]
FLOOR = "#EDEDED"


def tasks_of(name: str, index: int = 0) -> Tasks:
    benchmark = get_benchmark(name)
    return benchmark.family.tasks([index], benchmark.specification)


def task(environment: Environment, start: Sequence[float], regions: dict[str, Region], specification: str) -> Tasks:
    """A task in an environment of any kind."""
    center = np.array([start])
    look = RewardModel(), NetworkModel(hidden=[4])
    every = {name: region[None] for name, region in regions.items()}
    return Tasks("task", environment, specification, (0,), center, 0.0 * center + 0.1, every, 9, *look)


def box(center: Sequence[float], half: Sequence[float]) -> Region:
    return Region(np.array(center, dtype=float), np.array(half, dtype=float))


def trail_of(tasks: Tasks, steps: int) -> Array:
    """States (steps + 1, dim) under a constant action, from the start."""
    environment = tasks.environment
    states = [tasks.start_center[0].astype(np.float32)]
    action, noise = np.full(environment.action_dim, 0.4), np.zeros(len(states[0]))
    for _ in range(steps):
        states.append(environment.step(states[-1], action, noise))
    return np.stack(states)


def count(frame: Frame, color: Any) -> int:
    """Return how many pixels have exactly this color."""
    return int((frame == np.round(255 * np.array(to_rgb(color)))).all(axis=-1).sum())


@dataclass(frozen=True)
class Point(Environment):
    """Somebody else's environment: its state variables mean nothing to the drawing."""

    name: ClassVar[str] = "Point"
    state_names: ClassVar[tuple[str, ...]] = ("p", "q", "r")
    action_names: ClassVar[tuple[str, ...]] = ("u", "v", "w")

    @property
    def noise_scale(self) -> tuple[float, ...]:
        return (0.0,) * 3

    def step(self, states: Array, actions: Array, noise: Array) -> Array:
        return states + actions


@dataclass(frozen=True)
class Chain(Point):
    """An arm of three links, each half as long as the one before, without a floor."""

    def skeleton(self, states: Array) -> Array:
        links = np.stack([np.cos(states), np.sin(states)], axis=-1) * np.array([[4.0], [2.0], [1.0]])
        return np.concatenate([np.zeros((*states.shape[:-1], 1, 2)), np.cumsum(links, axis=-2)], axis=-2)


POINT = task(Point(), [0.0, 0.0, 0.0], {"r": box([3.0, 3.0, 3.0], [1.0, 1.0, 1.0])}, "achieve reach(r)")


@pytest.mark.parametrize("first_edge", [False, True])
@pytest.mark.parametrize("name", BENCHMARKS)
def test_frames(name: str, first_edge: bool) -> None:
    tasks = tasks_of(name)
    scenes = [Scene(tasks, name, edges=tasks.edges[:1] if first_edge else None) for _ in range(2)]
    trail = trail_of(tasks, 3)
    first, later = scenes[0].paint(trail[:1], progress="step 0"), scenes[0].paint(trail, progress="step 3")
    for frame in (first, later):
        assert frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
        assert frame.shape[0] % 16 == frame.shape[1] % 16 == 0, "video encoders ask for it"
        assert len(np.unique(frame @ (1, 256, 65536))) > 20 and frame.std() > 5, "not blank"
    assert 0 < (first != later).any(axis=-1).mean() < 0.2, "only the agent, its trail and the count have changed"
    np.testing.assert_array_equal(scenes[0].paint(trail[:1], progress="step 0"), first)
    np.testing.assert_array_equal(scenes[1].paint(trail, progress="step 3"), later)


def test_only_regions_of_the_edges_are_drawn() -> None:
    tasks = tasks_of("car2d-reach-k2")
    trail = tasks.start_center
    whole, part = Scene(tasks, ""), Scene(tasks, "", edges=tasks.edges[:1])
    for scene, targets in ((whole, ["g1", "g2"]), (part, ["g1"])):
        frame = scene.paint(trail)
        for name in targets:
            region = tasks.regions_at(0)[name]
            row, column = scene.pixel(region.center + 0.8 * region.half_width)
            assert frame[row, column, 1] > frame[row, column, 0] + 20, "green"
    row, _ = part.pixel(tasks.regions_at(0)["g2"].center)
    assert row < BANNER, "the second goal is out of view"


@pytest.mark.parametrize("name", ["car2d-reach-k1", "simpledrone-reach-k2"])
def test_the_agent_is_where_its_state_is(name: str) -> None:
    tasks = tasks_of(name)
    scene = Scene(tasks, "")
    empty = scene.paint(np.full((1, 3), -50.0))  # out of view
    planes = [(0, 1)] if name.startswith("car") else [(0, 1), (0, 2)]
    for state in ([1.0, 2.0, 0.5], [3.0, 4.0, 1.0]):
        changed = np.argwhere((scene.paint(np.array([state])) != empty).any(axis=-1))
        for panel, plane in enumerate(planes):
            place = scene.pixel(np.array(state)[list(plane)], panel)
            near = changed[np.abs(changed - place).max(axis=-1) < 60]
            middle = (near.min(axis=0) + near.max(axis=0)) / 2
            assert np.abs(middle - place).max() < 5 and np.ptp(near, axis=0).max() < 36


@pytest.mark.parametrize("name", BENCHMARKS)
def test_both_axes_have_one_scale(name: str) -> None:
    scene = Scene(tasks_of(name), "")
    origin, far = (np.array(scene.pixel(np.full(2, place))) for place in (0.0, 10.0))
    assert np.ptp(np.abs(far - origin)) <= 1


def test_a_car_heads_where_it_drives() -> None:
    scene = Scene(tasks_of("car2d-reach-k1"), "")
    frames = [scene.paint(np.array([[1.0, 2.0] - 0.001 * np.array(way), [1.0, 2.0]])) for way in ([1, 0], [0, 1])]
    row, column = scene.pixel(np.array([1.0, 2.0]))
    east, north = (frame[row - 16 : row + 17, column - 16 : column + 17] for frame in frames)
    assert (np.abs(np.rot90(east).astype(int) - north).max(axis=-1) > 100).mean() < 0.08
    assert (np.abs(east.astype(int) - north).max(axis=-1) > 100).mean() > 0.15


def test_regions_are_where_the_family_says() -> None:
    tasks = tasks_of("car2d-reach-obs-k1")
    scene = Scene(tasks, "")
    picture = scene.paint(np.full((1, 2), -50.0)).astype(int)
    for name in ("g1", "o1"):
        region = tasks.regions_at(0)[name]
        for side in (-1, 1):
            row, column = scene.pixel(region.center + side * region.half_width * [1.0, 0.5])
            dark = picture[row, column - 4 : column + 5].sum(axis=-1)
            assert np.abs(int(dark.argmin()) - 4) <= 1, "the outline is the darkest"


@pytest.mark.parametrize("outcome", ["success", "unsafe", "running", "anything"])
def test_the_banner_says_how_it_went(outcome: str) -> None:
    tasks = tasks_of("car2d-reach-k1")
    banner = Scene(tasks, "").paint(trail_of(tasks, 1), outcome)[:BANNER]
    color = OUTCOMES.get(outcome, QUIET)
    assert [c for c in {*OUTCOMES.values(), QUIET} if count(banner[:, 300:], c) > 200] == [color]


def test_texts_appear_in_the_banner_only() -> None:
    tasks = tasks_of("car2d-reach-k1")
    scene, trail = Scene(tasks, ""), trail_of(tasks, 2)
    plain, counted = scene.paint(trail), scene.paint(trail, progress="stage 1   step 2 / 20")
    changed = np.argwhere((plain != counted).any(axis=-1))
    assert len(changed) > 0 and changed[:, 0].max() < BANNER


def test_states_are_in_view() -> None:
    tasks, far = tasks_of("car2d-reach-k1"), np.array([[0.0, 0.0], [-30.0, 50.0]])
    row, column = Scene(tasks, "", states=far).pixel(far[1])
    assert BANNER < row < 480 and 0 < column < 480
    row, _ = Scene(tasks, "").pixel(far[1])
    assert row < 0


# --- environments that the drawing has never heard of --------------------------------------------------------


def test_an_unknown_environment_is_a_disc() -> None:
    scene = Scene(POINT, "point")
    frame = scene.paint(np.array([[1.5, 1.5, 0.0]]))
    row, column = scene.pixel(np.array([1.5, 1.5]))
    around = frame[row - 20 : row + 20, column - 20 : column + 20]
    blue = (around == np.round(255 * np.array(to_rgb(TRAIL)))).all(axis=-1)
    assert 110 < blue.sum() < 160, "a disc of seven pixels' radius, and nothing else"


def test_an_arm_of_any_number_of_links() -> None:
    tasks = replace(POINT, environment=Chain())
    scene = Scene(tasks, "chain")
    state = np.array([0.3, 1.2, 2.0])
    frame, empty = scene.paint(state[None]), scene.paint(np.array([[9.0, 9.0, 9.0]]))
    joints = Chain().skeleton(state)
    for middle in (joints[:-1] + joints[1:]) / 2:
        row, column = scene.pixel(middle)
        assert frame[row, column].max() < 200 and (frame[row, column] != empty[row, column]).all()
    for corner in ((-7.0, -7.0), (7.0, 7.0)):
        row, column = scene.pixel(np.array(corner))
        assert BANNER < row < 480 and 0 < column < 480, "all in reach"


def test_an_arm_above_a_floor() -> None:
    frame = Scene(tasks_of("reacher-stack-same-8"), "").paint(np.array([[4.0, 6.0]]))
    assert count(frame, FLOOR) > 5000
    assert count(Scene(replace(POINT, environment=Chain()), "").paint(np.zeros((1, 3))), FLOOR) < 500


def test_a_free_variable_fills_the_panel() -> None:
    regions = {"r": box([3.0, 3.0], [1.0, 1.0]), "band": box([0.0, 1.5], [np.inf, 0.3])}
    scene = Scene(task(Car2D(), [0.0, 0.0], regions, "achieve reach(r) ensuring avoid(band)"), "")
    row, _ = scene.pixel(np.array([0.0, 1.6]))
    picture = scene.paint(np.zeros((1, 2)))
    assert (picture[row, 60:470] < 255).any(axis=-1).all(), "from side to side"


def test_a_picture_needs_a_plane() -> None:
    @dataclass(frozen=True)
    class Line(Point):
        state_names: ClassVar[tuple[str, ...]] = ("p",)

    with pytest.raises(DibsError, match="a picture needs two state variables"):
        Scene(task(Line(), [0.0], {"r": box([3.0], [1.0])}, "achieve reach(r)"), "")


def test_obstacles_are_drawn_below_targets() -> None:
    """COLORS lists roles in the order of drawing."""
    assert list(COLORS) == ["stay", "avoid", "start", "reach"]
    regions = {"a": box([3.0, 3.0], [2.0, 2.0]), "b": box([3.0, 3.0], [1.0, 1.0])}
    scene = Scene(task(Car2D(), [0.0, 0.0], regions, "achieve reach(b) ensuring avoid(a)"), "")
    row, column = scene.pixel(np.array([3.7, 3.7]))
    pixel = scene.paint(np.zeros((1, 2)))[row, column].astype(int)
    assert pixel[1] > pixel[0] + 20, "green, not gray"
