"""The confidence head: is a state one where the teacher knows what to do? (paper, section 4.1)

p_conf(s) = sigmoid(w · h(s) + b) on the trunk's features h, trained with binary cross-entropy: high-quality states
are labeled 1, low-quality ones 0, and both classes have the same weight.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dibs.envs import Array
from dibs.simulation import Draws, EdgeTask, NetworkPolicy, Rows, draw, rollout
from dibs.teachers.base import Assignment
from dibs.teachers.buffers import Reservoir

RIDGE = 1e-3  # keeps Newton's method well-posed when the classes are separable
HELD_OUT = 0.2
CHANCE = 0.6  # balanced accuracy below which a head knows no more than the share of good states


@dataclass(frozen=True, eq=False)
class ConfidenceHead:
    """Weights and bias (rows, features + 1) of a batch of heads."""

    weights: Array

    @classmethod
    def zeros(cls, rows: int, features: int) -> ConfidenceHead:
        return cls(np.zeros((rows, features + 1), dtype=np.float32))

    def take(self, rows: Rows) -> ConfidenceHead:
        return ConfidenceHead(self.weights[rows])

    def logits(self, features: Array) -> Array:
        """Return c(s) (rows, n) of features (rows, n, features)."""
        return np.asarray(np.einsum("enf,ef->en", features, self.weights[:, :-1]) + self.weights[:, -1:])

    def probability(self, features: Array) -> Array:
        """Return p_conf(s) = sigmoid(c(s))."""
        return sigmoid(self.logits(features))

    def refit(self, assignment: Assignment, theta: Array, edges: Rows, sample: int = 256) -> ConfidenceHead:
        """Take Newton steps on fresh samples of the buffers, for the trunks of theta (rows, size) on `edges`."""
        buffers, rng = assignment.buffers, assignment.rng
        states = np.concatenate([buffers.sample(edges, kind, sample, rng) for kind in ("high", "low")], axis=1)
        features = assignment.network.trunk(theta, assignment.inputs(edges, states))
        labels = np.repeat([1.0, 0.0], sample)
        weights = np.stack([fit_logistic(f, labels, start=w) for f, w in zip(features, self.weights, strict=True)])
        return ConfidenceHead(weights.astype(np.float32))


def sigmoid(x: Array) -> Array:
    """Return the logistic function, without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def fit_logistic(
    features: Array, labels: Array, start: Array | None = None, steps: int = 12, ridge: float = RIDGE
) -> Array:
    """Fit a class-balanced logistic regression by damped Newton steps; returns weights and bias.

    scikit-learn has this too, but takes longer to import than most teachers to train. Tests compare the two.
    """
    x = np.concatenate([features, np.ones((len(features), 1))], axis=1).astype(np.float64)
    y = np.asarray(labels, dtype=np.float64)
    balance = np.where(y > 0.5, 0.5 / max(y.sum(), 1.0), 0.5 / max((1 - y).sum(), 1.0))
    w = np.zeros(x.shape[1]) if start is None else np.asarray(start, dtype=np.float64).copy()

    def loss(w: np.ndarray) -> float:
        z = x @ w
        return float(balance @ (np.logaddexp(0.0, z) - y * z) + 0.5 * ridge * w[:-1] @ w[:-1])

    penalty = np.full(x.shape[1], ridge)
    penalty[-1] = 1e-9
    value = loss(w)
    for _ in range(steps):
        p = sigmoid(x @ w)
        gradient = x.T @ (balance * (p - y)) + penalty * w
        hessian = (x * (balance * p * (1 - p))[:, None]).T @ x + np.diag(penalty + 1e-8)
        direction = np.linalg.solve(hessian, gradient)
        size, accepted = 1.0, False
        while size > 1e-3 and not accepted:
            trial = w - size * direction
            new = loss(trial)
            accepted = new < value
            size /= 2
        if not accepted or value - new < 1e-9:
            break
        w, value = trial, new
    return w


def candidate_losses(
    assignment: Assignment, candidates: Array, head: ConfidenceHead, edges: Rows, sample: int = 32
) -> Array:
    """Return L_conf (rows, candidates) of the trunks of candidates (rows, candidates, size) under the current heads.

    All candidates of a row are measured on the same states of the row's edge.
    """
    losses = 0.0
    for kind, sign in (("high", -1.0), ("low", 1.0)):
        x = assignment.inputs(edges, assignment.buffers.sample(edges, kind, sample, assignment.rng))
        features = assignment.network.trunk(candidates, np.repeat(x[:, None], candidates.shape[1], axis=1))
        logits = np.einsum("rcnf,rf->rcn", features, head.weights[:, :-1]) + head.weights[:, None, -1:]
        losses = losses + np.logaddexp(0.0, sign * logits).mean(axis=-1)
    return np.asarray(losses)


# --- after training --------------------------------------------------------------------------------------


def relabel(assignment: Assignment, policy: NetworkPolicy) -> int:
    """Sort the states of both quality buffers again, by whether the converged teacher succeeds from them.

    Returns the environment steps used. While a teacher trains, the same state occurs in failed and in satisfying
    rollouts, and a head trained on both learns nothing. High quality means that the *converged* teacher knows what to
    do there.
    """
    task, buffers, rng = EdgeTask(assignment.edges), assignment.buffers, assignment.rng
    views = [np.concatenate([b["high"].view(), b["low"].view()]) for b in buffers.edges]
    count = max(len(v) for v in views)
    starts = np.stack([v[np.arange(count) % len(v)] for v in views])
    outcome = rollout(task, policy, Draws(starts, draw(task, count, rng).noise))
    for edge, view, good in zip(buffers.edges, views, outcome.success, strict=True):
        for kind, chosen in (("high", good[: len(view)]), ("low", ~good[: len(view)])):
            fresh = Reservoir(edge[kind].capacity, edge[kind].dim, rng)
            fresh.add(view[chosen])
            edge[kind] = fresh
    return outcome.steps


def fit_heads(
    assignment: Assignment, actor: Array, start: Array | None, threshold: float
) -> tuple[Array, list[dict[str, Any] | None]]:
    """Fit each edge's head on the final trunk and score it on held-out states; no score where a class is empty."""
    network = assignment.network
    heads = ConfidenceHead.zeros(len(actor), network.hidden[-1]).weights
    reports: list[dict[str, Any] | None] = []
    for e, theta in enumerate(actor):
        high, low = (assignment.buffers.edges[e][kind].view() for kind in ("high", "low"))
        if min(len(high), len(low)) < 10:
            # All states are of one kind: there is nothing to tell apart.
            heads[e, -1] = 10.0 if len(high) > len(low) else -10.0
            reports.append(None)
            continue
        states = np.concatenate([high, low])
        labels = np.repeat([1.0, 0.0], [len(high), len(low)])
        features = network.trunk(theta, assignment.inputs(np.array([e]), states[None])[0])
        held = (np.arange(len(states)) * HELD_OUT) % 1.0 >= 1.0 - HELD_OUT - 1e-9  # every fifth: buffers are unordered
        heads[e] = fit_logistic(features[~held], labels[~held], None if start is None else start[e])
        p = ConfidenceHead(heads[e : e + 1]).probability(features[held][None])[0]
        found = report(p, labels[held], threshold)
        if found.accuracy < CHANCE:
            # A head that cannot tell good from bad gives the share of good states instead of rejecting all.
            heads[e] = 0.0
            heads[e, -1] = np.log(len(high) / len(low))
        reports.append(asdict(found))
    return heads, reports


@dataclass(frozen=True)
class ConfidenceReport:
    """How well a head tells the two kinds of held-out states apart."""

    accuracy: float
    """Balanced accuracy at p = 0.5 on held-out states."""
    calibration: float
    """Expected calibration error over ten bins."""
    high_kept: float
    """Share of held-out high-quality states with p ≥ the threshold."""
    low_kept: float
    """Share of held-out low-quality states with p ≥ the threshold."""


def report(probabilities: Array, labels: Array, threshold: float) -> ConfidenceReport:
    """Score held-out probabilities (n,) against labels (n,); both classes have the same weight."""
    high = labels > 0.5
    weight = np.where(high, 0.5 / max(high.sum(), 1), 0.5 / max((~high).sum(), 1))
    bins = np.minimum((probabilities * 10).astype(int), 9)
    gap = [abs(float(weight[bins == b] @ (probabilities[bins == b] - labels[bins == b]))) for b in range(10)]
    return ConfidenceReport(
        accuracy=float(weight @ ((probabilities >= 0.5) == high)),
        calibration=float(sum(gap)),
        high_kept=float((probabilities[high] >= threshold).mean()) if high.any() else float("nan"),
        low_kept=float((probabilities[~high] >= threshold).mean()) if (~high).any() else float("nan"),
    )
