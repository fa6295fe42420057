"""All stages of one run on the default layout; files that are up to date are kept."""

from __future__ import annotations

from collections.abc import Callable
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
        self.teachers: list[tuple[Path, str]] = []  # file and id, by training index
        self.datasets: list[tuple[Path, str]] = []
        self._tell = tell

    def teachers_and_datasets(self) -> None:
        """Make the teachers and datasets of all training indices."""
        family, split, seed, rows = self.family, self.split, self.seed, DatasetSettings()
        settings = resolve(TeacherSettings(), family.teacher, family.teacher_options)
        for index in split.indices:
            previous = self.teachers[-1] if self.teachers else (None, None)
            file = self.files.teacher(family.name, split.name, index, seed)
            known = teacher_origin(family, split.name, index, seed, settings, previous[1]).id
            if self._missing(file, known, f"teacher {index}"):
                make_teacher(family, split, index, seed, settings, file, previous[0])
            self.teachers.append((file, known))
            data = self.files.dataset(family.name, split.name, index, seed)
            made = dataset_origin(family, split.name, index, seed, rows, known).id
            if self._missing(data, made, f"dataset {index}"):
                make_dataset(family, split, index, seed, rows, file, data)
            self.datasets.append((data, made))

    def evaluation(self, method: Method, benchmark: Benchmark, rollouts: int) -> dict[str, float]:
        """Fit and measure a method; returns its ratios."""
        split, seed, settings = self.split, self.seed, EvaluationSettings(rollouts=rollouts)
        trained = get_method(method.model_method)
        unit = Unit.of(trained, benchmark)
        values: Any = parse_settings(trained.settings, dict(trained.defaults), f"settings of {trained.name}")
        inputs = {kind: getattr(self, kind) if kind in trained.needs else [] for kind in ("teachers", "datasets")}
        file = self.files.model(trained.name, unit.name, split.name, seed)
        ids = [known for made in inputs.values() for _, known in made]
        model = model_origin(trained, unit, split, seed, values, ids).id
        if self._missing(file, model, f"{trained.name} {unit.name}"):
            make_model(trained, unit, split, seed, values, file, *([f for f, _ in made] for made in inputs.values()))
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
