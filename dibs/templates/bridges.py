"""Supervision between training indices, from training tasks and their teachers: what `dibs-plus` may add to a fit.

A family moves evenly, so a teacher between two training indices can be guessed. There are two ways:

- `pairs`: each state of one dataset is paired with a state of the other, by optimal transport after both sets have
  been moved to a common mean. Half way between the states, the guessed action is half way between the actions.
- `actions`: the regions half way between two training tasks are guessed by interpolation. A state of a dataset is
  carried there in *task coordinates*: it moves with the source near the source and with the target near the target.
  Both neighboring teachers are asked for the state carried into their own task, and the guessed action is half way
  between theirs.

The nearer the two indices, the better the guess; `dibs.templates.select` finds out whether it helps. Nothing of an
unseen task is used: neither its regions nor its rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from dibs.envs import Array, Environment
from dibs.families import Tasks
from dibs.policies.network import Network
from dibs.templates.alignment import difference, wrapped
from dibs.templates.objective import Supervision

Kind = Literal["pairs", "actions"]
PAIRS = 400  # states per edge and index in between
IN_ALL = 8  # approximate number of indices between training indices; at least one in every gap that has any


@dataclass(frozen=True, eq=False)
class Guide:
    """The teachers of one edge and where its training tasks are."""

    environment: Environment
    network: Network
    center: Array  # (inputs,)
    half: Array  # (inputs,)
    indices: Array  # (n,)
    actors: Array  # (n, size)
    sources: Array  # (n, dim)
    targets: Array  # (n, dim)

    @classmethod
    def of(cls, tasks: Tasks, edge: str, network: Network, scaling: tuple[Array, Array], actors: Array) -> Guide:
        """Return the guide of an edge; `actors` (n, size) are those of all indices of the tasks."""
        grounded = tasks.ground([(index, edge) for index in tasks.indices])
        sources, target = grounded.start_center.astype(np.float64), grounded.target.arrays()
        targets = sources.copy()  # what the target leaves free moves with the source
        inside = (grounded.target_sign > 0.0)[..., None] & np.isfinite(target["half_width"])
        for literal in range(inside.shape[1]):
            targets = np.where(inside[:, literal], target["center"][:, literal], targets)
        turns = np.array(tasks.environment.periods)
        for v in np.flatnonzero(turns):  # angles go on where they wrap
            sources[:, v], targets[:, v] = (np.unwrap(x[:, v], period=turns[v]) for x in (sources, targets))
        return cls(tasks.environment, network, *scaling, np.array(tasks.indices), actors, sources, targets)

    def without(self, kept: Array) -> Guide:
        """Return the guide of some of the training indices."""
        names = ("indices", "actors", "sources", "targets")
        return replace(self, **{name: getattr(self, name)[kept] for name in names})

    @property
    def drift(self) -> Array:
        """The movement (inputs,) of the scaled task per index: of the middle of source and target, by least squares."""
        middle = (self.sources + self.targets) / 2.0
        ahead = (self.indices - self.indices[0])[:, None]
        return np.asarray(((middle - middle[0]) * ahead).sum(axis=0) / max(int((ahead**2).sum()), 1) / self.half)

    def states(self, scaled: Array) -> Array:
        """Return the states of scaled observations."""
        return np.asarray(scaled * self.half + self.center, dtype=np.float64)

    def scaled(self, states: Array) -> Array:
        """Return the scaled observations of states."""
        return np.asarray((states - self.center) / self.half, dtype=np.float32)

    def place(self, index: float) -> tuple[Array, Array]:
        """Return source and target (dim,) at an index, interpolated between the training tasks."""
        source, target = (
            np.array([np.interp(index, self.indices, column) for column in places.T])
            for places in (self.sources, self.targets)
        )
        return source, target

    def carry(self, states: Array, here: float, there: float) -> Array:
        """Return states (n, dim) of the task at one index in the coordinates of the task at another one.

        They move with the source near the source and with the target near the target.
        """
        (source, target), (to_source, to_target) = self.place(here), self.place(there)
        periods = np.array(self.environment.periods)
        to_go, gone = (
            np.linalg.norm(difference(states, end, periods) / self.half, axis=-1) for end in (target, source)
        )
        way = (gone / np.maximum(gone + to_go, 1e-9))[..., None]
        moved = states + (1.0 - way) * (to_source - source) + way * (to_target - target)
        return wrapped(moved, periods, np.array(self.environment.bounds[0]))

    def guess(self, states: Array, index: int) -> Array:
        """Return the guessed actions (n, m) in states (n, dim) of the task at an index between two training indices."""
        above = int(np.searchsorted(self.indices, index))
        actions = [
            self.network.forward(self.actors[n], self.scaled(self.carry(states, index, self.indices[n])))
            for n in (above - 1, above)
        ]
        way = (index - self.indices[above - 1]) / (self.indices[above] - self.indices[above - 1])
        turns = np.array(self.environment.action_periods)
        return wrapped(actions[0] + way * difference(actions[1], actions[0], turns), turns, -1.0)


def carries(environment: Environment) -> bool:
    """Whether states can be carried: they are observed as they are and can all be set."""
    return type(environment).observe is Environment.observe and not environment.derived


def between(indices: Array) -> list[int]:
    """Return the indices that are supervised besides the training `indices`, evenly spread over every gap."""
    each = max(1, round(IN_ALL / max(len(indices) - 1, 1)))
    gaps = list(pairwise(indices.tolist()))
    found = {round(low + (high - low) * q / (each + 1)) for low, high in gaps for q in range(1, each + 1)}
    return sorted(found - set(indices.tolist()))


def bridged(
    data: Supervision, kinds: Sequence[Kind | None], guides: Sequence[Guide], rng: np.random.Generator
) -> Supervision:
    """Return the data with columns for the indices in between, present where an edge has teachers on both sides.

    The columns of the training indices come first and are those of `data`. An edge whose kind is None has no others.
    """
    added = between(data.indices)
    arrays = [data.states, data.actions, data.present]
    empty = [np.zeros((len(data.base), len(added), *array.shape[2:]), dtype=array.dtype) for array in arrays]
    states, actions, present = empty
    for e, kind in enumerate(kinds):
        kept = np.flatnonzero(data.present[e])
        paired: dict[tuple[int, int], tuple[Array, Array]] = {}
        for v, index in enumerate(added):
            below, above = kept[data.indices[kept] < index], kept[data.indices[kept] > index]
            if kind is None or not len(below) or not len(above):
                continue
            a, b = int(below[-1]), int(above[0])
            if kind == "pairs":
                if (a, b) not in paired:
                    paired[a, b] = pair(data.states[e, a], data.states[e, b], rng)
                first, second = paired[a, b]
                way = (index - data.indices[a]) / (data.indices[b] - data.indices[a])
                found = [
                    (1.0 - way) * known[e, a, first] + way * known[e, b, second]
                    for known in (data.states, data.actions)
                ]
            else:
                found = _carried(data, e, (a, b), index, guides[e].without(data.present[e]), rng)
            for guess, rows in zip((states, actions), found, strict=True):
                guess[e, v] = np.resize(rows, guess[e, v].shape)
            present[e, v] = True
    states, actions, present = (np.concatenate(both, axis=1) for both in zip(arrays, empty, strict=True))
    indices = np.append(data.indices, np.array(added, dtype=data.indices.dtype))
    return replace(data, indices=indices, states=states, actions=actions, present=present)


def _carried(
    data: Supervision,
    e: int,
    ends: tuple[int, int],
    index: int,
    guide: Guide,
    rng: np.random.Generator,
) -> list[Array]:
    """Return scaled states of both neighbors, carried to an index in between, and the guessed actions there."""
    parts = []
    for n in ends:
        rows = rng.choice(data.states.shape[2], min(PAIRS // 2, data.states.shape[2]), replace=False)
        parts.append(guide.carry(guide.states(data.states[e, n, rows]), data.indices[n], index))
    states = rng.permutation(guide.environment.project(np.concatenate(parts)))
    return [guide.scaled(states), guide.guess(states, index)]


def pair(first: Array, second: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the rows of both sets of states (rows, dim) that belong together."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and only `dibs-plus` needs it

    count = min(PAIRS, len(first), len(second))
    chosen = [rng.choice(len(states), count, replace=False) for states in (first, second)]
    a, b = (states[rows] - states[rows].mean(axis=0) for states, rows in zip((first, second), chosen, strict=True))
    rows, columns = linear_sum_assignment(((a[:, None] - b[None]) ** 2).sum(axis=-1))
    return chosen[0][rows], chosen[1][columns]
