"""DIBS: decoupled behavioral cloning for inductive generalization in RL from specifications."""

from __future__ import annotations

from importlib import metadata

try:
    __version__ = metadata.version("dibs")
except metadata.PackageNotFoundError:  # run from a source tree that was not installed
    __version__ = "0+unknown"
