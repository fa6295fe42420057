"""Drawings of tasks: every family can be drawn, and a drawing shows what the family says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import matplotlib.image
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from dibs.drawing import style
from dibs.drawing.arm import draw_arm
from dibs.drawing.regions import ROLES, Trajectory, label, region_roles, task_regions
from dibs.drawing.style import save
from dibs.drawing.tasks import draw_task, figure_task
from dibs.envs import Array, Car2D, Environment, Reacher
from dibs.errors import DibsError
from dibs.families import Tasks, families, get_benchmark, get_family, load_family
from dibs.files import check_suffix
from dibs.spectrl import Region, graph, parse

DRAWN = [name for name in families() if not name.endswith(("-9", "-10"))]  # towers differ in height only


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer dots."""
    monkeypatch.setitem(style.STYLE, "savefig.dpi", 60)


def tasks_of(name: str, indices: list[int]) -> Tasks:
    benchmark = get_benchmark(name)
    return benchmark.family.tasks(indices, benchmark.specification)


def panel(tasks: Tasks, trajectories: Any = ()) -> Axes:
    """Draw tasks into one panel; return it."""
    ax = Figure(figsize=(5, 5)).add_subplot()
    draw_task(ax, tasks, trajectories)
    return ax


def boxes(ax: Axes) -> set[tuple[float, ...]]:
    """Left, bottom, width and height of all rectangles."""
    patches = [p for p in ax.patches if isinstance(p, Rectangle)]
    return {tuple(np.round([*p.get_xy(), p.get_width(), p.get_height()], 6)) for p in patches}


def texts(ax: Axes) -> list[str]:
    return [t.get_text() for t in ax.texts]


def written(path: Path) -> None:
    """The file is a picture of some size, and not a blank one."""
    assert path.stat().st_size > 1000
    if path.suffix == ".png":
        pixels = matplotlib.image.imread(path)
        assert min(pixels.shape[:2]) > 50 and pixels[..., :3].std() > 0.01
    else:
        assert path.read_bytes().startswith(b"%PDF")


# --- figures and files -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_every_family_can_be_drawn(name, tmp_path, quick):
    family = get_family(name)
    indices = [0, family.last_index // 2, family.last_index]
    save(figure_task(tasks_of(family.benchmark_ids[-1], indices)), tmp_path / "task.png")
    written(tmp_path / "task.png")


@pytest.mark.parametrize("name", ["car2d-choice-l2", "simpledrone-reach-k2", "reacher-drop-same-9"])
def test_pdf(name, tmp_path):
    file = tmp_path / "new" / "task.PDF"
    save(figure_task(tasks_of(name, [0])), file)
    written(file)


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_the_same_drawing_has_the_same_bytes(suffix, tmp_path, quick):
    files = [tmp_path / f"{n}.{suffix}" for n in "ab"]
    for file in files:
        save(figure_task(tasks_of("car2d-reach-obs-k2", [0, 40])), file)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("output", ["task.svg", "task", "task.png.txt"])
def test_other_kinds_of_files_are_rejected(output, tmp_path):
    with pytest.raises(DibsError, match=f"{output}: expected a name that ends in .png or .pdf"):
        save(Figure(), tmp_path / output)
    with pytest.raises(DibsError, match=r"ends in \.png, \.gif or \.parquet"):
        check_suffix(tmp_path / output, (".png", ".gif", ".parquet"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "name, views",
    [("car2d-reach-k1", 1), ("simpledrone-reach-k1", 3), ("droneattitude-reach-k1", 3), ("reacher-drop-same-8", 2)],
)
def test_a_plane_has_one_panel_space_three_and_an_arm_one_per_index(name, views):
    figure = figure_task(tasks_of(name, [4, 0, 4]))
    assert len(figure.axes) == views
    (legend,) = figure.legends
    several = "light to dark: index 0 to 4" if views != 2 else ""
    assert legend.get_title().get_text() == several
    if views == 2:
        assert [ax.get_title() for ax in figure.axes] == ["$i = 0$", "$i = 4$"]
        assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim()


# --- what is shown ---------------------------------------------------------------------------------------


def test_regions_are_drawn_where_they_are_at_each_index():
    ax = panel(tasks_of("car2d-reach-obs-k1", [0, 10]))
    assert {
        (4.0, 7.0, 2.0, 2.0),  # g1 = (5, 8) ± 1
        (9.0, 7.0, 2.0, 2.0),  # ten indices later
        (-0.3, -0.3, 0.6, 0.6),  # the start and its noise
        (4.7, -0.3, 0.6, 0.6),
        (2.7, 3.0, 1.4, 1.4),  # o1 = (3.4, 3.7) ± 0.7
        (7.7, 3.0, 1.4, 1.4),
    } <= boxes(ax)
    assert {"$g_{1}$", "$o_{1}$", "start", "$i = 0$", "$i = 10$"} <= set(texts(ax))
    hatched = [p for p in ax.patches if p.get_hatch()]
    assert len(hatched) == 2  # only the obstacles, and of those only the ones in view
    assert "$g_{2}$" not in texts(ax)  # not in this benchmark


def test_the_index_darkens_the_regions_and_arrows_say_where_they_go():
    ax = panel(tasks_of("car2d-reach-k1", [0, 20, 40]))
    goals = sorted(
        (p for p in ax.patches if isinstance(p, Rectangle) and p.get_height() == 2.0), key=lambda p: p.get_x()
    )
    brightness = [sum(p.get_facecolor()[:3]) for p in goals]
    assert len(goals) == 3 and brightness == sorted(brightness, reverse=True)
    arrows = [p for p in ax.patches if isinstance(p, FancyArrowPatch)]
    assert len(arrows) == 4  # two steps of the start, two of the goal
    for arrow in arrows:
        (x0, y0), (x1, y1) = arrow.get_path().vertices[[0, 2]]
        assert x1 > x0 and y1 == pytest.approx(y0)


def test_the_order_of_the_indices_does_not_matter():
    first, second = (panel(tasks_of("car2d-reach-k1", indices)) for indices in ([0, 20, 40], [40, 0, 20, 0]))
    assert boxes(first) == boxes(second) and texts(first) == texts(second)


def test_a_region_inside_another_one_is_drawn_above_it():
    data = get_family("car2d-reach-obs").description_data()
    data["specification"] = "achieve (reach(g1) & !reach(o1))"
    data["regions"] = {
        "g1": {"center": [4.0, 4.0], "radius": 2.0},
        "o1": {"center": [4.0, 4.0], "radius": 0.5},
    }
    ax = panel(load_family(data | {"name": "mine", "benchmarks": {}}).tasks([0]))
    (hole,) = [p for p in ax.patches if p.get_hatch()]
    assert all(hole.get_zorder() > other.get_zorder() for other in ax.patches if other is not hole)


def test_what_stands_still_is_drawn_once_and_without_arrows():
    ax = panel(tasks_of("car2d-choice-l1", [0, 10, 20]))
    assert sum(text in ("$g_{11}$", "$g_{12}$") for text in texts(ax)) == 2
    fixed = [box for box in boxes(ax) if box[:2] == (4.0, 7.0)]
    assert fixed == [(4.0, 7.0, 2.0, 2.0)]
    assert len([p for p in ax.patches if isinstance(p, FancyArrowPatch)]) == 4  # start and goal


def test_a_region_that_leaves_a_variable_free_fills_the_panel():
    data = get_family("car2d-switch").description_data()
    data["regions"]["block"]["center"] = [None, 5.0]
    tasks = load_family(data | {"name": "mine"}).tasks([0, 20])
    ax = panel(tasks)
    left, right = ax.get_xlim()
    (band,) = [p for p in ax.patches if p.get_hatch()]
    assert (band.get_x(), band.get_width()) == pytest.approx((left, right - left))
    assert (band.get_y(), band.get_height()) == (4.0, 2.0)
    assert figure_task(tasks).axes


def test_a_region_to_stay_in_is_none_to_reach():
    tasks = replace(tasks_of("car2d-reach-k2", [0]), specification="achieve reach(g1) ensuring reach(g2)")
    assert [(r.name, r.role) for r in task_regions(tasks)] == [("g2", "stay"), ("start", "start"), ("g1", "reach")]
    (legend,) = figure_task(tasks).legends
    assert [t.get_text() for t in legend.get_texts()] == ["initial region", "region to reach", "region to stay in"]


@pytest.mark.parametrize(
    "name, text",
    [("g1", "$g_{1}$"), ("goal_2", r"$\mathrm{goal}_{2}$"), ("pick", "pick"), ("top_block", "top block")],
)
def test_names_of_regions_as_mathematics(name, text):
    assert label(name) == text


def test_rollouts_are_blue_at_training_indices_and_red_at_others():
    ways = {0: np.array([[0.0, 0.0], [4.0, 8.0]]), 5: np.array([[2.5, 0.0], [5.0, 4.0], [7.5, 8.0]])}
    rollouts = [Trajectory(0, "train", ways[0]), Trajectory(5, "unseen", ways[5])]
    ax = panel(tasks_of("car2d-reach-k1", [0, 5]), rollouts)
    lines = [line for line in ax.lines if len(line.get_xdata()) > 1]
    blue, red = (to_rgb(ROLES[role][0]) for role in ("train", "unseen"))
    assert [to_rgb(line.get_color()) for line in lines] == [blue, red]
    assert blue[2] > max(blue[:2]) and red[0] > max(red[1:])
    np.testing.assert_array_equal(lines[1].get_xydata(), ways[5])
    ends = [line for line in ax.lines if len(line.get_xdata()) == 1]
    np.testing.assert_array_equal([line.get_xydata()[0] for line in ends], [ways[0][-1], ways[5][-1]])


def test_rollouts_that_go_astray_are_in_view():
    ax = panel(tasks_of("car2d-reach-k1", [0]), [Trajectory(0, "train", np.array([[0.0, 0.0], [-30.0, 20.0]]))])
    assert ax.get_xlim()[0] < -30.0 and ax.get_ylim()[1] > 20.0


# --- arms, and environments that drawings have never heard of ----------------------------------------------


def test_an_arm_is_drawn_as_its_environment_says():
    ax = panel(tasks_of("reacher-drop-same-8", [3]))
    joints = Reacher().skeleton(np.array([4.0, 6.0]))  # at the start
    assert any(np.array_equal(line.get_xydata(), joints) for line in ax.lines)
    assert any(line.get_ydata()[0] == 0.0 == line.get_ydata()[-1] for line in ax.lines), "the floor"
    low, high = np.transpose([ax.get_xlim(), ax.get_ylim()])
    assert (low < joints.min(axis=0)).all() and (high > joints.max(axis=0)).all()


def test_drawings_of_an_arm_know_nothing_of_towers():
    """Only regions, and the hatched floor."""
    ax = panel(tasks_of("reacher-stack-opposite-8", [3]))
    regions = [p for p in ax.patches if isinstance(p, Rectangle) and p.get_hatch() is None]
    assert len(regions) == 3


def test_an_arm_of_any_number_of_links():
    ax = Figure().add_subplot()
    joints = np.array([[1.0, 1.0], [3.0, 1.0], [3.0, 2.0], [2.0, 2.0]])
    draw_arm(ax, joints)
    dots = [point for line in ax.lines if line.get_marker() == "o" for point in line.get_xydata().tolist()]
    assert dots == joints.tolist()


@dataclass(frozen=True)
class Cart(Environment):
    """Somebody else's environment: two positions and two velocities."""

    name: ClassVar[str] = "Cart"
    state_names: ClassVar[tuple[str, ...]] = ("p", "q", "vp", "vq")
    action_names: ClassVar[tuple[str, ...]] = ("fp", "fq")

    @property
    def noise_scale(self) -> tuple[float, ...]:
        return (0.0,) * 4

    def step(self, states: Array, actions: Array, noise: Array) -> Array:
        return states


def test_any_environment_is_drawn_in_its_first_two_variables(tmp_path, quick):
    tasks = tasks_of("car2d-reach-obs-k2", [0, 10])
    wide = {n: Region(np.tile(box.center, 2), np.tile(box.half_width, 2)) for n, box in tasks.regions.items()}
    starts = {"start_center": np.tile(tasks.start_center, 2), "start_half": np.tile(tasks.start_half, 2)}
    mine = replace(tasks, environment=Cart(), regions=wide, **starts)
    assert boxes(panel(mine)) == boxes(panel(tasks))
    figure = figure_task(mine)
    assert [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes] == [("$p$", "$q$")]
    save(figure, tmp_path / "cart.png")
    written(tmp_path / "cart.png")


def test_a_drawing_needs_a_plane():
    @dataclass(frozen=True)
    class Line(Car2D):
        state_names: ClassVar[tuple[str, ...]] = ("p",)

    with pytest.raises(DibsError, match="a drawing needs two state variables, found p only"):
        figure_task(replace(tasks_of("car2d-reach-k1", [0]), environment=Line()))


@pytest.mark.parametrize("noise, points", [([0.3, 0.0], [(-0.3, 0.0), (0.3, 0.0)]), ([0.0, 0.0], [(0.0, 0.0)])])
def test_a_start_without_area_is_a_line_or_a_dot(noise, points):
    data = get_benchmark("car2d-reach-k1").family.description_data() | {"name": "thin"}
    data["start"] = data["start"] | {"noise": noise}
    ax = panel(load_family(data).tasks([0]))
    (line,) = [line for line in ax.lines if len(line.get_xdata()) == len(points)]
    np.testing.assert_allclose(line.get_xydata(), points, atol=1e-12)


# --- roles ------------------------------------------------------------------------------------------------


def test_roles_of_regions() -> None:
    spec = parse("(achieve reach(a); achieve reach(b)) ensuring avoid(wall) & reach(yard) & avoid(b)")
    roles = region_roles(graph(spec).edges)
    assert roles == {"a": "reach", "b": "reach", "wall": "avoid", "yard": "stay"}
    assert region_roles(graph(spec).edges[:1])["b"] == "avoid"
