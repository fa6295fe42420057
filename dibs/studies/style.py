"""What all result figures share: print size, methods' lines and bars, axes and legends.

Figures are drawn at the width at which they are printed, so their smallest type is 7 points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import offset_copy

from dibs import registry
from dibs.drawing.style import STYLE as DRAWING
from dibs.drawing.style import shade
from dibs.methods import Method, get_method, in_order, label
from dibs.studies.collect import where
from dibs.studies.formats import span

WIDTH = 5.5  # inches: the width of the paper's text
STYLE: dict[Any, Any] = {
    **DRAWING,
    **{"axes.titlesize": 8.0, "axes.labelsize": 7.5, "legend.fontsize": 7.5},
    **{"lines.linewidth": 1.0, "axes.labelpad": 2.0},
    **{f"{axis}tick.major.{what}": value for axis in "xy" for what, value in (("size", 2.5), ("pad", 2.0))},
    **{"axes.grid": True, "axes.grid.axis": "y", "axes.axisbelow": True},
    **{"grid.linewidth": 0.5, "grid.color": "#E3E3E3"},
    **{"figure.constrained_layout.h_pad": 0.03, "figure.constrained_layout.w_pad": 0.03},
}
NOTE = 7.0  # points
GREY = "#6B6B6B"
DELTA: dict[str, Any] = {"color": GREY, "lw": 0.6, "ls": (0, (4, 2))}
CEILING: dict[str, Any] = {"color": GREY, "lw": 0.7, "ls": (0, (1, 1.5))}


def in_print() -> Any:
    """Return a context in which figures get the style of print."""
    return mpl.rc_context(STYLE)


# --- methods ---------------------------------------------------------------------------------------------


def look(method: str) -> Method | type[Method]:
    """Return the record that has a method's color and marker; the defaults if the method is not installed."""
    return get_method(method) if method in registry.names("methods") else Method


def line(method: str) -> dict[str, Any]:
    """Return the style of a method's line and markers, in panels and legends alike."""
    style = look(method)
    cross = style.marker in "x+"
    size, edge = {"*": 5.4, "x": 4.2, "D": 3.2}.get(style.marker, 3.8), 1.3 if cross else 0.9 if style.hollow else 0.4
    outer, inner = style.color if cross or style.hollow else "white", "white" if style.hollow else style.color
    stroke = {"color": style.color, "lw": 1.0, "ls": (0, style.dashes) if style.dashes else "-"}
    return {**stroke, "marker": style.marker, "ms": size, "mew": edge, "mec": outer, "mfc": inner}


def bar(method: str) -> dict[str, Any]:
    """Return the style of a method's bars, which differ by hatch as well as by color."""
    style = look(method)
    return {"facecolor": shade(style.color, 0.75), "edgecolor": "white", "hatch": style.hatch, "linewidth": 0.4}


def lines(ax: Axes, part: pd.DataFrame, x: str, metric: str, methods: Sequence[str], positions: Sequence[int]) -> None:
    """Draw mean and standard deviation of each method at the positions; a missing one is a gap in the line.

    Lines that coincide are moved apart by a few points, and no line hides another's marker.
    """
    top = ax.get_ylim()[1] / 1.1
    for number, method in enumerate(methods):
        at = where(part, method=method).groupby(x)[metric].agg(["mean", "std"]).reindex(list(positions))
        low, high = (at["mean"] - at["std"]).clip(lower=0.0), (at["mean"] + at["std"]).clip(upper=top)
        ax.fill_between(positions, low, high, color=look(method).color, alpha=0.13, lw=0, zorder=2)
        apart = number - (len(methods) - 1) / 2
        figure = ax.get_figure(root=True)
        moved = offset_copy(ax.transData, figure, 12.0 / len(methods) * apart, 0.4 * apart, units="points")
        for order, only in ((3, {"marker": "None"}), (5, {"ls": "None"})):
            ax.plot(positions, at["mean"], transform=moved, zorder=order + 0.1 * number, **{**line(method), **only})


def legend(figure: Figure, runs: pd.DataFrame, bars: bool = False, ceiling: bool = True, ours: str = "") -> None:
    """Name the methods above the panels, and say below them what lines and shades, or bars and whiskers, are.

    One method may be marked as ours.
    """
    methods = in_order(runs["method"])
    names = {m: f"{label(m)} (ours)" if m == ours else label(m) for m in methods}
    entries = {name: Patch(**bar(m)) if bars else line(m) for m, name in names.items()}
    entries |= {"all unseen tasks": CEILING} if ceiling else {}
    _outside(figure, entries, 7, loc="outside upper center", handlelength=1.2 if bars else 2.0)
    seeds = runs.groupby(["benchmark", "split", "method"]).size()
    text = "one seed"
    if seeds.max() > 1:
        text = f"mean over {span(seeds)} seeds; {'whiskers' if bars else 'shades'}: one standard deviation"
    if not bars and len(methods) > 1:
        text += "; lines that coincide are drawn slightly apart"
    figure.supxlabel(text, fontsize=NOTE)


def legend_below(figure: Figure, entries: Mapping[str, Any], most: int = 7) -> None:
    """Explain patches, and lines given by their style, below the panels; in two rows if there are more than `most`."""
    _outside(figure, entries, most, loc="outside lower center", handlelength=1.8, fontsize=NOTE)


def _outside(figure: Figure, entries: Mapping[str, Any], most: int, **how: Any) -> None:
    handles = [Line2D([], [], **look) if isinstance(look, dict) else look for look in entries.values()]
    columns = len(entries) if len(entries) <= most else -(-len(entries) // 2)
    small: dict[str, Any] = {"columnspacing": 1.0, "handletextpad": 0.4, "borderaxespad": 0.2, "frameon": False}
    figure.legend(handles, list(entries), ncols=columns, **small, **how)


# --- axes and panels -------------------------------------------------------------------------------------


def value_axis(ax: Axes, text: str, most: float = 1.0) -> None:
    """Let the y-axis show a ratio, or a count up to `most`."""
    ax.set(ylim=(-0.1 * most, 1.1 * most), ylabel=text)
    ticks = MaxNLocator(4, integer=True).tick_values(0.0, most) if most > 1.0 else [0.0, 0.5, 1.0]
    ax.set_yticks([tick for tick in ticks if 0.0 <= tick <= most])


def panels(count: int, height: float, columns: int = 3, room: float = 0.4) -> tuple[Figure, list[Axes]]:
    """Return a figure with a number of panels, each of some height, and more room for legends."""
    columns = min(count, columns)
    rows = -(-count // columns)
    figure = Figure(figsize=(WIDTH, height * rows + room), layout="constrained")
    return figure, [figure.add_subplot(rows, columns, n + 1) for n in range(count)]


Draw = Callable[[Axes, pd.DataFrame, Sequence[str]], str]
"""Draws some runs of some methods into a panel and returns the label of its x-axis."""


def rows_of_panels(
    runs: pd.DataFrame, rows: Mapping[str, pd.DataFrame], columns: Mapping[str, Draw], **legends: Any
) -> Figure:
    """Return a figure with a titled row of panels for each part of the runs; columns have heads and draw the panels.

    Methods of the runs that are in no row are left out. A note names those that some row lacks.
    """
    every, drawn = in_order(runs["method"]), pd.concat(rows.values())
    methods = in_order(drawn["method"])
    with in_print():
        figure = Figure(figsize=(WIDTH, 1.4 * len(rows) + 0.95), layout="constrained")
        parts = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
        for part, (title, shown) in zip(parts, rows.items(), strict=True):
            part.suptitle(title, fontsize=8.0, fontweight="bold")
            for number, (head, draw) in enumerate(columns.items()):
                ax = part.add_subplot(1, len(columns), number + 1)
                label_below = draw(ax, shown, methods)
                ax.set_title(head if part is parts[0] else "", fontsize=7.5)
                ax.set_xlabel(label_below if part is parts[-1] else "")
        legend(figure, drawn, **legends)
        absent = [label(m) for m in every if any(m not in set(part["method"]) for part in rows.values())]
        if absent:
            place = "here" if len(rows) == 1 else "in every row"
            figure.supxlabel(f"{figure.get_supxlabel()}\nnot run {place}: {', '.join(absent)}", fontsize=NOTE)
    return figure


def against_train(ax: Axes, part: pd.DataFrame, methods: Sequence[str], metric: str) -> str:
    """Draw one benchmark's metric over the number of training tasks."""
    sizes = sorted(part["train_size"].unique())
    part = part.assign(position=part["train_size"].map(sizes.index))
    ax.set(xlim=(-0.6, len(sizes) - 0.4), xticks=range(len(sizes)), xticklabels=sizes)
    if metric.endswith("_ratio"):
        value_axis(ax, {"training_ratio": "training ratio", "zero_shot_ratio": "zero-shot ratio"}[metric])
    else:
        unseen = part.groupby("position")["unseen_size"].first().astype(float)
        value_axis(ax, "unseen solved", float(unseen.max()))
        ax.plot(unseen.index, unseen, zorder=1.5, **CEILING)
    lines(ax, part, "position", metric, methods, range(len(sizes)))
    return r"training tasks $|\mathrm{Train}|$"


OVER_TRAIN: dict[str, Draw] = {
    metric: partial(against_train, metric=metric) for metric in ("training_ratio", "zero_shot_ratio", "zero_shot_count")
}
