"""Figures of studies: an ablation's variants side by side, a sweep's points over what is swept.

Drawn at the width of print, in the style of the result figures. Variants stand below one another, so that their
names never meet, however long. What was not run says so.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

from dibs.analysis.ablations import cells, interval, is_expected, runs_of
from dibs.analysis.figures import GREY, NOTE, QUIET, STYLE, WIDTH
from dibs.analysis.methods import in_order, label, look
from dibs.analysis.studies import Measured, Study, of_split
from dibs.analysis.sweeps import Choice, symbol

INK = "#222222"
LABEL = 24
"""Characters of a variant's name in a line."""
RATIOS = {"zero_shot_ratio": "zero-shot ratio", "training_ratio": "training ratio"}
DRIFT = r"drift $\|\theta_i - \theta_{i^-}\|_2$"
Split = tuple[str, int]
"""Benchmark and gap."""


# --- ablations -------------------------------------------------------------------------------------------


def ablation_figure(study: Study, measured: Mapping[str, Measured]) -> Figure:
    """Per benchmark and gap a panel of ratios; below it the teachers' drift, where the variants' differ."""
    found = cells(measured)
    splits = list(dict.fromkeys((benchmark, gap) for benchmark, gap, _ in found))
    methods = in_order(method for *_, method in found)
    drifts = {split: _drifts(measured, split) for split in splits}
    with mpl.rc_context(STYLE):
        figure, rows = _panels(study, splits, methods, drifts)
        for split, (above, below) in rows.items():
            _ratios(above, study, measured, split, [m for *cell, m in found if tuple(cell) == split])
            above.set_title(f"{split[0]}\ngap {split[1]}", fontsize=7.5)
            if below is not None:
                _drift(below, study, drifts[split])
        _ablation_legend(figure, methods)
        _title(figure, study.question)
    return figure


def _panels(
    study: Study, splits: Sequence[Split], methods: Sequence[str], drifts: Mapping[Split, dict[str, pd.Series]]
) -> tuple[Figure, dict[Split, tuple[Axes, Axes | None]]]:
    """Panels in rows of up to three; names of variants at the left of each row only."""
    names = [_wrapped(v.shown, LABEL) for v in study.variants]
    lines = max(name.count("\n") + 1 for name in names)
    slot = max(0.13 * lines + 0.06, 0.17 * len(methods) + 0.12)  # inches per variant
    slot_below = max(0.13 * lines + 0.02, 0.2)
    columns = 2 if len(splits) == 4 else min(len(splits), 3)
    chunks = [splits[n : n + columns] for n in range(0, len(splits), columns)]
    with_drift = [any(_differ(drifts[split]) for split in chunk) for chunk in chunks]
    rows = [
        (chunk, below) for chunk, drift in zip(chunks, with_drift, strict=True) for below in (False, True)[: 1 + drift]
    ]
    heights = [0.45 + len(names) * (slot_below if below else slot) for _, below in rows]
    figure = Figure(figsize=(WIDTH, sum(heights) + 0.65), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False, height_ratios=heights)
    panels: dict[Split, tuple[Axes, Axes | None]] = {}
    for axes, (chunk, below) in zip(grid, rows, strict=True):
        for ax in axes:
            ax.set_axis_off()
        used = [(split, ax) for split, ax in zip(chunk, axes, strict=False) if not below or _differ(drifts[split])]
        for number, (split, ax) in enumerate(used):
            _variant_axis(ax, names if number == 0 else [""] * len(names))
            panels[split] = (panels[split][0], ax) if below else (ax, None)
    return figure, panels


def _variant_axis(ax: Axes, names: Sequence[str]) -> None:
    """One line per variant, from above."""
    ax.set_axis_on()
    ax.set(ylim=(len(names) - 0.5, -0.5), yticks=range(len(names)))
    ax.set_yticklabels(names, linespacing=1.1)
    ax.tick_params(axis="y", length=0)
    for edge in range(1, len(names)):
        ax.axhline(edge - 0.5, color="#DDDDDD", lw=0.5, zorder=0)


def _ratios(ax: Axes, study: Study, measured: Mapping[str, Measured], split: Split, methods: Sequence[str]) -> None:
    ax.set(xlim=(-0.05, 1.05), xlabel="ratio of tasks solved")
    ax.xaxis.set_major_locator(FixedLocator([0.0, 0.5, 1.0]))
    ax.grid(axis="x", color="#E3E3E3", lw=0.5)
    ax.set_axisbelow(True)
    step = 0.8 / (len(RATIOS) * len(methods))
    for place, variant in enumerate(study.variants):
        one = measured[variant.name]
        if not any(len(runs_of(one, *split, method)) for method in methods):
            ax.text(0.5, place, "not run", **QUIET)
            continue
        for number, method in enumerate(methods):
            runs = runs_of(one, *split, method)
            top = place - 0.4 + (2 * number + 0.5) * step
            if runs.empty and is_expected(one, *split, method):
                ax.text(0.5, top + step / 2, f"{label(method)}: not run", **QUIET)
            for below, ratio in enumerate(RATIOS):
                _spread(ax, runs[ratio], top + below * step, _dot(method, hollow=ratio == "training_ratio"))


def _spread(ax: Axes, values: Iterable[float], y: float, dot: dict[str, Any]) -> None:
    """Each seed small, the mean large, its interval as a bar."""
    known = [float(v) for v in values if not np.isnan(v)]
    middle, low, high = interval(known)
    if middle is None:
        return
    if len(known) > 1:
        ax.plot(known, [y] * len(known), "o", ms=1.9, mew=0.0, color=dot["color"], alpha=0.4, zorder=3, clip_on=False)
    if low is not None and high is not None:
        ax.plot([low, high], [y, y], color=dot["color"], lw=1.0, zorder=4, clip_on=False)
    ax.plot([middle], [y], **dot, zorder=5, clip_on=False)


def _dot(method: str, hollow: bool) -> dict[str, Any]:
    """A method's marker, filled or as an outline; a cross has no inside, so it gets one."""
    style = look(method)
    marker = style.marker.upper() if style.marker in "x+" else style.marker
    return _marker(style.color, "P" if marker == "+" else marker, hollow)


def _marker(color: str, marker: str, hollow: bool) -> dict[str, Any]:
    size = 6.0 if marker == "*" else 4.6
    return {"color": color, "marker": marker, "ms": size, "mfc": "white" if hollow else color, "mew": 0.8, "ls": "None"}


def _drifts(measured: Mapping[str, Measured], split: Split) -> dict[str, pd.Series]:
    """Mean drift of each seed's teachers, per variant that has any."""
    family = next(f for m in measured.values() for f in m.runs[m.runs["benchmark"] == split[0]]["family"])
    found = {}
    for name, one in measured.items():
        seeds = of_split(one.edges, family, split[1]).groupby("seed")["drift"].mean().dropna()
        if len(seeds):
            found[name] = seeds
    return found


def _differ(drifts: Mapping[str, pd.Series]) -> bool:
    """Whether the variants have teachers of their own, and not all the same ones."""
    each = list(drifts.values())
    return any(not one.equals(each[0]) for one in each[1:])


def _drift(ax: Axes, study: Study, drifts: Mapping[str, pd.Series]) -> None:
    for place, variant in enumerate(study.variants):
        if variant.name in drifts:
            _spread(ax, drifts[variant.name], place, _marker(INK, "s", hollow=False))
        else:
            ax.text(0.5, place, "no teachers", transform=ax.get_yaxis_transform(), **QUIET)
    ax.set_xlim(0.0, 1.08 * max(float(seeds.max()) for seeds in drifts.values()) or 1.0)
    ax.xaxis.set_major_locator(MaxNLocator(4))
    ax.grid(axis="x", color="#E3E3E3", lw=0.5)
    ax.set_axisbelow(True)
    ax.set_xlabel(DRIFT)


def _ablation_legend(figure: Figure, methods: Sequence[str]) -> None:
    handles = [Line2D([], [], **_dot(method, hollow=False)) for method in methods]
    handles += [Line2D([], [], **_marker(GREY, "o", hollow=hollow)) for hollow in (False, True)]
    handles.append(Line2D([], [], color=GREY, lw=1.0))
    handles.append(Line2D([], [], color=GREY, marker="o", ms=1.9, mew=0.0, alpha=0.6, ls="None"))
    labels = [*map(label, methods), *RATIOS.values(), "95% interval of the mean", "one seed"]
    small: dict[str, Any] = {"columnspacing": 1.0, "handletextpad": 0.3, "handlelength": 1.4, "borderaxespad": 0.3}
    columns = len(handles) if len(handles) < 7 else -(-len(handles) // 2)
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=NOTE, **small)


# --- sweeps ----------------------------------------------------------------------------------------------

MEASURES = {
    "success": "teachers' success",
    "drift": "teachers' drift",
    "loss": "template loss",
    "satisfaction": "satisfaction (training)",
}
ROUND = MaxNLocator(4, steps=[1, 2, 5, 10])
CHOSEN, HELD = "#D62728", "#1F77B4"


def sweep_figure(study: Study, frame: pd.DataFrame, choice: Choice) -> Figure:
    """Lines over one swept key, heatmaps over two or three; points side by side where there is no full grid."""
    frame = frame.assign(chosen=frame.index == choice.chosen)
    on_grid = 1
    for key in study.keys:
        on_grid *= frame[key].nunique()
    with mpl.rc_context(STYLE):
        if len(study.keys) == 1:
            figure = _over_points(study.keys[0], frame.sort_values(study.keys[0]))
        elif len(study.keys) <= 3 and 2 * len(frame) >= on_grid:
            figure = _heatmaps(study.keys, frame)
        else:
            figure = _side_by_side(study.keys, frame)
        family = next((f for f in frame["family"] if f), "")
        _title(figure, f"{study.question} ({family})" if family else study.question)
    return figure


def _over_points(key: str, frame: pd.DataFrame) -> Figure:
    """One small panel per measure over the values of one key, as categories."""
    present = _present(frame, MEASURES)
    columns = min(len(present), 2)
    rows = -(-len(present) // 2)
    figure = Figure(figsize=(WIDTH, 1.45 * rows + 0.75), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for ax in panels[len(present) :]:
        ax.set_axis_off()
    for number, (ax, name) in enumerate(zip(panels, present, strict=False)):
        _along(ax, frame, name, "-")
        lowest = number + columns >= len(present)
        ax.set_xticklabels([f"{value:g}" for value in frame[key]] if lowest else [])
        ax.set_xlabel(f"{_set(symbol(key))} ({key})" if lowest and symbol(key) != key else key if lowest else "")
    _sweep_legend(figure, frame, marks=True)
    return figure


def _side_by_side(keys: Sequence[str], frame: pd.DataFrame) -> Figure:
    """One panel per measure over all points, named by their values."""
    present = _present(frame, MEASURES)
    figure = Figure(figsize=(WIDTH, 1.2 * len(present) + 1.3), layout="constrained")
    panels = figure.subplots(len(present), 1, squeeze=False).flat
    for ax, name in zip(panels, present, strict=True):
        _along(ax, frame, name, "None")
        ax.set_xticklabels([])
    names = [", ".join(f"{value:g}" for value in values) for values in frame[list(keys)].itertuples(index=False)]
    ax.set_xticklabels(names, rotation=90)
    ax.set_xlabel(_set(", ".join(map(symbol, keys))))
    _sweep_legend(figure, frame, marks=True)
    return figure


def _present(frame: pd.DataFrame, names: Iterable[str]) -> list[str]:
    """What was measured of any point; all of it, to say so, if nothing was."""
    known = [name for name in names if frame[name].notna().any()]
    return known or list(names)


def _along(ax: Axes, frame: pd.DataFrame, name: str, line: str) -> None:
    places, values = np.arange(len(frame)), frame[name].to_numpy(float)
    usable = (frame["missing"] == "").to_numpy()
    values = np.where(usable, values, np.nan)
    ax.set(xlim=(-0.5, len(frame) - 0.5), xticks=places, ylabel=MEASURES[name])
    _value_axis(ax, values[~np.isnan(values)], rate=name in ("success", "satisfaction"))
    for place in places[frame["held"].to_numpy(bool)]:
        ax.axvline(place, color=HELD, lw=1.0, ls=(0, (4, 2)), zorder=1)
    ax.plot(places, values, color=INK, lw=1.0, ls=line, marker="o", ms=3.6, zorder=3)
    for place in places[frame["chosen"].to_numpy(bool)]:
        ax.plot([place], [values[place]], marker="o", ms=8.5, mfc="none", mec=CHOSEN, mew=1.3, zorder=4)
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
    for place in places[~usable]:
        ax.text(place, 0.5, "missing", transform=ax.get_xaxis_transform(), rotation=90, bbox=behind, **QUIET)
    ax.grid(axis="y", color="#E3E3E3", lw=0.5)
    ax.set_axisbelow(True)


def _value_axis(ax: Axes, values: np.ndarray, rate: bool) -> None:
    """Rates up to 1, and close to it if all are; other measures from 0."""
    if rate:
        low = min(0.95, float(values.min()) - 0.02) if len(values) else 0.0
        ax.set_ylim(low, 1.0 + 0.15 * (1.0 - low))
        ax.yaxis.set_major_locator(FixedLocator([t for t in ROUND.tick_values(low, 1.0) if low <= t <= 1.001]))
    else:
        ax.set_ylim(0.0, 1.2 * (float(values.max()) if len(values) and values.max() > 0 else 1.0))
        ax.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))


def _heatmaps(keys: Sequence[str], frame: pd.DataFrame) -> Figure:
    """Satisfaction and loss over two keys, once per value of the third."""
    rows, columns, *third = sorted(keys, key=lambda k: -frame[k].nunique())
    present = _present(frame, ("satisfaction", "loss"))
    slices = sorted(frame[third[0]].unique()) if third else [None]
    height = 0.24 * frame[rows].nunique() + 0.42
    figure = Figure(figsize=(WIDTH, height * len(slices) + 0.9), layout="constrained")
    panels = figure.subplots(len(slices), len(present), squeeze=False, sharex=True, sharey=True)
    usable = frame[frame["missing"] == ""]
    for column, name in enumerate(present):
        power = _power(usable[name]) if name == "loss" else 0
        limits = (float(usable[name].min()), float(usable[name].max())) if usable[name].notna().any() else (0.0, 1.0)
        for line, value in enumerate(slices):
            part = frame if value is None else frame[frame[third[0]] == value]
            ax = panels[line, column]
            image = _heat(ax, part, frame, (rows, columns), name, limits, power)
            title = MEASURES[name] + (rf" ($\times 10^{{{power}}}$)" if power else "")
            at = "" if value is None else f"{_set(symbol(third[0]))} = {value:g}"
            ax.set_title(": ".join(filter(None, [at, title if line == 0 or not at else ""])), fontsize=7.5)
            ax.set_xlabel(_set(symbol(columns)) if line == len(slices) - 1 else "")
            ax.set_ylabel(_set(symbol(rows)) if column == 0 else "")
        bar = figure.colorbar(image, ax=panels[:, column].tolist(), aspect=16 * len(slices), pad=0.02)
        bar.ax.yaxis.set_major_locator(MaxNLocator(4))
        bar.ax.yaxis.set_major_formatter(_scaled(power))
    _sweep_legend(figure, frame, marks=False)
    return figure


def _heat(
    ax: Axes,
    part: pd.DataFrame,
    frame: pd.DataFrame,
    keys: tuple[str, str],
    name: str,
    limits: tuple[float, float],
    power: int,
) -> Any:
    """One heatmap with its numbers; cells that were not run are hatched."""
    ys, xs = (sorted(frame[key].unique()) for key in keys)
    ax.set_facecolor("#EEEEEE")
    grid = np.full((len(ys), len(xs)), np.nan)
    marks = []
    for _, point in part.iterrows():
        y, x = ys.index(point[keys[0]]), xs.index(point[keys[1]])
        if point["missing"] == "":
            grid[y, x] = point[name]
        marks.append((x, y, bool(point["chosen"]), bool(point["held"])))
    palette = "viridis" if name == "satisfaction" else "viridis_r"
    image = ax.imshow(grid, cmap=palette, vmin=limits[0], vmax=limits[1], aspect="auto", origin="lower")
    for y, x in np.ndindex(grid.shape):
        if np.isnan(grid[y, x]):
            ax.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, fc="#EEEEEE", ec="#AAAAAA", hatch="////", lw=0.0))
            continue
        rgb = image.cmap(image.norm(grid[y, x]))[:3]
        dark = np.dot(rgb, (0.299, 0.587, 0.114)) < 0.5
        text = f"{grid[y, x] / 10.0**power:.1f}" if name == "loss" else f"{grid[y, x]:.3f}"
        ax.text(x, y, text, ha="center", va="center", fontsize=6.5, color="white" if dark else "black")
    for x, y, chosen, held in marks:
        for wanted, color, inset, dashes in ((held, HELD, 0.06, (0, (2, 1))), (chosen, CHOSEN, 0.0, "-")):
            if wanted:
                box = (x - 0.5 + inset, y - 0.5 + inset), 1 - 2 * inset, 1 - 2 * inset
                ax.add_patch(Rectangle(*box, fill=False, ec="white", lw=2.4, zorder=4, clip_on=False))
                ax.add_patch(Rectangle(*box, fill=False, ec=color, lw=1.5, ls=dashes, zorder=5, clip_on=False))
    ax.set(xticks=range(len(xs)), yticks=range(len(ys)))
    ax.set_xticklabels([f"{v:g}" for v in xs])
    ax.set_yticklabels([f"{v:g}" for v in ys])
    ax.tick_params(length=0)
    return image


def _power(values: pd.Series) -> int:
    """The power of ten to take out of small numbers."""
    largest = float(values.abs().max()) if len(values) else 0.0
    power = int(np.floor(np.log10(largest))) if largest > 0 else 0
    return power if abs(power) > 1 else 0


def _scaled(power: int) -> FuncFormatter:
    return FuncFormatter(lambda value, _: f"{value / 10.0**power:.3g}")


def _sweep_legend(figure: Figure, frame: pd.DataFrame, marks: bool) -> None:
    handles: list[Any] = []
    labels = []
    if frame["chosen"].any():
        ring = Line2D([], [], marker="o", ms=7.5, mfc="none", mec=CHOSEN, mew=1.3, ls="None")
        handles.append(ring if marks else Patch(fill=False, ec=CHOSEN, lw=1.5))
        labels.append("chosen by the rule")
    if frame["held"].any():
        dashes = (0, (4, 2)) if marks else (0, (2, 1))
        line = Line2D([], [], color=HELD, lw=1.0, ls=dashes)
        handles.append(line if marks else Patch(fill=False, ec=HELD, lw=1.5, ls=dashes))
        labels.append("held by the config")
    if (frame["missing"] != "").any() and not marks:
        handles.append(Patch(fc="#EEEEEE", ec="#AAAAAA", hatch="////", lw=0.0))
        labels.append("missing")
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=NOTE)


def _title(figure: Figure, question: str) -> None:
    figure.suptitle(_wrapped(question, 64), fontsize=8.5, fontweight="bold")


def _wrapped(text: str, width: int) -> str:
    """Text in lines of about so many characters, λ_x and the like as the paper sets them."""
    return _set("\n".join(textwrap.wrap(text, width)))


def _set(text: str) -> str:
    return re.sub(r"\b([α-ωA-Z])_(\w+)", r"$\1_\\mathrm{\2}$", text)
