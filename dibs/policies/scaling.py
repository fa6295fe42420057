"""Input scaling by constants of the training tasks, so that weights of different indices mean the same thing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dibs.envs import Array, Environment
from dibs.families import Tasks
from dibs.seeding import stream

SAMPLES = 1024  # states whose observations bound the inputs, where observations are not the states


@dataclass(frozen=True, eq=False)
class Scaling:
    """Per edge: network input = (observation − center) / half."""

    NAMES: ClassVar[tuple[str, str]] = ("scaling_center", "scaling_half")
    """Of its tensors in files of teachers and models."""
    center: Array  # (edges, inputs)
    half: Array  # (edges, inputs)

    def take(self, edges: npt.NDArray[np.intp]) -> Scaling:
        return Scaling(self.center[edges], self.half[edges])

    @property
    def tensors(self) -> dict[str, Array]:
        """What files of teachers and models contain."""
        return dict(zip(self.NAMES, (self.center, self.half), strict=True))

    @classmethod
    def of(cls, tensors: Mapping[str, Array]) -> Scaling:
        """Read what `tensors` returned."""
        return cls(*(tensors[name] for name in cls.NAMES))


def edge_scaling(tasks: Tasks) -> Scaling:
    """Return the bounding box of each edge's source and target at the first and the last index, both always trained."""
    low, high = tasks.reach_avoid([tasks.indices[0], tasks.indices[-1]]).extent()
    ends = (2, len(tasks.edges), -1)
    return Scaling(*_box(tasks.environment, low.reshape(ends).min(axis=0), high.reshape(ends).max(axis=0)))


def joint_scaling(tasks: Tasks) -> tuple[Array, Array]:
    """Return center and half-width (inputs,) of the box around all edges at the first and the last index."""
    low, high = tasks.reach_avoid([tasks.indices[0], tasks.indices[-1]]).extent()
    return _box(tasks.environment, low.min(axis=0), high.max(axis=0))


def _box(environment: Environment, low: Array, high: Array) -> tuple[Array, Array]:
    low, high = observed_bounds(environment, low, high)
    half = (high - low) / 2
    half = np.where(half > 1e-6, half, 1.0)  # a variable that nothing varies or constrains
    return ((low + high) / 2).astype(np.float32), half.astype(np.float32)


def observed_bounds(environment: Environment, low: Array, high: Array) -> tuple[Array, Array]:
    """Return the bounds (..., inputs) of what is observed of states between `low` and `high` (..., dim)."""
    if environment.observes_states:
        return low, high
    dim = low.shape[-1]
    corners = np.stack(np.meshgrid(*[[0.0, 1.0]] * dim, indexing="ij"), axis=-1).reshape(-1, dim) if dim <= 8 else None
    inside = stream("observed bounds").random((SAMPLES, dim))
    weights = inside if corners is None else np.concatenate([corners, inside])
    states = low[..., None, :] + weights * (high - low)[..., None, :]
    seen = environment.observe(environment.project(states))
    return seen.min(axis=-2), seen.max(axis=-2)
