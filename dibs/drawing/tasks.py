"""Drawings of tasks, with recorded rollouts on top.

    save(figure_task(family.tasks([0, 10, 20]), trajectories), "tasks.pdf")

Hue is what a region is for. Lightness is the index, from light (the first) to dark (the last).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, FancyArrowPatch, Patch, Polygon, Rectangle
from matplotlib.path import Path as Curve

from dibs.drawing.arm import Backdrop, arm_backdrop
from dibs.drawing.regions import (
    DASHES,
    HEAD,
    MEANING,
    ROLES,
    ROUTE,
    DrawnRegion,
    Trajectory,
    draw_trajectories,
    label,
    looks,
    task_regions,
)
from dibs.drawing.space import draw_space
from dibs.drawing.style import COLORS, INK, STYLE, shade
from dibs.envs import Array
from dibs.errors import DibsError
from dibs.families import Tasks
from dibs.gym.render import half_plane


def figure_task(tasks: Tasks, trajectories: Sequence[Trajectory] = ()) -> Figure:
    """Return a figure of the tasks: one panel for a plane, three views for space, one per index for an arm."""
    names = tasks.environment.state_names
    if len(names) < 2:
        raise DibsError(f"{tasks.name}: a drawing needs two state variables, found {names[0]} only")
    tasks = tasks.at(sorted(set(tasks.indices)))
    with mpl.rc_context(STYLE):
        if arm_backdrop(tasks) is not None:
            figure = _panel_per_index(tasks, trajectories)
            tasks = tasks.at(tasks.indices[:1])  # each panel has one index, so the legend shows a single shade
        elif names[2:3] == ("z",):
            figure = _views_of_space(tasks, trajectories)
        else:
            figure, ax = one_panel(tasks)
            draw_task(ax, tasks, trajectories, axes=tasks.environment.drawn)
        add_legend(figure, tasks, trajectories)
    return figure


def one_panel(tasks: Tasks, width: float = 4.2) -> tuple[Figure, Axes]:
    """Return an empty figure whose shape fits the tasks."""
    low, high = _limits(task_regions(tasks, tasks.environment.drawn), ())
    height = float(np.clip(width * (high - low)[1] / (high - low)[0], 0.4 * width, 1.3 * width))
    figure = Figure(figsize=(width, height + 0.9), layout="constrained")
    return figure, figure.add_subplot()


def _views_of_space(tasks: Tasks, trajectories: Sequence[Trajectory]) -> Figure:
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    grid = figure.add_gridspec(1, 3, width_ratios=[1.5, 1.0, 1.0])
    draw_space(figure.add_subplot(grid[0], projection="3d"), tasks, trajectories)
    for column, axes, view in ((1, (0, 1), "from above"), (2, (0, 2), "from the side")):
        ax = figure.add_subplot(grid[column])
        draw_task(ax, tasks, trajectories, axes=axes)
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
) -> None:
    """Draw tasks into one panel, from light to dark, with rollouts on top.

    `axes` are the two state variables shown. An arm is drawn at the start of the last task unless `backdrop`
    replaces it.
    """
    tasks = tasks.at(sorted(set(tasks.indices)))
    backdrop = backdrop or arm_backdrop(tasks)
    regions = task_regions(tasks, axes)
    low, high = _limits(regions, [t.states[:, axes] for t in trajectories], backdrop)
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), aspect="equal")
    point, several = 1.0 / _points_per_unit(ax), len(tasks.indices) > 1
    low[0] -= 24.0 * point  # room for names, and for indices below or to the right
    if several and backdrop is None:
        low[1] -= 12.0 * point
    elif several:
        high[0] += 24.0 * point
    names = tasks.environment.state_names
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    ax.set(xlabel=f"${names[axes[0]]}$", ylabel=f"${names[axes[1]]}$")
    ax.locator_params(nbins=6)
    if backdrop is not None:
        backdrop.draw(ax)
    for region in regions:
        _draw_boxes(ax, region, low, high)
        _draw_shift(ax, region, regions)
        _draw_name(ax, region, crowded=backdrop is not None)
    draw_trajectories(ax, trajectories, axes)
    if several:
        _draw_indices(ax, regions, tasks.indices)


def add_legend(
    figure: Figure,
    tasks: Tasks,
    trajectories: Sequence[Trajectory] = (),
    extra: Sequence[tuple[str, Artist]] = (),
) -> None:
    """Explain hues, lightness and lines below the panels; `extra` entries follow those of the regions."""
    indices = sorted(set(tasks.indices))
    used = {region.role for region in task_regions(tasks)}
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


def _limits(
    regions: Sequence[DrawnRegion], paths: Sequence[Array], backdrop: Backdrop | None = None
) -> tuple[Array, Array]:
    """Corners of what to show: starts, targets, paths, the backdrop, and other regions that are near."""
    shown = [side for r in regions if r.role in ("start", "reach") for side in (r.low, r.high)] + list(paths)
    low, high = _hull(shown)
    margin = 0.05 * float((high - low).max())
    near = [r for r in regions if ((r.low < high + margin) & (r.high > low - margin)).all(axis=-1).any()]
    low, high = _hull([*shown, *(side for r in near for side in (r.low, r.high))])
    low, high = low - margin, high + margin
    return _hull([low[None], high[None], backdrop.extent]) if backdrop is not None else (low, high)


def _hull(points: Sequence[Array]) -> tuple[Array, Array]:
    every = np.concatenate(list(points))
    every = np.where(np.isfinite(every), every, np.nan)
    return np.nanmin(every, axis=0), np.nanmax(every, axis=0)


def _draw_boxes(ax: Axes, region: DrawnRegion, low: Array, high: Array) -> None:
    """Draw a region at every index, as far as it is in view."""
    zorder = {"stay": 1.5, "avoid": 2.0}.get(region.role, 3.0)
    for row, look in enumerate(region.looks()):
        corner, opposite = np.clip(region.low[row], low, high), np.clip(region.high[row], low, high)
        if region.normal[row].any():
            sides = half_plane(low, high, region.point[row], region.normal[row])
            if len(sides) > 2:
                ax.add_patch(Polygon(sides, closed=True, zorder=zorder, **look))
        elif region.radius[row] > 0.0 and np.isfinite(region.high[row]).all():
            ax.add_patch(Circle(tuple(region.center[row]), region.radius[row], zorder=zorder, **look))
        elif (corner < opposite).all():
            ax.add_patch(Rectangle(tuple(corner), *(opposite - corner), zorder=zorder, **look))


def _draw_shift(ax: Axes, region: DrawnRegion, regions: Sequence[DrawnRegion]) -> None:
    """Draw arrows from index to index; next to the boxes where there is no room between them."""
    center, half = region.center, region.half
    moved = center[-1] - center[0]
    if not np.isfinite(center).all() or not moved.any():
        return
    others = [r.center[-1] - r.center[0] for r in regions if r.role in ("start", "reach")]
    if region.role == "avoid" and any(np.allclose(other, moved) for other in others):
        return  # obstacles that move along with the rest need no arrows
    look: dict[str, Any] = HEAD | {"color": shade(COLORS[region.role], 0.9), "lw": 0.8, "zorder": 4.0}
    along = int(np.argmax(np.abs(moved)))
    if _apart(ax, region, along):
        for row in range(len(center) - 1):
            step = center[row + 1] - center[row]
            unit = step / np.abs(step[along])
            start, end = center[row] + unit * half[row, along], center[row + 1] - unit * half[row + 1, along]
            ax.add_patch(FancyArrowPatch(tuple(start), tuple(end), **look))
        return
    aside = np.zeros(2)
    aside[1 - along] = (-1.0 if along == 0 else 1.0) * (half[0, 1 - along] + 5.0 / _points_per_unit(ax))
    ax.add_patch(FancyArrowPatch(path=Curve(center[[0, -1]] + aside), **look))


def _apart(ax: Axes, region: DrawnRegion, along: int) -> bool:
    """Whether an arrow fits between the boxes of neighboring indices, along the axis on which they move."""
    center, half = region.center[:, along], region.half[:, along]
    gaps = np.abs(np.diff(center)) - half[:-1] - half[1:]
    return bool((gaps > 7.0 / _points_per_unit(ax)).all())


def _draw_name(ax: Axes, region: DrawnRegion, crowded: bool) -> None:
    """Write a region's name into its first box, or next to it where it does not fit or would cover something."""
    view_low, view_high = np.transpose([ax.get_xlim(), ax.get_ylim()])
    low, high = np.maximum(region.low[0], view_low), np.minimum(region.high[0], view_high)
    if region.normal[0].any():
        inside = half_plane(view_low, view_high, region.point[0], region.normal[0])
        low = high = inside.mean(axis=0) if len(inside) else low
    elif (low >= high).any():
        return  # out of view
    text, size, point = label(region.name), 8.0, 1.0 / _points_per_unit(ax)
    letters = len(re.sub(r"[^A-Za-z0-9]|mathrm", "", text))
    fits = not crowded and bool((high - low > np.array([0.62 * size * letters, 1.1 * size]) * point).all())
    (x, y), ha, va = (low + high) / 2, "center", "center"
    if crowded and region.high[0, 1] >= region.high[-1, 1]:  # nothing above
        y, va = high[1] + 3.0 * point, "bottom"
    elif not fits and region.role == "avoid":
        x, ha = high[0] + 3.0 * point, "left"
    elif not fits:
        x, ha = low[0] - 3.0 * point, "right"
    halo = {"boxstyle": "square,pad=0.08", "fc": "white", "ec": "none", "alpha": 0.75}
    ax.text(x, y, text, ha=ha, va=va, color=COLORS[region.role], fontsize=size, zorder=7, bbox=halo)


def _draw_indices(ax: Axes, regions: Sequence[DrawnRegion], indices: Sequence[int]) -> None:
    """Write the indices next to the boxes of the start, or of the first target that moves."""
    moving = [r for r in regions if r.moves and r.role in ("start", "reach") and np.isfinite(r.center).all()]
    if not moving:
        return
    center, half = moving[0].center, moving[0].half
    along = int(np.argmax(np.abs(center[-1] - center[0])))
    unit = _points_per_unit(ax)
    distance = np.abs(np.diff(center[:, along])).min() * unit
    rows = range(len(indices)) if distance > (28.0 if along == 0 else 9.0) else (0, len(indices) - 1)
    room = 3.0 if _apart(ax, moving[0], along) else 9.0  # otherwise an arrow runs there
    for row in rows:
        (x, y), ha, va = center[row], "center", "top"
        if along == 0:
            y -= half[row, 1] + room / unit
        else:
            x, ha, va = x + half[row, 0] + (room + 3.0) / unit, "left", "center"
        ax.text(x, y, f"$i = {indices[row]}$", fontsize=7.0, color=INK, zorder=7, ha=ha, va=va)


def _points_per_unit(ax: Axes) -> float:
    """Typographic points per unit of the data, as far as known before the layout."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    extent = ax.get_window_extent()
    scale = min(extent.width / np.ptp(ax.get_xlim()), extent.height / np.ptp(ax.get_ylim()))
    return float(scale) * 72.0 / figure.dpi
