"""The syntax of SPECTRL (paper, Preliminaries and appendix "SPECTRL Specification Language").

    predicate  b ::= reach(r) | avoid(r) | !b | b & b | b | b
    spec       φ ::= achieve b | φ ensuring b | φ ; φ | φ or φ

Trees are frozen and hashable. `str(node)` prints the canonical text, which `parse` reads back into the
same tree; `dnf` and `cnf` bring predicates into the normal forms that the reach-avoid graph needs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from typing import TypeAlias

from dibs.errors import DibsError

KEYWORDS = frozenset({"achieve", "ensuring", "or", "and", "not", "reach", "avoid"})
WORD = r"[^\W\d]\w*"

Literal: TypeAlias = tuple[str, bool]
"""A region and whether the state is inside it."""

Clause: TypeAlias = tuple[Literal, ...]


class _Node:
    """What every node shares: its text."""

    def __str__(self) -> str:
        return _text(self, 0)


@dataclass(frozen=True)
class Reach(_Node):
    """The state is in the region."""

    region: str

    def __post_init__(self) -> None:
        """Refuse names that could not be read back."""
        _check_region(self.region)


@dataclass(frozen=True)
class Avoid(_Node):
    """The state is not in the region."""

    region: str

    def __post_init__(self) -> None:
        """Refuse names that could not be read back."""
        _check_region(self.region)


@dataclass(frozen=True)
class Not(_Node):
    """The predicate does not hold."""

    predicate: Predicate


@dataclass(frozen=True)
class And(_Node):
    """Both predicates hold."""

    left: Predicate
    right: Predicate


@dataclass(frozen=True)
class Or(_Node):
    """One of the predicates holds."""

    left: Predicate
    right: Predicate


@dataclass(frozen=True)
class Achieve(_Node):
    """Some state of the rollout satisfies the predicate."""

    predicate: Predicate


@dataclass(frozen=True)
class Ensuring(_Node):
    """The rollout satisfies the specification and each of its states the predicate."""

    spec: Spec
    predicate: Predicate


@dataclass(frozen=True)
class Sequence(_Node):
    """The rollout splits in two: the first part satisfies `first`, the rest `second`."""

    first: Spec
    second: Spec


@dataclass(frozen=True)
class Choice(_Node):
    """The rollout satisfies one of the specifications."""

    left: Spec
    right: Spec


Predicate: TypeAlias = Reach | Avoid | Not | And | Or
Spec: TypeAlias = Achieve | Ensuring | Sequence | Choice


def regions_of(node: Predicate | Spec) -> frozenset[str]:
    """Return the names of the regions that occur in `node`."""
    match node:
        case Reach(region) | Avoid(region):
            return frozenset({region})
        case Not(inner) | Achieve(inner):
            return regions_of(inner)
        case Ensuring(spec, predicate):
            return regions_of(spec) | regions_of(predicate)
        case And(left, right) | Or(left, right) | Sequence(left, right) | Choice(left, right):
            return regions_of(left) | regions_of(right)


def dnf(predicate: Predicate) -> tuple[Clause, ...]:
    """Return `predicate` as a disjunction of conjunctions of literals; () can never hold."""
    return _clauses(predicate, True, Or)


def cnf(predicate: Predicate | None) -> tuple[Clause, ...]:
    """Return `predicate` as a conjunction of disjunctions of literals; () and None always hold."""
    return () if predicate is None else _clauses(predicate, True, And)


def conjunction(literals: Iterable[Literal]) -> Predicate:
    """Return the predicate that holds where every one of the literals does."""
    atoms: list[Predicate] = [Reach(r) if inside else Avoid(r) for r, inside in literals]
    if not atoms:
        raise DibsError("a conjunction needs at least one literal.")
    return reduce(And, atoms)


def _clauses(predicate: Predicate, positive: bool, outer: type[And] | type[Or]) -> tuple[Clause, ...]:
    """Return the normal form of `predicate`, or of its negation, whose outer connective is `outer`.

    Disjunctive and conjunctive normal form are each other's dual, so one function makes both.
    """
    match predicate:
        case Reach(region):
            return (((region, positive),),)
        case Avoid(region):
            return (((region, not positive),),)
        case Not(inner):
            return _clauses(inner, not positive, outer)
        case And(left, right) | Or(left, right):
            lefts = _clauses(left, positive, outer)
            rights = _clauses(right, positive, outer)
            if isinstance(predicate, outer) == positive:
                return _absorbed(lefts + rights)
            return _absorbed(a + b for a in lefts for b in rights)


def _absorbed(clauses: Iterable[Clause]) -> tuple[Clause, ...]:
    """Drop clauses that hold a literal and its negation, or that another clause makes redundant."""
    unique: dict[frozenset[Literal], Clause] = {}
    for clause in clauses:
        literals = frozenset(clause)
        if not any((region, not inside) in literals for region, inside in literals):
            unique.setdefault(literals, tuple(dict.fromkeys(clause)))
    return tuple(c for key, c in unique.items() if not any(other < key for other in unique))


def _check_region(name: str) -> None:
    if not isinstance(name, str) or not re.fullmatch(WORD, name):
        raise DibsError(
            f"region name {name!r}: expected letters, digits and underscores, starting with a letter or an underscore."
        )
    if name in KEYWORDS:
        raise DibsError(f"region name {name!r} is a word of the language; choose another name.")


# How tightly each connective binds: `;` < `or` < `ensuring` in specifications, `|` < `&` < `!` in predicates.
_BINDING = {
    Sequence: 0,
    Choice: 1,
    Ensuring: 2,
    Achieve: 3,
    Or: 0,
    And: 1,
    Not: 2,
    Reach: 3,
    Avoid: 3,
}


def _text(node: object, binding: int) -> str:
    """Return the text of `node` where only nodes that bind at least as tightly as `binding` may stand."""
    own = _BINDING[type(node)]
    match node:
        case Reach(region):
            text = f"reach({region})"
        case Avoid(region):
            text = f"avoid({region})"
        case Not(inner):
            text = f"!{_text(inner, own)}"
        case And(left, right):
            text = f"{_text(left, own)} & {_text(right, own + 1)}"
        case Or(left, right):
            text = f"{_text(left, own)} | {_text(right, own + 1)}"
        case Achieve(predicate):
            text = f"achieve {_text(predicate, 0)}"
        case Ensuring(spec, predicate):
            text = f"{_text(spec, own)} ensuring {_text(predicate, 0)}"
        case Sequence(first, second):
            text = f"{_text(first, own)}; {_text(second, own + 1)}"
        case Choice(left, right):
            text = f"{_text(left, own)} or {_text(right, own + 1)}"
    return text if own >= binding else f"({text})"
