"""The reach-avoid graph: a specification as edges, each a task for one policy.

A vertex is the initial states or one way to reach the target of an `achieve`; a disjunction is split
first, since `achieve (a | b)` is `achieve a or achieve b`. An edge asks to go from its source to its target
through states in which `safe` holds; a rollout that follows the edges of a path one after another,
reaching each target before it sets off on the next edge, satisfies the specification.
"""

from __future__ import annotations

from dataclasses import dataclass

from dibs.errors import DibsError
from dibs.spectrl.stages import stages_of
from dibs.spectrl.syntax import Clause, Literal, Predicate, Spec, conjunction, dnf

START = "start"


@dataclass(frozen=True)
class Edge:
    """A reach-avoid task. `name` is "source>target" in names of vertices."""

    name: str
    source: Predicate | None
    """Where the edge begins; None for the initial states."""
    target: Predicate
    """Where it ends: a conjunction of `reach` and `avoid`."""
    safe: Predicate | None
    """What every state after the source must satisfy, the target's included; None for anything."""

    @property
    def tail(self) -> str:
        """Return the name of the vertex that the edge leaves."""
        return self.name.partition(">")[0]

    @property
    def head(self) -> str:
        """Return the name of the vertex that the edge enters."""
        return self.name.partition(">")[2]


@dataclass(frozen=True)
class Graph:
    """The vertices, by name, and the edges of a specification; it has no cycles."""

    nodes: tuple[str, ...]
    edges: tuple[Edge, ...]
    initial: str
    final: tuple[str, ...]

    def outgoing(self, node: str) -> tuple[Edge, ...]:
        """Return the edges that leave `node`."""
        return tuple(edge for edge in self.edges if edge.tail == node)

    def paths(self) -> list[tuple[Edge, ...]]:
        """Return every way from the initial to a final node, in the order of the specification."""
        found: list[tuple[Edge, ...]] = []
        open_paths: list[tuple[Edge, ...]] = [(edge,) for edge in self.outgoing(self.initial)[::-1]]
        while open_paths:
            path = open_paths.pop()
            if path[-1].head in self.final:
                found.append(path)
            else:
                open_paths += [(*path, edge) for edge in self.outgoing(path[-1].head)[::-1]]
        return found


def graph(spec: Spec) -> Graph:
    """Return the reach-avoid graph of `spec`."""
    program = stages_of(spec)
    nodes = [START]
    targets: dict[str, Predicate | None] = {START: None}
    edges: list[Edge] = []
    vertices: list[list[str]] = []  # of each stage
    for stage in program.stages:
        clauses = dnf(stage.target)
        if not clauses:
            raise DibsError(f"'achieve {stage.target}' can never be satisfied; no edge leads there.")
        sources = [name for before in stage.after for name in vertices[before]] or [START]
        names = []
        for clause in clauses:
            name = _unused(_name(clause), nodes)
            nodes.append(name)
            names.append(name)
            target = targets[name] = conjunction(clause)
            edges += [Edge(f"{s}>{name}", targets[s], target, stage.safe) for s in sources]
        vertices.append(names)
    final = tuple(name for number in program.exits for name in vertices[number])
    return Graph(tuple(nodes), tuple(edges), START, final)


def conjuncts(target: Predicate) -> tuple[Literal, ...]:
    """Return the literals (region, inside) of an edge's target."""
    clauses = dnf(target)
    if len(clauses) != 1:
        raise DibsError(
            f"'{target}' is not a conjunction of reach(…) and avoid(…) that can hold; "
            "take the targets from the edges of a graph."
        )
    return clauses[0]


def _name(clause: Clause) -> str:
    """Return the regions to be in, or failing that those to be out of."""
    reached = [region for region, inside in clause if inside]
    return "+".join(reached or [f"!{region}" for region, _ in clause])


def _unused(name: str, taken: list[str]) -> str:
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name}#{number}"
    return candidate
