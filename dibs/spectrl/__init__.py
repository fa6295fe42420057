"""SPECTRL: the specification language of the paper, its meaning, and its reach-avoid graph.

>>> spec = parse("(achieve reach(g1); achieve reach(g2)) ensuring avoid(wall)")
>>> [edge.name for edge in graph(spec).edges]
['start>g1', 'g1>g2']
"""

from dibs.spectrl.graph import Edge, Graph, conjuncts, graph
from dibs.spectrl.monitor import Monitor, MonitorState, where
from dibs.spectrl.parser import SpectrlSyntaxError, parse, parse_predicate
from dibs.spectrl.regions import Region
from dibs.spectrl.semantics import holds, predicate_robustness, robustness, satisfied
from dibs.spectrl.syntax import (
    Achieve,
    And,
    Avoid,
    Choice,
    Ensuring,
    Literal,
    Not,
    Or,
    Predicate,
    Reach,
    Sequence,
    Spec,
    cnf,
    conjunction,
    dnf,
    regions_of,
)

__all__ = [
    "Achieve",
    "And",
    "Avoid",
    "Choice",
    "Edge",
    "Ensuring",
    "Graph",
    "Literal",
    "Monitor",
    "MonitorState",
    "Not",
    "Or",
    "Predicate",
    "Reach",
    "Region",
    "Sequence",
    "Spec",
    "SpectrlSyntaxError",
    "cnf",
    "conjunction",
    "conjuncts",
    "dnf",
    "graph",
    "holds",
    "parse",
    "parse_predicate",
    "predicate_robustness",
    "regions_of",
    "robustness",
    "satisfied",
    "where",
]
