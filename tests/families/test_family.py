"""Families as data: what is refused, in which words, files, and how regions move."""

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

from dibs import registry
from dibs.errors import DibsError
from dibs.families import Split, benchmarks, families, find_benchmarks, get_benchmark, get_family, load_family
from dibs.families.description import RegionModel

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
    return get_family("reacher-stack-same-8").description_data()


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
    ("regions.a.radius", 1.0, r"regions\.a: expected one of half_width .*found half_width and radius"),
    ("regions.a.diameter", 1.0, r"regions\.a\.diameter: unknown key"),
    ("regions.a.rotate", {"degrees": 9, "plane": ["x", "q"]}, r"regions\.a\.rotate\.plane: unknown state variable 'q'"),
    ("regions.a.rotate", {"degrees": 9, "plane": ["x", "x"]}, r"rotate\.plane: expected two different state variables"),
    ("regions.a.rotate", {"degrees": 9, "about": [1]}, r"rotate\.about: expected 2 numbers \(x, y\), found 1"),
    ("regions.a.rotate", {"degree": 9}, r"regions\.a\.rotate\.degree: unknown key 'degree'\. Did you mean 'degrees'"),
    ("regions.a.dilate", {"factor": 0}, r"regions\.a\.dilate\.factor: .*greater than 0"),
    ("regions.a.dilate", {"factor": 2, "about": [1, 2, 3]}, r"dilate\.about: expected 2 numbers \(x, y\), found 3"),
    ("regions.a.scale", 1e-4, r"leaves nothing of a at index|regions\.a: vanishes at index"),
    ("last_index", 100_000_000, r"last_index: .*less than or equal to 10000"),
    ("network.layers", 2, r"network\.layers: unknown key"),
    ("reward", {"bonus": 1.0}, r"reward\.bonus: unknown key"),
    ("horizon", None, r"horizon: Field required"),
    ("regions.a.half_width", None, r"regions\.a: expected one of half_width .*found none of them"),
    ("regions.a.center", None, r"regions\.a\.center: expected 2 numbers \(x, y\), found 0"),
    ("start.center", None, r"start\.center: expected 2 numbers \(x, y\), found 0"),
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
    ("gaps", [11], r"gaps: 11 is larger than last_index 10"),
    ("gaps", [5, 0], r"gaps\.1: .*greater than or equal to 1"),
    # geometry, at every index
    ("regions.o.center", [5.0, 10.2], r"regions\.b: its center lies inside o, .* at index 0"),
    ("regions.o.center", [7.6, 5.0], r"regions\.a: its center lies inside o, .* at index 5"),
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
    with pytest.raises(DibsError, match=rf"regions\.{key}: its center .* is not a state of Reacher at index {index}"):
        load_family(changed(arm(), f"regions.{key}.center", center))


def test_all_mistakes_are_reported_at_once():
    data = changed(changed(small(), "horizont", 1), "start.sigma", 2)
    with pytest.raises(DibsError, match=r"(?s)start\.sigma.*horizont"):
        load_family(data)


@pytest.mark.parametrize("index", [-1, 11, 1.5, "3", None])
def test_an_index_outside_the_family(index):
    family = load_family(small())
    with pytest.raises(DibsError, match=re.escape(f"index {index!r} of mine: expected a whole number in 0 … 10")):
        family.check_index(index)
    if index == 11:
        family.regions_at(index)  # looking beyond L is allowed where nothing is measured
    else:
        with pytest.raises(DibsError, match=r"index .* of mine: expected a whole number in 0 …"):
            family.regions_at(index)


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(DibsError, match=r"unknown family 'car2d-raech'\. Did you mean 'car2d-reach'\?"):
        get_family("car2d-raech")
    with pytest.raises(DibsError, match=r"unknown benchmark 'car2d-choice-l3'\. Did you mean 'car2d-choice-l\d'\?"):
        get_benchmark("car2d-choice-l3")
    with pytest.raises(DibsError, match=r"unknown edge of mine 'a>c'\. Did you mean 'a>b'\?"):
        load_family(small()).tasks([0]).ground([(0, "a>c")])


# --- files -----------------------------------------------------------------------------------------------


def copy_of(name: str, folder: Path, **changes: Any) -> Path:
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(get_family(name).description_data() | changes))
    return file


def test_a_file_works_like_a_registered_family(tmp_path):
    for name in ("car2d-choice", "reacher-drop-same-9"):
        registered = get_family(name)
        file = copy_of(name, tmp_path)
        for _ in range(2):
            assert get_family(str(file)) == registered
            registered.tasks_digest([0])  # whatever has been computed before
        for id_ in registered.benchmark_ids:
            found, expected = get_benchmark(f"{file}:{id_}"), get_benchmark(id_)
            assert (found.id, found.family, found.specification) == (id_, registered, expected.specification)
            assert (found.source, found.family_source) == (f"{file}:{id_}", str(file))
            assert (expected.source, expected.family_source) == (id_, name)


@pytest.mark.parametrize("change", [{"horizon": 21}, {"description": "another"}, {"benchmarks": {}}])
def test_a_file_cannot_change_a_registered_family(tmp_path, change):
    file = copy_of("car2d-reach", tmp_path, **change)
    for ask in (get_family, get_benchmark, find_benchmarks):
        with pytest.raises(
            DibsError, match=r"car2d-reach\.yaml: the name 'car2d-reach' belongs to a registered family"
        ):
            ask(str(file))


def test_a_changed_file_is_read_again(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(small()))
    before = get_family(str(file))
    assert get_family(str(file)) is before
    file.write_text(yaml.safe_dump(small() | {"horizon": 30}))
    assert get_family(str(file)).horizon == 30


def test_the_source_is_how_a_command_line_names_a_family(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(small()))
    assert load_family(file).source == get_family(str(file)).source == str(file)
    assert load_family(small()).source == "mine"
    assert load_family(file) == load_family(small())  # where it was read from makes no difference


def test_a_file_with_one_benchmark_needs_no_id(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(small()))
    assert get_benchmark(str(file)) == get_benchmark(f"{file}:mine")
    assert get_benchmark(str(file)).specification == small()["specification"]


def two_benchmarks(folder: Path) -> Path:
    file = folder / "two.yml"
    data = get_family("car2d-choice").description_data() | {"name": "two"}
    data["benchmarks"] = {f"mine-l{n}": text for n, text in enumerate(data["benchmarks"].values(), 1)}
    file.write_text(yaml.safe_dump(data))
    return file


def test_a_file_with_several_benchmarks_needs_one_of_their_ids(tmp_path):
    file = two_benchmarks(tmp_path)
    with pytest.raises(DibsError, match=r"two\.yml: name one of its benchmarks, .*mine-l1"):
        get_benchmark(str(file))
    with pytest.raises(DibsError, match=r"unknown benchmark of .*two\.yml 'mine-l3'\. Did you mean 'mine-l"):
        get_benchmark(f"{file}:mine-l3")
    with pytest.raises(DibsError, match=r"unknown benchmark of .*two\.yml 'mine-\*'"):
        get_benchmark(f"{file}:mine-*")  # a pattern is not an id


def test_patterns_find_benchmarks(tmp_path):
    def ids(entry: str) -> list[str]:
        return [benchmark.id for benchmark in find_benchmarks(entry)]

    file = two_benchmarks(tmp_path)
    assert ids(str(file)) == ids(f"{file}:*") == ids(f"{file}:mine-l?") == ["mine-l1", "mine-l2"]
    assert ids(f"{file}:*2") == ["mine-l2"]
    assert ids("*") == list(benchmarks())
    with pytest.raises(DibsError, match=r"unknown benchmark 'boat-\*'"):
        find_benchmarks("boat-*")


def test_a_file_must_not_take_the_id_of_a_registered_benchmark(tmp_path):
    file = tmp_path / "mine.yaml"
    text = get_family("car2d-choice").to_yaml()
    file.write_text(text.replace("name: car2d-choice", "name: mine", 1))
    with pytest.raises(
        DibsError, match=r"mine\.yaml: the benchmark id 'car2d-choice-l1' belongs to the registered family"
    ):
        get_family(str(file))


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
        box = region.ground(index)
        assert (box.center.tolist(), box.half_width.tolist()) == (center, half)


def test_a_free_variable_stays_free():
    box = RegionModel(center=[None, 2.0], shift=[1.0, 1.0], half_width=1.0, scale=2.0).ground(3)
    assert box.half_width.tolist() == [np.inf, 8.0]
    assert box.contains([[1e9, 5.0], [0.0, 14.0]]).tolist() == [True, False]


def test_a_region_that_says_nothing_stands_still():
    region = RegionModel(center=[1.0, 2.0], half_width=0.5)
    assert region.ground(7).center.tolist() == [1.0, 2.0]
    assert region.ground(7).half_width.tolist() == [0.5, 0.5]


numbers = st.floats(-50.0, 50.0)
vectors = st.lists(numbers, min_size=3, max_size=3)


@given(vectors, vectors, vectors, st.floats(0.8, 1.2), st.lists(st.integers(0, 40), min_size=1, max_size=5))
@example([0.0] * 3, [0.0] * 3, [0.0] * 3, 0.8, [2])  # squares are a case of their own in numpy
def test_an_array_of_indices_grounds_each_of_them(center, shift, drift, scale, indices):
    region = RegionModel(center=center, shift=shift, drift=drift, half_width=[1.0, 2.0, 3.0], scale=scale)
    many = region.ground(np.array(indices))
    for row, index in enumerate(indices):
        one = region.ground(index)
        np.testing.assert_array_equal(many.center[row], one.center)
        np.testing.assert_array_equal(many.half_width[row], one.half_width)
        expected = np.array(center) + index * np.array(shift) + index**2 * np.array(drift)
        np.testing.assert_allclose(one.center, expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("name", families())
def test_every_family_changes_with_the_index(name):
    """Two neighboring tasks differ: in their regions or in where they start."""
    family = get_family(name)
    for index in range(family.last_index):
        before, after = family.regions_at(index), family.regions_at(index + 1)
        moved = any(not np.array_equal(before[r].center, after[r].center) for r in before)
        starts = family.tasks([index, index + 1]).start_center
        assert moved or not np.array_equal(starts[0], starts[1])


def test_the_papers_benchmarks_are_all_there():
    known = registry.load("families", "paper")()
    ids = [b for name in known for b in get_family(name).benchmark_ids]
    assert len(ids) == len(set(ids)) == 35 and ids[-1] == "car2d-switch"
    assert set(ids) < set(benchmarks())
    assert {b for b in ids if b.startswith("reacher")} == {
        f"reacher-{kind}-{side}-{blocks}"
        for kind in ("drop", "stack")
        for side in ("same", "opposite")
        for blocks in (8, 9, 10)
    }


# --- splits ----------------------------------------------------------------------------------------------


def with_last(last: int) -> dict[str, Any]:
    """Far enough for `a`, which moves away, to be within reach at any of these indices."""
    regions = small()["regions"] | {"o": far_away()}
    return small() | {"last_index": last, "gaps": [], "horizon": 10 + last, "regions": regions}


def far_away() -> dict[str, Any]:
    return {"center": [-20.0, -20.0], "half_width": 0.5}


def test_a_gap_is_a_spacing_and_both_ends():
    family = load_family(small())
    assert family.split("gap5") == Split("gap5", (0, 5, 10))
    assert family.split("gap10").indices == (0, 10)
    assert family.split("gap1").indices == tuple(range(11))
    for known in families().values():
        for gap in known.gaps:
            train = known.split(f"gap{gap}").indices
            assert (train[0], train[-1]) == (0, known.last_index)
            assert set(np.diff(train)) == {gap}


@pytest.mark.parametrize(
    "last, gap, end", [(40, 3, (36, 39, 40)), (40, 7, (28, 35, 40)), (40, 39, (0, 39, 40)), (10, 4, (4, 8, 10))]
)
def test_a_gap_that_does_not_divide_ends_with_the_last_index(last, gap, end):
    train = load_family(with_last(last)).split(f"gap{gap}").indices
    assert train[-3:] == end and train[:-1] == tuple(range(0, last, gap))


@pytest.mark.parametrize("name", ["gap0", "gap-5", "gap05", "gap", "5", "sparse", "gap5x", "", "base"])
def test_only_gaps_are_known_by_name(name):
    with pytest.raises(DibsError, match=rf"split '{name}' of mine: expected gapN, or a name with its training indices"):
        load_family(small()).split(name)


def test_a_gap_larger_than_the_family():
    with pytest.raises(DibsError, match="split gap11 of mine: the gap is larger than the last index 10"):
        load_family(small()).split("gap11")


def test_a_named_split_has_the_indices_it_is_given():
    assert load_family(small()).split("sparse", [0, 3, np.int64(7), 10]) == Split("sparse", (0, 3, 7, 10))
    assert load_family(small()).split("gap5", [0, 5, 10]) == load_family(small()).split("gap5")


@pytest.mark.parametrize(
    "indices", [[], [0], [10], [0, 3], [3, 10], [0, 3, 3, 10], [0, 7, 3, 10], [0, 11], [-1, 0, 10], [0, 10, 11]]
)
def test_a_named_split_rises_from_0_to_the_last_index(indices):
    with pytest.raises(DibsError) as error:
        load_family(small()).split("sparse", indices)
    expected = f"split 'sparse' of mine: expected increasing indices from 0 to L = 10, found {indices}"
    assert str(error.value) == expected


@pytest.mark.parametrize("name, means", [("gap5", "0, 5, 10"), ("gap10", "0, 10"), ("base", "0, 10")])
def test_reserved_names_cannot_mean_other_indices(name, means):
    with pytest.raises(DibsError, match=rf"split {name} of mine: this name means \[{means}\]; choose another"):
        load_family(small()).split(name, [0, 3, 10])


@pytest.mark.parametrize("name", ["", "a b", "../up", "a/b", "A", "a_b", "-a", "a--b", "{x}"])
def test_the_name_of_a_split_is_that_of_a_folder(name):
    with pytest.raises(DibsError, match="of mine: expected lowercase letters, digits and single hyphens"):
        load_family(small()).split(name, [0, 3, 10])


def test_the_training_index_before():
    split = load_family(small()).split("sparse", [0, 3, 7, 10])
    assert [split.before(i) for i in split.indices] == [None, 0, 3, 7]
    with pytest.raises(DibsError, match=r"index 5 is not a training index of split sparse: \[0, 3, 7, 10\]"):
        split.before(5)


def test_random_streams_of_gaps_are_those_of_version_0_1():
    family = load_family(small())
    assert [family.split(f"gap{gap}").key for gap in (1, 5, 10)] == ["1", "5", "10"]
    assert family.split("sparse", [0, 3, 10]).key == "sparse"


# --- registered families ---------------------------------------------------------------------------------


@pytest.fixture
def collection():
    """Register a collection of families for one test."""

    def add(families: object, name: str = "mine") -> None:
        registry.register("families", name, families)
        added.append(name)

    added: list[str] = []
    yield add
    for name in added:
        registry._added["families"].pop(name, None)


def test_a_collection_is_a_mapping_or_a_function(collection):
    collection({"mine": small()})
    collection(lambda: {"yours": small() | {"name": "yours"}}, "more")
    assert get_family("mine") == load_family(small()) and get_family("yours").name == "yours"
    assert get_benchmark("yours").specification == small()["specification"]
    assert {"mine", "yours", "car2d-reach"} <= set(families()) and {"mine", "yours"} <= set(benchmarks())


def test_a_family_registered_again_is_the_new_one(collection):
    collection({"mine": small()})
    assert get_family("mine") is get_family("mine")
    collection({"mine": small() | {"horizon": 31}})
    assert get_family("mine").horizon == 31


def test_two_collections_may_not_differ_about_a_family(collection):
    collection({"mine": small()})
    collection({"mine": small()}, "again")  # the same description is fine
    assert get_family("mine").horizon == 20
    collection({"mine": small() | {"horizon": 31}}, "again")
    with pytest.raises(DibsError, match="two packages register the family 'mine'"):
        get_family("car2d-reach")
