"""Where policies can be, step by step, on a lattice of x and y: a brute-force check of what excludes what.

A policy that does not know the index moves alike at two indices until one of them is done. `compatible` asks whether
any trajectory, with the noise of every step on its side, does both: it visits the target of one index while safe at
both, and goes on to the target of the other one while safe there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.ndimage import distance_transform_edt, maximum_filter

from dibs.families import Family
from dibs.spectrl import cnf, conjuncts

CELL = 0.25
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
        tasks, points = family.tasks(range(family.last_index + 1)), grid(family)
        edge = tasks.edges[0]
        low = (tasks.start_center - tasks.start_half).min(axis=0)[:2] - CELL / 2
        high = (tasks.start_center + tasks.start_half).max(axis=0)[:2] + CELL / 2
        start = ((points >= low) & (points <= high)).all(axis=-1)
        goals = [name for name, _ in conjuncts(edge.target)]
        targets = [inside(family, i, goals, points, CELL / 2) for i in tasks.indices]
        unsafe = [inside(family, i, avoided(family), points, -CELL / 2) for i in tasks.indices]
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
    lattice, points = Lattice.of(family), grid(family)
    walls = []
    for index, angle in degrees.items():
        cos, sin = np.cos(np.deg2rad(angle)), np.sin(np.deg2rad(angle))
        back = points @ np.array([[cos, -sin], [sin, cos]])  # of points of the turned frame, those of the family's
        walls.append(inside(family, index, avoided(family), back, -CELL / 2))
    return replace(lattice, unsafe=[np.any(walls, axis=0)])


def grid(family: Family) -> np.ndarray:
    far = 1.1 * family.horizon
    axis = np.arange(-far, far, CELL)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)


def inside(family: Family, index: int, names: Sequence[str], points: np.ndarray, grow: float) -> Cells:
    """Which points are in one of the boxes, all of them grown."""
    found = np.zeros(points.shape[:-1], dtype=bool)
    for name in names:
        region = family.regions_at(index)[name]
        found |= (np.abs(points - region.center[:2]) <= region.reach[:2] + grow).all(axis=-1)
    return found


def avoided(family: Family) -> list[str]:
    return [name for clause in cnf(family.edges[0].safe) for name, _ in clause]


def steps(family: Family) -> Callable[[Cells], Cells]:
    """Return where a step may lead: a disc for the car, a square for the drone, both with all noise."""
    speed, noise = family.environment.speed, family.environment.noise
    if family.environment.name == "Car2D":
        radius = (speed + noise * np.sqrt(2.0)) / CELL + 0.5
        return lambda cells: distance_transform_edt(~cells) <= radius if cells.any() else cells
    width = int(np.ceil((speed + noise) / CELL))
    return lambda cells: maximum_filter(cells, size=2 * width + 1)


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
