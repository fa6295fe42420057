"""Environment steps that DIBS spends: those of its teachers, the budget that other methods are given."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dibs.errors import DibsError
from dibs.families import Family
from dibs.files import read_json
from dibs.paths import Layout, metrics


def teacher_files(places: Layout, family: Family, gap: int, seed: int) -> list[Path]:
    """Metrics of the teachers of all training indices."""
    return [metrics(places.teacher(family.name, gap, index, seed)) for index in family.train_indices(gap)]


def steps_used(files: Iterable[Path], edges: Sequence[str]) -> int:
    """Environment steps in which the teachers with these metrics learnt the given edges."""
    return sum(_steps(read_json(file)["metrics"], edges) for file in files)


def dibs_steps(places: Layout, family: Family, gap: int, seed: int, edges: Sequence[str]) -> int:
    """Environment steps of all teachers of a split on the given edges."""
    files = teacher_files(places, family, gap, seed)
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        raise DibsError(
            f"{missing[0]}: no such file; the budget is what the teachers of gap {gap} seed {seed} used: "
            "train them first (`dibs teacher`), or set `steps`"
        )
    return steps_used(files, edges)


def _steps(teacher: dict[str, Any], edges: Sequence[str]) -> int:
    """Steps of one teacher; where they were counted for all edges together, each edge has an equal share."""
    known = teacher["edges"]
    if all("steps" in known[name] for name in edges):
        return sum(int(known[name]["steps"]) for name in edges)
    return round(teacher["steps"] * len(edges) / len(known))
