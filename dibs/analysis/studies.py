"""Studies: variants of the config measured by the whole pipeline; ablations (section 5.2) and sweeps (appendix E).

The workflow lists the results of every variant in one JSON file, which `read_study` checks. A listed file that is
not there is a run that has not finished or failed: it is counted and told, never taken for a zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
from pydantic import Field

from dibs.analysis.collect import collect
from dibs.analysis.tables import NONE, Row
from dibs.config import Rule
from dibs.errors import DibsError
from dibs.files import damaged, read_json, read_tensors
from dibs.settings import STRICT, parse_settings

NEAR_PERFECT = 0.99
"""Success from which an edge of a teacher counts as learned."""
RULES: tuple[str, ...] = get_args(Rule)
ONE_KEY = ("largest-harmless", "smallest-sufficient")
"""Rules that order points by the value of the one key they sweep."""
Value = Annotated[int | float, Field(allow_inf_nan=False)]
Point = dict[str, Value]
Name = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class Variant:
    """One variant of the config and the files that measured it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: Name
    label: str = ""
    """Empty: the name is shown."""
    point: Point = field(default_factory=dict)
    """Of a sweep: the value of every swept key."""
    evaluations: list[Path] = field(default_factory=list)
    teachers: list[Path] = field(default_factory=list)
    """Metrics, as `dibs teacher` writes them beside the weights."""
    datasets: list[Path] = field(default_factory=list)
    templates: list[Path] = field(default_factory=list)
    """Metrics, as `dibs fit` writes them beside the weights, which say whose they are."""

    @property
    def shown(self) -> str:
        """What readers call it."""
        return self.label or self.name

    @property
    def absent(self) -> list[Path]:
        """Files that are listed, but not there."""
        listed = [*self.evaluations, *self.teachers, *self.datasets, *self.templates]
        return [file for file in listed if not file.is_file()]


@dataclass(frozen=True)
class Study:
    """What is asked and which variants answer it."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: Name
    kind: Literal["ablation", "sweep"]
    question: str
    variants: Annotated[list[Variant], Field(min_length=1)]
    base: str = ""
    """Of an ablation: the variant that the others are compared with; empty: none."""
    rule: str = ""
    """Of a sweep: how a point is chosen."""
    held: Point = field(default_factory=dict)
    """Of a sweep: what the config has now."""
    digest: str = ""

    @property
    def keys(self) -> list[str]:
        """Of a sweep: what is swept."""
        return list(self.variants[0].point)


# --- the study's file ------------------------------------------------------------------------------------


def read_study(path: str | Path) -> Study:
    """Read and check the file of a study."""
    data = read_json(path)
    if not isinstance(data, Mapping):
        raise DibsError(f"{path}: expected a study, one JSON object; found {type(data).__name__}")
    return parse_study(data, path)


def parse_study(data: Mapping[str, Any], path: str | Path) -> Study:
    """Check a study, which errors call by `path`."""
    study = parse_settings(Study, data, str(path))
    _check_once(path, "variants.name", [v.name for v in study.variants])
    if study.kind == "ablation":
        if study.base and study.base not in {v.name for v in study.variants}:
            raise DibsError(f"{path}: base: expected the name of a variant or nothing, found {study.base!r}")
    else:
        _check_sweep(path, study)
    return study


def _check_sweep(path: str | Path, study: Study) -> None:
    if study.rule not in RULES:
        raise DibsError(f"{path}: rule: expected one of {', '.join(RULES)}; found {study.rule!r}")
    if not study.keys:
        raise DibsError(f"{path}: variants.0.point: expected the value of every swept key, found nothing")
    for number, variant in enumerate(study.variants):
        if sorted(variant.point) != sorted(study.keys):
            raise _other_keys(path, f"variants.{number}.point", study.keys, variant.point)
    if sorted(study.held) != sorted(study.keys):
        raise _other_keys(path, "held", study.keys, study.held)
    if study.rule in ONE_KEY and len(study.keys) > 1:
        raise DibsError(f"{path}: rule: {study.rule} orders one swept key, found {', '.join(study.keys)}")
    _check_once(path, "variants.point", [tuple(v.point[key] for key in study.keys) for v in study.variants])


def _other_keys(path: str | Path, where: str, keys: Iterable[str], found: Iterable[str]) -> DibsError:
    return DibsError(f"{path}: {where}: expected the keys {', '.join(keys)}; found {', '.join(found) or 'none'}")


def _check_once(path: str | Path, key: str, values: Sequence[Any]) -> None:
    twice = [value for value in values if values.count(value) > 1]
    if twice:
        raise DibsError(f"{path}: {key}: expected every variant once, found {twice[0]!r} twice")


# --- what was measured -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Measured:
    """The results of one variant, those that are there."""

    runs: pd.DataFrame  # one row per evaluation
    edges: pd.DataFrame  # one row per teacher and edge
    losses: pd.DataFrame  # one row per template
    complete: bool  # whether all evaluations are there


EDGES = ("family", "gap", "index", "seed", "edge", "success", "drift", "accuracy")
LOSSES = ("method", "family", "gap", "seed", "loss")


def measure(study: Study) -> dict[str, Measured]:
    """Read the results of every variant, by name."""
    found = {
        v.name: Measured(
            collect(there(v.evaluations)), edges(v.teachers), losses(v.templates), _all_there(v.evaluations)
        )
        for v in study.variants
    }
    if not any(len(one.runs) for one in found.values()):
        raise DibsError(f"study {study.name}: no evaluation of any variant is there yet; run the workflow first")
    _check_threshold(found)
    return found


def there(files: Sequence[Path]) -> list[Path]:
    """Those of the files that exist."""
    return [file for file in files if file.is_file()]


def _all_there(files: Sequence[Path]) -> bool:
    return len(there(files)) == len(files)


def edges(files: Sequence[Path]) -> pd.DataFrame:
    """One row per teacher and edge, from the teachers' metrics."""
    rows: list[Row] = []
    for file in there(files):
        data = read_json(file)
        try:
            whose = {key: data[key] for key in ("family", "gap", "index", "seed")}
            for name, edge in data["metrics"]["edges"].items():
                accuracy = (edge["confidence"] or {}).get("accuracy")
                measured = {"success": edge["success"], "drift": edge["drift"], "accuracy": accuracy}
                rows.append({**whose, "edge": name, **measured})
        except (KeyError, TypeError, AttributeError) as error:
            raise damaged(file, f"expected the metrics of a teacher: {error}") from None
    return pd.DataFrame(rows, columns=list(EDGES)).astype({"success": float, "drift": float, "accuracy": float})


def losses(files: Sequence[Path]) -> pd.DataFrame:
    """One row per template: its loss, as a mean over edges and training indices."""
    rows: list[Row] = []
    for file in there(files):
        data = read_json(file)
        whose = read_tensors(file.with_suffix(".safetensors"))[1]
        try:
            fits = data.get("modes", [data])  # a branched template has one fit per mode
            terms = [term for fit in fits for edge in fit["per_index"].values() for term in edge if term is not None]
            rows.append({**{key: whose[key] for key in LOSSES[:-1]}, "loss": mean(terms)})
        except (KeyError, TypeError, AttributeError) as error:
            raise damaged(file, f"expected the metrics of a template: {error}") from None
    return pd.DataFrame(rows, columns=list(LOSSES)).astype({"loss": float})


def of_split(frame: pd.DataFrame, family: str, gap: int) -> pd.DataFrame:
    """The edges of one family at one gap; its teachers at index 0 serve all gaps."""
    return frame[(frame["family"] == family) & ((frame["gap"] == gap) | (frame["index"] == 0))]


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are numbers."""
    known = np.array([v for v in values if v is not None], dtype=float)
    known = known[~np.isnan(known)]
    return float(known.mean()) if len(known) else None


def number(value: float | None, how: str = ".2f") -> str:
    """A number as readers see it."""
    return NONE if value is None or np.isnan(value) else format(value, how)


def share_learned(edge_rows: pd.DataFrame) -> float | None:
    """Share of the teachers' edges that are near perfect."""
    return mean((edge_rows["success"] >= NEAR_PERFECT).astype(float))


def _check_threshold(found: Mapping[str, Measured]) -> None:
    """Ratios by different δ cannot be compared; within a variant `collect` has looked."""
    deltas = {name: m.runs["delta"].iloc[0] for name, m in found.items() if len(m.runs)}
    first = next(iter(deltas), "")
    for name, delta in deltas.items():
        if delta != deltas[first]:
            file = found[name].runs["file"].iloc[0]
            raise DibsError(
                f"{file}: a task counts as solved above {delta} in variant {name}, but above {deltas[first]} in "
                f"{first}; they cannot be compared: evaluate one of them again"
            )
