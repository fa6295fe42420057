"""Pictures of running episodes as RGB arrays, for any environment whose first two state variables span a plane.

    shapes = task_shapes(edges, family.regions_at(index), start_center, start_half)
    scene = Scene.of(family.environment, "title", shapes)
    frame = paint(scene, trail, "running", "step 3 / 20")  # uint8 (height, width, 3)

`trail` holds the states (time, dim) so far. What does not move is drawn once per scene and reused for every frame.
The environment says what is drawn: `drawn` or `space` (from above and from the side), `icon`, for an arm `skeleton`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from dibs.envs import Array, Environment
from dibs.errors import DibsError
from dibs.spectrl import Edge, Region, cnf, conjuncts

Frame = npt.NDArray[np.uint8]
Role = Literal["start", "reach", "avoid", "stay"]
Point = tuple[float, float]

INK, PAPER, GRID, QUIET = (36, 41, 47), (255, 255, 255), (233, 236, 240), (120, 128, 138)
GREEN, RED, BLUE, PALE = (38, 152, 76), (207, 54, 48), (17, 88, 199), (176, 208, 250)
COLORS: dict[Role, tuple[int, int, int]] = {"avoid": RED, "stay": BLUE, "start": QUIET, "reach": GREEN}
"""Colors of shapes by role, in the order of drawing."""
OUTCOMES = {"success": GREEN, "unsafe": RED, "failed": RED}
"""Colors of the outcome in the banner; any other text is gray."""
FINE = 2  # pictures are drawn this much larger, then reduced, which smooths the edges
BANNER = 32  # height in pixels


class Outline(NamedTuple):
    """A box, ball or half-space to draw; `half` is infinite where a variable is free."""

    label: str
    role: Role
    center: Array
    half: Array
    radius: float = 0.0  # above 0: a ball
    normal: Array | None = None  # nonzero: a half-space, whose plane contains the center

    @property
    def bounded(self) -> Array:
        """Which variables (dim,) a region constrains; of the start, none counts."""
        cut = 0.0 if self.normal is None else self.normal
        return np.asarray((self.role != "start") & (np.isfinite(self.half) | (cut != 0.0)))


def region_roles(edges: Iterable[Edge]) -> dict[str, Role]:
    """Return what each region that the edges name is for; to be a target counts more than to be safe."""
    edges = list(edges)
    safe = [literal for edge in edges for clause in cnf(edge.safe) for literal in clause]
    roles: dict[str, Role] = {name: "stay" if inside else "avoid" for name, inside in safe}
    targets = [literal for edge in edges for literal in conjuncts(edge.target)]
    return roles | {name: "reach" if inside else "avoid" for name, inside in targets}


def task_shapes(
    edges: Iterable[Edge], boxes: Mapping[str, Region], start_center: Array, start_half: Array
) -> list[Outline]:
    """Return the shapes of a task: where it starts, and the regions of its edges."""
    regions = [
        Outline(n, role, boxes[n].center, boxes[n].reach, float(boxes[n].radius), boxes[n].normal)
        for n, role in region_roles(edges).items()
    ]
    return [Outline("start", "start", start_center, start_half), *regions]


def plane_of(environment: Environment, bounded: Iterable[Array]) -> tuple[int, int]:
    """Return the two state variables to draw: those that most regions constrain, if in doubt the environment's.

    `bounded` says of every region which variables (dim,) it constrains.
    """
    count = np.sum([np.zeros(len(environment.state_names)), *bounded], axis=0)
    usual = environment.drawn
    order = sorted(range(len(count)), key=lambda d: (-count[d], d not in usual, d))
    first, second = sorted(order[:2])
    return first, second


@dataclass(frozen=True, eq=False)
class Scene:
    """Everything in a picture that does not change during an episode."""

    environment: Environment
    title: str
    shapes: tuple[Outline, ...]
    accent: tuple[int, ...] | None = None
    """Color of the trail and of a mark in the banner; None: blue, and no mark."""

    @classmethod
    def of(
        cls, environment: Environment, title: str, shapes: Iterable[Outline], accent: tuple[int, ...] | None = None
    ) -> Scene:
        """Build a scene. The view fits the shapes to start from and to reach; others may stick out of it."""
        if len(environment.state_names) < 2:
            raise DibsError(f"{environment.name}: a picture needs two state variables, found one")
        ordered = sorted(shapes, key=lambda shape: list(COLORS).index(shape.role))
        return cls(environment, title, tuple(ordered), accent)

    @cached_property
    def panels(self) -> tuple[Panel, ...]:
        """One panel for each plane, all at the same scale."""
        lowest = self.environment.bounds[0]
        framed = [shape for shape in self.shapes if shape.role in ("start", "reach")]
        skeleton = self.environment.skeleton(framed[0].center)
        floor = None
        if skeleton is not None:
            base, reach = skeleton[0], float(np.linalg.norm(np.diff(skeleton, axis=0), axis=-1).sum())
            floor = float(lowest[1]) if np.isfinite(lowest[1]) else None
            depth = -1.08 * reach if floor is None else floor - base[1] - 0.12 * reach
            corners = np.array([[-1.08 * reach, depth], [1.08 * reach, 1.12 * reach]])
            views, planes, circle = [base + corners], [(0, 1)], Circle(base, reach)
        else:
            space, bounded = self.environment.space, (shape.bounded for shape in self.shapes)
            planes = (
                [plane_of(self.environment, bounded)] if space is None else [(space[0], space[1]), (space[0], space[2])]
            )
            circle = None
            views = [_view(framed, plane) for plane in planes]
        size = (400, 416) if len(planes) > 1 else (480, 448) if floor is None else (480, 304)
        scale = min(float((size / (high - low)).min()) for low, high in views)
        return tuple(
            _panel(self, plane, size, view, scale, circle, floor) for plane, view in zip(planes, views, strict=True)
        )


class Circle(NamedTuple):
    """What an arm can reach."""

    center: Array
    radius: float


@dataclass(frozen=True, eq=False)
class Panel:
    """One plane of the state space: its picture without the agent, and the map from states to pixels."""

    plane: tuple[int, int]
    picture: Image.Image
    origin: Point  # pixel of the plane's (0, 0)
    scale: float  # pixels per unit

    def at(self, point: Sequence[Any] | Array) -> Point:
        """Return the pixel of a point of the plane."""
        return self.origin[0] + self.scale * float(point[0]), self.origin[1] - self.scale * float(point[1])


def paint(scene: Scene, trail: Array, outcome: str = "running", progress: str = "") -> Frame:
    """Draw the states (time, dim) so far and the agent at the last one, below a banner with the given texts."""
    trail = np.asarray(trail, dtype=np.float64)
    width = sum(panel.picture.width for panel in scene.panels)
    frame = Image.new("RGB", (width, scene.panels[0].picture.height + BANNER * FINE), PAPER)
    left = 0
    for panel in scene.panels:
        picture = panel.picture.copy()
        _draw_trail(ImageDraw.Draw(picture, "RGBA"), panel, scene.environment, trail, scene.accent or BLUE)
        frame.paste(picture, (left, BANNER * FINE))
        left += picture.width
    _draw_banner(ImageDraw.Draw(frame), frame.size, scene, outcome, progress)
    return np.asarray(frame.reduce(FINE), dtype=np.uint8).copy()


# --- what does not change ---------------------------------------------------------------------------------


def _view(shapes: Sequence[Outline], plane: tuple[int, int]) -> Array:
    """Lowest and highest corner (2, 2) of the shapes in a plane, with some room around them."""
    centers = np.stack([shape.center for shape in shapes])[:, plane]
    halves = np.stack([shape.half for shape in shapes])[:, plane]
    halves = np.where(np.isfinite(halves), halves, 0.0)
    low, high = (centers - halves).min(axis=0), (centers + halves).max(axis=0)
    room = 0.12 * (high - low).max() + 0.1
    return np.stack([low - room, high + room])


def _panel(
    scene: Scene,
    plane: tuple[int, int],
    size: tuple[int, int],
    view: Array,
    scale: float,
    circle: Circle | None,
    floor: float | None,
) -> Panel:
    """Draw the grid, the shapes and their names; around an arm also its reach and the floor below it."""
    width, height = FINE * size[0], FINE * size[1]
    scale *= FINE
    x, y = (float(c) for c in view.mean(axis=0))
    panel = Panel(
        plane, Image.new("RGB", (width, height), PAPER), (width / 2 - scale * x, height / 2 + scale * y), scale
    )
    draw = ImageDraw.Draw(panel.picture, "RGBA")
    if circle is not None:
        corner = np.array([-circle.radius, circle.radius])
        box = (*panel.at(circle.center + corner), *panel.at(circle.center - corner))
        draw.ellipse(box, outline=(*QUIET, 110), width=FINE)
    ground = panel.at((0.0, floor or 0.0))[1]
    if floor is not None:
        draw.rectangle((0, ground, width, height), fill=(241, 238, 233))
    names = scene.environment.state_names
    _draw_grid(draw, panel, (names[plane[0]], names[plane[1]]))
    if floor is not None:
        draw.line((0, ground, width, ground), fill=(150, 140, 128), width=2 * FINE)
    for shape in scene.shapes:
        _draw_shape(draw, panel, shape)
    return panel


def _draw_grid(draw: ImageDraw.ImageDraw, panel: Panel, names: tuple[str, str]) -> None:
    width, height = panel.picture.size
    wanted = 64 * FINE / panel.scale  # about this many units between lines
    step = min((m * 10.0**e for e in range(-3, 4) for m in (1, 2, 5)), key=lambda s: abs(np.log(s / wanted)))
    font = _font(11)
    for axis, (side, name) in enumerate(zip((width, height), names, strict=True)):
        ends = [(side * end - panel.origin[axis]) / panel.scale * (1, -1)[axis] for end in (0, 1)]
        for k in range(int(np.ceil(min(ends) / step)), int(np.floor(max(ends) / step)) + 1):
            x, y = panel.at((k * step, k * step))
            line = (x, 0, x, height) if axis == 0 else (0, y, width, y)
            draw.line(line, fill=GRID, width=FINE)
            corner = (x + 3 * FINE, height - 3 * FINE) if axis == 0 else (3 * FINE, y - FINE)
            if (30 * FINE < x < width - 30 * FINE) if axis == 0 else (30 * FINE < y < height - 22 * FINE):
                draw.text(corner, f"{k * step:g}", fill=QUIET, font=font, anchor="lb")
        corner = (width - 8 * FINE, height - 6 * FINE) if axis == 0 else (6 * FINE, 6 * FINE)
        draw.text(corner, name, fill=INK, font=_font(14), anchor="rb" if axis == 0 else "lt")


def _draw_shape(draw: ImageDraw.ImageDraw, panel: Panel, shape: Outline) -> None:
    center, far = shape.center[list(panel.plane)], 4.0 * max(panel.picture.size) / panel.scale
    half = np.minimum(shape.half[list(panel.plane)], far)  # `far` stands for infinity
    (left, bottom), (right, top) = panel.at(center - half), panel.at(center + half)
    color = COLORS[shape.role]
    look: dict[str, Any] = {"fill": (*color, 44), "outline": color, "width": FINE}
    normal = np.zeros(2) if shape.normal is None else shape.normal[list(panel.plane)]
    if normal.any():
        sides = [panel.at(point) for point in half_plane(center - far, center + far, center, normal)]
        draw.polygon([(float(x), float(y)) for x, y in sides], **look)
        left, bottom, right, top = (*panel.at(center), *panel.at(center))
    elif shape.normal is not None and shape.normal.any():
        return  # its plane is not seen from here
    elif shape.radius > 0.0 and (half < far).all():
        draw.ellipse((left, top, right, bottom), **look)
    else:
        draw.rectangle((left, top, right, bottom), **look)
    # Agents end up inside a shape, and trails leave a start upward; names go elsewhere.
    above = top > 18 * FINE and shape.role != "start"
    place = ((left + right) / 2, top - 2 * FINE if above else bottom + 2 * FINE)
    draw.text(place, shape.label, fill=color, font=_font(13), anchor="mb" if above else "mt")


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


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size * FINE)


# --- what changes in every frame --------------------------------------------------------------------------


def _draw_banner(draw: ImageDraw.ImageDraw, size: tuple[int, int], scene: Scene, outcome: str, progress: str) -> None:
    height, pad = BANNER * FINE, 10 * FINE
    draw.rectangle((0, 0, size[0], height - FINE), fill=(246, 248, 250))
    draw.line((0, height - FINE, size[0], height - FINE), fill=(208, 215, 222), width=FINE)
    if scene.accent is not None:
        draw.rectangle((0, 0, pad // 2, height - FINE), fill=scene.accent)
    draw.text((pad, height / 2), scene.title, fill=INK, font=_font(14), anchor="lm")
    right = size[0] - 84 * FINE
    draw.text((right, height / 2), progress, fill=QUIET, font=_font(13), anchor="rm")
    pill = (right + 10 * FINE, 6 * FINE, size[0] - 8 * FINE, height - 8 * FINE)
    draw.rounded_rectangle(pill, radius=9 * FINE, fill=OUTCOMES.get(outcome, QUIET))
    middle = ((pill[0] + pill[2]) / 2, (pill[1] + pill[3]) / 2)
    draw.text(middle, outcome, fill=PAPER, font=_font(12), anchor="mm")
    for number in range(1, len(scene.panels)):
        x = number * size[0] / len(scene.panels)
        draw.line((x, height, x, size[1]), fill=(208, 215, 222), width=2 * FINE)


def _draw_trail(
    draw: ImageDraw.ImageDraw, panel: Panel, environment: Environment, trail: Array, late: tuple[int, ...]
) -> None:
    """Draw the way so far, later parts darker, and the agent at its end."""
    early = PALE if late == BLUE else tuple(255 - (255 - c) // 3 for c in late)
    pixels = [panel.at(state) for state in trail[:, panel.plane]]
    for k, (a, b) in enumerate(pairwise(pixels)):
        t = (k + 1) / (len(pixels) - 1)
        color = tuple(round((1 - t) * p + t * q) for p, q in zip(early, late, strict=True))
        draw.line((*a, *b), fill=color, width=3 * FINE)
        _disc(draw, b, 2.5, color)
    last = trail[-1]
    skeleton = environment.skeleton(last)
    if skeleton is not None:
        _draw_arm(draw, [panel.at(joint) for joint in skeleton])
    elif environment.icon == "drone":
        above = environment.space is None or panel.plane == environment.space[:2]
        draw_it = _draw_drone_from_above if above else _draw_drone_from_the_side
        draw_it(draw, pixels[-1], *environment.attitude(last))
    elif environment.icon == "car":
        ahead = (last - trail[-2])[list(panel.plane)] if len(trail) > 1 else np.array([0.0, 1.0])
        _draw_car(draw, pixels[-1], float(np.arctan2(ahead[1], ahead[0])))
    else:
        _disc(draw, pixels[-1], 7, BLUE, PAPER)


def _disc(draw: ImageDraw.ImageDraw, at: Point, radius: float, fill: Any, outline: Any = None) -> None:
    r = radius * FINE
    draw.ellipse((at[0] - r, at[1] - r, at[0] + r, at[1] + r), fill=fill, outline=outline, width=FINE)


def _turned(at: Point, angle: float, points: Sequence[Point]) -> list[Point]:
    """Map points given as pixels ahead and to the left of `at`, for a body that heads at `angle`."""
    c, s = float(np.cos(angle)), float(np.sin(angle))
    return [(at[0] + FINE * (ahead * c - left * s), at[1] - FINE * (ahead * s + left * c)) for ahead, left in points]


def _draw_car(draw: ImageDraw.ImageDraw, at: Point, heading: float) -> None:
    for x, y in ((-5, 6), (-5, -6), (6, 6), (6, -6)):
        wheel = [(x - 3, y - 1.5), (x + 3, y - 1.5), (x + 3, y + 1.5), (x - 3, y + 1.5)]
        draw.polygon(_turned(at, heading, wheel), fill=INK)
    body = [(-9, -5), (6, -5), (11, -3), (11, 3), (6, 5), (-9, 5)]
    draw.polygon(_turned(at, heading, body), fill=BLUE, outline=PAPER, width=FINE)
    draw.polygon(_turned(at, heading, [(2, -3.5), (6, -3), (6, 3), (2, 3.5)]), fill=(214, 231, 252))


def _draw_drone_from_above(draw: ImageDraw.ImageDraw, at: Point, psi: float, theta: float) -> None:
    rotors = _turned(at, psi, [(8, 8), (8, -8), (-8, 8), (-8, -8)])
    draw.line((*rotors[0], *rotors[3]), fill=INK, width=3 * FINE)
    draw.line((*rotors[1], *rotors[2]), fill=INK, width=3 * FINE)
    for rotor in rotors:
        _disc(draw, rotor, 5, (*PALE, 220), BLUE)
    draw.polygon(_turned(at, psi, [(14, 0), (4, 4), (4, -4)]), fill=RED)  # the nose
    _disc(draw, at, 4.5, BLUE, PAPER)


def _draw_drone_from_the_side(draw: ImageDraw.ImageDraw, at: Point, psi: float, theta: float) -> None:
    tilt = -theta  # a positive pitch turns the nose down
    ends = _turned(at, tilt, [(-11, 0), (11, 0)])
    draw.line((*ends[0], *ends[1]), fill=INK, width=3 * FINE)
    for ahead in (-11, 11):
        blade = _turned(at, tilt, [(ahead - 6, 4), (ahead + 6, 4), (ahead, 0), (ahead, 4)])
        draw.line((*blade[2], *blade[3]), fill=INK, width=2 * FINE)
        draw.line((*blade[0], *blade[1]), fill=BLUE, width=2 * FINE)
    _disc(draw, at, 4.5, BLUE, PAPER)
    _disc(draw, ends[1], 2.5, RED)


def _draw_arm(draw: ImageDraw.ImageDraw, joints: Sequence[Point]) -> None:
    thick = np.linspace(12, 9, len(joints) - 1)
    for (a, b), width in zip(pairwise(joints), thick, strict=True):
        draw.line((*a, *b), fill=INK, width=round((width + 2) * FINE))
        draw.line((*a, *b), fill=(96, 110, 128), width=round(width * FINE))
    draw.polygon(_turned(joints[0], 0.0, [(-20, -14), (20, -14), (11, 3), (-11, 3)]), fill=INK)
    for joint, radius in zip(joints[:-1], (9, *[7] * len(joints)), strict=False):
        _disc(draw, joint, radius, (222, 160, 40), INK)
    _disc(draw, joints[-1], 6, BLUE, PAPER)
