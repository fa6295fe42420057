"""Environments: the interface, and Car2D, Reacher, SimpleDrone and DroneAttitude of the paper (section 5.1).

`registry.load("environments", name)` finds environments by name.
"""

from __future__ import annotations

from dibs.envs.base import Array, Environment, check_array, sample_noise, truncated_normal
from dibs.envs.car2d import Car2D
from dibs.envs.droneattitude import DroneAttitude
from dibs.envs.reacher import Reacher
from dibs.envs.simpledrone import SimpleDrone

__all__ = [
    "Array",
    "Car2D",
    "DroneAttitude",
    "Environment",
    "Reacher",
    "SimpleDrone",
    "check_array",
    "sample_noise",
    "truncated_normal",
]
