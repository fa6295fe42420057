"""Negative controls: the reordered families, and that methods lose there what they know."""

from __future__ import annotations

import numpy as np
import pytest

from dibs.cli import main
from dibs.controls import Control, controls, reordered, shuffled, wrong
from dibs.errors import DibsError
from dibs.families import Benchmark, get_benchmark, get_family, load_family


def facts(family, index):
    """Everything about the task of one index."""
    tasks, regions = family.tasks([index]), family.regions_at(index)
    arrays = [regions[name].arrays() for name in sorted(regions)]
    return [tasks.start_center, tasks.start_half, *(a[key] for a in arrays for key in sorted(a))]


def same(one, i, other, j):
    return all(np.array_equal(a, b) for a, b in zip(facts(one, i), facts(other, j), strict=True))


def with_all_shapes():
    data = get_family("suite-drone-door").description_data()
    data["regions"] |= {
        "ball": {
            "center": [3.0, None, 4.0],
            "radius": 1.0,
            "rotate": {"degrees": 5.0, "plane": ["z", "x"]},
            "scale": 0.9,
        },
        "floor": {"center": [None, None, -20.0], "normal": [0.0, 0.0, -1.0], "shift": [0.0, 0.0, -0.5]},
    }
    text = data["specification"].replace("avoid(left)", "avoid(left) & avoid(ball) & avoid(floor)")
    return load_family(data | {"name": "shapes", "specification": text, "benchmarks": {}})


@pytest.mark.parametrize("family", [get_family("suite-car2d-rates"), with_all_shapes()], ids=lambda f: f.name)
def test_tasks_are_the_same_in_another_order(family):
    order = np.random.default_rng(0).permutation(family.last_index + 1).tolist()
    other = reordered(family, order, "other")
    assert len(set(other.benchmark_ids) | set(family.benchmark_ids)) == 2 * len(family.benchmark_ids)
    assert all(same(other, i, family, j) for i, j in enumerate(order))
    assert not same(other, 0, family, 0) or order[0] == 0


def test_the_wrong_family_differs_at_unseen_indices_only():
    family = get_family("suite-car2d-orbit")
    split = family.split("gap5")
    other = wrong(family, split)
    assert all(same(other, i, family, i) == (i in split.indices) for i in range(21) if i != 10)
    # So what is trained is the same, to the digest.
    assert other.tasks_digest(split.indices) == family.tasks_digest(split.indices)
    assert same(other, 1, family, 19) and same(other, 7, family, 13)


def test_the_order_depends_on_the_seed():
    family = get_family("suite-car2d-shrink")
    assert shuffled(family, 1) == shuffled(family, 1) != shuffled(family, 2)


def test_what_a_table_cannot_hold_is_an_error():
    data = get_family("suite-car2d-shrink").description_data()
    data["start"] |= {"dilate": {"factor": 0.9}}
    with pytest.raises(DibsError, match=r"start\.noise changes with the index"):
        shuffled(load_family(data | {"name": "stretched"}), 0)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.0, 0.2, 0.1), "drops"),
        ((1.0, 0.95, 0.1), "broken: does not drop when shuffled"),
        ((0.9, 0.9, 0.85), "broken: does not drop when shuffled and wrong"),
        ((0.3, 0.3, 0.3), "solves too little to tell"),
    ],
)
def test_verdicts(ratios, verdict):
    assert Control("any", *ratios).verdict == verdict


def test_a_benchmark_that_needs_no_index_is_broken():
    """The base policy of a goal that hardly moves solves every index, in any order."""
    data = get_family("suite-car2d-orbit").description_data()
    data["regions"] = {"goal": {"center": [5.0, 5.0], "half_width": 1.0, "shift": [0.01, 0.0]}}
    data |= {"name": "still", "specification": "achieve reach(goal)", "last_index": 4, "gaps": [2]}
    family = load_family(data)
    (found,) = controls(_benchmark(family), family.split("gap2"), methods=["motion"], rollouts=50)
    assert found.right == 1.0 and found.verdict.startswith("broken")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["no-such", "--gap", "5"], "unknown benchmark 'no-such'"),
        (["suite-car2d-orbit", "--gap", "5", "--methods", "dibs,none"], "unknown method 'none'"),
        (["suite-car2d-orbit", "--gap", "-5"], "split 'gap-5' of suite-car2d-orbit: expected gapN"),
        (["suite-car2d-orbit", "--gap", "21"], "the gap is larger than the last index 20"),
        (["suite-car2d-orbit", "--gap", "1"], "split gap1 of suite-car2d-orbit: controls need indices"),
        (["suite-car2d-orbit", "--gap", "5", "--rollouts", "0"], "rollouts: expected at least 1 per index, found 0"),
        (["suite-car2d-orbit", "--gap", "5", "--rollouts", "-3"], "rollouts: expected at least 1 per index, found -3"),
    ],
)
def test_mistakes_are_named(argv, message, capsys):
    assert main(["controls", *argv]) == 1
    assert message in capsys.readouterr().err


def test_tables_can_be_controlled():
    """A family that tables describe is reordered like any other; tables of other lengths are an error of the family."""
    entries = [{"center": [x, 5.0], "half_width": 1.0} for x in (-6.0, 4.0, -2.0, 6.0)]
    data = get_family("suite-car2d-orbit").description_data()
    data |= {"name": "listed", "specification": "achieve reach(goal)", "last_index": 3, "gaps": [2]}
    family = load_family(data | {"regions": {"goal": {"table": entries}}})
    other = reordered(family, [2, 0, 3, 1], "other")
    assert [other.regions_at(i)["goal"].center[0] for i in range(4)] == [-2.0, -6.0, 6.0, 4.0]
    with pytest.raises(DibsError, match=r"goal.*3"):
        load_family(data | {"regions": {"goal": {"table": entries[:3]}}})


@pytest.mark.slow
def test_methods_lose_what_they_know():
    benchmark = get_benchmark("suite-car2d-orbit")
    (found,) = controls(benchmark, benchmark.family.split("gap5"), methods=["bc-index"], rollouts=100)
    assert found.right > 0.5 and found.verdict == "drops"


def _benchmark(family):
    return Benchmark(family.name, family, family.name, family.source)
