"""Stage II: fit κ by behavioural cloning through the unrolled polynomial (paper, section 4.2, algorithm 1).

The loss is the paper's: the sum over training indices of the mean squared error between the unrolled
policy's actions and the teacher's, minimised by Adam with an annealed rate on minibatches of 512 per index
until it stagnates. What is ours is how it stays finite when κ is unrolled over forty indices: κ is written as
identity + z / scale with scale the number of unrolled steps, so that a step of Adam at the paper's rate moves
the *last* policy, not κ, by about that rate; gradients are clipped per template; an edge whose loss runs away
goes back to its best iterate at half the rate; the best iterate is what is returned.

`dibs-plus` adds a weak prior towards κ_1 = 1 (settings.prior), which decides what no data says: how a policy
travels between two training indices.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dibs.envs import Array
from dibs.errors import DibsError
from dibs.policies.network import Network
from dibs.settings import STRICT
from dibs.templates.polynomial import identity, unroll, unroll_gradient


@dataclass(frozen=True)
class FitSettings:
    """Settings of the fit; rate and batch are the paper's."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    degree: int = 1
    """Degree m of the polynomial."""
    rate: float = 0.1
    """Adam's initial rate, in the rescaled coordinates."""
    batch: int = 512
    """States per training index, edge and step."""
    check_every: int = 50
    """Steps between two looks at the loss on held states."""
    patience: int = 2
    """Looks without progress after which an edge's rate is halved."""
    progress: float = 0.02
    """Relative fall of the loss that counts as progress."""
    least_rate: float = 2e-3
    """An edge whose rate falls below this has stagnated."""
    max_steps: int = 3000
    """Most steps."""
    clip: float = 10.0
    """Largest gradient norm per template."""
    prior: float = 0.0
    """Weight of the prior towards κ_1 = 1: 0 is the paper's objective."""
    samples: int = 20_000
    """Most rows of a dataset that are held in memory per edge and index."""


@dataclass(frozen=True, eq=False)
class Supervision:
    """The datasets of all training indices as arrays; states are scaled already."""

    indices: Array  # (n,) training indices
    states: Array  # (edges, n, rows, dim)
    actions: Array  # (edges, n, rows, m)
    present: Array  # (edges, n) bool: this teacher could label this edge
    base: Array  # (edges, size): the actor at the edge's base index
    base_index: Array  # (edges,): where the edge's template starts, 0 but for branches that appear later


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted template."""

    kappa: Array  # (degree + 1, edges, size)
    loss: Array  # (edges,): the paper's loss at the best iterate, on held states
    per_index: Array  # (edges, n): its terms
    steps: int
    seconds: float
    curve: list[list[float]]  # per look: step, then the loss of each edge


def fit(
    data: Supervision,
    network: Network,
    settings: FitSettings,
    rng: np.random.Generator,
    progress: Callable[[str], None] | None = None,
) -> Fit:
    """Fit one template per edge, all edges in one array program."""
    began = time.perf_counter()
    edges, _, rows, _ = data.states.shape
    steps_ahead = np.maximum(data.indices[None] - data.base_index[:, None], 0)  # (edges, n)
    length = int(steps_ahead.max())
    scale = _scale(settings.degree, data.base, length)
    start = identity(settings.degree, data.base.shape)
    z = np.zeros_like(start)
    first, second = np.zeros_like(z), np.zeros_like(z)
    count = np.zeros(edges)
    rate = np.full(edges, settings.rate)
    best_z, best = z.copy(), np.full(edges, np.inf)
    marked, stale = np.full(edges, np.inf), np.zeros(edges, dtype=int)
    active = data.present.any(axis=1)
    held = slice(0, min(rows, 2048))
    batches = _Batches(rows, settings.batch, rng)
    e = np.arange(edges)[:, None]
    curve: list[list[float]] = []
    step = 0
    for step in range(settings.max_steps + 1):
        if step % settings.check_every == 0:
            losses = _losses(data, network, start + z / scale, steps_ahead, length, held)
            total = np.where(data.present, losses, 0.0).sum(axis=1) + _prior(z, settings)
            if step == 0 and not np.isfinite(total[active]).all():
                raise DibsError("the loss is not finite before the first step: a dataset or base policy is damaged")
            curve.append([float(step), *map(float, total)])
            better = active & np.isfinite(total) & (total < best)
            best[better] = total[better]
            best_z[:, better] = z[:, better]
            moved = active & (best < (1.0 - settings.progress) * marked)
            marked[moved], stale[moved] = best[moved], 0
            stale[active & ~moved] += 1
            runaway = active & ~(total < 4.0 * best + 1e-3)
            anneal = active & ((stale >= settings.patience) | runaway)
            rate[anneal] /= 2.0
            stale[anneal] = 0
            z[:, anneal] = best_z[:, anneal]
            first[:, anneal] = second[:, anneal] = 0.0
            count[anneal] = 0
            active &= rate >= settings.least_rate
            if progress is not None and step % (10 * settings.check_every) == 0:
                progress(f"step {step}: loss {best.sum():.5f}, {int(active.sum())} of {edges} edges moving")
            if not active.any() or step == settings.max_steps:
                break
        rows_now = batches.next()
        policies = unroll(start + z / scale, data.base.astype(np.float64), length)
        theta = policies[steps_ahead, e].astype(np.float32)  # (edges, n, size)
        with np.errstate(over="ignore", invalid="ignore"):
            _, grad = network.forward_backward(theta, data.states[:, :, rows_now], data.actions[:, :, rows_now])
            grad = np.where(data.present[..., None], grad, 0.0)
            at = np.zeros(policies.shape)
            np.add.at(at, (steps_ahead, np.broadcast_to(e, steps_ahead.shape)), grad)
            grad_z = unroll_gradient(start + z / scale, policies, at) / scale
        grad_z += _prior_gradient(z, settings)
        norm = np.sqrt(np.einsum("rep,rep->e", grad_z, grad_z))
        grad_z *= np.where(norm > settings.clip, settings.clip / np.maximum(norm, 1e-30), 1.0)[None, :, None]
        grad_z[:, ~np.isfinite(norm)] = 0.0
        count += 1
        first = 0.9 * first + 0.1 * grad_z
        second = 0.999 * second + 0.001 * grad_z**2
        unbiased = first / (1.0 - 0.9**count)[None, :, None]
        spread = np.sqrt(second / (1.0 - 0.999**count)[None, :, None])
        z = z - np.where(active, rate, 0.0)[None, :, None] * unbiased / (spread + 1e-8)
    kappa = start + best_z / scale
    per_index = _losses(data, network, kappa, steps_ahead, length, held)
    if not np.isfinite(kappa).all() or not np.isfinite(per_index[data.present]).all():
        raise DibsError(
            f"the fit diverged (degree {settings.degree}, {length} unrolled steps); "
            "use a smaller rate (templates.rate) or a lower degree (templates.degree)"
        )
    seconds = time.perf_counter() - began
    return Fit(kappa, best, np.where(data.present, per_index, np.nan), step, seconds, curve)


def _scale(degree: int, base: Array, length: int) -> Array:
    """What one unit of z moves: about one unit of the last policy's parameters."""
    size = np.maximum(np.abs(base).max(axis=-1, keepdims=True), 1.0)  # (edges, 1)
    powers = np.arange(degree + 1)[:, None, None]
    return np.asarray(max(length, 1) * np.where(powers >= 1, size**powers, 1.0), dtype=np.float64)


def _prior(z: Array, settings: FitSettings) -> Array | float:
    if settings.prior == 0.0 or len(z) == 1:
        return 0.0
    return np.asarray(settings.prior * np.sum(z[1:] ** 2, axis=(0, 2)))


def _prior_gradient(z: Array, settings: FitSettings) -> Array | float:
    if settings.prior == 0.0 or len(z) == 1:
        return 0.0
    grad = 2.0 * settings.prior * z
    grad[0] = 0.0
    return grad


def _losses(data: Supervision, network: Network, kappa: Array, steps_ahead: Array, length: int, rows: slice) -> Array:
    """Mean squared error (edges, n) of every unrolled policy on the given rows."""
    with np.errstate(over="ignore", invalid="ignore"):
        policies = unroll(kappa, data.base.astype(np.float64), length)
        theta = policies[steps_ahead, np.arange(len(data.base))[:, None]].astype(np.float32)
        error = network.forward(theta, data.states[:, :, rows]) - data.actions[:, :, rows]
        return np.asarray(np.einsum("enra,enra->en", error, error) / error.shape[2])


class _Batches:
    """Slices of the rows in turn; datasets are in random order, so a slice is a random minibatch."""

    def __init__(self, rows: int, size: int, rng: np.random.Generator) -> None:
        self.slices = [slice(i, i + size) for i in range(0, max(rows - size + 1, 1), size)]
        self.rng = rng
        self.order: list[int] = []

    def next(self) -> slice:
        if not self.order:
            self.order = self.rng.permutation(len(self.slices)).tolist()
        return self.slices[self.order.pop()]
