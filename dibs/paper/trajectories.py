"""Rollouts of trained templates: figure 2b of the paper, and the figure of branching in its last section.

Rollouts use the random streams of the evaluation, so the rates are the evaluation's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.figure import Figure

from dibs.drawing.regions import Trajectory, region_roles
from dibs.drawing.tasks import draw_task, figure_task
from dibs.envs import Array
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings, count_satisfied, recorded
from dibs.families import Benchmark, Family, get_benchmark
from dibs.files import read_metadata
from dibs.methods import Method, Model, get_method, in_order, label
from dibs.pipeline import OpenedModel, open_model
from dibs.provenance import check_kind
from dibs.spectrl import satisfied
from dibs.studies import style
from dibs.studies.collect import middle_split, split_order
from dibs.studies.reports import Options
from dibs.templates.branched import Branched
from dibs.templates.template import PolicyEvolution, evolution_of


@dataclass(frozen=True, eq=False)
class FittedTemplate:
    """A model of a template method, and the template in it."""

    opened: OpenedModel
    template: PolicyEvolution

    def rollouts(self) -> Iterator[tuple[int, Array, bool]]:
        """Yield one rollout (time, dim) at every index, and whether it satisfies the specification."""
        for task, found in recorded(*self._policies, 1, self.opened.seed):
            for i, index in enumerate(task.indices):
                regions = task.grounded.regions_at(index)
                won = satisfied(task.grounded.spec, regions, found.states[i], found.lengths[i])
                yield index, found.states[i, 0, : found.lengths[i, 0]], bool(won[0])

    def rates(self, rollouts: int) -> list[float]:
        """Return the satisfaction rate at every index, as the evaluation measures it."""
        counts = count_satisfied(*self._policies, rollouts, self.opened.seed)
        return [counts[index] / rollouts for index in sorted(counts)]

    @property
    def _policies(self) -> tuple[Method, Model, Family, str, range]:
        """What is rolled out: the policies at all indices of the family."""
        method, model, benchmark = self.opened.method, self.opened.model, self.opened.benchmark
        return method, model, benchmark.family, benchmark.specification, range(benchmark.family.last_index + 1)


def load_fitted(files: Sequence[Path], options: Options, default: str) -> list[FittedTemplate]:
    """Read the template models of one family and split by method and seed.

    The benchmark is the one in the options, or the default; the split that in the options, or the middle one.
    """
    benchmark, found = get_benchmark(options.benchmark or default), list[OpenedModel]()
    for file in (file.with_suffix(".safetensors") for file in files):
        meta = read_metadata(file)
        check_kind(file, meta, "model")
        method = get_method(meta["method"])
        wanted = not options.methods or method.name in options.methods
        if wanted and method.per_family and "datasets" in method.needs and meta["family"] == benchmark.family.name:
            found.append(open_model(file, benchmark.family, benchmark.id))
    if not found:
        by = f" by {' or '.join(options.methods)}" if options.methods else ""
        raise DibsError(f"no template of {benchmark.family.name}{by} among the inputs; name one with --inputs")
    table = pd.DataFrame([{"split": f.split.name, "train_size": len(f.split.indices)} for f in found])
    split = options.split or middle_split(table)
    if split not in set(table["split"]):
        raise DibsError(f"no input has split {split}; they have {', '.join(split_order(table))}")
    order = in_order(f.method.name for f in found)
    chosen = sorted((f for f in found if f.split.name == split), key=lambda f: (order.index(f.method.name), f.seed))
    return [FittedTemplate(f, evolution_of(f.model, f.id)) for f in chosen]


def choice_trajectories(files: Sequence[Path], options: Options) -> Figure:
    """Draw one rollout of a template at every index, blue where it was trained and red where not (figure 2b)."""
    fitted = load_fitted(files, options, "car2d-choice-l1")[0]
    opened, train = fitted.opened, fitted.template.train
    benchmark = opened.benchmark
    trajectories = [Trajectory(i, "train" if i in train else "unseen", states) for i, states, _ in fitted.rollouts()]
    trajectories.sort(key=lambda t: (t.role == "train", t.index))  # the fewer ones on top
    last = benchmark.family.last_index
    figure = figure_task(benchmark.family.tasks([0, last // 2, last], benchmark.specification), trajectories)
    figure.axes[0].set_title(f"{label(opened.method.name)}, {opened.split.name}, seed {opened.seed}", fontsize=8.5)
    return figure


# --- branching: single and branched template over the index (last section) -------------------------------

MEASURE = EvaluationSettings()
AROUND = 1.0  # routes are drawn this far beyond the tasks
UNSEEN = (0, (2.6, 1.3))  # dashes
INK, PALE = "#444444", "#9A9A9A"
SWITCH: dict[str, Any] = {"color": style.look("dibs-branched").color, "lw": 0.8, "ls": (0, (1, 1))}
LEGEND: dict[str, dict[str, Any]] = {
    "seen in training": {"color": INK, "lw": 1.3, "marker": "o", "ms": 4.2, "mew": 0.0},
    "unseen": {"color": INK, "lw": 0.8, "ls": UNSEEN, "marker": "o", "ms": 3.6, "mfc": "white", "mew": 0.9},
    "not satisfied": {"color": INK, "lw": 0.0, "marker": "x", "ms": 4.0, "mew": 1.0},
    "change of mode": SWITCH,
}


def branching(files: Sequence[Path], options: Options) -> Figure:
    """Draw routes and success of the single and of the branched template, each in a column."""
    fitted = load_fitted(files, options, "car2d-switch")
    benchmark, split = fitted[0].opened.benchmark, fitted[0].opened.split
    columns = {method: [*found] for method, found in groupby(fitted, key=attrgetter("opened.method.name"))}
    last, shown = benchmark.family.last_index, min(one.opened.seed for one in fitted)
    colors = _colors(last)
    with style.in_print():
        figure = Figure(figsize=(style.WIDTH, 3.7), layout="constrained")
        panels = figure.subplots(2, len(columns), height_ratios=[1.75, 1.0], sharey="row", squeeze=False)
        for (above, below), (method, found) in zip(panels.T, columns.items(), strict=True):
            draw_task(above, benchmark.family.tasks([0, last], benchmark.specification))
            for name in above.texts:
                name.set_bbox(None)  # routes must show behind names
            above.set_title(label(method), color=style.look(method).color)
            _routes(above, next((one for one in found if one.opened.seed == shown), found[0]), colors)
            _rates(below, found, colors)
            above.grid(False)
        for ax in panels[0, 1:]:
            ax.set_ylabel("")
        panels[1, 0].set_ylabel("satisfied")
        scale: dict[str, Any] = {"aspect": 24, "pad": 0.01, "ticks": [0, last // 2, last], "label": "index $i$"}
        figure.colorbar(colors, ax=panels[0].tolist(), **scale).minorticks_off()
        seeds = max(map(len, columns.values()))
        title = f"{benchmark.id}, {split.name}; routes of seed {shown}, rates of {seeds} seed{'s' * (seeds > 1)}"
        figure.suptitle(title, fontsize=8.0)
        entries = {**LEGEND, f"δ = {MEASURE.delta:g}": style.DELTA}
        style.legend_below(figure, entries | ({"one seed": {"color": PALE, "lw": 0.5}} if seeds > 1 else {}))
    return figure


def _colors(last: int) -> ScalarMappable:
    """Return a color per index, without the palest ones, which are hard to see on white."""
    shades = mpl.colormaps["plasma"](np.linspace(0.0, 0.85, last + 1))
    return ScalarMappable(BoundaryNorm(np.arange(last + 2) - 0.5, last + 1), ListedColormap(list(shades)))


def _routes(ax: Axes, fitted: FittedTemplate, colors: ScalarMappable) -> None:
    """Draw one rollout per index; what leaves the picture is cut off."""
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    low, high = np.array([left, bottom]), np.array([right + AROUND, top + AROUND])
    for index, rollout, won in fitted.rollouts():
        inside = ((rollout[:, :2] >= low) & (rollout[:, :2] <= high)).all(axis=1)
        states = rollout[np.logical_and.accumulate(inside), :2]
        color = tuple(colors.to_rgba(np.array(index)))
        trained: dict[str, Any] = {"lw": 1.3, "ls": "-", "zorder": 6.0}
        how = trained if index in fitted.template.train else {"lw": 0.8, "ls": UNSEEN, "zorder": 5.5}
        ax.plot(*states.T, color=color, solid_capstyle="round", **how)
        end: dict[str, Any] = {"marker": "o", "ms": 2.2, "mew": 0.0} if won else {"marker": "x", "ms": 4.5, "mew": 1.1}
        last = -1 if won else _failed_at(fitted.opened.benchmark, index, states)
        ax.plot(*states[last], color=color, zorder=6.5, **end)
    ax.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))


def _failed_at(benchmark: Benchmark, index: int, states: Array) -> int:
    """Return where a route (time, 2) first enters a region to avoid, or else its end."""
    tasks = benchmark.family.tasks([index], benchmark.specification)
    roles = region_roles(tasks.edges)
    avoided = [region for name, region in tasks.regions_at(index).items() if roles.get(name) == "avoid"]
    hit = np.any([region.contains(states) for region in avoided], axis=0)
    return int(hit.argmax()) if hit.any() else len(states) - 1


def _rates(ax: Axes, found: Sequence[FittedTemplate], colors: ScalarMappable) -> None:
    """Draw the satisfaction rate at every index: the mean over seeds, and a thin line for each."""
    rates = np.array([one.rates(MEASURE.rollouts) for one in found])  # (seeds, indices)
    indices, templates = np.arange(rates.shape[1]), [one.template for one in found]
    for template in templates:
        modes = [template.mode(i) for i in indices.tolist()] if isinstance(template, Branched) else []
        for i in np.flatnonzero(np.diff(modes)):
            ax.axvline(i + 0.5, zorder=1, **SWITCH)
    ax.axhline(MEASURE.delta, zorder=1, **style.DELTA)
    if len(rates) > 1:
        ax.plot(indices, rates.T, color=PALE, lw=0.5, alpha=0.8, zorder=2)
    mean = rates.mean(axis=0)
    trained = np.isin(indices, templates[0].train)
    ax.plot(indices, mean, color=INK, lw=0.9, zorder=3)
    shades: Any = colors.to_rgba(indices)
    ax.scatter(indices[trained], mean[trained], s=20.0, c=shades[trained], linewidths=0.0, zorder=5)
    outlines = {"c": "white", "edgecolors": shades[~trained], "linewidths": 0.9}
    ax.scatter(indices[~trained], mean[~trained], s=13.0, zorder=4, **outlines)
    ax.set(xlabel="index $i$", xlim=(-0.8, indices[-1] + 0.8), ylim=(-0.06, 1.08), yticks=[0.0, 0.5, 1.0])
