"""Supervision between training indices, from those alone: what `dibs-plus` may add to the paper's objective.

An inductive family moves evenly, so a teacher between two training indices can be guessed: each state that one of
them was asked about is paired with a state of the other, and half way between the two states the guessed teacher does
what lies half way between the two actions. States are paired by optimal transport of the one set onto the other, after
both have been moved to a common mean. The guess is the better, the nearer the two indices are; whether it helps is for
`dibs.templates.select` to find out.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from scipy.optimize import linear_sum_assignment

from dibs.envs import Array
from dibs.templates.fit import Supervision

PAIRS = 400  # pairs of states per edge and pair of indices
IN_ALL = 8  # indices between training indices, about; at least one in every gap that has any


def between(indices: Array) -> list[int]:
    """The indices that are supervised besides the training `indices`, evenly spread over every gap."""
    each = max(1, round(IN_ALL / max(len(indices) - 1, 1)))
    found: set[int] = set()
    for low, high in pairwise(indices.tolist()):
        found |= {round(low + (high - low) * q / (each + 1)) for q in range(1, each + 1)}
    return sorted(found - set(indices.tolist()))


def bridged(data: Supervision, rng: np.random.Generator) -> Supervision:
    """The same with columns for the indices in between, present where an edge has teachers on both sides.

    The columns of the training indices come first and are those of `data`.
    """
    added = between(data.indices)
    edges, _, rows, dim = data.states.shape
    states = np.zeros((edges, len(added), rows, dim), dtype=np.float32)
    actions = np.zeros((edges, len(added), rows, data.actions.shape[-1]), dtype=np.float32)
    present = np.zeros((edges, len(added)), dtype=bool)
    paired: dict[tuple[int, int, int], tuple[Array, Array]] = {}
    for e in range(edges):
        kept = np.flatnonzero(data.present[e])
        for v, index in enumerate(added):
            below, above = kept[data.indices[kept] < index], kept[data.indices[kept] > index]
            if len(below) == 0 or len(above) == 0:
                continue
            a, b = int(below[-1]), int(above[0])
            if (e, a, b) not in paired:
                paired[e, a, b] = pair(data.states[e, a], data.states[e, b], rng)
            first, second = paired[e, a, b]
            way = (index - data.indices[a]) / (data.indices[b] - data.indices[a])
            for told, known in ((states, data.states), (actions, data.actions)):
                told[e, v] = np.resize((1.0 - way) * known[e, a, first] + way * known[e, b, second], told[e, v].shape)
            present[e, v] = True
    return replace(
        data,
        indices=np.concatenate([data.indices, np.array(added, dtype=data.indices.dtype)]),
        states=np.concatenate([data.states, states], axis=1),
        actions=np.concatenate([data.actions, actions], axis=1),
        present=np.concatenate([data.present, present], axis=1),
    )


def pair(first: Array, second: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Rows of either set of states (rows, dim) that belong together."""
    count = min(PAIRS, len(first), len(second))
    chosen = [rng.choice(len(states), count, replace=False) for states in (first, second)]
    a, b = (states[rows] - states[rows].mean(axis=0) for states, rows in zip((first, second), chosen, strict=True))
    rows, columns = linear_sum_assignment(((a[:, None] - b[None]) ** 2).sum(axis=-1))
    return chosen[0][rows], chosen[1][columns]
