"""Supervision between training indices, from training tasks and their teachers: what `dibs-plus` may add to a fit.

A family moves evenly, so a teacher between two training indices can be guessed. There are three ways:

- `pairs`: each state of one dataset is paired with a state of the other, by optimal transport after both sets have
  been moved to a common mean. Half way between the states, the guessed action is half way between the actions.
- `actions`: the regions half way between two training tasks are guessed by interpolation. A state of a dataset is
  carried there in *task coordinates*: it moves with the source near the source and with the target near the target.
  Both neighboring teachers are asked for the state carried into their own task, and the guessed action is half way
  between theirs.
- `effects`: as before, but half way lies the *next state*, relative to the target. The guessed action is the one whose
  step without noise ends nearest to it. So the dynamics say what half way between two clipped or turning actions is.

The nearer the two indices, the better the guess; `dibs.templates.select` finds out whether it helps. Nothing of an
unseen task is used: neither its regions nor its rollouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, get_args

import numpy as np

from dibs.envs import Array, Environment
from dibs.families import Tasks
from dibs.policies.network import Network
from dibs.templates.alignment import difference, wrapped
from dibs.templates.objective import Supervision
from dibs.templates.symmetry import Dynamics

Kind = Literal["pairs", "actions", "effects"]
KINDS: tuple[Kind, ...] = get_args(Kind)
PAIRS = 400  # states per edge and index in between
IN_ALL = 8  # approximate number of indices between training indices; at least one in every gap that has any
ITERATIONS = 3  # of Gauss-Newton, from each of two starts, in the search for an action
PROBE = 0.01  # change of an action that shows how the next state depends on it
BETTER = 3e-4  # smallest decrease of the squared scaled distance for which another start's action is taken


@dataclass(frozen=True, eq=False)
class Guide:
    """The teachers of one edge and where its training tasks are."""

    dynamics: Dynamics
    network: Network
    center: Array  # (inputs,)
    half: Array  # (inputs,)
    indices: Array  # (n,)
    actors: Array  # (n, size)
    sources: Array  # (n, dim)
    targets: Array  # (n, dim)

    @classmethod
    def of(
        cls, dynamics: Dynamics, tasks: Tasks, edge: str, network: Network, scaling: tuple[Array, Array], actors: Array
    ) -> Guide:
        """Return the guide of an edge; `actors` (n, size) are those of all indices of the tasks."""
        grounded = tasks.ground([(index, edge) for index in tasks.indices])
        sources, target = grounded.start_center.astype(np.float64), grounded.target.arrays()
        targets = sources.copy()  # what the target leaves free moves with the source
        inside = (grounded.target_sign > 0.0)[..., None] & np.isfinite(target["half_width"])
        for literal in range(inside.shape[1]):
            targets = np.where(inside[:, literal], target["center"][:, literal], targets)
        turns = dynamics.periods
        for v in np.flatnonzero(turns):  # angles go on where they wrap
            sources[:, v], targets[:, v] = (np.unwrap(x[:, v], period=turns[v]) for x in (sources, targets))
        return cls(dynamics, network, *scaling, np.array(tasks.indices), actors, sources, targets)

    def without(self, kept: Array) -> Guide:
        """Return the guide of some of the training indices."""
        names = ("indices", "actors", "sources", "targets")
        return replace(self, **{name: getattr(self, name)[kept] for name in names})

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

    def carry(self, states: Array, here: float, there: float, with_target: bool = False) -> Array:
        """Return states (n, dim) of the task at one index in the coordinates of the task at another one.

        By default they move with the source near the source and with the target near the target.
        """
        (source, target), (to_source, to_target) = self.place(here), self.place(there)
        periods = self.dynamics.periods
        way: Array | float = 1.0
        if not with_target:
            to_go, gone = (
                np.linalg.norm(difference(states, end, periods) / self.half, axis=-1) for end in (target, source)
            )
            way = (gone / np.maximum(gone + to_go, 1e-9))[..., None]
        moved = states + (1.0 - way) * (to_source - source) + way * (to_target - target)
        return wrapped(moved, periods, self.dynamics.low)

    def guess(self, states: Array, index: int, kind: Kind) -> Array:
        """Return the guessed actions (n, m) in states (n, dim) of the task at an index between two training indices."""
        above = int(np.searchsorted(self.indices, index))
        ends, actions, moves = [above - 1, above], [], []
        for n in ends:
            own = self.carry(states, index, self.indices[n], kind == "effects")
            actions.append(self.network.forward(self.actors[n], self.scaled(own)).astype(np.float64))
            if kind == "effects":
                moves.append(self.dynamics.change(self.dynamics.step(own, actions[-1]), own))
        way = (index - self.indices[ends[0]]) / (self.indices[ends[1]] - self.indices[ends[0]])
        turns = self.dynamics.action_periods
        between = wrapped(actions[0] + way * difference(actions[1], actions[0], turns), turns, -1.0)
        if kind == "actions":
            return between
        return self.reach(states, (1.0 - way) * moves[0] + way * moves[1], [between, actions[round(way)]])

    def reach(self, states: Array, moves: Array, starts: Sequence[Array]) -> Array:
        """Return the actions (n, m) whose step without noise changes the states (n, dim) by about `moves`.

        Gauss-Newton from several starts; of actions that are about equally good, that from the first start is taken.
        """
        dynamics, probes = self.dynamics, PROBE * np.eye(starts[0].shape[-1])

        def missed(actions: Array) -> Array:
            step = dynamics.change(dynamics.step(states, np.clip(actions, -1.0, 1.0)), states)
            return (step - moves) / self.half

        best, lowest = starts[0], np.full(len(states), np.inf)
        for start in starts:
            actions = found = np.clip(start, -1.0, 1.0)
            least = np.full(len(states), np.inf)
            for iteration in range(ITERATIONS + 1):
                error = missed(actions)
                cost = np.square(error).sum(axis=-1)
                found = np.where((cost < least)[:, None], actions, found)
                least = np.minimum(cost, least)
                if iteration == ITERATIONS:
                    break
                inward = np.where(actions > 0.0, -1.0, 1.0)[..., None] * probes  # away from the clip
                slopes = np.stack(
                    [(missed(actions + p) - error) / p.sum(axis=-1, keepdims=True) for p in np.moveaxis(inward, 1, 0)],
                    axis=-1,
                )
                square = slopes.swapaxes(-1, -2) @ slopes
                damping = 1e-3 * np.trace(square, axis1=-2, axis2=-1)[:, None, None] + 1e-8
                downhill = slopes.swapaxes(-1, -2) @ error[..., None]
                step = np.linalg.solve(square + damping * np.eye(len(probes)), downhill)[..., 0]
                actions = np.clip(actions - np.clip(step, -0.5, 0.5), -1.0, 1.0)
            better = least < 0.5 * lowest - BETTER
            best, lowest = np.where(better[:, None], found, best), np.where(better, least, lowest)
        return best


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
                found = _carried(data, e, (a, b), index, kind, guides[e].without(data.present[e]), rng)
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
    kind: Kind,
    guide: Guide,
    rng: np.random.Generator,
) -> list[Array]:
    """Return scaled states of both neighbors, carried to an index in between, and the guessed actions there."""
    ways = (False, True) if kind == "effects" else (False,)
    count = PAIRS // (2 * len(ways))
    parts = []
    for n in ends:
        for with_target in ways:
            rows = rng.choice(data.states.shape[2], min(count, data.states.shape[2]), replace=False)
            own = guide.states(data.states[e, n, rows])
            parts.append(guide.carry(own, data.indices[n], index, with_target))
    states = rng.permutation(guide.dynamics.environment.project(np.concatenate(parts)))
    return [guide.scaled(states), guide.guess(states, index, kind)]


def pair(first: Array, second: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the rows of both sets of states (rows, dim) that belong together."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and only `dibs-plus` needs it

    count = min(PAIRS, len(first), len(second))
    chosen = [rng.choice(len(states), count, replace=False) for states in (first, second)]
    a, b = (states[rows] - states[rows].mean(axis=0) for states, rows in zip((first, second), chosen, strict=True))
    rows, columns = linear_sum_assignment(((a[:, None] - b[None]) ** 2).sum(axis=-1))
    return chosen[0][rows], chosen[1][columns]
