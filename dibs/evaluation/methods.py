"""The one registry of methods: where each one's weights are, how they are measured, what they cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from dibs.baselines.registry import BASELINES, Baseline, Counter
from dibs.errors import unknown
from dibs.families import Family
from dibs.files import read_tensors
from dibs.paths import Layout
from dibs.spectrl import graph, parse
from dibs.teachers.budget import steps_used, teacher_files


@dataclass(frozen=True)
class Case:
    """What is measured: a benchmark, a split, a seed, and where results are."""

    family: Family
    benchmark: str
    text: str
    """The benchmark's specification."""
    gap: int
    seed: int
    places: Layout


@dataclass(frozen=True)
class Method:
    """A method as the evaluation sees it."""

    name: str
    artefact: Callable[[Case], Path]
    """The file with its weights."""
    counter: Callable[[], Counter]
    """How its policies are measured; imported when asked for."""
    steps: Callable[[Case], int | None]
    """Environment steps used in training; None if no file says."""
    module: str
    """Its code, whose digest an evaluation carries."""


def get_method(name: str) -> Method:
    """A method by its name."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def _template(name: str, module: str = "dibs.evaluation.count") -> Method:
    """DIBS: a template of the family, that cost what its teachers did on the benchmark's edges."""

    def counter() -> Counter:
        found: Counter = import_module(module).count_template
        return found

    def steps(case: Case) -> int | None:
        files = teacher_files(case.places, case.family, case.gap, case.seed)
        return steps_used(files, _edges(case)) if all(file.is_file() for file in files) else None

    return Method(
        name,
        lambda case: case.places.template(name, case.family.name, case.gap, case.seed),
        counter,
        steps,
        module,
    )


def _baseline(baseline: Baseline) -> Method:
    """A method that DIBS is compared with: its weights carry what they cost, per edge if all benchmarks share them."""

    def steps(case: Case) -> int | None:
        _, metadata = read_tensors(artefact(case))
        if "edge_steps" in metadata:
            return sum(int(metadata["edge_steps"][name]) for name in _edges(case))
        return metadata.get("steps")

    def artefact(case: Case) -> Path:
        return baseline.artefact(case.places, case.family, case.benchmark, case.gap, case.seed)

    return Method(
        baseline.name,
        artefact,
        lambda: baseline.count,
        steps,
        baseline.module,
    )


def _edges(case: Case) -> list[str]:
    return [edge.name for edge in graph(parse(case.text)).edges]


METHODS: dict[str, Method] = {
    "dibs": _template("dibs"),
    "dibs-plus": _template("dibs-plus"),
    "dibs-weights": _template("dibs-weights"),
    "dibs-branched": _template("dibs-branched", "dibs.evaluation.branched"),
    **{name: _baseline(baseline) for name, baseline in BASELINES.items()},
}
