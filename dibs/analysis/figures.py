"""The paper's result figures in its layout, colours and markers (section 5.2, appendix H), and a few of our own.

Each is drawn at the width at which it is printed, so that its smallest type is 7 points. Lines are means over
seeds, shades one standard deviation. Where lines coincide they are moved apart by less than their width. What
has no data says so in its panel: a method that was not run is never mistaken for one that solves nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from dibs import paths
from dibs.analysis import draw
from dibs.analysis.collect import benchmark_order, collect, collect_indices
from dibs.analysis.methods import PAPER, in_order, label, look
from dibs.analysis.statistics import wilson
from dibs.errors import DibsError, unknown
from dibs.families import Family, get_benchmark, get_family
from dibs.files import atomic, read_json, read_tensors

WIDTH = 5.5  # inches: the width of the paper's text
STYLE: dict[Any, Any] = {
    **draw.STYLE,
    "axes.titlesize": 8.0,
    "axes.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "lines.linewidth": 1.0,
    "axes.labelpad": 2.0,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.major.pad": 2.0,
    "ytick.major.pad": 2.0,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
}
NOTE = 7.0  # points
GREY = "#6B6B6B"
QUIET: dict[str, Any] = {
    "ha": "center",
    "va": "center",
    "color": GREY,
    "style": "italic",
    "fontsize": NOTE,
    "linespacing": 1.05,
}
"""How notes on missing data are written."""

REACH = {
    "car2d-reach": "Car2D k-reachability",
    "simpledrone-reach": "SimpleDrone k-reachability",
    "droneattitude-reach": "DroneAttitude k-reachability",
    "car2d-reach-obs": "Car2D k-reachability + obstacles",
}
CHOICE = {
    "car2d-choice-l1": "Car2D choice, 1-level branching",
    "car2d-choice-l2": "Car2D choice, 2-level branching",
}
VARIANTS = {
    "drop-same": "pick and drop,\nsame side",
    "drop-opposite": "pick and drop,\nopposite side",
    "stack-same": "pick and stack,\nsame side",
    "stack-opposite": "pick and stack,\nopposite side",
}
LETTERS = ("i", "ii", "iii", "iv")


@dataclass(frozen=True)
class Options:
    """What a figure shows, where its inputs leave a choice."""

    methods: tuple[str, ...] = ()
    """Empty: the paper's, and DIBS+ where it was run."""
    benchmark: str = ""
    gap: int | None = None
    """None: the middle split of those that most evaluations have."""


USUAL = Options()


def save(figure: Figure, output: str | Path) -> None:
    """Write a figure as PNG or PDF, by its name; the same figure gives the same bytes."""
    draw.check_output(output)
    suffix = Path(output).suffix.lower()[1:]
    nobody = {"CreationDate": None, "Producer": None} if suffix == "pdf" else {"Software": None}
    with mpl.rc_context(STYLE), atomic(output) as temporary:
        figure.savefig(temporary, format=suffix, metadata=nobody)


# --- lines over |Train| and k ----------------------------------------------------------------------------


def scalability(frame: pd.DataFrame, k: int, options: Options = USUAL) -> Figure:
    """Ratios over |Train|: for k = 5 three environments and the count over k, otherwise also obstacles."""
    families = list(REACH)[:3] if k == 5 else list(REACH)
    return _reach_rows(frame, families, k, options, counts=k == 5)


def obstacles(frame: pd.DataFrame, options: Options = USUAL) -> Figure:
    """The same for Car2D with obstacles at k = 5."""
    return _reach_rows(frame, ["car2d-reach-obs"], 5, options, counts=True)


def choice(frame: pd.DataFrame, options: Options = USUAL) -> Figure:
    """Choice with one and two levels: ratios and count over |Train|."""
    methods = _shown(frame[frame["benchmark"].isin(list(CHOICE))], options)
    with mpl.rc_context(STYLE):
        figure, rows = _rows(list(CHOICE.values()), 3)
        for panels, benchmark in zip(rows, CHOICE, strict=True):
            part = frame[frame["benchmark"] == benchmark]
            for ax, metric in zip(panels, ("training_ratio", "zero_shot_ratio", "zero_shot_count"), strict=True):
                _against_train(ax, part, metric, methods)
        _columns(rows, ["(a) training", "(b) zero-shot", "(c) zero-shot, absolute"])
        _legend(figure, frame[frame["benchmark"].isin(list(CHOICE))], methods)
    return figure


def _reach_rows(frame: pd.DataFrame, families: Sequence[str], k: int, options: Options, counts: bool) -> Figure:
    used = frame["family"].isin(families) & ((frame["k"] == k) | (frame["k"].notna() & counts))
    frame = frame[used]
    methods = _shown(frame, options)
    with mpl.rc_context(STYLE):
        figure, rows = _rows([REACH[family] for family in families], 3 if counts else 2)
        for panels, family in zip(rows, families, strict=True):
            part = frame[(frame["family"] == family) & (frame["k"] == k)]
            _against_train(panels[0], part, "training_ratio", methods)
            _against_train(panels[1], part, "zero_shot_ratio", methods)
            if counts:
                _against_k(panels[2], frame[frame["family"] == family], methods, options.gap)
        heads = [f"(a) training, $k = {k}$", f"(b) zero-shot, $k = {k}$", "(c) zero-shot, absolute"]
        _columns(rows, heads[: len(rows[0])])
        _legend(figure, frame, methods)
    return figure


def _rows(titles: Sequence[str], columns: int) -> tuple[Figure, list[list[Axes]]]:
    """A figure with one titled row of panels each."""
    figure = Figure(figsize=(WIDTH, 1.4 * len(titles) + 0.95), layout="constrained")
    parts = np.atleast_1d(np.asarray(figure.subfigures(len(titles), 1)))
    rows = []
    for number, (part, title) in enumerate(zip(parts, titles, strict=True)):
        prefix = f"({LETTERS[number]}) " if len(titles) > 1 else ""
        part.suptitle(prefix + title, fontsize=8.0, fontweight="bold")
        rows.append(list(np.atleast_1d(part.subplots(1, columns))))
    return figure, rows


def _columns(rows: Sequence[Sequence[Axes]], heads: Sequence[str]) -> None:
    """Heads above the first row; what the x-axes are below the last one only."""
    for ax, head in zip(rows[0], heads, strict=True):
        ax.set_title(head, fontsize=7.5)
    for row in rows[:-1]:
        for ax in row:
            ax.set_xlabel("")


def _against_train(ax: Axes, part: pd.DataFrame, metric: str, methods: Sequence[str]) -> None:
    """One benchmark's metric over the number of training tasks."""
    part = part[part["method"].isin(methods)]
    sizes = sorted(set(part["train_size"]))
    part = part.assign(place=part["train_size"].map({size: n for n, size in enumerate(sizes)}))
    ax.set(xlim=(-0.6, max(len(sizes), 1) - 0.4), xticks=range(len(sizes)), xticklabels=sizes)
    ax.set_xlabel(r"training tasks $|\mathrm{Train}|$")
    if metric.endswith("_ratio"):
        _ratio_axis(ax, {"training_ratio": "training ratio", "zero_shot_ratio": "zero-shot ratio"}[metric])
    else:
        unseen = part.groupby("place")["unseen_size"].first().astype(float)
        _count_axis(ax, "unseen solved", unseen.max() if len(unseen) else 1.0)
        _ceiling(ax, unseen.index.to_numpy(float), unseen.to_numpy())
    _lines(ax, part, "place", metric, methods)


def _against_k(ax: Axes, part: pd.DataFrame, methods: Sequence[str], gap: int | None) -> None:
    """Number of unseen tasks solved over the number of goals, at one split."""
    part = part[part["method"].isin(methods)]
    ax.set(xlim=(0.6, 5.4), xlabel="goals in a row $k$")
    ax.xaxis.set_major_locator(FixedLocator(range(1, 6)))
    chosen = middle_gap(part) if gap is None else gap
    part = part[part["gap"] == chosen]
    unseen = float(part["unseen_size"].max()) if len(part) else 1.0
    _count_axis(ax, "unseen solved" + (f"\n(of {unseen:.0f}, gap {chosen})" if len(part) else ""), unseen)
    if len(part):
        _ceiling(ax, np.array([0.6, 5.4]), np.array([unseen, unseen]))
    never = [k for k in range(1, 6) if k not in set(part["k"])]
    notes = [f"not run: $k$ = {', '.join(map(str, never))}"] if never and len(part) else []
    _lines(ax, part, "k", "zero_shot_count", methods, range(1, 6), notes)


def middle_gap(part: pd.DataFrame) -> int | None:
    """The middle one, by |Train|, of the splits with the most evaluations."""
    counts = part.groupby("gap").size()
    if counts.empty:
        return None
    best = sorted((int(gap) for gap in counts[counts == counts.max()].index), reverse=True)
    return best[len(best) // 2]


def _ratio_axis(ax: Axes, text: str) -> None:
    ax.set(ylim=(-0.1, 1.1), ylabel=text)
    ax.yaxis.set_major_locator(FixedLocator([0.0, 0.5, 1.0]))
    ax.grid(axis="y", color="#E3E3E3", lw=0.5)
    ax.set_axisbelow(True)


def _count_axis(ax: Axes, text: str, most: float) -> None:
    ax.set(ylim=(-0.1 * most, 1.1 * most), ylabel=text)
    ticks = MaxNLocator(4, integer=True).tick_values(0.0, most)
    ax.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if 0.0 <= tick <= most]))
    ax.grid(axis="y", color="#E3E3E3", lw=0.5)
    ax.set_axisbelow(True)


def _ceiling(ax: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """All there are to solve."""
    ax.plot(x, y, color=GREY, lw=0.7, ls=(0, (1, 1.5)), zorder=1.5)


def _lines(
    ax: Axes,
    part: pd.DataFrame,
    x: str,
    metric: str,
    methods: Sequence[str],
    places: Sequence[int] = (),
    notes: Sequence[str] = (),
) -> None:
    """Mean and deviation of each method over `places`; what is missing is said in the panel, after `notes`."""
    tables = {
        m: part[part["method"] == m].groupby(x)[metric].agg(["mean", "std"]).dropna(subset="mean") for m in methods
    }
    present = [method for method in methods if len(tables[method])]
    known = sorted({place for method in present for place in tables[method].index})
    wanted = list(places) or known
    top = ax.get_ylim()[1] / 1.1
    step = min(0.7 * _room(ax) / max(len(wanted), 1) / max(len(present), 1), 3.5)  # points between neighbours
    for number, method in enumerate(present):
        at = tables[method].reindex(wanted)  # a hole in the line where a split is missing
        apart = number - (len(present) - 1) / 2
        low, high = (at["mean"] - at["std"]).clip(lower=0.0), (at["mean"] + at["std"]).clip(upper=top)
        ax.fill_between(wanted, low, high, color=look(method).color, alpha=0.13, lw=0, zorder=2)
        moved = ScaledTranslation(step * apart / 72, 0.4 * apart / 72, _dpi(ax))
        style = _line(method)
        for order, only in ((3, {"marker": "None"}), (5, {"ls": "None"})):  # no line hides another's marker
            how = {**style, **only, "zorder": order + 0.1 * number}
            ax.plot(wanted, at["mean"], transform=ax.transData + moved, **how)
    absent = [label(method) for method in methods if method not in present]
    partly = [label(method) for method in present if len(tables[method]) < len(known)]
    _say_missing(ax, absent, partly, bool(known), notes)


def _line(method: str) -> dict[str, Any]:
    """How a method's line and markers are drawn, in panels and in legends alike."""
    style = look(method)
    line = style.marker in "x+"
    return {
        "color": style.color,
        "lw": 1.0,
        "ls": (0, style.dashes) if style.dashes else "-",
        "marker": style.marker,
        "ms": {"*": 5.4, "x": 4.2, "D": 3.2}.get(style.marker, 3.8),
        "mew": 1.3 if line else 0.9 if style.hollow else 0.4,
        "mec": style.color if line or style.hollow else "white",
        "mfc": "white" if style.hollow else style.color,
    }


def _shown(frame: pd.DataFrame, options: Options) -> list[str]:
    """Methods to draw: those asked for, or the paper's and DIBS+."""
    if options.methods:
        return in_order(options.methods)
    return in_order([*PAPER, *({"dibs-plus"} & set(frame["method"]))])


def _legend(figure: Figure, frame: pd.DataFrame, methods: Sequence[str], bars: bool = False) -> None:
    """One legend above the panels, with what the shades are."""
    present = [m for m in methods if m in set(frame["method"])]
    handles: list[Any] = [Patch(**_bar(m)) if bars else Line2D([], [], **_line(m)) for m in present]
    labels = [label(m) + (" (ours)" if m == "dibs" else "") for m in present]
    handles.append(Line2D([], [], color=GREY, lw=0.7, ls=(0, (1, 1.5))))
    labels.append("all unseen tasks")
    if not any(line.get_linestyle() != "-" and line.get_color() == GREY for ax in figure.axes for line in ax.lines):
        handles, labels = handles[:-1], labels[:-1]
    figure.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=len(handles) if len(handles) < 8 else -(-len(handles) // 2),
        frameon=False,
        handlelength=2.0 if not bars else 1.2,
        columnspacing=1.0,
        handletextpad=0.4,
        borderaxespad=0.2,
    )
    figure.supxlabel(_seeds(frame[frame["method"].isin(methods)], bars), fontsize=NOTE)


def _seeds(frame: pd.DataFrame, bars: bool) -> str:
    """What lines and shades, or bars and whiskers, are."""
    counts = sorted(set(frame.groupby(["benchmark", "gap", "method"]).size()))
    if not counts:
        return "no data"
    span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    deviation = f"; {'whiskers' if bars else 'shades'}: one standard deviation"
    apart = "" if bars or frame["method"].nunique() == 1 else "; lines that coincide are drawn about a point apart"
    return ("one seed" if span == "1" else f"mean over {span} seeds{deviation}") + apart


def _room(ax: Axes) -> float:
    """About how wide the panel is, in points: known before the layout is."""
    spec = ax.get_subplotspec()
    return 72 * WIDTH / (spec.get_gridspec().ncols if spec is not None else 1) - 40


def _dpi(ax: Axes) -> Any:
    figure = ax.get_figure(root=True)
    assert figure is not None
    return figure.dpi_scale_trans


# --- what is missing -------------------------------------------------------------------------------------


def _say_missing(
    ax: Axes, absent: Sequence[str], partly: Sequence[str], any_data: bool, notes: Sequence[str] = ()
) -> None:
    """Write into the panel which methods have no data, or not all of it."""
    if not any_data:
        ax.text(0.5, 0.5, "not run", transform=ax.transAxes, **QUIET)
        ax.set_facecolor("#F4F4F4")
        ax.set(xticks=[], yticks=[])
        return
    lines = [*notes, *([f"no data for: {', '.join(absent)}"] if absent else [])]
    lines += [f"incomplete: {', '.join(partly)}"] if partly else []
    text = "\n".join(part for line in lines for part in textwrap.wrap(line, int(_room(ax) / (0.5 * NOTE))))
    if text:
        _headroom(ax, text.count("\n") + 1, 72.0)
        ax.text(0.5, 0.99, text, transform=ax.transAxes, **{**QUIET, "va": "top"})


def _headroom(ax: Axes, lines: int, height: float) -> None:
    """Lengthen the y-axis of a panel about so high (points), so that a note above hides no data."""
    low, high = ax.get_ylim()
    share = 1.15 * NOTE * lines / height
    ax.set_ylim(low, low + (high - low) / (1.0 - share))


# --- bars ------------------------------------------------------------------------------------------------


def reacher(frame: pd.DataFrame, blocks: int, options: Options = USUAL) -> Figure:
    """Unseen tasks solved in the four Reacher variants of one tower, as grouped bars."""
    names = [f"reacher-{variant}-{blocks}" for variant in VARIANTS]
    frame = frame[frame["benchmark"].isin(names)]
    methods = _shown(frame, options)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 2.25), layout="constrained")
        ax = figure.add_subplot()
        gap = options.gap if options.gap is not None else (int(frame["gap"].max()) if len(frame) else None)
        chosen = frame[(frame["gap"] == gap) & frame["method"].isin(methods)]  # the sparsest leaves most unseen
        unseen = float(chosen["unseen_size"].max()) if len(chosen) else 1.0
        many = f"\n(of {unseen:.0f}, gap {gap})" if len(chosen) else ""
        _count_axis(ax, "unseen tasks solved" + many, unseen)
        ax.set_ylim(0.0, 1.08 * unseen)
        ax.set(xlim=(-0.55, 3.55), xticks=range(4))
        ax.set_xticklabels(VARIANTS.values(), fontsize=7.5)
        ax.tick_params(axis="x", length=0)
        if len(chosen):
            _ceiling(ax, np.array([-0.55, 3.55]), np.array([unseen, unseen]))
            notes = [
                _bars(ax, place, chosen[chosen["benchmark"] == name], methods, unseen)
                for place, name in enumerate(names)
            ]
            _say_above(ax, notes)
        else:
            _say_missing(ax, [], [], False)
        ax.set_title(f"Reacher, {blocks} blocks", fontweight="bold")
        _legend(figure, chosen, methods, bars=True)
    return figure


def _bars(ax: Axes, place: int, part: pd.DataFrame, methods: Sequence[str], unseen: float) -> str:
    """One group of bars, those of height 0 marked as such; returns what is to be said of those that are missing."""
    if part.empty:
        ax.text(place, 0.5 * unseen, "not run", **QUIET)
        return ""
    width = 0.86 / len(methods)
    absent = []
    for number, method in enumerate(methods):
        scores = part[part["method"] == method]["zero_shot_count"]
        x = place + (number - (len(methods) - 1) / 2) * width
        if scores.empty:
            absent.append(label(method))
            continue
        mean, deviation = scores.mean(), scores.std(ddof=1) if len(scores) > 1 else 0.0
        ax.bar(x, mean, 0.88 * width, zorder=2, **_bar(method))
        if deviation > 0:
            ends = [[min(deviation, mean)], [min(deviation, unseen - mean)]]
            ax.errorbar(x, mean, ends, fmt="none", ecolor="#222222", elinewidth=0.7, capsize=1.2, zorder=3)
        if mean < 0.02 * unseen:
            ax.text(
                *(x, mean + deviation + 0.015 * unseen, "0" if mean == 0 else f"{mean:.1f}"),
                ha="center",
                va="bottom",
                fontsize=NOTE,
                color=look(method).color,
            )
    return f"no data for: {', '.join(absent)}" if absent else ""


def _say_above(ax: Axes, notes: Sequence[str]) -> None:
    """One note above each group of bars."""
    texts = ["\n".join(textwrap.wrap(note, 24)) for note in notes]
    if any(texts):
        _headroom(ax, 1 + max(text.count("\n") for text in texts), 90.0)
    for place, text in enumerate(texts):
        ax.text(place, ax.get_ylim()[1], text, **{**QUIET, "va": "top"})


def _bar(method: str) -> dict[str, Any]:
    style = look(method)
    return {"facecolor": draw.shade(style.color, 0.75), "edgecolor": "white", "hatch": style.hatch, "linewidth": 0.4}


# --- along the index -------------------------------------------------------------------------------------


def success_by_index(rows: pd.DataFrame, benchmark: str, gap: int, options: Options = USUAL) -> Figure:
    """Satisfaction rate at every index, per method; training indices are marked."""
    present = in_order(rows["method"])
    methods = [m for m in present if not options.methods or m in options.methods]
    if not methods:
        raise DibsError(f"no evaluation of {benchmark} at gap {gap} among the inputs")
    absent = [label(m) for m in (options.methods or PAPER) if m not in present]
    last = int(rows[rows["role"] != "beyond"]["index"].max())
    most = int(rows["index"].max())
    with mpl.rc_context(STYLE):
        lines = -(-len(methods) // 2)
        figure = Figure(figsize=(WIDTH, 0.95 * lines + 0.75), layout="constrained")
        panels = figure.subplots(lines, 2, sharex=True, sharey=True, squeeze=False)
        for ax, method in zip(panels.flat, methods, strict=False):
            _rate(ax, rows[rows["method"] == method], method, last, most)
        for ax in panels.flat[len(methods) :]:
            ax.set_axis_off()
        for ax in panels[:, 0]:
            ax.set_ylabel("satisfied")
        for ax in panels.flat[max(len(methods) - 2, 0) : len(methods)]:
            ax.set_xlabel("index $i$")
            ax.tick_params(labelbottom=True)
        note = f"; no data for: {', '.join(absent)}" if absent else ""
        figure.suptitle(f"{benchmark}, gap {gap}{note}", fontsize=8.0)
        _rate_legend(figure, rows, most > last)
    return figure


def _rate(ax: Axes, rows: pd.DataFrame, method: str, last: int, most: int) -> None:
    style = look(method)
    pooled = rows.groupby("index")[["satisfied", "rollouts"]].sum()
    index, rate = pooled.index.to_numpy(float), (pooled["satisfied"] / pooled["rollouts"]).to_numpy()
    low, high = wilson(pooled["satisfied"], pooled["rollouts"])
    if most > last:
        ax.axvspan(last + 0.5, most + 0.5, color="#EFEFEF", lw=0, zorder=0)
    train = sorted(set(rows[rows["role"] == "train"]["index"]))
    ax.vlines(train, -0.06, 1.06, color="#CFCFCF", lw=0.5, zorder=1)
    ax.axhline(float(rows["delta"].iloc[0]), color=GREY, lw=0.6, ls=(0, (4, 2)), zorder=1)
    if rows["seed"].nunique() > 1:
        for _, one in rows.groupby("seed"):
            one = one.sort_values("index")
            ax.plot(one["index"], one["rate"], color=style.color, lw=0.4, alpha=0.4, zorder=2)
    ax.fill_between(index, low, high, color=style.color, alpha=0.3, lw=0, zorder=3)
    ax.plot(index, rate, color=style.color, lw=1.0, zorder=4)
    seen = np.isin(index, train)
    ax.plot(index[seen], rate[seen], "o", color=style.color, ms=2.8, mec="white", mew=0.3, zorder=5)
    ax.set(ylim=(-0.06, 1.08), xlim=(-1, most + 0.5))
    ax.yaxis.set_major_locator(FixedLocator([0.0, 0.5, 1.0]))
    ax.set_title(label(method), color=style.color, fontsize=7.5, loc="left", pad=2.0)


def _rate_legend(figure: Figure, rows: pd.DataFrame, beyond: bool) -> None:
    handles: list[Any] = [
        Line2D([], [], color="#444444", marker="o", ms=2.8, lw=1.0),
        Patch(facecolor="#444444", alpha=0.3),
        Line2D([], [], color="#CFCFCF", lw=0.8),
        Line2D([], [], color=GREY, lw=0.6, ls=(0, (4, 2))),
    ]
    seeds = rows.groupby("method")["seed"].nunique()
    span = str(seeds.min()) if seeds.min() == seeds.max() else f"{seeds.min()} to {seeds.max()}"
    rate = "rate" if span == "1" else f"rate, {span} seeds pooled"
    labels = [f"{rate} (dots: trained)", "95% Wilson interval", "training index", f"δ = {rows['delta'].iloc[0]:g}"]
    if span != "1":
        handles.append(Line2D([], [], color="#444444", lw=0.4, alpha=0.6))
        labels.append("one seed")
    if beyond:
        handles.append(Patch(facecolor="#EFEFEF"))
        labels.append("beyond $L$")
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=3,
        frameon=False,
        fontsize=NOTE,
        columnspacing=1.2,
        handlelength=1.8,
    )


def choice_trajectories(template_file: Path, benchmark: str = "", count: int = 1) -> Figure:
    """Rollouts of a template's policies at every index, blue where it was trained and red where not (figure 2b)."""
    from dibs.evaluation.composed import rollouts
    from dibs.spectrl import graph, parse
    from dibs.templates.template import load_template

    template = load_template(template_file)
    family, text = benchmark_of(template.family, benchmark, template_file)
    spec = parse(text)
    edges = graph(spec)
    indices = list(range(family.last_index + 1))
    routes = {i: template.path(edges, i) for i in indices}
    recorded = rollouts(
        family, template.network, template.scaling, template.actors(indices), routes, count, template.seed
    )
    trajectories = [
        draw.Trajectory(i, "train" if i in template.train else "unseen", states[:length])
        for i, r in recorded.items()
        for states, length in zip(r.states, r.lengths, strict=True)
    ]
    trajectories.sort(key=lambda t: (t.role == "train", t.index))  # the fewer ones on top
    figure = draw.figure_task(family, spec, [0, family.last_index // 2, family.last_index], trajectories)
    figure.axes[0].set_title(f"{label(template.method)}, gap {template.gap}, seed {template.seed}", fontsize=8.5)
    return figure


def benchmark_of(family_name: str, benchmark: str, file: Path) -> tuple[Family, str]:
    """A benchmark of the family: the one asked for, or its first."""
    if benchmark:
        family, text = get_benchmark(benchmark)
        if family.name != family_name:
            raise DibsError(f"{file}: a template of {family_name}, which has no benchmark {benchmark}")
        return family, text
    family = get_family(family_name)
    return family, family.benchmarks.get(family.benchmark_ids[0], family.specification)


# --- how training went -----------------------------------------------------------------------------------


def loss_curves(files: Sequence[Path], options: Options = USUAL) -> Figure:
    """Loss of the template's fit over steps, per edge, one panel per family and method."""
    curves = pd.concat([_curve(file) for file in files], ignore_index=True)
    curves = _one_split(curves, options)
    order = {family: n for n, family in enumerate(_families(curves["family"]))}
    cells = sorted(set(zip(curves["family"], curves["method"], strict=True)), key=lambda c: (order[c[0]], c[1]))
    with mpl.rc_context(STYLE):
        figure, panels = _grid(len(cells), 1.75)
        for ax, (family, method) in zip(panels, cells, strict=True):
            part = curves[(curves["family"] == family) & (curves["method"] == method)]
            names = list(dict.fromkeys(part["edge"]))
            sns.lineplot(
                data=part,
                x="step",
                y="loss",
                hue="edge",
                hue_order=names,
                units="seed",
                estimator=None,
                palette=sns.color_palette("viridis", len(names) + 1)[: len(names)],
                linewidth=0.9,
                alpha=0.8,
                ax=ax,
            )
            _edge_legend(ax, names)
            ax.set_yscale("log")
            if len(names) > 5:  # room for the legend above the lines
                low, high = ax.get_ylim()
                ax.set_ylim(low, high * (high / low) ** (0.1 * (len(names) - 5)))
            ax.set(xlabel="step of Adam", ylabel="BC loss")
            ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
            ax.set_title(f"{family}\n{label(method)}, gap {part['gap'].iloc[0]}", fontsize=7.5)
        seeds = curves["seed"].nunique()
        each = f"one line per edge and seed ({seeds} seeds)" if seeds > 1 else "one line per edge"
        figure.suptitle(f"Template fit: {each}", fontsize=8.0)
    return figure


def _edge_legend(ax: Axes, names: Sequence[str]) -> None:
    lines = ax.get_legend_handles_labels()[0][: len(names)]
    shown = [name.replace(">", " → ") for name in names]
    small: dict[str, Any] = {"fontsize": NOTE, "handlelength": 1.0, "labelspacing": 0.15, "borderpad": 0.2}
    ax.legend(lines, shown, frameon=False, loc="upper right", **small)


def _curve(file: Path) -> pd.DataFrame:
    """The fit's losses (step, edge, loss), from the metrics beside a template."""
    weights = file.with_suffix(".safetensors")
    metrics = read_json(paths.metrics(weights))
    meta = read_tensors(weights)[1]
    if meta.get("kind") != "template" or "curve" not in metrics:
        raise DibsError(f"{file}: expected a template's metrics, with its curve; found neither")
    table = np.array(metrics["curve"], dtype=float)  # (looks, 1 + edges)
    if table.ndim != 2 or table.shape[1] != 1 + len(meta["edges"]):
        raise DibsError(f"{file}: expected a curve of {len(meta['edges'])} edges, found shape {table.shape}")
    frame = pd.DataFrame(table[:, 1:], columns=meta["edges"]).assign(step=table[:, 0])
    tidy = frame.melt(id_vars="step", var_name="edge", value_name="loss").dropna()
    return tidy.assign(**{key: meta[key] for key in ("method", "family", "gap", "seed")})


def drift(files: Sequence[Path], options: Options = USUAL) -> Figure:
    """Distance of each teacher from the one before, over the index, for every way (λ_x, start) they were trained in."""
    table = pd.DataFrame([row for file in files for row in _drifts(file)])
    if table.empty:
        raise DibsError("none of these teachers has a predecessor: there is no drift to draw")
    table = _one_split(table, options)
    families = _families(table["family"])
    ways = sorted(set(zip(table["cross_index"], table["warm_start"], strict=True)), reverse=True)
    names = [_way(*way, both=len({warm for _, warm in ways}) > 1) for way in ways]
    table["way"] = [names[ways.index(way)] for way in zip(table["cross_index"], table["warm_start"], strict=True)]
    colors = dict(zip(names, sns.color_palette("colorblind", len(names)), strict=True))
    markers = dict(zip(names, "os^vD*"[: len(names)].ljust(len(names), "o"), strict=True))
    with mpl.rc_context(STYLE):
        figure, panels = _grid(len(families), 1.75)
        for ax, family in zip(panels, families, strict=True):
            part = table[table["family"] == family]
            sns.lineplot(
                data=part,
                x="index",
                y="drift",
                hue="way",
                hue_order=names,
                style="way",
                style_order=names,
                palette=colors,
                markers=markers,
                dashes=False,
                errorbar="sd",
                err_kws={"lw": 0},
                ms=3.6,
                legend=False,
                ax=ax,
            )
            ax.set(xlabel="training index $i$", ylabel=r"$\|\theta_i - \theta_{i^-}\|_2$")
            ax.set_ylim(bottom=0.0)
            ticks = sorted(set(part["index"]))
            ax.xaxis.set_major_locator(FixedLocator(ticks[:: -(-len(ticks) // 8)]))
            ax.set_title(f"{family}, gap {part['gap'].iloc[0]}", fontsize=7.5)
            _say_no_weight(ax, set(part["cross_index"]))
        handles = [Line2D([], [], color=colors[w], marker=markers[w], ms=3.6, lw=1.0) for w in names]
        seeds = table["seed"].nunique()
        over = f"mean over edges and {seeds} seeds; shades: one standard deviation" if seeds > 1 else "mean over edges"
        figure.legend(
            handles, names, loc="outside upper center", ncols=len(names), frameon=False, title=over, title_fontsize=NOTE
        )
    return figure


def _way(weight: float, warm: bool, both: bool) -> str:
    """How teachers were trained; where they start is said if they do not all start alike."""
    start = (", warm start" if warm else ", from scratch") if both else ""
    return rf"$\lambda_\mathrm{{x}} = {weight:g}${start}"


def _say_no_weight(ax: Axes, found: set[float]) -> None:
    """Drift is drawn to compare; say which side of the comparison is missing."""
    lines = []
    if 0.0 not in found:
        lines.append(r"not run: $\lambda_\mathrm{x} = 0$")
    if not found - {0.0}:
        lines.append(r"not run: $\lambda_\mathrm{x} > 0$")
    for line in lines:
        ax.text(0.5, 0.08, line, transform=ax.transAxes, **QUIET)


def _drifts(file: Path) -> list[dict[str, Any]]:
    """A teacher's drift, as a row, unless it has no predecessor."""
    weights = file.with_suffix(".safetensors")
    metrics = read_json(paths.metrics(weights))
    meta = read_tensors(weights)[1]
    if meta.get("kind") != "teacher" or "metrics" not in metrics:
        raise DibsError(f"{file}: expected a teacher and its metrics; found neither")
    found = metrics["metrics"].get("drift")
    if found is None:
        return []
    row: dict[str, Any] = {key: meta[key] for key in ("family", "gap", "index", "seed")}
    row |= {"cross_index": float(meta["settings"]["cross_index"]), "warm_start": bool(meta["settings"]["warm_start"])}
    return [{**row, "drift": float(found)}]


def _one_split(table: pd.DataFrame, options: Options) -> pd.DataFrame:
    """Only the gap asked for, or each family's middle one."""
    if options.gap is not None:
        chosen = table[table["gap"] == options.gap]
        if chosen.empty:
            raise DibsError(f"no input has gap {options.gap}; they have {sorted(set(table['gap']))}")
        return chosen
    seen = table.drop_duplicates(["family", "gap", "seed"])
    gaps = {family: middle_gap(part) for family, part in seen.groupby("family")}
    return table[table["gap"] == table["family"].map(gaps)]


def _families(names: Iterable[str]) -> list[str]:
    from dibs.families import families

    known = list(families())
    return sorted(set(names), key=lambda f: (known.index(f) if f in known else len(known), f))


def _grid(count: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, up to three in a row."""
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH, height * rows + 0.4), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in panels[count:]:
        ax.set_axis_off()
    return figure, panels[:count]


# --- by name ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """A figure by its name."""

    about: str
    needs: str
    """Kind of its input files: evaluation, template, branched template or teacher."""
    make: Callable[[list[Path], Options], Figure]


def _evaluated(draw_frame: Callable[..., Figure], *args: Any) -> Callable[[list[Path], Options], Figure]:
    def make(files: list[Path], options: Options) -> Figure:
        return draw_frame(collect(files), *args, options)

    return make


def _along_index(files: list[Path], options: Options) -> Figure:
    frame = collect(files)
    benchmark = options.benchmark
    if not benchmark:  # the longest of the first family that most was run of
        counts = frame.groupby(["family", "benchmark"]).size()
        most = benchmark_order(counts[counts == counts.max()].index.get_level_values("benchmark"))
        first = frame[frame["benchmark"] == most[0]]["family"].iloc[0]
        benchmark = [b for b in most if (first, b) in counts.index][-1]
    gap = options.gap if options.gap is not None else middle_gap(frame[frame["benchmark"] == benchmark])
    if gap is None:
        raise DibsError(f"no evaluation of {benchmark} among the inputs")
    wanted = frame[(frame["benchmark"] == benchmark) & (frame["gap"] == gap)]["file"]
    return success_by_index(collect_indices(map(Path, wanted), benchmark, gap), benchmark, gap, options)


def _one_template(files: list[Path], options: Options) -> Figure:
    """Of several templates, the first of the family asked for (by default Choice) at the gap asked for."""
    if len(files) == 1:
        return choice_trajectories(files[0].with_suffix(".safetensors"), options.benchmark)
    family = get_benchmark(options.benchmark or "car2d-choice-l1")[0].name
    found = []
    for file in files:
        meta = read_tensors(file.with_suffix(".safetensors"))[1]
        if meta.get("family") == family and options.gap in (None, meta["gap"]):
            found.append({"file": file, **{key: meta[key] for key in ("method", "gap", "seed")}})
    if not found:
        raise DibsError(f"no template of {family} among the inputs; name one with --inputs")
    table = pd.DataFrame(found)
    gap = middle_gap(table)
    first = table[table["gap"] == gap].sort_values(["method", "seed"]).iloc[0]
    return choice_trajectories(Path(first["file"]).with_suffix(".safetensors"), options.benchmark)


def _branching(files: list[Path], options: Options) -> Figure:
    from dibs.analysis.branching import branching

    return branching(files, options)


FIGURES: dict[str, Entry] = {
    **{
        f"scalability_k{k}": Entry(f"ratios over |Train|, {k}-reachability", "evaluation", _evaluated(scalability, k))
        for k in (5, 4, 3, 2, 1)
    },
    "obstacles": Entry("the same, Car2D with obstacles, k = 5", "evaluation", _evaluated(obstacles)),
    "choice": Entry("the same, choice with one and two levels", "evaluation", _evaluated(choice)),
    **{
        f"reacher_{b}": Entry(f"unseen tasks solved, towers of {b} blocks", "evaluation", _evaluated(reacher, b))
        for b in (8, 9, 10)
    },
    "success_by_index": Entry("satisfaction rate at every index, per method", "evaluation", _along_index),
    "choice_trajectories": Entry("rollouts at seen and unseen indices", "template", _one_template),
    "branching": Entry("one template and one per routing mode, over the index", "branched template", _branching),
    "loss_curves": Entry("loss of the template's fit, per edge", "template", loss_curves),
    "drift": Entry("distance between neighbouring teachers, by λ_x", "teacher", drift),
}


def illustrations() -> dict[str, Callable[[], Figure]]:
    """Drawings of tasks and agents; one whose name a result has is an illustration by name."""
    return {f"illustration-{name}" if name in FIGURES else name: make for name, make in draw.FIGURES.items()}


def make(name: str, files: Callable[[str], list[Path]], options: Options) -> tuple[Figure, Callable[..., None]]:
    """A figure by its name, and what saves it; `files` finds the inputs of a kind."""
    if name in FIGURES:
        entry = FIGURES[name]
        figure = entry.make(files(entry.needs), options)
        return figure, draw.save if name == "choice_trajectories" else save
    drawings = illustrations()
    if name in drawings:
        return drawings[name](), draw.save
    raise unknown("figure", name, [*FIGURES, *drawings])
