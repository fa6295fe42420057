"""The config of a study as a typed model: what is trained and evaluated, and the settings of each stage.

Every stage's section has the keys of that stage's settings dataclass, so a setting has the same name in config, command
line and code. `dibs.studies.checks` reads configs and reports what is wrong with them. Nothing heavy is imported here:
every remote job parses the config.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, GetCoreSchemaHandler, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from dibs.datasets.build import DatasetSettings
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Benchmark, Family, Split, find_benchmarks
from dibs.methods import get_method
from dibs.settings import parse_settings
from dibs.studies.reports import Report, applicable
from dibs.teachers.base import get_algorithm
from dibs.teachers.train import TeacherSettings, resolve
from dibs.templates.fit import FitSettings

Overrides = dict[str, Any]
"""Settings that differ; a mapping rather than a settings object, which could not tell a default from a choice."""


class _Like:
    """Annotates a mapping: its keys and values are checked against a settings dataclass, and it stays a mapping."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(value: Any, validate: Callable[[Any], Any]) -> Overrides:
            validate(value)
            return dict(value)

        as_is = core_schema.plain_serializer_function_ser_schema(dict)
        return core_schema.no_info_wrap_validator_function(
            check, handler.generate_schema(self.kind), serialization=as_is
        )


def _from_count(value: Any) -> Any:
    """Turn a number of seeds n into 0 … n−1."""
    if isinstance(value, list):
        return value
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("expected a count ≥ 1 or a list of seeds")
    return list(range(value))


Seeds = Annotated[
    list[int],
    BeforeValidator(_from_count),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "array", "items": {"type": "integer"}}]}),
]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Rule = Literal["largest-harmless", "best-training", "smallest-sufficient"]
"""How a sweep chooses a value."""


@dataclass(frozen=True)
class Teachers(TeacherSettings):
    """Stage I: settings of all teachers, and exceptions."""

    algorithms: dict[str, Overrides] = field(default_factory=dict)
    """Options by algorithm (ars, ppo, …), for all families trained with it. Only values that differ from its
    defaults override a family's own `teacher_options`."""
    families: dict[str, Annotated[Overrides, _Like(TeacherSettings)]] = field(default_factory=dict)
    """Settings that differ, by family name or pattern; if several match, the last one wins."""


@dataclass(frozen=True)
class Datasets(DatasetSettings):
    """Settings of all datasets, and exceptions."""

    families: dict[str, Annotated[Overrides, _Like(DatasetSettings)]] = field(default_factory=dict)
    """Settings that differ, by family name or pattern; if several match, the last one wins."""


@dataclass(frozen=True)
class Templates(FitSettings):
    """Stage II: settings of all template methods, and exceptions."""

    families: dict[str, Annotated[Overrides, _Like(FitSettings)]] = field(default_factory=dict)
    """Settings that differ, by family name or pattern; if several match, the last one wins."""
    methods: dict[str, Annotated[Overrides, _Like(FitSettings)]] = field(default_factory=dict)
    """Settings that differ, by method (dibs, dibs-plus, …); they override those by family."""


# Validators of the parts are only needed inside that of `Config`: deferring them keeps the import fast.
_MODEL = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, defer_build=True)


class Study(BaseModel):
    """What an ablation or a sweep measures. Everything else is as in the config."""

    model_config = _MODEL

    question: str = ""
    """The question it answers."""
    benchmarks: list[str]
    """What is evaluated, as in the config."""
    gaps: list[int] | None = None
    """Spacings of the training indices. If both `gaps` and `splits` are null, training sets are those of the config."""
    splits: list[str] | None = None
    """Names of splits that the config defines."""
    seeds: Seeds | None = None
    """Number of seeds, or a list of them; null: the config's."""
    methods: list[str] = ["dibs"]
    """Methods to compare."""


class Variant(BaseModel):
    """Settings of a variant that differ from the config."""

    model_config = _MODEL

    label: str = ""
    """What tables and figures call it; empty: its name."""
    teachers: Annotated[Overrides, _Like(Teachers)] = {}
    """Settings of Stage I that differ."""
    datasets: Annotated[Overrides, _Like(Datasets)] = {}
    """Settings of the datasets that differ."""
    templates: Annotated[Overrides, _Like(Templates)] = {}
    """Settings of Stage II that differ."""
    baselines: dict[str, Overrides] = {}
    """Settings of other methods that differ, by method."""


class Ablation(Study):
    """Variants of the config, compared with each other."""

    variants: dict[Name, Variant]
    """The variants by name; the others are compared with the first."""
    figures: list[str] = []
    """Figures made from each variant, in addition to the ablation's own."""


class Sweep(Study):
    """Settings over a grid, measured on training indices only."""

    grid: dict[str, list[Any]]
    """Values by setting, such as `teachers.cross_index`; all combinations are measured."""
    rule: Rule
    """How a value is chosen (docs/choices.md)."""


class Config(BaseModel):
    """Everything that decides what the workflow makes."""

    model_config = ConfigDict(**_MODEL, title="DIBS config")

    results: str = "results"
    """Folder for all output files."""
    seeds: Seeds = list(range(10))
    """Number of seeds (n means 0 … n−1), or a list of them."""
    benchmarks: list[str]
    """What is evaluated: ids or patterns (`car2d-*`) of `dibs benchmarks`, or family files (`mine.yaml`,
    `mine.yaml:ID`)."""
    gaps: list[int] | None = None
    """Spacings of the training indices: gap n trains on {0, n, 2n, …} ∪ {L}. Each family uses those that divide its
    last index L, or all of them if none does. null: each family's own list."""
    splits: dict[Name, list[int]] = {}
    """Named training sets in addition to the gaps: increasing indices from 0 to L, used by families with this L."""
    methods: list[str]
    """Methods to compare, by name (`dibs methods`)."""
    allow_code: bool = False
    """Whether family files may name code that is imported and run (`environment.simulator`), as `dibs --allow-code`."""
    teachers: Teachers = Teachers()
    """Stage I."""
    datasets: Datasets = Datasets()
    """The labeled, filtered datasets between the stages."""
    templates: Templates = Templates()
    """Stage II: settings shared by all template methods."""
    baselines: dict[str, Overrides] = {}
    """Settings of all other methods, by method."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """How every method is measured."""
    reports: list[str] | None = None
    """Tables and figures to make, by name or pattern; null: all that show a benchmark of the study."""
    ablations: dict[Name, Ablation] = {}
    """Ablations by name, made by `snakemake ablations`."""
    sweeps: dict[Name, Sweep] = {}
    """Sweeps by name, made by `snakemake sweeps`."""

    @cached_property
    def chosen(self) -> dict[str, Benchmark]:
        """The benchmarks by id, in the order of the config."""
        return {b.id: b for entry in self.benchmarks for b in find_benchmarks(entry)}

    @cached_property
    def families(self) -> dict[str, Family]:
        """The families that are trained, by name."""
        return {b.family.name: b.family for b in self.chosen.values()}

    @cached_property
    def studies(self) -> tuple[Study, ...]:
        """All ablations and sweeps."""
        return (*self.ablations.values(), *self.sweeps.values())

    def splits_of(self, family: Family) -> tuple[Split, ...]:
        """Return the splits on which a family is trained: gaps first, then named splits that fit the family."""
        gaps = family.gaps if self.gaps is None else fitting_gaps(self.gaps, family.last_index)
        named = {name: indices for name, indices in self.splits.items() if fits(indices, family.last_index)}
        return (
            *(family.split(f"gap{gap}") for gap in dict.fromkeys(gaps)),
            *(family.split(name, indices) for name, indices in named.items()),
        )

    def made_reports(self) -> dict[str, tuple[Report, tuple[str, ...]]]:
        """Return the tables and figures to make by name, each with the benchmarks that it shows."""
        found = applicable(self.chosen)
        if self.reports is None:
            return found
        return {name: of for name, of in found.items() if any(is_report(name, of[0], p) for p in self.reports)}

    # --- settings ------------------------------------------------------------------------------------

    def teacher_settings(self, family: Family) -> TeacherSettings:
        """Return the settings of a family's teachers, with the algorithm, its options and the network resolved."""
        values = _general(self.teachers, TeacherSettings)
        options = dict(values["options"])
        for override in _matching(self.teachers.families, family.name):
            values |= override
            options |= override.get("options", {})
        algorithm = values["algorithm"] or family.teacher
        values["options"] = _changed_options(algorithm, self.teachers.algorithms.get(algorithm, {})) | options
        settings = parse_settings(TeacherSettings, values, "teachers")
        return resolve(settings, family.teacher, family.teacher_options)

    def dataset_settings(self, family: Family) -> DatasetSettings:
        """Return the settings of a family's datasets."""
        values = _general(self.datasets, DatasetSettings)
        for override in _matching(self.datasets.families, family.name):
            values |= override
        return parse_settings(DatasetSettings, values, "datasets")

    def method_settings(self, method: str, family: Family) -> Any:
        """Return the settings with which a method's model of a family is trained.

        For template methods, what sets the method apart overrides what holds for all methods or for the family.
        """
        trained = get_method(get_method(method).model_method)
        if trained.settings is not FitSettings:
            values = {**trained.defaults, **self.baselines.get(trained.name, {})}
            return parse_settings(trained.settings, values, f"baselines.{trained.name}")
        values = _general(self.templates, FitSettings)
        for override in _matching(self.templates.families, family.name):
            values |= override
        values |= {**trained.defaults, **self.templates.methods.get(trained.name, {})}
        return parse_settings(FitSettings, values, "templates")


# --- splits and reports ----------------------------------------------------------------------------------


def fitting_gaps(gaps: Iterable[int], last: int) -> list[int]:
    """Return the gaps that apply to a family: those that divide its last index, or all up to it if none does."""
    possible = [gap for gap in gaps if 1 <= gap <= last]
    return [gap for gap in possible if last % gap == 0] or possible


def fits(indices: Sequence[int], last: int) -> bool:
    """Whether indices are a training set of a family with this last index."""
    rising = all(a < b for a, b in pairwise(indices))
    return len(indices) > 1 and rising and indices[0] == 0 and indices[-1] == last


def is_report(name: str, report: Report, pattern: str) -> bool:
    """Whether a pattern names a report: its own name, or NAME-BENCHMARK if it is made once per benchmark."""
    return fnmatchcase(report.name, pattern) or fnmatchcase(name, pattern)


# --- variants --------------------------------------------------------------------------------------------


def variant_config(config: Config, study: Study, variant: str | Mapping[str, Any], results: str) -> Config:
    """Return the config of a variant of an ablation (by name) or of a point of a sweep, with its own results folder."""
    return Config.model_validate({**variant_data(config, study, variant), "results": results})


def variant_data(config: Config, study: Study, variant: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return the config as a mapping, with the changes of a study and of its variant."""
    below = config.model_dump(exclude={"ablations", "sweeps"})
    below |= {"benchmarks": study.benchmarks, "methods": study.methods}
    if study.seeds is not None:
        below["seeds"] = study.seeds
    if study.gaps is not None or study.splits is not None:
        below["gaps"] = study.gaps or []
        below["splits"] = {name: config.splits[name] for name in study.splits or [] if name in config.splits}
    if isinstance(variant, str):
        assert isinstance(study, Ablation)
        own = {key: getattr(study.variants[variant], key) for key in Variant.model_fields if key != "label"}
    else:
        own = {"evaluation": {"unseen": False, "beyond": False}}
        for key, value in variant.items():
            section, _, setting = key.partition(".")
            own.setdefault(section, {})[setting] = value
    return merge(below, own)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one mapping over another, level by level, as `snakemake --configfile` does."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = merge(old if isinstance(old, Mapping) else {}, value) if isinstance(value, Mapping) else value
    return merged


# --- helpers ---------------------------------------------------------------------------------------------


def difference(settings: Any, from_: Any) -> str:
    """Return what differs between two settings objects of one class, as sorted JSON: what a command must be given."""
    new, old = dataclasses.asdict(settings), dataclasses.asdict(from_)
    return json.dumps({key: value for key, value in new.items() if value != old[key]}, sort_keys=True)


def _general(section: Any, kind: type) -> dict[str, Any]:
    return {f.name: getattr(section, f.name) for f in dataclasses.fields(kind)}


def _matching(overrides: Mapping[str, Overrides], name: str) -> Iterator[Overrides]:
    return (override for pattern, override in overrides.items() if fnmatchcase(name, pattern))


def _changed_options(algorithm: str, options: Mapping[str, Any]) -> Overrides:
    """Return the options that differ from the algorithm's defaults; the others leave a family's own options alone."""
    kind = get_algorithm(algorithm).settings
    plain = kind()
    parsed: Any = parse_settings(kind, options, f"teachers.algorithms.{algorithm}")
    return {key: getattr(parsed, key) for key in options if getattr(parsed, key) != getattr(plain, key)}
