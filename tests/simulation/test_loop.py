"""The rollout loop against one episode at a time, written from the definitions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from dibs.envs import Array
from dibs.families import Family, Tasks, get_benchmark, get_family, load_family
from dibs.policies.network import Network
from dibs.policies.scaling import edge_scaling
from dibs.simulation import (
    Draws,
    EdgeTask,
    Episodes,
    Moment,
    NetworkPolicy,
    Progress,
    SpecTask,
    StateRecorder,
    Stopped,
    draw,
    evaluation_draws,
    rollout,
)
from dibs.simulation.composed import Composed, network_paths, record
from dibs.spectrl import Edge, holds, satisfied

NETWORK = Network(2, (8,), 2)


def constant(v: float, turn: float) -> Array:
    """Parameters (size,) whose actions are the same everywhere."""
    theta = np.zeros(NETWORK.size, dtype=np.float32)
    theta[-2:] = [math.atanh(v), math.atanh(turn)]
    return theta


def policy(v: float, turn: float, *batch: int) -> NetworkPolicy:
    return NetworkPolicy(NETWORK, np.broadcast_to(constant(v, turn), (*batch, NETWORK.size)))


# --- edges -----------------------------------------------------------------------------------------------


def single(
    tasks: Tasks, index: int, edge: Edge, theta: Array, start: Array, noise: Array, depth: float
) -> tuple[float, bool, int, Array]:
    """One rollout of Car2D on one edge, step by step; return its return, success, steps and states."""
    boxes, rewards = tasks.regions_at(index), tasks.reward
    target = boxes[edge.head]
    obstacles = [box for name, box in boxes.items() if name.startswith("o")]
    state, states, total, safe, arrived = start.copy(), [start.copy()], 0.0, True, False
    for unit_noise in noise:
        v, turn = NETWORK.forward(theta, state[None])[0].tolist()
        step = (0.5 * v + 0.5) * np.array([math.cos(math.pi * turn), math.sin(math.pi * turn)])
        state = (state + step + tasks.environment.noise_scale * unit_noise).astype(np.float32)
        states.append(state.copy())
        excess = np.abs(state - target.center) - target.half_width
        inside = -excess.max() if (excess <= 0).all() else -math.hypot(*np.maximum(excess, 0.0))
        reward = min(inside, 0.0) / rewards.unit
        if obstacles:
            distances = []
            for box in obstacles:
                over = np.abs(state - box.center) - box.half_width
                distances.append(over.max() if (over <= 0).all() else math.hypot(*np.maximum(over, 0.0)))
            nearest = min(distances)
            assert edge.safe is not None
            if not holds(edge.safe, boxes, state[None].astype(float))[0]:
                safe = False
                reward -= rewards.unsafe_penalty
            elif nearest < rewards.margin:
                reward -= rewards.unsafe_penalty * 0.5 * (rewards.margin - nearest) / rewards.margin
        total += reward
        if inside >= depth:
            arrived = True
            break
    return total, arrived and safe, len(states) - 1, np.array(states)


@pytest.mark.parametrize("name", ["car2d-reach", "car2d-reach-obs"])
@pytest.mark.parametrize("depth", [0.0, 0.4])
def test_a_batch_is_a_loop_of_single_rollouts(name: str, depth: float) -> None:
    pairs = [(0, "start>g1"), (7, "g1>g2"), (40, "g4>g5")]
    tasks = get_family(name).tasks((0, 7, 40))
    task = EdgeTask(tasks.ground(pairs), depth)
    edges = {edge.name: edge for edge in tasks.edges}
    scaling, rng = edge_scaling(tasks), np.random.default_rng(0)
    rows = np.array([tasks.edge_names.index(edge) for _, edge in pairs])
    theta = NETWORK.initial(rng, (4, 3))  # (candidates, tasks, size)
    # Biases that head for the target, so that some rollouts arrive.
    theta[..., -2:] = [1.0, 0.32]
    folded = NETWORK.fold(theta, scaling.center[rows], scaling.half[rows])
    draws = draw(task, 12, rng)
    every, one = StateRecorder(), StateRecorder(candidate=2)
    outcome = rollout(task, NetworkPolicy(NETWORK, folded), draws, candidates=(4,), recorder=every)
    rollout(task, NetworkPolicy(NETWORK, folded), draws, candidates=(4,), recorder=one)
    states = every.states()  # (time, candidates, tasks, rollouts, dim)
    assert np.array_equal(states[:, 2], one.states())

    steps = 0
    for t, (index, edge) in enumerate(pairs):
        for c in range(4):
            for r in range(12):
                noise = draws.noise[:, t, r]
                total, success, taken, visited = single(
                    tasks, index, edges[edge], folded[c, t], draws.starts[t, r], noise, depth
                )
                assert outcome.returns[c, t, r] == pytest.approx(total, rel=1e-4, abs=1e-4)
                assert outcome.success[c, t, r] == success
                assert outcome.lengths[c, t, r] == taken + 1
                np.testing.assert_allclose(states[: taken + 1, c, t, r], visited, atol=1e-4)
                steps += taken
    assert outcome.steps == steps
    assert 0 < outcome.success.sum() < outcome.success.size  # both outcomes were compared


Straight = Callable[..., tuple[EdgeTask, Draws]]


@pytest.fixture
def straight(tiny_description: Callable[..., dict[str, Any]]) -> Straight:
    """One edge from (0, 0) to a box around (5, 0), without noise, and draws from its center."""

    def build(depth: float = 0.0, **changes: Any) -> tuple[EdgeTask, Draws]:
        family = load_family(
            tiny_description(
                environment={"name": "Car2D", "noise": 0.0},
                specification="achieve reach(a)",
                start={"center": [0.0, 0.0]},
                regions={"a": {"center": [5.0, 0.0], "half_width": 1.0}},
            )
            | changes
        )
        task = EdgeTask(family.tasks([0]).reach_avoid(), depth)
        return task, draw(task, 3, np.random.default_rng(0))

    return build


AHEAD = policy(0.0, 0.0, 1)  # half a step per step, along x


def test_an_episode_ends_where_the_target_is_entered(straight: Straight) -> None:
    task, draws = straight()
    recorder = StateRecorder()
    outcome = rollout(task, AHEAD, draws, recorder=recorder)
    assert outcome.lengths.tolist() == [[9, 9, 9]]  # enters at x = 4.0, after eight steps
    assert outcome.steps == 3 * 8 and len(recorder.states()) == 9  # the loop ends when all episodes have
    np.testing.assert_allclose(recorder.states()[-1, 0, :, 0], 4.0)
    # Rewards of the eight states after the first: −distance / unit.
    assert outcome.returns[0] == pytest.approx([-sum(4.0 - 0.5 * n for n in range(1, 9)) / 10.0] * 3)


def test_depth_asks_to_go_further_in(straight: Straight) -> None:
    task, draws = straight(0.6)
    deep = rollout(task, AHEAD, draws)
    assert deep.lengths.tolist() == [[11, 11, 11]] and deep.success.all()  # x = 5.0, the horizon's last step
    assert not rollout(EdgeTask(task.edges, 1.1), AHEAD, draws).success.any()


def test_arriving_late_is_failure(straight: Straight) -> None:
    task, draws = straight(horizon=7)
    outcome = rollout(task, AHEAD, draws)
    assert outcome.lengths.tolist() == [[8, 8, 8]] and not outcome.success.any()


def test_a_start_inside_the_target_still_takes_a_step(straight: Straight) -> None:
    """An edge asks for its target after its source: in the next state at the earliest."""
    task, draws = straight()
    inside = Draws(np.full_like(draws.starts, [5.0, 0.0]), draws.noise)
    assert rollout(task, AHEAD, inside).lengths.tolist() == [[2, 2, 2]]


@pytest.mark.parametrize("y, success", [(0.0, False), (0.9, True)])
def test_arriving_through_an_unsafe_state_is_failure(straight: Straight, y: float, success: bool) -> None:
    task, draws = straight(
        specification="achieve reach(a) ensuring avoid(wall)",
        regions={
            "a": {"center": [5.0, 0.0], "half_width": 1.0},
            "wall": {"center": [2.0, y], "half_width": [0.3, 0.5]},
        },
    )
    outcome = rollout(task, AHEAD, draws)
    assert outcome.lengths.tolist() == [[9, 9, 9]]  # it arrives in both cases
    assert outcome.success.tolist() == [[success] * 3]


def test_what_happens_after_the_end_does_not_count(straight: Straight) -> None:
    """A wall right behind the goal: the episode is over before the car could drive into it."""
    task, draws = straight(
        specification="achieve reach(a) ensuring avoid(wall)",
        regions={
            "a": {"center": [2.0, 0.0], "half_width": 0.6},
            "wall": {"center": [5.0, 0.0], "half_width": [2.0, 5.0]},
        },
    )
    starts = np.concatenate([draws.starts[:, :1], draws.starts[:, :1] - np.float32([[[9.0, 0.0]]])], axis=1)
    outcome = rollout(task, AHEAD, Draws(starts, draws.noise[:, :, :2]))  # the second one never arrives
    assert outcome.success.tolist() == [[True, False]] and outcome.lengths.tolist() == [[4, 11]]


def test_episodes_that_are_not_to_run_take_no_step(straight: Straight) -> None:
    task, draws = straight()
    alive = np.array([[True, False, True]])
    outcome = rollout(task, AHEAD, draws, alive=alive)
    assert outcome.lengths.tolist() == [[9, 1, 9]] and outcome.steps == 16
    assert outcome.returns[0, 1] == 0.0


def test_candidates_meet_the_same_starts_and_the_same_noise(tiny: Family) -> None:
    task = EdgeTask(tiny.tasks([0, 2]).reach_avoid())
    draws = draw(task, 7, np.random.default_rng(1))
    outcome = rollout(task, policy(0.3, 0.2, 5, 4), draws, candidates=(5,))
    assert outcome.returns.shape == (5, 4, 7)
    assert np.all(outcome.returns == outcome.returns[:1])
    assert outcome.returns[0].std() > 0.0


def test_draws_are_where_the_edges_start(tiny: Family) -> None:
    task = EdgeTask(tiny.tasks([2]).reach_avoid())
    draws = draw(task, 2000, np.random.default_rng(3))
    assert draws.starts.shape == (2, 2000, 2) and draws.noise.shape == (10, 2, 2000, 2)
    assert draws.starts.dtype == draws.noise.dtype == np.float32
    assert np.abs(draws.starts[0] - [0.5, 0.0]).max() <= 0.1 + 1e-6
    assert np.abs(draws.starts[1] - [2.5, 3.0]).max() <= 1.0 + 1e-6
    assert np.abs(draws.noise).max() <= 1.0 + 1e-6  # truncated at one standard deviation
    again = draw(task, 2000, np.random.default_rng(3))
    assert np.array_equal(draws.starts, again.starts) and np.array_equal(draws.noise, again.noise)


# --- policies --------------------------------------------------------------------------------------------


def test_parameters_that_are_not_numbers_never_succeed(tiny: Family) -> None:
    task = EdgeTask(tiny.tasks([0]).reach_avoid())
    theta = np.stack([np.full(NETWORK.size, np.nan, dtype=np.float32), constant(0.3, 0.2)])
    outcome = rollout(task, NetworkPolicy(NETWORK, theta), draw(task, 5, np.random.default_rng(2)))
    assert not outcome.success[0].any()


class Listener:
    """Remembers what it was given; in step n, it gives up in rollout n."""

    rewards = None

    def __init__(self, stops: bool) -> None:
        self.stops = stops
        self.heard: list[Moment] = []

    def begin(self, shape: tuple[int, ...]) -> int:
        assert shape == (2, 4)
        return 0

    def act(self, now: Moment, memory: int) -> tuple[Array, int]:
        assert memory == len(self.heard)
        self.heard.append(now)
        actions = np.zeros((2, 4, 2), dtype=np.float32)
        if self.stops and memory < 4:
            actions[:, memory] = np.nan
        return actions, memory + 1


class Watcher:
    """Remembers what a recorder is given."""

    def begin(self, states: Array, progress: Progress) -> None:
        self.states, self.progress = [states], [progress]
        self.steps: list[tuple[Moment, Array, Array]] = []

    def step(self, now: Moment, actions: Array, rewards: Array, states: Array, after: Progress) -> None:
        self.states.append(states)
        self.progress.append(after)
        self.steps.append((now, actions, rewards))


def test_policies_and_recorders_see_every_step() -> None:
    task = SpecTask(get_family("car2d-reach").tasks((4, 8)))
    listener, watcher = Listener(stops=False), Watcher()
    draws = draw(task, 4, np.random.default_rng(0))
    outcome = rollout(task, listener, draws, recorder=watcher)
    assert len(listener.heard) == len(watcher.steps) == task.horizon
    assert listener.heard[0].reward is None
    total = np.zeros((2, 4))
    for time, (now, actions, rewards) in enumerate(watcher.steps):
        assert now is listener.heard[time]
        assert np.array_equal(now.states, watcher.states[time]) and np.array_equal(now.observation, now.states)
        assert np.array_equal(now.stage, watcher.progress[time].stage)
        expected = task.environment.step(now.states, actions, draws.noise[time])
        assert np.array_equal(watcher.states[time + 1], expected)
        if time + 1 < task.horizon:
            assert listener.heard[time + 1].reward is rewards
        total += rewards
    assert outcome.returns == pytest.approx(total, rel=1e-5)
    assert np.array_equal(outcome.stage, watcher.progress[-1].stage)


def test_an_episode_ends_where_its_policy_gives_up() -> None:
    task = SpecTask(get_family("car2d-reach").tasks((4, 8)))
    listener = Listener(stops=True)
    outcome = rollout(task, listener, draw(task, 4, np.random.default_rng(0)))
    assert outcome.lengths.tolist() == [[1, 2, 3, 4]] * 2
    assert outcome.steps == 2 * (0 + 1 + 2 + 3) and not outcome.success.any()
    assert np.isfinite(outcome.returns).all()


def test_a_diverged_method_takes_no_step_and_satisfies_nothing() -> None:
    task = SpecTask(get_family("car2d-reach").tasks((0, 1)))
    found = record(Stopped(2), task, evaluation_draws(task, 5, 0))
    assert found.lengths.tolist() == [[1] * 5] * 2


def test_states_that_are_no_numbers_count_as_never_visited() -> None:
    task = SpecTask(get_benchmark("car2d-reach-k1").family.tasks((0, 1), "achieve reach(g1)"))
    nowhere = NetworkPolicy(NETWORK, np.full((2, NETWORK.size), np.nan, dtype=np.float32))
    found = record(nowhere, task, evaluation_draws(task, 5, 0))
    assert np.isfinite(found.states).all() and found.lengths.tolist() == [[1] * 5] * 2
    for i, index in enumerate(task.indices):
        boxes = task.grounded.regions_at(index)
        assert not satisfied(task.grounded.spec, boxes, found.states[i], found.lengths[i]).any()


# --- whole specifications --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "benchmark, turn", [("car2d-reach-k2", 0.322), ("car2d-reach-obs-k1", 0.322), ("car2d-choice-l1", 0.49)]
)
def test_success_agrees_with_the_semantics_on_the_recorded_states(benchmark: str, turn: float) -> None:
    found = get_benchmark(benchmark)
    task = SpecTask(found.family.tasks((0, 4, 7), found.specification))
    theta = NETWORK.initial(np.random.default_rng(3), gain=0.1)
    theta[-2:] = [2.0, np.arctanh(turn)]
    recorder = StateRecorder()
    draws = draw(task, 200, np.random.default_rng(4))
    outcome = rollout(task, NetworkPolicy(NETWORK, theta), draws, recorder=recorder)
    states = recorder.states(axis=-2)  # (tasks, rollouts, time, dim)
    for i, index in enumerate(task.indices):
        won = satisfied(task.grounded.spec, task.grounded.regions_at(index), states[i], outcome.lengths[i])
        assert np.array_equal(won, outcome.success[i])
    assert 0.0 < outcome.success.mean() < 1.0


def test_an_index_is_drawn_alike_in_any_company() -> None:
    tasks = get_family("car2d-reach").tasks(range(12))
    together = evaluation_draws(SpecTask(tasks), 20, 5)
    apart = evaluation_draws(SpecTask(tasks.at([9, 3])), 20, 5)
    assert np.array_equal(together.starts[[9, 3]], apart.starts)
    assert np.array_equal(together.noise[:, [9, 3]], apart.noise)
    other = evaluation_draws(SpecTask(tasks.at([3])), 20, 6)
    assert not np.array_equal(together.starts[[3]], other.starts)


@pytest.mark.parametrize("benchmark", ["car2d-reach-obs-k2", "car2d-choice-l1"])
def test_episodes_stepped_from_outside_are_those_of_the_loop(benchmark: str) -> None:
    found = get_benchmark(benchmark)
    task = SpecTask(found.family.tasks((3,), found.specification))
    draws = draw(task, 30, np.random.default_rng(1))
    theta = NETWORK.initial(np.random.default_rng(5), gain=0.05)
    theta[-2:] = [2.0, 0.35]
    outcome = rollout(task, NetworkPolicy(NETWORK, theta), draws)
    episodes = Episodes(task, 30)
    episodes.begin(draws.starts[0])
    returns, over = np.zeros(30), np.zeros(30, dtype=bool)
    for time, noise in enumerate(draws.noise[:, 0]):
        reward, terminated, truncated = episodes.step(NETWORK.forward(theta, episodes.states), noise)
        returns += np.where(over, 0.0, reward)
        over |= terminated
        assert np.array_equal(truncated, (time + 1 == task.horizon) & ~terminated)
        if over.all():
            break
    assert returns == pytest.approx(outcome.returns[0], rel=1e-4, abs=1e-4)
    assert np.array_equal(episodes.success, outcome.success[0])


# --- composed policies -----------------------------------------------------------------------------------


def follow_one(
    tasks: Tasks, index: int, path: Sequence[str], act: Callable[[str, Array], Array], start: Array, noise: Array
) -> Array:
    """One rollout along a path, step by step; return its states (time, dim)."""
    boxes, state, states = tasks.regions_at(index), start, [start]
    for stage, name in enumerate(path):
        target = boxes[name.partition(">")[2]]
        arrived = stage == 0 and bool(target.contains(state[None])[0])
        for unit_noise in noise[stage * tasks.horizon : (stage + 1) * tasks.horizon]:
            if arrived:
                break
            state = tasks.environment.step(state, act(name, state), unit_noise)
            states.append(state)
            arrived = bool(target.contains(state[None])[0])
        if not arrived:
            break
    return np.stack(states)


@pytest.mark.parametrize("benchmark", ["car2d-reach-k3", "car2d-reach-obs-k2", "car2d-choice-l2"])
def test_composed_policies_are_loops_of_single_rollouts(benchmark: str) -> None:
    found = get_benchmark(benchmark)
    indices, rollouts = (0, 3, 11, 20), 15
    tasks = found.family.tasks(indices, found.specification)
    scaling, rng = edge_scaling(tasks), np.random.default_rng(2)
    every = [tuple(edge.name for edge in path) for path in tasks.graph.paths()]
    paths = [every[i % len(every)] for i in range(4)]
    actors = 0.2 * NETWORK.initial(rng, (4, len(tasks.edges)))
    for row, index in enumerate(indices):  # head for the next target, more or less
        boxes, at = tasks.regions_at(index), tasks.start_center[row]
        for name in paths[row]:
            target = boxes[name.partition(">")[2]].center
            turn = np.arctan2(*(target - at)[::-1]) / np.pi
            actors[row, tasks.edge_names.index(name), -2:] = [1.0, np.arctanh(turn)]
            at = target
    policy = network_paths(NETWORK, scaling, tasks.edge_names, actors, paths)
    task = SpecTask(tasks)
    draws = evaluation_draws(task, rollouts, 4)
    draws.starts[2, :5] = tasks.regions_at(11)[paths[2][0].partition(">")[2]].center  # these have arrived at once
    recorded = record(policy, task, draws)
    longest = 0
    for row, index in enumerate(indices):

        def act(name: str, state: Array, row: int = row) -> Array:
            e = tasks.edge_names.index(name)
            inputs = (state - scaling.center[e]) / scaling.half[e]
            return NETWORK.forward(actors[row, e], inputs[None])[0]

        for r in range(rollouts):
            states = follow_one(tasks, index, paths[row], act, draws.starts[row, r], draws.noise[:, row, r])
            assert recorded.lengths[row, r] == len(states)
            np.testing.assert_allclose(recorded.states[row, r, : len(states)], states, atol=1e-3)
            longest = max(longest, len(states))
    assert longest > tasks.horizon


def test_paths_of_different_lengths_do_not_influence_each_other() -> None:
    text = "(achieve reach(g1); achieve reach(g2)) or achieve reach(g3)"
    tasks = get_family("car2d-reach").tasks((0, 5), text)
    paths = [("start>g1", "g1>g2"), ("start>g3",)]
    north_east = constant(0.99, float(np.arctan2(8.0, 5.0) / np.pi))

    def towards(rows: Sequence[int], names: Sequence[str]) -> NetworkPolicy:
        return NetworkPolicy(NETWORK, np.stack([north_east] * len(rows)))

    draws = evaluation_draws(SpecTask(tasks), 20, 0)
    together = record(Composed(paths, towards), SpecTask(tasks), draws)
    for row, index in enumerate((0, 5)):
        one = SpecTask(tasks.at([index]))
        part = Draws(draws.starts[[row]], draws.noise[:, [row]])
        apart = record(Composed([paths[row]], towards), one, part)
        assert np.array_equal(together.lengths[[row]], apart.lengths)
        for r in range(20):
            n = apart.lengths[0, r]
            assert np.array_equal(together.states[row, r, :n], apart.states[0, r, :n])
