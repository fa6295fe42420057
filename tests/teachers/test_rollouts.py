"""Batched rollouts of reach-avoid tasks against one rollout at a time, written from the definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dibs.families import get_family, ground, load_family, reach_avoid
from dibs.policies.network import Network
from dibs.policies.scaling import edge_scaling
from dibs.spectrl import holds
from dibs.teachers.rollouts import Draws, draw, roll


def single(family, index, edge, network, theta, start, noise, depth):
    """One rollout of Car2D on one edge, step by step; returns return, success, steps and states."""
    boxes, rewards = family.boxes(index), family.reward
    target = boxes[edge.head]
    obstacles = [box for name, box in boxes.items() if name.startswith("o")]
    state, states, total, safe, arrived = start.copy(), [start.copy()], 0.0, True, False
    for unit_noise in noise:
        v, turn = network.forward(theta, state[None])[0].tolist()
        step = (0.5 * v + 0.5) * np.array([math.cos(math.pi * turn), math.sin(math.pi * turn)])
        state = (state + step + family.dynamics.noise * unit_noise).astype(np.float32)
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
def test_a_batch_is_a_loop_of_single_rollouts(name, depth):
    family = get_family(name)
    pairs = [(0, "start>g1"), (7, "g1>g2"), (40, "g4>g5")]
    tasks = ground(family, pairs)
    edges = {edge.name: edge for edge in family.edges}
    network, scaling = Network(2, (8,), 2), edge_scaling(family)
    rng = np.random.default_rng(0)
    rows = np.array([[e.name for e in family.edges].index(edge) for _, edge in pairs])
    theta = network.initial(rng, (3, 4))
    # Biases that head for the target, so that some rollouts arrive; the rest is as random as it came.
    theta[..., -2:] = [1.0, 0.32]
    folded = network.fold(theta, scaling.center[rows][:, None], scaling.half[rows][:, None])
    draws = draw(tasks, 12, rng)
    outcome = roll(network, folded, tasks, draws, depth, record=2)

    arrived, steps = 0, 0
    for t, (index, edge) in enumerate(pairs):
        for c in range(4):
            results = [
                single(
                    family, index, edges[edge], network, folded[t, c], draws.starts[t, r], draws.noise[:, t, r], depth
                )
                for r in range(12)
            ]
            assert outcome.returns[t, c] == pytest.approx(np.mean([x[0] for x in results]), rel=1e-4, abs=1e-4)
            assert outcome.success[t, c] == pytest.approx(np.mean([x[1] for x in results]))
            steps += sum(x[2] for x in results)
            arrived += sum(x[1] for x in results)
            if c == 2:
                assert outcome.lengths[t].tolist() == [x[2] + 1 for x in results]
                assert outcome.satisfied[t].tolist() == [x[1] for x in results]
                for r, x in enumerate(results):
                    np.testing.assert_allclose(outcome.states[: x[2] + 1, t, r], x[3], atol=1e-4)
    assert outcome.steps == steps
    assert 0 < arrived < 3 * 4 * 12  # both outcomes were compared


def constant(v: float, turn: float, tasks: int = 1) -> tuple[Network, np.ndarray]:
    """An actor whose actions are the same everywhere."""
    network = Network(2, (8,), 2)
    theta = np.zeros((tasks, 1, network.size), dtype=np.float32)
    theta[..., -2:] = [math.atanh(v), math.atanh(turn)]
    return network, theta


def straight(tiny_description, **changes):
    """One edge from (0, 0) to a box around (5, 0), without noise, and draws from its centre."""
    family = load_family(
        tiny_description(
            environment={"name": "Car2D", "noise": 0.0},
            specification="achieve reach(a)",
            start={"center": [0.0, 0.0]},
            regions={"a": {"center": [5.0, 0.0], "half_width": 1.0}},
        )
        | changes
    )
    tasks = reach_avoid(family, [0])
    return tasks, draw(tasks, 3, np.random.default_rng(0))


def test_an_episode_ends_where_the_target_is_entered(tiny_description):
    tasks, draws = straight(tiny_description)
    network, theta = constant(0.0, 0.0)  # half a step per step, along x
    outcome = roll(network, theta, tasks, draws, record=0)
    assert outcome.lengths.tolist() == [[9, 9, 9]]  # enters at x = 4.0, after eight steps
    assert outcome.steps == 3 * 8 and len(outcome.states) == 9  # and nothing moves on for the rest of the horizon
    np.testing.assert_allclose(outcome.states[-1, 0, :, 0], 4.0)
    # Rewards of the eight states after the first: −distance / unit.
    assert outcome.returns[0, 0] == pytest.approx(-sum(4.0 - 0.5 * n for n in range(1, 9)) / 10.0)


def test_depth_asks_to_go_further_in(tiny_description):
    tasks, draws = straight(tiny_description)
    network, theta = constant(0.0, 0.0)
    deep = roll(network, theta, tasks, draws, depth=0.6, record=0)
    assert deep.lengths.tolist() == [[11, 11, 11]] and deep.success[0, 0] == 1.0  # x = 5.0, the horizon's last step
    assert roll(network, theta, tasks, draws, depth=1.1).success[0, 0] == 0.0


def test_arriving_late_is_failure(tiny_description):
    tasks, draws = straight(tiny_description, horizon=7)
    network, theta = constant(0.0, 0.0)
    outcome = roll(network, theta, tasks, draws, record=0)
    assert outcome.success[0, 0] == 0.0 and outcome.lengths.tolist() == [[8, 8, 8]] and not outcome.satisfied.any()


def test_a_start_inside_the_target_still_takes_a_step(tiny_description):
    """An edge asks for its target after its source: the next state at the earliest."""
    tasks, draws = straight(tiny_description)
    inside = Draws(np.full_like(draws.starts, [5.0, 0.0]), draws.noise)
    network, theta = constant(0.0, 0.0)
    assert roll(network, theta, tasks, inside, record=0).lengths.tolist() == [[2, 2, 2]]


@pytest.mark.parametrize("y, success", [(0.0, 0.0), (0.9, 1.0)])
def test_arriving_through_an_unsafe_state_is_failure(tiny_description, y, success):
    wall = {
        "specification": "achieve reach(a) ensuring avoid(wall)",
        "regions": {
            "a": {"center": [5.0, 0.0], "half_width": 1.0},
            "wall": {"center": [2.0, y], "half_width": [0.3, 0.5]},
        },
    }
    tasks, draws = straight(tiny_description, **wall)
    network, theta = constant(0.0, 0.0)
    outcome = roll(network, theta, tasks, draws, record=0)
    assert outcome.lengths.tolist() == [[9, 9, 9]]  # it arrives all the same
    assert outcome.success[0, 0] == success and outcome.satisfied.all() == bool(success)


def test_what_happens_after_the_end_does_not_count(tiny_description):
    """A wall right behind the goal: the episode is over before the car could drive into it."""
    wall = {
        "specification": "achieve reach(a) ensuring avoid(wall)",
        "regions": {
            "a": {"center": [2.0, 0.0], "half_width": 0.6},
            "wall": {"center": [5.0, 0.0], "half_width": [2.0, 5.0]},
        },
    }
    tasks, draws = straight(tiny_description, **wall)
    slow = Draws(
        np.concatenate([draws.starts[:, :1], draws.starts[:, :1] - [[[9.0, 0.0]]]], axis=1), draws.noise[:, :, :2]
    )
    network, theta = constant(0.0, 0.0)
    outcome = roll(network, theta, tasks, slow, record=0)  # the second one is under way to the end
    assert outcome.satisfied.tolist() == [[True, False]] and outcome.lengths.tolist() == [[4, 11]]


def test_candidates_meet_the_same_starts_and_the_same_noise(tiny):
    tasks = reach_avoid(tiny, [0, 2])
    network, theta = constant(0.3, 0.2, tasks=4)
    outcome = roll(network, np.repeat(theta, 5, axis=1), tasks, draw(tasks, 7, np.random.default_rng(1)))
    assert np.all(outcome.returns == outcome.returns[:, :1])


def test_parameters_that_are_not_numbers_never_succeed(tiny):
    tasks = reach_avoid(tiny, [0])
    network, theta = constant(0.3, 0.2, tasks=2)
    theta[0] = np.nan
    outcome = roll(network, theta, tasks, draw(tasks, 5, np.random.default_rng(2)), record=0)
    assert outcome.success[0, 0] == 0.0 and not outcome.satisfied[0].any()


def test_draws_are_where_the_edges_start(tiny):
    tasks = reach_avoid(tiny, [2])
    draws = draw(tasks, 2000, np.random.default_rng(3))
    assert draws.starts.shape == (2, 2000, 2) and draws.noise.shape == (10, 2, 2000, 2)
    assert draws.starts.dtype == draws.noise.dtype == np.float32
    assert np.abs(draws.starts[0] - [0.5, 0.0]).max() <= 0.1 + 1e-6
    assert np.abs(draws.starts[1] - [2.5, 3.0]).max() <= 1.0 + 1e-6
    assert np.abs(draws.noise).max() <= 1.0 + 1e-6  # truncated at one standard deviation
    again = draw(tasks, 2000, np.random.default_rng(3))
    assert np.array_equal(draws.starts, again.starts) and np.array_equal(draws.noise, again.noise)
