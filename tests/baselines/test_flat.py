"""The whole specification as one task: its stages against the monitor, its counts against the semantics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

import dibs.baselines.flat
from dibs.baselines.flat import FlatTask, Last, evaluate_flat, rollout
from dibs.baselines.tracking import Layered, Monitored, Track, layered
from dibs.envs import Array
from dibs.evaluation.composed import rollouts, satisfaction
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family, get_benchmark, get_family
from dibs.policies.network import Network
from dibs.policies.scaling import edge_scaling
from dibs.spectrl import Box, Monitor, parse, satisfied
from dibs.spectrl.stages import stages_of

BENCHMARKS = (
    "car2d-reach-k3",
    "car2d-reach-obs-k2",
    "car2d-choice-l2",
    "car2d-switch",
    "reacher-drop-opposite-8",
    "simpledrone-reach-k2",
    "droneattitude-reach-k2",
)
NESTED = (
    "((achieve reach(g11); achieve reach(goal1)) or achieve reach(g12)) ensuring avoid(wall1); achieve reach(goal2)"
)


class Constant:
    """Always the same action."""

    def __init__(self, *action: float) -> None:
        self.action = np.array(action, dtype=np.float32)

    def start(self, indices: Sequence[int], rollouts: int) -> None:
        pass

    def act(self, observations: Array, last: Last | None) -> Array:
        return np.broadcast_to(self.action, (*observations.shape[:-1], len(self.action)))


NORTH_EAST = Constant(1.0, float(np.arctan2(8.0, 5.0) / np.pi))  # along the goals of car2d-reach


def walks(task: FlatTask, rng: np.random.Generator, rollouts: int) -> Array:
    """Recorded states (time, 2, tasks, rollouts, dim) that wander from region to region, into walls, too."""
    at = np.asarray(task.indices)
    boxes = [region.box(at) for region in task.family.regions.values()]
    low, high = task.family.dynamics.bounds
    states = np.broadcast_to(task.draw(rollouts, rng).starts, (2, task.tasks, rollouts, task.state_dim)).copy()
    kept = [states]
    goal = rng.integers(len(boxes), size=(2, task.tasks, rollouts))
    centers = np.stack([box.center for box in boxes])  # (regions, tasks, dim)
    for _ in range(task.horizon):
        wanted = centers[goal, np.arange(task.tasks)[:, None]]
        way = wanted - states
        length = np.linalg.norm(way, axis=-1, keepdims=True)
        states = states + way / np.maximum(length, 1.0) * rng.uniform(0.5, 2.0, length.shape)
        states = np.clip(states + rng.normal(0.0, 0.1, states.shape), low, high).astype(np.float32)
        arrived = length[..., 0] < 1.5
        goal = np.where(arrived, rng.integers(len(boxes), size=goal.shape), goal)
        kept.append(states)
    return np.stack(kept)


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_stages_are_those_of_the_monitor(benchmark: str) -> None:
    family, text = get_benchmark(benchmark)
    task = FlatTask(family, text, (0, 3, family.last_index))
    assert isinstance(task._tracker, Layered)
    compare(task, np.random.default_rng(0))


def test_a_specification_that_is_not_layered_is_followed_by_the_monitor() -> None:
    task = FlatTask(get_family("car2d-choice"), NESTED, (0, 10))
    assert not layered(stages_of(task.spec))
    assert isinstance(task._tracker, Monitored)
    compare(task, np.random.default_rng(1))


def compare(task: FlatTask, rng: np.random.Generator) -> None:
    recorded = walks(task, rng, 50)
    at = np.asarray(task.indices)
    boxes = {n: r.box(at) for n, r in task.family.regions.items()}
    monitor = Monitor(task.spec, {n: Box(b.center[:, None], b.half_width[:, None]) for n, b in boxes.items()})
    track, seen = task._tracker.begin(recorded[0]), monitor.start(recorded[0])
    over = np.zeros(recorded.shape[1:-1], dtype=bool)
    reached, failed = 0, 0
    single = all(len(set(levels)) == len(levels) for levels in [stages_of(task.spec).levels])
    for states in recorded[1:]:
        over |= monitor.satisfied(seen) | monitor.violated(seen)
        assert np.array_equal(track.alive, ~over)
        track, seen = task._tracker.advance(track, states), monitor.advance(seen, states)
        going = ~over & ~monitor.violated(seen)
        assert np.array_equal(track.stage[going], monitor.stage(seen)[going])
        if single and task._tracker.__class__ is Layered:
            rest = task._tracker.rest[0].reshape(-1, task.tasks)[track.stage, np.arange(task.tasks)[:, None]]
            expected = rest - np.minimum(monitor.progress_robustness(seen), 0.0)
            np.testing.assert_allclose(track.distance[track.alive], expected[track.alive], rtol=1e-4, atol=1e-4)
        reached += int((track.stage[going] > 0).sum())
        failed += int((~over & monitor.violated(seen)).sum())
    assert reached > 0
    if any(stage.safe is not None for stage in stages_of(task.spec).stages):
        assert failed > 0


@pytest.mark.parametrize("benchmark", ["car2d-reach-k2", "car2d-reach-obs-k1", "car2d-choice-l1"])
def test_success_agrees_with_the_semantics_on_the_recorded_states(benchmark: str) -> None:
    family, text = get_benchmark(benchmark)
    task = FlatTask(family, text, (0, 2, 7))
    network = Network(task.observation_dim, (8,), task.action_dim)
    theta = network.initial(np.random.default_rng(3), gain=0.1)
    theta[-2:] = [2.0, np.arctanh(np.arctan2(8.0, 5.0) / np.pi)]

    class Nearly:
        def start(self, indices: Sequence[int], rollouts: int) -> None:
            pass

        def act(self, observations: Array, last: Last | None) -> Array:
            return network.forward(theta, observations)

    outcome = rollout(task, Nearly(), task.draw(200, np.random.default_rng(4)), record=True)
    assert outcome.states is not None
    for i, index in enumerate(task.indices):
        won = satisfied(task.spec, family.boxes(index), outcome.states[i], outcome.lengths[i])
        assert np.array_equal(won, outcome.success[i])


def test_counts_are_those_of_the_composed_evaluation_where_both_act_alike() -> None:
    family, text = get_benchmark("car2d-reach-k1")
    settings = EvaluationSettings(rollouts=300)
    network = Network(2, tuple(family.network.hidden), 2)
    theta = np.zeros((len(family.edges), network.size), dtype=np.float32)
    theta[:, -2:] = np.arctanh(np.array([0.9, 0.28], dtype=np.float32))  # misses now and then
    actors = dict.fromkeys([0, 5, 41], theta)
    recorded = rollouts(family, network, edge_scaling(family), actors, {i: ["start>g1"] for i in actors}, 300, 7)
    flat = evaluate_flat(family, text, Constant(0.9, 0.28), [0, 5, 41], settings, 7)
    assert flat == satisfaction(family, parse(text), recorded)
    assert 0 < flat[0] < 300


def test_an_index_counts_the_same_whatever_else_is_evaluated() -> None:
    family, text = get_benchmark("car2d-reach-k2")
    settings = EvaluationSettings(rollouts=50)
    together = evaluate_flat(family, text, NORTH_EAST, range(12), settings, 0)
    assert evaluate_flat(family, text, NORTH_EAST, [9, 3], settings, 0) == {3: together[3], 9: together[9]}
    assert evaluate_flat(family, text, NORTH_EAST, [3], settings, 1) != {3: 0}


def test_the_semantics_decide_whatever_the_tracker_believes(monkeypatch: pytest.MonkeyPatch) -> None:
    family, text = get_benchmark("car2d-reach-k1")
    settings = EvaluationSettings(rollouts=20)
    assert evaluate_flat(family, text, NORTH_EAST, [0], settings, 0) == {0: 20}
    standing = Constant(-1.0, 0.0)

    class Flatterer:
        def begin(self, states: Array) -> Track:
            shape = states.shape[:-1]
            return Track(np.zeros(shape, dtype=np.intp), np.zeros(shape), np.ones(shape, dtype=bool), None)

        def advance(self, track: Track, states: Array) -> Track:
            return Track(track.stage + 1, track.distance, np.zeros_like(track.alive), None)

    monkeypatch.setattr(dibs.baselines.flat, "tracker", lambda *_: Flatterer())
    assert evaluate_flat(family, text, standing, [0], settings, 0) == {0: 0}


def test_a_policy_that_is_no_number_satisfies_nothing() -> None:
    family, text = get_benchmark("car2d-reach-k1")
    assert evaluate_flat(family, text, Constant(np.nan, 0.0), [0, 1], EvaluationSettings(rollouts=5), 0) == {0: 0, 1: 0}


def test_policies_are_told_what_the_last_step_did_and_which_indices_they_are_at() -> None:
    family, text = get_benchmark("car2d-reach-k1")
    heard: list[Last | None] = []

    class Listener(Constant):
        def start(self, indices: Sequence[int], rollouts: int) -> None:
            assert (tuple(indices), rollouts) == ((4, 8), 3)

        def act(self, observations: Array, last: Last | None) -> Array:
            heard.append(last)
            return super().act(observations, last)

    task = FlatTask(family, text, (4, 8))
    rollout(task, Listener(1.0, 0.0), task.draw(3, np.random.default_rng(0)))
    assert heard[0] is None and len(heard) == task.horizon
    assert heard[1] is not None and heard[1].rewards.shape == heard[1].alive.shape == (2, 3)


def test_observations_are_scaled_states_and_the_stage() -> None:
    family, text = get_benchmark("car2d-reach-k3")
    task = FlatTask(family, text, (0,))
    center, half = task.scaling
    seen = task.observe(np.stack([center, center + half, center]), np.array([0, 1, 2]))
    np.testing.assert_allclose(seen, [[0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1]], atol=1e-6)
    assert seen.shape[-1] == task.observation_dim
    assert FlatTask(family, text, (0,), observe_stage=False).observe(center[None], np.array([1])).shape == (1, 2)
    # Constants of the benchmark, not of the indices at hand.
    assert np.array_equal(FlatTask(family, text, (17, 80)).scaling[0], center)


@pytest.mark.parametrize(("kind", "penalty"), [("distance", 1.0), ("progress", 1.0), ("progress", 0.1)])
def test_running_into_an_obstacle_does_not_pay(kind: dibs.baselines.flat.RewardKind, penalty: float) -> None:
    family: Family
    family, text = get_benchmark("car2d-reach-obs-k1")
    task = FlatTask(family, text, (0,), reward_kind=kind, penalty=penalty)
    draws = task.draw(50, np.random.default_rng(0))
    block = family.boxes(0)["o1"].center
    crash = rollout(task, Constant(1.0, float(np.arctan2(block[1], block[0]) / np.pi)), draws)
    stand = rollout(task, Constant(-1.0, 0.0), draws)
    assert crash.lengths.mean() < task.horizon / 2 and not crash.success.any()
    assert crash.returns.mean() < stand.returns.mean()
    free = rollout(replace(task, penalty=0.0), Constant(1.0, float(np.arctan2(block[1], block[0]) / np.pi)), draws)
    assert (crash.returns <= free.returns - penalty * family.reward.unsafe_penalty + 1e-4).all()


def test_progress_adds_up_to_the_way_covered_and_the_stages_completed() -> None:
    family, text = get_benchmark("car2d-reach-k2")
    task = FlatTask(family, text, (0, 5), reward_kind="progress", bonus=2.0)
    draws = task.draw(30, np.random.default_rng(0))
    before = task.begin(draws.starts).track.distance
    outcome = rollout(task, NORTH_EAST, draws)
    assert outcome.success.all()
    np.testing.assert_allclose(outcome.returns, before / family.reward.unit + 4.0, rtol=1e-3)


def test_deeper_targets_are_reached_later() -> None:
    family, text = get_benchmark("car2d-reach-k1")
    draws = FlatTask(family, text, (0,)).draw(50, np.random.default_rng(0))
    lengths = [rollout(FlatTask(family, text, (0,), depth=d), NORTH_EAST, draws).lengths.mean() for d in (0.0, 0.5)]
    assert lengths[0] < lengths[1]
