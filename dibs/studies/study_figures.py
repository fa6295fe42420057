"""Figures of ablations and sweeps.

An ablation has one line per variant, so that names of any length have room. A sweep is drawn over the swept keys. What
was not run is left out, and a note names it.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from dibs.methods import in_order, label
from dibs.studies import style
from dibs.studies.ablations import of_split, spread
from dibs.studies.collect import groups, where
from dibs.studies.studies import Results, StudyFile
from dibs.studies.style import GREY, WIDTH
from dibs.studies.sweeps import SweepChoice, symbol

INK = "#222222"
LABEL = 24  # characters in a line of a variant's name
RATIOS = {"zero_shot_ratio": "zero-shot ratio", "training_ratio": "training ratio"}
SEED: dict[str, Any] = {"marker": "o", "ms": 1.9, "mew": 0.0, "alpha": 0.4, "ls": "None"}


# --- ablations -------------------------------------------------------------------------------------------


def ablation_figure(study: StudyFile, results: Results) -> Figure:
    """Draw ratios, one row per benchmark and split; next to them the drift of the teachers, if the variants' differ."""
    found = groups(results.runs, "benchmark", "train_size", "split", "family")
    variants = [v for v in study.variants if v.name in set(results.runs["variant"])]
    drifts = [
        [of_split(results.edges, v.name, *of).groupby("seed")["drift"].mean().dropna() for v in variants]
        for of in [(family, split) for (_, _, split, family), _ in found]
    ]
    known = [[seeds for seeds in row if len(seeds)] for row in drifts]
    differ = any(not one.equals(other) for row in known for one, other in pairwise(row))
    methods, names = in_order(results.runs["method"]), [_wrapped(v.shown, LABEL) for v in variants]
    lines = max(name.count("\n") + 1 for name in names)
    height = 0.35 + len(names) * max(0.13 * lines + 0.06, 0.17 * len(methods) + 0.12)
    with style.in_print():
        figure = Figure(figsize=(WIDTH, height * len(found) + 0.8), layout="constrained")
        grid = figure.subplots(len(found), 1 + differ, squeeze=False, sharex="col", sharey=True)
        for axes, ((benchmark, _, split, _), cell), row in zip(grid, found, drifts, strict=True):
            for ax in axes:
                _variant_axis(ax, names)
            _ratios(axes[0], [v.name for v in variants], cell)
            axes[0].set_title(f"{benchmark}, {split}", fontsize=7.5)
            if differ:
                for y, seeds in enumerate(row):
                    _spread(axes[1], seeds, y, _marker(INK, "s"))
                axes[1].set_xlim(left=0.0)
        grid[-1, 0].set_xlabel("ratio of tasks solved")
        if differ:
            grid[-1, 1].set_xlabel(r"drift $\|\theta_i - \theta_{i^-}\|_2$")
        entries = {label(m): _dot(m) for m in methods}
        entries |= {name: _marker(GREY, "o", hollow=n > 0) for n, name in enumerate(RATIOS.values())}
        entries |= {"95% interval of the mean": {"color": GREY, "lw": 1.0}, "one seed": {"color": GREY, **SEED}}
        style.legend_below(figure, entries)
        _footnote(figure, [v.shown for v in study.variants if v not in variants])
        _title(figure, study.question)
    return figure


def _variant_axis(ax: Axes, names: Sequence[str]) -> None:
    """Give each variant a line, the first one on top."""
    ax.set(ylim=(len(names) - 0.5, -0.5), yticks=range(len(names)))
    ax.set_yticklabels(names, linespacing=1.1)
    ax.tick_params(axis="y", length=0)
    ax.hlines(np.arange(1, len(names)) - 0.5, 0, 1, color="#DDDDDD", lw=0.5, transform=ax.get_yaxis_transform())
    ax.grid(axis="x")
    ax.grid(False, axis="y")


def _ratios(ax: Axes, variants: Sequence[str], runs: pd.DataFrame) -> None:
    ax.set(xlim=(-0.05, 1.05), xticks=[0.0, 0.5, 1.0])
    shown = [(method, ratio) for method in in_order(runs["method"]) for ratio in RATIOS]
    for row, variant in enumerate(variants):
        for number, (method, ratio) in enumerate(shown):
            y = row - 0.4 + (number + 0.5) * 0.8 / len(shown)
            values = where(runs, variant=variant, method=method)[ratio]
            _spread(ax, values, y, _dot(method, hollow=ratio == "training_ratio"))


def _spread(ax: Axes, values: pd.Series, y: float, dot: dict[str, Any]) -> None:
    """Draw each seed small, the mean large, and its interval as a bar."""
    known = values.dropna()
    middle, low, high = spread(known)
    if len(known) > 1:
        ax.plot(known, [y] * len(known), color=dot["color"], zorder=3, clip_on=False, **SEED)
    if low is not None and high is not None:
        ax.plot([low, high], [y, y], color=dot["color"], lw=1.0, zorder=4, clip_on=False)
    if middle is not None:
        ax.plot([middle], [y], **dot, zorder=5, clip_on=False)


def _dot(method: str, hollow: bool = False) -> dict[str, Any]:
    """Return a method's marker, filled or as an outline; crosses are replaced by their thick versions."""
    look = style.look(method)
    return _marker(look.color, {"x": "X", "+": "P"}.get(look.marker, look.marker), hollow)


def _marker(color: str, marker: str, hollow: bool = False) -> dict[str, Any]:
    size = 6.0 if marker == "*" else 4.6
    return {"color": color, "marker": marker, "ms": size, "mfc": "white" if hollow else color, "mew": 0.8, "ls": "None"}


# --- sweeps ----------------------------------------------------------------------------------------------

MEASURES = {
    "success": "teachers' success",
    "drift": "teachers' drift",
    "loss": "template loss",
    "satisfaction": "satisfaction (training)",
}
CHOSEN, HELD = "#D62728", "#1F77B4"
BOXES: dict[str, dict[str, Any]] = {"held": {"ec": HELD, "ls": (0, (2, 1))}, "chosen": {"ec": CHOSEN}}
LINES: dict[str, dict[str, Any]] = {
    "held": {"color": HELD, "lw": 1.0, "ls": (0, (4, 2))},
    "chosen": {"marker": "o", "ms": 8.0, "mfc": "none", "mec": CHOSEN, "mew": 1.3, "ls": "None"},
}
EMPTY: dict[str, Any] = {"facecolor": "#EEEEEE", "edgecolor": "#AAAAAA", "hatch": "////", "linewidth": 0.0}


def sweep_figure(study: StudyFile, frame: pd.DataFrame, choice: SweepChoice) -> Figure:
    """Draw lines over one swept key, or heatmaps over two or three; points side by side if they are no full grid."""
    keys, known = study.keys, frame[list(MEASURES)].where(frame["missing"] == "")
    frame = frame.assign(chosen=frame.index == choice.chosen, **known)
    with style.in_print():
        if len(keys) in (2, 3) and 2 * len(frame) >= prod(frame[key].nunique() for key in keys):
            figure = _heatmaps(keys, frame)
        else:
            figure = _over_points(keys, frame.sort_values(keys[0]) if len(keys) == 1 else frame)
        family = next((f for f in frame["family"] if f), "")
        _title(figure, f"{study.question} ({family})" if family else study.question)
    return figure


def _over_points(keys: Sequence[str], frame: pd.DataFrame) -> Figure:
    """Draw one panel per measure over the values of one key, or over all points, as categories."""
    present, one = _present(frame, MEASURES), len(keys) == 1
    figure, panels = style.panels(len(present), 1.5, 2, 0.75) if one else style.panels(len(present), 1.2, 1, 1.3)
    names = [", ".join(f"{value:g}" for value in values) for values in frame[list(keys)].itertuples(index=False)]
    title = _math(", ".join(map(symbol, keys))) + (f" ({keys[0]})" if one and symbol(keys[0]) != keys[0] else "")
    for ax, name in zip(panels, present, strict=True):
        ax.set(xlim=(-0.5, len(frame) - 0.5), xticks=range(len(frame)), ylabel=MEASURES[name], xlabel=title)
        ax.set_xticklabels(names, rotation=0 if one else 90)
        _along(ax, frame.reset_index(drop=True), name, "-" if one else "None")
        if not one:
            ax.label_outer()
    _sweep_legend(figure, frame, LINES)
    _footnote(figure, [name for name, why in zip(names, frame["missing"], strict=True) if why])
    return figure


def _present(frame: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """Return what was measured at any point; if nothing was, all of it."""
    return [name for name in names if frame[name].notna().any()] or list(names)


def _along(ax: Axes, frame: pd.DataFrame, name: str, line: str) -> None:
    """Draw a measure over the points: rates up to 1, and only the part near 1 if all are there; others from 0."""
    values = frame[name]
    ax.plot(frame.index, values, color=INK, lw=1.0, ls=line, marker="o", ms=3.6, zorder=3)
    if name in ("success", "satisfaction"):
        low = np.nanmin([0.95, values.min() - 0.02])
        ax.set_ylim(low, 1.0 + 0.15 * (1.0 - low))
    else:
        ax.set_ylim(0.0, np.nanmax([values.max(), 1e-9]) * 1.2)
    ax.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    for x in frame.index[frame["held"]]:
        ax.axvline(x, zorder=1, **LINES["held"])
    ax.plot(values[frame["chosen"]], zorder=4, **LINES["chosen"])


def _heatmaps(keys: Sequence[str], frame: pd.DataFrame) -> Figure:
    """Draw satisfaction and loss over two keys, once per value of the third."""
    rows, columns, *third = sorted(keys, key=lambda k: -frame[k].nunique())
    present = _present(frame, ("satisfaction", "loss"))
    slices: list[tuple[Any, pd.DataFrame]] = list(frame.groupby(third[0])) if third else [(None, frame)]
    height = 0.24 * frame[rows].nunique() + 0.42
    figure = Figure(figsize=(WIDTH, height * len(slices) + 0.9), layout="constrained")
    panels = figure.subplots(len(slices), len(present), squeeze=False, sharex=True, sharey=True)
    for axes, name in zip(panels.T, present, strict=True):
        for ax, (value, part) in zip(axes, slices, strict=True):
            _heat(ax, part, frame, rows, columns, name)
            at = f"{_math(symbol(third[0]))} = {value:g}: " if third else ""
            ax.set_title(at + MEASURES[name], fontsize=7.5)
            ax.label_outer()
        bar = figure.colorbar(axes[0].collections[0], ax=axes.tolist(), aspect=16 * len(slices), pad=0.02)
        bar.ax.yaxis.set_major_locator(MaxNLocator(4))
    handles = {kind: Patch(fill=False, lw=1.5, **how) for kind, how in BOXES.items()}
    _sweep_legend(figure, frame, {**handles, "missing": Patch(**EMPTY)})
    return figure


def _heat(ax: Axes, part: pd.DataFrame, frame: pd.DataFrame, rows: str, columns: str, name: str) -> None:
    """Draw one heatmap with its numbers; points without a value are hatched."""
    ys, xs = sorted(frame[rows].unique()), sorted(frame[columns].unique())
    grid = part.pivot(index=rows, columns=columns, values=name).reindex(index=ys, columns=xs)
    low, high = (frame[name].min(), frame[name].max()) if frame[name].notna().any() else (0.0, 1.0)
    palette, how = ("viridis", ".3f") if name == "satisfaction" else ("viridis_r", ".2g")
    ticks = {"xticklabels": [f"{x:g}" for x in xs], "yticklabels": [f"{y:g}" for y in ys]}
    numbers = {"annot": True, "fmt": how, "annot_kws": {"fontsize": 6.5}}
    sns.heatmap(grid, ax=ax, cmap=palette, vmin=low, vmax=high, cbar=False, **ticks, **numbers)
    ax.set(xlabel=_math(symbol(columns)), ylabel=_math(symbol(rows)), ylim=(0, len(ys)))
    ax.tick_params(length=0, rotation=0)
    ax.patch.set(**EMPTY)  # shows where there is no value
    halo = [withStroke(linewidth=3.0, foreground="white")]
    for kind, look in BOXES.items():
        for _, point in part[part[kind]].iterrows():
            corner = xs.index(point[columns]) + 0.04, ys.index(point[rows]) + 0.04
            ax.add_patch(Rectangle(corner, 0.92, 0.92, fill=False, lw=1.5, zorder=5, path_effects=halo, **look))


def _sweep_legend(figure: Figure, frame: pd.DataFrame, looks: Mapping[str, Any]) -> None:
    """Explain the marks that are drawn."""
    texts = {"chosen": "chosen by the rule", "held": "held by the config", "missing": "missing"}
    drawn = {text: looks[kind] for kind, text in texts.items() if kind in looks and frame[kind].astype(bool).any()}
    if drawn:
        style.legend_below(figure, drawn)


def _footnote(figure: Figure, absent: Sequence[str]) -> None:
    """Name what was not run, which the panels leave out."""
    if absent:
        figure.supxlabel(_wrapped(f"not run: {'; '.join(absent)}", 100), fontsize=style.NOTE)


def _title(figure: Figure, question: str) -> None:
    figure.suptitle(_wrapped(question, 64), fontsize=8.5, fontweight="bold")


def _wrapped(text: str, width: int) -> str:
    """Break text into lines, and set λ_x and the like as in the paper."""
    return _math("\n".join(textwrap.wrap(text, width)))


def _math(text: str) -> str:
    return re.sub(r"\b([α-ωA-Z])_(\w+)", r"$\1_\\mathrm{\2}$", text)
