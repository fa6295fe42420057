"""The weight-space fit against a template that is known, a line of numpy, and scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import least_squares

from dibs.templates.polynomial import identity, unroll
from dibs.templates.weights import fit_weights

AHEAD = np.array([[0, 5, 10, 15], [0, 5, 10, 15]])


def moved(degree: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    base = rng.normal(size=(2, 7))
    return identity(degree, base.shape) + 0.02 * rng.normal(size=(degree + 1, 2, 7)), base


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_a_template_is_found_again(degree):
    kappa, base = moved(degree, np.random.default_rng(degree))
    policies = unroll(kappa, base, 20)
    targets = np.moveaxis(policies[AHEAD[0]], 0, 1)
    found = fit_weights(targets, AHEAD, np.ones(AHEAD.shape, bool), base, degree)
    assert np.allclose(unroll(found, base, 20), policies, atol=1e-5)


def test_degree_0_is_the_regression_through_the_base():
    rng = np.random.default_rng(3)
    base, targets = rng.normal(size=(2, 7)), rng.normal(size=(2, 4, 7))
    found = fit_weights(targets, AHEAD, np.ones(AHEAD.shape, bool), base, 0)
    steps = AHEAD[0].astype(float)
    slopes = np.einsum("n,enp->ep", steps, targets - base[:, None]) / np.sum(steps**2)
    assert np.allclose(found[0], slopes, atol=1e-8)


def test_noisy_weights_as_scipy_fits_them():
    rng = np.random.default_rng(4)
    kappa, base = moved(1, rng)
    targets = np.moveaxis(unroll(kappa, base, 20)[AHEAD[0]], 0, 1) + 0.05 * rng.normal(size=(2, 4, 7))
    found = fit_weights(targets, AHEAD, np.ones(AHEAD.shape, bool), base, 1)
    for e, p in [(0, 0), (1, 6)]:

        def error(k: np.ndarray, e: int = e, p: int = p) -> np.ndarray:
            return unroll(k[:, None], base[e, p : p + 1], 15)[AHEAD[0], 0] - targets[e, :, p]

        best = least_squares(error, [0.0, 1.0], x_scale=[1 / 15, 1 / 15])
        ours = np.sum(error(found[:, e, p]) ** 2)
        assert ours <= 2.0 * best.cost * (1 + 1e-4) + 1e-12


def test_absent_targets_count_for_nothing():
    kappa, base = moved(1, np.random.default_rng(5))
    targets = np.moveaxis(unroll(kappa, base, 20)[AHEAD[0]], 0, 1)
    targets[0, 2] = 1e3
    present = np.ones(AHEAD.shape, bool)
    present[0, 2] = False
    found = fit_weights(targets, AHEAD, present, base, 1)
    assert np.allclose(unroll(found, base, 15)[15], unroll(kappa, base, 15)[15], atol=1e-5)
