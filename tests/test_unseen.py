"""No method uses an unseen task: nonsense at unseen indices must not change a single byte of a model.

The tasks come from tables of values per index. One family has the right tables. In the other, every entry of an index
that is not trained on is replaced by nonsense. Both go through all stages with every registered method.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dibs import registry
from dibs.datasets.build import DatasetSettings
from dibs.families import Family, load_family
from dibs.methods import get_method
from dibs.paths import Layout
from dibs.pipeline import Unit, make_dataset, make_model, make_teacher
from dibs.settings import parse_settings
from dibs.teachers.train import TeacherSettings

LAST, TRAIN = 6, (0, 2, 6)
SMALL: dict[str, dict[str, Any]] = {
    "ars": {"steps": 20_000, "restarts": 2, "trial": 2},
    "bc": {"max_steps": 100},
    "genrl": {"steps": 60_000},
    "maml": {"steps": 4_000, "hidden": [8]},
    "varibad": {"steps": 4_000, "hidden": [8], "recurrent": 8, "embedding": 4},
    "bc-index": {"max_steps": 60, "hidden": [8]},
    "ppo-index": {"steps": 4_000, "hidden": [8], "rollouts": 4},
    "hyper": {"max_steps": 60, "hidden": [8], "layers": [8]},
    "ppo-goal": {"steps": 4_000, "hidden": [8], "rollouts": 4, "record_rollouts": 5},
    "ars-plain": {"steps": 5_000, "restarts": 1, "trial": 2},
    "bc-plain": {"max_steps": 60},
    "genrl-public": {"steps": 20_000, "hidden": [4]},
    "dibs": {"max_steps": 60},
    "dibs-plus": {"max_steps": 60, "refine": 5, "motion_rollouts": 40},
    "dibs-plus-still": {"max_steps": 60, "refine": 5},
    "dibs-weights": {"max_steps": 60},
    "dibs-branched": {"max_steps": 60},
    "dibs-affine": {"iterations": 20},
    "motion": {"rollouts": 40},
}
TRAINED = [name for name in registry.names("methods") if not get_method(name).trained_as]


def description() -> dict[str, Any]:
    """A table family of two short Car2D edges past an obstacle."""

    def table(x: float, y: float, **more: Any) -> list[dict[str, Any]]:
        return [{"center": [x + 0.3 * i, y], **more} for i in range(LAST + 1)]

    return {
        "name": "tabled",
        "environment": {"name": "Car2D"},
        "specification": "(achieve reach(a); achieve reach(b)) ensuring avoid(o)",
        "start": {"table": table(0.0, 0.0), "noise": 0.1},
        "regions": {
            "a": {"table": table(2.0, 3.0, half_width=1.0)},
            "b": {"table": table(0.0, 6.0, half_width=1.0)},
            "o": {"table": table(4.0, 6.5, half_width=0.4)},
        },
        "last_index": LAST,
        "horizon": 10,
        "network": {"hidden": [8]},
        "reward": {"unit": 10.0, "depth": 0.2, "margin": 0.1},
    }


def poisoned() -> dict[str, Any]:
    """The same with nonsense at all indices that are not trained on."""
    data = copy.deepcopy(description())
    rng = np.random.default_rng(0)
    for part in (data["start"], *data["regions"].values()):
        for index in set(range(LAST + 1)) - set(TRAIN):
            part["table"][index]["center"] = rng.uniform(-1e3, 1e3, 2).tolist()
            if "half_width" in part["table"][index]:
                part["table"][index]["half_width"] = float(rng.uniform(0.5, 50.0))
    return data


def run(family: Family, root: Path, teachers: dict[str, Any]) -> None:
    """All stages, all methods."""
    layout, split = Layout(root), family.split("sparse", TRAIN)
    weights = {i: layout.teacher(family.name, "sparse", i, 0) for i in TRAIN}
    datasets = {i: layout.dataset(family.name, "sparse", i, 0) for i in TRAIN}
    settings = parse_settings(TeacherSettings, teachers)
    previous = None
    for index in TRAIN:
        make_teacher(family, split, index, 0, settings, weights[index], previous)
        make_dataset(family, split, index, 0, DatasetSettings(size=200, require=0.0), weights[index], datasets[index])
        previous = weights[index]
    unit = Unit(family.name, family, family.specification, family.name)
    for name in TRAINED:
        method = get_method(name)
        chosen: Any = parse_settings(method.settings, {**method.defaults, **SMALL.get(name, {})}, name)
        needed = method.inputs(chosen, TRAIN)
        inputs = [[weights[i] for i in needed["teachers"]], [datasets[i] for i in needed["datasets"]]]
        make_model(method, unit, split, 0, chosen, layout.model(name, family.name, "sparse", 0), *inputs)


@pytest.mark.slow
def test_nonsense_at_unseen_indices_changes_no_byte(tmp_path: Path, tiny_teachers: dict[str, Any]) -> None:
    assert set(TRAINED) <= set(SMALL), "a new method needs small settings here"
    small = {**tiny_teachers, "options": {**tiny_teachers["options"], "iterations": 20}}
    right, wrong = load_family(description()), load_family(poisoned())
    assert right.tasks(range(LAST + 1)).digest != wrong.tasks(range(LAST + 1)).digest
    run(right, tmp_path / "right", small)
    run(wrong, tmp_path / "wrong", small)
    made = sorted(f.relative_to(tmp_path / "right") for f in (tmp_path / "right").rglob("*") if f.is_file())
    assert made == sorted(f.relative_to(tmp_path / "wrong") for f in (tmp_path / "wrong").rglob("*") if f.is_file())
    models = {file.parts[1] for file in made if file.parts[0] == "models"}
    assert models == set(TRAINED)
    for file in made:
        if not file.name.endswith(".timing.json"):
            assert (tmp_path / "right" / file).read_bytes() == (tmp_path / "wrong" / file).read_bytes(), file


@pytest.mark.slow
def test_nonsense_at_a_training_index_is_noticed(tmp_path: Path, tiny_teachers: dict[str, Any]) -> None:
    """The control: the comparison above can fail."""
    small = {**tiny_teachers, "options": {**tiny_teachers["options"], "iterations": 5}}
    moved = description()
    moved["regions"]["a"]["table"][2]["center"] = [2.7, 3.0]
    found = []
    for name, data in (("right", description()), ("moved", moved)):
        family = load_family(data)
        split = family.split("sparse", TRAIN)
        file = tmp_path / name / "0.safetensors"
        make_teacher(family, split, 0, 0, parse_settings(TeacherSettings, small), file)
        second = tmp_path / name / "2.safetensors"
        make_teacher(family, split, 2, 0, parse_settings(TeacherSettings, small), second, file)
        found.append((file.read_bytes(), second.read_bytes()))
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]
