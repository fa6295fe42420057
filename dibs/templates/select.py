"""Choosing the priors of `dibs-plus` per edge, on training indices alone.

Interior training indices are left out one at a time, each candidate is fitted on the rest, and its policy for
the left-out index is rolled out there: the candidate with the best success, then the best return, is
taken. A prior must not cost what the paper's objective gains, either: the final fit with it is compared with one
without it at all training indices, and an edge that is worse off goes back. Left-out indices are training
indices, so nothing about an unseen one is used.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dibs.envs import Array
from dibs.families import Family, ground
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.teachers.rollouts import draw, roll
from dibs.templates.fit import Fit, FitSettings, Priors, Supervision, fit
from dibs.templates.polynomial import unroll

CANDIDATES = (  # prior, movement, free_biases: from the paper's objective to ever stiffer templates
    (0.0, 0.0, False),
    (1e-3, 0.0, False),
    (1e-2, 1e-3, True),
    (1e-2, 1e-3, False),
    (1e-1, 1e-2, True),
    (1e-1, 1e-2, False),
)
FOLDS = 2  # interior training indices left out, one at a time
ROLLOUTS = 200
WITHIN = 0.005  # success may be this much lower by chance
STEPS, BATCH = 400, 128  # a trial fit need not be polished


@dataclass(frozen=True, eq=False)
class Choice:
    """The chosen priors, and which candidate each edge took."""

    priors: Priors
    chosen: list[int]
    success: Array  # (edges, candidates) at the left-out indices


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
            progress(f"edge {family.edges[e].name}: prior {CANDIDATES[chosen[-1]]}, left-out success {success}")
    priors = [Priors.uniform(network, 1, *CANDIDATES[c]) for c in chosen]
    joined = (np.concatenate([getattr(p, field) for p in priors]) for field in ("identity", "movement"))
    return Choice(Priors(*joined), chosen, np.stack(table))


def better(
    family: Family,
    data: Supervision,
    network: Network,
    scaling: Scaling,
    fits: tuple[Fit, Fit],
    rng: np.random.Generator,
) -> tuple[Fit, list[int]]:
    """Of two fits (the first without priors), the better one of every edge at its training indices.

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
    """Mean success and return (candidates,) at the left-out indices of one edge; rows are fold-major."""
    rows = len(folds) * len(CANDIDATES)
    present = np.tile(data.present[e], (rows, 1))
    for f, n in enumerate(folds):
        present[f * len(CANDIDATES) : (f + 1) * len(CANDIDATES), n] = False
    trial = Supervision(
        data.indices,
        np.broadcast_to(data.states[e], (rows, *data.states[e].shape)),
        np.broadcast_to(data.actions[e], (rows, *data.actions[e].shape)),
        present,
        np.tile(data.base[e], (rows, 1)),
        np.full(rows, data.base_index[e]),
    )
    priors = [Priors.uniform(network, 1, *candidate) for candidate in CANDIDATES] * len(folds)
    joined = (np.concatenate([getattr(p, field) for p in priors]) for field in ("identity", "movement"))
    fitted = fit(trial, network, replace(settings, max_steps=STEPS, batch=BATCH), rng, priors=Priors(*joined))
    indices = [int(data.indices[n]) for n in folds]
    policies = unroll(fitted.kappa, trial.base.astype(np.float64), max(indices))
    ahead = np.repeat(np.array(indices) - data.base_index[e], len(CANDIDATES))
    theta = policies[ahead, np.arange(rows)].reshape(len(folds), len(CANDIDATES), -1).astype(np.float32)
    tasks = ground(family, [(i, family.edges[e].name) for i in indices])
    outcome = roll(network, network.fold(theta, scaling.center[e], scaling.half[e]), tasks, draw(tasks, ROLLOUTS, rng))
    return outcome.success.mean(axis=0), outcome.returns.mean(axis=0)
