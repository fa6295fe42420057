"""What a teacher algorithm is given and what it gives back: the extension point of Stage I.

An algorithm trains one actor per reach-avoid task (edge) of a `Lesson`, offers the states it visits to the
lesson's buffers, and returns a `Learnt`. `dibs.teachers.registry` lists the algorithms by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dibs.envs import Array
from dibs.families import ReachAvoid
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.teachers.buffers import StateBuffers


@dataclass(frozen=True, eq=False)
class Lesson:
    """Everything an algorithm may know: the tasks of one index, and the previous index's teacher."""

    tasks: ReachAvoid  # one task per edge
    network: Network
    scaling: Scaling
    buffers: StateBuffers
    rng: np.random.Generator
    seed: int
    """For libraries that take an integer."""
    previous: Array | None = None  # (edges, size): the teacher before; None at index 0
    anchor: float = 0.0
    """λ_x: weight of ‖θ − θ_prev‖² in the minimised objective."""
    confidence: float = 0.0
    """λ_conf: weight of the confidence loss in the joint objective."""
    depth: float = 0.0
    """While training, the target counts as reached this deep inside it."""
    progress: Callable[[str], None] | None = None
    warm: bool = True
    """Start from the teacher before, instead of from scratch."""

    @property
    def start(self) -> Array | None:
        """Weights (edges, size) to start from; None: random ones."""
        return self.previous if self.warm else None


@dataclass(frozen=True, eq=False)
class Learnt:
    """One actor per edge and how it was found."""

    theta: Array  # (edges, size)
    head: Array | None  # (edges, features + 1): confidence heads trained jointly; None: fit one afterwards
    steps: int
    """Environment steps."""
    iterations: int
    curve: list[dict[str, float]] = field(default_factory=list)
