"""Generic figures: values where they belong, and only methods that were run."""

from __future__ import annotations

import subprocess
import sys

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from dibs.drawing.style import save
from dibs.errors import DibsError
from dibs.files import read_tensors, write_tensors
from dibs.methods import get_method, in_order
from dibs.studies import figures, style
from dibs.studies.collect import collect, collect_indices
from dibs.studies.reports import USUAL, Options

pytestmark = pytest.mark.usefixtures("quick")


def written(path) -> None:
    """The file is a picture of some size, and not a blank one."""
    if path.suffix == ".png":
        pixels = matplotlib.image.imread(path)
        assert min(pixels.shape[:2]) > 50 and pixels[..., :3].std() > 0.02
    else:
        data = path.read_bytes()
        assert data.startswith(b"%PDF") and len(data) > 3000 and b"CreationDate" not in data


def drawn(ax, methods) -> dict[str, np.ndarray]:
    """Heights of each method's line in a panel, by color."""
    names = {to_rgb(get_method(m).color): m for m in methods}
    lines = [line for line in ax.lines if to_rgb(line.get_color()) in names and line.get_marker() != "None"]
    return {names[to_rgb(line.get_color())]: np.asarray(line.get_ydata(), float) for line in lines}


@pytest.fixture(scope="module")
def reach(frame) -> pd.DataFrame:
    return frame[frame["family"] == "car2d-reach"]


@pytest.fixture(scope="module")
def ratios(reach) -> Figure:
    return figures.ratios(reach, USUAL)


# --- ratios ----------------------------------------------------------------------------------------------


def test_one_row_per_benchmark(ratios, tmp_path):
    assert len(ratios.axes) == 4 and len(ratios.legends) == 1
    assert [sub.get_suptitle() for sub in ratios.subfigs] == ["car2d-reach-k1", "car2d-reach-k5"]
    save(ratios, tmp_path / "r.png")
    written(tmp_path / "r.png")


def test_lines_are_means_over_seeds_and_shades_deviations(reach, ratios):
    ax = ratios.axes[1]  # k1, zero-shot
    part = reach[(reach["benchmark"] == "car2d-reach-k1") & (reach["method"] == "bc")]
    expected = part.groupby("train_size")["zero_shot_ratio"]
    np.testing.assert_allclose(drawn(ax, ["bc"])["bc"], expected.mean())
    assert [t.get_text() for t in ax.get_xticklabels()] == ["3", "6", "11"]
    green = [c for c in ax.collections if to_rgb(c.get_facecolor()[0]) == to_rgb(get_method("bc").color)]
    heights = green[0].get_paths()[0].vertices[:, 1]
    low, high = (expected.mean() - expected.std()).clip(0, 1), (expected.mean() + expected.std()).clip(0, 1)
    assert (heights.min(), heights.max()) == pytest.approx((low.min(), high.max()))


def test_a_missing_split_is_a_gap_in_the_line(ratios):
    line = drawn(ratios.axes[0], ["genrl"])["genrl"]
    assert np.isnan(line[1]) and np.isfinite(line[[0, 2]]).all()


def test_only_what_was_run_appears(frame, ratios):
    texts = [t.get_text() for t in ratios.legends[0].get_texts()]
    assert texts == ["ARS", "BC", "MAML", "MAML (adapted)", "VariBAD", "GenRL", "DIBS", "DIBS+"]
    choice = figures.ratios(frame[frame["family"] == "car2d-choice"], USUAL)
    assert [t.get_text() for t in choice.legends[0].get_texts()] == ["BC", "GenRL", "DIBS"]
    assert not any(ax.texts for figure in (ratios, choice) for ax in figure.axes)
    assert ratios.get_supxlabel().startswith("mean over 2 seeds; shades: one standard deviation")
    one = figures.ratios(frame[frame["seed"] == 0], USUAL)
    assert one.get_supxlabel().startswith("one seed;")


def test_lines_that_coincide_can_be_told_apart(reach):
    """Eight methods, all at 1: no two of their markers are at the same point of the picture."""
    perfect = reach[reach["benchmark"] == "car2d-reach-k1"].assign(training_ratio=1.0, zero_shot_ratio=1.0)
    figure = figures.ratios(perfect, USUAL)
    figure.draw_without_rendering()
    lines = [line for line in figure.axes[0].lines if line.get_marker() != "None"]
    points = [line.get_transform().transform((0, 1.0)) for line in lines]
    apart = [np.abs(a - b).max() * 72 / figure.dpi for n, a in enumerate(points) for b in points[:n]]
    assert len(lines) == 8 and min(apart) > 1.0  # points
    bare = [line for line in figure.axes[0].lines if line.get_marker() == "None"]
    assert max(line.get_zorder() for line in bare) < min(line.get_zorder() for line in lines)
    rise = [abs(a[1] - b[1]) * 72 / figure.dpi for a in points for b in points]
    assert max(rise) < 3.0  # so little that no value is misread


def test_a_method_that_is_not_installed_is_drawn_too(reach):
    figure = figures.ratios(pd.concat([reach, reach[reach["method"] == "bc"].assign(method="mine")]), USUAL)
    assert figure.legends[0].get_texts()[-1].get_text() == "mine"
    assert "#7F7F7F" in [line.get_color() for line in figure.axes[0].lines]


def test_methods_can_be_told_apart():
    names = (
        "ars",
        "bc",
        "maml",
        "maml-adapted",
        "varibad",
        "genrl",
        "dibs",
        "dibs-plus",
        "dibs-weights",
        "dibs-branched",
    )
    methods = [get_method(name) for name in names]
    for kind in ("color", "hatch", "label"):
        assert len({getattr(m, kind) for m in methods}) == len(methods)
    assert len({(m.marker, m.hollow) for m in methods}) == len(methods)


# --- along the index -------------------------------------------------------------------------------------


def test_by_requirement(reach):
    runs = reach.assign(requires=reach["benchmark"].map({"car2d-reach-k5": "more"}).fillna("nothing"))
    figure = figures.by_requirement(runs, USUAL)
    above = figure.axes[:2]
    assert [ax.get_title() for ax in above] == ["all 2 benchmarks", "1 benchmark that requires more"]
    part = runs[runs["requires"] == "more"]
    means = part.groupby(["method", "split"])["training_ratio"].mean().groupby("method").mean()
    assert [bar.get_height() for bar in above[1].patches] == pytest.approx([means[m] for m in in_order(means.index)])
    none = figures.by_requirement(reach.assign(requires="not measured"), USUAL)
    assert len(none.axes) == 2 and none.get_supxlabel().endswith("no benchmark here is known to require more")
    every = figures.by_requirement(reach.assign(requires="more"), USUAL)
    assert [ax.get_title() for ax in every.axes] == ["2 benchmarks that require more", ""]


def test_success_by_index(reach):
    runs = reach[(reach["benchmark"] == "car2d-reach-k5") & (reach["split"] == "gap8")]
    figure = figures.success_by_index(runs, USUAL)
    assert [sub.get_suptitle() for sub in figure.subfigs] == ["car2d-reach-k5, gap8"]
    shown = [ax for ax in figure.axes if ax.get_title("left")]
    assert [ax.get_title("left") for ax in shown] == ["ARS", "BC", "MAML (adapted)", "DIBS", "DIBS+"]
    (dots,) = [line for line in shown[3].lines if line.get_marker() == "o"]
    np.testing.assert_array_equal(dots.get_xdata(), [0, 8, 16, 24, 32, 40])
    rows = collect_indices(runs)
    dibs = rows[rows["method"] == "dibs"].groupby("index")[["satisfied", "rollouts"]].sum()
    np.testing.assert_allclose(dots.get_ydata(), (dibs["satisfied"] / dibs["rollouts"])[dots.get_xdata()])


def test_the_axis_of_indices_has_whole_numbers(reach):
    rows = collect_indices(reach[(reach["benchmark"] == "car2d-reach-k5") & (reach["split"] == "gap8")])
    for last in (2, 4, 8, 18):
        (ax, *_) = figures.rates(rows[rows["index"] <= last], "dibs", "few indices").axes
        np.testing.assert_array_equal(ax.get_xticks(), np.round(ax.get_xticks()))


def test_success_by_index_of_few_methods_fills_the_page(reach):
    few = reach[(reach["benchmark"] == "car2d-reach-k1") & reach["method"].isin(["dibs", "ars"])]
    figure = figures.success_by_index(few, USUAL)
    assert len(figure.subfigs) == 3
    assert {ax.get_subplotspec().get_gridspec().ncols for ax in figure.axes} == {2}


def test_success_by_index_shows_every_split(reach, tmp_path):
    k1 = reach[reach["benchmark"] == "car2d-reach-k1"]
    figure = figures.success_by_index(k1, USUAL)
    titles = [sub.get_suptitle() for sub in figure.subfigs]
    assert titles == ["car2d-reach-k1, gap20", "car2d-reach-k1, gap8", "car2d-reach-k1, gap4"]
    save(figure, tmp_path / "s.png")
    written(tmp_path / "s.png")
    one = figures.success_by_index(k1, Options(split="gap4"))
    assert [sub.get_suptitle() for sub in one.subfigs] == titles[-1:]
    with pytest.raises(DibsError, match="no evaluation has split gap5; they have gap20, gap8, gap4"):
        figures.success_by_index(k1, Options(split="gap5"))


def test_print_is_legible_at_the_width_of_the_text(ratios, reach):
    by_index = figures.success_by_index(reach[reach["benchmark"] == "car2d-reach-k5"], USUAL)
    for figure in (ratios, by_index):
        assert figure.get_figwidth() == style.WIDTH == 5.5
        figure.draw_without_rendering()
        texts = [t for ax in figure.axes for t in (*ax.texts, ax.title, ax.xaxis.label, ax.yaxis.label)]
        texts += [t for ax in figure.axes for t in (*ax.get_xticklabels(), *ax.get_yticklabels())]
        texts += [t for legend in figure.legends for t in legend.get_texts()]
        assert min(t.get_fontsize() for t in texts if t.get_text()) >= 7.0


# --- how training went -----------------------------------------------------------------------------------


def test_loss_curves(model, tmp_path):
    files = [model(tmp_path / f"{seed}.safetensors", "car2d-choice", "gap5", seed=seed) for seed in (0, 1)]
    files.append(model(tmp_path / "r.safetensors", "car2d-reach", "gap10"))
    figure = figures.loss_curves([files[0].with_suffix(".json"), *files[1:]], USUAL)
    assert [ax.get_title() for ax in figure.axes] == ["car2d-reach\nDIBS, gap10", "car2d-choice\nDIBS, gap5"]
    reach, choice = figure.axes
    assert len([line for line in choice.lines if len(line.get_xdata())]) == 2 * 8
    edges = ["start → g1", "g1 → g2", "g2 → g3", "g3 → g4", "g4 → g5"]
    assert [t.get_text() for t in reach.get_legend().get_texts()] == edges
    np.testing.assert_allclose(reach.lines[2].get_ydata(), [3 * 10.0 ** (-n / 4) for n in range(8)])
    save(figure, tmp_path / "l.png")
    written(tmp_path / "l.png")
    with pytest.raises(DibsError, match=r"no input has split gap3; they have gap10, gap5"):
        figures.loss_curves(files, Options(split="gap3"))


def test_models_without_a_curve_of_losses_are_left_out(model, tmp_path):
    """A folder of results also has models of methods with no curve, or with a curve of another kind."""
    fitted = model(tmp_path / "d.safetensors", "car2d-reach", "gap10")
    empty = model(tmp_path / "w.safetensors", "car2d-reach", "gap10", curve=[])
    other = model(tmp_path / "a.safetensors", "car2d-reach", "gap10", curve=[{"steps": 1, "success": 0.5}])
    tensors, metadata = read_tensors(other)
    del metadata["model"]["edges"]
    write_tensors(other, tensors, metadata)
    figure = figures.loss_curves([empty, other, fitted], USUAL)
    assert len(figure.axes) == 1 and len([line for line in figure.axes[0].lines if len(line.get_xdata())]) == 5


def test_templates_without_a_fit_are_said_to_move(model, tmp_path):
    """As `dibs-plus` where motion holds on all edges. Models of other methods are an error."""
    moved = model(tmp_path / "m.safetensors", "car2d-reach", "gap10", method="dibs-plus", curve=[])
    with pytest.raises(DibsError, match="none of these models has a curve"):
        figures.loss_curves([moved], USUAL)
    tensors, metadata = read_tensors(moved)
    metadata["model"]["class"] = "motion"
    write_tensors(moved, tensors, metadata)
    (ax,) = figures.loss_curves([moved], USUAL).axes
    assert "nothing was fitted" in ax.texts[0].get_text()


def test_damaged_metrics_are_named(model, tmp_path):
    file = model(tmp_path / "t.safetensors", "car2d-choice", "gap5", curve=[[0, 1, 2]])
    with pytest.raises(DibsError, match=r"t\.safetensors: expected a curve of 8 edges, found shape \(1, 3\)"):
        figures.loss_curves([file], USUAL)
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(DibsError, match=r"t\.json: was not written together with"):
        figures.loss_curves([file], USUAL)
    (tmp_path / "t.json").write_text("{")
    with pytest.raises(DibsError, match=r"t\.json: damaged"):
        figures.loss_curves([file], USUAL)


def test_metrics_of_another_run_are_refused(model, teacher, tmp_path):
    old, new = (model(tmp_path / f"{n}.safetensors", "car2d-choice", "gap5", seed=n == "new") for n in ("old", "new"))
    old.with_suffix(".json").write_bytes(new.with_suffix(".json").read_bytes())
    with pytest.raises(DibsError, match=r"old\.json: was not written together with .*old\.safetensors"):
        figures.loss_curves([old], USUAL)
    one, two = (teacher(tmp_path / f"{n}.safetensors", "car2d-choice", "gap5", 5, n, 1.0) for n in (0, 1))
    one.with_suffix(".json").write_bytes(two.with_suffix(".json").read_bytes())
    with pytest.raises(DibsError, match=r"0\.json: was not written together with .*0\.safetensors"):
        figures.drift([one], USUAL)


def test_drift(teacher, tmp_path):
    def files(weight, warm=True):
        folder = tmp_path / f"{weight}-{warm}"
        return [
            teacher(folder / f"{seed}-{index}.safetensors", "car2d-reach", "gap20", index, seed, weight, warm)
            for seed in (0, 1)
            for index in (0, 20, 40)
        ]

    def means(figure):
        lines = [line for line in figure.axes[0].lines if len(line.get_ydata())]
        return sorted(tuple(np.round(line.get_ydata(), 6)) for line in lines)

    def named(figure):
        return [t.get_text() for t in figure.legends[0].get_texts()]

    weighted, free = files(1e-3), files(0.0)
    figure = figures.drift([*weighted, *free], USUAL)
    assert figure.axes[0].get_title() == "car2d-reach, gap20"
    assert named(figure) == [r"$\lambda_\mathrm{x} = 0.001$", r"$\lambda_\mathrm{x} = 0$"]
    assert means(figure) == [(1.05, 1.05), (3.05, 3.05)]
    save(figure, tmp_path / "d.pdf")
    written(tmp_path / "d.pdf")
    three = figures.drift([*weighted, *free, *files(0.0, warm=False)], USUAL)
    assert named(three) == [
        r"$\lambda_\mathrm{x} = 0.001$, warm start",
        r"$\lambda_\mathrm{x} = 0$, warm start",
        r"$\lambda_\mathrm{x} = 0$, from scratch",
    ]
    assert means(three) == [(1.05, 1.05), (3.05, 3.05), (7.05, 7.05)]
    with pytest.raises(DibsError, match="none of these teachers has a predecessor"):
        figures.drift([f for f in weighted if f.name.endswith("-0.safetensors")], USUAL)


# --- files -----------------------------------------------------------------------------------------------


def test_the_same_figure_has_the_same_bytes_in_another_process(reach, tmp_path):
    """And that process needs no torch."""
    data = tmp_path / "frame.parquet"
    reach.to_parquet(data)
    figure = figures.ratios(pd.read_parquet(data), USUAL)
    script = (
        "import sys, pandas as pd; from dibs.drawing.style import STYLE, save; from dibs.studies import figures; "
        "from dibs.studies.reports import USUAL; STYLE['savefig.dpi'] = 60; "
        "figure = figures.ratios(pd.read_parquet(sys.argv[1]), USUAL); "
        "[save(figure, name) for name in sys.argv[2:]]; print('torch' in sys.modules)"
    )
    others = [tmp_path / f"other.{suffix}" for suffix in ("png", "pdf")]
    command = [sys.executable, "-c", script, str(data), *map(str, others)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "False"
    for other in others:
        one = other.with_stem("one")
        save(figure, one)
        assert one.read_bytes() == other.read_bytes()
        written(one)


def test_far_indices_are_marked_next_to_the_others(save_run, tmp_path):
    """Index 100,000 must not stretch the axis; its name is written below its mark."""
    role = {0: "train", 1: "unseen", 2: "train", 3: "beyond", 4: "beyond", 1000: "far", 100_000: "far"}
    identity = {"method": "dibs", "benchmark": "mine", "family": "mine", "split": "gap2", "seed": 7}
    file = save_run(tmp_path / "e.parquet", dict.fromkeys(role, 95) | {100_000: 20}, role, identity)
    figure = figures.success_by_index(collect([file]), Options())
    (ax,) = (ax for part in figure.subfigs for ax in part.axes)
    assert ax.get_xlim()[1] < 10
    assert [text.get_text() for text in ax.texts] == ["1,000", "100,000"]
    marks = next(line for line in ax.lines if line.get_marker() == "D")
    assert list(marks.get_ydata()) == [0.95, 0.2] and min(marks.get_xdata()) > 4
