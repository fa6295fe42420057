"""A fit that does not get stuck: L-BFGS after Adam, from several starts. `dibs` leaves it out by default.

Adam stops where its minibatches no longer tell directions apart, often well above the minimum of the loss. `refine`
goes on from there with L-BFGS (SciPy) on a fixed set of rows, one edge at a time. An edge may also be started again:
once by *continuation*, from the identity and the first training index after the base to the last one, adding an index
at a time, and then from Adam's result plus noise. Each edge keeps what has the lowest loss, Adam's result included, so
refinement never makes the minimized loss worse.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dibs.envs import Array
from dibs.templates.objective import Objective

DIVERGED = 1e12  # value of iterates whose parameters run away; a line search backs off from it
ROWS = 512  # states per training index that L-BFGS fits
NOISE = 0.3  # standard deviation of a perturbed start, relative to the root mean square of Adam's z


def refine(objective: Objective, z: Array, iterations: int, restarts: int, rng: np.random.Generator) -> Array:
    """Return z (degree + 1, edges, size) whose loss is no edge's higher than before."""
    found = z.copy()
    for e in range(z.shape[1]):
        few, all_rows, start = objective.only(e, ROWS), objective.only(e), z[:, e : e + 1]
        trials = [start, minimize(few, start, iterations)]
        for restart in range(restarts):
            noise = NOISE * np.sqrt(np.mean(start**2)) * rng.standard_normal(start.shape)
            trials.append(minimize(few, start + noise, iterations) if restart else continued(few, iterations))
        found[:, e : e + 1] = min(trials, key=lambda trial: float(all_rows.value(trial)[0]))
    return found


def continued(one: Objective, iterations: int) -> Array:
    """Fit one edge to its nearest training index, then to the two nearest, and so on."""
    z = np.zeros_like(one.start)
    ahead, present = one.ahead[0], one.data.present[0]
    stops = np.unique(ahead[present & (ahead > 0)])
    for stop in stops:
        z = minimize(one.on((present & (ahead <= stop))[None]), z, max(iterations // len(stops), 1))
    return z


def minimize(one: Objective, z: Array, iterations: int) -> Array:
    """Return what L-BFGS makes of z (degree + 1, 1, size) in at most that many iterations."""

    def value_and_gradient(flat: Array) -> tuple[float, Array]:
        value, gradient = one.value_and_gradient(flat.reshape(z.shape))
        return float(value[0]), gradient.reshape(-1)

    return lbfgs(value_and_gradient, z.reshape(-1), iterations).reshape(z.shape)


def lbfgs(value_and_gradient: Callable[[Array], tuple[float, Array]], start: Array, iterations: int) -> Array:
    """Minimize a function of a flat vector by L-BFGS; where it is not finite, the line search backs off."""
    from scipy.optimize import minimize as scipy_minimize  # slow to import

    def finite(x: Array) -> tuple[float, Array]:
        value, gradient = value_and_gradient(x)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return DIVERGED, np.zeros_like(x)
        return value, gradient

    options = {"maxiter": iterations, "maxfun": 2 * iterations, "ftol": 1e-14, "gtol": 1e-9, "maxcor": 20}
    return np.asarray(scipy_minimize(finite, start, jac=True, method="L-BFGS-B", options=options).x)
