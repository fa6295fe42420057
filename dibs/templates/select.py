"""Choose per edge what `dibs-plus` adds to the paper's objective, on training indices alone.

Interior training indices are left out one at a time. Each candidate (priors, and whether guesses between training
indices supervise the fit as well: `dibs.templates.bridges`) is fitted to the rest, and its policy for the left-out
index is rolled out there. The candidate with the best success, then the best return, is taken. The final fit with it
is compared with one without it at all training indices: edges that lose success revert to the paper's objective.
Left-out indices are training indices, so nothing about an unseen index is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dibs.envs import Array
from dibs.families import Tasks
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.progress import Reporter
from dibs.simulation import EdgeTask, NetworkPolicy, draw, rollout
from dibs.templates.bridges import bridged
from dibs.templates.fit import Fit, FitSettings, Supervision, fit
from dibs.templates.polynomial import unroll


class Candidate(NamedTuple):
    """What may be added to the paper's objective."""

    prior: float = 0.0
    movement: float = 0.0
    free_biases: bool = False
    bridged: bool = False


CANDIDATES = (
    Candidate(),  # the paper's objective
    Candidate(1e-2, 1e-3, True),
    Candidate(1e-1, 1e-2, True),
    Candidate(bridged=True),
    Candidate(1e-2, 1e-3, True, bridged=True),
)
FOLDS = 2  # interior training indices left out, one at a time
ROLLOUTS = 200
TOLERANCE = 0.005  # success may be this much lower by chance
STEPS, BATCH = 400, 128  # of the fits that are compared, which need not be polished


@dataclass(frozen=True, eq=False)
class Selection:
    """Everything that choosing and fitting needs."""

    tasks: Tasks
    data: Supervision
    network: Network
    scaling: Scaling
    settings: FitSettings
    rng: np.random.Generator
    progress: Reporter | None = None

    def fit(self) -> tuple[Fit, list[int]]:
        """Return the fit of `dibs-plus` and the candidate that each edge has taken in the end."""
        data, rng = self.data, self.rng
        chosen, _ = self.choose()
        plain = fit(data, self.network, self.settings, rng, self.progress)
        if not any(chosen):
            return plain, chosen
        more = with_bridges(data, chosen, rng)
        other = fit(more, self.network, self.settings, rng, self.progress, [CANDIDATES[c][:3] for c in chosen])
        other = replace(other, per_index=other.per_index[:, : len(data.indices)])  # report the paper's loss
        result, kept = self.better(plain, other)
        return result, [c * k for c, k in zip(chosen, kept, strict=True)]

    def choose(self) -> tuple[list[int], Array]:
        """Return the best candidate of each edge, and the success (edges, candidates) at left-out indices."""
        chosen, table = [], []
        for e, name in enumerate(self.tasks.edge_names):
            folds = interior(self.data.present[e])
            best, success = 0, np.full(len(CANDIDATES), np.nan)  # if nothing can be left out: the paper's objective
            if folds:
                success, returns = self.trial(e, folds)
                # Success to a percent: differences within noise are decided by the return.
                best = int(np.lexsort((returns, np.round(success, 2)))[-1])
                if self.progress is not None:
                    self.progress(f"edge {name}: {CANDIDATES[best]}, left-out success {success}")
            chosen.append(best)
            table.append(success)
        return chosen, np.stack(table)

    def trial(self, e: int, folds: Sequence[int]) -> tuple[Array, Array]:
        """Return the mean success and return (candidates,) at the left-out indices of one edge."""
        quick = replace(self.settings, max_steps=STEPS, batch=BATCH)
        indices = [int(self.data.indices[n]) for n in folds]
        ahead = np.array(indices) - self.data.base_index[e]
        task = self._task(e, indices)
        draws = draw(task, ROLLOUTS, self.rng)
        success, returns = np.empty((2, len(CANDIDATES)))
        without = [_without(self.data, e, n) for n in folds]
        for kind in (False, True):
            some = [c for c, candidate in enumerate(CANDIDATES) if candidate.bridged == kind]
            # Folds with bridges differ in their data, the others only in what is left out. Rows are fold by fold.
            parts = [bridged(part, self.rng) if kind else part for part in without]
            data = _stacked([part for part in parts for _ in some])
            priors = [CANDIDATES[c][:3] for c in some] * len(folds)
            fitted = fit(data, self.network, quick, self.rng, priors=priors)
            policies = unroll(fitted.kappa, data.base.astype(np.float64), max(indices))
            theta = policies[np.repeat(ahead, len(some)), np.arange(len(data.base))].astype(np.float32)
            theta = theta.reshape(len(folds), len(some), -1).swapaxes(0, 1)  # (candidates, folds, size)
            outcome = rollout(task, self._policy(e, theta), draws, candidates=(len(some),))
            success[some], returns[some] = (x.mean(axis=-1).mean(axis=-1) for x in (outcome.success, outcome.returns))
        return success, returns

    def better(self, plain: Fit, other: Fit) -> tuple[Fit, list[int]]:
        """Join two fits: each edge takes the second unless the first succeeds more often at the training indices.

        Returns the joined fit, and for each edge which of the two it took.
        """
        fits = (plain, other)
        success = [self.training_success(f) for f in fits]
        taken = [int(one <= two + TOLERANCE) for one, two in zip(*success, strict=True)]
        edges = np.arange(len(taken))
        kappa = np.stack([f.kappa for f in fits])[taken, :, edges].swapaxes(0, 1)
        return replace(other, kappa=kappa, per_index=np.stack([f.per_index for f in fits])[taken, edges]), taken

    def training_success(self, fitted: Fit) -> Array:
        """Return the mean success (edges,) of the unrolled policies over each edge's training indices."""
        data = self.data
        policies = unroll(fitted.kappa, data.base.astype(np.float64), int(data.indices.max()))
        rates = np.empty(len(data.base))
        for e in range(len(data.base)):
            indices = [int(i) for i in data.indices[data.present[e]]]
            task = self._task(e, indices)
            theta = policies[np.array(indices) - data.base_index[e], e].astype(np.float32)
            outcome = rollout(task, self._policy(e, theta), draw(task, ROLLOUTS, self.rng))
            rates[e] = outcome.success.mean(axis=-1).mean()
        return rates

    def _task(self, e: int, indices: Sequence[int]) -> EdgeTask:
        return EdgeTask(self.tasks.ground([(i, self.tasks.edge_names[e]) for i in indices]))

    def _policy(self, e: int, theta: Array) -> NetworkPolicy:
        return NetworkPolicy(self.network, self.network.fold(theta, self.scaling.center[e], self.scaling.half[e]))


def interior(present: Array) -> list[int]:
    """Return the positions of the training indices to leave out: neither first nor last, evenly spread."""
    inside = np.flatnonzero(present)[1:-1]
    picks = np.linspace(0, len(inside) - 1, min(FOLDS, len(inside))).round().astype(int)
    return [int(n) for n in inside[picks]]


def with_bridges(data: Supervision, chosen: Sequence[int], rng: np.random.Generator) -> Supervision:
    """Return the data with estimates between training indices for the edges whose candidate has them."""
    takes = np.array([CANDIDATES[c].bridged for c in chosen])
    if not takes.any():
        return data
    more = bridged(data, rng)
    own = np.arange(len(more.indices)) < len(data.indices)
    return replace(more, present=more.present & (own | takes[:, None]))


def _without(data: Supervision, e: int, n: int) -> Supervision:
    """Return the data of one edge without the n-th training index."""
    one = _stacked([data], slice(e, e + 1))
    one.present[0, n] = False
    return one


def _stacked(parts: Sequence[Supervision], edges: slice = slice(None)) -> Supervision:
    """Join copies of data of the same indices, edge after edge."""
    names = ("states", "actions", "present", "base", "base_index")
    return replace(parts[0], **{name: np.concatenate([getattr(p, name)[edges] for p in parts]) for name in names})
