"""No method uses an unseen task: nonsense at unseen indices must not change a single byte of a model.

The tasks come from tables of values per index. One family has the right tables. In the other, every entry of an index
that is not trained on is replaced by nonsense. Both go through all stages with every registered method, in every
environment, with ARS and PPO, on sequences of edges and on branches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
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

SMALL: dict[str, dict[str, Any]] = {
    "ars": {"steps": 20_000, "restarts": 2, "trial": 2},
    "bc": {"max_steps": 60},
    "genrl": {"steps": 12_000},
    "maml": {"steps": 600, "hidden": [8]},
    "varibad": {"steps": 600, "hidden": [8], "recurrent": 8, "embedding": 4},
    "bc-index": {"max_steps": 60, "hidden": [8]},
    "ppo-index": {"steps": 600, "hidden": [8], "rollouts": 4},
    "hyper": {"max_steps": 60, "hidden": [8], "layers": [8]},
    "ppo-goal": {"steps": 600, "hidden": [8], "rollouts": 4, "record_rollouts": 5},
    "ars-plain": {"steps": 5_000, "restarts": 1, "trial": 2},
    "bc-plain": {"max_steps": 60},
    "genrl-public": {"steps": 12_000, "hidden": [4]},
    "dibs": {"max_steps": 60},
    "dibs-plus": {"max_steps": 60, "refine": 5, "motion_rollouts": 40},
    "dibs-plus-still": {"max_steps": 60, "refine": 5},
    "dibs-weights": {"max_steps": 60},
    "dibs-branched": {"max_steps": 60},
    "dibs-affine": {"iterations": 20},
    "motion": {"rollouts": 40},
}
TRAINED = [name for name in registry.names("methods") if not get_method(name).trained_as]


FAST_ARS = {
    "options": {"directions": 4, "best": 2, "rollouts": 4, "iterations": 20, "restarts": 2, "check_rollouts": 20}
}
FAST_PPO = {"options": {"iterations": 4, "n_envs": 32, "batch": 256, "restarts": 1, "checks": 50}}


@dataclass(frozen=True)
class World:
    """A family of tables: an environment, a kind of specification and an algorithm."""

    environment: str
    specification: str
    start: list[float]
    regions: dict[str, tuple[list[float], float]]
    """Center at index 0, and half-width."""
    move: list[float]
    """What is added to start and centers per index."""
    algorithm: str
    options: dict[str, Any]
    last: int = 4
    train: tuple[int, ...] = (0, 2, 4)

    def description(self) -> dict[str, Any]:
        def table(center: list[float], **more: Any) -> list[dict[str, Any]]:
            steps = [np.add(center, np.multiply(i, self.move)) for i in range(self.last + 1)]
            return [{"center": step.tolist(), **more} for step in steps]

        return {
            "name": "tabled",
            "environment": {"name": self.environment},
            "specification": self.specification,
            "start": {"table": table(self.start), "noise": 0.1},
            "regions": {n: {"table": table(c, half_width=half)} for n, (c, half) in self.regions.items()},
            "last_index": self.last,
            "horizon": 10,
            "network": {"hidden": [8]},
            "reward": {"unit": 10.0, "depth": 0.2, "margin": 0.1},
        }

    def poisoned(self) -> dict[str, Any]:
        """The same with nonsense at all indices that are not trained on."""
        data = self.description()
        rng, environment = np.random.default_rng(0), registry.load("environments", self.environment)()
        for part in (data["start"], *data["regions"].values()):
            for index in set(range(self.last + 1)) - set(self.train):
                nonsense = environment.project(rng.uniform(-1e3, 1e3, len(self.start)))
                part["table"][index]["center"] = nonsense.tolist()
                if "half_width" in part["table"][index]:
                    part["table"][index]["half_width"] = float(rng.uniform(0.5, 50.0))
        return data

    @property
    def teachers(self) -> TeacherSettings:
        common = {"capacity": 1000, "probes": 100, "rollouts": 200}
        return parse_settings(TeacherSettings, {**common, "algorithm": self.algorithm, **self.options})


CAR = World(
    "Car2D",
    "(achieve reach(a); achieve reach(b)) ensuring avoid(o)",
    [0.0, 0.0],
    {"a": ([2.0, 3.0], 1.0), "b": ([0.0, 6.0], 1.0), "o": ([4.0, 6.5], 0.4)},
    [0.3, 0.0],
    "ars",
    FAST_ARS,
    6,
    (0, 2, 6),
)
WORLDS = {
    "edges in order, ARS": CAR,
    "branches, ARS": replace(
        CAR,
        specification="((achieve reach(a) or achieve reach(c)); achieve reach(b)) ensuring avoid(o)",
        regions={**CAR.regions, "c": ([-2.0, 3.0], 1.0)},
    ),
    "drone, PPO": World(
        "SimpleDrone",
        "achieve reach(a); achieve reach(b)",
        [0.0, 0.0, 0.0],
        {"a": ([2.0, 2.0, 1.0], 1.0), "b": ([0.0, 4.0, 2.0], 1.0)},
        [0.3, 0.0, 0.0],
        "ppo",
        FAST_PPO,
    ),
    "drone with attitude, PPO": World(
        "DroneAttitude",
        "achieve reach(a)",
        [0.0, 0.0, 0.0, 0.0, 0.0],
        {"a": ([2.0, 2.0, 1.0, 0.0, 0.0], 2.0)},
        [0.3, 0.0, 0.0, 0.0, 0.0],
        "ppo",
        FAST_PPO,
    ),
    "arm, PPO": World(
        "Reacher",
        "achieve reach(a); achieve reach(b)",
        [4.0, 6.0],
        {"a": ([4.0, 5.0], 1.0), "b": ([3.0, 5.0], 1.0)},
        [0.0, 0.3],
        "ppo",
        FAST_PPO,
    ),
}


def run(world: World, family: Family, root: Path) -> None:
    """All stages, all methods."""
    layout, split = Layout(root), family.split("sparse", world.train)
    weights = {i: layout.teacher(family.name, "sparse", i, 0) for i in world.train}
    datasets = {i: layout.dataset(family.name, "sparse", i, 0) for i in world.train}
    sampled = DatasetSettings(size=200, require=0.0, threshold=0.5, least_acceptance=1e-4)
    previous = None
    for index in world.train:
        make_teacher(family, split, index, 0, world.teachers, weights[index], previous)
        make_dataset(family, split, index, 0, sampled, weights[index], datasets[index])
        previous = weights[index]
    unit = Unit(family.name, family, family.specification, family.name)
    for name in TRAINED:
        method = get_method(name)
        chosen: Any = parse_settings(method.settings, {**method.defaults, **SMALL[name]}, name)
        needed = method.inputs(chosen, world.train)
        inputs = [[weights[i] for i in needed["teachers"]], [datasets[i] for i in needed["datasets"]]]
        make_model(method, unit, split, 0, chosen, layout.model(name, family.name, "sparse", 0), *inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_nonsense_at_unseen_indices_changes_no_byte(name: str, tmp_path: Path) -> None:
    world = WORLDS[name]
    assert set(TRAINED) <= set(SMALL), "a new method needs small settings here"
    right, wrong = load_family(world.description()), load_family(world.poisoned())
    assert right.tasks(range(world.last + 1)).digest != wrong.tasks(range(world.last + 1)).digest
    run(world, right, tmp_path / "right")
    run(world, wrong, tmp_path / "wrong")
    made = sorted(f.relative_to(tmp_path / "right") for f in (tmp_path / "right").rglob("*") if f.is_file())
    assert made == sorted(f.relative_to(tmp_path / "wrong") for f in (tmp_path / "wrong").rglob("*") if f.is_file())
    models = {file.parts[1] for file in made if file.parts[0] == "models"}
    assert models == set(TRAINED)
    for file in made:
        if not file.name.endswith(".timing.json"):
            assert (tmp_path / "right" / file).read_bytes() == (tmp_path / "wrong" / file).read_bytes(), file


@pytest.mark.slow
@pytest.mark.parametrize("name", WORLDS)
def test_nonsense_at_a_training_index_is_noticed(name: str, tmp_path: Path) -> None:
    """The control: the comparison above can fail."""
    world = WORLDS[name]
    moved = world.description()
    moved["regions"]["a"]["table"][2]["center"][0] += 0.1
    found = []
    for name, data in (("right", world.description()), ("moved", moved)):
        family = load_family(data)
        split = family.split("sparse", world.train)
        file = tmp_path / name / "0.safetensors"
        make_teacher(family, split, 0, 0, world.teachers, file)
        second = tmp_path / name / "2.safetensors"
        make_teacher(family, split, 2, 0, world.teachers, second, file)
        found.append((file.read_bytes(), second.read_bytes()))
    assert found[0][0] == found[1][0]
    assert found[0][1] != found[1][1]
