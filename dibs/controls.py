"""Negative controls: what methods solve at unseen indices must come from how the tasks move with the index.

Two families are made from a given one. In the *shuffled* one the same tasks are in random order, so an index says
nothing about the task between two training indices. In the *wrong* one the training tasks are the same and the unseen
ones are in reverse order: what was learned about the motion is wrong there. A benchmark on which a method keeps its
zero-shot ratio is broken: it measures something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dibs.api import train
from dibs.errors import DibsError
from dibs.families import Benchmark, Family, Split, load_family
from dibs.seeding import stream
from dibs.spectrl import Region

DROP = 0.1
"""A zero-shot ratio that falls by less has not dropped."""
LITTLE = 0.5
"""A method that solves less of the unseen indices may do so without using the index, and has nothing to lose."""


@dataclass(frozen=True)
class Control:
    """The zero-shot ratios of one method on a benchmark and on its two controls."""

    method: str
    right: float
    shuffled: float
    wrong: float

    @property
    def verdict(self) -> str:
        """Whether the ratio drops, as it must."""
        if self.right < LITTLE:
            return "solves too little to tell"
        kept = [name for name in ("shuffled", "wrong") if getattr(self, name) > self.right - DROP]
        return f"broken: does not drop when {' and '.join(kept)}" if kept else "drops"


def shuffled(family: Family, seed: int) -> Family:
    """Return the family with its tasks in random order."""
    order = stream("controls", family.name, seed).permutation(family.last_index + 1)
    return reordered(family, order.tolist(), "shuffled")


def wrong(family: Family, split: Split) -> Family:
    """Return the family with the tasks of unseen indices in reverse order."""
    order = np.arange(family.last_index + 1)
    unseen = np.setdiff1d(order, split.indices)
    order[unseen] = unseen[::-1]
    return reordered(family, order.tolist(), "wrong")


def reordered(family: Family, order: Sequence[int], suffix: str) -> Family:
    """Return a family whose index i has the task of index order[i], by tables; `suffix` is added to all names."""
    tasks = family.tasks(order)
    if family.environment.derived:
        raise DibsError(
            f"{family.source}: controls need starts that can be listed, and {family.environment.name} has none"
        )
    if np.ptp(tasks.start_half, axis=0).any():
        raise DibsError(f"{family.source}: start.noise changes with the index, which a table of starts cannot")
    data = family.description_data()
    start = {
        "table": [{"center": center} for center in tasks.start_center.tolist()],
        "noise": tasks.start_half[0].tolist(),
    }
    regions = {
        name: {"table": [_entry(region[i]) for i in range(len(order))]} for name, region in tasks.regions.items()
    }
    names = {f"{name}-{suffix}": text for name, text in family.benchmarks.items()}
    known = {"name": f"{family.name}-{suffix}", "start": start, "regions": regions, "benchmarks": names}
    return load_family(data | known)


def _entry(region: Region) -> dict[str, Any]:
    """Return one row of a region's table."""
    arrays = region.arrays()
    center, half = arrays["center"].tolist(), arrays["half_width"]
    if arrays["normal"].any():
        return {"center": center, "normal": arrays["normal"].tolist()}
    center = [c if np.isfinite(h) else None for c, h in zip(center, half, strict=True)]
    if arrays["radius"] > 0.0:
        return {"center": center, "radius": float(arrays["radius"])}
    return {"center": center, "half_width": np.where(np.isfinite(half), half, 1.0).tolist()}


def controls(
    benchmark: Benchmark,
    split: Split,
    seed: int = 1000,
    methods: Sequence[str] = ("dibs", "bc-index"),
    rollouts: int = 200,
    results: str | Path | None = None,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
) -> list[Control]:
    """Train methods on a benchmark and on its shuffled version, and measure them there and on the wrong one.

    `settings` are those of methods, by name. With `results`, files are kept below that folder.
    """
    family, found = benchmark.family, []
    if rollouts < 1:
        raise DibsError(f"rollouts: expected at least 1 per index, found {rollouts}")
    if len(split.indices) > family.last_index:
        raise DibsError(f"split {split.name} of {family.name}: controls need indices that it does not train on")
    mixed = shuffled(family, seed)
    runs = [
        train(one, split=split.name, train=split.indices, seed=seed, progress=False, results=results)
        for one in (family, mixed)
    ]
    for method in methods:
        ratios = []
        for run in runs:
            chosen = {} if settings is None else settings.get(method, {})
            fitted = run.fit(method, _renamed(benchmark, run.family).id, **chosen)
            targets = [fitted.benchmark] + ([_renamed(benchmark, wrong(family, split))] if run.family is family else [])
            for target in targets:
                measured = replace(fitted, benchmark=target).evaluate(rollouts, range(family.last_index + 1))
                ratios.append(measured.ratios["zero_shot_ratio"])
        right, wrongly, mixed_ratio = ratios
        found.append(Control(method, right, mixed_ratio, wrongly))
    return found


def _renamed(benchmark: Benchmark, family: Family) -> Benchmark:
    """Return the same benchmark of a reordered family."""
    place = benchmark.family.benchmark_ids.index(benchmark.id)
    name = family.benchmark_ids[place]
    return Benchmark(name, family, name, family.source)
