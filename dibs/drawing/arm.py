"""An arm and what surrounds it, behind the regions of a task."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Polygon

from dibs.drawing.style import INK
from dibs.envs import Array
from dibs.families import Tasks

STEEL, LINK = "#3B5275", "#8FA3BF"


class Backdrop(NamedTuple):
    """What to draw behind the regions of a task."""

    draw: Callable[[Axes], None]
    extent: Array  # (points, 2) that must be in view


def arm_backdrop(tasks: Tasks, moving: bool = False) -> Backdrop | None:
    """Return the arm at the start of the last task and the floor, if it has one; None without a skeleton.

    If the arm is `moving`, it is not drawn, and all that it can reach is in view.
    """
    joints = tasks.environment.skeleton(tasks.start_center[-1])
    if joints is None:
        return None
    floor, reach = float(tasks.environment.bounds[0][1]), _reach(joints)
    room = 0.12 * reach
    extent = np.concatenate([joints - room, joints + room])
    if moving:
        below = reach if not np.isfinite(floor) else joints[0, 1] - floor
        extent = joints[0] + np.array([[-reach, -below], [reach, reach]]) + [[-room], [room]]

    def draw(ax: Axes) -> None:
        if np.isfinite(floor):
            draw_floor(ax, floor)
        if not moving:
            draw_arm(ax, joints)

    return Backdrop(draw, extent)


def draw_floor(ax: Axes, height: float = 0.0) -> None:
    """Draw solid ground below `height`."""
    ax.axhspan(height - np.ptp(ax.get_ylim()), height, fc="#EDEDED", ec="#B8B8B8", hatch="////", lw=0, zorder=0.5)
    ax.axhline(height, color=INK, lw=0.8, zorder=1)


def draw_arm(ax: Axes, joints: Array) -> list[Artist]:
    """Draw links between joints (points, 2), from the base to the tip."""
    foot = np.array([[-0.09, 0.0], [0.09, 0.0], [0.045, 0.055], [-0.045, 0.055]]) * _reach(joints)
    return [
        ax.add_patch(Polygon(joints[0] + foot, fc=STEEL, ec="none", zorder=2.1)),
        *ax.plot(*joints.T, color=LINK, lw=5.0, solid_capstyle="round", alpha=0.75, zorder=2.2),
        *ax.plot(*joints.T, color=STEEL, lw=0.8, zorder=2.3),
        *ax.plot(*joints[:-1].T, "o", color="white", mec=STEEL, mew=1.0, ms=5.0, zorder=2.4),
        *ax.plot(*joints[-1], "o", color=STEEL, ms=3.5, zorder=4.5),
    ]


def _reach(joints: Array) -> float:
    return float(np.linalg.norm(np.diff(joints, axis=0), axis=-1).sum())
