"""State buffers kept while a teacher trains (paper, section 4.1): high quality, low quality, replay.

High-quality states come from rollouts that satisfy the edge's reach-avoid task. Low-quality states come from those
that do not, including early exploration and randomized resets, and from perturbed observations: some states of all
rollouts are offered a second time, moved by normal noise. The replay buffer takes the states of all rollouts. Each
buffer keeps a uniform sample of all that it was offered, in bounded memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dibs.envs import Array
from dibs.simulation import Bools, Rows

KINDS = ("high", "low", "replay")
PERTURBED = 0.1  # share of the visited states that are offered a second time, perturbed


@dataclass
class Reservoir:
    """A uniform sample, of bounded size, of all states offered so far (Vitter's algorithm R, batched)."""

    capacity: int
    dim: int
    rng: np.random.Generator
    offered: int = 0
    states: Array = field(init=False)

    def __post_init__(self) -> None:
        self.states = np.zeros((self.capacity, self.dim), dtype=np.float32)

    def __len__(self) -> int:
        return min(self.offered, self.capacity)

    def add(self, states: Array) -> None:
        """Offer states (n, dim)."""
        free = max(self.capacity - self.offered, 0)
        first, rest = states[:free], states[free:]
        self.states[self.offered : self.offered + len(first)] = first
        self.offered += len(first)
        if len(rest):
            ranks = self.offered + 1 + np.arange(len(rest))
            slots = (self.rng.random(len(rest)) * ranks).astype(np.int64)
            keep = slots < self.capacity
            self.states[slots[keep]] = rest[keep]
            self.offered += len(rest)

    def view(self) -> Array:
        """Return the states held now (n, dim)."""
        return self.states[: len(self)]


@dataclass(frozen=True, eq=False)
class Perturbation:
    """How observations of every edge are perturbed."""

    std: Array
    """Standard deviation (edges, dim) of the noise."""
    allowed: Callable[[Array], Array]
    """Maps states (n, dim) to the nearest ones that the environment allows."""

    def __call__(self, edge: int, states: Array, rng: np.random.Generator) -> Array:
        """Return perturbed states (n, dim)."""
        noise = self.std[edge] * rng.standard_normal(states.shape, dtype=np.float32)
        return self.allowed((states + noise).astype(np.float32))


class StateBuffers:
    """The three buffers of every edge of one teacher."""

    def __init__(
        self,
        edges: int,
        state_names: Sequence[str],
        rng: np.random.Generator,
        capacity: int = 10_000,
        perturbation: Perturbation | None = None,
    ) -> None:
        self.state_names, self.rng, self.perturbation = tuple(state_names), rng, perturbation
        self.edges = [{kind: Reservoir(capacity, len(self.state_names), rng) for kind in KINDS} for _ in range(edges)]

    def take(self, edges: Sequence[int]) -> StateBuffers:
        """Return the buffers of some edges; they are shared, not copied."""
        kept = self.perturbation and replace(self.perturbation, std=self.perturbation.std[list(edges)])
        part = StateBuffers(0, self.state_names, self.rng, perturbation=kept)
        part.edges = [self.edges[e] for e in edges]
        return part

    def saved(self) -> list[dict[str, dict[str, Any]]]:
        """Return what `restore` needs, per edge and kind."""
        return [{k: {"offered": r.offered, "states": r.view()} for k, r in edge.items()} for edge in self.edges]

    def restore(self, saved: list[dict[str, dict[str, Any]]]) -> None:
        """Put all buffers into a saved state."""
        for edge, kinds in zip(self.edges, saved, strict=True):
            for kind, found in kinds.items():
                edge[kind].offered = found["offered"]
                edge[kind].states[: len(found["states"])] = found["states"]

    def add(self, edges: Rows, states: Array, lengths: Rows, satisfied: Bools) -> None:
        """Offer states (time, tasks, rollouts, dim), of which the first `lengths` (tasks, rollouts) count.

        `edges` gives the edge of each task, `satisfied` (tasks, rollouts) the rollouts that succeeded.
        """
        times = np.arange(len(states))[:, None]
        for task, edge in enumerate(edges):
            self.add_episodes(int(edge), states[:, task], times < lengths[task], satisfied[task])

    def add_episodes(self, edge: int, states: Array, valid: Bools, satisfied: Bools) -> None:
        """Offer the valid (time, rollouts) states (time, rollouts, dim) of one edge."""
        buffers = self.edges[edge]
        buffers["high"].add(states[valid & satisfied])
        buffers["low"].add(states[valid & ~satisfied])
        buffers["replay"].add(states[valid])
        if self.perturbation is not None:
            seen = states[valid & (self.rng.random(valid.shape) < PERTURBED)]
            buffers["low"].add(self.perturbation(edge, seen, self.rng))

    def ready(self, edges: Rows, least: int = 256) -> bool:
        """Return whether all given edges have states of both qualities."""
        return all(len(self.edges[int(e)][kind]) >= least for e in set(map(int, edges)) for kind in ("high", "low"))

    def sample(self, edges: Rows, kind: str, count: int, rng: np.random.Generator) -> Array:
        """Draw states (rows, count, dim) with replacement; `edges` gives the edge of each row."""
        views = {int(e): self.edges[int(e)][kind].view() for e in set(map(int, edges))}
        return np.stack([views[int(e)][rng.integers(len(views[int(e)]), size=count)] for e in edges])
