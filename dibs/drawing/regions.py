"""What drawings show: the regions of tasks at some indices, and rollouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch

from dibs.drawing.style import COLORS, INK, Role, shade
from dibs.envs import Array
from dibs.families import Tasks
from dibs.spectrl import Edge, cnf, conjuncts

MEANING: dict[Role, str] = {
    "start": "initial region",
    "reach": "region to reach",
    "avoid": "region to avoid",
    "stay": "region to stay in",
}
ROLES = {
    "train": ("#1450C8", "seen in training"),
    "unseen": ("#D0202A", "unseen"),
    "beyond": ("#8A4FC8", "beyond the last index"),
    "far": ("#5B2C83", "far beyond the last index"),
}
"""Color and meaning of rollouts at training indices and at others."""
ROUTE = "route"
"""Role of a path that shows one way to satisfy the specification."""
DASHES = (0, (4, 2))
HEAD: dict[str, Any] = {"arrowstyle": "-|>,head_length=2.6,head_width=1.3", "shrinkA": 0.0, "shrinkB": 0.0}


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One rollout to draw."""

    index: int
    role: str  # train, unseen, beyond or route
    states: Array  # (time, dim)
    success: bool | None = None  # whether it satisfies the specification; None: not known


@dataclass(frozen=True, eq=False)
class DrawnRegion:
    """A region at the drawn indices, in the drawn state variables."""

    name: str
    role: Role
    low: Array  # (indices, axes); infinite where free
    high: Array  # (indices, axes)
    radius: Array  # (indices,): above 0 for balls
    point: Array  # (indices, axes): of a half-space's plane
    normal: Array  # (indices, axes): zero but for half-spaces
    path: Array  # (points, axes): the center at all indices from the first to the last one; NaN where free
    stops: Array  # (indices,): positions of the drawn indices on the path

    @property
    def center(self) -> Array:
        """Middle (indices, axes); NaN where free."""
        return self.path[self.stops]

    @property
    def half(self) -> Array:
        """Half-width (indices, axes)."""
        return (self.high - self.low) / 2

    @property
    def moves(self) -> bool:
        """Whether it differs between indices."""
        return any((part != part[0]).any() for part in (self.low, self.high, self.point, self.normal))

    def looks(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the rows to draw, from back to front, and how each looks; a single one if it does not move.

        Larger ones come first, so that a region that grows does not hide its earlier self.
        """
        rows = looks(self.role, len(self.low) if self.moves else 1)
        size = np.where(np.isfinite(self.half), self.half, 0.0).max(axis=-1)[: len(rows)]
        return [(int(row), rows[row]) for row in np.argsort(-np.round(size, 9), kind="stable")]


def region_roles(edges: Iterable[Edge]) -> dict[str, Role]:
    """Return what each region that the edges name is for; to be a target counts more than to be safe."""
    edges = list(edges)
    safe = [literal for edge in edges for clause in cnf(edge.safe) for literal in clause]
    roles: dict[str, Role] = {name: "stay" if inside else "avoid" for name, inside in safe}
    targets = [literal for edge in edges for literal in conjuncts(edge.target)]
    return roles | {name: "reach" if inside else "avoid" for name, inside in targets}


def task_regions(
    tasks: Tasks, axes: Sequence[int] = (0, 1), between: Tasks | None = None, edges: Sequence[Edge] | None = None
) -> list[DrawnRegion]:
    """Return the start and the regions that the edges name (by default, all of them), in the order of drawing.

    `between` has the tasks of all indices from the first to the last one, for the true path of every region; without
    it, paths lead straight from one index to the next.
    """
    columns, roles = list(axes), region_roles(tasks.edges if edges is None else edges)
    every = tasks if between is None else between
    stops = np.array([every.indices.index(i) for i in tasks.indices])
    found = [_drawn("start", "start", every.start_center, every.start_half, stops, columns)]
    for name, region in every.regions.items():
        if name in roles:
            parts = region.arrays()
            hidden = np.delete(parts["normal"], columns, axis=-1)
            if not hidden.any():  # an oblique plane cannot be seen from here
                how = (parts["center"], region.reach, stops, columns, parts["radius"], parts["normal"])
                found.append(_drawn(name, roles[name], *how))
    return sorted(found, key=lambda region: list(COLORS).index(region.role))


def _drawn(
    name: str,
    role: Role,
    center: Array,
    half: Array,
    stops: Array,
    columns: list[int],
    radius: Array | None = None,
    normal: Array | None = None,
) -> DrawnRegion:
    center, half = np.asarray(center)[:, columns], np.asarray(half)[:, columns]
    radius = np.zeros(len(center)) if radius is None else radius
    normal = np.zeros_like(center) if normal is None else normal[:, columns]
    at, wide = center[stops], half[stops]
    path = np.where(np.isfinite(half), center, np.nan)
    return DrawnRegion(name, role, at - wide, at + wide, radius[stops], at, normal[stops], path, stops)


def draw_trajectories(ax: Axes, trajectories: Sequence[Trajectory], axes: Sequence[int] = (0, 1)) -> None:
    """Draw rollouts in the color of their role, each with a dot at its end; failed ones are dotted and end in a cross.

    Routes are dashed.
    """
    alpha = float(np.clip(12.0 / max(len(trajectories), 1), 0.3, 0.9))
    for trajectory in trajectories:
        columns = [trajectory.states[:, axis] for axis in axes]
        if trajectory.role == ROUTE:
            ax.plot(*columns, color=INK, lw=0.7, ls=DASHES, alpha=0.8, zorder=5)
            tail, tip = zip(*(c[-2:] for c in columns), strict=True)
            ax.add_patch(FancyArrowPatch(tail, tip, color=INK, lw=0.0, zorder=5, **HEAD))
            continue
        color = ROLES[trajectory.role][0]
        failed = trajectory.success is False
        ax.plot(*columns, color=color, lw=0.8, ls=":" if failed else "-", alpha=alpha, zorder=6)
        marker, size, edge = ("x", 5.0, 1.2) if failed else ("o", 2.0, 0.0)
        ax.plot(*[c[-1:] for c in columns], marker, color=color, ms=size, mew=edge, zorder=6)


def looks(role: Role, count: int) -> list[dict[str, Any]]:
    """Return how regions look from the first to the last index; a single one is in between."""
    color, found = COLORS[role], []
    for t in np.linspace(0.0, 1.0, count) if count > 1 else [0.4]:
        look = {"facecolor": shade(color, 0.12 + 0.5 * t), "edgecolor": shade(color, 0.55 + 0.45 * t), "linewidth": 0.8}
        found.append(look | {"hatch": "/////", "facecolor": shade(color, 0.1 + 0.25 * t)} if role == "avoid" else look)
    return found


def axis_label(name: str) -> str:
    """Return a state variable's name: a letter as mathematics, a word as it is."""
    return f"${name}$" if len(name) == 1 else name


def label(name: str) -> str:
    """Return a region's name as mathematics: g1 is g with a subscript."""
    match = re.fullmatch(r"([A-Za-z]+)_?(\d+)", name)
    if match is None:
        return name.replace("_", " ")
    letters, number = match.groups()
    return f"${letters}_{{{number}}}$" if len(letters) == 1 else rf"$\mathrm{{{letters}}}_{{{number}}}$"
