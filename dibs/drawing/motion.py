"""Arrows along the path of a region's center from the first index to the last."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path as Curve

from dibs.drawing.regions import HEAD, DrawnRegion
from dibs.drawing.style import COLORS, shade
from dibs.envs import Array

ROOM = 7.0  # points: the shortest arrow between two boxes


def draw_motion(ax: Axes, region: DrawnRegion, regions: Sequence[DrawnRegion]) -> None:
    """Draw arrows from index to index along the true path of the center.

    Where boxes leave no room between them, one arrow leads from the first to the last: next to them if the path is
    straight, across them otherwise.
    """
    center, path = region.center, region.path
    if not np.isfinite(path).all() or not (path != path[0]).any():
        return
    others = [r.path - r.path[0] for r in regions if r.role in ("start", "reach")]
    if region.role == "avoid" and any(np.allclose(other, path - path[0]) for other in others):
        return  # obstacles that move along with the rest need no arrows
    look: dict[str, Any] = HEAD | {"color": shade(COLORS[region.role], 0.9), "lw": 0.8, "zorder": 4.0}
    pieces = [between_boxes(region, row) for row in range(len(center) - 1)]
    point = 1.0 / points_per_unit(ax)
    if all(_length(piece) > ROOM * point for piece in pieces):
        for piece in pieces:
            straight = len(piece) == 2
            where = {"posA": tuple(piece[0]), "posB": tuple(piece[-1])} if straight else {"path": Curve(piece)}
            ax.add_patch(FancyArrowPatch(**where, **look))
    elif is_straight(path):
        along = int(np.argmax(np.abs(path[-1] - path[0])))
        aside = np.zeros(2)
        aside[1 - along] = (-1.0 if along == 0 else 1.0) * (region.half[0, 1 - along] + 5.0 * point)
        ax.add_patch(FancyArrowPatch(path=Curve(path[[0, -1]] + aside), **look))
    else:
        ax.add_patch(FancyArrowPatch(path=Curve(path), **look))


def between_boxes(region: DrawnRegion, row: int) -> Array:
    """Return the path (points, axes) from one drawn index to the next, outside of the boxes at both."""
    path = region.path[region.stops[row] : region.stops[row + 1] + 1]
    shares = np.linspace(0.0, 1.0, 33)[:, None]
    fine = np.concatenate([a + shares * (b - a) for a, b in pairwise(path)])
    free = np.ones(len(fine), dtype=bool)
    for end in (row, row + 1):
        free &= (np.abs(fine - region.center[end]) > region.half[end]).any(axis=-1)
    kept = fine[free]
    return kept[[0, -1]] if len(kept) > 1 and is_straight(path) else kept


def is_straight(path: Array) -> bool:
    """Whether a path (points, axes) runs along a line, without turning back."""
    way = path[-1] - path[0]
    length = np.linalg.norm(way)
    if length == 0.0:
        return False
    along = (path - path[0]) @ way / length
    off = path - path[0] - along[:, None] * way / length
    return bool(np.abs(off).max() < 0.01 * length and (np.diff(along) > -1e-9 * length).all())


def _length(path: Array) -> float:
    return float(np.linalg.norm(np.diff(path, axis=0), axis=-1).sum()) if len(path) > 1 else 0.0


def points_per_unit(ax: Axes) -> float:
    """Typographic points per unit of the data, as far as known before the layout."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    extent = ax.get_window_extent()
    scale = min(extent.width / np.ptp(ax.get_xlim()), extent.height / np.ptp(ax.get_ylim()))
    return float(scale) * 72.0 / figure.dpi
