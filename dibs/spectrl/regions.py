"""Regions of the state space: boxes, balls and half-spaces with a Euclidean signed distance.

A region gives the atomic predicates of SPECTRL their meaning: `reach(r)` holds in the states of the closed region,
`avoid(r)` in all others, and the signed distance is what robustness is made of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dibs.errors import DibsError

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Region:
    """An array of regions, each a box, a ball or a half-space.

    All three are cases of one shape, so that arrays may mix them: the states within `radius` of a box, as far as they
    lie on the inner side of a plane. A box has radius 0 and no plane. A ball is a box of half-width 0 with a radius.
    A half-space is a box that is free in every dimension, with a plane through its center.

    Arrays broadcast against states (..., dim), so a `Region` can hold a different region for each rollout of a batch.
    """

    center: Floats  # (..., dim); of a half-space: a point of its plane
    half_width: Floats  # (..., dim), or one number for all dimensions; infinite: free
    radius: Floats | float = 0.0  # (...)
    normal: Floats | None = None  # (..., dim), pointing inside; zero or None: no plane
    batch_shape: tuple[int, ...] = field(init=False, repr=False)
    """Shape of the array of regions held here; () for a single one."""
    offset: Floats = field(init=False, repr=False)  # (...): the plane is normal · x = offset
    _bounded: tuple[int, ...] = field(init=False, repr=False)
    _plain: bool = field(init=False, repr=False)
    """Whether all are boxes."""

    def __post_init__(self) -> None:
        """Take private read-only copies and refuse what is not a region."""
        center = _frozen_array("center", self.center)
        if center.ndim == 0 or center.shape[-1] == 0:
            raise DibsError(f"region center: expected shape (..., dim), found {center.shape}.")
        half_width, radius = _frozen_array("half_width", self.half_width), _frozen_array("radius", self.radius)
        normal = _frozen_array("normal", np.zeros(center.shape[-1]) if self.normal is None else self.normal)
        if half_width.ndim == 0:
            half_width = np.broadcast_to(half_width, center.shape[-1:])
        try:
            shape = np.broadcast_shapes(center.shape, half_width.shape, normal.shape, (*radius.shape, 1))
            mismatched = center.shape[-1] != half_width.shape[-1] or center.shape[-1] != normal.shape[-1]
        except ValueError:
            mismatched = True
        if mismatched:
            raise DibsError(
                f"region: center has shape {center.shape}, half_width {half_width.shape}, radius {radius.shape} and "
                f"normal {normal.shape}; expected the same dimension and shapes that broadcast."
            )
        for name, values in (("center", center), ("normal", normal)):
            if not np.isfinite(values).all():
                raise DibsError(f"region {name}: expected finite numbers, found {values.tolist()}.")
        if not (radius >= 0).all() or not (half_width >= 0).all() or not ((half_width + radius[..., None]) > 0).all():
            found = f"{half_width.tolist()}" + (f" and radius {radius.tolist()}" if np.any(radius) else "")
            raise DibsError(
                f"region half_width: expected numbers above 0 (inf leaves a dimension free), found {found}."
            )
        length = np.sqrt(np.square(normal).sum(axis=-1))
        cut = length > 0
        normal = _frozen_array("normal", normal / np.where(cut, length, 1.0)[..., None])
        offset = np.where(cut, (normal * center).sum(axis=-1), -np.inf)
        arrays = {"center": center, "half_width": half_width, "radius": radius, "normal": normal, "offset": offset}
        self._set(arrays, shape[:-1])

    def _set(self, arrays: Mapping[str, Floats], shape: tuple[int, ...]) -> None:
        """Keep the arrays, and what follows from them."""
        half, dims = arrays["half_width"], range(arrays["center"].shape[-1])
        bounded = tuple(d for d in dims if np.isfinite(half[..., d]).any())
        plain = not (arrays["normal"].any() or arrays["radius"].any())
        for name, value in {**arrays, "batch_shape": shape, "_bounded": bounded, "_plain": plain}.items():
            object.__setattr__(self, name, value)

    @property
    def dim(self) -> int:
        """Number of dimensions of a state."""
        return int(self.center.shape[-1])

    @property
    def is_boxes(self) -> bool:
        """Whether all of them are boxes."""
        return self._plain

    @property
    def reach(self) -> Floats:
        """Distance (..., dim) from the center to the faces of the bounding box; infinite where there is none."""
        return np.asarray(self.half_width + np.asarray(self.radius)[..., None])

    def arrays(self) -> dict[str, Floats]:
        """Return all arrays in full shape: center, half_width and normal (..., dim), radius (...)."""
        shape = (*self.batch_shape, self.dim)
        assert self.normal is not None
        return {
            "center": np.broadcast_to(self.center, shape),
            "half_width": np.broadcast_to(self.half_width, shape),
            "radius": np.broadcast_to(self.radius, shape[:-1]),
            "normal": np.broadcast_to(self.normal, shape),
        }

    @classmethod
    def trusted(cls, arrays: Mapping[str, Floats]) -> Region:
        """Return regions from arrays of other regions, in full shape and with `offset`; nothing is checked."""
        found = object.__new__(cls)
        for value in arrays.values():
            value.setflags(write=False)
        found._set(arrays, arrays["radius"].shape)
        return found

    def __getitem__(self, rows: Any) -> Region:
        """Return some of the regions of an array."""
        chosen = {name: np.asarray(value[rows]) for name, value in self.arrays().items()}
        chosen["offset"] = np.asarray(np.broadcast_to(self.offset, self.batch_shape)[rows])
        return Region.trusted(chosen)

    def contains(self, states: npt.ArrayLike) -> Bools:
        """Return which states (..., dim) lie in the closed region."""
        if not self._plain:
            return np.asarray(self.signed_distance(states) >= 0.0)
        states = self._checked(states)
        inside: Bools | None = None
        for offset, half_width in self._offsets(states):
            within = np.asarray(offset <= half_width)
            inside = within if inside is None else np.logical_and(inside, within, out=inside)
        if inside is None:
            return np.ones(np.broadcast_shapes(states.shape[:-1], self.batch_shape), dtype=bool)
        return inside

    def signed_distance(self, states: npt.ArrayLike) -> Floats:
        """Return the Euclidean distance to the boundary: positive inside, negative outside."""
        states = self._checked(states)
        inside = self._box_distance(states)
        if self._plain:
            return inside
        inside = inside + self.radius
        assert self.normal is not None
        height = np.zeros(inside.shape)
        for d in np.flatnonzero((self.normal != 0).reshape(-1, self.dim).any(axis=0)):
            normal = self.normal[..., d]
            height = height + np.where(normal == 0, 0.0, normal * np.where(normal == 0, 0.0, states[..., d]))
        return np.minimum(inside, height - self.offset)

    def _box_distance(self, states: Floats) -> Floats:
        worst: Floats | None = None  # the largest excess over all dimensions, negative inside
        squares: Floats | None = None
        # A state may be infinite and so may its squared distance; both are legitimate answers here.
        with np.errstate(over="ignore", invalid="ignore"):
            for offset, half_width in self._offsets(states):
                excess = offset - half_width
                free = np.isinf(half_width)
                if free.any():  # free in this dimension for some regions of the batch only
                    excess = np.where(free, -np.inf, excess)
                outside = np.square(np.maximum(excess, 0.0))
                worst = excess if worst is None else np.maximum(worst, excess)
                squares = outside if squares is None else squares + outside
            if worst is None or squares is None:
                return np.full(np.broadcast_shapes(states.shape[:-1], self.batch_shape), np.inf)
            # The norm is at least its largest component; saying so keeps the sign when squares underflow.
            norm = np.maximum(worst, np.sqrt(squares))
            return np.asarray(0.0 - np.where(worst <= 0, worst, norm))

    def _offsets(self, states: Floats) -> Iterator[tuple[Floats, Floats]]:
        """Yield |x - c| and the half-width for each dimension that is not free everywhere."""
        for d in self._bounded:
            offset = np.asarray(states[..., d] - self.center[..., d])
            yield np.abs(offset, out=offset), self.half_width[..., d]

    def _checked(self, states: npt.ArrayLike) -> Floats:
        array = np.asarray(states, dtype=np.float64)
        if array.ndim == 0 or array.shape[-1] != self.dim:
            raise DibsError(
                f"states have shape {array.shape}, but the region has {self.dim} dimensions; "
                f"expected (..., {self.dim})."
            )
        return array


def _frozen_array(name: str, values: npt.ArrayLike) -> Floats:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DibsError(f"region {name}: expected an array of numbers, found {values!r}.") from error
    if np.isnan(array).any():
        raise DibsError(f"region {name}: expected numbers, found NaN in {array.tolist()}.")
    array.setflags(write=False)
    return array
