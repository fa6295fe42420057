"""A hypernetwork from the index to the actor's weights, cloned from the teachers' datasets (HyperZero).

HyperZero (Rezaei-Shoshtari et al., AAAI 2023) learns a map from the parameters of a task to the weights of its
near-optimal actor, by supervised learning on actions of such actors. Here the task's parameter is the index, the
actors are DIBS's teachers, and each edge has a hypernetwork of its own. Like the template, it is a rule on weights;
unlike the template, the rule is any smooth function of the index instead of a polynomial that is unrolled. Edge
policies are composed along the guard's path like those of a template.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
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
from dibs.templates.fit import Supervision

HELD_OUT = 0.1  # share of the rows of every index


@dataclass(frozen=True)
class Settings(bc.Cloning):
    """Settings of the hypernetwork and its cloning."""

    hidden: tuple[int, ...] = ()
    """Hidden layers of the actor; empty: those of the family's network."""
    layers: tuple[int, ...] = (64,)
    """Hidden layers of the hypernetwork."""
    rate: float = 1e-3
    """Adam's initial rate."""
    batch: int = 64
    """Rows per training index and step."""
    spread: float = 0.01
    """Scale of the hypernetwork's last weights at first: small, so that all indices start from about one actor."""


def train(training: Training, settings: Settings) -> Model:
    """Clone one hypernetwork per edge from the datasets of all training indices."""
    tasks, found = training.tasks, demonstrations(training, settings.samples)
    actor = network_of(tasks, settings.hidden)
    rng = stream("baseline", "hyper", tasks.name, training.split.key, training.seed)
    phi, losses = clone(actor, found.data, tasks.indices[-1], settings, rng)
    if training.progress is not None:
        training.progress(f"loss {losses[-1]}")
    of_index = partial(weights, hypernetwork(actor, settings.layers))
    shared = (tasks.indices, tasks.edge_names, actor, found.scaling, found.records)
    by_edge = dict(zip(tasks.edge_names, map(list, zip(*losses, strict=True)), strict=True))
    model = IndexedActors(*shared, {"phi": phi}, of_index).to_model(found.steps, by_edge)
    return replace(model, metadata={**model.metadata, "layers": list(settings.layers)})


def hypernetwork(actor: Network, layers: tuple[int, ...]) -> Network:
    """Return the shape of the network from a scaled index to the actor's parameters; its output has no tanh."""
    return Network(1, layers, actor.size)


def initial(actor: Network, settings: Settings, edges: int, rng: np.random.Generator) -> Array:
    """Return random hypernetworks (edges, size) whose actors are at first like random actors, nearly equal ones.

    A hypernetwork's own initialization would give actors of the wrong scale (Beck et al. 2022).
    """
    hyper = hypernetwork(actor, settings.layers)
    phi = hyper.initial(rng, (edges,))
    last, biases = hyper.layers(phi)[-1]
    last *= np.float32(settings.spread)
    biases[...] = actor.initial(rng, (edges,))[:, None]
    return phi


def clone(
    actor: Network, data: Supervision, last: int, settings: Settings, rng: np.random.Generator
) -> tuple[Array, list[list[float]]]:
    """Minimize the mean squared error of all edges at once; return the best iterate of each and the held-out losses.

    The rate is halved when no edge has made progress for a while.
    """
    import torch

    from dibs.policies.optimizers import Adam
    from dibs.policies.torch import forward, linear

    hyper, edges, rows = hypernetwork(actor, settings.layers), len(data.states), data.states.shape[2]
    held = max(int(HELD_OUT * rows), 1)
    states, actions = torch.from_numpy(data.states), torch.from_numpy(data.actions)
    present = torch.from_numpy(data.present.astype(np.float32))  # (edges, indices)
    index = torch.from_numpy(scaled_index(data.indices, last)[:, None])
    phi = torch.from_numpy(initial(actor, settings, edges, rng)).requires_grad_()
    adam = Adam([phi], lr=settings.rate)

    def errors(chosen: Any) -> Any:
        """Return the loss (edges,) on some rows of every training index."""
        theta = linear(hyper, phi, index.expand(edges, *index.shape))  # (edges, indices, size)
        wrong = forward(actor, theta, states[:, :, chosen]) - actions[:, :, chosen]
        return ((wrong**2).sum(-1).mean(-1) * present).sum(-1) / present.sum(-1)

    plateau = bc.Plateau(settings, phi.detach().numpy())
    for step in range(settings.max_steps + 1):
        if step % settings.check_every == 0:
            with torch.no_grad():
                ended = plateau.ends(phi.detach().numpy(), errors(slice(held)).numpy())
            if ended:
                break
            adam.param_groups[0]["lr"] = plateau.rate
        drawn = np.minimum(held + rng.integers(max(rows - held, 1), size=settings.batch), rows - 1)
        adam.zero_grad()
        errors(torch.from_numpy(drawn)).sum().backward()
        adam.step()
    return plateau.found("hyper"), plateau.losses


def weights(hyper: Network, actor: Network, tensors: Mapping[str, Array], index: Array) -> Array:
    """Return actors (n, edges, size) at scaled indices (n,)."""
    phi = tensors["phi"]
    inputs = np.broadcast_to(index[:, None], (len(phi), len(index), 1))
    return np.moveaxis(hyper.linear(phi, inputs), 0, 1)


def policy(model: Model, tasks: Tasks) -> Composed:
    """Return the policies of the given tasks, each along the path that the guard takes at its index."""
    actor = Network(**model.metadata["network"])
    of_index = partial(weights, hypernetwork(actor, tuple(model.metadata["layers"])))
    return IndexedActors.from_model(model, of_index).compose(tasks)


LOOK: dict[str, Any] = {"color": "#DDDD55", "marker": "X", "hatch": "//.", "dashes": (6.0, 1.5), "order": 23}
NEEDS = ("teachers", "datasets")
METHOD = Method("hyper", "Hypernetwork", Settings, train, policy, NEEDS, per_family=True, minutes=60, **LOOK)
