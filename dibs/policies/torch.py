"""The actor in torch: forward passes that agree with `dibs.policies.network`, and a module that trains.

Parameter vectors have the layout documented there: for each layer in turn its weights, row-major
(inputs × outputs), then its biases. A torch `Linear` keeps the transpose.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from dibs.envs import Array
from dibs.errors import DibsError
from dibs.policies.network import Network

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def linear(network: Network, theta: Tensor, x: Tensor) -> Tensor:
    """Outputs (*batch, n, outputs) without the tanh, of parameters (*batch, size) and inputs (*batch, n, inputs)."""
    *hidden, (weights, biases) = network.layers(theta)
    activate = torch.tanh if network.activation == "tanh" else torch.relu
    for inner, offsets in hidden:
        x = activate(x @ inner + offsets)
    return x @ weights + biases


def forward(network: Network, theta: Tensor, x: Tensor) -> Tensor:
    """Actions (*batch, n, outputs) in [-1, 1]."""
    return torch.tanh(linear(network, theta, x))


class Actor(nn.Module):
    """A `Network` as a module: actions = tanh(head(trunk(x)))."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        activation = ACTIVATIONS[network.activation]
        layers = [(nn.Linear(a, b), activation()) for a, b in pairwise(network.sizes[:-1])]
        self.trunk = nn.Sequential(*(module for layer in layers for module in layer))
        self.head = nn.Linear(network.sizes[-2], network.outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.head(self.trunk(x)))

    def load_flat(self, theta: Array) -> None:
        """Take over the parameters of a flat vector (size,)."""
        load_flat(linears(self), theta)

    def flat(self) -> Array:
        """The parameters as a flat vector (size,)."""
        return flat(linears(self))


def linears(*modules: nn.Module) -> list[nn.Linear]:
    """The linear layers of the given modules, in order."""
    return [layer for module in modules for layer in module.modules() if isinstance(layer, nn.Linear)]


def parameters(layers: Iterable[nn.Linear]) -> list[Tensor]:
    """Weights and biases in the order in which they stand in the flat vector."""
    return [p for layer in layers for p in (layer.weight, layer.bias)]


def flat(layers: Iterable[nn.Linear]) -> Array:
    """The parameters of linear layers as a flat vector (size,)."""
    return torch.cat([p.detach().t().reshape(-1) for p in parameters(layers)]).cpu().numpy()


def split_flat(layers: Iterable[nn.Linear], theta: Array) -> list[Tensor]:
    """The pieces of a flat vector in the shapes (and order) of `parameters`."""
    wanted = parameters(layers)
    size = sum(p.numel() for p in wanted)
    if np.shape(theta) != (size,):
        raise DibsError(f"parameters: expected a vector of {size}, found shape {np.shape(theta)}")
    pieces = torch.from_numpy(np.array(theta)).split([p.numel() for p in wanted])
    return [piece.reshape(p.shape[::-1]).t().to(p.dtype).contiguous() for piece, p in zip(pieces, wanted, strict=True)]


def load_flat(layers: Iterable[nn.Linear], theta: Array) -> None:
    """Let linear layers take over the parameters of a flat vector (size,)."""
    chosen = list(layers)
    with torch.no_grad():
        for p, piece in zip(parameters(chosen), split_flat(chosen, theta), strict=True):
            p.copy_(piece)
