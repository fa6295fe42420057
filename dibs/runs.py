"""All stages of one family and split: in memory, or kept in files of the default layout.

`dibs.train` uses a `Chain`: the stages with one seed. With a results folder it reads what is up to date there, which
ids decide, and makes and writes the rest. So an interrupted run loses nothing that was finished.

`dibs run` uses a `Work`: the files of several seeds, methods and benchmarks as jobs, which other processes can do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dibs import stages
from dibs.datasets.build import DatasetSettings
from dibs.datasets.store import Dataset, read_dataset
from dibs.evaluation.evaluate import EvaluationSettings, describe
from dibs.families import Benchmark, Family, Split, load_family
from dibs.files import read_metadata, read_table
from dibs.methods import Method, Model, get_method, load_model
from dibs.paths import Layout
from dibs.pipeline import check_description, keep_description
from dibs.progress import Display, Reporter, tensorboard
from dibs.provenance import Origin
from dibs.settings import parse_settings
from dibs.stages import Unit
from dibs.teachers.checkpoints import open_journal
from dibs.teachers.store import load_replay, load_teacher
from dibs.teachers.train import Teacher, TeacherSettings, resolve


def method_settings(method: Method, settings: Mapping[str, Any] | None = None) -> Any:
    """Return the settings of a method's training: its defaults and what differs."""
    trained = get_method(method.model_method)
    return parse_settings(trained.settings, {**trained.defaults, **(settings or {})}, f"settings of {trained.name}")


def densest_split(family: Family) -> Split:
    """Return the training set with the smallest of the family's gaps, or of at most eleven indices if it names none.

    Indices at which no policy reaches a target are left out.
    """
    gap = min(family.gaps, default=-(-family.last_index // 10))
    indices = [i for i in range(0, family.last_index, gap) if i not in family.out_of_reach]
    whole = len(indices) == len(range(0, family.last_index, gap))
    return family.split(f"gap{gap}") if whole else family.split_of([*indices, family.last_index])


class Chain:
    """Teachers, datasets, models and evaluations of one family, split and seed."""

    def __init__(
        self,
        family: Family,
        split: Split,
        seed: int,
        teachers: TeacherSettings | None = None,
        datasets: DatasetSettings | None = None,
        results: Path | None = None,
        display: Display | None = None,
        tensorboard: Path | None = None,
    ) -> None:
        """With `tensorboard`, event files of what is trained are written below that folder."""
        self.family, self.split, self.seed = family, split, seed
        self.teacher_settings = resolve(teachers or TeacherSettings(), family.teacher, family.teacher_options)
        self.dataset_settings = datasets or DatasetSettings()
        self.layout = None if results is None else Layout(results)
        if self.layout is not None:
            check_description(self.layout, family)
        self.display = display or Display()
        self._events = None if tensorboard is None else Layout(tensorboard)
        self._teachers: dict[int, Teacher] = {}
        self._replays: dict[int, list[np.ndarray]] = {}
        self._datasets: dict[int, Dataset] = {}

    # --- Stage I -------------------------------------------------------------------------------------

    @cached_property
    def teacher_origins(self) -> dict[int, Origin]:
        """What the teacher of every training index is made from."""
        origins: dict[int, Origin] = {}
        for index in self.split.indices:
            before = self.split.before(index)
            previous = None if before is None else origins[before].id
            origins[index] = stages.teacher_origin(
                self.family, self.split.name, index, self.seed, self.teacher_settings, previous
            )
        return origins

    def dataset_origin(self, index: int) -> Origin:
        """What the dataset of a training index is made from."""
        teacher = self.teacher_origins[index].id
        return stages.dataset_origin(self.family, self.split.name, index, self.seed, self.dataset_settings, teacher)

    def teacher(self, index: int) -> Teacher:
        """Return the teacher of a training index."""
        if index not in self._teachers:
            origin, file = self.teacher_origins[index], self._file("teacher", index)
            if file is not None and is_current(file, origin):
                self._teachers[index] = load_teacher(file)
            else:
                before = self.split.before(index)
                previous = None if before is None else self.teacher(before)
                before_file = None if before is None else self._file("teacher", before)
                place = self.family.name, self.split.name, index, self.seed
                events = None if self._events is None else self._events.teacher(*place)
                journal = open_journal(file, origin, before_file)
                aim = self.family, self.split, self.seed, self.teacher_settings
                with self._making(f"teacher {index}", events) as progress:
                    made = stages.teach(*aim, previous, origin, progress, journal)
                    self._save(made, file)
                journal.close()
                self._teachers[index], self._replays[index] = made.teacher, made.replay
                found = made.teacher.metrics
                failed = f", failed on {', '.join(found['failed'])}" if found["failed"] else ""
                self._made(f"teacher {index}", f"success {found['success']:.3f}{failed}, {made.seconds:.1f} s")
        return self._teachers[index]

    def _teacher_source(self, index: int) -> Path | Teacher:
        made = self.teacher(index)
        return self._file("teacher", index) or made

    def dataset(self, index: int) -> Dataset:
        """Return the dataset of a training index."""
        if index not in self._datasets:
            source = self.dataset_source(index)
            self._datasets[index] = source if isinstance(source, Dataset) else read_dataset(source)
        return self._datasets[index]

    def dataset_source(self, index: int) -> Path | Dataset:
        """Return the file of the dataset of a training index; without a results folder, the dataset itself."""
        if index in self._datasets:
            return self._datasets[index]
        origin, file = self.dataset_origin(index), self._file("dataset", index)
        if file is None or not is_current(file, origin):
            teacher = self.teacher(index)
            replay = self._replays.pop(index, None)
            if replay is None:
                replay = load_replay(str(self._file("teacher", index)), teacher.edges)
            with self._making(f"dataset {index}"):
                made = stages.sample(self.family, self.split, self.dataset_settings, teacher, replay, origin)
                if file is None:
                    self._datasets[index] = made.collect()
                    rows = sum(len(actions) for _, actions in self._datasets[index].rows.values())
                else:
                    rows = sum(made.save(file).values())
            self._made(f"dataset {index}", f"{rows} rows")
        return self._datasets[index] if file is None else file

    # --- Stage II and measurement --------------------------------------------------------------------

    def model_origin(self, method: Method, benchmark: Benchmark, settings: Any) -> Origin:
        """What a method's model is made from; `settings` are those of its training."""
        trained = get_method(method.model_method)
        needed = trained.inputs(settings, self.split.indices)
        ids = [self.teacher_origins[i].id for i in needed["teachers"]]
        ids += [self.dataset_origin(i).id for i in needed["datasets"]]
        return stages.model_origin(trained, Unit.of(trained, benchmark), self.split, self.seed, settings, ids)

    def model(self, method: Method, benchmark: Benchmark, settings: Any) -> Model:
        """Return the model that a method is measured on."""
        trained = get_method(method.model_method)
        unit, origin = Unit.of(trained, benchmark), self.model_origin(method, benchmark, settings)
        place = trained.name, unit.name, self.split.name, self.seed
        file = None if self.layout is None else self.layout.model(*place)
        if file is not None and is_current(file, origin):
            return load_model(file)[0]
        # Files rather than objects: a method reads as much of a dataset as it needs.
        needed = trained.inputs(settings, self.split.indices)
        teachers = [self._teacher_source(i) for i in needed["teachers"]]
        datasets = [self.dataset_source(i) for i in needed["datasets"]]
        aim = trained, unit, self.split, self.seed, settings
        events = None if self._events is None else self._events.model(*place)
        with self._making(f"fit {trained.name} to {unit.name}", events) as progress:
            made = stages.fit(*aim, teachers, datasets, origin, progress)
            self._save(made, file)
        self._made(f"fit {trained.name} to {unit.name}", f"{made.seconds:.1f} s")
        return made.model

    def evaluation_origin(
        self, method: Method, benchmark: Benchmark, settings: Any, measured: EvaluationSettings
    ) -> Origin:
        """What an evaluation is made from."""
        model = self.model_origin(method, benchmark, settings).id
        return stages.evaluation_origin(method, benchmark, self.split, self.seed, measured, model)

    def evaluation(
        self, method: Method, benchmark: Benchmark, settings: Any, measured: EvaluationSettings
    ) -> tuple[Any, dict[str, Any]]:
        """Measure a method at every index; return an Arrow table with one row per index, and its metadata."""
        origin = self.evaluation_origin(method, benchmark, settings, measured)
        layout, split, seed = self.layout, self.split, self.seed
        file = None if layout is None else layout.evaluation(method.name, benchmark.id, split.name, seed)
        what = f"evaluate {method.name} on {benchmark.id}"
        if file is not None and is_current(file, origin):
            return read_table(file)
        model = self.model(method, benchmark, settings)
        with self._making(what):
            made = stages.measure(method, benchmark, split, seed, measured, model, origin)
            self._save(made, file)
        self._made(what, describe(stages.ratios_of(made.table)))
        return made.table, made.metadata

    # --- files and reports ---------------------------------------------------------------------------

    def _file(self, kind: str, index: int) -> Path | None:
        if self.layout is None:
            return None
        place = self.layout.teacher if kind == "teacher" else self.layout.dataset
        return place(self.family.name, self.split.name, index, self.seed)

    def _save(self, made: Any, file: Path | None) -> None:
        """Write a result and the family's description: models can then be opened without the family's own file."""
        if self.layout is not None and file is not None:
            keep_description(self.layout, self.family)
            made.save(file)

    @contextmanager
    def _making(self, what: str, events: Path | None = None) -> Iterator[Reporter]:
        """Show that something is being made; yields what it reports to."""
        name = f"seed {self.seed}, {what}"
        self.display.begin(name)

        def report(message: str, done: float | None = None, step: float | None = None, values: Any = None) -> None:
            self.display.report(name, message, done)

        with tensorboard(None if events is None else events.with_suffix(""), report) as reporter:
            yield reporter

    def _made(self, what: str, result: str) -> None:
        self.display.finish(f"seed {self.seed}, {what}", result)


def is_current(file: Path, origin: Origin) -> bool:
    """Whether a file exists and was made from what it would be made from now."""
    return file.is_file() and bool(read_metadata(file).get("id") == origin.id)


# --- all files of several seeds --------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """One file to make."""

    kind: Literal["teacher", "dataset", "model", "evaluation"]
    seed: int
    index: int = 0
    """Of a teacher or dataset."""
    method: str = ""
    benchmark: str = ""


@dataclass(frozen=True)
class Work:
    """What `dibs run` makes. It can be sent to other processes."""

    description: Mapping[str, Any]
    """Of the family."""
    split: Split
    seeds: tuple[int, ...]
    methods: tuple[str, ...]
    benchmarks: tuple[str, ...]
    teachers: TeacherSettings
    datasets: DatasetSettings
    settings: Mapping[str, Any]
    """Settings of training, by method."""
    evaluation: EvaluationSettings
    results: Path
    tensorboard: Path | None = None

    @cached_property
    def family(self) -> Family:
        return load_family(self.description)

    def __reduce__(self) -> Any:
        """Leave out what was computed: environments cannot all be sent to other processes."""
        return Work, tuple(getattr(self, field.name) for field in fields(self))

    def chain(self, seed: int, display: Display | None = None) -> Chain:
        """Return the stages with one seed."""
        aim = self.family, self.split, seed, self.teachers, self.datasets
        return Chain(*aim, self.results, display, self.tensorboard)

    def do(self, job: Job, display: Display) -> None:
        """Make one file from those that it needs."""
        chain = self.chain(job.seed, display)
        if job.kind == "teacher":
            chain.teacher(job.index)
        elif job.kind == "dataset":
            chain.dataset_source(job.index)
        elif job.kind == "model":
            chain.model(*self._aim(job))
        else:
            chain.evaluation(*self._aim(job), self.evaluation)

    def jobs(self) -> dict[Job, list[Job]]:
        """Return the files that are missing or outdated, each with those that must be made before it."""
        found: dict[Job, list[Job]] = {}

        def want(job: Job) -> None:
            if job not in found and not is_current(self.file(job), self._origin(job)):
                needs = self._needs(job)
                for need in needs:
                    want(need)
                found[job] = [need for need in needs if need in found]

        for job in self.evaluations:
            want(job)
        return found

    @property
    def evaluations(self) -> list[Job]:
        """The evaluations, which are what everything else is made for."""
        return [Job("evaluation", s, 0, m, b) for s in self.seeds for m in self.methods for b in self.benchmarks]

    def file(self, job: Job) -> Path:
        """Return the file that a job makes."""
        layout, family, split = Layout(self.results), self.family.name, self.split.name
        if job.kind in ("teacher", "dataset"):
            place = layout.teacher if job.kind == "teacher" else layout.dataset
            return place(family, split, job.index, job.seed)
        if job.kind == "evaluation":
            return layout.evaluation(job.method, job.benchmark, split, job.seed)
        return layout.model(job.method, get_method(job.method).unit(family, job.benchmark), split, job.seed)

    def log(self, job: Job) -> Path:
        """Return where a job's output goes, which is where the workflow puts it."""
        return (self.results / "logs" / self.file(job).relative_to(self.results)).with_suffix(".log")

    def name(self, job: Job) -> str:
        """Return what displays call a job."""
        if job.kind in ("teacher", "dataset"):
            return f"seed {job.seed}, {job.kind} {job.index}"
        if job.kind == "model":
            unit = get_method(job.method).unit(self.family.name, job.benchmark)
            return f"seed {job.seed}, fit {job.method} to {unit}"
        return f"seed {job.seed}, evaluate {job.method} on {job.benchmark}"

    @cached_property
    def _chains(self) -> dict[int, Chain]:
        return {seed: self.chain(seed) for seed in self.seeds}

    def _aim(self, job: Job) -> tuple[Method, Benchmark, Any]:
        aim = Benchmark(job.benchmark, self.family, job.benchmark, self.family.source)
        return get_method(job.method), aim, self.settings[get_method(job.method).model_method]

    def _origin(self, job: Job) -> Origin:
        chain = self._chains[job.seed]
        if job.kind == "teacher":
            return chain.teacher_origins[job.index]
        if job.kind == "dataset":
            return chain.dataset_origin(job.index)
        if job.kind == "model":
            return chain.model_origin(*self._aim(job))
        return chain.evaluation_origin(*self._aim(job), self.evaluation)

    def _needs(self, job: Job) -> list[Job]:
        """Return what a job's file is made from."""
        if job.kind == "teacher":
            before = self.split.before(job.index)
            return [] if before is None else [Job("teacher", job.seed, before)]
        if job.kind == "dataset":
            return [Job("teacher", job.seed, job.index)]
        method, _, settings = self._aim(job)
        if job.kind == "evaluation":
            trained = get_method(method.model_method)
            aim = self.benchmarks[0] if trained.per_family else job.benchmark  # one model may serve all benchmarks
            return [Job("model", job.seed, 0, trained.name, aim)]
        needed = method.inputs(settings, self.split.indices)
        teachers = [Job("teacher", job.seed, i) for i in needed["teachers"]]
        return teachers + [Job("dataset", job.seed, i) for i in needed["datasets"]]
