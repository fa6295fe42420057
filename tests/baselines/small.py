"""Short trainings of all flat methods on the tiny family."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dibs.baselines import ars, bc, maml, varibad
from dibs.datasets.build import Block
from dibs.datasets.store import save_dataset
from dibs.families import Family
from dibs.files import write_tensors
from dibs.methods import Method, Model, Training
from dibs.paths import metrics
from dibs.provenance import Origin

TEACHER_STEPS = 30_000  # per teacher and edge
ROWS = 400  # per dataset and edge
SETTINGS: dict[str, Any] = {
    "ars": ars.Settings(check_rollouts=20),
    "bc": bc.Settings(hidden=(32,), max_steps=2000, check_every=200),
    "maml": maml.Settings(steps=4000, hidden=(8,), rollouts=4, epochs=2, check_every=2, check_rollouts=5),
    "varibad": varibad.Settings(
        steps=2000,
        hidden=(8,),
        rollouts=4,
        epochs=2,
        minibatch=256,
        latent=2,
        recurrent=6,
        embedding=4,
        decoder=(8,),
        vae_updates=2,
        vae_episodes=8,
        check_every=2,
        check_rollouts=5,
    ),
}
TRAINED = {"ars": ars.METHOD, "bc": bc.METHOD, "maml": maml.METHOD, "varibad": varibad.METHOD}
MEASURED: tuple[Method, ...] = (*TRAINED.values(), maml.ADAPTED)


@dataclass(frozen=True)
class Small:
    """Trains the methods on the training tasks 0, 2 and 4 of the tiny family."""

    family: Family
    folder: Path

    def training(self, seed: int = 0) -> Training:
        """What the methods are given; teachers and datasets are made up."""
        split, edges = self.family.split("gap2"), self.family.tasks([0]).edge_names
        teachers = [self.folder / f"teacher{index}.safetensors" for index in split.indices]
        datasets = [self.folder / f"dataset{index}.parquet" for index in split.indices]
        for index, teacher, dataset in zip(split.indices, teachers, datasets, strict=True):
            steps = {name: {"steps": TEACHER_STEPS} for name in edges}
            write_tensors(teacher, {"actor": np.zeros(1)}, {"id": teacher.stem})
            metrics(teacher).write_text(json.dumps({"id": teacher.stem, "metrics": {"edges": steps}}))
            if not dataset.exists():
                self._save(dataset, index)
        return Training(self.family.tasks(split.indices), self.family.name, split, seed, teachers, datasets)

    def train(self, name: str, seed: int = 0) -> Model:
        return TRAINED[name].train(self.training(seed), SETTINGS[name])

    def rows(self, index: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """States of each edge at an index, and actions that lead to its target."""
        rng = np.random.default_rng(index)
        found, at, boxes = (
            {},
            self.family.start.at(np.asarray(index), self.family.environment.state_names),
            self.family.regions_at(index),
        )
        for edge in self.family.edges:
            target = boxes[edge.head].center
            along = rng.uniform(-0.1, 1.0, (ROWS, 1))
            states = (at + along * (target - at) + rng.normal(0.0, 0.5, (ROWS, 2))).astype(np.float32)
            way = target - states
            actions = np.stack([np.ones(ROWS), np.arctan2(way[:, 1], way[:, 0]) / np.pi], axis=-1)
            found[edge.name] = (states, actions.astype(np.float32))
            at = target
        return found

    def _save(self, path: Path, index: int) -> None:
        rows, environment = self.rows(index), self.family.environment
        blocks = [
            Block(e, states, actions, np.zeros(ROWS, dtype=np.intp), np.ones(ROWS))
            for e, (states, actions) in enumerate(rows.values())
        ]
        teacher: Any = SimpleNamespace(edges=tuple(rows))
        origin = Origin("dataset", {"family": "tiny", "index": index}, "", "", {})
        save_dataset(path, teacher, environment.state_names, environment.action_names, iter(blocks), origin)


def model_bytes(model: Model) -> dict[str, bytes]:
    """All bytes of a model's tensors."""
    return {name: np.asarray(tensor).tobytes() for name, tensor in model.tensors.items()}
