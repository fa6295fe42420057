"""Assignments for teacher algorithms, and how good what they learned is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from dibs.envs import Array
from dibs.families import Family
from dibs.policies.scaling import edge_scaling
from dibs.simulation import EdgeTask, draw, rollout
from dibs.teachers.base import Assignment
from dibs.teachers.buffers import StateBuffers
from dibs.teachers.train import network_of


@pytest.fixture(scope="session")
def assign() -> Callable[..., Assignment]:
    """Make the assignment of one index of a family: all edges, or the named ones."""

    def make(
        family: Family, index: int = 0, seed: int = 0, edges: Sequence[str] | None = None, **more: Any
    ) -> Assignment:
        rng = np.random.default_rng(seed)
        tasks = family.tasks(sorted({0, index, family.last_index}))
        chosen = tasks.edge_names if edges is None else tuple(edges)
        buffers = StateBuffers(len(chosen), tasks.environment.state_names, rng, capacity=1000)
        return Assignment(
            edges=tasks.reach_avoid([index], chosen),
            network=network_of(tasks),
            scaling=edge_scaling(tasks).take(np.array([tasks.edge_names.index(name) for name in chosen])),
            rng=rng,
            seed=seed,
            **{"buffers": buffers, **more},
        )

    return make


@pytest.fixture(scope="session")
def quality() -> Callable[[Assignment, Array], tuple[Array, Array]]:
    """Measure success and return of every edge on fresh rollouts."""

    def measure(given: Assignment, theta: Array) -> tuple[Array, Array]:
        task = EdgeTask(given.edges)
        outcome = rollout(task, given.policy(theta), draw(task, 500, np.random.default_rng(99)))
        return outcome.success.mean(axis=-1), outcome.returns.mean(axis=-1)

    return measure
