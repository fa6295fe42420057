"""The NumPy Adam, compared with torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dibs.policies.adam import Adam


def gradients(shape: tuple[int, ...], steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(steps, *shape))


def by_torch(start: np.ndarray, grads: np.ndarray, rate: float) -> np.ndarray:
    variable = torch.tensor(start, requires_grad=True)
    optimizer = torch.optim.Adam([variable], lr=rate)
    for grad in grads:
        variable.grad = torch.tensor(grad)
        optimizer.step()
    return variable.detach().numpy()


@pytest.mark.parametrize("shape", [(7,), (2, 3, 4)])
def test_it_takes_the_steps_that_torch_takes(shape):
    grads, theta, adam = gradients(shape, 50), np.zeros(shape), Adam(shape)
    for grad in grads:
        theta = theta - adam.step(grad, 0.03)
    np.testing.assert_allclose(theta, by_torch(np.zeros(shape), grads, 0.03), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_rows_are_stepped_and_reset_separately(axis):
    """Row 0 takes every step, row 1 every second one, row 2 starts again half way."""
    shape, counts = (tuple(3 if d == axis else other for d in range(3)) for other in (4, 1))
    rates = np.array([0.1, 0.2, 0.3])
    grads, theta, adam = gradients(shape, 20), np.zeros(shape), Adam(shape, counts)
    for n, grad in enumerate(grads):
        rows = np.array([0, 1, 2]) if n % 2 else np.array([0, 2])
        if n == 10:
            adam.reset((*[slice(None)] * axis, np.array([2])))
        at = (*[slice(None)] * axis, rows)
        rate = rates[rows].reshape([len(rows) if d == axis else 1 for d in range(3)])
        theta[at] -= adam.step(grad[at], rate, at)

    def alone(row: int, own: np.ndarray) -> np.ndarray:
        start = np.zeros(own.shape[1:])
        return by_torch(start, own, float(rates[row]))

    row = [np.take(grads, r, axis=axis + 1) for r in range(3)]
    np.testing.assert_allclose(np.take(theta, 0, axis=axis), alone(0, row[0]), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(np.take(theta, 1, axis=axis), alone(1, row[1][1::2]), rtol=1e-9, atol=1e-12)
    twice = alone(2, row[2][:10]) + alone(2, row[2][10:])
    np.testing.assert_allclose(np.take(theta, 2, axis=axis), twice, rtol=1e-9, atol=1e-12)


def test_moments_are_double_precision_whatever_the_gradient():
    adam = Adam((3,))
    update = adam.step(np.array([1.0, -2.0, 0.0], dtype=np.float32), 0.5)
    assert adam.first.dtype == adam.second.dtype == update.dtype == np.float64
    np.testing.assert_allclose(update, [0.5, -0.5, 0.0], rtol=1e-6)  # the first step has the length of the rate


def test_after_a_reset_it_is_new():
    adam = Adam((3,))
    adam.step(np.ones(3), 0.1)
    adam.reset()
    assert not adam.first.any() and not adam.second.any() and not adam.count
