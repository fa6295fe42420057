"""The workflow's config as a typed model: what is made, from which splits, with which settings of each stage.

A config is a mapping (`config.yaml`, an overlay from `config/` merged over it). Every stage's section has the
keys of that stage's settings dataclass, so a setting has one name in config, command line and code.
`parse_config` tells everything that is wrong in one message. Nothing heavy is imported here: each remote job
of the workflow parses the config again.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, ErrorDetails, core_schema

from dibs.baselines.registry import BASELINES, trainable
from dibs.datasets.build import DatasetSettings
from dibs.errors import DibsError, unknown
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.evaluation.methods import METHODS
from dibs.families import Family, families, get_family
from dibs.settings import parse_settings
from dibs.teachers.registry import ALGORITHMS, settings_of
from dibs.teachers.train import TeacherSettings
from dibs.templates.commands import DEFAULTS as TEMPLATE_METHODS
from dibs.templates.fit import FitSettings

Location = tuple[int | str, ...]
Overrides = dict[str, Any]

PAPER = (
    "car2d-reach-k*",
    "car2d-reach-obs-k*",
    "simpledrone-reach-k*",
    "droneattitude-reach-k*",
    "car2d-choice-l*",
    "reacher-*",
)
"""The paper's 34 benchmarks."""


# --- the model -------------------------------------------------------------------------------------------


class _Like:
    """A mapping with keys and types of a settings dataclass, all optional, that stays the mapping it was."""

    def __init__(self, kind: type) -> None:
        self.kind = kind

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def check(value: Any, validate: Callable[[Any], Any]) -> Overrides:
            validate(value)
            return dict(value)

        return core_schema.no_info_wrap_validator_function(check, handler.generate_schema(self.kind))


def _from_count(value: Any) -> Any:
    """A number of seeds stands for 0, 1, …"""
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


@dataclass(frozen=True)
class Teachers(TeacherSettings):
    """Stage I: settings of all teachers, and where some of them differ."""

    algorithms: dict[str, Overrides] = field(default_factory=dict)
    """Options by algorithm (ars, ppo, …), for all families trained with it."""
    families: dict[str, Annotated[Overrides, _Like(TeacherSettings)]] = field(default_factory=dict)
    """Settings that differ, by family name or pattern; of several that match, the later wins."""


@dataclass(frozen=True)
class Datasets(DatasetSettings):
    """Datasets: settings of all, and where some of them differ."""

    families: dict[str, Annotated[Overrides, _Like(DatasetSettings)]] = field(default_factory=dict)
    """Settings that differ, by family name or pattern; of several that match, the later wins."""


@dataclass(frozen=True)
class Templates(FitSettings):
    """Stage II: settings of all fits, and where some of them differ."""

    families: dict[str, Annotated[Overrides, _Like(FitSettings)]] = field(default_factory=dict)
    """Settings that differ, by family name or pattern; of several that match, the later wins."""
    methods: dict[str, Annotated[Overrides, _Like(FitSettings)]] = field(default_factory=dict)
    """Settings that differ by method (dibs, dibs-plus); they win over those by family."""


_MODEL = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
Rule = Literal["largest-harmless", "best-training", "smallest-sufficient"]
"""How a sweep's value is chosen."""
_Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]


class Study(BaseModel):
    """What an ablation or a sweep measures; what it does not name is as in the config."""

    model_config = _MODEL

    question: str = ""
    """What it is to answer."""
    benchmarks: list[str]
    """What is evaluated, as in the config."""
    gaps: list[int] | None = None
    """Spacings of the training indices; null: the config's."""
    seeds: Seeds | None = None
    """How many seeds, or a list of them; null: the config's."""
    methods: list[str] = ["dibs"]
    """What is compared."""


class Variant(BaseModel):
    """Where a variant differs from the config."""

    model_config = _MODEL

    label: str = ""
    """How tables and figures call it; empty: its name."""
    teachers: Annotated[Overrides, _Like(Teachers)] = {}
    """Settings of Stage I that differ."""
    datasets: Annotated[Overrides, _Like(Datasets)] = {}
    """Settings of the datasets that differ."""
    templates: Annotated[Overrides, _Like(Templates)] = {}
    """Settings of Stage II that differ."""
    baselines: dict[str, Overrides] = {}
    """Settings of baselines that differ, by method."""


class Ablation(Study):
    """Variants of the config beside each other."""

    variants: dict[_Name, Variant]
    """The variants by name; the first is what the others are compared with."""
    figures: list[str] = []
    """Figures made from each variant, besides the ablation's own."""


class Sweep(Study):
    """Settings over a grid, measured on training indices only."""

    grid: dict[str, list[Any]]
    """Values by setting, such as `teachers.cross_index`; all combinations are measured."""
    rule: Rule
    """How the value is chosen (docs/choices.md)."""


class Config(BaseModel):
    """Everything that decides what the workflow makes."""

    model_config = ConfigDict(**_MODEL, title="DIBS config")

    results: str = "results"
    """Root of everything that is written."""
    seeds: Seeds = list(range(10))
    """How many seeds (n stands for 0 … n−1), or a list of them."""
    benchmarks: list[str] = list(PAPER)
    """What is evaluated: ids or patterns (`car2d-reach-k*`) of `dibs benchmarks`, or family files (`mine.yaml`,
    `mine.yaml:ID`)."""
    gaps: list[int] | None = None
    """Spacings of the training indices; each family takes those that divide its L. null: each family's own list."""
    methods: list[str] = [*TEMPLATE_METHODS, *trainable()]
    """What is compared: names in the registry `dibs/evaluation/methods.py`."""
    teachers: Teachers = Teachers()
    """Stage I."""
    datasets: Datasets = Datasets()
    """The labelled, filtered datasets between the stages."""
    templates: Templates = Templates()
    """Stage II."""
    baselines: dict[str, Overrides] = {}
    """Settings of the methods compared with, by method."""
    evaluation: EvaluationSettings = EvaluationSettings()
    """How every method is measured."""
    ablations: dict[_Name, Ablation] = {}
    """Ablations by name, made by `snakemake ablations`."""
    sweeps: dict[_Name, Sweep] = {}
    """Sweeps by name, made by `snakemake sweeps`."""

    # --- what it stands for --------------------------------------------------------------------------

    @cached_property
    def chosen(self) -> dict[str, Benchmark]:
        """The benchmarks by id, in the order of the config."""
        return {b.id: b for entry in self.benchmarks for b in find_benchmarks(entry)}

    @cached_property
    def families(self) -> dict[str, Family]:
        """The families that are trained, by name."""
        return {b.family.name: b.family for b in self.chosen.values()}

    def gaps_of(self, family: Family) -> tuple[int, ...]:
        """The gaps at which a family is trained."""
        wanted = family.gaps if self.gaps is None else [g for g in self.gaps if family.last_index % g == 0]
        return tuple(dict.fromkeys(wanted))

    def teacher_settings(self, family: Family) -> TeacherSettings:
        """Settings of a family's teachers, the options of their algorithm included."""
        values = _general(self.teachers, TeacherSettings)
        options = dict(values["options"])
        for override in _matching(self.teachers.families, family.name):
            values |= override
            options |= override.get("options", {})
        algorithm = values["algorithm"] or family.teacher
        options = {**self.teachers.algorithms.get(algorithm, {}), **options}
        values["options"] = _checked_options(algorithm, options) if options else {}
        return parse_settings(TeacherSettings, values, "teachers")

    def dataset_settings(self, family: Family) -> DatasetSettings:
        """Settings of a family's datasets."""
        values = _general(self.datasets, DatasetSettings)
        for override in _matching(self.datasets.families, family.name):
            values |= override
        return parse_settings(DatasetSettings, values, "datasets")

    def template_settings(self, method: str, family: Family) -> FitSettings:
        """Settings of a method's fit to a family; what sets the method apart wins over what holds for all."""
        values = _general(self.templates, FitSettings)
        for override in _matching(self.templates.families, family.name):
            values |= override
        values |= {**TEMPLATE_METHODS[method], **self.templates.methods.get(method, {})}
        return parse_settings(FitSettings, values, "templates")

    def baseline_settings(self, method: str) -> Any:
        """Settings of a method that DIBS is compared with."""
        return parse_settings(BASELINES[method].settings, self.baselines.get(method), f"baselines.{method}")


@dataclass(frozen=True)
class Benchmark:
    """A benchmark and how the command line is told which one is meant."""

    id: str
    family: Family
    source: str
    """The benchmark: its id, or FILE.yaml:ID."""
    family_source: str
    """Its family: a name, or FILE.yaml."""


def difference(settings: Any, from_: Any) -> str:
    """What must be passed to a command so that it uses `settings` instead of `from_`: JSON, sorted."""
    new, old = dataclasses.asdict(settings), dataclasses.asdict(from_)
    return json.dumps({key: value for key, value in new.items() if value != old[key]}, sort_keys=True)


def find_benchmarks(entry: str) -> list[Benchmark]:
    """The benchmarks that an entry of the config names."""
    path, _, pattern = entry.partition(":")
    if path.endswith((".yaml", ".yml")):
        family = get_family(path)
        ids = [i for i in family.benchmark_ids if not pattern or fnmatchcase(i, pattern)]
        if not ids:
            raise unknown(f"benchmark of {path}", pattern, family.benchmark_ids)
        return [Benchmark(i, family, f"{path}:{i}", path) for i in ids]
    known = {i: family for family in families().values() for i in family.benchmark_ids}
    found = [Benchmark(i, f, i, f.name) for i, f in known.items() if fnmatchcase(i, entry)]
    if not found:
        raise unknown("benchmark", entry, known)
    return found


def _general(section: Any, kind: type) -> dict[str, Any]:
    return {f.name: getattr(section, f.name) for f in dataclasses.fields(kind)}


def _matching(overrides: Mapping[str, Overrides], name: str) -> Iterator[Overrides]:
    return (override for pattern, override in overrides.items() if fnmatchcase(name, pattern))


def _checked_options(algorithm: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """An algorithm's options with their types put right; those at their default are left out."""
    kind = settings_of(algorithm)
    defaults = {f.name: f for f in dataclasses.fields(kind)}
    for key in options:
        if key not in defaults:
            raise unknown(f"setting of {algorithm}", key, defaults)
    parsed: Any = parse_settings(kind, options, algorithm)
    plain = kind()
    return {key: getattr(parsed, key) for key in options if getattr(parsed, key) != getattr(plain, key)}


# --- reading ---------------------------------------------------------------------------------------------


def load_config(*files: str | Path) -> Config:
    """Read config files, each merged over those before it as `snakemake --configfile` does."""
    import yaml

    merged: dict[str, Any] = {}
    for file in map(Path, files):
        try:
            data = yaml.safe_load(file.read_text())
        except yaml.YAMLError as error:
            raise DibsError(f"{file}: not valid YAML: {error}") from None
        if not isinstance(data, dict):
            raise DibsError(f"{file}: expected a mapping, found {type(data).__name__}")
        merged = _merge(merged, data)
    return parse_config(merged, " + ".join(map(str, files)))


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old if isinstance(old, Mapping) else {}, value) if isinstance(value, Mapping) else value
    return merged


def parse_config(data: Mapping[str, Any], where: str = "config") -> Config:
    """The config that a mapping describes; everything wrong with it is told in one message."""
    config, problems = _parse(data)
    problems += [f"{key}: {text}" for key, text in _impossible(config)]
    if problems:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise DibsError(f"{where}: {count}\n" + "\n".join(f"  {p}" for p in dict.fromkeys(problems)))
    return config


def _parse(data: Mapping[str, Any]) -> tuple[Config, list[str]]:
    """The config as far as its parts have the right keys and types, and what is wrong with the others.

    Wrong parts are left out, so that what stands beside them can still be checked.
    """
    kept, problems = _copy(data), list[str]()
    while True:
        try:
            return Config.model_validate(kept), problems
        except ValidationError as error:
            problems += map(_told, error.errors())
            # What lacks a key goes as a whole. Last ones first, so that what is left of a list keeps its positions.
            gone: set[Location] = set()
            for e in reversed(error.errors()):
                location = e["loc"][:-1] if e["type"] == "missing" else e["loc"]
                if not any(location[:n] in gone for n in range(1, len(location) + 1)):
                    _remove(kept, location)
                    gone.add(location)


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value


def _remove(data: Any, location: Location) -> None:
    """Take out what stands at `location`, or the innermost part of the data on the way to it."""
    key, *rest = location
    inner = data[key]
    inside = rest and (rest[0] in inner if isinstance(inner, dict) else isinstance(inner, list))
    if inside:
        _remove(inner, tuple(rest))
    else:
        del data[key]


def _told(error: ErrorDetails) -> str:
    location = error["loc"]
    key = ".".join(map(str, location))
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        near = difflib.get_close_matches(str(location[-1]), _keys(location[:-1]), n=1, cutoff=0.5)
        hint = f" Did you mean '{near[0]}'?" if near else f" Known: {', '.join(_keys(location[:-1]))}."
        return f"{key}: unknown key.{hint}"
    if error["type"] == "missing":
        return f"{key}: is missing"
    message = error["msg"].removeprefix("Value error, ")
    message = message[0].lower() + message[1:]
    return f"{key}: {message} (found {error['input']!r})"


def _keys(location: Location) -> list[str]:
    """The keys that may stand at a location."""
    match location:
        case ():
            return list(Config.model_fields)
        case ("ablations", _):
            return list(Ablation.model_fields)
        case ("sweeps", _):
            return list(Sweep.model_fields)
        case ("ablations", _, "variants", _):
            return list(Variant.model_fields)
        case ("ablations", _, "variants", _, *inner):
            return _keys(tuple(inner))
    section = type(getattr(Config(), str(location[0])))
    kind = section if len(location) == 1 else section.__mro__[1]  # overrides have the stage's own settings
    return [f.name for f in dataclasses.fields(kind)]


# --- variants --------------------------------------------------------------------------------------------


def variant_config(config: Config, study: Study, variant: str | Mapping[str, Any], results: str) -> Config:
    """The config of one variant of an ablation (by its name) or one point of a sweep, with a root of its own."""
    return Config.model_validate({**_variant(config, study, variant), "results": results})


def _variant(config: Config, study: Study, variant: str | Mapping[str, Any]) -> dict[str, Any]:
    """The config with what the study and its variant say instead."""
    below = config.model_dump(exclude={"ablations", "sweeps"})
    named: dict[str, Any] = {"benchmarks": study.benchmarks, "methods": study.methods}
    named |= {key: value for key in ("gaps", "seeds") if (value := getattr(study, key)) is not None}
    if isinstance(variant, str):
        assert isinstance(study, Ablation)
        own = {key: getattr(study.variants[variant], key) for key in Variant.model_fields if key != "label"}
    else:
        own = {"evaluation": {"unseen": False, "beyond": False}}
        for key, value in variant.items():
            section, _, setting = key.partition(".")
            own.setdefault(section, {})[setting] = value
    return _merge(below, {**named, **own})


# --- combinations that cannot be -------------------------------------------------------------------------


def _impossible(config: Config) -> Iterator[tuple[str, str]]:
    """(key, what is wrong) for everything that has the right type but cannot be."""
    own = list(_own_problems(config))
    yield from own
    yield from _study_problems(config, set(own))


def _own_problems(config: Config) -> Iterator[tuple[str, str]]:
    """The same without ablations and sweeps."""
    yield from _seeds_and_root(config)
    found: list[Benchmark] = []
    for entry in config.benchmarks:
        try:
            found += find_benchmarks(entry)
        except (DibsError, OSError) as error:
            yield "benchmarks", _brief(error)
    if not config.benchmarks:
        yield "benchmarks", "at least one is needed"
    for name, sources in _several((b.family.name, b.family_source) for b in found):
        yield "benchmarks", f"family '{name}' is described by {' and '.join(sources)}; rename one"
    for name, sources in _several((b.id, b.family.name) for b in found):
        yield "benchmarks", f"'{name}' is a benchmark of {' and '.join(sources)}; rename one"
    chosen = {b.family.name: b.family for b in found}
    yield from _gap_problems(config, chosen.values())
    yield from _method_problems(config)
    yield from _stage_problems(config, chosen)


def _several(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Names that come with more than one source."""
    sources: dict[str, list[str]] = {}
    for name, source in dict.fromkeys(pairs):
        sources.setdefault(name, []).append(source)
    return ((name, several) for name, several in sources.items() if len(several) > 1)


def _seeds_and_root(config: Config) -> Iterator[tuple[str, str]]:
    if not config.results.strip() or set("{}*?\n") & set(config.results):
        yield "results", f"expected a folder's name, found {config.results!r}"
    if not config.seeds or min(config.seeds) < 0 or len(set(config.seeds)) < len(config.seeds):
        yield "seeds", f"expected a count ≥ 1 or different numbers ≥ 0, found {config.seeds}"


def _gap_problems(config: Config, chosen: Iterable[Family]) -> Iterator[tuple[str, str]]:
    lengths = {family.name: family.last_index for family in chosen}
    if config.gaps is None:
        for family in chosen:
            if not family.gaps:
                yield "gaps", f"family '{family.name}' (L = {family.last_index}) names none of its own: list some"
        return
    if not config.gaps:
        yield "gaps", "at least one is needed, or null for each family's own"
    for gap in config.gaps:
        if gap < 1:
            yield "gaps", f"expected numbers ≥ 1, found {gap}"
        elif lengths and all(last % gap for last in lengths.values()):
            told = ", ".join(f"{name} L = {last}" for name, last in lengths.items())
            yield "gaps", f"{gap} divides the last index of no chosen family ({told})"
    for name, last in lengths.items():
        if config.gaps and all(g < 1 or last % g for g in config.gaps):
            yield "gaps", f"none of {config.gaps} divides L = {last} of {name}: it could not be trained"


def _method_problems(config: Config) -> Iterator[tuple[str, str]]:
    if not config.methods:
        yield "methods", "at least one is needed"
    for name in config.methods:
        if name not in METHODS:
            yield "methods", _brief(unknown("method", name, METHODS))
        elif find_spec(METHODS[name].module) is None:
            yield "methods", f"'{name}' is registered, but its module {METHODS[name].module} does not exist"
    for name in config.templates.methods:
        if name not in TEMPLATE_METHODS:
            yield "templates.methods", _brief(unknown("method", name, TEMPLATE_METHODS))
    for name in config.baselines:
        if name not in trainable():
            yield "baselines", _brief(unknown("baseline", name, trainable()))
        elif find_spec(BASELINES[name].module) is not None:
            yield from _parsed(f"baselines.{name}", BASELINES[name].settings, config.baselines[name])


def _stage_problems(config: Config, chosen: Mapping[str, Family]) -> Iterator[tuple[str, str]]:
    known = {**families(), **chosen}
    sections: dict[str, Any] = {"teachers": config.teachers, "datasets": config.datasets, "templates": config.templates}
    for name, section in sections.items():
        for pattern in section.families:
            if not any(fnmatchcase(family, pattern) for family in known):
                yield f"{name}.families", _brief(unknown("family", pattern, known))
    d = config.datasets
    if d.alpha + d.beta + d.gamma == 0:
        yield "datasets", "alpha, beta and gamma are all 0: there is no source of states"
    for algorithm, options in config.teachers.algorithms.items():
        yield from _options(f"teachers.algorithms.{algorithm}", algorithm, options)
    if config.teachers.algorithm and config.teachers.algorithm not in ALGORITHMS:
        yield "teachers.algorithm", _brief(unknown("teacher algorithm", config.teachers.algorithm, ALGORITHMS))
    for pattern, override in config.teachers.families.items():
        matching = [family for name, family in known.items() if fnmatchcase(name, pattern)]
        for algorithm in sorted(
            {override.get("algorithm") or config.teachers.algorithm or f.teacher for f in matching}
        ):
            yield from _options(f"teachers.families.{pattern}.options", algorithm, override.get("options", {}))
    if config.teachers.options:
        for algorithm in sorted({config.teachers.algorithm or f.teacher for f in chosen.values()}):
            yield from _options("teachers.options", algorithm, config.teachers.options)


def _study_problems(config: Config, told: set[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """What is wrong with ablations and sweeps beyond what was told: each variant must be a config by itself."""
    for name, ablation in config.ablations.items():
        if not ablation.variants:
            yield f"ablations.{name}.variants", "at least one is needed"
        for key in ablation.variants:
            yield from _variant_problems(config, told, f"ablations.{name}", f".variants.{key}", ablation, key)
    for name, sweep in config.sweeps.items():
        wrong = [key for key, values in sweep.grid.items() if not values or not _is_setting(key)]
        for key in wrong:
            yield f"sweeps.{name}.grid.{key}", "expected a setting such as teachers.cross_index, and a list of values"
        twice = [name for name, keys in _several((k.partition(".")[2], k) for k in sweep.grid)]
        for setting in twice:
            yield f"sweeps.{name}.grid", f"'{setting}' of two stages cannot be swept together"
        if not wrong:  # one value at a time: the product may be long
            first = {key: values[0] for key, values in sweep.grid.items()}
            points = [{**first, key: value} for key, values in sweep.grid.items() for value in values]
            for point in points:
                yield from _variant_problems(config, told, f"sweeps.{name}", ".grid", sweep, point)


def _variant_problems(
    config: Config,
    told: set[tuple[str, str]],
    where: str,
    part: str,
    study: Study,
    variant: str | Mapping[str, Any],
) -> Iterator[tuple[str, str]]:
    own, wrong = _parse(_variant(config, study, variant))
    for key, text in [*(_halves(problem) for problem in wrong), *_own_problems(own)]:
        if (key, text) not in told:
            of_study = key.partition(".")[0] in Study.model_fields
            yield f"{where}.{key}" if of_study else f"{where}{part}.{key}", text


def _halves(problem: str) -> tuple[str, str]:
    key, _, text = problem.partition(": ")
    return key, text


def _is_setting(key: str) -> bool:
    section, _, name = key.partition(".")
    stages = {"teachers": TeacherSettings, "datasets": DatasetSettings, "templates": FitSettings}
    return section in stages and name in [f.name for f in dataclasses.fields(stages[section])]


def _options(key: str, algorithm: str, options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if algorithm not in ALGORITHMS:
        yield key, _brief(unknown("teacher algorithm", algorithm, ALGORITHMS))
    elif options:
        yield from _parsed(key, settings_of(algorithm), options)


def _parsed(key: str, kind: type, values: Any) -> Iterator[tuple[str, str]]:
    """Problems of values as settings of `kind`."""
    names = [f.name for f in dataclasses.fields(kind)]
    known = {name: value for name, value in values.items() if name in names}
    for name in values:
        if name not in names:
            yield key, _brief(unknown("setting", name, names))
    try:
        parse_settings(kind, known, key)
    except DibsError as error:
        for line in str(error).splitlines()[1:]:
            yield key, line.strip()


def _brief(error: Exception) -> str:
    """An error's message; a long list of what is known stays out if there is a suggestion."""
    text = str(error)
    return text.partition(" Known: ")[0] if "Did you mean" in text else text


# --- for editors -----------------------------------------------------------------------------------------


@cache
def json_schema() -> str:
    """The config's JSON schema, as kept in config/schema.json."""
    schema = Config.model_json_schema()
    for kind in (Teachers, Datasets, Templates):  # pydantic reads the docstrings of a class's own fields only
        inherited = schema["$defs"][kind.__mro__[1].__name__]["properties"]
        schema["$defs"][kind.__name__]["properties"] |= inherited
    for section in schema["$defs"].values():
        section.pop("required", None)  # a page laid over another need not repeat what that has
    del schema["properties"]["methods"]["default"]  # the registry's affair
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
