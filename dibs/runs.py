"""All stages of one family, split and seed: in memory, or kept in files of the default layout.

`dibs.train` and `dibs run` use a `Chain`. With a results folder it reads what is up to date there, which ids decide,
and makes and writes the rest. So an interrupted run loses nothing that was finished.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dibs import stages
from dibs.datasets.build import DatasetSettings
from dibs.datasets.store import Dataset, read_dataset
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Benchmark, Family, Split
from dibs.files import read_metadata, read_table
from dibs.methods import Method, Model, get_method, load_model
from dibs.paths import Layout
from dibs.provenance import Origin
from dibs.settings import parse_settings
from dibs.stages import Progress, Unit
from dibs.teachers.checkpoints import open_journal
from dibs.teachers.store import load_replay, load_teacher
from dibs.teachers.train import Teacher, TeacherSettings, resolve

Tell = Callable[[str, str], None]
"""Called with what is made, such as `teacher 5`, and what happens to it: kept, making, outdated, or done and how."""


def method_settings(method: Method, settings: Mapping[str, Any] | None = None) -> Any:
    """Return the settings of a method's training: its defaults and what differs."""
    trained = get_method(method.model_method)
    return parse_settings(trained.settings, {**trained.defaults, **(settings or {})}, f"settings of {trained.name}")


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
        tell: Tell | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.family, self.split, self.seed = family, split, seed
        self.teacher_settings = resolve(teachers or TeacherSettings(), family.teacher, family.teacher_options)
        self.dataset_settings = datasets or DatasetSettings()
        self.layout = None if results is None else Layout(results)
        self._tell, self._progress = tell or (lambda what, state: None), progress
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
            if file is not None and self._kept(file, origin, f"teacher {index}"):
                self._teachers[index] = load_teacher(file)
            else:
                before = self.split.before(index)
                previous = None if before is None else self.teacher(before)
                before_file = None if before is None else self._file("teacher", before)
                journal = open_journal(file, origin, before_file)
                made = stages.teach(
                    self.family, self.split, self.seed, self.teacher_settings, previous, origin, self._progress, journal
                )
                self._save(made, file)
                journal.close()
                self._teachers[index], self._replays[index] = made.teacher, made.replay
                rate = made.teacher.metrics["success"]
                self._tell(f"teacher {index}", f"done, success {rate:.3f}, {made.seconds:.1f} s")
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
        if file is None or not self._kept(file, origin, f"dataset {index}"):
            teacher = self.teacher(index)
            replay = self._replays.pop(index, None)
            if replay is None:
                replay = load_replay(str(self._file("teacher", index)), teacher.edges)
            made = stages.sample(self.family, self.split, self.dataset_settings, teacher, replay, origin)
            if file is None:
                self._datasets[index] = made.collect()
            else:
                made.save(file)
            self._tell(f"dataset {index}", "done")
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
        file = None if self.layout is None else self.layout.model(trained.name, unit.name, self.split.name, self.seed)
        what = f"{trained.name} {unit.name}"
        if file is not None and self._kept(file, origin, what):
            return load_model(file)[0]
        # Files rather than objects: a method reads as much of a dataset as it needs.
        needed = trained.inputs(settings, self.split.indices)
        teachers = [self._teacher_source(i) for i in needed["teachers"]]
        datasets = [self.dataset_source(i) for i in needed["datasets"]]
        made = stages.fit(trained, unit, self.split, self.seed, settings, teachers, datasets, origin, self._progress)
        self._save(made, file)
        self._tell(what, f"done, {made.seconds:.1f} s")
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
        what = f"evaluation of {method.name} on {benchmark.id}"
        if file is not None and self._kept(file, origin, what):
            return read_table(file)
        model = self.model(method, benchmark, settings)
        made = stages.measure(method, benchmark, split, seed, measured, model, origin)
        self._save(made, file)
        ratios = stages.ratios_of(made.table)
        shown = f"training {ratios['training_ratio']:.3f}, zero-shot {ratios['zero_shot_ratio']:.3f}"
        self._tell(what, f"done, {shown}")
        return made.table, made.metadata

    # --- files ---------------------------------------------------------------------------------------

    def _file(self, kind: str, index: int) -> Path | None:
        if self.layout is None:
            return None
        place = self.layout.teacher if kind == "teacher" else self.layout.dataset
        return place(self.family.name, self.split.name, index, self.seed)

    def _kept(self, file: Path, origin: Origin, what: str) -> bool:
        """Whether a file is up to date; tells what will happen to it."""
        exists = file.is_file()
        current = exists and read_metadata(file).get("id") == origin.id
        self._tell(what, "kept" if current else "outdated, making" if exists else "making")
        if not current and self.layout is not None:  # models that are made here can be opened without the family's file
            description = self.layout.family(self.family.name)
            if not description.is_file() or description.read_text() != self.family.to_yaml():
                self.family.save(description)
        return current

    def _save(self, made: Any, file: Path | None) -> None:
        if file is not None:
            made.save(file)
