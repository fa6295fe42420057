"""Rollouts of edge policies composed along a path of the reach-avoid graph (paper, sections 3.2 and 5.1).

A rollout follows the path's edges in turn: it acts with an edge's policy until the edge's target is entered,
then goes on with the next edge's. What the controller believes decides nothing: the recorded states are
handed to the SPECTRL semantics. Every index has a random stream of its own, so what is measured at one index
does not depend on which others are measured beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dibs.envs import Array, sample_noise
from dibs.families import Family, ground
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.seeding import stream
from dibs.spectrl import satisfied
from dibs.spectrl.syntax import Spec

CHUNK = 8  # indices rolled out together: enough to amortise numpy's overhead, few enough to stay in cache


@dataclass(frozen=True, eq=False)
class Recorded:
    """Recorded rollouts of one index."""

    states: Array  # (rollouts, time, dim); what follows the first `lengths` states means nothing
    lengths: Array  # (rollouts,): number of recorded states


def rollouts(
    family: Family,
    network: Network,
    scaling: Scaling,
    actors: Mapping[int, Array],
    paths: Mapping[int, Sequence[str]],
    count: int,
    seed: int,
) -> dict[int, Recorded]:
    """Roll out, at every index of `actors` (edges, size), the edges named by its path."""
    recorded: dict[int, Recorded] = {}
    indices = sorted(actors)
    by_length: dict[int, list[int]] = {}
    for index in indices:
        by_length.setdefault(len(paths[index]), []).append(index)
    for group in by_length.values():
        for at in range(0, len(group), CHUNK):
            chunk = group[at : at + CHUNK]
            recorded |= _roll_chunk(family, network, scaling, chunk, actors, paths, count, seed)
    return recorded


def satisfaction(family: Family, spec: Spec, recorded: Mapping[int, Recorded]) -> dict[int, int]:
    """Number of rollouts of each index that satisfy the specification, grounded at that index."""
    return {
        index: int(satisfied(spec, family.boxes(index), r.states, r.lengths).sum()) for index, r in recorded.items()
    }


def _roll_chunk(
    family: Family,
    network: Network,
    scaling: Scaling,
    indices: Sequence[int],
    actors: Mapping[int, Array],
    paths: Mapping[int, Sequence[str]],
    count: int,
    seed: int,
) -> dict[int, Recorded]:
    stages = len(paths[indices[0]])
    horizon, dim = family.horizon, len(family.dynamics.state_names)
    position = {edge.name: e for e, edge in enumerate(family.edges)}
    shape = (len(indices), count)
    uniforms = np.empty((*shape, dim), dtype=np.float32)
    noise = np.empty((stages, horizon, *shape, dim), dtype=np.float32)
    for i, index in enumerate(indices):
        rng = stream("evaluation", family.name, index, seed)
        uniforms[i] = rng.random((count, dim), dtype=np.float32)
        noise[:, :, i] = sample_noise(rng, (stages, horizon, count, dim))

    states: Array = np.empty(0)
    path_states: Array = np.empty(0)
    rows = np.arange(shape[0])[:, None]
    columns = np.arange(shape[1])[None]
    time = np.zeros(shape, dtype=np.int64)
    going = np.ones(shape, dtype=bool)  # has reached every target so far
    for stage in range(stages):
        names = [paths[index][stage] for index in indices]
        edges = np.array([position[name] for name in names])
        tasks = ground(family, list(zip(indices, names, strict=True)))
        theta = np.stack([actors[index][e] for index, e in zip(indices, edges, strict=True)])
        folded = network.fold(theta.astype(np.float32), scaling.center[edges], scaling.half[edges])
        if stage == 0:
            states = tasks.initial(uniforms)
            path_states = np.zeros((*shape, stages * horizon + 1, dim), dtype=np.float32)
            path_states[:, :, 0] = states
            alive = tasks.target_distance(states) < 0.0
        else:
            alive = going.copy()
        for step in range(horizon):
            if not alive.any():
                break
            moved = family.dynamics.step(states, network.forward(folded, states), noise[stage, step])
            states = np.where(alive[..., None], moved, states)
            time += alive
            path_states[rows, columns, time] = states
            alive = alive & (tasks.target_distance(states) < 0.0)
        going &= ~alive
    lengths = time + 1
    return {index: Recorded(path_states[i], lengths[i]) for i, index in enumerate(indices)}
