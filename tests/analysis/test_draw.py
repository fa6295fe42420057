"""Drawings: every family can be drawn, what is shown is what the family says, and mistakes are told."""

from __future__ import annotations

from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from dibs import cli
from dibs.analysis import draw
from dibs.envs import Reacher
from dibs.errors import DibsError
from dibs.families import families, get_benchmark, get_family, load_family
from dibs.families.oracles import oracle_rollouts
from dibs.seeding import stream
from dibs.spectrl import parse

DRAWN = [name for name in families() if not name.endswith(("-9", "-10"))]  # towers differ in height only


@pytest.fixture
def quick(monkeypatch):
    """Fewer dots."""
    monkeypatch.setitem(draw.STYLE, "savefig.dpi", 60)


def axes(name: str, indices: list[int], trajectories: list[draw.Trajectory] | None = None):
    """Draw a benchmark into one panel; return it."""
    family, text = get_benchmark(name)
    ax = Figure(figsize=(5, 5)).add_subplot()
    draw.draw_task(ax, family, parse(text), indices, trajectories or [])
    return ax


def boxes(ax) -> set[tuple[float, ...]]:
    """Left, bottom, width and height of all rectangles."""
    patches = [p for p in ax.patches if isinstance(p, Rectangle)]
    return {tuple(np.round([*p.get_xy(), p.get_width(), p.get_height()], 6)) for p in patches}


def texts(ax) -> list[str]:
    return [t.get_text() for t in ax.texts]


def written(path: Path) -> None:
    """The file is a picture of some size, and not a blank one."""
    assert path.stat().st_size > 1000
    if path.suffix == ".png":
        pixels = matplotlib.image.imread(path)
        assert min(pixels.shape[:2]) > 50 and pixels[..., :3].std() > 0.01
    else:
        assert path.read_bytes().startswith(b"%PDF")


# --- dibs draw -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRAWN)
def test_every_family_can_be_drawn(name, tmp_path, quick, capsys):
    family = get_family(name)
    benchmark = family.benchmark_ids[-1]
    file = tmp_path / "task.png"
    middle = str(family.last_index // 2)
    command = ["draw", benchmark, "--index", "0", middle, str(family.last_index), "--output", str(file)]
    assert cli.main(command) == 0
    assert capsys.readouterr().out == f"{file}\n"
    written(file)


@pytest.mark.parametrize("name", ["car2d-choice-l2", "simpledrone-reach-k2", "reacher-drop-same-9"])
def test_pdf(name, tmp_path):
    file = tmp_path / "new" / "task.PDF"
    assert cli.main(["draw", name, "--output", str(file)]) == 0
    written(file)


@pytest.mark.parametrize("suffix", ["png", "pdf"])
def test_the_same_drawing_has_the_same_bytes(suffix, tmp_path, quick):
    files = [tmp_path / f"{n}.{suffix}" for n in "ab"]
    for file in files:
        assert cli.main(["draw", "car2d-reach-obs-k2", "--index", "0", "40", "--output", str(file)]) == 0
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("output", ["task.svg", "task", "task.png.txt"])
def test_another_kind_of_output_is_refused(output, tmp_path, capsys):
    assert cli.main(["draw", "car2d-reach-k1", "--output", str(tmp_path / output)]) == 1
    assert f"{output}: expected a name that ends in .png or .pdf" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "argv, message",
    [
        (["car2d-reach-k9"], "unknown benchmark 'car2d-reach-k9'"),
        (["car2d-reach-k1", "--index", "0", "-1"], "index -1 of car2d-reach: expected a whole number"),
        (["car2d-reach-k1", "--trajectories", "none.parquet"], "none.parquet: no such file of trajectories"),
    ],
)
def test_mistakes_are_told(argv, message, tmp_path, capsys):
    assert cli.main(["draw", *argv, "--output", str(tmp_path / "f.png")]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


# --- trajectories ----------------------------------------------------------------------------------------


def recorded(name: str, roles: dict[int, str], count: int = 2) -> pd.DataFrame:
    """Rollouts of the oracle in the format of trajectory files."""
    family, text = get_benchmark(name)
    frames = []
    for index, role in roles.items():
        rollouts = oracle_rollouts(family, parse(text), index, count, stream("draw", index))
        for number, (states, length) in enumerate(zip(rollouts.states, rollouts.lengths, strict=True)):
            frame = pd.DataFrame(states[:length], columns=list(family.dynamics.state_names))
            frame = frame.assign(index=index, role=role, rollout=number, time=range(length))
            frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def test_trajectories_are_blue_if_seen_and_red_if_not(tmp_path):
    file = tmp_path / "rollouts.parquet"
    frame = recorded("car2d-choice-l1", {0: "train", 5: "unseen", 10: "train"})
    frame.sample(frac=1.0, random_state=0).to_parquet(file)  # the order of rows does not matter
    family = get_family("car2d-choice")
    trajectories = draw.read_trajectories(file, family, [0, 5])
    assert [(t.index, t.role) for t in trajectories] == [(0, "train")] * 2 + [(5, "unseen")] * 2
    chosen = frame[(frame["index"] == 5) & (frame["rollout"] == 1)]
    np.testing.assert_array_equal(trajectories[3].states, chosen[["x", "y"]].to_numpy())

    ax = axes("car2d-choice-l1", [0, 5], trajectories)
    lines = [line for line in ax.lines if len(line.get_xdata()) > 1]
    colors = [to_rgb(line.get_color()) for line in lines]
    blue, red = (to_rgb(draw.ROLES[role][0]) for role in ("train", "unseen"))
    assert colors == [blue, blue, red, red]
    assert blue[2] > max(blue[:2]) and red[0] > max(red[1:])
    np.testing.assert_array_equal(lines[3].get_xdata(), chosen["x"])


@pytest.mark.parametrize("name", ["car2d-switch", "droneattitude-reach-k1", "reacher-stack-opposite-8"])
def test_trajectories_from_the_command_line(name, tmp_path, quick):
    file, output = tmp_path / "rollouts.parquet", tmp_path / "f.png"
    recorded(name, {0: "train", 3: "unseen"}).to_parquet(file)
    command = ["draw", name, "--index", "0", "3", "--trajectories", str(file), "--output", str(output)]
    assert cli.main(command) == 0
    written(output)


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda frame: frame.drop(columns=["role", "y"]),
            r"no column role, y; found x, index, rollout, time",
        ),
        (lambda frame: frame.assign(role="test"), r"column role: expected train or unseen, found 'test'"),
        (lambda frame: frame.assign(index=7), r"no trajectory at index 0, 5; it has 7"),
    ],
)
def test_a_file_of_trajectories_that_does_not_fit(change, message, tmp_path):
    file = tmp_path / "rollouts.parquet"
    change(recorded("car2d-reach-k1", {0: "train"})).to_parquet(file)
    with pytest.raises(DibsError, match=message) as error:
        draw.read_trajectories(file, get_family("car2d-reach"), [0, 5])
    assert str(error.value).startswith(f"{file}: ")


def test_a_file_that_is_not_parquet(tmp_path):
    file = tmp_path / "rollouts.parquet"
    file.write_text("index,role\n")
    with pytest.raises(DibsError, match=r"rollouts\.parquet: not a readable Parquet file"):
        draw.read_trajectories(file, get_family("car2d-reach"), [0])


# --- what is shown ---------------------------------------------------------------------------------------


def test_regions_are_drawn_where_they_are_at_each_index():
    ax = axes("car2d-reach-obs-k1", [0, 10])
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
    assert len(hatched) == 2  # only the obstacles, and of those only the ones in the picture
    assert "$g_{2}$" not in texts(ax)  # not in this benchmark


def test_the_index_darkens_the_regions_and_arrows_say_where_they_go():
    ax = axes("car2d-reach-k1", [0, 20, 40])
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


def test_what_stands_still_is_drawn_once_and_without_arrows():
    ax = axes("car2d-choice-l1", [0, 10, 20])
    assert sum(text in ("$g_{11}$", "$g_{12}$") for text in texts(ax)) == 2
    fixed = [box for box in boxes(ax) if box[:2] == (1.0, 7.0)]
    assert fixed == [(1.0, 7.0, 2.0, 2.0)]
    assert len([p for p in ax.patches if isinstance(p, FancyArrowPatch)]) == 4  # start and goal


def test_a_region_that_leaves_a_variable_free_fills_the_panel():
    data = get_family("car2d-switch").model_dump()
    data["regions"]["block"]["center"] = [None, 5.0]
    family = load_family(data)
    ax = Figure().add_subplot()
    draw.draw_task(ax, family, family.spec, [0, 20])
    left, right = ax.get_xlim()
    (band,) = [p for p in ax.patches if p.get_hatch()]
    assert (band.get_x(), band.get_width()) == pytest.approx((left, right - left))
    assert (band.get_y(), band.get_height()) == (4.0, 2.0)
    assert draw.figure_task(family, family.spec, [0, 20]).axes


def test_a_tower_has_the_blocks_of_its_index():
    """At index 3 of 8 the arm takes the fourth block and puts it on five others."""
    ax = axes("reacher-stack-opposite-8", [3])
    sand, brown = (to_rgb(color) for color in (draw.BLOCK, draw.MOVED))
    blocks = [p for p in ax.patches if isinstance(p, Rectangle) and p.get_height() == pytest.approx(0.6)]
    standing = [p for p in blocks if p.get_facecolor()[:3] == sand]
    assert sorted(round(p.get_x() + p.get_width() / 2) for p in standing) == [-4] * 5 + [5] * 3
    (taken,) = [p for p in blocks if p.get_facecolor()[:3] == brown]
    assert taken.get_y() == pytest.approx(3 * 0.6)
    (slot,) = [p for p in blocks if p.get_linestyle() == "--"]
    assert slot.get_y() == pytest.approx(5 * 0.6)


def test_a_drop_box_stands_on_the_floor():
    ax = axes("reacher-drop-same-8", [3])
    assert not [p for p in ax.patches if p.get_linestyle() == "--"]
    (box,) = [line for line in ax.lines if len(line.get_xdata()) == 4]
    assert np.mean(box.get_xdata()) == pytest.approx(2.5) and min(box.get_ydata()) == 0.0


@pytest.mark.parametrize("hand", [(5.0, 0.3), (-4.0, 0.3), (2.5, 5.1), (4.0, 6.0)])
def test_the_links_of_the_arm_are_as_long_as_they_are(hand):
    arm = Reacher()
    for own in (False, True):
        elbow = draw.draw_arm(Figure().add_subplot(), arm, np.array(hand), own_elbow=own)
        assert np.linalg.norm(elbow) == pytest.approx(arm.link)
        assert np.linalg.norm(elbow - hand) == pytest.approx(arm.link)
        if not own:
            assert elbow[1] > 0.0  # above the floor


def test_an_arm_without_towers_is_drawn_without_blocks():
    data = get_family("reacher-drop-same-8").model_dump()
    data["regions"]["pick"]["shift"] = [0.1, 0.2]
    family = load_family(data)
    ax = Figure().add_subplot()
    draw.draw_task(ax, family, family.spec, [0, 8])
    assert not [p for p in ax.patches if p.get_facecolor()[:3] == to_rgb(draw.MOVED)]


@pytest.mark.parametrize(
    "name, text",
    [("g1", "$g_{1}$"), ("goal_2", r"$\mathrm{goal}_{2}$"), ("pick", "pick"), ("top_block", "top block")],
)
def test_names_of_regions_as_mathematics(name, text):
    assert draw.label(name) == text


def test_a_way_satisfies_the_specification():
    family, text = get_benchmark("car2d-choice-l2")
    ways = draw.ways(family, parse(text), 0)
    assert len(ways) == 4
    for way in ways:
        assert way[0].tolist() == [0.0, 0.0]
        assert family.boxes(0)["goal2"].contains(way[-1:]).all()


# --- the paper's illustrations ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", draw.FIGURES)
def test_every_illustration_can_be_made(name, tmp_path, quick):
    figure = draw.FIGURES[name]()
    assert isinstance(figure, Figure)
    draw.save(figure, tmp_path / f"{name}.png")
    written(tmp_path / f"{name}.png")


def test_the_illustrations_of_the_paper_are_all_there():
    variants = {f"spec-reacher-{kind}-{side}" for kind in ("drop", "stack") for side in ("same", "opposite")}
    specs = {"spec-reach", "spec-reach-obs", "spec-choice-l1", "spec-choice-l2"}
    assert set(draw.FIGURES) >= specs | variants | {
        "reacher-environment",
        "reacher-family",
        "choice",
        "environments",
    }


def test_type_is_large_enough_to_print():
    """Nothing below 6 points, at the width at which a figure is saved."""
    for name in ("choice", "environments", "reacher-family"):
        for ax in draw.FIGURES[name]().axes:
            sizes = [t.get_fontsize() for t in ax.texts + ax.get_xticklabels() + [ax.title]]
            assert min(sizes) >= 6.0
