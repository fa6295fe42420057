"""GenRL (Subramanian et al. 2025): κ learnt by random search on the reward of all training tasks at once.

Per edge, every candidate κ is unrolled from the base policy, the unrolled policies act on their training
tasks, the tasks' returns are joined to one number, and augmented random search climbs it (paper, section 3.2,
"GenRL's approach"). Base policies, edges, composition and guards are those of DIBS: the result is a template like
any other. Edges × directions × signs × tasks × rollouts advance in one array program.

Where κ starts and in which coordinates it is searched decides most. `public` starts small and random, as the
public code does; `softmin` and `mean` start at the identity and search in the coordinates in which DIBS fits, and
differ in how returns are joined. `auto` tries all three on a part of the budget and goes on with the one that has
solved most *training* tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

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
from dibs.teachers.rollouts import Outcome, draw, roll
from dibs.teachers.store import load_teacher
from dibs.templates.guards import EdgeRecord
from dibs.templates.polynomial import apply, identity
from dibs.templates.template import RUNAWAY, Template, contents

Numbers = npt.NDArray[np.integer]
Bools = npt.NDArray[np.bool_]

count = count_template

MOST = 2**24  # parameters of policies held at once; more edges than fit are trained in turn
ABLE = 0.5  # success of a teacher from which on it can be the base of a template


VARIANTS: dict[str, dict[str, Any]] = {
    "softmin": {"start": "identity", "rescale": True, "aggregation": "softmin"},
    "mean": {"start": "identity", "rescale": True, "aggregation": "mean"},
    "public": {"start": "random", "rescale": False, "aggregation": "softmin"},
}
"""What `auto` chooses from, in the order in which a tie is decided."""


@dataclass(frozen=True)
class Settings:
    """Settings of the search; directions, best, exploration, step and β are those of the public code."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    steps: int = 0
    """Most environment steps, the base teachers' included; 0: as many as DIBS's teachers used."""
    variant: Literal["auto", "softmin", "mean", "public", "own"] = "auto"
    """One of the variants above, the best of them on training tasks, or `own`: start, rescale and aggregation below."""
    trial: float = 0.15
    """Share of the budget after which `auto` goes on with the best variant."""
    degree: int = 1
    """Degree m of the polynomial."""
    start: Literal["random", "identity", "additive"] = "random"
    """Where κ starts: small and random, or where it leaves every policy as it is (additive: of degree 0)."""
    start_scale: float = 0.577
    """Random start: standard deviation of κ's entries, times the root of their layer's inputs."""
    rescale: bool = False
    """Search in coordinates in which a unit moves the last policy, not κ, by about a unit."""
    aggregation: Literal["softmin", "mean"] = "softmin"
    """How the returns of the training tasks are joined."""
    beta: float = 1.0
    """Sharpness of the softmin."""
    perturbation: Literal["shared", "independent"] = "shared"
    """Whether all κ_r are perturbed by the same δ."""
    directions: int = 20
    """Perturbations tried per iteration, each with both signs."""
    best: int = 8
    """Directions kept for the update."""
    exploration: float = 0.05
    """Standard deviation ν of the perturbations."""
    step: float = 1.0
    """Step size, in perturbations νδ, before division by (best · standard deviation of all scores)."""
    rollouts: int = 2
    """Rollouts per candidate and task."""
    check_every: int = 10
    """Iterations between two estimates of the success on the training tasks."""
    check_rollouts: int = 100
    """Rollouts per task of such an estimate."""
    patience: int = 2
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
    base_index: npt.NDArray[Any]  # (edges,)

    def tasks(self, edges: Numbers) -> ReachAvoid:
        """The given edges at all training indices, edge by edge."""
        return self._all.take([int(e) * len(self.train) + t for e in edges for t in range(len(self.train))])

    @cached_property
    def _all(self) -> ReachAvoid:
        return ground(self.family, [(index, name) for name in self.edges for index in self.train])

    @property
    def ahead(self) -> Numbers:
        """Unrolled steps (edges, tasks) from the base; below 0 where an edge has no policy yet."""
        return np.asarray(self.train)[None] - self.base_index[:, None]


def train(run: Run, settings: Settings) -> Trained:
    """Search the templates of a family."""
    problem, base_steps = _problem(run)
    budget = settings.steps or dibs_steps(run.places, run.family, run.gap, run.seed, problem.edges)
    own = max(budget - base_steps, 0)
    key = ("baseline", "genrl", run.family.name, run.gap, run.seed)
    names = [settings.variant] if settings.variant != "auto" else list(VARIANTS)
    searches = {
        name: Search(problem, replace(settings, **VARIANTS.get(name, {})), stream(*key, name), run.progress)
        for name in names
    }
    used = 0
    if len(searches) > 1:
        for search in searches.values():
            search.advance(int(settings.trial * own))
            used += search.steps
            if search.converged:
                break
    variant = max(searches, key=lambda name: searches[name].merit)
    chosen = searches[variant]
    chosen.advance(chosen.steps + own - used)
    steps = np.sum([search.edge_steps for search in searches.values()], axis=0) + base_steps / len(problem.edges)
    records = {
        name: EdgeRecord(problem.train, tuple(map(float, chosen.success[e])), tuple(map(float, chosen.returns[e])))
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
        chosen.best_kappa,
        problem.base,
        problem.base_index,
        records,
    )
    tensors, metadata = contents(template)
    metrics = {
        "budget": budget,
        "base_steps": base_steps,
        "variants": {name: {"success": s.merit, "steps": s.steps, "curve": s.curve} for name, s in searches.items()},
        "edges": dict(zip(problem.edges, chosen.success.mean(axis=1), strict=True)),
    }
    by_edge = {name: round(float(s)) for name, s in zip(problem.edges, np.asarray(steps), strict=True)}
    return Trained(tensors, {**metadata, "variant": variant, "edge_steps": by_edge}, sum(by_edge.values()), metrics)


class Search:
    """One search over the κ of all edges; `advance` goes on until a number of environment steps has been used."""

    def __init__(
        self,
        problem: Problem,
        settings: Settings,
        rng: np.random.Generator,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.problem, self.settings, self.rng, self.progress = problem, settings, rng, progress
        n, tasks = problem.ahead.shape
        self.degree = 0 if settings.start == "additive" else settings.degree
        self.origin = _origin(settings, self.degree, problem.network, n, rng)  # (degree + 1, edges, size)
        self.scale = _scale(settings, self.degree, problem.base, int(problem.ahead.max()))
        self.z = np.zeros_like(self.origin)
        self.best_z, self.best = self.z.copy(), np.full((n, 2), -np.inf)  # mean success, joined return
        self.success, self.returns = np.zeros((n, tasks)), np.full((n, tasks), -np.inf)
        self.full = np.zeros(n, dtype=int)  # checks in a row at full success
        self.edge_steps = np.zeros(n)
        self.iteration = 0
        self.curve: list[list[float]] = []  # per check: steps, then the mean success of each edge so far
        cost = 2 * settings.directions * tasks * problem.network.size
        self.at_once = max(1, MOST // cost)

    @property
    def steps(self) -> int:
        """Environment steps used."""
        return round(float(self.edge_steps.sum()))

    @property
    def best_kappa(self) -> Array:
        """The best κ (degree + 1, edges, size) of every edge, by its success on the training tasks."""
        return np.asarray(self.origin + self.best_z / self.scale)

    @property
    def merit(self) -> float:
        """Mean success on the training tasks of all edges."""
        return float(self.success.mean())

    @property
    def active(self) -> Numbers:
        """Edges that have not converged."""
        return np.flatnonzero(self.full < self.settings.patience)

    @property
    def converged(self) -> bool:
        return len(self.active) == 0

    def advance(self, until: int) -> None:
        """Search on until `until` environment steps have been used or all edges have converged."""
        while self.steps < until and not self.converged:
            for _ in range(self.settings.check_every):
                for part in self._parts():
                    self._climb(part)
                self.iteration += 1
            for part in self._parts():
                self._check(part)
            self.curve.append([float(self.steps), *self.success.mean(axis=1).tolist()])
            if self.progress is not None:
                self.progress(f"iteration {self.iteration}: success {self.merit:.3f} after {self.steps} steps")

    def _parts(self) -> list[Any]:
        """The active edges, as many at once as memory allows."""
        return [self.active[i : i + self.at_once] for i in range(0, len(self.active), self.at_once)]

    def _climb(self, edges: Numbers) -> None:
        """One iteration of random search for the given edges."""
        settings, size = self.settings, self.problem.network.size
        rows = 1 if settings.perturbation == "shared" else self.degree + 1
        delta = self.rng.standard_normal((len(edges), settings.directions, rows, size))
        delta = np.broadcast_to(delta, (len(edges), settings.directions, self.degree + 1, size))
        spread = settings.exploration * np.moveaxis(delta, 2, 0)  # (degree + 1, edges, directions, size)
        here = self.z[:, edges, None]
        candidates = np.concatenate([here + spread, here - spread], axis=2)
        outcome = self._roll(edges, candidates, settings.rollouts)
        scores = _join(outcome.returns.reshape(len(edges), -1, candidates.shape[2]), self._there(edges), settings)
        step = settings.step * settings.exploration
        self.z[:, edges] += np.moveaxis(ascent(scores, delta, settings.best, step, "all"), 1, 0)

    def _check(self, edges: Numbers) -> None:
        """Measure the current κ of the given edges on the training tasks; keep it where it is the best so far."""
        outcome = self._roll(edges, self.z[:, edges, None], self.settings.check_rollouts)
        success, returns = (a.reshape(len(edges), -1) for a in (outcome.success, outcome.returns))
        there = self._there(edges)
        joined = _join(returns[..., None], there, self.settings)[:, 0]
        mean = np.where(there, success, 0.0).sum(axis=1) / there.sum(axis=1)
        for row, e in enumerate(edges):
            if (mean[row], joined[row]) > tuple(self.best[e]):
                self.best[e], self.best_z[:, e] = (mean[row], joined[row]), self.z[:, e]
                self.success[e], self.returns[e] = success[row], returns[row]
            self.full[e] = self.full[e] + 1 if mean[row] >= 1.0 else 0

    def _roll(self, edges: Numbers, z: Array, rollouts: int) -> Outcome:
        """Unroll κ (from z (degree + 1, edges, candidates, size)) and act on every edge's training tasks."""
        problem = self.problem
        kappa = self.origin[:, edges, None] + z / self.scale[:, edges, None]
        tasks = problem.tasks(edges)
        policies = _policies(problem, edges, kappa)
        outcome = roll(problem.network, policies, tasks, draw(tasks, rollouts, self.rng), problem.family.reward.depth)
        self.edge_steps[edges] += outcome.steps / len(edges)
        return outcome

    def _there(self, edges: Numbers) -> Bools:
        """Which training tasks (edges, tasks) an edge has a policy for."""
        return np.asarray(self.problem.ahead[edges] >= 0)


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


def _origin(settings: Settings, degree: int, network: Network, edges: int, rng: np.random.Generator) -> Array:
    """Where κ (degree + 1, edges, size) starts."""
    if settings.start == "random":
        return network.initial(rng, (degree + 1, edges), settings.start_scale).astype(np.float64)
    return identity(degree, (edges, network.size))


def _scale(settings: Settings, degree: int, base: Array, length: int) -> Array:
    """What a unit of the search's coordinates is divided by to get κ."""
    if not settings.rescale:
        return np.ones((degree + 1, len(base), 1))
    size = np.maximum(np.abs(base).max(axis=-1, keepdims=True), 1.0)  # (edges, 1)
    return np.asarray(max(length, 1) * np.stack([size**r for r in range(degree + 1)]), dtype=np.float64)


def _policies(problem: Problem, edges: Numbers, kappa: Array) -> Array:
    """Policies (edges · tasks, candidates, size), acting on raw states, of κ (degree + 1, edges, candidates, size)."""
    ahead = np.maximum(problem.ahead[edges], 0)  # (edges, tasks)
    theta: Array = np.broadcast_to(problem.base[edges][:, None], kappa.shape[1:]).astype(np.float64)
    wanted = np.empty((*ahead.shape, *kappa.shape[2:]), dtype=np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(int(ahead.max()) + 1):
            e, t = np.nonzero(ahead == step)
            if len(e):
                wanted[e, t] = np.nan_to_num(theta[e], nan=0.0).clip(-RUNAWAY, RUNAWAY)
            theta = apply(kappa, theta).astype(np.float64)
    tasks, scaling = ahead.shape[1], problem.scaling
    center, half = (np.repeat(a[edges], tasks, axis=0)[:, None] for a in (scaling.center, scaling.half))
    return problem.network.fold(wanted.reshape(-1, *wanted.shape[2:]), center, half)


def _join(returns: Array, there: Bools, settings: Settings) -> Array:
    """One score per candidate (edges, candidates) from the returns (edges, tasks, candidates) of its policies."""
    there = there[..., None]
    returns = np.where(there, returns, 0.0).astype(np.float64)
    if settings.aggregation == "mean":
        return np.asarray(returns.sum(axis=1) / there.sum(axis=1))
    low = np.where(there, returns, np.inf).min(axis=1, keepdims=True)
    weights = np.where(there, np.exp(-settings.beta * (returns - low)), 0.0)
    return np.asarray((weights * returns).sum(axis=1) / weights.sum(axis=1))
