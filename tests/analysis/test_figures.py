"""Figures: the paper's layout, values where they belong, and what is missing said in the panel."""

from __future__ import annotations

import subprocess
import sys

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from dibs.analysis import draw, figures
from dibs.analysis.collect import collect_indices, find
from dibs.analysis.methods import LOOKS, PAPER, label
from dibs.errors import DibsError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Fewer dots."""
    for style in (figures.STYLE, draw.STYLE):
        monkeypatch.setitem(style, "savefig.dpi", 60)


@pytest.fixture(scope="module")
def k5(frame) -> Figure:
    return figures.scalability(frame, 5)


@pytest.fixture(scope="module")
def k1(frame) -> Figure:
    return figures.scalability(frame, 1)


def written(path) -> None:
    """The file is a picture of some size, and not a blank one."""
    if path.suffix == ".png":
        pixels = matplotlib.image.imread(path)
        assert min(pixels.shape[:2]) > 50 and pixels[..., :3].std() > 0.02
    else:
        data = path.read_bytes()
        assert data.startswith(b"%PDF") and len(data) > 3000 and b"CreationDate" not in data


def notes(figure: Figure) -> list[str]:
    """What each panel says, its lines joined."""
    return [" ".join(" ".join(t.get_text().split()) for t in ax.texts) for ax in figure.axes]


def drawn(ax) -> dict[str, np.ndarray]:
    """Heights of each method's line in a panel, by colour."""
    names = {to_rgb(look.color): name for name, look in LOOKS.items()}
    lines = [line for line in ax.lines if to_rgb(line.get_color()) in names and line.get_marker() != "None"]
    return {names[to_rgb(line.get_color())]: np.asarray(line.get_ydata(), float) for line in lines}


# --- layout ----------------------------------------------------------------------------------------------


def test_scalability_has_the_papers_panels(k5, k1):
    for figure, panels, rows in ((k5, 9, 3), (k1, 8, 4)):
        assert len(figure.axes) == panels
        assert len(figure.legends) == 1 and all(ax.get_legend() is None for ax in figure.axes)
        titles = [sub.get_suptitle() for sub in figure.subfigs]
        assert titles[0] == "(i) Car2D k-reachability" and len(titles) == rows


def test_other_layouts(frame):
    assert len(figures.obstacles(frame).axes) == 3
    assert len(figures.choice(frame).axes) == 6
    assert len(figures.reacher(frame, 8).axes) == 1


@pytest.mark.parametrize("name", ["scalability_k5", "scalability_k2", "choice", "reacher_8", "success_by_index"])
def test_a_figure_of_evaluations_is_written(name, results, tmp_path):
    figure, save = figures.make(name, lambda kind: find(kind, None, results), figures.Options())
    save(figure, tmp_path / f"{name}.png")
    written(tmp_path / f"{name}.png")


def test_the_names_of_the_papers_figures():
    names = {*(f"scalability_k{k}" for k in range(1, 6)), "obstacles", "choice", "reacher_8", "reacher_9", "reacher_10"}
    others = {"success_by_index", "choice_trajectories", "branching", "loss_curves", "drift"}
    assert names | others == set(figures.FIGURES)


def test_print_is_legible_at_the_width_of_the_text(k5, frame, results):
    rows = collect_indices(find("evaluation", None, results), "car2d-reach-k5", 8)
    for figure in (k5, figures.reacher(frame, 8), figures.success_by_index(rows, "car2d-reach-k5", 8)):
        assert figure.get_figwidth() == figures.WIDTH == 5.5
        figure.draw_without_rendering()
        texts = [t for ax in figure.axes for t in (*ax.texts, ax.title, ax.xaxis.label, ax.yaxis.label)]
        texts += [t for ax in figure.axes for t in (*ax.get_xticklabels(), *ax.get_yticklabels())]
        texts += [t for legend in figure.legends for t in legend.get_texts()]
        assert min(t.get_fontsize() for t in texts if t.get_text()) >= 7.0


# --- values ----------------------------------------------------------------------------------------------


def test_lines_are_means_over_seeds_and_shades_deviations(frame, k1):
    ax = k1.axes[1]  # Car2D, zero-shot
    part = frame[(frame["benchmark"] == "car2d-reach-k1") & (frame["method"] == "bc")]
    expected = part.groupby("train_size")["zero_shot_ratio"]
    np.testing.assert_allclose(drawn(ax)["bc"], expected.mean())
    assert [t.get_text() for t in ax.get_xticklabels()] == ["3", "6", "11"]
    green = [c for c in ax.collections if to_rgb(c.get_facecolor()[0]) == to_rgb(LOOKS["bc"].color)]
    heights = green[0].get_paths()[0].vertices[:, 1]
    low, high = (expected.mean() - expected.std()).clip(0, 1), (expected.mean() + expected.std()).clip(0, 1)
    assert (heights.min(), heights.max()) == pytest.approx((low.min(), high.max()))


def test_counts_over_k_are_those_of_the_middle_split(frame, k5):
    ax = k5.axes[2]
    assert "of 30, gap 4" in ax.get_ylabel()  # gap 8 has fewer evaluations, and of two the denser is the middle
    part = frame[(frame["gap"] == 4) & (frame["method"] == "dibs")]
    mean = part.groupby("benchmark")["zero_shot_count"].mean()
    line = drawn(ax)["dibs"]
    assert (line[0], line[4]) == (mean["car2d-reach-k1"], mean["car2d-reach-k5"])
    assert np.isnan(line[1:4]).all()  # never interpolated
    chosen = figures.obstacles(frame.assign(family="car2d-reach-obs"), figures.Options(gap=20)).axes[2]
    assert "gap 20" in chosen.get_ylabel()


def test_the_middle_split():
    runs = pd.DataFrame({"gap": [20, 20, 10, 10, 8, 8, 5, 5, 4, 4, 2, 2]})
    assert figures.middle_gap(runs) == 5
    assert figures.middle_gap(runs.iloc[:-3]) == 8  # gaps 4 and 2 are not complete
    assert figures.middle_gap(runs.iloc[:0]) is None


def test_lines_that_coincide_are_told_apart(frame):
    """Five methods, all at 1: in the picture no two of their markers are at the same place."""
    perfect = frame[frame["benchmark"] == "car2d-reach-k1"].assign(training_ratio=1.0, zero_shot_ratio=1.0)
    figure = figures.scalability(perfect, 1)
    figure.draw_without_rendering()
    lines = [line for line in figure.axes[0].lines if line.get_marker() != "None"]
    places = [line.get_transform().transform((0, 1.0)) for line in lines]
    gaps = [np.abs(a - b).max() * 72 / figure.dpi for n, a in enumerate(places) for b in places[:n]]
    assert len(lines) == 7 and min(gaps) > 1.0  # points
    bare = [line for line in figure.axes[0].lines if line.get_marker() == "None"]
    assert max(line.get_zorder() for line in bare) < min(line.get_zorder() for line in lines)
    rise = [abs(a[1] - b[1]) * 72 / figure.dpi for a in places for b in places]
    assert max(rise) < 3.0  # so little that no value is misread


def test_methods_look_as_in_the_paper(k1):
    markers = {to_rgb(line.get_color()): line.get_marker() for line in k1.axes[0].lines if line.get_marker() != "None"}
    assert markers == {to_rgb(LOOKS[m].color): LOOKS[m].marker for m in (*PAPER, "dibs-plus")}
    assert {m: (LOOKS[m].color, LOOKS[m].marker) for m in PAPER} == {
        "ars": ("#1F77B4", "o"),
        "bc": ("#2CA02C", "s"),
        "maml": ("#FF7F0E", "D"),
        "varibad": ("#8C564B", "^"),
        "genrl": ("#9467BD", "v"),
        "dibs": ("#D62728", "x"),
    }


def test_the_legend_names_what_is_drawn(frame, k1):
    texts = [t.get_text() for t in k1.legends[0].get_texts()]
    assert texts == ["ARS", "BC", "MAML", "VariBAD", "GenRL", "DIBS (ours)", "DIBS+"]
    chosen = figures.scalability(frame, 1, figures.Options(methods=("dibs", "maml-adapted")))
    assert [t.get_text() for t in chosen.legends[0].get_texts()] == ["MAML (adapted)", "DIBS (ours)"]
    assert k1.get_supxlabel().startswith("mean over 2 seeds; shades: one standard deviation")


def test_bars(frame):
    ax = figures.reacher(frame, 8).axes[0]
    bars = [p for p in ax.patches if isinstance(p, Rectangle)]
    part = frame[(frame["benchmark"] == "reacher-stack-same-8") & (frame["gap"] == 4)]
    mean = part.groupby("method")["zero_shot_count"].mean()
    heights = {round(b.get_x() + b.get_width() / 2, 3): b.get_height() for b in bars}
    third = [height for x, height in sorted(heights.items()) if 1.5 < x < 2.5]
    assert third == [mean[m] for m in ("bc", "genrl", "dibs")]
    assert len({b.get_hatch() for b in bars}) == 3  # not by colour alone


def test_a_bar_of_no_height_is_a_nought(frame):
    none = frame.assign(zero_shot_count=0.0)
    texts = [t.get_text() for t in figures.reacher(none, 8).axes[0].texts]
    assert texts.count("0") == 6  # two variants, three methods


# --- what is missing -------------------------------------------------------------------------------------


def test_missing_methods_splits_and_benchmarks_are_named(frame, k5):
    said = notes(k5)
    for note in said[:2]:
        assert note == "no data for: MAML, VariBAD incomplete: GenRL"
    assert said[2] == "not run: $k$ = 2, 3, 4 incomplete: MAML, VariBAD"
    assert said[3:] == ["not run"] * 6
    assert notes(figures.choice(frame))[0] == "no data for: ARS, MAML, VariBAD"
    assert notes(figures.obstacles(frame)) == ["not run"] * 3
    assert "not run" in notes(figures.reacher(frame, 8))[0]
    assert notes(figures.reacher(frame, 8))[0].count("no data for: ARS, MAML, VariBAD") == 2
    assert notes(figures.reacher(frame, 9)) == ["not run"]


def test_a_note_hides_no_data(k5):
    k5.draw_without_rendering()
    ax = k5.axes[0]
    (note,) = ax.texts
    bottom = note.get_window_extent().y0
    assert bottom > ax.transData.transform((0, 1.0))[1]


def test_nothing_is_said_where_nothing_is_missing(frame):
    whole = frame[(frame["benchmark"] == "car2d-reach-k1") & (frame["method"] != "genrl")]
    shown = figures.Options(methods=tuple(set(whole["method"])))
    assert notes(figures.scalability(whole, 1, shown))[:2] == ["", ""]


def test_a_missing_split_is_a_hole_in_the_line(k1):
    line = drawn(k1.axes[0])["genrl"]
    assert np.isnan(line[1]) and np.isfinite(line[[0, 2]]).all()


def test_one_seed_has_no_deviation(frame):
    assert figures.choice(frame[frame["seed"] == 0]).get_supxlabel().startswith("one seed;")


# --- along the index -------------------------------------------------------------------------------------


def test_success_by_index(results):
    rows = collect_indices(find("evaluation", None, results), "car2d-reach-k5", 8)
    figure = figures.success_by_index(rows, "car2d-reach-k5", 8)
    shown = [ax for ax in figure.axes if ax.get_title("left")]
    assert [ax.get_title("left") for ax in shown] == ["ARS", "BC", "MAML (adapted)", "DIBS", "DIBS+"]
    assert "no data for: MAML, VariBAD, GenRL" in figure.get_suptitle()
    (dots,) = [line for line in shown[3].lines if line.get_marker() == "o"]
    np.testing.assert_array_equal(dots.get_xdata(), [0, 8, 16, 24, 32, 40])
    dibs = rows[rows["method"] == "dibs"].groupby("index")[["satisfied", "rollouts"]].sum()
    np.testing.assert_allclose(dots.get_ydata(), (dibs["satisfied"] / dibs["rollouts"])[dots.get_xdata()])


def test_success_by_index_chooses_what_was_run_most(results):
    figure, _ = figures.make("success_by_index", lambda kind: find(kind, None, results), figures.Options())
    assert figure.get_suptitle().startswith("car2d-reach-k1, gap 4")
    options = figures.Options(benchmark="car2d-choice-l1", gap=2, methods=("dibs",))
    figure, _ = figures.make("success_by_index", lambda kind: find(kind, None, results), options)
    assert figure.get_suptitle() == "car2d-choice-l1, gap 2"
    with pytest.raises(DibsError, match="no evaluation of car2d-reach-k3"):
        absent = figures.Options(benchmark="car2d-reach-k3")
        figures.make("success_by_index", lambda kind: find(kind, None, results), absent)


def test_trajectories_are_blue_where_trained(template, tmp_path):
    file = template(tmp_path / "t.safetensors", "car2d-choice", 5)
    figure, save = figures.make("choice_trajectories", lambda kind: [file], figures.Options())
    ax = figure.axes[0]
    colors = [to_rgb(line.get_color()) for line in ax.lines if line.get_marker() == "None"]
    blue, red = (colors.count(to_rgb(draw.ROLES[role][0])) for role in ("train", "unseen"))
    assert (blue, red) == (5, 16)
    assert ax.get_title() == "DIBS, gap 5, seed 0"
    save(figure, tmp_path / "t.png")
    written(tmp_path / "t.png")


def test_trajectories_of_one_template_among_many(template, tmp_path):
    files = [
        template(tmp_path / "a.safetensors", "car2d-reach", 10),
        template(tmp_path / "b.safetensors", "car2d-choice", 10),
        template(tmp_path / "c.safetensors", "car2d-choice", 5),
    ]
    figure, _ = figures.make("choice_trajectories", lambda kind: files, figures.Options(gap=10))
    assert figure.axes[0].get_title() == "DIBS, gap 10, seed 0"
    with pytest.raises(DibsError, match="no template of car2d-switch among the inputs"):
        figures.make("choice_trajectories", lambda kind: files, figures.Options(benchmark="car2d-switch"))
    with pytest.raises(
        DibsError, match=r"a\.safetensors: a template of car2d-reach, which has no benchmark car2d-choice-l1"
    ):
        figures.choice_trajectories(files[0], "car2d-choice-l1")


# --- how training went -----------------------------------------------------------------------------------


def test_loss_curves(template, tmp_path):
    files = [template(tmp_path / f"{seed}.safetensors", "car2d-choice", 5, seed=seed) for seed in (0, 1)]
    files.append(template(tmp_path / "r.safetensors", "car2d-reach", 10))
    figure = figures.loss_curves([files[0].with_suffix(".json"), *files[1:]])
    assert [ax.get_title() for ax in figure.axes] == ["car2d-reach\nDIBS, gap 10", "car2d-choice\nDIBS, gap 5"]
    reach, choice = figure.axes
    assert len([line for line in choice.lines if len(line.get_xdata())]) == 2 * 8
    assert [t.get_text() for t in reach.get_legend().get_texts()] == [
        *("start → g1", "g1 → g2", "g2 → g3", "g3 → g4", "g4 → g5")
    ]
    np.testing.assert_allclose(reach.lines[2].get_ydata(), [3 * 10.0 ** (-n / 4) for n in range(8)])
    figures.save(figure, tmp_path / "l.png")
    written(tmp_path / "l.png")
    with pytest.raises(DibsError, match=r"no input has gap 3; they have \[5, 10\]"):
        figures.loss_curves(files, figures.Options(gap=3))


def test_damaged_metrics_are_named(template, tmp_path):
    file = template(tmp_path / "t.safetensors", "car2d-choice", 5)
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(DibsError, match=r"t\.json: damaged"):
        figures.loss_curves([file])
    (tmp_path / "t.json").write_text('{"curve": [[0, 1, 2]]}')
    with pytest.raises(DibsError, match=r"t\.safetensors: expected a curve of 8 edges, found shape \(1, 3\)"):
        figures.loss_curves([file])


def test_drift(teacher, tmp_path):
    def files(weight, warm=True):
        folder = tmp_path / f"{weight}-{warm}"
        return [
            teacher(folder / f"{seed}-{index}.safetensors", "car2d-reach", 20, index, seed, weight, warm)
            for seed in (0, 1)
            for index in (0, 20, 40)
        ]

    with_, without = files(1e-3), files(0.0)
    figure = figures.drift([*with_, *without])
    ax = figure.axes[0]
    assert [t.get_text() for t in figure.legends[0].get_texts()] == [
        r"$\lambda_\mathrm{x} = 0.001$",
        r"$\lambda_\mathrm{x} = 0$",
    ]
    means = sorted(tuple(np.round(line.get_ydata(), 6)) for line in ax.lines if len(line.get_ydata()))
    assert means == [(1.05, 1.05), (3.05, 3.05)]
    assert notes(figure) == [""]
    assert "not run" in notes(figures.drift(with_))[0] and "= 0" in notes(figures.drift(with_))[0]
    assert "> 0" in notes(figures.drift(without))[0]
    figures.save(figure, tmp_path / "d.pdf")
    written(tmp_path / "d.pdf")
    three = figures.drift([*with_, *without, *files(0.0, warm=False)])
    assert [t.get_text() for t in three.legends[0].get_texts()] == [
        r"$\lambda_\mathrm{x} = 0.001$, warm start",
        r"$\lambda_\mathrm{x} = 0$, warm start",
        r"$\lambda_\mathrm{x} = 0$, from scratch",
    ]
    means = sorted(tuple(np.round(line.get_ydata(), 6)) for line in three.axes[0].lines if len(line.get_ydata()))
    assert means == [(1.05, 1.05), (3.05, 3.05), (7.05, 7.05)]
    with pytest.raises(DibsError, match="none of these teachers has a predecessor"):
        figures.drift([f for f in with_ if f.name.endswith("-0.safetensors")])


# --- by name ---------------------------------------------------------------------------------------------


def test_illustrations_are_there_and_collide_with_nothing():
    drawings = figures.illustrations()
    assert len(drawings) == len(draw.FIGURES) and not set(drawings) & set(figures.FIGURES)
    assert {"environments", "spec-reach", "illustration-choice"} <= set(drawings)
    figure, save = figures.make("spec-choice-l1", lambda kind: [], figures.Options())
    assert isinstance(figure, Figure) and save is draw.save
    with pytest.raises(DibsError, match=r"unknown figure 'scalability_k6'\. Did you mean 'scalability_k"):
        figures.make("scalability_k6", lambda kind: [], figures.Options())


def test_the_same_figure_has_the_same_bytes_in_another_process(frame, tmp_path):
    """And that process needs no torch."""
    data = tmp_path / "frame.parquet"
    frame[frame["family"].str.startswith("reacher")].to_parquet(data)
    figure = figures.reacher(pd.read_parquet(data), 8)
    script = (
        "import sys, pandas as pd; from dibs.analysis import figures; figures.STYLE['savefig.dpi'] = 60; "
        "figure = figures.reacher(pd.read_parquet(sys.argv[1]), 8); "
        "[figures.save(figure, name) for name in sys.argv[2:]]; print('torch' in sys.modules)"
    )
    others = [tmp_path / f"other.{suffix}" for suffix in ("png", "pdf")]
    command = [sys.executable, "-c", script, str(data), *map(str, others)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "False"
    for other in others:
        one = other.with_stem("one")
        figures.save(figure, one)
        assert one.read_bytes() == other.read_bytes()
        written(one)


def test_labels_of_unknown_methods():
    assert label("mine") == "mine" and label("dibs-plus") == "DIBS+"
