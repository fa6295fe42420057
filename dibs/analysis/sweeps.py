"""Sweeps: one row per point of a grid and the paper's rules for choosing among them (appendix E).

A sweep looks at training indices only, as the paper's does: of evaluations, the rows of role `train`. The rules are
pure functions over a frame with one row per point; a point whose runs are not all there is `missing` and is never
chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dibs.analysis.collect import IDENTITY, collect, read_evaluation
from dibs.analysis.studies import (
    NEAR_PERFECT,
    Point,
    Study,
    Variant,
    edges,
    losses,
    mean,
    number,
    share_learned,
    there,
)
from dibs.analysis.tables import Column, Row, Table
from dibs.datasets.store import read_acceptance
from dibs.errors import DibsError

HARMLESS = 0.01
"""How far teachers may fall short of the best ones (or of those at 0) and still count as undegraded."""
COVERAGE = 0.05
"""Least share of candidates that the filter must keep."""
TIE = 0.005
"""Satisfaction rates that are no further apart count as equal."""
ROUNDING = 1e-9
SYMBOLS = {
    "teachers.cross_index": "λ_x",
    "teachers.confidence": "λ_conf",
    "datasets.alpha": "α",
    "datasets.beta": "β",
    "datasets.gamma": "γ",
    "datasets.threshold": "τ_c",
    "datasets.size": "M",
    "templates.degree": "degree",
}
"""The paper's names of keys that it sweeps."""


def symbol(key: str) -> str:
    """How readers see a swept key."""
    return SYMBOLS.get(key, key)


# --- one row per point -----------------------------------------------------------------------------------


def points(study: Study) -> pd.DataFrame:
    """One row per point, in the order of the study: what was measured of it at training indices."""
    frame = pd.DataFrame([_measured(study, variant) for variant in study.variants])
    frame = frame.astype(dict.fromkeys(OPTIONAL, float))
    _check_family(study, frame)
    return frame


def training_runs(files: Sequence[Path]) -> pd.DataFrame:
    """One row per evaluation: satisfaction rate and ratio of solved tasks at its training indices."""
    runs = collect(files)[[*IDENTITY, "family", "training_ratio", "file"]]
    return runs.assign(satisfaction=[_training_rate(Path(file)) for file in runs["file"]])


def _training_rate(file: Path) -> float:
    table, _ = read_evaluation(file)
    both = zip(table["role"].to_pylist(), table["rate"].to_pylist(), strict=True)
    return float(np.mean([rate for role, rate in both if role == "train"]))


def acceptance(files: Sequence[Path]) -> float | None:
    """Mean over datasets and edges of the share of candidates that passed the filter."""
    said = [read_acceptance(file) for file in there(files)]
    return mean(share for edges in said if edges for share in edges.values())


def _measured(study: Study, variant: Variant) -> Row:
    runs = training_runs(there(variant.evaluations))
    taught, fitted = edges(variant.teachers), losses(variant.templates)
    row: Row = {"name": variant.name, **variant.point}
    row |= {"seeds": int(runs["seed"].nunique()), "success": mean(taught["success"])}
    row |= {"share": share_learned(taught), "drift": mean(taught["drift"]), "accuracy": mean(taught["accuracy"])}
    row |= {"acceptance": acceptance(variant.datasets), "loss": mean(fitted["loss"])}
    row |= {"satisfaction": mean(runs["satisfaction"]), "training_ratio": mean(runs["training_ratio"])}
    families = sorted({*runs["family"], *taught["family"], *fitted["family"]})
    row |= {"held": variant.point == study.held, "family": " ".join(families)}
    return row | {"missing": _missing(variant, row, NEEDED[study.rule])}


def _missing(variant: Variant, row: Row, needed: Sequence[str]) -> str:
    """Why a point cannot be chosen; empty if it can."""
    absent = len(variant.absent)
    if absent:
        return f"{absent} file{'s' if absent > 1 else ''} missing"
    unknown = [name for name in needed if row[name] is None]
    return f"no {' or '.join(unknown)}" if unknown else ""


def _check_family(study: Study, frame: pd.DataFrame) -> None:
    families = sorted({name for names in frame["family"] for name in names.split()})
    if len(families) > 1:
        raise DibsError(
            f"study {study.name}: a sweep is about one family, found {', '.join(families)}; list one in each study"
        )


# --- the paper's rules -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Choice:
    """What a rule says about the points."""

    chosen: Any
    """Label of the chosen row; None: no point can be chosen."""
    eligible: list[bool]
    why: str


def largest_harmless(frame: pd.DataFrame, keys: Sequence[str]) -> Choice:
    """The largest value that lowers drift, compared with 0, and does not degrade teachers; 0 if there is none."""
    (key,) = keys
    good = frame[frame["missing"] == ""]
    zero = good[good[key] == 0]
    if zero.empty:
        return Choice(None, [False] * len(frame), f"the point at {symbol(key)} = 0 is missing: nothing to compare with")
    drift, success = float(zero["drift"].iloc[0]), float(zero["success"].iloc[0])
    harmless = (good["drift"] < drift - ROUNDING) & (good["success"] >= success - HARMLESS - ROUNDING)
    able = good[harmless | (good[key] == 0)]
    best = able.sort_values(key).iloc[-1]
    if best[key] == 0:
        why = f"no value lowers drift from {drift:.3g} at 0 with teachers within {HARMLESS} of {success:.3f}"
    else:
        why = (
            f"the largest value with less drift than 0 ({best['drift']:.3g} < {drift:.3g}) and teachers within "
            f"{HARMLESS} of those at 0 ({best['success']:.3f}, {success:.3f})"
        )
    return Choice(best.name, _among(frame, able), why)


def best_training(frame: pd.DataFrame, keys: Sequence[str]) -> Choice:
    """Of points with strong teachers and enough coverage, the one that satisfies training tasks most often.

    Within a tie the held point stays; otherwise the lowest template loss decides.
    """
    good = frame[frame["missing"] == ""]
    strong = good["success"] >= good["success"].max() - HARMLESS - ROUNDING
    able = good[strong & (good["acceptance"] >= COVERAGE - ROUNDING)]
    if able.empty:
        told = f"no point has teachers within {HARMLESS} of the best and acceptance of at least {COVERAGE}"
        return Choice(None, [False] * len(frame), told if len(good) else "every point is missing")
    top = float(able["satisfaction"].max())
    tied = able[able["satisfaction"] >= top - TIE - ROUNDING]
    held = tied[tied["held"]]
    if len(held):
        best = held.iloc[0]
        why = f"the held point is within {TIE} of the best satisfaction at training indices ({top:.3f})"
    elif len(tied) == 1:
        best = tied.iloc[0]
        why = f"the highest satisfaction at training indices ({top:.3f}) of {len(able)} eligible points"
    else:
        best = tied.sort_values(["loss", "satisfaction"], ascending=[True, False], kind="stable").iloc[0]
        why = f"{len(tied)} points are within {TIE} of the best satisfaction ({top:.3f}); this one has the lowest loss"
    return Choice(best.name, _among(frame, able), why)


def smallest_sufficient(frame: pd.DataFrame, keys: Sequence[str]) -> Choice:
    """The smallest value that satisfies training tasks as often as the best one does."""
    (key,) = keys
    good = frame[frame["missing"] == ""]
    if good.empty:
        return Choice(None, [False] * len(frame), "every point is missing")
    top = float(good["satisfaction"].max())
    able = good[good["satisfaction"] >= top - TIE - ROUNDING]
    best = able.sort_values(key).iloc[0]
    told = f"satisfaction at training indices ({best['satisfaction']:.3f}) within {TIE} of the best ({top:.3f})"
    return Choice(best.name, _among(frame, able), f"the smallest value with {told}")


Rule = Callable[[pd.DataFrame, Sequence[str]], Choice]
CHOOSE: dict[str, Rule] = {
    "largest-harmless": largest_harmless,
    "best-training": best_training,
    "smallest-sufficient": smallest_sufficient,
}
NEEDED = {
    "largest-harmless": ("success", "drift"),
    "best-training": ("success", "acceptance", "satisfaction"),
    "smallest-sufficient": ("satisfaction",),
}
"""What a point must have for a rule to consider it."""


def choose(study: Study, frame: pd.DataFrame) -> Choice:
    """Apply the study's rule."""
    return CHOOSE[study.rule](frame, study.keys)


def _among(frame: pd.DataFrame, part: pd.DataFrame) -> list[bool]:
    return [bool(b) for b in frame.index.isin(part.index)]


# --- what comes of it ------------------------------------------------------------------------------------


def decision(study: Study, frame: pd.DataFrame, choice: Choice) -> dict[str, Any]:
    """What was chosen, whether the config has it already, and why, for machines."""
    chosen: Point = {} if choice.chosen is None else study.variants[list(frame.index).index(choice.chosen)].point
    families = [name for name in frame["family"] if name]
    return {
        "study": study.name,
        "family": families[0] if families else "",
        "rule": study.rule,
        "chosen": chosen,
        "held": study.held,
        "agrees": chosen == study.held,
        "why": choice.why,
    }


def sweep(study: Study, frame: pd.DataFrame, choice: Choice) -> Table:
    """One row per point; columns in which nothing was measured are left out."""
    empty = {name for name in OPTIONAL if frame[name].isna().all()}
    rows = []
    for at, point, able in zip(frame.index, frame.to_dict("records"), choice.eligible, strict=True):
        row: Row = {"point": point["name"], **{key: v for key, v in point.items() if key in study.keys}}
        row |= {name: _or_none(point[name]) for name in ("seeds", *OPTIONAL) if name not in empty}
        row |= {"eligible": able, "chosen": at == choice.chosen, "held": point["held"], "missing": point["missing"]}
        rows.append(row)
    values = [_swept(key) for key in study.keys]
    measured = [column for name, column in SHOWN if name not in empty]
    marks = [_mark(name) for name in ("eligible", "chosen", "held")]
    if any(frame["missing"]):
        marks.append(Column("Missing", lambda r: r["missing"], "l"))
    return Table(study.name, study.question, rows, [*values, *measured, *marks], notes=_notes(study, frame, choice))


def _notes(study: Study, frame: pd.DataFrame, choice: Choice) -> list[str]:
    made = decision(study, frame, choice)
    taken = ", ".join(f"{symbol(k)} = {v:g}" for k, v in made["chosen"].items()) or "nothing"
    held = ", ".join(f"{symbol(k)} = {v:g}" for k, v in study.held.items())
    verdict = "which the config holds" if made["agrees"] else f"the config holds {held}"
    where = f" on {made['family']}" if made["family"] else ""
    notes = [f"Rule {study.rule}{where}: chosen {taken}; {verdict}. Why: {choice.why}."]
    if not frame["held"].any():
        notes.append("The held point is not among those swept.")
    notes.append(
        f"All at training indices. Teachers: mean success on an edge, and share of edges with at least {NEAR_PERFECT}. "
        "Acceptance: share of candidates that pass the filter. Loss: mean over edges and training indices."
    )
    return notes


def _swept(key: str) -> Column:
    return Column(symbol(key), lambda row: format(row[key], "g"))


def _mark(name: str) -> Column:
    return Column(name.capitalize(), lambda row: "yes" if row[name] else "", "l")


def _or_none(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value


SHOWN: tuple[tuple[str, Column], ...] = (
    ("seeds", Column("Seeds", lambda r: str(r["seeds"]))),
    ("success", Column("Teachers", lambda r: number(r["success"], ".3f"))),
    ("share", Column(f"≥ {NEAR_PERFECT}", lambda r: number(r["share"]))),
    ("drift", Column("Drift", lambda r: number(r["drift"], ".3g"))),
    ("accuracy", Column("Confidence accuracy", lambda r: number(r["accuracy"]))),
    ("acceptance", Column("Acceptance", lambda r: number(r["acceptance"]))),
    ("loss", Column("Loss per index", lambda r: number(r["loss"], ".2g"))),
    ("satisfaction", Column("Satisfaction", lambda r: number(r["satisfaction"], ".3f"))),
    ("training_ratio", Column("Training ratio", lambda r: number(r["training_ratio"]))),
)
OPTIONAL = tuple(name for name, _ in SHOWN[1:])
