"""Stage I for one (family, gap, index, seed): train, probe, fit the confidence head, measure (section 4.1)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np

from dibs.analysis.statistics import wilson
from dibs.envs import Array
from dibs.errors import DibsError
from dibs.families import Family, ReachAvoid, reach_avoid
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling, edge_scaling
from dibs.seeding import stream, torch_seed
from dibs.settings import STRICT, Count, Share, Weight
from dibs.teachers.base import Lesson
from dibs.teachers.buffers import Reservoir, StateBuffers
from dibs.teachers.confidence import HELD_OUT, ConfidenceHead, fit_logistic, report
from dibs.teachers.registry import train_with
from dibs.teachers.rollouts import Draws, draw, roll

CHANCE = 0.6  # balanced accuracy below which a confidence head knows no more than the share of good states
SOLVED = 0.9  # a teacher whose success on an edge does not exceed this has failed it


@dataclass(frozen=True)
class TeacherSettings:
    """Settings of Stage I that do not depend on the algorithm, and the algorithm's own."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    cross_index: Weight = 1e-2
    """λ_x: weight of ‖θ − θ_prev‖²; 0 trains teachers independently of the previous one's position."""
    confidence: Weight = 0.1
    """λ_conf: weight of the confidence loss in the joint objective."""
    threshold: Share = 0.7
    """τ_c, for the report of what the filter would keep."""
    warm_start: bool = True
    """Start from the previous teacher's weights, instead of from scratch."""
    capacity: Count = 10_000
    """States kept in each buffer of each edge."""
    probes: Count = 400
    """Rollouts from randomised resets per edge, to show the head where the teacher fails."""
    relabel: bool = True
    """Before the head's last fit, call a state high-quality if the converged teacher succeeds from it."""
    rollouts: Count = 1000
    """Rollouts for the reported success."""
    require: Share = 0.0
    """Smallest success per edge below which training is an error."""
    hidden: list[Count] = field(default_factory=list)
    """Hidden layers of the actor; empty: the family's."""
    algorithm: str = ""
    """RL algorithm; empty: the family's."""
    options: dict[str, Any] = field(default_factory=dict)
    """Settings of the algorithm that differ from its defaults."""


@dataclass(frozen=True, eq=False)
class Teacher:
    """A trained teacher of one index: one actor and one confidence head per edge."""

    family: str
    gap: int  # 0 at index 0, whose teacher serves all gaps
    index: int
    seed: int
    edges: tuple[str, ...]
    network: Network
    scaling: Scaling
    actor: Array  # (edges, size)
    head: Array  # (edges, features + 1)
    metrics: dict[str, Any]
    settings: dict[str, Any]

    def act(self, edge: int, states: Array) -> Array:
        """Actions (n, m) of the edge's actor on raw states (n, dim)."""
        return self.network.forward(self.actor[edge], self._scaled(edge, states))

    def confidence(self, edge: int, states: Array) -> Array:
        """p_conf (n,) of raw states (n, dim) on the edge."""
        features = self.network.trunk(self.actor[edge], self._scaled(edge, states))
        return ConfidenceHead(self.head[edge : edge + 1]).probability(features[None])[0]

    def _scaled(self, edge: int, states: Array) -> Array:
        return (states - self.scaling.center[edge]) / self.scaling.half[edge]


def train_teacher(
    family: Family,
    gap: int,
    index: int,
    seed: int,
    previous: Teacher | None,
    settings: TeacherSettings,
    progress: Callable[[str], None] | None = None,
) -> tuple[Teacher, StateBuffers, float]:
    """Train the teacher of one index; returns it, its state buffers, and the seconds it took."""
    began = time.perf_counter()
    family.check_index(index)
    key = ("teacher", family.name, "base" if index == 0 else gap, index, seed)
    rng = stream(*key)
    edges, dim = len(family.edges), len(family.dynamics.state_names)
    network = network_of(family, settings.hidden)
    scaling = edge_scaling(family)
    names = tuple(edge.name for edge in family.edges)
    if previous is not None:
        _check_kin(previous, names, network, scaling)
    tasks = reach_avoid(family, [index])
    buffers = StateBuffers(edges, dim, rng, settings.capacity)
    algorithm = settings.algorithm or family.teacher
    learnt = train_with(
        algorithm,
        Lesson(
            tasks,
            network,
            scaling,
            buffers,
            rng,
            torch_seed(*key),
            None if previous is None else previous.actor,
            settings.cross_index,
            settings.confidence,
            family.reward.depth,
            progress,
            settings.warm_start,
        ),
        {**(family.teacher_options if algorithm == family.teacher else {}), **settings.options},
    )
    actor = learnt.theta.astype(np.float32)
    if not np.isfinite(actor).all():
        raise DibsError(f"{family.name} index {index} seed {seed}: {algorithm} gave weights that are not finite")
    folded = network.fold(actor, scaling.center, scaling.half)[:, None]
    probed = roll(network, folded, tasks, random_resets(tasks, settings.probes, rng), record=0)
    buffers.add(np.arange(edges), probed)
    steps = learnt.steps + probed.steps
    if settings.relabel:
        steps += relabel(network, folded, tasks, buffers, rng)
    head, reports = _confidence(network, actor, scaling, buffers, learnt.head, settings.threshold)
    outcome = roll(network, folded, tasks, draw(tasks, settings.rollouts, rng))
    success = outcome.success[:, 0]
    low, high = wilson(success * settings.rollouts, settings.rollouts)
    drift = None if previous is None else np.linalg.norm(actor - previous.actor, axis=1)
    metrics = {
        "algorithm": algorithm,
        "edges": {
            edge.name: {
                "success": success[e],
                "lower": low[e],
                "upper": high[e],
                "return": outcome.returns[e, 0],
                "drift": None if drift is None else drift[e],
                "confidence": reports[e],
            }
            for e, edge in enumerate(family.edges)
        },
        "success": success.min(),
        "failed": [name for name, rate in zip(names, success, strict=True) if rate <= SOLVED],
        "steps": steps + outcome.steps,
        "iterations": learnt.iterations,
        "drift": None if drift is None else float(np.mean(drift)),
        "curve": learnt.curve,
    }
    kept_gap = 0 if index == 0 else gap
    teacher = Teacher(
        family.name, kept_gap, index, seed, names, network, scaling, actor, head, metrics, asdict(settings)
    )
    worst = int(success.argmin())
    if success[worst] < settings.require:
        raise DibsError(
            f"{family.name} index {index} seed {seed}: edge {names[worst]} succeeds in {success[worst]:.3f} of "
            f"rollouts, below teachers.require = {settings.require}; train longer (teachers.options) or lower it"
        )
    return teacher, buffers, time.perf_counter() - began


def _check_kin(previous: Teacher, names: tuple[str, ...], network: Network, scaling: Scaling) -> None:
    """Refuse a predecessor of another shape: its weights would not mean the same thing here."""
    same = (previous.edges, previous.network) == (names, network)
    pairs = ((previous.scaling.center, scaling.center), (previous.scaling.half, scaling.half))
    if not same or not all(np.array_equal(a, b) for a, b in pairs):
        raise DibsError(
            f"the teacher of {previous.family} index {previous.index} was trained with other edges, another network or "
            "other regions than the family now has; train it again first"
        )


def network_of(family: Family, hidden: Sequence[int] = ()) -> Network:
    """The actor's shape for a family; with other hidden layers if some are named."""
    return Network(
        len(family.dynamics.state_names),
        tuple(hidden or family.network.hidden),
        len(family.dynamics.action_names),
        family.network.activation,
    )


def random_resets(tasks: ReachAvoid, count: int, rng: np.random.Generator) -> Draws:
    """Rollouts from randomised initial states: uniform in a box half as large again as the edge, and beyond."""
    low, high = tasks.extent()
    middle, half = (low + high) / 2, (high - low) / 2
    reach = half + 0.5 * half.max(axis=-1, keepdims=True)
    draws = draw(tasks, count, rng)
    states = middle[:, None] + reach[:, None] * rng.uniform(-1, 1, draws.starts.shape)
    return Draws(tasks.allowed(states.astype(np.float32)), draws.noise)


def relabel(network: Network, folded: Array, tasks: ReachAvoid, buffers: StateBuffers, rng: np.random.Generator) -> int:
    """Sort the states of both quality buffers anew, by whether the converged teacher succeeds from them.

    Returns the environment steps that took.

    While a teacher trains, one and the same state lies in failed and in satisfying rollouts, and a head
    trained on both learns nothing. High quality means that the *converged* teacher knows what to do there.
    """
    views = [np.concatenate([b["high"].view(), b["low"].view()]) for b in buffers.edges]
    count = max(len(v) for v in views)
    starts = np.stack([v[np.arange(count) % len(v)] for v in views])
    draws = Draws(starts, draw(tasks, count, rng).noise)
    outcome = roll(network, folded, tasks, draws, record=0)
    assert outcome.satisfied is not None
    for edge, view, good in zip(buffers.edges, views, outcome.satisfied, strict=True):
        for kind, chosen in (("high", good[: len(view)]), ("low", ~good[: len(view)])):
            fresh = Reservoir(edge[kind].capacity, edge[kind].dim, rng)
            fresh.add(view[chosen])
            edge[kind] = fresh
    return outcome.steps


def _confidence(
    network: Network,
    actor: Array,
    scaling: Scaling,
    buffers: StateBuffers,
    start: Array | None,
    threshold: float,
) -> tuple[Array, list[dict[str, Any] | None]]:
    """Fit each edge's head on the final trunk and score it on held-out states; None where a class is empty."""
    heads = ConfidenceHead.zeros(len(actor), network.hidden[-1]).weights
    reports: list[dict[str, Any] | None] = []
    for e, theta in enumerate(actor):
        high, low = buffers.edges[e]["high"].view(), buffers.edges[e]["low"].view()
        if min(len(high), len(low)) < 10:
            # Nothing to tell apart: all states seen are of one kind.
            heads[e, -1] = 10.0 if len(high) > len(low) else -10.0
            reports.append(None)
            continue
        x = np.concatenate([high, low])
        labels = np.repeat([1.0, 0.0], [len(high), len(low)])
        features = network.trunk(theta, (x - scaling.center[e]) / scaling.half[e])
        held = (np.arange(len(x)) * HELD_OUT) % 1.0 >= 1.0 - HELD_OUT - 1e-9  # every fifth: reservoirs are unordered
        heads[e] = fit_logistic(features[~held], labels[~held], None if start is None else start[e])
        p = ConfidenceHead(heads[e : e + 1]).probability(features[held][None])[0]
        told = report(p, labels[held], threshold)
        if told.accuracy < CHANCE:
            # A head that cannot tell good from bad says how often states are good instead of rejecting them all.
            heads[e] = 0.0
            heads[e, -1] = np.log(len(high) / len(low))
        reports.append(asdict(told))
    return heads, reports
