"""What a row of an evaluation says: rate, interval, success, role; and the paper's three metrics."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings, evaluation_table, needs_double, roles, summarize
from dibs.families import Family, get_family, load_family
from dibs.files import read_table
from dibs.provenance import Origin, check_kind
from dibs.settings import parse_settings
from dibs.stages import EvaluationResult

ORIGIN = Origin("evaluation", {"method": "dibs", "seed": 1}, "tasks", "settings", {"evaluation": 1}, ("model",))


def table(counts: dict[int, int], **settings):
    return evaluation_table(counts, dict.fromkeys(counts, "train"), EvaluationSettings(**settings))


@pytest.fixture
def until(tiny_description):
    """Make a family of a given length."""

    def make(last: int) -> Family:
        return load_family(tiny_description(last_index=last, gaps=[]))

    return make


@pytest.fixture
def tables(tiny_description) -> Family:
    """A family of tables of values, which end at index 4."""
    data = tiny_description(last_index=4, gaps=[])
    data["regions"] = {
        name: {"table": [{"center": [3.0 * n + i, 3.0], "half_width": 1.0} for i in range(5)]}
        for n, name in enumerate(data["regions"])
    }
    return load_family(data)


@pytest.mark.parametrize("satisfied, succeeds", [(0, False), (899, False), (900, False), (901, True), (1000, True)])
def test_the_rate_must_exceed_delta(satisfied, succeeds):
    made = table({0: satisfied, 1: 0})
    assert made["succeeds"].to_pylist() == [succeeds, False]
    assert made["rate"].to_pylist()[0] == satisfied / 1000


@pytest.mark.parametrize("rollouts, delta, exactly", [(1000, 0.7, 700), (200, 0.9, 180), (30, 0.9, 27), (10, 0.3, 3)])
def test_exactly_delta_is_not_solved_for_other_numbers_either(rollouts, delta, exactly):
    made = table({0: exactly, 1: exactly + 1}, rollouts=rollouts, delta=delta)
    assert made["succeeds"].to_pylist() == [False, True]


@pytest.mark.parametrize("satisfied", [0, 1, 500, 880, 899, 950, 999, 1000])
def test_the_interval_is_wilsons(satisfied):
    made = table({0: satisfied, 1: 0})
    expected = binomtest(satisfied, 1000).proportion_ci(0.95, method="wilson")
    assert made["lower"].to_pylist()[0] == pytest.approx(expected.low, abs=1e-12)
    assert made["upper"].to_pylist()[0] == pytest.approx(expected.high, abs=1e-12)


def test_cells_whose_interval_straddles_delta_are_marked():
    made = table(dict(enumerate([870, 885, 900, 915, 925, 1000])))
    assert made["straddles"].to_pylist() == [False, True, True, True, False, False]
    for lower, upper, marked in zip(*(made[c].to_pylist() for c in ("lower", "upper", "straddles")), strict=True):
        assert marked == (lower <= 0.9 < upper)


def test_roles(until):
    inside = roles(until(4), (0, 2, 4), EvaluationSettings(beyond=False))
    assert inside == {0: "train", 1: "unseen", 2: "train", 3: "unseen", 4: "train"}
    every = roles(until(4), (0, 4), EvaluationSettings())
    assert [every[i] for i in range(9)] == ["train"] + ["unseen"] * 3 + ["train"] + ["beyond"] * 4
    assert roles(until(4), (0, 2, 4), EvaluationSettings(unseen=False, beyond=False)) == dict.fromkeys(
        (0, 2, 4), "train"
    )


def test_named_indices_are_measured_as_well(until, tables):
    settings = parse_settings(EvaluationSettings, {"indices": [100_000, 1, 9], "unseen": False, "beyond": False})
    found = roles(until(4), (0, 4), settings)
    assert found == {0: "train", 1: "unseen", 4: "train", 9: "far", 100_000: "far"}
    assert roles(until(4), (0, 4), EvaluationSettings(indices=(7, 9)))[7] == "beyond"
    with pytest.raises(DibsError, match=r"evaluation.indices: .* has no task at index 9: its tables of values end"):
        roles(tables, (0, 2, 4), EvaluationSettings(indices=(3, 9)))


def test_double_precision_is_for_far_indices_only():
    """Against numpy's spacing of the numbers in question."""
    tasks = get_family("car2d-reach").tasks([0, 40, 80, 1000, 100_000])
    spacing = [float(np.spacing(np.float32(0.5 * i + 25.0))) for i in tasks.indices]  # the farthest goal is at x = 25
    coarse = needs_double(tasks)
    assert coarse.tolist() == [False, False, False, False, True]
    assert max(np.array(spacing)[~coarse]) < 1e-3 < min(np.array(spacing)[coarse])


def test_the_file_is_one_row_per_index_in_order(tmp_path, until):
    role = roles(until(2), (0, 2), EvaluationSettings())
    counts = {i: i for i in (3, 0, 4, 1, 2)}
    result = EvaluationResult(counts, role, EvaluationSettings(), ORIGIN, {"specification": "achieve"})
    result.save(tmp_path / "e.parquet")
    made, meta = read_table(tmp_path / "e.parquet")
    names = ["index", "role", "rollouts", "satisfied", "rate", "lower", "upper", "succeeds", "straddles", "predicted"]
    assert made.column_names == names
    assert made["index"].to_pylist() == made["satisfied"].to_pylist() == [0, 1, 2, 3, 4]
    assert made["role"].to_pylist() == ["train", "unseen", "train", "beyond", "beyond"]
    assert (meta["kind"], meta["delta"], meta["seed"], meta["specification"]) == ("evaluation", 0.9, 1, "achieve")
    assert (meta["id"], meta["inputs"]) == (ORIGIN.id, ["model"])
    check_kind("e.parquet", meta, "evaluation")


def test_the_three_metrics_of_section_5_1():
    role = ["train", "train", "unseen", "unseen", "unseen", "train", "beyond", "beyond"]
    won = [True, False, True, True, False, True, False, True]
    found = summarize(role, won)
    assert found == {
        "training_ratio": pytest.approx(2 / 3),
        "zero_shot_ratio": pytest.approx(2 / 3),
        "zero_shot_count": 2.0,
        "beyond_ratio": 0.5,
        "far_ratio": pytest.approx(math.nan, nan_ok=True),
    }
    assert summarize([*role, "far", "far"], [*won, True, False]) == {**found, "far_ratio": 0.5}


def test_what_was_not_measured_has_no_ratio():
    found = summarize(["train", "train"], [True, True])
    assert found["training_ratio"] == 1.0 and found["zero_shot_count"] == 0.0
    assert math.isnan(found["zero_shot_ratio"]) and math.isnan(found["beyond_ratio"])


@pytest.mark.parametrize("bad", [{"rollouts": 0}, {"rollouts": 1.5}, {"delta": 90}, {"delta": -0.1}, {"detla": 0.9}])
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(DibsError, match=next(iter(bad))):
        parse_settings(EvaluationSettings, bad)


def test_rates_are_shares(pipeline):
    made, _ = read_table(pipeline.layout.evaluation("dibs", "tiny", "gap2", 0))
    rate = np.array(made["satisfied"]) / np.array(made["rollouts"])
    assert np.array_equal(rate, np.array(made["rate"])) and rate.min() >= 0.0 and rate.max() <= 1.0


def test_an_evaluation_says_what_it_is(pipeline, tiny):
    made, meta = read_table(pipeline.layout.evaluation("dibs", "tiny", "gap2", 0))
    expected = {
        "kind": "evaluation",
        "method": "dibs",
        "benchmark": "tiny",
        "family": "tiny",
        "split": "gap2",
        "train": [0, 2, 4],
        "seed": 0,
        "delta": 0.9,
        "specification": tiny.specification,
        "tasks": tiny.tasks_digest(range(9)),
    }
    assert {key: meta.get(key) for key in expected} == expected and "gap" not in meta
    assert meta["steps"] > 0 and len(made) == 9
