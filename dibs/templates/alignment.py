"""Which motion of the state space takes the regions of task 0 to those of every training task (docs/method.md).

A motion is an affine map g, written as a matrix on (state, 1). Tried from the simplest on: the identity, a shift, a
rotation in a plane of two state variables, a dilation, and their compositions, such that gⁱ maps the source, the target
and the regions to avoid of an edge at index 0 to those at every training index i. Variables that no region constrains
stay as they are.

The misfit is the largest distance between the image of a region and the region itself, in half-widths of the region.
Boxes stay parallel to the axes in our families while their images turn. So the ellipsoid inside a box stands for it: a
square (or cube) that turns has no misfit, an oblong has. What the corners matter is seen in rollouts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from dibs.envs import Array
from dibs.families import Tasks
from dibs.spectrl import Edge, Region, cnf, conjuncts

MISFIT = 0.1  # largest misfit of a motion, in half-widths
EXACT = 1e-3  # a difference of misfits or residuals below this is none
Alias = Mapping[int, tuple[int, float, float]]
"""Variable v equals a·(variable u) + b: v → (u, a, b)."""


class Shape(NamedTuple):
    """A region, or the start, at all training indices."""

    name: str
    center: Array  # (n, dim)
    width: Array  # (n, dim): half-width of a box, radius of a ball; infinite: free
    normal: Array  # (n, dim) of a half-space; zero: none
    scale: Array  # (n, dim): what counts as one half-width of misfit
    required: bool  # source or target: must move along


class Alignment(NamedTuple):
    """The motion g of an edge, and how well it fits."""

    kind: str
    matrix: Array  # (dim + 1, dim + 1)
    misfit: float
    words: str
    loose: tuple[str, ...] = ()
    """Regions to avoid that do not move along."""
    notes: tuple[str, ...] = ()


def power(matrix: Array, index: int) -> Array:
    """Return the map of an index, by repeated squaring; overflow is left to the caller."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        return np.linalg.matrix_power(matrix, index)


def apply(matrix: Array, points: Array) -> Array:
    """Apply an affine map (k + 1, k + 1) to points (..., k)."""
    return np.asarray(points @ matrix[:-1, :-1].T + matrix[:-1, -1])


def wrapped(values: Array, periods: Array, low: Array | float) -> Array:
    """Return values (..., k) with every periodic one in [low, low + period); a period of 0 is none."""
    turn = np.where(periods > 0.0, periods, 1.0)
    base = np.where(np.isfinite(low), low, -turn / 2.0)
    inside = base + np.mod(values - base, turn)
    # Values that are in range already must keep their last bit.
    return np.where((periods > 0.0) & ((values < base) | (values > base + turn)), inside, values)


def difference(first: Array, second: Array, periods: Array) -> Array:
    """Return first − second; of angles the smaller way around."""
    return wrapped(first - second, periods, -np.asarray(periods) / 2.0)


# --- the regions of an edge ------------------------------------------------------------------------------


def edge_shapes(tasks: Tasks, edge: Edge, alias: Alias) -> list[Shape]:
    """Return source, target and all regions that the edge must stay out of or inside."""
    target = [name for name, _ in conjuncts(edge.target)]
    source = [name for name, inside in conjuncts(edge.source) if inside] if edge.source is not None else []
    clauses = list(cnf(edge.safe)) if edge.safe is not None else []
    shapes = [_shape(tasks, name, True, alias) for name in target]
    reference = np.min([shape.width for shape in shapes], axis=(0, 1))  # (dim,)
    if edge.source is None:
        shapes.append(_start(tasks, reference))
    shapes += [_shape(tasks, name, True, alias) for name in source if name not in target]
    avoided = {name: None for clause in clauses for name, _ in clause}
    return shapes + [_shape(tasks, name, False, alias) for name in avoided if name not in (*source, *target)]


def _shape(tasks: Tasks, name: str, required: bool, alias: Alias) -> Shape:
    region: Region = tasks.regions[name]
    arrays = {key: np.array(value) for key, value in region.arrays().items()}
    center, normal, width = arrays["center"], arrays["normal"], np.array(region.reach)
    width = np.broadcast_to(width, center.shape).copy()
    for v, (u, a, b) in alias.items():  # what is asked of v is asked of u
        bounded = np.isfinite(width[:, v])
        center[bounded, u], width[bounded, u] = (center[bounded, v] - b) / a, width[bounded, v] / abs(a)
        cut = normal[:, v] != 0.0
        center[cut, u], normal[cut, u] = (center[cut, v] - b) / a, normal[cut, v] * a
        width[:, v], normal[:, v], center[:, v] = np.inf, 0.0, 0.0
    length = np.linalg.norm(normal, axis=1, keepdims=True)
    normal = normal / np.where(length > 0.0, length, 1.0)
    finite = width[np.isfinite(width)]
    spare = float(finite.min()) if finite.size else 1.0
    return Shape(name, center, width, normal, np.where(np.isfinite(width), width, spare), required)


def _start(tasks: Tasks, reference: Array) -> Shape:
    """Return where the first edge starts; its noise may be small, so the target's width is the unit of misfit."""
    width = np.array(tasks.start_half)
    if tasks.start_reset is not None:
        width = np.where(tasks.start_reset, np.inf, width)
    width[:, tasks.environment.is_derived] = np.inf
    finite = reference[np.isfinite(reference)]
    spare = float(finite.min()) if finite.size else 1.0
    scale = np.maximum(np.where(np.isfinite(width), width, 0.0), np.where(np.isfinite(reference), reference, spare))
    return Shape("start", np.array(tasks.start_center), width, np.zeros_like(width), scale, True)


# --- the simplest motion ---------------------------------------------------------------------------------


def align(shapes: Sequence[Shape], indices: Sequence[int], names: Sequence[str], periods: Array) -> Alignment:
    """Return the simplest motion that takes the shapes at index 0 to those at all others, whatever its misfit.

    If none takes all of them along, regions to avoid may stay behind; they are named in `loose`.
    """
    fitting = _Fitting([_unwrapped(shape, indices, periods) for shape in shapes], indices, names, periods)
    best = fitting.best()
    if best.misfit <= MISFIT or all(shape.required for shape in shapes):
        return best
    needed = [shape for shape in shapes if shape.required]
    other = _Fitting([_unwrapped(shape, indices, periods) for shape in needed], indices, names, periods).best()
    if other.misfit > MISFIT:
        return other
    misfits = fitting.misfits(other.matrix)
    loose = tuple(s.name for s, misfit in zip(shapes, misfits, strict=True) if misfit > MISFIT)
    return other._replace(loose=loose)


def _unwrapped(shape: Shape, indices: Sequence[int], periods: Array) -> Shape:
    """Return the shape with angles that go on beyond their period instead of jumping back."""
    center = shape.center.copy()
    for v in np.flatnonzero(periods > 0.0):
        for n in range(1, len(indices)):
            before = n - 2 if n > 1 else n - 1
            passed = indices[n - 1] - indices[before]
            rate = (center[n - 1, v] - center[before, v]) / passed if passed else 0.0
            expected = center[n - 1, v] + rate * (indices[n] - indices[n - 1])
            center[n, v] = expected + difference(center[n, v], expected, periods[v])
    return shape._replace(center=center)


class _Fitting:
    """Fits motions to shapes; a motion's linear part determines its shift by linear least squares."""

    def __init__(self, shapes: Sequence[Shape], indices: Sequence[int], names: Sequence[str], periods: Array) -> None:
        self.shapes, self.indices, self.names, self.periods = shapes, indices, names, periods
        self.dim = len(names)
        bounded = np.array([np.isfinite(s.width).all(axis=0) | (s.normal != 0).any(axis=0) for s in shapes])
        self.bounded = bounded  # (shapes, dim)
        self.constrained = bounded.any(axis=0)

    def best(self) -> Alignment:
        """Return the simplest motion among those that fit best."""
        found: list[Alignment] = []
        for candidate in self._candidates():
            found.append(candidate)
            if candidate.misfit <= EXACT:
                break
        least = min(candidate.misfit for candidate in found)
        return next(candidate for candidate in found if candidate.misfit <= least + EXACT)

    def _candidates(self) -> Iterator[Alignment]:
        still = np.eye(self.dim + 1)
        yield self._named("identity", still, "nothing moves")
        unit = np.eye(self.dim)
        yield self._described("shift", unit)
        yield from self._rotations("rotation", unit)
        stretch = self._stretch()
        if stretch is not None:
            yield self._described("dilation", stretch)
            yield from self._rotations("rotation and dilation", stretch)

    def _rotations(self, kind: str, stretch: Array) -> Iterator[Alignment]:
        """Yield the best rotation in every plane of variables that are not angles."""
        usable = np.flatnonzero(self.constrained & (self.periods == 0.0)).tolist()
        for plane in combinations(usable, 2):
            found = self._rotation(kind, stretch, plane)
            if found is not None:
                yield found

    def _rotation(self, kind: str, stretch: Array, plane: tuple[int, int]) -> Alignment | None:
        first = self.indices[1]
        turn = self._turn(plane)
        if turn is None:
            return None
        # At the first training index the regions have turned by `turn`, up to full turns.
        angles = [(turn + 2.0 * np.pi * k) / first for k in range(-(first // 2) - 1, first // 2 + 2)]
        angles = sorted((a for a in angles if abs(a) <= np.pi + 1e-9), key=lambda a: (abs(a), a))
        misfits = np.array([self._misfit(_turning(stretch, plane, a)) for a in angles])
        best = int(np.flatnonzero(misfits <= misfits.min() + EXACT)[0])  # the smallest angle of equally good ones
        angle = self._refined(stretch, plane, angles[best])
        found = self._described(kind, _turning(stretch, plane, angle), plane, angle)
        others = [a for a, m in zip(angles, misfits, strict=True) if m <= MISFIT and a != angles[best]]
        if others and misfits[best] <= MISFIT:
            other = np.rad2deg(min(others, key=abs))
            note = f"turning by {_number(other)}° per index fits the training tasks as well; the smaller angle is taken"
            found = found._replace(notes=(note,))
        return found

    def _turn(self, plane: tuple[int, int]) -> float | None:
        """Return the angle by which the shapes turn from index 0 to the next training index; None: they show none."""
        p, q = plane
        points, normals = [], []
        for shape, bounded in zip(self.shapes, self.bounded, strict=True):
            as_complex = shape.center[:2, p] + 1j * shape.center[:2, q]
            if bounded[p] and bounded[q] and not shape.normal.any():
                points.append(as_complex)
            if shape.normal.any():
                normals.append(shape.normal[:2, p] + 1j * shape.normal[:2, q])
        total = sum((np.conj(n[0]) * n[1] for n in normals), 0j)
        if len(points) > 1:
            centered = np.array(points) - np.mean(points, axis=0)
            total += np.vdot(centered[:, 0], centered[:, 1])
        return float(np.angle(total)) if abs(total) > 1e-9 else None

    def _refined(self, stretch: Array, plane: tuple[int, int], angle: float) -> float:
        from scipy.optimize import least_squares

        def errors(x: Array) -> Array:
            return self._errors(_turning(stretch, plane, float(x[0])))

        solved = least_squares(errors, [angle], xtol=1e-15, ftol=1e-15, gtol=1e-15, x_scale=1e-3, max_nfev=50)
        refined = float(solved.x[0])
        better = self._misfit(_turning(stretch, plane, refined)) <= self._misfit(_turning(stretch, plane, angle))
        return refined if better else angle

    def _stretch(self) -> Array | None:
        """Return the linear part of the dilation by which the sizes change; None: they do not."""
        logs, steps = [], []
        for shape in self.shapes:
            for v in np.flatnonzero(np.isfinite(shape.width).all(axis=0) & (shape.width > 0).all(axis=0)):
                logs.append(np.log(shape.width[1:, v] / shape.width[0, v]))
                steps.append(self.indices[1:])
        if not logs:
            return None
        x, y = np.ravel(steps).astype(float), np.ravel(logs)
        rate = float(x @ y / (x @ x))
        if abs(rate) * self.indices[-1] < 1e-9:
            return None
        scaled = self.constrained & (self.periods == 0.0)
        return np.diag(np.where(scaled, np.exp(rate), 1.0))

    # --- least squares -------------------------------------------------------------------------------

    def _equations(self, linear: Array) -> tuple[Array, Array]:
        """Return the rows and right-hand sides, in half-widths, of the equations that a shift must satisfy."""
        rows, right = [], []
        images = _powers(linear, self.indices)
        for shape, bounded in zip(self.shapes, self.bounded, strict=True):
            cut = shape.normal.any()
            for n in range(1, len(self.indices)):
                total, linear_n = images[n]
                error = shape.center[n] - linear_n @ shape.center[0]
                if cut:
                    normal, unit = shape.normal[n], shape.scale[n].min()
                    rows.append(normal @ total / unit)
                    right.append(normal @ error / unit)
                else:
                    for v in np.flatnonzero(bounded):
                        rows.append(total[v] / shape.scale[n, v])
                        right.append(error[v] / shape.scale[n, v])
        return np.array(rows), np.array(right)

    def _matrix(self, linear: Array) -> Array:
        rows, right = self._equations(linear)
        shift = np.linalg.lstsq(rows, right, rcond=1e-12)[0]
        shift[np.abs(shift) * self.indices[-1] < 1e-9] = 0.0
        matrix = np.eye(self.dim + 1)
        matrix[:-1, :-1], matrix[:-1, -1] = linear, shift
        return matrix

    def _errors(self, linear: Array) -> Array:
        rows, right = self._equations(linear)
        return np.asarray(right - rows @ self._matrix(linear)[:-1, -1])

    def _misfit(self, linear: Array) -> float:
        return float(self.misfits(self._matrix(linear)).max())

    def misfits(self, matrix: Array) -> Array:
        """Return the largest misfit (shapes,) over all training indices."""
        worst = np.zeros(len(self.shapes))
        for n, index in enumerate(self.indices):
            image = power(matrix, index)
            for s, shape in enumerate(self.shapes):
                worst[s] = max(worst[s], _shape_misfit(shape, n, image, self.periods))
        return worst

    # --- words ---------------------------------------------------------------------------------------

    def _named(self, kind: str, matrix: Array, words: str) -> Alignment:
        return Alignment(kind, matrix, float(self.misfits(matrix).max()), words)

    def _described(
        self, kind: str, linear: Array, plane: tuple[int, int] | None = None, angle: float = 0.0
    ) -> Alignment:
        matrix = self._matrix(linear)
        shift, stretch = matrix[:-1, -1], np.diag(linear).copy()
        words = []
        if plane is not None:
            names = ", ".join(self.names[v] for v in plane)
            about = _fixed_point(matrix, list(plane))
            words.append(f"rotation by {_number(np.rad2deg(angle))}° per index about {about} in the plane {names}")
            stretch[list(plane)] = np.linalg.norm(linear[:, plane[0]])
        if "dilation" in kind:
            scaled = np.flatnonzero(stretch != 1.0).tolist()
            words.append(f"dilation by {_number(stretch[scaled[0]])} per index about {_fixed_point(matrix, scaled)}")
        moved = [v for v in np.flatnonzero(shift).tolist() if stretch[v] == 1.0 and v not in (plane or ())]
        if kind == "shift":
            shown = np.flatnonzero(self.constrained).tolist()
            words.append(f"shift {_vector(shift[shown])} per index{self._along(shown)}")
        elif moved:
            words.append(f"shift {_vector(shift[moved])} per index{self._along(moved)}")
        return self._named(kind, matrix, ", ".join(words))

    def _along(self, variables: Sequence[int]) -> str:
        """Name the variables if they are not all there are."""
        names = ", ".join(self.names[v] for v in variables)
        return "" if len(variables) == self.dim else f" in {names}"


def _powers(linear: Array, indices: Sequence[int]) -> list[tuple[Array, Array]]:
    """Return for each index i the matrices 1 + A + … + Aⁱ⁻¹ and Aⁱ."""
    dim = len(linear)
    joint = np.zeros((2 * dim, 2 * dim))  # [[A, 1], [0, 1]] to the i-th power has both
    joint[:dim, :dim], joint[:dim, dim:], joint[dim:, dim:] = linear, np.eye(dim), np.eye(dim)
    found = [power(joint, index) for index in indices]
    return [(image[:dim, dim:], image[:dim, :dim]) for image in found]


def _turning(stretch: Array, plane: tuple[int, int], angle: float) -> Array:
    p, q = plane
    turn = np.eye(len(stretch))
    turn[p, p] = turn[q, q] = np.cos(angle)
    turn[q, p] = np.sin(angle)
    turn[p, q] = -np.sin(angle)
    return np.asarray(stretch @ turn)


def _shape_misfit(shape: Shape, n: int, image: Array, periods: Array) -> float:
    """Return how far the image of a shape at index 0 is from the shape at the n-th training index, in half-widths."""
    linear = image[:-1, :-1]
    moved = apply(image, shape.center[0])
    if shape.normal.any():
        turned = linear @ shape.normal[0]
        turned = turned / max(float(np.linalg.norm(turned)), 1e-300)
        height = abs(float(shape.normal[n] @ (moved - shape.center[n]))) / float(shape.scale[n].min())
        return height + float(np.linalg.norm(turned - shape.normal[n]))
    free_before, free_now = np.isinf(shape.width[0]), np.isinf(shape.width[n])
    if (((linear != 0.0) & free_before).any(axis=1) != free_now).any():
        return float("inf")
    bounded = ~free_now
    extent = np.sqrt(np.square(linear[:, ~free_before] * shape.width[0, ~free_before]).sum(axis=1))
    off = np.abs(difference(moved, shape.center[n], periods))[bounded] / shape.scale[n, bounded]
    size = np.abs(extent - shape.width[n])[bounded] / shape.scale[n, bounded]
    return float(max(off.max(initial=0.0), size.max(initial=0.0)))


def _fixed_point(matrix: Array, variables: list[int]) -> str:
    linear, shift = matrix[:-1, :-1][np.ix_(variables, variables)], matrix[:-1, -1][variables]
    return _vector(np.linalg.lstsq(np.eye(len(variables)) - linear, shift, rcond=None)[0])


def _vector(values: Array) -> str:
    return "(" + ", ".join(map(_number, values)) + ")"


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) >= 5e-7 else "0"
