"""Templates: what gives every index of a family its policy.

`PolicyEvolution` is what all classes of templates have in common, `evolution_of` reads any of them, and `compose`
turns it into policies of given tasks. `Template` is the paper's class: one polynomial κ per edge, unrolled from a
base policy. `Joined` gives each edge a template of a class of its own. `gather` collects the datasets that templates
are fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol, Self, cast

import numpy as np

from dibs.datasets.store import load_dataset
from dibs.envs import Array, Environment
from dibs.errors import DibsError
from dibs.families import Tasks
from dibs.files import damaged
from dibs.methods import Model, Training
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.provenance import check_input
from dibs.registry import resolve
from dibs.simulation import NetworkPolicy, Policy, Rows
from dibs.simulation.composed import Composed, PerTask
from dibs.spectrl import Graph
from dibs.teachers.store import load_teacher
from dibs.teachers.train import Teacher
from dibs.templates.fit import FitSettings, Supervision
from dibs.templates.guards import EdgeRecord, choose_path, read_records, stored_records, teacher_records
from dibs.templates.polynomial import identity, unroll_to

RUNAWAY = 1e6  # parameters this large mean that a template does not extend to an index
CLASSES = {
    "polynomial": "dibs.templates.template:Template",
    "branched": "dibs.templates.branched:Branched",
    "joined": "dibs.templates.template:Joined",
    "motion": "dibs.templates.moved:Moved",
    "affine": "dibs.templates.affine:Affine",
}
"""Classes of templates, by `metadata["class"]` of their models."""


class PolicyEvolution(Protocol):
    """A policy-evolution function Ω with its parameters (paper, section 3.1): it returns the policy of any index.

    A class of templates implements this and a class method `from_model(model, where)`, and is listed in `CLASSES`.
    Evaluation, files and drawings need nothing else.
    """

    @property
    def train(self) -> tuple[int, ...]:
        """The training indices."""

    @property
    def edges(self) -> tuple[str, ...]: ...

    @property
    def network(self) -> Network:
        """Shape of the base policies' networks."""

    def edge_policy(self, environment: Environment, pairs: Sequence[tuple[int, str]]) -> Policy:
        """Return the policy of a batch of tasks: pairs of an index ≥ 0, trained or not, and an edge."""

    def holds(self, index: int, edges: Sequence[str]) -> bool:
        """Whether the policies of these edges can be held at an index: their parameters do not run away before it."""

    def describe(self, edge: str) -> str:
        """Say in plain words what class an edge has, what moves, and how far to trust it."""

    def path(self, graph: Graph, index: int) -> tuple[str, ...]:
        """Return the names of the edges to follow at an index; nothing but its number is known of an unseen one."""

    def to_model(self, steps: Mapping[str, int], metrics: Mapping[str, Any]) -> Model:
        """Return what its file contains."""


class Part(PolicyEvolution, Protocol):
    """A template that can be joined with others: its guard's records do not depend on the index."""

    @property
    def records(self) -> Mapping[str, EdgeRecord]: ...


def evolution_of(model: Model, where: str) -> PolicyEvolution:
    """Read a template of any class; errors name `where` it is from, such as a file."""
    kind = model.metadata.get("class")
    if kind not in CLASSES:
        raise DibsError(f"{where}: expected a template of class {' or '.join(CLASSES)}, found {kind!r}")
    template: PolicyEvolution = resolve(CLASSES[kind]).from_model(model, where)
    return template


def check_fits(template: PolicyEvolution, tasks: Tasks) -> None:
    """Refuse tasks with edges, observations or actions that the template does not know."""
    missing = [name for name in tasks.edge_names if name not in template.edges]
    shape = tasks.environment.observation_dim, tasks.environment.action_dim
    if missing or (template.network.inputs, template.network.outputs) != shape:
        raise DibsError(
            f"a template with edges {', '.join(template.edges)}, {template.network.inputs} inputs and "
            f"{template.network.outputs} outputs does not fit {tasks.name} with edges {', '.join(tasks.edge_names)}, "
            f"{shape[0]} inputs and {shape[1]} outputs; fit it again"
        )


def template_policy(model: Model, tasks: Tasks) -> Composed:
    """Return the policies of the given tasks, unrolled from a model of any class."""
    return compose(evolution_of(model, f"the model of {tasks.name}"), tasks)


def compose(template: PolicyEvolution, tasks: Tasks) -> Composed:
    """Return the policies of the given tasks, each along the path that the guard takes at its index."""
    check_fits(template, tasks)

    def stage_policy(rows: Sequence[int], names: Sequence[str]) -> Policy:
        pairs = [(tasks.indices[row], name) for row, name in zip(rows, names, strict=True)]
        return template.edge_policy(tasks.environment, pairs)

    return Composed([template.path(tasks.graph, index) for index in tasks.indices], stage_policy)


# --- a network per index and edge ------------------------------------------------------------------------


class Networks:
    """What classes of templates share whose policy of an index and edge is one network with weights of its own.

    A class is a dataclass with these fields and the tensors of its `shapes`.
    """

    kind: ClassVar[str]
    """`metadata["class"]` of its models."""
    axis: ClassVar[int] = 0
    """Of the edges in its own tensors."""
    train: tuple[int, ...]
    edges: tuple[str, ...]
    network: Network
    scaling: Scaling
    base: Array  # (edges, size)
    base_index: Rows  # (edges,)
    records: Mapping[str, EdgeRecord]

    @staticmethod
    def shapes(network: Network, edges: int) -> dict[str, tuple[int | None, ...]]:
        """Return the shapes of its own tensors; None: any length."""
        raise NotImplementedError

    def take(self, rows: Rows) -> Self:
        """Return the template of some of the edges."""
        names = tuple(self.edges[row] for row in rows.tolist())
        changed: dict[str, Any] = {"edges": names, "scaling": self.scaling.take(rows)}
        changed |= {name: getattr(self, name)[rows] for name in ("base", "base_index")}
        changed |= {n: getattr(self, n).take(rows, self.axis) for n in self.shapes(self.network, len(rows))}
        return cast(Self, replace(cast(Any, self), records={name: self.records[name] for name in names}, **changed))

    def to_model(self, steps: Mapping[str, int], metrics: Mapping[str, Any]) -> Model:
        """Return what its file contains."""
        tensors = {name: getattr(self, name) for name in (*self.shapes(self.network, 0), "base")}
        tensors |= {"base_index": self.base_index.astype(np.int64), **self.scaling.tensors}
        metadata: dict[str, Any] = {"class": self.kind, "train": list(self.train), "edges": list(self.edges)}
        metadata |= {"network": asdict(cast(Any, self.network)), "records": stored_records(self.records)}
        return Model(tensors, metadata, steps, metrics)

    @classmethod
    def from_model(cls, model: Model, where: str) -> Self:
        """Read a template; errors name `where` it is from, such as a file."""
        meta = model_metadata(model, cls.kind, where)
        network, edges = Network(**meta["network"]), len(meta["edges"])
        shapes = cls.shapes(network, edges) | {"base": (edges, network.size), "base_index": (edges,)}
        for name, shape in (shapes | dict.fromkeys(Scaling.NAMES, (edges, network.inputs))).items():
            if name not in model.tensors:
                raise damaged(where, f"no tensor {name}")
            found = model.tensors[name].shape
            if len(found) != len(shape) or any(n not in (m, None) for m, n in zip(found, shape, strict=True)):
                raise damaged(where, f"{name}: expected {shape}, found {found}".replace("None", "any"))
        own: dict[str, Any] = {name: model.tensors[name] for name in shapes}
        own |= {"train": tuple(meta["train"]), "edges": tuple(meta["edges"]), "network": network}
        return cls(**own, **{"scaling": Scaling.of(model.tensors), "records": read_records(meta["records"])})

    def unrolled(self, indices: Rows, edges: Rows) -> Array:
        """Return the actors (n, size) of n pairs of an index and a position of an edge, finite or not."""
        raise NotImplementedError

    def actors(self, indices: Sequence[int]) -> dict[int, Array]:
        """Return the actors (edges, size) of every given index, unrolled from the base."""
        every = np.arange(len(self.edges))
        found = self.at(np.repeat(np.array(indices, dtype=np.intp), len(every)), np.tile(every, len(indices)))
        return dict(zip(indices, found.reshape(len(indices), len(every), self.network.size), strict=True))

    def at(self, indices: Rows, edges: Rows) -> Array:
        """Return the actors (n, size) of n pairs of an index and a position of an edge.

        What runs away beyond the last training index is left as a policy that fails.
        """
        check_indices(indices)
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.unrolled(indices, edges)
        return np.nan_to_num(found, nan=RUNAWAY).clip(-RUNAWAY, RUNAWAY).astype(np.float32)

    def edge_policy(self, environment: Environment, pairs: Sequence[tuple[int, str]]) -> NetworkPolicy:
        """Return the unrolled networks of a batch of tasks."""
        indices, names = zip(*pairs, strict=True)
        edges = np.array([self.edges.index(name) for name in names])
        theta = self.at(np.array(indices), edges)
        return NetworkPolicy(
            self.network, self.network.fold(theta, self.scaling.center[edges], self.scaling.half[edges])
        )

    def holds(self, index: int, edges: Sequence[str]) -> bool:
        """Whether the parameters of these edges stay below RUNAWAY."""
        rows = np.array([self.edges.index(name) for name in edges], dtype=np.intp)
        return bool(np.abs(self.at(np.full(len(rows), index), rows)).max(initial=0.0) < RUNAWAY)

    def path(self, graph: Graph, index: int) -> tuple[str, ...]:
        """Return the path that the guard takes at an index."""
        return choose_path(graph, self.records, index)


@dataclass(frozen=True, eq=False)
class Template(Networks):
    """One polynomial per edge."""

    kind: ClassVar[str] = "polynomial"
    axis: ClassVar[int] = 1
    train: tuple[int, ...]
    edges: tuple[str, ...]
    network: Network
    scaling: Scaling
    kappa: Array  # (degree + 1, edges, size)
    base: Array  # (edges, size)
    base_index: Rows  # (edges,)
    records: Mapping[str, EdgeRecord]

    @staticmethod
    def shapes(network: Network, edges: int) -> dict[str, tuple[int | None, ...]]:
        """κ has a row for each power."""
        return {"kappa": (None, edges, network.size)}

    def unrolled(self, indices: Rows, edges: Rows) -> Array:
        """Return the actors (n, size) of n pairs of an index and a position of an edge."""
        # Before the first teacher of an edge there is no policy: the first one is used.
        ahead = np.maximum(indices - self.base_index[edges], 0)
        actors = np.empty((len(edges), self.network.size))
        for e in np.unique(edges).tolist():
            rows = np.flatnonzero(edges == e)
            found = unroll_to(self.kappa[:, e], self.base[e].astype(np.float64), ahead[rows].tolist())
            actors[rows] = [found[int(steps)] for steps in ahead[rows]]
        return actors

    def describe(self, edge: str) -> str:
        """Say what is known of one edge's polynomial."""
        e = self.edges.index(edge)
        degree, start = len(self.kappa) - 1, int(self.base_index[e])
        change = np.abs(self.kappa[:, e] - identity(degree, (self.network.size,)))
        moving = int((change.max(axis=0) > 1e-6).sum())
        return (
            f"polynomial of degree {degree} in {self.network.size} weights, {moving} of which change per index, from "
            f"the teacher of index {start}; fitted to training indices {spelled(self.train)}, trust it between them"
        )


def model_metadata(model: Model, kind: str, where: str) -> Mapping[str, Any]:
    """Return the metadata of a template's model; refuse one of another class."""
    if model.metadata.get("class") != kind:
        raise DibsError(f"{where}: expected a {kind} template, found class {model.metadata.get('class')!r}")
    return model.metadata


def check_indices(indices: Rows | Sequence[int]) -> None:
    """Refuse indices below 0."""
    if np.min(indices, initial=0) < 0:
        raise DibsError(f"index {np.min(indices)}: a template unrolls to indices ≥ 0")


def spelled(indices: Sequence[int]) -> str:
    """Return indices as text; many of them by the first and the last one."""
    return ", ".join(map(str, indices)) if len(indices) <= 6 else f"{indices[0]}, {indices[1]}, …, {indices[-1]}"


# --- a class per edge ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Joined:
    """Templates of several classes, each for some of the edges."""

    parts: tuple[Part, ...]

    @property
    def train(self) -> tuple[int, ...]:
        return self.parts[0].train

    @property
    def edges(self) -> tuple[str, ...]:
        return tuple(name for part in self.parts for name in part.edges)

    @property
    def network(self) -> Network:
        return self.parts[0].network

    @property
    def records(self) -> Mapping[str, EdgeRecord]:
        """The guard's records of all edges."""
        return {name: record for part in self.parts for name, record in part.records.items()}

    def part(self, edge: str) -> Part:
        """Return the template of an edge."""
        return next(part for part in self.parts if edge in part.edges)

    def edge_policy(self, environment: Environment, pairs: Sequence[tuple[int, str]]) -> Policy:
        """Return the policy of a batch of tasks, each from its edge's part."""
        rows = [np.array([n for n, (_, name) in enumerate(pairs) if name in part.edges]) for part in self.parts]
        used = [(mine, part) for mine, part in zip(rows, self.parts, strict=True) if len(mine)]
        policies = [part.edge_policy(environment, [pairs[n] for n in mine]) for mine, part in used]
        return policies[0] if len(used) == 1 else PerTask([mine for mine, _ in used], policies)

    def holds(self, index: int, edges: Sequence[str]) -> bool:
        """Whether every part holds at an index."""
        return all(self.part(name).holds(index, [name]) for name in edges)

    def describe(self, edge: str) -> str:
        """Return what the edge's part says of it."""
        return self.part(edge).describe(edge)

    def path(self, graph: Graph, index: int) -> tuple[str, ...]:
        """Return the path that the guard takes at an index."""
        return choose_path(graph, self.records, index)

    def to_model(self, steps: Mapping[str, int], metrics: Mapping[str, Any]) -> Model:
        """Return what its file contains: the tensors of part n are called "n name"."""
        models = [part.to_model({}, {}) for part in self.parts]
        tensors = {f"{n} {key}": value for n, model in enumerate(models) for key, value in model.tensors.items()}
        metadata = {"class": "joined", "parts": [dict(model.metadata) for model in models]}
        return Model(tensors, metadata, steps, metrics)

    @classmethod
    def from_model(cls, model: Model, where: str) -> Joined:
        """Read a template; errors name `where` it is from, such as a file."""
        parts = []
        for n, metadata in enumerate(model_metadata(model, "joined", where)["parts"]):
            prefix = f"{n} "
            own = {k.removeprefix(prefix): value for k, value in model.tensors.items() if k.startswith(prefix)}
            part = evolution_of(Model(own, metadata, model.steps), f"{where}, part {n}")
            if not hasattr(part, "records"):
                raise damaged(where, f"part {n}: a {metadata['class']} template cannot be part of another one")
            parts.append(cast(Part, part))
        if not parts:
            raise damaged(where, "no parts")
        return cls(tuple(parts))


# --- what it is fitted to --------------------------------------------------------------------------------


class Source(NamedTuple):
    """What one training index contributes: its teacher and the dataset made from it."""

    teacher: Teacher
    teacher_file: Any  # a path, or the teacher itself
    dataset_file: Any  # a path, or a dataset in memory


def load_sources(training: Training) -> list[Source]:
    """Read the teachers of all training indices."""
    pairs = zip(training.teachers, training.datasets, strict=True)
    sources = [Source(load_teacher(teacher), teacher, dataset) for teacher, dataset in pairs]
    if tuple(s.teacher.index for s in sources) != training.tasks.indices:
        raise DibsError(
            f"expected teachers of the training indices {list(training.tasks.indices)} of {training.tasks.name}, "
            f"found those of {[s.teacher.index for s in sources]}"
        )
    first = sources[0].teacher
    for one, file, _ in sources:
        same = one.edges == training.tasks.edge_names and one.network == first.network
        same &= all(np.array_equal(getattr(one.scaling, n), getattr(first.scaling, n)) for n in ("center", "half"))
        if not same:
            raise DibsError(
                f"{file} and {sources[0].teacher_file}: these teachers have different edges, networks or scalings; "
                f"train all of them on the same description of {training.tasks.name}"
            )
    return sources


def gather(tasks: Tasks, sources: Sequence[Source], settings: FitSettings) -> Supervision:
    """Stack the datasets of the given training indices; edges that a dataset lacks stay out of the loss."""
    teachers = [source.teacher for source in sources]
    edges, network, scaling = teachers[0].edges, teachers[0].network, teachers[0].scaling
    indices = np.array([teacher.index for teacher in teachers])
    loaded = []
    for source in sources:
        data, metadata = load_dataset(source.dataset_file, settings.samples)
        check_input(source.dataset_file, metadata, {str(source.teacher_file): source.teacher.id}, "`dibs dataset`")
        loaded.append(data)
    present = np.array([[name in data for data in loaded] for name in edges])
    for name, teachers_able in zip(edges, present.tolist(), strict=True):
        if not any(teachers_able):
            raise DibsError(f"edge {name}: no teacher of any training index succeeded on it; there is nothing to fit")
    rows = min((len(states) for data in loaded for states, _ in data.values()), default=0)
    states = np.zeros((len(edges), len(indices), rows, network.inputs), dtype=np.float32)
    actions = np.zeros((len(edges), len(indices), rows, network.outputs), dtype=np.float32)
    for n, data in enumerate(loaded):
        for name, (visited, labels) in data.items():
            e = edges.index(name)
            states[e, n] = (tasks.environment.observe(visited[:rows]) - scaling.center[e]) / scaling.half[e]
            actions[e, n] = labels[:rows]
    starts = present.argmax(axis=1)
    base = np.stack([teachers[starts[e]].actor[e] for e in range(len(edges))])
    return Supervision(indices, states, actions, present, base, indices[starts])


def assemble(teachers: Sequence[Teacher], data: Supervision, kappa: Array) -> Template:
    """Join a fitted κ with what it starts from and how the teachers did, for the guard."""
    first, train = teachers[0], tuple(teacher.index for teacher in teachers)
    shared = (train, first.edges, first.network, first.scaling)
    return Template(*shared, kappa, data.base, data.base_index, teacher_records(teachers))
