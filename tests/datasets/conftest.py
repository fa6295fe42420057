"""A trained teacher of `tiny` at index 2 of split gap2, seed 0."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dibs.families import Family, Split, Tasks
from dibs.provenance import Origin
from dibs.settings import parse_settings
from dibs.teachers.store import load_teacher, save_teacher
from dibs.teachers.train import Teacher, TeacherSettings, resolve, train_teacher


@pytest.fixture(scope="session")
def split(tiny: Family) -> Split:
    return tiny.split("gap2")


@pytest.fixture(scope="session")
def tasks(tiny: Family) -> Tasks:
    return tiny.tasks([0, 2, 4])


@pytest.fixture(scope="session")
def teacher_file(
    tmp_path_factory: pytest.TempPathFactory, tasks: Tasks, split: Split, tiny_teachers: dict[str, Any]
) -> Path:
    settings = resolve(parse_settings(TeacherSettings, tiny_teachers), "ars", {})
    file, previous = tmp_path_factory.mktemp("teacher") / "2.safetensors", None
    for index in (0, 2):
        previous, buffers, seconds = train_teacher(tasks, split, index, 0, previous, settings)
    identity = {"family": "tiny", "split": "gap2", "index": 2, "seed": 0}
    save_teacher(file, previous, buffers, Origin("teacher", identity, tasks.digest, "", {"teachers": 1}), seconds)
    return file


@pytest.fixture(scope="session")
def teacher(teacher_file: Path) -> Teacher:
    return load_teacher(teacher_file)
