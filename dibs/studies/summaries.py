"""The summary of an ablation or a sweep: its table, its figure and its result for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from dibs.files import write_json
from dibs.studies import ablations, study_figures, sweeps
from dibs.studies.formats import Table
from dibs.studies.reports import SUFFIXES, write_report
from dibs.studies.studies import StudyFile, read_results

FORMATS = (*SUFFIXES["table"], *SUFFIXES["figure"], ".json")
"""Suffixes of the files of a summary."""


@dataclass(frozen=True, eq=False)
class StudySummary:
    """What a study found."""

    table: Table
    figure: Callable[[], Figure]
    data: dict[str, Any]
    """For programs: the chosen point of a sweep and why it was chosen; all rows of an ablation."""

    def write(self, output: Path) -> None:
        """Write the table, the figure or the data, whichever has the name's suffix."""
        if output.suffix == ".json":
            write_json(output, self.data)
        else:
            write_report(self.table if output.suffix in SUFFIXES["table"] else self.figure(), output)


def summarize_study(study: StudyFile) -> StudySummary:
    """Read the results of a study and summarize them."""
    if study.kind == "sweep":
        points = sweeps.measured_points(study)
        choice = sweeps.choose(study, points)
        table, decision = sweeps.sweep(study, points, choice), sweeps.decision(study, points, choice)
        return StudySummary(table, lambda: study_figures.sweep_figure(study, points, choice), decision)
    results = read_results(study)
    table = ablations.ablation(study, results)
    data = {"name": study.name, "question": study.question, "base": study.base, "rows": table.rows}
    return StudySummary(table, lambda: study_figures.ablation_figure(study, results), data)
