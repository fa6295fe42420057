"""Random predicates, specifications and rollouts, in a small world where regions overlap."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from dibs.spectrl import (
    Achieve,
    And,
    Avoid,
    Choice,
    Ensuring,
    Not,
    Or,
    Predicate,
    Reach,
    Region,
    Sequence,
    Spec,
)

# a and b overlap; c and d leave a dimension free, so they cross each other, a and b.
REGIONS = {
    "a": Region((0.0, 0.0), (1.0, 1.0)),
    "b": Region((1.0, 1.0), (1.0, 0.5)),
    "c": Region((3.0, 0.0), (1.0, np.inf)),
    "d": Region((0.0, 3.0), (np.inf, 1.0)),
}

atoms: st.SearchStrategy[Predicate] = st.one_of(
    st.builds(Reach, st.sampled_from(sorted(REGIONS))),
    st.builds(Avoid, st.sampled_from(sorted(REGIONS))),
)
predicates: st.SearchStrategy[Predicate] = st.recursive(
    atoms,
    lambda p: st.one_of(st.builds(Not, p), st.builds(And, p, p), st.builds(Or, p, p)),
    max_leaves=4,
)
specs: st.SearchStrategy[Spec] = st.recursive(
    st.builds(Achieve, predicates),
    lambda s: st.one_of(
        st.builds(Ensuring, s, predicates),
        st.builds(Sequence, s, s),
        st.builds(Sequence, s, s),
        st.builds(Choice, s, s),
    ),
    max_leaves=5,
)
seeds = st.integers(0, 2**32 - 1)


def examples(count: int = 100) -> settings:
    """Return how a property is tested: on so many examples, and on a busy machine without a deadline."""
    return settings(max_examples=count, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def rollouts(seed: int, count: int, time: int, grid: bool = True) -> np.ndarray:
    """Return random states (count, time, 2); on the grid they often lie on a boundary."""
    rng = np.random.default_rng(seed)
    if grid:
        return rng.integers(-2, 6, (count, time, 2)).astype(float)
    return rng.uniform(-2.5, 5.5, (count, time, 2))


def lengths(seed: int, count: int, time: int) -> np.ndarray:
    """Return random numbers of valid states (count,), 1 to `time`."""
    return np.random.default_rng([seed, 1]).integers(1, time + 1, count)
