"""Tasks in three dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]

from dibs.drawing.regions import Trajectory, draw_trajectories, label, task_regions
from dibs.drawing.style import COLORS, shade
from dibs.envs import Array
from dibs.families import Tasks


def draw_space(ax: Any, tasks: Tasks, trajectories: Sequence[Trajectory] = ()) -> None:
    """Draw tasks into a three-dimensional panel of the first three state variables."""
    regions = task_regions(tasks, (0, 1, 2))
    corners = np.concatenate([*(s for r in regions for s in (r.low, r.high)), *(t.states[:, :3] for t in trajectories)])
    corners = np.where(np.isfinite(corners), corners, np.nan)
    low, high = np.nanmin(corners, axis=0), np.nanmax(corners, axis=0)
    names = tasks.environment.state_names
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
    ax.set_xlabel(f"${names[0]}$", labelpad=-4)
    ax.set_ylabel(f"${names[1]}$", labelpad=-4)
    ax.set_zlabel(f"${names[2]}$", labelpad=-8)
    ax.set_aspect("equal")
    ax.locator_params(nbins=5)
    ax.tick_params(pad=-3)
    ax.view_init(elev=20, azim=-62)
    for region in regions:
        if region.normal.any():
            continue  # half-spaces would cover everything; the views of the plane show them
        for corner, opposite, look in zip(region.low, region.high, region.looks(), strict=False):
            faces = Poly3DCollection(_faces(np.maximum(corner, low), np.minimum(opposite, high)), alpha=0.55, lw=0.4)
            faces.set_facecolor(look["facecolor"])
            faces.set_edgecolor(look["edgecolor"])
            ax.add_collection3d(faces)
        first, last = region.center[0], region.center[-1]
        if region.moves and np.isfinite(last).all() and region.role != "avoid":
            hue = shade(COLORS[region.role], 0.9)
            ax.quiver(*first, *(last - first), color=hue, lw=0.7, arrow_length_ratio=0.06)
        if np.isfinite(first).all():
            top = region.high[0, 2] + 0.03 * (high - low).max()
            how = {"color": COLORS[region.role], "ha": "center", "va": "bottom", "zorder": 9}
            ax.text(first[0], first[1], top, label(region.name), **how)
    draw_trajectories(ax, trajectories, (0, 1, 2))


def _faces(low: Array, high: Array) -> list[Array]:
    """Return the six faces of a box, as four corners (4, 3) each."""
    faces = []
    for axis in range(3):
        u, v = [a for a in range(3) if a != axis]
        for side in (low, high):
            face = np.tile(side, (4, 1))
            face[:, u] = [low[u], high[u], high[u], low[u]]
            face[:, v] = [low[v], low[v], high[v], high[v]]
            faces.append(face)
    return faces
