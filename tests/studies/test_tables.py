"""Generic tables against hand calculations and SciPy."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dibs.studies import tables
from dibs.studies.collect import COLUMNS
from dibs.studies.formats import Table, to_markdown
from dibs.studies.reports import USUAL

SCORES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30)


def runs(*rows, **common) -> pd.DataFrame:
    """A frame of (method, benchmark, split, seed, training_count, zero_shot_count) with 4 and 10 tasks."""
    names = ("method", "benchmark", "split", "seed", "training_count", "zero_shot_count")
    frame = pd.DataFrame([dict(zip(names, row, strict=True)) for row in rows])
    frame = frame.assign(family=frame["benchmark"], train_size=4, unseen_size=10)
    frame["training_ratio"] = frame["training_count"] / frame["train_size"]
    frame["zero_shot_ratio"] = frame["zero_shot_count"] / frame["unseen_size"]
    rest = {
        "requires": "nothing",
        "training_rate": 0.9,
        "beyond_ratio": 0.5,
        "far_ratio": np.nan,
        "straddling": 1,
        "steps": np.nan,
        "seconds": np.nan,
        "rollouts": 1000,
        "delta": 0.9,
        "file": "x",
        "tasks": "",
        "indices": "",
        "versions": "",
    }
    return frame.assign(**{**rest, **common})[list(COLUMNS)]


HAND = runs(
    ("dibs", "a", "gap10", 0, 4, 10),
    ("dibs", "a", "gap10", 1, 3, 8),
    ("dibs", "b", "gap10", 0, 2, 6),  # GenRL lacks this one
    ("dibs", "a", "gap5", 0, 4, 9),
    ("genrl", "a", "gap10", 0, 2, 2),
    ("genrl", "a", "gap10", 1, 0, 4),
    ("genrl", "a", "gap5", 0, 1, 0),
    ("bc", "a", "gap10", 0, 1, 0),
)


def row(table: Table, **where):
    (found,) = [r for r in table.rows if all(r[k] == v for k, v in where.items())]
    return found


# --- statistics ------------------------------------------------------------------------------------------


@given(SCORES, SCORES)
def test_probability_of_improvement(ours, theirs):
    a, b = np.array(ours), np.array(theirs)
    found = tables.probability_of_improvement(a, b)
    u = stats.mannwhitneyu(ours, theirs, method="asymptotic").statistic
    assert found == pytest.approx(u / (len(ours) * len(theirs)), abs=1e-12)
    assert found + tables.probability_of_improvement(b, a) == pytest.approx(1.0)


@pytest.mark.parametrize("statistic", [tables.interquartile_mean, lambda *g, axis=-1: np.mean(g, axis=0).mean(axis)])
def test_the_interval_covers_the_truth_about_as_often_as_it_says(statistic, monkeypatch):
    """Twenty seeds of three cells of means 0.2, 0.5 and 0.8: the truth of both statistics is 0.5."""
    monkeypatch.setattr(tables, "DRAWS", 300)
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        groups = [mean + rng.normal(0.0, 0.1, size=20) for mean in (0.2, 0.5, 0.8)]
        low, high = tables.bootstrap(groups, statistic)
        assert low <= statistic(*groups) <= high
        hits += low <= 0.5 <= high
    assert 0.85 <= hits / 200 <= 1.0


def test_seeds_are_resampled_within_cells_only():
    """Cells in which all seeds are equal leave nothing to resample, however much the cells differ."""
    groups = [np.full(6, value) for value in (0.0, 0.5, 1.0)]
    assert tables.bootstrap(groups, tables.interquartile_mean) == (0.5, 0.5)
    assert tables.bootstrap([*groups, np.zeros(1)], tables.interquartile_mean) == (None, None)


# --- relative --------------------------------------------------------------------------------------------


def test_relative_by_hand():
    table = tables.relative(HAND, USUAL)
    assert [(r["method"], r["baseline"]) for r in table.rows] == [("genrl", "bc"), ("dibs", "bc"), ("dibs", "genrl")]
    genrl = row(table, method="dibs", baseline="genrl")
    # Common cells: a at gap10 and gap5. Ours: mean(4, 3) + 4 = 7.5; theirs: mean(2, 0) + 1 = 2.
    assert (genrl["training_ours"], genrl["training_theirs"]) == (7.5, 2.0)
    assert genrl["training_ratio"] == pytest.approx(3.75)
    # Ours: mean(10, 8) + 9 = 18; theirs: mean(2, 4) + 0 = 3.
    assert genrl["unseen_ratio"] == pytest.approx(6.0)
    assert (genrl["cells"], genrl["cells_ours"], genrl["seeds"]) == (2, 3, "1–2")
    assert genrl["training_low"] is None  # a cell with one seed has no interval
    bc = row(table, method="dibs", baseline="bc")
    assert bc["training_ratio"] == pytest.approx(3.5) and bc["unseen_ratio"] is None and bc["cells"] == 1


def test_benchmarks_that_require_more_are_compared_on_their_own():
    more = HAND.assign(requires=HAND["benchmark"].map({"a": "nothing", "b": "more"}))
    extra = runs(("bc", "b", "gap10", 0, 4, 3), ("dibs", "c", "gap10", 0, 4, 3))
    table = tables.relative(pd.concat([more, extra.assign(requires=["more", "not measured"])]), USUAL)
    (row,) = [r for r in table.rows if (r["method"], r["baseline"]) == ("dibs", "bc")]
    # On b, DIBS solves 2 and 6 where BC solves 4 and 3.
    assert row["more_training_ratio"] == 0.5 and row["more_unseen_ratio"] == 2.0
    assert (row["more_cells"], row["more_cells_ours"], row["cells"]) == (1, 1, 2)
    (line,) = [line for line in to_markdown(table).splitlines() if line.startswith("| DIBS") and "| BC" in line]
    assert [c.strip() for c in line.split("|")[-4:-1]] == ["0.50×", "2.00×", "1 of 1"]
    assert any("here b. Not measured: c." in note for note in table.notes)


def test_no_benchmark_may_require_more():
    table = tables.relative(HAND, USUAL)
    assert not any("More" in column.header for column in table.columns)
    assert any("none of these benchmarks is known to require more" in note for note in table.notes)


def test_relative_as_read():
    lines = [
        [c.strip() for c in line.split("|")[1:-1]] for line in to_markdown(tables.relative(HAND, USUAL)).splitlines()
    ]
    cells = {(line[0], line[1]): line[2:] for line in lines if len(line) > 2}
    assert cells["DIBS", "BC"] == ["3.50×", "–", "3.5 to 1.0", "9.0 to 0.0", "1 of 3", "1–2"]
    assert cells["", "GenRL"] == ["3.75×", "6.00×", "7.5 to 2.0", "18.0 to 3.0", "2 of 3", "1–2"]


def test_relative_over_all_cells(frame):
    table = tables.relative(frame, USUAL)
    plus = row(table, method="dibs-plus", baseline="genrl")
    part = frame[frame["method"].isin(["dibs-plus", "genrl"])]
    sums = part.groupby(["method", "benchmark", "split"])["training_count"].mean().unstack("method").dropna().sum()
    assert plus["training_ratio"] == pytest.approx(sums["dibs-plus"] / sums["genrl"])
    assert any("trained on each unseen task" in note for note in table.notes)
    with_interval = [r for r in table.rows if r["training_low"] is not None]
    assert with_interval
    for r in with_interval:
        assert r["training_low"] <= r["training_ratio"] <= r["training_high"]


def test_a_ratio_without_a_denominator_in_some_resample_has_no_interval():
    rows = [("dibs", "b", "gap2", s, 4, 4) for s in range(3)] + [("genrl", "b", "gap2", s, s == 0, 4) for s in range(3)]
    found = row(tables.relative(runs(*rows), USUAL), baseline="genrl")
    assert found["training_ratio"] == pytest.approx(12.0) and found["training_low"] is None
    assert (found["unseen_low"], found["unseen_high"]) == (1.0, 1.0)


def test_a_method_that_is_not_installed_is_compared_too():
    table = tables.relative(pd.concat([HAND, runs(("mine", "a", "gap5", 0, 2, 3))]), USUAL)
    assert row(table, method="mine", baseline="dibs")["training_ratio"] == 0.5


# --- per benchmark ---------------------------------------------------------------------------------------


def test_splits_by_hand():
    one = row(tables.splits(HAND, USUAL), benchmark="a", split="gap10", method="dibs")
    assert one["training_ratio_mean"] == pytest.approx(0.875)
    assert one["training_ratio_std"] == pytest.approx(np.std([1.0, 0.75], ddof=1))
    assert (one["zero_shot_count_mean"], one["zero_shot_count_std"]) == (9.0, pytest.approx(np.sqrt(2)))
    assert (one["straddling"], one["tasks"], one["seeds"], one["steps_mean"]) == (2, 28, "2", None)


def test_benchmarks_by_hand():
    cells = [("gap4", 0, 4), ("gap4", 1, 2), ("gap2", 0, 3), ("gap2", 1, 1)]
    rows = runs(*[("dibs", "b", split, seed, t, t) for split, seed, t in cells])
    rows["train_size"] = rows["split"].map({"gap4": 4, "gap2": 5})
    one = row(tables.benchmarks(rows.assign(steps=5e5), USUAL), benchmark="b")
    assert one["splits"] == "gap4 gap2" and (one["train_size"], one["unseen_size"]) == (9, 20)
    assert one["training_ratio_mean"] == pytest.approx((4 + 2 + 3 + 1) / 16)
    assert one["training_ratio_std"] == pytest.approx(np.std([7 / 8, 3 / 8], ddof=1))
    assert one["training_count_mean"] == pytest.approx(5.0)  # three at gap4 and two at gap2
    assert one["training_count_std"] == pytest.approx(np.std([7, 3], ddof=1))
    assert one["training_ratio_iqm"] == pytest.approx(stats.trim_mean([1.0, 0.5, 0.75, 0.25], 0.25))
    assert one["steps_mean"] == 5e5


def test_budgets_are_means_over_splits_of_means_over_seeds():
    rows = runs(*[("dibs", "b", *cell, 1, 1) for cell in [("gap4", 0), ("gap4", 1), ("gap2", 0)]])
    rows = rows.assign(steps=[1e6, 3e6, 4e6], seconds=[10.0, 30.0, np.nan], train_size=[4, 4, 5])
    one = row(tables.budgets(rows, USUAL), benchmark="b")
    assert (one["steps_mean"], one["seconds_mean"]) == (3e6, 20.0)
    assert (one["splits"], one["seeds"]) == ("gap4 gap2", "1–2")


@pytest.mark.parametrize("make", [tables.relative, tables.improvement, tables.benchmarks, tables.splits])
def test_other_tables_do_not_depend_on_times(make):
    rows = runs(*[(m, "b", "gap4", seed, 1, 1) for m in ("bc", "dibs") for seed in (0, 1)])
    one, other = (make(rows.assign(seconds=seconds), USUAL) for seconds in (1.0, 2.0))
    assert one.rows == other.rows and one.notes == other.notes


def test_the_interval_is_that_of_the_stratified_bootstrap():
    """Resampled here by hand, one resample at a time."""
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 5, size=(8, 2))  # (seeds, splits)
    cells = [(split, s, seed) for s, split in enumerate(("gap4", "gap2")) for seed in range(8)]
    one = row(
        tables.benchmarks(runs(*[("dibs", "b", split, seed, scores[seed, s], 0) for split, s, seed in cells]), USUAL),
        benchmark="b",
    )
    resamples = [
        stats.trim_mean([scores[rng.integers(8), s] / 4.0 for s in (0, 1) for _ in range(8)], 0.25) for _ in range(4000)
    ]
    assert one["training_ratio_iqm"] == pytest.approx(stats.trim_mean(scores.ravel() / 4.0, 0.25))
    assert (one["training_ratio_low"], one["training_ratio_high"]) == pytest.approx(
        tuple(np.percentile(resamples, [2.5, 97.5])), abs=0.04
    )


def test_splits_with_different_seeds_are_all_used():
    cells = [("gap4", 0), ("gap4", 1), ("gap4", 2), ("gap2", 0), ("gap2", 5)]
    one = row(tables.benchmarks(runs(*[("dibs", "b", *cell, 4, 0) for cell in cells]), USUAL), benchmark="b")
    assert one["seeds"] == "2–3" and one["training_ratio_iqm"] == 1.0
    assert one["training_ratio_std"] is None  # only seed 0 has both splits


def test_evaluations_of_training_indices_only():
    rows = runs(*[("dibs", "b", "gap4", s, 4, 0) for s in (0, 1)], unseen_size=0).assign(zero_shot_ratio=np.nan)
    one = row(tables.benchmarks(rows, USUAL), benchmark="b")
    assert one["zero_shot_ratio_mean"] is None and one["zero_shot_ratio_iqm"] is None
    shown = tables.benchmarks(rows, USUAL).text()
    assert shown["Zero-shot ratio"].tolist() == ["–"] and shown["Training ratio"].tolist() == ["1.00 ± 0.00"]


def test_rows_are_in_the_order_of_families_and_methods(frame):
    rows = tables.benchmarks(frame, USUAL).rows
    assert rows[0]["benchmark"] == "car2d-reach-k1"
    first = [r["method"] for r in rows if r["benchmark"] == "car2d-reach-k1"]
    assert first == ["ars", "bc", "maml", "maml-adapted", "varibad", "genrl", "dibs", "dibs-plus"]
    sizes = [r["train_size"] for r in tables.splits(frame, USUAL).rows if r["benchmark"] == "car2d-reach-k5"]
    assert sizes == sorted(sizes)


# --- probability of improvement --------------------------------------------------------------------------


def test_improvement_is_the_mean_over_cells():
    found = row(tables.improvement(HAND, USUAL), method="dibs", baseline="genrl")
    wins = [stats.mannwhitneyu(a, b).statistic / len(a) / len(b) for a, b in [([10, 8], [2, 4]), ([9], [0])]]
    assert found["zero_shot_ratio_p"] == np.mean(wins) == 1.0
    tied = runs(*[(m, "b", "gap2", s, s, s) for m in ("dibs", "genrl") for s in range(4)])
    even = row(tables.improvement(tied, USUAL), baseline="genrl")
    assert even["training_ratio_p"] == 0.5 and even["training_ratio_low"] < 0.5 < even["training_ratio_high"]


# --- summary ---------------------------------------------------------------------------------------------


def test_summary(frame):
    lines = tables.summary(frame).splitlines()
    assert lines[0].split()[:4] == ["Benchmark", "Splits", "Seeds", "ARS"]
    k5 = next(line for line in lines if line.startswith("car2d-reach-k5"))
    assert k5.count("·") == 2  # MAML and VariBAD
    assert k5.count("*") == 1  # GenRL lacks a split
    assert lines[-1] == f"{len(frame)} evaluations"
