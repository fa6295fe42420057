"""Choose a class of templates per edge, on training indices alone: what `dibs-plus` does where motion does not hold.

Training indices are left out one at a time: up to two in the interior, and the last one, so that the choice sees
extrapolation. Each candidate is fitted to the rest, and its policy for the left-out index is rolled out there. A
candidate is a polynomial or affine maps, with or without weak priors, with or without supervision between training
indices (`dibs.templates.bridges`). The best mean success wins. Among candidates within noise of it, the one with the
fewest free parameters wins, then the one that did best on development families.

The chosen candidate is fitted to all training indices, and refined by L-BFGS. It is compared with the paper's objective
by rollouts at all training indices: an edge that solves fewer of them, or succeeds less often, reverts to it. So the
training ratio is not below that of `dibs`, up to the noise of these rollouts. Left-out indices are training indices, so
nothing about an unseen index is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from dibs.envs import Array
from dibs.families import Tasks
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.progress import Reporter
from dibs.simulation import EdgeTask, NetworkPolicy, draw, rollout
from dibs.templates.affine import Affine, AffineSettings, Form, fit_affine
from dibs.templates.bridges import Guide, Kind, bridged, carries
from dibs.templates.fit import Fit, FitSettings, fit
from dibs.templates.guards import EdgeRecord, teacher_records
from dibs.templates.objective import Prior, Supervision
from dibs.templates.template import Joined, Part, PolicyEvolution, Source, Template, gather

NONE: Prior = (0.0, 0.0, False)
WEAK: Prior = (1e-2, 1e-3, True)
STRONG: Prior = (1e-1, 1e-2, True)


class Candidate(NamedTuple):
    """One way to fit an edge."""

    bridges: Kind | None = None
    prior: Prior = NONE
    form: Form | None = None
    """Of affine maps; None: a polynomial."""

    @property
    def words(self) -> str:
        """What reports call it."""
        prior = {NONE: [], WEAK: ["weak priors"], STRONG: ["stronger priors"]}[self.prior]
        bridges = [f"bridges ({self.bridges})"] if self.bridges else []
        return ", ".join(["polynomial" if self.form is None else f"affine ({self.form})", *prior, *bridges])

    def parameters(self, network: Network, degree: int) -> int:
        """Return the number of free parameters per edge."""
        if self.form is None:
            return (degree + 1) * network.size
        sizes = (network.inputs, network.outputs)
        return sum(n + {"shift": 0, "diagonal": n, "full": n * n}[self.form] for n in sizes)


CANDIDATES = (
    Candidate(),  # the paper's objective
    Candidate(None, STRONG),
    Candidate(None, WEAK),
    Candidate("actions", WEAK),
    Candidate("pairs"),
    Candidate("actions"),
    Candidate(form="full"),
)
"""The paper's objective first; then polynomials from the worst to the best on development families, and affine maps."""
FOLDS = 2  # interior training indices left out, one at a time, besides the last one
ROLLOUTS = 200  # per fold and candidate
CHECKS = 500  # per training index, in the comparison with the paper's objective
NOISE = 0.02  # of two successes at the same left-out indices
SPREAD = 0.3  # standard deviation of an edge's success from one index to another
TOLERANCE = 0.02  # success at a training index may be this much lower by chance
SOLVED = 0.9
STEPS, BATCH = 400, 128  # of the fits that are compared, which need not be polished
QUICK = AffineSettings(iterations=15, restarts=0)  # of affine maps that are compared
AFFINE = AffineSettings(iterations=100, restarts=0)


@dataclass(frozen=True, eq=False)
class Selection:
    """Everything that choosing and fitting some edges needs."""

    tasks: Tasks
    edges: tuple[str, ...]
    data: Supervision
    guides: tuple[Guide, ...]
    network: Network
    scaling: Scaling
    records: Mapping[str, EdgeRecord]
    settings: FitSettings
    rng: np.random.Generator
    progress: Reporter | None = None
    queried: dict[str, int] = field(default_factory=dict)
    """Environment steps by edge, filled while it chooses and fits."""
    final: list[Candidate] = field(default_factory=list)
    """The candidate of each edge, once it has fitted."""

    @classmethod
    def of(
        cls,
        tasks: Tasks,
        sources: Sequence[Source],
        edges: Sequence[str],
        settings: FitSettings,
        rng: np.random.Generator,
        progress: Reporter | None = None,
    ) -> Selection:
        """Return the selection for some of the teachers' edges."""
        teachers = [source.teacher for source in sources]
        first = teachers[0]
        tasks = reduce(lambda known, teacher: teacher.starts(known), teachers, tasks)
        rows = np.array([first.edges.index(name) for name in edges])
        data, scaling = gather(tasks, sources, settings).take(rows), first.scaling.take(rows)
        guides = []
        for e, row in enumerate(rows):
            actors = np.stack([teacher.actor[row] for teacher in teachers])
            scale = scaling.center[e], scaling.half[e]
            guides.append(Guide.of(tasks, edges[e], first.network, scale, actors))
        records = {name: record for name, record in teacher_records(teachers).items() if name in edges}
        own = tuple(edges), data, tuple(guides), first.network, scaling, records
        return cls(tasks, *own, settings, rng, progress)

    @property
    def candidates(self) -> list[Candidate]:
        """The candidates that the settings and the environment allow; the first one is the paper's objective."""
        environment, settings = self.tasks.environment, self.settings
        allowed: set[Kind | None] = {None}
        if settings.bridges:
            allowed |= {"pairs"}
            if carries(environment):
                allowed |= {"actions"}
        return [
            c
            for c in CANDIDATES
            if c.bridges in allowed and (settings.priors or c.prior == NONE) and (settings.affine or c.form is None)
        ]

    # --- choosing ----------------------------------------------------------------------------------------

    def choose(self) -> tuple[list[Candidate], list[dict[str, float]]]:
        """Return the best candidate of each edge, and the success of all of them at left-out indices."""
        chosen, table = [], []
        candidates = self.candidates
        for e, name in enumerate(self.edges):
            folds = left_out(self.data.present[e])
            best, success = candidates[0], dict[str, float]()
            if folds and len(candidates) > 1:
                rates = self.trial(e, folds, candidates)
                best = self.best(candidates, rates, len(folds))
                success = {c.words: float(rate) for c, rate in zip(candidates, rates, strict=True)}
                if self.progress is not None:
                    scores = ", ".join(f"{words} {rate:.2f}" for words, rate in success.items())
                    self.progress(f"{name}: {best.words}; success at left-out indices: {scores}")
            chosen.append(best)
            table.append(success)
        return chosen, table

    def best(self, candidates: Sequence[Candidate], success: Array, folds: int) -> Candidate:
        """Return the candidate to take, given the success (candidates,) of all at left-out indices.

        If affine maps are as good as the best, they are taken. Otherwise a few left-out indices say little about all
        others: of polynomials that are nearly as good as the best, the last one of `CANDIDATES` is taken.
        """
        least = np.where([c.form is not None for c in candidates], NOISE, SPREAD / folds)
        good = [c for c, near in zip(candidates, success >= success.max() - least, strict=True) if near]
        return min(reversed(good), key=lambda c: c.parameters(self.network, self.settings.degree))

    def trial(self, e: int, folds: Sequence[int], candidates: Sequence[Candidate]) -> Array:
        """Return the mean success (candidates,) at the left-out indices of one edge."""
        indices = [int(self.data.indices[n]) for n in folds]
        task = self._task(e, indices)
        draws = draw(task, ROLLOUTS, self.rng)
        theta = np.empty((len(candidates), len(folds), self.network.size), dtype=np.float32)
        without = [_without(self.data, e, n) for n in folds]
        for kind, form in dict.fromkeys((c.bridges, c.form) for c in candidates):
            some = [c for c, candidate in enumerate(candidates) if (candidate.bridges, candidate.form) == (kind, form)]
            # Candidates with the same supervision are fitted together. Rows are fold by fold.
            parts = [self._bridged(part, [kind], [e]) for part in without]
            data = _stacked([part for part in parts for _ in some])
            template = self._fitted(data, [candidates[c] for c in some] * len(folds), quick=True)[0]
            actors = template.actors(sorted(set(indices)))
            for row, (f, c) in enumerate((f, c) for f in range(len(folds)) for c in some):
                theta[c, f] = actors[indices[f]][row]
        outcome = rollout(task, self._policy(e, theta), draws, candidates=(len(candidates),))
        self._count(e, outcome.steps)
        return np.asarray(outcome.success.mean(axis=(-1, -2)))

    # --- fitting -----------------------------------------------------------------------------------------

    def fit(self) -> tuple[list[Part], dict[str, Any]]:
        """Return the templates of the edges and what metrics say about them."""
        plain, result = self._polynomials(self.data, [NONE] * len(self.edges), self.settings.max_steps, refined=False)
        chosen, table = self.choose()
        again = [e for e, candidate in enumerate(chosen) if self.settings.refine or candidate != CANDIDATES[0]]
        fitted = self._by_class(self.data, chosen, again, quick=False)
        kept, per_index = np.zeros(len(self.edges), dtype=bool), result.per_index.copy()
        for edges, template, loss in fitted:
            for row, e in enumerate(edges):
                kept[e] = self.no_worse(e, plain, template, row)
                if kept[e]:
                    per_index[e] = loss[row]
        parts: list[Part] = []
        if not kept.all():
            parts.append(plain.take(np.flatnonzero(~kept)))
        for edges, template, _ in fitted:
            rows = np.flatnonzero(kept[edges])
            if len(rows):
                parts.append(template.take(rows))
        final = [c if k else CANDIDATES[0] for c, k in zip(chosen, kept, strict=True)]
        self.final[:] = final
        words = [c.words for c in final]
        by_edge = {"chosen": words, "left_out": table, "edges": np.nansum(per_index, axis=1), "per_index": per_index}
        metrics: dict[str, Any] = {key: dict(zip(self.edges, list(v), strict=True)) for key, v in by_edge.items()}
        return parts, {**metrics, "fitted": self.edges, "steps": result.steps, "curve": result.curve}

    def refit(self, data: Supervision, rng: np.random.Generator) -> PolicyEvolution:
        """Fit the chosen candidates quickly to fewer datasets, for predicted success."""
        again = replace(self, rng=rng)
        parts = [template for _, template, _ in again._by_class(data, self.final, range(len(self.edges)), quick=True)]
        return parts[0] if len(parts) == 1 else Joined(tuple(parts))

    def _by_class(
        self, data: Supervision, chosen: Sequence[Candidate], edges: Sequence[int], quick: bool
    ) -> list[tuple[list[int], Template | Affine, Array]]:
        """Fit polynomials to some of the edges and affine maps to others: edges, template, and loss (edges, n)."""
        more = self._bridged(data, [c.bridges for c in chosen], range(len(self.edges)))
        found = []
        for affine in (False, True):
            own = [e for e in edges if (chosen[e].form is not None) == affine]
            if own:
                template, loss = self._fitted(more.take(np.array(own)), [chosen[e] for e in own], quick, own)
                found.append((own, template, loss[:, : len(data.indices)]))
        return found

    def no_worse(self, e: int, plain: Template, other: Template | Affine, row: int) -> bool:
        """Whether an edge (position `row` of `other`) succeeds as often at all training indices as the paper's fit."""
        indices = [int(i) for i in self.data.indices[self.data.present[e]]]
        actors = plain.actors(indices), other.actors(indices)
        theta = np.stack([[actors[0][i][e] for i in indices], [actors[1][i][row] for i in indices]])
        task = self._task(e, indices)
        outcome = rollout(task, self._policy(e, theta), draw(task, CHECKS, self.rng), candidates=(2,))
        self._count(e, outcome.steps)
        before, after = outcome.success.mean(axis=-1)
        lost = ((before > SOLVED) & (after <= SOLVED)) | (after < before - TOLERANCE)
        return not lost.any() and bool(after.mean() >= before.mean() - TOLERANCE / 2)

    def _fitted(
        self, data: Supervision, candidates: Sequence[Candidate], quick: bool, edges: Sequence[int] | None = None
    ) -> tuple[Template | Affine, Array]:
        """Fit candidates that are all polynomials or all affine, one per edge of the data."""
        if candidates[0].form is None:
            steps = STEPS if quick else self.settings.max_steps
            priors = [candidate.prior for candidate in candidates]
            template, result = self._polynomials(data, priors, steps, not quick, edges)
            return template, result.per_index
        forms = [candidate.form for candidate in candidates if candidate.form is not None]
        maps = fit_affine(data, self.network, QUICK if quick else AFFINE, self.rng, forms)
        names, scaling, records = self._shared(edges, len(data.base))
        own = maps.inputs, maps.outputs, data.base, data.base_index
        return Affine(self.tasks.indices, names, self.network, scaling, *own, records), maps.per_index

    def _polynomials(
        self,
        data: Supervision,
        priors: Sequence[Prior],
        max_steps: int,
        refined: bool,
        edges: Sequence[int] | None = None,
    ) -> tuple[Template, Fit]:
        settings = replace(self.settings, max_steps=min(max_steps, self.settings.max_steps))
        if not refined:
            settings = replace(settings, refine=0, restarts=0)
        if max_steps == STEPS:
            settings = replace(settings, batch=min(BATCH, settings.batch))
        result = fit(data, self.network, settings, self.rng, priors=priors)
        names, scaling, records = self._shared(edges, len(data.base))
        own = result.kappa, data.base, data.base_index
        return Template(self.tasks.indices, names, self.network, scaling, *own, records), result

    def _shared(
        self, edges: Sequence[int] | None, count: int
    ) -> tuple[tuple[str, ...], Scaling, dict[str, EdgeRecord]]:
        """Return names, scaling and records of some of the edges; of copies of one edge, these mean nothing."""
        if edges is None and count != len(self.edges):
            return ("",) * count, self.scaling, {}
        rows = np.arange(count) if edges is None else np.array(edges)
        names = tuple(self.edges[row] for row in rows)
        return names, self.scaling.take(rows), {name: self.records[name] for name in names}

    def _bridged(self, data: Supervision, kinds: Sequence[Kind | None], edges: Sequence[int]) -> Supervision:
        """Return the data of some edges with supervision in between."""
        return bridged(data, kinds, [self.guides[e] for e in edges], self.rng) if any(kinds) else data

    def _count(self, e: int, steps: int) -> None:
        self.queried[self.edges[e]] = self.queried.get(self.edges[e], 0) + steps

    def _task(self, e: int, indices: Sequence[int]) -> EdgeTask:
        return EdgeTask(self.tasks.ground([(i, self.edges[e]) for i in indices]))

    def _policy(self, e: int, theta: Array) -> NetworkPolicy:
        return NetworkPolicy(self.network, self.network.fold(theta, self.scaling.center[e], self.scaling.half[e]))


def left_out(present: Array) -> list[int]:
    """Return the positions of the training indices to leave out: up to two in the interior and the last one.

    With two training indices there is nothing to leave out.
    """
    known = np.flatnonzero(present)
    if len(known) < 3:
        return []
    inside = known[1:-1]
    picks = np.linspace(0, len(inside) - 1, min(FOLDS, len(inside))).round().astype(int)
    return [*map(int, inside[picks]), int(known[-1])]


def _without(data: Supervision, e: int, n: int) -> Supervision:
    """Return the data of one edge without the n-th training index."""
    one = data.take(np.array([e]))
    one.present[0, n] = False
    return one


def _stacked(parts: Sequence[Supervision]) -> Supervision:
    """Join data of the same indices, edge after edge."""
    names = ("states", "actions", "present", "base", "base_index")
    return replace(parts[0], **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})
