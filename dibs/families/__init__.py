"""Inductive task families: the paper's by name, anybody's by YAML file."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from dibs.errors import DibsError, unknown
from dibs.families.model import Family, load_family
from dibs.families.tasks import ReachAvoid, edge_named, ground, reach_avoid


@cache
def families() -> dict[str, Family]:
    """The paper's families by name."""
    return {name: get_family(name) for name in _descriptions()}


def _descriptions() -> dict[str, dict[str, Any]]:
    from dibs.families.paper import descriptions

    return descriptions()


@cache
def get_family(name: str) -> Family:
    """A family by its name, or by the path of a YAML file that describes one."""
    if name.endswith((".yaml", ".yml")):
        return load_family(Path(name))
    if name not in _descriptions():
        raise unknown("family", name, _descriptions())
    return load_family(_descriptions()[name])


@cache
def get_benchmark(name: str) -> tuple[Family, str]:
    """The family a benchmark belongs to and its specification text.

    `name` is a benchmark id, or `path.yaml` (a file with one benchmark), or `path.yaml:id`.
    """
    path, _, chosen = name.partition(":")
    if path.endswith((".yaml", ".yml")):
        family = load_family(Path(path))
        chosen = chosen or (family.benchmark_ids[0] if len(family.benchmark_ids) == 1 else "")
        if chosen not in family.benchmark_ids:
            raise DibsError(f"{path}: name one of its benchmarks, as {path}:ID with ID in {family.benchmark_ids}")
        return family, family.benchmarks.get(chosen, family.specification)
    for described in _descriptions().values():
        if name in described.get("benchmarks", (described["name"],)):
            family = get_family(described["name"])
            return family, family.benchmarks.get(name, family.specification)
    raise unknown("benchmark", name, benchmarks())


def benchmark_id(name: str) -> str:
    """The id of what `get_benchmark` finds by this name."""
    path, _, chosen = name.partition(":")
    if path.endswith((".yaml", ".yml")):
        return chosen or get_benchmark(name)[0].benchmark_ids[0]
    return name


def benchmarks() -> tuple[str, ...]:
    """Ids of all of the paper's benchmarks (and of the obstacle switch, last)."""
    ids = [b for family in families().values() for b in family.benchmark_ids]
    return tuple(sorted(ids, key=lambda b: b == "car2d-switch"))


__all__ = [
    "Family",
    "ReachAvoid",
    "benchmark_id",
    "benchmarks",
    "edge_named",
    "families",
    "get_benchmark",
    "get_family",
    "ground",
    "load_family",
    "reach_avoid",
]
