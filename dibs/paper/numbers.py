"""What the paper reports: its methods, its benchmarks and its numbers (section 5, appendix H)."""

from __future__ import annotations

import re

BASELINES = ("ars", "bc", "maml", "varibad", "genrl")
METHODS = (*BASELINES, "dibs")
"""The methods of the paper's figures."""
AS_PUBLISHED = {"ars": "ars-plain", "bc": "bc-plain", "genrl": "genrl-public"}
"""Baselines as the paper seems to have run them, next to the strong versions of the same methods."""
OURS = ("dibs", "dibs-plus")
"""The paper's method, and ours, which adds to its objective."""

MAIN = {
    "car2d-reach": "Car2D k-reachability",
    "simpledrone-reach": "SimpleDrone k-reachability",
    "droneattitude-reach": "DroneAttitude k-reachability",
}
"""Families of the paper's main figure."""
REACH = {**MAIN, "car2d-reach-obs": "Car2D k-reachability + obstacles"}
CHOICE = {f"car2d-choice-l{level}": f"Car2D choice, {level}-level branching" for level in (1, 2)}
TOWER_KINDS = [("drop", "same"), ("drop", "opposite"), ("stack", "same"), ("stack", "opposite")]
TOWERS = {f"{kind}-{side}": f"pick and {kind},\n{side} side" for kind, side in TOWER_KINDS}
"""The four kinds of Reacher tasks."""
BLOCKS = (8, 9, 10)
BENCHMARKS = (
    *(f"{family}-k{k}" for family in REACH for k in range(1, 6)),
    *CHOICE,
    *(f"reacher-{tower}-{blocks}" for blocks in BLOCKS for tower in TOWERS),
)
"""The 34 benchmarks over which the paper aggregates."""


def goals(benchmark: str) -> float:
    """Return the k of k-reachability; NaN for another benchmark."""
    found = re.search(r"-k(\d+)$", benchmark)
    return float(found[1]) if found else float("nan")


RELATIVE: dict[str, dict[str, float | None]] = {
    "training": {"ars": None, "bc": 3.94, "maml": 10.83, "varibad": 3.02, "genrl": 3.82},
    "unseen": {"ars": None, "bc": None, "maml": 14.04, "varibad": 3.04, "genrl": 6.19},
}
"""Table 1: how many times as many tasks as a baseline DIBS solves; None where the baseline solves none."""
RELATIVE_SOURCE = "appendix H, Table 1"
DRIFT_ABLATION = {"regularized": 26, "unregularized": 3}
"""Unseen tasks that the best run solves on SimpleDrone (section 5.2, cross-index drift regularization)."""
