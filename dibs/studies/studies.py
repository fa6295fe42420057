"""Ablations (section 5.2) and sweeps (appendix E): variants of the config, each measured by the whole pipeline.

The workflow lists the results of every variant in one JSON file, which `read_study` checks. A listed file that does not
exist is a run that has not finished or failed. It is counted and reported, and never taken for a zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, get_args

import pandas as pd
from pydantic import Field

from dibs.errors import DibsError
from dibs.files import damaged, read_json
from dibs.settings import STRICT, parse_settings
from dibs.studies.collect import check_comparable, collect
from dibs.studies.config import Rule
from dibs.studies.formats import Row

NEAR_PERFECT = 0.99
"""Success from which an edge of a teacher counts as learned."""
RULES: tuple[str, ...] = get_args(Rule)
ONE_KEY = ("largest-harmless", "smallest-sufficient")
"""Rules that order points by the value of the one key they sweep."""
Value = Annotated[int | float, Field(allow_inf_nan=False)]
Point = dict[str, Value]
Name = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True)
class VariantFiles:
    """A variant of the config and the files with its results."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: Name
    label: str = ""
    """What tables and figures call it; empty: its name."""
    point: Point = field(default_factory=dict)
    """For a sweep, the value of every swept key."""
    evaluations: list[Path] = field(default_factory=list)
    teachers: list[Path] = field(default_factory=list)
    """Metrics next to the teachers' weights."""
    datasets: list[Path] = field(default_factory=list)
    models: list[Path] = field(default_factory=list)
    """Metrics next to the models of template methods."""

    @property
    def shown(self) -> str:
        """The name for readers."""
        return self.label or self.name

    @property
    def absent(self) -> list[Path]:
        """Files that are listed, but do not exist."""
        return [f for f in (*self.evaluations, *self.teachers, *self.datasets, *self.models) if not f.is_file()]


@dataclass(frozen=True)
class StudyFile:
    """A question and the variants that answer it, as the workflow writes them down."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    name: Name
    kind: Literal["ablation", "sweep"]
    question: str
    variants: Annotated[list[VariantFiles], Field(min_length=1)]
    base: str = ""
    """For an ablation, the variant that the others are compared with; empty: none."""
    rule: str = ""
    """For a sweep, how a point is chosen."""
    held: Point = field(default_factory=dict)
    """For a sweep, the values in the config."""
    digest: str = ""

    @property
    def keys(self) -> list[str]:
        """For a sweep, the swept keys."""
        return list(self.variants[0].point)


# --- the study's file ------------------------------------------------------------------------------------


def read_study(path: str | Path) -> StudyFile:
    """Read and check the file of a study."""
    data = read_json(path)
    if not isinstance(data, Mapping):
        raise DibsError(f"{path}: expected a study, one JSON object; found {type(data).__name__}")
    return parse_study(data, path)


def parse_study(data: Mapping[str, Any], path: str | Path) -> StudyFile:
    """Check a study; errors name `path`."""
    study = parse_settings(StudyFile, data, str(path))
    problem = next(_problems(study), None)
    if problem:
        raise DibsError(f"{path}: {problem}")
    return study


def _problems(study: StudyFile) -> Iterator[str]:
    """Yield what is wrong with a study, each with its key."""
    names, keys = [v.name for v in study.variants], study.keys
    unique: dict[str, list[Any]] = {"variants.name": names}
    if study.kind == "ablation" and study.base and study.base not in names:
        yield f"base: expected the name of a variant or nothing, found {study.base!r}"
    if study.kind == "sweep":
        if study.rule not in RULES:
            yield f"rule: expected one of {', '.join(RULES)}; found {study.rule!r}"
        if not keys:
            yield "variants.0.point: expected the value of every swept key, found nothing"
        points = {f"variants.{n}.point": v.point for n, v in enumerate(study.variants)}
        for where, point in {**points, "held": study.held}.items():
            if sorted(point) != sorted(keys):
                yield f"{where}: expected the keys {', '.join(keys)}; found {', '.join(point) or 'none'}"
        if study.rule in ONE_KEY and len(keys) > 1:
            yield f"rule: {study.rule} orders one swept key, found {', '.join(keys)}"
        unique["variants.point"] = [tuple(point[key] for key in keys) for point in points.values()]
    for key, values in unique.items():
        for value in values:
            if values.count(value) > 1:
                yield f"{key}: expected every variant once, found {value!r} twice"


# --- results ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Results:
    """The results of all variants, as far as they exist; every row names its variant."""

    runs: pd.DataFrame  # one row per evaluation
    edges: pd.DataFrame  # one row per teacher and edge
    losses: pd.DataFrame  # one row per model


def read_results(study: StudyFile) -> Results:
    """Read the results of every variant."""

    def every(read: Callable[[list[Path]], pd.DataFrame], kind: str) -> pd.DataFrame:
        found = [read(present(getattr(v, kind))).assign(variant=v.name) for v in study.variants]
        return pd.concat([frame for frame in found if len(frame)] or found[:1], ignore_index=True)

    results = Results(every(collect, "evaluations"), every(edges, "teachers"), every(losses, "models"))
    if results.runs.empty:
        raise DibsError(f"study {study.name}: no evaluation of any variant exists yet; run the workflow first")
    check_comparable(results.runs)
    return results


def present(files: Sequence[Path]) -> list[Path]:
    """Return those of the files that exist."""
    return [file for file in files if file.is_file()]


def edges(files: Sequence[Path]) -> pd.DataFrame:
    """Return one row per teacher and edge, from the teachers' metrics."""

    def read(data: Any) -> Iterator[Row]:
        for edge in data["metrics"]["edges"].values():
            accuracy = (edge["confidence"] or {}).get("accuracy")
            yield {"success": edge["success"], "drift": edge["drift"], "accuracy": accuracy}

    return _rows(files, "teacher", ["family", "split", "index", "seed", "success", "drift", "accuracy"], read)


def losses(files: Sequence[Path]) -> pd.DataFrame:
    """Return one row per model of a template: its loss, as a mean over edges and training indices."""

    def read(data: Any) -> Iterator[Row]:
        fits = data.get("modes", [data])  # a branched template has one fit per mode
        yield {"loss": mean(term for fit in fits for edge in fit["per_index"].values() for term in edge)}

    return _rows(files, "template", ["method", "family", "split", "seed", "loss"], read)


def _rows(files: Sequence[Path], what: str, columns: list[str], read: Callable[[Any], Iterator[Row]]) -> pd.DataFrame:
    """Return the rows that `read` finds in files of metrics, with the columns up to the seed from the file itself."""
    identity, numbers = columns[: columns.index("seed") + 1], columns[columns.index("seed") + 1 :]
    rows: list[Row] = []
    for file in files:
        data = read_json(file)
        try:
            rows += [{**{key: data[key] for key in identity}, **row} for row in read(data)]
        except (KeyError, TypeError, AttributeError) as error:
            raise damaged(file, f"expected the metrics of a {what}: {error}") from None
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(numbers, float))


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are numbers."""
    found = pd.Series(list(values), dtype=float).mean()
    return None if pd.isna(found) else float(found)


def share_learned(edge_rows: pd.DataFrame) -> float | None:
    """Return the share of the teachers' edges that are near perfect."""
    return mean((edge_rows["success"] >= NEAR_PERFECT).astype(float))
