"""How each method is called and drawn, and what the paper says of it (section 5, appendix H)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """How a method appears in tables and figures."""

    label: str
    color: str
    marker: str
    hatch: str
    """Of its bars, so that they can be told apart without colour."""
    dashes: tuple[float, ...] = ()
    """Of its line; empty: solid."""
    hollow: bool = False
    """Whether its marker is drawn as an outline."""


LOOKS: dict[str, Look] = {
    "ars": Look("ARS", "#1F77B4", "o", "..."),
    "bc": Look("BC", "#2CA02C", "s", "---"),
    "maml": Look("MAML", "#FF7F0E", "D", "xxx"),
    "maml-adapted": Look("MAML (adapted)", "#B35400", "D", "+++", (3.0, 1.5), hollow=True),
    "varibad": Look("VariBAD", "#8C564B", "^", "|||"),
    "genrl": Look("GenRL", "#9467BD", "v", "\\\\\\"),
    "dibs": Look("DIBS", "#D62728", "x", "///"),
    "dibs-plus": Look("DIBS+", "#111111", "*", "", (4.0, 1.2)),
    "dibs-weights": Look("DIBS (weights)", "#E377C2", "P", "ooo", (1.5, 1.0)),
    "dibs-branched": Look("DIBS (branched)", "#17809C", "h", "**", (5.0, 1.0, 1.5, 1.0)),
}
"""In the order of legends and tables. Colours and markers of the first six methods are the paper's."""

PAPER = ("ars", "bc", "maml", "varibad", "genrl", "dibs")
"""The methods of the paper's figures."""
BASELINES = ("ars", "bc", "maml", "varibad", "genrl")
OURS = ("dibs", "dibs-plus")
"""The paper's method, and ours, which adds to its objective."""
BRANCHING = ("dibs", "dibs-branched")
"""One template for all indices, and one per routing mode."""
NOT_ZERO_SHOT = ("maml-adapted",)
"""Methods that act at an unseen index only after training on it: never counted as zero-shot."""


def label(method: str) -> str:
    """The name to print."""
    return LOOKS[method].label if method in LOOKS else method


def look(method: str) -> Look:
    """How to draw a method; one that is not the paper's is grey."""
    return LOOKS.get(method, Look(method, "#7F7F7F", "P", "ooo", (1.5, 1.0)))


def in_order(methods: Iterable[str]) -> list[str]:
    """The methods in the order of legends, those unknown here last."""
    known = list(LOOKS)
    return sorted(set(methods), key=lambda m: (known.index(m) if m in known else len(known), m))


@dataclass(frozen=True)
class Relative:
    """How many times as many tasks as a baseline DIBS solves; None where the baseline solves none."""

    training: float | None
    unseen: float | None


RELATIVE: dict[str, Relative] = {
    "ars": Relative(None, None),
    "bc": Relative(3.94, None),
    "maml": Relative(10.83, 14.04),
    "varibad": Relative(3.02, 3.04),
    "genrl": Relative(3.82, 6.19),
}
"""The paper's table of relative aggregate performance."""
RELATIVE_SOURCE = "appendix H, Table 1"
DRIFT_ABLATION = {"regularised": 26, "unregularised": 3}
"""Unseen tasks that the best run solves on SimpleDrone (section 5.2, cross-index drift regularisation)."""
