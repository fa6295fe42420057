"""Signed distances, progress and rewards against plain Python and against `dibs.spectrl.Monitor`."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.envs import Array
from dibs.envs.car2d import Car2D
from dibs.families import NetworkModel, RewardModel, Tasks, get_benchmark, get_family
from dibs.simulation import EdgeTask, Progress, RewardKind, Rewards, SpecTask, draw, rollout, signed_distance
from dibs.simulation.distance import columns
from dibs.simulation.specifications import Layered, Monitored, layered
from dibs.simulation.tasks import step_reward
from dibs.spectrl import And, Avoid, Monitor, Not, Or, Predicate, Reach, Region
from dibs.spectrl.stages import Stages, stages_of

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
BONUS = Rewards(bonus=1.0)
SEEDS = st.integers(0, 2**32 - 1)


def spec_task(benchmark: str, indices: tuple[int, ...], rewards: Rewards = BONUS, depth: float = 0.0) -> SpecTask:
    found = get_benchmark(benchmark)
    return SpecTask(found.family.tasks(indices, found.specification), rewards, depth)


class Constant:
    """Always the same action."""

    stops, rewards = False, None

    def __init__(self, *action: float) -> None:
        self.action = np.array(action, dtype=np.float32)

    def begin(self, shape: tuple[int, ...]) -> None:
        return None

    def act(self, now: Any, memory: None) -> tuple[Array, None]:
        return np.broadcast_to(self.action, (*now.states.shape[:-1], len(self.action))), None


NORTH_EAST = Constant(1.0, float(np.arctan2(8.0, 5.0) / np.pi))  # along the goals of car2d-reach


# --- plain Python ----------------------------------------------------------------------------------------


def distance_to_box(state: Array, center: Array, half: Array) -> float:
    """The Euclidean signed distance of one state to one box, positive inside."""
    excess = [abs(float(s) - float(c)) - float(h) for s, c, h in zip(state, center, half, strict=True)]
    if max(excess) <= 0.0:
        return -max(excess)
    return -math.sqrt(sum(e * e for e in excess if e > 0.0))


def value(predicate: Predicate, boxes: dict[str, Region], state: Array) -> float:
    """The quantitative value of a predicate at one state, by its syntax tree."""
    match predicate:
        case Reach(region):
            return distance_to_box(state, boxes[region].center, boxes[region].half_width)
        case Avoid(region):
            return -distance_to_box(state, boxes[region].center, boxes[region].half_width)
        case Not(inner):
            return -value(inner, boxes, state)
        case And(left, right):
            return min(value(left, boxes, state), value(right, boxes, state))
        case Or(left, right):
            return max(value(left, boxes, state), value(right, boxes, state))
    raise AssertionError(predicate)


def random_tasks(rng: np.random.Generator, specification: str, indices: int = 3) -> Tasks:
    """Car2D with random regions; every second one leaves y free."""
    regions = {}
    for n, name in enumerate("abcd"):
        half = rng.uniform(0.3, 3.0, (indices, 2))
        half[:, 1] = np.inf if n % 2 else half[:, 1]
        regions[name] = Region(rng.uniform(-5.0, 5.0, (indices, 2)), half)
    return Tasks(
        name="random",
        environment=Car2D(),
        specification=specification,
        indices=tuple(range(indices)),
        start_center=rng.uniform(-5.0, 5.0, (indices, 2)),
        start_half=np.full((indices, 2), 0.3),
        regions=regions,
        horizon=5,
        reward=RewardModel(unit=float(rng.uniform(0.5, 9.0)), unsafe_penalty=4.0, margin=float(rng.choice([0.0, 0.7]))),
        network=NetworkModel(hidden=[8]),
    )


# --- signed distances ------------------------------------------------------------------------------------


@given(SEEDS, st.integers(1, 4), st.integers(0, 3))
def test_signed_distances_are_those_of_plain_python(seed: int, dim: int, free: int) -> None:
    rng = np.random.default_rng(seed)
    center, half = rng.uniform(-2.0, 2.0, (6, dim)), rng.uniform(0.1, 2.0, (6, dim))
    half[:, :free] = np.inf
    states = rng.uniform(-4.0, 4.0, (6, dim))
    found = signed_distance(states, columns(Region(center, half), states.dtype))
    for n in range(6):
        assert found[n] == pytest.approx(distance_to_box(states[n], center[n], half[n]))


# --- edges -----------------------------------------------------------------------------------------------

EDGES = (
    "achieve reach(a)",
    "achieve reach(b) ensuring avoid(c)",
    "achieve (reach(a) and avoid(d)) ensuring (avoid(b) and avoid(c))",
    "achieve reach(a) ensuring (avoid(b) and (reach(c) or avoid(d)))",
    "achieve reach(a) ensuring !(reach(b) and avoid(c))",
    "(achieve reach(a) ensuring avoid(b)) or achieve (reach(c) and avoid(d))",
)


@given(SEEDS, st.sampled_from(EDGES), st.sampled_from([0.0, 0.2]))
def test_edges_are_followed_as_in_plain_python(seed: int, specification: str, depth: float) -> None:
    rng = np.random.default_rng(seed)
    tasks = random_tasks(rng, specification)
    edges = [(index, edge) for index in tasks.indices for edge in tasks.edges]
    task = EdgeTask(tasks.reach_avoid(), depth)
    walk = rng.uniform(-6.0, 6.0, (7, 2, len(edges), 4, 2))  # (time, candidates, edges, rollouts, dim)
    progress = task.begin(walk[0])
    rewards = []
    before = [progress]
    for time, states in enumerate(walk[1:]):
        after = task.advance(progress, states)
        rewards.append(task.reward(progress, after, time))
        progress = after
        before.append(progress)
    success = task.success(progress)
    for t, (index, edge) in enumerate(edges):
        boxes = tasks.regions_at(index)
        for c in range(2):
            for r in range(4):
                alive = safe = True
                for time in range(1, 7):
                    state = walk[time, c, t, r]
                    inside = value(edge.target, boxes, state)
                    expected = min(inside, 0.0) / tasks.reward.unit
                    if edge.safe is not None:
                        safety = value(edge.safe, boxes, state)
                        if safety < 0.0:
                            expected -= tasks.reward.unsafe_penalty
                        elif safety < tasks.reward.margin:
                            near = (tasks.reward.margin - safety) / tasks.reward.margin
                            expected -= 0.5 * near * tasks.reward.unsafe_penalty
                        safe = safe and (safety >= 0.0 or not alive)
                    alive = alive and not inside >= depth
                    assert rewards[time - 1][c, t, r] == pytest.approx(expected, rel=1e-5, abs=1e-6)
                    assert before[time].alive[c, t, r] == alive and before[time].safe[c, t, r] == safe
                assert success[c, t, r] == (safe and not alive)


# --- whole specifications --------------------------------------------------------------------------------


def walks(task: SpecTask, rng: np.random.Generator, rollouts: int) -> Array:
    """States (time, 2, tasks, rollouts, dim) that wander from region to region, into walls, too."""
    boxes = list(task.grounded.regions.values())
    low, high = task.environment.bounds
    starts = draw(task, rollouts, rng).starts
    states = np.broadcast_to(starts, (2, *starts.shape)).copy()
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


def monitor_of(task: SpecTask) -> Monitor:
    boxes = task.grounded.regions
    return Monitor(task.grounded.spec, {n: Region(b.center[:, None], b.half_width[:, None]) for n, b in boxes.items()})


@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_stages_are_those_of_the_monitor(benchmark: str) -> None:
    family = get_benchmark(benchmark).family
    task = spec_task(benchmark, (0, 3, family.last_index))
    assert isinstance(task._tracker, Layered)
    compare_with_monitor(task, np.random.default_rng(0))


def test_a_specification_that_is_not_layered_is_followed_by_the_monitor() -> None:
    task = SpecTask(get_family("car2d-choice").tasks((0, 10), NESTED))
    assert not layered(stages_of(task.grounded.spec))
    assert isinstance(task._tracker, Monitored)
    compare_with_monitor(task, np.random.default_rng(1))


def compare_with_monitor(task: SpecTask, rng: np.random.Generator) -> None:
    recorded = walks(task, rng, 50)
    monitor, program = monitor_of(task), stages_of(task.grounded.spec)
    progress, state = task.begin(recorded[0]), monitor.start(recorded[0])
    over = np.zeros(recorded.shape[1:-1], dtype=bool)
    reached, failed = 0, 0
    single = len(set(program.levels)) == len(program.levels)
    for states in recorded[1:]:
        over |= monitor.satisfied(state) | monitor.violated(state)
        assert np.array_equal(progress.alive, ~over)
        progress, state = task.advance(progress, states), monitor.advance(state, states)
        violated = monitor.violated(state)
        going = ~over & ~violated
        assert np.array_equal(progress.stage[going], monitor.stage(state)[going])
        assert np.array_equal(progress.safe[~over], ~violated[~over])
        if single and isinstance(task._tracker, Layered):
            rest = task._tracker.rest[0].reshape(-1, task.tasks)[progress.stage, np.arange(task.tasks)[:, None]]
            expected = rest - np.minimum(monitor.progress_robustness(state), 0.0)
            alive = progress.alive
            np.testing.assert_allclose(progress.distance[alive], expected[alive], rtol=1e-4, atol=1e-4)
        reached += int((progress.stage[going] > 0).sum())
        failed += int((~over & violated).sum())
    assert reached > 0
    if any(stage.safe is not None for stage in program.stages):
        assert failed > 0


LAYERED = (
    "achieve reach(a); achieve reach(b); achieve reach(c)",
    "(achieve reach(a); achieve reach(b)) ensuring (avoid(c) and avoid(d))",
    "((achieve reach(a) or achieve reach(b)); achieve reach(c)) ensuring avoid(d)",
    "(achieve reach(a); (achieve reach(b) or achieve reach(c))) ensuring (avoid(d) | reach(a))",
)


@given(SEEDS, st.sampled_from(LAYERED))
def test_both_trackers_agree(seed: int, specification: str) -> None:
    """Random regions and states: stage, end and safety; `Monitored` knows no safety margin and no shortest way."""
    rng = np.random.default_rng(seed)
    task = SpecTask(random_tasks(rng, specification))
    assert isinstance(task._tracker, Layered)
    other = Monitored(task.grounded, task.grounded.regions)
    walk = rng.uniform(-6.0, 6.0, (9, task.tasks, 5, 2)).astype(np.float32)
    one, two = task.begin(walk[0]), other.begin(walk[0])
    for states in walk[1:]:
        assert np.array_equal(one.alive, two.alive) and np.array_equal(one.safe, two.safe)
        assert np.array_equal(one.stage[one.alive], two.stage[one.alive])
        assert np.array_equal(task.success(one), task.success(two))  # also long after an episode was satisfied
        one, two = task.advance(one, states), other.advance(two, states)


@given(SEEDS, st.sampled_from(LAYERED), st.sampled_from([0.0, 0.25]))
def test_the_distance_to_go_is_the_shortest_way_through_the_targets(
    seed: int, specification: str, depth: float
) -> None:
    rng = np.random.default_rng(seed)
    task = SpecTask(random_tasks(rng, specification), depth=depth)
    program = stages_of(task.grounded.spec)
    walk = rng.uniform(-6.0, 6.0, (6, task.tasks, 4, 2)).astype(np.float32)
    progress = None
    for states in walk:
        progress = task.begin(states) if progress is None else task.advance(progress, states)
        for (i, index), r in itertools.product(enumerate(task.indices), range(4)):
            expected = 0.0
            if progress.alive[i, r]:
                boxes, level = task.grounded.regions_at(index), int(progress.stage[i, r])
                expected = min(
                    _way(program, boxes, s) - min(value(program.stages[s].target, boxes, states[i, r]) - depth, 0.0)
                    for s in _at_level(program, level + 1)
                )
            assert progress.distance[i, r] == pytest.approx(expected, rel=1e-4, abs=1e-4)


def _at_level(program: Stages, level: int) -> list[int]:
    return [n for n, own in enumerate(program.levels) if own == level]


def _way(program: Stages, boxes: dict[str, Region], stage: int) -> float:
    """From the center of a stage's target through one target of every level after it."""

    def center(number: int) -> Array:
        target = program.stages[number].target
        assert isinstance(target, Reach)
        return boxes[target.region].center

    following = _at_level(program, program.levels[stage] + 1)
    ways = [float(np.linalg.norm(center(s) - center(stage))) + _way(program, boxes, s) for s in following]
    return min(ways, default=0.0)


@pytest.mark.parametrize("specification", ["car2d-reach-obs-k2", NESTED])
def test_restarted_episodes_are_like_new_ones(specification: str) -> None:
    nested = specification == NESTED
    task = SpecTask(get_family("car2d-choice").tasks((4,), NESTED)) if nested else spec_task(specification, (4,))
    recorded = walks(task, np.random.default_rng(2), 20)[:, 0]
    progress = task.begin(recorded[0])
    for states in recorded[1:15]:
        progress = task.advance(progress, states)
    rows = np.array([0, 3, 19])
    mixed = recorded[15].copy()
    mixed[:, rows] = recorded[0][:, rows]
    again = task.restart(progress, mixed, rows)
    fresh = task.begin(recorded[0])
    kept = np.setdiff1d(np.arange(20), rows)
    for states in (mixed, *recorded[16:20]):
        for name in ("stage", "distance", "alive", "safe"):
            assert np.array_equal(getattr(again, name)[:, rows], getattr(fresh, name)[:, rows])
            assert np.array_equal(getattr(again, name)[:, kept], getattr(progress, name)[:, kept])
        again, fresh, progress = (task.advance(p, states) for p in (again, fresh, progress))


# --- rewards ---------------------------------------------------------------------------------------------


def plain_reward(
    model: RewardModel, rewards: Rewards, before: dict[str, Any], after: dict[str, Any], left: int, ends_unsafe: bool
) -> float:
    """The reward of one step of one episode."""
    penalty = rewards.penalty * model.unsafe_penalty
    failed = ends_unsafe and before["alive"] and not after["alive"] and not after["safe"]
    if failed:
        reward = (-before["distance"] / model.unit * left if rewards.kind == "distance" else 0.0) - penalty
    elif rewards.kind == "distance":
        reward = -after["distance"] / model.unit
    else:
        reward = (before["distance"] - after["distance"]) / model.unit
    safety = after["safety"]
    if safety is not None and not failed:
        if safety < 0.0 and not ends_unsafe:
            reward -= penalty
        elif 0.0 < model.margin > safety:
            reward -= 0.5 * penalty * min((model.margin - safety) / model.margin, 1.0)
    return reward + rewards.bonus * (after["stage"] > before["stage"])


@given(
    SEEDS,
    st.sampled_from(["distance", "progress"]),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.sampled_from([0.0, 0.5]),
    st.booleans(),
    st.booleans(),
)
def test_rewards_are_those_of_plain_python(
    seed: int, kind: RewardKind, bonus: float, penalty: float, margin: float, ends_unsafe: bool, anywhere_safe: bool
) -> None:
    rng = np.random.default_rng(seed)
    model = RewardModel(unit=float(rng.uniform(0.5, 10.0)), unsafe_penalty=5.0, margin=margin)
    rewards, left = Rewards(kind, bonus, penalty), int(rng.integers(1, 40))
    shape = (2, 3, 4)

    def progress(alive: Array, stage: Array) -> Progress:
        safety = None if anywhere_safe else rng.uniform(-1.0, 2.0, shape).astype(np.float32)
        distance = rng.uniform(0.0, 9.0, shape).astype(np.float32)
        safe = np.ones(shape, dtype=bool) if safety is None else safety >= 0.0
        return Progress(stage, distance, alive, safe, safety)

    before = progress(rng.random(shape) < 0.8, rng.integers(0, 3, shape))
    after = progress(before.alive & (rng.random(shape) < 0.7), before.stage + rng.integers(0, 2, shape))
    if ends_unsafe:  # an unsafe state is never alive then
        after = after._replace(alive=after.alive & after.safe)
    found = step_reward(model, rewards, before, after, left, ends_unsafe)
    assert found.dtype == np.float32
    for at in np.ndindex(shape):
        one, two = (
            {n: None if v is None else v[at] for n, v in p._asdict().items() if n != "memory"} for p in (before, after)
        )
        assert found[at] == pytest.approx(plain_reward(model, rewards, one, two, left, ends_unsafe), rel=1e-4, abs=1e-4)


def test_episodes_that_are_over_earn_nothing() -> None:
    task = spec_task("car2d-reach-obs-k2", (0, 10))
    recorded = walks(task, np.random.default_rng(3), 30)
    progress, over = task.begin(recorded[0]), 0
    for time, states in enumerate(recorded[1:]):
        after = task.advance(progress, states)
        earned = task.reward(progress, after, time)
        assert not earned[~progress.alive].any()
        over += int((~progress.alive).sum())
        progress = after
    assert over > 0


@pytest.mark.parametrize(("kind", "penalty"), [("distance", 1.0), ("progress", 1.0), ("progress", 0.1)])
def test_running_into_an_obstacle_does_not_pay(kind: RewardKind, penalty: float) -> None:
    rewards = Rewards(kind, 1.0, penalty)
    task = spec_task("car2d-reach-obs-k1", (0,), rewards)
    draws = draw(task, 50, np.random.default_rng(0))
    block = task.grounded.regions_at(0)["o1"].center
    into = Constant(1.0, float(np.arctan2(block[1], block[0]) / np.pi))
    crash, stand = rollout(task, into, draws), rollout(task, Constant(-1.0, 0.0), draws)
    assert crash.lengths.mean() < task.horizon / 2 and not crash.success.any()
    assert crash.returns.mean() < stand.returns.mean()
    free = rollout(replace(task, rewards=replace(rewards, penalty=0.0)), into, draws)
    assert (crash.returns <= free.returns - penalty * task.grounded.reward.unsafe_penalty + 1e-4).all()


def test_progress_adds_up_to_the_way_covered_and_the_stages_completed() -> None:
    task = spec_task("car2d-reach-k2", (0, 5), Rewards("progress", 2.0))
    draws = draw(task, 30, np.random.default_rng(0))
    way = task.begin(draws.starts).distance
    outcome = rollout(task, NORTH_EAST, draws)
    assert outcome.success.all()
    np.testing.assert_allclose(outcome.returns, way / task.grounded.reward.unit + 4.0, rtol=1e-3)


def test_deeper_targets_are_reached_later() -> None:
    task = spec_task("car2d-reach-k1", (0,))
    draws = draw(task, 50, np.random.default_rng(0))
    lengths = [rollout(replace(task, depth=d), NORTH_EAST, draws).lengths.mean() for d in (0.0, 0.5)]
    assert lengths[0] < lengths[1]
