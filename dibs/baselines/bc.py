"""BC: one policy cloned from the pooled datasets of all training indices, no template (paper, section 5.1).

It sees the scaled state and the stage of the specification, like the other methods that know no graph. A row of an
edge's dataset belongs to the stage at which the edge starts. Adam runs on minibatches and halves its rate when the
loss on held-out rows stagnates; after a few times it ends.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dibs.baselines.flat import FlatView, flat_policy
from dibs.datasets.store import load_dataset
from dibs.envs import Array
from dibs.errors import DibsError
from dibs.methods import Method, Model, Training
from dibs.policies.adam import Adam
from dibs.policies.network import Network, network_of
from dibs.seeding import stream
from dibs.settings import STRICT
from dibs.spectrl import Graph


@dataclass(frozen=True)
class Cloning:
    """How a network is cloned from rows of datasets."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers: wide enough that capacity is not what limits it; empty: those of the family's network."""
    rate: float = 3e-3
    """Adam's initial rate."""
    batch: int = 512
    """Rows per step."""
    samples: int = 500_000
    """Most rows of a dataset that are taken per edge and index."""
    check_every: int = 100
    """Steps between two measurements of the loss on held-out rows."""
    patience: int = 3
    """Measurements without progress after which the rate is halved."""
    max_steps: int = 4_000
    """Most steps."""


@dataclass(frozen=True)
class Settings(Cloning):
    """Settings of BC."""

    observe_stage: bool = True
    """Whether the policy sees how many stages are completed."""


def train(training: Training, settings: Settings) -> Model:
    """Clone one policy from the datasets of all training indices."""
    view = FlatView.of_tasks(training.tasks, settings.observe_stage)
    network = network_of(training.tasks, settings.hidden, view.size)
    rng = stream("baseline", "bc", training.benchmark, training.split.key, training.seed)
    inputs, actions = pooled(training, view, settings.samples)
    theta, losses = clone(network, inputs, actions, settings, rng)
    steps = training.teacher_steps()  # cloning takes none of its own
    metrics = {"rows": len(inputs), "loss": losses}
    curve = [{"check": n, "loss": loss} for n, loss in enumerate(losses)]
    return replace(view.model({"theta": theta}, {"network": asdict(network)}, steps, metrics), curve=curve)


def pooled(training: Training, view: FlatView, samples: int) -> tuple[Array, Array]:
    """Return inputs and actions (rows, ...) of all training indices, on the edges of the tasks."""
    inputs, actions = [], []
    for path in training.datasets:
        found, _ = load_dataset(path, samples)
        for name, stage in stage_of_edges(training.tasks.graph).items():
            if name in found:
                states, labels = found[name]
                observation = training.tasks.environment.observe(states)
                inputs.append(view.inputs(observation, np.full(len(states), stage)))
                actions.append(labels)
    if not inputs:
        run = f"{training.benchmark} {training.split.name} seed {training.seed}"
        raise DibsError(f"{run}: no dataset has rows of its edges")
    return np.concatenate(inputs).astype(np.float32), np.concatenate(actions).astype(np.float32)


def stage_of_edges(graph: Graph) -> dict[str, int]:
    """Return for every edge how many stages are completed while a rollout is on it."""
    return {edge.name: n for path in graph.paths() for n, edge in enumerate(path)}


class Plateau:
    """Keeps the best iterate of each of some networks, and halves the rate when none has made progress for a while."""

    def __init__(self, settings: Cloning, theta: Array) -> None:
        self.settings, self.rate, self.stale = settings, settings.rate, 0
        self.best, self.best_loss = theta.copy(), np.full(len(theta), np.inf)
        self.losses: list[list[float]] = []

    def ends(self, theta: Array, loss: Array) -> bool:
        """Take note of networks (n, size) with held-out losses (n,); return whether the rate has become too small."""
        self.losses.append(loss.tolist())
        self.stale = 0 if (loss < 0.98 * self.best_loss).any() else self.stale + 1
        better = loss < self.best_loss
        self.best[better], self.best_loss[better] = theta[better], loss[better]
        if self.stale >= self.settings.patience:
            self.rate, self.stale = self.rate / 2, 0
        return self.rate < self.settings.rate / 16

    def found(self, method: str) -> Array:
        """Return the best networks."""
        if not np.isfinite(self.best_loss).all():
            raise DibsError(f"the loss is not finite: a dataset is damaged, or the rate of {method} is too large")
        return self.best


def clone(
    network: Network, inputs: Array, actions: Array, settings: Cloning, rng: np.random.Generator
) -> tuple[Array, list[float]]:
    """Minimize the mean squared error; return the best iterate and the loss on held-out rows over time."""
    count, order = len(inputs), rng.permutation(len(inputs))
    inputs, actions, held = inputs[order], actions[order], max(count // 10, 1)
    theta, adam = network.initial(rng), Adam((network.size,))
    plateau = Plateau(settings, theta[None])
    for step in range(settings.max_steps + 1):
        if step % settings.check_every == 0:
            error = network.forward(theta, inputs[:held]) - actions[:held]
            loss = np.mean(np.sum(error * error, axis=-1), keepdims=True)
            if plateau.ends(theta[None], loss.astype(np.float64)):
                break
        rows = np.minimum(held + rng.integers(max(count - held, 1), size=settings.batch), count - 1)
        _, gradient = network.forward_backward(theta, inputs[rows], actions[rows])
        theta = (theta - adam.step(gradient, plateau.rate)).astype(np.float32)
    return plateau.found("bc")[0], [loss for (loss,) in plateau.losses]


LOOK: dict[str, Any] = {"color": "#55BB9A", "marker": "s", "hatch": "---", "dashes": (), "order": 2}
# Teachers are needed for the number of steps.
NEEDS = ("teachers", "datasets")
METHOD = Method("bc", "BC", Settings, train, flat_policy, NEEDS, version=2, memory_mb=2000, minutes=15, **LOOK)
LOOK = {"color": "#A9DDC9", "marker": "s", "hatch": "--", "dashes": (1.5, 1.0), "hollow": True, "order": 31}
PLAIN = replace(METHOD, name="bc-plain", label="BC (plain)", defaults={"observe_stage": False}, **LOOK)
"""As the paper seems to have run it: the policy sees the state only."""
