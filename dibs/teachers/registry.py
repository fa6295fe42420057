"""Teacher algorithms by name: `ars`, `ppo`, or any other algorithm of Stable-Baselines3."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from dibs.errors import unknown
from dibs.settings import parse_settings
from dibs.teachers.base import Learnt, Lesson

SB3 = ("a2c", "ddpg", "sac", "td3")
ALGORITHMS = ("ars", "ppo", *SB3)


def settings_of(algorithm: str) -> type:
    """The dataclass of an algorithm's settings."""
    if algorithm == "ars":
        from dibs.teachers.ars import ArsSettings

        return ArsSettings
    if algorithm == "ppo":
        from dibs.teachers.ppo_settings import PpoSettings

        return PpoSettings
    if algorithm in SB3:
        from dibs.teachers.ppo_settings import Sb3Settings

        return Sb3Settings
    raise unknown("teacher algorithm", algorithm, ALGORITHMS)


def train_with(algorithm: str, lesson: Lesson, overrides: Mapping[str, Any]) -> Learnt:
    """Train a lesson's teachers with the named algorithm, its settings overridden by `overrides`."""
    kind = settings_of(algorithm)
    known = {f.name for f in dataclasses.fields(kind)}
    for key in overrides:
        if key not in known:
            raise unknown(f"setting of {algorithm}", key, known)
    settings: Any = parse_settings(kind, overrides, f"teachers.options ({algorithm})")
    if algorithm == "ars":
        from dibs.teachers.ars import train as train_ars

        return train_ars(lesson, settings)
    if algorithm == "ppo":
        from dibs.teachers.ppo import train as train_ppo

        return train_ppo(lesson, settings)
    from dibs.teachers.sb3 import train as train_sb3

    return train_sb3(lesson, algorithm, settings)
