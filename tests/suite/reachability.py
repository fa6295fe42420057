"""Where policies can be, step by step, on a lattice: a brute-force check of what excludes what.

The lattice is of x and y, for the arm of its joint angles.

A policy that does not know the index moves alike at two indices until one of them is done. `compatible` asks whether
any trajectory, with the noise of every step on its side, does both: it visits the target of one index while safe at
both, and goes on to the target of the other one while safe there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.ndimage import distance_transform_edt, maximum_filter, maximum_filter1d

from dibs.envs import Reacher
from dibs.families import Family
from dibs.spectrl import cnf, conjuncts

CELL = 0.25
ANGLE = 0.01  # cell of the arm's lattice, radians
Cells = np.ndarray  # (n, n) bool


@dataclass(frozen=True, eq=False)
class Lattice:
    """The first edge of a family at all of its indices."""

    start: Cells
    targets: list[Cells]
    unsafe: list[Cells]
    spread: Callable[[Cells], Cells]
    """Where a step may lead."""
    horizon: int

    @classmethod
    def of(cls, family: Family) -> Lattice:
        tasks, (points, cell) = family.tasks(range(family.last_index + 1)), grid(family)
        edge = tasks.edges[0]
        low = (tasks.start_center - tasks.start_half).min(axis=0)[:2] - cell
        high = (tasks.start_center + tasks.start_half).max(axis=0)[:2] + cell
        start = ((points >= low) & (points <= high)).all(axis=-1)
        goals = [name for name, _ in conjuncts(edge.target)]
        targets = [inside(family, i, goals, points, cell) for i in tasks.indices]
        unsafe = [inside(family, i, avoided(family), points, -cell) for i in tasks.indices]
        return cls(start, targets, unsafe, steps(family), family.horizon)

    def reached(self, i: int) -> bool:
        """Whether some trajectory solves an index."""
        cells = self.start
        for _ in range(self.horizon):
            cells = self.spread(cells) & ~self.unsafe[i]
            if (cells & self.targets[i]).any():
                return True
        return False

    def compatible(self, i: int, j: int) -> bool:
        """Whether some trajectory solves both indices."""
        safe = {i: ~self.unsafe[i], j: ~self.unsafe[j]}
        target = {i: self.targets[i], j: self.targets[j]}
        fresh, done = self.start, {i: np.zeros_like(self.start), j: np.zeros_like(self.start)}
        for _ in range(self.horizon):
            fresh = self.spread(fresh) & safe[i] & safe[j]
            for first, second in ((i, j), (j, i)):
                done[first] = (self.spread(done[first]) & safe[second]) | (fresh & target[first])
                if (done[first] & target[second]).any():
                    return True
            fresh = fresh & ~target[i] & ~target[j]
        return False


def turned(family: Family, degrees: Mapping[int, float]) -> Lattice:
    """Return index 0 of a family with the walls of several indices unsafe at once, each turned by its own angle."""
    lattice, (points, cell) = Lattice.of(family), grid(family)
    walls = []
    for index, angle in degrees.items():
        cos, sin = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
        back = points @ np.array([[cos, -sin], [sin, cos]])  # of points of the turned frame, those of the family's
        walls.append(inside(family, index, avoided(family), back, -cell))
    return replace(lattice, unsafe=[np.any(walls, axis=0)])


def grid(family: Family) -> tuple[np.ndarray, float | np.ndarray]:
    """Return the centers (n, m, 2) of all cells, and how far in x and y a cell extends from its center."""
    if isinstance(family.environment, Reacher):
        return Joints(family.environment).grid
    far = 1.1 * family.horizon
    axis = np.arange(-far, far, CELL)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1), CELL / 2


def inside(family: Family, index: int, names: Sequence[str], points: np.ndarray, grow: float | np.ndarray) -> Cells:
    """Which points are in one of the boxes, all of them grown."""
    found = np.zeros(points.shape[:-1], dtype=bool)
    for name in names:
        region = family.regions_at(index)[name]
        found |= (np.abs(points - region.center[:2]) <= region.reach[:2] + grow).all(axis=-1)
    return found


def avoided(family: Family) -> list[str]:
    return [name for clause in cnf(family.edges[0].safe) for name, _ in clause]


def steps(family: Family) -> Callable[[Cells], Cells]:
    """Return where a step may lead: a disc for the car, a square for the drone, for both with all noise."""
    if isinstance(family.environment, Reacher):
        return Joints(family.environment).step
    speed, noise = family.environment.speed, family.environment.noise
    if family.environment.name == "Car2D":
        radius = (speed + noise * np.sqrt(2.0)) / CELL + 0.5
        return lambda cells: distance_transform_edt(~cells) <= radius if cells.any() else cells
    width = int(np.ceil((speed + noise) / CELL))
    return lambda cells: maximum_filter(cells, size=2 * width + 1)


class Joints:
    """The arm's positions on a lattice of its two joint angles: a step turns both by at most its rate."""

    def __init__(self, arm: Reacher) -> None:
        self.theta2 = np.arange(0.0, np.pi, ANGLE)
        theta1 = np.arange(-np.pi / 2, np.pi, ANGLE)
        free = arm.position(*np.meshgrid(theta1, self.theta2, indexing="ij"))  # (n, m, 2)
        points = arm.project(free)
        angles = np.stack(arm.joints(points), axis=-1) - [theta1[0], 0.0]
        place = np.clip(np.rint(angles / ANGLE).astype(int), 0, np.array(points.shape[:2]) - 1)
        cell = ANGLE / 2 * (np.linalg.norm(points, axis=-1) + arm.link)
        self.grid, self.place = (points, cell[..., None]), place
        self.stopped = np.linalg.norm(points - free, axis=-1) > cell
        # Where the arm is folded, noise decides in which direction it is pushed out to the nearest position.
        self.folded = np.linalg.norm(free, axis=-1) < arm.nearest
        self.pushed = ~self.stopped & (np.linalg.norm(points, axis=-1) < arm.nearest + 2.0 * cell)
        self.turn = int(np.ceil(arm.rate / ANGLE)) + 1
        # Noise of this length changes the second angle to one of these columns, and turns the arm by at most `aside`.
        length, reach = arm.noise * np.sqrt(2.0), 2.0 * arm.link
        r = reach * np.cos(self.theta2 / 2)
        ends = [2.0 * np.arccos(np.clip((r + sign * length) / reach, 0.0, 1.0)) / ANGLE for sign in (1.0, -1.0)]
        last = len(self.theta2) - 1
        self.columns = np.clip([np.floor(ends[0]), np.ceil(ends[1])], 0, last).astype(int)
        self.aside = np.arcsin(np.clip(length / np.maximum(r, arm.nearest - length), 0.0, 1.0))

    def step(self, cells: Cells) -> Cells:
        """Return where a step may lead: turns of both joints, the floor, and all noise."""
        turned = maximum_filter(cells, size=2 * self.turn + 1)
        stopped = turned & self.stopped
        turned &= ~self.stopped
        turned[tuple(self.place[stopped].T)] = True
        if (stopped & self.folded).any():
            turned |= self.pushed
        found = np.zeros_like(turned)
        for column in np.flatnonzero(turned.any(axis=0)):
            for other in range(self.columns[0, column], self.columns[1, column] + 1):
                angle = self.aside[column] + abs(other - column) * ANGLE / 2
                size = 2 * int(np.ceil(angle / ANGLE)) + 1
                found[:, other] |= maximum_filter1d(turned[:, column], size)
        return found & ~self.stopped


def largest_clique(edges: np.ndarray) -> int:
    """Return the size of the largest set of which any two are joined; edges (n, n) is symmetric."""
    best = 0

    def extend(size: int, candidates: list[int]) -> None:
        nonlocal best
        best = max(best, size)
        for place, vertex in enumerate(candidates):
            if size + len(candidates) - place <= best:
                return
            extend(size + 1, [other for other in candidates[place + 1 :] if edges[vertex, other]])

    extend(0, list(range(len(edges))))
    return best
