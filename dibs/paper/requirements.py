"""What the paper's benchmarks require, as measured by `dibs requires '*' --output dibs/paper/requirements.json`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from dibs.files import read_json

FILE = Path(__file__).with_suffix(".json")


@cache
def answers() -> dict[str, dict[str, Any]]:
    """Return the committed answers by benchmark."""
    found: dict[str, dict[str, Any]] = read_json(FILE)
    return found
