"""A template in words: per edge its class, what moves, how far to trust it, and predicted success."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from dibs.methods import Model
from dibs.templates.prediction import curves
from dibs.templates.template import check_indices, evolution_of, spelled


def explain(model: Model, where: str, indices: Sequence[int] | None = None) -> list[str]:
    """Return lines of text; predicted success at the given indices, by default 0 … 2L and 1,000 and 100,000."""
    template = evolution_of(model, where)
    lines = [f"class {model.metadata['class']}, training indices {spelled(template.train)}"]
    lines += [f"{edge}: {template.describe(edge)}" for edge in template.edges]
    known = curves(model)
    if not known:
        return [*lines, "this model predicts no success"]
    last = template.train[-1]
    chosen = sorted({*range(2 * last + 1), 1_000, 100_000} if indices is None else set(indices))
    check_indices(chosen)
    names = [edge for edge in template.edges if edge in known]
    rows = []
    for index in chosen:
        role = "trained" if index in template.train else "unseen" if index <= last else "beyond L"
        rows.append((index, (role, *(f"{known[name].at(index):.2f}" for name in names))))
    table = [("index", "", *names)]
    for cells, run in groupby(rows, key=lambda row: row[1]):
        run_of = [index for index, _ in run]
        # Neighbors with equal predictions share a line.
        for low, high in _consecutive(run_of):
            table.append((f"{low:,}" if low == high else f"{low:,} … {high:,}", *cells))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines.append("predicted success, from training evidence:")
    lines += ["  " + "  ".join(f"{c:>{w}}" for c, w in zip(row, widths, strict=True)) for row in table]
    return lines


def _consecutive(indices: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and last of every run of consecutive numbers."""
    runs: list[tuple[int, int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return runs
