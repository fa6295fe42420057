"""Teacher-labelled, confidence-filtered datasets (paper, section 4.1, algorithm 1 lines 1–9).

Candidates come from the converged teacher's specification-satisfying rollouts, its replay buffer and resets,
mixed at the rates (α, β, γ); a candidate is kept if p_conf ≥ τ_c and labelled with the teacher's action,
until there are M per edge. Rows are produced and written in blocks, in random order, so memory stays bounded
and a prefix of a dataset is a sample of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dibs.envs import Array
from dibs.errors import DibsError
from dibs.families import Family, reach_avoid
from dibs.seeding import stream
from dibs.settings import STRICT, Count, Positive, Share, Weight
from dibs.teachers.rollouts import Rows, draw, roll
from dibs.teachers.train import Teacher, random_resets

SOURCES = ("on-policy", "replay", "reset")
BLOCK = 65_536


@dataclass(frozen=True)
class DatasetSettings:
    """How candidates are drawn and filtered."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    alpha: Weight = 0.8
    """Rate of states from satisfying rollouts of the converged teacher."""
    beta: Weight = 0.3
    """Rate of states from the teacher's replay buffer."""
    gamma: Weight = 0.6
    """Rate of initial states from resets, plain and randomised."""
    threshold: Share = 0.7
    """τ_c: least confidence a state is kept at; 0 turns the filter off."""
    size: Count = 5_000
    """M: labelled states per edge and index."""
    least_acceptance: Positive = 0.01
    """Share of candidates below which the filter is said to reject everything."""
    require: Share = 0.5
    """Teacher's success on an edge below which the edge gets no rows: there is nothing to imitate."""


@dataclass(frozen=True, eq=False)
class Block:
    """Rows of one edge."""

    edge: int
    states: Array  # (n, dim)
    actions: Array  # (n, m)
    source: Rows  # (n,) index into SOURCES
    confidence: Array  # (n,)
    acceptance: float = 1.0
    """Share of the edge's candidates that passed the filter so far."""


def build(family: Family, teacher: Teacher, replay: list[Array], settings: DatasetSettings) -> Iterator[Block]:
    """Yield the dataset of one teacher block by block; edges the teacher cannot do are left out."""
    rates = np.array([settings.alpha, settings.beta, settings.gamma], dtype=float)
    if (rates < 0).any() or rates.sum() == 0:
        raise DibsError(f"datasets: rates (alpha, beta, gamma) = {rates.tolist()} must be ≥ 0 and not all 0")
    gap = "base" if teacher.index == 0 else teacher.gap
    for e, name in enumerate(teacher.edges):
        success = teacher.metrics["edges"][name]["success"]
        if success < settings.require:
            continue
        rng = stream("dataset", family.name, gap, teacher.index, teacher.seed, name)
        candidates = _Candidates(family, teacher, e, replay[e], rates / rates.sum(), rng)
        kept = tried = trusted = 0
        while kept < settings.size:
            states, source = candidates.next(min(BLOCK, max(4 * (settings.size - kept), 1024)))
            confidence = teacher.confidence(e, states)
            passed = np.flatnonzero(confidence >= np.float64(settings.threshold))
            good = passed[: settings.size - kept]
            tried += len(states)
            trusted += len(passed)
            kept += len(good)
            if len(good):
                chosen = states[good]
                yield Block(e, chosen, teacher.act(e, chosen), source[good], confidence[good], trusted / tried)
            if kept < min(settings.size, settings.least_acceptance * tried) and tried >= 20_000:
                raise DibsError(
                    f"{family.name} index {teacher.index} seed {teacher.seed}, edge {name}: the confidence filter "
                    f"kept {kept} of {tried} candidates ({kept / tried:.2%}) at threshold {settings.threshold}; "
                    "lower datasets.threshold, or raise datasets.alpha or teachers.confidence"
                )


class _Candidates:
    """An endless stream of candidate states of one edge, in random order."""

    def __init__(
        self,
        family: Family,
        teacher: Teacher,
        edge: int,
        replay: Array,
        rates: Array,
        rng: np.random.Generator,
    ) -> None:
        self.tasks = reach_avoid(family, [teacher.index], [teacher.edges[edge]])
        self.network = teacher.network
        self.theta = teacher.network.fold(
            teacher.actor[edge], teacher.scaling.center[edge], teacher.scaling.half[edge]
        )[None, None]
        # An empty replay buffer (a teacher loaded from elsewhere) leaves its share to the other sources.
        self.rates = rates if len(replay) else np.array([rates[0] + rates[1], 0.0, rates[2]])
        self.replay, self.rng = replay, rng
        self.pool: Array = np.empty((0, self.tasks.start_center.shape[1]), dtype=np.float32)

    def next(self, count: int) -> tuple[Array, Rows]:
        """Draw `count` candidates (count, dim) and their sources (count,)."""
        counts = self.rng.multinomial(count, self.rates)
        parts = [self._on_policy(counts[0]), self._replay(counts[1]), self._reset(counts[2])]
        order = self.rng.permutation(count)
        return np.concatenate(parts)[order], np.repeat(np.arange(3), counts)[order]

    def _on_policy(self, count: int) -> Array:
        """States of satisfying rollouts; short of fresh ones, the pool is drawn from again."""
        rollouts = int(np.clip(count // 8, 64, 4096))
        outcome = roll(self.network, self.theta, self.tasks, draw(self.tasks, rollouts, self.rng), record=0)
        assert outcome.states is not None and outcome.lengths is not None and outcome.satisfied is not None
        valid = np.arange(len(outcome.states)) < outcome.lengths[0][:, None]  # (rollouts, time)
        # Rollout by rollout: where the pool is cut, whole rollouts go, not the late states of all of them.
        fresh = outcome.states[:, 0].swapaxes(0, 1)[valid & outcome.satisfied[0][:, None]]
        self.pool = np.concatenate([fresh, self.pool])[:BLOCK]
        if count and not len(self.pool):
            raise DibsError(f"edge {self.tasks.names[0]}: the teacher satisfied none of {rollouts} rollouts")
        return self.pool[self.rng.integers(max(len(self.pool), 1), size=count)] if count else self.pool[:0]

    def _replay(self, count: int) -> Array:
        return self.replay[self.rng.integers(max(len(self.replay), 1), size=count)] if count else self.replay[:0]

    def _reset(self, count: int) -> Array:
        """Half plain initial states, half randomised ones."""
        plain = draw(self.tasks, count, self.rng).starts[0]
        wild = random_resets(self.tasks, count, self.rng).starts[0]
        return np.where(self.rng.random((count, 1)) < 0.5, plain, wild)
