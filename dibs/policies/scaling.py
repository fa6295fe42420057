"""Input scaling by fixed constants of the family, so that weights of different indices mean the same thing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dibs.envs import Array
from dibs.families import Family, reach_avoid


@dataclass(frozen=True, eq=False)
class Scaling:
    """Per edge: network input = (state − center) / half."""

    center: Array  # (edges, dim)
    half: Array  # (edges, dim)

    def take(self, edges: Array) -> Scaling:
        return Scaling(self.center[edges], self.half[edges])


def edge_scaling(family: Family) -> Scaling:
    """Bounding box of each edge's source and target at the first and the last index (both always trained)."""
    tasks = reach_avoid(family, [0, family.last_index])
    shape = (2, len(family.edges), -1)
    reached = np.where(tasks.target_sign > 0, 1.0, np.nan)[..., None]
    half = np.where(np.isinf(tasks.target_half), np.nan, tasks.target_half)
    lows = np.stack([tasks.start_center - tasks.start_half, np.nanmin(reached * (tasks.target_center - half), 1)])
    highs = np.stack([tasks.start_center + tasks.start_half, np.nanmax(reached * (tasks.target_center + half), 1)])
    low = np.nanmin(lows, axis=0).reshape(shape).min(axis=0)
    high = np.nanmax(highs, axis=0).reshape(shape).max(axis=0)
    return Scaling(((low + high) / 2).astype(np.float32), ((high - low) / 2).astype(np.float32))
