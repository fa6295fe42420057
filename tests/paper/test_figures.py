"""The paper's figures: its layout, values where they belong, and its benchmarks only."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

from dibs.drawing.style import save
from dibs.families import benchmarks
from dibs.methods import get_method
from dibs.paper import figures
from dibs.paper.numbers import METHODS
from dibs.paper.reports import REPORTS
from dibs.studies import style
from dibs.studies.reports import USUAL, Options, applicable, make

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(scope="module")
def reach(frame):
    return frame[frame["family"] == "car2d-reach"]


def drawn(ax) -> dict[str, np.ndarray]:
    """Heights of each method's line in a panel, by color."""
    names = {to_rgb(get_method(m).color): m for m in (*METHODS, "dibs-plus")}
    lines = [line for line in ax.lines if to_rgb(line.get_color()) in names and line.get_marker() != "None"]
    return {names[to_rgb(line.get_color())]: np.asarray(line.get_ydata(), float) for line in lines}


def texts(legend) -> list[str]:
    return [t.get_text() for t in legend.get_texts()]


# --- which figures ---------------------------------------------------------------------------------------


def test_the_names_of_the_papers_reports():
    drawings = {report.name for report in REPORTS if report.inputs == "none"}
    variants = {f"spec-reacher-{kind}-{side}" for kind in ("drop", "stack") for side in ("same", "opposite")}
    specs = {"spec-reach", "spec-reach-obs", "spec-choice-l1", "spec-choice-l2", "switch"}
    flows = {"flow-genrl", "flow-dibs"}
    assert drawings == specs | variants | flows | {"environments", "reacher-environment", "reacher-family"}
    results = {
        *(f"scalability_k{k}" for k in range(1, 6)),
        "obstacles",
        "choice",
        "reacher_8",
        "reacher_9",
        "reacher_10",
    }
    others = {"table1", "table1-versions", "claims", "choice_trajectories", "branching"}
    assert {report.name for report in REPORTS} == drawings | results | others


def test_every_report_belongs_to_benchmarks_of_the_paper():
    for report in REPORTS:
        assert report.matching(benchmarks()) and not report.matching(["mine", "mine-k5"]), report.name
    few = set(applicable(["car2d-switch"])) & {report.name for report in REPORTS}
    assert few == {"branching", "switch"}


@pytest.mark.parametrize("name", ["spec-choice-l1", "environments"])
def test_an_illustration_is_made_from_nothing(name, tmp_path):
    save(make(name, []), tmp_path / "i.png")
    assert (tmp_path / "i.png").stat().st_size > 1000


# --- scalability -----------------------------------------------------------------------------------------


def test_scalability_has_the_papers_panels(made, reach):
    families = ["car2d-reach", "simpledrone-reach", "droneattitude-reach"]
    every = made(METHODS, [f"{family}-k{k}" for family in families for k in (1, 5)], ["gap20", "gap4"], 1)
    k5 = figures.scalability(every, USUAL, 5, counts=True)
    titles = ["(i) Car2D k-reachability", "(ii) SimpleDrone k-reachability", "(iii) DroneAttitude k-reachability"]
    assert [sub.get_suptitle() for sub in k5.subfigs] == [f"{title} (requires: nothing)" for title in titles]
    assert len(k5.axes) == 9 and len(k5.legends) == 1 and k5.get_figwidth() == style.WIDTH
    assert texts(k5.legends[0]) == ["ARS", "BC", "MAML", "VariBAD", "GenRL", "DIBS (ours)", "all unseen tasks"]
    k1 = figures.scalability(reach, USUAL, 1)
    assert len(k1.axes) == 2 and [sub.get_suptitle() for sub in k1.subfigs] == [
        "Car2D k-reachability (requires: nothing)"
    ]
    assert texts(k1.legends[0]) == ["ARS", "BC", "MAML", "VariBAD", "GenRL", "DIBS (ours)", "DIBS+"]


def test_the_methods_asked_for(reach):
    part = reach[reach["method"].isin(["dibs", "maml-adapted"])]
    chosen = figures.scalability(part, Options(methods=("dibs", "maml-adapted")), 1)
    assert texts(chosen.legends[0]) == ["MAML (adapted)", "DIBS (ours)"]


def test_a_study_with_fewer_goals(reach):
    figure = figures.scalability(reach[reach["benchmark"] == "car2d-reach-k1"], USUAL, 5, counts=True)
    assert figure.axes[0].get_title() == "(a) training, $k = 1$"


def test_counts_over_k_are_those_of_the_middle_split(reach):
    ax = figures.scalability(reach, USUAL, 5, counts=True).axes[2]
    assert "of 30, gap4" in ax.get_ylabel()  # gap8 has fewer evaluations; of two splits the larger one is the middle
    mean = (
        reach[(reach["split"] == "gap4") & (reach["method"] == "dibs")].groupby("benchmark")["zero_shot_count"].mean()
    )
    line = drawn(ax)["dibs"]
    assert (line[0], line[4]) == (mean["car2d-reach-k1"], mean["car2d-reach-k5"])
    assert np.isnan(line[1:4]).all()  # never interpolated
    assert "gap20" in figures.scalability(reach, Options(split="gap20"), 5, counts=True).axes[2].get_ylabel()


def test_methods_have_the_markers_of_the_paper(reach):
    lines = figures.scalability(reach, USUAL, 1).axes[0].lines
    markers = {line.get_color(): line.get_marker() for line in lines if line.get_marker() != "None"}
    paper = {"ars": "o", "bc": "s", "maml": "D", "varibad": "^", "genrl": "v", "dibs": "x", "dibs-plus": "*"}
    assert markers == {get_method(name).color: marker for name, marker in paper.items()}


def test_methods_that_were_not_run_are_named_below(reach):
    figure = figures.scalability(reach, USUAL, 5)
    assert not {"MAML", "VariBAD"} & set(texts(figure.legends[0]))
    assert figure.get_supxlabel().endswith("\nnot run here: MAML, VariBAD")
    assert "not run" not in figures.scalability(reach, USUAL, 1).get_supxlabel()


MACHADO = {  # Machado, Oliveira, Fernandes 2009: what a person without red or green receptors sees, linear RGB
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "neither": np.eye(3),
}


@pytest.mark.parametrize("sight", MACHADO)
def test_colors_of_methods_differ_for_the_color_blind(sight):
    """By 15 or more (CIE76) for those that figures show together; a just noticeable difference is about 2."""
    shown = ["ars", "bc", "maml", "varibad", "genrl", "dibs", "dibs-plus", "bc-index", "ppo-index"]
    colors = {name: _lab(np.clip(np.array(MACHADO[sight]) @ _linear(get_method(name).color), 0, 1)) for name in shown}
    far = {(a, b): np.linalg.norm(colors[a] - colors[b]) for a, b in combinations(shown, 2)}
    assert {pair: distance for pair, distance in far.items() if distance < 15} == {}


def _linear(color: str) -> np.ndarray:
    """Return linear RGB of a color in sRGB."""
    part = np.array(to_rgb(color))
    return np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray) -> np.ndarray:
    """Return CIELAB of linear RGB."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    x, y, z = np.cbrt(np.maximum(to_xyz @ linear / np.array([0.95047, 1.0, 1.08883]), 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


# --- choice and Reacher ----------------------------------------------------------------------------------


def test_choice(frame):
    part = frame[frame["family"] == "car2d-choice"]
    figure = figures.choice(part, USUAL)
    assert len(figure.axes) == 3 and texts(figure.legends[0]) == ["BC", "GenRL", "DIBS (ours)", "all unseen tasks"]
    mean = part[part["method"] == "dibs"].groupby("train_size")["zero_shot_count"].mean()
    np.testing.assert_allclose(drawn(figure.axes[2])["dibs"], mean)


def test_bars(frame):
    part = frame[frame["benchmark"].str.startswith("reacher")]
    figure = figures.reacher(part, USUAL, 8)
    (ax,) = figure.axes
    bars = [p for p in ax.patches if isinstance(p, Rectangle)]
    stack = part[(part["benchmark"] == "reacher-stack-same-8") & (part["split"] == "gap4")]
    mean = stack.groupby("method")["zero_shot_count"].mean()
    heights = [b.get_height() for b in sorted(bars, key=lambda b: b.get_x()) if b.get_x() > 0.5]
    assert heights == [mean[m] for m in ("bc", "genrl", "dibs")]
    assert len({b.get_hatch() for b in bars}) == 3  # not by color alone
    ticks = [t.get_text() for t in ax.get_xticklabels()]
    assert ticks == ["pick and drop,\nsame side", "pick and stack,\nsame side"] and "gap4" in ax.get_ylabel()


def test_a_bar_of_no_height_has_a_zero(frame):
    none = frame[frame["benchmark"].str.startswith("reacher")].assign(zero_shot_count=0.0)
    assert [t.get_text() for t in figures.reacher(none, USUAL, 8).axes[0].texts] == ["0"] * 6


def test_print_is_legible(frame):
    for figure in (
        figures.scalability(frame, USUAL, 5, counts=True),
        figures.reacher(frame[frame["benchmark"].str.startswith("reacher")], USUAL, 8),
    ):
        figure.draw_without_rendering()
        found = [t for ax in figure.axes for t in (*ax.texts, ax.title, ax.xaxis.label, ax.yaxis.label)]
        found += [t for ax in figure.axes for t in (*ax.get_xticklabels(), *ax.get_yticklabels())]
        found += [t for legend in figure.legends for t in legend.get_texts()]
        assert min(t.get_fontsize() for t in found if t.get_text()) >= 7.0
