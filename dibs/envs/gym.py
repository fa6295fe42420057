"""Gymnasium environments: one reach-avoid edge of a family, or a whole benchmark under its monitor.

    gymnasium.make("dibs.envs.gym:dibs/Car2D-v0", family="car2d-reach", index=3, edge="g1>g2")
    gymnasium.make_vec("dibs.envs.gym:dibs/Car2D-v0", num_envs=64, benchmark="car2d-reach-k3")

What a task means stands in its functional core, `EdgeTask` or `SpecTask`: pure functions over a batch of
states. `Batch` adds the state that lives from step to step, and the classes below it (and the one for
Stable-Baselines3 beside this file) only translate between a batch and the conventions of their library.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from PIL import Image, ImageDraw, ImageFont

from dibs.envs.base import Array, Dynamics, check_array, sample_noise
from dibs.errors import DibsError, unknown
from dibs.families import Family, ReachAvoid, edge_named, get_benchmark, get_family, reach_avoid
from dibs.spectrl import Edge, Monitor, MonitorState, cnf, conjuncts, graph, parse, where

Bools = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]
Frame = npt.NDArray[np.uint8]

FIRST_FAMILY = {
    "Car2D": "car2d-reach",
    "Reacher": "reacher-stack-same-8",
    "SimpleDrone": "simpledrone-reach",
    "DroneAttitude": "droneattitude-reach",
}

# --- functional core --------------------------------------------------------------------------------------

Seen = TypeVar("Seen")


class Task(Protocol[Seen]):
    """A task as pure functions over a batch; `Seen` is what it remembers of the episodes so far."""

    @property
    def dynamics(self) -> Dynamics: ...

    @property
    def limit(self) -> int:
        """Steps after which an episode is cut off."""

    def initial(self, uniforms: Array) -> Array:
        """Map uniforms (n, dim) in [0, 1) to initial states (n, dim)."""

    def begin(self, states: Array) -> Seen:
        """What is known of episodes that start in the given states."""

    def watch(self, seen: Seen, states: Array) -> Seen:
        """What is known after one more step of every episode has led to the given states."""

    def restart(self, seen: Seen, states: Array, rows: Rows) -> Seen:
        """`seen`, with the episodes in `rows` started again in states[rows]."""

    def reward(self, seen: Seen) -> Array:
        """Reward (n,) of the step just watched."""

    def terminal(self, seen: Seen) -> Bools:
        """Which episodes (n,) are over after the step just watched."""

    def info(self, seen: Seen) -> dict[str, npt.NDArray[Any]]:
        """What a user may want to know, one array (n,) per key; `success` is always there."""


def transition(task: Task[Any], states: Array, actions: Array, noise: Array) -> Array:
    """One step of the task's dynamics."""
    return task.dynamics.step(states, actions, noise)


class EdgeSeen(NamedTuple):
    """Of each episode (n,): distances of its last state, whether any state was unsafe, and the outcome."""

    distance: Array
    safety: Array | None
    unsafe: Bools
    success: Bools


@dataclass(frozen=True, eq=False)
class EdgeTask:
    """One reach-avoid edge: over when the target is reached, a success if no state on the way was unsafe.

    As in `dibs.spectrl.Edge`, safety is asked of every state after the first.
    """

    task: ReachAvoid

    def __post_init__(self) -> None:
        if self.task.tasks != 1:
            raise DibsError(
                f"an environment runs one reach-avoid task, found {self.task.tasks}: "
                f"{', '.join(self.task.names)}; take one of them with .take([i])"
            )

    @property
    def dynamics(self) -> Dynamics:
        return self.task.dynamics

    @property
    def limit(self) -> int:
        return self.task.horizon

    def initial(self, uniforms: Array) -> Array:
        states = self.task.initial(uniforms[None])[0]
        return states if self._ends is None else np.clip(states, *self._ends)

    @cached_property
    def _ends(self) -> tuple[Array, Array] | None:
        """Where the state space ends: a region to start from may stick out of it, below the floor, say."""
        low, high = np.asarray(self.dynamics.bounds, dtype=np.float32)
        return (low, high) if np.isfinite([low, high]).any() else None

    def begin(self, states: Array) -> EdgeSeen:
        never = np.zeros(len(states), dtype=bool)
        return EdgeSeen(self.task.target_distance(states[None])[0], None, never, never)

    def watch(self, seen: EdgeSeen, states: Array) -> EdgeSeen:
        distance = self.task.target_distance(states[None])[0]
        safeties = self.task.safe_distance(states[None])
        if safeties is None:
            return EdgeSeen(distance, None, seen.unsafe, distance >= 0.0)
        unsafe = seen.unsafe | (safeties[0] < 0.0)
        return EdgeSeen(distance, safeties[0], unsafe, (distance >= 0.0) & ~unsafe)

    def restart(self, seen: EdgeSeen, states: Array, rows: Rows) -> EdgeSeen:
        # The distances stay those of the last step: nobody asks before the next one.
        unsafe, success = seen.unsafe.copy(), seen.success.copy()
        unsafe[rows] = success[rows] = False
        return seen._replace(unsafe=unsafe, success=success)

    def reward(self, seen: EdgeSeen) -> Array:
        return self.task.reward(seen.distance, seen.safety)

    def terminal(self, seen: EdgeSeen) -> Bools:
        return np.asarray(seen.distance >= 0.0)

    def info(self, seen: EdgeSeen) -> dict[str, npt.NDArray[Any]]:
        return {"success": seen.success.copy(), "unsafe": seen.unsafe.copy()}


class SpecSeen(NamedTuple):
    """What the monitor knows, how far each episode (n,) is, how far it was a step ago, and its steps."""

    monitor: MonitorState
    stage: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]
    steps: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class SpecTask:
    """A whole specification: over when the monitor says satisfied or violated.

    The reward is the monitor's distance to what comes next, a bonus for every stage completed, and the
    family's penalty for a violation. A violated episode also pays at once for the steps it gives up:
    every step costs something, so ending early would be a gain otherwise.
    """

    family: Family
    monitor: Monitor
    start: EdgeTask
    """Any edge that leaves the initial states; it is only asked for them."""
    stage_bonus: float = 1.0

    @property
    def dynamics(self) -> Dynamics:
        return self.family.dynamics

    @property
    def limit(self) -> int:
        return self.monitor.stages * self.family.horizon

    def initial(self, uniforms: Array) -> Array:
        return self.start.initial(uniforms)

    def begin(self, states: Array) -> SpecSeen:
        monitor = self.monitor.start(states)
        stage = self.monitor.stage(monitor)
        return SpecSeen(monitor, stage, stage, np.zeros(len(states), dtype=np.int64))

    def watch(self, seen: SpecSeen, states: Array) -> SpecSeen:
        monitor = self.monitor.advance(seen.monitor, states)
        return SpecSeen(monitor, self.monitor.stage(monitor), seen.stage, seen.steps + 1)

    def restart(self, seen: SpecSeen, states: Array, rows: Rows) -> SpecSeen:
        mask = np.zeros(len(states), dtype=bool)
        mask[rows] = True
        fresh = self.begin(states)
        return SpecSeen(
            where(mask, fresh.monitor, seen.monitor),
            *(np.where(mask, new, old) for new, old in zip(fresh[1:], seen[1:], strict=True)),
        )

    def reward(self, seen: SpecSeen) -> Array:
        cost = np.minimum(self.monitor.progress_robustness(seen.monitor), 0.0) / self.family.reward.unit
        bonus = self.stage_bonus * np.maximum(seen.stage - seen.before, 0)
        given_up = cost * (self.limit - seen.steps) - self.family.reward.unsafe_penalty
        return np.asarray(cost + bonus + np.where(self.monitor.violated(seen.monitor), given_up, 0.0))

    def terminal(self, seen: SpecSeen) -> Bools:
        return np.asarray(self.monitor.satisfied(seen.monitor) | self.monitor.violated(seen.monitor))

    def info(self, seen: SpecSeen) -> dict[str, npt.NDArray[Any]]:
        satisfied = np.array(self.monitor.satisfied(seen.monitor))
        return {
            "stage": seen.stage.copy(),
            "satisfied": satisfied,
            "violated": np.array(self.monitor.violated(seen.monitor)),
            "success": satisfied.copy(),
        }


class Batch:
    """n episodes of one task, side by side; noise and initial uniforms are handed in."""

    states: Array  # (n, dim)
    steps: npt.NDArray[np.int32]  # (n,) since the episode began
    trail: Array | None  # (n, limit + 1, dim): the states of the running episodes, where asked for

    def __init__(self, task: Task[Any], n: int, keep_trail: bool = False) -> None:
        if n < 1:
            raise DibsError(f"number of environments: expected at least 1, found {n}")
        self.task, self.n = task, n
        self.dim, self.actions = len(task.dynamics.state_names), len(task.dynamics.action_names)
        self.trail = np.zeros((n, task.limit + 1, self.dim), dtype=np.float32) if keep_trail else None
        self.seen: Any = None

    def begin(self, states: Array) -> None:
        """Start every episode, in the given states."""
        self.states, self.steps = states, np.zeros(self.n, dtype=np.int32)
        self.seen = self.task.begin(states)
        if self.trail is not None:
            self.trail[:, 0] = states

    def step(self, actions: Array, noise: Array) -> tuple[Array, Bools, Bools]:
        """Move every episode one step: reward, terminated, truncated."""
        if self.seen is None:
            raise DibsError("step: no episode has begun; call reset() first")
        self.states = transition(self.task, self.states, actions, noise)
        self.steps += 1
        self.seen = self.task.watch(self.seen, self.states)
        if self.trail is not None:
            self.trail[np.arange(self.n), np.minimum(self.steps, self.task.limit)] = self.states
        terminated = self.task.terminal(self.seen)
        return self.task.reward(self.seen), terminated, (self.steps >= self.task.limit) & ~terminated

    def restart(self, rows: Rows, states: Array) -> None:
        """Start the episodes in `rows` again, in the given states (rows, dim)."""
        self.states[rows] = states
        self.steps[rows] = 0
        self.seen = self.task.restart(self.seen, self.states, rows)
        if self.trail is not None:
            self.trail[rows, 0] = states

    def start_states(self, rng: np.random.Generator, options: Mapping[str, Any] | None = None) -> Array:
        """Initial states (n, dim): drawn, or those of `options["state"]`."""
        options = options or {}
        if options.keys() - {"state"}:
            raise unknown("reset option", min(options.keys() - {"state"}), ["state"])
        if "state" not in options:
            return self.task.initial(rng.random((self.n, self.dim), dtype=np.float32))
        states = check_array("reset option 'state'", options["state"], self.dim)
        if states.ndim > 2 or (states.ndim == 2 and len(states) not in (1, self.n)):
            raise DibsError(f"reset option 'state': expected {(self.n, self.dim)}, found {states.shape}")
        return np.array(np.broadcast_to(states, (self.n, self.dim)), dtype=np.float32)


def checked_actions(actions: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    """Actions as float32, or an error that says what is wrong with them."""
    array = check_array("action", actions, shape[-1])
    if array.shape != shape:
        raise DibsError(f"action: expected shape {shape}, found {array.shape}")
    return array.astype(np.float32, copy=False)


def spaces_of(dynamics: Dynamics) -> tuple[spaces.Box, spaces.Box]:
    """Observation and action space of one environment."""
    low, high = (np.asarray(bound, dtype=np.float32) for bound in dynamics.bounds)
    return spaces.Box(low, high), spaces.Box(-1.0, 1.0, (len(dynamics.action_names),))


# --- Gymnasium's conventions ------------------------------------------------------------------------------


class TaskEnv(gymnasium.Env[npt.NDArray[Any], npt.NDArray[Any]]):
    """One environment. See `make_task` for the arguments."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 8}  # type: ignore[misc]

    def __init__(
        self,
        environment: str,
        family: str | Family | None = None,
        index: int = 0,
        edge: str | None = None,
        benchmark: str | None = None,
        specification: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = _known_mode(render_mode)
        task, self._scene = make_task(environment, family, index, edge, benchmark, specification)
        self.batch = Batch(task, 1, keep_trail=render_mode is not None)
        self.observation_space, self.action_space = spaces_of(task.dynamics)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode; options may hold the initial `state`."""
        super().reset(seed=seed)
        self.batch.begin(self.batch.start_states(self.np_random, options))
        return self.batch.states[0].copy(), self._info()

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        actions = checked_actions(action, (self.batch.actions,))[None]
        noise = sample_noise(self.np_random, (1, self.batch.dim))
        reward, terminated, truncated = self.batch.step(actions, noise)
        state = self.batch.states[0].copy()
        return state, float(reward[0]), bool(terminated[0]), bool(truncated[0]), self._info()

    def render(self) -> Frame | None:
        """Draw the episode so far."""
        if self.render_mode is None:
            return None
        return _paint(self._scene, self.batch, 0)

    def _info(self) -> dict[str, Any]:
        return {key: values[0].item() for key, values in self.batch.task.info(self.batch.seen).items()}


class TaskVectorEnv(gymnasium.vector.VectorEnv[Array, Array, npt.NDArray[Any]]):
    """Many environments in one array; an episode that ends starts again within the same step."""

    metadata: dict[str, Any] = {  # noqa: RUF012 (declared so in the base class)
        **TaskEnv.metadata,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self,
        environment: str,
        num_envs: int = 1,
        family: str | Family | None = None,
        index: int = 0,
        edge: str | None = None,
        benchmark: str | None = None,
        specification: str | None = None,
        render_mode: str | None = None,
    ) -> None:
        self.render_mode = _known_mode(render_mode)
        task, self._scene = make_task(environment, family, index, edge, benchmark, specification)
        self.batch = Batch(task, num_envs, keep_trail=render_mode is not None)
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = spaces_of(task.dynamics)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start all episodes; options may hold the initial `state`, one for all or one each."""
        super().reset(seed=seed)
        self.batch.begin(self.batch.start_states(self.np_random, options))
        return self.batch.states.copy(), self._info()

    def step(
        self, actions: Array
    ) -> tuple[Array, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        """Take one step in every environment; `final_obs` and `final_info` tell of episodes that ended."""
        actions = checked_actions(actions, (self.num_envs, self.batch.actions))
        noise = sample_noise(self.np_random, (self.num_envs, self.batch.dim))
        reward, terminated, truncated = self.batch.step(actions, noise)
        finished = terminated | truncated
        rows = np.flatnonzero(finished)
        final: dict[str, Any] = {}
        if len(rows):
            last = np.full(self.num_envs, None, dtype=object)
            for row in rows:
                last[row] = self.batch.states[row].copy()
            final = {"final_obs": last, "_final_obs": finished.copy()}
            final |= {"final_info": self._info(finished), "_final_info": finished.copy()}
            uniforms = self.np_random.random((len(rows), self.batch.dim), dtype=np.float32)
            self.batch.restart(rows, self.batch.task.initial(uniforms))
        return (
            self.batch.states.copy(),
            reward.astype(np.float64),
            terminated,
            truncated,
            self._info() | final,
        )

    def render(self) -> tuple[Frame, ...] | None:
        """Draw every episode so far, one frame each."""
        if self.render_mode is None:
            return None
        return tuple(_paint(self._scene, self.batch, row) for row in range(self.num_envs))

    def _info(self, mask: Bools | None = None) -> dict[str, Any]:
        """Gymnasium's way: an array per key, and under `_key` whose entries count."""
        mask = np.ones(self.num_envs, dtype=bool) if mask is None else mask
        info: dict[str, Any] = {}
        for key, values in self.batch.task.info(self.batch.seen).items():
            info[key], info[f"_{key}"] = np.where(mask, values, np.zeros_like(values)), mask.copy()
        return info


def make_task(
    environment: str,
    family: str | Family | None = None,
    index: int = 0,
    edge: str | None = None,
    benchmark: str | None = None,
    specification: str | None = None,
) -> tuple[Task[Any], Scene]:
    """Build what an environment runs, and how to draw it.

    Either one edge of a family (a name, the path of a YAML file, or a `Family`; by default the paper's first
    for this environment) at `index`, by default the family's first edge; or all of `benchmark`, or of a
    `specification` over the family's regions, at `index`.
    """
    if environment not in FIRST_FAMILY:
        raise unknown("environment", environment, FIRST_FAMILY)
    if benchmark is not None:
        if family is not None or edge is not None:
            raise DibsError(f"benchmark '{benchmark}' names its family and all edges; leave out family and edge")
        chosen, specification = get_benchmark(benchmark)
    else:
        chosen = family if isinstance(family, Family) else get_family(family or FIRST_FAMILY[environment])
    if chosen.environment.name != environment:
        right = chosen.environment.name
        raise DibsError(f"{chosen.name} is a family of {right}, not of {environment}: make dibs/{right}-v0")
    chosen.check_index(index, beyond=True)
    picked = chosen.edges[0] if edge is None else edge_named(chosen, edge)
    start = EdgeTask(reach_avoid(chosen, [index], [picked.name]))
    if specification is None:
        return start, Scene.of(chosen, index, (picked,), start, f"{chosen.name}  i = {index}  {picked.name}")
    spec = parse(specification)
    task = SpecTask(chosen, Monitor(spec, chosen.boxes(index)), start)
    return task, Scene.of(chosen, index, graph(spec).edges, start, f"{benchmark or chosen.name}  i = {index}")


def register() -> None:
    """Make the environments known to Gymnasium; importing this module has done so already."""
    for name in FIRST_FAMILY:
        if f"dibs/{name}-v0" not in gymnasium.registry:
            gymnasium.register(
                id=f"dibs/{name}-v0",
                entry_point="dibs.envs.gym:TaskEnv",
                vector_entry_point="dibs.envs.gym:TaskVectorEnv",
                kwargs={"environment": name},
            )


def _known_mode(render_mode: str | None) -> str | None:
    if render_mode not in (None, "rgb_array"):
        raise unknown("render mode", render_mode, ["rgb_array"])
    return render_mode


# --- drawing ----------------------------------------------------------------------------------------------

INK, PAPER, GRID, QUIET = (36, 41, 47), (255, 255, 255), (233, 236, 240), (120, 128, 138)
GREEN, RED, BLUE, PALE = (38, 152, 76), (207, 54, 48), (17, 88, 199), (176, 208, 250)
FINE = 2  # drawn this much larger and then reduced, which smooths the edges
BANNER = 32  # pixels


class Shape(NamedTuple):
    """A box to draw."""

    label: str
    color: tuple[int, int, int]
    center: npt.NDArray[np.float64]
    half: npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Scene:
    """What stands still while an episode runs."""

    dynamics: Dynamics
    title: str
    framed: tuple[Shape, ...]
    """Where the episodes start and what they are to reach: always in sight."""
    beside: tuple[Shape, ...]
    """Drawn as far as it is in sight."""

    @classmethod
    def of(cls, family: Family, index: int, edges: tuple[Edge, ...], start: EdgeTask, title: str) -> Scene:
        """The scene of the given edges, whose episodes start as those of `start`."""
        boxes = {name: (box.center, box.half_width) for name, box in family.boxes(index).items()}
        goals = {name: inside for edge in edges for name, inside in conjuncts(edge.target)}
        kept = {name: inside for edge in edges for clause in cnf(edge.safe) for name, inside in clause}
        framed = [Shape("start", QUIET, start.task.start_center[0], start.task.start_half[0])]
        framed += [Shape(name, GREEN if inside else RED, *boxes[name]) for name, inside in goals.items()]
        beside = [Shape(n, BLUE if inside else RED, *boxes[n]) for n, inside in kept.items() if n not in goals]
        return cls(family.dynamics, title, tuple(framed), tuple(beside))

    @cached_property
    def panels(self) -> tuple[Panel, ...]:
        """One panel for each plane, all at the same scale."""
        names = self.dynamics.state_names
        planes = ((0, 1), (0, 2)) if "z" in names else ((0, 1),)
        arm = 2.0 * getattr(self.dynamics, "link", 0.0)
        size = (400, 416) if len(planes) > 1 else (480, 304) if arm else (480, 448)
        views = [_view(self.framed, plane, arm) for plane in planes]
        scale = min(side / (high - low) for view in views for side, (low, high) in zip(size, view, strict=True))
        return tuple(
            Panel.of(plane, (names[plane[0]], names[plane[1]]), size, view, scale, self.beside + self.framed, arm)
            for plane, view in zip(planes, views, strict=True)
        )


@dataclass(frozen=True, eq=False)
class Panel:
    """One plane of the state space: its picture without the agent, and the map from states to pixels."""

    plane: tuple[int, int]
    picture: Image.Image
    origin: tuple[float, float]  # pixel of the plane's (0, 0)
    scale: float  # pixels per unit

    @classmethod
    def of(
        cls,
        plane: tuple[int, int],
        names: tuple[str, str],
        size: tuple[int, int],
        view: tuple[tuple[float, float], tuple[float, float]],
        scale: float,
        shapes: tuple[Shape, ...],
        arm: float,
    ) -> Panel:
        """Draw the grid, the shapes and their names; `arm` is the reach of an arm that stands on a floor."""
        width, height = FINE * size[0], FINE * size[1]
        scale *= FINE
        (x0, x1), (y0, y1) = view
        origin = (width / 2 - scale * (x0 + x1) / 2, height / 2 + scale * (y0 + y1) / 2)
        panel = cls(plane, Image.new("RGB", (width, height), PAPER), origin, scale)
        draw = ImageDraw.Draw(panel.picture, "RGBA")
        if arm:
            (left, top), (right, bottom) = panel.at((-arm, arm)), panel.at((arm, -arm))
            draw.ellipse((left, top, right, bottom), outline=(*QUIET, 110), width=FINE)
            draw.rectangle((0, panel.origin[1], width, height), fill=(241, 238, 233))
        panel._grid(draw, names)
        if arm:
            draw.line((0, panel.origin[1], width, panel.origin[1]), fill=(150, 140, 128), width=2 * FINE)
        for shape in shapes:
            panel._box(draw, shape)
        return panel

    def at(self, point: tuple[float, float]) -> tuple[float, float]:
        """Pixel of a point of the plane."""
        return self.origin[0] + self.scale * point[0], self.origin[1] - self.scale * point[1]

    def _grid(self, draw: ImageDraw.ImageDraw, names: tuple[str, str]) -> None:
        width, height = self.picture.size
        wanted = 64 * FINE / self.scale  # about this many units between lines
        step = min((m * 10.0**e for e in range(-3, 4) for m in (1, 2, 5)), key=lambda s: abs(np.log(s / wanted)))
        font = _font(11)
        for axis, (side, name) in enumerate(zip((width, height), names, strict=True)):
            ends = [(side * end - self.origin[axis]) / self.scale * (1, -1)[axis] for end in (0, 1)]
            for k in range(int(np.ceil(min(ends) / step)), int(np.floor(max(ends) / step)) + 1):
                x, y = self.at((k * step, k * step))
                line = (x, 0, x, height) if axis == 0 else (0, y, width, y)
                draw.line(line, fill=GRID, width=FINE)
                where_to = (x + 3 * FINE, height - 3 * FINE) if axis == 0 else (3 * FINE, y - FINE)
                if (30 * FINE < x < width - 30 * FINE) if axis == 0 else (30 * FINE < y < height - 22 * FINE):
                    draw.text(where_to, f"{k * step:g}", fill=QUIET, font=font, anchor="lb")
            corner = (width - 8 * FINE, height - 6 * FINE) if axis == 0 else (6 * FINE, 6 * FINE)
            draw.text(corner, name, fill=INK, font=_font(14), anchor="rb" if axis == 0 else "lt")

    def _box(self, draw: ImageDraw.ImageDraw, shape: Shape) -> None:
        i, j = self.plane
        reach = 4.0 * max(self.picture.size) / self.scale  # stands in for infinity
        half_x, half_y = min(shape.half[i], reach), min(shape.half[j], reach)
        left, top = self.at((shape.center[i] - half_x, shape.center[j] + half_y))
        right, bottom = self.at((shape.center[i] + half_x, shape.center[j] - half_y))
        draw.rectangle((left, top, right, bottom), fill=(*shape.color, 44), outline=shape.color, width=FINE)
        # Not inside, where the agent ends up, and a start's name not above it, where the trail begins.
        centre = (left + right) / 2
        if top > 18 * FINE and shape.color != QUIET:
            draw.text((centre, top - 2 * FINE), shape.label, fill=shape.color, font=_font(13), anchor="mb")
        else:
            draw.text((centre, bottom + 2 * FINE), shape.label, fill=shape.color, font=_font(13), anchor="mt")


def _view(
    shapes: tuple[Shape, ...], plane: tuple[int, int], arm: float
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Lowest and highest coordinate to show along both axes of a plane: the shapes and some room."""
    if arm:
        return (-1.08 * arm, 1.08 * arm), (-0.12 * arm, 1.12 * arm)
    ends = []
    for axis in plane:
        low = min(s.center[axis] - (s.half[axis] if np.isfinite(s.half[axis]) else 0.0) for s in shapes)
        high = max(s.center[axis] + (s.half[axis] if np.isfinite(s.half[axis]) else 0.0) for s in shapes)
        ends.append((float(low), float(high)))
    room = 0.12 * max(high - low for low, high in ends) + 0.1
    return tuple((low - room, high + room) for low, high in ends)  # type: ignore[return-value]


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size * FINE)


def _paint(scene: Scene, batch: Batch, row: int) -> Frame:
    """Draw episode `row`: the banner, and in every panel its trail and the agent."""
    assert batch.trail is not None
    steps = int(batch.steps[row])
    trail = batch.trail[row, : min(steps, batch.task.limit) + 1].astype(np.float64)
    width = sum(panel.picture.width for panel in scene.panels)
    frame = Image.new("RGB", (width, scene.panels[0].picture.height + BANNER * FINE), PAPER)
    left = 0
    for panel in scene.panels:
        picture = panel.picture.copy()
        _draw_trail(ImageDraw.Draw(picture, "RGBA"), panel, scene.dynamics, trail)
        frame.paste(picture, (left, BANNER * FINE))
        left += picture.width
    info = {key: values[row].item() for key, values in batch.task.info(batch.seen).items()}
    _draw_banner(ImageDraw.Draw(frame), frame.size, scene, info, f"{steps} / {batch.task.limit}")
    return np.asarray(frame.reduce(FINE), dtype=np.uint8).copy()


def _draw_banner(
    draw: ImageDraw.ImageDraw, size: tuple[int, int], scene: Scene, info: dict[str, Any], count: str
) -> None:
    height, pad = BANNER * FINE, 10 * FINE
    bad = info.get("unsafe") or info.get("violated")
    color, word = (GREEN, "success") if info["success"] else (RED, "unsafe") if bad else (QUIET, "running")
    draw.rectangle((0, 0, size[0], height - FINE), fill=(246, 248, 250))
    draw.line((0, height - FINE, size[0], height - FINE), fill=(208, 215, 222), width=FINE)
    draw.text((pad, height / 2), scene.title, fill=INK, font=_font(14), anchor="lm")
    stage = f"stage {info['stage']}   " if "stage" in info else ""
    right = size[0] - 84 * FINE
    draw.text((right, height / 2), f"{stage}step {count}", fill=QUIET, font=_font(13), anchor="rm")
    pill = (right + 10 * FINE, 6 * FINE, size[0] - 8 * FINE, height - 8 * FINE)
    draw.rounded_rectangle(pill, radius=9 * FINE, fill=color)
    middle = ((pill[0] + pill[2]) / 2, (pill[1] + pill[3]) / 2)
    draw.text(middle, word, fill=PAPER, font=_font(12), anchor="mm")
    for number in range(1, len(scene.panels)):
        x = number * size[0] / len(scene.panels)
        draw.line((x, height, x, size[1]), fill=(208, 215, 222), width=2 * FINE)


def _draw_trail(draw: ImageDraw.ImageDraw, panel: Panel, dynamics: Dynamics, trail: Array) -> None:
    """The way so far, darker the later, and the agent at its end."""
    pixels = [panel.at((state[panel.plane[0]], state[panel.plane[1]])) for state in trail]
    for k, (a, b) in enumerate(pairwise(pixels)):
        t = (k + 1) / max(len(pixels) - 1, 1)
        color = tuple(round((1 - t) * p + t * q) for p, q in zip(PALE, BLUE, strict=True))
        draw.line((*a, *b), fill=color, width=3 * FINE)
        _disc(draw, b, 2.5 * FINE, color)
    joints = getattr(dynamics, "joints", None)
    if joints is not None:
        theta1, _ = joints(trail[-1])
        link = dynamics.link  # type: ignore[attr-defined]
        elbow = panel.at((link * float(np.cos(theta1)), link * float(np.sin(theta1))))
        _draw_arm(draw, [panel.at((0.0, 0.0)), elbow, pixels[-1]])
        return
    if "z" in dynamics.state_names:
        attitude = dict(zip(dynamics.state_names, trail[-1], strict=True))
        _draw_drone(draw, panel, pixels[-1], attitude.get("psi", 0.0), attitude.get("theta", 0.0))
        return
    ahead = trail[-1] - trail[-2] if len(trail) > 1 else np.array([0.0, 1.0])
    _draw_car(draw, pixels[-1], float(np.arctan2(ahead[1], ahead[0])))


def _disc(draw: ImageDraw.ImageDraw, at: tuple[float, float], radius: float, fill: Any, outline: Any = None) -> None:
    box = (at[0] - radius, at[1] - radius, at[0] + radius, at[1] + radius)
    draw.ellipse(box, fill=fill, outline=outline, width=FINE)


def _turned(at: tuple[float, float], angle: float, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Points given forward and leftward of `at`, in pixels, for a body heading at `angle`."""
    c, s = float(np.cos(angle)), float(np.sin(angle))
    return [(at[0] + FINE * (f * c - l * s), at[1] - FINE * (f * s + l * c)) for f, l in points]  # noqa: E741


def _draw_car(draw: ImageDraw.ImageDraw, at: tuple[float, float], heading: float) -> None:
    for wheel in ((-5, 6), (-5, -6), (6, 6), (6, -6)):
        f, left = wheel
        corners = [(f - 3, left - 1.5), (f + 3, left - 1.5), (f + 3, left + 1.5), (f - 3, left + 1.5)]
        draw.polygon(_turned(at, heading, corners), fill=INK)
    body = [(-9, -5), (6, -5), (11, -3), (11, 3), (6, 5), (-9, 5)]
    draw.polygon(_turned(at, heading, body), fill=BLUE, outline=PAPER, width=FINE)
    draw.polygon(_turned(at, heading, [(2, -3.5), (6, -3), (6, 3), (2, 3.5)]), fill=(214, 231, 252))


def _draw_drone(draw: ImageDraw.ImageDraw, panel: Panel, at: tuple[float, float], psi: float, theta: float) -> None:
    if panel.plane == (0, 1):  # from above: four rotors, and a nose
        rotors = _turned(at, psi, [(8, 8), (8, -8), (-8, 8), (-8, -8)])
        draw.line((*rotors[0], *rotors[3]), fill=INK, width=3 * FINE)
        draw.line((*rotors[1], *rotors[2]), fill=INK, width=3 * FINE)
        for rotor in rotors:
            _disc(draw, rotor, 5 * FINE, (*PALE, 220), BLUE)
        draw.polygon(_turned(at, psi, [(14, 0), (4, 4), (4, -4)]), fill=RED)
        _disc(draw, at, 4.5 * FINE, BLUE, PAPER)
        return
    tilt = -theta  # a positive pitch turns the nose down
    ends = _turned(at, tilt, [(-11, 0), (11, 0)])
    draw.line((*ends[0], *ends[1]), fill=INK, width=3 * FINE)
    for forward in (-11, 11):
        blade = _turned(at, tilt, [(forward - 6, 4), (forward + 6, 4), (forward, 0), (forward, 4)])
        draw.line((*blade[2], *blade[3]), fill=INK, width=2 * FINE)
        draw.line((*blade[0], *blade[1]), fill=BLUE, width=2 * FINE)
    _disc(draw, at, 4.5 * FINE, BLUE, PAPER)
    _disc(draw, ends[1], 2.5 * FINE, RED)


def _draw_arm(draw: ImageDraw.ImageDraw, joints: list[tuple[float, float]]) -> None:
    for (a, b), thick in zip(pairwise(joints), (12, 9), strict=True):
        draw.line((*a, *b), fill=INK, width=(thick + 2) * FINE)
        draw.line((*a, *b), fill=(96, 110, 128), width=thick * FINE)
    foot = joints[0]
    draw.polygon(_turned(foot, 0.0, [(-20, -14), (20, -14), (11, 3), (-11, 3)]), fill=INK)
    _disc(draw, foot, 9 * FINE, (222, 160, 40), INK)
    _disc(draw, joints[1], 7 * FINE, (222, 160, 40), INK)
    _disc(draw, joints[2], 6 * FINE, BLUE, PAPER)


register()
