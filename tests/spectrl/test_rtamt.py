"""Agreement with rtamt, an independent implementation of signal temporal logic, in discrete time."""

from __future__ import annotations

import numpy as np
import pytest
import rtamt
from hypothesis import given

from dibs.spectrl import parse, robustness, syntax

from .strategies import REGIONS, examples, rollouts, seeds, specs

TIME = 6


def stl(text: str, states: np.ndarray) -> float:
    """Return rtamt's robustness of the formula at the first of the states (time, 2)."""
    formula = rtamt.StlDiscreteTimeSpecification()
    signals = {name: box.signed_distance(states).tolist() for name, box in REGIONS.items()}
    # rtamt's `next` is weak; `more` and `last` tell the end of the rollout.
    signals["more"] = [np.inf] * (len(states) - 1) + [-np.inf]
    signals["last"] = [-np.inf] * (len(states) - 1) + [np.inf]
    for name in signals:
        formula.declare_var(name, "float")
    formula.spec = text
    formula.parse()
    return formula.evaluate({"time": list(range(len(states))), **signals})[0][1]


def predicate(b: syntax.Predicate) -> str:
    match b:
        case syntax.Reach(region):
            return f"({region} >= 0)"
        case syntax.Avoid(region):
            return f"(not ({region} >= 0))"
        case syntax.Not(p):
            return f"(not {predicate(p)})"
        case syntax.And(p, q):
            return f"({predicate(p)} and {predicate(q)})"
        case syntax.Or(p, q):
            return f"({predicate(p)} or {predicate(q)})"


def until(safe: str, then: str) -> str:
    """Return the formula for "`then` holds at some state, and `safe` up to and including it"."""
    return f"(({safe}) until (({safe}) and {then}))" if safe else f"(eventually {then})"


def formula(spec: syntax.Spec, then: str = "(last >= 0)", safe: str = "") -> str:
    """Return the formula for `spec` on a piece of the rollout at whose last state `then` holds."""
    match spec:
        case syntax.Achieve(b):
            return until(safe, f"({predicate(b)} and {until(safe, then)})")
        case syntax.Ensuring(inner, b):
            return formula(inner, then, f"{safe} and {predicate(b)}" if safe else predicate(b))
        case syntax.Sequence(first, second):
            return formula(first, f"((more >= 0) and (next {formula(second, then, safe)}))", safe)
        case syntax.Choice(left, right):
            return f"({formula(left, then, safe)} or {formula(right, then, safe)})"


@pytest.mark.parametrize(
    ("text", "temporal"),
    [
        ("achieve reach(a)", "eventually(a >= 0)"),
        ("achieve reach(a) & avoid(b)", "eventually((a >= 0) and not(b >= 0))"),
        ("achieve reach(a) ensuring avoid(c)", "eventually(a >= 0) and always(not(c >= 0))"),
        (
            "(achieve reach(a) or achieve reach(b)) ensuring avoid(c) & avoid(d)",
            "(eventually(a >= 0) or eventually(b >= 0)) and always(not(c >= 0) and not(d >= 0))",
        ),
        (
            "(achieve reach(a); achieve reach(b); achieve reach(c)) ensuring avoid(d)",
            "eventually((a >= 0) and (more >= 0) and next(eventually((b >= 0) and (more >= 0) "
            "and next(eventually(c >= 0))))) and always(not(d >= 0))",
        ),
    ],
)
def test_achieve_is_eventually_and_ensuring_is_always(text, temporal):
    states = rollouts(1, 20, TIME, grid=False)
    expected = [stl(temporal, s) for s in states]
    assert robustness(parse(text), REGIONS, states).tolist() == expected


@examples(20)
@given(specs, seeds)
def test_every_specification_is_a_formula_of_until_and_next(spec, seed):
    states = rollouts(seed, 3, TIME, grid=False)
    text = formula(spec)
    assert robustness(spec, REGIONS, states).tolist() == [stl(text, s) for s in states]
