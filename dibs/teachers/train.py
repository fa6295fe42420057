"""Stage I for one index: train, probe, fit the confidence head, measure (paper, section 4.1)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np

from dibs import registry
from dibs.envs import Array
from dibs.errors import DibsError, unknown
from dibs.families import ReachAvoid, Split, Tasks
from dibs.families.tasks import POOL
from dibs.paths import BASE, split_of
from dibs.policies.network import Network, network_of
from dibs.policies.scaling import Scaling, edge_scaling
from dibs.progress import Reporter
from dibs.seeding import stream, torch_seed
from dibs.settings import STRICT, Count, Share, Weight, parse_settings
from dibs.simulation import Draws, EdgeTask, StateRecorder, draw, rollout
from dibs.statistics import wilson
from dibs.teachers.base import Assignment, Learned, get_algorithm
from dibs.teachers.buffers import Perturbation, StateBuffers
from dibs.teachers.confidence import ConfidenceHead, fit_heads, relabel
from dibs.teachers.journal import Journal

WIDE_SHARE = 0.5  # of wider starts while training an edge that starts where its predecessor arrived
SOLVED = 0.9  # a teacher whose success on an edge does not exceed this has failed it
NOTHING = 0.5  # below this success on an edge, the previous teacher has nothing to pass on


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
    perturbation: Weight = 0.25
    """Standard deviation of perturbed observations in the low-quality buffer, in half-widths of the edge; 0: none."""
    probes: Count = 400
    """Rollouts from randomized resets per edge, to show the head where the teacher fails."""
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


def resolve(settings: TeacherSettings, family_teacher: str, family_options: Mapping[str, Any]) -> TeacherSettings:
    """Return settings that name their algorithm and all of its options.

    The family's algorithm is the default. The family's options apply only to the family's algorithm.
    """
    algorithm = settings.algorithm or family_teacher
    options = {**(family_options if algorithm == family_teacher else {}), **settings.options}
    return replace(settings, algorithm=algorithm, options=asdict(algorithm_settings(algorithm, options)))


def algorithm_settings(algorithm: str, options: Mapping[str, Any]) -> Any:
    """Return the settings of an algorithm, with its defaults where `options` has no value."""
    kind = get_algorithm(algorithm).settings
    known = {f.name for f in dataclasses.fields(kind)}
    for key in options:
        if key not in known:
            raise unknown(f"setting of {algorithm}", key, known)
    return parse_settings(kind, options, f"teachers.options ({algorithm})")


@dataclass(frozen=True, eq=False)
class Teacher:
    """A trained teacher of one index: one actor and one confidence head per edge."""

    family: str
    split: str  # "base" at index 0, whose teacher serves all splits
    index: int
    seed: int
    edges: tuple[str, ...]
    network: Network
    scaling: Scaling
    actor: Array  # (edges, size)
    head: Array  # (edges, features + 1)
    metrics: dict[str, Any]
    settings: dict[str, Any]
    arrivals: Mapping[str, Array] = field(default_factory=dict)
    """States (n, dim) from which edges start, where these are those in which the edge before has arrived."""
    id: str = ""
    """Id of the file it was read from (`dibs.provenance`)."""

    def __repr__(self) -> str:
        rates = ", ".join(f"{name} {self.metrics['edges'][name]['success']:.3f}" for name in self.edges)
        return f"Teacher({self.family}, index {self.index}, seed {self.seed}; success {rates})"

    def act(self, edge: int, observations: Array) -> Array:
        """Return the actions (n, m) of the edge's actor on observations (n, inputs)."""
        return self.network.forward(self.actor[edge], self._scaled(edge, observations))

    def confidence(self, edge: int, observations: Array) -> Array:
        """Return p_conf (n,) of observations (n, inputs) on the edge."""
        features = self.network.trunk(self.actor[edge], self._scaled(edge, observations))
        return ConfidenceHead(self.head[edge : edge + 1]).probability(features[None])[0]

    def starts(self, tasks: Tasks) -> Tasks:
        """Return tasks whose edges at this teacher's index start where its own edges before arrive."""
        return tasks.arriving({(self.index, name): states for name, states in self.arrivals.items()})

    def _scaled(self, edge: int, observations: Array) -> Array:
        return (observations - self.scaling.center[edge]) / self.scaling.half[edge]


def train_teacher(
    tasks: Tasks,
    split: Split,
    index: int,
    seed: int,
    previous: Teacher | None,
    settings: TeacherSettings,
    progress: Reporter | None = None,
    journal: Journal | None = None,
) -> tuple[Teacher, StateBuffers, float]:
    """Train the teacher of one index; returns it, its state buffers, and the processor seconds it took.

    `tasks` are those of the first, the last and the teacher's index: the first and last set the scaling of the
    inputs. `settings` name their algorithm (see `resolve`). With a `journal`, a run that was killed continues.
    """
    began = time.process_time()
    key = ("teacher", tasks.name, BASE if index == 0 else split.key, index, seed)
    assignment = _assignment(tasks, index, key, previous, settings)
    journal = (journal or Journal()).begin(assignment.rng, assignment.buffers)
    assignment = replace(assignment, progress=progress, journal=journal)
    before = {} if previous is None else previous.metrics["edges"]
    lost = [e for e, name in enumerate(tasks.edge_names) if before and before[name]["success"] < NOTHING]
    tasks, learned = _train_in_order(tasks, index, assignment, settings, lost)
    assignment = replace(assignment, edges=tasks.reach_avoid([index]))
    actor = learned.theta.astype(np.float32)
    run = f"{tasks.name} index {index} seed {seed}"
    if not np.isfinite(actor).all():
        raise DibsError(f"{run}: {settings.algorithm} gave weights that are not finite")
    steps = learned.steps + _probe(assignment, actor, settings.probes)
    if settings.relabel:
        steps += relabel(assignment, assignment.policy(actor))
    head, reports = fit_heads(assignment, actor, learned.head, settings.threshold)
    measured, taken = _measure(assignment, actor, settings.rollouts)
    edges = {
        name: {**row, "confidence": report}
        for name, row, report in zip(tasks.edge_names, measured, reports, strict=True)
    }
    worst = min(edges, key=lambda name: edges[name]["success"])
    success = edges[worst]["success"]
    if success < settings.require:
        raise DibsError(
            f"{run}: edge {worst} succeeds in {success:.3f} of rollouts, below teachers.require = {settings.require}; "
            "train longer (teachers.options) or lower it"
        )
    metrics = {
        "algorithm": settings.algorithm,
        "edges": edges,
        "success": success,
        "failed": [name for name, row in edges.items() if row["success"] <= SOLVED],
        "steps": steps + taken,
        "iterations": learned.iterations,
        "drift": None if previous is None else float(np.mean([row["drift"] for row in measured])),
        "curve": learned.curve,
    }
    teacher = Teacher(
        family=tasks.name,
        split=split_of(split.name, index),
        index=index,
        seed=seed,
        edges=tasks.edge_names,
        network=assignment.network,
        scaling=assignment.scaling,
        actor=actor,
        head=head,
        metrics=metrics,
        settings=asdict(settings),
        arrivals={name: states for (_, name), states in tasks.arrivals.items()},
    )
    return teacher, assignment.buffers, time.process_time() - began


def _assignment(
    tasks: Tasks, index: int, key: tuple[str | int, ...], previous: Teacher | None, settings: TeacherSettings
) -> Assignment:
    """Return what the algorithm is given; `key` names the random stream."""
    rng, edges = stream(*key), tasks.reach_avoid([index])
    # Smaller where every state that is labeled again costs a slow rollout.
    capacity = min(settings.capacity, 1000) if tasks.environment.by_row else settings.capacity
    noise = perturbation(edges, settings.perturbation)
    buffers = StateBuffers(edges.tasks, tasks.environment.state_names, rng, capacity, noise)
    assignment = Assignment(
        edges=edges,
        network=network_of(tasks, settings.hidden),
        scaling=edge_scaling(tasks),
        buffers=buffers,
        rng=rng,
        seed=torch_seed(*key),
        previous=None if previous is None else previous.actor,
        anchor=settings.cross_index,
        confidence=settings.confidence,
        depth=tasks.reward.depth,
        warm=settings.warm_start,
    )
    if previous is not None:
        _check_kin(previous, tasks.edge_names, assignment)
    return assignment


def _probe(assignment: Assignment, actor: Array, rollouts: int) -> int:
    """Offer the buffers states of rollouts from randomized resets; returns the environment steps this took."""
    task, recorder = EdgeTask(assignment.edges), StateRecorder()
    draws = random_resets(task, rollouts, assignment.rng)
    probed = rollout(task, assignment.policy(actor), draws, recorder=recorder)
    assignment.buffers.add(np.arange(task.tasks), recorder.states(), probed.lengths, probed.success)
    return probed.steps


def _measure(assignment: Assignment, actor: Array, rollouts: int) -> tuple[list[dict[str, Any]], int]:
    """Return success, return and drift of every edge, and the environment steps this took."""
    task, before = EdgeTask(assignment.edges), assignment.previous
    outcome = rollout(task, assignment.policy(actor), draw(task, rollouts, assignment.rng))
    success = outcome.success.mean(axis=-1)
    low, high = wilson(success * rollouts, rollouts)
    drift: Any = [None] * len(actor) if before is None else np.linalg.norm(actor - before, axis=1)
    names = ("success", "lower", "upper", "return", "drift")
    columns = (success, low, high, outcome.returns.mean(axis=-1), drift)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)], outcome.steps


def _train_in_order(
    tasks: Tasks, index: int, assignment: Assignment, settings: TeacherSettings, lost: Sequence[int]
) -> tuple[Tasks, Learned]:
    """Train all edges at once, or group by group where edges start from the states in which others have arrived.

    The `lost` edges, on which the previous teacher failed, are a group of their own without a previous teacher: one
    that is stuck, such as in front of a wall around which the horizon was too short, would hold its successors there.
    Returns the tasks with the states of arrival.
    """
    train = registry.resolved(get_algorithm(settings.algorithm).train)
    options = algorithm_settings(settings.algorithm, settings.options)
    if not any(map(tasks.from_arrivals, tasks.edges)) and not lost:
        return tasks, train(assignment, options)
    order: list[int] = []
    parts: list[Learned] = []
    steps, left = 0, list(range(len(tasks.edges)))
    while left:
        waiting = {str(tasks.edges[e].target) for e in left}
        group = [
            e for e in left if not tasks.from_arrivals(tasks.edges[e]) or str(tasks.edges[e].source) not in waiting
        ]
        group = group or left
        fresh = group[0] in lost
        group = [e for e in group if (e in lost) == fresh]
        edges = replace(tasks.reach_avoid([index]).take(group), wide_share=WIDE_SHARE)
        rows = np.array(group)
        part = replace(
            assignment,
            edges=edges,
            scaling=assignment.scaling.take(rows),
            buffers=assignment.buffers.take(group),
            seed=(assignment.seed + 15_485_863 * group[0]) % 2**31,
            previous=None if assignment.previous is None or fresh else assignment.previous[rows],
            piece=f"edges {', '.join(edges.names)}: ",
        )
        learned = train(part, options)
        curve = [{**row, "edge": group[int(row["edge"])]} if "edge" in row else row for row in learned.curve]
        parts.append(replace(learned, curve=curve))
        order, left = order + group, [e for e in left if e not in group]
        make = partial(_arrivals, tasks, part, group, left, learned.theta)
        found = assignment.journal.once(f"arrivals {group[0]}", make)
        steps += learned.steps + found["steps"]
        tasks = tasks.arriving({(index, name): states for name, states in found["starts"].items()})
    rows = np.argsort(order)
    heads = [part.head for part in parts if part.head is not None]
    return tasks, Learned(
        theta=np.concatenate([part.theta for part in parts])[rows],
        head=np.concatenate(heads)[rows] if len(heads) == len(parts) else None,
        steps=steps,
        iterations=sum(part.iterations for part in parts),
        curve=[row for part in parts for row in part.curve],
    )


def _arrivals(
    tasks: Tasks, part: Assignment, group: Sequence[int], left: Sequence[int], theta: Array
) -> dict[str, Any]:
    """Return the states (n, dim) in which fresh rollouts of trained edges arrive, by name of the edge that is next."""
    waiting = [tasks.edges[e] for e in left if tasks.from_arrivals(tasks.edges[e])]
    after = {e: [later for later in waiting if str(later.source) == str(tasks.edges[e].target)] for e in group}
    if not any(after.values()):
        return {"steps": 0, "starts": {}}
    task, recorder = EdgeTask(replace(part.edges, wide_share=0.0)), StateRecorder()
    policy = part.policy(theta.astype(np.float32))
    outcome = rollout(task, policy, draw(task, 2 * POOL, part.rng), recorder=recorder)
    states = recorder.states()  # (time, edges, rollouts, dim)
    known: dict[str, list[Array]] = {}
    for n, e in enumerate(group):
        good = np.flatnonzero(outcome.success[n])
        for later in after[e] if len(good) else []:
            known.setdefault(later.name, []).append(states[outcome.lengths[n, good] - 1, n, good])
    starts = {name: part.rng.permutation(np.concatenate(found))[:POOL] for name, found in known.items()}
    return {"steps": outcome.steps, "starts": starts}


def _check_kin(previous: Teacher, names: tuple[str, ...], assignment: Assignment) -> None:
    """Refuse a predecessor of another shape: its weights would not mean the same thing here."""
    same = (previous.edges, previous.network) == (names, assignment.network)
    then, now = previous.scaling, assignment.scaling
    if not same or not np.array_equal(then.center, now.center) or not np.array_equal(then.half, now.half):
        raise DibsError(
            f"the teacher of {previous.family} index {previous.index} was trained with other edges, another network or "
            "other regions than the family now has; train it again first"
        )


def perturbation(edges: ReachAvoid, share: float) -> Perturbation | None:
    """Return noise whose standard deviation is a share of the half-widths of each edge; None: no noise."""
    if share == 0.0:
        return None
    low, high = edges.extent()
    return Perturbation((share * (high - low) / 2).astype(np.float32), edges.allowed)


def random_resets(task: EdgeTask, count: int, rng: np.random.Generator) -> Draws:
    """Draw episodes from randomized initial states: uniform in a box half as large again as the edge, and beyond."""
    draws = draw(task, count, rng)
    if task.edges.start_wide is not None:
        states = task.edges.wide(rng.random(draws.starts.shape, dtype=np.float32))
    else:
        low, high = task.edges.extent()
        middle, half = (low + high) / 2, (high - low) / 2
        reach = half + 0.5 * half.max(axis=-1, keepdims=True)
        states = middle[:, None] + reach[:, None] * rng.uniform(-1, 1, draws.starts.shape)
    return Draws(task.edges.allowed(states.astype(np.float32)), draws.noise)
