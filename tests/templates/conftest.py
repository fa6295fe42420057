"""Teachers, datasets and the template of the tiny family, made once by the stages' functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dibs.datasets.build import DatasetSettings
from dibs.families import Family
from dibs.methods import Model, Training
from dibs.paths import Layout
from dibs.pipeline import make_dataset, make_teacher
from dibs.settings import parse_settings
from dibs.teachers.train import TeacherSettings
from dibs.templates import select
from dibs.templates.affine import AffineSettings
from dibs.templates.fit import FitSettings
from dibs.templates.methods import DIBS


@pytest.fixture
def quick_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare fits that are hardly begun."""
    monkeypatch.setattr(select, "STEPS", 10)
    monkeypatch.setattr(select, "QUICK", AffineSettings(iterations=3, restarts=0))
    monkeypatch.setattr(select, "AFFINE", AffineSettings(iterations=3, restarts=0))


@pytest.fixture(scope="session")
def training(tmp_path_factory: pytest.TempPathFactory, tiny: Family, tiny_teachers: dict[str, Any]) -> Training:
    """What a method is given on split gap2 (0, 2, 4 trained) of `tiny`, seed 0."""
    files, split = Layout(tmp_path_factory.mktemp("training")), tiny.split("gap2")
    settings = parse_settings(TeacherSettings, tiny_teachers)
    teachers: list[Path] = []
    datasets: list[Path] = []
    for index in split.indices:
        teacher = files.teacher("tiny", split.name, index, 0)
        make_teacher(tiny, split, index, 0, settings, teacher, teachers[-1] if teachers else None)
        dataset = files.dataset("tiny", split.name, index, 0)
        make_dataset(tiny, split, index, 0, DatasetSettings(size=300), teacher, dataset)
        teachers.append(teacher)
        datasets.append(dataset)
    return Training(tiny.tasks(split.indices), "tiny", split, 0, teachers, datasets)


@pytest.fixture(scope="session")
def model(training: Training) -> Model:
    """The model of `dibs`."""
    return DIBS.train(training, FitSettings(max_steps=300, batch=128))
