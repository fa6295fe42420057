"""Teacher-labeled, confidence-filtered datasets (paper, section 4.1, algorithm 1 lines 1–9).

Candidates come from the converged teacher's specification-satisfying rollouts, its replay buffer and resets, mixed at
the rates (α, β, γ). A candidate is kept if p_conf ≥ τ_c and labeled with the teacher's action, until there are M per
edge. Rows are produced and written in blocks, in random order, so memory stays bounded and a prefix of a dataset is a
sample of it.

A head whose probabilities hardly reach τ_c would leave an edge without data, however good its teacher is. Then the
threshold falls to the confidence that as many candidates reach as are good for certain: those from satisfying rollouts
of the converged teacher, which are the share α of the mixture.

In environments that step one state at a time, heads see few states, and whole stretches of a perfect teacher's way may
lie below τ_c. There the threshold is low enough for nearly all states of satisfying rollouts of the converged teacher.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dibs.envs import Array
from dibs.errors import DibsError
from dibs.families import Split, Tasks
from dibs.paths import BASE
from dibs.seeding import stream
from dibs.settings import STRICT, Count, Positive, Share, Weight
from dibs.simulation import EdgeTask, NetworkPolicy, Rows, StateRecorder, draw, rollout
from dibs.teachers.train import Teacher, random_resets

SOURCES = ("on-policy", "replay", "reset")
BLOCK = 65_536
OWN_KEPT = 0.9  # of the states of satisfying rollouts, in environments that step one state at a time


@dataclass(frozen=True)
class DatasetSettings:
    """How candidates are drawn and filtered."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    alpha: Weight = 0.8
    """Rate of states from satisfying rollouts of the converged teacher."""
    beta: Weight = 0.3
    """Rate of states from the teacher's replay buffer."""
    gamma: Weight = 0.6
    """Rate of initial states from resets, plain and randomized."""
    threshold: Share = 0.7
    """τ_c: least confidence a state is kept at; 0 turns the filter off. It is lowered where it keeps almost nothing."""
    size: Count = 5_000
    """M: labeled states per edge and index."""
    least_acceptance: Positive = 0.01
    """Share of kept candidates below which the threshold is lowered; without alpha, it is an error."""
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
    """Share of the edge's candidates that passed the filter at τ_c so far."""
    threshold: float = 0.0
    """Least confidence at which candidates are kept now."""


def build(
    tasks: Tasks, split: Split, teacher: Teacher, replay: Sequence[Array], settings: DatasetSettings
) -> Iterator[Block]:
    """Yield the dataset of one teacher block by block; edges on which the teacher fails are left out.

    `tasks` contain the teacher's index, `replay` is the replay buffer (n, dim) of each edge.
    """
    rates = np.array([settings.alpha, settings.beta, settings.gamma], dtype=float)
    if (rates < 0).any() or rates.sum() == 0:
        raise DibsError(f"datasets: rates (alpha, beta, gamma) = {rates.tolist()} must be ≥ 0 and not all 0")
    key = BASE if teacher.index == 0 else split.key
    for e, name in enumerate(teacher.edges):
        success = teacher.metrics["edges"][name]["success"]
        if success < settings.require:
            continue
        rng = stream("dataset", tasks.name, key, teacher.index, teacher.seed, name)
        candidates = _Candidates(tasks, teacher, e, replay[e], rates / rates.sum(), rng)
        kept = tried = trusted = 0
        threshold = settings.threshold
        while kept < settings.size:
            states, source = candidates.next(min(BLOCK, max(4 * (settings.size - kept), 1024)))
            observations = tasks.environment.observe(states)
            confidence = teacher.confidence(e, observations)
            if tried == 0 and tasks.environment.by_row and len(candidates.pool):
                own = teacher.confidence(e, tasks.environment.observe(candidates.pool))
                threshold = min(threshold, float(np.quantile(own, 1.0 - OWN_KEPT)))
            passed = confidence >= np.float64(threshold)
            if threshold < settings.threshold:  # lowered: where a head gives one value, only what is good for certain
                passed &= (confidence > threshold) | (source == SOURCES.index("on-policy"))
            good = np.flatnonzero(passed)[: settings.size - kept]
            tried += len(states)
            trusted += int(np.count_nonzero(confidence >= np.float64(settings.threshold)))
            kept += len(good)
            if len(good):
                actions = teacher.act(e, observations[good])
                yield Block(e, states[good], actions, source[good], confidence[good], trusted / tried, threshold)
            if (
                kept < min(settings.size, settings.least_acceptance * tried)
                and tried >= 20_000
                and threshold == settings.threshold
            ):
                threshold = candidates.threshold(confidence)
                found = (
                    f"{tasks.name} index {teacher.index} seed {teacher.seed}, edge {name}: the confidence filter "
                    f"kept {kept} of {tried} candidates ({kept / tried:.2%}) at threshold {settings.threshold}"
                )
                if threshold >= settings.threshold:
                    raise DibsError(
                        f"{found}; lower datasets.threshold, or raise datasets.alpha or teachers.confidence"
                    )
                print(f"warning: {found}; lowered to {threshold:.3g}", file=sys.stderr, flush=True)


class _Candidates:
    """An endless stream of candidate states of one edge, in random order."""

    def __init__(
        self,
        tasks: Tasks,
        teacher: Teacher,
        edge: int,
        replay: Array,
        rates: Array,
        rng: np.random.Generator,
    ) -> None:
        self.task = EdgeTask(tasks.reach_avoid([teacher.index], [teacher.edges[edge]]))
        network, scaling = teacher.network, teacher.scaling
        self.policy = NetworkPolicy(
            network, network.fold(teacher.actor[edge], scaling.center[edge], scaling.half[edge])[None]
        )
        # The share of an empty replay buffer goes to the teacher's rollouts.
        self.rates = rates if len(replay) else np.array([rates[0] + rates[1], 0.0, rates[2]])
        self.replay, self.rng = replay, rng
        self.pool: Array = np.empty((0, self.task.edges.dim), dtype=np.float32)

    def next(self, count: int) -> tuple[Array, Rows]:
        """Draw `count` candidates (count, dim) and their sources (count,)."""
        counts = self.rng.multinomial(count, self.rates)
        parts = [self._on_policy(counts[0]), self._replay(counts[1]), self._reset(counts[2])]
        order = self.rng.permutation(count)
        return np.concatenate(parts)[order], np.repeat(np.arange(3), counts)[order]

    def threshold(self, confidence: Array) -> float:
        """Return the confidence that as many candidates (n,) reach as come from satisfying rollouts."""
        return float(np.quantile(confidence, 1.0 - self.rates[0], method="lower")) if self.rates[0] else 1.0

    def _on_policy(self, count: int) -> Array:
        """Draw states of satisfying rollouts, from a pool of fresh ones and those of earlier calls."""
        rollouts = int(np.clip(count // 8, 64, 4096))
        recorder = StateRecorder()
        outcome = rollout(self.task, self.policy, draw(self.task, rollouts, self.rng), recorder=recorder)
        states = recorder.states(axis=-2)[0]  # (rollouts, time, dim)
        valid = np.arange(states.shape[1]) < outcome.lengths[0][:, None]
        # Rollout by rollout: where the pool is cut, whole rollouts are dropped, not the late states of all of them.
        fresh = states[valid & outcome.success[0][:, None]]
        self.pool = np.concatenate([fresh, self.pool])[:BLOCK]
        if count and not len(self.pool):
            raise DibsError(f"edge {self.task.edges.names[0]}: the teacher satisfied none of {rollouts} rollouts")
        return self.pool[self.rng.integers(max(len(self.pool), 1), size=count)] if count else self.pool[:0]

    def _replay(self, count: int) -> Array:
        return self.replay[self.rng.integers(max(len(self.replay), 1), size=count)] if count else self.replay[:0]

    def _reset(self, count: int) -> Array:
        """Draw initial states, half plain, half randomized."""
        plain = draw(self.task, count, self.rng).starts[0]
        wild = random_resets(self.task, count, self.rng).starts[0]
        return np.where(self.rng.random((count, 1)) < 0.5, plain, wild)
