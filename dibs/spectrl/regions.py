"""Regions of the state space: axis-aligned boxes with a Euclidean signed distance.

A region gives the atomic predicates of SPECTRL their meaning: `reach(r)` holds in the states of the
closed box, `avoid(r)` in all others, and the signed distance is what robustness is made of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from dibs.errors import DibsError

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Box:
    """The closed box of states within `half_width` of `center` in every dimension.

    Both are arrays of shape (..., dim) that broadcast against states, so one `Box` can hold a different
    region for each rollout of a batch; a scalar `half_width` is the same in every dimension. A
    half-width of infinity leaves its dimension free.
    """

    center: Floats
    half_width: Floats
    batch_shape: tuple[int, ...] = field(init=False, repr=False)
    """The shape of the array of boxes held here, () for a single box."""
    _bounded: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Take private read-only copies and refuse what is not a box."""
        center = _frozen_array("center", self.center)
        half_width = _frozen_array("half_width", self.half_width)
        if center.ndim == 0 or center.shape[-1] == 0:
            raise DibsError(f"box center: expected shape (..., dim), found {center.shape}.")
        if half_width.ndim == 0:
            half_width = np.broadcast_to(half_width, center.shape[-1:])
        try:
            shape = np.broadcast_shapes(center.shape, half_width.shape)
            mismatched = center.shape[-1] != half_width.shape[-1]
        except ValueError:
            mismatched = True
        if mismatched:
            raise DibsError(
                f"box: center has shape {center.shape} and half_width {half_width.shape}; "
                "expected the same dimension and shapes that broadcast."
            )
        if not np.isfinite(center).all():
            raise DibsError(f"box center: expected finite numbers, found {center.tolist()}.")
        if not (half_width > 0).all():
            raise DibsError(
                f"box half_width: expected numbers above 0 (inf leaves a dimension free), found {half_width.tolist()}."
            )
        dims = range(center.shape[-1])
        object.__setattr__(self, "center", center)
        object.__setattr__(self, "half_width", half_width)
        object.__setattr__(self, "batch_shape", shape[:-1])
        object.__setattr__(self, "_bounded", tuple(d for d in dims if np.isfinite(half_width[..., d]).any()))

    @property
    def dim(self) -> int:
        """Return the number of dimensions of a state."""
        return int(self.center.shape[-1])

    def contains(self, states: npt.ArrayLike) -> Bools:
        """Return which states (..., dim) lie in the closed box."""
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
        worst: Floats | None = None  # the largest excess over all dimensions, negative inside
        squares: Floats | None = None
        # A state may be infinite and so may its squared distance; both are legitimate answers here.
        with np.errstate(over="ignore", invalid="ignore"):
            for offset, half_width in self._offsets(states):
                excess = offset - half_width
                free = np.isinf(half_width)
                if free.any():  # free in this dimension for some boxes of the batch only
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
                f"states have shape {array.shape}, but the box has {self.dim} dimensions; expected (..., {self.dim})."
            )
        return array


def _frozen_array(name: str, values: npt.ArrayLike) -> Floats:
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DibsError(f"box {name}: expected an array of numbers, found {values!r}.") from error
    if np.isnan(array).any():
        raise DibsError(f"box {name}: expected numbers, found NaN in {array.tolist()}.")
    array.setflags(write=False)
    return array
