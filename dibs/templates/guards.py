"""Which path of the reach-avoid graph an index takes: decided from training indices only (paper, section 3.2).

Where a specification has a choice, the teachers of the training indices have shown how well each edge can be
done there. A path is as good as its edges' successes multiplied; equally good paths are told apart by their
teachers' returns. Between training indices both are interpolated linearly, beyond the last one they stay as
they were: nothing about an unseen index is used but its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dibs.spectrl import Graph

GOOD = 0.95  # two paths that are both at least this good differ by their returns only


@dataclass(frozen=True)
class EdgeRecord:
    """How the teachers did on one edge at the training indices."""

    indices: tuple[int, ...]
    success: tuple[float, ...]
    returns: tuple[float, ...]

    def at(self, index: int) -> tuple[float, float]:
        """Success and return, interpolated at an index."""
        return (
            float(np.interp(index, self.indices, self.success)),
            float(np.interp(index, self.indices, self.returns)),
        )


def choose_path(graph: Graph, records: Mapping[str, EdgeRecord], index: int) -> tuple[str, ...]:
    """Names of the edges to take at `index`."""
    options = [tuple(edge.name for edge in path) for path in graph.paths()]
    if len(options) == 1:
        return options[0]
    return max(options, key=lambda path: _merit(path, records, index))


def _merit(path: Sequence[str], records: Mapping[str, EdgeRecord], index: int) -> tuple[float, float]:
    scores = [records[name].at(index) for name in path]
    success = float(np.prod([s for s, _ in scores]))
    return min(success, GOOD), sum(r for _, r in scores)
