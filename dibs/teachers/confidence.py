"""The confidence head: is a state one where the teacher knows what to do? (paper, section 4.1)

p_conf(s) = sigmoid(w · h(s) + b) on the trunk's features h, trained with binary cross-entropy, high-quality
states labelled 1 and low-quality ones 0, both classes weighing the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dibs.envs import Array
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.teachers.buffers import StateBuffers
from dibs.teachers.rollouts import Rows

RIDGE = 1e-3  # keeps Newton's method well-posed when the classes are separable
HELD_OUT = 0.2


@dataclass(frozen=True, eq=False)
class ConfidenceHead:
    """Weights and bias (edges, features + 1) of a batch of heads."""

    weights: Array

    @classmethod
    def zeros(cls, edges: int, features: int) -> ConfidenceHead:
        return cls(np.zeros((edges, features + 1), dtype=np.float32))

    def take(self, rows: Rows) -> ConfidenceHead:
        return ConfidenceHead(self.weights[rows])

    def logits(self, features: Array) -> Array:
        """Confidence c(s) (edges, n) from features (edges, n, features)."""
        return np.asarray(np.einsum("enf,ef->en", features, self.weights[:, :-1]) + self.weights[:, -1:])

    def probability(self, features: Array) -> Array:
        """p_conf(s) = sigmoid(c(s))."""
        return sigmoid(self.logits(features))

    def refit(
        self,
        network: Network,
        theta: Array,
        scaling: Scaling,
        edges: Rows,
        buffers: StateBuffers,
        rng: np.random.Generator,
        sample: int = 256,
    ) -> ConfidenceHead:
        """Newton steps on fresh samples of the buffers, for the current trunks theta (rows, size) of `edges`."""
        high, low = (_sample(buffers, edges, kind, sample, rng) for kind in ("high", "low"))
        x = np.concatenate([high, low], axis=1)
        local = scaling.take(edges)
        features = network.trunk(theta, (x - local.center[:, None]) / local.half[:, None])
        labels = np.repeat([1.0, 0.0], sample)
        weights = np.stack([fit_logistic(f, labels, start=w) for f, w in zip(features, self.weights, strict=True)])
        return ConfidenceHead(weights.astype(np.float32))


def sigmoid(x: Array) -> Array:
    """Logistic function, without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def fit_logistic(
    features: Array, labels: Array, start: Array | None = None, steps: int = 12, ridge: float = RIDGE
) -> Array:
    """Class-balanced logistic regression by damped Newton steps; returns weights and bias."""
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
    network: Network,
    candidates: Array,
    head: ConfidenceHead,
    scaling: Scaling,
    edges: Rows,
    buffers: StateBuffers,
    rng: np.random.Generator,
    sample: int = 32,
) -> Array:
    """L_conf (rows, candidates) of every candidate's trunk under the current head, on common states."""
    losses = 0.0
    for kind, sign in (("high", -1.0), ("low", 1.0)):
        states = _sample(buffers, edges, kind, sample, rng)  # (rows, sample, dim)
        x = (states - scaling.center[edges][:, None]) / scaling.half[edges][:, None]
        features = network.trunk(candidates, np.repeat(x[:, None], candidates.shape[1], axis=1))
        logits = np.einsum("rcnf,rf->rcn", features, head.weights[:, :-1]) + head.weights[:, None, -1:]
        losses = losses + np.logaddexp(0.0, sign * logits).mean(axis=-1)
    return np.asarray(losses)


def _sample(buffers: StateBuffers, edges: Rows, kind: str, count: int, rng: np.random.Generator) -> Array:
    views = {int(e): buffers.edges[int(e)][kind].view() for e in set(map(int, edges))}
    return np.stack([views[int(e)][rng.integers(len(views[int(e)]), size=count)] for e in edges])


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
    """Score held-out probabilities (n,) against labels (n,), classes weighing the same."""
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
