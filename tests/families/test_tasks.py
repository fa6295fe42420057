"""Grounded tasks: what they know and what not, when two are the same, and batches of reach-avoid edges."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.errors import DibsError
from dibs.families import NetworkModel, RewardModel, Tasks, families, get_family, load_family
from dibs.simulation import EdgeTask, signed_distance
from dibs.simulation.distance import columns
from dibs.spectrl import Region, parse_predicate, predicate_robustness


def small() -> dict[str, Any]:
    """A family of two edges past an obstacle, described in full."""
    return {
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


@pytest.fixture
def tasks() -> Tasks:
    return load_family(small()).tasks([0, 3, 10])


def same(one: Tasks, other: Tasks) -> bool:
    """Whether two tasks are the same numbers."""
    arrays = [
        (
            t.start_center,
            t.start_half,
            *(part for name in t.regions for part in (t.regions[name].center, t.regions[name].half_width)),
        )
        for t in (one, other)
    ]
    return (one.indices, one.specification, tuple(one.regions)) == (
        other.indices,
        other.specification,
        tuple(other.regions),
    ) and all(np.array_equal(a, b) for a, b in zip(*arrays, strict=True))


# --- what they know --------------------------------------------------------------------------------------


def test_they_are_the_numbers_of_the_family(tasks):
    family = load_family(small())
    assert (tasks.name, tasks.indices, tasks.horizon) == ("mine", (0, 3, 10), 20)
    assert tasks.environment == family.environment and tasks.edge_names == ("start>a", "a>b")
    assert tasks.regions["a"].center.tolist() == [[5.0, 5.0], [6.5, 5.0], [10.0, 5.0]]
    assert tasks.start_half.tolist() == [[0.3, 0.3]] * 3
    for index in tasks.indices:
        for name, box in tasks.regions_at(index).items():
            expected = family.regions_at(index)[name]
            assert np.array_equal(box.center, expected.center) and np.array_equal(box.half_width, expected.half_width)


def test_some_of_the_indices(tasks):
    for chosen in ([3], [10, 0], [0, 3, 10], [3, 3], [np.int64(10)]):
        assert same(tasks.at(chosen), load_family(small()).tasks(chosen))
    assert same(tasks.at([0, 10]).at([10]), tasks.at([10]))


@pytest.mark.parametrize(
    "ask",
    [
        lambda tasks: tasks.at([0, 5]),
        lambda tasks: tasks.regions_at(5),
        lambda tasks: tasks.ground([(0, "start>a"), (5, "start>a")]),
        lambda tasks: tasks.reach_avoid([5]),
        lambda tasks: replace(tasks.at([0, 3]), specification="achieve reach(a)").at([10, 5]),
    ],
)
def test_other_indices_are_not_known(tasks, ask: Callable[[Tasks], object]):
    """A method that is trained on these cannot look at an unseen one."""
    with pytest.raises(DibsError, match=r"mine: index (5|10) is not among these tasks: \[0, 3(, 10)?\]"):
        ask(tasks)


@pytest.mark.parametrize("index", [-1, 1.5, True, "0"])
def test_only_whole_numbers_are_grounded(index):
    with pytest.raises(DibsError, match="of mine: expected a whole number in 0 …"):
        load_family(small()).tasks([0, index])


def test_another_specification_over_the_same_regions(tasks):
    one = replace(tasks, specification="achieve reach(b)")
    assert one.edge_names == ("start>b",) and one.reach_avoid().names == ("start>b@0", "start>b@3", "start>b@10")
    assert same(one, load_family(small()).tasks([0, 3, 10], "achieve reach(b)"))
    assert tasks.edge_names == ("start>a", "a>b")  # as it was


def test_pairs_are_grounded_in_the_order_given(tasks):
    pairs = [(10, "a>b"), (0, "start>a"), (10, "start>a"), (10, "a>b")]
    edges = tasks.ground(pairs)
    assert edges.names == tuple(f"{name}@{index}" for index, name in pairs)
    assert edges.target.center[:, 0].tolist() == [[5.0, 10.0], [5.0, 5.0], [10.0, 5.0], [5.0, 10.0]]
    assert edges.start_center.tolist() == [[10.0, 5.0], [0.0, 0.0], [0.0, 0.0], [10.0, 5.0]]
    with pytest.raises(
        DibsError, match=r"unknown edge of mine 'start>b'\. Did you mean 'start>a'\? Known: a>b, start>a"
    ):
        tasks.ground([(0, "start>b")])


# --- digests ---------------------------------------------------------------------------------------------


def test_equal_tasks_have_equal_digests(tasks):
    family = load_family(small())
    assert len(tasks.digest) == 16
    assert tasks.digest == copy.deepcopy(tasks).digest == family.tasks([0, 3, 10]).digest
    assert tasks.digest == family.tasks(range(11)).at([0, 3, 10]).digest  # however they were arrived at
    assert tasks.digest == family.tasks([0, 3, 10], family.specification).digest == tasks.at([0, 3, 10]).digest
    for _ in range(2):
        assert family.tasks_digest([0, 3, 10]) == family.tasks_digest((0, 3, 10)) == tasks.digest


@pytest.mark.parametrize("change", [{"name": "yours"}, {"description": "x"}, {"gaps": [5]}, {"teacher": "ppo"}])
def test_what_training_does_not_depend_on_is_left_out(tasks, change):
    assert load_family(small() | change).tasks([0, 3, 10]).digest == tasks.digest


def test_benchmarks_do_not_change_the_tasks_of_a_family(tasks):
    text = "achieve reach(a) ensuring avoid(o)"
    family = load_family(small() | {"benchmarks": {"one": text, "both": small()["specification"]}})
    assert family.tasks_digest([0, 3, 10]) == tasks.digest
    assert family.tasks_digest([0, 3, 10], text) == replace(tasks, specification=text).digest != tasks.digest


def moved(tasks: Tasks, region: str, part: str, row: int, by: float) -> Tasks:
    box = tasks.regions[region]
    arrays = {"center": box.center.copy(), "half_width": box.half_width.copy()}
    arrays[part][row, 1] += by
    return replace(tasks, regions={**tasks.regions, region: Region(**arrays)})


CHANGES: dict[str, Callable[[Tasks], Tasks]] = {
    "environment": lambda t: replace(t, environment=get_family("simpledrone-reach").environment),
    "constant of the environment": lambda t: replace(t, environment=replace(t.environment, noise=0.051)),  # type: ignore
    "specification": lambda t: replace(t, specification="achieve reach(a); achieve reach(b)"),
    "indices": lambda t: replace(t, indices=(0, 4, 10)),
    "fewer": lambda t: t.at([0, 3]),
    "order": lambda t: t.at([3, 0, 10]),
    "start": lambda t: replace(t, start_center=t.start_center + np.array([0.0, 1e-9])),
    "noise of the start": lambda t: replace(t, start_half=t.start_half * 1.01),
    "center": lambda t: moved(t, "a", "center", 1, 1e-9),
    "half-width": lambda t: moved(t, "o", "half_width", 2, 1e-9),
    "free variable": lambda t: moved(t, "b", "half_width", 0, np.inf),
    "name of a region": lambda t: replace(t, regions={"c": t.regions["a"]} | dict(list(t.regions.items())[1:])),
    "one region less": lambda t: replace(t, regions={name: t.regions[name] for name in "ab"}),
    "horizon": lambda t: replace(t, horizon=21),
    "unit of reward": lambda t: replace(t, reward=RewardModel(unit=2.0)),
    "penalty": lambda t: replace(t, reward=RewardModel(unsafe_penalty=9.0)),
    "margin": lambda t: replace(t, reward=RewardModel(margin=0.1)),
    "depth": lambda t: replace(t, reward=RewardModel(depth=0.1)),
    "network": lambda t: replace(t, network=NetworkModel(hidden=[9])),
    "activation": lambda t: replace(t, network=NetworkModel(hidden=[8], activation="relu")),
}


def test_every_part_changes_the_digest(tasks):
    digests = {"": tasks.digest} | {name: change(tasks).digest for name, change in CHANGES.items()}
    assert len(set(digests.values())) == len(digests), digests


def test_a_drift_that_only_shows_at_unseen_indices_does_not_change_it():
    """What changes between training indices changes no training task."""
    data = small()
    table = [{"center": [5.0 + 0.5 * i, 5.0], "half_width": 1.0} for i in range(11)]
    data["regions"]["a"] = {"table": table}
    before = load_family(data).tasks_digest([0, 3, 10])
    table[5] = {"center": [7.0, 5.0], "half_width": 1.0}
    after = load_family(data)
    assert after.tasks_digest([0, 3, 10]) == before and after.tasks_digest([0, 5, 10]) != before


def test_digests_are_the_same_in_another_process():
    script = "from dibs.families import get_family; print(get_family('car2d-choice').tasks_digest([0, 10, 20]))"
    digests = {
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True).stdout
        for env in ({"PYTHONHASHSEED": str(n), "PYTHONPATH": ":".join(sys.path)} for n in (1, 2))
    }
    assert digests == {get_family("car2d-choice").tasks_digest([0, 10, 20]) + "\n"}


# --- batches of reach-avoid tasks ------------------------------------------------------------------------

PREDICATES = [  # safe sets, among them disjunctions that only conjunctive normal form can hold
    None,
    "avoid(o)",
    "avoid(o) & avoid(w)",
    "avoid(o) | reach(b)",
    "(avoid(o) | reach(b)) & avoid(w)",
    "!(reach(o) & reach(w)) & (reach(a) | avoid(w) | reach(b))",
    "avoid(w) | reach(a) & reach(b)",
]


def with_safe(safe: str | None, target: str = "reach(a)") -> dict[str, Any]:
    data = small()
    data["regions"]["w"] = {"center": [3.0, None], "half_width": 0.5, "shift": [-0.1, 0.0]}
    data["specification"] = f"achieve {target}" + (f" ensuring {safe}" if safe else "")
    data["start"] = {"center": [-10.0, -10.0]}
    return data


@pytest.mark.parametrize("safe", PREDICATES)
@pytest.mark.parametrize("target", ["reach(a)", "reach(a) & avoid(w)", "reach(a) & reach(b) & avoid(o)"])
def test_signed_distances_are_the_robustness_of_the_predicates(safe, target):
    family = load_family(with_safe(safe, target))
    edge, indices = family.edges[0], [0, 4, 9]
    task = EdgeTask(family.tasks(indices).reach_avoid())
    states = np.random.default_rng(1).uniform(-2.0, 12.0, (5, len(indices), 40, 2))
    distance, safety = task.target_distance(states), task.safe_distance(states)
    for row, index in enumerate(indices):
        boxes = family.regions_at(index)
        np.testing.assert_allclose(distance[:, row], predicate_robustness(edge.target, boxes, states[:, row]))
        if safe is None:
            assert safety is None
        else:
            assert safety is not None
            expected = predicate_robustness(parse_predicate(safe), boxes, states[:, row])
            np.testing.assert_allclose(safety[:, row], expected)


def test_edges_with_and_without_safe_sets_share_a_batch():
    data = small()
    data["regions"]["w"] = {"center": [9.0, 9.0], "half_width": 0.5}
    data["specification"] = (
        "achieve reach(a) ensuring (avoid(o) & (avoid(w) | reach(b))); achieve (reach(b) & avoid(o)); "
        "achieve reach(a) ensuring avoid(w)"
    )
    family = load_family(data)
    task = EdgeTask(family.tasks([0, 7]).reach_avoid())
    assert task.edges.names[:3] == ("start>a@0", "a>b@0", "b>a#2@0")
    states = np.random.default_rng(2).uniform(-2.0, 12.0, (6, 50, 2))
    distance, safety = task.target_distance(states), task.safe_distance(states)
    assert safety is not None
    for row, (index, edge) in enumerate((i, e) for i in (0, 7) for e in family.edges):
        boxes = family.regions_at(index)
        np.testing.assert_allclose(distance[row], predicate_robustness(edge.target, boxes, states[row]))
        if edge.safe is None:
            assert np.isposinf(safety[row]).all()
        else:
            np.testing.assert_allclose(safety[row], predicate_robustness(edge.safe, boxes, states[row]))


@pytest.mark.parametrize("name", families())
def test_edges_agree_with_their_boxes(name):
    family = get_family(name)
    index = family.last_index
    boxes = family.regions_at(index)
    edges = family.tasks([index]).reach_avoid()
    rng = np.random.default_rng(3)
    for row, edge in enumerate(family.edges):
        target = boxes[edge.head]
        states = target.center + rng.uniform(-2.0, 2.0, (1, 200, target.dim)) * target.half_width
        distance = EdgeTask(edges.take([row])).target_distance(states)[0]
        np.testing.assert_allclose(distance, target.signed_distance(states[0]), atol=1e-12)
        np.testing.assert_array_equal(distance >= 0.0, target.contains(states[0]))


@given(
    st.lists(st.tuples(st.floats(-50.0, 50.0), st.floats(0.1, 5.0)), min_size=2, max_size=4), st.integers(0, 2**32 - 1)
)
def test_a_box_and_its_distance_agree_for_random_boxes(sides, seed):
    """The batched distance and `Region` are two programs for one formula."""
    center, half = (np.array(values) for values in zip(*sides, strict=True))
    states = center + np.random.default_rng(seed).normal(size=(30, len(sides))) * half * 1.5
    found = signed_distance(states, columns(Region(center, half), states.dtype))
    np.testing.assert_allclose(found, Region(center, half).signed_distance(states), atol=1e-12)


@pytest.mark.parametrize("name", families())
def test_edges_start_where_their_source_is(name):
    family = get_family(name)
    indices = [0, family.last_index // 2, family.last_index]
    tasks = family.tasks(indices)
    uniforms = np.random.default_rng(4).random((len(indices) * len(tasks.edges), 3, 100, tasks.start_center.shape[1]))
    states = tasks.reach_avoid().initial(uniforms)
    assert states.shape == uniforms.shape
    for row, (index, edge) in enumerate((i, e) for i in indices for e in family.edges):
        if edge.source is None:
            at = indices.index(index)
            apart = np.abs(states[row] - tasks.start_center[at])
            assert (apart <= tasks.start_half[at] + 1e-12).all()
        else:
            box = family.regions_at(index)[edge.tail]
            assert box.contains(states[row]).all()
            # all of the box is used, not just its middle
            spread = (states[row] - box.center) / box.half_width
            assert spread.min() < -0.95 and spread.max() > 0.95


def test_a_free_variable_of_the_source_starts_from_arrivals_or_wide():
    data = small()
    data["regions"]["a"]["center"] = [None, 5.0]
    tasks, uniforms = load_family(data).tasks([0]), np.random.default_rng(5).random((1, 500, 2))
    wide = tasks.ground([(0, "a>b")]).initial(uniforms)[0]
    reach = tasks.start_wide[0, 0]  # of random actions
    assert 0.95 * reach < np.abs(wide[:, 0]).max() <= reach and reach > 1.0
    arrived = np.array([[3.0, 4.5], [-2.0, 5.5]])
    known = tasks.arriving({(0, "a>b"): arrived}).ground([(0, "a>b")]).initial(uniforms)[0]
    assert {tuple(row) for row in known} == {tuple(row) for row in arrived}


def test_an_edge_that_starts_from_two_overlapping_regions_is_refused():
    data = small() | {"specification": "achieve (reach(a) & reach(o)); achieve reach(b)"}
    with pytest.raises(DibsError, match=r"mine: edge a\+o>b starts from two overlapping regions"):
        load_family(data).tasks([0]).reach_avoid()


def test_edges_are_index_major_and_can_be_taken():
    edges = load_family(small()).tasks([0, 5]).reach_avoid()
    assert edges.names == ("start>a@0", "a>b@0", "start>a@5", "a>b@5")
    some = edges.take([3, 0])
    assert some.names == ("a>b@5", "start>a@0")
    assert some.target.center[:, 0].tolist() == [[5.0, 10.0], [5.0, 5.0]]
    assert edges.take([2]).target.center[0, 0].tolist() == [7.5, 5.0]  # 5 + 5 · 0.5


def test_the_reward_is_the_distance_less_a_penalty_while_unsafe():
    data = small() | {"reward": {"unit": 2.0, "unsafe_penalty": 10.0, "margin": 0.5}}
    task = EdgeTask(load_family(data).tasks([0]).ground([(0, "start>a")]))
    # target a = (5, 5) ± 1, obstacle o = (2, 2) ± 0.5
    states = np.array([[[5.0, 2.0], [5.0, 5.0], [2.0, 5.0], [2.0, 2.0], [2.0, 2.75]]])
    begun = task.begin(np.zeros_like(states))
    reward = task.reward(begun, task.advance(begun, states), 0)[0]
    assert reward[0] == -1.0  # 2 away, in units of 2
    assert reward[1] == 0.0  # inside the target
    assert reward[2] == -1.0  # 2 away, far from the obstacle
    assert reward[3] == pytest.approx(-np.hypot(2.0, 2.0) / 2 - 10.0)  # in the obstacle
    assert reward[4] == pytest.approx(-np.hypot(2.0, 1.25) / 2 - 2.5)  # half way through the margin


def test_smaller_targets():
    edges = load_family(with_safe("avoid(o)", "reach(a) & avoid(w)")).tasks([0]).reach_avoid()
    states = np.random.default_rng(6).uniform(0.0, 8.0, (1, 200, 2))
    deep, plain = EdgeTask(edges.shrunk(0.3)), EdgeTask(edges, depth=0.3)
    inside, expected = deep.target_distance(states) >= 0.0, plain.target_distance(states) >= 0.3
    assert (inside >= expected).all() and inside.any()  # corners of a grown obstacle are round
    box = Region(edges.target.center[0, 0], edges.target.half_width[0, 0] - 0.3)
    assert (box.contains(states[0]) >= inside[0]).all()
