"""Edge policies that are a function of the index: what `bc-index` and `hyper` share.

Both turn an index into one actor per edge and follow the path that the guard chooses, as templates do. They differ
in what lies between the index and the actor's weights, so that is all that their own files contain.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dibs.baselines.flat import scaled_index
from dibs.envs import Array
from dibs.families import Tasks
from dibs.methods import Model, Training
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.simulation.composed import Composed, network_paths
from dibs.templates.fit import FitSettings, Supervision
from dibs.templates.guards import EdgeRecord, choose_path, read_records, stored_records, teacher_records
from dibs.templates.template import gather, load_sources

Weights = Callable[[Network, Mapping[str, Array], Array], Array]
"""Maps the actor's shape, what was learned and scaled indices (n,) to actors (n, edges, size)."""


@dataclass(frozen=True, eq=False)
class IndexedActors:
    """One actor per edge, at any index, and the guard's records."""

    train: tuple[int, ...]
    edges: tuple[str, ...]
    network: Network
    """The actor, on scaled observations."""
    scaling: Scaling
    records: Mapping[str, EdgeRecord]
    tensors: Mapping[str, Array]
    """What was learned."""
    weights: Weights

    def actors(self, indices: Sequence[int]) -> Array:
        """Return the actors (n, edges, size) of the given indices."""
        return self.weights(self.network, self.tensors, scaled_index(indices, self.train[-1])).astype(np.float32)

    def compose(self, tasks: Tasks) -> Composed:
        """Return the policies of the given tasks, each along the path that the guard takes at its index."""
        paths = [choose_path(tasks.graph, self.records, index) for index in tasks.indices]
        return network_paths(self.network, self.scaling, self.edges, self.actors(tasks.indices), paths)

    def to_model(self, steps: Mapping[str, int], losses: Mapping[str, Sequence[float]]) -> Model:
        """Return what its file contains; `losses` are those on held-out rows over time, by edge."""
        metadata = {"train": list(self.train), "edges": list(self.edges), "records": stored_records(self.records)}
        tensors = {**self.tensors, **self.scaling.tensors}
        curve = [{"check": n, "edge": name, "loss": loss} for name, of in losses.items() for n, loss in enumerate(of)]
        return Model(tensors, {**metadata, "network": asdict(self.network)}, steps, {"loss": losses}, curve)

    @classmethod
    def from_model(cls, model: Model, weights: Weights) -> IndexedActors:
        """Read what `to_model` returned."""
        meta, scaling = model.metadata, Scaling.of(model.tensors)
        train, edges, network = tuple(meta["train"]), tuple(meta["edges"]), Network(**meta["network"])
        return cls(train, edges, network, scaling, read_records(meta["records"]), model.tensors, weights)


@dataclass(frozen=True, eq=False)
class Demonstrations:
    """What the teachers show: their datasets, and how often they succeed."""

    data: Supervision
    scaling: Scaling
    records: Mapping[str, EdgeRecord]
    steps: Mapping[str, int]
    """Environment steps of the teachers, by edge; cloning takes none of its own."""


def demonstrations(training: Training, samples: int) -> Demonstrations:
    """Read at most `samples` rows per edge and index of the datasets of all training indices."""
    sources = load_sources(training)
    teachers = [source.teacher for source in sources]
    data = gather(training.tasks, sources, FitSettings(samples=samples))
    steps = {name: training.teacher_steps([name]) for name in training.tasks.edge_names}
    return Demonstrations(data, teachers[0].scaling, teacher_records(teachers), steps)
