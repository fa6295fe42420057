"""Datasets on disk: the schema, other readers, bounded memory, damage."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dibs.datasets.build import Block, DatasetSettings, build
from dibs.datasets.store import load_dataset, read_acceptance, save_dataset
from dibs.errors import DibsError
from dibs.files import write_table
from dibs.provenance import Origin
from dibs.teachers.store import load_replay

ORIGIN = Origin(
    "dataset", {"family": "tiny", "split": "gap2", "index": 2, "seed": 0}, "t", "s", {"datasets": 1}, ("teacher's id",)
)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory, tasks, split, teacher, teacher_file) -> Path:
    path = tmp_path_factory.mktemp("dataset") / "2.parquet"
    blocks = build(tasks, split, teacher, load_replay(teacher_file, teacher.edges), DatasetSettings(size=300))
    save_dataset(path, teacher, ("x", "y"), ("v", "theta"), blocks, ORIGIN)
    return path


def block(edge: int, n: int, first: int = 0) -> Block:
    """Rows whose numbers say which they are."""
    number = np.arange(first, first + n, dtype=np.float32)
    states = np.stack([number, number + 0.5], axis=1)
    return Block(edge, states, -states, np.arange(n) % 3, np.full(n, 0.75, np.float32))


def save(path: Path, teacher, *blocks: Block) -> dict[str, int]:
    return save_dataset(path, teacher, ("x", "y"), ("v", "theta"), iter(blocks), ORIGIN)


# --- schema ----------------------------------------------------------------------------------------------


def test_the_schema_is_the_documented_one(dataset):
    schema = pq.read_schema(dataset)
    assert schema.names == ["edge", "x", "y", "action_v", "action_theta", "source", "p_conf"]
    assert {str(schema.field(n).type) for n in ("x", "y", "action_v", "action_theta", "p_conf")} == {"float"}
    assert all(pa.types.is_dictionary(schema.field(n).type) for n in ("edge", "source"))
    meta = json.loads(schema.metadata[b"dibs"])
    assert meta["id"] == ORIGIN.id and {"format", "tasks", "settings_digest", "versions", "libraries"} <= meta.keys()
    expected = {"kind": "dataset", "family": "tiny", "split": "gap2", "index": 2, "seed": 0}
    expected |= {"edges": ["start>a", "a>b"], "inputs": ["teacher's id"]}
    assert {key: meta[key] for key in expected} == expected
    assert (meta["states"], meta["actions"]) == (["x", "y"], ["action_v", "action_theta"])


def test_pandas_reads_it_as_it_is(dataset):
    frame = pd.read_parquet(dataset)
    assert frame.groupby("edge", observed=True).size().to_dict() == {"start>a": 300, "a>b": 300}
    assert set(frame["source"]) == {"on-policy", "replay", "reset"}
    assert (frame["p_conf"] >= 0.7).all() and (frame["p_conf"] <= 1.0).all()
    assert (frame[["action_v", "action_theta"]].abs() <= 1.0).all().all()


def test_it_reads_back_per_edge(dataset, teacher):
    data, meta = load_dataset(dataset)
    assert list(data) == ["start>a", "a>b"] and meta["index"] == 2
    frame = pd.read_parquet(dataset)
    for edge, name in enumerate(data):
        states, actions = data[name]
        chosen = frame[frame["edge"] == name]
        assert np.array_equal(states, chosen[["x", "y"]].to_numpy())
        assert np.array_equal(actions, chosen[["action_v", "action_theta"]].to_numpy())
        np.testing.assert_allclose(actions, teacher.act(edge, states), atol=1e-5)


def test_many_blocks_of_interleaved_edges(tmp_path, teacher):
    path = tmp_path / "d.parquet"
    assert save(path, teacher, block(1, 5), block(0, 3), block(1, 4, first=5)) == {"start>a": 3, "a>b": 9}
    data, _ = load_dataset(path)
    assert data["a>b"][0][:, 0].tolist() == list(range(9))
    assert data["start>a"][1][:, 0].tolist() == [-0.0, -1.0, -2.0]


@pytest.mark.parametrize("most", [1, 4, 5, 6, 8, 100])
def test_at_most_so_many_rows_are_the_first_ones(tmp_path, teacher, most):
    save(tmp_path / "d.parquet", teacher, block(0, 5), block(0, 4, first=5), block(1, 7))
    data, _ = load_dataset(tmp_path / "d.parquet", most)
    assert data["start>a"][0][:, 0].tolist() == list(range(min(most, 9)))
    assert data["a>b"][0][:, 0].tolist() == list(range(min(most, 7)))


def test_rows_that_are_not_asked_for_are_not_read(tmp_path, teacher, monkeypatch):
    save(tmp_path / "d.parquet", teacher, *(block(0, 10) for _ in range(50)), block(1, 10))
    read = []
    plain = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda self, group, **more: read.append(group) or plain(self, group, **more)
    )
    load_dataset(tmp_path / "d.parquet", 15)
    assert read == [0, 1, 50]


def test_a_row_group_of_several_edges_is_sorted_out(tmp_path, dataset):
    """Somebody may have written the file with another tool."""
    table = pq.read_table(dataset)
    shuffled = table.take(np.random.default_rng(0).permutation(table.num_rows))
    pq.write_table(shuffled, tmp_path / "d.parquet")
    data, _ = load_dataset(tmp_path / "d.parquet", 200)
    expected, _ = load_dataset(dataset)
    for name, (states, actions) in data.items():
        assert len(states) == len(actions) == 200
        assert {tuple(s) for s in states.tolist()} <= {tuple(s) for s in expected[name][0].tolist()}


def test_a_teacher_that_failed_everything_leaves_an_empty_dataset(tmp_path, teacher):
    assert save(tmp_path / "d.parquet", teacher) == {"start>a": 0, "a>b": 0}
    data, meta = load_dataset(tmp_path / "d.parquet")
    assert data == {} and meta["index"] == 2
    assert len(pd.read_parquet(tmp_path / "d.parquet")) == 0


# --- damage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 3, 0.5, -1])
def test_a_truncated_file_is_named(tmp_path, dataset, keep):
    content = dataset.read_bytes()
    cut = tmp_path / "cut.parquet"
    cut.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(DibsError, match=r"cut\.parquet: damaged or not what it should be .*; delete it and rerun"):
        load_dataset(cut)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DibsError, match=r"none\.parquet: no such file; run the step that makes it first"):
        load_dataset(tmp_path / "none.parquet")


def test_a_missing_column_is_named(tmp_path, dataset):
    pq.write_table(pq.read_table(dataset).drop_columns(["action_v"]), tmp_path / "d.parquet")
    with pytest.raises(DibsError, match=r"d\.parquet: damaged .*action_v"):
        load_dataset(tmp_path / "d.parquet")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("field", ["states", "actions"])
def test_a_number_that_is_not_finite_is_an_error(tmp_path, teacher, bad, field):
    broken = block(0, 5)
    getattr(broken, field)[3, 1] = bad
    save(tmp_path / "d.parquet", teacher, broken)
    with pytest.raises(DibsError, match=r"d\.parquet: damaged .*a state or action is not finite"):
        load_dataset(tmp_path / "d.parquet")


def test_other_parquet_files_are_not_datasets(tmp_path):
    table = pa.table({"index": [0]})
    write_table(tmp_path / "e.parquet", table, Origin("evaluation", {"method": "dibs"}, "", "", {}).metadata())
    with pytest.raises(DibsError, match=r"e\.parquet: expected kind 'dataset', found 'evaluation'"):
        load_dataset(tmp_path / "e.parquet")
    write_table(tmp_path / "old.parquet", table, {"kind": "dataset", "gap": 2})
    with pytest.raises(DibsError, match=r"old\.parquet: was written by dibs 0\.1"):
        load_dataset(tmp_path / "old.parquet")
    pd.DataFrame({"x": [1.0]}).to_parquet(tmp_path / "other.parquet")
    with pytest.raises(DibsError, match=r"other\.parquet: damaged or not what it should be"):
        load_dataset(tmp_path / "other.parquet")


def test_a_stage_that_fails_half_way_leaves_nothing(tmp_path, teacher):
    def blocks():
        yield block(0, 10)
        raise DibsError("the filter rejects everything")

    with pytest.raises(DibsError, match="rejects everything"):
        save_dataset(tmp_path / "d.parquet", teacher, ("x", "y"), ("v", "theta"), blocks(), ORIGIN)
    assert list(tmp_path.iterdir()) == []


# --- memory ----------------------------------------------------------------------------------------------

GROWTH = """
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from dibs.datasets.build import DatasetSettings, build
from dibs.datasets.store import load_dataset, save_dataset
from dibs.families import get_family
from dibs.provenance import Origin
from dibs.teachers.store import load_replay, load_teacher

family_file, teacher_file, output = sys.argv[1:]
family, teacher = get_family(family_file), load_teacher(teacher_file)
metrics = {**teacher.metrics, "edges": {**teacher.metrics["edges"], "a>b": {"success": 0.0}}}
teacher = type(teacher)(**{**teacher.__dict__, "metrics": metrics})
replay = load_replay(teacher_file, teacher.edges)
tracemalloc.start()
for size in (200_000, 1_000_000):
    tracemalloc.reset_peak()
    blocks = build(family.tasks([0, 2, 4]), family.split("gap2"), teacher, replay, DatasetSettings(size=size))
    rows = save_dataset(Path(output), teacher, ("x", "y"), ("v", "theta"), blocks, Origin("dataset", {}, "", "", {}))
    data, _ = load_dataset(output, 20_000)
    assert rows == {"start>a": size, "a>b": 0} and len(data["start>a"][0]) == 20_000
    # Most bytes held at once: by Python and numpy, and (since the beginning) by Arrow.
    print(tracemalloc.get_traced_memory()[1], pa.default_memory_pool().max_memory())
"""


@pytest.mark.slow
def test_a_million_rows_take_no_more_memory_than_a_fifth_of_them(tiny_description, teacher_file, tmp_path):
    """Rows are written and read in blocks: 22 MB of numbers more, but nothing in memory."""
    (tmp_path / "tiny.yaml").write_text(json.dumps(tiny_description()))  # JSON is YAML
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(tmp_path / "tiny.yaml"), str(teacher_file), str(tmp_path / "d.parquet")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    small, large = (np.array(line.split(), dtype=float) / 2**20 for line in done.stdout.splitlines())
    assert np.all(large < small + 3.0), f"peaks in MB: {small}, then {large}"


def test_the_file_has_the_share_of_candidates_it_kept(tmp_path, teacher):
    path = tmp_path / "d.parquet"
    save(path, teacher, replace(block(0, 3), acceptance=0.9), replace(block(0, 4), acceptance=0.6), block(1, 2))
    assert read_acceptance(path) == {"start>a": 0.6, "a>b": 1.0}
    assert load_dataset(path)[1]["id"] == ORIGIN.id
