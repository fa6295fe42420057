"""The environment interface: dynamics as pure functions over arrays of any batch shape.

Actions lie in [-1, 1]^m and are scaled inside `step`; values outside are clipped. Noise is an argument, so a rollout is
a function of (start, policy, noise).

To add an environment, subclass `Environment` as a frozen dataclass whose fields are its constants, define the names,
`noise_scale` and `step`, and register the class as an entry point of group `dibs.environments`. The other members have
defaults.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from dibs.errors import DibsError

Array = npt.NDArray[np.floating]


class Environment(ABC):
    """States, actions, and how one leads from one state to the next."""

    name: ClassVar[str]
    state_names: ClassVar[tuple[str, ...]]
    action_names: ClassVar[tuple[str, ...]]
    version: ClassVar[int] = 1
    """Raised manually when `step`, `observe` or `project` change: results of another version are then rejected."""
    derived: ClassVar[tuple[str, ...]] = ()
    """State variables that are functions of the others; `project` computes them. States cannot be drawn by them."""
    by_row: ClassVar[bool] = False
    """Whether `step` takes one state at a time, so that steps of episodes that are over should be saved."""

    @property
    @abstractmethod
    def noise_scale(self) -> tuple[float, ...]:
        """Standard deviation of the noise that a step adds to each state variable."""

    @abstractmethod
    def step(self, states: Array, actions: Array, noise: Array) -> Array:
        """Map states (..., n), actions (..., m) and unit noise (..., n) to next states (..., n)."""

    @property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lowest and highest value of each state variable; infinite by default."""
        return (-np.inf,) * len(self.state_names), (np.inf,) * len(self.state_names)

    @property
    def periods(self) -> tuple[float, ...]:
        """Period of each state variable that is an angle, 0 for the others."""
        return (0.0,) * len(self.state_names)

    @property
    def action_periods(self) -> tuple[float, ...]:
        """Period of each action that is an angle, such as 2 for one that covers a full turn; 0 for the others."""
        return (0.0,) * len(self.action_names)

    def observe(self, states: Array) -> Array:
        """Return what a policy sees of states (..., n); the states themselves by default."""
        return states

    def recover(self, observations: Array) -> Array:
        """Return the states (..., n) that observations show, NaN for variables that they do not show.

        Composed policies switch edges where a state enters a target: `policy.predict` needs the variables that targets
        constrain. By default observations are the states, or show nothing if `observe` is overridden.
        """
        if self.observes_states:
            return observations
        return np.full((*observations.shape[:-1], len(self.state_names)), np.nan, dtype=np.float32)

    def project(self, states: Array) -> Array:
        """Return the nearest states that exist: within the bounds by default."""
        low, high = (np.asarray(bound, dtype=states.dtype) for bound in self.bounds)
        return np.clip(states, low, high)

    def reset(self, uniforms: Array) -> Array | None:
        """Map uniforms (..., n) to states as the environment's own reset draws them; None: it has no reset."""
        return None

    def least_steps(self, offsets: Array) -> Array | None:
        """Return a lower bound (...) of the steps that change states by `offsets` (..., n) without noise.

        Targets out of reach within the horizon are found with it before training. None: unknown.
        """
        return None

    icon: ClassVar[Literal["disc", "car", "drone"]] = "disc"
    """How pictures show the agent. A car heads where it last moved to, a drone as `attitude` says."""

    @property
    def drawn(self) -> tuple[int, int]:
        """The two state variables whose plane pictures show."""
        return (0, 1)

    @property
    def space(self) -> tuple[int, int, int] | None:
        """Three state variables that pictures show in space, from above and from the side; None: a plane."""
        return None

    def attitude(self, state: Array) -> tuple[float, float]:
        """Return yaw and pitch of a drone in a state (n,), in radians."""
        return (0.0, 0.0)

    def skeleton(self, states: Array) -> Array | None:
        """Return the joints (..., points, 2) of a body to draw, in the first two state variables; None: a point."""
        return None

    @property
    def observes_states(self) -> bool:
        """Whether observations are the states."""
        return type(self).observe is Environment.observe

    @property
    def is_derived(self) -> npt.NDArray[np.bool_]:
        """Which state variables (n,) are functions of the others."""
        return np.array([name in self.derived for name in self.state_names])

    @property
    def observation_dim(self) -> int:
        """Number of entries of an observation."""
        return int(self.observe(np.zeros((1, len(self.state_names)), dtype=np.float32)).shape[-1])

    @property
    def action_dim(self) -> int:
        """Number of entries of an action."""
        return len(self.action_names)


def truncated_normal(uniforms: Array) -> Array:
    """Map uniforms in [0, 1) to a standard normal truncated at one standard deviation."""
    from scipy.special import ndtri  # a third of a second to import, and most commands never draw noise

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
