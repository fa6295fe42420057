"""Satisfaction rates over the index, and the paper's three metrics (section 5.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dibs.analysis.statistics import wilson
from dibs.files import write_table
from dibs.settings import STRICT, Count, Share


@dataclass(frozen=True)
class EvaluationSettings:
    """How policies are measured."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    rollouts: Count = 1000
    """Rollouts per index."""
    delta: Share = 0.9
    """A task is solved if its rate exceeds this."""
    unseen: bool = True
    """Also measure indices that were not trained on; sweeps do not."""
    beyond: bool = True
    """Also measure indices L + 1 … 2L, in a role of their own."""


def roles(last: int, train: tuple[int, ...], beyond: bool, unseen: bool = True) -> dict[int, str]:
    """Role of every measured index: train, unseen, or beyond the family's last one."""
    inside = {i: "train" if i in train else "unseen" for i in range(last + 1) if unseen or i in train}
    return inside | ({i: "beyond" for i in range(last + 1, 2 * last + 1)} if beyond else {})


def save_evaluation(
    path: Path,
    satisfied: Mapping[int, int],
    role: Mapping[int, str],
    settings: EvaluationSettings,
    identity: Mapping[str, Any],
) -> Any:
    """Write one row per index and return the table."""
    import pyarrow as pa

    indices = sorted(satisfied)
    counts = np.array([satisfied[i] for i in indices])
    rate = counts / settings.rollouts
    lower, upper = wilson(counts, settings.rollouts)
    table = pa.table(
        {
            "index": pa.array(indices, pa.int32()),
            "role": pa.array([role[i] for i in indices]),
            "rollouts": pa.array(np.full(len(indices), settings.rollouts), pa.int32()),
            "satisfied": pa.array(counts, pa.int32()),
            "rate": rate,
            "lower": lower,
            "upper": upper,
            "succeeds": rate > settings.delta,
            "straddles": (lower <= settings.delta) & (upper > settings.delta),
        }
    )
    write_table(path, table, {"kind": "evaluation", "delta": settings.delta, **identity})
    return table


def summarise(role: list[str], succeeds: list[bool]) -> dict[str, float]:
    """Training ratio, zero-shot ratio and count, and the ratio beyond L, of one evaluation."""
    kind, won = np.asarray(role), np.asarray(succeeds, dtype=float)
    ratio = {r: float(won[kind == r].mean()) if (kind == r).any() else float("nan") for r in set(kind.tolist())}
    return {
        "training_ratio": ratio.get("train", float("nan")),
        "zero_shot_ratio": ratio.get("unseen", float("nan")),
        "zero_shot_count": float(won[kind == "unseen"].sum()),
        "beyond_ratio": ratio.get("beyond", float("nan")),
    }
