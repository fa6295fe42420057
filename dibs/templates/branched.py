"""The branched template: one polynomial per routing mode (paper, last section: branching around obstacles).

Where the right way round an obstacle changes sides along the index, one polynomial has to pass through policies that
do neither. Teachers that were trained without regularisation show which way each index takes: their satisfying
trajectories are clustered into routing modes, each mode's indices are a family of their own with a template of its
own, and an index belongs to the mode of the nearest training index. Nothing about an unseen index is used but its
number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dibs.envs import Array
from dibs.errors import DibsError
from dibs.families import Family, reach_avoid
from dibs.files import damaged, read_tensors, write_tensors
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.seeding import stream
from dibs.spectrl import Graph
from dibs.teachers.rollouts import draw, roll
from dibs.teachers.train import Teacher
from dibs.templates.fit import Fit, FitSettings, fit
from dibs.templates.template import Template, assemble, gather, parse_records, parse_template

KIND = "branched template"
MOST = 3  # modes that are looked for
ROLLOUTS = 50  # per teacher and edge
POINTS = 32  # of a resampled trajectory
STRAIGHT = 0.03  # a detour this small beside the way, in the root mean square, is none
OPPOSITE = -0.99  # cosine below which two lines have no least rotation between them
SEPARATED = 0.5  # least silhouette of more than one mode
APART = 0.7  # least distance between the middles of two modes; opposite detours are 2 apart


# --- which way a teacher takes ---------------------------------------------------------------------------


def ways(family: Family, teacher: Teacher, rollouts: int = ROLLOUTS) -> list[Array | None]:
    """The way (POINTS, dim) that a teacher takes on every edge; None where no rollout satisfies it.

    Of the satisfying rollouts it is the one nearest to all others: a mean could run where none of them does.
    """
    tasks = reach_avoid(family, [teacher.index])
    rng = stream("routing modes", family.name, teacher.gap, teacher.index, teacher.seed)
    folded = teacher.network.fold(teacher.actor, teacher.scaling.center, teacher.scaling.half)[:, None]
    outcome = roll(teacher.network, folded, tasks, draw(tasks, rollouts, rng), record=0)
    assert outcome.states is not None and outcome.lengths is not None and outcome.satisfied is not None
    found: list[Array | None] = []
    for e in range(tasks.tasks):
        good = np.flatnonzero(outcome.satisfied[e])
        if not len(good):
            found.append(None)
            continue
        paths = np.stack([resample(outcome.states[: outcome.lengths[e, r], e, r]) for r in good])
        between = np.linalg.norm(paths[:, None] - paths[None], axis=(-2, -1)).sum(axis=1)
        found.append(paths[int(between.argmin())])
    return found


def resample(states: Array, points: int = POINTS) -> Array:
    """A trajectory (time, dim) as `points` states, equally far from each other along the way."""
    states = np.asarray(states, dtype=np.float64)
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(states, axis=0), axis=1))])
    at = np.linspace(0.0, along[-1], points)
    return np.stack([np.interp(at, along, column) for column in states.T], axis=1)


def detour(way: Array, like: Array) -> Array:
    """To which side, and where along it, a way (points, dim) leaves the straight line between its ends.

    The offsets from the line, turned as the line is turned into that of the way `like`, as a vector of length 1, or
    shorter if there is hardly a detour. Where the line runs and how far the detour goes is left out: that changes
    smoothly as tasks move, while modes differ by the side.
    """
    length, along = _line(way)
    _, common = _line(like)
    relative = way - way[0]
    aside = relative - np.outer(relative @ along, along)
    if along @ common > OPPOSITE:  # the least rotation that takes the one line to the other
        aside = aside - np.outer(aside @ common, (along + common) / (1.0 + along @ common))
    flat = aside.ravel()
    return np.asarray(flat / max(float(np.linalg.norm(flat)), STRAIGHT * length * np.sqrt(len(way))))


def _line(way: Array) -> tuple[float, Array]:
    """Length and direction of the straight line between the ends of a way."""
    line = way[-1] - way[0]
    length = max(float(np.linalg.norm(line)), 1e-9)
    return length, line / length


# --- modes -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Modes:
    """The routing mode of every training index, and how well each number of modes separates them."""

    labels: tuple[int, ...]
    silhouette: dict[int, float]

    @property
    def count(self) -> int:
        return max(self.labels) + 1


def find_modes(features: Array) -> Modes:
    """Cluster (n, features) into one to three modes, numbered in the order in which they appear.

    Two or three only if they are well apart: the number with the best silhouette, if that is SEPARATED or more and
    no two modes are nearer than APART.
    """
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.metrics import silhouette_score

    labels, best, scores = np.zeros(len(features), dtype=int), SEPARATED, dict[int, float]()
    for count in range(2, min(MOST, len(features) - 1) + 1):
        trial = AgglomerativeClustering(count, linkage="average").fit_predict(features)
        scores[count] = float(silhouette_score(features, trial))
        if scores[count] >= best and _apart(features, trial) >= APART:
            labels, best = trial, scores[count]
    order = list(dict.fromkeys(labels.tolist()))
    return Modes(tuple(order.index(label) for label in labels.tolist()), scores)


def _apart(features: Array, labels: Array) -> float:
    """Least distance between the means of two clusters."""
    means = np.stack([features[labels == m].mean(axis=0) for m in np.unique(labels)])
    pairs = np.linalg.norm(means[:, None] - means[None], axis=-1)
    return float(pairs[np.triu_indices(len(means), 1)].min())


def routing_modes(family: Family, teachers: Sequence[Teacher]) -> Modes:
    """The modes of the teachers; one without a satisfying rollout goes with the nearest that has one."""
    found = {t.index: ways(family, t) for t in teachers}
    known = [index for index, edges in found.items() if any(way is not None for way in edges)]
    if not known:
        raise DibsError(f"{family.name}: no teacher has a satisfying rollout; there are no routes to tell apart")
    modes = find_modes(
        np.concatenate([_features([found[i][e] for i in known]) for e in range(len(family.edges))], axis=1)
    )
    return replace(modes, labels=tuple(modes.labels[known.index(nearest(index, known))] for index in found))


def _features(of_edge: Sequence[Array | None]) -> Array:
    """Detours (n, points · dim) of all teachers' ways on one edge; a missing way leaves the line to no side."""
    there = [way for way in of_edge if way is not None]
    if not there:
        return np.zeros((len(of_edge), 0))
    return np.stack([np.zeros(there[0].size) if way is None else detour(way, there[0]) for way in of_edge])


def nearest(index: int, known: Sequence[int]) -> int:
    """The nearest of the known indices; of two equally near ones the earlier."""
    return min(known, key=lambda other: (abs(other - index), other))


# --- the template ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Branched:
    """A template per routing mode; whoever asks for policies need not know that there are several."""

    train: tuple[int, ...]
    labels: tuple[int, ...]  # the mode of every training index
    modes: tuple[Template, ...]

    method = property(lambda self: self.modes[0].method)
    family = property(lambda self: self.modes[0].family)
    gap = property(lambda self: self.modes[0].gap)
    seed = property(lambda self: self.modes[0].seed)
    edges = property(lambda self: self.modes[0].edges)
    network = property(lambda self: self.modes[0].network)
    scaling = property(lambda self: self.modes[0].scaling)

    def mode(self, index: int) -> int:
        """The mode of an index: that of the nearest training index, of two the earlier."""
        return self.labels[self.train.index(nearest(index, self.train))]

    def actors(self, indices: list[int]) -> dict[int, Array]:
        """Actors (edges, size) of every given index, unrolled by its mode's template."""
        found = {
            index: actors
            for m, template in enumerate(self.modes)
            for index, actors in template.actors([i for i in indices if self.mode(i) == m]).items()
        }
        return {index: found[index] for index in indices}

    def check(self, family: Family) -> None:
        """Refuse a family whose edges are not those that the templates were fitted to."""
        self.modes[0].check(family)

    def path(self, graph: Graph, index: int) -> tuple[str, ...]:
        """The path that the guard of the index's mode takes."""
        return self.modes[self.mode(index)].path(graph, index)


def fit_branches(
    method: str,
    family: Family,
    teachers: list[Teacher],
    dataset_files: list[Path],
    settings: FitSettings,
    rng: np.random.Generator,
    progress: Callable[[str], None] | None = None,
) -> tuple[Branched, Modes, list[Fit]]:
    """Find the modes, then fit to each mode's indices a template that starts at the first of them."""
    if settings.select or settings.space != "actions":
        raise DibsError(f"{method}: its templates are fitted to actions without chosen priors; leave out select, space")
    modes = routing_modes(family, teachers)
    gap = max(t.gap for t in teachers)  # that of index 0 says none
    templates, fits = [], []
    for mode in range(modes.count):
        members = [n for n, label in enumerate(modes.labels) if label == mode]
        own = [teachers[n] for n in members]
        data, records = gather(own, [dataset_files[n] for n in members], settings)
        result = fit(data, own[0].network, settings, rng, progress)
        templates.append(replace(assemble(method, own, data, records, result), gap=gap))
        fits.append(result)
    return Branched(tuple(t.index for t in teachers), modes.labels, tuple(templates)), modes, fits


# --- files -----------------------------------------------------------------------------------------------

_STACKED = ("kappa", "base", "base_index")  # one row per mode


def save_branched(path: Path, template: Branched, provenance: dict[str, Any]) -> None:
    """Write a branched template as one file."""
    tensors = {name: np.stack([getattr(mode, name) for mode in template.modes]) for name in _STACKED}
    tensors["base_index"] = tensors["base_index"].astype(np.int64)
    metadata = {
        "kind": KIND,
        **{key: getattr(template, key) for key in ("method", "family", "gap", "seed")},
        "train": list(template.train),
        "labels": list(template.labels),
        "edges": list(template.edges),
        "network": asdict(template.network),
        "records": [{name: asdict(record) for name, record in mode.records.items()} for mode in template.modes],
    }
    scaling = {"scaling_center": template.scaling.center, "scaling_half": template.scaling.half}
    write_tensors(path, tensors | scaling, {**metadata, **provenance})


def load_branched(path: str | Path) -> Branched:
    """Read a branched template."""
    return parse_branched(path, *read_tensors(path))


def parse_branched(path: str | Path, tensors: dict[str, np.ndarray], meta: dict[str, Any]) -> Branched:
    """A branched template from the contents of its file, which errors name."""
    if meta.get("kind") != KIND:
        raise DibsError(f"{path}: expected a {KIND}, found a file of kind {meta.get('kind')!r}")
    for name in (*_STACKED, "scaling_center", "scaling_half"):
        if name not in tensors:
            raise damaged(path, f"no tensor {name}")
    network = Network(**{**meta["network"], "hidden": tuple(meta["network"]["hidden"])})
    train, labels = tuple(meta["train"]), tuple(meta["labels"])
    count, shape = len(meta["records"]), (len(meta["edges"]), network.size)
    if len(labels) != len(train) or set(labels) != set(range(count)):
        raise damaged(path, f"expected for each of {len(train)} training indices one of {count} modes, found {labels}")
    kappa, base = tensors["kappa"], tensors["base"]
    if base.shape != (count, *shape) or kappa.shape != (count, kappa.shape[1], *shape):
        raise damaged(path, f"expected {count} modes of {shape} parameters, found {base.shape}, {kappa.shape}")
    modes = tuple(
        Template(
            meta["method"],
            meta["family"],
            meta["gap"],
            meta["seed"],
            tuple(index for index, label in zip(train, labels, strict=True) if label == m),
            tuple(meta["edges"]),
            network,
            Scaling(tensors["scaling_center"], tensors["scaling_half"]),
            kappa[m],
            base[m],
            tensors["base_index"][m],
            parse_records(meta["records"][m]),
        )
        for m in range(count)
    )
    return Branched(train, labels, modes)


def load_any(path: str | Path) -> Template | Branched:
    """Read a template, branched or not."""
    tensors, meta = read_tensors(path)
    parse = parse_branched if meta.get("kind") == KIND else parse_template
    return parse(path, tensors, meta)
