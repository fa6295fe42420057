"""The paper's result figures in its layout, colors and markers (section 5.2, appendix H)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dibs.methods import in_order
from dibs.paper.numbers import CHOICE, METHODS, OURS, REACH, TOWERS, goals
from dibs.studies import style
from dibs.studies.collect import middle_split, split_order, where
from dibs.studies.reports import Options

ABSOLUTE = "(c) zero-shot, absolute"
LETTERS = ("i", "ii", "iii", "iv")


def scalability(runs: pd.DataFrame, options: Options, k: int, counts: bool = False) -> Figure:
    """Ratios over |Train| at one k, one row per family; with `counts`, also unseen tasks solved over k.

    If no benchmark has that many goals, the largest k there is takes its place.
    """
    runs = _shown(runs.assign(k=runs["benchmark"].map(goals)), options)
    k = min(k, int(runs["k"].max()))
    shown = {title: where(runs, family=family, k=k) for family, title in REACH.items()}
    rows = {f"{title} (requires: {_required(part)})": part for title, part in shown.items() if len(part)}

    def over_k(ax: Axes, part: pd.DataFrame, methods: Sequence[str]) -> str:
        part = where(runs, family=part["family"].iloc[0])
        split = options.split or middle_split(part)
        part = where(part, split=split)
        unseen = float(part["unseen_size"].max()) if len(part) else 1.0
        ax.set(xlim=(0.6, 5.4), xticks=range(1, 6))
        style.value_axis(ax, f"unseen solved\n(of {unseen:.0f}, {split})", unseen)
        ax.axhline(unseen, zorder=1.5, **style.CEILING)
        style.lines(ax, part, "k", "zero_shot_count", methods, range(1, 6))
        return "goals in a row $k$"

    training, zero_shot, _ = style.OVER_TRAIN.values()
    columns = {f"(a) training, $k = {k}$": training, f"(b) zero-shot, $k = {k}$": zero_shot}
    columns |= {ABSOLUTE: over_k} if counts else {}
    return style.rows_of_panels(runs, _lettered(rows), columns, ceiling=counts, ours=OURS[0])


def choice(runs: pd.DataFrame, options: Options) -> Figure:
    """Choice with one and two levels: ratios and count over |Train|."""
    runs = _shown(runs, options)
    rows = {title: where(runs, benchmark=benchmark) for benchmark, title in CHOICE.items()}
    columns = dict(zip(("(a) training", "(b) zero-shot", ABSOLUTE), style.OVER_TRAIN.values(), strict=True))
    return style.rows_of_panels(runs, _lettered(rows), columns, ours=OURS[0])


def reacher(runs: pd.DataFrame, options: Options, blocks: int) -> Figure:
    """Unseen tasks solved in the Reacher tasks with one tower, as grouped bars; tiny ones have a number."""
    runs = _shown(runs, options)
    split = options.split or split_order(runs)[0]  # the smallest |Train| leaves most unseen
    runs = where(runs, split=split)
    towers = {f"reacher-{name}-{blocks}": text for name, text in TOWERS.items()}
    order = [benchmark for benchmark in towers if benchmark in set(runs["benchmark"])]
    methods, unseen = in_order(runs["method"]), float(runs["unseen_size"].max())
    bars: dict[str, Any] = {"order": order, "hue": "method", "hue_order": methods, "width": 0.86, "gap": 0.12}
    bars |= {"errorbar": "sd", "capsize": 0.2, "err_kws": {"color": "#222222", "lw": 0.7}, "legend": False}
    with style.in_print():
        figure = Figure(figsize=(style.WIDTH, 2.25), layout="constrained")
        ax = figure.add_subplot()
        style.value_axis(ax, f"unseen tasks solved\n(of {unseen:.0f}, {split})", unseen)
        sns.barplot(runs, x="benchmark", y="zero_shot_count", ax=ax, **bars)
        groups: Any = ax.containers
        for group, method in zip(groups, methods, strict=True):
            for bar in group:
                bar.set(**style.bar(method))
            shown = [f"{height:.2g}" if height < 0.02 * unseen else "" for height in group.datavalues]
            ax.bar_label(group, shown, color=style.look(method).color, fontsize=style.NOTE, padding=1.0)
        ax.set_xticks(range(len(order)), [towers[benchmark] for benchmark in order], fontsize=7.5)
        ax.set(ylim=(0.0, 1.08 * unseen), xlabel="", ylabel=f"unseen tasks solved\n(of {unseen:.0f}, {split})")
        ax.tick_params(axis="x", length=0)
        ax.axhline(unseen, zorder=1.5, **style.CEILING)
        ax.set_title(f"Reacher, {blocks} blocks", fontweight="bold")
        style.legend(figure, runs, bars=True, ours=OURS[0])
    return figure


def _required(part: pd.DataFrame) -> str:
    """Return what the benchmarks of a row require."""
    return " or ".join(sorted(set(part["requires"])))


def _shown(runs: pd.DataFrame, options: Options) -> pd.DataFrame:
    """Return the runs of the methods asked for, by default those of the paper and DIBS+."""
    return runs if options.methods else runs[runs["method"].isin([*METHODS, "dibs-plus"])]


def _lettered(rows: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Leave out rows without runs, and number the titles of the others, if there are several."""
    rows = {title: part for title, part in rows.items() if len(part)}
    numbered = {f"({LETTERS[n]}) {title}": part for n, (title, part) in enumerate(rows.items())}
    return numbered if len(rows) > 1 else rows
