"""What an environment is: dynamics as a pure function over arrays of any batch shape.

Actions live in [-1, 1]^m and are scaled inside `step`; values outside are clipped. Noise is handed in, so a
rollout is a function of (start, policy, noise): the single environment, the batched one and the evaluation
give the same trajectory from the same noise.
"""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from dibs.errors import DibsError

Array = npt.NDArray[np.floating]


@runtime_checkable
class Dynamics(Protocol):
    """The contract of an environment; implementations are frozen dataclasses of constants."""

    name: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]]
    action_names: ClassVar[tuple[str, ...]]

    @property
    def noise_scale(self) -> tuple[float, ...]:
        """Standard deviation of the noise added to each state variable in a step."""

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lowest and highest value of each state variable (infinite where unbounded)."""

    def step(self, states: Array, actions: Array, noise: Array) -> Array:
        """Map states (..., n), actions (..., m) and unit noise (..., n) to next states (..., n)."""


def truncated_normal(uniforms: Array) -> Array:
    """Map uniforms in [0, 1) to a standard normal truncated at one standard deviation."""
    from scipy.special import ndtri

    low = 0.15865525393145707  # Phi(-1)
    return np.asarray(ndtri(low + (1.0 - 2.0 * low) * uniforms), dtype=uniforms.dtype)


def sample_noise(rng: np.random.Generator, shape: tuple[int, ...], dtype: npt.DTypeLike = np.float32) -> Array:
    """Draw unit noise of the given shape, truncated at one standard deviation."""
    return truncated_normal(rng.random(shape, dtype=np.float32 if np.dtype(dtype) == np.float32 else np.float64))


def check_array(what: str, values: npt.ArrayLike, last: int) -> Array:
    """Return `values` as a float array whose last axis has length `last`, or say what is wrong with it."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise DibsError(f"{what}: expected numbers, found dtype {array.dtype}")
    if array.ndim == 0 or array.shape[-1] != last:
        raise DibsError(f"{what}: expected last axis of length {last}, found shape {array.shape}")
    array = array if array.dtype.kind == "f" else array.astype(np.float64)
    bad = ~np.isfinite(array)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise DibsError(f"{what}: {array[where]} at position {where}; every entry must be finite")
    return array
