"""Signed distances of many states to regions, in single precision and by column: what rewards are made of.

`Region.signed_distance` decides satisfaction; this one follows rollouts and is many times faster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from dibs.envs import Array
from dibs.spectrl import Region


class Columns(NamedTuple):
    """Regions by variable; all arrays broadcast against the states without their last axis."""

    box: list[tuple[int, Array, Array]]  # variable, center, half-width of those that are not free
    radius: Array | None = None  # None: no ball among them
    plane: tuple[tuple[int, Array], ...] = ()  # variable, normal; empty: no half-space among them
    offset: Array | None = None

    def map(self, change: Callable[[Array], Array]) -> Columns:
        """Return the same regions with every array changed."""
        return Columns(
            [(d, change(center), change(half)) for d, center, half in self.box],
            None if self.radius is None else change(self.radius),
            tuple((d, change(normal)) for d, normal in self.plane),
            None if self.offset is None else change(self.offset),
        )


def columns(region: Region, dtype: Any) -> Columns:
    """Return an array of regions by variable."""
    arrays = region.arrays()
    center, half = arrays["center"].astype(dtype), arrays["half_width"].astype(dtype)
    box = [
        (d, np.ascontiguousarray(center[..., d]), np.ascontiguousarray(half[..., d]))
        for d in range(center.shape[-1])
        if np.isfinite(half[..., d]).any()
    ]
    if region.is_boxes:
        return Columns(box)
    normal = arrays["normal"].astype(dtype)
    cut = [d for d in range(normal.shape[-1]) if normal[..., d].any()]
    return Columns(
        box,
        arrays["radius"].astype(dtype) if arrays["radius"].any() else None,
        tuple((d, np.ascontiguousarray(normal[..., d])) for d in cut),
        np.broadcast_to(region.offset, region.batch_shape).astype(dtype) if cut else None,
    )


def signed_distance(states: Array, region: Columns) -> Array:
    """Return the Euclidean signed distance (...) of states (..., dim) to regions, positive inside."""
    inside = _box_distance(states, region.box)
    if region.radius is not None:
        inside = inside + region.radius
    if region.offset is not None:
        height = -region.offset
        for d, normal in region.plane:
            height = height + normal * states[..., d]
        inside = np.minimum(inside, height)
    return inside


def _box_distance(states: Array, box: list[tuple[int, Array, Array]]) -> Array:
    deepest = squares = None
    # One variable at a time: on large batches three times faster than over the last axis.
    for d, center, half in box:
        excess = states[..., d] - center
        np.abs(excess, out=excess)
        excess -= half
        outside = np.maximum(excess, 0.0)
        outside *= outside
        deepest = excess if deepest is None else np.maximum(deepest, excess, out=deepest)
        squares = outside if squares is None else np.add(squares, outside, out=squares)
    if deepest is None or squares is None:
        return np.full(states.shape[:-1], np.inf, dtype=states.dtype)
    np.sqrt(squares, out=squares)
    np.copyto(squares, deepest, where=deepest <= 0.0)
    return np.negative(squares, out=squares)
