"""Evaluations become frames; errors name files that are damaged, doubled or not comparable."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dibs import evaluation as evaluation_stage
from dibs.errors import DibsError
from dibs.files import read_table, write_json, write_table
from dibs.paths import Layout
from dibs.studies.collect import (
    COLUMNS,
    collect,
    collect_indices,
    find,
    listed,
    middle_split,
    read_evaluation,
    split_order,
)
from dibs.templates.methods import DIBS

IDENTITY = {"method": "dibs", "benchmark": "mine-k2", "family": "mine", "split": "gap2", "seed": 7}
ROLE = {0: "train", 1: "unseen", 2: "train", 3: "unseen", 4: "train", 5: "beyond", 6: "beyond"}
COUNTS = {0: 100, 1: 95, 2: 90, 3: 20, 4: 91, 5: 99, 6: 0}


@pytest.fixture
def evaluation(save_run):
    """What writes an evaluation of five indices, three of them trained, and two beyond."""

    def write(path, delta=0.9, steps=None, **changes):
        more = {} if steps is None else {"steps": steps}
        return save_run(path, COUNTS, ROLE, IDENTITY | changes, delta=delta, **more)

    return write


def test_one_row_by_hand(evaluation, tmp_path):
    frame = collect([evaluation(tmp_path / "e.parquet", steps=1234)])
    assert tuple(frame.columns) == COLUMNS
    row = frame.iloc[0]
    assert tuple(row[["method", "benchmark", "split", "seed"]]) == ("dibs", "mine-k2", "gap2", 7)
    assert (row["train_size"], row["unseen_size"]) == (3, 2)
    assert row["training_count"] == 2  # 90 of 100 does not exceed 0.9
    assert row["training_ratio"] == pytest.approx(2 / 3)
    assert (row["zero_shot_count"], row["zero_shot_ratio"], row["beyond_ratio"]) == (1, 0.5, 0.5)
    assert row["straddling"] == 3  # 95, 90 and 91 of 100; the two beyond do not count
    assert row["steps"] == 1234 and row["rollouts"] == 100


def test_a_list_says_what_its_files_were(evaluation, tmp_path):
    file, entries = evaluation(tmp_path / "e.parquet"), tmp_path / "l.txt"
    entries.write_text(listed([file]))
    assert find("evaluations", [entries], tmp_path) == [file]
    evaluation(file, steps=5)
    with pytest.raises(DibsError, match=rf"{file}: has changed since {entries} was made; delete the list"):
        find("evaluations", [entries], tmp_path)
    entries.write_text(f"# a comment\n{file}\n")
    assert find("evaluations", [entries], tmp_path) == [file]


def test_steps_may_be_unknown(evaluation, tmp_path):
    assert np.isnan(collect([evaluation(tmp_path / "e.parquet")]).iloc[0]["steps"])


@pytest.mark.parametrize(
    ("method", "model"), [("dibs", "dibs/mine"), ("maml", "maml/mine-k2"), ("maml-adapted", "maml/mine-k2")]
)
def test_seconds_are_those_next_to_the_model(evaluation, tmp_path, method, model):
    """Training the model and the teachers it rests on; of the family or of the benchmark, whichever it is of."""
    file = Layout(tmp_path).evaluation(method, "mine-k2", "gap2", 7)
    evaluation(file, method=method)
    assert np.isnan(collect([file]).iloc[0]["seconds"])
    write_json(tmp_path / "models" / model / "gap2/seed7.timing.json", {"seconds": 1.5, "teachers": 20.0})
    assert collect([file]).iloc[0]["seconds"] == 21.5


def test_order_does_not_depend_on_that_of_the_files(results):
    files = find("evaluations", None, results)
    one, other = collect(files), collect(files[::-1])
    assert one.equals(other)
    methods = ("ars", "bc", "maml", "maml-adapted", "varibad", "genrl", "dibs", "dibs-plus")
    assert list(dict.fromkeys(one["method"])) == list(methods)
    assert list(dict.fromkeys(one["benchmark"]))[:2] == ["car2d-reach-k1", "car2d-reach-k5"]
    assert list(dict.fromkeys(one["split"]))[:3] == ["gap20", "gap8", "gap4"]  # by |Train|


def test_rows_of_single_indices(frame):
    rows = collect_indices(frame[(frame["benchmark"] == "car2d-reach-k5") & (frame["split"] == "gap8")])
    assert set(rows["method"]) == {"ars", "bc", "maml-adapted", "dibs", "dibs-plus"}
    assert len(rows) == 5 * 2 * 81
    assert collect_indices(frame[frame["benchmark"] == "car2d-reach-k3"]).empty


def test_splits_are_ordered_by_size_then_name():
    sizes = {"gap20": 3, "gap10": 5, "gap8": 6, "sparse": 6, "gap4": 11, "gap2": 21}
    runs = pd.DataFrame([{"split": split, "train_size": n} for split, n in sizes.items() for _ in range(2)])
    assert split_order(runs.sample(frac=1.0, random_state=0)) == list(sizes)
    assert middle_split(runs) == "sparse"  # of six, the larger one in the middle
    assert middle_split(runs.iloc[:-3]) == "gap8"  # gap4 and gap2 are not complete


def test_inputs_are_files_folders_and_lists(evaluation, tmp_path):
    layout = Layout(tmp_path / "results")
    a = evaluation(layout.evaluation("dibs", "mine-k2", "gap2", 7))
    b = evaluation(tmp_path / "loose" / "b.parquet", seed=8)
    names = tmp_path / "inputs.list"
    names.write_text(f"# two files\n\n{a}\n  {b}  \n")

    def found(*inputs):
        return find("evaluations", list(inputs), tmp_path / "results")

    assert found(names) == [a, b]
    assert found(tmp_path / "results") == [a] == found()
    assert found(tmp_path / "loose") == [b] == found(b)
    assert found(b, tmp_path / "results") == [b, a]


def test_models_are_found_by_method(model, teacher, tmp_path):
    layout = Layout(tmp_path)
    of = {m: model(layout.model(m, "car2d-reach", "gap20", 0), "car2d-reach", "gap20", m) for m in ("bc", "dibs")}
    assert find("models", None, tmp_path) == list(of.values())
    assert find("models", None, tmp_path, ["dibs"]) == [of["dibs"]]
    taught = [layout.teacher("car2d-reach", "gap20", index, 0) for index in (0, 20)]
    for path, index in zip(taught, (0, 20), strict=True):
        teacher(path, "car2d-reach", "gap20", index, 0, 0.0)
    assert sorted(find("teachers", None, tmp_path)) == sorted(taught)


def test_nothing_evaluated(tmp_path):
    with pytest.raises(DibsError, match=r"nowhere: no evaluations there; run the workflow first"):
        find("evaluations", None, tmp_path / "nowhere")
    with pytest.raises(DibsError, match=r"inputs\.txt: no such list of files"):
        find("evaluations", [tmp_path / "inputs.txt"], tmp_path)


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
    elif how == "old":
        write_table(path, table, {k: v for k, v in meta.items() if k != "format"})
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
        ("kind", "expected kind 'evaluation', found 'dataset'"),
        ("old", "written by dibs 0.1"),
        ("twice", "the same index twice"),
        ("role", r"roles \['test'\]"),
    ],
)
def test_a_damaged_file_is_named(how, message, evaluation, tmp_path):
    good, bad = evaluation(tmp_path / "good.parquet"), evaluation(tmp_path / "bad.parquet", seed=8)
    damage(bad, how)
    with pytest.raises(DibsError, match=message) as error:
        collect([good, bad])
    assert str(error.value).startswith(f"{bad}: ")


def test_the_same_evaluation_twice(evaluation, tmp_path):
    a, b = evaluation(tmp_path / "a.parquet"), evaluation(tmp_path / "b.parquet")
    message = r"b\.parquet: the same evaluation as .*a\.parquet \(dibs, mine-k2, gap2, seed 7"
    with pytest.raises(DibsError, match=message):
        collect([a, b])


def test_two_thresholds_do_not_mix(evaluation, tmp_path):
    a, b = evaluation(tmp_path / "a.parquet"), evaluation(tmp_path / "b.parquet", delta=0.8, seed=8)
    message = r"b\.parquet: a task counts as solved above 0\.8, but above 0\.9 in .*a\.parquet"
    with pytest.raises(DibsError, match=message):
        collect([a, b])


def test_two_descriptions_of_a_family_do_not_mix(evaluation, tmp_path):
    a, b = evaluation(tmp_path / "a.parquet"), evaluation(tmp_path / "b.parquet", seed=8)
    table, metadata = read_table(b)
    assert len(collect([a, b])) == 2
    write_table(b, table, metadata | {"tasks": "other"})
    message = r"b\.parquet: was made from another description of mine-k2 than .*a\.parquet .*`dibs evaluate mine-k2"
    with pytest.raises(DibsError, match=message):
        collect([a, b])


@pytest.mark.parametrize(
    "versions, shown",
    [
        ({"evaluation": evaluation_stage.VERSION, "dibs": DIBS.version - 1}, f"dibs {DIBS.version - 1}"),
        (
            {"evaluation": evaluation_stage.VERSION - 1, "dibs": DIBS.version},
            f"evaluation {evaluation_stage.VERSION - 1}",
        ),
        ({}, "none"),
        (None, "none"),
    ],
)
def test_other_versions_than_the_installed_ones_are_refused(versions, shown, evaluation, tmp_path):
    a, b = evaluation(tmp_path / "a.parquet"), evaluation(tmp_path / "b.parquet", seed=8)
    table, metadata = read_table(b)
    write_table(b, table, metadata | {"versions": versions})
    message = rf"b\.parquet: was made by another version \(.*{shown}.* instead of .*: `dibs evaluate mine-k2 --method"
    with pytest.raises(DibsError, match=message):
        collect([a, b])
    with pytest.raises(DibsError, match=message):
        collect([b])


def test_results_of_a_method_that_is_not_installed_can_be_read_but_not_mixed(evaluation, tmp_path):
    a, b = evaluation(tmp_path / "a.parquet"), evaluation(tmp_path / "b.parquet", seed=8)

    def claim(file, stage, own):
        table, metadata = read_table(file)
        write_table(file, table, metadata | {"method": "theirs", "versions": {"evaluation": stage, "theirs": own}})

    stage = evaluation_stage.VERSION
    claim(a, stage, 3)
    claim(b, stage, 3)
    assert collect([a, b])["versions"].tolist() == [f"evaluation {stage}, theirs 3"] * 2
    claim(b, stage, 4)
    with pytest.raises(DibsError, match=r"b\.parquet: was made by another version of theirs .*theirs 4.*a\.parquet"):
        collect([a, b])
    claim(b, stage - 1, 3)
    with pytest.raises(DibsError, match=rf"b\.parquet: was made by another version \(evaluation {stage - 1}, theirs 3"):
        collect([a, b])


def test_no_other_file_is_taken_for_an_evaluation(tmp_path):
    path = tmp_path / "x.json"
    write_json(path, {})
    with pytest.raises(DibsError, match=r"x\.json: damaged"):
        read_evaluation(path)
