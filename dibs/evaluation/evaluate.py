"""Satisfaction rates over the index, and the paper's three metrics (section 5.1).

A policy's own belief never counts: the recorded states are judged by the semantics of SPECTRL.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dibs.families import Family, Tasks
from dibs.methods import Method, Model
from dibs.settings import STRICT, Count, Natural, Share
from dibs.simulation import Rewards, SpecTask, evaluation_draws
from dibs.simulation.composed import Recorded, record
from dibs.spectrl import satisfied
from dibs.statistics import wilson

COARSE = 1e-3  # spacing of float32 numbers, in half-widths of a region, above which rollouts use double precision
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
    indices: tuple[Natural, ...] = ()
    """Also measure these indices, such as [1000, 100000]; those after 2L have the role `far`."""


def roles(family: Family, train: Sequence[int], settings: EvaluationSettings) -> dict[int, str]:
    """Return the role of every measured index: train, unseen, beyond the family's last one, or far beyond it."""
    last = family.last_index
    inside = [i for i in range(last + 1) if settings.unseen or i in train]
    beyond = range(last + 1, 2 * last + 1) if settings.beyond and family.extends else ()
    family.check_exists(settings.indices, "evaluation.indices")
    return {i: role_of(i, last, train) for i in sorted({*inside, *beyond, *settings.indices})}


def role_of(index: int, last: int, train: Sequence[int]) -> str:
    """Return the role of an index: ratios of `beyond` (L + 1 … 2L) leave out what is `far`."""
    if index <= last:
        return "train" if index in train else "unseen"
    return "beyond" if index <= 2 * last else "far"


def recorded(
    method: Method, model: Model, family: Family, specification: str, indices: Sequence[int], rollouts: int, seed: int
) -> Iterator[tuple[SpecTask, Recorded]]:
    """Roll out a method's policies at the given indices, a few of them at a time."""
    ordered = np.array(sorted(set(indices)), dtype=np.intp)
    coarse = needs_double(family.tasks(ordered.tolist(), specification))
    for rows, dtype in ((~coarse, np.float32), (coarse, np.float64)):
        for at in range(0, int(rows.sum()), CHUNK):
            tasks = family.tasks(ordered[rows][at : at + CHUNK].tolist(), specification)
            policy = method.policy(model, tasks)
            task = SpecTask(tasks, policy.rewards or Rewards(bonus=1.0))
            yield task, record(policy, task, evaluation_draws(task, rollouts, seed, dtype))


def needs_double(tasks: Tasks) -> npt.NDArray[np.bool_]:
    """Return at which indices the spacing of float32 numbers is not small compared with the regions.

    Car2D's goals at index 100,000 are at x = 50,000, where float32 numbers are 0.004 apart.
    """
    largest = np.abs(tasks.start_center).max(axis=-1)  # (indices,)
    smallest = np.full(len(largest), np.inf)
    for region in tasks.regions.values():
        arrays, reach = region.arrays(), np.asarray(region.reach)
        bounded = np.isfinite(reach) | (arrays["normal"] != 0.0)
        largest = np.maximum(largest, np.where(bounded, np.abs(arrays["center"]), 0.0).max(axis=-1))
        smallest = np.minimum(smallest, np.where(np.isfinite(reach) & (reach > 0.0), reach, np.inf).min(axis=-1))
    return np.asarray(np.finfo(np.float32).eps * largest > COARSE * smallest)


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


def evaluation_table(
    counts: Mapping[int, int],
    role: Mapping[int, str],
    settings: EvaluationSettings,
    predicted: Mapping[int, float] | None = None,
) -> Any:
    """Return one row per index, with rate, Wilson interval, and the rate that the model predicted, if it does."""
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
            "predicted": pa.array([(predicted or {}).get(i) for i in indices], pa.float64()),
        }
    )


def summarize(role: Sequence[str], succeeds: Sequence[bool]) -> dict[str, float]:
    """Return training ratio, zero-shot ratio and count, and the ratios beyond L and far beyond it."""
    kind, won = np.asarray(role), np.asarray(succeeds, dtype=float)
    ratio = {r: float(won[kind == r].mean()) if (kind == r).any() else float("nan") for r in set(kind.tolist())}
    return {
        "training_ratio": ratio.get("train", math.nan),
        "zero_shot_ratio": ratio.get("unseen", math.nan),
        "zero_shot_count": float(won[kind == "unseen"].sum()),
        "beyond_ratio": ratio.get("beyond", math.nan),
        "far_ratio": ratio.get("far", math.nan),
    }


def describe(ratios: Mapping[str, float]) -> str:
    """Say the ratios in words, without those of roles that were not measured."""
    words = {name.removesuffix("_ratio").replace("_", "-"): r for name, r in ratios.items() if name.endswith("_ratio")}
    return ", ".join(f"{name} {ratio:.3f}" for name, ratio in words.items() if not math.isnan(ratio))
