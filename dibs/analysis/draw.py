"""Drawings of tasks and of agents (paper, figures 1a, 1b, 2a and those of appendices F and G); `dibs draw`.

Regions, starts and arms come from the families and their dynamics, so a drawing shows what is trained.
Index is lightness, from light (the first) to dark (the last); hue is what a region is for. `FIGURES` holds a
function for each of the paper's illustrations; each returns a matplotlib figure.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Ellipse, FancyArrowPatch, Patch, Polygon, Rectangle
from matplotlib.path import Path as Curve
from matplotlib.transforms import Affine2D

from dibs.envs import Array, Reacher
from dibs.errors import DibsError
from dibs.families import Family, get_benchmark, get_family, load_family
from dibs.families.model import start_box
from dibs.families.oracles import compose, oracle
from dibs.files import atomic
from dibs.seeding import stream
from dibs.spectrl import cnf, conjuncts, graph, parse
from dibs.spectrl.syntax import Spec

COLORS = {"start": "#E08A00", "reach": "#00875F", "avoid": "#5A5A5A"}
MEANING = {"start": "initial region", "reach": "region to reach", "avoid": "region to avoid"}
ROLES = {"train": ("#1450C8", "seen in training"), "unseen": ("#D0202A", "unseen")}
INK = "#222222"
BLOCK, MOVED, STEEL = "#D9C7A3", "#B5651D", "#3B5275"
ACTION = "#C2185B"
STYLE: dict[Any, Any] = {
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "legend.fontsize": 7.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # text stays text
    "savefig.dpi": 250,
}


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One rollout to draw."""

    index: int
    role: str  # train or unseen
    states: Array  # (time, dim)


@dataclass(frozen=True, eq=False)
class Region:
    """A region at the drawn indices."""

    name: str
    role: str  # start, reach or avoid
    low: Array  # (indices, dim); infinite where free
    high: Array  # (indices, dim)

    @property
    def center(self) -> Array:  # NaN where free
        free = np.isinf(self.low)
        low, high = np.where(free, np.nan, self.low), np.where(free, np.nan, self.high)
        return (low + high) / 2

    @property
    def moves(self) -> bool:
        return bool((self.low != self.low[0]).any() or (self.high != self.high[0]).any())


# --- dibs draw -------------------------------------------------------------------------------------------


def main(args: argparse.Namespace) -> int:
    """Draw the tasks that `dibs draw` asks for; return the exit status."""
    check_output(args.output)
    family, text = get_benchmark(args.name)
    trajectories = read_trajectories(args.trajectories, family, args.index) if args.trajectories else []
    save(figure_task(family, parse(text), args.index, trajectories), args.output)
    print(args.output)
    return 0


def check_output(output: str | Path) -> None:
    """Refuse a name that is not that of a PNG or PDF file."""
    if Path(output).suffix.lower() not in (".png", ".pdf"):
        raise DibsError(f"{output}: expected a name that ends in .png or .pdf")


def save(figure: Figure, output: str | Path) -> None:
    """Write a figure; the same figure gives the same bytes."""
    check_output(output)
    suffix = Path(output).suffix.lower()[1:]
    nobody = {"CreationDate": None, "Producer": None} if suffix == "pdf" else {"Software": None}
    with mpl.rc_context(STYLE), atomic(output) as temporary:
        figure.savefig(temporary, format=suffix, metadata=nobody, bbox_inches="tight", pad_inches=0.04)


def read_trajectories(path: str | Path, family: Family, indices: Sequence[int]) -> list[Trajectory]:
    """Read the rollouts at `indices` from Parquet: index, role, rollout, time, and one column per variable."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not Path(path).is_file():
        raise DibsError(f"{path}: no such file of trajectories")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DibsError(f"{path}: not a readable Parquet file ({error})") from None
    names = family.dynamics.state_names
    missing = [c for c in ("index", "role", "rollout", "time", *names) if c not in table.column_names]
    if missing:
        raise DibsError(f"{path}: no column {', '.join(missing)}; found {', '.join(table.column_names)}")
    frame = table.to_pandas()
    unknown_roles = sorted(set(frame["role"]) - set(ROLES))
    if unknown_roles:
        raise DibsError(f"{path}: column role: expected {' or '.join(ROLES)}, found {unknown_roles[0]!r}")
    chosen = frame[frame["index"].isin(list(indices))].sort_values(["index", "rollout", "time"])
    if chosen.empty:
        raise DibsError(
            f"{path}: no trajectory at index {', '.join(map(str, indices))}; "
            f"it has {', '.join(map(str, sorted(set(frame['index']))))}"
        )
    return [
        Trajectory(int(index), str(role), rows[list(names)].to_numpy(float))
        for (index, role, _), rows in chosen.groupby(["index", "role", "rollout"], sort=True)
    ]


def figure_task(family: Family, spec: Spec, indices: Sequence[int], trajectories: Sequence[Trajectory] = ()) -> Figure:
    """Return a figure of the tasks: one panel for a plane, three views for space, one per index for an arm."""
    chosen = sorted(set(indices))
    with mpl.rc_context(STYLE):
        if isinstance(family.dynamics, Reacher):
            return _panels_of_an_arm(family, spec, chosen, trajectories)
        if len(family.dynamics.state_names) > 2:
            return _views_of_space(family, spec, chosen, trajectories)
        figure, ax = _one_panel(family, spec, chosen)
        draw_task(ax, family, spec, chosen, trajectories)
        add_legend(figure, family, spec, chosen, trajectories)
        return figure


def _one_panel(family: Family, spec: Spec, indices: Sequence[int], width: float = 4.2) -> tuple[Figure, Axes]:
    """An empty figure whose shape fits the tasks'."""
    (left, right), (bottom, top) = _limits(task_regions(family, spec, indices), (), (0, 1))
    height = float(np.clip(width * (top - bottom) / (right - left), 0.4 * width, 1.3 * width))
    figure = Figure(figsize=(width, height + 0.9), layout="constrained")
    return figure, figure.add_subplot()


def _views_of_space(family: Family, spec: Spec, indices: Sequence[int], trajectories: Sequence[Trajectory]) -> Figure:
    figure = Figure(figsize=(7.2, 2.9), layout="constrained")
    grid = figure.add_gridspec(1, 3, width_ratios=[1.5, 1.0, 1.0])
    draw_task(figure.add_subplot(grid[0], projection="3d"), family, spec, indices, trajectories)
    for place, axes, view in ((1, (0, 1), "from above"), (2, (0, 2), "from the side")):
        ax = figure.add_subplot(grid[place])
        draw_task(ax, family, spec, indices, trajectories, axes=axes)
        ax.set_title(view)
    add_legend(figure, family, spec, indices, trajectories)
    return figure


def _panels_of_an_arm(family: Family, spec: Spec, indices: Sequence[int], trajectories: Sequence[Trajectory]) -> Figure:
    columns = min(3, len(indices))
    rows = -(-len(indices) // columns)
    figure = Figure(figsize=(0.6 + 2.3 * columns, 0.7 + 1.75 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for ax in grid.flat[len(indices) :]:
        ax.set_axis_off()
    panels = grid.flat[: len(indices)]
    for ax, index in zip(panels, indices, strict=True):
        draw_task(ax, family, spec, [index], [t for t in trajectories if t.index == index])
        ax.set_title(f"$i = {index}$")
    _same_limits(list(panels))
    add_legend(figure, family, spec, indices[:1], trajectories)
    return figure


def _same_limits(panels: Sequence[Axes]) -> None:
    """Let all panels show what any of them does, and only the outer ones say at which coordinates."""
    x, y = ([ax.get_xlim() for ax in panels], [ax.get_ylim() for ax in panels])
    for ax in panels:
        ax.set(xlim=(np.min(x), np.max(x)), ylim=(np.min(y), np.max(y)))
        ax.label_outer()


# --- tasks -----------------------------------------------------------------------------------------------


def task_regions(family: Family, spec: Spec, indices: Sequence[int]) -> list[Region]:
    """Return the start and the regions that the specification names, those to avoid first."""
    for index in indices:
        family.check_index(index, beyond=True)
    edges = graph(spec).edges
    literals = [literal for edge in edges for literal in conjuncts(edge.target)]
    literals += [literal for edge in edges for clause in cnf(edge.safe) for literal in clause]
    roles = {name: "reach" if inside else "avoid" for name, inside in reversed(literals)}
    found = []
    for name, role in sorted(roles.items(), key=lambda item: (item[1], list(family.regions).index(item[0]))):
        box = family.regions[name].box(np.array(indices))
        found.append(Region(name, role, box.center - box.half_width, box.center + box.half_width))
    starts = [start_box(family, index) for index in indices]
    low, high = (np.stack(sides) for sides in zip(*starts, strict=True))
    obstacles = sum(region.role == "avoid" for region in found)
    return [*found[:obstacles], Region("start", "start", low, high), *found[obstacles:]]


def draw_task(
    ax: Axes,
    family: Family,
    spec: Spec,
    indices: Sequence[int],
    trajectories: Sequence[Trajectory] = (),
    *,
    axes: tuple[int, int] = (0, 1),
    routes: Iterable[Array] = (),
    scene: int | None = None,
) -> None:
    """Draw the tasks at `indices`, from light to dark, with recorded rollouts on top.

    `axes` are the two state variables that a plane shows; a three-dimensional `ax` shows the first three.
    `routes` are paths (time, dim) drawn as thin dashes: ways to satisfy the specification. An arm is drawn
    with its surroundings as they are at index `scene`, the last one unless told.
    """
    chosen = sorted(set(indices))
    regions = task_regions(family, spec, chosen)
    routes = list(routes)
    if hasattr(ax, "get_zlim"):
        _draw_space(ax, family, regions, chosen, trajectories)
        return
    arm = family.dynamics if isinstance(family.dynamics, Reacher) else None
    seen = [t.states for t in trajectories] + routes
    (left, right), (bottom, top) = _limits(regions, seen, axes, arm)
    ax.set(xlim=(left, right), ylim=(bottom, top), aspect="equal")
    point = 1.0 / _points_per_unit(ax)
    several = len(chosen) > 1
    left, right = left - 24.0 * point, right + (24.0 * point if several and arm is not None else 0.0)
    bottom -= 12.0 * point if several and arm is None else 0.0
    ax.set(xlim=(left, right), ylim=(bottom, top))
    limits = (left, right), (bottom, top)
    names = family.dynamics.state_names
    ax.set(xlabel=f"${names[axes[0]]}$", ylabel=f"${names[axes[1]]}$")
    ax.locator_params(nbins=6)
    if arm is not None:
        _draw_surroundings(ax, family, arm, spec, chosen[-1] if scene is None else scene)
    for region in regions:
        _draw_boxes(ax, region, axes, limits)
    for region in regions:
        _draw_shift(ax, region, axes, regions)
    for route in routes:
        _draw_route(ax, route[:, axes])
    draw_trajectories(ax, trajectories, axes)
    for region in regions:
        _draw_name(ax, region, axes, boxed=arm is not None)
    if len(chosen) > 1:
        _draw_indices(ax, regions, chosen, axes)


def draw_trajectories(ax: Axes, trajectories: Sequence[Trajectory], axes: tuple[int, ...] = (0, 1)) -> None:
    """Draw rollouts, blue at seen and red at unseen indices, each ending in a dot."""
    alpha = float(np.clip(12.0 / max(len(trajectories), 1), 0.3, 0.9))
    for trajectory in trajectories:
        color = ROLES[trajectory.role][0]
        columns = [trajectory.states[:, axis] for axis in axes]
        ax.plot(*columns, color=color, lw=0.8, alpha=alpha, zorder=6)
        ax.plot(*[c[-1:] for c in columns], "o", color=color, ms=2.0, mew=0.0, zorder=6)


def add_legend(
    figure: Figure,
    family: Family,
    spec: Spec,
    indices: Sequence[int],
    trajectories: Sequence[Trajectory] = (),
    routes: bool = False,
) -> None:
    """Explain hues, lightness and lines below the panels."""
    entries: list[tuple[str, Any]] = []
    roles = [region.role for region in task_regions(family, spec, indices[:1])]
    for role in ("start", "reach", "avoid"):
        if role in roles:
            steps = _steps(min(len(set(indices)), 4))
            entries.append((MEANING[role], tuple(Patch(**_look(role, t)) for t in steps)))
    arm = isinstance(family.dynamics, Reacher)
    towers, boxes = _places(family, spec) if arm else ([], [])
    if towers:
        entries.append(("block to move", Patch(fc=MOVED, ec="#5C3310")))
    if towers[1:]:
        entries.append(("its new place", Patch(fc="none", ec=MOVED, ls="--")))
    if boxes:
        entries.append(("drop box", Line2D([], [], color="#5C3310", lw=1.8)))
    if routes:
        way = "way of the end effector" if arm else "a way to satisfy it"
        entries.append((way, Line2D([], [], color=INK, lw=0.8, ls=(0, (4, 2)))))
    for role, (color, meaning) in ROLES.items():
        if any(t.role == role for t in trajectories):
            entries.append((meaning, Line2D([], [], color=color, lw=1.2)))
    labels, handles = zip(*entries, strict=True)
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=2 if figure.get_figwidth() < 5 else len(handles),
        frameon=False,
        title=f"light to dark: index {min(indices)} to {max(indices)}" if len(set(indices)) > 1 else None,
        title_fontsize=7.5,
        handlelength=2.4,
        columnspacing=1.2,
        handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
    )


def shade(color: str, darkness: float) -> tuple[float, float, float]:
    """Mix a colour with white: 0 is white, 1 the colour."""
    red, green, blue = (1.0 - darkness * (1.0 - c) for c in to_rgb(color))
    return red, green, blue


def _look(role: str, t: float) -> dict[str, Any]:
    """How a region looks at the share t of the way from the first to the last index."""
    color = COLORS[role]
    look = {
        "facecolor": shade(color, 0.12 + 0.5 * t),
        "edgecolor": shade(color, 0.55 + 0.45 * t),
        "linewidth": 0.8,
    }
    return look | {"hatch": "/////", "facecolor": shade(color, 0.1 + 0.25 * t)} if role == "avoid" else look


def _steps(count: int) -> Array:
    """Shares of the way from the first to the last index; a single index is in the middle."""
    return np.linspace(0.0, 1.0, count) if count > 1 else np.array([0.4])


def _limits(
    regions: Sequence[Region], paths: Sequence[Array], axes: tuple[int, int], arm: Reacher | None = None
) -> tuple[tuple[float, float], tuple[float, float]]:
    """What to show, without names: starts, targets, paths, and obstacles that are not out of the way."""
    corners = [v[:, axes] for r in regions if r.role != "avoid" for v in (r.low, r.high)]
    low, high = _hull(corners + [p[:, axes] for p in paths])
    margin = 0.05 * float((high - low).max())
    near = [
        r
        for r in regions
        if r.role == "avoid"
        and ((r.low[:, axes] < high + margin) & (r.high[:, axes] > low - margin)).all(axis=-1).any()
    ]
    low, high = _hull([low[None], high[None]] + [v[:, axes] for r in near for v in (r.low, r.high)])
    low, high = low - margin, high + margin
    if arm is not None:  # all of it, and the floor
        low, high = np.minimum(low, [-1.2, 0.0]), np.maximum(high, [1.2, 1.55 * arm.link])
        low[1] = -0.7
    return (float(low[0]), float(high[0])), (float(low[1]), float(high[1]))


def _hull(points: Sequence[Array]) -> tuple[Array, Array]:
    every = np.concatenate(list(points))
    every = np.where(np.isfinite(every), every, np.nan)
    return np.nanmin(every, axis=0), np.nanmax(every, axis=0)


def _draw_boxes(ax: Axes, region: Region, axes: tuple[int, int], limits: Any) -> None:
    """Draw a region at every index, once where it does not move."""
    x, y = axes
    count = len(region.low) if region.moves else 1
    steps = _steps(len(region.low)) if region.moves else np.array([0.4])
    (left, right), (bottom, top) = limits
    for row, t in zip(range(count), steps, strict=False):
        x0, x1 = np.clip([region.low[row, x], region.high[row, x]], left, right)
        y0, y1 = np.clip([region.low[row, y], region.high[row, y]], bottom, top)
        if x0 >= x1 or y0 >= y1:
            continue  # out of the picture
        zorder = 2.0 if region.role == "avoid" else 3.0
        ax.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, zorder=zorder, **_look(region.role, t)))


def _draw_shift(ax: Axes, region: Region, axes: tuple[int, int], regions: Sequence[Region]) -> None:
    """Draw arrows from index to index; beside the boxes where there is no room between them."""
    center = region.center[:, axes]
    if not region.moves or not np.isfinite(center).all():
        return
    moved = center[-1] - center[0]
    if region.role == "avoid" and any(
        r.role != "avoid" and np.allclose(r.center[-1] - r.center[0], region.center[-1] - region.center[0])
        for r in regions
    ):
        return  # obstacles that move along with the rest need no arrow of their own
    if not moved.any():
        return
    half = (region.high - region.low)[:, axes] / 2
    look: dict[str, Any] = {
        "arrowstyle": "-|>,head_length=2.6,head_width=1.3",
        "color": shade(COLORS[region.role], 0.9),
        "lw": 0.8,
        "shrinkA": 0.0,
        "shrinkB": 0.0,
        "zorder": 4.0,
    }
    along = int(np.argmax(np.abs(moved)))
    if (_gaps(center, half) > _room(ax)).all():
        for row in range(len(center) - 1):
            step = center[row + 1] - center[row]
            unit = step / np.abs(step[along])
            start, end = center[row] + unit * half[row, along], center[row + 1] - unit * half[row + 1, along]
            ax.add_patch(FancyArrowPatch(tuple(start), tuple(end), **look))
        return
    aside = np.zeros(2)
    aside[1 - along] = (-1.0 if along == 0 else 1.0) * (half[0, 1 - along] + 5.0 / _points_per_unit(ax))
    ax.add_patch(FancyArrowPatch(path=Curve(center[[0, -1]] + aside), **look))


def _gaps(center: Array, half: Array) -> Array:
    """Free space between the boxes of neighbouring indices, along the way they move."""
    along = int(np.argmax(np.abs(center[-1] - center[0])))
    return np.abs(np.diff(center[:, along])) - half[:-1, along] - half[1:, along]


def _room(ax: Axes) -> float:
    """How much space an arrow needs."""
    return 7.0 / _points_per_unit(ax)


def _draw_name(ax: Axes, region: Region, axes: tuple[int, int], boxed: bool) -> None:
    """Write a region's name into its first box, or beside it where it is too small or has a block in it."""
    low, high = region.low[0, axes], region.high[0, axes]
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    if (low >= [right, top]).any() or (high <= [left, bottom]).any():
        return  # out of the picture
    low, high = np.maximum(low, [left, bottom]), np.minimum(high, [right, top])
    text = label(region.name)
    letters = len(re.sub(r"[^A-Za-z0-9]|mathrm", "", text))
    size = 8.0
    inside = (high - low)[0] * _points_per_unit(ax) > 0.62 * size * letters
    inside &= (high - low)[1] * _points_per_unit(ax) > 1.1 * size and not boxed
    gap = 3.0 / _points_per_unit(ax)
    color = shade(COLORS[region.role], 1.0)
    x, y = (low + high) / 2
    ha, va = "center", "center"
    if boxed and region.high[0, 1] >= region.high[-1, 1]:  # nothing above
        y, va = high[1] + gap, "bottom"
    elif not inside and region.role == "avoid":
        x, ha = high[0] + gap, "left"
    elif not inside:
        x, ha = low[0] - gap, "right"
    halo = {"boxstyle": "square,pad=0.08", "fc": "white", "ec": "none", "alpha": 0.75}
    ax.text(x, y, text, ha=ha, va=va, color=color, fontsize=size, zorder=7, bbox=halo)


def _draw_indices(ax: Axes, regions: Sequence[Region], indices: Sequence[int], axes: tuple[int, int]) -> None:
    """Write the indices beside the boxes of the start, or of the first region that moves."""
    moving = [r for r in regions if r.moves and r.role != "avoid"]
    moving.sort(key=lambda r: r.role != "start")
    if not moving:
        return
    region = moving[0]
    center, half = region.center[:, axes], (region.high - region.low)[:, axes] / 2
    along = int(np.argmax(np.abs(center[-1] - center[0])))
    unit = _points_per_unit(ax)
    apart = np.abs(np.diff(center[:, along])).min() * unit
    shown = range(len(indices)) if apart > (28.0 if along == 0 else 9.0) else (0, len(indices) - 1)
    below = 3.0 if (_gaps(center, half) > _room(ax)).all() else 9.0  # an arrow may run in between
    for row in shown:
        if along == 0:
            place = (center[row, 0], center[row, 1] - half[row, 1] - below / unit)
            how: dict[str, Any] = {"ha": "center", "va": "top"}
        else:
            place = (center[row, 0] + half[row, 0] + (below + 3.0) / unit, center[row, 1])
            how = {"ha": "left", "va": "center"}
        ax.text(*place, f"$i = {indices[row]}$", fontsize=7.0, color=INK, zorder=7, **how)


def _draw_route(ax: Axes, points: Array) -> None:
    ax.plot(*points.T, color=INK, lw=0.7, ls=(0, (4, 2)), alpha=0.8, zorder=5)
    head: dict[str, Any] = {"arrowstyle": "-|>,head_length=2.6,head_width=1.3", "color": INK, "lw": 0.0}
    ax.add_patch(FancyArrowPatch(tuple(points[-2]), tuple(points[-1]), shrinkA=0, shrinkB=0, zorder=5, **head))


def _points_per_unit(ax: Axes) -> float:
    """Typographic points to a unit of the data, as far as can be told before the layout."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    extent = ax.get_window_extent()
    scale = min(extent.width / np.ptp(ax.get_xlim()), extent.height / np.ptp(ax.get_ylim()))
    return float(scale) * 72.0 / figure.dpi


def label(name: str) -> str:
    """A region's name as mathematics: g1 is g with a subscript."""
    match = re.fullmatch(r"([A-Za-z]+)_?(\d+)", name)
    if match is None:
        return name.replace("_", " ")
    letters, number = match.groups()
    return f"${letters}_{{{number}}}$" if len(letters) == 1 else rf"$\mathrm{{{letters}}}_{{{number}}}$"


# --- tasks in space --------------------------------------------------------------------------------------


def _draw_space(
    ax: Any,
    family: Family,
    regions: Sequence[Region],
    indices: Sequence[int],
    trajectories: Sequence[Trajectory],
) -> None:
    """Draw boxes in three dimensions."""
    from mpl_toolkits.mplot3d.art3d import Poly3DCollection  # type: ignore[import-untyped]

    finite = [np.where(np.isfinite(v), v, np.nan)[:, :3] for region in regions for v in (region.low, region.high)]
    corners = np.concatenate(finite + [t.states[:, :3] for t in trajectories])
    lowest, highest = np.nanmin(corners, axis=0), np.nanmax(corners, axis=0)
    names = family.dynamics.state_names
    ax.set(xlim=(lowest[0], highest[0]), ylim=(lowest[1], highest[1]), zlim=(lowest[2], highest[2]))
    ax.set_xlabel(f"${names[0]}$", labelpad=-4)
    ax.set_ylabel(f"${names[1]}$", labelpad=-4)
    ax.set_zlabel(f"${names[2]}$", labelpad=-8)
    ax.set_aspect("equal")
    ax.locator_params(nbins=5)
    ax.tick_params(pad=-3)
    ax.view_init(elev=20, azim=-62)
    for region in regions:
        count = len(region.low) if region.moves else 1
        for row, t in zip(range(count), _steps(len(region.low)), strict=False):
            low, high = np.maximum(region.low[row, :3], lowest), np.minimum(region.high[row, :3], highest)
            look = _look(region.role, t)
            faces = Poly3DCollection(_faces(low, high), alpha=0.55, lw=0.4)
            faces.set_facecolor(look["facecolor"])
            faces.set_edgecolor(look["edgecolor"])
            ax.add_collection3d(faces)
        first, last = region.center[0, :3], region.center[-1, :3]
        if region.moves and np.isfinite(last).all() and region.role != "avoid":
            hue = shade(COLORS[region.role], 0.9)
            ax.quiver(*first, *(last - first), color=hue, lw=0.7, arrow_length_ratio=0.06)
        if np.isfinite(first).all():
            x, y, z = first[0], first[1], region.high[0, 2] + 0.03 * (highest - lowest).max()
            look = {"color": COLORS[region.role], "ha": "center", "va": "bottom", "zorder": 9}
            ax.text(x, y, z, label(region.name), **look)
    draw_trajectories(ax, trajectories, (0, 1, 2))


def _faces(low: Array, high: Array) -> list[Array]:
    """The six faces of a box, as four corners each."""
    faces = []
    for axis in range(3):
        u, v = [a for a in range(3) if a != axis]
        for side in (low, high):
            face = np.tile(side, (4, 1))
            face[:, u] = [low[u], high[u], high[u], low[u]]
            face[:, v] = [low[v], low[v], high[v], high[v]]
            faces.append(face)
    return faces


# --- the arm and its towers ------------------------------------------------------------------------------


def _draw_surroundings(ax: Axes, family: Family, arm: Reacher, spec: Spec, index: int) -> None:
    """Draw the floor, the arm above the first target, and blocks or a box where the regions are.

    A region that moves straight up or down by the index is a place in a tower of blocks; one that stands
    still after it is a box to drop a block into.
    """
    _draw_floor(ax)
    boxes = family.boxes(index)
    towers, drops = _places(family, spec)
    for order, name in enumerate(towers):
        _draw_tower(ax, boxes[name].center, _block_height(family, name), taken=order == 0)
    for name in drops:
        _draw_drop_box(ax, boxes[name].center, boxes[name].half_width[0])
    draw_arm(ax, arm, boxes[_targets(spec)[0]].center)


def _draw_floor(ax: Axes) -> None:
    ax.axhspan(-9.0, 0.0, fc="#EDEDED", ec="#B8B8B8", hatch="////", lw=0, zorder=0.5)
    ax.axhline(0.0, color=INK, lw=0.8, zorder=1)


def _targets(spec: Spec) -> list[str]:
    """The regions to reach along the first path."""
    path = graph(spec).paths()[0]
    return [name for edge in path for name, inside in conjuncts(edge.target) if inside]


def _places(family: Family, spec: Spec) -> tuple[list[str], list[str]]:
    """Which targets are places in towers, and which are boxes to drop blocks into."""
    targets = _targets(spec)
    towers = [name for name in targets if _block_height(family, name)]
    if towers[:1] != targets[:1]:
        return [], []  # nothing to pick up first: just regions
    return towers, [name for name in targets if name not in towers]


def _block_height(family: Family, name: str) -> float:
    """By how much a region rises or sinks per index; 0 if it does anything else."""
    region = family.regions[name]
    straight = len(region.shift) == 2 and region.shift[0] == 0.0 and not region.drift
    return abs(region.shift[1]) if straight else 0.0


def _draw_tower(ax: Axes, top: Array, height: float, taken: bool) -> None:
    """Draw a tower up to the slot around `top`: the block that is moved, or the dashed place where it goes."""
    width = 0.95 * height
    below = round((top[1] - height / 2) / height)
    for level in range(below + 1):
        y = top[1] - height / 2 - (below - level) * height
        moved = level == below
        look: dict[str, Any] = {"fc": BLOCK, "ec": "#7A6A48", "lw": 0.6}
        if moved:
            look = {"fc": MOVED, "ec": "#5C3310", "lw": 0.8} if taken else {"fc": "none", "ec": MOVED, "ls": "--"}
        block = Rectangle((top[0] - width / 2, y), width, height, zorder=3.5 if moved else 2.5, **look)
        ax.add_patch(block)


def _draw_drop_box(ax: Axes, center: Array, half: float) -> None:
    """Draw an open box on the floor."""
    left, right, rim = center[0] - 1.25 * half, center[0] + 1.25 * half, center[1] + 0.8 * half
    ax.plot([left, left, right, right], [rim, 0.0, 0.0, rim], color="#5C3310", lw=1.8, zorder=3.6)


def draw_arm(ax: Axes, arm: Reacher, hand: Array, *, own_elbow: bool = False) -> Array:
    """Draw the two links from the shoulder to `hand`; return where the elbow is.

    Of the two postures that put the hand there, the one whose elbow is higher: the state is the hand's
    position alone, and links below the floor would puzzle the reader. `own_elbow` takes the dynamics' one.
    """
    theta1, theta2 = (float(t) for t in arm.joints(np.asarray(hand, dtype=float)))
    elbows = arm.link * np.array([[np.cos(t), np.sin(t)] for t in (theta1, theta1 + theta2)])
    elbow = elbows[0 if own_elbow else int(np.argmax(elbows[:, 1]))]
    x, y = zip((0.0, 0.0), elbow, hand, strict=True)
    ax.plot(x, y, color="#8FA3BF", lw=5.0, solid_capstyle="round", alpha=0.75, zorder=2.2)
    ax.plot(x, y, color=STEEL, lw=0.8, zorder=2.3)
    ax.add_patch(Polygon([[-0.9, 0.0], [0.9, 0.0], [0.45, 0.55], [-0.45, 0.55]], fc=STEEL, ec="none", zorder=2.1))
    for joint in ((0.0, 0.0), elbow):
        ax.plot(*joint, "o", color="white", mec=STEEL, mew=1.0, ms=5.0, zorder=2.4)
    ax.plot(*hand, "o", color=STEEL, ms=3.5, zorder=4.5)
    return np.asarray(elbow)


# --- the paper's illustrations ---------------------------------------------------------------------------


def ways(family: Family, spec: Spec, index: int) -> list[Array]:
    """One way (time, dim) for each path of the specification's graph, as the oracle goes it without noise."""
    data = family.model_dump()
    data["environment"]["noise"] = data["start"]["noise"] = 0.0
    still = load_family(data)
    found = []
    for path in graph(spec).paths():
        names = [edge.name for edge in path]
        controls = [oracle(still, index, name) for name in names]
        found.append(compose(still, index, names, controls, 1, stream("way")).states[0])
    return found


def _specification(benchmark: str, indices: Sequence[int], shown: int, width: float = 3.5) -> Figure:
    """A benchmark's regions at some indices, with a way through them at one."""
    family, text = get_benchmark(benchmark)
    spec = parse(text)
    with mpl.rc_context(STYLE):
        figure, ax = _one_panel(family, spec, indices, width)
        draw_task(ax, family, spec, indices, routes=ways(family, spec, shown))
        add_legend(figure, family, spec, indices, routes=True)
    return figure


def reachability() -> Figure:
    """Appendix G, n-Reachability: goals in order; start and goals shift right."""
    return _specification("car2d-reach-k5", [0, 20, 40], 0)


def reachability_obstacles() -> Figure:
    """Appendix G, n-Reachability+Obs: the same past obstacles that shift along."""
    return _specification("car2d-reach-obs-k5", [0, 20, 40], 0)


def choice_one_level() -> Figure:
    """Appendix G, Choice(1), and figure 2a: either waypoint, then the goal; start and goal shift."""
    return _specification("car2d-choice-l1", [0, 10, 20], 0)


def choice_two_levels() -> Figure:
    """Appendix G, Choice(2): the same again, one level higher."""
    return _specification("car2d-choice-l2", [0, 10, 20], 0)


def switch() -> Figure:
    """The last ablation: as the start moves past the middle, the short way round changes sides."""
    family, text = get_benchmark("car2d-switch")
    spec = parse(text)
    indices = [0, 5, 10, 15, 20]
    with mpl.rc_context(STYLE):
        figure, ax = _one_panel(family, spec, indices)
        routes = [way for index in (0, 5, 15, 20) for way in ways(family, spec, index)]
        draw_task(ax, family, spec, indices, routes=routes)
        add_legend(figure, family, spec, indices, routes=True)
    return figure


def tower_family() -> Figure:
    """Figure 1b: the inductive family of de-stacking a tower, as three of its tasks."""
    family = get_family("reacher-stack-opposite-8")
    last = family.last_index
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.0, 2.6), layout="constrained")
        panels = figure.subplots(1, 3)
        for ax, index in zip(panels, (0, last // 2, last), strict=True):
            draw_task(ax, family, family.spec, [index], routes=ways(family, family.spec, index))
            ax.set_title(f"$i = {index}$: from height {index} to height {last - index}")
        _same_limits(panels)
        add_legend(figure, family, family.spec, [0], routes=True)
    return figure


def tower(kind: str, side: str) -> Figure:
    """Appendix G, one of the four Reacher variants: the regions at three indices, the scene at one of them."""
    family = get_family(f"reacher-{kind}-{side}-8")
    shown = 4
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.5, 3.0), layout="constrained")
        ax = figure.add_subplot()
        routes = ways(family, family.spec, shown)
        indices = [0, shown, family.last_index]
        draw_task(ax, family, family.spec, indices, routes=routes, scene=shown)
        ax.set_title(f"Pick and {kind}, {side} side")
        add_legend(figure, family, family.spec, indices, routes=True)
    return figure


# --- agents ----------------------------------------------------------------------------------------------


def environments() -> Figure:
    """Appendix F: the agents of Car2D, SimpleDrone and DroneAttitude, their states and actions."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.2, 2.9), layout="constrained")
        panels = figure.subplots(1, 3)
        agents = {"Car2D": _car, "SimpleDrone": _simple_drone, "DroneAttitude": _drone_attitude}
        for ax, (name, draw) in zip(panels, agents.items(), strict=True):
            ax.set(aspect="equal", xlim=(-0.5, 5.4), ylim=(-1.3, 4.2))
            ax.set_axis_off()
            ax.set_title(name, fontweight="bold")
            draw(ax)
        figure.legend(*_agent_legend(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def reacher_environment() -> Figure:
    """Figure 1a: the two-link arm, its state (the end effector's position) and its action (the joint angles)."""
    arm, hand = Reacher(), np.array([2.0, 7.0])
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(3.3, 3.3), layout="constrained")
        ax = figure.add_subplot()
        ax.set(aspect="equal", xlim=(-2.2, 7.6), ylim=(-0.9, 8.4))
        ax.set_axis_off()
        _draw_floor(ax)
        elbow = draw_arm(ax, arm, hand, own_elbow=True)
        theta1, theta2 = (np.degrees(float(t)) for t in arm.joints(hand))
        beyond = elbow * 1.55
        ax.plot(*zip(elbow, beyond, strict=True), color=STEEL, lw=0.8, ls=(0, (4, 2)), zorder=2)
        _draw_angle(ax, (0.0, 0.0), 2.2, 0.0, theta1, r"$\theta_1$", ACTION)
        _draw_angle(ax, elbow, 1.5, theta1, theta1 + theta2, r"$\theta_2$", ACTION)
        ax.plot([hand[0], hand[0]], [0.0, hand[1]], color=COLORS["reach"], lw=0.8, ls=":", zorder=2)
        ax.plot([0.0, hand[0]], [hand[1]] * 2, color=COLORS["reach"], lw=0.8, ls=":", zorder=2)
        ax.plot([0.0, 0.0], [0.0, hand[1]], color="#BBBBBB", lw=0.6, zorder=1)
        ax.text(hand[0] + 0.25, hand[1] + 0.25, "end effector $(x, y)$", color=COLORS["reach"])
        ax.text(3.0, 2.35, "link 1", rotation=theta1, ha="center", va="center", color=STEEL)
        ax.text(3.7, 5.0, "link 2", rotation=theta1 + theta2 - 180, ha="center", va="center", color=STEEL)
        ax.text(-1.1, 0.25, "shoulder", ha="right", color=STEEL)
        ax.text(elbow[0] + 0.35, elbow[1] - 0.45, "elbow", color=STEEL)
        ax.set_title("Reacher", fontweight="bold")
        lines = r"$s = (x, y)$   $a = (\theta_1, \theta_2)$", "joints turn towards $a$ at a limited rate"
        _caption(ax, *lines)
        figure.legend(*_agent_legend(), loc="outside lower center", ncols=2, frameon=False)
    return figure


def _agent_legend() -> tuple[list[Line2D], list[str]]:
    lines = [Line2D([], [], color=color, lw=2.0) for color in (COLORS["reach"], ACTION)]
    return lines, ["state", "action"]


def _caption(ax: Axes, *lines: str) -> None:
    """Write state, action and one step of the dynamics below the drawing."""
    text = "\n".join(lines)
    ax.text(0.5, -0.03, text, transform=ax.transAxes, ha="center", va="top", color=INK, linespacing=1.5)


def _arrow(ax: Axes, start: Any, end: Any, color: str, text: str = "", at: Any = (0.0, 0.0), lw: float = 1.2) -> None:
    """Draw an arrow in the plane, its name beyond the tip."""
    arrow = FancyArrowPatch(
        tuple(start),
        tuple(end),
        arrowstyle="-|>,head_length=4,head_width=2",
        color=color,
        lw=lw,
        shrinkA=0.0,
        shrinkB=0.0,
        zorder=6,
    )
    ax.add_patch(arrow)
    if text:
        ax.text(end[0] + at[0], end[1] + at[1], text, color=color, ha="center", va="center", zorder=7)


def _write(ax: Axes, place: Array, text: str, color: str) -> None:
    ax.text(float(place[0]), float(place[1]), text, color=color, ha="center", va="center", zorder=7)


def _draw_angle(ax: Axes, center: Any, radius: float, first: float, last: float, text: str, color: str) -> None:
    """Draw an arc with an arrow from one direction to another, in degrees."""
    turns = np.radians(np.linspace(first, last, 30))
    arc = np.asarray(center) + radius * np.stack([np.cos(turns), np.sin(turns)], axis=-1)
    _draw_arc(ax, arc, color)
    middle = np.radians((first + last) / 2)
    place = np.asarray(center) + 1.3 * radius * np.array([np.cos(middle), np.sin(middle)])
    _write(ax, place, text, color)


def _draw_arc(ax: Axes, points: Array, color: str) -> None:
    ax.plot(*points[:-2].T, color=color, lw=1.0, zorder=6)
    head: dict[str, Any] = {"arrowstyle": "-|>,head_length=3.2,head_width=1.6", "color": color, "lw": 0.0}
    ax.add_patch(FancyArrowPatch(tuple(points[-4]), tuple(points[-1]), shrinkA=0, shrinkB=0, zorder=6, **head))


def _car(ax: Axes) -> None:
    """The planar car from above."""
    ax.set(xlim=(-0.5, 5.4), ylim=(-0.8, 4.7))
    center, turn = np.array([2.0, 1.5]), 38.0
    heading = np.array([np.cos(np.radians(turn)), np.sin(np.radians(turn))])
    _arrow(ax, (0, 0), (5.2, 0), "#777777", "$x$", (0.25, 0.0), lw=0.8)
    _arrow(ax, (0, 0), (0, 4.0), "#777777", "$y$", (0.0, 0.25), lw=0.8)
    state = COLORS["reach"]
    for corner in ((center[0], 0.0), (0.0, center[1])):
        ax.plot(*zip(center, corner, strict=True), color=state, lw=0.8, ls=":", zorder=1)
    ax.text(center[0], -0.3, "$x$", color=state, ha="center", va="center")
    ax.text(-0.3, center[1], "$y$", color=state, ha="center", va="center")
    frame = Affine2D().rotate_deg(turn).translate(*center) + ax.transData
    for x, y, width, height, color in (
        (-0.62, -0.42, 0.34, 0.84, STEEL),
        (0.3, -0.42, 0.34, 0.84, STEEL),
        (-0.8, -0.3, 1.6, 0.6, "#8FA3BF"),
        (0.1, -0.22, 0.3, 0.44, "white"),
    ):
        ax.add_patch(Rectangle((x, y), width, height, fc=color, ec=STEEL, lw=0.6, transform=frame, zorder=3))
    ax.plot(*center, "o", color=state, ms=4.0, zorder=7)
    ax.plot([center[0], center[0] + 2.2], [center[1]] * 2, color="#999999", lw=0.7, ls=(0, (4, 2)), zorder=2)
    _arrow(ax, center + 0.85 * heading, center + 2.5 * heading, ACTION, "$v_f$", (0.2, 0.25))
    _draw_angle(ax, center, 1.5, 0.0, turn, r"$\theta$", ACTION)
    _caption(ax, r"$s = (x, y)$   $a = (v_f, \theta)$", r"$s' = s + v_f\,(\cos\theta, \sin\theta) + $noise")


VIEW = np.array([[0.93, -0.27], [0.5, 0.42], [0.0, 1.0]])
"""Where the drawings of drones put the unit vectors x, y and z on paper."""


def _drone(ax: Axes, center: Array, turn: Array) -> None:
    """A quadrotor seen from above and the side; `turn` (3, 3) holds the body's axes in its columns."""
    circle = np.linspace(0.0, 2 * np.pi, 40)
    ends = np.array([[0.8, 0.8, 0.0], [0.8, -0.8, 0.0], [-0.8, 0.8, 0.0], [-0.8, -0.8, 0.0]])
    for end in sorted(ends, key=lambda e: -float((turn @ e)[1])):  # the far ones first
        arm = np.stack([center, center + turn @ end]) @ VIEW
        ax.plot(*arm.T, color=STEEL, lw=2.2, solid_capstyle="round", zorder=3)
        disc = np.stack([0.42 * np.cos(circle), 0.42 * np.sin(circle), np.full_like(circle, 0.12)], axis=-1)
        rotor = (center + (disc + end) @ turn.T) @ VIEW
        face = "#F2B8A0" if end[0] > 0 else "#C9D5E6"  # the front is marked
        ax.add_patch(Polygon(rotor, fc=face, ec=STEEL, lw=0.7, alpha=0.9, zorder=4))
    ax.add_patch(Ellipse(tuple(center @ VIEW), 0.5, 0.3, fc="#8FA3BF", ec=STEEL, lw=0.7, zorder=5))
    ax.add_patch(Circle(tuple(center @ VIEW), 0.07, color=COLORS["reach"], zorder=7))


def _world(ax: Axes, center: Array) -> None:
    """The world's axes, and the position as dotted lines down to the floor and along it."""
    for axis, name in enumerate("xyz"):
        tip = np.eye(3)[axis] * (3.6, 3.0, 3.0)[axis]
        away = 0.25 * (tip @ VIEW) / np.linalg.norm(tip @ VIEW)
        _arrow(ax, (0.0, 0.0), tip @ VIEW, "#777777", f"${name}$", away, lw=0.8)
    foot = center * [1, 1, 0]
    for start, end in ((center, foot), (foot, center * [1, 0, 0]), (foot, center * [0, 1, 0])):
        ax.plot(*(np.stack([start, end]) @ VIEW).T, color=COLORS["reach"], lw=0.8, ls=":", zorder=1)
    for place, aside, name in (
        (center * [1, 0, 0], (-0.1, -0.25), "$x$"),
        (center * [0, 1, 0], (-0.2, 0.2), "$y$"),
        (center * [1, 1, 0.4], (0.2, 0.0), "$z$"),
    ):
        _write(ax, place @ VIEW + aside, name, COLORS["reach"])


def _simple_drone(ax: Axes) -> None:
    """The holonomic drone: velocities along the world's axes."""
    center = np.array([2.0, 1.6, 1.7])
    _world(ax, center)
    _drone(ax, center, np.eye(3))
    _velocities(ax, center, np.eye(3), "xyz")
    _caption(ax, "$s = (x, y, z)$   $a = (v_x, v_y, v_z)$", "$s' = s + a + $noise")


def _drone_attitude(ax: Axes) -> None:
    """The drone with attitude: velocities along the body's axes, which yaw and pitch turn."""
    center = np.array([2.0, 1.6, 1.7])
    psi, theta = np.radians(20.0), np.radians(-28.0)
    yaw = np.array([[np.cos(psi), -np.sin(psi), 0.0], [np.sin(psi), np.cos(psi), 0.0], [0.0, 0.0, 1.0]])
    pitch = np.array([[np.cos(theta), 0.0, np.sin(theta)], [0.0, 1.0, 0.0], [-np.sin(theta), 0.0, np.cos(theta)]])
    turn = yaw @ pitch
    _world(ax, center)
    _drone(ax, center, turn)
    _velocities(ax, center, turn, "fsu")
    ahead, aside, up = np.eye(3)
    level = yaw[:, 0]  # where the drone would face without pitch
    for direction in (ahead, level):
        line = np.stack([center, center + 2.7 * direction]) @ VIEW
        ax.plot(*line.T, color="#999999", lw=0.7, ls=(0, (4, 2)), zorder=5.5)
    share = np.linspace(0.0, 1.0, 30)[:, None]
    for first, second, angle, radius, name, place in (
        (ahead, aside, psi, 2.6, r"$\psi$", (0.28, 0.03)),
        (level, -up, theta, 1.9, r"$\theta$", (0.22, 0.03)),
    ):
        arc = center + radius * (np.cos(share * angle) * first + np.sin(share * angle) * second)
        _draw_arc(ax, arc @ VIEW, COLORS["reach"])
        _write(ax, arc[15] @ VIEW + place, name, COLORS["reach"])
    round_about = -0.4 + share * 1.6 * np.pi
    for axis, first, second, distance, name, place in (
        (2, turn[:, 0], turn[:, 1], 0.95, r"$\omega_\psi$", (-0.6, 0.0)),
        (1, turn[:, 2], turn[:, 0], 1.75, r"$\omega_\theta$", (0.55, 0.42)),
    ):
        middle = center + distance * turn[:, axis]
        ring = middle + 0.3 * (np.cos(round_about) * first + np.sin(round_about) * second)
        _draw_arc(ax, ring @ VIEW, ACTION)
        _write(ax, middle @ VIEW + place, name, ACTION)
    _caption(
        ax,
        r"$s = (x, y, z, \psi, \theta)$   $a = (v_f, v_s, v_u, \omega_\psi, \omega_\theta)$",
        r"$(x, y, z)' = (x, y, z) + R_z(\psi)\,R_y(\theta)\,(v_f, v_s, v_u) + $noise",
        r"$(\psi, \theta)' = (\psi, \theta) + (\omega_\psi, \omega_\theta) + $noise",
    )


def _velocities(ax: Axes, center: Array, turn: Array, names: str) -> None:
    """The commanded velocities along the axes in the columns of `turn`."""
    for axis, name in enumerate(names):
        tip = center + turn[:, axis] * (2.1, 2.6, 1.6)[axis]
        away = 0.28 * (tip - center) @ VIEW / np.linalg.norm((tip - center) @ VIEW)
        _arrow(ax, center @ VIEW, tip @ VIEW, ACTION, f"$v_{name}$", away)


FIGURES: dict[str, Callable[[], Figure]] = {
    "reacher-environment": reacher_environment,
    "reacher-family": tower_family,
    "environments": environments,
    "choice": choice_one_level,
    "spec-reach": reachability,
    "spec-reach-obs": reachability_obstacles,
    "spec-choice-l1": choice_one_level,
    "spec-choice-l2": choice_two_levels,
    "switch": switch,
    **{
        f"spec-reacher-{kind}-{side}": partial(tower, kind, side)
        for kind in ("drop", "stack")
        for side in ("same", "opposite")
    },
}
