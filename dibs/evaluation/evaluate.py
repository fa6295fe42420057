"""Satisfaction rates over the index, and the paper's three metrics (section 5.1).

A policy's own belief never counts: the recorded states are judged by the semantics of SPECTRL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dibs.families import Family
from dibs.methods import Method, Model
from dibs.settings import STRICT, Count, Share
from dibs.simulation import Rewards, SpecTask, evaluation_draws
from dibs.simulation.composed import Recorded, record
from dibs.spectrl import satisfied
from dibs.statistics import wilson

CHUNK = 8  # indices rolled out together: enough to amortize numpy's overhead, few enough to stay in cache


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


def roles(family: Family, train: Sequence[int], settings: EvaluationSettings) -> dict[int, str]:
    """Return the role of every measured index: train, unseen, or beyond the family's last one."""
    last = family.last_index
    inside = {i: "train" if i in train else "unseen" for i in range(last + 1) if settings.unseen or i in train}
    beyond = range(last + 1, 2 * last + 1) if settings.beyond and family.extends else ()
    return inside | dict.fromkeys(beyond, "beyond")


def recorded(
    method: Method, model: Model, family: Family, specification: str, indices: Sequence[int], rollouts: int, seed: int
) -> Iterator[tuple[SpecTask, Recorded]]:
    """Roll out a method's policies at the given indices, a few of them at a time."""
    ordered = sorted(set(indices))
    for at in range(0, len(ordered), CHUNK):
        tasks = family.tasks(ordered[at : at + CHUNK], specification)
        policy = method.policy(model, tasks)
        task = SpecTask(tasks, policy.rewards or Rewards(bonus=1.0))
        yield task, record(policy, task, evaluation_draws(task, rollouts, seed))


def count_satisfied(
    method: Method, model: Model, family: Family, specification: str, indices: Sequence[int], rollouts: int, seed: int
) -> dict[int, int]:
    """Count the rollouts of each index that satisfy the specification."""
    counts = {}
    for task, found in recorded(method, model, family, specification, indices, rollouts, seed):
        for i, index in enumerate(task.indices):
            won = satisfied(task.grounded.spec, task.grounded.regions_at(index), found.states[i], found.lengths[i])
            counts[index] = int(won.sum())
    return counts


def evaluation_table(counts: Mapping[int, int], role: Mapping[int, str], settings: EvaluationSettings) -> Any:
    """Return one row per index, with rate and Wilson interval."""
    import pyarrow as pa

    indices = sorted(counts)
    satisfying = np.array([counts[i] for i in indices])
    rate = satisfying / settings.rollouts
    lower, upper = wilson(satisfying, settings.rollouts)
    return pa.table(
        {
            "index": pa.array(indices, pa.int32()),
            "role": pa.array([role[i] for i in indices]),
            "rollouts": pa.array(np.full(len(indices), settings.rollouts), pa.int32()),
            "satisfied": pa.array(satisfying, pa.int32()),
            "rate": rate,
            "lower": lower,
            "upper": upper,
            "succeeds": rate > settings.delta,
            "straddles": (lower <= settings.delta) & (upper > settings.delta),
        }
    )


def summarize(role: Sequence[str], succeeds: Sequence[bool]) -> dict[str, float]:
    """Return training ratio, zero-shot ratio and count, and the ratio beyond L, of one evaluation."""
    kind, won = np.asarray(role), np.asarray(succeeds, dtype=float)
    ratio = {r: float(won[kind == r].mean()) if (kind == r).any() else float("nan") for r in set(kind.tolist())}
    return {
        "training_ratio": ratio.get("train", float("nan")),
        "zero_shot_ratio": ratio.get("unseen", float("nan")),
        "zero_shot_count": float(won[kind == "unseen"].sum()),
        "beyond_ratio": ratio.get("beyond", float("nan")),
    }
