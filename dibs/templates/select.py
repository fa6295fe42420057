"""Choosing what `dibs-plus` adds to the paper's objective, per edge, on training indices alone.

Interior training indices are left out one at a time, each candidate (priors, and whether guesses between training
indices supervise the fit as well: `dibs.templates.bridges`) is fitted on the rest, and its policy for the left-out
index is rolled out there: the candidate with the best success, then the best return, is taken. It must not cost what
the paper's objective gains, either: the final fit with it is compared with one without it at all training indices, and
an edge that is worse off goes back. Left-out indices are training indices, so nothing about an unseen one is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dibs.envs import Array
from dibs.families import Family, ground
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.teachers.rollouts import draw, roll
from dibs.templates.bridges import bridged
from dibs.templates.fit import Fit, FitSettings, Priors, Supervision, fit
from dibs.templates.polynomial import unroll


class Candidate(NamedTuple):
    """What may be added to the paper's objective."""

    prior: float = 0.0
    movement: float = 0.0
    free_biases: bool = False
    bridged: bool = False

    def priors(self, network: Network) -> Priors:
        """Its priors, for one edge."""
        return Priors.uniform(network, 1, self.prior, self.movement, self.free_biases)


CANDIDATES = (
    Candidate(),  # the paper's objective
    Candidate(1e-2, 1e-3, True),
    Candidate(1e-1, 1e-2, True),
    Candidate(bridged=True),
    Candidate(1e-2, 1e-3, True, bridged=True),
)
FOLDS = 2  # interior training indices left out, one at a time
ROLLOUTS = 200
WITHIN = 0.005  # success may be this much lower by chance
STEPS, BATCH = 400, 128  # a trial fit need not be polished


@dataclass(frozen=True, eq=False)
class Choice:
    """Which candidate each edge takes."""

    chosen: list[int]
    success: Array  # (edges, candidates) at the left-out indices

    def priors(self, network: Network) -> Priors:
        """The chosen priors of all edges."""
        return _joined([CANDIDATES[c].priors(network) for c in self.chosen])

    def supervision(self, data: Supervision, rng: np.random.Generator) -> Supervision:
        """The data, with guesses between training indices for the edges that take them."""
        takes = np.array([CANDIDATES[c].bridged for c in self.chosen])
        if not takes.any():
            return data
        more = bridged(data, rng)
        own = np.arange(len(more.indices)) < len(data.indices)
        return replace(more, present=more.present & (own | takes[:, None]))


def select(
    family: Family,
    data: Supervision,
    network: Network,
    scaling: Scaling,
    settings: FitSettings,
    rng: np.random.Generator,
    progress: Callable[[str], None] | None = None,
) -> Choice:
    """Fit every candidate with every left-out index, and keep the best candidate of each edge."""
    chosen, table = [], []
    for e in range(len(data.base)):
        folds = _folds(data.present[e])
        if not folds:  # nothing can be left out: the paper's objective stands
            chosen.append(0)
            table.append(np.full(len(CANDIDATES), np.nan))
            continue
        success, returns = _trial(family, e, folds, data, network, scaling, settings, rng)
        # Success to a percent: what is within noise is decided by the return.
        chosen.append(int(np.lexsort((returns, np.round(success, 2)))[-1]))
        table.append(success)
        if progress is not None:
            progress(f"edge {family.edges[e].name}: {CANDIDATES[chosen[-1]]}, left-out success {success}")
    return Choice(chosen, np.stack(table))


def fit_selected(
    family: Family,
    data: Supervision,
    network: Network,
    scaling: Scaling,
    settings: FitSettings,
    rng: np.random.Generator,
    progress: Callable[[str], None] | None = None,
) -> tuple[Fit, list[int]]:
    """The fit of `dibs-plus`, and which candidate each edge has taken in the end."""
    choice = select(family, data, network, scaling, settings, rng, progress)
    plain = fit(data, network, settings, rng, progress)
    if not any(choice.chosen):
        return plain, choice.chosen
    more = fit(choice.supervision(data, rng), network, settings, rng, progress, choice.priors(network))
    per_index = more.per_index[:, : len(data.indices)]  # the loss that is told is the paper's
    more = replace(more, per_index=per_index, loss=np.nansum(per_index, axis=1))
    result, kept = better(family, data, network, scaling, (plain, more), rng)
    return result, [c * k for c, k in zip(choice.chosen, kept, strict=True)]


def better(
    family: Family,
    data: Supervision,
    network: Network,
    scaling: Scaling,
    fits: tuple[Fit, Fit],
    rng: np.random.Generator,
) -> tuple[Fit, list[int]]:
    """Of two fits (the first of the paper's objective), the better one of every edge at its training indices.

    Returns the joined fit, and for each edge which of the two it took: the second unless the first succeeds more often.
    """
    success = [_trained(family, data, network, scaling, f, rng) for f in fits]
    taken = [int(plain <= other + WITHIN) for plain, other in zip(*success, strict=True)]
    edges = np.arange(len(taken))
    joined = replace(
        fits[1],
        kappa=np.stack([f.kappa for f in fits])[taken, :, edges].swapaxes(0, 1),
        loss=np.stack([f.loss for f in fits])[taken, edges],
        per_index=np.stack([f.per_index for f in fits])[taken, edges],
        seconds=fits[0].seconds + fits[1].seconds,
    )
    return joined, taken


def _trained(
    family: Family, data: Supervision, network: Network, scaling: Scaling, fitted: Fit, rng: np.random.Generator
) -> Array:
    """Mean success (edges,) of the unrolled policies over the edge's training indices."""
    policies = unroll(fitted.kappa, data.base.astype(np.float64), int(data.indices.max()))
    rates = np.empty(len(data.base))
    for e in range(len(data.base)):
        indices = [int(i) for i in data.indices[data.present[e]]]
        tasks = ground(family, [(i, family.edges[e].name) for i in indices])
        theta = policies[np.array(indices) - data.base_index[e], e][:, None].astype(np.float32)
        folded = network.fold(theta, scaling.center[e], scaling.half[e])
        rates[e] = roll(network, folded, tasks, draw(tasks, ROLLOUTS, rng)).success.mean()
    return rates


def _folds(present: Array) -> list[int]:
    """Positions of interior training indices to leave out, evenly spread."""
    interior = np.flatnonzero(present)[1:-1]
    picks = np.linspace(0, len(interior) - 1, min(FOLDS, len(interior))).round().astype(int)
    return [int(n) for n in interior[picks]]


def _trial(
    family: Family,
    e: int,
    folds: list[int],
    data: Supervision,
    network: Network,
    scaling: Scaling,
    settings: FitSettings,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Mean success and return (candidates,) at the left-out indices of one edge."""
    quick = replace(settings, max_steps=STEPS, batch=BATCH)
    indices = [int(data.indices[n]) for n in folds]
    ahead = np.array(indices) - data.base_index[e]
    tasks = ground(family, [(i, family.edges[e].name) for i in indices])
    draws = draw(tasks, ROLLOUTS, rng)
    success, returns = np.empty((2, len(CANDIDATES)))
    without = [_without(data, e, n) for n in folds]
    for kind in (False, True):
        some = [c for c, candidate in enumerate(CANDIDATES) if candidate.bridged == kind]
        # Folds with bridges differ in their data, the others only in what is left out; rows are fold-major.
        parts = [bridged(part, rng) if kind else part for part in without]
        trial = _stacked([part for part in parts for _ in some])
        priors = _joined([CANDIDATES[c].priors(network) for c in some] * len(folds))
        fitted = fit(trial, network, quick, rng, priors=priors)
        policies = unroll(fitted.kappa, trial.base.astype(np.float64), max(indices))
        theta = policies[np.repeat(ahead, len(some)), np.arange(len(trial.base))].astype(np.float32)
        folded = network.fold(theta.reshape(len(folds), len(some), -1), scaling.center[e], scaling.half[e])
        outcome = roll(network, folded, tasks, draws)
        success[some], returns[some] = outcome.success.mean(axis=0), outcome.returns.mean(axis=0)
    return success, returns


def _without(data: Supervision, e: int, n: int) -> Supervision:
    """The data of one edge, the n-th training index left out."""
    one = Supervision(
        data.indices,
        data.states[e : e + 1],
        data.actions[e : e + 1],
        data.present[e : e + 1].copy(),
        data.base[e : e + 1],
        data.base_index[e : e + 1],
    )
    one.present[0, n] = False
    return one


def _stacked(parts: list[Supervision]) -> Supervision:
    """Data of the same indices as one, edge after edge."""
    names = ("states", "actions", "present", "base", "base_index")
    return Supervision(parts[0].indices, *(np.concatenate([getattr(p, name) for p in parts]) for name in names))


def _joined(priors: list[Priors]) -> Priors:
    """Priors of single edges as one."""
    return Priors(*(np.concatenate([getattr(p, name) for p in priors]) for name in ("identity", "movement")))
