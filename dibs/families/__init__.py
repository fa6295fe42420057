"""Inductive task families: registered ones by name, custom ones from a YAML file or a mapping."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from dibs import registry
from dibs.errors import DibsError, unknown
from dibs.families.family import Family, load_family
from dibs.families.splits import Split
from dibs.families.tasks import NetworkModel, ReachAvoid, RewardModel, Tasks

__all__ = [
    "Benchmark",
    "Family",
    "NetworkModel",
    "ReachAvoid",
    "RewardModel",
    "Split",
    "Tasks",
    "benchmarks",
    "families",
    "find_benchmarks",
    "get_benchmark",
    "get_family",
    "load_family",
    "show_warnings",
]

SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Benchmark:
    """A specification over the edges of a family: what is evaluated."""

    id: str
    family: Family
    source: str
    """How a command line names it: its id, or FILE.yaml:ID."""
    family_source: str
    """How a command line names its family: a name, or FILE.yaml."""

    @property
    def specification(self) -> str:
        return self.family.benchmarks.get(self.id, self.family.specification)


def descriptions() -> dict[str, Mapping[str, Any]]:
    """Return the descriptions of all registered families by name."""
    found: dict[str, Mapping[str, Any]] = {}
    for collection in registry.names("families"):
        entry = registry.load("families", collection)
        for name, description in (entry() if callable(entry) else entry).items():
            if name in found and found[name] != description:
                raise DibsError(f"two packages register the family '{name}'; rename or uninstall one")
            found[name] = description
    return found


def families() -> dict[str, Family]:
    """Return all registered families by name."""
    return {name: get_family(name) for name in descriptions()}


def get_family(name: str) -> Family:
    """Return a family by its name, or by the path of a YAML file that describes one."""
    if name.endswith(SUFFIXES):
        path = os.path.normpath(name)
        return _from_file(path, Path(path).stat().st_mtime_ns if Path(path).is_file() else 0)
    known = descriptions()
    if name not in known:
        raise registry.unregistered("family", name, known)
    return _registered(name, known[name])


_loaded: dict[str, tuple[Mapping[str, Any], Family]] = {}


def _registered(name: str, description: Mapping[str, Any]) -> Family:
    known = _loaded.get(name)
    if known is None or known[0] != description:  # a notebook may register another description under the same name
        known = _loaded[name] = (description, load_family(description))
    return known[1]


@cache
def _from_file(path: str, changed: int) -> Family:
    family = load_family(Path(path))
    if family.name in descriptions() and family != get_family(family.name):
        raise DibsError(f"{path}: the name '{family.name}' belongs to a registered family; choose another name")
    for name, description in descriptions().items():
        taken = set(description.get("benchmarks") or (name,)) & set(family.benchmark_ids)
        if taken and name != family.name:
            raise DibsError(
                f"{path}: the benchmark id '{min(taken)}' belongs to the registered family '{name}'; rename it"
            )
    return family


def get_benchmark(name: str) -> Benchmark:
    """Return a benchmark by its id, by `FILE.yaml` (a file with one benchmark) or by `FILE.yaml:ID`."""
    path, _, chosen = name.partition(":")
    if path.endswith(SUFFIXES) and not chosen and len(get_family(path).benchmark_ids) > 1:
        ids = get_family(path).benchmark_ids
        raise DibsError(f"{path}: name one of its benchmarks, as {path}:ID with ID in {list(ids)}")
    return find_benchmarks(name, exact=True)[0]


def find_benchmarks(entry: str, exact: bool = False) -> list[Benchmark]:
    """Return the benchmarks that an id, a pattern (`car2d-*`), `FILE.yaml` or `FILE.yaml:PATTERN` names."""
    path, _, pattern = entry.partition(":")

    def matches(name: str, wanted: str) -> bool:
        return name == wanted if exact else fnmatchcase(name, wanted)

    if path.endswith(SUFFIXES):
        path = os.path.normpath(path)  # commands name the file: another spelling of its path must not rerun them
        family = get_family(path)
        ids = [i for i in family.benchmark_ids if not pattern or matches(i, pattern)]
        if not ids:
            raise unknown(f"benchmark of {path}", pattern, family.benchmark_ids)
        return [Benchmark(i, family, f"{path}:{i}", path) for i in ids]
    owners = {i: name for name, d in descriptions().items() for i in (d.get("benchmarks") or (name,))}
    found = [Benchmark(i, get_family(name), i, name) for i, name in owners.items() if matches(i, entry)]
    if not found:
        raise registry.unregistered("benchmark", entry, owners)
    return found


def benchmarks() -> tuple[str, ...]:
    """Return the ids of all registered benchmarks."""
    return tuple(b for family in families().values() for b in family.benchmark_ids)


_shown: set[str] = set()


def show_warnings(family: Family) -> None:
    """Print what is doubtful about a family on standard error, once per process."""
    for doubt in family.warnings():
        line = f"warning: {family.source}: {doubt}"
        if line not in _shown:
            _shown.add(line)
            print(line, file=sys.stderr, flush=True)
