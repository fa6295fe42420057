"""Predicted success: what training evidence says about the policy of any index (docs/method.md).

A model's metadata has, per edge, predicted success at some indices (`Curve`), whatever the class of its template.
Nothing of an unseen task is used. Rollouts are on training tasks, and unseen indices are only asked for their policies.

For a fitted template the evidence is the fit without one training index, several times (`Fold`). How far its policy of
an index is from that of the full fit estimates the error of both, the more so the farther away the training indices
are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dibs.envs import Array
from dibs.families import Tasks
from dibs.methods import Model
from dibs.policies.scaling import Scaling
from dibs.simulation import Bools, EdgeTask, Moment, Policy, draw, rollout
from dibs.templates.objective import Supervision
from dibs.templates.template import PolicyEvolution, evolution_of

KEY = "predicted"
"""Of the metadata of models."""
FOLDS = 4  # training indices that are left out, one at a time, the last one among them
ROLLOUTS = 50
ROWS = 64  # states at which two policies are compared
# Fitted to the success of `dibs` and `dibs-plus-still` on development families (docs/results/induction.md).
TRAINED = 0.13  # weight of the training error, with which the template succeeds as measured
WITHIN = (0.7, 3.1)  # weight of the disagreement between training indices, and its growth per gap from the nearest
BEYOND = (1.0, 4.6)  # the same beyond the last one
VERSION = 2
"""Of predictions. They are no part of what a method's version covers: policies do not depend on them."""
FAR = (1_000, 10_000, 100_000)


@dataclass(frozen=True)
class Curve:
    """Predicted success of an edge at some indices; between them linear in the logarithm, constant outside."""

    index: tuple[int, ...]
    success: tuple[float, ...]

    def at(self, index: int) -> float:
        """Return predicted success at an index."""
        return float(np.interp(np.log1p(index), np.log1p(self.index), self.success))


def predict(model: Model, tasks: Tasks) -> dict[int, float] | None:
    """Return predicted success at every index of the tasks; None: the model predicts nothing."""
    known = curves(model)
    if not known:
        return None
    template = evolution_of(model, f"the model of {tasks.name}")
    paths = {index: template.path(tasks.graph, index) for index in tasks.indices}
    return {index: float(np.prod([known[name].at(index) for name in path])) for index, path in paths.items()}


def curves(model: Model) -> dict[str, Curve]:
    """Return the predictions by edge in a model's metadata; none if they are those of another version."""
    found = model.metadata.get(KEY, {})
    edges = found["edges"] if found.get("version") == VERSION else {}
    return {name: Curve(tuple(c["index"]), tuple(c["success"])) for name, c in edges.items()}


def with_prediction(model: Model, predicted: Mapping[str, Curve], evidence: Mapping[str, Any] | None = None) -> Model:
    """Return the model with predictions in its metadata, and with what they rest on in its metrics."""
    plain = {name: {"index": list(c.index), "success": list(c.success)} for name, c in predicted.items()}
    metrics = dict(model.metrics) | ({"evidence": evidence} if evidence else {})
    return replace(model, metadata={**model.metadata, KEY: {"version": VERSION, "edges": plain}}, metrics=metrics)


def grid(last: int) -> tuple[int, ...]:
    """Return the indices at which success is predicted: 0 … 2L, or a hundred of them, and some far ones."""
    near = np.unique(np.linspace(0, 2 * last, min(2 * last, 100) + 1).round().astype(int))
    return (*map(int, near), *(index for index in FAR if index > 2 * last))


# --- evidence for fitted templates -----------------------------------------------------------------------


class Fold(NamedTuple):
    """A template that was fitted without one training index per edge."""

    template: PolicyEvolution
    without: Mapping[str, int]  # the index by edge; edges that are missing have nothing to leave out


@dataclass(frozen=True)
class Evidence:
    """What is known of an edge."""

    index: tuple[int, ...]
    training: float  # mean squared error of actions at training indices
    disagreement: tuple[float, ...]  # mean squared difference of actions between the template and the folds
    trained: tuple[tuple[int, float], ...]  # training index, success of the template there

    def facts(self) -> dict[str, Any]:
        """Return what metrics say."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}


def left_out(present: Bools) -> list[int]:
    """Return the positions of the training indices to leave out one at a time: not the first, but the last."""
    later = np.flatnonzero(present)[1:]
    picks = np.linspace(0, len(later) - 1, min(FOLDS, len(later))).round().astype(int)
    return [int(n) for n in later[picks]]


def gather_evidence(
    tasks: Tasks,
    edges: Sequence[str],
    data: Supervision,
    scaling: Scaling,
    template: PolicyEvolution,
    folds: Sequence[Fold],
    rng: np.random.Generator,
) -> dict[str, Evidence]:
    """Compare the template with those of the folds; `data` has the training datasets of the given edges."""
    found, at = {}, grid(int(data.indices[-1]))
    for e, name in enumerate(edges):
        known = np.flatnonzero(data.present[e])
        center, half = scaling.center[e], scaling.half[e]
        seen = data.states[e, :, :ROWS] * half + center  # (n, rows, inputs)
        own = _acted(template, tasks, name, data.indices[known].tolist(), seen[known])
        training = np.square(own - data.actions[e, known, :ROWS]).sum(axis=-1).mean()
        states = np.stack([_moved(seen[known], data.indices[known], index) for index in at])
        actions = _acted(template, tasks, name, list(at), states)
        others = [_acted(fold.template, tasks, name, list(at), states) for fold in folds if name in fold.without]
        apart = [np.square(other - actions).sum(axis=-1).mean(axis=-1) for other in others] or [np.zeros(len(at))]
        trained = [int(i) for i in data.indices[known]]
        success = _success(template, tasks, name, trained, rng).tolist()
        measured = tuple(zip(trained, success, strict=True))
        found[name] = Evidence(at, float(training), tuple(np.mean(apart, axis=0).tolist()), measured)
    return found


def _moved(seen: Array, indices: Array, index: int) -> Array:
    """Return states (rows, inputs) where those of an index may be: of the nearest dataset, moved as the means do."""
    means = seen.mean(axis=1)  # (n, inputs)
    nearest = int(np.abs(indices - index).argmin())
    if len(indices) == 1:
        return np.asarray(seen[0])
    b = int(np.clip(np.searchsorted(indices, index), 1, len(indices) - 1))
    way = (index - indices[b - 1]) / (indices[b] - indices[b - 1])
    middle = (1.0 - way) * means[b - 1] + way * means[b]
    return np.asarray(seen[nearest] - means[nearest] + middle)


def _acted(template: PolicyEvolution, tasks: Tasks, name: str, indices: Sequence[int], seen: Array) -> Array:
    """Return the actions (indices, rows, m) of an edge's policies on observations (indices, rows, inputs)."""
    policy: Policy = template.edge_policy(tasks.environment, [(index, name) for index in indices])
    shape = seen.shape[:2]
    states = np.zeros((*shape, len(tasks.environment.state_names)), dtype=seen.dtype)
    now = Moment(seen, states, None, np.zeros(shape, dtype=np.intp), np.ones(shape, dtype=bool))
    with np.errstate(over="ignore", invalid="ignore"):
        actions, _ = policy.act(now, policy.begin(shape))
    return np.nan_to_num(np.asarray(actions, dtype=np.float64), nan=1.0)


def _success(
    template: PolicyEvolution, tasks: Tasks, name: str, indices: Sequence[int], rng: np.random.Generator
) -> Array:
    pairs = [(index, name) for index in indices]
    task = EdgeTask(tasks.ground(pairs))
    outcome = rollout(task, template.edge_policy(tasks.environment, pairs), draw(task, ROLLOUTS, rng))
    return np.asarray(outcome.success.mean(axis=-1))


# --- from evidence to success ----------------------------------------------------------------------------


def weight(index: Array, trained: Array) -> Array:
    """Return how much the disagreement at some indices counts, given the training indices."""
    above = np.clip(np.searchsorted(trained, index), 1, max(len(trained) - 1, 1))
    gap = trained[above] - trained[above - 1] if len(trained) > 1 else 1
    distance = np.abs(index[:, None] - trained).min(axis=1) / gap
    share, growth = np.where(index[:, None] <= trained[-1], WITHIN, BEYOND).T
    return np.asarray(share * np.exp(np.minimum(growth * distance, 50.0)))


def curve(evidence: Evidence) -> Curve:
    """Return predicted success; at training indices, success as it was measured."""
    known = dict(evidence.trained)
    weighted = weight(np.array(evidence.index), np.array(list(known))) * np.array(evidence.disagreement)
    share = float(np.mean(list(known.values()))) / (1.0 + TRAINED * evidence.training + weighted)
    pairs = zip(evidence.index, share.tolist(), strict=True)
    return Curve(evidence.index, tuple(round(known.get(index, value), 4) for index, value in pairs))
