"""The actor as a flat vector: its layout, batches, gradients, and scaling folded into its weights."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch

from dibs.errors import DibsError
from dibs.policies.network import Network
from dibs.policies.torch import forward, linear

SHAPES = [
    Network(2, (8,), 2),
    Network(3, (5, 4), 2, "relu"),
    Network(5, (6, 6, 3), 4),
    Network(2, (), 3),
]


def by_hand(network: Network, theta: np.ndarray, x: np.ndarray) -> list[float]:
    """One forward pass with one parameter vector and one input, as the module's docstring says, in plain Python."""
    values, at = [float(v) for v in x], 0
    sizes = [network.inputs, *network.hidden, network.outputs]
    for layer, (a, b) in enumerate(pairwise(sizes)):
        weights = theta[at : at + a * b]  # row-major, inputs × outputs
        biases = theta[at + a * b : at + a * b + b]
        at += a * b + b
        sums = [float(biases[o]) + sum(values[i] * float(weights[i * b + o]) for i in range(a)) for o in range(b)]
        last = layer == len(sizes) - 2
        values = [math.tanh(s) if last or network.activation == "tanh" else max(s, 0.0) for s in sums]
    assert at == len(theta)
    return values


@pytest.mark.parametrize("network", SHAPES)
def test_the_layout_is_the_documented_one(network):
    rng = np.random.default_rng(0)
    theta = rng.standard_normal(network.size)
    x = rng.standard_normal((7, network.inputs))
    expected = [by_hand(network, theta, row) for row in x]
    np.testing.assert_allclose(network.forward(theta, x), expected, rtol=1e-12, atol=1e-12)


def test_the_size_counts_weights_and_biases():
    assert Network(2, (8,), 2).size == 2 * 8 + 8 + 8 * 2 + 2
    assert Network(5, (128, 128), 4).size == 5 * 128 + 128 + 128 * 128 + 128 + 128 * 4 + 4


@pytest.mark.parametrize("network", SHAPES)
@pytest.mark.parametrize("batch", [(3,), (2, 4), (2, 1, 3)])
def test_a_batch_is_a_loop_of_single_networks(network, batch):
    rng = np.random.default_rng(1)
    theta = network.initial(rng, batch)
    x = rng.standard_normal((*batch, 9, network.inputs)).astype(np.float32)
    target = rng.standard_normal((*batch, 9, network.outputs)).astype(np.float32)
    actions = network.forward(theta, x)
    features = network.trunk(theta, x)
    loss, grad = network.forward_backward(theta, x, target)
    assert actions.shape == (*batch, 9, network.outputs)
    assert (loss.shape, grad.shape) == (batch, (*batch, network.size))
    for at in np.ndindex(batch):
        np.testing.assert_allclose(actions[at], network.forward(theta[at], x[at]), atol=1e-6)
        np.testing.assert_allclose(features[at], network.trunk(theta[at], x[at]), atol=1e-6)
        single_loss, single_grad = network.forward_backward(theta[at], x[at], target[at])
        np.testing.assert_allclose(loss[at], single_loss, rtol=1e-5)
        np.testing.assert_allclose(grad[at], single_grad, atol=1e-5)


def test_one_network_serves_many_inputs_and_one_input_many_networks():
    network = SHAPES[0]
    rng = np.random.default_rng(2)
    theta = network.initial(rng, (4,))
    x = rng.standard_normal((6, 2)).astype(np.float32)
    np.testing.assert_allclose(network.forward(theta, x)[2], network.forward(theta[2], x), atol=1e-6)


@pytest.mark.parametrize("network", SHAPES)
def test_gradient_against_finite_differences(network):
    rng = np.random.default_rng(3)
    theta = rng.standard_normal((2, network.size)) * 0.7
    x = rng.standard_normal((2, 11, network.inputs))
    target = rng.uniform(-1, 1, (2, 11, network.outputs))
    loss, grad = network.forward_backward(theta, x, target)
    naive = ((network.forward(theta, x) - target) ** 2).sum(axis=-1).mean(axis=-1)
    np.testing.assert_allclose(loss, naive, rtol=1e-12)
    step = 1e-6
    for p in range(network.size):
        up, down = theta.copy(), theta.copy()
        up[:, p] += step
        down[:, p] -= step
        slope = (network.forward_backward(up, x, target)[0] - network.forward_backward(down, x, target)[0]) / (2 * step)
        np.testing.assert_allclose(grad[:, p], slope, rtol=2e-5, atol=1e-8)


def test_neither_pass_changes_what_it_is_given():
    network = SHAPES[1]
    rng = np.random.default_rng(4)
    theta, x = network.initial(rng), rng.standard_normal((5, 3)).astype(np.float32)
    target = np.zeros((5, 2), dtype=np.float32)
    before = theta.copy(), x.copy()
    network.forward(theta, x)
    network.forward_backward(theta, x, target)
    assert np.array_equal(theta, before[0]) and np.array_equal(x, before[1]) and not target.any()


@pytest.mark.parametrize("network", SHAPES)
def test_single_precision_stays_single(network):
    rng = np.random.default_rng(5)
    theta = network.initial(rng, (2,))
    x = rng.standard_normal((2, 5, network.inputs)).astype(np.float32)
    target = np.zeros((2, 5, network.outputs), dtype=np.float32)
    loss, grad = network.forward_backward(theta, x, target)
    kinds = {a.dtype for a in (theta, network.forward(theta, x), network.trunk(theta, x), loss, grad)}
    assert kinds == {np.dtype(np.float32)}


def test_actions_are_bounded_whatever_the_parameters():
    network = SHAPES[0]
    theta = np.full(network.size, 1e6, dtype=np.float32)
    actions = network.forward(theta, np.array([[1e3, -1e3], [0.0, 0.0]], dtype=np.float32))
    assert np.isfinite(actions).all() and np.abs(actions).max() <= 1.0


@pytest.mark.parametrize("network", SHAPES)
def test_fold_equals_scaling_first(network):
    rng = np.random.default_rng(6)
    edges, candidates = 3, 4
    theta = rng.standard_normal((edges, candidates, network.size))
    center, half = rng.uniform(-20, 20, (edges, network.inputs)), rng.uniform(0.5, 10, (edges, network.inputs))
    states = center[:, None, None] + half[:, None, None] * rng.uniform(-1, 1, (edges, candidates, 6, network.inputs))
    scaled = network.forward(theta, (states - center[:, None, None]) / half[:, None, None])
    folded = network.fold(theta, center[:, None], half[:, None])
    np.testing.assert_allclose(network.forward(folded, states), scaled, atol=1e-11)
    one = network.fold(theta[1, 2], center[1], half[1])
    np.testing.assert_allclose(one, folded[1, 2], rtol=1e-12)
    assert not np.shares_memory(folded, theta)


def test_folding_in_single_precision_costs_little_far_from_the_origin():
    network = Network(2, (8,), 2)
    rng = np.random.default_rng(7)
    theta = network.initial(rng)
    center, half = np.array([40.0, 36.0], np.float32), np.array([12.5, 5.0], np.float32)
    states = (center + half * rng.uniform(-1, 1, (500, 2))).astype(np.float32)
    error = network.forward(network.fold(theta, center, half), states) - network.forward(
        theta, (states - center) / half
    )
    assert np.abs(error).max() < 1e-5


def test_hidden_layers_read_from_a_file_are_the_same_network():
    assert Network(2, [8, 4], 2) == Network(2, (8, 4), 2) and hash(Network(2, [8], 2)) == hash(Network(2, (8,), 2))


@pytest.mark.parametrize("network", SHAPES)
def test_torch_and_numpy_agree(network):
    rng = np.random.default_rng(11)
    theta, x = network.initial(rng, (3,)), rng.standard_normal((3, 7, network.inputs)).astype(np.float32)
    as_torch = [torch.from_numpy(a) for a in (theta, x)]
    np.testing.assert_allclose(linear(network, *as_torch).numpy(), network.linear(theta, x), atol=1e-5)
    np.testing.assert_allclose(forward(network, *as_torch).numpy(), network.forward(theta, x), atol=1e-6)


def test_initial_weights_are_never_zero_and_differ_within_a_batch():
    network = Network(2, (8,), 2)
    theta = network.initial(np.random.default_rng(8), (5,))
    assert theta.dtype == np.float32 and np.all(theta != 0.0)
    assert len({row.tobytes() for row in theta}) == 5
    assert np.array_equal(theta, network.initial(np.random.default_rng(8), (5,)))
    # At zero a tanh network has f(θ + δ) = f(θ − δ) in every first-order direction; here it has not.
    x = np.ones((1, 2), dtype=np.float32)
    delta = 0.1 * np.random.default_rng(9).standard_normal(network.size).astype(np.float32)
    assert np.abs(network.forward(theta[0] + delta, x) - network.forward(theta[0] - delta, x)).max() > 1e-3


def test_initial_weights_scale_with_the_fan_in():
    network = Network(400, (50,), 2)
    theta = network.initial(np.random.default_rng(10), gain=2.0)
    weights, biases = network.layers(theta)[0]
    assert weights.std() == pytest.approx(2.0 / 20.0, rel=0.02)
    assert biases.std() == pytest.approx(0.2, rel=0.3)


@pytest.mark.parametrize("extra", [-1, 1])
def test_a_vector_of_the_wrong_length_is_named(extra):
    network = Network(2, (8,), 2)
    wrong = np.zeros((3, network.size + extra))
    with pytest.raises(
        DibsError, match=rf"expected {network.size} per network, found shape \(3, {network.size + extra}\)"
    ):
        network.forward(wrong, np.zeros((3, 1, 2)))
