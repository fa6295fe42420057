"""Frames of made-up runs of the paper's benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd
import pytest

from dibs.drawing.style import STYLE as DRAWING
from dibs.families import get_benchmark
from dibs.seeding import stream
from dibs.studies.collect import COLUMNS

SKILL = {
    "ars": (0.05, 0.05),
    "bc": (0.9, 0.2),
    "maml": (0.7, 0.6),
    "maml-adapted": (0.8, 0.8),
    "varibad": (0.9, 0.85),
    "genrl": (0.8, 0.7),
    "dibs": (1.0, 0.9),
    "dibs-plus": (1.0, 1.0),
}
"""Training and zero-shot ratio."""


def made_up(methods: Iterable[str], benchmarks: Iterable[str], splits: Iterable[str], seeds: int = 2) -> pd.DataFrame:
    """Runs whose ratios scatter around those of the method."""
    rows = []
    for method in methods:
        for benchmark in benchmarks:
            family = get_benchmark(benchmark).family
            for split in splits:
                train = len(family.split(split).indices)
                unseen = family.last_index + 1 - train
                for seed in range(seeds):
                    rng = stream("made up", method, benchmark, split, seed)
                    solved, zero_shot = (
                        rng.binomial(n, p) for n, p in zip((train, unseen), SKILL[method], strict=True)
                    )
                    rows.append(
                        {
                            **dict.fromkeys(COLUMNS, 0.0),
                            **{"method": method, "benchmark": benchmark, "family": family.name, "split": split},
                            "requires": "more" if "opposite" in benchmark or "choice" in benchmark else "nothing",
                            **{"seed": seed, "train_size": train, "unseen_size": unseen, "delta": 0.9, "file": "x"},
                            **{"training_count": float(solved), "training_ratio": solved / train},
                            **{"zero_shot_count": float(zero_shot), "zero_shot_ratio": zero_shot / unseen},
                        }
                    )
    return pd.DataFrame(rows, columns=list(COLUMNS))


@pytest.fixture(scope="session")
def made() -> Callable[..., pd.DataFrame]:
    return made_up


@pytest.fixture(scope="session")
def frame() -> pd.DataFrame:
    """All methods, but not everywhere: MAML and VariBAD lack a benchmark, GenRL a split."""
    sparse = ["gap20", "gap8", "gap4"]
    return pd.concat(
        [
            made_up([m for m in SKILL if m != "genrl"], ["car2d-reach-k1"], sparse),
            made_up([m for m in SKILL if m not in ("genrl", "maml", "varibad")], ["car2d-reach-k5"], sparse),
            made_up(["genrl"], ["car2d-reach-k1", "car2d-reach-k5"], ["gap20", "gap4"]),
            made_up(["genrl", "dibs", "bc"], ["car2d-choice-l1"], ["gap10", "gap5"]),
            made_up(["genrl", "dibs", "bc"], ["reacher-drop-same-8", "reacher-stack-same-8"], ["gap4", "gap2"]),
        ],
        ignore_index=True,
    )


@pytest.fixture
def runs() -> Callable[..., pd.DataFrame]:
    """What builds a frame of (method, benchmark, split, seed, training_count, zero_shot_count) with 4 and 10 tasks."""

    def build(*rows: tuple) -> pd.DataFrame:
        names = ("method", "benchmark", "split", "seed", "training_count", "zero_shot_count")
        frame = pd.DataFrame([dict(zip(names, row, strict=True)) for row in rows])
        frame = frame.assign(family=frame["benchmark"].str.replace(r"-[kl]\d$", "", regex=True))
        frame = frame.assign(requires="nothing", train_size=4, unseen_size=10, steps=np.nan, delta=0.9)
        frame["training_ratio"] = frame["training_count"] / frame["train_size"]
        frame["zero_shot_ratio"] = frame["zero_shot_count"] / frame["unseen_size"]
        return frame.reindex(columns=list(COLUMNS))

    return build


@pytest.fixture
def quick(monkeypatch) -> None:
    """Write pictures with fewer dots."""
    monkeypatch.setitem(DRAWING, "savefig.dpi", 60)
