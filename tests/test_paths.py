"""Where results live, and which training index comes before which."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs import paths
from dibs.errors import DibsError
from dibs.families import get_family
from dibs.paths import Layout, previous_index

PLACES = Layout()
DOCUMENTED = [
    (PLACES.teacher("f", 5, 10, 0), "results/teachers/f/gap5/seed0/10.safetensors"),
    (PLACES.teacher("f", 5, 0, 3), "results/teachers/f/base/seed3/0.safetensors"),
    (PLACES.dataset("f", 5, 10, 0), "results/datasets/f/gap5/seed0/10.parquet"),
    (PLACES.dataset("f", 5, 0, 0), "results/datasets/f/base/seed0/0.parquet"),
    (PLACES.template("dibs", "f", 5, 0), "results/templates/f/gap5/seed0.safetensors"),
    (PLACES.template("dibs-plus", "f", 5, 0), "results/templates-plus/f/gap5/seed0.safetensors"),
    (PLACES.baseline("genrl", "b", 5, 0), "results/baselines/genrl/b/gap5/seed0.safetensors"),
    (PLACES.evaluation("dibs", "b", 5, 0), "results/evaluations/dibs/b/gap5/seed0.parquet"),
    (PLACES.table("t.csv"), "results/tables/t.csv"),
    (PLACES.figure("f.pdf"), "results/figures/f.pdf"),
    # Snakemake's wildcards are kept as they are.
    (
        PLACES.teacher("{family}", "{gap}", "{index}", "{seed}"),
        "results/teachers/{family}/gap{gap}/seed{seed}/{index}.safetensors",
    ),
    (Layout(Path("/else")).teacher("f", 5, 5, 0), "/else/teachers/f/gap5/seed0/5.safetensors"),
]


@pytest.mark.parametrize("found, expected", DOCUMENTED)
def test_the_layout_is_the_documented_one(found, expected):
    assert str(found) == expected


def test_what_stands_beside_a_teacher():
    teacher = PLACES.teacher("f", 5, 10, 0)
    beside = [paths.buffers(teacher), paths.metrics(teacher), paths.timing(teacher)]
    assert [path.name for path in beside] == ["10.buffers.parquet", "10.json", "10.timing.json"]
    assert {path.parent for path in beside} == {teacher.parent}


def test_the_previous_training_index():
    family = get_family("car2d-reach")
    assert [previous_index(family, 10, i) for i in (0, 10, 20, 30, 40)] == [None, 0, 10, 20, 30]
    assert previous_index(family, 20, 20) == 0  # it depends on the gap


@pytest.mark.parametrize(
    "gap, index, message",
    [
        (10, 5, r"index 5 is not a training index of car2d-reach at gap 10: \[0, 10, 20, 30, 40\]"),
        (10, 50, "index 50 of car2d-reach: expected a whole number in 0 … 40"),
        (7, 7, "gap 7 does not divide the last index 40"),
    ],
)
def test_what_has_no_previous_one_is_told(gap, index, message):
    with pytest.raises(DibsError, match=message):
        previous_index(get_family("car2d-reach"), gap, index)
