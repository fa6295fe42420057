"""The template fitted to the teachers' weights instead of their actions: a diagnosis, not the paper's method.

It tells what limits a template. If it fails at training indices too, no κ of this degree passes near the
teachers: the template class (or the teachers' wandering) is the limit. If it succeeds where behavioural cloning
does not, the fit is. Every parameter is a curve of its own with degree + 1 unknowns, so the least squares are
solved exactly, for all parameters of all edges at once, by Levenberg's method.
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from dibs.envs import Array
from dibs.errors import DibsError
from dibs.policies.network import Network
from dibs.templates.fit import Fit, FitSettings, Objective, Priors, Supervision
from dibs.templates.polynomial import apply, identity, slope

ITERATIONS = 200
RIDGE = 1e-3
LARGEST = 1e6  # damping at which a parameter has no better κ in reach


def fit_teachers(data: Supervision, actors: Array, network: Network, settings: FitSettings) -> Fit:
    """Fit the template to the actors (edges, n, size) of all training indices; its loss is still that on actions."""
    began = time.perf_counter()
    none = Priors.uniform(network, len(data.base), 0.0, 0.0, free_biases=False)
    objective = Objective(data, network, settings, none)
    kappa = fit_weights(actors.astype(np.float64), objective.ahead, data.present, data.base, settings.degree, RIDGE)
    per_index = objective.per_index(kappa)
    if not np.isfinite(per_index[data.present]).all():
        raise DibsError(f"no template of degree {settings.degree} near the teachers' weights stays finite")
    per_index = np.where(data.present, per_index, np.nan)
    return Fit(kappa, np.nansum(per_index, axis=1), per_index, ITERATIONS, time.perf_counter() - began, [])


def fit_weights(
    targets: Array, ahead: npt.NDArray[np.intp], present: Array, base: Array, degree: int, ridge: float = 0.0
) -> Array:
    """κ (degree + 1, edges, size) least in Σ ‖π_{ahead} − target‖² over the present targets (edges, n, size).

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
        kappa = np.where(better, trial, kappa)
        error = np.where(better, new_error, error)
        jacobian = np.where(better, new_jacobian, jacobian)
        settled = better & (loss - new_loss <= 1e-9 * loss) | (damping >= LARGEST)
        loss = np.where(better, new_loss, loss)
        damping = np.clip(np.where(better, damping / 3.0, damping * 4.0), 1e-9, LARGEST)
        if settled.all():
            break
    return kappa


def _residuals(
    kappa: Array, targets: Array, ahead: npt.NDArray[np.intp], present: Array, base: Array
) -> tuple[Array, Array]:
    """Errors (n, edges, size) at the targets and their derivatives (degree + 1, n, edges, size) by κ."""
    count = targets.shape[1]
    policy: Array = base.astype(np.float64)
    derivative = np.zeros(kappa.shape)
    error = np.zeros((count, *base.shape))
    jacobian = np.zeros((len(kappa), count, *base.shape))
    for i in range(int(ahead.max()) + 1):
        hit, n = np.nonzero((ahead == i) & present)
        error[n, hit] = policy[hit] - targets[hit, n]
        jacobian[:, n, hit] = derivative[:, hit]
        powers = policy[None] ** np.arange(len(kappa))[:, None, None]
        derivative = powers + slope(kappa, policy) * derivative
        policy = apply(kappa, policy)
    return error, jacobian
