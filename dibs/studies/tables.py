"""Tables over any benchmarks and methods.

A *cell* is one benchmark and one split. Two methods are compared only over the cells that both have, each by its mean
over seeds there, and every table says how many cells and seeds that was. Intervals are 95% percentile intervals of a
stratified bootstrap: seeds are resampled within each cell.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from dibs import registry
from dibs.evaluation.requirements import UNKNOWN
from dibs.methods import get_method, in_order, label
from dibs.studies.collect import benchmark_order, groups, split_order, where
from dibs.studies.formats import NONE, Column, Row, Table, fill, span
from dibs.studies.reports import USUAL, Options

DRAWS = 2000
CELL = ["benchmark", "split"]
RATIOS = ["training_ratio", "zero_shot_ratio"]
COUNTS = ["training_count", "zero_shot_count"]


def bootstrap(groups: Sequence[np.ndarray], statistic: Callable[..., Any]) -> tuple[float | None, float | None]:
    """Return the 95% bootstrap interval of a statistic of several groups; values are resampled within each group.

    There is none if a group has one value only, or if the statistic is undefined for a resample.
    """
    if min(map(len, groups)) < 2:
        return None, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)  # for a statistic that is undefined: see below
        found = stats.bootstrap(
            groups, statistic, n_resamples=DRAWS, vectorized=True, method="percentile", rng=np.random.default_rng(0)
        ).confidence_interval
    return (None, None) if np.isnan(found.low + found.high) else (float(found.low), float(found.high))


def interquartile_mean(*groups: np.ndarray, axis: int = -1) -> Any:
    """Return the mean of the middle half of all values in some groups."""
    return stats.trim_mean(np.concatenate(groups, axis=axis), 0.25, axis=axis)


# --- methods against each other --------------------------------------------------------------------------

METHOD = Column("Method", lambda r: label(r["method"]), "l")
SEEDS = Column("Seeds", "{seeds}")
REQUIRES = Column("Requires", "{requires}", "l")
MORE = "more"
"""The group of benchmarks that no index-free policy and no motion solves."""


def relative(frame: pd.DataFrame, options: Options) -> Table:
    """How many times as many tasks as another method each method solves."""
    rows = [relative_row(frame, ours, theirs) for ours, theirs in _pairs(frame)]
    notes = [
        f"{NONE}: the other method solves no task, so the ratio is undefined. In brackets: 95% stratified bootstrap "
        "interval. Solved: sums over the cells (benchmark and split) both have; cells: how many of the method's own.",
        more_note(frame),
        *adapted_note(frame),
    ]
    caption = "Relative aggregate performance: how many times as many tasks as another method a method solves."
    return Table("relative", caption, rows, relative_columns("Compared with", frame), 1, notes)


def relative_row(frame: pd.DataFrame, ours: str, theirs: str) -> Row:
    """Compare the tasks that two methods solve, on all benchmarks and, as `more_…`, on those that require more."""
    counts = {"training": COUNTS[0], "unseen": COUNTS[1]}
    every, more = (
        _compare(part, ours, theirs, counts, "ratio", ratio_of_sums) for part in (frame, where(frame, requires=MORE))
    )
    return every | {f"{MORE}_{key}": value for key, value in more.items() if key not in ("method", "baseline")}


def more_note(frame: pd.DataFrame) -> str:
    """Say which benchmarks require more than an index-free policy or motion."""
    found = benchmark_order(where(frame, requires=MORE)["benchmark"])
    unknown = benchmark_order(where(frame, requires=UNKNOWN)["benchmark"])
    text = f"More: benchmarks that require more than an index-free policy or motion, here {', '.join(found)}."
    if not found:
        text = "More: none of these benchmarks is known to require more than an index-free policy or motion."
    return text + (f" Not measured: {', '.join(unknown)}." if unknown else "")


def relative_columns(other: str, frame: pd.DataFrame) -> list[Column]:
    """Return what readers see of a comparison; benchmarks that require more have columns if there are any."""

    def times(kind: str, group: str = "") -> Callable[[Row], str]:
        ratio = Column("", (f"{{{kind}_ratio:.2f}}×", f" [{{{kind}_low:.2f}}, {{{kind}_high:.2f}}]"))
        return lambda row: ratio.text(row) if row[f"{group}cells"] else "not run"

    more = [
        Column("More: training tasks", times(f"{MORE}_training", f"{MORE}_")),
        Column("unseen tasks", times(f"{MORE}_unseen", f"{MORE}_")),
        Column("cells", f"{{{MORE}_cells}} of {{{MORE}_cells_ours}}"),
    ]
    return [
        METHOD,
        Column(other, lambda r: label(r["baseline"]), "l"),
        Column("Training tasks", times("training")),
        Column("Unseen tasks", times("unseen")),
        Column("Training solved", "{training_ours:.1f} to {training_theirs:.1f}"),
        Column("Unseen solved", "{unseen_ours:.1f} to {unseen_theirs:.1f}"),
        Column("Cells", "{cells} of {cells_ours}"),
        SEEDS,
        *(more if (frame["requires"] == MORE).any() else []),
    ]


def improvement(frame: pd.DataFrame, options: Options) -> Table:
    """Probability that a run of one method solves a larger share of the tasks than a run of another."""
    ratios = dict(zip(RATIOS, RATIOS, strict=True))
    rows = [_compare(frame, *pair, ratios, "p", probability_of_improvement) for pair in _pairs(frame)]
    rows = [{key: value for key, value in row.items() if not key.endswith(("ours", "theirs"))} for row in rows]
    columns = [METHOD, Column("Compared with", lambda r: label(r["baseline"]), "l")]
    for name, ratio in (("Training ratio", "training_ratio"), ("Zero-shot ratio", "zero_shot_ratio")):
        columns.append(Column(name, (f"{{{ratio}_p:.2f}}", f" [{{{ratio}_low:.2f}}, {{{ratio}_high:.2f}}]")))
    notes = ["Ties count half: 0.5 is no difference. In brackets: 95% stratified bootstrap interval."]
    caption = "Probability of improvement of one method over another, averaged over cells."
    return Table("improvement", caption, rows, [*columns, Column("Cells", "{cells}"), SEEDS], 1, notes)


def _compare(
    frame: pd.DataFrame, ours: str, theirs: str, scores: Mapping[str, str], name: str, statistic: Callable[..., Any]
) -> Row:
    """Compare two methods over their common cells by a statistic of each of some scores, with its interval."""
    row: Row = {"method": ours, "baseline": theirs}
    for kind, column in scores.items():
        a, b = (_scores(frame, method, column) for method in (ours, theirs))
        common = [cell for cell in a if cell in b]
        samples = [side[cell] for side in (a, b) for cell in common]
        value, *ends = (statistic(*samples), *bootstrap(samples, statistic)) if common else (np.nan, None, None)
        row |= {f"{kind}_{name}": _plain(value), f"{kind}_low": ends[0], f"{kind}_high": ends[1]}
        for whose, side in (("ours", a), ("theirs", b)):
            row[f"{kind}_{whose}"] = float(sum(side[cell].mean() for cell in common)) if common else None
    return row | {"cells": len(common), "cells_ours": len(a), "seeds": span(map(len, samples)) or NONE}


def ratio_of_sums(*groups: np.ndarray, axis: int = -1) -> Any:
    """Return the sum of the means of the first half of the groups, divided by that of the second; NaN over zero."""
    means = np.array([group.mean(axis=axis) for group in groups])
    above, below = means[: len(groups) // 2].sum(axis=0), means[len(groups) // 2 :].sum(axis=0)
    return np.divide(above, below, out=np.full_like(above, np.nan), where=below > 0.0)


def probability_of_improvement(*groups: np.ndarray, axis: int = -1) -> Any:
    """Return how often a value of group n exceeds one of group n + half, averaged over n; ties count half."""
    half = len(groups) // 2
    wins = []
    for a, b in zip(groups[:half], groups[half:], strict=True):
        difference = np.moveaxis(a, axis, -1)[..., :, None] - np.moveaxis(b, axis, -1)[..., None, :]
        wins.append((0.5 + 0.5 * np.sign(difference)).mean(axis=(-2, -1)))
    return np.mean(wins, axis=0)


def _pairs(frame: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield every method with each one before it in the order of legends, where baselines come first."""
    methods = in_order(frame["method"])
    return ((ours, theirs) for n, ours in enumerate(methods) for theirs in methods[:n])


def _scores(frame: pd.DataFrame, method: str, column: str) -> dict[Any, np.ndarray]:
    """Return a method's scores over seeds in each of its cells."""
    part = frame[(frame["method"] == method) & frame[column].notna()]
    return {cell: scores.to_numpy(float) for cell, scores in part.groupby(CELL, sort=False)[column]}


def adapted_note(frame: pd.DataFrame) -> list[str]:
    """Return a note on every method that is not zero-shot."""
    installed = registry.names("methods")
    adapted = [m for m in in_order(frame["method"]) if m in installed and not get_method(m).zero_shot]
    return [f"{label(method)}: trained on each unseen task before it is measured there." for method in adapted]


# --- per benchmark ---------------------------------------------------------------------------------------


def benchmarks(frame: pd.DataFrame, options: Options) -> Table:
    """Results per benchmark and method, over all splits."""
    lead = [Column("Benchmark", "{benchmark}", "l"), REQUIRES, Column("Splits", "{splits}", "l"), METHOD]
    return _per_benchmark(frame, "benchmarks", ("benchmark", "method"), lead, "over all splits; counts are sums")


def splits(frame: pd.DataFrame, options: Options) -> Table:
    """Results per benchmark, split and method."""
    lead = [Column("Benchmark", "{benchmark}", "l"), REQUIRES, Column("Split", "{split}", "l")]
    lead += [Column("|Train|", "{train_size}"), METHOD]
    return _per_benchmark(frame, "splits", ("benchmark", "train_size", "split", "method"), lead, "per split")


def _per_benchmark(frame: pd.DataFrame, name: str, keys: Sequence[str], lead: list[Column], over: str) -> Table:
    """One row per group of `keys`; a group's cells are its splits."""
    rows: list[Row] = [dict(zip(keys, key, strict=True)) | _summarized(part) for key, part in groups(frame, *keys)]
    columns = [*lead, SEEDS]
    for header, ratio in (("Training ratio", "training_ratio"), ("Zero-shot ratio", "zero_shot_ratio")):
        columns.append(Column(header, (f"{{{ratio}_mean:.2f}}", f" ± {{{ratio}_std:.2f}}")))
        columns.append(Column("IQM", (f"{{{ratio}_iqm:.2f}}", f" [{{{ratio}_low:.2f}}, {{{ratio}_high:.2f}}]")))
    for header, count, size in (("Training", "training_count", "train"), ("Unseen", "zero_shot_count", "unseen")):
        shown = f"{{{count}_mean:.1f}}", f" ± {{{count}_std:.1f}}", f" of {{{size}_size}}"
        columns.append(Column(f"{header} solved", shown))
    columns.append(Column("Beyond L", "{beyond_ratio_mean:.2f}"))
    if frame["far_ratio"].notna().any():
        columns.append(Column("Far", "{far_ratio_mean:.2f}"))
    columns.append(Column("Steps", lambda r: _steps(r["steps_mean"])))
    columns.append(Column("Straddling", "{straddling} of {tasks}"))
    notes = [
        "Mean ± standard deviation over seeds. IQM: interquartile mean over seeds and splits, in brackets its 95% "
        "stratified bootstrap interval. Beyond L: share solved of the indices L + 1 … 2L. Far: of the indices after "
        "them that the config names (`evaluation.indices`). Steps: environment steps of "
        "one training run, with the teachers it rests on. Straddling: tasks of all seeds whose 95% Wilson interval "
        "contains δ.",
        *adapted_note(frame),
    ]
    return Table(name, f"Results per benchmark and method, {over}.", rows, columns, len(lead) - 1, notes)


def _summarized(part: pd.DataFrame) -> Row:
    """Summarize the runs of one method on one benchmark, over seeds first and then over splits.

    Standard deviations are over the seeds that have every split.
    """
    cells = part.groupby("split", sort=False)
    row: Row = {"requires": part["requires"].iloc[0], "splits": " ".join(split_order(part))}
    row |= {"seeds": span(cells.size())}
    row |= {size: int(cells[size].first().sum()) for size in ("train_size", "unseen_size")}
    row |= {"straddling": int(part["straddling"].sum()), "tasks": int(part[["train_size", "unseen_size"]].sum().sum())}
    for column, over in (*dict.fromkeys(RATIOS, "mean").items(), *dict.fromkeys(COUNTS, "sum").items()):
        scores = part.pivot(index="seed", columns="split", values=column)
        known = scores.dropna(axis="columns", how="all")  # (seeds, splits)
        row[f"{column}_mean"] = _plain(known.mean().agg(over))
        row[f"{column}_std"] = _plain(known.dropna().agg(over, axis=1).std())
    for column in RATIOS:
        samples = [group.dropna().to_numpy(float) for _, group in cells[column] if group.notna().any()]
        ends = bootstrap(samples, interquartile_mean) if samples else (None, None)
        row[f"{column}_iqm"] = float(interquartile_mean(*samples)) if samples else None
        row |= {f"{column}_low": ends[0], f"{column}_high": ends[1]}
    return row | {
        f"{column}_mean": _plain(cells[column].mean().mean()) for column in ("beyond_ratio", "far_ratio", "steps")
    }


def budgets(frame: pd.DataFrame, options: Options) -> Table:
    """What training takes. Only this table contains times, so all others are the same bytes whenever they are made."""
    rows: list[Row] = []
    for (benchmark, method), part in groups(frame, "benchmark", "method"):
        cells = part.groupby("split", sort=False)
        means = {f"{column}_mean": _plain(cells[column].mean().mean()) for column in ("steps", "seconds")}
        rows.append({"benchmark": benchmark, "method": method, "splits": " ".join(split_order(part)), **means})
        rows[-1]["seeds"] = span(cells.size())
    columns = [Column("Benchmark", "{benchmark}", "l"), Column("Splits", "{splits}", "l"), METHOD, SEEDS]
    columns += [Column("Steps", lambda r: _steps(r["steps_mean"])), Column("Seconds", "{seconds_mean:.0f}")]
    notes = [
        "Means over splits and seeds of one training run, with the teachers it rests on. Steps are steps of the "
        "environment. Seconds are processor time where it was trained, of the whole family if one model serves all of "
        f"its benchmarks; {NONE}: the model's timing is not where the layout has it.",
    ]
    return Table(
        "budgets", "What training takes: environment steps and seconds of processor time.", rows, columns, 2, notes
    )


def _plain(value: float) -> float | None:
    return None if pd.isna(value) else float(value)


def _steps(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.0f} k"


# --- what has been evaluated -----------------------------------------------------------------------------


def overview(frame: pd.DataFrame, options: Options) -> Table:
    """Training and zero-shot ratio of every method, one row per benchmark, means over splits and seeds."""
    keys, methods = ["benchmark", "method"], in_order(frame["method"])
    runs = frame.groupby(keys).size()
    few = runs < runs.groupby("benchmark").transform("max")
    ratios = frame.groupby([*keys, "split"])[RATIOS].mean().groupby(keys).mean()
    rows: list[Row] = []
    for benchmark in benchmark_order(frame["benchmark"]):
        part = where(frame, benchmark=benchmark)
        row: Row = {"benchmark": benchmark, "requires": part["requires"].iloc[0]}
        row |= {f"{name}s": part[name].nunique() for name in ("split", "seed")}
        for method in methods:
            measured = (benchmark, method) in runs.index
            row |= {f"{method}_{r}": ratios.loc[(benchmark, method), r] if measured else None for r in RATIOS}
            row[f"{method}_fewer"] = bool(few[benchmark, method]) if measured else None
        rows.append(row)
    columns = [Column("Benchmark", "{benchmark}", "l"), Column("Splits", "{splits}"), SEEDS]
    columns += [Column(label(method), partial(_both_ratios, method)) for method in methods]
    note = "Training ratio / zero-shot ratio, mean over splits and seeds. ·: not evaluated."
    note += " *: fewer evaluations than another method here." if few.any() else ""
    return Table("overview", "Share of training tasks / of unseen tasks that are solved.", rows, columns, 0, [note])


def _both_ratios(method: str, row: Row) -> str:
    if row[f"{method}_fewer"] is None:
        return "·"
    shown = " / ".join(fill(f"{{{method}_{ratio}:.2f}}", row, NONE) for ratio in RATIOS)
    return shown + "*" * row[f"{method}_fewer"]


def summary(frame: pd.DataFrame) -> str:
    """Return the overview as text for a terminal."""
    table = overview(frame, USUAL)
    text = table.text().to_markdown(index=False, tablefmt="plain", disable_numparse=True)
    return "\n".join([*(line.rstrip() for line in text.splitlines()), "", *table.notes, f"{len(frame)} evaluations"])
