"""Frames of episodes: what they show, for the paper's environments and for any other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from dibs.envs import Array, Car2D, Environment, Reacher
from dibs.errors import DibsError
from dibs.families import get_benchmark, get_family
from dibs.gym import render
from dibs.gym.render import BLUE, GREEN, PAPER, QUIET, RED, Outline, Scene, paint, region_roles, task_shapes
from dibs.spectrl import graph, parse

BENCHMARKS = ["car2d-choice-l2", "reacher-drop-opposite-9", "simpledrone-reach-k2", "droneattitude-reach-k3"]


def scene_of(name: str, edges: int | None = None) -> Scene:
    """The scene of a benchmark at index 0, or of its first edges."""
    benchmark = get_benchmark(name)
    tasks = benchmark.family.tasks([0], benchmark.specification)
    shapes = task_shapes(tasks.edges[:edges], tasks.regions_at(0), tasks.start_center[0], tasks.start_half[0])
    return Scene.of(tasks.environment, name, shapes)


def trail_of(scene: Scene, steps: int) -> Array:
    """States (steps + 1, dim) under a constant action, from the start."""
    environment = scene.environment
    states = [next(s.center for s in scene.shapes if s.role == "start").astype(np.float32)]
    action, noise = np.full(environment.action_dim, 0.4), np.zeros(len(states[0]))
    for _ in range(steps):
        states.append(environment.step(states[-1], action, noise))
    return np.stack(states)


def shows(frame: render.Frame, color: tuple[int, int, int]) -> bool:
    """Whether some pixels have exactly this color."""
    return bool((frame == color).all(axis=-1).any())


@dataclass(frozen=True)
class Point(Environment):
    """Somebody else's environment: its state variables mean nothing to the renderer."""

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


def shapes(*roles: render.Role, dim: int = 3) -> list[Outline]:
    return [Outline(f"r{n}", role, np.full(dim, 3.0 * n), np.ones(dim)) for n, role in enumerate(roles)]


@pytest.mark.parametrize("edges", [None, 1])
@pytest.mark.parametrize("name", BENCHMARKS)
def test_frames(name: str, edges: int | None) -> None:
    scene = scene_of(name, edges)
    trail = trail_of(scene, 3)
    first, later = paint(scene, trail[:1], progress="step 0"), paint(scene, trail, progress="step 3")
    for frame in (first, later):
        assert frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
        assert frame.shape[0] % 16 == frame.shape[1] % 16 == 0, "video encoders ask for it"
        assert len(np.unique(frame @ (1, 256, 65536))) > 20 and frame.std() > 5, "not blank"
    assert 0 < (first != later).any(axis=-1).mean() < 0.2, "only the agent, its trail and the count have changed"
    np.testing.assert_array_equal(paint(scene, trail[:1], progress="step 0"), first)
    np.testing.assert_array_equal(paint(scene_of(name, edges), trail, progress="step 3"), later)


def test_the_agent_is_where_its_state_is() -> None:
    scene = scene_of("car2d-reach-k1")
    (panel,) = scene.panels
    empty = paint(scene, np.array([[-50.0, -50.0]]))  # out of view
    for state in ([1.0, 2.0], [5.0, 8.0]):
        changed = np.argwhere((paint(scene, np.array([state])) != empty).any(axis=-1))
        x, y = panel.at(state)
        middle = (changed.min(axis=0) + changed.max(axis=0)) / 2
        assert np.abs(middle - [y / render.FINE + render.BANNER, x / render.FINE]).max() < 3
        assert np.ptp(changed, axis=0).max() < 30


def test_regions_are_where_the_family_says() -> None:
    scene = scene_of("car2d-reach-obs-k1")
    (panel,) = scene.panels
    picture = np.asarray(panel.picture)
    boxes = get_family("car2d-reach-obs").regions_at(0)
    for name, color in (("g1", GREEN), ("o1", RED)):
        for side in (-1, 1):
            column, row = (round(c) for c in panel.at(boxes[name].center + side * boxes[name].half_width * [1.0, 0.5]))
            edge = (picture[row] == color).all(axis=-1)
            assert edge[column - 2 : column + 3].any() and not edge[column + 3 : column + 8].any()


@pytest.mark.parametrize(
    ("outcome", "color"), [("success", GREEN), ("unsafe", RED), ("running", QUIET), ("anything", QUIET)]
)
def test_the_banner_says_how_it_went(outcome: str, color: Any) -> None:
    scene = scene_of("car2d-reach-k1")
    banner = paint(scene, trail_of(scene, 1), outcome)[: render.BANNER]
    assert shows(banner, color)
    assert [c for c in (GREEN, RED) if shows(banner, c)] == [c for c in (GREEN, RED) if c == color]


def test_texts_appear_in_the_banner_only() -> None:
    scene = scene_of("car2d-reach-k1")
    trail = trail_of(scene, 2)
    plain, counted = paint(scene, trail), paint(scene, trail, progress="stage 1   step 2 / 20")
    changed = np.argwhere((plain != counted).any(axis=-1))
    assert len(changed) > 0 and changed[:, 0].max() < render.BANNER


# --- environments that the renderer has never heard of ------------------------------------------------------


def test_an_unknown_environment_is_a_disc() -> None:
    scene = Scene.of(Point(), "point", shapes("start", "reach"))
    (panel,) = scene.panels
    frame = paint(scene, np.array([[1.5, 1.5, 0.0]]))
    x, y = panel.at((1.5, 1.5))
    around = frame[round(y / 2) + render.BANNER - 20 :, round(x / 2) - 20 :][:40, :40]
    blue = (around == BLUE).all(axis=-1)
    assert 100 < blue.sum() < 160, "a disc of six pixels' radius, and nothing else"
    np.testing.assert_array_equal(blue[1:, 1:], blue[1:, 1:].T)
    assert not shows(frame, (96, 110, 128)), "no arm"


def test_an_arm_of_any_number_of_links() -> None:
    scene = Scene.of(Chain(), "chain", shapes("start", "reach"))
    state = np.array([0.3, 1.2, 2.0])
    (panel,) = scene.panels
    frame = paint(scene, state[None])
    joints = Chain().skeleton(state)
    for middle in (joints[:-1] + joints[1:]) / 2:
        x, y = panel.at(middle)
        assert tuple(frame[round(y / 2) + render.BANNER, round(x / 2)]) == (96, 110, 128)
    for corner in ((-7.0, -7.0), (7.0, 7.0)):
        assert all(0 <= c <= side for c, side in zip(panel.at(corner), panel.picture.size, strict=True)), "all in reach"


def test_an_arm_above_a_floor() -> None:
    frame = paint(scene_of("reacher-stack-same-8"), np.array([[4.0, 6.0]]))
    assert shows(frame, (241, 238, 233)) and shows(frame, (96, 110, 128))
    assert not shows(paint(Scene.of(Chain(), "", shapes("start")), np.zeros((1, 3))), (241, 238, 233))


def test_a_free_variable_fills_the_panel() -> None:
    band = Outline("band", "avoid", np.array([0.0, 3.0]), np.array([np.inf, 0.5]))
    scene = Scene.of(Car2D(), "", [*shapes("start", "reach", dim=2), band])
    (panel,) = scene.panels
    row = np.asarray(panel.picture)[round(panel.at((0.0, 3.2))[1])]
    assert (row != PAPER).any(axis=-1).all(), "from side to side"


def test_a_picture_needs_a_plane() -> None:
    @dataclass(frozen=True)
    class Line(Point):
        state_names: ClassVar[tuple[str, ...]] = ("p",)

    with pytest.raises(DibsError, match="a picture needs two state variables"):
        Scene.of(Line(), "", shapes("start", dim=1))


# --- roles ------------------------------------------------------------------------------------------------


def test_roles_of_regions() -> None:
    spec = parse("(achieve reach(a); achieve reach(b)) ensuring avoid(wall) & reach(yard) & avoid(b)")
    roles = region_roles(graph(spec).edges)
    assert roles == {"a": "reach", "b": "reach", "wall": "avoid", "yard": "stay"}
    assert region_roles(graph(spec).edges[:1])["b"] == "avoid"


def test_shapes_are_drawn_in_the_order_of_their_roles() -> None:
    scene = Scene.of(Reacher(), "", shapes("reach", "start", "stay", "avoid", dim=2))
    assert [shape.role for shape in scene.shapes] == ["avoid", "stay", "start", "reach"]
