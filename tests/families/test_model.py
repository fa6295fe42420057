"""Families as data: what is refused, in which words, how regions move; batches of reach-avoid tasks."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from dibs.errors import DibsError
from dibs.families import (
    benchmarks,
    edge_named,
    families,
    get_benchmark,
    get_family,
    ground,
    load_family,
    reach_avoid,
)
from dibs.families.model import RegionModel, start_box
from dibs.spectrl import Box, parse_predicate, predicate_robustness

NAN = float("nan")


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
        "gaps": [5, 2],
        "horizon": 20,
        "network": {"hidden": [8]},
    }


def arm() -> dict[str, Any]:
    return get_family("reacher-stack-same-8").model_dump()


def changed(data: dict[str, Any], key: str, value: object) -> dict[str, Any]:
    """A copy of the description in which `key` (dotted) has another value; None as value removes it."""
    copied = copy.deepcopy(data)
    *parents, last = key.split(".")
    node = copied
    for parent in parents:
        node = node[parent]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return copied


# --- what is refused -------------------------------------------------------------------------------------

REFUSED: list[tuple[str, object, str]] = [
    # keys that are not there, or missing
    ("horizont", 20, r"horizont: unknown key"),
    ("start.sigma", 1.0, r"start\.sigma: unknown key"),
    ("regions.a.radius", 1.0, r"regions\.a\.radius: unknown key"),
    ("network.layers", 2, r"network\.layers: unknown key"),
    ("reward", {"bonus": 1.0}, r"reward\.bonus: unknown key"),
    ("horizon", None, r"horizon: Field required"),
    ("regions.a.half_width", None, r"regions\.a\.half_width: Field required"),
    # wrong lengths
    ("start.center", [0.0], r"start\.center: expected 2 numbers \(x, y\), found 1"),
    ("start.noise", [0.1] * 3, r"start\.noise: expected 2 numbers \(x, y\), found 3"),
    ("regions.a.center", [1.0] * 3, r"regions\.a\.center: expected 2 numbers \(x, y\), found 3"),
    ("regions.a.half_width", [1.0], r"regions\.a\.half_width: expected 2 numbers \(x, y\), found 1"),
    ("regions.a.shift", [0.5], r"regions\.a\.shift: expected 2 numbers \(x, y\), found 1"),
    ("regions.b.drift", [0.5] * 3, r"regions\.b\.drift: expected 2 numbers \(x, y\), found 3"),
    # empty regions and other numbers out of range
    ("regions.a.half_width", 0.0, r"regions\.a\.half_width.*: .*greater than 0"),
    ("regions.a.half_width", [1.0, -1.0], r"regions\.a\.half_width.*1: .*greater than 0"),
    ("regions.a.scale", 0.0, r"regions\.a\.scale: .*greater than 0"),
    ("start.noise", -0.1, r"start\.noise: expected numbers ≥ 0, found -0\.1"),
    ("horizon", 0, r"horizon: .*greater than or equal to 1"),
    ("horizon", "twenty", r"horizon: .*integer"),
    ("last_index", 0, r"last_index: .*greater than or equal to 1"),
    ("last_index", 2.5, r"last_index: .*integer"),
    ("network.hidden", [8, 0], r"network\.hidden\.1: .*greater than 0"),
    ("network.activation", "gelu", r"network\.activation: .*tanh\|relu"),
    ("reward", {"unit": 0.0}, r"reward\.unit: .*greater than 0"),
    ("reward", {"unsafe_penalty": -1.0}, r"reward\.unsafe_penalty: .*greater than or equal to 0"),
    ("name", "My Family", r"name: .*pattern"),
    # NaN and infinity, anywhere
    ("start.center", [NAN, 0.0], r"start\.center\.0: .*finite"),
    ("start.noise", NAN, r"start\.noise.*: .*finite"),
    ("regions.a.center", [0.0, NAN], r"regions\.a\.center\.1: .*finite"),
    ("regions.a.center", [0.0, float("inf")], r"regions\.a\.center\.1: .*finite"),
    ("regions.a.half_width", NAN, r"regions\.a\.half_width.*: .*finite"),
    ("regions.a.shift", [NAN, 0.0], r"regions\.a\.shift\.0: .*finite"),
    ("reward", {"margin": NAN}, r"reward\.margin: .*finite"),
    ("environment.speed", NAN, r"environment: speed: expected a finite number above 0, found nan"),
    # null is for regions
    ("start.center", [None, 0.0], r"start\.center: a start must fix every state variable"),
    # names
    ("environment.name", "Car3D", r"environment: unknown environment 'Car3D'\. Did you mean 'Car2D'\?"),
    ("environment.sped", 2.0, r"environment: unknown constant of Car2D 'sped'\. Did you mean 'speed'\?"),
    ("environment.speed", "fast", r"environment: speed: expected a finite number above 0, found 'fast'"),
    ("environment", "Car2D", r"environment: .*valid dictionary"),
    ("specification", "achieve reach(aa)", r"specification: unknown region 'aa'\. Did you mean 'a'\?"),
    ("benchmarks", {"x": "achieve reach(c)"}, r"x: unknown region 'c'.* Known: a, b, o"),
    # specifications
    ("specification", "achieve reech(a)", r"expected a predicate .* found 'reech'\. Did you mean 'reach'\?"),
    ("specification", "achieve avoid(o)", r"specification: edge start>!o has no region to reach"),
    (
        "benchmarks",
        {"x": "achieve reach(b)"},
        r"x: its edge start>b is not an edge of the family's specification",
    ),
    # the same place, but without the obstacle: not the task that the teachers were trained on
    ("benchmarks", {"x": "achieve reach(a)"}, r"x: its edge start>a is not an edge"),
    # gaps
    ("gaps", [3], r"gaps: 3 does not divide last_index 10"),
    ("gaps", [5, 0], r"gaps\.1: .*greater than or equal to 1"),
    # geometry, at every index
    ("regions.o.center", [5.0, 10.2], r"regions\.b: its centre lies inside o, .* at index 0"),
    ("regions.o.center", [7.6, 5.0], r"regions\.a: its centre lies inside o, .* at index 5"),
    ("regions.o.center", [0.7, 0.0], r"start: overlaps o, which must be avoided, at index 0"),
    ("start.shift", [0.5, 0.5], r"start: overlaps o, which must be avoided, at index 3"),
]


@pytest.mark.parametrize("key, value, message", REFUSED, ids=[f"{k}={v}" for k, v, _ in REFUSED])
def test_mistakes_are_named_by_key_and_reason(key, value, message):
    with pytest.raises(DibsError) as error:
        load_family(changed(small(), key, value))
    assert re.search(message, str(error.value)), str(error.value)


def test_the_description_without_mistakes_is_a_family():
    family = load_family(small())
    assert [edge.name for edge in family.edges] == ["start>a", "a>b"]
    assert family.benchmark_ids == ("mine",)


@pytest.mark.parametrize(
    "key, center, index",
    [("pick", [12.0, 3.0], 0), ("pick", [8.0, 6.0], 1), ("place", [2.0, 4.0], 7), ("pick", [0.1, 0.1], 0)],
)
def test_a_target_out_of_the_arms_reach(key, center, index):
    """Too far, too far later on, below the floor later on, too near the shoulder."""
    with pytest.raises(DibsError, match=rf"regions\.{key}: its centre .* out of the arm's reach at index {index}"):
        load_family(changed(arm(), f"regions.{key}.center", center))


def test_all_mistakes_are_told_at_once():
    data = changed(changed(small(), "horizont", 1), "start.sigma", 2)
    with pytest.raises(DibsError, match=r"(?s)start\.sigma.*horizont"):
        load_family(data)


@pytest.mark.parametrize("gap", [3, 0, -5, 11])
def test_a_gap_must_divide_the_last_index(gap):
    with pytest.raises(
        DibsError,
        match=rf"gap {gap} does not divide the last index 10 of mine; choose one of \[1, 2, 5, 10\]",
    ):
        load_family(small()).train_indices(gap)


def test_train_indices_have_both_ends():
    assert load_family(small()).train_indices(5) == (0, 5, 10)
    for family in families().values():
        for gap in family.gaps:
            train = family.train_indices(gap)
            assert (train[0], train[-1]) == (0, family.last_index)
            assert set(np.diff(train)) == {gap}


@pytest.mark.parametrize("index", [-1, 11, 1.5, "3", None])
def test_an_index_outside_the_family(index):
    family = load_family(small())
    with pytest.raises(DibsError, match=re.escape(f"index {index!r} of mine: expected a whole number in 0 … 10")):
        family.check_index(index)
    if index == 11:
        family.boxes(index)  # looking beyond L is allowed where nothing is measured
    else:
        with pytest.raises(DibsError, match=r"index .* of mine: expected a whole number in 0 …"):
            family.boxes(index)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(DibsError, match=r"unknown family 'car2d-raech'\. Did you mean 'car2d-reach'\?"):
        get_family("car2d-raech")
    with pytest.raises(DibsError, match=r"unknown benchmark 'car2d-choice-l3'\. Did you mean 'car2d-choice-l\d'\?"):
        get_benchmark("car2d-choice-l3")
    with pytest.raises(DibsError, match=r"unknown edge of mine 'a>c'\. Did you mean 'a>b'\?"):
        edge_named(load_family(small()), "a>c")


# --- files -----------------------------------------------------------------------------------------------


def test_a_file_outside_the_package_works_like_a_built_in_family(tmp_path):
    for name in ("car2d-choice", "reacher-drop-same-9"):
        built_in = get_family(name)
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump(built_in.model_dump()))
        assert get_family(str(file)).model_dump() == built_in.model_dump()
        for benchmark in built_in.benchmark_ids:
            family, text = get_benchmark(f"{file}:{benchmark}")
            assert (family.model_dump(), text) == (built_in.model_dump(), get_benchmark(benchmark)[1])


def test_a_file_with_one_benchmark_needs_no_id(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(small()))
    assert get_benchmark(str(file)) == get_benchmark(f"{file}:mine")
    assert get_benchmark(str(file))[1] == small()["specification"]


@pytest.mark.parametrize("chosen", ["", ":car2d-choice-l3"])
def test_a_file_with_several_benchmarks_needs_one_of_their_ids(tmp_path, chosen):
    file = tmp_path / "two.yml"
    file.write_text(yaml.safe_dump(get_family("car2d-choice").model_dump()))
    with pytest.raises(DibsError, match=r"two\.yml: name one of its benchmarks, .*car2d-choice-l1"):
        get_benchmark(f"{file}{chosen}")


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "expected a mapping of family keys, found NoneType"),
        ("- a\n- b\n", "expected a mapping of family keys, found list"),
        ("just words", "expected a mapping of family keys, found str"),
        ("name: [", "not valid YAML"),
        ("name: 'mine", "not valid YAML"),
        ("name: mine\n", "horizon: Field required"),
    ],
)
def test_a_file_that_describes_no_family(tmp_path, text, message):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    with pytest.raises(DibsError, match=message) as error:
        load_family(file)
    assert str(error.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:pathlib.Path.touch [{path}]",
        "!!python/object/apply:os.system ['touch {path}']",
        "!!python/object/new:pathlib.PosixPath ['{path}']",
        "!!python/name:os.system",
    ],
)
def test_a_file_executes_nothing(tmp_path, tag):
    witness = tmp_path / "executed"
    file = tmp_path / "evil.yaml"
    file.write_text(f"name: mine\nhorizon: {tag.format(path=witness)}\n")
    with pytest.raises(DibsError, match="not valid YAML: could not determine a constructor for the tag"):
        load_family(file)
    assert not witness.exists()


def test_a_missing_file():
    with pytest.raises(DibsError, match=r"no/such\.yaml: no such family file"):
        load_family(Path("no/such.yaml"))


# --- how regions move ------------------------------------------------------------------------------------


def test_translation_scaling_and_drift_worked_out_by_hand():
    region = RegionModel(center=[1.0, 2.0], shift=[0.5, -1.0], drift=[0.0, 0.25], half_width=[1.0, 2.0], scale=0.5)
    for index, center, half in [
        (0, [1.0, 2.0], [1.0, 2.0]),
        (1, [1.5, 1.25], [0.5, 1.0]),
        (2, [2.0, 1.0], [0.25, 0.5]),  # 2 − 2 · 1 + 4 · 0.25
        (4, [3.0, 2.0], [0.0625, 0.125]),  # 2 − 4 · 1 + 16 · 0.25
    ]:
        box = region.box(index)
        assert (box.center.tolist(), box.half_width.tolist()) == (center, half)


def test_a_free_variable_stays_free():
    box = RegionModel(center=[None, 2.0], shift=[1.0, 1.0], half_width=1.0, scale=2.0).box(3)
    assert box.half_width.tolist() == [np.inf, 8.0]
    assert box.contains([[1e9, 5.0], [0.0, 14.0]]).tolist() == [True, False]


def test_a_region_that_says_nothing_stands_still():
    region = RegionModel(center=[1.0, 2.0], half_width=0.5)
    assert region.box(7).center.tolist() == [1.0, 2.0]
    assert region.box(7).half_width.tolist() == [0.5, 0.5]


numbers = st.floats(-50.0, 50.0)
vectors = st.lists(numbers, min_size=3, max_size=3)


@given(vectors, vectors, vectors, st.floats(0.8, 1.2), st.lists(st.integers(0, 40), min_size=1, max_size=5))
@example([0.0] * 3, [0.0] * 3, [0.0] * 3, 0.8, [2])  # squares are a case of their own in numpy
def test_an_array_of_indices_grounds_each_of_them(center, shift, drift, scale, indices):
    region = RegionModel(center=center, shift=shift, drift=drift, half_width=[1.0, 2.0, 3.0], scale=scale)
    many = region.box(np.array(indices))
    for row, index in enumerate(indices):
        one = region.box(index)
        np.testing.assert_array_equal(many.center[row], one.center)
        np.testing.assert_array_equal(many.half_width[row], one.half_width)
        expected = np.array(center) + index * np.array(shift) + index**2 * np.array(drift)
        np.testing.assert_allclose(one.center, expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("name", families())
def test_every_family_of_the_paper_changes_with_the_index(name):
    """Two neighbouring tasks differ: in their regions or in where they start."""
    family = get_family(name)
    for index in range(family.last_index):
        before, after = family.boxes(index), family.boxes(index + 1)
        moved = any(not np.array_equal(before[r].center, after[r].center) for r in before)
        assert moved or not np.array_equal(start_box(family, index), start_box(family, index + 1))


def test_the_papers_benchmarks_are_all_there():
    ids = benchmarks()
    assert len(ids) == len(set(ids)) == 35 and ids[-1] == "car2d-switch"
    assert {b for b in ids if b.startswith("reacher")} == {
        f"reacher-{kind}-{side}-{blocks}"
        for kind in ("drop", "stack")
        for side in ("same", "opposite")
        for blocks in (8, 9, 10)
    }


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
    tasks = reach_avoid(family, indices)
    states = np.random.default_rng(1).uniform(-2.0, 12.0, (len(indices), 5, 40, 2))
    distance, safety = tasks.target_distance(states), tasks.safe_distance(states)
    for row, index in enumerate(indices):
        boxes = family.boxes(index)
        np.testing.assert_allclose(distance[row], predicate_robustness(edge.target, boxes, states[row]))
        if safe is None:
            assert safety is None
        else:
            assert safety is not None
            expected = predicate_robustness(parse_predicate(safe), boxes, states[row])
            np.testing.assert_allclose(safety[row], expected)


def test_edges_with_and_without_safe_sets_share_a_batch():
    data = small()
    data["regions"]["w"] = {"center": [9.0, 9.0], "half_width": 0.5}
    data["specification"] = (
        "achieve reach(a) ensuring (avoid(o) & (avoid(w) | reach(b))); achieve (reach(b) & avoid(o)); "
        "achieve reach(a) ensuring avoid(w)"
    )
    family = load_family(data)
    tasks = reach_avoid(family, [0, 7])
    assert tasks.names[:3] == ("start>a@0", "a>b@0", "b>a#2@0")
    states = np.random.default_rng(2).uniform(-2.0, 12.0, (6, 50, 2))
    distance, safety = tasks.target_distance(states), tasks.safe_distance(states)
    assert safety is not None
    for row, (index, edge) in enumerate((i, e) for i in (0, 7) for e in family.edges):
        boxes = family.boxes(index)
        np.testing.assert_allclose(distance[row], predicate_robustness(edge.target, boxes, states[row]))
        if edge.safe is None:
            assert np.isposinf(safety[row]).all()
        else:
            np.testing.assert_allclose(safety[row], predicate_robustness(edge.safe, boxes, states[row]))


@pytest.mark.parametrize("name", families())
def test_the_papers_edges_agree_with_their_boxes(name):
    family = get_family(name)
    index = family.last_index
    boxes = family.boxes(index)
    tasks = reach_avoid(family, [index])
    rng = np.random.default_rng(3)
    for row, edge in enumerate(family.edges):
        target = boxes[edge.head]
        states = target.center + rng.uniform(-2.0, 2.0, (1, 200, target.dim)) * target.half_width
        distance = tasks.take([row]).target_distance(states)[0]
        np.testing.assert_allclose(distance, target.signed_distance(states[0]), atol=1e-12)
        np.testing.assert_array_equal(distance >= 0.0, target.contains(states[0]))


@given(
    st.lists(st.tuples(numbers, st.floats(0.1, 5.0)), min_size=2, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_a_box_and_its_distance_agree_for_random_boxes(sides, seed):
    """The batched distance and `Box` are two programs for one formula."""
    center, half = (np.array(values) for values in zip(*sides, strict=True))
    states = center + np.random.default_rng(seed).normal(size=(1, 30, len(sides))) * half * 1.5
    from dibs.families.tasks import _box_distance

    np.testing.assert_allclose(
        _box_distance(states, center[None], half[None])[0],
        Box(center, half).signed_distance(states[0]),
        atol=1e-12,
    )


@pytest.mark.parametrize("name", families())
def test_edges_start_where_their_source_is(name):
    family = get_family(name)
    indices = [0, family.last_index // 2, family.last_index]
    tasks = reach_avoid(family, indices)
    uniforms = np.random.default_rng(4).random((tasks.tasks, 3, 100, len(family.dynamics.state_names)))
    states = tasks.initial(uniforms)
    assert states.shape == uniforms.shape
    for row, (index, edge) in enumerate((i, e) for i in indices for e in family.edges):
        if edge.source is None:
            low, high = start_box(family, index)
            assert (states[row] >= low).all() and (states[row] <= high).all()
        else:
            box = family.boxes(index)[edge.tail]
            assert box.contains(states[row]).all()
            # all of the box is used, not just its middle
            spread = (states[row] - box.center) / box.half_width
            assert spread.min() < -0.95 and spread.max() > 0.95


def test_a_free_variable_of_the_source_starts_like_the_rollout():
    data = changed(small(), "regions.a.center", [None, 5.0])
    tasks = ground(load_family(data), [(0, "a>b")])
    states = tasks.initial(np.random.default_rng(5).random((1, 500, 2)))[0]
    assert np.abs(states[:, 0]).max() <= 0.3  # x: the start's noise
    assert 0.95 < np.abs(states[:, 1] - 5.0).max() <= 1.0  # y: the box


def test_an_edge_that_starts_from_two_overlapping_regions_is_refused():
    data = changed(small(), "specification", "achieve (reach(a) & reach(o)); achieve reach(b)")
    with pytest.raises(DibsError, match=r"mine: edge a\+o>b starts from two overlapping regions"):
        reach_avoid(load_family(data), [0])


def test_tasks_are_index_major_and_can_be_taken():
    tasks = reach_avoid(load_family(small()), [0, 5])
    assert tasks.names == ("start>a@0", "a>b@0", "start>a@5", "a>b@5")
    some = tasks.take([3, 0])
    assert some.names == ("a>b@5", "start>a@0")
    assert some.target_center[:, 0].tolist() == [[5.0, 10.0], [5.0, 5.0]]
    assert tasks.take([2]).target_center[0, 0].tolist() == [7.5, 5.0]  # 5 + 5 · 0.5


def test_the_reward_is_the_distance_less_a_penalty_while_unsafe():
    data = small() | {"reward": {"unit": 2.0, "unsafe_penalty": 10.0, "margin": 0.5}}
    tasks = ground(load_family(data), [(0, "start>a")])
    # target a = (5, 5) ± 1, obstacle o = (2, 2) ± 0.5
    states = np.array([[[5.0, 2.0], [5.0, 5.0], [2.0, 5.0], [2.0, 2.0], [2.0, 2.75]]])
    reward = tasks.reward(tasks.target_distance(states), tasks.safe_distance(states))[0]
    assert reward[0] == -1.0  # 2 away, in units of 2
    assert reward[1] == 0.0  # inside the target
    assert reward[2] == -1.0  # 2 away, far from the obstacle
    assert reward[3] == pytest.approx(-np.hypot(2.0, 2.0) / 2 - 10.0)  # in the obstacle
    assert reward[4] == pytest.approx(-np.hypot(2.0, 1.25) / 2 - 2.5)  # half way through the margin
    with pytest.raises(DibsError, match="index -1 of mine"):
        ground(load_family(small()), [(-1, "start>a")])
