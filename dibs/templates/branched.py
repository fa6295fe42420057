"""The branched template: one polynomial per routing mode (paper, last section: branching around obstacles).

If the right way around an obstacle changes sides along the index, one polynomial must pass through policies that take
neither side. Teachers that were trained without regularization show which way each index takes. Their satisfying
trajectories are clustered into routing modes. Each mode's indices get a template of their own, and an index belongs
to the mode of the nearest training index. Nothing about an unseen index is used but its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dibs.envs import Array, Environment
from dibs.errors import DibsError
from dibs.families import Split, Tasks
from dibs.files import damaged
from dibs.methods import Model, Training
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.seeding import stream
from dibs.simulation import EdgeTask, NetworkPolicy, Policy, StateRecorder, draw, rollout
from dibs.simulation.composed import PerTask
from dibs.spectrl import Graph
from dibs.teachers.train import Teacher
from dibs.templates.fit import Fit, FitSettings, fit
from dibs.templates.template import Source, Template, assemble, gather, model_metadata

MOST = 3  # modes that are looked for
ROLLOUTS = 50  # per teacher and edge
POINTS = 32  # of a resampled trajectory
STRAIGHT = 0.03  # a detour whose root mean square, relative to the line's length, is smaller counts as none
OPPOSITE = -0.99  # cosine below which two lines have no unique smallest rotation between them
SEPARATED = 0.5  # smallest silhouette of more than one mode
APART = 0.7  # smallest distance between the means of two modes; opposite detours are 2 apart


# --- which way a teacher takes ---------------------------------------------------------------------------


def ways(tasks: Tasks, split: Split, teacher: Teacher) -> list[Array | None]:
    """Return the way (POINTS, dim) that a teacher takes on every edge; None where no rollout satisfies it.

    It is the satisfying rollout nearest to all others. A mean could run where none of them does.
    """
    task = EdgeTask(tasks.reach_avoid([teacher.index]))
    key = "0" if teacher.index == 0 else split.key  # the teacher of index 0 serves all splits
    rng = stream("routing modes", tasks.name, key, teacher.index, teacher.seed)
    folded = teacher.network.fold(teacher.actor, teacher.scaling.center, teacher.scaling.half)
    recorder = StateRecorder()
    outcome = rollout(task, NetworkPolicy(teacher.network, folded), draw(task, ROLLOUTS, rng), recorder=recorder)
    states = recorder.states()  # (time, edges, rollouts, dim)
    found: list[Array | None] = []
    for e in range(task.tasks):
        good = np.flatnonzero(outcome.success[e])
        if len(good):
            paths = np.stack([resample(states[: outcome.lengths[e, r], e, r]) for r in good])
            between = np.linalg.norm(paths[:, None] - paths[None], axis=(-2, -1)).sum(axis=1)
        found.append(paths[int(between.argmin())] if len(good) else None)
    return found


def resample(states: Array, points: int = POINTS) -> Array:
    """Return a trajectory (time, dim) as `points` states at equal distances along the way."""
    states = np.asarray(states, dtype=np.float64)
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(states, axis=0), axis=1))])
    at = np.linspace(0.0, along[-1], points)
    return np.stack([np.interp(at, along, column) for column in states.T], axis=1)


def detour(way: Array, like: Array) -> Array:
    """Describe to which side, and where along it, a way (points, dim) leaves the straight line between its ends.

    Returns the offsets from the line, rotated as the line is rotated onto that of the way `like`, as a vector of
    length 1, or shorter if the detour is tiny. It does not depend on where the line runs and how far the detour goes:
    these change smoothly as tasks move, while modes differ by the side.
    """
    length, along = _line(way)
    _, common = _line(like)
    relative = way - way[0]
    aside = relative - np.outer(relative @ along, along)
    if along @ common > OPPOSITE:  # the smallest rotation that takes one line to the other
        aside = aside - np.outer(aside @ common, (along + common) / (1.0 + along @ common))
    flat = aside.ravel()
    return np.asarray(flat / max(float(np.linalg.norm(flat)), STRAIGHT * length * np.sqrt(len(way))))


def _line(way: Array) -> tuple[float, Array]:
    """Return length and direction of the straight line between the ends of a way."""
    line = way[-1] - way[0]
    length = max(float(np.linalg.norm(line)), 1e-9)
    return length, line / length


# --- modes -----------------------------------------------------------------------------------------------


class Modes(NamedTuple):
    """The routing mode of every training index, and how well each number of modes separates them."""

    labels: tuple[int, ...]
    silhouette: dict[int, float]


def find_modes(features: Array) -> Modes:
    """Cluster (n, features) into one to three modes, numbered in the order in which they appear.

    Takes the number with the best silhouette if that is SEPARATED or more and no two modes are nearer than APART;
    otherwise there is one mode.
    """
    from scipy.spatial.distance import pdist
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.metrics import silhouette_score

    labels, best, scores = np.zeros(len(features), dtype=int), SEPARATED, dict[int, float]()
    for count in range(2, min(MOST, len(features) - 1) + 1):
        trial = AgglomerativeClustering(count, linkage="average").fit_predict(features)
        scores[count] = float(silhouette_score(features, trial))
        means = [features[trial == mode].mean(axis=0) for mode in range(count)]
        if scores[count] >= best and pdist(means).min() >= APART:
            labels, best = trial, scores[count]
    order = list(dict.fromkeys(labels.tolist()))
    return Modes(tuple(order.index(label) for label in labels.tolist()), scores)


def routing_modes(tasks: Tasks, split: Split, teachers: Sequence[Teacher]) -> Modes:
    """Return the modes of the teachers; one without a satisfying rollout gets the mode of the nearest that has one."""
    found = {t.index: ways(tasks, split, t) for t in teachers}
    known = [index for index, edges in found.items() if any(way is not None for way in edges)]
    if not known:
        raise DibsError(f"{tasks.name}: no teacher has a satisfying rollout, so there are no routes to cluster")
    features = [_features([found[i][e] for i in known]) for e in range(len(tasks.edges))]
    modes = find_modes(np.concatenate(features, axis=1))
    return modes._replace(labels=tuple(modes.labels[known.index(nearest(index, known))] for index in found))


def _features(of_edge: Sequence[Array | None]) -> Array:
    """Return the detours (n, points · dim) of all teachers' ways on one edge; a missing way counts as straight."""
    there = [way for way in of_edge if way is not None]
    if not there:
        return np.zeros((len(of_edge), 0))
    return np.stack([np.zeros(there[0].size) if way is None else detour(way, there[0]) for way in of_edge])


def nearest(index: int, known: Sequence[int]) -> int:
    """Return the nearest of the known indices; on a tie, the earlier one."""
    return min(known, key=lambda other: (abs(other - index), other))


# --- the template ----------------------------------------------------------------------------------------

_STACKED = ("kappa", "base", "base_index")  # tensors with one row per mode


@dataclass(frozen=True, eq=False)
class Branched:
    """One template per routing mode, used like a single one."""

    train: tuple[int, ...]
    labels: tuple[int, ...]  # the mode of every training index
    modes: tuple[Template, ...]

    @property
    def edges(self) -> tuple[str, ...]:
        return self.modes[0].edges

    @property
    def network(self) -> Network:
        return self.modes[0].network

    @property
    def scaling(self) -> Scaling:
        return self.modes[0].scaling

    def mode(self, index: int) -> int:
        """Return the mode of an index: that of the nearest training index; on a tie, of the earlier one."""
        return self.labels[self.train.index(nearest(index, self.train))]

    def actors(self, indices: Sequence[int]) -> dict[int, Array]:
        """Return the actors (edges, size) of every given index, unrolled by its mode's template."""
        return {index: self.modes[self.mode(index)].actors([index])[index] for index in indices}

    def edge_policy(self, environment: Environment, pairs: Sequence[tuple[int, str]]) -> Policy:
        """Return the policy of a batch of tasks, each from the template of its index's mode."""
        mode = np.array([self.mode(index) for index, _ in pairs])
        rows = [np.flatnonzero(mode == m) for m in np.unique(mode)]
        policies = [
            self.modes[int(mode[own[0]])].edge_policy(environment, [pairs[n] for n in own.tolist()]) for own in rows
        ]
        return policies[0] if len(rows) == 1 else PerTask(rows, policies)

    def holds(self, index: int, edges: Sequence[str]) -> bool:
        """Whether the template of the index's mode holds."""
        return self.modes[self.mode(index)].holds(index, edges)

    def describe(self, edge: str) -> str:
        """Say what is known of one edge in every mode."""
        return "; ".join(f"mode {m}: {mode.describe(edge)}" for m, mode in enumerate(self.modes))

    def path(self, graph: Graph, index: int) -> tuple[str, ...]:
        """Return the path that the guard of the index's mode takes."""
        return self.modes[self.mode(index)].path(graph, index)

    def to_model(self, steps: Mapping[str, int], metrics: Mapping[str, Any]) -> Model:
        """Return what its file contains."""
        models = [mode.to_model({}, {}) for mode in self.modes]
        records = [model.metadata["records"] for model in models]
        own = {"class": "branched", "train": list(self.train), "labels": list(self.labels), "records": records}
        stacked = {name: np.stack([model.tensors[name] for model in models]) for name in _STACKED}
        return Model({**models[0].tensors, **stacked}, {**models[0].metadata, **own}, steps, metrics)

    @classmethod
    def from_model(cls, model: Model, where: str) -> Branched:
        """Read a branched template; errors name `where` it is from, such as a file."""
        meta = model_metadata(model, "branched", where)
        train, labels, count = tuple(meta["train"]), tuple(meta["labels"]), len(meta["records"])
        if len(labels) != len(train) or set(labels) != set(range(count)):
            raise damaged(where, f"expected one of {count} modes for each of {len(train)} indices, found {labels}")
        stacked = {name: tensor for name, tensor in model.tensors.items() if name in _STACKED}
        for name, tensor in stacked.items():
            if len(tensor) != count:
                raise damaged(where, f"{name}: expected {count} modes, found {len(tensor)}")
        modes = []
        for m, records in enumerate(meta["records"]):
            own = [index for index, label in zip(train, labels, strict=True) if label == m]
            tensors = {**model.tensors, **{name: tensor[m] for name, tensor in stacked.items()}}
            metadata = {**meta, "class": "polynomial", "train": own, "records": records}
            modes.append(Template.from_model(replace(model, tensors=tensors, metadata=metadata), where))
        return cls(train, labels, tuple(modes))


def fit_branches(
    training: Training, sources: Sequence[Source], settings: FitSettings, rng: np.random.Generator
) -> tuple[Branched, Modes, list[Fit]]:
    """Find the modes, then fit to each mode's indices a template that starts at the first of them."""
    if settings.motion or settings.space != "actions":
        raise DibsError("dibs-branched fits actions and moves nothing; leave out `motion` and `space`")
    modes = routing_modes(training.tasks, training.split, [source.teacher for source in sources])
    templates, fits = [], []
    for mode in range(max(modes.labels) + 1):
        own = [source for source, label in zip(sources, modes.labels, strict=True) if label == mode]
        teachers = [source.teacher for source in own]
        data = gather(training.tasks, own, settings)
        fits.append(fit(data, teachers[0].network, settings, rng, training.progress))
        templates.append(assemble(teachers, data, fits[-1].kappa))
    return Branched(training.tasks.indices, modes.labels, tuple(templates)), modes, fits
