"""Choose a class of templates per edge, on training indices alone: what `dibs-plus` does where motion does not hold.

Training indices are left out one at a time: up to two in the interior, and the last one, so that the choice sees
extrapolation. Each candidate is fitted to the rest, and its policy for the left-out index is rolled out there. A
candidate is the base policy in task coordinates, affine maps, or a polynomial with or without weak priors and
supervision between training indices (`dibs.templates.bridges`). They are tried in order of preference: the fewest free
parameters first, then what did best on development families. The first one wins whose mean success is within noise of
the best. So no more candidates are tried once one succeeds so often that no other one can win.

The chosen candidate is fitted to all training indices and rolled out there. If it may solve fewer of them, or succeed
less often, than the paper's objective, that one is fitted, too, and both are compared. If the candidate is worse, the
next one is tried, and then the edge reverts to the paper's objective. So the training ratio is not below that of
`dibs`, up to the noise of these rollouts. Left-out indices are training indices, so nothing about an unseen index is
used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from dibs.envs import Array
from dibs.families import Tasks
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.progress import Reporter
from dibs.simulation import Bools, Draws, EdgeTask, NetworkPolicy, draw, rollout
from dibs.templates.affine import Affine, AffineSettings, Form, fit_affine
from dibs.templates.bridges import Guide, Kind, bridged, carries
from dibs.templates.fit import FitSettings, fit
from dibs.templates.guards import EdgeRecord, teacher_records
from dibs.templates.objective import Prior, Supervision
from dibs.templates.template import Joined, Part, PolicyEvolution, Source, Template, gather

NONE: Prior = (0.0, 0.0, False)
WEAK: Prior = (1e-2, 1e-3, True)


class Candidate(NamedTuple):
    """One way to fit an edge."""

    bridges: Kind | None = None
    prior: Prior = NONE
    form: Form | None = None
    """Of affine maps; None: a polynomial."""

    @property
    def words(self) -> str:
        """What reports call it."""
        prior = ["weak priors"] if self.prior == WEAK else []
        bridges = [f"bridges ({self.bridges})"] if self.bridges else []
        return ", ".join(["polynomial" if self.form is None else f"affine ({self.form})", *prior, *bridges])


PLAIN = Candidate()
"""The paper's objective."""
ROUNDS = (
    (Candidate(form="task"),),
    (Candidate(form="full"),),
    (Candidate("actions"),),
    (Candidate("pairs"), Candidate("actions", WEAK)),
    (Candidate(None, WEAK), PLAIN),
)
"""Candidates in order of preference, by free parameters and then success on development families; rounds are fitted
together."""
CANDIDATES = tuple(candidate for together in ROUNDS for candidate in together)
FOLDS = 2  # interior training indices left out, one at a time, besides the last one
ROLLOUTS = 200  # per fold and candidate
CHECKS = 500  # per training index, of the fit to all of them
NOISE = 0.02  # of two successes at the same left-out indices
SPREAD = 0.3  # standard deviation of an edge's success from one index to another
TOLERANCE = 0.02  # success at a training index may be this much lower by chance
SOLVED = 0.9
TRIES = 2  # polynomials that are fitted to all training indices before an edge reverts to the paper's objective
STEPS, BATCH, ROWS = 400, 128, 4096  # of the fits that are compared, which need not be polished
QUICK = AffineSettings(iterations=15, restarts=0)  # of affine maps that are compared
AFFINE = AffineSettings(iterations=100, restarts=0)


class Row(NamedTuple):
    """One fit: a candidate for an edge, without one of the training indices."""

    edge: int
    candidate: Candidate
    without: int | None = None  # position of the left-out training index


class Fitted(NamedTuple):
    """The template of one row, as a row of a template of several."""

    template: Template | Affine
    row: int
    per_index: Array  # (n,): the loss by training index
    curve: list[dict[str, Any]]

    def actors(self, indices: Sequence[int] | Array) -> Array:
        """Return the actors (n, size) of some indices."""
        return self.template.at(np.array(indices, dtype=np.intp), np.full(len(indices), self.row))


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
    plain_rng: np.random.Generator
    """Of fits of the paper's objective, so that they are those of `dibs`."""
    progress: Reporter | None = None
    queried: dict[str, int] = field(default_factory=dict)
    """Environment steps by edge, filled while it chooses and fits."""
    final: list[Candidate] = field(default_factory=list)
    """The candidate of each edge, once it has fitted."""
    draws: dict[tuple[int, int], Draws] = field(default_factory=dict)
    """Random numbers of rollouts, by edge and number."""

    @classmethod
    def of(
        cls,
        tasks: Tasks,
        sources: Sequence[Source],
        edges: Sequence[str],
        settings: FitSettings,
        streams: tuple[np.random.Generator, np.random.Generator],
        progress: Reporter | None = None,
    ) -> Selection:
        """Return the selection for some of the teachers' edges; `streams` are of choices and of the paper's fits."""
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
        return cls(tasks, *own, settings, *streams, progress)

    def allows(self, candidate: Candidate) -> bool:
        """Whether the settings and the environment allow a candidate."""
        s, carried = self.settings, carries(self.tasks.environment)
        return (
            (s.bridges or candidate.bridges is None)
            and (s.priors or candidate.prior == NONE)
            and (s.affine or candidate.form is None)
            and (carried or (candidate.bridges != "actions" and candidate.form != "task"))
        )

    # --- choosing ----------------------------------------------------------------------------------------

    def choose(self) -> tuple[list[list[Candidate]], list[dict[Candidate, float]]]:
        """Return the candidates of each edge, best first, and the success at left-out indices of those tried."""
        folds = [left_out(present) for present in self.data.present]
        success: list[dict[Candidate, float]] = [{} for _ in self.edges]
        waiting = [e for e, left in enumerate(folds) if left]
        for together in ROUNDS:
            allowed = [candidate for candidate in together if self.allows(candidate)]
            for e, rates in self.trial({e: folds[e] for e in waiting}, allowed).items() if allowed else ():
                success[e] |= dict(zip(allowed, rates.tolist(), strict=True))
            waiting = [e for e in waiting if not any(within(success[e], len(folds[e]), 1.0))]
        ranked = []
        for e, name in enumerate(self.edges):
            left, order = dict(success[e]), list[Candidate]()
            while left:
                good = within(left, len(folds[e]), max(left.values()))
                order.append(good[0])
                del left[good[0]]
            ranked.append(order or [PLAIN])
            if self.progress is not None and order:
                scores = ", ".join(f"{c.words} {rate:.2f}" for c, rate in success[e].items())
                self.progress(f"{name}: {order[0].words}; success at left-out indices: {scores}")
        return ranked, success

    def trial(self, folds: Mapping[int, Sequence[int]], candidates: Sequence[Candidate]) -> dict[int, Array]:
        """Return the mean success (candidates,) at the left-out indices of some edges (positions of both)."""
        rows = [Row(e, c, n) for e, left in folds.items() for c in candidates for n in left]
        fitted = iter(self.fitted(rows, quick=True) if rows else ())
        found = {}
        for e, left in folds.items():
            indices = [int(self.data.indices[n]) for n in left]
            theta = np.concatenate([next(fitted).actors([index]) for _ in candidates for index in indices])
            theta = theta.reshape(len(candidates), len(indices), -1)
            found[e] = self._success(e, indices, theta, ROLLOUTS).mean(axis=-1)
        return found

    # --- fitting -----------------------------------------------------------------------------------------

    def fit(self) -> tuple[list[Part], dict[str, Any]]:
        """Return the templates of the edges and what metrics say about them."""
        ranked, success = self.choose()
        done: dict[int, tuple[Candidate, Fitted]] = {}
        plain: dict[int, Fitted] = {}
        ranked = [shortlist(order, bool(self.settings.refine)) for order in ranked]
        for attempt in range(max(map(len, ranked))):
            waiting = [e for e, order in enumerate(ranked) if e not in done and attempt < len(order)]
            rows = [Row(e, ranked[e][attempt]) for e in waiting]
            tried = dict(zip((row.edge for row in rows), self.fitted(rows), strict=True))
            after = {e: self._at_training(e, found) for e, found in tried.items()}
            unsure = [row.edge for row in rows if not no_worse(np.ones(len(after[row.edge])), after[row.edge])]
            plain |= self._plain([e for e in unsure if e not in plain])
            for edge, candidate, _ in rows:
                if edge not in unsure or no_worse(self._at_training(edge, plain[edge]), after[edge]):
                    done[edge] = candidate, tried[edge]
        rest = [e for e in range(len(self.edges)) if e not in done]
        plain |= self._plain([e for e in rest if e not in plain])
        done |= {e: (PLAIN, plain[e]) for e in rest}
        chosen = [done[e] for e in range(len(self.edges))]
        self.final[:] = [candidate for candidate, _ in chosen]
        parts: list[Part] = []
        for template in {id(found.template): found.template for _, found in chosen}.values():
            parts.append(template.take(np.array([found.row for _, found in chosen if found.template is template])))
        loss = [found.per_index for _, found in chosen]
        table = [{c.words: rate for c, rate in rates.items()} for rates in success]
        words = [candidate.words for candidate in self.final]
        by_edge: dict[str, list[Any]] = {"chosen": words, "left_out": table}
        by_edge |= {"edges": [np.nansum(values) for values in loss], "per_index": loss}
        metrics: dict[str, Any] = {key: dict(zip(self.edges, v, strict=True)) for key, v in by_edge.items()}
        return parts, {**metrics, "fitted": self.edges, "curve": [row for _, found in chosen for row in found.curve]}

    def refit(self, data: Supervision, rng: np.random.Generator) -> PolicyEvolution:
        """Fit the chosen candidates quickly to fewer datasets, for predicted success."""
        again = replace(self, rng=rng, data=data)
        fitted = again.fitted([Row(e, candidate) for e, candidate in enumerate(self.final)], quick=True)
        parts = tuple({id(found.template): found.template for found in fitted}.values())
        return parts[0] if len(parts) == 1 else Joined(parts)

    def fitted(self, rows: Sequence[Row], quick: bool = False) -> list[Fitted]:
        """Fit all rows; those of a class that have the same supervision are one array program."""
        found: dict[int, Fitted] = {}
        classes = [(row.candidate.form is not None, row.candidate.bridges is not None) for row in rows]
        for kind in dict.fromkeys(classes):
            own = [k for k, other in enumerate(classes) if other == kind]
            some = [rows[k] for k in own]
            data = self._supervision(some, quick)
            found |= zip(own, (self._affine if kind[0] else self._polynomials)(some, data, quick), strict=True)
        return [found[k] for k in range(len(rows))]

    def _supervision(self, rows: Sequence[Row], quick: bool) -> Supervision:
        """Return the data of every row, with supervision in between if it has any."""
        data = self.data.first(ROWS) if quick else self.data
        data = data.take(np.array([row.edge for row in rows]))
        for k, row in enumerate(rows):
            if row.without is not None:
                data.present[k, row.without] = False
        kinds = [row.candidate.bridges for row in rows]
        return bridged(data, kinds, [self.guides[row.edge] for row in rows], self.rng) if any(kinds) else data

    def _affine(self, rows: Sequence[Row], data: Supervision, quick: bool) -> list[Fitted]:
        forms = [row.candidate.form for row in rows if row.candidate.form is not None]
        drift = [
            self.guides[row.edge].without(data.present[k]).drift if row.candidate.form == "task" else None
            for k, row in enumerate(rows)
        ]
        maps = fit_affine(data, self.network, QUICK if quick else AFFINE, self.rng, forms, drift)
        names, scaling, records = self._shared(rows)
        own = maps.inputs, maps.outputs, data.base, data.base_index, records
        template = Affine(self.tasks.indices, names, self.network, scaling, *own)
        return [Fitted(template, k, maps.per_index[k], []) for k in range(len(rows))]

    def _polynomials(self, rows: Sequence[Row], data: Supervision, quick: bool) -> list[Fitted]:
        settings = self.settings
        if quick:
            most, batch = min(STEPS, settings.max_steps), min(BATCH, settings.batch)
            settings = replace(settings, max_steps=most, batch=batch, refine=0, restarts=0)
        elif settings.refine:  # L-BFGS goes on where small minibatches are too rough
            settings = replace(settings, batch=min(BATCH, settings.batch))
        return self._fit(rows, data, settings, self.rng)

    def _plain(self, edges: Sequence[int]) -> dict[int, Fitted]:
        """Fit the paper's objective to some edges."""
        if not edges:
            return {}
        rows, settings = [Row(e, PLAIN) for e in edges], replace(self.settings, refine=0, restarts=0)
        return dict(zip(edges, self._fit(rows, self.data.take(np.array(edges)), settings, self.plain_rng), strict=True))

    def _fit(
        self, rows: Sequence[Row], data: Supervision, settings: FitSettings, rng: np.random.Generator
    ) -> list[Fitted]:
        result = fit(data, self.network, settings, rng, priors=[row.candidate.prior for row in rows])
        names, scaling, records = self._shared(rows)
        own = result.kappa, data.base, data.base_index, records
        template, count = Template(self.tasks.indices, names, self.network, scaling, *own), len(self.data.indices)
        curves: list[list[dict[str, Any]]] = [[] for _ in rows]
        for step, *losses in result.curve:
            for curve, name, loss in zip(curves, names, losses, strict=True):
                curve.append({"step": int(step), "edge": name, "loss": loss})
        return [Fitted(template, k, result.per_index[k, :count], curve) for k, curve in enumerate(curves)]

    def _shared(self, rows: Sequence[Row]) -> tuple[tuple[str, ...], Scaling, dict[str, EdgeRecord]]:
        """Return names, scaling and records of the rows' edges."""
        edges = np.array([row.edge for row in rows])
        names = tuple(self.edges[e] for e in edges)
        return names, self.scaling.take(edges), {name: self.records[name] for name in names}

    # --- rollouts ----------------------------------------------------------------------------------------

    def _at_training(self, e: int, found: Fitted) -> Array:
        """Return the success of a template of an edge at all training indices that have data."""
        indices = [int(i) for i in self.data.indices[self.data.present[e]]]
        return self._success(e, indices, found.actors(indices)[None], CHECKS)[0]

    def _success(self, e: int, indices: Sequence[int], theta: Array, rollouts: int) -> Array:
        """Return the success (candidates, indices) of actors (candidates, indices, size) of an edge."""
        task = EdgeTask(self.tasks.ground([(i, self.edges[e]) for i in indices]))
        folded = self.network.fold(theta, self.scaling.center[e], self.scaling.half[e])
        if (e, rollouts) not in self.draws:  # alike for all candidates
            self.draws[e, rollouts] = draw(task, rollouts, self.rng)
        acting = NetworkPolicy(self.network, folded)
        outcome = rollout(task, acting, self.draws[e, rollouts], candidates=(len(theta),))
        self.queried[self.edges[e]] = self.queried.get(self.edges[e], 0) + outcome.steps
        return np.asarray(outcome.success.mean(axis=-1))


def within(success: Mapping[Candidate, float], folds: int, best: float) -> list[Candidate]:
    """Return the candidates that are within noise of the best success at that many left-out indices.

    Affine maps must really be as good as the best. A few left-out indices say little about all others, so
    polynomials may be a little worse.
    """
    return [c for c, rate in success.items() if rate >= best - (SPREAD / folds if c.form is None else NOISE)]


def shortlist(order: Sequence[Candidate], refined: bool) -> list[Candidate]:
    """Return the candidates to fit to all training indices, in order: none after the paper's objective.

    That one is among them only if `refined`, since it is compared with itself otherwise. Affine maps cost little.
    """
    kept = list(takewhile(PLAIN.__ne__, order))
    kept += [PLAIN] if refined and PLAIN in order else []
    polynomials = [candidate for candidate in kept if candidate.form is None][:TRIES]
    return [candidate for candidate in kept if candidate.form is not None or candidate in polynomials]


def no_worse(before: Array, after: Array) -> bool:
    """Whether successes at training indices are as good as others: none is lost, and their mean is no lower."""
    lost = ((before > SOLVED) & (after <= SOLVED)) | (after < before - TOLERANCE)
    return not lost.any() and bool(after.mean() >= before.mean() - TOLERANCE / 2)


def left_out(present: Bools) -> list[int]:
    """Return the positions of the training indices to leave out: up to two in the interior and the last one.

    With two training indices there is nothing to leave out.
    """
    known = np.flatnonzero(present)
    if len(known) < 3:
        return []
    inside = known[1:-1]
    picks = np.linspace(0, len(inside) - 1, min(FOLDS, len(inside))).round().astype(int)
    return [*map(int, inside[picks]), int(known[-1])]
