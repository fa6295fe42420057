"""DIBS: decoupled behavioral cloning for inductive generalization in RL from specifications."""

from __future__ import annotations

from importlib import import_module, metadata
from typing import Any

try:
    __version__ = metadata.version("dibs")
except metadata.PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"

_EXPORTS = {
    "Family": "dibs.families",
    "train": "dibs.api",
    "load": "dibs.api",
    "DibsError": "dibs.errors",
}


def __getattr__(name: str) -> Any:
    """Import public names on first use: `import dibs` alone stays fast."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'dibs' has no attribute {name!r}")
    return getattr(import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_EXPORTS})
