"""Supervision between training indices, from those alone: what `dibs-plus` may add to the paper's objective.

An inductive family moves evenly, so a teacher between two training indices can be guessed. Each state of one dataset
is paired with a state of the other. Half way between the two states, the guessed teacher's action is half way between
the two actions. States are paired by optimal transport of one set onto the other, after both have been moved to a
common mean. The nearer the two indices, the better the guess; `dibs.templates.select` finds out whether it helps.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from dibs.envs import Array
from dibs.templates.fit import Supervision

PAIRS = 400  # pairs of states per edge and pair of indices
IN_ALL = 8  # approximate number of indices between training indices; at least one in every gap that has any


def between(indices: Array) -> list[int]:
    """Return the indices that are supervised besides the training `indices`, evenly spread over every gap."""
    each = max(1, round(IN_ALL / max(len(indices) - 1, 1)))
    gaps = list(pairwise(indices.tolist()))
    found = {round(low + (high - low) * q / (each + 1)) for low, high in gaps for q in range(1, each + 1)}
    return sorted(found - set(indices.tolist()))


def bridged(data: Supervision, rng: np.random.Generator) -> Supervision:
    """Return the data with columns for the indices in between, present where an edge has teachers on both sides.

    The columns of the training indices come first and are those of `data`.
    """
    added = between(data.indices)
    arrays = [data.states, data.actions, data.present]
    empty = [np.zeros((len(data.base), len(added), *array.shape[2:]), dtype=array.dtype) for array in arrays]
    states, actions, present = empty
    paired: dict[tuple[int, int, int], tuple[Array, Array]] = {}
    for e in range(len(data.base)):
        kept = np.flatnonzero(data.present[e])
        for v, index in enumerate(added):
            below, above = kept[data.indices[kept] < index], kept[data.indices[kept] > index]
            if not len(below) or not len(above):
                continue
            a, b = int(below[-1]), int(above[0])
            if (e, a, b) not in paired:
                paired[e, a, b] = pair(data.states[e, a], data.states[e, b], rng)
            first, second = paired[e, a, b]
            way = (index - data.indices[a]) / (data.indices[b] - data.indices[a])
            for guess, known in ((states, data.states), (actions, data.actions)):
                guess[e, v] = np.resize((1.0 - way) * known[e, a, first] + way * known[e, b, second], guess[e, v].shape)
            present[e, v] = True
    states, actions, present = (np.concatenate(both, axis=1) for both in zip(arrays, empty, strict=True))
    indices = np.append(data.indices, np.array(added, dtype=data.indices.dtype))
    return replace(data, indices=indices, states=states, actions=actions, present=present)


def pair(first: Array, second: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the rows of both sets of states (rows, dim) that belong together."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and only `dibs-plus` needs it

    count = min(PAIRS, len(first), len(second))
    chosen = [rng.choice(len(states), count, replace=False) for states in (first, second)]
    a, b = (states[rows] - states[rows].mean(axis=0) for states, rows in zip((first, second), chosen, strict=True))
    rows, columns = linear_sum_assignment(((a[:, None] - b[None]) ** 2).sum(axis=-1))
    return chosen[0][rows], chosen[1][columns]
