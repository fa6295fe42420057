from __future__ import annotations

from functools import reduce
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given

from dibs.errors import DibsError
from dibs.spectrl import (
    Achieve,
    And,
    Avoid,
    Choice,
    Ensuring,
    Reach,
    Sequence,
    conjuncts,
    graph,
    holds,
    parse,
    satisfied,
)

from .strategies import REGIONS, examples, rollouts, seeds, specs


def names(edges):
    return [edge.name for edge in edges]


def test_a_sequence_is_a_chain():
    g = graph(parse("(achieve reach(g1); achieve reach(g2); achieve reach(g3)) ensuring avoid(o) & avoid(p)"))
    assert names(g.edges) == ["start>g1", "g1>g2", "g2>g3"]
    assert g.nodes == ("start", "g1", "g2", "g3")
    assert (g.initial, g.final) == ("start", ("g3",))
    first, second, _ = g.edges
    assert (first.source, first.target) == (None, Reach("g1"))
    assert (second.source, second.target) == (Reach("g1"), Reach("g2"))
    assert {edge.safe for edge in g.edges} == {And(Avoid("o"), Avoid("p"))}
    assert [edge.head for edge in g.outgoing("g1")] == ["g2"] and g.outgoing("g3") == ()
    assert (second.tail, second.head) == ("g1", "g2")


@pytest.mark.parametrize(
    "text",
    [
        "(achieve reach(g1) or achieve reach(g2)); achieve reach(goal)",
        "achieve reach(g1) or achieve reach(g2); achieve reach(goal)",
        "achieve (reach(g1) ∨ reach(g2)); achieve reach(goal)",
        "achieve !(avoid(g1) & avoid(g2)); achieve reach(goal)",
    ],
)
def test_a_choice_branches_however_it_is_written(text):
    g = graph(parse(text))
    assert names(g.edges) == ["start>g1", "start>g2", "g1>goal", "g2>goal"]
    assert [names(path) for path in g.paths()] == [["start>g1", "g1>goal"], ["start>g2", "g2>goal"]]
    assert [edge.head for edge in g.outgoing("start")] == ["g1", "g2"]


def test_two_levels_of_choice():
    level = "achieve reach(a{0}) | reach(b{0}); achieve reach(goal{0})"
    g = graph(parse(f"({level.format(1)}; {level.format(2)}) ensuring avoid(wall)"))
    assert len(g.edges) == 8 and len(g.paths()) == 4
    assert [path[1].name for path in g.paths()] == ["a1>goal1", "a1>goal1", "b1>goal1", "b1>goal1"]
    assert {path[-1].head for path in g.paths()} == {"goal2"}


def test_vertices_of_the_same_target_are_told_apart():
    g = graph(parse("achieve reach(a); achieve reach(b); achieve reach(a); achieve reach(start)"))
    assert names(g.edges) == ["start>a", "a>b", "b>a#2", "a#2>start#2"]
    g = graph(parse("achieve reach(a) & avoid(o) & reach(b); achieve avoid(o)"))
    assert names(g.edges) == ["start>a+b", "a+b>!o"]


def test_each_edge_has_the_safety_of_its_own_part():
    g = graph(parse("(achieve reach(a) ensuring avoid(b); achieve reach(b)) ensuring avoid(o)"))
    assert [edge.safe for edge in g.edges] == [And(Avoid("o"), Avoid("b")), Avoid("o")]
    assert graph(parse("achieve reach(a)")).edges[0].safe is None


def test_conjuncts_are_the_literals_of_a_target():
    (edge,) = graph(parse("achieve !(avoid(a) | reach(b))")).edges
    assert edge.target == And(Reach("a"), Avoid("b"))
    assert conjuncts(edge.target) == (("a", True), ("b", False))
    with pytest.raises(DibsError, match="not a conjunction"):
        conjuncts(parse("achieve reach(a) | reach(b)").predicate)


def test_a_target_that_can_never_hold_is_an_error():
    with pytest.raises(DibsError, match=r"'achieve reach\(a\) & avoid\(a\)' can never be satisfied"):
        graph(parse("achieve reach(a) & avoid(a)"))


def graph_or_reject(spec):
    """Return the graph of a random specification, if every `achieve` in it can hold."""
    try:
        return graph(spec)
    except DibsError:
        assume(False)


@examples(80)
@given(specs, seeds)
def test_names_are_unique_and_paths_are_connected(spec, seed):
    g = graph_or_reject(spec)
    assert len(set(g.nodes)) == len(g.nodes) and len(set(g.edges)) == len(set(names(g.edges))) == len(g.edges)
    assert {edge.head for edge in g.edges} | {g.initial} == set(g.nodes)
    assume(len(g.paths()) < 200)
    assert {edge for path in g.paths() for edge in path} == set(g.edges)
    for path in g.paths():
        assert path[0].source is None and path[-1].head in g.final
        for before, after in pairwise(path):
            assert before.head == after.tail and before.target == after.source


@examples(60)
@given(specs, seeds)
def test_edges_followed_one_after_another_satisfy_the_specification(spec, seed):
    g = graph_or_reject(spec)
    rng = np.random.default_rng(seed)
    points = np.stack(np.meshgrid(*[np.arange(-2.0, 6.0, 0.5)] * 2), axis=-1).reshape(-1, 2)

    def segment(edge):
        """Return random safe states of which the last is in the target, or None if there are none."""
        safe = np.ones(len(points), bool) if edge.safe is None else holds(edge.safe, REGIONS, points)
        ends = points[safe & holds(edge.target, REGIONS, points)]
        if not len(ends):
            return None
        return np.concatenate([rng.choice(points[safe], rng.integers(0, 4)), [rng.choice(ends)]])

    for path in g.paths()[:20]:
        segments = [segment(edge) for edge in path]
        if all(s is not None for s in segments):
            assert satisfied(spec, REGIONS, np.concatenate(segments))


@examples(60)
@given(specs, seeds)
def test_the_paths_together_are_the_specification(spec, seed):
    """Also the other way round: what satisfies the specification follows the edges of some path."""
    g = graph_or_reject(spec)
    assume(len(g.paths()) < 40)

    def task(edge):
        return Achieve(edge.target) if edge.safe is None else Ensuring(Achieve(edge.target), edge.safe)

    same = reduce(Choice, [reduce(Sequence, map(task, path)) for path in g.paths()])
    states = rollouts(seed, 200, 7)
    assert satisfied(same, REGIONS, states).tolist() == satisfied(spec, REGIONS, states).tolist()
