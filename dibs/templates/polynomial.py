"""The policy-evolution polynomial π_{i+1} = Σ_r κ_r ⊙ π_i^r and its unrolling (paper, section 3.2, appendix D).

κ is an array (degree + 1, *batch, size): its row r multiplies the r-th elementwise power of the parameters.
A template of degree 0 has only the additive row: π_{i+1} = π_i + κ_0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dibs.envs import Array
from dibs.errors import DibsError

STEPWISE = 1024  # steps up to which every policy on the way is computed; more of them in closed form
LONGEST = 100_000  # steps that a polynomial of degree 2 or more is unrolled, which has no closed form


def identity(degree: int, shape: tuple[int, ...]) -> Array:
    """Return the κ that leaves every policy unchanged."""
    kappa = np.zeros((degree + 1, *shape))
    kappa[1:2] = 1.0  # degree 0 has no such row
    return kappa


def unit_scale(degree: int, base: Array, steps: int) -> Array:
    """Return the scale (degree + 1, edges, 1) of coordinates z, where κ = identity + z / scale.

    A unit of z moves the policy `steps` from the base (edges, size) by about a unit.
    """
    size = np.maximum(np.abs(base).max(axis=-1, keepdims=True), 1.0)
    return max(steps, 1) * np.stack([size**power for power in range(degree + 1)])


def apply(kappa: Array, theta: Array) -> Array:
    """Take one step of the recursion, by Horner's rule."""
    if len(kappa) == 1:
        return theta + kappa[0]
    value = kappa[-1]
    for row in kappa[-2::-1]:
        value = value * theta + row
    return np.asarray(value)


def slope(kappa: Array, theta: Array) -> Array:
    """Return dπ_{i+1}/dπ_i, elementwise."""
    degree = len(kappa) - 1
    if degree == 0:
        return np.ones_like(theta)
    value = degree * kappa[-1]
    for r in range(degree - 1, 0, -1):
        value = value * theta + r * kappa[r]
    return np.asarray(np.broadcast_to(value, theta.shape))


def unroll(kappa: Array, theta: Array, steps: int) -> Array:
    """Return all policies (steps + 1, *batch, size) from `theta` on: UnrollPolicy(κ, π, Δ, m) for Δ = 0 … steps."""
    return travel([kappa], [0] * steps, theta)


def unroll_to(kappa: Array, theta: Array, steps: Sequence[int]) -> dict[int, Array]:
    """Return the policies (*batch, size) after each of the given numbers of steps; no others are kept in memory."""
    wanted = sorted(set(steps))
    far = [count for count in wanted if count > STEPWISE] if len(kappa) <= 2 else []
    if wanted and not far and wanted[-1] > LONGEST:
        raise DibsError(
            f"a polynomial of degree {len(kappa) - 1} has no closed form and is unrolled at most {LONGEST:,} steps, "
            f"found {wanted[-1]:,}; use degree 0 or 1, or another class of templates"
        )
    found, policy = {}, theta.astype(np.result_type(kappa, theta))
    for count in range((wanted[-1] if not far else STEPWISE) + 1 if wanted else 0):
        if count in wanted:
            found[count] = policy
        policy = apply(kappa, policy)
    for count in far:
        shift, factor = power(kappa, count)
        found[count] = factor * theta + shift
    return found


def power(kappa: Array, steps: int) -> Array:
    """Return the κ of degree 1 whose single step equals `steps` of the given κ of degree 0 or 1, by doubling."""
    one = np.stack([kappa[0], np.ones_like(kappa[0]) if len(kappa) == 1 else kappa[1]])
    total = np.stack([np.zeros_like(kappa[0]), np.ones_like(kappa[0])])
    while steps:
        if steps & 1:
            total = _after(one, total)
        one = _after(one, one)
        steps >>= 1
    return total


def _after(second: Array, first: Array) -> Array:
    """Return the κ of degree 1 that takes the step `first`, then `second`."""
    return np.stack([second[1] * first[0] + second[0], second[1] * first[1]])


def travel(kappas: Sequence[Array], steps: Sequence[int], theta: Array) -> Array:
    """Return all policies (steps + 1, *batch, size) from `theta` on, where step i is one of `kappas[steps[i]]`."""
    policies = np.empty((len(steps) + 1, *theta.shape), dtype=np.result_type(*kappas, theta))
    policies[0] = theta
    for i, which in enumerate(steps):
        policies[i + 1] = apply(kappas[which], policies[i])
    return policies


def travel_gradient(kappas: Sequence[Array], steps: Sequence[int], policies: Array, gradients: Array) -> list[Array]:
    """Return the gradients of a loss with respect to each of `kappas`, given those at every policy of `travel`."""
    carried = np.array(gradients[1:], dtype=np.float64)  # row i: the loss's total gradient at policy i + 1
    for i in range(len(carried) - 2, -1, -1):
        carried[i] += carried[i + 1] * slope(kappas[steps[i + 1]], policies[i + 1])
    total: list[Array] = []
    for which, kappa in enumerate(kappas):
        mine = np.flatnonzero(np.asarray(steps) == which)
        part, grad = carried[mine], np.empty(kappa.shape)
        for r in range(len(kappa)):
            grad[r] = part.sum(axis=0)
            if r + 1 < len(kappa):
                part *= policies[mine]
        total.append(grad)
    return total


def leap(kappa: Array, steps: int) -> tuple[Array, Callable[[Array], Array]]:
    """Return the κ of degree 1 whose single step equals `steps` of the given κ, and what maps its gradient back.

    Between training indices that are `steps` apart, a linear template can leap over the policies in between, for
    which there is no data. A single step is κ itself, for any degree.
    """
    if steps == 1:
        return kappa, lambda gradient: gradient
    shift, factor = kappa[0], kappa[1]
    power, rise = np.ones_like(factor), np.zeros_like(factor)  # factor^j and its derivative
    total, bend = np.zeros_like(factor), np.zeros_like(factor)  # 1 + … + factor^(j−1) and its derivative
    for _ in range(steps):
        bend = total + factor * bend
        total = factor * total + 1.0
        rise = power + factor * rise
        power = factor * power

    def back(gradient: Array) -> Array:
        return np.stack([gradient[0] * total, gradient[0] * shift * bend + gradient[1] * rise])

    return np.stack([shift * total, power]), back
