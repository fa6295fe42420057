"""State buffers kept while a teacher trains (paper, section 4.1): high quality, low quality, replay.

High-quality states come from rollouts that satisfy the edge's reach-avoid task, low-quality ones from those
that do not, early exploration and randomised resets among them; the replay buffer takes both. Each buffer
keeps a uniform sample of all it was offered, in bounded memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dibs.envs import Array
from dibs.teachers.rollouts import Bools, Outcome, Rows

KINDS = ("high", "low", "replay")


@dataclass
class Reservoir:
    """A uniform sample, of bounded size, of all states offered so far (Vitter's algorithm R, batched)."""

    capacity: int
    dim: int
    rng: np.random.Generator
    seen: int = 0
    states: Array = field(init=False)

    def __post_init__(self) -> None:
        self.states = np.zeros((self.capacity, self.dim), dtype=np.float32)

    def __len__(self) -> int:
        return min(self.seen, self.capacity)

    def add(self, states: Array) -> None:
        """Offer states (n, dim)."""
        free = max(self.capacity - self.seen, 0)
        first, rest = states[:free], states[free:]
        self.states[self.seen : self.seen + len(first)] = first
        self.seen += len(first)
        if len(rest):
            ranks = self.seen + 1 + np.arange(len(rest))
            slots = (self.rng.random(len(rest)) * ranks).astype(np.int64)
            keep = slots < self.capacity
            self.states[slots[keep]] = rest[keep]
            self.seen += len(rest)

    def view(self) -> Array:
        """The states held now (n, dim)."""
        return self.states[: len(self)]


class StateBuffers:
    """The three buffers of every edge of one teacher."""

    def __init__(self, edges: int, dim: int, rng: np.random.Generator, capacity: int = 10_000) -> None:
        self.edges = [{kind: Reservoir(capacity, dim, rng) for kind in KINDS} for _ in range(edges)]

    def add(self, rows: Rows, outcome: Outcome) -> None:
        """Offer the recorded episodes of an outcome; `rows` gives the edge of each of its tasks."""
        assert outcome.states is not None and outcome.lengths is not None and outcome.satisfied is not None
        times = np.arange(outcome.states.shape[0])[:, None]
        for task, edge in enumerate(rows):
            valid = times < outcome.lengths[task]  # (time, rollouts)
            self.add_episodes(int(edge), outcome.states[:, task], valid, outcome.satisfied[task])

    def add_episodes(self, edge: int, states: Array, valid: Bools, satisfied: Bools) -> None:
        """Offer episodes (time, rollouts, dim) of one edge."""
        buffers = self.edges[edge]
        buffers["high"].add(states[valid & satisfied])
        buffers["low"].add(states[valid & ~satisfied])
        buffers["replay"].add(states[valid])

    def ready(self, rows: Rows, least: int = 256) -> bool:
        """Whether every given edge has seen states of both qualities."""
        return all(len(self.edges[int(e)][kind]) >= least for e in set(map(int, rows)) for kind in ("high", "low"))
