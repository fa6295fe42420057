"""Unrolling the polynomial and its gradient: against autograd, closed forms and its own algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dibs.templates.polynomial import (
    apply,
    identity,
    leap,
    slope,
    travel,
    travel_gradient,
    unroll,
)

DEGREES = (0, 1, 2, 3)


def unroll_gradient(kappa: np.ndarray, policies: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Gradient of a loss with respect to κ, given those at every unrolled policy."""
    return travel_gradient([kappa], [0] * (len(policies) - 1), policies, gradients)[0]


def example(degree: int, batch: tuple[int, ...] = (2, 5), seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A κ near the identity and parameters to unroll from."""
    rng = np.random.default_rng(seed)
    kappa = identity(degree, batch) + 0.05 * rng.standard_normal((degree + 1, *batch))
    return kappa, rng.standard_normal(batch)


def torch_unroll(kappa: torch.Tensor, theta: torch.Tensor, steps: int) -> list[torch.Tensor]:
    """π_{i+1} = Σ_r κ_r ⊙ π_i^r, as it is printed; degree 0 means π_i + κ_0."""
    policies = [theta]
    for _ in range(steps):
        powers = [kappa[r] * policies[-1] ** r for r in range(len(kappa))]
        policies.append(sum(powers[1:], powers[0]) if len(kappa) > 1 else policies[-1] + kappa[0])
    return policies


@pytest.mark.parametrize("degree", DEGREES)
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_against_autograd(degree, steps):
    kappa, theta = example(degree)
    policies = unroll(kappa, theta, steps)
    variable = torch.tensor(kappa, requires_grad=True)
    expected = torch.stack(torch_unroll(variable, torch.tensor(theta), steps))
    np.testing.assert_allclose(policies, expected.detach().numpy(), rtol=1e-12)
    # Any loss will do: one whose gradient differs at every policy and parameter.
    weights = np.random.default_rng(1).standard_normal(policies.shape)
    loss = (torch.tensor(weights) * torch.sin(expected)).sum()
    expected_grad = torch.autograd.grad(loss, variable)[0].numpy() if steps else np.zeros_like(kappa)
    got = unroll_gradient(kappa, policies, weights * np.cos(policies))
    np.testing.assert_allclose(got, expected_grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("degree", DEGREES)
def test_the_gradient_at_one_policy_only(degree):
    """A loss at index 5 alone: what training at gap 5 with two indices sees."""
    kappa, theta = example(degree, (3,))
    policies = unroll(kappa, theta, 5)
    gradients = np.zeros_like(policies)
    gradients[5] = 1.0
    variable = torch.tensor(kappa, requires_grad=True)
    torch_unroll(variable, torch.tensor(theta), 5)[5].sum().backward()
    np.testing.assert_allclose(unroll_gradient(kappa, policies, gradients), variable.grad.numpy(), rtol=1e-10)


@pytest.mark.parametrize("steps", [0, 1, 5, 40])
def test_closed_form_of_degree_one(steps):
    """π_n = κ₁ⁿ π₀ + κ₀ (κ₁ⁿ − 1) / (κ₁ − 1)."""
    kappa, theta = example(1, (50,), seed=2)
    k0, k1 = kappa
    expected = k1**steps * theta + k0 * (k1**steps - 1.0) / (k1 - 1.0)
    np.testing.assert_allclose(unroll(kappa, theta, steps)[steps], expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("steps", [1, 5, 40])
def test_gradient_of_degree_one_in_closed_form(steps):
    """For κ₁ = 1: dπ_n/dκ₀ = n and dπ_n/dκ₁ = n π₀ + κ₀ n (n − 1) / 2."""
    theta = np.linspace(-2.0, 2.0, 9)
    kappa = identity(1, (9,))
    kappa[0] = np.linspace(0.1, -0.1, 9)
    policies = unroll(kappa, theta, steps)
    gradients = np.zeros_like(policies)
    gradients[-1] = 1.0
    grad = unroll_gradient(kappa, policies, gradients)
    np.testing.assert_allclose(grad[0], steps)
    np.testing.assert_allclose(grad[1], steps * theta + kappa[0] * steps * (steps - 1) / 2, rtol=1e-9)


@given(
    degree=st.sampled_from(DEGREES),
    first=st.integers(0, 12),
    second=st.integers(0, 12),
    seed=st.integers(0, 1000),
)
def test_unrolling_twice_is_unrolling_once(degree, first, second, seed):
    """UnrollPolicy(κ, UnrollPolicy(κ, π, Δ₁), Δ₂) = UnrollPolicy(κ, π, Δ₁ + Δ₂): gaps may be chained."""
    kappa, theta = example(degree, (4,), seed)
    with np.errstate(over="ignore", invalid="ignore"):
        there = unroll(kappa, theta, first)[first]
        chained = unroll(kappa, there, second)[second]
        at_once = unroll(kappa, theta, first + second)[first + second]
    np.testing.assert_array_equal(chained, at_once)


@given(degree=st.sampled_from(DEGREES), steps=st.integers(0, 50), seed=st.integers(0, 100))
def test_the_identity_moves_nothing(degree, steps, seed):
    theta = np.random.default_rng(seed).standard_normal((2, 3))
    assert np.array_equal(unroll(identity(degree, (2, 3)), theta, steps)[-1], theta)


def test_degree_zero_adds():
    policies = unroll(np.array([[0.5, -1.0]]), np.array([1.0, 2.0]), 3)
    assert policies.tolist() == [[1.0, 2.0], [1.5, 1.0], [2.0, 0.0], [2.5, -1.0]]


@pytest.mark.parametrize("degree", DEGREES)
def test_a_batch_is_a_loop(degree):
    kappa, theta = example(degree, (3, 4))
    together = unroll(kappa, theta, 6)
    for e in range(3):
        np.testing.assert_array_equal(together[:, e], unroll(kappa[:, e], theta[e], 6))


@pytest.mark.parametrize("degree", DEGREES)
def test_slope_is_the_derivative_of_one_step(degree):
    kappa, theta = example(degree)
    step = 1e-6
    numeric = (apply(kappa, theta + step) - apply(kappa, theta - step)) / (2 * step)
    np.testing.assert_allclose(slope(kappa, theta), numeric, rtol=1e-8, atol=1e-9)


def test_single_precision_parameters_are_unrolled_in_double():
    kappa, theta = example(2)
    assert unroll(kappa, theta.astype(np.float32), 3).dtype == np.float64


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_leap_is_so_many_steps_and_so_is_its_gradient(steps):
    rng = np.random.default_rng(steps)
    kappa = identity(1, (3, 4)) + 0.1 * rng.normal(size=(2, 3, 4))
    theta = rng.normal(size=(3, 4))
    leapt, back = leap(kappa, steps)
    every = unroll(kappa, theta, 4 * steps)
    assert np.allclose(unroll(leapt, theta, 4), every[::steps])
    seen = rng.normal(size=(5, 3, 4))
    at = np.zeros_like(every)
    at[::steps] = seen
    expected = unroll_gradient(kappa, every, at)
    assert np.allclose(back(unroll_gradient(leapt, every[::steps], seen)), expected)


def test_leaps_of_different_lengths_are_one_unrolling_and_so_is_their_gradient():
    rng = np.random.default_rng(0)
    kappa = identity(1, (3, 4)) + 0.1 * rng.normal(size=(2, 3, 4))
    theta = rng.normal(size=(3, 4))
    stops, lengths, steps = [0, 2, 5, 7, 8, 11], [1, 2, 3], [1, 2, 1, 0, 2]
    ways = [leap(kappa, length) for length in lengths]
    kappas = [leapt for leapt, _ in ways]
    every = unroll(kappa, theta, 11)
    seen = travel(kappas, steps, theta)
    assert np.allclose(seen, every[stops])
    at_stops = rng.normal(size=seen.shape)
    at = np.zeros_like(every)
    at[stops] = at_stops
    grads = travel_gradient(kappas, steps, seen, at_stops)
    total = sum(back(grad) for (_, back), grad in zip(ways, grads, strict=True))
    assert np.allclose(total, unroll_gradient(kappa, every, at))
