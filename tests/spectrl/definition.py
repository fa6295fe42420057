"""The definition of satisfaction as the paper's appendix writes it: slow, recursive, one rollout.

A rollout is a sequence of states and a state is what it says about each region: whether it is inside
(`satisfies`) or its signed distance (`value`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dibs.spectrl import Predicate, Region, Spec, syntax


def inside(regions: Mapping[str, Region], state: Sequence[float]) -> dict[str, bool]:
    """Return which of the single boxes contain the state."""
    return {
        name: all(abs(x - c) <= h for x, c, h in zip(state, box.center.tolist(), box.half_width.tolist(), strict=True))
        for name, box in regions.items()
    }


def models(state: Mapping[str, bool], b: Predicate) -> bool:
    match b:
        case syntax.Reach(region):
            return state[region]
        case syntax.Avoid(region):
            return not state[region]
        case syntax.Not(p):
            return not models(state, p)
        case syntax.And(p, q):
            return models(state, p) and models(state, q)
        case syntax.Or(p, q):
            return models(state, p) or models(state, q)


def satisfies(zeta: Sequence[Mapping[str, bool]], phi: Spec) -> bool:
    match phi:
        case syntax.Achieve(b):
            return any(models(state, b) for state in zeta)
        case syntax.Ensuring(phi1, b):
            return all(models(state, b) for state in zeta) and satisfies(zeta, phi1)
        case syntax.Sequence(phi1, phi2):
            return any(
                satisfies(zeta[: tau + 1], phi1) and satisfies(zeta[tau + 1 :], phi2) for tau in range(len(zeta) - 1)
            )
        case syntax.Choice(phi1, phi2):
            return satisfies(zeta, phi1) or satisfies(zeta, phi2)


def predicate_value(state: Mapping[str, float], b: Predicate) -> float:
    match b:
        case syntax.Reach(region):
            return state[region]
        case syntax.Avoid(region):
            return -state[region]
        case syntax.Not(p):
            return -predicate_value(state, p)
        case syntax.And(p, q):
            return min(predicate_value(state, p), predicate_value(state, q))
        case syntax.Or(p, q):
            return max(predicate_value(state, p), predicate_value(state, q))


def value(zeta: Sequence[Mapping[str, float]], phi: Spec) -> float:
    match phi:
        case syntax.Achieve(b):
            return max(predicate_value(state, b) for state in zeta)
        case syntax.Ensuring(phi1, b):
            return min(value(zeta, phi1), *(predicate_value(state, b) for state in zeta))
        case syntax.Sequence(phi1, phi2):
            return max(
                (min(value(zeta[: tau + 1], phi1), value(zeta[tau + 1 :], phi2)) for tau in range(len(zeta) - 1)),
                default=float("-inf"),
            )
        case syntax.Choice(phi1, phi2):
            return max(value(zeta, phi1), value(zeta, phi2))
