from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from dibs.errors import DibsError
from dibs.spectrl import Monitor, Region, parse, predicate_robustness, satisfied, where

from .strategies import REGIONS, examples, rollouts, seeds, specs

HALVES = {"a": Region((1.0, 0.0), (0.5, np.inf)), "b": Region((0.0, 1.0), (np.inf, 0.5))}
A, B, BOTH, NEITHER = (1, 0), (0, 1), (1, 1), (0, 0)


def follow(monitor, rollout):
    """Return the monitor's state after each state of one rollout."""
    states = [monitor.start([rollout[0]])]
    for s in rollout[1:]:
        states.append(monitor.advance(states[-1], [s]))
    return states


@examples(80)
@given(specs, seeds)
def test_the_monitor_is_the_semantics_at_every_prefix(spec, seed):
    states = rollouts(seed, 50, 8)
    monitor = Monitor(spec, REGIONS)
    violated = np.zeros(50, dtype=bool)
    state = None
    for k in range(states.shape[1]):
        state = monitor.start(states[:, k]) if state is None else monitor.advance(state, states[:, k])
        expected = satisfied(spec, REGIONS, states[:, : k + 1])
        assert monitor.satisfied(state).tolist() == expected.tolist()
        assert not expected[violated].any(), "a violated rollout can never be satisfied"
        assert monitor.violated(state)[violated].all(), "nor recover"
        violated = monitor.violated(state)
        stage = monitor.stage(state)
        assert ((stage == monitor.stages) == expected).all()
        assert ((stage >= 0) & (stage <= monitor.stages)).all() and not stage[violated].any()
        progress = monitor.progress_robustness(state)
        assert progress.shape == (50,) and np.isfinite(progress).all()
        assert not progress[expected].any()


def test_progress_through_a_sequence():
    monitor = Monitor(parse("achieve reach(a); achieve reach(b)"), HALVES)
    assert monitor.stages == 2
    states = follow(monitor, [NEITHER, A, NEITHER, B, NEITHER])
    assert [monitor.stage(s).item() for s in states] == [0, 1, 1, 2, 2]
    assert [monitor.satisfied(s).item() for s in states] == [False, False, False, True, True]
    # While a is awaited, the distance to a; from the moment it is reached, the distance to b.
    assert [monitor.progress_robustness(s).item() for s in states] == [-0.5, -0.5, -0.5, 0, 0]


def test_one_state_does_not_serve_two_stages():
    monitor = Monitor(parse("achieve reach(a); achieve reach(b)"), HALVES)
    first, second = follow(monitor, [BOTH, BOTH])
    assert monitor.stage(first) == 1 and monitor.stage(second) == 2


def test_violation_is_when_every_way_is_cut_off():
    monitor = Monitor(parse("achieve reach(a) ensuring avoid(b) or achieve reach(b)"), HALVES)
    assert not any(monitor.violated(s) for s in follow(monitor, [NEITHER, B, A]))
    monitor = Monitor(parse("achieve reach(a) ensuring avoid(b); achieve reach(b)"), HALVES)
    assert [monitor.violated(s).item() for s in follow(monitor, [NEITHER, B, A, B])] == [
        False,
        True,
        True,
        True,
    ]
    # Once the second stage has begun, the first one's safety is behind it.
    states = follow(monitor, [A, B, NEITHER])
    assert not any(monitor.violated(s) for s in states)
    assert [monitor.stage(s).item() for s in states] == [1, 2, 2]


def test_progress_is_kept_where_the_earlier_safety_is_behind():
    spec = parse("achieve reach(a) ensuring avoid(b); achieve reach(a) & reach(b)")
    monitor = Monitor(spec, HALVES)
    states = follow(monitor, [A, NEITHER, B, NEITHER])
    assert [monitor.stage(s).item() for s in states] == [1, 1, 1, 1]
    assert not states[-1].done.any()


def test_a_short_branch_counts_as_much_as_a_long_one():
    spec = parse("(achieve reach(a) or (achieve reach(b); achieve avoid(b))); achieve reach(a) & reach(b)")
    monitor = Monitor(spec, HALVES)
    assert monitor.stages == 3
    assert [monitor.stage(s).item() for s in follow(monitor, [NEITHER, A, BOTH])] == [0, 2, 3]
    assert [monitor.stage(s).item() for s in follow(monitor, [B, NEITHER, BOTH])] == [1, 2, 3]


def test_progress_looks_ahead_not_at_branches_left_behind():
    regions = {"g1": Region((0, 0), 1), "g2": Region((2, 0), 1), "goal": Region((9, 0), 1)}
    monitor = Monitor(parse("(achieve reach(g1) or achieve reach(g2)); achieve reach(goal)"), regions)
    first, second = follow(monitor, [(-4.0, 0.0), (0.0, 0.0)])
    assert monitor.progress_robustness(first) == -3  # g1 is nearer than g2
    assert monitor.progress_robustness(second) == -8  # goal is what is left, though g2 is nearer


def test_a_violated_rollout_still_has_a_finite_signal():
    monitor = Monitor(parse("(achieve reach(a); achieve reach(b)) ensuring avoid(b)"), HALVES)
    state = monitor.start([(-3.0, 1.0)])
    assert monitor.violated(state) and monitor.progress_robustness(state) == -3.5


@examples(30)
@given(specs, seeds)
def test_some_rollouts_of_a_batch_are_started_again(spec, seed):
    states = rollouts(seed, 30, 8)
    restart = np.random.default_rng(seed).integers(0, 8, 30)  # each rollout's last restart
    monitor = Monitor(spec, REGIONS)
    state = monitor.start(states[:, 0])
    for k in range(1, 8):
        state = where(restart == k, monitor.start(states[:, k]), monitor.advance(state, states[:, k]))
    expected = [satisfied(spec, REGIONS, s[r:]).item() for s, r in zip(states, restart, strict=True)]
    assert monitor.satisfied(state).tolist() == expected
    assert state.states.tolist() == states[:, -1].tolist()


def test_states_of_the_monitor_are_values():
    monitor = Monitor(parse("achieve reach(a); achieve reach(b)"), HALVES)
    simulator = np.array([A, B, NEITHER], dtype=float)
    first = monitor.start(simulator)
    kept = first.waiting.copy(), first.done.copy(), first.states.copy()
    simulator[:] = 1.0  # a simulator that reuses its array
    monitor.advance(first, simulator)
    for now, then in zip((first.waiting, first.done, first.states), kept, strict=True):
        assert np.array_equal(now, then)


def test_regions_may_differ_between_rollouts():
    centers = np.array([[0.0, 0.0], [5.0, 5.0]])
    monitor = Monitor(parse("achieve reach(a)"), {"a": Region(centers, 1.0)})
    state = monitor.start(np.zeros((2, 2)))
    assert monitor.satisfied(state).tolist() == [True, False]
    assert monitor.satisfied(monitor.advance(state, np.full((2, 2), 5.0))).tolist() == [True, True]


@examples(20)
@given(seeds)
def test_any_batch_shape(seed):
    spec = parse("achieve reach(a) or (achieve reach(b); achieve reach(c)) ensuring avoid(d)")
    states = rollouts(seed, 6, 2)
    monitor = Monitor(spec, REGIONS)
    flat = monitor.advance(monitor.start(states[:, 0]), states[:, 1])
    nested_states = states.reshape(3, 2, 2, 2)
    nested = monitor.advance(monitor.start(nested_states[:, :, 0]), nested_states[:, :, 1])
    single = monitor.advance(monitor.start(states[0, 0]), states[0, 1])
    for question in (monitor.satisfied, monitor.violated, monitor.stage, monitor.progress_robustness):
        assert question(nested).shape == (3, 2)
        assert question(nested).ravel().tolist() == question(flat).tolist()
        assert question(single).shape == () and question(single) == question(flat)[0]


def test_the_signal_is_the_robustness_of_the_target():
    monitor = Monitor(parse("achieve reach(a) & avoid(b)"), REGIONS)
    states = rollouts(5, 40, 1, grid=False)[:, 0]
    state = monitor.start(states)
    expected = predicate_robustness(monitor.spec.predicate, REGIONS, states)
    expected[monitor.satisfied(state)] = 0
    assert monitor.progress_robustness(state).tolist() == expected.tolist()


def test_mistakes_are_named():
    with pytest.raises(DibsError, match="unknown region 'x'"):
        Monitor(parse("achieve reach(x)"), HALVES)
    monitor = Monitor(parse("achieve reach(a)"), HALVES)
    state = monitor.start(np.zeros((3, 2)))
    with pytest.raises(DibsError, match=r"expected a batch of \(3,\), found \(4,\)"):
        monitor.advance(state, np.zeros((4, 2)))
    with pytest.raises(DibsError, match=r"states\[1\] is \[nan, 0.0\]"):
        monitor.advance(state, [(0, 0), (np.nan, 0), (0, 0)])
    with pytest.raises(DibsError, match="region 'a' has 2 dimensions"):
        monitor.start(np.zeros((3, 5)))
