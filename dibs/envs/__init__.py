"""The paper's four environments as batched pure functions; Gymnasium and SB3 adapters beside them."""

from __future__ import annotations

from dibs.envs.base import Array, Dynamics, check_array, sample_noise, truncated_normal
from dibs.envs.car2d import Car2D
from dibs.envs.droneattitude import DroneAttitude
from dibs.envs.reacher import Reacher
from dibs.envs.simpledrone import SimpleDrone

ENVIRONMENTS: dict[str, type[Dynamics]] = {kind.name: kind for kind in (Car2D, Reacher, SimpleDrone, DroneAttitude)}

__all__ = [
    "ENVIRONMENTS",
    "Array",
    "Car2D",
    "DroneAttitude",
    "Dynamics",
    "Reacher",
    "SimpleDrone",
    "check_array",
    "sample_noise",
    "truncated_normal",
]
