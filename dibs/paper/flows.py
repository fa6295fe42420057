"""The paper's flow diagrams of GenRL and DIBS (figures 1c and 1d): which loop κ is learned in.

Boxes stand for what is made, arrows for what it is made with; the loop that learns κ is in one color. Rows are the
first, the second and the last training index.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from dibs.drawing.style import INK, STYLE

Point = tuple[float, float]
LOOP, EDGE = "#C2185B", "#555555"
KAPPA, POLICY, TASK, TEACHER, DATA, LOSS = "#F8D7E3", "#DCE8F7", "#EFEFEF", "#FBE6C8", "#DDEFD9", "#F3F3F3"
ROWS = (4.0, 2.6, 0.9)
NAMES = ("{i_1}", "{i_2}", "{i_n}")
HEIGHT, SIZE = 0.8, (7.2, 2.75)


@mpl.rc_context(STYLE)
def genrl(*_: Any) -> Figure:
    """Draw GenRL: policies that κ makes act on their tasks, and their rewards change κ."""
    figure, ax = _canvas()
    _box(ax, (1.4, 2.6), (2.0, 1.1), "template $\\Omega$\n$\\kappa_0, \\ldots, \\kappa_m$", KAPPA)
    _unrolled(ax, 5.2)
    _arrow(ax, (2.4, 2.6), (4.3, 2.6), LOOP, "unroll from $\\pi_0$", (0.0, 0.28))
    for y, name in zip(ROWS, NAMES, strict=True):
        _box(ax, (8.4, y), (1.7, HEIGHT), f"task $R_{name}$", TASK)
        _arrow(ax, (6.1, y), (7.55, y), LOOP, "act", (0.0, 0.22))
        _arrow(ax, (9.25, y), (10.9, 2.6 + 0.25 * (y - 2.6)), LOOP)
    _dots(ax, 8.4)
    ax.text(10.0, 4.05, "rewards", color=LOOP, ha="center", va="center", fontsize=7.0)
    _box(ax, (12.1, 2.6), (2.4, 1.1), "aggregated\nreward", LOSS)
    _around(ax, 12.1, 1.4, "augmented random search changes $\\kappa$: policies and $\\kappa$ learn in one loop")
    return figure


@mpl.rc_context(STYLE)
def dibs(*_: Any) -> Figure:
    """Draw DIBS: teachers are learned first; κ is fitted to their labeled states."""
    figure, ax = _canvas()
    for x, width, title in ((0.05, 7.2, "Stage I: teachers and datasets"), (7.5, 6.45, "Stage II: behavioral cloning")):
        _panel(ax, x, width, title)
    for y, name in zip(ROWS, NAMES, strict=True):
        y -= 0.12
        _box(ax, (0.9, y), (1.4, HEIGHT), f"task $R_{name}$", TASK)
        _arrow(ax, (1.6, y), (2.4, y), EDGE, "RL", (0.0, 0.22))
        _box(ax, (3.3, y), (1.8, HEIGHT), f"teacher $\\hat{{\\pi}}_{name}$", TEACHER)
        _arrow(ax, (4.2, y), (5.55, y), EDGE, "$p^{\\mathrm{conf}} \\geq \\tau_c$", (0.0, 0.26))
        _box(ax, (6.3, y), (1.5, HEIGHT), f"data $\\widetilde{{D}}_{name}$", DATA)
        _arrow(ax, (7.05, y), (7.75, y), EDGE)
        _box(ax, (8.5, y), (1.5, HEIGHT), "$\\|\\pi(s) - a\\|^2$", LOSS)
        _arrow(ax, (10.1, y), (9.25, y), LOOP)
    for upper, lower in pairwise(ROWS):
        _arrow(ax, (3.3, upper - 0.52), (3.3, lower + 0.28), EDGE, "$\\lambda_x$", (0.28, 0.0))
    _unrolled(ax, 10.9, 1.6, -0.12)
    _box(ax, (13.05, 2.48), (1.5, 1.1), "$\\Omega$\n$\\kappa_0, \\ldots, \\kappa_m$", KAPPA)
    _arrow(ax, (12.3, 2.48), (11.7, 2.48), LOOP, "unroll", (0.0, 0.75))
    _around(ax, 8.5, 13.05, "gradient steps change $\\kappa$; teachers stay", 0.38, 1.93)
    return figure


def _unrolled(ax: Axes, x: float, width: float = 1.8, shift: float = 0.0) -> None:
    """Draw the policies that κ makes, each from the one before."""
    for y, name in zip(ROWS, NAMES, strict=True):
        text = f"$\\pi_{name} = \\pi_0$" if name == NAMES[0] else f"$\\pi_{name}$"
        _box(ax, (x, y + shift), (width, HEIGHT), text, POLICY)
    for upper, lower in pairwise(ROWS):
        text = "$\\Omega^\\Delta$" if lower > ROWS[-1] else "⋮"
        _arrow(ax, (x, upper + shift - 0.4), (x, lower + shift + 0.4), LOOP, text, (0.35, 0.0))


# --- strokes ----------------------------------------------------------------------------------------------


def _canvas() -> tuple[Figure, Axes]:
    figure = Figure(figsize=SIZE)
    ax = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    ax.set(xlim=(0.0, 14.0), ylim=(-0.35, 5.0))
    ax.set_axis_off()
    return figure, ax


def _box(ax: Axes, center: Point, size: Point, text: str, color: str) -> None:
    corner = (center[0] - size[0] / 2, center[1] - size[1] / 2)
    look: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.12", "fc": color, "ec": EDGE, "lw": 0.8}
    ax.add_patch(FancyBboxPatch(corner, *size, **look, zorder=3))
    ax.text(*center, text, color=INK, ha="center", va="center", fontsize=8.0, linespacing=1.4, zorder=4)


def _panel(ax: Axes, x: float, width: float, title: str) -> None:
    look: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.15", "fc": "#FAFAFA", "ec": "#BBBBBB", "lw": 0.8}
    ax.add_patch(FancyBboxPatch((x, -0.2), width, 5.1, **look, zorder=1))
    ax.text(x + width / 2, 4.65, title, color=INK, ha="center", va="center", fontweight="bold", fontsize=8.0, zorder=4)


def _arrow(ax: Axes, start: Point, end: Point, color: str, text: str = "", offset: Point = (0.0, 0.0)) -> None:
    look: dict[str, Any] = {"arrowstyle": "-|>,head_length=3.5,head_width=1.8", "color": color, "lw": 1.0}
    ax.add_patch(FancyArrowPatch(start, end, shrinkA=0, shrinkB=0, **look, zorder=2.5))
    if text:
        middle = ((start[0] + end[0]) / 2 + offset[0], (start[1] + end[1]) / 2 + offset[1])
        ax.text(*middle, text, color=color, ha="center", va="center", fontsize=7.0, zorder=4)


def _around(ax: Axes, start: float, end: float, text: str, top: float = 2.05, other: float = 2.05) -> None:
    """Draw an arrow from below one box, along the bottom, to below another."""
    ax.plot([start, start, end], [top, 0.1, 0.1], color=LOOP, lw=1.0, zorder=2)
    _arrow(ax, (end, 0.1), (end, other), LOOP)
    ax.text((start + end) / 2, -0.12, text, color=LOOP, ha="center", va="center", fontsize=7.0, zorder=4)


def _dots(ax: Axes, x: float) -> None:
    ax.text(x, (ROWS[1] + ROWS[2]) / 2, "⋮", color=INK, ha="center", va="center")
