"""Input scaling by fixed constants of the family, so that weights of different indices mean the same thing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dibs.envs import Array
from dibs.families import Family, reach_avoid


@dataclass(frozen=True, eq=False)
class Scaling:
    """Per edge: network input = (state − center) / half."""

    center: Array  # (edges, dim)
    half: Array  # (edges, dim)

    def take(self, edges: npt.NDArray[np.intp]) -> Scaling:
        return Scaling(self.center[edges], self.half[edges])


def edge_scaling(family: Family) -> Scaling:
    """Bounding box of each edge's source and target at the first and the last index (both always trained)."""
    low, high = reach_avoid(family, [0, family.last_index]).extent()
    edges = len(family.edges)
    low, high = np.minimum(low[:edges], low[edges:]), np.maximum(high[:edges], high[edges:])
    half = (high - low) / 2
    half = np.where(half > 1e-6, half, 1.0)  # a variable that nothing varies or constrains
    return Scaling(((low + high) / 2).astype(np.float32), half.astype(np.float32))
