"""Where results live."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs import paths
from dibs.paths import Layout, split_of

LAYOUT = Layout()
DOCUMENTED = [
    (LAYOUT.teacher("f", "gap5", 10, 0), "results/teachers/f/gap5/seed0/10.safetensors"),
    (LAYOUT.teacher("f", "sparse", 10, 0), "results/teachers/f/sparse/seed0/10.safetensors"),
    (LAYOUT.teacher("f", "gap5", 0, 3), "results/teachers/f/base/seed3/0.safetensors"),
    (LAYOUT.dataset("f", "gap5", 10, 0), "results/datasets/f/gap5/seed0/10.parquet"),
    (LAYOUT.dataset("f", "gap5", 0, 0), "results/datasets/f/base/seed0/0.parquet"),
    (LAYOUT.model("dibs", "f", "gap5", 0), "results/models/dibs/f/gap5/seed0.safetensors"),
    (LAYOUT.model("dibs-plus", "f", "sparse", 0), "results/models/dibs-plus/f/sparse/seed0.safetensors"),
    (LAYOUT.model("genrl", "b", "gap5", 0), "results/models/genrl/b/gap5/seed0.safetensors"),
    (LAYOUT.evaluation("dibs", "b", "gap5", 0), "results/evaluations/dibs/b/gap5/seed0.parquet"),
    (LAYOUT.table("t.csv"), "results/tables/t.csv"),
    (LAYOUT.figure("f.pdf"), "results/figures/f.pdf"),
    # Snakemake's wildcards are kept as they are.
    (
        LAYOUT.teacher("{family}", "{split}", "{index}", "{seed}"),
        "results/teachers/{family}/{split}/seed{seed}/{index}.safetensors",
    ),
    (Layout(Path("/else")).teacher("f", "gap5", 5, 0), "/else/teachers/f/gap5/seed0/5.safetensors"),
    # Teachers and datasets of another run.
    (Layout(Path("a"), Path("b"), Path("c")).teacher("f", "gap5", 5, 0), "b/teachers/f/gap5/seed0/5.safetensors"),
    (Layout(Path("a"), Path("b"), Path("c")).dataset("f", "gap5", 5, 0), "c/datasets/f/gap5/seed0/5.parquet"),
    (Layout(Path("a"), Path("b")).dataset("f", "gap5", 5, 0), "a/datasets/f/gap5/seed0/5.parquet"),
    (Layout(Path("a"), Path("b"), Path("c")).model("m", "f", "gap5", 0), "a/models/m/f/gap5/seed0.safetensors"),
]


@pytest.mark.parametrize("found, expected", DOCUMENTED)
def test_the_layout_is_the_documented_one(found, expected):
    assert str(found) == expected


def test_what_lies_next_to_a_teacher():
    teacher = LAYOUT.teacher("f", "gap5", 10, 0)
    files = [paths.buffers(teacher), paths.curve(teacher), paths.metrics(teacher), paths.timing(teacher)]
    assert [path.name for path in files] == ["10.buffers.parquet", "10.curve.parquet", "10.json", "10.timing.json"]
    assert {path.parent for path in files} == {teacher.parent}


def test_the_teacher_of_index_0_serves_all_splits():
    assert {split_of(split, index) for split in ("gap5", "sparse", "base") for index in (0, "0")} == {"base"}
    assert split_of("gap5", 10) == "gap5" and split_of("sparse", "{index}") == "sparse"
    assert LAYOUT.teacher("f", "gap5", 0, 1) == LAYOUT.teacher("f", "sparse", 0, 1)
