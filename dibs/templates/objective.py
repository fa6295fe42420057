"""What a fit minimizes: the loss of cloning through the unrolled polynomial (paper, section 4.2), and weak priors.

`dibs.templates.fit` minimizes it by Adam, as the paper does, and `dibs.templates.refine` goes on with L-BFGS.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dibs.envs import Array
from dibs.policies.network import Network
from dibs.simulation import Rows
from dibs.templates.polynomial import identity, leap, travel, travel_gradient, unit_scale, unroll

Prior = tuple[float, float, bool]
"""`prior`, `movement` and `free_biases` of the settings, for one edge."""
CHECKED = 2048  # rows per edge and index on which the loss is checked
LARGEST = 50.0  # how much larger than the base policy's the parameters of an unrolled policy may grow


@dataclass(frozen=True, eq=False)
class Supervision:
    """The datasets of all training indices as arrays; states are scaled observations."""

    indices: Array  # (n,) training indices
    states: Array  # (edges, n, rows, dim)
    actions: Array  # (edges, n, rows, m)
    present: Array  # (edges, n) bool: this teacher could label this edge
    base: Array  # (edges, size): the actor at the edge's base index
    base_index: Rows  # (edges,): where the edge's template starts; 0, unless its first teacher fails on it

    def take(self, edges: Rows) -> Supervision:
        """Return copies of the arrays of some edges."""
        names = ("states", "actions", "present", "base", "base_index")
        return replace(self, **{name: getattr(self, name)[edges] for name in names})

    def first(self, rows: int) -> Supervision:
        """Return views of the first rows of every dataset."""
        return replace(self, states=self.states[:, :, :rows], actions=self.actions[:, :, :rows])


class Objective:
    """The loss of behavioral cloning and its gradient in the rescaled coordinates z (degree + 1, edges, size)."""

    def __init__(self, data: Supervision, network: Network, degree: int, priors: Sequence[Prior]) -> None:
        self.data, self.network = data, network
        self.prior, movement, free = (np.array(column) for column in zip(*priors, strict=True))
        self.movement = np.repeat(movement[:, None], network.size, axis=1)  # (edges, size)
        network.layers(self.movement)[0][1][free] = 0.0  # the first layer's biases
        self.ahead = np.maximum(data.indices[None] - data.base_index[:, None], 0)  # (edges, n)
        self.length = int(self.ahead.max())
        # A template of degree 1 can leap over policies of indices without data.
        stops = np.unique(np.append(self.ahead, 0)) if degree == 1 else np.arange(self.length + 1)
        leaps, steps = np.unique(np.diff(stops), return_inverse=True)
        self.leaps, self.steps = leaps.tolist(), steps.tolist()
        self.stop = np.searchsorted(stops, self.ahead)  # (edges, n)
        self.base = data.base.astype(np.float64)
        self.start = identity(degree, data.base.shape)
        self.scale = unit_scale(degree, self.base, self.length)

    def kappa(self, z: Array) -> Array:
        return np.asarray(self.start + z / self.scale)

    def per_index(self, kappa: Array) -> Array:
        """Return the mean squared error (edges, n) of every unrolled policy on the first rows of its dataset."""
        with np.errstate(over="ignore", invalid="ignore"):
            policies = unroll(kappa, self.base, self.length)
            theta = policies[self.ahead, np.arange(len(self.base))[:, None]].astype(self.data.states.dtype)
            error = self.network.forward(theta, self.data.states[:, :, :CHECKED]) - self.data.actions[:, :, :CHECKED]
            loss = np.einsum("enra,enra->en", error, error) / error.shape[2]
            return np.where(self._sane(policies)[:, None], loss, np.inf)

    def value(self, z: Array) -> Array:
        """Return the minimized loss (edges,)."""
        loss = np.where(self.data.present, self.per_index(self.kappa(z)), 0.0).sum(axis=1)
        return np.asarray(loss + self._penalty(z))

    def gradient(self, z: Array, edges: Rows, rows: slice) -> Array:
        """Return the gradient (degree + 1, given edges, size) on a minibatch."""
        return self._backward(z, edges, rows)[1]

    def value_and_gradient(self, z: Array) -> tuple[Array, Array]:
        """Return the minimized loss (edges,) on all rows, infinite where parameters run away, and its gradient."""
        fitted, gradient = self._backward(z, np.arange(len(self.base)), slice(None))
        return fitted + self._penalty(z), gradient

    def only(self, e: int, rows: int = CHECKED) -> Objective:
        """Return the same loss of one edge on its first rows, in double precision."""
        one, edge = copy(self), slice(e, e + 1)
        data = self.data
        states, actions = (array[edge, :, :rows].astype(np.float64) for array in (data.states, data.actions))
        few = data.present[edge], data.base[edge], data.base_index[edge]
        one.data = Supervision(data.indices, states, actions, *few)
        for name in ("prior", "movement", "ahead", "stop", "base"):
            setattr(one, name, getattr(self, name)[edge])
        one.start, one.scale = self.start[:, edge], self.scale[:, edge]
        return one

    def on(self, present: Array) -> Objective:
        """Return the same loss on some of the datasets."""
        other = copy(self)
        other.data = replace(self.data, present=present)
        return other

    def _backward(self, z: Array, edges: Rows, rows: slice) -> tuple[Array, Array]:
        """Return the loss without priors (given edges,) and the gradient of all of it, on some rows."""
        chosen = slice(None) if len(edges) == len(self.base) else edges  # a slice avoids a copy of the minibatch
        kappa, stop = self.kappa(z)[:, chosen], self.stop[chosen]
        column = np.arange(len(edges))[:, None]
        with np.errstate(over="ignore", invalid="ignore"):
            ways = [leap(kappa, length) for length in self.leaps]
            kappas = [leapt for leapt, _ in ways]
            policies = travel(kappas, self.steps, self.base[chosen])
            states, actions = self.data.states[chosen, :, rows], self.data.actions[chosen, :, rows]
            theta = policies[stop, column].astype(states.dtype)  # (edges, n, size)
            loss, grad = self.network.forward_backward(theta, states, actions)
            loss = np.where(self.data.present[chosen], loss, 0.0).sum(axis=1)
            loss = np.where(self._sane(policies, chosen), loss, np.inf)
            at = np.zeros(policies.shape)
            # Only policy 0, the base, can occur twice, and its gradient has no effect.
            at[stop, column] = np.where(self.data.present[chosen][..., None], grad, 0.0)
            grad_z = np.zeros_like(kappa)
            for (_, back), grad in zip(ways, travel_gradient(kappas, self.steps, policies, at), strict=True):
                grad_z += back(grad)
            grad_z /= self.scale[:, chosen]
        grad_z[1:] += 2.0 * self.prior[chosen][:, None] * z[1:, chosen]
        grad_z[0] += 2.0 * self.movement[chosen] * z[0, chosen]
        return loss, np.asarray(grad_z)

    def _penalty(self, z: Array) -> Array:
        """Return what the priors add to the loss (edges,)."""
        return np.asarray(self.prior * np.sum(z[1:] ** 2, axis=(0, 2)) + np.sum(self.movement * z[0] ** 2, axis=1))

    def _sane(self, policies: Array, edges: Any = slice(None)) -> Array:
        """Whether the parameters of all policies (time, edges, size) stay within bounds, by edge.

        Parameters that run away saturate a tanh network, and the loss may not show it, least of all between training
        indices. Such an iterate counts as diverged, whatever its loss.
        """
        base = np.abs(self.base[edges]).max(axis=-1)
        return np.asarray(np.abs(policies).max(axis=(0, 2)) <= LARGEST * np.maximum(base, 1.0))
