from __future__ import annotations

import pickle

import pytest

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
    SpectrlSyntaxError,
    parse,
    parse_predicate,
)

A, B, C = (Achieve(Reach(r)) for r in "abc")
a, b, c = Reach("a"), Reach("b"), Reach("c")


@pytest.mark.parametrize("word", ["and", "&", "&&", "∧"])
def test_conjunction_is_written_in_ascii_or_unicode(word):
    assert parse_predicate(f"reach(a) {word} avoid(b)") == And(a, Avoid("b"))


@pytest.mark.parametrize("word", ["|", "||", "∨"])
def test_disjunction_is_written_in_ascii_or_unicode(word):
    assert parse(f"achieve reach(a){word}reach(b)") == Achieve(Or(a, b))


@pytest.mark.parametrize("word", ["not ", "!", "¬", "not"])
def test_negation_is_written_in_ascii_or_unicode(word):
    assert parse_predicate(f"{word}(reach(a))") == Not(a)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("achieve reach(a); achieve reach(b); achieve reach(c)", Sequence(Sequence(A, B), C)),
        ("achieve reach(a) or achieve reach(b); achieve reach(c)", Sequence(Choice(A, B), C)),
        ("achieve reach(a); achieve reach(b) or achieve reach(c)", Sequence(A, Choice(B, C))),
        ("achieve reach(a); achieve reach(b) ensuring reach(c)", Sequence(A, Ensuring(B, c))),
        ("achieve reach(a) or achieve reach(b) ensuring reach(c)", Choice(A, Ensuring(B, c))),
        ("(achieve reach(a);\n achieve reach(b))\nensuring reach(c)", Ensuring(Sequence(A, B), c)),
        ("achieve (reach(a)) or achieve (reach(b))", Choice(A, B)),
        ("achieve (reach(a) or reach(b))", Achieve(Or(a, b))),
        ("achieve (reach(a) or reach(b)) or (achieve reach(c))", Choice(Achieve(Or(a, b)), C)),
        ("((achieve reach(a)))", A),
        ("achieve reach(a) | reach(b) & !reach(c)", Achieve(Or(a, And(b, Not(c))))),
        ("achieve reach ( a )ensuring(reach(b))", Ensuring(A, b)),
        ("achieve reach(größe_2)", Achieve(Reach("größe_2"))),
    ],
)
def test_precedence(text, spec):
    assert parse(text) == spec


def test_or_between_predicates_on_their_own():
    assert parse_predicate("reach(a) or reach(b) and reach(c)") == Or(a, And(b, c))


@pytest.mark.parametrize(
    ("text", "culprit", "words"),
    [
        ("", "", "expected a specification ('achieve' or '('), found the end"),
        ("achieve", "", "expected a predicate ('reach(…)', 'avoid(…)', '!' or '('), found the end"),
        ("achieve ; achieve reach(b)", ";", "expected a predicate"),
        ("reach(a)", "reach", "expected a specification"),
        ("acheive reach(a)", "acheive", "Did you mean 'achieve'?"),
        ("achieve raech(a)", "raech", "Did you mean 'reach'?"),
        ("achieve reach(a) ensurin avoid(b)", "ensurin", "Did you mean 'ensuring'?"),
        ("achieve reach(a) or reach(b)", "reach(b)", "Between predicates write '|' instead of 'or'."),
        (
            "achieve reach(a) achieve reach(b)",
            "achieve reach(b)",
            "'&', '|', 'ensuring', 'or', ';' or the end",
        ),
        ("(achieve reach(a)) & reach(b)", "&", "expected 'ensuring', 'or', ';' or the end, found '&'"),
        ("(achieve reach(a)", "", "expected '&', '|', 'ensuring', 'or', ';' or ')', found the end"),
        ("achieve (reach(a); reach(b))", ";", "expected '&', '|' or ')', found ';'"),
        ("achieve reach(a))", ")", "or the end, found ')'"),
        ("achieve reach a", "a", "expected '(' after 'reach'"),
        ("achieve reach()", ")", "expected the name of a region"),
        ("achieve reach(or)", "or)", "expected the name of a region"),
        ("achieve reach(a b)", "b)", "expected ')' after 'a'"),
        ("achieve reach(a) + reach(b)", "+", "found '+'"),
        ("achieve reach(3)", "3", "found '3'"),
        ("achieve reach(a);  \n\tachieve !\n", "", "line 2, column 11"),
    ],
)
def test_a_mistake_is_pointed_at(text, culprit, words):
    with pytest.raises(SpectrlSyntaxError) as caught:
        parse(text)
    message = str(caught.value)
    assert words in message
    first, line, caret = message.splitlines()
    column = caret.index("^")
    assert line[column:].startswith(culprit) and (culprit or column == max(4, len(line.rstrip())))
    assert caret[:column].strip() == "" and line.strip() in text
    assert text[caught.value.position :].startswith(culprit)
    assert first.startswith("specification, line ")


def test_the_caret_as_it_is_printed():
    with pytest.raises(SpectrlSyntaxError) as caught:
        parse("achieve reach(a);\nachieve rech(b)")
    assert str(caught.value) == (
        "specification, line 2, column 9: expected a predicate ('reach(…)', 'avoid(…)', '!' or '('), "
        "found 'rech'. Did you mean 'reach'?\n"
        "    achieve rech(b)\n"
        "            ^"
    )


def test_an_error_is_a_dibs_error_and_survives_another_process():
    with pytest.raises(DibsError) as caught:
        parse("achieve")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.position) == (str(caught.value), 7)


@pytest.mark.parametrize("opening", ["(", "achieve " + "!", "achieve " + "("])
def test_absurd_nesting_is_an_error_not_a_crash(opening):
    *words, symbol = opening.rsplit(" ", 1)
    with pytest.raises(SpectrlSyntaxError, match="at most 100 levels of nesting"):
        parse(" ".join([*words, symbol * 100_000]))


def test_predicates_end_where_the_text_does():
    with pytest.raises(SpectrlSyntaxError, match=r"expected '&', '\|' or the end"):
        parse_predicate("reach(a) ensuring reach(b)")
