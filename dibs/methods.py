"""Methods: the record that templates and baselines fill in, and what training is given and gives back.

A method is trained on grounded training tasks and turned into a batched policy for any tasks. Evaluation does not know
which method it measures. Register a `Method` as an entry point of group `dibs.methods`:

    [project.entry-points."dibs.methods"]
    mine = "my_package.mine:METHOD"

The module of the record should import quickly: every job of the workflow reads the records of all methods in the
config.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dibs import registry
from dibs.errors import DibsError
from dibs.families import Split, Tasks
from dibs.files import read_json, read_metadata, read_tensors, write_tensors
from dibs.paths import metrics
from dibs.progress import Reporter
from dibs.provenance import Origin, check_kind, check_together
from dibs.simulation import Policy
from dibs.simulation.composed import Composed

VERSION = 1
"""Of the file format of models."""
INPUTS = ("teachers", "datasets")
"""Kinds of files that a method may read."""


@dataclass(frozen=True, eq=False)
class Training:
    """What a method is trained on."""

    tasks: Tasks
    """The training tasks, under the specification of the benchmark (or of the family, if one model serves all
    benchmarks)."""
    benchmark: str
    """The benchmark's id, or the family's name; for messages and random streams."""
    split: Split
    seed: int
    teachers: Sequence[Any] = ()
    """Teachers of the training indices that `Method.inputs` names, in order: files, or teachers in memory.

    `dibs.teachers.store.load_teacher` accepts both.
    """
    datasets: Sequence[Any] = ()
    """Datasets of the training indices that `Method.inputs` names, in order: files, or datasets in memory.

    `dibs.datasets.store.load_dataset` accepts both.
    """
    progress: Reporter | None = None

    def teacher_steps(self, edges: Sequence[str] | None = None) -> int:
        """Return the environment steps in which the teachers learned the given edges (by default those of the
        tasks)."""
        names = self.tasks.edge_names if edges is None else edges
        if not self.teachers:
            raise DibsError("the budget is what the teachers used, but none are given: pass --teachers, or set `steps`")
        return sum(teacher_steps(teacher_metrics(teacher), names) for teacher in self.teachers)


def teacher_metrics(teacher: Any) -> Mapping[str, Any]:
    """Return the metrics of a teacher in memory or in a file; refuse a file of another training run."""
    if not isinstance(teacher, str | Path):
        in_memory: Mapping[str, Any] = teacher.metrics
        return in_memory
    file = metrics(Path(teacher))
    found: dict[str, Any] = read_json(file)
    check_together(file, found, teacher, read_metadata(teacher)["id"])
    measured: dict[str, Any] = found["metrics"]
    return measured


def teacher_steps(teacher: Mapping[str, Any], edges: Sequence[str]) -> int:
    """Return the steps of one teacher; if they were counted for all edges together, each edge has an equal share."""
    known = teacher["edges"]
    if all("steps" in known[name] for name in edges):
        return sum(int(known[name]["steps"]) for name in edges)
    return round(teacher["steps"] * len(edges) / len(known))


@dataclass(frozen=True, eq=False)
class Model:
    """What training gives back."""

    tensors: Mapping[str, np.ndarray]
    """The weights."""
    metadata: Mapping[str, Any]
    """What `policy` must know as well, such as the shape of the network."""
    steps: int | Mapping[str, int]
    """Environment steps used, including those of the teachers it rests on.

    By edge if one model serves several benchmarks.
    """
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """Facts for the `.json` next to the model."""
    curve: Sequence[Mapping[str, Any]] = ()
    """What was measured while training, a row per measurement, for the `.curve.parquet` next to the model.

    Rows in `metrics["curve"]` need not be repeated.
    """
    made_from: int | None = None
    """How many of the teachers it is made from, the first ones; None: all. It read the others for its budget only."""

    @property
    def curve_rows(self) -> list[Mapping[str, Any]]:
        """The rows of the curve."""
        return list(self.curve) or [row for row in self.metrics.get("curve", []) if isinstance(row, Mapping)]

    def steps_on(self, edges: Sequence[str]) -> int:
        """Return the environment steps spent on the given edges."""
        return self.steps if isinstance(self.steps, int) else sum(int(self.steps[name]) for name in edges)


@dataclass(frozen=True)
class Method:
    """A method: how it is trained, how it acts, and how it appears in tables and figures."""

    name: str
    label: str
    """What tables and figures call it."""
    settings: type
    """A frozen dataclass; every field has a docstring."""
    train: Callable[[Training, Any], Model]
    policy: Callable[[Model, Tasks], Policy | Composed]
    """Turns a model into a policy for the given tasks."""
    needs: tuple[str, ...] = ()
    """Kinds of files that training reads, of `INPUTS`; of all training indices unless `reads` says otherwise."""
    reads: Callable[[Any, tuple[int, ...]], Mapping[str, Sequence[int]]] | None = None
    """Given settings and training indices, returns by kind the indices whose files are read with these settings."""
    per_family: bool = False
    """Whether one model serves all benchmarks of a family."""
    zero_shot: bool = True
    """False if `policy` adapts on the tasks it is given."""
    trained_as: str = ""
    """Method whose model it is measured on, if not its own."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Settings that set it apart from other methods with the same settings class."""
    version: int = 1
    """Raised manually when its results change."""
    memory_mb: int = 3000
    """Memory of a training job on a cluster."""
    minutes: int = 60
    """Run time of a training job on a cluster."""
    evaluation_factor: float = 1.0
    """Run time of an evaluation, relative to that of a small network: larger if its policy adapts or is recurrent."""
    color: str = "#7F7F7F"
    marker: str = "P"
    hatch: str = "ooo"
    """Of its bars, so that they can be told apart without color."""
    dashes: tuple[float, ...] = (1.5, 1.0)
    """Of its line; empty: solid."""
    hollow: bool = False
    """Whether its marker is drawn as an outline."""
    order: int = 100
    """Position in legends and tables."""

    def unit(self, family: str, benchmark: str) -> str:
        """Return what its models are of: the family or the benchmark."""
        return family if self.per_family else benchmark

    def inputs(self, settings: Any, train: Sequence[int]) -> dict[str, tuple[int, ...]]:
        """Return the training indices whose files training reads, for each kind of `INPUTS`."""
        read = dict.fromkeys(self.needs, tuple(train)) if self.reads is None else self.reads(settings, tuple(train))
        for kind, indices in read.items():
            if kind not in self.needs:
                raise DibsError(f"method '{self.name}': reads() returns '{kind}', which `needs` does not list")
            if list(indices) != sorted(set(indices) & set(train)):
                raise DibsError(
                    f"method '{self.name}': reads() returns {kind} of {list(indices)}; expected training indices "
                    f"in increasing order, of {list(train)}"
                )
        return {kind: tuple(read.get(kind, ())) for kind in INPUTS}

    @property
    def model_method(self) -> str:
        """The method whose model it is measured on."""
        return self.trained_as or self.name


def teachers_for_budget(settings: Any, train: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """`Method.reads` of methods that need teachers only to know how many environment steps these took."""
    return {} if settings.steps else {"teachers": train}


def get_method(name: str) -> Method:
    """Return a registered method."""
    method: Method = registry.load("methods", name)
    return method


def label(name: str) -> str:
    """Return what tables and figures call a method; one that is not installed keeps its name."""
    return get_method(name).label if name in registry.names("methods") else name


def in_order(names: Iterable[str]) -> list[str]:
    """Return method names in the order of legends and tables; those that are not installed come last."""
    known = registry.names("methods")
    return sorted(set(names), key=lambda n: (get_method(n).order if n in known else 1000, n))


# --- files -----------------------------------------------------------------------------------------------


def save_model(path: Path, model: Model, origin: Origin, settings: Mapping[str, Any]) -> None:
    """Write a model as safetensors."""
    steps = model.steps if isinstance(model.steps, int) else dict(model.steps)
    metadata = {**origin.metadata(), "settings": dict(settings), "steps": steps, "model": dict(model.metadata)}
    write_tensors(path, model.tensors, metadata)


def load_model(path: str | Path) -> tuple[Model, dict[str, Any]]:
    """Read a model and the metadata of its file."""
    tensors, metadata = read_tensors(path)
    check_kind(path, metadata, "model")
    return Model(tensors, metadata["model"], metadata["steps"]), metadata
