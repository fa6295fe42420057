"""The nearest teacher: at every index the policy of the closest training index."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dibs.families import Tasks
from dibs.methods import Method, Model, Training
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.simulation.composed import Composed, network_paths
from dibs.teachers.store import load_teacher


@dataclass(frozen=True)
class Settings:
    """There is nothing to set."""


def train(training: Training, settings: Settings) -> Model:
    """Collect the teachers of all training indices."""
    teachers = [load_teacher(file) for file in training.teachers]
    tensors = {
        "actors": np.stack([teacher.actor for teacher in teachers]),  # (indices, edges, size)
        "center": teachers[0].scaling.center,
        "half": teachers[0].scaling.half,
    }
    metadata = {
        "network": asdict(teachers[0].network),
        "edges": list(teachers[0].edges),
        "train": list(training.split.indices),
    }
    return Model(tensors, metadata, training.teacher_steps())


def policy(model: Model, tasks: Tasks) -> Composed:
    """Return the policies of the given tasks, along the first path of the specification's graph."""
    known: Any = model.metadata
    network = Network(**{**known["network"], "hidden": tuple(known["network"]["hidden"])})
    nearest = [int(np.abs(np.array(known["train"]) - index).argmin()) for index in tasks.indices]
    path = tuple(edge.name for edge in tasks.graph.paths()[0])
    scaling = Scaling(model.tensors["center"], model.tensors["half"])
    return network_paths(network, scaling, known["edges"], model.tensors["actors"][nearest], [path] * len(nearest))


METHOD = Method(
    name="nearest",
    label="Nearest teacher",
    settings=Settings,
    train=train,
    policy=policy,
    needs=("teachers",),
    color="#BCBD22",
    marker="p",
    minutes=5,
)
