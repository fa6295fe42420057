"""Compare predicted success with what was measured at unseen indices and beyond L.

    python workflow/scripts/calibration.py results/development            all evaluations below a folder
    python workflow/scripts/calibration.py results/a results/b --methods dibs,dibs-plus

For rollouts that succeed with a rate r, the Brier score of a prediction p is (p − r)² + r (1 − r). Skill is the share
of the score of a simple predictor that p saves. There are two simple predictors, both fitted to the success of the same
method on all other families: a constant, and the best decreasing function of the distance to the nearest training
index. Distances are counted in indices or in gaps of the split, whichever predicts better. Training indices are left
out. Every index of an evaluation is a cell; failing cells are those whose rate is at most δ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.isotonic import IsotonicRegression

sys.path.insert(0, str(Path(__file__).parents[2]))

from dibs.errors import DibsError
from dibs.files import read_table
from dibs.methods import in_order

Array = npt.NDArray[np.float64]
BINS = np.linspace(0.0, 1.0, 6)


def cells(folders: Sequence[Path]) -> pd.DataFrame:
    """Return a row per evaluation and index that was not trained on and has a prediction."""
    found = []
    for file in sorted(file for folder in folders for file in folder.glob("evaluations/**/*.parquet")):
        table, meta = read_table(file)
        if "predicted" not in table.column_names:
            continue
        frame = table.to_pandas()
        train = frame["index"][frame["role"] == "train"].to_numpy()
        frame["distance"] = np.abs(frame["index"].to_numpy()[:, None] - train).min(axis=1)
        frame["gaps"] = frame["distance"] / np.diff(train).max(initial=1)
        frame = frame.assign(method=meta["method"], family=meta["family"], solved=frame["rate"] > meta["delta"])
        found.append(frame[(frame["role"] != "train") & frame["predicted"].notna()])
    if not found or not sum(map(len, found)):
        raise DibsError(f"no evaluation with predictions below {', '.join(map(str, folders))}")
    return pd.concat(found, ignore_index=True)


def simple(frame: pd.DataFrame) -> dict[str, Array]:
    """Return what simple predictors say of each cell, fitted to all families but its own."""
    families = frame["family"].to_numpy()
    if len(set(families)) < 2:
        raise DibsError(f"simple predictors are fitted to other families, found only {families[0]}")
    rate = frame["rate"].to_numpy()
    found = {name: np.empty(len(frame)) for name in ("constant", "distance", "gaps")}
    for family in set(families):
        own = families == family
        found["constant"][own] = rate[~own].mean()
        for name in ("distance", "gaps"):
            x = frame[name].to_numpy(float)
            curve = IsotonicRegression(increasing=False, out_of_bounds="clip").fit(x[~own], rate[~own])
            found[name][own] = curve.predict(x[own])
    return found


def brier(predicted: Array, rate: Array) -> float:
    """Return the mean Brier score of rollouts."""
    return float(np.mean((predicted - rate) ** 2 + rate * (1.0 - rate)))


def skill(score: float, simple: float) -> float:
    """Return the share of the score of a simple predictor that another one saves."""
    return 1.0 - score / simple if simple else float("-inf") if score else 0.0


def skills(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield scores and skills of one method's predictions, for all cells and for some of them."""
    rate, predicted, others = frame["rate"].to_numpy(), frame["predicted"].to_numpy(), simple(frame)
    by_distance = min(("distance", "gaps"), key=lambda name: brier(others[name], rate))
    groups: Mapping[str, Any] = {
        "all": np.ones(len(frame), dtype=bool),
        "unseen": frame["role"] == "unseen",
        "beyond L": frame["role"] != "unseen",
        "failing": ~frame["solved"],
        "solved": frame["solved"],
    }
    for name, group in groups.items():
        chosen = np.asarray(group)
        if not chosen.any():
            continue
        score = brier(predicted[chosen], rate[chosen])
        against = [brier(others[key][chosen], rate[chosen]) for key in ("constant", by_distance)]
        yield {
            "method": frame["method"].iloc[0],
            "cells": name,
            "number": int(chosen.sum()),
            "predicted": predicted[chosen].mean(),
            "rate": rate[chosen].mean(),
            "Brier score": score,
            "skill against a constant": skill(score, against[0]),
            "skill against distance": skill(score, against[1]),
        }


def bins(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the mean rate of cells with similar predictions."""
    place = np.clip(np.digitize(frame["predicted"], BINS) - 1, 0, len(BINS) - 2)
    for k in range(len(BINS) - 1):
        own = frame[place == k]
        if own.empty:
            continue
        between = f"{BINS[k]:.1f} to {BINS[k + 1]:.1f}"
        row = {"method": frame["method"].iloc[0], "predicted": between, "number": len(own)}
        yield {**row, "mean prediction": own["predicted"].mean(), "mean rate": own["rate"].mean()}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("results", nargs="+", type=Path, help="folders of results")
    parser.add_argument("--methods", help="names, separated by commas (default: all that predict)")
    arguments = parser.parse_args()
    try:
        frame = cells(arguments.results)
        names = arguments.methods.split(",") if arguments.methods else in_order(frame["method"].unique().tolist())
        parts = [frame[frame["method"] == name] for name in names]
        for rows in (skills, bins):
            table = pd.DataFrame([row for part in parts if len(part) for row in rows(part)])
            print(table.to_markdown(index=False, floatfmt=".2f"), end="\n\n")
    except DibsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
