from __future__ import annotations

import itertools

import pytest
from hypothesis import given

from dibs.errors import DibsError
from dibs.spectrl import (
    Achieve,
    And,
    Avoid,
    Choice,
    Ensuring,
    Not,
    Or,
    Reach,
    Sequence,
    cnf,
    conjunction,
    dnf,
    parse,
    parse_predicate,
    regions_of,
)

from .definition import models
from .strategies import REGIONS, examples, predicates, specs

A, B, C = (Achieve(Reach(r)) for r in "abc")
a, b, c = Reach("a"), Reach("b"), Reach("c")


@examples()
@given(specs)
def test_a_specification_is_read_back_from_its_text(spec):
    assert parse(str(spec)) == spec
    assert hash(parse(str(spec))) == hash(spec)


@examples()
@given(predicates)
def test_a_predicate_is_read_back_from_its_text(predicate):
    assert parse_predicate(str(predicate)) == predicate


@pytest.mark.parametrize(
    ("node", "text"),
    [
        (Sequence(Sequence(A, B), C), "achieve reach(a); achieve reach(b); achieve reach(c)"),
        (Sequence(A, Sequence(B, C)), "achieve reach(a); (achieve reach(b); achieve reach(c))"),
        (Sequence(Choice(A, B), C), "achieve reach(a) or achieve reach(b); achieve reach(c)"),
        (Choice(A, Sequence(B, C)), "achieve reach(a) or (achieve reach(b); achieve reach(c))"),
        (Choice(A, Choice(B, C)), "achieve reach(a) or (achieve reach(b) or achieve reach(c))"),
        (Ensuring(A, Avoid("o")), "achieve reach(a) ensuring avoid(o)"),
        (Ensuring(Ensuring(A, b), c), "achieve reach(a) ensuring reach(b) ensuring reach(c)"),
        (Ensuring(Sequence(A, B), c), "(achieve reach(a); achieve reach(b)) ensuring reach(c)"),
        (Sequence(A, Ensuring(B, c)), "achieve reach(a); achieve reach(b) ensuring reach(c)"),
        (Achieve(Or(a, And(b, c))), "achieve reach(a) | reach(b) & reach(c)"),
        (Achieve(And(a, Or(b, c))), "achieve reach(a) & (reach(b) | reach(c))"),
        (And(a, And(b, c)), "reach(a) & (reach(b) & reach(c))"),
        (Not(And(a, b)), "!(reach(a) & reach(b))"),
        (And(Not(Not(a)), b), "!!reach(a) & reach(b)"),
    ],
)
def test_text_has_no_more_parentheses_than_it_needs(node, text):
    assert str(node) == text


def test_regions_of_collects_every_name():
    spec = parse("(achieve reach(a) | !avoid(b); achieve reach(c)) ensuring avoid(d) or achieve reach(a)")
    assert regions_of(spec) == {"a", "b", "c", "d"}
    assert regions_of(a) == {"a"}


@examples()
@given(predicates)
def test_normal_forms_mean_what_the_predicate_means(predicate):
    conjunctions, disjunctions = dnf(predicate), cnf(predicate)
    for truth in itertools.product([False, True], repeat=len(REGIONS)):
        state = dict(zip(REGIONS, truth, strict=True))
        expected = models(state, predicate)
        assert expected == any(all(state[r] == i for r, i in clause) for clause in conjunctions)
        assert expected == all(any(state[r] == i for r, i in clause) for clause in disjunctions)


def test_normal_forms_are_small():
    assert dnf(parse_predicate("reach(a) | reach(a) & reach(b)")) == ((("a", True),),)
    assert dnf(parse_predicate("reach(a) & avoid(a)")) == ()
    assert cnf(parse_predicate("avoid(a) & !(reach(b) | reach(c))")) == (
        (("a", False),),
        (("b", False),),
        (("c", False),),
    )
    assert cnf(parse_predicate("reach(a) | avoid(a)")) == ()
    assert cnf(None) == ()


def test_conjunction_builds_the_predicate_of_a_clause():
    assert conjunction([("a", True), ("b", False)]) == And(Reach("a"), Avoid("b"))
    with pytest.raises(DibsError, match="at least one"):
        conjunction([])


@pytest.mark.parametrize("name", ["", "two words", "1st", "g-1", "or", "reach", "x)"])
@pytest.mark.parametrize("atom", [Reach, Avoid])
def test_names_that_could_not_be_read_back_are_refused(atom, name):
    with pytest.raises(DibsError, match="region name"):
        atom(name)
