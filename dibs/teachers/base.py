"""What a teacher algorithm is given and what it gives back: the extension point of Stage I.

An algorithm trains one actor per reach-avoid edge of an `Assignment`, offers the states it visits to the assignment's
buffers, and returns a `Learned`. Register an `Algorithm` as an entry point of group `dibs.teachers`:

    [project.entry-points."dibs.teachers"]
    mine = "my_package.mine:ALGORITHM"

The module of the record should import quickly, because configs and plans read the settings of all algorithms. Where
training needs torch, give `train` by its import path.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dibs import registry
from dibs.envs import Array
from dibs.families import ReachAvoid
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.progress import Reporter
from dibs.simulation import NetworkPolicy, Rows
from dibs.teachers.buffers import StateBuffers
from dibs.teachers.journal import Journal


@dataclass(frozen=True, eq=False)
class Assignment:
    """Everything an algorithm may know: the edges of one index, and the teacher of the previous one."""

    edges: ReachAvoid  # one task per edge
    network: Network
    scaling: Scaling
    buffers: StateBuffers
    rng: np.random.Generator
    seed: int
    """For libraries that take an integer."""
    previous: Array | None = None  # (edges, size): the teacher of the previous index; None at index 0
    anchor: float = 0.0
    """λ_x: weight of ‖θ − θ_prev‖² in the minimized objective."""
    confidence: float = 0.0
    """λ_conf: weight of the confidence loss in the joint objective."""
    depth: float = 0.0
    """While training, the target counts as reached only this deep inside."""
    progress: Reporter | None = None
    warm: bool = True
    """Start from the previous teacher instead of from scratch."""
    journal: Journal = field(default_factory=Journal)
    """Where an algorithm keeps finished pieces and checkpoints, under names that begin with `piece`."""
    piece: str = ""

    def pull(self, theta: Array, edges: Rows) -> Array:
        """Return λ_x‖θ − θ_prev‖² (rows, ...) of parameters (rows, ..., size) on the given edges (rows,)."""
        if self.previous is None or self.anchor == 0.0:
            return np.zeros(theta.shape[:-1], dtype=np.float32)
        previous = self.previous[edges].astype(np.float32)
        apart = theta - previous.reshape(len(edges), *(1,) * (theta.ndim - 2), -1)
        return np.asarray(self.anchor * np.sum(apart**2, axis=-1))

    @property
    def start(self) -> Array | None:
        """Weights (edges, size) to start from; None: random ones."""
        return self.previous if self.warm else None

    def inputs(self, edges: Rows, states: Array) -> Array:
        """Return the network's inputs (rows, n, inputs) in states (rows, n, dim) of the given edges (rows,)."""
        scaling = self.scaling.take(edges)
        return (self.edges.environment.observe(states) - scaling.center[:, None]) / scaling.half[:, None]

    def policy(self, theta: Array, edges: Rows | None = None) -> NetworkPolicy:
        """Return actors (..., rows, size) as a policy for the simulator; by default there is one row per edge."""
        scaling = self.scaling if edges is None else self.scaling.take(edges)
        return NetworkPolicy(self.network, self.network.fold(theta, scaling.center, scaling.half))


@dataclass(frozen=True, eq=False)
class Learned:
    """One actor per edge, and how it was found."""

    theta: Array  # (edges, size)
    head: Array | None  # (edges, features + 1): confidence heads trained jointly; None: fit one afterwards
    steps: int
    """Environment steps."""
    iterations: int
    curve: list[dict[str, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Algorithm:
    """A teacher algorithm."""

    name: str
    settings: type
    """A frozen dataclass; every field has a docstring."""
    train: Callable[[Assignment, Any], Learned] | str
    """A function, or its import path `package.module:function`."""
    version: int = 1
    """Raised manually when its results change."""
    memory_mb: int = 2000
    """Memory of a training job on a cluster."""
    minutes: int = 30
    """Run time of a training job on a cluster."""


def get_algorithm(name: str) -> Algorithm:
    """Return a registered algorithm."""
    algorithm: Algorithm = registry.load("teachers", name)
    return algorithm
