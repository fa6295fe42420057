"""What all drawings share: text sizes, colors by role, and files that do not change from run to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from dibs.files import atomic, check_suffix

Role = Literal["start", "reach", "avoid", "stay"]
"""What a region is for."""
COLORS: dict[Role, str] = {"stay": "#7B4FA3", "avoid": "#5A5A5A", "start": "#E08A00", "reach": "#00875F"}
"""Hues of regions by role, in the order of drawing."""
INK = "#222222"
FORMATS = (".png", ".pdf")
STYLE: dict[Any, Any] = {
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.0,
    "ytick.labelsize": 7.0,
    "legend.fontsize": 7.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.6,
    "pdf.fonttype": 42,  # keeps text as text
    "savefig.dpi": 250,
}


def shade(color: str, darkness: float) -> tuple[float, float, float]:
    """Mix a color with white: 0 is white, 1 the color."""
    red, green, blue = (1.0 - darkness * (1.0 - c) for c in to_rgb(color))
    return red, green, blue


def save(figure: Figure, output: str | Path) -> None:
    """Write a figure as PNG or PDF; the same figure gives the same bytes."""
    suffix = check_suffix(output, FORMATS)[1:]
    metadata = {"CreationDate": None, "Producer": None} if suffix == "pdf" else {"Software": None}
    with mpl.rc_context(STYLE), atomic(output) as temporary:
        figure.savefig(temporary, format=suffix, metadata=metadata, bbox_inches="tight", pad_inches=0.04)
