"""Stage II: fit κ by behavioral cloning through the unrolled polynomial (paper, section 4.2, algorithm 1).

The loss is the paper's: the sum over training indices of the mean squared error between the actions of the unrolled
policy and those of the teacher, minimized by Adam with an annealed rate on minibatches of 512 per index until it
stagnates. Ours is how the fit stays finite when κ is unrolled over forty indices:

- κ is written as identity + z / scale, where scale is the number of unrolled steps. A step of Adam at the paper's
  rate then moves the *last* policy, not κ, by about that rate.
- Gradients are clipped per template.
- An edge whose loss runs away goes back to its best iterate at half the rate. The best iterate is returned.
- A polynomial of degree m > 1 starts from the best one of degree m − 1, which it contains. Started at the identity,
  higher powers run away before they help, and the fit ends worse than that of a lower degree.

`dibs-plus` adds two weak priors. They decide what the data leave open: how a policy changes between two training
indices. One pulls κ_1 towards 1 (`prior`), so that policies move evenly. The other pulls κ_0 towards 0 (`movement`),
so that as little moves as the data allow. It can leave out the biases of the first layer, which must move when a task
moves in its input space. `dibs.templates.select` chooses between them, and estimates between training indices
(`dibs.templates.bridges`), on training indices alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from dibs.envs import Array
from dibs.errors import DibsError
from dibs.policies.adam import Adam
from dibs.policies.network import Network
from dibs.progress import Reporter
from dibs.settings import STRICT, Count, Natural, Positive, Share, Weight
from dibs.simulation import Rows
from dibs.templates.objective import CHECKED, Objective, Prior, Supervision
from dibs.templates.refine import refine

__all__ = ["CHECKED", "Fit", "FitSettings", "Objective", "Prior", "Supervision", "fit"]


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
    """Steps between two checks of the loss on the first rows of the data."""
    patience: Count = 2
    """Checks without progress after which an edge's rate is halved."""
    progress: Share = 0.02
    """Relative decrease of the loss that counts as progress."""
    least_rate: Positive = 2e-3
    """An edge whose rate falls below this has stagnated."""
    max_steps: Natural = 20_000
    """Maximum number of steps, for every degree up to m; a fit usually stagnates long before."""
    clip: Positive = 10.0
    """Largest gradient norm per template."""
    prior: Weight = 0.0
    """Weight of the prior towards κ_1 = 1 (and higher κ_r = 0): 0 is the paper's objective."""
    movement: Weight = 0.0
    """Weight of the prior towards κ_0 = 0: 0 is the paper's objective."""
    free_biases: bool = False
    """Leave the first layer's biases out of the movement prior."""
    motion: bool = False
    """`dibs-plus`: move the edges whose motion holds, instead of fitting them."""
    motion_rollouts: Count = 200
    """`dibs-plus`: rollouts of every edge at every training index that check its motion."""
    priors: bool = True
    """`dibs-plus`: offer weak priors to the choice per edge; it replaces the two weights above."""
    bridges: bool = True
    """`dibs-plus`: offer supervision between training indices to the choice per edge."""
    affine: bool = True
    """`dibs-plus`: offer affine maps to the choice per edge."""
    space: Literal["actions", "weights"] = "actions"
    """What is fitted: the teachers' actions (behavioral cloning), or their weights (a diagnosis)."""
    refine: Natural = 0
    """Iterations of L-BFGS after Adam, per edge and start (`dibs.templates.refine`): 0 is the paper's fit."""
    restarts: Natural = 0
    """Further starts of L-BFGS per edge: by continuation from small to large index, then from noise."""
    predict: bool = True
    """Predict success at every index, from fits without one training index each and rollouts on training tasks."""
    samples: Count = 500_000
    """Maximum number of rows of a dataset that are held in memory per edge and index."""


@dataclass(frozen=True, eq=False)
class Fit:
    """The result of a fit."""

    kappa: Array  # (degree + 1, edges, size)
    per_index: Array  # (edges, n): the paper's loss by training index, without priors, on the first rows; NaN: no data
    steps: int
    curve: list[list[float]]  # per check: step, then the minimized loss of each edge

    @property
    def loss(self) -> Array:
        """The paper's loss (edges,)."""
        return np.asarray(np.nansum(self.per_index, axis=1))

    def metrics(self, edges: Sequence[str]) -> dict[str, Any]:
        """Return what the `.json` next to a template says about the fit."""
        loss, per_index = (dict(zip(edges, values, strict=True)) for values in (self.loss, self.per_index))
        return {"edges": loss, "per_index": per_index, "steps": self.steps, "curve": self.curve}

    def rows(self, edges: Sequence[str]) -> list[dict[str, Any]]:
        """Return the curve as rows."""
        return [
            {"step": int(step), "edge": edge, "loss": loss}
            for step, *losses in self.curve
            for edge, loss in zip(edges, losses, strict=True)
        ]


def fit(
    data: Supervision,
    network: Network,
    settings: FitSettings,
    rng: np.random.Generator,
    progress: Reporter | None = None,
    priors: Sequence[Prior] | None = None,
) -> Fit:
    """Fit one template per edge, all edges in one array program; `priors` replaces those of the settings."""
    if priors is None:
        priors = [(settings.prior, settings.movement, settings.free_biases)] * len(data.base)
    batches = _Batches(data.states.shape[2], rng)
    curve: list[list[float]] = []
    z: Array = np.zeros((0, *data.base.shape))
    for degree in range(min(settings.degree, 1), settings.degree + 1):
        objective = Objective(data, network, degree, priors)
        start = np.zeros_like(objective.start)
        start[: len(z)] = z  # a polynomial contains those of lower degree
        search, before = _Annealed(start, settings), int(curve[-1][0]) if curve else 0
        for step in range(settings.max_steps + 1):
            if step % settings.check_every == 0 or step == settings.max_steps:
                total = objective.value(search.z)
                if not curve and not np.isfinite(total).all():
                    raise DibsError("the loss is not finite before the first step: a dataset or base policy is damaged")
                if step > 0 or not curve:
                    curve.append([float(before + step), *map(float, total)])
                search.check(total)
                if progress is not None and step % (10 * settings.check_every) == 0:
                    left = f"loss {search.best.sum():.5f}, {search.active.sum()} edges active"
                    losses = {f"loss/edge {e + 1}": float(loss) for e, loss in enumerate(total)}
                    progress(
                        f"degree {degree}, step {before + step}: {left}",
                        step / max(settings.max_steps, 1),
                        before + step,
                        losses,
                    )
                if not search.active.any() or step == settings.max_steps:
                    break
            active = np.flatnonzero(search.active)
            # Far from the minimum a rough gradient is enough; its noise falls as the rate does.
            growth = settings.rate / search.rate[active].max()
            batch = min(settings.batch, int(settings.first_batch * growth))
            search.step(active, objective.gradient(search.z, active, batches.next(batch)))
        z = search.best_z
        if settings.refine:
            z = refine(objective, z, settings.refine, settings.restarts, rng)
    kappa = objective.kappa(z)
    per_index = np.where(data.present, objective.per_index(kappa), np.nan)
    checks = np.array(curve)[1:, 1:]  # after the first step
    lost = len(checks) > 0 and not np.isfinite(checks).any(axis=0).all()  # an edge diverged and never recovered
    if lost or not np.isfinite(kappa).all() or not np.isfinite(per_index[data.present]).all():
        raise DibsError(
            f"the fit diverged (degree {settings.degree}, {objective.length} unrolled steps); "
            "use a smaller rate (`rate`) or a lower degree (`degree`)"
        )
    return Fit(kappa, per_index, int(curve[-1][0]), curve)


class _Annealed:
    """Adam with a rate per edge that halves when the edge's loss stagnates, and the best iterate of each edge."""

    def __init__(self, z: Array, settings: FitSettings) -> None:
        edges = z.shape[1]
        self.settings, self.z, self.best_z, self.adam = settings, z, z.copy(), Adam(z.shape, (1, edges, 1))
        self.rate, self.active = np.full(edges, settings.rate), np.ones(edges, dtype=bool)
        self.best, self.marked = np.full((2, edges), np.inf)
        self.stale = np.zeros(edges, dtype=int)

    def check(self, loss: Array) -> None:
        """Given the loss (edges,), keep the best iterates, halve rates, and stop edges that have stagnated."""
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
        self.adam.reset(np.s_[:, anneal])
        active &= self.rate >= s.least_rate

    def step(self, edges: Rows, gradient: Array) -> None:
        """Move the given edges along a gradient (degree + 1, edges, size), clipped per edge."""
        norm = np.sqrt(np.einsum("rep,rep->e", gradient, gradient))
        gradient = gradient * np.minimum(1.0, self.settings.clip / np.maximum(norm, 1e-30))[:, None]
        gradient[:, ~np.isfinite(norm)] = 0.0
        self.z[:, edges] -= self.adam.step(gradient, self.rate[edges][:, None], np.s_[:, edges])


class _Batches:
    """Slices of the rows in turn; datasets are in random order, so a slice is a random minibatch."""

    def __init__(self, rows: int, rng: np.random.Generator) -> None:
        self.rows, self.size, self.rng = rows, 0, rng
        self.order: list[slice] = []

    def next(self, size: int) -> slice:
        if not self.order or size != self.size:
            self.size = size
            # Rows that do not fill a slice are left out, at random at the end or at the beginning.
            count = max(self.rows // self.size, 1)
            first = int(self.rng.integers(2)) * max(self.rows - count * self.size, 0)
            starts = first + self.size * self.rng.permutation(count)
            self.order = [slice(int(at), int(at) + self.size) for at in starts]
        return self.order.pop()
