"""Labels of drawings: none on top of another, all inside their panel; arrows along the true path."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

import dibs
from dibs.drawing.labels import Labels
from dibs.drawing.motion import is_straight
from dibs.drawing.tasks import figure_task
from dibs.families import Family, families, get_family

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "families").glob("*.yaml"))


def car(**change: Any) -> Family:
    data = {
        "name": "mine",
        "environment": {"name": "Car2D"},
        "specification": "achieve reach(a)",
        "start": {"center": [0.0, 0.0], "noise": 0.3},
        "regions": {"a": {"center": [6.0, 6.0], "half_width": 1.0, "rotate": 9.0}},
        "last_index": 20,
        "horizon": 25,
        "network": {"hidden": [8]},
    }
    return dibs.Family(**data | change)


def drone(**change: Any) -> Family:
    turn = {"degrees": 12, "about": [1, 0, 5], "plane": ["x", "z"]}
    data = {
        "environment": {"name": "SimpleDrone"},
        "specification": "(achieve reach(a); achieve reach(b)) ensuring avoid(ball) & avoid(roof)",
        "start": {"center": [0.0, 0.0, 5.0], "noise": 0.2},
        "regions": {
            "a": {
                "center": [6, 0, 6],
                "half_width": 1.0,
                "rotate": turn,
            },
            "b": {"center": [9, 6, 5], "radius": 1.5, "rotate": 9, "scale": 0.95},
            "ball": {"center": [3, 4, 5], "radius": 0.6, "scale": 1.05},
            "roof": {"center": [0, 0, 12], "normal": [0, 0, 1]},
        },
    }
    return car(**data | change)


ZIGZAG = [{"center": [3.0 + 2.0 * (i % 2), 5.0 + 0.5 * i], "half_width": 1.0} for i in range(21)]
CUSTOM = {
    "rotation": car(),
    "growth": car(regions={"a": {"center": [6.0, 6.0], "half_width": 2.0, "scale": 0.95}}),
    "table": car(regions={"a": {"table": ZIGZAG}}, horizon=40),
    "half-space": car(regions={"a": {"center": [3.0, 8.0], "normal": [0.2, 1.0], "rotate": 2.0}}),
    "space": drone(),
}


def drawn(family: Family, specification: str = "") -> Figure:
    last = family.last_index
    indices = sorted({0, last // 4, last // 2, 3 * last // 4, last})
    figure = figure_task(family.tasks(indices, specification), (), family.tasks(range(last + 1), specification))
    FigureCanvasAgg(figure).draw()
    return figure


def check(figure: Figure) -> None:
    """No two labels of a figure meet, and each lies in its panel."""
    boxes = []
    for ax in figure.axes:
        view = ax.get_window_extent()
        for label in (label for artist in ax.artists if isinstance(artist, Labels) for label in artist.labels):
            if label.text.get_visible():
                box = label.text.get_window_extent()
                boxes.append((label.text.get_text(), box))
                assert view.x0 <= box.x0 and box.x1 <= view.x1 and view.y0 <= box.y0 and box.y1 <= view.y1, boxes[-1]
    assert len(boxes) > len(figure.axes)
    for (one, a), (other, b) in combinations(boxes, 2):
        assert min(a.x1, b.x1) <= max(a.x0, b.x0) or min(a.y1, b.y1) <= max(a.y0, b.y0), (one, other)


@pytest.mark.parametrize("name", sorted(families()))
def test_labels_of_registered_families(name):
    check(drawn(get_family(name)))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_labels_of_examples(path):
    if path.stem == "point-maze":
        pytest.importorskip("gymnasium_robotics")
    check(drawn(dibs.Family.load(path)))


@pytest.mark.parametrize("name", CUSTOM)
def test_labels_of_custom_families(name):
    check(drawn(CUSTOM[name]))


def arrows(ax: Axes) -> list[np.ndarray]:
    """The lines of all arrows, without their heads."""
    return [p.get_path().vertices[:-6] for p in ax.patches if isinstance(p, FancyArrowPatch)]


def test_arrows_follow_a_rotation():
    """The center stays on its circle, here of radius √72, between the chords of one index."""
    (ax,) = drawn(CUSTOM["rotation"]).axes
    radii = [np.linalg.norm(points, axis=-1) for points in arrows(ax)]
    assert len(radii) == 4  # from each drawn index to the next
    for radius in radii:
        assert (radius < np.sqrt(72) + 1e-6).all() and (radius > np.sqrt(72) * np.cos(np.deg2rad(4.5)) - 1e-6).all()


def test_arrows_follow_a_table():
    (ax,) = drawn(CUSTOM["table"]).axes
    reached = np.concatenate(arrows(ax))
    for index in (1, 9, 11, 19):  # not drawn themselves, and not inside a drawn box
        assert np.abs(reached - ZIGZAG[index]["center"]).max(axis=-1).min() < 1e-6


def test_what_grows_hides_nothing_of_what_it_was():
    ball = {"center": [3.0, 3.0], "radius": 0.5, "scale": 1.05}
    family = car(
        specification="achieve reach(a) ensuring avoid(o)",
        regions={"a": {"center": [6.0, 6.0], "half_width": 1.0}, "o": ball},
    )
    (ax,) = drawn(family).axes
    sizes = [p.get_radius() for p in ax.patches if isinstance(p, Circle)]
    assert len(sizes) == 5 and all(a > b for a, b in pairwise(sizes)), "drawn from the largest to the smallest"


def test_a_target_that_is_a_half_space_is_in_view():
    (ax,) = drawn(CUSTOM["half-space"]).axes
    assert ax.get_ylim()[1] > 9.0 and ax.get_ylim()[0] < -0.3


def test_balls_and_planes_in_space():
    figure = drawn(CUSTOM["space"])
    space, above, side = figure.axes
    assert {"ball", "roof", "a", "b"} <= {text.get_text() for text in space.texts}
    assert "roof" not in {text.get_text() for text in above.texts}, "it is seen from the side only"
    assert "roof" in {text.get_text() for text in side.texts}
    assert "region to avoid" in {text.get_text() for text in figure.legends[0].get_texts()}
    assert space.get_zlim()[1] >= 12.0
    assert len(space.collections) >= 5 * 2 + 5 + 1 + 1  # a and b, the ball, roof and start


def test_a_straight_path_is_straight():
    assert is_straight(np.array([[0.0, 0.0], [1.0, 1.0], [3.0, 3.0]]))
    assert not is_straight(np.array([[0.0, 0.0], [2.0, 2.0], [1.0, 1.0]])), "it turns back"
    assert not is_straight(np.array([[0.0, 0.0], [1.0, 0.2], [2.0, 0.0]]))
    assert not is_straight(np.array([[0.0, 0.0], [1.0, 0.2], [0.0, 0.0]]))


def test_gymnasium_families_are_drawn_in_the_quantities_of_their_regions():
    family = dibs.Family.load(next(path for path in EXAMPLES if "torque" in path.stem))
    (ax,) = drawn(family).axes
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("tip_x", "tip_y")
    assert len([p for p in ax.patches if isinstance(p, Rectangle)]) == 10
