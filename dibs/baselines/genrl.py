"""GenRL (Subramanian et al. 2025): κ learned by random search on the reward of all training tasks at once.

For each edge, every candidate κ is unrolled from the base policy, the unrolled policies act on their training tasks,
the tasks' returns are combined into one number, and augmented random search climbs it (paper, section 3.2, "GenRL's
approach"). Base policies, edges, composition and guards are those of DIBS: the result is a template like any other.
Edges × directions × signs × tasks × rollouts advance in one array program.

Where κ starts and in which coordinates it is searched matters most. `public` starts small and random, as the public
code does. `softmin` and `mean` start at the identity, search in the coordinates in which DIBS fits, and differ in how
returns are combined. `auto` tries all three on a part of the budget and continues with the one that solves most
*training* tasks. The method `genrl-public` is the public code as closely as we know it: also its network, for which it
trains a base policy of its own, and its softmin of unscaled returns.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from dibs.envs import Array
from dibs.families import NetworkModel, Tasks
from dibs.methods import Method, Model, Training
from dibs.policies.search import ascent
from dibs.progress import Reporter
from dibs.seeding import stream
from dibs.settings import STRICT, Positive
from dibs.simulation import Bools, EdgeTask, NetworkPolicy, Rows, draw, rollout
from dibs.teachers.store import load_teacher
from dibs.teachers.train import TeacherSettings, resolve, train_teacher
from dibs.templates.guards import records_of
from dibs.templates.polynomial import apply, identity, unit_scale
from dibs.templates.template import RUNAWAY, Template, template_policy

MOST = 2**24  # parameters of policies held at once; if there are more, edges are trained in turn
ABLE = 0.5  # success from which on a teacher can be the base of a template

NEVER = -1e9  # return of an edge that was never measured, because the budget ended before the first check

VARIANTS: dict[str, dict[str, Any]] = {
    "softmin": {"start": "identity", "rescale": True, "aggregation": "softmin"},
    "mean": {"start": "identity", "rescale": True, "aggregation": "mean"},
    "public": {"start": "random", "rescale": False, "aggregation": "softmin"},
}
"""What `auto` chooses from; on a tie, the first."""


@dataclass(frozen=True)
class Settings:
    """Settings of the search; directions, best, exploration, step and β are those of the public code."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    steps: int = 0
    """Maximum number of environment steps, including those of the base teachers; 0: as many as DIBS's teachers used.

    A base policy of its own shape (`hidden`) comes on top: random search may need more for it than PPO for all of
    DIBS's teachers.
    """
    times: Positive = 1.0
    """Factor of the budget, if that is what the teachers used."""
    variant: Literal["auto", "softmin", "mean", "public", "own"] = "auto"
    """One of the variants above, the best of them on training tasks, or `own`: start, rescale and aggregation below."""
    trial: float = 0.15
    """Share of the budget after which `auto` continues with the best variant."""
    degree: int = 1
    """Degree m of the polynomial."""
    start: Literal["random", "identity"] = "random"
    """Where κ starts: small and random, or where it leaves every policy unchanged."""
    start_scale: float = 0.577
    """Random start: standard deviation of κ's entries, times the square root of their layer's inputs."""
    rescale: bool = False
    """Search in coordinates in which a unit moves the last policy, not κ, by about a unit."""
    aggregation: Literal["softmin", "mean", "log-sum"] = "softmin"
    """How the returns of the training tasks are combined: a mean weighted by exp(−β r), a plain mean, or the public
    code's −(1/β) log Σ exp(−β r) of returns that are not divided by the family's unit of reward."""
    beta: float = 1.0
    """Sharpness of the softmin."""
    hidden: tuple[int, ...] = ()
    """Hidden layers of the policies; empty: those of DIBS's teachers, whose first one is the base policy. With other
    layers, ARS trains a base policy of that shape at index 0 first, in addition to the budget."""
    activation: Literal["tanh", "relu"] = "relu"
    """Activation of these hidden layers."""
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


def train(training: Training, settings: Settings) -> Model:
    """Search for the templates of all edges."""
    tasks, edges = training.tasks, training.tasks.edge_names
    start, base_steps = own_base(training, settings) if settings.hidden else base_template(training)
    budget = settings.steps or round(settings.times * training.teacher_steps())
    left = budget if settings.hidden else max(budget - base_steps, 0)
    key = ("baseline", "genrl", tasks.name, training.split.key, training.seed)
    searches = {
        name: KappaSearch(
            tasks, start, replace(settings, **VARIANTS.get(name, {})), stream(*key, name), training.progress
        )
        for name in (VARIANTS if settings.variant == "auto" else [settings.variant])
    }
    if len(searches) > 1:
        share = int(settings.trial * left)
        for search in searches.values():
            search.advance(share)
            left -= search.steps
            if search.converged:
                break
    variant = max(searches, key=lambda name: searches[name].merit)
    chosen = searches[variant]
    chosen.advance(chosen.steps + left)
    steps = np.sum([search.edge_steps for search in searches.values()], axis=0) + base_steps / len(edges)
    records = records_of(tasks.indices, edges, chosen.success, chosen.returns)
    success = dict(zip(edges, chosen.success.mean(axis=1), strict=True))
    tried = {name: {"success": s.merit, "steps": s.steps, "curve": s.curve} for name, s in searches.items()}
    metrics = {"variant": variant, "budget": budget, "base_steps": base_steps, "variants": tried, "edges": success}
    template = replace(start, kappa=chosen.best_kappa, records=records)
    curve = [
        {"variant": name, "steps": int(taken), "edge": edge, "success": rate}
        for name, search in searches.items()
        for taken, *rates in search.curve
        for edge, rate in zip(edges, rates, strict=True)
    ]
    used = {name: round(float(s)) for name, s in zip(edges, steps, strict=True)}
    made_from = 0 if settings.hidden else tasks.indices.index(int(start.base_index.max())) + 1
    return replace(template.to_model(used, metrics), curve=curve, made_from=made_from)


def base_template(training: Training) -> tuple[Template, int]:
    """Return the template to start from, which does not move yet, and the steps of the teachers it starts from.

    An edge starts from the teacher of index 0, or if that fails, from the first one that does not.
    """
    first = load_teacher(training.teachers[0])
    base, base_index, steps = first.actor.copy(), np.zeros(len(first.edges), dtype=np.int64), 0
    missing = np.ones(len(first.edges), dtype=bool)
    for teacher in map(load_teacher, training.teachers):
        steps += int(teacher.metrics["steps"])
        able = np.array([teacher.metrics["edges"][name]["success"] >= ABLE for name in teacher.edges])
        base[missing & able], base_index[missing & able] = teacher.actor[missing & able], teacher.index
        missing &= ~able
        if not missing.any():
            break
    shared = (training.tasks.indices, first.edges, first.network, first.scaling)
    return Template(*shared, identity(0, base.shape), base, base_index, {}), steps


def own_base(training: Training, settings: Settings) -> tuple[Template, int]:
    """Return the template to start from, with a base policy of the shape in the settings, and the steps it took."""
    shape = NetworkModel(hidden=list(settings.hidden), activation=settings.activation)
    tasks = replace(training.tasks, network=shape).at([0, training.tasks.indices[-1]])
    teaching = resolve(TeacherSettings(algorithm="ars"), "", {})
    base, _, _ = train_teacher(tasks, training.split, 0, training.seed, None, teaching, training.progress)
    shared = (training.tasks.indices, base.edges, base.network, base.scaling)
    start = Template(*shared, identity(0, base.actor.shape), base.actor, np.zeros(len(base.edges), dtype=np.int64), {})
    return start, int(base.metrics["steps"])


class KappaSearch:
    """One search over the κ of all edges; `advance` continues until a number of environment steps has been used."""

    def __init__(
        self,
        tasks: Tasks,
        start: Template,
        settings: Settings,
        rng: np.random.Generator,
        progress: Reporter | None = None,
    ) -> None:
        self.tasks, self.start, self.settings, self.rng, self.progress = tasks, start, settings, rng, progress
        self.grounded = tasks.ground([(index, name) for name in tasks.edge_names for index in tasks.indices])
        # Unrolled steps (edges, tasks) from the base; negative where an edge has no policy yet.
        self.ahead = np.asarray(tasks.indices)[None] - start.base_index[:, None]
        n, count = self.ahead.shape
        degree = settings.degree
        self.origin = identity(degree, start.base.shape)  # (degree + 1, edges, size)
        if settings.start == "random":
            self.origin = start.network.initial(rng, (degree + 1, n), settings.start_scale).astype(np.float64)
        self.scale = np.ones((degree + 1, n, 1))
        if settings.rescale:
            self.scale = unit_scale(degree, start.base, int(self.ahead.max())).astype(np.float64)
        self.z = np.zeros_like(self.origin)
        self.best_z, self.best = self.z.copy(), np.full((n, 2), -np.inf)  # mean success, combined return
        self.success, self.returns = np.zeros((n, count)), np.full((n, count), NEVER)
        self.full = np.zeros(n, dtype=int)  # checks in a row at full success
        self.edge_steps, self.iteration = np.zeros(n), 0
        self.curve: list[list[float]] = []  # per check: steps, then the mean success of each edge so far
        self.at_once = max(1, MOST // (2 * settings.directions * count * start.network.size))

    def edge_task(self, edges: Rows) -> EdgeTask:
        """Return the given edges at all training indices, edge by edge."""
        n = len(self.tasks.indices)
        return EdgeTask(self.grounded.take([int(e) * n + t for e in edges for t in range(n)]), self.tasks.reward.depth)

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
    def converged(self) -> bool:
        """Whether all edges have."""
        return bool((self.full >= self.settings.patience).all())

    def advance(self, until: int) -> None:
        """Search until `until` environment steps have been used or all edges have converged."""
        while self.steps < until and not self.converged:
            for _ in range(self.settings.check_every):
                for part in self._parts():
                    self._climb(part)
                self.iteration += 1
            for part in self._parts():
                self._check(part)
            self.curve.append([float(self.steps), *self.success.mean(axis=1).tolist()])
            if self.progress is not None:
                reached = f"iteration {self.iteration}: success {self.merit:.3f} after {self.steps} steps"
                self.progress(reached, None, self.steps, {"success": self.merit})

    def _parts(self) -> list[Any]:
        """Split the edges that have not converged into parts that fit into memory."""
        active = np.flatnonzero(self.full < self.settings.patience)
        return [active[i : i + self.at_once] for i in range(0, len(active), self.at_once)]

    def _climb(self, edges: Rows) -> None:
        """Run one iteration of random search for the given edges."""
        settings, powers, size = self.settings, len(self.origin), self.start.network.size
        shape = (len(edges), settings.directions, powers, size)
        drawn = (*shape[:2], 1 if settings.perturbation == "shared" else powers, size)
        delta = np.broadcast_to(self.rng.standard_normal(drawn), shape)
        spread = settings.exploration * delta.transpose(2, 1, 0, 3)  # (degree + 1, directions, edges, size)
        here = self.z[:, None, edges]
        returns, _ = self._measure(edges, np.concatenate([here + spread, here - spread], axis=1), settings.rollouts)
        scores = _combined(returns, self.ahead[edges] >= 0, settings, self.tasks.reward.unit)
        step = settings.step * settings.exploration
        self.z[:, edges] += np.moveaxis(ascent(scores, delta, settings.best, step, "all"), 1, 0)

    def _check(self, edges: Rows) -> None:
        """Measure the current κ of the given edges on the training tasks; keep it where it is the best so far."""
        returns, success = self._measure(edges, self.z[:, None, edges], self.settings.check_rollouts)
        there = self.ahead[edges] >= 0
        combined = _combined(returns, there, self.settings, self.tasks.reward.unit)[:, 0]
        mean = np.where(there, success[..., 0], 0.0).sum(axis=1) / there.sum(axis=1)
        for row, e in enumerate(edges):
            if (mean[row], combined[row]) > tuple(self.best[e]):
                self.best[e], self.best_z[:, e] = (mean[row], combined[row]), self.z[:, e]
                self.success[e], self.returns[e] = success[row, :, 0], returns[row, :, 0]
            self.full[e] = self.full[e] + 1 if mean[row] >= 1.0 else 0

    def _measure(self, edges: Rows, z: Array, rollouts: int) -> tuple[Array, Array]:
        """Return mean return and success (edges, tasks, candidates) of z (degree + 1, candidates, edges, size)."""
        policies = self.policies(edges, self.origin[:, None, edges] + z / self.scale[:, None, edges])
        task, candidates = self.edge_task(edges), len(policies)
        acting = NetworkPolicy(self.start.network, policies)
        outcome = rollout(task, acting, draw(task, rollouts, self.rng), candidates=(candidates,))
        self.edge_steps[edges] += outcome.steps / len(edges)
        means = [a.mean(axis=-1).T.reshape(len(edges), -1, candidates) for a in (outcome.returns, outcome.success)]
        return np.ascontiguousarray(means[0]), np.ascontiguousarray(means[1])

    def policies(self, edges: Rows, kappa: Array) -> Array:
        """Unroll κ (degree + 1, candidates, edges, size) to folded policies (candidates, edges · tasks, size)."""
        ahead = np.maximum(self.ahead[edges], 0)  # (edges, tasks)
        theta: Array = np.broadcast_to(self.start.base[edges], kappa.shape[1:]).astype(np.float64)
        unrolled = np.empty((len(theta), *ahead.shape, theta.shape[-1]), dtype=np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            for step in range(int(ahead.max()) + 1):
                e, t = np.nonzero(ahead == step)
                unrolled[:, e, t] = np.nan_to_num(theta[:, e], nan=0.0).clip(-RUNAWAY, RUNAWAY)
                theta = apply(kappa, theta)
        rows = np.repeat(edges, ahead.shape[1])
        center, half = self.start.scaling.center[rows], self.start.scaling.half[rows]
        return self.start.network.fold(unrolled.reshape(len(unrolled), -1, unrolled.shape[-1]), center, half)


def _combined(returns: Array, there: Bools, settings: Settings, unit: float) -> Array:
    """Return one score per candidate (edges, candidates) from the returns (edges, tasks, candidates)."""
    there = there[..., None]
    if settings.aggregation == "log-sum":
        raw = np.where(there, -settings.beta * unit * returns.astype(np.float64), -np.inf)
        most = raw.max(axis=1, keepdims=True)
        summed = np.log(np.exp(raw - most).sum(axis=1)) + most[:, 0]
        return np.asarray(-summed / settings.beta)
    returns = np.where(there, returns, 0.0).astype(np.float64)
    weights = there.astype(np.float64)
    if settings.aggregation == "softmin":
        low = np.where(there, returns, np.inf).min(axis=1, keepdims=True)
        weights = np.where(there, np.exp(-settings.beta * (returns - low)), 0.0)
    return np.asarray((weights * returns).sum(axis=1) / weights.sum(axis=1))


LOOK: dict[str, Any] = {"color": "#882255", "marker": "v", "hatch": "\\\\\\", "dashes": (), "order": 6}
KIND: dict[str, Any] = {"needs": ("teachers",), "per_family": True, "minutes": 120, "version": 2}
METHOD = Method("genrl", "GenRL", Settings, train, template_policy, **KIND, **LOOK)
AS_PUBLISHED: dict[str, Any] = {
    "variant": "own",
    "start": "random",
    "rescale": False,
    "aggregation": "log-sum",
    "hidden": (30, 30),
    "activation": "relu",
}
LOOK = {"color": "#CF8FB0", "marker": "v", "hatch": "\\\\", "dashes": (1.5, 1.0), "hollow": True, "order": 32}
PUBLIC = replace(METHOD, name="genrl-public", label="GenRL (public)", defaults=AS_PUBLISHED, **LOOK)
