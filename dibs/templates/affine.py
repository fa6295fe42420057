"""Affine templates: π_{i+1}(x) = B π_i(A x + a) + b before the output's tanh (docs/method.md).

Here x is a scaled observation. An edge has n² + n + m² + m numbers instead of two per weight. Written as matrices on
(x, 1) and (output, 1), the policy
of index i is Hⁱ ∘ π_0 ∘ Gⁱ. Both maps fold into the base network's first and last layer, so it is a network again, and
any index takes the time of a matrix power.

`fit_affine` clones the teachers through the unrolled maps by L-BFGS, in coordinates in which a unit moves the last
policy by about a unit. The loss has local minima. So each edge starts from the identity and from noise, at all training
indices at once and by continuation from the nearest to the farthest, and the best start is polished.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from dibs.envs import Array
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.settings import STRICT, Count, Natural, Weight
from dibs.simulation import Bools, Rows
from dibs.templates.alignment import power
from dibs.templates.guards import EdgeRecord
from dibs.templates.objective import CHECKED, Supervision
from dibs.templates.refine import lbfgs
from dibs.templates.template import Networks, spelled

Form = Literal["task", "shift", "diagonal", "full"]
LARGEST = 1e4  # entries of a map beyond which a fit counts as diverged
ROWS = 256  # states per training index of the last fit; starts use a quarter of them
SHORT = 60  # iterations of L-BFGS from a start
SPREAD = 0.5  # standard deviation of starts from noise


@dataclass(frozen=True)
class AffineSettings:
    """Settings of `dibs-affine`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    form: Form = "full"
    """What is free: `shift` (a and b), `diagonal` (scales as well), or `full` (A and B); `task`: nothing, a is how the
    training tasks move."""
    prior: Weight = 1e-4
    """Weight of the squared distance of A, B and b from the identity, in units of the farthest training index."""
    iterations: Count = 100
    """Maximum number of iterations of L-BFGS per edge, from the best of all starts."""
    restarts: Natural = 1
    """Further starts per edge, from noise, besides the identity."""
    predict: bool = True
    """Predict success at every index, from fits without one training index each and rollouts on training tasks."""
    samples: Count = 20_000
    """Maximum number of rows of a dataset that are held in memory per edge and index."""


@dataclass(frozen=True, eq=False)
class Maps:
    """The maps of a step of all edges, and how well they fit."""

    inputs: Array  # (edges, n + 1, n + 1): G, of scaled observations
    outputs: Array  # (edges, m + 1, m + 1): H, of outputs before the tanh
    per_index: Array  # (edges, indices): mean squared error of actions, on the first rows; NaN: no data

    @property
    def loss(self) -> Array:
        """The loss (edges,)."""
        return np.asarray(np.nansum(self.per_index, axis=1))


def unroll_affine(network: Network, base: Array, inputs: Array, outputs: Array) -> Array:
    """Return the actors (..., size) of bases (..., size) between two maps, already raised to the index's power."""
    found = np.array(np.broadcast_to(base, (*inputs.shape[:-2], network.size)), dtype=np.float64)
    layers = network.layers(found)
    (first, first_bias), (last, last_bias) = layers[0], layers[-1]
    first_bias += inputs[..., None, :-1, -1] @ first
    first[...] = np.swapaxes(inputs[..., :-1, :-1], -1, -2) @ first
    turn = np.swapaxes(outputs[..., :-1, :-1], -1, -2)
    last[...] = last @ turn
    last_bias[...] = last_bias @ turn + outputs[..., None, :-1, -1]
    return found


# --- the fit ---------------------------------------------------------------------------------------------


def fit_affine(
    data: Supervision,
    network: Network,
    settings: AffineSettings,
    rng: np.random.Generator,
    forms: Sequence[Form] | None = None,
    drift: Sequence[Array | None] | None = None,
) -> Maps:
    """Fit the maps of every edge to all columns of `data`; `forms` replaces that of the settings, edge by edge.

    `drift` is how the scaled task of each edge moves per index (inputs,), which is what the form `task` needs.
    """
    inputs, outputs, per_index = [], [], []
    for e in range(len(data.base)):
        loss = AffineLoss.of(data, network, e, settings.form if forms is None else forms[e], settings.prior)
        moved = None if drift is None else drift[e]
        if moved is not None:
            loss = replace(loss, start=-moved)
        z = _fit_edge(loss, settings, rng) if loss.size else np.zeros(0)
        g, h = loss.maps(z)
        inputs.append(g)
        outputs.append(h)
        per_index.append(np.where(data.present[e], loss.per_index(z), np.nan))
    return Maps(np.stack(inputs), np.stack(outputs), np.stack(per_index))


def _fit_edge(loss: AffineLoss, settings: AffineSettings, rng: np.random.Generator) -> Array:
    """Return the coordinates (size,) with the lowest loss that was found."""
    few, more, short = loss.first(ROWS // 4), loss.first(ROWS), min(SHORT, settings.iterations)
    trials: list[Array] = []
    for restart in range(settings.restarts + 1):
        start = SPREAD * rng.standard_normal(loss.size) if restart else np.zeros(loss.size)
        trials += [lbfgs(few.value_and_gradient, start, short), _continued(few, start, short)]
    best = min(trials, key=lambda trial: few.value_and_gradient(trial)[0])
    polished = lbfgs(more.value_and_gradient, best, settings.iterations)
    return min([np.zeros(loss.size), polished], key=lambda trial: more.value_and_gradient(trial)[0])


def _continued(loss: AffineLoss, z: Array, iterations: int) -> Array:
    """Fit the nearest training index, then the two nearest, and so on."""
    stops = np.unique(loss.ahead[loss.present & (loss.ahead > 0)])
    for stop in stops:
        near = loss.on(loss.present & (loss.ahead <= stop))
        z = lbfgs(near.value_and_gradient, z, max(iterations // len(stops), min(iterations, 10)))
    return z


@dataclass(frozen=True, eq=False)
class AffineLoss:
    """The loss of cloning one edge and its gradient, in coordinates z (size,) that are 0 at the identity."""

    network: Network
    base: Array  # (size,)
    states: Array  # (n, rows, inputs)
    actions: Array  # (n, rows, outputs)
    present: Bools  # (n,)
    ahead: Rows  # (n,): steps from the base
    free: Bools  # (entries of G and H above their last rows,)
    pulled: Bools  # (size,): coordinates that the prior pulls
    prior: float
    start: Any = 0.0  # (inputs,): a at z = 0

    @classmethod
    def of(cls, data: Supervision, network: Network, e: int, form: Form, prior: float) -> AffineLoss:
        """Return the loss of an edge on the first rows of its data."""
        if form not in get_args(Form):
            raise ValueError(f"form: expected one of {get_args(Form)}, found {form!r}")
        parts = []
        for k in (network.inputs, network.outputs):
            linear = {"diagonal": np.eye(k), "full": np.ones((k, k))}.get(form, np.zeros((k, k)))
            shift = np.full((k, 1), float(form != "task"))
            parts.append(np.concatenate([linear, shift], axis=1).ravel() > 0)
        free = np.concatenate(parts)
        shifts = np.zeros((network.inputs, network.inputs + 1), dtype=bool)
        shifts[:, -1] = True  # tasks move in the input space
        pulled = ~np.concatenate([shifts.ravel(), np.zeros(len(parts[1]), dtype=bool)])[free]
        states, actions = (array[e, :, :CHECKED].astype(np.float64) for array in (data.states, data.actions))
        ahead = np.maximum(data.indices - data.base_index[e], 0)
        own = data.base[e].astype(np.float64), states, actions, data.present[e], ahead
        return cls(network, *own, free, pulled, prior)

    @property
    def size(self) -> int:
        return int(self.free.sum())

    def first(self, rows: int) -> AffineLoss:
        """Return the loss on the first rows only."""
        return replace(self, states=self.states[:, :rows], actions=self.actions[:, :rows])

    def on(self, present: Bools) -> AffineLoss:
        """Return the loss on some of the indices."""
        return replace(self, present=present)

    def maps(self, z: Array) -> tuple[Array, Array]:
        """Return G and H."""
        steps = np.zeros(len(self.free))
        steps[self.free] = z / max(int(self.ahead.max()), 1)
        n, m = self.network.inputs, self.network.outputs
        g, h = np.eye(n + 1), np.eye(m + 1)
        g[:-1, -1] = self.start
        g[:-1] += steps[: n * (n + 1)].reshape(n, n + 1)
        h[:-1] += steps[n * (n + 1) :].reshape(m, m + 1)
        return g, h

    def per_index(self, z: Array) -> Array:
        """Return the mean squared error (n,) of every index, infinite where a map runs away."""
        with np.errstate(over="ignore", invalid="ignore"):
            g, h = (_powers(step, self.ahead)[self.ahead] for step in self.maps(z))
            theta = unroll_affine(self.network, self.base, g, h)
            error = self.network.forward(theta, self.states) - self.actions
        found = np.einsum("nra,nra->n", error, error) / error.shape[1]
        return np.where(_sane(g, h), found, np.inf)

    def value_and_gradient(self, z: Array) -> tuple[float, Array]:
        """Return the minimized loss and its gradient (size,)."""
        used = np.flatnonzero(self.present)
        ahead, states, actions = self.ahead[used], self.states[used], self.actions[used]
        with np.errstate(over="ignore", invalid="ignore"):
            g, h = self.maps(z)
            forth, turn = _powers(g, ahead), _powers(h, ahead)
            if not _sane(forth, turn).all():
                return float("inf"), np.zeros(self.size)
            theta = unroll_affine(self.network, self.base, forth[ahead], turn[ahead])
            loss, gradient = self.network.forward_backward(theta, states, actions)
        own, moved = self.network.layers(self.base), self.network.layers(gradient)
        (first, _), (last, last_bias) = own[0], own[-1]
        (d_first, d_first_bias), (d_last, d_last_bias) = moved[0], moved[-1]
        d_forth, d_turn = np.zeros((len(used), *g.shape)), np.zeros((len(used), *h.shape))
        d_forth[:, :-1, :-1] = first @ np.swapaxes(d_first, -1, -2)
        d_forth[:, :-1, -1] = (d_first_bias @ first.T)[:, 0]
        d_turn[:, :-1, :-1] = np.swapaxes(d_last, -1, -2) @ last + np.swapaxes(d_last_bias, -1, -2) * last_bias
        d_turn[:, :-1, -1] = d_last_bias[:, 0]
        steps = [_powers_gradient(g, forth, ahead, d_forth)[:-1], _powers_gradient(h, turn, ahead, d_turn)[:-1]]
        slope = np.concatenate([step.ravel() for step in steps])[self.free] / max(int(self.ahead.max()), 1)
        pull = np.where(self.pulled, z, 0.0)
        return float(loss.sum() + self.prior * (pull @ pull)), slope + 2.0 * self.prior * pull


def _sane(forth: Array, turn: Array) -> Bools:
    """Whether maps (n, k, k) stay within bounds; a tanh network may not show in its loss that they do not."""
    return np.asarray((np.abs(forth).max(axis=(-1, -2)) < LARGEST) & (np.abs(turn).max(axis=(-1, -2)) < LARGEST))


def _powers(matrix: Array, ahead: Rows) -> Array:
    """Return the powers 0 … max(ahead) of a matrix."""
    found = np.empty((int(ahead.max(initial=0)) + 1, *matrix.shape))
    found[0] = np.eye(len(matrix))
    for step in range(1, len(found)):
        found[step] = matrix @ found[step - 1]
    return found


def _powers_gradient(matrix: Array, powers: Array, ahead: Rows, gradients: Array) -> Array:
    """Return the gradient with respect to the matrix, given those (n, k, k) with respect to its powers `ahead`."""
    at = np.zeros(powers.shape)
    np.add.at(at, ahead, gradients)
    for step in range(len(at) - 2, 0, -1):
        at[step] += matrix.T @ at[step + 1]
    return np.asarray(np.einsum("sik,sjk->ij", at[1:], powers[:-1]))


# --- the template ----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Affine(Networks):
    """One pair of maps and one base policy per edge."""

    kind: ClassVar[str] = "affine"
    train: tuple[int, ...]
    edges: tuple[str, ...]
    network: Network
    scaling: Scaling
    inputs: Array  # (edges, n + 1, n + 1)
    outputs: Array  # (edges, m + 1, m + 1)
    base: Array  # (edges, size)
    base_index: Rows  # (edges,)
    records: Mapping[str, EdgeRecord]

    @staticmethod
    def shapes(network: Network, edges: int) -> dict[str, tuple[int | None, ...]]:
        """Return the shapes of its own tensors."""
        n, m = network.inputs + 1, network.outputs + 1
        return {"inputs": (edges, n, n), "outputs": (edges, m, m)}

    def unrolled(self, indices: Rows, edges: Rows) -> Array:
        """Return the actors (n, size) of n pairs of an index and a position of an edge."""
        ahead = np.maximum(indices - self.base_index[edges], 0)
        pairs = list(zip(edges.tolist(), ahead.tolist(), strict=True))
        forth, turn = (np.stack([power(maps[e], i) for e, i in pairs]) for maps in (self.inputs, self.outputs))
        return unroll_affine(self.network, self.base[edges], forth, turn)

    def describe(self, edge: str) -> str:
        """Say what is known of one edge's maps."""
        e = self.edges.index(edge)
        parts = []
        for name, step in (("inputs", self.inputs[e]), ("outputs", self.outputs[e])):
            shift = np.abs(step[:-1, -1]).max()
            linear = np.abs(step[:-1, :-1] - np.eye(len(step) - 1)).max()
            parts.append(f"{name} move by up to {shift:.3g} and stretch or turn by up to {linear:.1%} per index")
        return (
            f"affine maps around the teacher of index {self.base_index[e]}: scaled {parts[0]}, {parts[1]}; "
            f"fitted to training indices {spelled(self.train)}, trust it between them"
        )
