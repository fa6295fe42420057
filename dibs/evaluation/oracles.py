"""Oracle controllers: hand-written policies that know the regions, one per environment.

They learn nothing and are not a method. They show that every task can be solved (a benchmark whose oracle fails
measures nothing), and they stand in for trained policies in tests and drawings. Another package adds one for its own
environment with `CONTROLLERS[Boat] = steer`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np

from dibs.envs import Array, Car2D, DroneAttitude, Environment, Reacher, SimpleDrone
from dibs.errors import DibsError
from dibs.families import ReachAvoid, Tasks
from dibs.simulation import BasePolicy, Moment

Controller: TypeAlias = Callable[[Array], Array]
"""States (..., n) to actions (..., m)."""

CLEARANCE = 0.35
"""How far from an obstacle a detour's corners lie."""
MARGIN = 0.2
"""A straight line that comes closer than this to an obstacle is blocked; several steps of noise fit in."""
AHEAD = 2.0
"""How far ahead an arm aims on a straight line, in turns of one joint by its rate at full length of a link."""


@dataclass(frozen=True, eq=False)
class Goal:
    """A reach-avoid task as a controller needs it."""

    aim: Array  # (dim,): the middle of the target; NaN where it is free
    low: Array  # (obstacles, dim): lower corners of what must be avoided
    high: Array  # (obstacles, dim)


# --- controllers -----------------------------------------------------------------------------------------


def oracle(tasks: Tasks, index: int, edge: str) -> Controller:
    """Return the controller that solves `edge` at `index`."""
    environment = tasks.environment
    try:
        control = CONTROLLERS[type(environment)]
    except KeyError:
        raise DibsError(f"{tasks.name}: no oracle is written for environment {environment.name}") from None
    goal = goal_of(tasks.ground([(index, edge)]))
    if len(goal.low) and control is fly_level:
        raise DibsError(f"{tasks.name}: the oracle of {environment.name} knows no way around obstacles")
    return partial(control, environment, goal)


def goal_of(task: ReachAvoid) -> Goal:
    """Return the middle of the target, and the boxes to avoid, of a single task."""
    reach, avoid = task.target_sign[0] > 0, task.target_sign[0] < 0
    target, obstacles = task.target[0], task.safe[0]
    for regions in (target, obstacles):
        if regions.arrays()["normal"].any():
            raise DibsError(f"{task.names[0]}: the oracles know boxes and balls, no half-spaces")
    center, half = target.center, target.reach  # (literals, dim); balls by the boxes around them
    low, high = (center - half)[reach].max(axis=0), (center + half)[reach].min(axis=0)
    bounded = np.isfinite(low)
    aim = np.full(low.shape, np.nan)
    aim[bounded] = (low[bounded] + high[bounded]) / 2

    sign = task.safe_sign[0]  # (clauses, literals)
    alone = (np.abs(sign).sum(axis=-1) == 1) & (sign.sum(axis=-1) < 0)  # clauses of one avoid(…)
    if (~alone & sign.any(axis=-1)).any():
        raise DibsError(f"{task.names[0]}: the oracles know only conjunctions of avoid(…) as safe sets")
    boxes = [(center[avoid], half[avoid])]
    if alone.any():
        boxes.append((obstacles.center[sign < 0], obstacles.reach[sign < 0]))
    centers, halves = (np.concatenate(arrays) for arrays in zip(*boxes, strict=True))
    return Goal(aim, centers - halves, centers + halves)


def drive(car: Car2D, goal: Goal, states: Array) -> Array:
    """Head for the target, or for the first corner of the shortest way around the obstacles."""
    offset = _detour(goal, states)
    distance = np.hypot(offset[..., 0], offset[..., 1])
    v = np.minimum(distance / car.speed, 1.0)
    return np.stack([2.0 * v - 1.0, np.arctan2(offset[..., 1], offset[..., 0]) / np.pi], axis=-1)


def fly(drone: SimpleDrone, goal: Goal, states: Array) -> Array:
    """Close every axis of the offset as fast as the drone can; past obstacles, along a straight line."""
    if not len(goal.low):
        return np.clip(_offset(goal.aim, states) / drone.speed, -1.0, 1.0)
    offset = _detour(goal, states)
    return offset / np.maximum(np.abs(offset).max(axis=-1, keepdims=True), drone.speed)


def fly_level(drone: DroneAttitude, goal: Goal, states: Array) -> Array:
    """Turn the offset into the body's frame, and meanwhile the body towards the target's attitude."""
    offset = _offset(goal.aim, states)
    psi, theta = states[..., 3], states[..., 4]
    level = offset[..., 0] * np.cos(psi) + offset[..., 1] * np.sin(psi)
    body = np.stack(
        [
            level * np.cos(theta) - offset[..., 2] * np.sin(theta),
            offset[..., 1] * np.cos(psi) - offset[..., 0] * np.sin(psi),
            level * np.sin(theta) + offset[..., 2] * np.cos(theta),
        ],
        axis=-1,
    )
    velocity = body / np.maximum(np.abs(body).max(axis=-1, keepdims=True), drone.speed)  # keeps the direction
    turn = np.stack([(offset[..., 3] + np.pi) % (2 * np.pi) - np.pi, offset[..., 4]], axis=-1)
    return np.concatenate([velocity, np.clip(turn / drone.rate, -1.0, 1.0)], axis=-1)


def reach(arm: Reacher, goal: Goal, states: Array) -> Array:
    """Command the joint angles that put the end effector in the middle of the target.

    Past obstacles, turn both joints in step towards a point nearby, so that the tip follows a straight line.
    """
    if not len(goal.low):
        return _command(*arm.joints(np.where(np.isnan(goal.aim), states, goal.aim)))
    offset = _detour(goal, states)
    length = np.linalg.norm(offset, axis=-1, keepdims=True)
    near = states + offset * np.minimum(1.0, AHEAD * arm.link * arm.rate / np.maximum(length, 1e-9))
    now = np.stack(arm.joints(states))
    turn = np.stack(arm.joints(near)) - now
    return _command(*(now + turn * np.minimum(1.0, arm.rate / np.maximum(np.abs(turn).max(axis=0), 1e-9))))


def _command(theta1: Array, theta2: Array) -> Array:
    """The action that commands these joint angles."""
    return np.stack([(theta1 / np.pi - 0.25) / 0.75, (theta2 / np.pi - 0.5) / 0.5], axis=-1)


CONTROLLERS: dict[type[Environment], Callable[[Any, Goal, Array], Array]] = {
    Car2D: drive,
    SimpleDrone: fly,
    DroneAttitude: fly_level,
    Reacher: reach,
}


def _offset(aim: Array, states: Array) -> Array:
    return np.where(np.isnan(aim), 0.0, aim - states)


def _detour(goal: Goal, states: Array) -> Array:
    """The way to the target, or to the first corner of the shortest way around the obstacles."""
    points = states.reshape(-1, states.shape[-1])
    aims = np.where(np.isnan(goal.aim), points, goal.aim)
    return (waypoints(points, aims, goal.low, goal.high) - points).reshape(states.shape)


# --- ways around boxes -----------------------------------------------------------------------------------


def waypoints(points: Array, aims: Array, low: Array, high: Array) -> Array:
    """Where to head from points (n, dim) for aims (n, dim) past boxes (b, dim): the aim itself, or a corner.

    The shortest way along straight lines between corners of the boxes, grown by `CLEARANCE`. A point that is
    already nearer to a box than `MARGIN` may leave along any line that comes no nearer.
    """
    low, high = _near(points, aims, low, high)
    if not len(low):
        return aims
    margin = np.minimum(MARGIN, 0.9 * _gap(points, low, high))  # (n,)
    blocked = _blocked(points, aims, low, high, margin)
    if not blocked.any():
        return aims
    corners = _corners(low - CLEARANCE, high + CLEARANCE)
    corners = corners[np.isfinite(corners).all(axis=-1) & (_gap(corners, low, high) > MARGIN)]
    if not len(corners):
        return aims
    result = aims.copy()
    chosen = points[blocked], aims[blocked], margin[blocked]
    result[blocked] = _first_corner(*chosen, corners, low, high)
    return result


def _first_corner(points: Array, aims: Array, margin: Array, corners: Array, low: Array, high: Array) -> Array:
    """The first of the corners (c, dim) on the shortest way from each point to its aim."""
    between = _lengths(corners[:, None], corners[None], low, high, MARGIN)  # (c, c)
    for via in range(len(corners)):
        between = np.minimum(between, between[:, via, None] + between[None, via])
    last = _lengths(corners[:, None], aims[None], low, high, MARGIN)  # (c, n)
    onward = (between[:, :, None] + last[None]).min(axis=1)
    total = _lengths(corners[:, None], points[None], low, high, margin) + onward
    return corners[total.argmin(axis=0)]


def _lengths(start: Array, end: Array, low: Array, high: Array, margin: float | Array) -> Array:
    """Lengths of the straight lines from start to end (..., dim); infinite where blocked."""
    start, end = np.broadcast_arrays(start, end)
    length = np.linalg.norm(end - start, axis=-1)
    return np.where(_blocked(start, end, low, high, margin), np.inf, length)


def _blocked(start: Array, end: Array, low: Array, high: Array, margin: float | Array) -> np.ndarray:
    """Which lines from start to end (..., dim) come closer than the margin (...) to a box (b, dim)."""
    grow = np.asarray(margin)[..., None]
    enter, leave = np.asarray(0.0), np.asarray(1.0)  # the part of the line that is between the box's sides
    for axis in range(low.shape[-1]):
        origin, along = start[..., None, axis], (end - start)[..., None, axis]
        along = np.where(np.abs(along) < 1e-9, 1e-9, along)
        a, b = (low[:, axis] - grow - origin) / along, (high[:, axis] + grow - origin) / along  # (..., b)
        enter, leave = np.maximum(enter, np.minimum(a, b)), np.minimum(leave, np.maximum(a, b))
    return np.asarray((enter < leave).any(axis=-1))


def _gap(points: Array, low: Array, high: Array) -> Array:
    """Distance (n,) of points (n, dim) to the nearest box in the maximum norm; negative inside one."""
    excess = np.maximum(low - points[:, None], points[:, None] - high)  # (n, b, dim)
    return np.asarray(excess.max(axis=-1).min(axis=-1))


def _corners(low: Array, high: Array) -> Array:
    """Corners (c, dim) of the boxes; where some are unbounded, all combinations of bounds."""
    dim = low.shape[-1]
    if np.isfinite(low).all() and np.isfinite(high).all():
        sides = np.stack([low, high])  # (2, b, dim)
        return np.concatenate(
            [
                np.stack([sides[s, :, d] for d, s in enumerate(chosen)], axis=-1)
                for chosen in product((0, 1), repeat=dim)
            ]
        )
    sides = np.concatenate([low, high])
    bounds = [np.unique(side[np.isfinite(side)]) for side in sides.T]
    return np.stack(np.meshgrid(*bounds, indexing="ij"), axis=-1).reshape(-1, dim)


def _near(points: Array, aims: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The boxes that a shortest way can meet: those touching the hull of points, aims and such boxes."""
    lowest = np.minimum(points.min(axis=0), aims.min(axis=0))
    highest = np.maximum(points.max(axis=0), aims.max(axis=0))
    kept = np.zeros(len(low), dtype=bool)
    while True:
        touching = ((low - CLEARANCE <= highest) & (high + CLEARANCE >= lowest)).all(axis=-1)
        if (touching == kept).all():
            return low[kept], high[kept]
        kept = touching
        lowest = np.minimum(lowest, (low - CLEARANCE)[kept].min(axis=0))
        highest = np.maximum(highest, (high + CLEARANCE)[kept].max(axis=0))


# --- rollouts --------------------------------------------------------------------------------------------


class Controlled(BasePolicy):
    """Hand-written controllers as a policy, one per task."""

    def __init__(self, controllers: Sequence[Controller]) -> None:
        self.controllers = controllers

    def act(self, now: Moment, memory: None) -> tuple[Array, None]:
        actions = [control(states) for control, states in zip(self.controllers, now.states, strict=True)]
        return np.stack(actions).astype(now.states.dtype), None
