"""The table of an ablation: what each variant solves, and how far its teachers and templates differ (section 5.2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pandas as pd

from dibs.analysis.collect import benchmark_order
from dibs.analysis.methods import in_order, label
from dibs.analysis.statistics import bootstrap
from dibs.analysis.studies import NEAR_PERFECT, Measured, Study, Variant, mean, number, of_split, share_learned
from dibs.analysis.tables import NONE, Column, Row, Table

Cell = tuple[str, int, str]
"""Benchmark, gap and method."""


def ablation(study: Study, measured: Mapping[str, Measured]) -> Table:
    """One row per benchmark, gap, method and variant; columns in which nothing was measured are left out."""
    rows = [
        _compared(study, measured, variant, cell)
        for cell in cells(measured)
        for variant in study.variants
        if is_expected(measured[variant.name], *cell)
    ]
    empty = {name for name in OPTIONAL if all(row[name] is None for row in rows)}
    rows = [{name: value for name, value in row.items() if name not in empty} for row in rows]
    base = next((v.shown for v in study.variants if v.name == study.base), "")
    notes = [
        "In brackets: 95% bootstrap interval over seeds, n/a for one seed. Best: the run that solves most unseen "
        "tasks, as the paper quotes it.",
    ]
    if base:
        notes.append(f"Difference: zero-shot ratio minus that of “{base}”, paired over the seeds that both have.")
    if "teacher_success" not in empty:
        notes.append(
            f"Teachers: mean success on an edge, and share of edges with at least {NEAR_PERFECT}. Drift: distance to "
            "the teacher of the training index before."
        )
    absent = sum(len(variant.absent) for variant in study.variants)
    if absent:
        notes.append(f"Results that are listed but not there: {absent}. All numbers are of those that are.")
    columns = [column for name, column in COLUMNS_SHOWN if name not in empty]
    return Table(study.name, study.question, rows, columns, _split, notes)


def cells(measured: Mapping[str, Measured]) -> list[Cell]:
    """Benchmarks, gaps and methods that any variant has, in the order of tables."""
    found = {
        (str(b), int(g), str(m))
        for one in measured.values()
        for b, g, m in one.runs[["benchmark", "gap", "method"]].itertuples(index=False)
    }
    methods, names = in_order(m for *_, m in found), benchmark_order(b for b, *_ in found)
    return sorted(found, key=lambda c: (names.index(c[0]), -c[1], methods.index(c[2])))


def runs_of(one: Measured, benchmark: str, gap: int, method: str) -> pd.DataFrame:
    """The runs of one cell and method, by seed."""
    runs = one.runs
    return runs[(runs["benchmark"] == benchmark) & (runs["gap"] == gap) & (runs["method"] == method)].set_index("seed")


def is_expected(one: Measured, benchmark: str, gap: int, method: str) -> bool:
    """Whether a variant has the runs, or may be missing them; one that never had the method has no row."""
    return not one.complete or one.runs.empty or not runs_of(one, benchmark, gap, method).empty


def interval(values: Iterable[float]) -> tuple[float | None, float | None, float | None]:
    """Mean over seeds and its 95% interval, which one seed does not have."""
    known = np.array([v for v in values if not np.isnan(v)], dtype=float)
    if len(known) < 2:
        return (float(known[0]) if len(known) else None), None, None
    return bootstrap(known, "mean")


def difference(ours: pd.Series, base: pd.Series) -> pd.Series:
    """Ours minus the base's, at the seeds that both have."""
    return (ours - base).dropna()


def _compared(study: Study, measured: Mapping[str, Measured], variant: Variant, cell: Cell) -> Row:
    one, (benchmark, gap, method) = measured[variant.name], cell
    runs = runs_of(one, *cell)
    row: Row = {"benchmark": benchmark, "gap": gap, "method": method, "variant": variant.name}
    row |= {"label": variant.shown, "seeds": len(runs)}
    for ratio in ("training_ratio", "zero_shot_ratio"):
        row |= _spread(ratio, runs[ratio])
    counts = runs["zero_shot_count"]
    row |= {"zero_shot_count_mean": mean(counts), "zero_shot_count_best": float(counts.max()) if len(runs) else None}
    row["unseen_size"] = int(runs["unseen_size"].max()) if len(runs) else None
    compared = study.base not in ("", variant.name)
    base = runs_of(measured[study.base], *cell) if compared else runs.iloc[:0]
    paired = difference(runs["zero_shot_ratio"], base["zero_shot_ratio"])
    row |= {**_spread("difference", paired), "difference_seeds": len(paired) if compared else None}
    family = next(f for m in measured.values() for f in runs_of(m, *cell)["family"])
    taught = of_split(one.edges, family, gap)
    row |= {"teacher_success": mean(taught["success"]), "teacher_share": share_learned(taught)}
    row["drift"] = mean(taught["drift"])
    fitted = one.losses[(one.losses["family"] == family) & (one.losses["gap"] == gap)]
    row["template_loss"] = mean(fitted[fitted["method"] == method]["loss"])
    return row


def _spread(name: str, values: Iterable[float]) -> Row:
    return dict(zip((f"{name}_mean", f"{name}_low", f"{name}_high"), interval(values), strict=True))


def _split(row: Row) -> str:
    return f"{row['benchmark']}, gap {row['gap']}"


def _with_interval(row: Row, name: str, how: str = ".2f") -> str:
    middle, low, high = (row.get(f"{name}_{end}") for end in ("mean", "low", "high"))
    if middle is None:
        return NONE
    ends = "n/a" if low is None else f"{low:{how}}, {high:{how}}"
    return f"{middle:{how}} [{ends}]"


def _solved(row: Row) -> str:
    if row["zero_shot_count_mean"] is None:
        return NONE
    return f"{row['zero_shot_count_mean']:.1f} of {row['unseen_size']}"


COLUMNS_SHOWN: tuple[tuple[str, Column], ...] = (
    ("method", Column("Method", lambda r: label(r["method"]), "l")),
    ("variant", Column("Variant", lambda r: r["label"], "2.6cm")),
    ("seeds", Column("Seeds", lambda r: str(r["seeds"]))),
    ("training_ratio_mean", Column("Training ratio", lambda r: _with_interval(r, "training_ratio"))),
    ("zero_shot_ratio_mean", Column("Zero-shot ratio", lambda r: _with_interval(r, "zero_shot_ratio"))),
    ("difference_mean", Column("Difference", lambda r: _with_interval(r, "difference", "+.2f"))),
    ("zero_shot_count_mean", Column("Unseen solved", _solved)),
    ("zero_shot_count_best", Column("best", lambda r: number(r["zero_shot_count_best"], ".0f"))),
    ("teacher_success", Column("Teachers", lambda r: number(r["teacher_success"], ".3f"))),
    ("teacher_share", Column(f"≥ {NEAR_PERFECT}", lambda r: number(r["teacher_share"]))),
    ("drift", Column("Drift", lambda r: number(r["drift"]))),
    ("template_loss", Column("Loss per index", lambda r: number(r["template_loss"], ".2g"))),
)
"""How readers see a row, by the entry that a column needs."""
OPTIONAL = (
    *(f"difference_{end}" for end in ("mean", "low", "high", "seeds")),
    "teacher_success",
    "teacher_share",
    "drift",
    "template_loss",
)
