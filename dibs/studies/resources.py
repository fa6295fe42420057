"""Memory and run time that the workflow asks a cluster for, as (megabytes, minutes).

What a family's file says comes first (`evaluation_minutes` and so on). Otherwise teachers and models get what their
algorithm or method says. Datasets and evaluations are mostly simulation: their time follows from the number of
environment steps, planned at about a tenth of measured rates, because nodes differ and are shared.
"""

from __future__ import annotations

from dibs.datasets.build import DatasetSettings
from dibs.evaluation.evaluate import CHUNK, EvaluationSettings, roles
from dibs.families import Benchmark, Family, Split
from dibs.methods import Method
from dibs.spectrl import graph, parse

Resources = tuple[int, int]
MEGABYTES = 1000
"""Of a job that keeps little in memory."""
MINUTES = 2
"""Of a job that has next to nothing to do, on a slow node and file system."""
STEPS_PER_MINUTE = 6_000_000
STEPS_PER_MINUTE_BY_ROW = 120_000
"""Of environments that step one state at a time (`Environment.by_row`)."""


def dataset_resources(family: Family, settings: DatasetSettings) -> Resources:
    """Return what building one dataset needs; rows are written in blocks, so memory does not grow with the size."""
    candidates = 4 * settings.size * len(family.edges)
    steps = candidates * family.horizon // 8  # one rollout per eight states of satisfying rollouts
    return family.dataset_memory_mb or MEGABYTES, family.dataset_minutes or _minutes(family, steps)


def evaluation_resources(method: Method, benchmark: Benchmark, split: Split, settings: EvaluationSettings) -> Resources:
    """Return what one evaluation needs; a method that adapts on the evaluated tasks has its training's memory."""
    family = benchmark.family
    length = family.horizon * max(map(len, graph(parse(benchmark.specification)).paths()))
    indices = len(roles(family, split.indices, settings))
    recorded = 4 * CHUNK * settings.rollouts * length * len(family.environment.state_names)  # bytes of float32
    memory = max(MEGABYTES, 0 if method.zero_shot else method.memory_mb) + 6 * recorded // 10**6
    steps = round(indices * settings.rollouts * length * method.evaluation_factor)
    return family.evaluation_memory_mb or memory, family.evaluation_minutes or _minutes(family, steps)


def _minutes(family: Family, steps: int) -> int:
    rate = STEPS_PER_MINUTE_BY_ROW if family.environment.by_row else STEPS_PER_MINUTE
    return MINUTES + -(-steps // rate)
