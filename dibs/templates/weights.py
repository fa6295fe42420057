"""The template fitted to the teachers' weights instead of their actions: a diagnosis, not the paper's method.

It shows what limits a template. If it fails at training indices too, no κ of this degree passes near the teachers:
the limit is the template class, or the teachers' drift. If it succeeds where behavioral cloning does not, the limit
is the fit. Every parameter is a curve of its own with degree + 1 unknowns, so the least squares are solved for all
parameters of all edges at once, by Levenberg's method.
"""

from __future__ import annotations

import numpy as np

from dibs.envs import Array
from dibs.errors import DibsError
from dibs.policies.network import Network
from dibs.simulation import Rows
from dibs.templates.fit import Fit, FitSettings, Objective, Supervision
from dibs.templates.polynomial import apply, identity, slope

ITERATIONS = 200
RIDGE = 1e-3
LARGEST = 1e6  # damping at which a parameter counts as converged


def fit_teachers(data: Supervision, actors: Array, network: Network, settings: FitSettings) -> Fit:
    """Fit the template to the actors (edges, n, size) of all training indices; the reported loss is that on actions."""
    objective = Objective(data, network, settings.degree, [(0.0, 0.0, False)] * len(data.base))
    kappa = fit_weights(actors.astype(np.float64), objective.ahead, data.present, data.base, settings.degree, RIDGE)
    per_index = objective.per_index(kappa)
    if not np.isfinite(per_index[data.present]).all():
        raise DibsError(f"no template of degree {settings.degree} near the teachers' weights stays finite")
    return Fit(kappa, np.where(data.present, per_index, np.nan), ITERATIONS, [])


def fit_weights(targets: Array, ahead: Rows, present: Array, base: Array, degree: int, ridge: float = 0.0) -> Array:
    """Return the κ (degree + 1, edges, size) that minimizes Σ ‖π_{ahead} − target‖² over targets (edges, n, size).

    `ahead` (edges, n) counts the unrolled steps from the edge's base (edges, size) to each target. `ridge` weighs
    the squared distance of the unrolled κ from the identity: without it, κ_1 = −1 passes through any two policies
    that are an even number of steps apart.
    """
    scale = float(max(ahead.max(), 1))
    kappa = start = identity(degree, base.shape)
    damping = np.full(base.shape, 1e-3)
    error, jacobian = _residuals(kappa, targets, ahead, present, base)
    loss = np.sum(error**2, axis=0)  # (edges, size), the ridge's part included
    for _ in range(ITERATIONS):
        normal = np.einsum("rnep,snep->eprs", jacobian, jacobian) / scale**2 + ridge * np.eye(degree + 1)
        slant = np.einsum("rnep,nep->epr", jacobian, error) / scale
        slant += ridge * scale * np.moveaxis(kappa - start, 0, -1)
        diagonal = np.einsum("eprr->epr", normal)
        damped = normal + (damping[..., None] * (diagonal + 1e-9))[..., None] * np.eye(degree + 1)
        step = np.linalg.solve(damped, slant[..., None])[..., 0]
        trial = kappa - np.moveaxis(step, -1, 0) / scale
        with np.errstate(over="ignore", invalid="ignore"):
            new_error, new_jacobian = _residuals(trial, targets, ahead, present, base)
            new_loss = np.sum(new_error**2, axis=0) + ridge * np.sum((scale * (trial - start)) ** 2, axis=0)
        better = new_loss < loss  # never true of a NaN
        kappa, error = np.where(better, trial, kappa), np.where(better, new_error, error)
        jacobian = np.where(better, new_jacobian, jacobian)
        settled = better & (loss - new_loss <= 1e-9 * loss) | (damping >= LARGEST)
        loss = np.where(better, new_loss, loss)
        damping = np.clip(np.where(better, damping / 3.0, damping * 4.0), 1e-9, LARGEST)
        if settled.all():
            break
    return kappa


def _residuals(kappa: Array, targets: Array, ahead: Rows, present: Array, base: Array) -> tuple[Array, Array]:
    """Return errors (n, edges, size) at the targets and their derivatives (degree + 1, n, edges, size) by κ."""
    policy: Array = base.astype(np.float64)
    derivative = np.zeros(kappa.shape)
    error = np.zeros((targets.shape[1], *base.shape))
    jacobian = np.zeros((len(kappa), *error.shape))
    for i in range(int(ahead.max()) + 1):
        hit, n = np.nonzero((ahead == i) & present)
        error[n, hit] = policy[hit] - targets[hit, n]
        jacobian[:, n, hit] = derivative[:, hit]
        powers = policy[None] ** np.arange(len(kappa))[:, None, None]
        derivative = powers + slope(kappa, policy) * derivative
        policy = apply(kappa, policy)
    return error, jacobian
