"""Evaluations become frames; what is damaged, doubled or not comparable is named."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from dibs.analysis.collect import COLUMNS, collect, collect_indices, find, listed, read_evaluation
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings, save_evaluation
from dibs.files import read_table, write_json, write_table
from dibs.paths import Layout

IDENTITY = {"method": "dibs", "benchmark": "mine-k2", "family": "mine", "gap": 2, "seed": 7}
ROLE = {0: "train", 1: "unseen", 2: "train", 3: "unseen", 4: "train", 5: "beyond", 6: "beyond"}
COUNTS = {0: 100, 1: 95, 2: 90, 3: 20, 4: 91, 5: 99, 6: 0}


def evaluation(path, delta=0.9, **changes):
    """Five indices, three of them trained, and two beyond."""
    save_evaluation(path, COUNTS, ROLE, EvaluationSettings(rollouts=100, delta=delta), IDENTITY | changes)
    return path


def test_one_row_by_hand(tmp_path):
    frame = collect([evaluation(tmp_path / "e.parquet", steps=1234)])
    assert tuple(frame.columns) == COLUMNS
    row = frame.iloc[0]
    assert (row["method"], row["benchmark"], row["gap"], row["seed"], row["k"]) == ("dibs", "mine-k2", 2, 7, 2)
    assert (row["train_size"], row["unseen_size"]) == (3, 2)
    assert row["training_count"] == 2  # 90 of 100 does not exceed 0.9
    assert row["training_ratio"] == pytest.approx(2 / 3)
    assert (row["zero_shot_count"], row["zero_shot_ratio"], row["beyond_ratio"]) == (1, 0.5, 0.5)
    assert row["straddling"] == 3  # 95, 90 and 91 of 100; the two beyond do not count
    assert row["steps"] == 1234 and row["rollouts"] == 100


def test_steps_may_be_unknown_and_k_may_not_exist(tmp_path):
    row = collect([evaluation(tmp_path / "e.parquet", benchmark="mine")]).iloc[0]
    assert np.isnan(row["steps"]) and np.isnan(row["k"])


def test_order_does_not_depend_on_that_of_the_files(results):
    files = find("evaluation", None, results)
    one, other = collect(files), collect(files[::-1])
    assert one.equals(other)
    assert list(dict.fromkeys(one["method"])) == [
        *("ars", "bc", "maml", "maml-adapted", "varibad", "genrl", "dibs", "dibs-plus")
    ]
    assert list(dict.fromkeys(one["benchmark"]))[:2] == ["car2d-reach-k1", "car2d-reach-k5"]


def test_rows_of_one_split(results):
    files = find("evaluation", None, results)
    rows = collect_indices(files, "car2d-reach-k5", 8)
    assert set(rows["method"]) == {"ars", "bc", "maml-adapted", "dibs", "dibs-plus"}
    assert len(rows) == 5 * 2 * 81
    assert collect_indices(files, "car2d-reach-k3", 8).empty


def test_inputs_are_files_folders_and_lists(tmp_path):
    places = Layout(tmp_path / "results")
    a = evaluation(places.evaluation("dibs", "mine-k2", 2, 7))
    b = evaluation(tmp_path / "loose" / "b.parquet", seed=8)
    names = tmp_path / "inputs.list"
    names.write_text(f"# two files\n\n{a}\n  {b}  \n")
    assert listed([names], "evaluation") == [a, b]
    assert listed([tmp_path / "results"], "evaluation") == [a]
    assert listed([tmp_path / "loose"], "evaluation") == [b]
    assert listed([b, tmp_path / "results"], "evaluation") == [b, a]
    assert find("evaluation", None, tmp_path / "results") == [a]
    assert find("evaluation", [b], tmp_path / "results") == [b]


def test_nothing_evaluated(tmp_path):
    with pytest.raises(DibsError, match=r"nowhere: no evaluation there; run the workflow first"):
        find("evaluation", None, tmp_path / "nowhere")
    with pytest.raises(DibsError, match=r"inputs\.txt: no such list of files"):
        find("evaluation", [tmp_path / "inputs.txt"], tmp_path)


def damage(path, how):
    """Spoil an evaluation in one way."""
    table, meta = read_table(path)
    if how == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    elif how == "text":
        path.write_text("index,role\n")
    elif how == "gone":
        path.unlink()
    elif how == "column":
        write_table(path, table.drop_columns(["rate", "straddles"]), meta)
    elif how == "metadata":
        write_table(path, table, {k: v for k, v in meta.items() if k != "seed"})
    elif how == "kind":
        write_table(path, table, meta | {"kind": "dataset"})
    elif how == "twice":
        write_table(path, pa.concat_tables([table, table]), meta)
    elif how == "role":
        write_table(path, table.set_column(1, "role", pa.array(["test"] * len(table))), meta)


@pytest.mark.parametrize(
    "how, message",
    [
        ("truncated", "damaged or not what it should be"),
        ("text", "damaged or not what it should be"),
        ("gone", "no such file"),
        ("column", "no column rate, column straddles"),
        ("metadata", "no metadata seed"),
        ("kind", "expected an evaluation, found a file of kind 'dataset'"),
        ("twice", "the same index twice"),
        ("role", r"roles \['test'\]"),
    ],
)
def test_a_damaged_file_is_named(how, message, tmp_path):
    good, bad = evaluation(tmp_path / "good.parquet"), evaluation(tmp_path / "bad.parquet", seed=8)
    damage(bad, how)
    with pytest.raises(DibsError, match=message) as error:
        collect([good, bad])
    assert str(error.value).startswith(f"{bad}: ")


def test_the_same_evaluation_twice(tmp_path):
    a, b = evaluation(tmp_path / "a.parquet"), evaluation(tmp_path / "b.parquet")
    with pytest.raises(
        DibsError, match=r"b\.parquet: the same evaluation as .*a\.parquet \(dibs, mine-k2, gap 2, seed 7"
    ):
        collect([a, b])


def test_two_thresholds_do_not_mix(tmp_path):
    a, b = evaluation(tmp_path / "a.parquet"), evaluation(tmp_path / "b.parquet", delta=0.8, seed=8)
    with pytest.raises(
        DibsError, match=r"b\.parquet: a task counts as solved above 0\.8, but above 0\.9 in .*a\.parquet"
    ):
        collect([a, b])


def test_no_other_file_is_taken_for_an_evaluation(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {})
    with pytest.raises(DibsError, match=r"x\.json: damaged"):
        read_evaluation(path)
