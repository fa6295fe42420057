"""The paper's illustrations: all of them can be made, and they show the paper's tasks."""

from __future__ import annotations

import matplotlib.image
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dibs.drawing import style
from dibs.drawing.style import save
from dibs.drawing.tasks import draw_task
from dibs.envs import Reacher
from dibs.families import get_benchmark, get_family
from dibs.paper.illustrations import BROWN, SAND, raised, towers, ways
from dibs.paper.reports import REPORTS
from dibs.spectrl import satisfied
from dibs.studies.reports import make

ILLUSTRATIONS = [report.name for report in REPORTS if report.inputs == "none"]


@pytest.mark.parametrize("name", ILLUSTRATIONS)
def test_every_illustration_can_be_made(name, tmp_path, monkeypatch):
    monkeypatch.setitem(style.STYLE, "savefig.dpi", 60)
    figure = make(name, [])
    assert isinstance(figure, Figure)
    save(figure, tmp_path / f"{name}.png")
    pixels = matplotlib.image.imread(tmp_path / f"{name}.png")
    assert min(pixels.shape[:2]) > 50 and pixels[..., :3].std() > 0.01


def test_type_is_large_enough_to_print():
    """Nothing below 6 points, at the width at which a figure is saved."""
    for name in ("spec-choice-l1", "environments", "reacher-family"):
        for ax in make(name, []).axes:
            sizes = [t.get_fontsize() for t in ax.texts + ax.get_xticklabels() + [ax.title]]
            assert min(sizes) >= 6.0


@pytest.mark.parametrize(("index", "count"), [(0, 1), (10, 4), (20, 1)])
def test_a_way_satisfies_the_specification(index, count):
    """Of the four ways through two choices, one can be taken from far out, and all from below the wall."""
    benchmark = get_benchmark("car2d-choice-l2")
    tasks = benchmark.family.tasks([index], benchmark.specification)
    found = ways(tasks, index)
    assert len(found) == count
    for way in found:
        assert way.states[0].tolist() == [1.0 + index, 0.0]
        assert tasks.regions_at(index)["goal2"].contains(way.states[-1:]).all()
        assert satisfied(tasks.spec, tasks.regions_at(index), way.states[None]).all()
    assert len({way.states.tobytes() for way in found}) == count


# --- towers ----------------------------------------------------------------------------------------------


def panel(name: str, index: int) -> Axes:
    family = get_family(name)
    ax = Figure(figsize=(5, 5)).add_subplot()
    draw_task(ax, family.tasks([index]), backdrop=towers(family, index))
    return ax


@pytest.mark.parametrize("index", range(9))
def test_a_tower_has_the_blocks_of_its_index(index):
    """At index 3 of 8 the arm takes the fourth block and puts it on five others."""
    ax = panel("reacher-stack-opposite-8", index)
    blocks = [p for p in ax.patches if isinstance(p, Rectangle) and p.get_height() == pytest.approx(0.6)]
    standing = [p for p in blocks if p.get_facecolor()[:3] == to_rgb(SAND)]
    assert sorted(round(p.get_x() + p.get_width() / 2) for p in standing) == [-4] * (8 - index) + [5] * index
    for x, count in ((5, index), (-4, 8 - index)):
        floors = sorted(p.get_y() for p in standing if abs(p.get_x() + p.get_width() / 2 - x) < 0.5)
        assert floors == pytest.approx([0.6 * n for n in range(count)])
    (taken,) = [p for p in blocks if p.get_facecolor()[:3] == to_rgb(BROWN)]
    assert taken.get_y() == pytest.approx(index * 0.6)
    (slot,) = [p for p in blocks if p.get_linestyle() == "--"]
    assert slot.get_y() == pytest.approx((8 - index) * 0.6)


def test_a_drop_box_stands_on_the_floor():
    ax = panel("reacher-drop-same-8", 3)
    assert not [p for p in ax.patches if p.get_linestyle() == "--"]
    (box,) = [line for line in ax.lines if len(line.get_xdata()) == 4]
    assert np.mean(box.get_xdata()) == pytest.approx(2.5) and min(box.get_ydata()) == 0.0


@pytest.mark.parametrize("hand", [(5.0, 0.3), (-4.0, 0.3), (2.5, 5.1), (4.0, 6.0)])
def test_the_drawn_arm_has_its_links_and_its_elbow_above_the_floor(hand):
    arm = Reacher()
    own = arm.skeleton(np.array(hand))
    for joints in (own, raised(own)):
        np.testing.assert_allclose(np.linalg.norm(np.diff(joints, axis=0), axis=-1), arm.link)
        np.testing.assert_allclose(joints[[0, 2]], [(0.0, 0.0), hand], atol=1e-9)
    assert raised(own)[1, 1] > 0.0
