"""Stage II: fit κ by behavioural cloning through the unrolled polynomial (paper, section 4.2, algorithm 1).

The loss is the paper's: the sum over training indices of the mean squared error between the unrolled
policy's actions and the teacher's, minimised by Adam with an annealed rate on minibatches of 512 per index
until it stagnates. What is ours is how it stays finite when κ is unrolled over forty indices: κ is written as
identity + z / scale with scale the number of unrolled steps, so that a step of Adam at the paper's rate moves
the *last* policy, not κ, by about that rate; gradients are clipped per template; an edge whose loss runs away
goes back to its best iterate at half the rate; the best iterate is what is returned. A polynomial of degree
m > 1 starts from the best one of degree m − 1, which it contains: started at the identity, higher powers run away
before they are of use, and the fit ends worse than that of a lower degree.

`dibs-plus` adds two weak priors, which decide what no data says: how a policy travels between two training
indices. One pulls κ_1 towards 1 (settings.prior), so that policies move evenly; the other pulls the movement
κ_0 towards 0 (settings.movement), so that as little moves as the data allow, optionally but for the biases of
the first layer, which are what has to move when a task moves in its input space. `dibs.templates.select`
chooses between them, and guesses between training indices (`dibs.templates.bridges`), on training indices alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from dibs.envs import Array
from dibs.errors import DibsError
from dibs.policies.network import Network
from dibs.settings import STRICT, Count, Natural, Positive, Share, Weight
from dibs.templates.polynomial import identity, leap, travel, travel_gradient, unroll

Rows = npt.NDArray[np.intp]
LOOK = 2048  # rows per edge and index on which the loss is looked at
LARGEST = 50.0  # how much larger than the base's a template's parameters may grow


@dataclass(frozen=True)
class FitSettings:
    """Settings of the fit; rate and batch are the paper's."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    degree: Natural = 1
    """Degree m of the polynomial."""
    rate: Positive = 0.1
    """Adam's initial rate, in the rescaled coordinates."""
    batch: Count = 512
    """States per training index, edge and step."""
    first_batch: Count = 64
    """States per training index, edge and step at the initial rate; twice as many at half of it, up to `batch`."""
    check_every: Count = 50
    """Steps between two looks at the loss on the first rows of the data."""
    patience: Count = 2
    """Looks without progress after which an edge's rate is halved."""
    progress: Share = 0.02
    """Relative fall of the loss that counts as progress."""
    least_rate: Positive = 2e-3
    """An edge whose rate falls below this has stagnated."""
    max_steps: Natural = 3000
    """Most steps, for every degree up to m."""
    clip: Positive = 10.0
    """Largest gradient norm per template."""
    prior: Weight = 0.0
    """Weight of the prior towards κ_1 = 1 (and higher κ_r = 0): 0 is the paper's objective."""
    movement: Weight = 0.0
    """Weight of the prior towards κ_0 = 0: 0 is the paper's objective."""
    free_biases: bool = False
    """Leave the first layer's biases out of the movement prior."""
    select: bool = False
    """Choose priors and bridges per edge by leaving training indices out, instead of taking them as given."""
    space: Literal["actions", "weights"] = "actions"
    """What is fitted: the teachers' actions (behavioural cloning), or their weights, which is a diagnosis."""
    samples: Count = 20_000
    """Most rows of a dataset that are held in memory per edge and index."""


@dataclass(frozen=True, eq=False)
class Supervision:
    """The datasets of all training indices as arrays; states are scaled already."""

    indices: Array  # (n,) training indices
    states: Array  # (edges, n, rows, dim)
    actions: Array  # (edges, n, rows, m)
    present: Array  # (edges, n) bool: this teacher could label this edge
    base: Array  # (edges, size): the actor at the edge's base index
    base_index: npt.NDArray[Any]  # (edges,): where the edge's template starts, 0 but for branches that appear later


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted template."""

    kappa: Array  # (degree + 1, edges, size)
    loss: Array  # (edges,): the paper's loss at the best iterate, on the first rows of the data; no prior in it
    per_index: Array  # (edges, n): its terms
    steps: int
    seconds: float
    curve: list[list[float]]  # per look: step, then the loss of each edge


@dataclass(frozen=True, eq=False)
class Priors:
    """Weights of the two priors for every edge."""

    identity: Array  # (edges,): on κ_1 − 1 and higher powers
    movement: Array  # (edges, size): on κ_0

    @classmethod
    def uniform(cls, network: Network, edges: int, prior: float, movement: float, free_biases: bool) -> Priors:
        """The same weights for all edges."""
        weights = np.full(network.size, movement)
        if free_biases:
            first = network.inputs * network.sizes[1]
            weights[first : first + network.sizes[1]] = 0.0
        return cls(np.full(edges, prior), np.tile(weights, (edges, 1)))


def fit(
    data: Supervision,
    network: Network,
    settings: FitSettings,
    rng: np.random.Generator,
    progress: Callable[[str], None] | None = None,
    priors: Priors | None = None,
) -> Fit:
    """Fit one template per edge, all edges in one array program; `priors` overrules the settings' own."""
    began = time.perf_counter()
    if priors is None:
        priors = Priors.uniform(network, len(data.base), settings.prior, settings.movement, settings.free_biases)
    batches = _Batches(data.states.shape[2], rng)
    curve: list[list[float]] = []
    z: Array | None = None
    for degree in range(min(settings.degree, 1), settings.degree + 1):
        objective = Objective(data, network, replace(settings, degree=degree), priors)
        z = _minimise(objective, objective.embed(z), settings, batches, curve, progress)
    assert z is not None
    kappa = objective.kappa(z)
    per_index = objective.per_index(kappa)
    looks = np.array(curve)[1:, 1:]  # after the first step
    lost = len(looks) > 0 and not np.isfinite(looks).any(axis=0).all()  # an edge that was never sane again
    if lost or not np.isfinite(kappa).all() or not np.isfinite(per_index[data.present]).all():
        raise DibsError(
            f"the fit diverged (degree {settings.degree}, {objective.length} unrolled steps); "
            "use a smaller rate (templates.rate) or a lower degree (templates.degree)"
        )
    seconds = time.perf_counter() - began
    per_index = np.where(data.present, per_index, np.nan)
    return Fit(kappa, np.nansum(per_index, axis=1), per_index, int(curve[-1][0]), seconds, curve)


def _minimise(
    objective: Objective,
    start: Array,
    settings: FitSettings,
    batches: _Batches,
    curve: list[list[float]],
    progress: Callable[[str], None] | None,
) -> Array:
    """The best iterate of Adam from `start`; adds the looks at the loss to the curve, counting steps on."""
    search = _Annealed(start, settings)
    before = int(curve[-1][0]) if curve else 0
    for step in range(settings.max_steps + 1):
        if step % settings.check_every == 0 or step == settings.max_steps:
            total = objective.value(search.z)
            if not curve and not np.isfinite(total).all():
                raise DibsError("the loss is not finite before the first step: a dataset or base policy is damaged")
            if step > 0 or not curve:
                curve.append([float(before + step), *map(float, total)])
            search.look(total)
            if progress is not None and step % (10 * settings.check_every) == 0:
                told = f"step {before + step}: loss {search.best.sum():.5f}, {int(search.active.sum())} edges moving"
                progress(told if objective.degree <= 1 else f"degree {objective.degree}, {told}")
            if not search.active.any() or step == settings.max_steps:
                break
        moving = np.flatnonzero(search.active)
        # Far from the minimum a rough gradient will do; the noise falls with the rate.
        growth = settings.rate / search.rate[moving].max()
        batch = min(settings.batch, int(settings.first_batch * growth))
        search.step(moving, objective.gradient(search.z, moving, batches.next(batch)))
    return search.best_z


class Objective:
    """The behavioural-cloning loss and its gradient in the rescaled coordinates z (degree + 1, edges, size)."""

    def __init__(self, data: Supervision, network: Network, settings: FitSettings, priors: Priors) -> None:
        self.data, self.network, self.priors, self.degree = data, network, priors, settings.degree
        self.ahead = np.maximum(data.indices[None] - data.base_index[:, None], 0)  # (edges, n)
        self.length = int(self.ahead.max())
        # Policies that no data sees need not be held: a template of degree 1 leaps over them.
        stops = np.unique(np.append(self.ahead, 0)) if settings.degree == 1 else np.arange(self.length + 1)
        leaps, steps = np.unique(np.diff(stops), return_inverse=True)
        self.leaps, self.steps = leaps.tolist(), steps.tolist()
        self.stop = np.searchsorted(stops, self.ahead)  # (edges, n)
        self.base = data.base.astype(np.float64)
        self.start = identity(settings.degree, data.base.shape)
        # One unit of z moves the last policy's parameters by about one unit.
        size = np.maximum(np.abs(self.base).max(axis=-1, keepdims=True), 1.0)  # (edges, 1)
        powers = np.arange(settings.degree + 1)[:, None, None]
        self.scale = max(self.length, 1) * size**powers  # (degree + 1, edges, 1)

    def embed(self, lower: Array | None) -> Array:
        """The same template as the coordinates of a lower degree describe; without them the identity."""
        z = np.zeros_like(self.start)
        if lower is not None:
            z[: len(lower)] = lower
        return z

    def kappa(self, z: Array) -> Array:
        return np.asarray(self.start + z / self.scale)

    def per_index(self, kappa: Array) -> Array:
        """Mean squared error (edges, n) of every unrolled policy on the first rows, the same at every look."""
        held = slice(0, LOOK)
        with np.errstate(over="ignore", invalid="ignore"):
            policies = unroll(kappa, self.base, self.length)
            theta = policies[self.ahead, np.arange(len(self.base))[:, None]].astype(np.float32)
            error = self.network.forward(theta, self.data.states[:, :, held]) - self.data.actions[:, :, held]
            loss = np.einsum("enra,enra->en", error, error) / error.shape[2]
            # A tanh network hides parameters that run away: they saturate it, in between training indices
            # as well. Such an iterate counts as diverged, whatever its loss.
            largest = np.abs(policies).max(axis=(0, 2))
            sane = largest <= LARGEST * np.maximum(np.abs(self.base).max(axis=-1), 1.0)
            return np.where(sane[:, None], loss, np.inf)

    def value(self, z: Array) -> Array:
        """The minimised loss (edges,)."""
        loss = np.where(self.data.present, self.per_index(self.kappa(z)), 0.0).sum(axis=1)
        loss = loss + self.priors.identity * np.sum(z[1:] ** 2, axis=(0, 2))
        return np.asarray(loss + np.sum(self.priors.movement * z[0] ** 2, axis=1))

    def gradient(self, z: Array, edges: Rows, rows: slice) -> Array:
        """Gradient (degree + 1, chosen edges, size) on a minibatch."""
        every = len(edges) == len(self.base)  # basic slices spare a copy of the minibatch
        chosen = slice(None) if every else edges
        kappa, stop = self.kappa(z)[:, chosen], self.stop[chosen]
        column = np.arange(len(edges))[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            ways = [leap(kappa, length) for length in self.leaps]
            kappas = [leapt for leapt, _ in ways]
            policies = travel(kappas, self.steps, self.base[chosen])
            theta = policies[stop, column].astype(np.float32)  # (edges, n, size)
            _, grad = self.network.forward_backward(
                theta, self.data.states[chosen, :, rows], self.data.actions[chosen, :, rows]
            )
            at = np.zeros(policies.shape)
            # Only policy 0, the base, can be meant twice, and its gradient moves nothing.
            at[stop, column] = np.where(self.data.present[chosen][..., None], grad, 0.0)
            grad_z = np.zeros_like(kappa)
            for (_, back), grad in zip(ways, travel_gradient(kappas, self.steps, policies, at), strict=True):
                grad_z += back(grad)
            grad_z /= self.scale[:, chosen]
        grad_z[1:] += 2.0 * self.priors.identity[chosen][:, None] * z[1:, chosen]
        grad_z[0] += 2.0 * self.priors.movement[chosen] * z[0, chosen]
        return np.asarray(grad_z)


class _Annealed:
    """Adam with a rate per edge that halves when the edge's loss stagnates, and the best iterate of each."""

    def __init__(self, z: Array, settings: FitSettings) -> None:
        edges = z.shape[1]
        self.settings, self.z, self.best_z = settings, z, z.copy()
        self.first, self.second = np.zeros_like(z), np.zeros_like(z)
        self.count = np.zeros(edges)
        self.rate = np.full(edges, settings.rate)
        self.best, self.marked = np.full(edges, np.inf), np.full(edges, np.inf)
        self.stale = np.zeros(edges, dtype=int)
        self.active = np.ones(edges, dtype=bool)

    def look(self, loss: Array) -> None:
        """Take note of the loss (edges,): keep the best iterate, halve rates, stop edges that have stagnated."""
        s, active = self.settings, self.active
        better = active & (loss < self.best)  # never true of a NaN
        self.best[better] = loss[better]
        self.best_z[:, better] = self.z[:, better]
        moved = active & (self.best < (1.0 - s.progress) * self.marked)
        self.marked[moved] = self.best[moved]
        self.stale = np.where(moved, 0, self.stale + 1)
        runaway = ~(loss < 4.0 * self.best + 1e-3)
        anneal = active & ((self.stale >= s.patience) | runaway)
        self.rate[anneal] /= 2.0
        self.stale[anneal] = 0
        self.z[:, anneal] = self.best_z[:, anneal]
        self.first[:, anneal] = self.second[:, anneal] = 0.0
        self.count[anneal] = 0
        active &= self.rate >= s.least_rate

    def step(self, edges: Rows, grad: Array) -> None:
        """One step of the given edges along grad (degree + 1, edges, size), clipped per edge."""
        norm = np.sqrt(np.einsum("rep,rep->e", grad, grad))
        grad = grad * np.minimum(1.0, self.settings.clip / np.maximum(norm, 1e-30))[:, None]
        grad[:, ~np.isfinite(norm)] = 0.0
        self.count[edges] += 1
        count = self.count[edges][:, None]
        self.first[:, edges] = 0.9 * self.first[:, edges] + 0.1 * grad
        self.second[:, edges] = 0.999 * self.second[:, edges] + 0.001 * grad**2
        unbiased = self.first[:, edges] / (1.0 - 0.9**count)
        spread = np.sqrt(self.second[:, edges] / (1.0 - 0.999**count))
        self.z[:, edges] -= self.rate[edges][:, None] * unbiased / (spread + 1e-8)


class _Batches:
    """Slices of the rows in turn; datasets are in random order, so a slice is a random minibatch."""

    def __init__(self, rows: int, rng: np.random.Generator) -> None:
        self.rows, self.size, self.rng = rows, 0, rng
        self.order: list[slice] = []

    def next(self, size: int) -> slice:
        if not self.order or size != self.size:
            self.size = size
            # What does not fill a slice is left out, by chance at the end or at the beginning.
            count = max(self.rows // self.size, 1)
            first = int(self.rng.integers(2)) * max(self.rows - count * self.size, 0)
            starts = first + self.size * self.rng.permutation(count)
            self.order = [slice(int(at), int(at) + self.size) for at in starts]
        return self.order.pop()
