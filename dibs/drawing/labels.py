"""Labels that find a free place: next to what they name, inside the panel, and never on top of each other.

Places depend on the final size of a panel, so they are chosen whenever the figure is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from matplotlib.text import Text
from matplotlib.transforms import IdentityTransform

from dibs.envs import Array

HALO: dict[str, Any] = {"boxstyle": "square,pad=0.08", "fc": "white", "ec": "none", "alpha": 0.75}
GAP = 3.0  # points between a label and what it names
BLOCKED = 1e6  # cost of a place on top of another label or outside the panel
FAR = 2.0  # cost at which an optional label is left out
ASIDE = [(-1, 0), (1, 0), (0, 1), (0, -1), (-1, 1), (1, 1), (-1, -1), (1, -1)]
BELOW = [(0, -1), (0, 1), (1, 0), (-1, 0), (1, -1), (-1, -1), (1, 1), (-1, 1)]
"""Directions from a box to its label, the preferred one first."""
SLANTED = np.array([(np.cos(a), np.sin(a)) for a in np.arange(0.5, 16.0) * np.pi / 8])


@dataclass(frozen=True, eq=False)
class Label:
    """A text and where the thing is that it names."""

    text: Text
    box: Callable[[], Array]  # () -> (4,): left, bottom, right, top in pixels
    optional: bool
    """Leave it out where there is no room."""
    inside: bool
    """It may be written into the box."""
    ways: Array  # (8, 2): directions from the box, the preferred one first


class Labels(Artist):
    """All labels of a panel. Drawn before the texts, it moves them."""

    def __init__(self, ax: Axes, marks: Callable[[], Array] | None = None) -> None:
        super().__init__()
        self.labels: list[Label] = []
        self.marks = marks or (lambda: _marks(ax))
        self.placed: tuple[float, ...] = ()  # panel and resolution for which places were chosen
        self.set_zorder(-10.0)
        self.set_in_layout(False)
        ax.add_artist(self)

    def add(
        self,
        words: str,
        box: Callable[[], Array],
        optional: bool = False,
        inside: bool = True,
        ways: Sequence[tuple[int, int]] = ASIDE,
        **how: Any,
    ) -> None:
        """Add a label for what is in a box of pixels."""
        assert isinstance(self.axes, Axes)
        look: dict[str, Any] = {"ha": "center", "va": "center", "zorder": 100, "fontsize": 8.0} | how
        # Text of the axes' own, in pixels; three-dimensional axes have a method of this name with another meaning.
        text = Axes.text(self.axes, 0.0, 0.0, words, transform=IdentityTransform(), bbox=HALO, **look)
        text.set_in_layout(False)
        self.labels.append(Label(text, box, optional, inside, np.array(ways, dtype=float)))

    def draw(self, renderer: Any) -> None:
        """Move every label to its best place; earlier ones choose first."""
        ax = self.axes
        assert ax is not None
        figure = ax.get_figure(root=True)
        assert figure is not None
        point = figure.dpi / 72.0
        view = np.array(ax.get_window_extent(renderer).extents)
        if self.placed == (*view, point):
            return  # a figure is drawn several times until it is saved
        self.placed = (*view, point)
        marks = self.marks()
        taken = np.array([t.get_window_extent(renderer).extents for t in _ticks(ax)]).reshape(-1, 4)
        for label in self.labels:
            label.text.set_visible(True)
            size = np.array(label.text.get_window_extent(renderer).size) + point
            box = np.clip(label.box(), np.tile(view[:2], 2), np.tile(view[2:], 2))
            places, costs = _places(label, box, size, GAP * point)
            found = np.concatenate([places - size / 2, places + size / 2], axis=-1)  # (places, 4)
            around = np.concatenate([found[:, :2].min(axis=0), found[:, 2:].max(axis=0)])[None]
            others = marks[(_overlap(marks, around) > 0.0) & ~np.isclose(marks, box, atol=2.0).all(axis=-1)]
            covered = _overlap(found, others)
            costs = (
                costs + 2.0 * (covered > 0.0) + 10.0 * covered / size.prod() + BLOCKED * (_overlap(found, taken) > 0.0)
            )
            costs += BLOCKED * ((found[:, :2] < view[:2]) | (found[:, 2:] > view[2:])).any(axis=-1)
            best = int(np.argmin(costs))
            label.text.set_visible(bool(costs[best] < FAR or not label.optional))
            label.text.set_position((float(places[best, 0]), float(places[best, 1])))
            if label.text.get_visible():
                taken = np.concatenate([taken, found[best][None]])


def _places(label: Label, box: Array, size: Array, gap: float) -> tuple[Array, Array]:
    """Return places (n, 2) for the middle of a text of some size, inside a box and around it, and their costs (n,)."""
    middle, half = (box[:2] + box[2:]) / 2, (box[2:] - box[:2]) / 2
    fits = label.inside and (2.0 * half > size + gap).all()
    places, costs = [middle[None]], [np.array([0.0 if fits else 12.0])]
    for ring in range(12):
        away = half + size / 2 + gap + ring * 0.6 * size[1]
        ways = label.ways if ring < 2 else np.concatenate([label.ways, SLANTED])
        places.append(middle + ways * away)
        costs.append(0.5 + 1.5 * ring + 0.1 * np.arange(len(ways)))
    return np.concatenate(places), np.concatenate(costs)


def _overlap(boxes: Array, others: Array) -> Array:
    """Return the area (n,) that boxes (n, 4) share with other boxes (m, 4), summed over these."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.asarray(np.maximum(high - low, 0.0).prod(axis=-1).sum(axis=-1))


def _marks(ax: Axes) -> Array:
    """Return the boxes (n, 4) in pixels of everything drawn in a plane; of lines and arrows, of pieces of them."""
    solid = [p.get_window_extent().extents for p in ax.patches if isinstance(p, Rectangle | Circle)]
    curves = [np.asarray(line.get_xydata(), dtype=float) for line in ax.lines]
    curves += [np.asarray(p.get_path().vertices) for p in ax.patches if isinstance(p, FancyArrowPatch)]
    pixels = [_pieces(ax.transData.transform(curve)) for curve in curves if len(curve) > 1]
    pieces = [np.concatenate([np.minimum(c[:-1], c[1:]) - 1, np.maximum(c[:-1], c[1:]) + 1], axis=-1) for c in pixels]
    return np.concatenate([np.reshape(solid, (-1, 4)), *pieces])


def _pieces(curve: Array, count: int = 40) -> Array:
    """Return points (count, 2) along a curve (points, 2)."""
    way = np.append(0.0, np.cumsum(np.linalg.norm(np.diff(curve, axis=0), axis=-1)))
    at = np.linspace(0.0, way[-1], count)
    return np.stack([np.interp(at, way, curve[:, d]) for d in (0, 1)], axis=-1)


def _ticks(ax: Any) -> Sequence[Text]:
    """Return the tick labels that lie inside the panel: those of three-dimensional axes."""
    if not hasattr(ax, "zaxis"):
        return []
    axes = (ax.xaxis, ax.yaxis, ax.zaxis)
    ticks = [tick.label1 for axis in axes for tick in axis.get_major_ticks()]
    return [t for t in (*ticks, *(axis.label for axis in axes)) if t.get_text() and t.get_visible()]
