"""The figure of branching around obstacles: single and branched template over the index (paper, last section).

Above, the way that each template's policies take at every index; below, how often they satisfy the specification.
Everything is rolled out from the templates, with the streams of the evaluation, so the rates are the evaluation's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from dibs.analysis import draw
from dibs.analysis.figures import GREY, NOTE, QUIET, STYLE, USUAL, WIDTH, Options, benchmark_of, middle_gap
from dibs.analysis.methods import BRANCHING, label, look
from dibs.envs import Array
from dibs.errors import DibsError
from dibs.evaluation.composed import satisfaction
from dibs.evaluation.count import count, record
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family
from dibs.spectrl import parse
from dibs.templates.branched import Branched, load_any
from dibs.templates.template import Template

MEASURE = EvaluationSettings()
AROUND = 1.0  # how far outside of the tasks a way is followed
UNSEEN = (0, (2.6, 1.3))  # dashes

Templates = Sequence[Template | Branched]


def branching(files: Sequence[Path], options: Options = USUAL) -> Figure:
    """Ways and success of the single and of the branched template, each in a column."""
    templates = [load_any(file.with_suffix(".safetensors")) for file in files]
    first = next((t for t in templates if isinstance(t, Branched)), templates[0])
    family, text = benchmark_of(first.family, options.benchmark, files[0])
    gap, columns = _columns([t for t in templates if t.family == family.name], options)
    shown = min(t.seed for found in columns.values() for t in found)
    colors = _colors(family.last_index)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, 3.7), layout="constrained")
        panels = figure.subplots(2, len(columns), height_ratios=[1.75, 1.0], sharey="row", squeeze=False)
        for (above, below), (method, found) in zip(panels.T, columns.items(), strict=True):
            draw.draw_task(above, family, parse(text), [0, family.last_index])
            for name in above.texts:
                name.set_bbox(None)  # ways must show behind names
            above.set_title(label(method), color=look(method).color)
            if found:
                _ways(above, family, text, next((t for t in found if t.seed == shown), found[0]), colors)
                _rates(below, family, text, found, colors)
            else:
                below.text(0.5, 0.5, "not run", transform=below.transAxes, **QUIET)
            below.set(xlabel="index $i$", xlim=(-0.8, family.last_index + 0.8), ylim=(-0.06, 1.08))
            below.yaxis.set_major_locator(FixedLocator([0.0, 0.5, 1.0]))
        for ax in panels[0, 1:]:
            ax.set_ylabel("")
        panels[1, 0].set_ylabel("satisfied")
        ticks = [0, family.last_index // 2, family.last_index]
        bar = figure.colorbar(colors, ax=panels[0].tolist(), aspect=24, pad=0.01, ticks=ticks)
        bar.set_label("index $i$")
        bar.minorticks_off()
        bar.ax.tick_params(length=0.0)
        _legend(figure, family.name, gap, shown, max(map(len, columns.values())))
    return figure


def _columns(templates: Templates, options: Options) -> tuple[int, dict[str, Templates]]:
    """The gap shown, and the templates of each method at it by seed."""
    methods = options.methods or BRANCHING
    own = [t for t in templates if t.method in methods]
    if not own:
        raise DibsError(f"no template of {' or '.join(methods)} among the inputs; name some with --inputs")
    found = pd.DataFrame([{"method": t.method, "gap": t.gap, "seed": t.seed} for t in own])
    gap = middle_gap(found) if options.gap is None else options.gap
    if gap not in set(found["gap"]):
        raise DibsError(f"no input has gap {gap}; they have {sorted(set(found['gap']))}")
    assert gap is not None
    at = [t for t in own if t.gap == gap]
    return gap, {m: sorted((t for t in at if t.method == m), key=lambda t: t.seed) for m in methods}


def _colors(last: int) -> ScalarMappable:
    """A colour per index, without the palest, which would not stand on white."""
    shades = mpl.colormaps["plasma"](np.linspace(0.0, 0.85, last + 1))
    return ScalarMappable(BoundaryNorm(np.arange(last + 2) - 0.5, last + 1), ListedColormap(list(shades)))


def _ways(ax: Axes, family: Family, text: str, template: Template | Branched, colors: ScalarMappable) -> None:
    """One rollout per index; what leaves the picture is cut off."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    low, high = np.array([left, bottom]), np.array([right + AROUND, top + AROUND])
    indices = range(family.last_index + 1)
    recorded = record(family, text, template, template.seed, indices, 1)
    verdict = satisfaction(family, parse(text), recorded)
    for index, rollout in recorded.items():
        states = rollout.states[0, : rollout.lengths[0], :2]
        outside = np.flatnonzero(((states < low) | (states > high)).any(axis=1))
        states = states[: outside[0]] if len(outside) else states
        seen = index in template.train
        color = tuple(colors.to_rgba(np.array(index)))
        style: dict[str, Any] = {"lw": 1.3, "ls": "-"} if seen else {"lw": 0.8, "ls": UNSEEN}
        ax.plot(*states.T, color=color, zorder=6.0 if seen else 5.5, solid_capstyle="round", **style)
        if verdict[index]:
            ax.plot(*states[-1], "o", color=color, ms=2.2, mew=0.0, zorder=6.5)
        else:
            ax.plot(*states[_failed_at(family, text, index, states)], "x", color=color, ms=4.5, mew=1.1, zorder=6.5)
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))


def _failed_at(family: Family, text: str, index: int, states: Array) -> int:
    """Where a way (time, 2) first enters what it must avoid, or else its end."""
    avoided = [r for r in draw.task_regions(family, parse(text), [index]) if r.role == "avoid"]
    inside = [((states > r.low[0, :2]) & (states < r.high[0, :2])).all(axis=1) for r in avoided]
    hit: list[int] = np.flatnonzero(np.any(inside, axis=0)).tolist() if inside else []
    return hit[0] if hit else len(states) - 1


def _rates(ax: Axes, family: Family, text: str, templates: Templates, colors: ScalarMappable) -> None:
    """Satisfaction rate at every index: all seeds together, and a thin line for each."""
    indices = np.arange(family.last_index + 1)
    counts = [count(family, text, t, t.seed, indices.tolist(), MEASURE.rollouts) for t in templates]
    rates = np.array([list(found.values()) for found in counts]) / MEASURE.rollouts  # (seeds, indices)
    for template in (t for t in templates if isinstance(t, Branched)):
        for i in indices[1:].tolist():
            if template.mode(i) != template.mode(i - 1):
                ax.axvline(i - 0.5, color=look(template.method).color, lw=0.8, ls=(0, (1, 1)), zorder=1)
    ax.axhline(MEASURE.delta, color=GREY, lw=0.6, ls=(0, (4, 2)), zorder=1)
    if len(rates) > 1:
        ax.plot(indices, rates.T, color="#9A9A9A", lw=0.5, alpha=0.8, zorder=2)
    mean = rates.mean(axis=0)
    seen = np.isin(indices, templates[0].train)
    ax.plot(indices, mean, color="#444444", lw=0.9, zorder=3)
    shades: Any = colors.to_rgba(indices)
    ax.scatter(indices[seen], mean[seen], s=20.0, c=shades[seen], linewidths=0.0, zorder=5)
    ax.scatter(indices[~seen], mean[~seen], s=13.0, c="white", edgecolors=shades[~seen], linewidths=0.9, zorder=4)


def _legend(figure: Figure, name: str, gap: int, seed: int, seeds: int) -> None:
    """Say what is shown above the panels, explain lines and marks below."""
    dark = "#444444"
    entries: list[tuple[Any, str]] = [
        (Line2D([], [], color=dark, lw=1.3, marker="o", ms=4.2, mew=0.0), "seen in training"),
        (Line2D([], [], color=dark, lw=0.8, ls=UNSEEN, marker="o", ms=3.6, mfc="white", mew=0.9), "unseen"),
        (Line2D([], [], color=dark, lw=0.0, marker="x", ms=4.0, mew=1.0), "not satisfied"),
        (Line2D([], [], color=GREY, lw=0.6, ls=(0, (4, 2))), f"δ = {MEASURE.delta:g}"),
        (Line2D([], [], color=look(BRANCHING[1]).color, lw=0.8, ls=(0, (1, 1))), "change of mode"),
    ]
    if seeds > 1:
        entries.append((Line2D([], [], color="#9A9A9A", lw=0.5), "one seed"))
    figure.suptitle(
        f"{name}, gap {gap}; ways of seed {seed}, rates of {seeds} seed{'s' if seeds > 1 else ''}", fontsize=8.0
    )
    handles, labels = zip(*entries, strict=True)
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=6,
        frameon=False,
        fontsize=NOTE,
        columnspacing=0.9,
        handlelength=1.8,
    )
