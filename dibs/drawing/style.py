"""What all drawings share: text sizes, colors by role, and files that do not change from run to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from dibs.errors import DibsError
from dibs.files import atomic
from dibs.gym.render import Role

COLORS: dict[Role, str] = {"stay": "#7B4FA3", "avoid": "#5A5A5A", "start": "#E08A00", "reach": "#00875F"}
"""Hues of regions by role, in the order of drawing."""
INK = "#222222"
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


def check_output(output: str | Path, suffixes: tuple[str, ...] = (".png", ".pdf")) -> str:
    """Return the suffix of a file to write, in lower case; raise an error if it is none of those expected."""
    suffix = Path(output).suffix.lower()
    if suffix not in suffixes:
        expected = ", ".join(suffixes[:-1]) + f" or {suffixes[-1]}"
        raise DibsError(f"{output}: expected a name that ends in {expected}")
    return suffix


def save(figure: Figure, output: str | Path) -> None:
    """Write a figure as PNG or PDF; the same figure gives the same bytes."""
    suffix = check_output(output)[1:]
    metadata = {"CreationDate": None, "Producer": None} if suffix == "pdf" else {"Software": None}
    with mpl.rc_context(STYLE), atomic(output) as temporary:
        figure.savefig(temporary, format=suffix, metadata=metadata, bbox_inches="tight", pad_inches=0.04)
