"""Tasks in three dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
from mpl_toolkits.mplot3d import proj3d  # type: ignore[import-untyped]
from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]

from dibs.drawing.labels import Labels
from dibs.drawing.regions import DrawnRegion, Trajectory, axis_label, draw_trajectories, label, task_regions
from dibs.drawing.style import COLORS, shade
from dibs.envs import Array
from dibs.families import Tasks


def draw_space(
    ax: Any,
    tasks: Tasks,
    trajectories: Sequence[Trajectory] = (),
    space: tuple[int, int, int] = (0, 1, 2),
    between: Tasks | None = None,
) -> None:
    """Draw tasks into a three-dimensional panel of three state variables."""
    regions = task_regions(tasks, space, between)
    low, high = _limits(regions, [t.states[:, space] for t in trajectories])
    names = [tasks.environment.state_names[d] for d in space]
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), zlim=(low[2], high[2]))
    ax.set_xlabel(axis_label(names[0]), labelpad=-4)
    ax.set_ylabel(axis_label(names[1]), labelpad=-4)
    ax.set_zlabel(axis_label(names[2]), labelpad=-8)
    ax.set_aspect("equal")
    ax.locator_params(nbins=5)
    ax.tick_params(pad=-3)
    ax.view_init(elev=20, azim=-62)
    for region in regions:
        for row, look in region.looks():
            faces = _faces(region, row, low, high)
            if region.role == "start" and (region.low[row] == region.high[row]).all():
                ax.plot(*region.low[row][:, None], "o", color=look["edgecolor"], ms=3.0)
            elif faces:
                plane = bool(region.normal[row].any())
                solid = Poly3DCollection(faces, alpha=0.3 if plane else 0.55, lw=0.1 if len(faces) > 6 else 0.4)
                solid.set_facecolor(look["facecolor"])
                solid.set_edgecolor(look["edgecolor"])
                ax.add_collection3d(solid)
        if np.isfinite(region.path).all() and (region.path != region.path[0]).any() and region.role != "avoid":
            _draw_path(ax, region.path, shade(COLORS[region.role], 0.9), 0.06 * float((high - low).max()))
    draw_trajectories(ax, trajectories, space)
    boxes = [_pixels(ax, region, row, low, high) for region in regions for row in range(len(region.low))]
    labels = Labels(ax, lambda: np.array([box() for box in boxes]))
    for region in regions:
        if _faces(region, 0, low, high):
            box = _pixels(ax, region, 0, low, high)
            labels.add(label(region.name), box, inside=False, color=COLORS[region.role])


def _limits(regions: Sequence[DrawnRegion], paths: Sequence[Array]) -> tuple[Array, Array]:
    """Corners of what to show; planes to avoid that are parallel to two axes are in view, too."""
    points = [side for r in regions for side in (r.low, r.high, r.path)] + list(paths)
    points += [np.where(r.normal != 0.0, r.point, np.nan) for r in regions if (r.normal != 0.0).sum(axis=-1).max() == 1]
    every = np.concatenate(points)
    every = np.where(np.isfinite(every), every, np.nan)
    return np.nanmin(every, axis=0), np.nanmax(every, axis=0)


def _draw_path(ax: Any, path: Array, color: Any, head: float) -> None:
    """Draw the path of a center, with an arrow head at its end."""
    ax.plot(*path.T, color=color, lw=0.8, zorder=5)
    steps = np.linalg.norm(path[-1] - path, axis=-1)
    before = path[np.flatnonzero(steps > 1e-9)[-1]]
    way = (path[-1] - before) / np.linalg.norm(path[-1] - before) * head
    ax.quiver(*(path[-1] - way), *way, color=color, lw=0.8, arrow_length_ratio=1.0, zorder=5)


def _pixels(ax: Any, region: DrawnRegion, row: int, low: Array, high: Array) -> Callable[[], Array]:
    """Return a function that gives the box around a region in pixels."""
    if region.normal[row].any():
        corners = np.concatenate([*_faces(region, row, low, high), (low + high)[None] / 2])[:1]  # one of the plane's
    else:
        corners = np.array(list(product(*np.clip([region.low[row], region.high[row]], low, high).T)))

    def box() -> Array:
        x, y, _ = proj3d.proj_transform(*corners.T, ax.get_proj())
        pixels = ax.transData.transform(np.transpose([x, y]))
        return np.concatenate([pixels.min(axis=0), pixels.max(axis=0)])

    return box


def _faces(region: DrawnRegion, row: int, low: Array, high: Array) -> list[Array]:
    """Return polygons (corners, 3): of a box, of a ball, or of a half-space's plane within the view."""
    if region.normal[row].any():
        return _plane(region.point[row], region.normal[row], low, high)
    if region.radius[row] > 0.0 and np.isfinite(region.high[row]).all():
        return _sphere(region.center[row], float(region.radius[row]))
    return _box(np.maximum(region.low[row], low), np.minimum(region.high[row], high))


def _box(low: Array, high: Array) -> list[Array]:
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


def _sphere(center: Array, radius: float, parts: int = 12) -> list[Array]:
    """Return the patches of a globe."""
    around, up = np.linspace(0.0, 2.0 * np.pi, parts + 1), np.linspace(-np.pi / 2, np.pi / 2, parts // 2 + 1)
    u, v = np.meshgrid(around, up)
    globe = center + radius * np.stack([np.cos(v) * np.cos(u), np.cos(v) * np.sin(u), np.sin(v)], axis=-1)
    rings = [globe[:-1, :-1], globe[:-1, 1:], globe[1:, 1:], globe[1:, :-1]]
    return list(np.stack(rings, axis=-2).reshape(-1, 4, 3))


def _plane(point: Array, normal: Array, low: Array, high: Array) -> list[Array]:
    """Return the part of a plane inside a box as one polygon, or nothing."""
    found = []
    for axis in range(3):
        for corner in product(*(((low[d], high[d]) if d != axis else (low[d],)) for d in range(3))):
            if normal[axis] != 0.0:
                share = ((point - corner) @ normal) / (normal[axis] * (high[axis] - low[axis]))
                if -1e-9 <= share <= 1.0 + 1e-9:
                    edge = np.array(corner)
                    edge[axis] += share * (high[axis] - low[axis])
                    found.append(edge)
    if len(found) < 3:
        return []
    corners = np.array(found)
    middle = corners - corners.mean(axis=0)
    across = np.linalg.svd(middle)[2][:2]  # two directions in the plane
    return [corners[np.argsort(np.arctan2(*(across @ middle.T)))]]
