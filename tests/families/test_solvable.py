"""Every index of every benchmark can be solved, and not by chance: else its numbers would mean nothing.

Measured with these seeds: the oracle satisfies every index of every benchmark in all of 1000 rollouts; random
actions fail at every index; the oracle of index 0 fails at 0.875 to 1 of the other indices (0.95 in the reach
families, 0.9 in Choice, 0.875 to 1 in Reacher).
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from dibs.envs import Car2D
from dibs.errors import DibsError
from dibs.families import Family, families, get_family, load_family
from dibs.families.oracles import CONTROLLERS, Goal, Rollouts, compose, drive, oracle, oracle_rollouts
from dibs.seeding import stream
from dibs.spectrl import parse
from dibs.spectrl.syntax import Spec

DELTA = 0.9  # a task counts as solved above this rate (paper, section 5.1)
MOVING = [name for name in families() if name != "car2d-switch"]  # there, only the start moves


def specifications(family: Family) -> dict[str, Spec]:
    """The benchmarks of a family; all of them are prefixes of its own specification."""
    return {b: parse(family.benchmarks.get(b, family.specification)) for b in family.benchmark_ids}


def rates(family: Family, index: int, rollouts: Rollouts) -> dict[str, float]:
    specs = specifications(family)
    return {b: float(rollouts.satisfied(family, spec, index).mean()) for b, spec in specs.items()}


def share_failed(family: Family, by_index: dict[int, dict[str, float]]) -> dict[str, float]:
    """Share of the indices, per benchmark, at which the rate does not exceed δ."""
    return {b: float(np.mean([r[b] <= DELTA for r in by_index.values()])) for b in family.benchmark_ids}


@pytest.mark.parametrize("name", families())
def test_the_oracle_solves_every_index(name):
    family = get_family(name)
    for index in range(family.last_index + 1):
        rollouts = oracle_rollouts(family, family.spec, index, 1000, stream("oracle", name, index))
        for benchmark, rate in rates(family, index, rollouts).items():
            assert rate >= 0.99, f"{benchmark} at index {index}: {rate}"


@pytest.mark.parametrize("name", families())
def test_random_actions_solve_nothing(name):
    family = get_family(name)
    path = [edge.name for edge in family.graph.paths()[0]]
    size = len(family.dynamics.action_names)
    failed = {}
    for index in range(family.last_index + 1):
        rng = stream("random", name, index)
        policies = [lambda states, rng=rng: rng.uniform(-1.0, 1.0, (*states.shape[:-1], size))] * len(path)
        failed[index] = rates(family, index, compose(family, index, path, policies, 100, rng))
    assert min(share_failed(family, failed).values()) == 1.0


@pytest.mark.parametrize("name", MOVING)
def test_what_is_right_at_index_0_is_wrong_at_most_others(name):
    family = get_family(name)
    by_index = {}
    for index in range(1, family.last_index + 1):
        rng = stream("index 0", name, index)
        by_index[index] = rates(family, index, oracle_rollouts(family, family.spec, index, 100, rng, grounded=0))
    assert min(share_failed(family, by_index).values()) >= 0.85


@cache
def one_sided(side: str) -> np.ndarray:
    """Rates per index of car2d-switch for a controller that always passes the block on one side."""
    family = get_family("car2d-switch")
    data = family.model_dump()
    sign = 1.0 if side == "left" else -1.0  # the block seems to go on for ever on the other side
    data["regions"]["block"] |= {"center": [sign * 50.0, 5.0], "half_width": [55.0, 1.0]}
    data["start"] |= {"center": [0.0, -50.0]}
    seen = load_family(data)
    spec, edge = family.spec, family.edges[0].name
    return np.array(
        [
            compose(family, i, [edge], [oracle(seen, 0, edge)], 100, stream("side", side, i))
            .satisfied(family, spec, i)
            .mean()
            for i in range(family.last_index + 1)
        ]
    )


def test_the_switch_needs_both_ways_round():
    left, right = one_sided("left"), one_sided("right")
    middle = len(left) // 2
    assert (left[: middle + 1] > 0.99).all() and (right[middle:] > 0.99).all()
    # From far out on the other side the horizon is too short for the long way round.
    assert (left[-5:] == 0.0).all() and (right[:5] == 0.0).all()


# --- the oracles themselves ------------------------------------------------------------------------------


def test_detours_keep_clear_of_boxes():
    """Where the straight line is blocked the car goes round, even from close to a wall and through a gap."""
    low, high = np.array([[-1.0, 3.0], [2.0, 3.0]]), np.array([[1.0, 5.0], [9.0, 5.0]])
    goal = Goal(np.array([1.5, 10.0]), low, high)
    car = Car2D()
    rng = np.random.default_rng(0)
    states = rng.uniform([-1.0, -2.0], [8.0, 2.95], (300, 2))
    seen = [states]
    for _ in range(30):
        states = car.step(states, drive(car, goal, states), rng.uniform(-1, 1, states.shape))
        seen.append(states)
    path = np.stack(seen)
    inside = ((path[:, :, None] > low) & (path[:, :, None] < high)).all(axis=-1)
    assert not inside.any()
    assert np.linalg.norm(states - goal.aim, axis=-1).max() < 0.2


@pytest.mark.parametrize("name", ["car2d-reach-obs", "simpledrone-reach", "droneattitude-reach", "reacher-drop-same-8"])
def test_actions_have_the_shape_of_the_states(name):
    family = get_family(name)
    control = oracle(family, 3, family.edges[0].name)
    dim, size = len(family.dynamics.state_names), len(family.dynamics.action_names)
    states = np.random.default_rng(0).uniform(0.5, 3.0, (4, 5, dim))
    actions = control(states)
    assert actions.shape == (4, 5, size)
    assert np.abs(actions).max() <= 1.0 + 1e-12
    np.testing.assert_allclose(control(states[1, 2]), actions[1, 2])


def test_a_free_variable_is_left_alone():
    data = get_family("simpledrone-reach").model_dump()
    data["regions"]["g1"]["center"] = [5.0, None, 4.0]
    family = load_family(data)
    assert oracle(family, 0, "start>g1")(np.zeros(3)).tolist() == [1.0, 0.0, 1.0]


def test_rollouts_end_where_the_horizon_does_and_are_padded():
    family = get_family("car2d-reach")
    path = [edge.name for edge in family.edges]
    still = [lambda states: np.full(states.shape, -1.0)] * len(path)
    rollouts = compose(family, 0, path, still, 7, stream(0))
    assert (rollouts.lengths == family.horizon + 1).all()  # the first edge was never done: no second one
    rollouts = oracle_rollouts(family, family.spec, 0, 50, stream(1))
    assert rollouts.states.shape == (50, rollouts.lengths.max(), 2)
    for states, length in zip(rollouts.states, rollouts.lengths, strict=True):
        assert (states[length:] == states[length - 1]).all()
        assert (states[length - 2] != states[length - 1]).any()


def test_what_the_oracles_cannot_do_is_said(monkeypatch):
    data = get_family("simpledrone-reach").model_dump()
    data["regions"]["o"] = {"center": [2.0, 3.0, 2.0], "half_width": 0.5}
    data |= {"specification": "achieve reach(g1) ensuring avoid(o)", "benchmarks": {}}
    with pytest.raises(DibsError, match="oracle of SimpleDrone knows no way round obstacles"):
        oracle(load_family(data), 0, "start>g1")
    data |= {"specification": "achieve reach(g1) ensuring avoid(o) | reach(g2)"}
    with pytest.raises(DibsError, match="only conjunctions of avoid"):
        oracle(load_family(data), 0, "start>g1")
    monkeypatch.delitem(CONTROLLERS, Car2D)
    with pytest.raises(DibsError, match="no oracle is written for environment Car2D"):
        oracle(get_family("car2d-reach"), 0, "start>g1")
