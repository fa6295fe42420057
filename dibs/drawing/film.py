"""Frames of episodes: the drawing of a task, with the agent and its trail on top.

    scene = Scene(family.tasks([3]), "index 3")
    frame = scene.paint(states, "running", "step 3 / 20")  # uint8 (height, width, 3)

`states` (time, dim) are those so far. What does not move is drawn once per scene and reused for every frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Polygon, Rectangle
from matplotlib.transforms import IdentityTransform

from dibs.drawing.arm import Backdrop, arm_backdrop, draw_arm
from dibs.drawing.regions import ROLES
from dibs.drawing.style import COLORS, INK, STYLE, shade
from dibs.drawing.tasks import draw_task, plane_of
from dibs.envs import Array, Environment
from dibs.errors import DibsError
from dibs.families import Tasks
from dibs.spectrl import Edge

Frame = npt.NDArray[np.uint8]

TRAIL, QUIET, FAILURE = ROLES["train"][0], "#78808A", "#CF3630"
OUTCOMES = {"success": COLORS["reach"], "unsafe": FAILURE, "failed": FAILURE}
"""Colors of the outcome in the banner; any other text is gray."""
BANNER = 32  # height in pixels
DPI = 100
TURN = np.linspace(0.0, 2.0 * np.pi, 25)[:-1]


def disc(radius: float, x: float = 0.0, y: float = 0.0) -> Array:
    """Return a circle as a polygon (corners, 2)."""
    return np.stack([x + radius * np.cos(TURN), y + radius * np.sin(TURN)], axis=-1)


def bar(x: float, y: float, length: float, width: float) -> Array:
    """Return an upright rectangle around a point as a polygon (corners, 2)."""
    return np.array([x, y]) + np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * [length / 2, width / 2]


def rotors(turn: Array) -> list[tuple[Array, str]]:
    """Return the arms and rotors of a drone from above."""
    corners = [(8.0, 8.0), (8.0, -8.0), (-8.0, 8.0), (-8.0, -8.0)]
    return [
        (bar(0, 0, 23, 3) @ turn, INK),
        (bar(0, 0, 3, 23) @ turn, INK),
        *((disc(5, *c), "#B0D0FA") for c in corners),
    ]


DIAGONAL = np.sqrt(0.5) * np.array([[1.0, 1.0], [-1.0, 1.0]])
ICONS: dict[str, list[tuple[Array, str]]] = {
    "disc": [(disc(7), TRAIL)],
    "car": [
        *((bar(x, y, 6, 3), INK) for x in (-5, 6) for y in (-6, 6)),
        (np.array([(-9, -5), (6, -5), (11, -3), (11, 3), (6, 5), (-9, 5)]), TRAIL),
        (np.array([(2, -3.5), (6, -3), (6, 3), (2, 3.5)]), "#D6E7FC"),
    ],
    "drone": [*rotors(DIAGONAL), (np.array([(14, 0), (4, 4), (4, -4)]), FAILURE), (disc(4.5), TRAIL)],
    "drone from the side": [
        (bar(0, 0, 22, 3), INK),
        *((bar(x, 4, 12, 2), TRAIL) for x in (-11, 11)),
        (disc(2.5, 11), FAILURE),
        (disc(4.5), TRAIL),
    ],
}
"""Polygons in pixels around the agent's place, for one that heads to the right, and their colors."""


class Scene:
    """A task at one index, and everything in its frames that does not change during an episode."""

    def __init__(
        self,
        tasks: Tasks,
        title: str,
        color: str = TRAIL,
        edges: Sequence[Edge] | None = None,
        states: Array | None = None,
    ) -> None:
        """`color` is that of the trail. With `edges`, regions of other edges are left out; `states` (time, dim) are in
        view."""
        environment, (index,) = tasks.environment, tasks.indices
        if len(environment.state_names) < 2:
            raise DibsError(f"{environment.name}: a picture needs two state variables, found one")
        self.environment, self.color = environment, color
        with mpl.rc_context(STYLE):
            arm, space = arm_backdrop(tasks.at([index]), moving=True), environment.space
            planes = [plane_of(tasks)] if space is None else [space[:2], (space[0], space[2])]
            planes = [(0, 1)] if arm is not None else planes
            width, height = 480 if len(planes) == 1 else 800, BANNER + 448
            figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
            self._canvas, top = FigureCanvasAgg(figure), 1.0 - BANNER / height
            self._panels = []
            for n, plane in enumerate(planes):
                left, panel = n * width / len(planes) + 52, width / len(planes) - 60  # pixels; the rest is for labels
                ax = figure.add_axes((left / width, 40 / height, panel / width, top - 48 / height))
                passed = None if states is None else Backdrop(lambda ax: None, states[:, plane])
                draw_task(ax, tasks, axes=plane, backdrop=arm or passed, edges=edges, fill=True)
                self._panels.append((ax, plane))
            strip: dict[str, Any] = {"transform": figure.transFigure, "lw": 0.0}
            figure.add_artist(Rectangle((0.0, top), 1.0, 1.0 - top, color="#F3F5F7", **strip))
            figure.add_artist(Rectangle((0.0, top), 5.0 / width, 1.0 - top, color=color, **strip))
            middle = (1.0 + top) / 2.0
            look: dict[str, Any] = {"va": "center_baseline", "fontsize": 9.0}
            figure.text(12.0 / width, middle, title, color=INK, **look)
            self._progress = figure.text(1.0 - 84.0 / width, middle, "", color=QUIET, ha="right", animated=True, **look)
            pill = {"boxstyle": "round,pad=0.35", "ec": "none"}
            self._outcome = figure.text(
                1.0 - 42.0 / width, middle, "", color="white", ha="center", animated=True, bbox=pill, **look
            )
            self._canvas.draw()
            self._background = self._canvas.copy_from_bbox(figure.bbox)

    def paint(self, trail: Array, outcome: str = "running", progress: str = "") -> Frame:
        """Draw the states (time, dim) so far and the agent at the last one, below a banner with the given texts."""
        trail = np.asarray(trail, dtype=np.float64)
        self._canvas.restore_region(self._background)
        for ax, plane in self._panels:
            for artist in [
                *_draw_trail(ax, trail[:, plane], self.color),
                *_draw_agent(ax, plane, trail, self.environment),
            ]:
                ax.draw_artist(artist)
                artist.remove()
        self._progress.set_text(progress)
        self._outcome.set(text=outcome)
        self._outcome.get_bbox_patch().set_facecolor(OUTCOMES.get(outcome, QUIET))  # type: ignore[union-attr]
        for text in (self._progress, self._outcome):
            self._canvas.figure.draw_artist(text)
        return np.asarray(self._canvas.buffer_rgba())[..., :3].copy()

    def pixel(self, point: Array, panel: int = 0) -> tuple[int, int]:
        """Return the row and column of a frame where a panel shows a point (2,) of its plane."""
        x, y = self._panels[panel][0].transData.transform(point)
        return round(self._canvas.figure.bbox.height - y), round(x)


def _draw_trail(ax: Axes, way: Array, color: str) -> list[Artist]:
    """Draw the way (time, 2) so far, later parts darker."""
    shades = [shade(color, t) for t in np.linspace(0.35, 1.0, len(way))]
    pieces = [way[n : n + 2] for n in range(len(way) - 1)]
    lines = LineCollection(pieces, colors=shades[1:], linewidths=2.0, zorder=6)
    return [ax.add_collection(lines, autolim=False), ax.scatter(way[:, 0], way[:, 1], s=12.0, c=shades, lw=0.0)]


def _draw_agent(ax: Axes, plane: tuple[int, int], trail: Array, environment: Environment) -> list[Artist]:
    """Draw an arm, or an icon that heads where the agent does."""
    state = trail[-1]
    joints = environment.skeleton(state)
    if joints is not None:
        return draw_arm(ax, joints)
    icon, heading = str(environment.icon), 0.0
    if icon == "car":
        ahead = (state - trail[-2])[list(plane)] if len(trail) > 1 else np.array([0.0, 1.0])
        heading = float(np.arctan2(ahead[1], ahead[0]))
    elif icon == "drone":
        above = environment.space is None or plane == environment.space[:2]
        yaw, pitch = environment.attitude(state)
        icon, heading = ("drone", yaw) if above else ("drone from the side", -pitch)  # a positive pitch: nose down
    turn = np.array([[np.cos(heading), np.sin(heading)], [-np.sin(heading), np.cos(heading)]])
    place = ax.transData.transform(state[list(plane)])
    return [
        ax.add_patch(Polygon(place + corners @ turn, fc=color, ec="white", lw=0.4, transform=IdentityTransform()))
        for corners, color in ICONS[icon]
    ]
