"""Read configs: report everything that is wrong in one message, and describe the format to editors (JSON schema)."""

from __future__ import annotations

import dataclasses
import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from dibs import registry
from dibs.errors import DibsError, unknown
from dibs.families import Benchmark, Family, descriptions, find_benchmarks
from dibs.families.splits import GAP
from dibs.methods import Method, get_method
from dibs.paths import BASE
from dibs.settings import parse_settings
from dibs.studies.config import (
    Ablation,
    Config,
    Datasets,
    Study,
    Sweep,
    Teachers,
    Templates,
    Variant,
    fits,
    fitting_gaps,
    is_report,
    merge,
    variant_data,
)
from dibs.studies.reports import applicable, find_report, reports
from dibs.teachers.base import get_algorithm
from dibs.templates.fit import FitSettings

Location = tuple[int | str, ...]
Problem = tuple[str, str]
"""A key of the config and what is wrong there."""
SECTIONS: dict[str, type] = {"teachers": Teachers, "datasets": Datasets, "templates": Templates}
NEEDED = "at least one is needed"


# --- reading ---------------------------------------------------------------------------------------------


def load_config(*files: str | Path) -> Config:
    """Read config files, each merged over those before it as `snakemake --configfile` does."""
    merged: dict[str, Any] = {}
    for file in map(Path, files):
        try:
            data = yaml.safe_load(file.read_text())
        except FileNotFoundError:
            raise DibsError(f"{file}: no such config file") from None
        except yaml.YAMLError as error:
            raise DibsError(f"{file}: not valid YAML: {error}") from None
        if not isinstance(data, dict):
            raise DibsError(f"{file}: expected a mapping, found {type(data).__name__}")
        merged = merge(merged, data)
    return parse_config(merged, " + ".join(map(str, files)))


def parse_config(data: Mapping[str, Any], where: str = "config") -> Config:
    """Build a config from a mapping; report all problems in one error.

    `allow_code: true` allows this process to import what its family files name.
    """
    config, problems = _parse(data)
    if config.allow_code:
        registry.allow_code()
    problems += _after(problems, _impossible(config))
    if problems:
        lines = dict.fromkeys(f"  {key}: {text}" for key, text in problems)
        count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
        raise DibsError(f"{where}: {count}\n" + "\n".join(lines))
    return config


def _parse(data: Mapping[str, Any]) -> tuple[Config, list[Problem]]:
    """Return the config without the parts that have wrong keys or types, and the problems of these parts.

    Wrong parts are removed so that the rest can still be checked.
    """
    kept, problems = _copy(data), list[Problem]()
    while True:
        for key, field in Config.model_fields.items():
            if field.is_required():
                kept.setdefault(key, [])  # reported as empty
        try:
            return Config.model_validate(kept), problems
        except ValidationError as error:
            problems += map(_problem, error.errors())
            # A mapping without a required key is removed as a whole. Last items first: lists keep their positions.
            removed: set[Location] = set()
            for e in reversed(error.errors()):
                location = e["loc"][:-1] if e["type"] == "missing" else e["loc"]
                if not any(location[:n] in removed for n in range(1, len(location) + 1)):
                    _remove(kept, location)
                    removed.add(location)


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(item) for key, item in value.items()}
    return list(value) if isinstance(value, list) else value


def _remove(data: Any, location: Location) -> None:
    """Remove the item at `location`, or the innermost item on the way to it that exists in the data."""
    key, *rest = location
    if rest == ["[key]"]:  # the key itself is wrong
        rest = []
    inner = data[key]
    inside = rest and (rest[0] in inner if isinstance(inner, dict) else isinstance(inner, list))
    if inside:
        _remove(inner, tuple(rest))
    else:
        del data[key]


def _problem(error: ErrorDetails) -> Problem:
    location = error["loc"]
    key = ".".join(map(str, location))
    if error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = _keys(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        return key, f"unknown key. Did you mean '{near[0]}'?" if near else f"unknown key. Known: {', '.join(known)}."
    if error["type"] == "missing":
        return key, "is missing"
    message = error["msg"].removeprefix("Value error, ")
    return key, f"{message[0].lower()}{message[1:]} (found {error['input']!r})"


def _keys(location: Location) -> list[str]:
    """Return the keys that are allowed at a location."""
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
    section: Any = Config.model_fields[str(location[0])].annotation
    kind = section if len(location) == 1 else section.__mro__[1]  # overrides have the stage's own settings
    return [f.name for f in dataclasses.fields(kind)]


def _after(before: Iterable[Problem], found: Iterable[Problem]) -> list[Problem]:
    """Return the problems found without those that only follow from a list whose wrong items were removed."""
    reported = {key.partition(".")[0] for key, _ in before}
    return [(key, text) for key, text in found if not (text == NEEDED and key in reported)]


# --- impossible combinations -----------------------------------------------------------------------------


def _impossible(config: Config) -> Iterator[Problem]:
    """Return the problems of values that have the right type."""
    main, everywhere = _found(config.benchmarks), _found(config.benchmarks)
    for study in config.studies:
        everywhere += _found(study.benchmarks)
    for name, sources in _several((b.family.name, b.family_source) for b in everywhere):
        yield "benchmarks", f"family '{name}' is described by {' and '.join(sources)}; rename one"
    for name, sources in _several((b.id, b.family.name) for b in everywhere):
        yield "benchmarks", f"'{name}' is a benchmark of {' and '.join(sources)}; rename one"
    yield from _split_problems(config, _lengths(main))
    yield from (("gaps", text) for text in _unused(config.gaps, _lengths(main)))
    yield from _report_problems(config, [b.id for b in main])
    known = {*descriptions(), *_lengths(everywhere)}
    own = list(_own_problems(config, known))
    yield from own
    yield from _study_problems(config, known, set(own))


def _own_problems(config: Config, known: set[str]) -> Iterator[Problem]:
    """Return the problems of a config, or of the config of a variant; `known` are the families that it may name."""
    if not config.results.strip() or set("{}*?\n") & set(config.results):
        yield "results", f"expected the name of a folder, found {config.results!r}"
    if not config.seeds or min(config.seeds) < 0 or len(set(config.seeds)) < len(config.seeds):
        yield "seeds", f"expected a count ≥ 1 or different numbers ≥ 0, found {config.seeds}"
    if not config.benchmarks:
        yield "benchmarks", NEEDED
    for entry in config.benchmarks:
        try:
            find_benchmarks(entry)
        except (DibsError, OSError) as error:
            yield "benchmarks", _brief(error)
    chosen = {b.family.name: b.family for b in _found(config.benchmarks)}
    yield from _gap_problems(config, chosen)
    yield from _method_problems(config)
    yield from _stage_problems(config, chosen, known)


def _found(entries: Iterable[str]) -> list[Benchmark]:
    """Return the benchmarks that entries of a config name, without those that cannot be read."""
    found: list[Benchmark] = []
    for entry in entries:
        with suppress(DibsError, OSError):
            found += find_benchmarks(entry)
    return found


def _lengths(benchmarks: Iterable[Benchmark]) -> dict[str, int]:
    """Return the last index of each family."""
    return {b.family.name: b.family.last_index for b in benchmarks}


def _listed(lengths: Mapping[str, int]) -> str:
    return ", ".join(f"{name} L = {last}" for name, last in lengths.items())


def _several(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Return the names that come with more than one source."""
    sources: dict[str, list[str]] = {}
    for name, source in dict.fromkeys(pairs):
        sources.setdefault(name, []).append(source)
    return ((name, several) for name, several in sources.items() if len(several) > 1)


# Training sets.


def _split_problems(config: Config, lengths: Mapping[str, int]) -> Iterator[Problem]:
    """Return the problems of named splits; one that nothing is trained on is a mistake."""
    for name, indices in config.splits.items():
        if GAP.fullmatch(name) or name == BASE:
            yield f"splits.{name}", "this name is reserved; choose another"
        elif not indices or not fits(indices, indices[-1]):
            yield f"splits.{name}", f"expected increasing indices from 0 to a family's last index L, found {indices}"
        else:
            using = [s for s in config.studies if name in (s.splits or ()) or (s.gaps is None and s.splits is None)]
            reached = {**lengths, **_lengths(b for s in using for b in _found(s.benchmarks))}
            if lengths and indices[-1] not in reached.values():
                yield f"splits.{name}", f"fits no chosen family: it ends at {indices[-1]} ({_listed(reached)})"


def _unused(gaps: Iterable[int] | None, lengths: Mapping[str, int]) -> Iterator[str]:
    listed = list(gaps or [])
    used = {gap for last in lengths.values() for gap in fitting_gaps(listed, last)}
    for gap in listed if lengths else ():
        if gap >= 1 and gap not in used:
            yield f"{gap} divides the last index of no chosen family ({_listed(lengths)})"


def _gap_problems(config: Config, chosen: Mapping[str, Family]) -> Iterator[Problem]:
    wrong = [gap for gap in config.gaps or [] if gap < 1]
    for gap in wrong:
        yield "gaps", f"expected numbers ≥ 1, found {gap}"
    if config.gaps == [] and not config.splits:
        yield "gaps", f"{NEEDED}, or null for each family's own"
    elif not wrong:
        for name, family in chosen.items():
            last = family.last_index
            gaps = family.gaps if config.gaps is None else fitting_gaps(config.gaps, last)
            if not gaps and not any(fits(indices, last) for indices in config.splits.values()):
                reason = f"is shorter than all gaps {config.gaps}" if config.gaps else "has no gaps"
                yield "gaps", f"family '{name}' (L = {last}) {reason}, and no split fits it: it has no training set"


# Methods and reports.


def _method_problems(config: Config) -> Iterator[Problem]:
    if not config.methods:
        yield "methods", NEEDED
    for name in config.methods:
        try:
            get_method(get_method(name).model_method)
        except DibsError as error:
            yield "methods", _brief(error)
    for key, overrides in {"templates.methods": config.templates.methods, "baselines": config.baselines}.items():
        for name, values in overrides.items():
            try:
                method = _with_settings(name, key)
            except DibsError as error:
                yield key, _brief(error)
                continue
            if key == "baselines":
                yield from _parsed(f"baselines.{name}", method.settings, values)


def _with_settings(name: str, key: str) -> Method:
    """Return a method whose settings belong under a key."""
    method = get_method(name)
    if method.trained_as:
        raise DibsError(f"'{name}' is measured on the model of '{method.trained_as}', whose settings it has")
    place = "templates.methods" if method.settings is FitSettings else "baselines"
    if place != key:
        raise DibsError(f"settings of '{name}' belong under {place}.{name}")
    return method


def _report_problems(config: Config, chosen: Iterable[str]) -> Iterator[Problem]:
    if config.reports:
        known, made = reports(), applicable(chosen)
        for pattern in config.reports:
            if any(is_report(name, report, pattern) for name, (report, _) in made.items()):
                continue
            if any(fnmatchcase(name, pattern) for name in known):
                yield "reports", f"'{pattern}' shows none of the chosen benchmarks"
            else:
                yield "reports", _brief(unknown("report", pattern, known))
    for name, ablation in config.ablations.items():
        for figure in ablation.figures:
            try:
                find_report(figure, "figure")
            except DibsError as error:
                yield f"ablations.{name}.figures", _brief(error)


# Stages.


def _stage_problems(config: Config, chosen: Mapping[str, Family], known: set[str]) -> Iterator[Problem]:
    for name in SECTIONS:
        for pattern in getattr(config, name).families:
            if not any(fnmatchcase(family, pattern) for family in known):
                yield f"{name}.families", _brief(unknown("family", pattern, known))
    for d in (config.datasets, *map(config.dataset_settings, chosen.values())):
        if d.alpha + d.beta + d.gamma == 0:
            yield "datasets", "alpha, beta and gamma are all 0: there is no source of states"
            break
    yield from _unread_rows(config, chosen)
    yield from _algorithm_problems(config, chosen)


def _unread_rows(config: Config, chosen: Mapping[str, Family]) -> Iterator[Problem]:
    """Return the problems of datasets that are larger than what a method reads of them."""
    for name, family in chosen.items():
        size = config.dataset_settings(family).size
        for method in config.methods:
            with suppress(DibsError):  # reported elsewhere
                if "datasets" not in get_method(get_method(method).model_method).needs:
                    continue
                most = getattr(config.method_settings(method, family), "samples", size)
                if most < size:
                    text = f"{size} rows per edge and index of '{name}', of which '{method}' reads only {most}"
                    yield "datasets.size", f"{text}; raise its `samples`, or lower the size"


def _algorithm_problems(config: Config, chosen: Mapping[str, Family]) -> Iterator[Problem]:
    teachers = config.teachers
    used = {name: _algorithm(config, family) for name, family in chosen.items()}
    if teachers.algorithm:
        yield from _options("teachers.algorithm", teachers.algorithm, {})
    for algorithm, options in teachers.algorithms.items():
        yield from _options(f"teachers.algorithms.{algorithm}", algorithm, options)
    for algorithm in sorted(set(used.values()) & set(registry.names("teachers"))):
        yield from _options("teachers.options", algorithm, teachers.options)
    for pattern, override in teachers.families.items():
        key = f"teachers.families.{pattern}"
        if override.get("algorithm"):
            yield from _options(f"{key}.algorithm", override["algorithm"], {})
        algorithms = {algorithm for name, algorithm in used.items() if fnmatchcase(name, pattern)}
        for algorithm in sorted(algorithms & set(registry.names("teachers"))):
            yield from _options(f"{key}.options", algorithm, override.get("options", {}))


def _algorithm(config: Config, family: Family) -> str:
    """Return the algorithm of a family's teachers."""
    overrides = [o for pattern, o in config.teachers.families.items() if fnmatchcase(family.name, pattern)]
    chosen = [config.teachers.algorithm, *(o["algorithm"] for o in overrides if "algorithm" in o)]
    return chosen[-1] or family.teacher


def _options(key: str, algorithm: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    try:
        kind = get_algorithm(algorithm).settings
    except DibsError as error:
        yield key, _brief(error)
    else:
        yield from _parsed(key, kind, options)


def _parsed(key: str, kind: type, values: Mapping[str, Any]) -> Iterator[Problem]:
    """Return the problems of values as settings of `kind`."""
    names = [f.name for f in dataclasses.fields(kind)]
    for name in values:
        if name not in names:
            yield key, _brief(unknown("setting", name, names))
    try:
        parse_settings(kind, {name: value for name, value in values.items() if name in names}, key)
    except DibsError as error:
        for line in str(error).splitlines()[1:]:
            yield key, line.strip()


def _brief(error: Exception) -> str:
    """Return the message of an error; if it suggests a name, without the list of all names."""
    text = str(error)
    return text.partition(" Known: ")[0] if "Did you mean" in text else text


# Ablations and sweeps.


def _study_problems(config: Config, known: set[str], reported: set[Problem]) -> Iterator[Problem]:
    """Return the problems of ablations and sweeps: each variant must be a valid config."""
    for name, ablation in config.ablations.items():
        where = f"ablations.{name}"
        yield from _training_sets(config, ablation, where)
        if not ablation.variants:
            yield f"{where}.variants", NEEDED
        for key in ablation.variants:
            found = _variant_problems(config, ablation, key, known, reported)
            yield from _located(found, where, f"{where}.variants.{key}")
    for name, sweep in config.sweeps.items():
        where = f"sweeps.{name}"
        yield from _training_sets(config, sweep, where)
        wrong = [key for key, values in sweep.grid.items() if not values or not _is_setting(key)]
        for key in wrong:
            yield f"{where}.grid.{key}", "expected a setting such as teachers.cross_index, and a list of values"
        for setting, _ in _several((key.partition(".")[2], key) for key in sweep.grid):
            yield f"{where}.grid", f"'{setting}' of two stages cannot be swept together"
        if not wrong:  # one value at a time: there may be many combinations
            first = {key: values[0] for key, values in sweep.grid.items()}
            for point in [{**first, key: value} for key, values in sweep.grid.items() for value in values]:
                yield from _located(_variant_problems(config, sweep, point, known, reported), where, f"{where}.grid")


def _training_sets(config: Config, study: Study, where: str) -> Iterator[Problem]:
    lengths = _lengths(_found(study.benchmarks))
    yield from ((f"{where}.gaps", text) for text in _unused(study.gaps, lengths))
    for name in study.splits or []:
        if name not in config.splits:
            text = str(unknown("split", name, config.splits)) if config.splits else f"'{name}' is not defined."
            yield f"{where}.splits", f"{text} Named training sets are defined under `splits`."
        elif lengths and not any(fits(config.splits[name], last) for last in lengths.values()):
            yield f"{where}.splits", f"'{name}' fits no chosen family ({_listed(lengths)})"


def _variant_problems(
    config: Config, study: Study, variant: str | Mapping[str, Any], known: set[str], reported: set[Problem]
) -> Iterator[Problem]:
    """Return the problems that a variant has and the config has not."""
    own, wrong = _parse(variant_data(config, study, variant))
    undefined = any(name not in config.splits for name in study.splits or [])  # and so reported as missing gaps
    found = [*wrong, *_own_problems(own, known), *_without_effect(own, study, variant)]
    return (problem for problem in found if problem not in reported and not (undefined and problem[0] == "gaps"))


def _without_effect(own: Config, study: Study, variant: str | Mapping[str, Any]) -> Iterator[Problem]:
    """Return the settings of a variant that an exception for one of the study's families overrides."""
    if isinstance(study, Ablation) and isinstance(variant, str):
        sections = {name: getattr(study.variants[variant], name) for name in SECTIONS}
    else:
        assert not isinstance(variant, str)
        sections = {name: {k.partition(".")[2] for k in variant if k.startswith(f"{name}.")} for name in SECTIONS}
    for section, settings in sections.items():
        exceptions = {} if "families" in settings else getattr(own, section).families
        for family in _lengths(_found(study.benchmarks)):
            for pattern, override in exceptions.items():
                for setting in sorted(set(settings) & set(override)) if fnmatchcase(family, pattern) else ():
                    place = f"{section}.families.{pattern}"
                    yield f"{section}.{setting}", f"has no effect on family '{family}': {place} sets it, too"


def _located(problems: Iterable[Problem], study: str, variant: str) -> Iterator[Problem]:
    for key, text in problems:
        yield f"{study if key.partition('.')[0] in Study.model_fields else variant}.{key}", text


def _is_setting(key: str) -> bool:
    section, _, name = key.partition(".")
    return section in SECTIONS and name in [f.name for f in dataclasses.fields(SECTIONS[section].__mro__[1])]


# --- for editors -----------------------------------------------------------------------------------------


@cache
def json_schema() -> str:
    """Return the JSON schema of configs, as kept in config/schema.json."""
    schema = Config.model_json_schema()
    for kind in SECTIONS.values():  # pydantic reads the docstrings of a class's own fields only
        inherited = schema["$defs"][kind.__mro__[1].__name__]["properties"]
        schema["$defs"][kind.__name__]["properties"] |= inherited
    for section in (schema, *schema["$defs"].values()):
        section.pop("required", None)  # an overlay need not repeat what the config below it has
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"
