"""All stages of one run on the default layout; files that are up to date are kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from dibs.datasets.build import DatasetSettings
from dibs.evaluation.evaluate import EvaluationSettings, summarize
from dibs.families import Benchmark, Family, Split
from dibs.files import read_metadata, read_table
from dibs.methods import Method, get_method
from dibs.paths import Layout
from dibs.pipeline import (
    Unit,
    dataset_origin,
    evaluation_origin,
    make_dataset,
    make_evaluation,
    make_model,
    make_teacher,
    model_origin,
    teacher_origin,
)
from dibs.settings import parse_settings
from dibs.teachers.train import TeacherSettings, resolve


class Stages:
    """The stages of one family, split and seed."""

    def __init__(self, family: Family, split: Split, seed: int, results: Path, tell: Callable[[str], None]) -> None:
        self.family, self.split, self.seed, self.files = family, split, seed, Layout(results)
        self._tell = tell

    @cache  # noqa: B019
    def teacher(self, index: int) -> tuple[Path, str]:
        """Make the teacher of a training index, and those before it; returns its file and id."""
        family, split, seed = self.family, self.split, self.seed
        settings = resolve(TeacherSettings(), family.teacher, family.teacher_options)
        before = None if index == 0 else split.before(index)
        previous = (None, None) if before is None else self.teacher(before)
        file = self.files.teacher(family.name, split.name, index, seed)
        known = teacher_origin(family, split.name, index, seed, settings, previous[1]).id
        if self._missing(file, known, f"teacher {index}"):
            make_teacher(family, split, index, seed, settings, file, previous[0])
        return file, known

    @cache  # noqa: B019
    def dataset(self, index: int) -> tuple[Path, str]:
        """Make the dataset of a training index; returns its file and id."""
        family, split, seed, settings = self.family, self.split, self.seed, DatasetSettings()
        teacher, teacher_id = self.teacher(index)
        file = self.files.dataset(family.name, split.name, index, seed)
        known = dataset_origin(family, split.name, index, seed, settings, teacher_id).id
        if self._missing(file, known, f"dataset {index}"):
            make_dataset(family, split, index, seed, settings, teacher, file)
        return file, known

    def evaluation(self, method: Method, benchmark: Benchmark, rollouts: int) -> dict[str, float]:
        """Fit and measure a method, with the teachers and datasets that it reads; returns its ratios."""
        split, seed, settings = self.split, self.seed, EvaluationSettings(rollouts=rollouts)
        trained = get_method(method.model_method)
        unit = Unit.of(trained, benchmark)
        values: Any = parse_settings(trained.settings, dict(trained.defaults), f"settings of {trained.name}")
        needed = trained.inputs(values, split.indices)
        teachers, datasets = map(self.teacher, needed["teachers"]), map(self.dataset, needed["datasets"])
        inputs = (list(teachers), list(datasets))
        file = self.files.model(trained.name, unit.name, split.name, seed)
        model = model_origin(trained, unit, split, seed, values, [known for made in inputs for _, known in made]).id
        if self._missing(file, model, f"{trained.name} {unit.name}"):
            make_model(trained, unit, split, seed, values, file, *([f for f, _ in made] for made in inputs))
        output = self.files.evaluation(method.name, benchmark.id, split.name, seed)
        known = evaluation_origin(method, benchmark, split, seed, settings, model).id
        if self._missing(output, known, f"evaluation of {method.name} on {benchmark.id}"):
            make_evaluation(method, benchmark, split, seed, settings, file, output)
        table, _ = read_table(output)
        return summarize(table["role"].to_pylist(), table["succeeds"].to_pylist())

    def _missing(self, file: Path, known: str, what: str) -> bool:
        """Return whether a file has to be made, and say so."""
        exists = file.is_file()
        current = exists and read_metadata(file).get("id") == known
        state = "up to date" if current else "outdated, making it again" if exists else "making it"
        self._tell(f"{self.family.name} {self.split.name} seed {self.seed}: {what}: {state}")
        return not current
