"""Checks before training: what is refused, what is doubtful, and that built-in families raise no alarm."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dibs
from dibs.cli import main
from dibs.envs import Environment
from dibs.errors import DibsError
from dibs.families import families, get_family, load_family, show_warnings

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "families").glob("*.yaml"))
BUILT_IN = [name for name in ("Car2D", "SimpleDrone", "DroneAttitude", "Reacher")]


def small(**changes: Any) -> dict[str, Any]:
    """A family without doubts; keys such as regions__a__shift change it."""
    data: dict[str, Any] = {
        "name": "mine",
        "environment": {"name": "Car2D"},
        "specification": "(achieve reach(a); achieve reach(b)) ensuring avoid(o)",
        "start": {"center": [0.0, 0.0], "noise": 0.3},
        "regions": {
            "a": {"center": [5.0, 5.0], "half_width": 1.0, "shift": [0.5, 0.0]},
            "b": {"center": [5.0, 10.0], "half_width": [1.0, 0.5]},
            "o": {"center": [2.0, 2.0], "half_width": 0.5},
        },
        "last_index": 10,
        "horizon": 20,
        "network": {"hidden": [8]},
    }
    data = copy.deepcopy(data)
    for key, value in changes.items():
        *parents, last = key.split("__")
        node = data
        for parent in parents:
            node = node[parent]
        node[last] = value
    return data


@pytest.mark.parametrize("name", sorted(families()))
def test_registered_families_raise_no_alarm(name):
    assert get_family(name).warnings() == () and get_family(name).out_of_reach == {}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_raise_no_alarm(path):
    if path.stem == "point-maze":
        pytest.importorskip("gymnasium_robotics")
    assert dibs.Family.load(path).warnings() == ()


def test_the_small_family_raises_no_alarm():
    assert load_family(small()).warnings() == ()


DOUBTS: list[tuple[dict[str, Any], str]] = [
    # a is 5 + i/2 to the right and 5 up; at index 9 the farthest corner is 9.5 + 0.3 - 1 and 5.3 - 1 away
    ({"horizon": 10}, r"regions\.a: hard to reach in time at index 8: .* edge start>a takes at least 10 of 10 steps"),
    ({"horizon": 8}, r"regions\.a: out of reach at index 8: .* at least 9 steps at top speed, and horizon is 8"),
    ({"environment__speed": 0.1}, r"regions\.a: out of reach at index 0: .* \(and at 10 more\)"),
    ({"regions__c": {"center": [9.0, 9.0], "half_width": 1.0}}, r"regions\.c: the specification does not use it"),
    ({"regions__a__shift": [0.0, 0.0]}, r"nothing moves or grows, so all tasks are the same"),
    (
        {"regions__a__half_width": 0.04},
        r"regions\.a: narrower than the noise of one step at index 0 \(and at 10 more\)",
    ),
    ({"regions__a__scale": 0.7}, r"regions\.a: narrower than the noise of one step at index 9"),
    (
        {"network": {"hidden": [128, 128]}},
        r"teacher: ars searches at random, .* has 17154 weights; use ppo",
    ),
    ({"regions__o__center": [6.3, 6.2]}, r"edge a>b starts in a region that overlaps o, .* at index 0"),
    (
        {"regions__b__center": [7.0, 5.0], "regions__b__half_width": 0.8},
        r"regions\.b: edge a>b starts inside it",
    ),
    ({"teacher": "ppo", "horizon": 60}, r"teacher: with gamma = 0.85, ppo looks about 7 steps ahead, .* such as 0.97"),
    (
        {"teacher": "sac", "horizon": 60, "teacher_options": {"options": {"gamma": 0.5}}},
        r"sac looks about 2 steps ahead, .* set teacher_options: \{options: \{gamma: …\}\}",
    ),
    ({"last_index": 1500, "regions__a__shift": [0.001, 0.0]}, r"last_index: 1500 is large"),
    ({"horizon": 2000}, r"horizon: 2000 steps per edge is large"),
]


IN_HOLE = "(achieve (reach(a) & !reach(h)); achieve reach(b)) ensuring avoid(o)"
SAFE = "(achieve reach(a); achieve reach(b)) ensuring (avoid(o) | reach(s))"
IMPOSSIBLE: list[tuple[dict[str, Any], str | None]] = [
    # a is a box of half-width 1 whose corners are √2 away from its center
    (
        {"specification": IN_HOLE, "regions__h": {"center": [10.0, 5.0], "radius": 1.42}},
        r"a: lies inside h, .* index 10",
    ),
    ({"specification": IN_HOLE, "regions__h": {"center": [10.0, 5.0], "radius": 1.41}}, None),
    (
        {"specification": IN_HOLE, "regions__h": {"center": [5.0, 3.9], "normal": [0.0, 1.0]}},
        r"a: lies inside h, where edge start>a must not end, at index 0",
    ),
    ({"specification": IN_HOLE, "regions__h": {"center": [5.0, 4.1], "normal": [0.0, 1.0]}}, None),
    ({"specification": IN_HOLE, "regions__h": {"center": [None, 5.0], "half_width": 1.1}}, r"a: lies inside h"),
    (
        {"specification": SAFE, "regions__o__center": [0.0, 0.0], "regions__s": {"center": [1, 1], "half_width": 0.5}},
        r"start: its center must be outside o or inside s, and is not at index 0",
    ),
    (
        {"specification": SAFE, "regions__o__center": [0.0, 0.0], "regions__s": {"center": [1, 1], "half_width": 1.5}},
        None,
    ),
    (
        {
            "specification": "(achieve reach(a); achieve reach(b)) ensuring reach(s)",
            "regions__s": {"center": [5, 5], "radius": 9.0, "shift": [0.5, 0.5]},
        },
        # at index i, s is (5 + i/2)·√2 away
        r"start: its center must be inside s, and is not at index 3",
    ),
]


@pytest.mark.parametrize("changes, message", IMPOSSIBLE)
def test_tasks_that_cannot_be_solved_are_refused(changes, message):
    if message is None:
        load_family(small(**changes))
    else:
        with pytest.raises(DibsError, match=message):
            load_family(small(**changes))


@pytest.mark.parametrize("changes, message", DOUBTS, ids=[message[:40] for _, message in DOUBTS])
def test_doubts_name_the_index(changes, message):
    found = load_family(small(**changes)).warnings()
    assert any(re.search(message, doubt) for doubt in found), found


def arm(**pick: Any) -> dict[str, Any]:
    data = copy.deepcopy(get_family("reacher-stack-same-8").description_data())
    data["regions"]["pick"] |= pick
    return data | {"name": "arm"}


def test_regions_partly_and_wholly_outside_the_bounds():
    """The arm's workspace ends at the floor, y = 0, and at ±10."""
    (found,) = load_family(arm(center=[5.0, 0.1])).warnings()
    assert found == "regions.pick: partly outside the bounds at index 0: y in [-0.3, 0.5], bounds [0, 10]"
    data = arm()
    data["regions"]["wall"] = {"center": [0.0, -3.0], "half_width": 1.0}
    data["specification"] = "(achieve reach(pick); achieve reach(place)) ensuring avoid(wall)"
    (found,) = load_family(data).warnings()
    assert found.startswith("regions.wall: wholly outside the bounds at index 0: y in [-4, -2]")
    with pytest.raises(DibsError, match=r"regions\.pick: its center .* is not a state of Reacher at index 0"):
        load_family(arm(center=[5.0, -1.0]))


def test_only_what_every_way_through_a_choice_asks_is_out_of_reach():
    """Of two waypoints in opposite directions, one is near at each index; with one of them alone, tasks are lost."""
    family = load_family(
        small(
            specification="(achieve reach(left) or achieve reach(right)); achieve reach(goal)",
            start={"center": [-10.0, 0.0], "shift": [2.0, 0.0]},
            regions={
                "left": {"center": [-8.0, 4.0], "half_width": 1.0},
                "right": {"center": [8.0, 4.0], "half_width": 1.0},
                "goal": {"center": [-10.0, 8.0], "half_width": 1.0, "shift": [2.0, 0.0]},
            },
            horizon=12,
        )
    )
    assert family.out_of_reach == {} and family.warnings() == ()
    data = family.description_data()
    one = load_family(data | {"specification": "achieve reach(left); achieve reach(goal)"})
    # 12 steps, each helped by 0.05 of noise per axis: reach 1 + 12 + 0.6 to the side of x = -8
    assert min(one.out_of_reach) == 8 and max(one.out_of_reach) == 10
    # The goal is out of reach from either waypoint at index 0 if it is far up: then no way is left.
    data["regions"]["goal"] = {"center": [0.0, 40.0], "half_width": 1.0}
    assert set(load_family(data).out_of_reach) == set(range(family.last_index + 1))


def test_a_training_set_must_not_contain_a_task_out_of_reach():
    family = load_family(small(horizon=8))
    with pytest.raises(DibsError, match=r"split gap5 of mine: regions\.a: out of reach at index 10: edge start>a"):
        family.split("gap5")
    table = [{"center": [500.0 if i == 3 else 5.0 + i / 2, 5.0], "half_width": 1.0} for i in range(11)]
    family = load_family(small(regions__a={"table": table}))
    assert family.split("mine", [0, 2, 10]).indices == (0, 2, 10), "unseen indices may be impossible"
    with pytest.raises(DibsError, match="at index 3"):
        family.split("gap3")


def test_an_algorithm_that_is_not_registered():
    with pytest.raises(DibsError, match=r"teacher: unknown teacher algorithm 'popo'\. Did you mean 'ppo'\?"):
        load_family(small(teacher="popo"))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"teacher_options": {"directionz": 3}}, r"unknown setting of ars 'directionz'\. Did you mean 'directions'"),
        ({"teacher_options": {"directions": -3}}, r"directions: .* greater than or equal to 1 \(found -3\)"),
        ({"teacher": "ppo", "teacher_options": {"gamma": 1.5}}, r"gamma: .* less than or equal to 1 \(found 1\.5\)"),
        ({"regions__a__scale": 1e200}, r"a size grows by 1e\+200 per index, which is no number at index 2"),
    ],
)
def test_what_is_refused(changes, message):
    with pytest.raises(DibsError, match=message):
        load_family(small(**changes))


def test_a_number_dilates_about_the_origin():
    one = load_family(small(regions__a__dilate=0.9))
    assert one == load_family(small(regions__a__dilate={"factor": 0.9}))
    np.testing.assert_allclose(one.regions_at(2)["a"].center, [6.0 * 0.81, 5.0 * 0.81])


def test_an_unknown_environment_is_the_only_problem():
    data = small(environment={"gymnasium": "Pendulum-v9"}, start={"center": {"theta": 0.0}})
    data["regions"] = {name: {"center": {"theta": 0.0}, "half_width": 1.0} for name in "abo"}
    with pytest.raises(DibsError, match="Pendulum") as error:
        load_family(data)
    assert len(str(error.value).splitlines()) == 2  # the heading and one problem


def test_angles_wrap():
    """From yaw 3 to yaw -3 it is 0.28 the other way around."""
    data = get_family("droneattitude-reach").description_data() | {"name": "turn", "benchmarks": {}, "horizon": 20}
    data["specification"] = "achieve reach(g1)"
    data["regions"] = {
        "g1": {"center": [5.0, 8.0, 4.0, -3.0, 0.0], "half_width": [1, 1, 1, 0.1, 0.5], "shift": [0.5, 0, 0, 0, 0]}
    }
    data["reward"], data["start"] = {}, data["start"] | {"noise": 0.01}
    assert not load_family(data | {"start": data["start"] | {"center": [0.0, 0.0, 0.0, 3.0, 0.0]}}).warnings()
    (far,) = load_family(data).warnings()
    assert "hard to reach in time at index 0" in far and "takes at least 20 of 20 steps" in far


def test_commands_print_warnings_once_on_standard_error(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    load_family(small(horizon=10)).save(path)
    assert main(["benchmarks", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "warning" not in out
    assert err == f"warning: {path}: {dibs.Family.load(path).warnings()[0]}\n"
    show_warnings(dibs.Family.load(path))
    assert capsys.readouterr().err == ""


# --- the environments' own bound -------------------------------------------------------------------------


def built(name: str) -> Environment:
    return next(f.environment for f in families().values() if f.environment.name == name)


@pytest.mark.parametrize("name", BUILT_IN)
def test_nothing_is_faster_than_the_bound(name):
    """Extreme and random actions from random states, without noise, over one step and over five."""
    environment, rng = built(name), np.random.default_rng(0)
    low, high = (np.array(bound) for bound in environment.bounds)
    states = rng.uniform(np.maximum(low, -20.0), np.minimum(high, 20.0), (4000, len(low)))
    begin = states = environment.project(states)
    for steps in range(1, 6):
        actions = rng.choice([-1.0, 0.0, 1.0], (len(states), environment.action_dim)) * rng.choice([0.3, 1.0])
        states = environment.step(states, actions, np.zeros_like(states))
        periods = np.array(environment.periods)
        change = states - begin
        change -= np.where(periods > 0, np.round(change / np.where(periods > 0, periods, 1.0)) * periods, 0.0)
        least = environment.least_steps(change)
        assert least is not None and least.shape == (4000,) and (least <= steps + 1e-9).all()


def test_the_bound_is_attained():
    car, drone, attitude = built("Car2D"), built("SimpleDrone"), built("DroneAttitude")
    assert car.least_steps(np.array([3.0, 4.0])) == pytest.approx(5.0)
    assert drone.least_steps(np.array([3.0, -4.0, 0.0])) == pytest.approx(4.0)
    assert attitude.least_steps(np.array([3.0, 3.0, 3.0, 0.0, 0.0])) == pytest.approx(3.0)
    assert attitude.least_steps(np.array([0.0, 0.0, 0.0, 0.0, 0.6])) == pytest.approx(4.0)


def test_unknown_bounds_raise_no_alarm():
    assert dibs.Family.load(next(p for p in EXAMPLES if "torque" in p.stem)).out_of_reach == {}


@settings(max_examples=30, deadline=None)
@given(st.floats(0.5, 30.0), st.floats(-180.0, 180.0), st.integers(1, 12))
def test_out_of_reach_is_what_a_straight_run_misses(distance, degrees, horizon):
    """Brute force: at top speed straight at the target from the nearest start, with noise that helps."""
    angle = np.deg2rad(degrees)
    goal = {"center": [distance * np.cos(angle), distance * np.sin(angle)], "half_width": 0.1, "shift": [0.0, 1e-6]}
    data = small(horizon=horizon, start__noise=0.0, environment__noise=0.0, specification="achieve reach(a)")
    family = load_family(data | {"regions": {"a": goal}, "last_index": 1})
    state, direction = np.zeros(2), np.array([np.cos(angle), np.sin(angle)])
    region = family.regions_at(0)["a"]
    ways = np.linspace(0.0, horizon, 4001)[:, None] * direction + state
    reached = bool(region.contains(ways).any()) or distance <= horizon
    if abs(distance - horizon) > 0.3:  # the box is reached at its corner a little earlier
        assert (0 in family.out_of_reach) == (not reached)


def test_training_in_python_prints_warnings(capsys):
    family = load_family(small(regions__c={"center": [9.0, 9.0], "half_width": 1.0}) | {"name": "printed"})
    with pytest.raises(DibsError, match="larger than the last index"):
        dibs.train(family, gap=99)
    assert "warning: printed: regions.c: the specification does not use it" in capsys.readouterr().err
