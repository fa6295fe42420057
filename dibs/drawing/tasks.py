"""Drawings of tasks, with recorded rollouts on top.

    save(figure_task(family.tasks([0, 10, 20]), trajectories), "tasks.pdf")

Hue is what a region is for. Lightness is the index, from light (the first) to dark (the last).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Patch, Polygon, Rectangle

from dibs.drawing.arm import Backdrop, arm_backdrop
from dibs.drawing.labels import BELOW, Labels
from dibs.drawing.motion import draw_motion, points_per_unit
from dibs.drawing.regions import (
    DASHES,
    MEANING,
    ROLES,
    ROUTE,
    DrawnRegion,
    Trajectory,
    axis_label,
    draw_trajectories,
    label,
    looks,
    region_roles,
    task_regions,
)
from dibs.drawing.space import draw_space
from dibs.drawing.style import COLORS, INK, STYLE, Role
from dibs.envs import Array
from dibs.errors import DibsError
from dibs.families import Tasks
from dibs.spectrl import Edge

LAYERS: dict[Role, float] = {"stay": 1.5, "avoid": 2.0, "start": 3.0, "reach": 3.0}
"""Z-order of regions by their role."""
COVERED = 3.5
"""Z-order of a region inside another one that would hide it."""


def figure_task(tasks: Tasks, trajectories: Sequence[Trajectory] = (), between: Tasks | None = None) -> Figure:
    """Return a figure of the tasks: one panel for a plane, three views for space, one per index for an arm.

    `between` has the tasks of all indices from the first to the last one: arrows then follow the true path of every
    region.
    """
    environment = tasks.environment
    if len(environment.state_names) < 2:
        raise DibsError(f"{tasks.name}: a drawing needs two state variables, found {environment.state_names[0]} only")
    tasks = tasks.at(sorted(set(tasks.indices)))
    with mpl.rc_context(STYLE):
        if arm_backdrop(tasks) is not None:
            figure = _panel_per_index(tasks, trajectories)
            tasks = tasks.at(tasks.indices[:1])  # each panel has one index, so the legend shows a single shade
        elif environment.space is not None:
            figure = _views_of_space(tasks, trajectories, environment.space, between)
        else:
            axes = plane_of(tasks)
            figure, ax = one_panel(tasks, axes=axes)
            draw_task(ax, tasks, trajectories, axes=axes, between=between)
        add_legend(figure, tasks, trajectories)
    return figure


def plane_of(tasks: Tasks) -> tuple[int, int]:
    """Return the two state variables to draw: those that most regions constrain, if in doubt the environment's."""
    count = np.zeros(len(tasks.environment.state_names))
    for region in tasks.regions.values():
        count += (np.isfinite(region.reach) | (region.arrays()["normal"] != 0.0)).any(axis=0)
    order = sorted(range(len(count)), key=lambda d: (-count[d], d not in tasks.environment.drawn, d))
    first, second = sorted(order[:2])
    return first, second


def one_panel(tasks: Tasks, width: float = 4.2, axes: tuple[int, int] | None = None) -> tuple[Figure, Axes]:
    """Return an empty figure whose shape fits the tasks."""
    low, high = _limits(task_regions(tasks, axes or plane_of(tasks)), ())
    height = float(np.clip(width * (high - low)[1] / (high - low)[0], 0.4 * width, 1.3 * width))
    figure = Figure(figsize=(width, height + 0.9), layout="constrained")
    return figure, figure.add_subplot()


def _views_of_space(
    tasks: Tasks, trajectories: Sequence[Trajectory], space: tuple[int, int, int], between: Tasks | None
) -> Figure:
    figure = Figure(figsize=(7.2, 3.2), layout="constrained")
    grid = figure.add_gridspec(1, 4, width_ratios=[1.4, 0.1, 1.0, 1.0])  # the second is room for a label in space
    draw_space(figure.add_subplot(grid[0], projection="3d"), tasks, trajectories, space, between)
    x, y, z = space
    for column, axes, view in ((2, (x, y), "from above"), (3, (x, z), "from the side")):
        ax = figure.add_subplot(grid[column])
        draw_task(ax, tasks, trajectories, axes=axes, between=between)
        ax.set_title(view)
    return figure


def _panel_per_index(tasks: Tasks, trajectories: Sequence[Trajectory]) -> Figure:
    columns = min(3, len(tasks.indices))
    rows = -(-len(tasks.indices) // columns)
    figure = Figure(figsize=(0.6 + 2.3 * columns, 0.7 + 1.75 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax in grid[len(tasks.indices) :]:
        ax.set_axis_off()
    for ax, index in zip(grid, tasks.indices, strict=False):
        draw_task(ax, tasks.at([index]), [t for t in trajectories if t.index == index])
        ax.set_title(f"$i = {index}$")
    share_limits(list(grid[: len(tasks.indices)]))
    return figure


def share_limits(panels: Sequence[Axes]) -> None:
    """Show the same part of the plane in all panels, with coordinates at the outer ones only."""
    x, y = [ax.get_xlim() for ax in panels], [ax.get_ylim() for ax in panels]
    for ax in panels:
        ax.set(xlim=(np.min(x), np.max(x)), ylim=(np.min(y), np.max(y)))
        ax.label_outer()


def draw_task(
    ax: Axes,
    tasks: Tasks,
    trajectories: Sequence[Trajectory] = (),
    *,
    axes: tuple[int, int] = (0, 1),
    backdrop: Backdrop | None = None,
    between: Tasks | None = None,
    edges: Sequence[Edge] | None = None,
    fill: bool = False,
) -> None:
    """Draw tasks into one panel, from light to dark, with rollouts on top.

    `axes` are the two state variables shown. An arm is drawn at the start of the last task unless `backdrop`
    replaces it. `between` gives regions their true paths, as in `figure_task`. With `edges`, only regions that these
    name are drawn. To `fill` the panel, more of the plane is shown instead of making the panel smaller.
    """
    tasks = tasks.at(sorted(set(tasks.indices)))
    backdrop = backdrop or arm_backdrop(tasks)
    regions = task_regions(tasks, axes, between, edges)
    low, high = _limits(regions, [t.states[:, axes] for t in trajectories], backdrop)
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    room = np.array([26.0, 14.0]) / points_per_unit(ax)  # for names on the left and indices below
    low, high = low - room, high + 0.5 * room
    if fill:
        size, middle = np.array(ax.get_window_extent().size), (low + high) / 2
        half = size / (size / (high - low)).min() / 2
        low, high = middle - half, middle + half
    names = tasks.environment.state_names
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    ax.set(xlabel=axis_label(names[axes[0]]), ylabel=axis_label(names[axes[1]]))
    ax.locator_params(nbins=6)
    if backdrop is not None:
        backdrop.draw(ax)
    for region in regions:
        _draw_shapes(ax, region, low, high, _layer(region, regions))
        draw_motion(ax, region, regions)
    draw_trajectories(ax, trajectories, axes)
    _draw_labels(ax, regions, tasks.indices)


def add_legend(
    figure: Figure,
    tasks: Tasks,
    trajectories: Sequence[Trajectory] = (),
    extra: Sequence[tuple[str, Artist]] = (),
) -> None:
    """Explain hues, lightness and lines below the panels; `extra` entries follow those of the regions."""
    indices = sorted(set(tasks.indices))
    used = {"start", *region_roles(tasks.edges).values()}
    entries: list[tuple[str, Any]] = [
        (meaning, tuple(Patch(**look) for look in looks(role, min(len(indices), 4))))
        for role, meaning in MEANING.items()
        if role in used
    ]
    drawn = {trajectory.role for trajectory in trajectories}
    entries += extra
    if ROUTE in drawn:
        entries.append(("a way to satisfy it", Line2D([], [], color=INK, lw=0.8, ls=DASHES)))
    entries += [(meaning, Line2D([], [], color=c, lw=1.2)) for role, (c, meaning) in ROLES.items() if role in drawn]
    if any(trajectory.success is False for trajectory in trajectories):
        entries.append(("not satisfied", Line2D([], [], color=INK, lw=1.2, ls=":", marker="x", ms=5.0)))
    labels, handles = zip(*entries, strict=True)
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=2 if figure.get_figwidth() < 5 else len(handles),
        frameon=False,
        title=f"light to dark: index {indices[0]} to {indices[-1]}" if len(indices) > 1 else None,
        title_fontsize=7.5,
        handlelength=2.4,
        columnspacing=1.2,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
    )


# --- one panel -------------------------------------------------------------------------------------------


def half_plane(low: Array, high: Array, point: Array, normal: Array) -> Array:
    """Return the corners (n, 2) of the part of a rectangle on the side of a line to which `normal` points."""
    corners = np.array([low, [high[0], low[1]], high, [low[0], high[1]]], dtype=float)
    heights = (corners - point) @ normal
    kept = []
    for n in range(4):
        here, there = heights[n], heights[(n + 1) % 4]
        if here >= 0.0:
            kept.append(corners[n])
        if (here >= 0.0) != (there >= 0.0):
            kept.append(corners[n] + here / (here - there) * (corners[(n + 1) % 4] - corners[n]))
    return np.reshape(kept, (-1, 2))


def _limits(
    regions: Sequence[DrawnRegion], paths: Sequence[Array], backdrop: Backdrop | None = None
) -> tuple[Array, Array]:
    """Corners of what to show: starts, targets, paths, the backdrop, and other regions that are near."""
    shown = [side for r in regions if r.role in ("start", "reach") for side in (r.low, r.high, r.path)] + list(paths)
    low, high = _hull(shown)
    for region in regions:
        # The part of a half-space that is nearest to the rest; of one to avoid only if it is near.
        inner = region.point + _above(region, (low + high) / 2)[:, None] * -region.normal
        if region.normal.any() and region.role == "reach":
            shown.append(inner + 0.15 * float((high - low).max()) * region.normal)
    low, high = _hull(shown)
    margin = 0.05 * float((high - low).max())
    near = [r for r in regions if ((r.low < high + margin) & (r.high > low - margin)).all(axis=-1).any()]
    low, high = _hull([*shown, *(side for r in near for side in (r.low, r.high))])
    low, high = low - margin, high + margin
    return _hull([low[None], high[None], backdrop.extent]) if backdrop is not None else (low, high)


def _above(region: DrawnRegion, point: Array) -> Array:
    """Return the height (indices,) of a point over the planes of a half-space."""
    return np.asarray(((point - region.point) * region.normal).sum(axis=-1))


def _hull(points: Sequence[Array]) -> tuple[Array, Array]:
    every = np.concatenate(list(points))
    every = np.where(np.isfinite(every), every, np.nan)
    return np.nanmin(every, axis=0), np.nanmax(every, axis=0)


def _layer(region: DrawnRegion, regions: Sequence[DrawnRegion]) -> float:
    """Return the z-order of a region: that of its role, but above all others if one of these would hide it."""
    layer = LAYERS[region.role]
    for other in regions:
        within = (region.low[:, None] >= other.low) & (region.high[:, None] <= other.high)  # (indices, indices, axes)
        if other is not region and LAYERS[other.role] >= layer and within.all(axis=-1).any():
            return COVERED
    return layer


def _draw_shapes(ax: Axes, region: DrawnRegion, low: Array, high: Array, zorder: float) -> None:
    """Draw a region at every index, as far as it is in view; a start without noise is a dot or a line."""
    for row, look in region.looks():
        corner, opposite = np.clip(region.low[row], low, high), np.clip(region.high[row], low, high)
        if region.normal[row].any():
            sides = half_plane(low, high, region.point[row], region.normal[row])
            if len(sides) > 2:
                ax.add_patch(Polygon(sides, closed=True, zorder=zorder, **look))
        elif region.radius[row] > 0.0 and np.isfinite(region.high[row]).all():
            ax.add_patch(Circle(tuple(region.center[row]), region.radius[row], zorder=zorder, **look))
        elif (corner < opposite).all():
            ax.add_patch(Rectangle(tuple(corner), *(opposite - corner), zorder=zorder, **look))
        elif region.role == "start" and (region.low[row] == region.high[row]).all():
            ax.plot(*region.low[row], "o", color=look["edgecolor"], ms=3.0, zorder=zorder)
        elif region.role == "start":
            ends = zip(region.low[row], region.high[row], strict=True)
            ax.plot(*ends, color=look["edgecolor"], lw=3.0, solid_capstyle="butt", zorder=zorder)


def _draw_labels(ax: Axes, regions: Sequence[DrawnRegion], indices: Sequence[int]) -> None:
    """Name every region at its first index, and write the indices next to the first one that moves."""
    labels = Labels(ax)
    for region in regions:
        if box := _pixels(ax, region, 0):
            labels.add(label(region.name), box, color=COLORS[region.role])
    moving = [r for r in regions if r.role in ("start", "reach") and (np.diff(r.center, axis=0) != 0.0).any()]
    moving = [r for r in moving if np.isfinite(r.center).all()]
    if moving:
        last = len(indices) - 1
        for row in (0, last, *range(1, last)):
            if box := _pixels(ax, moving[0], row):
                how: dict[str, Any] = {"optional": row not in (0, last), "inside": False, "ways": BELOW}
                labels.add(f"$i = {indices[row]}$", box, fontsize=7.0, color=INK, **how)


def _pixels(ax: Axes, region: DrawnRegion, row: int) -> Callable[[], Array] | None:
    """Return a function that gives the box of a region in pixels; None if the region is out of view."""
    view_low, view_high = np.transpose([ax.get_xlim(), ax.get_ylim()])
    low, high = np.maximum(region.low[row], view_low), np.minimum(region.high[row], view_high)
    if region.normal[row].any():
        inside = half_plane(view_low, view_high, region.point[row], region.normal[row])
        if not len(inside):
            return None
        low = high = inside.mean(axis=0)
    elif (low > high).any():
        return None
    return lambda: ax.transData.transform([low, high]).ravel()
