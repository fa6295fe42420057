"""The registry of tables and figures: what each one shows, what it reads, and how it is made.

Reports come from entry points of the group `dibs.reports`. This module imports nothing heavy: a report names its
function by import path, and `make` imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dibs import registry
from dibs.errors import DibsError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dibs.studies.formats import Table

SUFFIXES = {"table": (".csv", ".md", ".html", ".tex"), "figure": (".pdf", ".png")}


@dataclass(frozen=True)
class Options:
    """What a report shows, where its inputs leave a choice."""

    methods: tuple[str, ...] = ()
    """Empty: all that the report shows."""
    benchmark: str = ""
    """Empty: all that the report shows."""
    split: str = ""
    """Empty: all, or the middle one where the report shows one."""


USUAL = Options()


@dataclass(frozen=True)
class Report:
    """A table or a figure."""

    name: str
    kind: Literal["table", "figure"]
    caption: str
    make: str | Callable[..., Any]
    """A function or its import path, `package.module:function`. It is called with a frame of runs (see
    `dibs.studies.collect`) if the inputs are evaluations, otherwise with the paths of the inputs; then with `Options`
    and the arguments below. It returns a `Table` or a matplotlib figure."""
    benchmarks: tuple[str, ...] = ("*",)
    """Patterns. The report is made if a benchmark of the study matches, and from matching benchmarks only."""
    inputs: Literal["evaluations", "models", "teachers", "none"] = "evaluations"
    methods: tuple[str, ...] = ()
    """For inputs "models": methods whose models it reads. Empty: the first template method of the study. For inputs
    "evaluations": methods that a study must have for the report to be made."""
    each: bool = False
    """Whether it is made once per benchmark, as NAME-BENCHMARK."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ablation: str = ""
    """An ablation whose evaluations it reads as well, where there are any; the function gets them as `variants`, a
    frame of runs by name of the variant."""
    version: int = 1
    """Raised when the numbers that it shows change. Colors, layout and wording are no part of it."""

    def matching(self, benchmarks: Iterable[str]) -> tuple[str, ...]:
        """Return the benchmarks that it shows."""
        return tuple(b for b in benchmarks if any(fnmatchcase(b, pattern) for pattern in self.benchmarks))


def reports() -> dict[str, Report]:
    """Return all registered reports by name."""
    found: dict[str, Report] = {}
    for source in registry.names("reports"):
        for report in registry.load("reports", source):
            if report.name in found:
                raise DibsError(f"two reports are called '{report.name}'; one of them is in '{source}': rename it")
            found[report.name] = report
    return found


def applicable(benchmarks: Iterable[str]) -> dict[str, tuple[Report, tuple[str, ...]]]:
    """Return the reports of a study of these benchmarks by name, each with the benchmarks that it shows."""
    found: dict[str, tuple[Report, tuple[str, ...]]] = {}
    for report in reports().values():
        shown = report.matching(benchmarks)
        if report.each:
            found |= {f"{report.name}-{b}": (report, (b,)) for b in shown}
        elif shown:
            found[report.name] = (report, shown)
    return found


def find_report(name: str, kind: str = "report") -> tuple[Report, str]:
    """Return a report by name, and the benchmark if the name is NAME-BENCHMARK."""
    known = {n: r for n, r in reports().items() if kind in ("report", r.kind)}
    if name in known:
        return known[name], ""
    for report in known.values():
        if report.each and name.startswith(f"{report.name}-"):
            return report, name.removeprefix(f"{report.name}-")
    raise registry.unregistered(kind, name, known)


def make(name: str, paths: Sequence[Path], options: Options = USUAL) -> Table | Figure:
    """Make a report from its inputs: evaluations, models or teachers, or nothing."""
    report, benchmark = find_report(name)
    if benchmark:
        options = Options(options.methods, benchmark, options.split)
    function = registry.resolved(report.make)
    data: Any = list(paths)
    arguments = dict(report.arguments)
    if report.inputs == "evaluations":
        from dibs.studies.collect import collect

        if report.ablation:
            data, variants = by_variant(data, report.ablation)
            arguments["variants"] = {name: collect(files) for name, files in variants.items()}
        data = collect(data)
        data = data[data["benchmark"].isin(report.matching(data["benchmark"].unique()))]
        if options.benchmark:
            data = data[data["benchmark"] == options.benchmark]
        if options.methods:
            data = data[data["method"].isin(options.methods)]
        if data.empty:
            some = [*report.benchmarks[:3], *["…"] * (len(report.benchmarks) > 3)]
            wanted = options.benchmark or " or ".join(some)
            by = f" by {' or '.join(options.methods)}" if options.methods else ""
            raise DibsError(f"{name}: no evaluation of {wanted}{by} among the inputs")
        data = data.reset_index(drop=True)
    return function(data, options, **arguments)


def by_variant(paths: Iterable[Path], ablation: str) -> tuple[list[Path], dict[str, list[Path]]]:
    """Split files into those of a study itself, and those of the variants of one of its ablations, by variant."""
    own, variants = list[Path](), dict[str, list[Path]]()
    for path in paths:
        parts = path.parts
        at = [i for i in range(len(parts) - 2) if parts[i : i + 2] == ("ablations", ablation)]
        (variants.setdefault(parts[at[-1] + 2], []) if at else own).append(path)
    return own, variants


def write_report(made: Table | Figure, output: str | Path) -> None:
    """Write a table or figure in the format of the name's suffix."""
    from dibs.drawing.style import save
    from dibs.studies import formats

    if isinstance(made, formats.Table):
        formats.save(made, output)
    else:
        save(made, output)


REPORTS = (
    Report(
        "overview",
        "table",
        "Training ratio / zero-shot ratio of every method on every benchmark: the shares of the training tasks and "
        "of the unseen tasks that it solves, mean over splits and seeds.",
        "dibs.studies.tables:overview",
    ),
    Report(
        "relative",
        "table",
        "How many times as many training and unseen tasks one method solves as another, over all benchmarks and "
        "splits that both have. A dash: the other method solves none.",
        "dibs.studies.tables:relative",
    ),
    Report(
        "benchmarks",
        "table",
        "Shares and numbers of training tasks and of unseen tasks that are solved, per benchmark and method: mean ± "
        "standard deviation over seeds, and interquartile mean with bootstrap interval.",
        "dibs.studies.tables:benchmarks",
    ),
    Report(
        "splits",
        "table",
        "Shares and numbers of training tasks and of unseen tasks that are solved, per benchmark, split (the set of "
        "training tasks) and method.",
        "dibs.studies.tables:splits",
    ),
    Report(
        "budgets",
        "table",
        "Environment steps and seconds of training per benchmark and method, with the teachers it rests on.",
        "dibs.studies.tables:budgets",
    ),
    Report(
        "improvement",
        "table",
        "Probability that a run of one method solves more than a run of another, with bootstrap intervals.",
        "dibs.studies.tables:improvement",
    ),
    Report(
        "ratios",
        "figure",
        "Share of training tasks (training ratio) and of unseen tasks (zero-shot ratio) that are solved, over the "
        "number of training tasks. Lines are means over seeds, shades one standard deviation.",
        "dibs.studies.figures:ratios",
    ),
    Report(
        "by_requirement",
        "figure",
        "Share of training tasks (training ratio) and of unseen tasks (zero-shot ratio) that are solved, means over "
        "all benchmarks and splits, and next to them over those that require more than a policy that does not know "
        "the index, or the moved teacher of index 0.",
        "dibs.studies.figures:by_requirement",
    ),
    Report(
        "success_by_index",
        "figure",
        "Share of rollouts that satisfy the specification at every index, per split (the set of training indices) "
        "and method. Dots are training indices, circles were never trained. A task is solved above the dashed line. "
        "Dotted: the share that a template predicted from its training evidence.",
        "dibs.studies.figures:success_by_index",
        each=True,
    ),
    Report(
        "loss_curves",
        "figure",
        "How the fit of a template converges: its behavioral-cloning loss over the steps of the optimizer, one line "
        "per edge of the specification and seed.",
        "dibs.studies.figures:loss_curves",
        inputs="models",
    ),
    Report(
        "drift",
        "figure",
        "How far the weights of a teacher are from those of the teacher of the previous training index, for each "
        "weight of the penalty on that distance. Small steps are what makes one template fit all teachers.",
        "dibs.studies.figures:drift",
        inputs="teachers",
    ),
)
"""Reports on any families and methods."""
