"""Which path of the reach-avoid graph an index takes: decided from training indices only (paper, section 3.2).

If a specification has a choice, the teachers of the training indices have shown how well each edge can be done there.
A path is as good as the product of its edges' successes. Equally good paths are ordered by their teachers' returns.
Between training indices both are interpolated linearly, and beyond the last one they stay constant: nothing about an
unseen index is used but its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dibs.envs import Array
from dibs.spectrl import Graph
from dibs.teachers.train import Teacher

GOOD = 0.95  # two paths that are both at least this good differ by their returns only


@dataclass(frozen=True)
class EdgeRecord:
    """How the teachers did on one edge at the training indices."""

    indices: tuple[int, ...]
    success: tuple[float, ...]
    returns: tuple[float, ...]

    def at(self, index: int) -> tuple[float, float]:
        """Return success and return, interpolated at an index."""
        success, returns = (float(np.interp(index, self.indices, y)) for y in (self.success, self.returns))
        return success, returns


def choose_path(graph: Graph, records: Mapping[str, EdgeRecord], index: int) -> tuple[str, ...]:
    """Return the names of the edges to take at `index`."""
    options = [tuple(edge.name for edge in path) for path in graph.paths()]
    if len(options) == 1:
        return options[0]

    def merit(path: tuple[str, ...]) -> tuple[float, float]:
        success, returns = zip(*(records[name].at(index) for name in path), strict=True)
        return min(float(np.prod(success)), GOOD), sum(returns)

    return max(options, key=merit)


def records_of(indices: Sequence[int], edges: Sequence[str], success: Array, returns: Array) -> dict[str, EdgeRecord]:
    """Return records from mean successes and returns (edges, indices)."""
    rows = zip(edges, success.tolist(), returns.tolist(), strict=True)
    return {name: EdgeRecord(tuple(indices), tuple(good), tuple(scores)) for name, good, scores in rows}


def teacher_records(teachers: Sequence[Teacher]) -> dict[str, EdgeRecord]:
    """Return how the teachers of all training indices did on each edge."""
    indices, found = tuple(teacher.index for teacher in teachers), {}
    for name in teachers[0].edges:
        measured = [teacher.metrics["edges"][name] for teacher in teachers]
        success, returns = (tuple(float(m[key]) for m in measured) for key in ("success", "return"))
        found[name] = EdgeRecord(indices, success, returns)
    return found


def stored_records(records: Mapping[str, EdgeRecord]) -> dict[str, Any]:
    """Return records as the metadata of a model contains them."""
    return {name: asdict(record) for name, record in records.items()}


def read_records(stored: Mapping[str, Mapping[str, Any]]) -> dict[str, EdgeRecord]:
    """Return records from the metadata of a model."""
    return {name: EdgeRecord(**{k: tuple(v) for k, v in record.items()}) for name, record in stored.items()}
