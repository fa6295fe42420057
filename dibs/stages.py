"""The stages of the pipeline in memory: from tasks to a teacher, a dataset, a model, an evaluation.

The commands (`dibs.pipeline`, which reads and checks files), `dibs run` and the Python interface (`dibs.runs`) call
these functions, so there is one definition of every stage. A result knows its `Origin` and how to `save` itself.
`*_origin` functions say what a result is made from. They need no results, so a plan can compute all ids in advance.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dibs import datasets, evaluation, methods, teachers
from dibs.datasets.build import Block, DatasetSettings, build
from dibs.datasets.store import Dataset, collect_dataset, save_dataset
from dibs.evaluation.evaluate import (
    EvaluationSettings,
    count_satisfied,
    evaluation_table,
    role_of,
    roles,
    summarize,
)
from dibs.families import Benchmark, Family, Split, Tasks
from dibs.files import read_json, write_json, write_rows, write_table
from dibs.methods import Method, Model, Training, save_model, teachers_for_budget
from dibs.paths import curve, metrics, split_of, timing
from dibs.progress import Reporter
from dibs.provenance import Origin, settings_digest
from dibs.teachers.base import get_algorithm
from dibs.teachers.buffers import StateBuffers
from dibs.teachers.journal import Journal
from dibs.teachers.store import as_saved, save_teacher
from dibs.teachers.train import Teacher, TeacherSettings, train_teacher
from dibs.templates.prediction import predict

# --- what files are made from ----------------------------------------------------------------------------


def teacher_tasks(family: Family, index: int) -> Tasks:
    """Return the tasks that the teacher of an index may know: its own, and the first and last, which set the
    scaling."""
    return family.tasks(known_to_teacher(family, index))


def known_to_teacher(family: Family, index: int) -> list[int]:
    return sorted({0, index, family.last_index})


def teacher_origin(
    family: Family, split: str, index: int, seed: int, settings: TeacherSettings, previous: str | None
) -> Origin:
    """Describe a teacher; `settings` are resolved, `previous` is the id of the teacher before it."""
    return Origin(
        "teacher",
        _of_index(family, split, index, seed),
        family.tasks_digest(known_to_teacher(family, index)),
        settings_digest(settings),
        {"teachers": teachers.VERSION, settings.algorithm: get_algorithm(settings.algorithm).version},
        () if previous is None else (previous,),
    )


def dataset_origin(
    family: Family, split: str, index: int, seed: int, settings: DatasetSettings | None, teacher: str
) -> Origin:
    """Describe a dataset; `teacher` is the id of its teacher."""
    return Origin(
        "dataset",
        _of_index(family, split, index, seed),
        family.tasks_digest(known_to_teacher(family, index)),
        settings_digest(settings),
        {"datasets": datasets.VERSION},
        (teacher,),
    )


def _of_index(family: Family, split: str, index: int, seed: int) -> dict[str, Any]:
    return {"family": family.name, "split": split_of(split, index), "index": index, "seed": seed}


@dataclass(frozen=True)
class Unit:
    """What a model is of: a family, or one of its benchmarks."""

    name: str
    family: Family
    specification: str
    source: str
    """How a command line names it."""

    @classmethod
    def of(cls, method: Method, benchmark: Benchmark) -> Unit:
        family = benchmark.family
        if method.per_family:
            return cls(family.name, family, family.specification, benchmark.family_source)
        return cls(benchmark.id, family, benchmark.specification, benchmark.source)


def model_origin(method: Method, unit: Unit, split: Split, seed: int, settings: Any, inputs: Sequence[str]) -> Origin:
    """Describe a model; `inputs` are the ids of the teachers and datasets it is made from."""
    return Origin(
        "model",
        {"method": method.name, "family": unit.family.name, "benchmark": unit.name, "split": split.name, "seed": seed},
        unit.family.tasks_digest(split.indices, unit.specification),
        settings_digest(settings),
        model_versions(method),
        tuple(inputs),
    )


def model_versions(method: Method) -> dict[str, int]:
    """Return the versions that a model of a method, or a policy of it, depends on."""
    return {"models": methods.VERSION, method.name: method.version}


def evaluation_origin(
    method: Method, benchmark: Benchmark, split: Split, seed: int, settings: EvaluationSettings, model: str
) -> Origin:
    """Describe an evaluation; `model` is the id of the model."""
    family = benchmark.family
    indices = sorted(roles(family, split.indices, settings))
    return Origin(
        "evaluation",
        {"method": method.name, "family": family.name, "benchmark": benchmark.id, "split": split.name, "seed": seed},
        family.tasks_digest(indices, benchmark.specification),
        settings_digest(settings),
        evaluation_versions(method),
        (model,),
    )


def evaluation_versions(method: Method) -> dict[str, int]:
    """Return the versions that an evaluation of a method depends on."""
    return {"evaluation": evaluation.VERSION, method.name: method.version}


# --- the stages ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TeacherResult:
    """A trained teacher with the states it visited."""

    teacher: Teacher
    buffers: StateBuffers
    origin: Origin
    seconds: float

    @property
    def replay(self) -> list[np.ndarray]:
        """The replay buffer (n, dim) of every edge."""
        return [kinds["replay"].view() for kinds in self.buffers.edges]

    def save(self, path: Path) -> None:
        """Write the teacher's files."""
        save_teacher(path, self.teacher, self.buffers, self.origin, self.seconds)


def teach(
    family: Family,
    split: Split,
    seed: int,
    settings: TeacherSettings,
    previous: Teacher | None,
    origin: Origin,
    progress: Reporter | None = None,
    journal: Journal | None = None,
) -> TeacherResult:
    """Train one teacher (Stage I); `settings` are resolved, `previous` is the teacher of the training index before.

    With a `journal`, a run that was killed continues.
    """
    index = int(origin.identity["index"])
    tasks = teacher_tasks(family, index)
    teacher, buffers, seconds = train_teacher(tasks, split, index, seed, previous, settings, progress, journal)
    return TeacherResult(as_saved(teacher, origin), buffers, origin, seconds)


@dataclass(frozen=True, eq=False)
class DatasetResult:
    """A dataset whose rows are drawn while it is saved or collected, once."""

    teacher: Teacher
    blocks: Iterator[Block]
    names: tuple[tuple[str, ...], tuple[str, ...]]  # of states and actions
    origin: Origin

    def save(self, path: Path) -> dict[str, int]:
        """Write the rows block by block; return their number per edge."""
        return save_dataset(path, self.teacher, *self.names, self.blocks, self.origin)

    def collect(self) -> Dataset:
        """Return the dataset in memory."""
        return collect_dataset(self.teacher, self.blocks, self.origin)


def sample(
    family: Family,
    split: Split,
    settings: DatasetSettings,
    teacher: Teacher,
    replay: Sequence[np.ndarray],
    origin: Origin,
) -> DatasetResult:
    """Build the dataset of one teacher from its replay buffer (n, dim) of every edge."""
    tasks = teacher.starts(teacher_tasks(family, teacher.index))
    names = family.environment.state_names, family.environment.action_names
    return DatasetResult(teacher, build(tasks, split, teacher, replay, settings), names, origin)


@dataclass(frozen=True, eq=False)
class ModelResult:
    """A method's trained model."""

    model: Model
    split: Split
    settings: Any
    origin: Origin
    seconds: float
    teacher_seconds: float = 0.0
    """Of training the teachers that it was made from, as far as their files say."""

    def save(self, path: Path) -> None:
        """Write curve, metrics and timing, then the model: where it is, the others are complete."""
        write_rows(curve(path), self.model.curve_rows, self.origin.metadata())
        about = {**self.origin.identity, "id": self.origin.id, "train": list(self.split.indices)}
        write_json(metrics(path), {**about, **self.model.metrics})
        write_json(timing(path), {"seconds": self.seconds, "teachers": self.teacher_seconds})
        save_model(path, self.model, self.origin, asdict(self.settings))


def fit(
    method: Method,
    unit: Unit,
    split: Split,
    seed: int,
    settings: Any,
    its_teachers: Sequence[Any],
    its_datasets: Sequence[Any],
    origin: Origin,
    progress: Reporter | None = None,
) -> ModelResult:
    """Train a method on teachers and datasets of all training indices, in files or in memory."""
    began = time.process_time()
    tasks = unit.family.tasks(split.indices, unit.specification)
    training = Training(tasks, unit.name, split, seed, tuple(its_teachers), tuple(its_datasets), progress)
    model = method.train(training, settings)
    rested = () if method.reads is teachers_for_budget else its_teachers[: model.made_from]
    return ModelResult(model, split, settings, origin, time.process_time() - began, _seconds_of(rested))


def _seconds_of(its_teachers: Sequence[Any]) -> float:
    """Return how long training some teachers took; those in memory, and those without a record, count nothing."""
    files = [timing(Path(teacher)) for teacher in its_teachers if isinstance(teacher, str | Path)]
    return sum(float(read_json(file)["seconds"]) for file in files if file.exists())


@dataclass(frozen=True, eq=False)
class EvaluationResult:
    """Measured success at every index."""

    counts: Mapping[int, int]  # satisfying rollouts by index
    role: Mapping[int, str]
    settings: EvaluationSettings
    origin: Origin
    more: Mapping[str, Any]
    predicted: Mapping[int, float] | None = None

    @cached_property
    def table(self) -> Any:
        """An Arrow table with one row per index."""
        return evaluation_table(self.counts, self.role, self.settings, self.predicted)

    @property
    def metadata(self) -> dict[str, Any]:
        """What its file records."""
        return {**self.origin.metadata(), "delta": self.settings.delta, **self.more}

    def save(self, path: Path) -> None:
        """Write the table."""
        write_table(path, self.table, self.metadata)


def ratios_of(table: Any) -> dict[str, float]:
    """Return training, zero-shot and beyond ratios of an evaluation's table."""
    return summarize(table["role"].to_pylist(), table["succeeds"].to_pylist())


def measure(
    method: Method,
    benchmark: Benchmark,
    split: Split,
    seed: int,
    settings: EvaluationSettings,
    model: Model,
    origin: Origin,
    indices: Sequence[int] | None = None,
) -> EvaluationResult:
    """Measure a model at the given indices, by default at all that the settings name."""
    family, specification = benchmark.family, benchmark.specification
    role = roles(family, split.indices, settings)
    if indices is not None:
        family.check_exists(indices, "indices")
        role = {i: role_of(i, family.last_index, split.indices) for i in sorted(set(indices))}
    counts = count_satisfied(method, model, family, specification, list(role), settings.rollouts, seed)
    steps = model.steps_on(family.tasks([0], specification).edge_names)
    more = {"specification": specification, "train": list(split.indices), "steps": steps}
    predicted = predict(model, family.tasks(list(role), specification))
    return EvaluationResult(counts, role, settings, origin, more, predicted)
