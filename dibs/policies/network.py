"""The actor as one flat parameter vector: what κ acts on (paper, section 3.2 and appendix E).

Layout of the vector: for each layer in turn its weights, row-major (inputs × outputs), then its biases. All
functions take a batch of parameter vectors at once: theta (*batch, size) with inputs (*batch, n, inputs).
Hidden layers use the network's activation, the output is a tanh, so actions lie in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from dibs.envs import Array
from dibs.errors import DibsError
from dibs.families import Tasks


@dataclass(frozen=True)
class Network:
    """A multilayer perceptron's shape; its weights live in flat vectors outside."""

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    activation: str = "tanh"

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(self.hidden))  # a file has a list

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.inputs, *self.hidden, self.outputs)

    @property
    def size(self) -> int:
        """Number of parameters: the length of the flat vector."""
        return sum((a + 1) * b for a, b in pairwise(self.sizes))

    def layers(self, theta: Any) -> list[tuple[Any, Any]]:
        """Views (weights (*batch, in, out), biases (*batch, 1, out)) into the flat vectors, arrays or torch tensors."""
        if theta.shape[-1] != self.size:
            raise DibsError(f"parameters: expected {self.size} per network, found shape {tuple(theta.shape)}")
        layers, at = [], 0
        for a, b in pairwise(self.sizes):
            weights = theta[..., at : at + a * b].reshape(*theta.shape[:-1], a, b)
            layers.append((weights, theta[..., None, at + a * b : at + (a + 1) * b]))
            at += (a + 1) * b
        return layers

    def trunk(self, theta: Array, x: Array) -> Array:
        """Features h(x) (*batch, n, last hidden) that the action and confidence heads share."""
        for layer in self.layers(theta)[:-1]:
            x = self._activate(_affine(x, *layer))
        return x

    def linear(self, theta: Array, x: Array) -> Array:
        """Outputs (*batch, n, outputs) without the tanh."""
        return _affine(self.trunk(theta, x), *self.layers(theta)[-1])

    def forward(self, theta: Array, x: Array) -> Array:
        """Actions (*batch, n, outputs) in [-1, 1]."""
        out = self.linear(theta, x)
        return np.tanh(out, out=out)

    def forward_backward(self, theta: Array, x: Array, target: Array) -> tuple[Array, Array]:
        """Mean squared error ‖π(x) − target‖² per network (*batch,) and its gradient (*batch, size)."""
        layers = self.layers(theta)
        inputs = [x]
        for layer in layers[:-1]:
            inputs.append(self._activate(_affine(inputs[-1], *layer)))
        out = _affine(inputs[-1], *layers[-1])
        np.tanh(out, out=out)
        error = out - target
        n = error.shape[-2]
        loss = np.einsum("...no,...no->...", error, error) / n
        np.multiply(out, out, out=out)
        delta = np.subtract(1.0, out, out=out)  # the slope of tanh
        delta *= error
        delta *= 2.0 / n
        pieces: list[Array] = []
        for (weights, _), layer_input in zip(reversed(layers), reversed(inputs), strict=True):
            # Sums over rows as matrix products: BLAS does them faster than a strided reduction.
            pieces.append(np.matmul(np.ones(n, dtype=delta.dtype), delta))
            grad = np.matmul(np.swapaxes(layer_input, -1, -2), delta)
            pieces.append(grad.reshape(*grad.shape[:-2], -1))
            if layer_input is not inputs[0]:
                delta = np.matmul(delta, np.swapaxes(weights, -1, -2))
                delta *= self._slope(layer_input)
        return loss, np.concatenate(pieces[::-1], axis=-1)

    def fold(self, theta: Array, center: Array, half: Array) -> Array:
        """Parameters that act on raw states as `theta` acts on (states − center) / half."""
        folded = np.array(theta, copy=True)
        weights, biases = self.layers(folded)[0]
        weights /= half[..., :, None]
        biases -= np.matmul(center[..., None, :], weights)
        return folded

    def initial(self, rng: np.random.Generator, batch: tuple[int, ...] = (), gain: float = 1.0) -> Array:
        """Random parameters, float32: never zero, where a tanh network has no gradient along ±δ."""
        theta = np.zeros((*batch, self.size), dtype=np.float32)
        for weights, biases in self.layers(theta):
            std = gain / np.sqrt(weights.shape[-2])
            weights[...] = rng.standard_normal(weights.shape, dtype=np.float32) * np.float32(std)
            biases[...] = rng.standard_normal(biases.shape, dtype=np.float32) * np.float32(0.1 * gain)
        return theta

    def _activate(self, x: Array) -> Array:
        return np.tanh(x, out=x) if self.activation == "tanh" else np.maximum(x, 0.0, out=x)

    def _slope(self, activated: Array) -> Array:
        """Derivative of the activation, from its output."""
        if self.activation == "relu":
            return (activated > 0.0).astype(activated.dtype)
        slope = activated * activated
        return np.subtract(1.0, slope, out=slope)


def network_of(tasks: Tasks, hidden: Sequence[int] = (), inputs: int | None = None) -> Network:
    """Return the shape of the actors of some tasks; with other hidden layers or another number of inputs if given."""
    environment, model = tasks.environment, tasks.network
    sizes = tuple(hidden or model.hidden)
    return Network(inputs or environment.observation_dim, sizes, environment.action_dim, model.activation)


def _affine(x: Array, weights: Array, biases: Array) -> Array:
    out = np.matmul(x, weights)
    out += biases
    return out
