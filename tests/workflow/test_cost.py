"""The cost of a study, estimated from the times of jobs that were run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import ROOT, TINY, Clone

COST = ROOT / "workflow/scripts/cost.py"
HEAD = "s\th:m:s\tmax_rss\n"


def cost(*arguments: str, listing: str = "", fails: bool = False) -> str:
    done = subprocess.run([sys.executable, COST, *arguments], input=listing, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stdout + done.stderr


def measured(root: Path, seconds: dict[str, float]) -> Path:
    for name, taken in seconds.items():
        file = root / "times" / f"{name}.tsv"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{HEAD}{taken}\t0:00:00\t100\n")
    return root


def rows(text: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines()]
    return {first: rest for first, *rest in cells}


def test_core_hours_of_the_full_paper(tmp_path: Path):
    root = measured(
        tmp_path,
        {
            "teachers/car2d-reach/base/seed0/0": 60.0,
            "teachers/car2d-reach/gap5/seed0/5": 30.0,
            "teachers/car2d-reach/gap5/seed0/10": 42.0,
            "models/dibs/car2d-reach/gap5/seed0": 3600.0,
            "evaluations/dibs/car2d-reach-k5/gap5/seed0": 10.0,
            "evaluations/dibs/simpledrone-reach-k5/gap5/seed0": 30.0,
            "templates/dibs/car2d-reach/gap5/seed0": 1.0,  # of version 0.1
            "models/unknown/car2d-reach/gap5/seed0": 1.0,
        },
    )
    found = rows(cost("config.yaml", "--measured", str(root)))
    # With 10 seeds: index 0 of car2d-reach takes 60 s, its 8 other teachers at gap 5 36 s, all others the mean, 44 s.
    seconds = 10 * 60 + 80 * 36 + (2980 - 90) * 44
    assert found["teachers"] == ["2980", "3", "2480", f"{seconds / 2980:.1f}", f"{seconds / 3600:.2f}"]
    assert found["models dibs"] == ["480", "1", "420", "3600.0", "480.00"]
    # 5 benchmarks × 6 gaps × 10 seeds of two families were measured; others by environment, then by method.
    car, drone = 600 + 2 * 4 * 10, 300
    seconds = car * 10 + drone * 30 + (1480 - car - drone) * 20
    assert found["evaluations dibs"] == ["1480", "2", str(1480 - 600), f"{seconds / 1480:.1f}", f"{seconds / 3600:.2f}"]
    assert found["datasets"][3:] == ["unknown", "unknown"] and found["models maml"][0] == "1480"
    assert found["all"][0] == str(2 * 2980 + 2 * 480 + 6400 + 10360) and found["all"][-1].endswith("jobs unknown")


def test_no_times_is_an_error(tmp_path: Path):
    assert "no times of jobs below" in cost("config.yaml", "--measured", str(tmp_path), fails=True)


@pytest.mark.slow
def test_cluster_jobs_in_a_dry_run(clone: Clone):
    """A chain with its datasets is one job. Lists of evaluations are made locally."""
    listing = clone.run("-n", "--profile", "profiles/slurm", *TINY)
    found = dict(line.rsplit(maxsplit=1) for line in cost("--cluster-jobs", listing=listing).splitlines())
    assert {name.strip(): int(number) for name, number in found.items()} == {
        "chain (group)": 3,  # index 0, gap 4, gap 2
        "model": 6,
        "evaluation (group)": 6,
        "table": 6,
        "figure": 5,
        "total": 26,
    }
