"""GenRL (Subramanian et al. 2025): κ learnt by random search on the reward of all training tasks at once.

Per edge, every candidate κ is unrolled from the base policy, the unrolled policies act on their training
tasks, the tasks' returns are joined by a softmin, and augmented random search climbs that one number (paper,
section 3.2, "GenRL's approach"). Base policies, edges, composition and guards are those of DIBS: the result is a
template like any other. Edges × directions × signs × tasks × rollouts advance in one array program.

What the public code leaves to chance decides most here: where κ starts. Variants differ in that, in how
returns are joined, and in whether all κ_r are perturbed alike; `auto` trains several within the budget and keeps
the one that solves most *training* tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from dibs.baselines.registry import Run, Trained
from dibs.baselines.search import ascent
from dibs.envs import Array
from dibs.evaluation.count import count_template
from dibs.families import Family, ReachAvoid, ground
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.seeding import stream
from dibs.settings import STRICT
from dibs.teachers.budget import dibs_steps
from dibs.teachers.rollouts import draw, roll
from dibs.teachers.store import load_teacher
from dibs.templates.guards import EdgeRecord
from dibs.templates.polynomial import apply, identity
from dibs.templates.template import RUNAWAY, Template, contents

count = count_template

MOST = 2**24  # parameters of policies held at once; more edges than fit are trained in turn
ABLE = 0.5  # success of a teacher from which on it can be the base of a template


@dataclass(frozen=True)
class Settings:
    """Settings of the search; directions, best, exploration, step and β are those of the public code."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    steps: int = 0
    """Most environment steps, the base teacher's not counted; 0: as many as DIBS's teachers used."""
    degree: int = 1
    """Degree m of the polynomial."""
    start: Literal["random", "identity", "additive"] = "random"
    """Where κ starts: small and random as in the public code, or where it leaves every policy as it is (additive: of degree 0)."""
    start_scale: float = 0.577
    """Random start: standard deviation of κ's entries, times the root of their layer's inputs."""
    aggregation: Literal["softmin", "mean"] = "softmin"
    """How the returns of the training tasks are joined."""
    beta: float = 1.0
    """Sharpness of the softmin."""
    perturbation: Literal["shared", "independent"] = "shared"
    """Whether all κ_r are perturbed by the same δ."""
    rescale: bool = False
    """Search in coordinates in which a unit moves the last policy, not κ, by about a unit."""
    directions: int = 20
    """Perturbations tried per iteration, each with both signs."""
    best: int = 8
    """Directions kept for the update."""
    exploration: float = 0.05
    """Standard deviation ν of the perturbations."""
    step: float = 1.0
    """Step size, in perturbations, before division by (best · standard deviation of all scores)."""
    rollouts: int = 4
    """Rollouts per candidate and task."""
    check_every: int = 5
    """Iterations between two estimates of the success on the training tasks."""
    check_rollouts: int = 100
    """Rollouts per task of such an estimate."""
    patience: int = 4
    """Checks in a row at full success on all training tasks after which an edge has converged."""


@dataclass(frozen=True, eq=False)
class Problem:
    """All edges of a family with the policies that their templates start from."""

    family: Family
    edges: tuple[str, ...]
    train: tuple[int, ...]
    network: Network
    scaling: Scaling
    base: Array  # (edges, size)
    base_index: Array  # (edges,)

    def tasks(self, edges: Sequence[int]) -> ReachAvoid:
        """The given edges at all training indices, edge by edge."""
        return ground(self.family, [(index, self.edges[e]) for e in edges for index in self.train])

    @property
    def ahead(self) -> Array:
        """Unrolled steps (edges, tasks) from the base; below 0 where an edge has no policy yet."""
        return np.asarray(self.train)[None] - self.base_index[:, None]


@dataclass(frozen=True, eq=False)
class Found:
    """The best templates of a search."""

    kappa: Array  # (degree + 1, edges, size)
    success: Array  # (edges, tasks), at the training indices
    returns: Array  # (edges, tasks)
    steps: int
    iterations: int
    curve: list[list[float]]  # per check: steps, then the mean success of each edge


def train(run: Run, settings: Settings) -> Trained:
    """Search the templates of a family."""
    problem, base_steps = _problem(run)
    budget = settings.steps or dibs_steps(run.places, run.family, run.gap, run.seed, problem.edges)
    rng = stream("baseline", "genrl", run.family.name, run.gap, run.seed)
    found = search(problem, settings, budget, rng, run.progress)
    records = {
        name: EdgeRecord(problem.train, tuple(map(float, found.success[e])), tuple(map(float, found.returns[e])))
        for e, name in enumerate(problem.edges)
    }
    template = Template(
        "genrl",
        run.family.name,
        run.gap,
        run.seed,
        problem.train,
        problem.edges,
        problem.network,
        problem.scaling,
        found.kappa,
        problem.base,
        problem.base_index,
        records,
    )
    tensors, metadata = contents(template)
    metrics = {
        "budget": budget,
        "base_steps": base_steps,
        "iterations": found.iterations,
        "edges": {name: float(s) for name, s in zip(problem.edges, found.success.mean(axis=1), strict=True)},
        "curve": found.curve,
    }
    return Trained(tensors, metadata, base_steps + found.steps, metrics)


def search(
    problem: Problem,
    settings: Settings,
    budget: int,
    rng: np.random.Generator,
    progress: Callable[[str], None] | None = None,
) -> Found:
    """Search one κ per edge within a budget of environment steps, as many edges at once as memory allows."""
    edges = len(problem.edges)
    cost = 2 * settings.directions * len(problem.train) * problem.network.size
    at_once = int(np.clip(MOST // cost, 1, edges))
    parts = []
    for first in range(0, edges, at_once):
        part = list(range(first, min(first + at_once, edges)))
        parts.append(_search(problem, part, settings, budget * len(part) // edges, rng, progress))
    return Found(
        np.concatenate([p.kappa for p in parts], axis=1),
        np.concatenate([p.success for p in parts]),
        np.concatenate([p.returns for p in parts]),
        sum(p.steps for p in parts),
        max(p.iterations for p in parts),
        [row for p in parts for row in p.curve],
    )


def _search(
    problem: Problem,
    edges: list[int],
    settings: Settings,
    budget: int,
    rng: np.random.Generator,
    progress: Callable[[str], None] | None,
) -> Found:
    network, n_tasks, n = problem.network, len(problem.train), len(edges)
    degree = 0 if settings.start == "additive" else settings.degree
    start = _start(settings, degree, network, n, rng)  # (degree + 1, edges, size)
    scale = _scale(settings, degree, problem.base[edges], int(problem.ahead.max()))
    z = np.zeros_like(start)
    best_z, best = z.copy(), np.full((n, 2), -np.inf)  # mean success, joined return
    success, returns = np.zeros((n, n_tasks)), np.full((n, n_tasks), -np.inf)
    full = np.zeros(n, dtype=int)  # checks in a row at full success
    active = np.arange(n)
    tasks = problem.tasks(edges)
    steps = iteration = 0
    curve: list[list[float]] = []
    while True:
        if iteration % settings.check_every == 0:
            sub = tasks.take(_rows(active, n_tasks))
            policies = _policies(problem, edges, active, (start + z / scale)[:, active, None])
            outcome = roll(network, policies, sub, draw(sub, settings.check_rollouts, rng), problem.family.reward.depth)
            steps += outcome.steps
            won = outcome.success.reshape(len(active), n_tasks)
            got = outcome.returns.reshape(len(active), n_tasks)
            joined = _join(got[..., None], problem.ahead[edges][active], settings)[:, 0]
            score = np.stack([won.mean(axis=1), joined], axis=1)
            for row, e in enumerate(active):
                if tuple(score[row]) > tuple(best[e]):
                    best[e], best_z[:, e] = score[row], z[:, e]
                    success[e], returns[e] = won[row], got[row]
                full[e] = full[e] + 1 if score[row, 0] >= 1.0 else 0
            curve.append([float(steps), *best[:, 0].tolist()])
            if progress is not None:
                progress(f"iteration {iteration}: training success {best[:, 0].mean():.3f} after {steps} steps")
            active = active[full[active] < settings.patience]
            if steps >= budget or len(active) == 0:
                break
        rows = 1 if settings.perturbation == "shared" else degree + 1
        delta = rng.standard_normal((len(active), settings.directions, rows, network.size))
        delta = np.broadcast_to(delta, (len(active), settings.directions, degree + 1, network.size))
        spread = settings.exploration * np.moveaxis(delta, 2, 0)  # (degree + 1, edges, directions, size)
        here = z[:, active, None]
        candidates = np.concatenate([here + spread, here - spread], axis=2)
        kappa = start[:, active, None] + candidates / scale[:, active, None]
        sub = tasks.take(_rows(active, n_tasks))
        policies = _policies(problem, edges, active, kappa)
        outcome = roll(network, policies, sub, draw(sub, settings.rollouts, rng), problem.family.reward.depth)
        steps += outcome.steps
        got = outcome.returns.reshape(len(active), n_tasks, -1)
        scores = _join(got, problem.ahead[edges][active], settings)
        step = settings.step * settings.exploration
        z[:, active] += np.moveaxis(ascent(scores, delta, settings.best, step, "all"), 1, 0)
        iteration += 1
    return Found(start + best_z / scale, success, returns, steps, iteration, curve)


def _problem(run: Run) -> tuple[Problem, int]:
    """Base policies: the index-0 teacher's, or for an edge that it cannot do the first one that can."""
    base = base_index = None
    steps = 0
    for index in run.train:
        teacher = load_teacher(run.places.teacher(run.family.name, run.gap, index, run.seed))
        steps += int(teacher.metrics["steps"])
        able = np.array([teacher.metrics["edges"][name]["success"] >= ABLE for name in teacher.edges])
        if base is None or base_index is None:
            base, base_index, missing = teacher.actor.copy(), np.zeros(len(able), dtype=np.int64), ~able
            first = teacher
        else:
            new = missing & able
            base[new], base_index[new] = teacher.actor[new], index
            missing &= ~able
        if not missing.any():
            break
    assert base is not None and base_index is not None
    problem = Problem(run.family, first.edges, run.train, first.network, first.scaling, base, base_index)
    return problem, steps


def _start(settings: Settings, degree: int, network: Network, edges: int, rng: np.random.Generator) -> Array:
    if settings.start == "random":
        return network.initial(rng, (degree + 1, edges), settings.start_scale).astype(np.float64)
    return identity(degree, (edges, network.size))


def _scale(settings: Settings, degree: int, base: Array, length: int) -> Array:
    """What a unit of the search's coordinates is divided by to get κ."""
    if not settings.rescale:
        return np.ones((degree + 1, len(base), 1))
    size = np.maximum(np.abs(base).max(axis=-1, keepdims=True), 1.0)  # (edges, 1)
    return np.asarray(max(length, 1) * np.stack([size**r for r in range(degree + 1)]), dtype=np.float64)


def _policies(problem: Problem, edges: list[int], active: Array, kappa: Array) -> Array:
    """Policies (edges · tasks, candidates, size), acting on raw states, of κ (degree + 1, edges, candidates, size)."""
    chosen = np.asarray(edges)[active]
    ahead = np.maximum(problem.ahead[chosen], 0)  # (edges, tasks)
    theta = np.broadcast_to(problem.base[chosen][:, None], kappa.shape[1:]).astype(np.float64)
    wanted = np.empty((*ahead.shape, *kappa.shape[2:]), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(int(ahead.max()) + 1):
            e, t = np.nonzero(ahead == step)
            wanted[e, t] = np.nan_to_num(theta[e], nan=0.0).clip(-RUNAWAY, RUNAWAY)
            theta = apply(kappa, theta)
    flat = wanted.reshape(-1, *wanted.shape[2:])
    center, half = (
        np.repeat(a[chosen], ahead.shape[1], axis=0)[:, None] for a in (problem.scaling.center, problem.scaling.half)
    )
    return problem.network.fold(flat, center, half)


def _join(returns: Array, ahead: Array, settings: Settings) -> Array:
    """One score per candidate (edges, candidates) from the returns (edges, tasks, candidates) of its policies."""
    there = (ahead >= 0)[..., None]
    returns = returns.astype(np.float64)
    if settings.aggregation == "mean":
        return np.asarray(np.where(there, returns, 0.0).sum(axis=1) / there.sum(axis=1))
    low = np.where(there, returns, np.inf).min(axis=1, keepdims=True)
    weights = np.where(there, np.exp(-settings.beta * (returns - low)), 0.0)
    return np.asarray((weights * np.where(there, returns, 0.0)).sum(axis=1) / weights.sum(axis=1))


def _rows(active: Array, n_tasks: int) -> list[int]:
    return [int(e) * n_tasks + t for e in active for t in range(n_tasks)]
