from __future__ import annotations

import itertools
import time
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.errors import DibsError
from dibs.spectrl import (
    Region,
    holds,
    parse,
    parse_predicate,
    predicate_robustness,
    robustness,
    satisfied,
)

from . import definition
from .strategies import REGIONS, examples, lengths, predicates, rollouts, seeds, specs

COUNT, TIME = 150, 7


@examples(150)
@given(specs, seeds)
def test_satisfaction_is_the_definition(spec, seed):
    """150 specifications on 150 rollouts each: 22,500 pairs, padded with NaN to one length."""
    states, ends = rollouts(seed, COUNT, TIME), lengths(seed, COUNT, TIME)
    letters = {s: definition.inside(REGIONS, s) for s in itertools.product(range(-2, 6), repeat=2)}
    expected = [
        definition.satisfies([letters[tuple(s)] for s in rollout[:end].astype(int).tolist()], spec)
        for rollout, end in zip(states, ends, strict=True)
    ]
    states[np.arange(TIME) >= ends[:, None]] = np.nan
    assert satisfied(spec, REGIONS, states, ends).tolist() == expected


@examples(60)
@given(specs, seeds)
def test_robustness_is_the_definition_with_max_and_min(spec, seed):
    states, ends = rollouts(seed, 30, TIME, grid=False), lengths(seed, 30, TIME)
    distances = {name: box.signed_distance(states) for name, box in REGIONS.items()}
    expected = [
        definition.value([{n: d[i, k].item() for n, d in distances.items()} for k in range(end)], spec)
        for i, end in enumerate(ends)
    ]
    states[np.arange(TIME) >= ends[:, None]] = np.nan
    assert robustness(spec, REGIONS, states, ends).tolist() == expected


# Specifications whose parts have different safe contexts, where an inexact reading would show.
TRICKY = [
    "achieve reach(a)",
    "achieve reach(a) ensuring avoid(b)",
    "achieve reach(a); achieve reach(b)",
    "achieve reach(a); achieve reach(a)",
    "achieve reach(a) ensuring avoid(b); achieve reach(b)",
    "achieve reach(a); achieve reach(b) ensuring avoid(a)",
    "achieve reach(a) ensuring avoid(b); achieve reach(b) ensuring avoid(a)",
    "(achieve reach(a) | reach(b); achieve reach(b)) ensuring !(reach(a) & reach(b))",
    "(achieve reach(a) ensuring avoid(b); achieve avoid(a)) ensuring reach(a) | reach(b)",
    "(achieve reach(a); achieve reach(b)) ensuring avoid(b) or achieve reach(b) ensuring reach(b)",
    "(achieve reach(a) or achieve reach(b) ensuring avoid(a)); achieve avoid(a) & avoid(b)",
    "achieve reach(a); (achieve reach(b); achieve reach(a)) ensuring avoid(a) | avoid(b)",
    "((achieve reach(a) ensuring avoid(b)) or achieve reach(b)); achieve reach(a) ensuring reach(a)",
]
CORNERS = {(i, j): (float(i), float(j)) for i in (0, 1) for j in (0, 1)}
HALVES = {"a": Region((1.0, 0.0), (0.5, np.inf)), "b": Region((0.0, 1.0), (np.inf, 0.5))}


@pytest.mark.parametrize("text", TRICKY)
def test_every_short_rollout_over_two_regions(text):
    """All 1,364 rollouts of up to five states, each in a, in b, in both or in neither."""
    spec = parse(text)
    answers = set()
    for length in range(1, 6):
        words = list(itertools.product(CORNERS, repeat=length))
        expected = [definition.satisfies([{"a": bool(i), "b": bool(j)} for i, j in word], spec) for word in words]
        states = np.array(words, dtype=float)
        assert satisfied(spec, HALVES, states).tolist() == expected
        answers.update(expected)
    assert answers == {True, False}


@examples(100)
@given(specs, seeds, st.booleans())
def test_the_sign_of_robustness_agrees_with_satisfaction(spec, seed, grid):
    states = rollouts(seed, 100, 6, grid)
    rho, answer = robustness(spec, REGIONS, states), satisfied(spec, REGIONS, states)
    assert answer[rho > 0].all()
    assert not answer[rho < 0].any()


@examples()
@given(predicates, seeds)
def test_the_sign_of_a_predicate_agrees_with_whether_it_holds(predicate, seed):
    states = rollouts(seed, 10, 5)
    rho, answer = predicate_robustness(predicate, REGIONS, states), holds(predicate, REGIONS, states)
    assert answer[rho > 0].all() and not answer[rho < 0].any()
    assert answer.shape == rho.shape == (10, 5)
    for state, held in zip(states[0], answer[0], strict=True):
        assert definition.models(definition.inside(REGIONS, state), predicate) == held


def test_the_rest_of_the_rollout_belongs_to_a_part_of_it():
    """`φ1 ensuring b` holds of the part that φ1 gets, which may go on after it has reached its target."""
    spec = parse("achieve reach(a) ensuring avoid(b); achieve reach(b)")
    a, b, neither = (1, 0), (0, 1), (0, 0)
    assert satisfied(spec, HALVES, [a, b])
    assert satisfied(spec, HALVES, [neither, a, neither, b])
    assert not satisfied(spec, HALVES, [b, a, neither, b])
    whole = parse("(achieve reach(a); achieve reach(b)) ensuring avoid(b)")
    assert not satisfied(whole, HALVES, [a, b])
    last = parse("achieve reach(a) ensuring avoid(b)")
    assert satisfied(last, HALVES, [a, neither]) and not satisfied(last, HALVES, [a, neither, b])


def test_a_sequence_needs_a_state_for_each_part():
    spec = parse("achieve reach(a); achieve reach(a)")
    assert not satisfied(spec, HALVES, [(1, 0)])
    assert robustness(spec, HALVES, [(1.0, 0.0)]) == -np.inf
    assert satisfied(spec, HALVES, [(1, 0), (1, 0)])


@examples(30)
@given(specs, seeds)
def test_padding_of_any_content_does_not_matter(spec, seed):
    ends = lengths(seed, 20, TIME)
    results = []
    for filling in (0.0, 1e308, np.nan, np.inf, -np.inf):
        states = rollouts(seed, 20, TIME)
        states[np.arange(TIME) >= ends[:, None]] = filling
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            results.append(
                (
                    satisfied(spec, REGIONS, states, ends).tolist(),
                    robustness(spec, REGIONS, states, ends).tolist(),
                )
            )
    one_by_one = [satisfied(spec, REGIONS, s[:end]).item() for s, end in zip(states, ends, strict=True)]
    assert results[0][0] == one_by_one
    assert all(result == results[0] for result in results)


@examples(20)
@given(specs, seeds)
def test_any_batch_shape(spec, seed):
    states = rollouts(seed, 24, 5)
    flat = satisfied(spec, REGIONS, states)
    nested = satisfied(spec, REGIONS, states.reshape(2, 3, 4, 5, 2))
    assert nested.shape == (2, 3, 4) and nested.ravel().tolist() == flat.tolist()
    single = satisfied(spec, REGIONS, states[0])
    assert single.shape == () and single == flat[0]
    assert robustness(spec, REGIONS, states[0]).shape == ()
    assert satisfied(spec, REGIONS, states[:0]).shape == (0,)
    assert satisfied(spec, REGIONS, states.astype(np.float32)).tolist() == flat.tolist()
    assert satisfied(spec, REGIONS, states.astype(int)).tolist() == flat.tolist()


def test_long_rollouts_are_worked_on_in_blocks(monkeypatch):
    spec, states = parse(TRICKY[7]), rollouts(3, 40, 50)
    ends = lengths(3, 40, 50)
    whole = robustness(spec, REGIONS, states, ends)
    for size in (1, 40, 7 * 40):
        monkeypatch.setattr("dibs.spectrl.semantics._BLOCK", size)
        assert robustness(spec, REGIONS, states, ends).tolist() == whole.tolist()


def test_regions_may_differ_between_rollouts_and_move_in_time():
    spec = parse("achieve reach(a) ensuring avoid(b)")
    states = rollouts(0, 6, 5)
    centers = np.arange(12.0).reshape(6, 1, 2) % 5
    each = {"a": Region(centers, 1.0), "b": REGIONS["b"]}
    expected = [
        satisfied(spec, {"a": Region(c[0], 1.0), "b": REGIONS["b"]}, s).item()
        for c, s in zip(centers, states, strict=True)
    ]
    assert satisfied(spec, each, states).tolist() == expected
    # Three regions for each of six rollouts.
    grid = satisfied(spec, {"a": Region(centers[:3, None], 1.0), "b": REGIONS["b"]}, states)
    assert grid.shape == (3, 6) and grid[1, 1] == expected[1]
    # A region that follows the rollout is reached at once, and until the last valid state only.
    follows = {"a": Region(states[0], 0.1), "b": Region((99.0, 99.0), 1.0)}
    everywhere = parse("achieve reach(b) | avoid(b) ensuring reach(a)")
    assert satisfied(everywhere, follows, states[:1], [3]).all()


@pytest.mark.parametrize(
    ("states", "ends", "words"),
    [
        (np.zeros(2), None, r"states: expected shape \(..., time, dim\), none of them 0, found \(2,\)"),
        (np.zeros((4, 0, 2)), None, "none of them 0"),
        (np.zeros((4, 5, 3)), None, "region 'a' has 2 dimensions, but the states have 3"),
        ([["x", "y"]], None, "expected numbers"),
        ([[1, 2], [3]], None, "expected an array"),
        (np.zeros((4, 5, 2)), [1, 2], r"lengths: expected one per rollout, shape \(4,\), found shape \(2,\)"),
        (np.zeros((4, 5, 2)), [1, 2, 0, 3], r"lengths\[2\] is 0; expected 1 to 5"),
        (np.zeros((4, 5, 2)), 6, r"lengths\[0\] is 6; expected 1 to 5"),
        (np.zeros((4, 5, 2)), [1.0, 2.0, 3.0, 4.0], "lengths: expected integers"),
    ],
)
@pytest.mark.parametrize("function", [satisfied, robustness])
def test_wrong_shapes_are_named(function, states, ends, words):
    with pytest.raises(DibsError, match=words):
        function(parse("achieve reach(a)"), REGIONS, states, ends)


def test_a_nan_is_found():
    states = np.zeros((4, 5, 2))
    states[2, 3, 1] = np.nan
    spec = parse("achieve reach(a)")
    with pytest.raises(DibsError, match=r"states\[2, 3\] is \[0.0, nan\]: NaN in 1 of the states"):
        satisfied(spec, REGIONS, states)
    with pytest.raises(DibsError, match=r"states\[2, 3\]"):
        satisfied(spec, REGIONS, states, [5, 5, 4, 5])
    assert satisfied(spec, REGIONS, states, [5, 5, 3, 5]).all()
    with pytest.raises(DibsError, match="NaN"):
        holds(parse_predicate("reach(a)"), REGIONS, states)


def test_an_unknown_region_is_named_with_the_nearest():
    regions = {"goal_1": Region((0, 0), (1, 1)), "wall": Region((5, 5), (1, 1))}
    with pytest.raises(DibsError, match=r"unknown region 'goal1'. Did you mean 'goal_1'\? Known: goal_1, wall"):
        satisfied(parse("achieve reach(goal1)"), regions, np.zeros((3, 2)))
    with pytest.raises(DibsError, match="unknown region 'wal'"):
        holds(parse_predicate("avoid(wal)"), regions, np.zeros(2))


def test_regions_that_fit_no_rollout_are_named():
    regions = {"a": Region(np.zeros((3, 1, 2)), 1.0)}
    with pytest.raises(DibsError, match=r"region 'a' is an array of boxes of shape \(3, 1\)"):
        satisfied(parse("achieve reach(a)"), regions, np.zeros((4, 5, 2)))
    with pytest.raises(DibsError, match="regions vary over 7 steps, but the rollouts have 1"):
        satisfied(parse("achieve reach(a)"), {"a": Region(np.zeros((7, 2)), 1.0)}, np.zeros((4, 1, 2)))


def test_a_thousand_rollouts_are_decided_in_milliseconds():
    """5-reach with 5 obstacles, 1000 rollouts of 100 steps: about 5 ms; the bound allows a busy machine."""
    goals = "; ".join(f"achieve reach(g{i})" for i in range(1, 6))
    spec = parse(f"({goals}) ensuring {' & '.join(f'avoid(o{i})' for i in range(1, 6))}")
    regions = {f"g{i}": Region((5.0 * i, 8.0 * i), (1, 1)) for i in range(1, 6)}
    regions |= {f"o{i}": Region((5.0 * i, 8.0 * i - 4), (1, 1)) for i in range(1, 6)}
    states = np.linspace((0, 0), (26, 42), 100) + np.random.default_rng(0).normal(0, 0.3, (1000, 100, 2))
    best = np.inf
    for _ in range(10):
        start = time.perf_counter()
        satisfied(spec, regions, states)
        best = min(best, time.perf_counter() - start)
    assert best < 0.05
