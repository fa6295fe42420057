"""The paper's tables beside ours: CSV for machines, Markdown and LaTeX for readers.

A *cell* is one benchmark and one gap. Two methods are compared only over the cells that both have, each by its
mean over seeds there, and every table says how many cells and seeds that was. Intervals are 95% percentile
intervals of a stratified bootstrap: seeds are drawn anew within each cell.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dibs.analysis.collect import benchmark_order
from dibs.analysis.methods import (
    BASELINES,
    DRIFT_ABLATION,
    NOT_ZERO_SHOT,
    OURS,
    PAPER,
    RELATIVE,
    RELATIVE_SOURCE,
    in_order,
    label,
)
from dibs.analysis.statistics import interquartile_mean
from dibs.errors import DibsError, unknown
from dibs.files import atomic

DRAWS = 2000
CELL = ["benchmark", "gap"]
NONE = "–"
ABLATIONS = ("car2d-switch",)
"""Benchmarks of an ablation: not among the 34 over which the paper aggregates."""
Row = dict[str, Any]
Cell = dict[str, np.ndarray]


@dataclass(frozen=True)
class Column:
    """One column of a table for readers."""

    header: str
    show: Callable[[Row], str]
    align: str = "r"
    """l, r or c; or, for long text, the width in LaTeX, such as 5cm."""


@dataclass(frozen=True)
class Table:
    """Numbers for machines and how readers see them."""

    name: str
    caption: str
    rows: list[Row]
    columns: list[Column]
    group: Callable[[Row], str] | None = None
    """Heading under which a row stands."""
    notes: list[str] = field(default_factory=list)


# --- the paper's Table 1 ---------------------------------------------------------------------------------


def relative(frame: pd.DataFrame) -> Table:
    """Table 1: how many times as many tasks as each baseline we solve, beside the paper's numbers."""
    frame = _aggregated(frame)
    rows = []
    for ours in _present(frame, OURS, always=("dibs",)):
        for baseline in _present(frame, set(frame["method"]) - set(OURS), always=BASELINES):
            training = compare(frame, ours, baseline, "training_count")
            unseen = compare(frame, ours, baseline, "zero_shot_count")
            row: Row = {"method": ours, "baseline": baseline}
            for kind, found in (("training", training), ("unseen", unseen)):
                row |= {f"{kind}_{key}": value for key, value in found.items() if key in _COMPARED}
                paper = RELATIVE.get(baseline) if ours == "dibs" else None
                row[f"{kind}_paper"] = None if paper is None else getattr(paper, kind)
            row["in_paper"] = ours == "dibs" and baseline in RELATIVE
            rows.append(row | {key: training[key] for key in ("cells", "cells_ours", "seeds")})
    return Table(
        "relative",
        "Relative aggregate performance: how many times as many tasks as a baseline our method solves.",
        rows,
        [
            Column("Baseline", lambda r: label(r["baseline"]), "l"),
            Column("Training tasks", lambda r: _times(r, "training")),
            Column("paper", lambda r: _paper(r, "training")),
            Column("Unseen tasks", lambda r: _times(r, "unseen")),
            Column("paper", lambda r: _paper(r, "unseen")),
            Column("Training solved", lambda r: _solved(r, "training")),
            Column("Unseen solved", lambda r: _solved(r, "unseen")),
            Column("Cells", lambda r: f"{r['cells']} of {r['cells_ours']}"),
            Column("Seeds", lambda r: r["seeds"] or NONE),
        ],
        group=lambda r: f"{label(r['method'])} over the baseline",
        notes=[
            f"The paper's numbers: {RELATIVE_SOURCE}. {NONE}: the baseline solves no task, so the ratio is undefined.",
            "In brackets: 95% stratified bootstrap interval. Solved: our aggregate, then the baseline's, over the "
            "cells (benchmark and gap) that both have; cells: how many of ours those are.",
            *_adapted_note(frame),
        ],
    )


_COMPARED = ("ratio", "low", "high", "ours", "theirs")


def compare(frame: pd.DataFrame, ours: str, theirs: str, column: str) -> Row:
    """Ratio of the aggregates of a count over common cells, with its interval."""
    a, b = _groups(frame, ours, column), _groups(frame, theirs, column)
    common = [cell for cell in a if cell in b]
    found: Row = {"ratio": None, "low": None, "high": None, "ours": None, "theirs": None}
    found |= {"cells": len(common), "cells_ours": len(a), "seeds": _span(len(g[c]) for c in common for g in (a, b))}
    if not common:
        return found
    found["ours"] = float(sum(a[c].mean() for c in common))
    found["theirs"] = float(sum(b[c].mean() for c in common))
    if found["theirs"] == 0.0:
        return found
    found["ratio"] = found["ours"] / found["theirs"]
    rng = np.random.default_rng(0)
    above = sum(_weights(rng, len(a[c])) @ a[c] for c in common)
    below = sum(_weights(rng, len(b[c])) @ b[c] for c in common)
    if np.all(below > 0.0) and min(len(g[c]) for c in common for g in (a, b)) > 1:
        found["low"], found["high"] = (float(v) for v in np.percentile(above / below, [2.5, 97.5]))
    return found


# --- per benchmark ---------------------------------------------------------------------------------------


def benchmarks(frame: pd.DataFrame) -> Table:
    """Per benchmark and method, over all gaps."""
    return _per_benchmark(frame, "benchmarks", [], "over all gaps; counts are sums over the gaps")


def splits(frame: pd.DataFrame) -> Table:
    """Per benchmark, gap and method."""
    return _per_benchmark(frame, "splits", ["gap"], "per gap")


def _per_benchmark(frame: pd.DataFrame, name: str, more: list[str], over: str) -> Table:
    rows = []
    keys = ["benchmark", *more, "method"]
    for key, gaps in _cells(frame, keys).items():
        cells = list(gaps.values())
        row: Row = dict(zip(keys, key, strict=True))
        row |= {"gaps": " ".join(map(str, gaps)), "seeds": _span(len(c["seed"]) for c in cells)}
        for size in ("train_size", "unseen_size"):
            row[size] = sum(int(c[size][0]) for c in cells)
        for ratio in ("training_ratio", "zero_shot_ratio"):
            row |= {f"{ratio}_{k}": v for k, v in _spread(cells, ratio, np.mean).items()}
            row |= {f"{ratio}_{k}": v for k, v in _robust(cells, ratio).items()}
        for count in ("training_count", "zero_shot_count"):
            row |= {f"{count}_{k}": v for k, v in _spread(cells, count, np.sum).items()}
        row["beyond_ratio_mean"] = _mean(_mean(c["beyond_ratio"]) for c in cells)
        row["steps_mean"] = _mean(_mean(c["steps"]) for c in cells)
        row["straddling"] = int(sum(c["straddling"].sum() for c in cells))
        row["tasks"] = int(sum((c["train_size"] + c["unseen_size"]).sum() for c in cells))
        rows.append(row)
    order = {b: n for n, b in enumerate(benchmark_order(frame["benchmark"]))}
    rows.sort(key=lambda r: (order[r["benchmark"]], -r.get("gap", 0)))
    columns = [
        Column("Method", lambda r: label(r["method"]), "l"),
        Column("Seeds", lambda r: str(r["seeds"])),
        Column("Training ratio", lambda r: _plus_minus(r, "training_ratio", 2)),
        Column("IQM", lambda r: _interval(r, "training_ratio")),
        Column("Zero-shot ratio", lambda r: _plus_minus(r, "zero_shot_ratio", 2)),
        Column("IQM", lambda r: _interval(r, "zero_shot_ratio")),
        Column("Training solved", lambda r: f"{_plus_minus(r, 'training_count', 1)} of {r['train_size']}"),
        Column("Unseen solved", lambda r: f"{_plus_minus(r, 'zero_shot_count', 1)} of {r['unseen_size']}"),
        Column("Beyond L", lambda r: _number(r["beyond_ratio_mean"], ".2f")),
        Column("Steps", lambda r: _steps(r["steps_mean"])),
        Column("Straddling", lambda r: f"{r['straddling']} of {r['tasks']}"),
    ]

    def group(row: Row) -> str:
        return f"{row['benchmark']}, gap {row['gap']}" if more else f"{row['benchmark']} (gaps {row['gaps']})"

    notes = [
        "Mean ± standard deviation over seeds. IQM: interquartile mean over seeds and gaps, in brackets its 95% "
        "stratified bootstrap interval. Beyond L: ratio solved of the indices L + 1 … 2L. Steps: environment steps "
        "of one training run. Straddling: tasks, of all seeds, whose 95% Wilson interval holds δ.",
        *_adapted_note(frame),
    ]
    return Table(name, f"Results per benchmark and method, {over}.", rows, columns, group, notes)


def _spread(cells: Sequence[Cell], column: str, over: Callable[[Any], Any]) -> Row:
    """Mean and standard deviation over seeds of the mean (or sum) over gaps."""
    values = [dict(zip(c["seed"], c[column], strict=True)) for c in cells]
    complete = sorted(set.intersection(*(set(v) for v in values)))  # a deviation needs seeds that have every gap
    per_seed = [over([v[seed] for v in values]) for seed in complete]
    deviation = float(np.std(per_seed, ddof=1)) if len(per_seed) > 1 else None
    return {"mean": float(over([np.mean(c[column]) for c in cells])), "std": deviation}


def _robust(cells: Sequence[Cell], column: str) -> Row:
    """Interquartile mean over all runs of all gaps, and its interval; gaps may have different seeds."""
    groups = [c[column][~np.isnan(c[column])] for c in cells]
    groups = [g for g in groups if len(g)]
    if not groups:
        return {"iqm": None, "low": None, "high": None}
    rng = np.random.default_rng(0)
    drawn = np.concatenate([g[rng.integers(len(g), size=(DRAWS, len(g)))] for g in groups], axis=1)
    low, high = np.percentile(interquartile_mean(drawn), [2.5, 97.5])
    many = min(map(len, groups)) > 1
    point = float(interquartile_mean(np.concatenate(groups)))
    return {"iqm": point, "low": float(low) if many else None, "high": float(high) if many else None}


# --- probability of improvement --------------------------------------------------------------------------


def improvement(frame: pd.DataFrame) -> Table:
    """Probability that a run of ours solves a larger part of the tasks than one of the baseline's."""
    frame = _aggregated(frame)
    rows = []
    for ours in _present(frame, OURS, always=("dibs",)):
        for baseline in _present(frame, set(frame["method"]) - {ours}, always=BASELINES):
            row: Row = {"method": ours, "baseline": baseline}
            for column in ("training_ratio", "zero_shot_ratio"):
                found = _improvement(_groups(frame, ours, column), _groups(frame, baseline, column))
                row |= {f"{column}_{key}": value for key, value in found.items() if key in ("p", "low", "high")}
                row |= {key: value for key, value in found.items() if key in ("cells", "seeds")}
            rows.append(row)

    def shown(row: Row, column: str) -> str:
        if row[f"{column}_p"] is None:
            return "not run"
        return _number(row[f"{column}_p"], ".2f") + _brackets(row[f"{column}_low"], row[f"{column}_high"])

    return Table(
        "improvement",
        "Probability of improvement over each baseline, averaged over cells.",
        rows,
        [
            Column("Baseline", lambda r: label(r["baseline"]), "l"),
            Column("Training ratio", lambda r: shown(r, "training_ratio")),
            Column("Zero-shot ratio", lambda r: shown(r, "zero_shot_ratio")),
            Column("Cells", lambda r: str(r["cells"])),
            Column("Seeds", lambda r: r["seeds"] or NONE),
        ],
        group=lambda r: f"{label(r['method'])} over the baseline",
        notes=["Ties count half: 0.5 is no difference. In brackets: 95% stratified bootstrap interval."],
    )


def _improvement(ours: Mapping[Any, np.ndarray], theirs: Mapping[Any, np.ndarray]) -> Row:
    common = [cell for cell in ours if cell in theirs]
    seeds = _span(len(g[c]) for c in common for g in (ours, theirs))
    found: Row = {"p": None, "low": None, "high": None, "cells": len(common), "seeds": seeds}
    if not common:
        return found
    rng = np.random.default_rng(0)
    points, drawn = [], np.zeros(DRAWS)
    for cell in common:
        a, b = ours[cell], theirs[cell]
        wins = (a[:, None] > b) + 0.5 * (a[:, None] == b)
        points.append(wins.mean())
        drawn += np.einsum("dn,nm,dm->d", _weights(rng, len(a)), wins, _weights(rng, len(b)))
    found["p"] = float(np.mean(points))
    if min(len(g[c]) for c in common for g in (ours, theirs)) > 1:
        found["low"], found["high"] = (float(v) for v in np.percentile(drawn / len(common), [2.5, 97.5]))
    return found


# --- what the paper says ---------------------------------------------------------------------------------

MAIN = ("car2d-reach", "simpledrone-reach", "droneattitude-reach")
"""Families of the paper's main figure."""
FACTOR = 1.5
TRIVIAL = 0.1


@dataclass(frozen=True)
class Finding:
    """What was measured of a claim; `agrees` is None where it was not."""

    measured: str = NONE
    agrees: bool | None = None
    cells: int = 0


@dataclass(frozen=True)
class Claim:
    """A statement of the paper and the rule by which a measurement agrees with it."""

    statement: str
    source: str
    paper: str
    rule: str
    check: Callable[[pd.DataFrame], Finding]


def claims(frame: pd.DataFrame) -> Table:
    """Every statement of the paper's text that evaluations can check, and whether they agree."""
    frame = _aggregated(frame)
    rows = []
    for claim in CLAIMS:
        found = claim.check(frame)
        verdict = "not measured" if found.agrees is None else "agree" if found.agrees else "disagree"
        rows.append(
            {
                "claim": claim.statement,
                "source": claim.source,
                "paper": claim.paper,
                "measured": found.measured,
                "verdict": verdict,
                "rule": claim.rule,
                "cells": found.cells,
            }
        )
    counts = [f"{sum(r['verdict'] == v for r in rows)} {v}" for v in ("agree", "disagree", "not measured")]
    seeds = _span(len(g) for _, g in frame.groupby([*CELL, "method"]))
    return Table(
        "claims",
        "What the paper says and what we measured.",
        rows,
        [
            Column("The paper says", lambda r: r["claim"], "4.4cm"),
            Column("where", lambda r: r["source"], "1.6cm"),
            Column("its number", lambda r: r["paper"]),
            Column("measured", lambda r: r["measured"], "3.4cm"),
            Column("verdict", lambda r: r["verdict"], "l"),
            Column("agrees if", lambda r: r["rule"], "3.4cm"),
            Column("cells", lambda r: str(r["cells"])),
        ],
        notes=[
            f"{', '.join(counts)}; {seeds or 'no'} seeds. Families, their length and the gaps are partly our choice, "
            "so sizes are expected to agree roughly, directions exactly."
        ],
    )


def _ratio_claim(baseline: str, kind: str, source: str) -> Claim:
    column = {"training": "training_count", "unseen": "zero_shot_count"}[kind]
    paper = getattr(RELATIVE[baseline], kind)

    def check(frame: pd.DataFrame) -> Finding:
        found = compare(frame, "dibs", baseline, column)
        if not found["cells"]:
            return Finding()
        if found["ratio"] is None:
            return Finding(f"{label(baseline)} solves none", False, found["cells"])
        shown = f"{found['ratio']:.2f}×" + _brackets(found["low"], found["high"])
        return Finding(shown, paper / FACTOR <= found["ratio"] <= paper * FACTOR, found["cells"])

    return Claim(
        f"DIBS solves more {kind} tasks than {label(baseline)}, by this factor",
        source,
        f"{paper:.2f}×",
        f"within a factor of {FACTOR} of it",
        check,
    )


def _none_claim(baseline: str, kind: str) -> Claim:
    column, size = {
        "training": ("training_count", "train_size"),
        "unseen": ("zero_shot_count", "unseen_size"),
    }[kind]

    def check(frame: pd.DataFrame) -> Finding:
        part = frame[frame["method"] == baseline]
        if part.empty:
            return Finding()
        means = part.groupby(CELL)[[column, size]].mean()
        share = float(means[column].sum() / max(means[size].sum(), 1.0))
        return Finding(f"{means[column].sum():.1f} of {means[size].sum():.0f}", share < 0.01, len(means))

    statement = f"{label(baseline)} solves no {kind} task"
    return Claim(statement, RELATIVE_SOURCE, NONE, "it solves fewer than 1%", check)


def _strongest(column: str, chosen: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[pd.DataFrame], Finding]:
    def check(frame: pd.DataFrame) -> Finding:
        part = chosen(frame)
        ours = _means(part, "dibs", column)
        behind, others, cells = [], 0, 0
        for baseline in BASELINES:
            theirs = _means(part, baseline, column)
            both = ours.index.intersection(theirs.index)
            if len(both):
                others, cells = others + 1, max(cells, len(both))
                if ours[both].mean() < theirs[both].mean():
                    behind.append(f"{label(baseline)} {theirs[both].mean():.2f} to {ours[both].mean():.2f}")
        if not others:
            return Finding()
        tail = f"; behind {', '.join(behind)}" if behind else f" (mean {ours.mean():.2f})"
        return Finding(f"ahead of {others - len(behind)} of {others}{tail}", not behind, cells)

    return check


def _over_train(frame: pd.DataFrame, method: str, column: str) -> tuple[float, float, int] | None:
    """Mean of a ratio at the smallest and at the largest |Train| of each of the longest main benchmarks."""
    part = _longest(frame)
    part = part[part["method"] == method]
    ends = []
    for _, rows in part.groupby("benchmark"):
        means = rows.groupby("train_size")[column].mean().sort_index()
        if len(means) > 1:
            ends.append((means.iloc[0], means.iloc[-1]))
    if not ends:
        return None
    first, last = np.mean(ends, axis=0)
    return float(first), float(last), 2 * len(ends)


def _bc_scales(frame: pd.DataFrame) -> Finding:
    ends = _over_train(frame, "bc", "training_ratio")
    if ends is None:
        return Finding()
    first, last, cells = ends
    return Finding(f"{first:.2f} → {last:.2f}", last >= 0.8 * first and last >= 0.5, cells)


def _bc_does_not_generalise(frame: pd.DataFrame) -> Finding:
    part = _longest(frame)
    training, unseen = (_means(part, "bc", column) for column in ("training_ratio", "zero_shot_ratio"))
    if training.empty:
        return Finding()
    shown = f"training {training.mean():.2f}, zero-shot {unseen.mean():.2f}"
    return Finding(shown, bool(unseen.mean() < 0.5 * training.mean()), len(training))


def _fades_with_train(method: str) -> Callable[[pd.DataFrame], Finding]:
    def check(frame: pd.DataFrame) -> Finding:
        ends = _over_train(frame, method, "training_ratio")
        if ends is None:
            return Finding()
        return Finding(f"{ends[0]:.2f} → {ends[1]:.2f}", ends[1] < ends[0] - 0.05, ends[2])

    return check


def _fades_with_k(method: str) -> Callable[[pd.DataFrame], Finding]:
    """Compare zero-shot ratios at the smallest and largest k over the families and gaps that have all four."""

    def check(frame: pd.DataFrame) -> Finding:
        part = frame[frame["family"].isin(MAIN) & frame["k"].notna() & frame["method"].isin([method, "dibs"])]
        goals = set(part[part["method"] == method]["k"]) & set(part[part["method"] == "dibs"]["k"])
        if len(goals) < 2:
            return Finding()
        low, high = min(goals), max(goals)
        means = part.groupby(["family", "gap", "method", "k"])["zero_shot_ratio"].mean().unstack(["method", "k"])
        ends = means[[(m, k) for m in (method, "dibs") for k in (low, high)]].dropna()
        if ends.empty:
            return Finding()
        first, last, ours_first, ours_last = ends.mean()
        shown = f"k = {low:.0f} → {high:.0f}: {first:.2f} → {last:.2f} (DIBS {ours_first:.2f} → {ours_last:.2f})"
        return Finding(shown, bool(last < first and last * ours_first < ours_last * first), 2 * len(ends))

    return check


def _varibad_at_one(frame: pd.DataFrame) -> Finding:
    part = frame[frame["k"] == 1]
    theirs, ours = (_means(part, method, "zero_shot_ratio") for method in ("varibad", "dibs"))
    both = theirs.index.intersection(ours.index)
    if both.empty:
        return Finding()
    a, b = theirs[both].mean(), ours[both].mean()
    return Finding(f"VariBAD {a:.2f}, DIBS {b:.2f}", bool(0.0 < a - b < 0.15), len(both))


def _only_two_on_choice(frame: pd.DataFrame) -> Finding:
    part = frame[frame["family"] == "car2d-choice"]
    means = {method: _means(part, method, "zero_shot_ratio") for method in PAPER}
    found = {method: float(m.mean()) for method, m in means.items() if len(m)}
    if not {"genrl", "dibs"} < set(found):
        return Finding()
    shown = ", ".join(f"{label(method)} {value:.2f}" for method, value in found.items())
    agrees = all((value > TRIVIAL) == (method in ("genrl", "dibs")) for method, value in found.items())
    return Finding(shown, agrees, max(map(len, means.values())))


def _ahead_on_choice(frame: pd.DataFrame) -> Finding:
    part = frame[frame["family"] == "car2d-choice"]
    ours, theirs = (_means(part, method, "zero_shot_ratio") for method in ("dibs", "genrl"))
    both = ours.index.intersection(theirs.index)
    if both.empty:
        return Finding()
    levels = pd.DataFrame({"ours": ours[both], "theirs": theirs[both]}).groupby("benchmark").mean()
    shown = "; ".join(f"{b}: {r['ours']:.2f} to {r['theirs']:.2f}" for b, r in levels.iterrows())
    return Finding(shown, bool((levels["ours"] > levels["theirs"]).all()), len(both))


def _usable_on_reacher(frame: pd.DataFrame) -> Finding:
    part = frame[frame["family"].str.startswith("reacher-")]
    ours, theirs = (_means(part, method, "zero_shot_ratio") for method in ("dibs", "genrl"))
    both = ours.index.intersection(theirs.index)
    if both.empty:
        return Finding()
    a, b = ours[both].mean(), theirs[both].mean()
    return Finding(f"DIBS {a:.2f}, GenRL {b:.2f}", bool(a >= 0.5 > b), len(both))


def _correlated(frame: pd.DataFrame) -> Finding:
    part = frame[frame["method"].isin(PAPER)]
    means = part.groupby([*CELL, "method"])[["training_ratio", "zero_shot_ratio"]].mean().dropna()
    if len(means) < 5 or (means.std() == 0).any():
        return Finding()
    r = float(np.corrcoef(means.to_numpy().T)[0, 1])
    return Finding(f"r = {r:.2f} over {len(means)} points", r >= 0.6, len(means.groupby(CELL)))


def _not_by_evaluations(frame: pd.DataFrame) -> Finding:
    """For a claim that needs other runs than those of the methods."""
    return Finding()


CLAIMS = (
    _ratio_claim("genrl", "training", "section 5.2"),
    _ratio_claim("genrl", "unseen", "section 5.2"),
    *(_ratio_claim(b, k, RELATIVE_SOURCE) for b in ("varibad", "maml") for k in ("training", "unseen")),
    _ratio_claim("bc", "training", RELATIVE_SOURCE),
    _none_claim("bc", "unseen"),
    _none_claim("ars", "training"),
    _none_claim("ars", "unseen"),
    Claim(
        "DIBS keeps the strongest training scalability (longest k-reachability)",
        "section 5.2",
        NONE,
        "no method has a higher mean training ratio",
        _strongest("training_ratio", lambda frame: _longest(frame)),
    ),
    Claim(
        "DIBS has the strongest zero-shot generalisation across benchmarks",
        "section 5.2",
        NONE,
        "no method has a higher mean zero-shot ratio",
        _strongest("zero_shot_ratio", lambda frame: frame),
    ),
    Claim(
        "BC scales well in |Train| (longest k-reachability)",
        "section 5.2",
        NONE,
        "training ratio at the largest |Train| at least 0.5, and 0.8 of that at the smallest",
        _bc_scales,
    ),
    Claim(
        "BC does not generalise (longest k-reachability)",
        "section 5.2",
        NONE,
        "zero-shot ratio below half the training ratio",
        _bc_does_not_generalise,
    ),
    Claim(
        "Training success and zero-shot generalisation are strongly correlated",
        "section 5.2",
        NONE,
        "r of the two ratios over methods and cells at least 0.6",
        _correlated,
    ),
    *(
        Claim(
            f"{label(method)} fades with k more than DIBS does (zero-shot ratio)",
            "section 5.2",
            NONE,
            "it keeps a smaller part from the smallest to the largest k",
            _fades_with_k(method),
        )
        for method in ("maml", "varibad")
    ),
    Claim(
        "GenRL fades with |Train| (training ratio, longest k-reachability)",
        "section 5.2",
        NONE,
        "lower by more than 0.05 at the largest |Train| than at the smallest",
        _fades_with_train("genrl"),
    ),
    Claim(
        "VariBAD is slightly ahead at k = 1 (zero-shot ratio)",
        "appendix H.1",
        NONE,
        "ahead, by less than 0.15",
        _varibad_at_one,
    ),
    Claim(
        "Only GenRL and DIBS are non-trivial on Choice (zero-shot ratio)",
        "appendix H.3",
        NONE,
        f"these above {TRIVIAL}, the others not",
        _only_two_on_choice,
    ),
    Claim(
        "DIBS consistently outperforms GenRL on Choice (zero-shot ratio)",
        "appendix H.3",
        NONE,
        "higher mean at every level",
        _ahead_on_choice,
    ),
    Claim(
        "DIBS has a usable template on Reacher where GenRL fails (zero-shot ratio)",
        "section 5.2",
        NONE,
        "DIBS at least 0.5, GenRL below",
        _usable_on_reacher,
    ),
    Claim(
        "Without drift regularisation the best SimpleDrone run solves far fewer unseen tasks",
        "section 5.2",
        f"{DRIFT_ABLATION['regularised']} → {DRIFT_ABLATION['unregularised']}",
        "by the ablation's own runs",
        _not_by_evaluations,
    ),
)


def _longest(frame: pd.DataFrame) -> pd.DataFrame:
    """The main families at the largest k that is measured: 5 in the paper."""
    part = frame[frame["family"].isin(MAIN) & frame["k"].notna()]
    return part[part["k"] == part["k"].max()]


# --- what has been evaluated -----------------------------------------------------------------------------


def summary(frame: pd.DataFrame) -> str:
    """Training and zero-shot ratio per benchmark and method, as text for a terminal."""
    methods = in_order(frame["method"])
    lines = [["benchmark", "gaps", "seeds", *map(label, methods)]]
    short = False
    for benchmark in benchmark_order(frame["benchmark"]):
        part = frame[frame["benchmark"] == benchmark]
        by_method = {m: part[part["method"] == m] for m in methods}
        most = max(len(rows) for rows in by_method.values())
        cells = []
        for rows in by_method.values():
            if rows.empty:
                cells.append("·")
                continue
            few = len(rows) < most
            short |= few
            both = rows.groupby("gap")[["training_ratio", "zero_shot_ratio"]].mean().mean()
            shown = " / ".join(_number(both[c], ".2f") for c in ("training_ratio", "zero_shot_ratio"))
            cells.append(shown + ("*" if few else ""))
        lines.append([benchmark, str(part["gap"].nunique()), str(part["seed"].nunique()), *cells])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    text += ["", "training ratio / zero-shot ratio, mean over gaps and seeds; · not evaluated"]
    text[-1] += "; * fewer evaluations than another method here" if short else ""
    return "\n".join([*text, f"{len(frame)} evaluations"])


# --- writing ---------------------------------------------------------------------------------------------

TABLES: dict[str, Callable[[pd.DataFrame], Table]] = {
    "relative": relative,
    "benchmarks": benchmarks,
    "splits": splits,
    "improvement": improvement,
    "claims": claims,
}


def make(name: str, frame: pd.DataFrame) -> Table:
    """A table by its name."""
    if name not in TABLES:
        raise unknown("table", name, TABLES)
    return TABLES[name](frame)


def write(table: Table, output: str | Path) -> None:
    """Write a table in the format that the name's suffix says; the same table gives the same bytes."""
    check_output(output)
    text = FORMATS[Path(output).suffix](table)
    with atomic(output) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def check_output(output: str | Path) -> None:
    """Refuse a name whose suffix is none of the formats."""
    if Path(output).suffix not in FORMATS:
        raise DibsError(f"{output}: expected a name that ends in {', '.join(FORMATS)}")


def to_csv(table: Table) -> str:
    """All numbers, unrounded enough; nothing where a number does not exist."""
    text = io.StringIO()
    names = list(table.rows[0]) if table.rows else []
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([[_plain(row[name]) for name in names] for row in table.rows])
    return text.getvalue()


def to_markdown(table: Table) -> str:
    """A pipe table per group, caption above, notes below."""
    headers = [column.header for column in table.columns]
    marks = ["---:" if column.align == "r" else "---" for column in table.columns]
    lines = [f"**{table.caption}**"]
    for heading, rows in _grouped(table):
        lines += ["", *([f"*{heading}*", ""] if heading else [])]
        cells = [[column.show(row).replace("|", "\\|") for column in table.columns] for row in rows]
        lines += [f"| {' | '.join(line)} |" for line in (headers, marks, *cells)]
    for note in table.notes:
        lines += ["", note]
    return "\n".join(lines) + "\n"


def to_latex(table: Table) -> str:
    """A booktabs table; a long one may break over pages."""
    long = len(table.rows) > 40
    aligns = "".join(c.align if c.align in "lrc" else f"p{{{c.align}}}" for c in table.columns)
    kind = f"longtable}}{{{aligns}" if long else f"tabular}}{{{aligns}"
    header = " & ".join(tex(column.header) for column in table.columns) + r" \\"
    caption = rf"\caption{{{tex(' '.join([table.caption, *table.notes]))}}}\label{{tab:{table.name}}}"
    body: list[str] = []
    for number, (heading, rows) in enumerate(_grouped(table)):
        if heading:
            body += [r"\midrule"] if number else []
            body.append(rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\textit{{{tex(heading)}}}}} \\")
        body += [" & ".join(tex(column.show(row)) for column in table.columns) + r" \\" for row in rows]
    size = r"\scriptsize\setlength{\tabcolsep}{3pt}"
    top = [r"\toprule", header, r"\midrule"]
    if long:
        lines = [r"\begingroup" + size, rf"\begin{{{kind}}}", caption + r" \\", *top, r"\endfirsthead"]
        lines += [*top, r"\endhead", *body, r"\bottomrule", r"\end{longtable}", r"\endgroup"]
    else:
        lines = [r"\begin{table}[t]", r"\centering" + size, caption, r"\begin{adjustbox}{max width=\linewidth}"]
        lines += [
            rf"\begin{{{kind}}}",
            *top,
            *body,
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{adjustbox}",
            r"\end{table}",
        ]
    needs = "booktabs,longtable" if long else "booktabs,adjustbox"
    return "\n".join([rf"% \usepackage{{{needs}}}", *lines]) + "\n"


FORMATS: dict[str, Callable[[Table], str]] = {".csv": to_csv, ".md": to_markdown, ".tex": to_latex}

_TEX = {
    **{c: "\\" + c for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "×": r"$\times$",
    "–": "--",
    "…": r"\ldots{}",
    "→": r"$\to$",
    "·": r"$\cdot$",
    "|": r"$|$",
    "<": r"$<$",
    ">": r"$>$",
    "≥": r"$\ge$",
    "“": "``",
    "”": "''",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "γ": r"$\gamma$",
    "δ": r"$\delta$",
    "κ": r"$\kappa$",
    "λ": r"$\lambda$",
    "τ": r"$\tau$",
}


def tex(text: str) -> str:
    """Plain text as LaTeX."""
    return "".join(_TEX.get(c, c) for c in text)


def _grouped(table: Table) -> Iterable[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        groups.setdefault(table.group(row) if table.group else "", []).append(row)
    return groups.items()


# --- small things ----------------------------------------------------------------------------------------


def _aggregated(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[~frame["benchmark"].isin(ABLATIONS)]


def _cells(frame: pd.DataFrame, keys: list[str]) -> dict[tuple[Any, ...], dict[int, Cell]]:
    """The columns of every gap of every group, as arrays over seeds; groups and gaps in the frame's order."""
    arrays = {column: frame[column].to_numpy() for column in frame.columns}
    positions: dict[tuple[Any, ...], dict[int, list[int]]] = {}
    names = zip(*(frame[key].tolist() for key in keys), strict=True)
    for position, (key, gap) in enumerate(zip(names, frame["gap"].tolist(), strict=True)):
        positions.setdefault(key, {}).setdefault(gap, []).append(position)
    return {
        key: {gap: {column: array[at] for column, array in arrays.items()} for gap, at in gaps.items()}
        for key, gaps in positions.items()
    }


def _groups(frame: pd.DataFrame, method: str, column: str) -> dict[tuple[str, int], np.ndarray]:
    """Scores over seeds in every cell of a method."""
    part = frame[(frame["method"] == method) & frame[column].notna()][[*CELL, column]]
    scores: dict[tuple[str, int], list[float]] = {}
    for benchmark, gap, score in part.itertuples(index=False):
        scores.setdefault((benchmark, gap), []).append(score)
    return {cell: np.array(values, dtype=float) for cell, values in scores.items()}


def _means(frame: pd.DataFrame, method: str, column: str) -> pd.Series:
    """Mean over seeds in every cell of a method."""
    return frame[frame["method"] == method].groupby(CELL)[column].mean().dropna()


def _weights(rng: np.random.Generator, n: int) -> np.ndarray:
    """Weights (draws, n) of n seeds in bootstrap samples of the same size."""
    return rng.multinomial(n, np.full(n, 1.0 / n), size=DRAWS) / n


def _present(frame: pd.DataFrame, methods: Iterable[str], always: Sequence[str] = ()) -> list[str]:
    return in_order([m for m in methods if m in set(frame["method"])] + list(always))


def _span(counts: Iterable[int]) -> str:
    found = sorted(set(counts))
    return "" if not found else str(found[0]) if len(found) == 1 else f"{found[0]}–{found[-1]}"


def _mean(values: Iterable[float | None]) -> float | None:
    known = [float(v) for v in values if v is not None and not math.isnan(v)]
    return sum(known) / len(known) if known else None


def _adapted_note(frame: pd.DataFrame) -> list[str]:
    adapted = _present(frame, NOT_ZERO_SHOT)
    return [f"{label(method)}: trained on each unseen task before it is measured there." for method in adapted]


def _plain(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return format(value, ".6g") if isinstance(value, float) else str(value)


def _number(value: float | None, how: str) -> str:
    return NONE if value is None or math.isnan(value) else format(value, how)


def _brackets(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"


def _plus_minus(row: Row, column: str, digits: int) -> str:
    mean, deviation = row[f"{column}_mean"], row[f"{column}_std"]
    shown = _number(mean, f".{digits}f")
    return shown if deviation is None or shown == NONE else f"{shown} ± {deviation:.{digits}f}"


def _interval(row: Row, column: str) -> str:
    return _number(row[f"{column}_iqm"], ".2f") + _brackets(row[f"{column}_low"], row[f"{column}_high"])


def _steps(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value / 1e6:.2f} M" if value >= 1e6 else f"{value / 1e3:.0f} k"


def _times(row: Row, kind: str) -> str:
    if not row["cells"]:
        return "not run"
    ratio = row[f"{kind}_ratio"]
    return NONE if ratio is None else f"{ratio:.2f}×" + _brackets(row[f"{kind}_low"], row[f"{kind}_high"])


def _paper(row: Row, kind: str) -> str:
    value = row[f"{kind}_paper"]
    return "" if not row["in_paper"] else NONE if value is None else f"{value:.2f}×"


def _solved(row: Row, kind: str) -> str:
    ours, theirs = row[f"{kind}_ours"], row[f"{kind}_theirs"]
    return NONE if ours is None else f"{ours:.1f} to {theirs:.1f}"
