"""The paper's Table 1 next to ours, and every statement of its text that evaluations can check.

A check returns what was measured, whether it agrees with the statement, and over how many cells; without cells, there
is nothing to measure. Claims of one kind share a check.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pandas as pd
from scipy import stats

from dibs.methods import in_order, label
from dibs.paper.numbers import (
    AS_PUBLISHED,
    BASELINES,
    DRIFT_ABLATION,
    MAIN,
    METHODS,
    OURS,
    RELATIVE,
    RELATIVE_SOURCE,
    goals,
)
from dibs.studies.collect import where
from dibs.studies.formats import NONE, Column, Row, Table, fill, span
from dibs.studies.reports import Options
from dibs.studies.tables import CELL, RATIOS, adapted_note, more_note, relative_columns, relative_row

FACTOR = 1.5
TRIVIAL = 0.1
TIE = 0.01  # means of ratios that differ by no more count as equal
MARGIN = 0.05  # what fades loses more than this
TEXT, MAIN_RESULTS, CHOICE_RESULTS = "section 5.2", "appendix H.1", "appendix H.3"
Finding = tuple[str, bool, int]
NOTHING: Finding = ("", False, 0)
UNANCHORED = {"no-anchor": "warm start", "independent": "from scratch"}
"""Variants of the ablation `cross-index` without the regularizer, and how they start."""
Score = tuple[str, str]
"""A method and one of its columns."""


def table1(frame: pd.DataFrame, options: Options) -> Table:
    """How many times as many tasks as each baseline we solve, next to the paper's numbers."""
    present = set(frame["method"])
    rows = []
    for ours in in_order({"dibs", *(present & set(OURS))}):
        for baseline in in_order({*BASELINES, *(present - set(OURS))}):
            row = relative_row(frame, ours, baseline) | {"in_paper": ours == "dibs" and baseline in BASELINES}
            paper = {f"{kind}_paper": numbers.get(baseline) for kind, numbers in RELATIVE.items()}
            rows.append(row | (paper if row["in_paper"] else dict.fromkeys(paper)))
    columns = relative_columns("Baseline", frame)
    columns.insert(3, Column("paper", lambda r: fill("{training_paper:.2f}×", r, NONE) if r["in_paper"] else ""))
    columns.insert(5, Column("paper", lambda r: fill("{unseen_paper:.2f}×", r, NONE) if r["in_paper"] else ""))
    notes = [
        f"The paper's numbers: {RELATIVE_SOURCE}. {NONE}: the baseline solves no task, so the ratio is undefined.",
        "In brackets: 95% stratified bootstrap interval. Solved: our sum, then the baseline's, over the cells "
        "(benchmark and split) that both have; cells: how many of ours those are.",
        more_note(frame),
        *adapted_note(frame),
    ]
    caption = "Relative aggregate performance: how many times as many tasks as a baseline our method solves."
    return Table("table1", caption, rows, columns, 1, notes)


def table1_versions(frame: pd.DataFrame, options: Options) -> Table:
    """Table 1 against the strong baselines and against those that the paper seems to have run, on the same cells."""
    rows: list[Row] = []
    for baseline in in_order(AS_PUBLISHED):
        part = _common(frame, ("dibs", baseline, AS_PUBLISHED[baseline]))
        row: Row = {"method": "dibs", "baseline": baseline}
        for version, method in (("strong", baseline), ("published", AS_PUBLISHED[baseline])):
            found = relative_row(part, "dibs", method)
            row |= {f"{version}_{key}": value for key, value in found.items() if key not in ("method", "baseline")}
        rows.append(row | {f"{kind}_paper": numbers[baseline] for kind, numbers in RELATIVE.items()})
    columns = [Column("Baseline", lambda r: label(r["baseline"]), "l")]
    for kind, tasks in (("training", "Training tasks"), ("unseen", "Unseen tasks")):
        columns.append(Column(f"{tasks}: strong", _times("strong", kind)))
        columns.append(Column("as published", _times("published", kind)))
        columns.append(Column("paper", f"{{{kind}_paper:.2f}}×"))
        solved = " / ".join(f"{{{key}:.1f}}" for key in (f"strong_{kind}_ours", f"strong_{kind}_theirs"))
        columns.append(Column("solved", f"{solved} / {{published_{kind}_theirs:.1f}}"))
    columns += [Column("Cells", "{strong_cells}"), Column("Seeds", "{strong_seeds}")]
    notes = [
        "Strong: with the additions that make the baseline work here. As published: "
        + "; ".join(f"{label(b)}: {label(p)}" for b, p in AS_PUBLISHED.items())
        + f". {NONE}: the baseline solves no task, so the ratio is undefined. Solved: sums over the cells that DIBS "
        "and both versions have, of DIBS, of the strong version, and of the one as published.",
        f"The paper's numbers: {RELATIVE_SOURCE}. In brackets: 95% stratified bootstrap interval.",
    ]
    caption = "How many times as many tasks as a baseline DIBS solves, for two versions of the baseline."
    return Table("table1-versions", caption, rows, columns, 1, notes)


def _times(version: str, kind: str) -> Callable[[Row], str]:
    """Return what a column shows of the comparison with one version of a baseline."""
    low, high = f"{{{version}_{kind}_low:.2f}}", f"{{{version}_{kind}_high:.2f}}"
    ratio = Column("", (f"{{{version}_{kind}_ratio:.2f}}×", f" [{low}, {high}]"))
    return lambda row: ratio.text(row) if row[f"{version}_cells"] else "not run"


def _common(frame: pd.DataFrame, methods: Sequence[str]) -> pd.DataFrame:
    """Return the runs of the methods in the cells that all of them have."""
    part = frame[frame["method"].isin(methods)]
    complete = part.groupby(CELL)["method"].transform("nunique") == len(set(methods))
    return part[complete]


# --- claims ----------------------------------------------------------------------------------------------


class Claim(NamedTuple):
    """A statement of the paper and the rule by which a measurement agrees with it."""

    statement: str
    rule: str
    check: Callable[..., Finding]
    source: str = TEXT
    paper: str = NONE
    ablated: bool = False
    """Whether the check also takes the runs of the ablation's variants."""


def claims(frame: pd.DataFrame, options: Options, variants: Mapping[str, pd.DataFrame] | None = None) -> Table:
    """What the paper says and what we measured; `variants` are the runs of the ablation of cross-index drift."""
    k, agent = frame["benchmark"].map(goals), frame["family"].str.partition("-")[0]
    frame = frame.assign(k=k, main=frame["family"].isin(MAIN) & k.notna(), agent=agent)
    rows = []
    for one in CLAIMS:
        measured, agrees, cells = one.check(frame, variants or {}) if one.ablated else one.check(frame)
        verdict = "not measured" if not cells else "agree" if agrees else "disagree"
        row = {"claim": one.statement, "source": one.source, "paper": one.paper, "measured": NONE}
        row |= {"measured": measured} if cells else {}
        rows.append({**row, "verdict": verdict, "rule": one.rule, "cells": cells})
    counts = [f"{sum(r['verdict'] == v for r in rows)} {v}" for v in ("agree", "disagree", "not measured")]
    seeds = span(frame.groupby([*CELL, "method"]).size())
    columns = [
        Column("The paper says", "{claim}", "4.4cm"),
        Column("where", "{source}", "1.6cm"),
        Column("its number", "{paper}"),
        Column("measured", "{measured}", "3.4cm"),
        Column("verdict", "{verdict}", "l"),
        Column("agrees if", "{rule}", "3.4cm"),
        Column("cells", "{cells}"),
    ]
    note = (
        f"{', '.join(counts)}; {seeds} seeds. Families, their length and the splits are partly our choice: we expect "
        "sizes to agree roughly, directions exactly."
    )
    return Table("claims", "What the paper says and what we measured.", rows, columns, notes=[note])


# --- checks ----------------------------------------------------------------------------------------------


def _longest(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the main families at the largest k that was measured: 5 in the paper."""
    return where(frame, main=True, k=where(frame, main=True)["k"].max())


def _means(frame: pd.DataFrame, scores: Mapping[str, Score]) -> pd.DataFrame:
    """Return means over seeds of some scores in the cells that have all of them, one column each."""
    found = {n: where(frame, method=method).groupby(CELL)[column].mean() for n, (method, column) in scores.items()}
    return pd.DataFrame(found).dropna()


def _relative(frame: pd.DataFrame, baseline: str, kind: str, paper: float | None) -> Finding:
    """DIBS solves about as many times the baseline's tasks as in Table 1, or the baseline solves none."""
    found = relative_row(frame, "dibs", baseline)
    ratio, ends = found[f"{kind}_ratio"], fill(f" [{{{kind}_low:.2f}}, {{{kind}_high:.2f}}]", found)
    if paper is None:
        columns = ["training_count", "train_size"] if kind == "training" else ["zero_shot_count", "unseen_size"]
        means = where(frame, method=baseline).groupby(CELL)[columns].mean()
        solved, tasks = means.sum()
        return f"{solved:.1f} of {tasks:.0f}", bool(solved < 0.01 * max(tasks, 1)), len(means)
    if ratio is None:
        return f"{label(baseline)} solves none", False, found["cells"]
    return f"{ratio:.2f}×{ends}", paper / FACTOR <= ratio <= paper * FACTOR, found["cells"]


def _strongest(frame: pd.DataFrame, column: str) -> Finding:
    """Every baseline has a lower mean over the cells that it shares with DIBS, by more than a tie."""
    each = {b: _means(frame, {"ours": ("dibs", column), "theirs": (b, column)}) for b in BASELINES}
    means = {b: both.mean() for b, both in each.items() if len(both)}
    ahead = [b for b, m in means.items() if m["ours"] > m["theirs"] + TIE]
    others = {
        word: [f"{label(b)} ({m['theirs']:.2f} to {m['ours']:.2f})" for b, m in means.items() if chosen(m)]
        for word, chosen in (
            ("level with", lambda m: abs(m["ours"] - m["theirs"]) <= TIE),
            ("behind", lambda m: m["ours"] < m["theirs"] - TIE),
        )
    }
    mean = _means(frame, {"ours": ("dibs", column)})["ours"].mean()
    tail = "".join(f"; {word} {', '.join(names)}" for word, names in others.items() if names)
    shown = f"ahead of {len(ahead)} of {len(means)}{tail or f' (mean {mean:.2f})'}"
    return shown, len(ahead) == len(means), max(map(len, each.values()))


def _compared(frame: pd.DataFrame, scores: Mapping[str, Score], agrees: Callable[..., bool]) -> Finding:
    """The means of some scores over their common cells are as they should be."""
    found = _means(frame, scores)
    shown = ", ".join(f"{name} {mean:.2f}" for name, mean in found.mean().items())
    return shown, bool(agrees(*found.mean())), len(found)


def _over_train(frame: pd.DataFrame, method: str, agrees: Callable[[float, float], bool]) -> Finding:
    """The training ratios at the smallest and the largest |Train| of the longest benchmarks are as they should be."""
    means = where(_longest(frame), method=method).groupby(["benchmark", "train_size"])["training_ratio"].mean()
    ends = means.groupby("benchmark").agg(["first", "last", "size"]).query("size > 1")
    first, last = ends["first"].mean(), ends["last"].mean()
    return f"{first:.2f} → {last:.2f}", bool(agrees(first, last)), 2 * len(ends)


def _fades_with_k(frame: pd.DataFrame, method: str) -> Finding:
    """Compare zero-shot ratios at the smallest and largest k over the families and splits that have all four.

    A method fades if it loses more than the margin, and keeps a smaller part than DIBS does by more than the margin.
    """
    part = where(frame, main=True)
    common = set(where(part, method=method)["k"]) & set(where(part, method="dibs")["k"])
    if len(common) < 2:
        return NOTHING
    low, high = min(common), max(common)
    means = part.groupby(["family", "split", "method", "k"])["zero_shot_ratio"].mean().unstack(["method", "k"])
    ends = means[[(m, k) for m in (method, "dibs") for k in (low, high)]].dropna()
    first, last, ours_first, ours_last = ends.mean()
    shown = f"k = {low:.0f} → {high:.0f}: {first:.2f} → {last:.2f} (DIBS {ours_first:.2f} → {ours_last:.2f})"
    kept, ours_kept = (end / begin if begin > 0.0 else 1.0 for begin, end in ((first, last), (ours_first, ours_last)))
    return shown, bool(first - last > MARGIN and ours_kept - kept > MARGIN), 2 * len(ends)


def _correlated(frame: pd.DataFrame) -> Finding:
    means = frame[frame["method"].isin(METHODS)].groupby([*CELL, "method"])[RATIOS].mean().dropna()
    if len(means) < 5 or (means.std() == 0).any():
        return NOTHING
    r = float(stats.pearsonr(*means.to_numpy().T).statistic)
    return f"r = {r:.2f} over {len(means)} points", r >= 0.6, len(means.groupby(CELL))


def _only_two_on_choice(frame: pd.DataFrame) -> Finding:
    cells = {m: _means(where(frame, family="car2d-choice"), {m: (m, "zero_shot_ratio")})[m] for m in METHODS}
    means = {m: found.mean() for m, found in cells.items() if len(found)}
    if not {"genrl", "dibs"} < set(means):
        return NOTHING
    agrees = all((mean > TRIVIAL) == (m in ("genrl", "dibs")) for m, mean in means.items())
    return ", ".join(f"{label(m)} {mean:.2f}" for m, mean in means.items()), agrees, max(map(len, cells.values()))


def _ahead_on_choice(frame: pd.DataFrame) -> Finding:
    both = _means(where(frame, family="car2d-choice"), DIBS | GENRL)
    levels = both.groupby("benchmark").mean()
    shown = "; ".join(f"{level}: {ours:.2f} to {theirs:.2f}" for level, ours, theirs in levels.itertuples())
    return shown, bool((levels["DIBS"] > levels["GenRL"] + TIE).all()), len(both)


def _drift(frame: pd.DataFrame, variants: Mapping[str, pd.DataFrame]) -> Finding:
    """Without the regularizer, the best run of DIBS on SimpleDrone solves at most half as many unseen tasks."""
    runs = {"": variants.get("anchored", frame), **{name: variants[name] for name in UNANCHORED if name in variants}}
    best = pd.DataFrame(
        {
            name: where(found, method="dibs", family="simpledrone-reach").groupby(CELL)["zero_shot_count"].max()
            for name, found in runs.items()
        }
    ).dropna()
    if len(runs) == 1 or best.empty:
        return NOTHING
    cells = []
    for row in best.reset_index().to_dict("records"):
        without = ", ".join(f"{row[name]:.0f} ({how})" for name, how in UNANCHORED.items() if name in row)
        cells.append(f"{row['split']}: {row['']:.0f} → {without}")
    most = best.max()
    return "; ".join(cells), bool((most.iloc[1:] <= 0.5 * most.iloc[0]).all()), len(best)


# --- the paper's text ------------------------------------------------------------------------------------


def _table1(baseline: str, kind: str) -> Claim:
    paper, source = RELATIVE[kind][baseline], TEXT if baseline == "genrl" else RELATIVE_SOURCE
    check = partial(_relative, baseline=baseline, kind=kind, paper=paper)
    if paper is None:
        return Claim(f"{label(baseline)} solves no {kind} task", "it solves fewer than 1%", check, source)
    statement = f"DIBS solves more {kind} tasks than {label(baseline)}, by this factor"
    return Claim(statement, f"within a factor of {FACTOR} of it", check, source, f"{paper:.2f}×")


def _fading(method: str) -> Claim:
    statement = f"{label(method)} fades with k more than DIBS does (zero-shot ratio)"
    rule = f"it loses more than {MARGIN} from the smallest to the largest k, and keeps a part smaller by more than that"
    return Claim(statement, rule, partial(_fades_with_k, method=method))


DIBS, GENRL, VARIBAD = ({label(m): (m, "zero_shot_ratio")} for m in ("dibs", "genrl", "varibad"))
BC = {"training": ("bc", "training_ratio"), "zero-shot": ("bc", "zero_shot_ratio")}
CLAIMS = (
    *(_table1(baseline, kind) for baseline in ("genrl", "varibad", "maml", "bc", "ars") for kind in RELATIVE),
    Claim(
        "DIBS keeps the strongest training scalability (longest k-reachability)",
        f"the mean training ratio of every method is lower by more than {TIE}",
        lambda frame: _strongest(_longest(frame), "training_ratio"),
    ),
    Claim(
        "DIBS has the strongest zero-shot generalization across benchmarks",
        f"the mean zero-shot ratio of every method is lower by more than {TIE}",
        lambda frame: _strongest(frame, "zero_shot_ratio"),
    ),
    Claim(
        "BC scales well in |Train| (longest k-reachability)",
        "training ratio at the largest |Train| at least 0.5, and 0.8 of that at the smallest",
        lambda frame: _over_train(frame, "bc", lambda first, last: last >= 0.8 * first and last >= 0.5),
    ),
    Claim(
        "BC does not generalize (longest k-reachability)",
        "zero-shot ratio below half the training ratio",
        lambda frame: _compared(_longest(frame), BC, lambda training, unseen: unseen < 0.5 * training),
    ),
    Claim(
        "Training success and zero-shot generalization are strongly correlated",
        "r of the two ratios over methods and cells at least 0.6",
        _correlated,
    ),
    *(_fading(method) for method in ("maml", "varibad")),
    Claim(
        "GenRL fades with |Train| (training ratio, longest k-reachability)",
        f"lower by more than {MARGIN} at the largest |Train| than at the smallest",
        lambda frame: _over_train(frame, "genrl", lambda first, last: last < first - MARGIN),
    ),
    Claim(
        "VariBAD is slightly ahead at k = 1 (zero-shot ratio)",
        f"ahead by more than {TIE} and less than 0.15",
        lambda frame: _compared(where(frame, k=1), VARIBAD | DIBS, lambda theirs, ours: TIE < theirs - ours < 0.15),
        MAIN_RESULTS,
    ),
    Claim(
        "Only GenRL and DIBS are non-trivial on Choice (zero-shot ratio)",
        f"these above {TRIVIAL}, the others not",
        _only_two_on_choice,
        CHOICE_RESULTS,
    ),
    Claim(
        "DIBS consistently outperforms GenRL on Choice (zero-shot ratio)",
        f"mean higher by more than {TIE} at every level",
        _ahead_on_choice,
        CHOICE_RESULTS,
    ),
    Claim(
        "DIBS has a usable template on Reacher where GenRL fails (zero-shot ratio)",
        "DIBS at least 0.5, GenRL below",
        lambda frame: _compared(where(frame, agent="reacher"), DIBS | GENRL, lambda ours, theirs: ours >= 0.5 > theirs),
    ),
    Claim(
        "Without drift regularization the best SimpleDrone run solves far fewer unseen tasks",
        "without it, the best run of the ablation solves at most half as many",
        _drift,
        paper=f"{DRIFT_ABLATION['regularized']} → {DRIFT_ABLATION['unregularized']}",
        ablated=True,
    ),
)
"""In the order of the table."""
