"""BC: one policy cloned from the pooled datasets of all training indices, no template (paper, section 5.1).

It sees the scaled state and the stage of the specification, like the other methods that know no graph; a row of
an edge's dataset belongs to the stage from which the edge leads on. Adam on minibatches until the loss on
held-out rows stagnates; the rate is halved when it does, a few times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dibs.baselines.ars import count as count_shared
from dibs.baselines.ars import flat_network
from dibs.baselines.flat import FlatTask
from dibs.baselines.registry import Run, Trained
from dibs.datasets.store import load_dataset
from dibs.envs import Array
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family
from dibs.policies.network import Network
from dibs.seeding import stream
from dibs.settings import STRICT
from dibs.spectrl import graph, parse
from dibs.teachers.budget import dibs_steps


@dataclass(frozen=True)
class Settings:
    """Settings of the cloning."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers: wide enough that capacity is not what limits it; empty: those of the family's network."""
    observe_stage: bool = True
    """Whether the policy sees how many stages lie behind it."""
    rate: float = 3e-3
    """Adam's initial rate."""
    batch: int = 512
    """Rows per step."""
    samples: int = 2_000
    """Most rows taken per edge and index."""
    check_every: int = 100
    """Steps between two looks at the loss on held-out rows."""
    patience: int = 3
    """Looks without progress after which the rate is halved."""
    max_steps: int = 4_000
    """Most steps."""


def train(run: Run, settings: Settings) -> Trained:
    """Clone one policy from the datasets of all training indices."""
    task = FlatTask(run.family, run.text, run.train, settings.observe_stage)
    rng = stream("baseline", "bc", run.benchmark, run.gap, run.seed)
    inputs, actions = pooled(run, task, settings)
    network = flat_network(task, settings.hidden)
    theta, losses = clone(network, inputs, actions, settings, rng)
    edges = [edge.name for edge in graph(parse(run.text)).edges]
    return Trained(
        {"theta": theta},
        {"network": asdict(network), "observe_stage": settings.observe_stage},
        dibs_steps(run.places, run.family, run.gap, run.seed, edges),  # its teachers' steps; cloning takes none
        {"rows": len(inputs), "loss": losses},
    )


def pooled(run: Run, task: FlatTask, settings: Settings) -> tuple[Array, Array]:
    """Observations and actions of all training indices and of the benchmark's edges."""
    stages = stage_of_edges(run.text)
    inputs, actions = [], []
    for index in run.train:
        found, _ = load_dataset(run.places.dataset(run.family.name, run.gap, index, run.seed), settings.samples)
        for name, stage in stages.items():
            if name in found:
                states, labels = found[name]
                inputs.append(task.observe(states, np.full(len(states), stage)))
                actions.append(labels)
    if not inputs:
        raise DibsError(f"{run.benchmark} gap {run.gap} seed {run.seed}: no dataset has rows of its edges")
    return np.concatenate(inputs).astype(np.float32), np.concatenate(actions).astype(np.float32)


def stage_of_edges(text: str) -> dict[str, int]:
    """How many stages lie behind a rollout that is on an edge, for every edge of a specification."""
    return {edge.name: n for path in graph(parse(text)).paths() for n, edge in enumerate(path)}


def clone(
    network: Network, inputs: Array, actions: Array, settings: Settings, rng: np.random.Generator
) -> tuple[Array, list[float]]:
    """Minimise the mean squared error; returns the best iterate and the loss on held-out rows over time."""
    order = rng.permutation(len(inputs))
    inputs, actions = inputs[order], actions[order]
    held = max(len(inputs) // 10, 1)
    theta = network.initial(rng)
    first, second = np.zeros_like(theta, dtype=np.float64), np.zeros_like(theta, dtype=np.float64)
    best, best_loss, stale, rate = theta.copy(), np.inf, 0, settings.rate
    losses: list[float] = []
    for step in range(settings.max_steps + 1):
        if step % settings.check_every == 0:
            error = network.forward(theta, inputs[:held]) - actions[:held]
            losses.append(float(np.mean(np.sum(error * error, axis=-1))))
            stale = 0 if losses[-1] < 0.98 * best_loss else stale + 1
            if losses[-1] < best_loss:
                best, best_loss = theta.copy(), losses[-1]
            if stale >= settings.patience:
                rate, stale = rate / 2, 0
            if rate < settings.rate / 16:
                break
        rows = held + rng.integers(max(len(inputs) - held, 1), size=settings.batch)
        rows = np.minimum(rows, len(inputs) - 1)
        _, grad = network.forward_backward(theta, inputs[rows], actions[rows])
        first = 0.9 * first + 0.1 * grad
        second = 0.999 * second + 0.001 * grad.astype(np.float64) ** 2
        unbiased, spread = first / (1 - 0.9 ** (step + 1)), np.sqrt(second / (1 - 0.999 ** (step + 1)))
        theta = (theta - rate * unbiased / (spread + 1e-8)).astype(np.float32)
    if not np.isfinite(best_loss):
        raise DibsError("the loss is not finite: a dataset is damaged, or the rate too large (baselines.bc.rate)")
    return best, losses


def count(
    family: Family, text: str, artefact: Path, seed: int, indices: Sequence[int], settings: EvaluationSettings
) -> dict[int, int]:
    """Satisfying rollouts per index of the one policy."""
    return count_shared(family, text, artefact, seed, indices, settings)
