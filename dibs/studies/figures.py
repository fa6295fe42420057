"""Figures over any benchmarks and methods.

Lines are means over seeds, shades one standard deviation. Only methods in the inputs appear.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from dibs import paths
from dibs.errors import DibsError
from dibs.files import read_json, read_metadata
from dibs.methods import in_order, label
from dibs.provenance import check_kind, check_together
from dibs.statistics import wilson
from dibs.studies import style
from dibs.studies.collect import collect_indices, groups, middle_split, split_order, where
from dibs.studies.reports import Options
from dibs.studies.tables import CELL, MORE, RATIOS

INK = "#444444"
MARKED = 50
"""Indices up to which those that were not trained on have circles."""


def ratios(runs: pd.DataFrame, options: Options) -> Figure:
    """Training and zero-shot ratio over |Train|, one row per benchmark."""
    training, zero_shot, _ = style.OVER_TRAIN.values()
    rows = {name: part for (name,), part in groups(runs, "benchmark")}
    return style.rows_of_panels(runs, rows, {"training": training, "zero-shot": zero_shot}, ceiling=False)


def by_requirement(runs: pd.DataFrame, options: Options) -> Figure:
    """Mean ratios of every method over all benchmarks, and next to them over those that require more.

    If none is known to require more, or if all do, there is one column.
    """
    methods, more = in_order(runs["method"]), where(runs, requires=MORE)
    requires = f"that require{'s' * (more['benchmark'].nunique() == 1)} more"
    if len(more) == len(runs):
        parts = {f"{_benchmarks(more)} {requires}": more}
    else:
        parts = {f"all {_benchmarks(runs)}": runs} | ({f"{_benchmarks(more)} {requires}": more} if len(more) else {})
    with style.in_print():
        figure = Figure(figsize=(style.WIDTH, 3.3), layout="constrained")
        panels = figure.subplots(2, len(parts), sharex=True, sharey=True, squeeze=False)
        for column, (title, part) in zip(panels.T, parts.items(), strict=True):
            column[0].set_title(title)
            cells = part.groupby(["method", *CELL])[list(RATIOS)].mean()
            for ax, ratio in zip(column, RATIOS, strict=True):
                style.value_axis(ax, ratio.removesuffix("_ratio").replace("_", "-") + " ratio")
                for at, method in enumerate(methods):
                    if method in cells.index.get_level_values("method"):
                        found = cells.loc[method][ratio]
                        ax.bar(at, found.mean(), 0.8, **style.bar(method))
                        ax.text(at, 1.02, str(len(found)), ha="center", va="bottom", fontsize=style.NOTE, color=INK)
                ax.set(xticks=[], xlim=(-0.7, len(methods) - 0.3))
        for ax in panels[:, 1:].flat:
            ax.set_ylabel("")
        style.legend(figure, runs, bars=True, ceiling=False)
        text = "means over cells (benchmark and split), each by its mean over seeds; their number is above"
        text += "" if len(more) else "; no benchmark here is known to require more"
        figure.supxlabel(text, fontsize=style.NOTE)
    return figure


def _benchmarks(runs: pd.DataFrame) -> str:
    count = runs["benchmark"].nunique()
    return f"{count} benchmark{'s' * (count != 1)}"


# --- along the index -------------------------------------------------------------------------------------


def success_by_index(runs: pd.DataFrame, options: Options) -> Figure:
    """Satisfaction rate at every index, one part per benchmark and split, one panel per method."""
    chosen = where(runs, split=options.split) if options.split else runs
    if chosen.empty:
        raise DibsError(f"no evaluation has split {options.split}; they have {', '.join(split_order(runs))}")
    cells = groups(chosen, "benchmark", "train_size", "split")
    methods = chosen["method"].nunique()
    columns = min(methods, 2 if len(cells) == 1 else 4)
    lines = -(-methods // columns)
    with style.in_print():
        figure = Figure(figsize=(style.WIDTH, (1.05 * lines + 0.3) * len(cells) + 0.5), layout="constrained")
        parts = figure.subfigures(len(cells), 1, squeeze=False)[:, 0]
        for part, ((benchmark, _, split), cell) in zip(parts, cells, strict=True):
            rows = collect_indices(cell)
            part.suptitle(f"{benchmark}, {split}", fontsize=8.0)
            part.supylabel("satisfied", fontsize=7.5)
            for number, ((method,), shown) in enumerate(groups(rows, "method")):
                _rate(part.add_subplot(lines, columns, number + 1), shown, method)
        parts[-1].supxlabel("index $i$", fontsize=7.5)
        _rate_legend(figure, rows, runs["seed"].nunique() > 1)
    return figure


def rates(rows: pd.DataFrame, method: str, title: str) -> Figure:
    """Satisfaction rate of one method at every index."""
    with style.in_print():
        figure = Figure(figsize=(4.4, 2.4), layout="constrained")
        ax = figure.add_subplot()
        _rate(ax, rows, method)
        ax.set(xlabel="index $i$", ylabel="satisfied")
        figure.suptitle(title, fontsize=8.0)
        _rate_legend(figure, rows, False)
    return figure


def _rate(ax: Axes, rows: pd.DataFrame, method: str) -> None:
    color = style.look(method).color
    if (rows["role"] != "far").any():
        far, rows = where(rows, role="far"), rows[rows["role"] != "far"]
    else:  # far indices alone are drawn to scale
        far = rows[:0]
    beyond, most = where(rows, role="beyond")["index"], rows["index"].max()
    pooled = rows.groupby("index")[["satisfied", "rollouts"]].sum()
    index, rate = pooled.index.to_numpy(float), (pooled["satisfied"] / pooled["rollouts"]).to_numpy()
    low, high = wilson(pooled["satisfied"], pooled["rollouts"])
    if len(beyond):
        ax.axvspan(beyond.min() - 0.5, most + 0.5, color="#EFEFEF", lw=0, zorder=0)
    train = where(rows, role="train")["index"].unique()
    ax.vlines(train, -0.06, 1.06, color="#CFCFCF", lw=0.5, zorder=1)
    ax.axhline(float(rows["delta"].iloc[0]), zorder=1, **style.DELTA)
    if rows["seed"].nunique() > 1:
        for _, one in rows.sort_values("index").groupby("seed"):
            ax.plot(one["index"], one["rate"], color=color, lw=0.4, alpha=0.4, zorder=2)
    ax.fill_between(index, low, high, color=color, alpha=0.3, lw=0, zorder=3)
    ax.plot(index, rate, color=color, lw=1.0, zorder=4)
    trained = np.isin(index, train)
    ax.plot(index[trained], rate[trained], "o", color=color, ms=2.8, mec="white", mew=0.3, zorder=5)
    if "predicted" in rows and rows["predicted"].notna().any():
        ax.plot(rows.groupby("index")["predicted"].mean(), color=INK, lw=0.6, ls=":", zorder=6)
    ends = _far(ax, far, most, color) if len(far) else most + 0.5
    if len(index) <= MARKED:
        ax.plot(index[~trained], rate[~trained], "o", color=color, ms=2.8, mfc="white", mew=0.6, zorder=5)
    ax.set(ylim=(-0.06, 1.08), xlim=(-1, ends), yticks=[0.0, 0.5, 1.0])
    ax.locator_params(axis="x", integer=True)
    ax.set_title(label(method), color=color, fontsize=7.5, loc="left", pad=2.0)


def _far(ax: Axes, rows: pd.DataFrame, most: float, color: str) -> float:
    """Draw far indices as marks to the right of all others, not to scale; return where the axis ends."""
    pooled = rows.groupby("index")[["satisfied", "rollouts"]].sum()
    places = most * (1.06 + 0.12 * np.arange(len(pooled)))
    ax.plot(places, pooled["satisfied"] / pooled["rollouts"], "D", color=color, ms=2.8, clip_on=False, zorder=5)
    for place, index in zip(places, pooled.index, strict=True):
        ax.annotate(f"{index:,}", (place, 0.1), rotation=90, ha="center", va="bottom", fontsize=style.NOTE)
    ax.axvline(most * 1.02, color="#CFCFCF", lw=0.5, ls=":")
    return float(places[-1] + 0.06 * most)


def _rate_legend(figure: Figure, rows: pd.DataFrame, pooled: bool) -> None:
    others = ", circles: not" if rows["index"].nunique() <= MARKED else ""
    rate = f"rate{', seeds pooled' if pooled else ''} (dots: trained{others})"
    entries = {rate: {"color": INK, "marker": "o", "ms": 2.8}, "95% Wilson interval": Patch(facecolor=INK, alpha=0.3)}
    entries |= {"training index": {"color": "#CFCFCF"}, f"δ = {rows['delta'].iloc[0]:g}": style.DELTA}
    if pooled:
        entries["one seed"] = {"color": INK, "lw": 0.4, "alpha": 0.6}
    if (rows["role"] == "beyond").any():
        entries["beyond $L$"] = Patch(facecolor="#EFEFEF")
    if (rows["role"] == "far").any():
        entries["far beyond $L$, not to scale"] = {"color": INK, "marker": "D", "ms": 2.8, "ls": ""}
    if "predicted" in rows and rows["predicted"].notna().any():
        entries["predicted from training"] = {"color": INK, "lw": 0.6, "ls": ":"}
    style.legend_below(figure, entries, 4)


# --- how training went -----------------------------------------------------------------------------------


def loss_curves(files: Sequence[Path], options: Options) -> Figure:
    """Loss of the template's fit over steps, per edge; one panel per family and method."""
    found = [curve for file in files if (curve := _curve(file)) is not None]
    if not found and all("class" in _with_metrics(file, "model")[0]["model"] for file in files):
        return _note("These templates move the base policy:\nnothing was fitted.")
    if not found:
        raise DibsError("none of these models has a curve of its fit: name models of templates")
    curves = _one_split(pd.concat(found, ignore_index=True), options)
    cells = groups(curves, "family", "method")
    how: dict[str, Any] = {"hue": "edge", "palette": "viridis", "units": "seed", "estimator": None, "alpha": 0.8}
    with style.in_print():
        figure, panels = style.panels(len(cells), 1.75, 2)
        for ax, ((family, method), part) in zip(panels, cells, strict=True):
            sns.lineplot(part, x="step", y="loss", ax=ax, **how)
            sns.move_legend(ax, "upper left", bbox_to_anchor=(1, 1), title=None, frameon=False, fontsize=style.NOTE)
            ax.set(xlabel="step of Adam", ylabel="BC loss", yscale="log")
            ax.set_title(f"{family}\n{label(method)}, {part['split'].iloc[0]}", fontsize=7.5)
        seeds = curves["seed"].nunique()
        each = f"one line per edge and seed ({seeds} seeds)" if seeds > 1 else "one line per edge"
        figure.suptitle(f"Template fit: {each}", fontsize=8.0)
    return figure


def _note(text: str) -> Figure:
    """Return a figure that says why there is nothing to draw."""
    with style.in_print():
        figure, (ax,) = style.panels(1, 1.0, 1)
        ax.set_axis_off()
        ax.text(0.5, 0.5, text, ha="center", va="center", transform=ax.transAxes)
    return figure


def _curve(file: Path) -> pd.DataFrame | None:
    """Return the losses of a fit (step, edge, loss) from the metrics next to a model; None if it has none."""
    metadata, metrics = _with_metrics(file, "model")
    edges = metrics.get("fitted", metadata["model"].get("edges"))  # `dibs-plus` does not fit all edges
    if not metrics.get("curve") or edges is None:  # other methods have no curve, or one of another kind
        return None
    table = np.array(metrics["curve"], dtype=float)  # (checks, 1 + edges)
    if table.ndim != 2 or table.shape[1] != 1 + len(edges):
        raise DibsError(f"{file}: expected a curve of {len(edges)} edges, found shape {table.shape}")
    frame = pd.DataFrame(table[:, 1:], columns=[edge.replace(">", " → ") for edge in edges]).assign(step=table[:, 0])
    tidy = frame.melt(id_vars="step", var_name="edge", value_name="loss").dropna()
    identity = {key: metrics[key] for key in ("method", "family", "split", "seed")}
    return tidy.assign(**identity, train_size=len(metrics["train"]))


def drift(files: Sequence[Path], options: Options) -> Figure:
    """Distance of each teacher from the previous one over the index, for every λ_x and kind of start."""
    table = pd.DataFrame([row for file in files for row in _drifts(file)])
    if table.empty:
        raise DibsError("none of these teachers has a predecessor: there is no drift to draw")
    sizes = table.groupby(["family", "split"])["index"].transform("nunique")
    table = _one_split(table.assign(train_size=sizes + 1), options)
    table["way"] = [rf"$\lambda_\mathrm{{x}} = {weight:g}$" for weight in table["cross_index"]]
    if table["warm_start"].nunique() > 1:
        table["way"] += np.where(table["warm_start"], ", warm start", ", from scratch")
    names = table.sort_values(["cross_index", "warm_start"], ascending=False)["way"].unique().tolist()
    how: dict[str, Any] = {"hue": "way", "hue_order": names, "style": "way", "style_order": names, "dashes": False}
    how |= {"palette": "colorblind", "markers": True, "ms": 4.0, "errorbar": "sd", "err_kws": {"lw": 0}}
    found = groups(table, "family")
    with style.in_print():
        figure, panels = style.panels(len(found), 1.75)
        for ax, ((family,), part) in zip(panels, found, strict=True):
            sns.lineplot(part, x="index", y="drift", ax=ax, **how)
            ax.legend().remove()  # one for all panels follows
            ax.set(xlabel="training index $i$", ylabel=r"$\|\theta_i - \theta_{i^-}\|_2$")
            ax.set_ylim(bottom=0.0)
            ticks = sorted(set(part["index"]))
            ax.set_xticks(ticks[:: -(-len(ticks) // 8)])
            ax.set_title(f"{family}, {part['split'].iloc[0]}", fontsize=7.5)
        seeds = table["seed"].nunique()
        over = f"mean over edges and {seeds} seeds; shades: one standard deviation" if seeds > 1 else "mean over edges"
        small: dict[str, Any] = {"frameon": False, "title": over, "title_fontsize": style.NOTE}
        figure.legend(*ax.get_legend_handles_labels(), loc="outside upper center", ncols=len(names), **small)
    return figure


def _drifts(file: Path) -> list[dict[str, Any]]:
    """Return a teacher's drift as a row, unless it has no predecessor."""
    meta, metrics = _with_metrics(file, "teacher")
    found = metrics["metrics"].get("drift")
    if found is None:
        return []
    row: dict[str, Any] = {key: metrics[key] for key in ("family", "split", "index", "seed")}
    row |= {"cross_index": float(meta["settings"]["cross_index"]), "warm_start": bool(meta["settings"]["warm_start"])}
    return [{**row, "drift": float(found)}]


def _with_metrics(file: Path, kind: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the metadata of a teacher or model and the metrics next to it; either of the two files may be given."""
    weights = file.with_suffix(".safetensors")
    metadata, metrics = read_metadata(weights), read_json(paths.metrics(weights))
    check_kind(weights, metadata, kind)
    check_together(paths.metrics(weights), metrics, weights, metadata["id"])
    return metadata, metrics


def _one_split(table: pd.DataFrame, options: Options) -> pd.DataFrame:
    """Return the rows of the split in the options, or of each family's middle one."""
    once = table.drop_duplicates(["family", "split", "seed"])
    middle = {family: options.split or middle_split(part) for family, part in once.groupby("family")}
    chosen = table[table["split"] == table["family"].map(middle)].copy()
    if chosen.empty:
        raise DibsError(f"no input has split {options.split}; they have {', '.join(split_order(table))}")
    return chosen
