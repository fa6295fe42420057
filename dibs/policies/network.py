"""The actor as one flat parameter vector: what κ acts on (paper, section 3.2 and appendix E).

Layout of the vector: for each layer in turn its weights, row-major (inputs × outputs), then its biases. All
functions take a batch of parameter vectors at once: theta (*batch, size) with inputs (*batch, n, inputs).
Hidden layers use the network's activation, the output is a tanh, so actions lie in [-1, 1].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dibs.envs import Array
from dibs.errors import DibsError


@dataclass(frozen=True)
class Network:
    """A multilayer perceptron's shape; its weights live in flat vectors outside."""

    inputs: int
    hidden: tuple[int, ...]
    outputs: int
    activation: str = "tanh"

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.inputs, *self.hidden, self.outputs)

    @property
    def size(self) -> int:
        """Number of parameters: the length of the flat vector."""
        return sum((a + 1) * b for a, b in zip(self.sizes[:-1], self.sizes[1:], strict=True))

    def layers(self, theta: Array) -> list[tuple[Array, Array]]:
        """Views (weights (*batch, in, out), biases (*batch, 1, out)) into the flat vectors."""
        if theta.shape[-1] != self.size:
            raise DibsError(f"parameters: expected {self.size} per network, found shape {theta.shape}")
        layers, at = [], 0
        for a, b in zip(self.sizes[:-1], self.sizes[1:], strict=True):
            weights = theta[..., at : at + a * b].reshape(*theta.shape[:-1], a, b)
            biases = theta[..., None, at + a * b : at + (a + 1) * b]
            layers.append((weights, biases))
            at += (a + 1) * b
        return layers

    def trunk(self, theta: Array, x: Array) -> Array:
        """Features h(x) (*batch, n, last hidden) that the action and confidence heads share."""
        for weights, biases in self.layers(theta)[:-1]:
            x = np.matmul(x, weights)
            x += biases
            x = self._activate(x)
        return x

    def forward(self, theta: Array, x: Array) -> Array:
        """Actions (*batch, n, outputs) in [-1, 1]."""
        weights, biases = self.layers(theta)[-1]
        out = np.matmul(self.trunk(theta, x), weights)
        out += biases
        return np.tanh(out, out=out)

    def forward_backward(self, theta: Array, x: Array, target: Array) -> tuple[Array, Array]:
        """Mean squared error ‖π(x) − target‖² per network (*batch,) and its gradient (*batch, size)."""
        layers = self.layers(theta)
        inputs = [x]
        for weights, biases in layers[:-1]:
            x = np.matmul(x, weights)
            x += biases
            x = self._activate(x)
            inputs.append(x)
        out = np.matmul(x, layers[-1][0])
        out += layers[-1][1]
        np.tanh(out, out=out)
        error = out - target
        n = error.shape[-2]
        loss = np.einsum("...no,...no->...", error, error) / n
        np.multiply(out, out, out=out)
        np.subtract(1.0, out, out=out)  # the slope of tanh
        out *= error
        out *= 2.0 / n
        delta = out
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
        weights, biases = self.layers(theta)[0]
        scaled = weights / half[..., :, None]
        n = self.inputs * self.sizes[1]
        folded[..., :n] = scaled.reshape(*theta.shape[:-1], n)
        folded[..., n : n + self.sizes[1]] = (biases - np.matmul(center[..., None, :], scaled))[..., 0, :]
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
