"""Adam (Kingma and Ba 2015) in NumPy, for the fit of κ and for behavioral cloning.

    adam = Adam(theta.shape)
    theta = (theta - adam.step(gradient, rate)).astype(theta.dtype)

Several problems can share one array. `Adam((2, 5, 9), (1, 5, 1))` counts the steps of the five along the second axis
separately, so some of them may be stepped (`step(gradient, rate, np.s_[:, rows])`) and restarted
(`reset(np.s_[:, rows])`) without the others. The moments are float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dibs.envs import Array

FIRST, SECOND, EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """The moments of gradients of one shape; step counts broadcast against them."""

    def __init__(self, shape: tuple[int, ...], counts: tuple[int, ...] = ()) -> None:
        self.first, self.second, self.count = np.zeros(shape), np.zeros(shape), np.zeros(counts)

    def step(self, gradient: Array, rate: float | Array, at: Any = ()) -> Array:
        """Add the gradient of the part `at` to the moments and return what to subtract from the parameters."""
        # 0.1 · gradient in the gradient's own precision; squares in double precision.
        self.first[at] = FIRST * self.first[at] + 0.1 * gradient
        self.second[at] = SECOND * self.second[at] + 0.001 * gradient.astype(np.float64) ** 2
        self.count[at] += 1
        mean = self.first[at] / (1.0 - FIRST ** self.count[at])
        spread = np.sqrt(self.second[at] / (1.0 - SECOND ** self.count[at]))
        return np.asarray(rate * mean / (spread + EPSILON))

    def reset(self, at: Any = ()) -> None:
        """Forget the gradients of the part `at`."""
        self.first[at] = self.second[at] = self.count[at] = 0.0
