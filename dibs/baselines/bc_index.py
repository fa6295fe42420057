"""BC with the index: one network per edge that receives the scaled observation and the scaled index.

This is what anybody would try first. It is cloned from the datasets that DIBS's template is fitted to, edge by edge,
and its edge policies are composed along the guard's path like those of a template. It needs no rule of how policies
evolve: what happens between training indices is what the network makes of its input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dibs.baselines import bc
from dibs.baselines.flat import scaled_index
from dibs.baselines.indexed import IndexedActors, demonstrations
from dibs.envs import Array
from dibs.families import Tasks
from dibs.methods import Method, Model, Training
from dibs.policies.network import Network, network_of
from dibs.seeding import stream
from dibs.simulation.composed import Composed


def train(training: Training, settings: bc.Cloning) -> Model:
    """Clone one network per edge from the datasets of all training indices."""
    tasks, found = training.tasks, demonstrations(training, settings.samples)
    network = network_of(tasks, settings.hidden)
    receiving = replace(network, inputs=network.inputs + 1)
    index = scaled_index(found.data.indices, tasks.indices[-1])
    theta, losses = [], {}
    for e, name in enumerate(tasks.edge_names):
        rng = stream("baseline", "bc-index", tasks.name, training.split.key, training.seed, name)
        inputs, actions = rows_of_edge(found.data.states[e], found.data.actions[e], found.data.present[e], index)
        one, losses[name] = bc.clone(receiving, inputs, actions, settings, rng)
        theta.append(one)
        if training.progress is not None:
            training.progress(f"edge {name}: loss {min(losses[name]):.5f}", len(losses) / len(tasks.edge_names))
    tensors = {"theta": np.stack(theta)}
    actors = IndexedActors(tasks.indices, tasks.edge_names, network, found.scaling, found.records, tensors, weights)
    return actors.to_model(found.steps, losses)


def rows_of_edge(states: Array, actions: Array, present: Array, index: Array) -> tuple[Array, Array]:
    """Return inputs (rows, n + 1) and actions (rows, m) of one edge, from (indices, rows per index, …)."""
    there = np.flatnonzero(present)
    column = np.broadcast_to(index[there, None, None], (*states[there].shape[:2], 1))
    inputs = np.concatenate([states[there], column], axis=-1)
    return inputs.reshape(-1, inputs.shape[-1]), actions[there].reshape(-1, actions.shape[-1])


def weights(network: Network, tensors: Mapping[str, Array], index: Array) -> Array:
    """Return actors (n, edges, size) at scaled indices (n,).

    An input that is constant in an episode only moves the first layer's biases, so the index can be absorbed there.
    """
    theta = tensors["theta"]  # (edges, size): networks with one more input
    units, rows = network.sizes[1], network.inputs
    first, index_row, biases, rest = np.split(theta, np.cumsum([rows * units, units, units]), axis=-1)
    moved = biases + index[:, None, None] * index_row  # (n, edges, units)
    first, rest = (np.broadcast_to(part, (len(index), *part.shape)) for part in (first, rest))
    return np.concatenate([first, moved, rest], axis=-1)


def policy(model: Model, tasks: Tasks) -> Composed:
    """Return the policies of the given tasks, each along the path that the guard takes at its index."""
    return IndexedActors.from_model(model, weights).compose(tasks)


LOOK: dict[str, Any] = {"color": "#66CCEE", "marker": "p", "hatch": "--.", "dashes": (6.0, 1.5), "order": 20}
NEEDS = ("teachers", "datasets")
METHOD = Method("bc-index", "BC (index)", bc.Cloning, train, policy, NEEDS, per_family=True, minutes=30, **LOOK)
