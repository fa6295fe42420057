"""The table of an ablation: what each variant solves, and how its teachers and templates differ (section 5.2)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd

from dibs.studies.collect import groups, where
from dibs.studies.formats import Column, Row, Table
from dibs.studies.studies import NEAR_PERFECT, Results, StudyFile, mean, present, share_learned
from dibs.studies.tables import METHOD, SEEDS, bootstrap


def ablation(study: StudyFile, results: Results) -> Table:
    """Compare the variants per benchmark, split and method; columns without any number are left out."""
    rows = list(_rows(study, results))
    base = next((v.shown for v in study.variants if v.name == study.base), "")
    absent = sum(len(variant.absent) for variant in study.variants)
    notes = ["In brackets: 95% bootstrap interval over seeds, n/a for one seed. Best: the run that solves most unseen."]
    if base:
        notes.append(f"Difference: zero-shot ratio minus that of “{base}”, paired over the seeds that both have.")
    if any(row["teacher_success"] is not None for row in rows):
        learned = f"Teachers: mean success on an edge, and share of edges with at least {NEAR_PERFECT}."
        notes.append(f"{learned} Drift: distance to the teacher of the training index before.")
    if absent:
        notes.append(f"Listed results that do not exist: {absent}. All numbers are of those that do.")
    return Table(study.name, study.question, rows, COLUMNS, 3, notes).without_empty()


def _rows(study: StudyFile, results: Results) -> Iterator[Row]:
    for (benchmark, _, split, method), cell in groups(results.runs, "benchmark", "train_size", "split", "method"):
        family = cell["family"].iloc[0]
        for variant in study.variants:
            runs = where(cell, variant=variant.name).set_index("seed")
            complete = len(present(variant.evaluations)) == len(variant.evaluations)
            if runs.empty and complete and variant.name in set(results.runs["variant"]):
                continue  # it never had the method
            row: Row = {"benchmark": benchmark, "split": split, "method": method, "variant": variant.name}
            row |= {"label": variant.shown, "seeds": len(runs)}
            compared = study.base not in ("", variant.name)
            base = where(cell, variant=study.base if compared else "").set_index("seed")
            ratios = {name: runs[name] for name in ("training_ratio", "zero_shot_ratio")}
            paired = (runs["zero_shot_ratio"] - base["zero_shot_ratio"]).dropna()
            for name, values in {**ratios, "difference": paired}.items():
                row |= zip((f"{name}_mean", f"{name}_low", f"{name}_high"), spread(values), strict=True)
            counts, sizes = runs["zero_shot_count"], runs["unseen_size"]
            row |= {"difference_seeds": len(paired) if compared else None, "zero_shot_count_mean": mean(counts)}
            row["zero_shot_count_best"] = None if runs.empty else float(counts.max())
            row["unseen_size"] = None if runs.empty else int(sizes.max())
            taught = of_split(results.edges, variant.name, family, split)
            row |= {"teacher_success": mean(taught["success"]), "teacher_share": share_learned(taught)}
            fitted = where(results.losses, variant=variant.name, family=family, split=split, method=method)
            row |= {"drift": mean(taught["drift"]), "template_loss": mean(fitted["loss"])}
            yield row


def of_split(edges: pd.DataFrame, variant: str, family: str, split: str) -> pd.DataFrame:
    """Return the edges of a variant's teachers at one split; teachers of index 0 serve all splits."""
    own = where(edges, variant=variant, family=family)
    return own[(own["split"] == split) | (own["index"] == 0)]


def spread(values: Iterable[float]) -> tuple[float | None, float | None, float | None]:
    """Return the mean over seeds and its 95% interval; one seed has no interval."""
    known = pd.Series(values, dtype=float).dropna().to_numpy()
    return (float(known.mean()), *bootstrap([known], np.mean)) if len(known) else (None, None, None)


def _interval(header: str, name: str, how: str) -> Column:
    templates = f"{{{name}_mean:{how}}}", f" [{{{name}_low:{how}}}, {{{name}_high:{how}}}]"
    return Column(header, templates, otherwise=" [n/a]")


COLUMNS = (
    Column("Benchmark", "{benchmark}", "l"),
    Column("Split", "{split}", "l"),
    METHOD,
    Column("Variant", "{label}", "2.6cm"),
    SEEDS,
    _interval("Training ratio", "training_ratio", ".2f"),
    _interval("Zero-shot ratio", "zero_shot_ratio", ".2f"),
    _interval("Difference", "difference", "+.2f"),
    Column("Unseen solved", "{zero_shot_count_mean:.1f} of {unseen_size}"),
    Column("best", "{zero_shot_count_best:.0f}"),
    Column("Teachers", "{teacher_success:.3f}"),
    Column(f"≥ {NEAR_PERFECT}", "{teacher_share:.2f}"),
    Column("Drift", "{drift:.2f}"),
    Column("Loss per index", "{template_loss:.2g}"),
)
