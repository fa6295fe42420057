"""The actor in torch: forward passes that agree with `dibs.policies.network`, and a module that trains.

Parameter vectors have the layout documented there: for each layer in turn its weights, row-major
(inputs × outputs), then its biases. A torch `Linear` keeps the transpose.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor, nn

from dibs.envs import Array
from dibs.errors import DibsError
from dibs.policies.network import Network

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}


def layers(network: Network, theta: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Views (weights (*batch, in, out), biases (*batch, 1, out)) into flat vectors theta (*batch, size)."""
    if theta.shape[-1] != network.size:
        raise DibsError(f"parameters: expected {network.size} per network, found shape {tuple(theta.shape)}")
    views, at = [], 0
    for a, b in zip(network.sizes[:-1], network.sizes[1:], strict=True):
        weights = theta[..., at : at + a * b].unflatten(-1, (a, b))
        views.append((weights, theta[..., None, at + a * b : at + (a + 1) * b]))
        at += (a + 1) * b
    return views


def trunk(network: Network, theta: Tensor, x: Tensor) -> Tensor:
    """Features h(x) (*batch, n, last hidden) of inputs x (*batch, n, inputs)."""
    activate = torch.tanh if network.activation == "tanh" else torch.relu
    for weights, biases in layers(network, theta)[:-1]:
        x = activate(x @ weights + biases)
    return x


def forward(network: Network, theta: Tensor, x: Tensor) -> Tensor:
    """Actions (*batch, n, outputs) in [-1, 1] of inputs x (*batch, n, inputs)."""
    weights, biases = layers(network, theta)[-1]
    return torch.tanh(trunk(network, theta, x) @ weights + biases)


class Actor(nn.Module):
    """A `Network` as a module: actions = tanh(head(trunk(x)))."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        hidden: list[nn.Module] = []
        for a, b in zip(network.sizes[:-2], network.sizes[1:-1], strict=True):
            hidden += [nn.Linear(a, b), ACTIVATIONS[network.activation]()]
        self.trunk = nn.Sequential(*hidden)
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
    pieces = [p.detach().t().reshape(-1) for p in parameters(layers)]
    return torch.cat(pieces).cpu().numpy()


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
