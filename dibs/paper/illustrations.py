"""The paper's illustrations: environments, task families and specifications (figures 1, 2a; appendices F and G).

Regions, starts and arms come from the families and their environments, so an illustration shows what is trained.
Illustrations are reports without inputs: they ignore the paths and options that every report is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Circle, Ellipse, FancyArrowPatch, Patch, Polygon, Rectangle
from matplotlib.path import Path as Curve
from matplotlib.transforms import Affine2D
from scipy.spatial.transform import Rotation

from dibs.drawing.arm import LINK, STEEL, Backdrop, draw_arm, draw_floor
from dibs.drawing.regions import DASHES, ROUTE, Trajectory
from dibs.drawing.style import COLORS, INK, STYLE
from dibs.drawing.tasks import add_legend, draw_task, one_panel, share_limits
from dibs.envs import Array, Reacher
from dibs.evaluation.oracles import Controlled, oracle
from dibs.families import Family, Tasks, get_benchmark, get_family
from dibs.paper.families import BLOCK
from dibs.paper.numbers import TOWERS
from dibs.simulation import Draws
from dibs.simulation.composed import Composed
from dibs.spectrl import satisfied

SAND, BROWN, RIM = "#D9C7A3", "#B5651D", "#5C3310"
TAKEN: dict[str, Any] = {"fc": BROWN, "ec": RIM, "lw": 0.8}
FREE: dict[str, Any] = {"fc": "none", "ec": BROWN, "ls": "--"}


@mpl.rc_context(STYLE)
def specification(
    *_: Any, benchmark: str, indices: Sequence[int], routes: Sequence[int] = (0,), width: float = 3.5
) -> Figure:
    """Draw a benchmark's regions at some indices, with the ways to satisfy it at those in `routes`."""
    chosen = get_benchmark(benchmark)
    tasks = chosen.family.tasks(indices, chosen.specification)
    figure, ax = one_panel(tasks, width)
    shown = [way for index in routes for way in ways(tasks, index)]
    draw_task(ax, tasks, shown)
    add_legend(figure, tasks, shown)
    return figure


def tower_family(*_: Any) -> Figure:
    """Draw three tasks of the family of de-stacking a tower."""
    family = get_family("reacher-stack-opposite-8")
    last = family.last_index
    titles = {i: f"$i = {i}$: from height {i} to height {last - i}" for i in (0, last // 2, last)}
    return _towers(family, [(title, [i], i) for i, title in titles.items()], (7.0, 2.6))


def tower(*_: Any, kind: str) -> Figure:
    """Draw one of the four Reacher variants: the regions at three indices, the towers at one of them."""
    family = get_family(f"reacher-{kind}-8")
    title = TOWERS[kind].replace("\n", " ").capitalize()
    return _towers(family, [(title, [0, 4, family.last_index], 4)], (3.5, 3.0))


@mpl.rc_context(STYLE)
def _towers(family: Family, panels: Sequence[tuple[str, list[int], int]], size: tuple[float, float]) -> Figure:
    """Draw panels with a title, the indices of regions, and the index at which the towers and a way are drawn."""
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(1, len(panels), squeeze=False)[0])
    for ax, (title, indices, index) in zip(axes, panels, strict=True):
        tasks = family.tasks(indices)
        shown = ways(tasks, index)
        draw_task(ax, tasks, shown, backdrop=towers(family, index))
        ax.set_title(title)
    share_limits(axes)
    place: tuple[str, Artist] = ("its new place", Patch(**FREE))
    if not family.regions["place"].shift:
        place = ("drop box", Line2D([], [], color=RIM, lw=1.8))
    add_legend(figure, tasks, shown, [("block to move", Patch(**TAKEN)), place])
    return figure


# --- ways to satisfy a specification ----------------------------------------------------------------------


def ways(tasks: Tasks, index: int) -> list[Trajectory]:
    """Return one way for each path of the specification's graph that can be taken, as the oracle goes it without
    noise."""
    task, found = tasks.at([index]), []

    def controller(rows: Sequence[int], edges: Sequence[str]) -> Controlled:
        return Controlled([oracle(task, index, edge) for edge in edges])

    for path in task.graph.paths():
        start = task.start_center[:, None]  # (tasks, rollouts, dim)
        still = np.zeros((len(path) * task.horizon, *start.shape))
        recorded = Composed([tuple(edge.name for edge in path)], controller).follow(task, Draws(start, still))
        if satisfied(task.spec, task.regions_at(index), recorded.states[0], recorded.lengths[0])[0]:
            found.append(Trajectory(index, ROUTE, recorded.states[0, 0, : recorded.lengths[0, 0]]))
    return found


# --- the arm and its towers ------------------------------------------------------------------------------


def towers(family: Family, index: int) -> Backdrop:
    """Return the arm at the block it picks, and the tower or the box that the block goes to."""
    boxes = family.regions_at(index)
    pick, place = boxes["pick"], boxes["place"]
    joints = family.environment.skeleton(pick.center)
    assert joints is not None

    def draw(ax: Axes) -> None:
        draw_floor(ax)
        _draw_tower(ax, pick.center, TAKEN)
        if family.regions["place"].shift:
            _draw_tower(ax, place.center, FREE)
        else:
            x, half = place.center[0], 1.25 * place.half_width[0]
            left, right, rim = x - half, x + half, place.center[1] + 0.64 * half
            ax.plot([left, left, right, right], [rim, 0.0, 0.0, rim], color=RIM, lw=1.8, zorder=3.6)
        draw_arm(ax, raised(joints))

    return Backdrop(draw, np.array([[-1.2, -0.7], [1.2, 7.75]]))


def _draw_tower(ax: Axes, top: Array, look: dict[str, Any]) -> None:
    """Draw a tower of blocks up to the one around `top`, which has the given look."""
    height = round(float(top[1]) / BLOCK - 0.5)  # blocks below
    corner = top - (0.475 * BLOCK, 0.5 * BLOCK)
    for level in range(1, height + 1):
        below = (corner[0], corner[1] - level * BLOCK)
        ax.add_patch(Rectangle(below, 0.95 * BLOCK, BLOCK, fc=SAND, ec="#7A6A48", lw=0.6, zorder=2.5))
    ax.add_patch(Rectangle(tuple(corner), 0.95 * BLOCK, BLOCK, zorder=3.5, **look))


def raised(joints: Array) -> Array:
    """Return shoulder, elbow and hand (3, 2) with the higher of the two elbows that put the hand there.

    The state is the hand's position alone, and readers would wonder about links below the floor.
    """
    shoulder, elbow, hand = joints
    return np.stack([shoulder, max(elbow, shoulder + hand - elbow, key=lambda e: float(e[1])), hand])


# --- agents, with their states and actions (figure 1a and appendix F) ------------------------------------

STATE, ACTION, AXIS = COLORS["reach"], "#C2185B", "#777777"
VIEW = np.array([[0.93, -0.27], [0.5, 0.42], [0.0, 1.0]])
"""Where the unit vectors x, y and z of space lie on paper."""
CENTER = np.array([2.0, 1.6, 1.7])
"""Position of a drone."""


def environments(*_: Any) -> Figure:
    """Draw the agents of Car2D, SimpleDrone and DroneAttitude."""
    return _figure({"Car2D": _car, "SimpleDrone": _simple_drone, "DroneAttitude": _drone_attitude}, (7.2, 2.9))


def reacher(*_: Any) -> Figure:
    """Draw the arm of Reacher."""
    return _figure({"Reacher": _reacher}, (3.3, 3.3))


@mpl.rc_context(STYLE)
def _figure(agents: Mapping[str, Callable[[Axes], Sequence[str]]], size: tuple[float, float]) -> Figure:
    """Draw agents next to each other, with name above, and state, action and step below."""
    figure = Figure(figsize=size, layout="constrained")
    how: dict[str, Any] = {"ha": "center", "va": "top", "color": INK, "linespacing": 1.5}
    for ax, (name, draw) in zip(figure.subplots(1, len(agents), squeeze=False).flat, agents.items(), strict=True):
        ax.set(aspect="equal", xlim=(-0.5, 5.4), ylim=(-1.3, 4.2))
        ax.text(0.5, -0.03, "\n".join(draw(ax)), transform=ax.transAxes, **how)
        ax.set_title(name, fontweight="bold")
        ax.set_axis_off()
    lines = [Line2D([], [], color=color, lw=2.0) for color in (STATE, ACTION)]
    figure.legend(lines, ["state", "action"], loc="outside lower center", ncols=2, frameon=False)
    return figure


def _reacher(ax: Axes) -> tuple[str, ...]:
    """Draw the two-link arm: its state is the end effector's position, its action the joint angles."""
    arm, hand = Reacher(), np.array([2.0, 7.0])
    ax.set(xlim=(-2.2, 7.6), ylim=(-0.9, 8.4))
    draw_floor(ax)
    joints = arm.skeleton(hand)
    draw_arm(ax, joints)
    elbow = joints[1]
    theta1, theta2 = (np.degrees(float(t)) for t in arm.joints(hand))
    _line(ax, [elbow, 1.55 * elbow], STEEL, DASHES)
    _angle(ax, joints[0], 2.2, 0.0, theta1, r"$\theta_1$")
    _angle(ax, elbow, 1.5, theta1, theta1 + theta2, r"$\theta_2$")
    _line(ax, [hand * (1, 0), hand, hand * (0, 1)], STATE, ":")
    _line(ax, [(0.0, 0.0), hand * (0, 1)], "#BBBBBB", "-")
    _write(ax, (4.6, 7.45), "end effector $(x, y)$", STATE)
    _write(ax, (3.0, 2.35), "link 1", STEEL, theta1)
    _write(ax, (3.7, 5.0), "link 2", STEEL, theta1 + theta2 - 180)
    _write(ax, (-1.7, 0.45), "shoulder", STEEL)
    _write(ax, (5.5, 2.2), "elbow", STEEL)
    return r"$s = (x, y)$   $a = (\theta_1, \theta_2)$", "joints turn toward $a$ at a limited rate"


def _car(ax: Axes) -> tuple[str, ...]:
    """Draw the planar car from above; return its state, action and step."""
    ax.set(ylim=(-0.8, 4.7))
    center, turn = np.array([2.0, 1.5]), 38.0
    heading = np.array([np.cos(np.radians(turn)), np.sin(np.radians(turn))])
    for axis, tip, name in zip(np.eye(2), (5.2, 4.0), ("$x$", "$y$"), strict=True):
        _arrow(ax, [(0, 0), tip * axis], AXIS, name, 0.25 * axis)
        _line(ax, [center, center * axis], STATE, ":")
        _write(ax, center * axis - 0.3 * axis[::-1], name, STATE)
    frame = Affine2D().rotate_deg(turn).translate(*center) + ax.transData
    axles, body, window = ((-0.62, 0.3), (-0.8, -0.3, 1.6, 0.6), (0.1, -0.22, 0.3, 0.44))
    parts = [((x, -0.42, 0.34, 0.84), STEEL) for x in axles] + [(body, LINK), (window, "white")]
    for (x, y, width, height), color in parts:
        ax.add_patch(Rectangle((x, y), width, height, fc=color, ec=STEEL, lw=0.6, transform=frame, zorder=3))
    ax.plot(*center, "o", color=STATE, ms=4.0, zorder=7)
    _line(ax, [center, (4.2, 1.5)], AXIS, DASHES)
    _arrow(ax, [center + 0.85 * heading, center + 2.5 * heading], ACTION, "$v_f$", (0.2, 0.25), 1.2)
    _angle(ax, center, 1.5, 0.0, turn, r"$\theta$")
    return r"$s = (x, y)$   $a = (v_f, \theta)$", r"$s' = s + v_f\,(\cos\theta, \sin\theta) + $noise"


def _simple_drone(ax: Axes) -> tuple[str, ...]:
    """Draw the holonomic drone: velocities along the world's axes."""
    _drone(ax, np.eye(3), "xyz")
    return "$s = (x, y, z)$   $a = (v_x, v_y, v_z)$", "$s' = s + a + $noise"


def _drone_attitude(ax: Axes) -> tuple[str, ...]:
    """Draw the drone with attitude: velocities along the body's axes, which yaw and pitch turn."""
    psi, theta = np.radians(20.0), np.radians(-28.0)
    yaw, pitch = (Rotation.from_euler(*turn).as_matrix() for turn in (("z", psi), ("y", theta)))
    turn = yaw @ pitch
    _drone(ax, turn, "fsu")
    ahead, aside, up = np.eye(3)
    level = yaw[:, 0]  # where the drone would face without pitch
    for direction in (ahead, level):
        _line(ax, np.stack([CENTER, CENTER + 2.7 * direction]) @ VIEW, AXIS, DASHES, 5.5)
    share = np.linspace(0.0, 1.0, 30)[:, None]
    circle = -0.4 + share * 1.6 * np.pi
    pitched, turned = CENTER + 0.95 * turn[:, 2], CENTER + 1.75 * turn[:, 1]
    for middle, radius, angles, first, second, color, name, offset in (
        (CENTER, 2.6, share * psi, ahead, aside, STATE, r"$\psi$", (0.28, 0.03)),
        (CENTER, 1.9, share * theta, level, -up, STATE, r"$\theta$", (0.22, 0.03)),
        (pitched, 0.3, circle, turn[:, 0], turn[:, 1], ACTION, r"$\omega_\psi$", (-0.6, 0.0)),
        (turned, 0.3, circle, turn[:, 2], turn[:, 0], ACTION, r"$\omega_\theta$", (0.55, 0.42)),
    ):
        arc = middle + radius * (np.cos(angles) * first + np.sin(angles) * second)
        _arrow(ax, arc @ VIEW, color)
        _write(ax, (arc[15] if middle is CENTER else middle) @ VIEW + offset, name, color)
    return (
        r"$s = (x, y, z, \psi, \theta)$   $a = (v_f, v_s, v_u, \omega_\psi, \omega_\theta)$",
        r"$(x, y, z)' = (x, y, z) + R_z(\psi)\,R_y(\theta)\,(v_f, v_s, v_u) + $noise",
        r"$(\psi, \theta)' = (\psi, \theta) + (\omega_\psi, \omega_\theta) + $noise",
    )


def _drone(ax: Axes, turn: Array, velocities: str) -> None:
    """Draw a quadrotor in the world's axes; the columns of `turn` (3, 3) are the axes of its velocities."""
    foot = CENTER * [1, 1, 0]
    for axis, length, name in zip(np.eye(3), (3.6, 3.0, 3.0), "xyz", strict=True):
        tip = axis * length @ VIEW
        _arrow(ax, [(0.0, 0.0), tip], AXIS, f"${name}$", 0.25 * tip / np.linalg.norm(tip))
    for end, place, offset, name in (
        (CENTER * [1, 0, 0], CENTER * [1, 0, 0], (-0.1, -0.25), "$x$"),
        (CENTER * [0, 1, 0], CENTER * [0, 1, 0], (-0.2, 0.2), "$y$"),
        (CENTER, CENTER * [1, 1, 0.4], (0.2, 0.0), "$z$"),
    ):
        _line(ax, np.stack([foot, end]) @ VIEW, STATE, ":")
        _write(ax, place @ VIEW + offset, name, STATE)
    circle = np.linspace(0.0, 2 * np.pi, 40)
    disc = np.stack([0.42 * np.cos(circle), 0.42 * np.sin(circle), np.full_like(circle, 0.12)], axis=-1)
    ends = np.array([[0.8, 0.8, 0.0], [0.8, -0.8, 0.0], [-0.8, 0.8, 0.0], [-0.8, -0.8, 0.0]])
    for end in sorted(ends, key=lambda e: -float((turn @ e)[1])):  # far ones first
        strut = np.stack([CENTER, CENTER + turn @ end]) @ VIEW
        ax.plot(*strut.T, color=STEEL, lw=2.2, solid_capstyle="round", zorder=3)
        face = "#F2B8A0" if end[0] > 0 else "#C9D5E6"  # the front has another color
        rotor = (CENTER + (disc + end) @ turn.T) @ VIEW
        ax.add_patch(Polygon(rotor, fc=face, ec=STEEL, lw=0.7, alpha=0.9, zorder=4))
    at = tuple(CENTER @ VIEW)
    ax.add_patch(Ellipse(at, 0.5, 0.3, fc=LINK, ec=STEEL, lw=0.7, zorder=5))
    ax.add_patch(Circle(at, 0.07, color=STATE, zorder=7))
    for axis, length, name in zip(turn.T, (2.1, 2.6, 1.6), velocities, strict=True):
        way = axis * length @ VIEW
        _arrow(ax, [at, at + way], ACTION, f"$v_{name}$", 0.28 * way / np.linalg.norm(way), 1.2)


# --- strokes ----------------------------------------------------------------------------------------------


def _line(ax: Axes, points: Any, color: str, dashes: Any, zorder: float = 1.5) -> None:
    ax.plot(*np.transpose(points), color=color, lw=0.8, ls=dashes, zorder=zorder)


def _write(ax: Axes, place: Any, text: str, color: str, rotation: float = 0.0) -> None:
    ax.text(float(place[0]), float(place[1]), text, color=color, ha="center", va="center", rotation=rotation, zorder=7)


def _arrow(ax: Axes, points: Any, color: str, text: str = "", offset: Any = (0, 0), lw: float = 0.8) -> None:
    """Draw an arrow along points (points, 2), with its name beyond the tip."""
    style: dict[str, Any] = {"arrowstyle": "-|>,head_length=3.5,head_width=1.8", "color": color, "lw": lw}
    ax.add_patch(FancyArrowPatch(path=Curve(points), shrinkA=0, shrinkB=0, zorder=6, **style))
    _write(ax, np.add(points[-1], offset), text, color)


def _angle(ax: Axes, center: Any, radius: float, first: float, last: float, text: str) -> None:
    """Draw a commanded angle as an arc with an arrow from one direction to another, in degrees."""
    turns = np.radians([*np.linspace(first, last, 30), (first + last) / 2])
    directions = np.stack([np.cos(turns), np.sin(turns)], axis=-1)
    _arrow(ax, center + radius * directions[:-1], ACTION, lw=1.0)
    _write(ax, center + 1.3 * radius * directions[-1], text, ACTION)
