"""Sweeps: one row per point of a grid and the paper's rules for choosing among them (appendix E).

As in the paper, a sweep uses training indices only: of evaluations, the rows with role `train`. The rules are pure
functions of a frame with one row per point. A point without all of its runs is `missing` and is never chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from dibs.datasets.store import read_acceptance
from dibs.errors import DibsError
from dibs.studies.collect import collect
from dibs.studies.formats import Column, Row, Table
from dibs.studies.studies import NEAR_PERFECT, StudyFile, VariantFiles, edges, losses, mean, present, share_learned
from dibs.studies.tables import SEEDS

HARMLESS = 0.01
"""How far teachers may fall behind the best ones (or those at 0) and still count as undegraded."""
COVERAGE = 0.05
"""Least share of candidates that the filter must keep."""
TIE = 0.005
"""Satisfaction rates at most this far apart count as equal."""
ROUNDING = 1e-9
SYMBOLS = {
    **{"teachers.cross_index": "λ_x", "teachers.confidence": "λ_conf", "templates.degree": "degree"},
    **{"datasets.alpha": "α", "datasets.beta": "β", "datasets.gamma": "γ"},
    **{"datasets.threshold": "τ_c", "datasets.size": "M"},
}
"""The paper's names of keys that it sweeps."""


def symbol(key: str) -> str:
    """Return what readers call a swept key."""
    return SYMBOLS.get(key, key)


# --- one row per point -----------------------------------------------------------------------------------


def measured_points(study: StudyFile) -> pd.DataFrame:
    """Return one row per point, in the order of the study: what was measured at training indices."""
    frame = pd.DataFrame([_measured(study, variant) for variant in study.variants]).astype(MEASURES)
    families = sorted({name for names in frame["family"] for name in names.split()})
    if len(families) > 1:
        found = ", ".join(families)
        raise DibsError(f"study {study.name}: a sweep is about one family, found {found}; list one in each study")
    return frame


def acceptance(files: Sequence[Path]) -> float | None:
    """Return the share of candidates that passed the filter, as a mean over datasets and edges."""
    return mean(share for file in files for share in (read_acceptance(file) or {}).values())


def _measured(study: StudyFile, variant: VariantFiles) -> Row:
    runs, taught = collect(present(variant.evaluations)), edges(present(variant.teachers))
    fitted = losses(present(variant.models))
    row: Row = {"name": variant.name, **variant.point, "seeds": int(runs["seed"].nunique())}
    row |= {name: mean(taught[name]) for name in ("success", "drift", "accuracy")} | {"share": share_learned(taught)}
    row |= {"acceptance": acceptance(present(variant.datasets)), "loss": mean(fitted["loss"])}
    row |= {"satisfaction": mean(runs["training_rate"]), "training_ratio": mean(runs["training_ratio"])}
    row |= {"held": variant.point == study.held, "missing": ""}
    row["family"] = " ".join(sorted({*runs["family"], *taught["family"], *fitted["family"]}))
    absent, unknown = len(variant.absent), [name for name in RULES[study.rule][1] if row[name] is None]
    if absent:
        row["missing"] = f"{absent} file{'s' if absent > 1 else ''} missing"
    elif unknown:
        row["missing"] = f"no {' or '.join(unknown)}"
    return row


# --- the paper's rules -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepChoice:
    """The point that a rule chooses."""

    chosen: Any
    """Label of its row; None: no point can be chosen."""
    why: str
    eligible: frozenset[Any] = frozenset()
    """Labels of the rows that could be chosen."""


def largest_harmless(good: pd.DataFrame, keys: Sequence[str]) -> SweepChoice:
    """Choose the largest value with less drift than 0 and undegraded teachers; 0 if there is none."""
    (key,) = keys
    zero = good[good[key] == 0]
    if zero.empty:
        return SweepChoice(None, f"the point at {symbol(key)} = 0 is missing: nothing to compare with")
    drift, success = float(zero["drift"].iloc[0]), float(zero["success"].iloc[0])
    harmless = (good["drift"] < drift - ROUNDING) & (good["success"] >= success - HARMLESS - ROUNDING)
    able = good[harmless | (good[key] == 0)]
    best = able.sort_values(key).iloc[-1]
    why = (
        f"the largest value with less drift than 0 ({best['drift']:.3g} < {drift:.3g}) and teachers within "
        f"{HARMLESS} of those at 0 ({best['success']:.3f}, {success:.3f})"
    )
    if best[key] == 0:
        why = f"no value lowers drift from {drift:.3g} at 0 with teachers within {HARMLESS} of {success:.3f}"
    return SweepChoice(best.name, why, frozenset(able.index))


def best_training(good: pd.DataFrame, keys: Sequence[str]) -> SweepChoice:
    """Choose the point with the best satisfaction on training tasks, of those with strong teachers and enough coverage.

    On a tie, the point in the config stays; otherwise the lowest template loss decides.
    """
    strong = good["success"] >= good["success"].max() - HARMLESS - ROUNDING
    able = good[strong & (good["acceptance"] >= COVERAGE - ROUNDING)]
    if able.empty:
        reason = f"no point has teachers within {HARMLESS} of the best and acceptance of at least {COVERAGE}"
        return SweepChoice(None, reason)
    top = float(able["satisfaction"].max())
    tied = able[able["satisfaction"] >= top - TIE - ROUNDING]
    order = {"held": False, "loss": True, "satisfaction": False}
    best = tied.sort_values(list(order), ascending=list(order.values()), kind="stable").iloc[0]
    why = f"{len(tied)} points are within {TIE} of the best satisfaction ({top:.3f}); this one has the lowest loss"
    if best["held"]:
        why = f"the held point is within {TIE} of the best satisfaction at training indices ({top:.3f})"
    elif len(tied) == 1:
        why = f"the highest satisfaction at training indices ({top:.3f}) of {len(able)} eligible points"
    return SweepChoice(best.name, why, frozenset(able.index))


def smallest_sufficient(good: pd.DataFrame, keys: Sequence[str]) -> SweepChoice:
    """Choose the smallest value that satisfies training tasks as often as the best one does."""
    top = float(good["satisfaction"].max())
    able = good[good["satisfaction"] >= top - TIE - ROUNDING]
    best = able.sort_values(list(keys)).iloc[0]
    reason = f"satisfaction at training indices ({best['satisfaction']:.3f}) within {TIE} of the best ({top:.3f})"
    return SweepChoice(best.name, f"the smallest value with {reason}", frozenset(able.index))


RULES: dict[str, tuple[Callable[[pd.DataFrame, Sequence[str]], SweepChoice], tuple[str, ...]]] = {
    "largest-harmless": (largest_harmless, ("success", "drift")),
    "best-training": (best_training, ("success", "acceptance", "satisfaction")),
    "smallest-sufficient": (smallest_sufficient, ("satisfaction",)),
}
"""Rules by name, and the measurements without which a rule ignores a point."""


def choose(study: StudyFile, frame: pd.DataFrame) -> SweepChoice:
    """Apply the study's rule to the points that are not missing."""
    good = frame[frame["missing"] == ""]
    return SweepChoice(None, "every point is missing") if good.empty else RULES[study.rule][0](good, study.keys)


# --- results ---------------------------------------------------------------------------------------------


def decision(study: StudyFile, frame: pd.DataFrame, choice: SweepChoice) -> dict[str, Any]:
    """Return what was chosen, whether the config has it already, and why, for programs."""
    chosen = {} if choice.chosen is None else study.variants[list(frame.index).index(choice.chosen)].point
    family = next((name for name in frame["family"] if name), "")
    found = {"study": study.name, "family": family, "rule": study.rule, "why": choice.why}
    return {**found, "chosen": chosen, "held": study.held, "agrees": chosen == study.held}


def sweep(study: StudyFile, frame: pd.DataFrame, choice: SweepChoice) -> Table:
    """Show all points; columns without any number are left out."""
    marked = frame.assign(chosen=frame.index == choice.chosen, eligible=frame.index.isin(list(choice.eligible)))
    shown = marked.rename(columns={"name": "point"})[["point", *study.keys, "seeds", *MEASURES, *MARKS, "missing"]]
    rows: list[Any] = shown.to_dict("records")
    columns = [_swept(key) for key in study.keys] + list(COLUMNS)
    if any(frame["missing"]):
        columns.append(Column("Missing", "{missing}", "l"))
    made = decision(study, frame, choice)
    taken, held = (", ".join(f"{symbol(k)} = {v:g}" for k, v in made[name].items()) for name in ("chosen", "held"))
    verdict = "which the config holds" if made["agrees"] else f"the config holds {held}"
    where = f" on {made['family']}" if made["family"] else ""
    notes = [f"Rule {study.rule}{where}: chosen {taken or 'nothing'}; {verdict}. Why: {choice.why}."]
    if not frame["held"].any():
        notes.append("The held point is not among those swept.")
    notes.append(
        f"All at training indices. Teachers: mean success on an edge, and share of edges with at least {NEAR_PERFECT}. "
        "Acceptance: share of candidates that pass the filter. Loss: mean over edges and training indices."
    )
    return Table(study.name, study.question, rows, columns, notes=notes).without_empty()


def _swept(key: str) -> Column:
    return Column(symbol(key), lambda row: format(row[key], "g"))


def _mark(name: str) -> Column:
    return Column(name.capitalize(), lambda row: "yes" if row[name] else "", "l")


MARKS = ("eligible", "chosen", "held")
COLUMNS = (
    SEEDS,
    Column("Teachers", "{success:.3f}"),
    Column(f"≥ {NEAR_PERFECT}", "{share:.2f}"),
    Column("Drift", "{drift:.3g}"),
    Column("Confidence accuracy", "{accuracy:.2f}"),
    Column("Acceptance", "{acceptance:.2f}"),
    Column("Loss per index", "{loss:.2g}"),
    Column("Satisfaction", "{satisfaction:.3f}"),
    Column("Training ratio", "{training_ratio:.2f}"),
    *map(_mark, MARKS),
)
MEASURES = dict.fromkeys(
    ("success", "share", "drift", "accuracy", "acceptance", "loss", "satisfaction", "training_ratio"), float
)
