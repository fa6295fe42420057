"""Skill of predicted success, on evaluations with known numbers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from dibs.files import write_table

from .conftest import ROOT


def calibration(*arguments: object, fails: bool = False, script: str = "calibration") -> str:
    file = ROOT / f"workflow/scripts/{script}.py"
    done = subprocess.run([sys.executable, file, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stdout + done.stderr


def evaluation(root: Path, family: str, rate: list[float], predicted: list[float | None], method: str = "dibs") -> None:
    """Indices 0, 1, 2, … of which 0 and 4 are trained and the last one is beyond L."""
    role = ["train" if i in (0, 4) else "unseen" if i < 4 else "beyond" for i in range(len(rate))]
    columns = {"index": list(range(len(rate))), "role": role, "rate": rate, "predicted": predicted}
    columns["succeeds"] = [success > 0.9 for success in rate]
    file = root / "evaluations" / method / family / "gap4" / "seed0.parquet"
    more = {"benchmark": family, "split": "gap4", "seed": 0}
    write_table(file, pa.table(columns), {"method": method, "family": family, "delta": 0.9, **more})


def row(text: str, method: str, cells: str) -> list[float]:
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return next([float(cell) for cell in line[2:]] for line in lines if line[:2] == [method, cells])


def test_skill_is_one_minus_the_ratio_of_brier_scores(tmp_path: Path):
    """One family succeeds everywhere, the other one nowhere."""
    evaluation(tmp_path, "good", [1, 1, 1, 1, 1, 1], [1, 1, 0.8, 1, 1, 1])
    evaluation(tmp_path, "bad", [1, 0, 0, 0, 1, 0], [1, 0.5, 0, 0, 1, 0])
    text = calibration(tmp_path)
    score = (0.2**2 + 0.5**2) / 8
    # A constant fitted to the other family is wrong by 1 everywhere, and so is any function of the distance.
    expected = [8, (0.8 + 3 + 0.5) / 8, 0.5, score, 1 - score, 1 - score]
    assert row(text, "dibs", "all") == pytest.approx(expected, abs=0.006)
    assert row(text, "dibs", "failing")[:4] == pytest.approx([4, 0.125, 0, 0.5**2 / 4], abs=0.006)
    assert row(text, "dibs", "beyond L")[0] == 2
    assert row(text, "dibs", "0.8 to 1.0") == pytest.approx([4, 0.95, 1.0], abs=0.006)


def test_distance_predicts_what_falls_with_it(tmp_path: Path):
    for family in ("one", "two"):
        evaluation(tmp_path, family, [1, 1, 0, 1, 1, 1, 0, 0], [1, 0.5, 0.5, 0.5, 1, 0.5, 0.5, 0.5])
    found = row(calibration(tmp_path), "dibs", "all")
    assert found[3] == pytest.approx(0.25, abs=0.006) and found[4] == pytest.approx(0.0, abs=0.1)
    assert found[5] == float("-inf")  # in both families, distances of 1 succeed and larger ones fail


def test_methods_without_predictions_and_folders_without_evaluations(tmp_path: Path):
    assert "no evaluation with predictions" in calibration(tmp_path, fails=True)
    evaluation(tmp_path, "good", [1, 1, 1], [None, None, None])
    assert "no evaluation with predictions" in calibration(tmp_path, fails=True)
    evaluation(tmp_path, "good", [1, 1, 1], [1, 1, 1])
    assert "found only good" in calibration(tmp_path, fails=True)


def test_shares_of_tasks_solved(tmp_path: Path):
    evaluation(tmp_path, "one", [1, 1, 0, 1, 1, 0.95, 0.9], [1] * 7)
    line = next(line for line in calibration(tmp_path, script="induction").splitlines() if "one" in line)
    assert [cell.strip() for cell in line.strip("|").split("|")] == [
        "one", "gap4", "dibs", "1", "1.00", "0.67", "0.50", "–"
    ]  # fmt: skip
