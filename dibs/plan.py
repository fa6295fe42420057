"""What a config makes: every artefact, what it is made from, and what it depends on besides files.

The workflow's rules ask here; nothing is run and nothing heavy imported. Besides its input files, an artefact
depends on its stage's settings, its family's description and the code of its stage. The rules hand these to
Snakemake as `params`, so that a change of any of them reruns what depends on it, and a docstring nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path

from dibs.arguments import family_digest
from dibs.baselines.registry import BASELINES
from dibs.config import PAPER, TEMPLATE_METHODS, Benchmark, Config, difference, find_benchmarks
from dibs.datasets.build import DatasetSettings
from dibs.errors import unknown
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.evaluation.methods import Case, get_method
from dibs.families import Family
from dibs.paths import Layout, previous_index, teacher_files
from dibs.provenance import code_digest, digest
from dibs.settings import parse_settings
from dibs.teachers.train import TeacherSettings
from dibs.templates.commands import BRANCHED, code_of
from dibs.templates.commands import CODE as TEMPLATE_CODE
from dibs.templates.fit import FitSettings

CODE = {
    "teachers": ("dibs.teachers.train", "dibs.teachers.store"),
    "datasets": ("dibs.datasets.build", "dibs.datasets.store"),
    "templates": TEMPLATE_CODE,
    "tables": ("dibs.analysis.tables", "dibs.analysis.collect"),
    "figures": ("dibs.analysis.figures", "dibs.analysis.collect"),
    "studies": tuple(f"dibs.analysis.{name}" for name in ("ablations", "sweeps", "study_figures")),
}
"""Entry modules whose digest the artefacts of a stage carry; a test compares with what the commands write."""

TABLES = ("relative", "benchmarks", "splits", "improvement", "claims")
"""Tables of all evaluations."""


SINGLE = tuple(method for method in TEMPLATE_METHODS if method not in BRANCHED)
"""Methods with one template for all indices."""


@dataclass(frozen=True)
class Shown:
    """What a figure shows."""

    benchmarks: tuple[str, ...]
    """Ids or patterns; a figure is made if one of them is in the config."""
    of: str = "evaluations"
    """What it is made from: evaluations, one template, templates or teachers (of each family's middle split, all
    seeds), branched templates (and the single ones beside them), or nothing (an illustration)."""


_REACH = ("car2d-reach", "simpledrone-reach", "droneattitude-reach")
_TOWERS = [f"{kind}-{side}" for kind in ("drop", "stack") for side in ("same", "opposite")]
FIGURES = {
    "scalability_k5": Shown(tuple(f"{family}-k*" for family in _REACH)),
    **{f"scalability_k{k}": Shown(tuple(f"{f}-k{k}" for f in (*_REACH, "car2d-reach-obs"))) for k in (4, 3, 2, 1)},
    "obstacles": Shown(("car2d-reach-obs-k*",)),
    "choice": Shown(("car2d-choice-l*",)),
    **{f"reacher_{h}": Shown((f"reacher-*-{h}",)) for h in (8, 9, 10)},
    "success_by_index": Shown(("*",)),
    "choice_trajectories": Shown(("car2d-choice-l*",), "template"),
    "branching": Shown(("car2d-switch",), "branched templates"),
    "loss_curves": Shown(("*",), "templates"),
    "drift": Shown(("*",), "teachers"),
    "environments": Shown(("*",), "nothing"),
    "spec-reach": Shown(tuple(f"{family}-k*" for family in _REACH), "nothing"),
    "spec-reach-obs": Shown(("car2d-reach-obs-k*",), "nothing"),
    **{f"spec-choice-l{level}": Shown((f"car2d-choice-l{level}",), "nothing") for level in (1, 2)},
    "reacher-environment": Shown(("reacher-*",), "nothing"),
    **{f"spec-reacher-{tower}": Shown((f"reacher-{tower}-*",), "nothing") for tower in _TOWERS},
}
"""Figures by name; a test compares with what `dibs figure` knows."""


@dataclass(frozen=True)
class Split:
    """A family, a gap and a seed: what a template is fitted to."""

    family: str
    gap: int
    seed: int


@dataclass(frozen=True)
class Measured:
    """A method on a benchmark at a gap with a seed: what an evaluation is of."""

    method: str
    benchmark: str
    gap: int
    seed: int


def stages(stage: str, method: str = "") -> list[tuple[str, str]]:
    """The stages that lead to an artefact, each with the method it belongs to, its own last."""
    if stage in ("teachers", "steps"):
        return [("teachers", "")]
    if stage == "datasets":
        return [*stages("teachers"), ("datasets", "")]
    if stage == "templates":
        return [*stages("datasets"), ("templates", method)]
    if stage == "baselines":
        needed = [s for need in BASELINES[method].needs for s in stages(need)]
        return [*dict.fromkeys(needed), ("baselines", method)]
    if method in TEMPLATE_METHODS:
        return [*stages("templates", method), ("evaluations", method)]
    return [*stages("baselines", BASELINES[method].trained_as or method), ("evaluations", method)]


class Plan:
    """The artefacts of one config; one lives as long as the process, so its methods may be cached."""

    def __init__(self, config: Config, places: Layout | None = None, also: Iterable[Benchmark] = ()) -> None:
        """The plan of a config; `places` if some of it is another run's, `also` for what may be asked for besides."""
        self.config = config
        self.places = places or Layout(Path(config.results))
        self._also = tuple(also)

    # --- what there is -------------------------------------------------------------------------------

    @cached_property
    def splits(self) -> list[Split]:
        """All splits of all families."""
        families = self.config.families.values()
        return [Split(f.name, g, s) for f in families for g in self.config.gaps_of(f) for s in self.config.seeds]

    @cached_property
    def evaluations(self) -> list[Measured]:
        """All evaluations."""
        return [
            Measured(method, b.id, gap, seed)
            for method in dict.fromkeys(self.config.methods)
            for b in self.config.chosen.values()
            for gap in self.config.gaps_of(b.family)
            for seed in self.config.seeds
        ]

    def indices(self, family: str, gap: int | str) -> tuple[int, ...]:
        """The training indices of a family at a gap."""
        return self.family(family).train_indices(int(gap))

    # --- families and benchmarks ---------------------------------------------------------------------

    @cached_property
    def _known(self) -> dict[str, Benchmark]:
        """The benchmarks of the config, and others that may be asked for by name."""
        paper = (b for entry in PAPER for b in find_benchmarks(entry))
        return {b.id: b for b in (*paper, *self._also)} | self.config.chosen

    @cached_property
    def _families(self) -> dict[str, Benchmark]:
        """The last benchmark of each family."""
        return {b.family.name: b for b in (*self._known.values(), *self.config.chosen.values())}

    def family(self, name: str) -> Family:
        """A family by its name."""
        if name not in self._families:
            raise unknown("family", name, self._families)
        return self._families[name].family

    def family_source(self, name: str) -> str:
        """How the command line is told of the family: its name, or its file."""
        return self._families[name].family_source

    def benchmark(self, name: str) -> Benchmark:
        """A benchmark by its id; by its family's name, the last one of that family."""
        found = self._known.get(name) or self._families.get(name)
        if found is None:
            raise unknown("benchmark", name, self._known)
        return found

    # --- files ---------------------------------------------------------------------------------------

    def teacher(self, family: str, gap: int | str, index: int | str, seed: int | str) -> dict[str, str]:
        """The files of a teacher."""
        return teacher_files(self.places.teacher(family, gap, index, seed))

    @property
    def where(self) -> list[str]:
        """How the commands are told of the places."""
        roots = {"--results": self.places.root, "--teachers": self.places.teachers, "--datasets": self.places.datasets}
        return [text for option, root in roots.items() if root is not None for text in (option, str(root))]

    def previous_teacher(self, family: str, gap: int | str, index: int | str, seed: int | str) -> str:
        """Weights of the teacher at the training index before."""
        before = previous_index(self.family(family), int(gap), int(index))
        assert before is not None
        return str(self.places.teacher(family, gap, before, seed))

    @cache  # noqa: B019
    def teachers(self, family: str, gap: int | str, seed: int | str, kind: str = "weights") -> list[str]:
        """The files of one kind of the teachers of a split."""
        return [self.teacher(family, gap, i, seed)[kind] for i in self.indices(family, gap)]

    @cache  # noqa: B019
    def datasets(self, family: str, gap: int | str, seed: int | str) -> list[str]:
        """The datasets of a split."""
        return [str(self.places.dataset(family, gap, i, seed)) for i in self.indices(family, gap)]

    def evaluation(self, of: Measured) -> str:
        """The file of an evaluation."""
        return str(self.places.evaluation(of.method, of.benchmark, of.gap, of.seed))

    def artefact(self, method: str, benchmark: str, gap: int | str, seed: int | str) -> str:
        """What an evaluation is of: the method's weights, of the benchmark or of its family."""
        case = Case(self.benchmark(benchmark).family, benchmark, "", int(gap), int(seed), self.places)
        return str(get_method(method).artefact(case))

    @cached_property
    def tables(self) -> list[str]:
        """All tables in all formats."""
        return [str(self.places.table(f"{name}.{suffix}")) for name in TABLES for suffix in ("csv", "md", "tex")]

    def table_inputs(self, name: str) -> list[str]:
        """What a table is made from: the lists of all benchmarks' evaluations."""
        if name not in TABLES:
            raise unknown("table", name, TABLES)
        return [self.evaluation_list(benchmark) for benchmark in self.config.chosen]

    @cached_property
    def figures(self) -> list[str]:
        """All figures in which a benchmark of the config appears, in both formats; nothing is trained for them only."""
        fits = any(method in SINGLE for method in self.config.methods)
        shown = [n for n in FIGURES if self._benchmarks_in(n) and (fits or FIGURES[n].of in ("evaluations", "nothing"))]
        return [str(self.places.figure(f"{name}.{suffix}")) for name in shown for suffix in ("pdf", "png")]

    def _benchmarks_in(self, figure: str) -> list[str]:
        patterns = FIGURES[figure].benchmarks
        return [b for b in self.config.chosen if any(fnmatchcase(b, pattern) for pattern in patterns)]

    def figure_inputs(self, name: str) -> list[str]:
        """What a figure is made from: lists of evaluations, templates or teachers of middle splits, or nothing."""
        if name not in FIGURES:
            raise unknown("figure", name, FIGURES)
        benchmarks, of = self._benchmarks_in(name), FIGURES[name].of
        if of == "evaluations":
            return [self.evaluation_list(benchmark) for benchmark in benchmarks]
        if of == "nothing" or not benchmarks:
            return []
        if of == "template":
            benchmarks, seeds = benchmarks[:1], self.config.seeds[:1]
        else:
            seeds = self.config.seeds
        families = dict.fromkeys(self.benchmark(b).family.name for b in benchmarks)
        splits = [
            (family, middle_gap(self.config.gaps_of(self.family(family))), s) for family in families for s in seeds
        ]
        if of == "teachers":
            return list(dict.fromkeys(file for split in splits for file in self.teachers(*split)))
        methods = self._beside_branched if of == "branched templates" else [self.shown_method]
        return [str(self.places.template(method, *split)) for method in methods for split in splits]

    @property
    def shown_method(self) -> str:
        """The method whose templates figures show: the first that fits one for all indices."""
        return next((m for m in self.config.methods if m in SINGLE), SINGLE[0])

    @property
    def _beside_branched(self) -> list[str]:
        """The branched methods and the one whose single template is shown beside them."""
        return list(dict.fromkeys([self.shown_method, *(m for m in self.config.methods if m in BRANCHED)]))

    def evaluation_list(self, benchmark: str) -> str:
        """The file that lists a benchmark's evaluations: too many of them for a command line."""
        return str(self.places.root / "inputs" / f"{benchmark}.txt")

    @cached_property
    def _by_benchmark(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for e in self.evaluations:
            found.setdefault(e.benchmark, []).append(self.evaluation(e))
        return found

    def evaluations_of(self, benchmark: str) -> list[str]:
        """The evaluations of a benchmark."""
        return self._by_benchmark[benchmark]

    def baseline_inputs(self, method: str, unit: str, gap: int | str, seed: int | str) -> list[str]:
        """What a baseline reads: teachers (and how many steps they took) or datasets, as its registry entry says."""
        family = self.benchmark(unit).family.name
        needs = BASELINES[method].needs
        read = {
            "teachers": lambda: self.teachers(family, gap, seed),
            "steps": lambda: self.teachers(family, gap, seed, "metrics"),
            "datasets": lambda: self.datasets(family, gap, seed),
        }
        return [file for need in needs for file in read[need]()]

    # --- what the commands are told, and what else decides the bytes ---------------------------------

    @cache  # noqa: B019
    def depends(self, stage: str, family: str, method: str = "") -> str:
        """What decides an artefact's bytes besides its input files, for Snakemake to compare.

        Digests of the family, and of settings and code of the stage and of all stages before it. Those before
        belong to it because Snakemake deletes what it is about to make again, and takes a missing file for one
        that nobody needs any more: had that job failed, what was made from the old file would pass for up to date.
        """
        parts = [f"{s} {self._settings_digest(s, family, m)} {self.code(s, m)}" for s, m in stages(stage, method)]
        return f"family {self.family_digest(family)}, {', '.join(parts)}"

    def table_depends(self) -> str:
        """The same for a table."""
        return self.drawn_from("tables", list(self.config.chosen))

    def figure_depends(self, name: str) -> str:
        """The same for a figure."""
        families = dict.fromkeys(self.benchmark(b).family.name for b in self._benchmarks_in(name))
        match FIGURES[name].of:
            case "evaluations":
                return self.drawn_from("figures", self._benchmarks_in(name))
            case "nothing":
                return f"figures {self.code('figures')}"
            case "teachers":
                made = [self.depends("teachers", family) for family in families]
            case "branched templates":
                made = [self.depends("templates", f, m) for f in families for m in self._beside_branched]
            case _:
                made = [self.depends("templates", family, self.shown_method) for family in families]
        return f"figures {self.code('figures')}, made from {digest(made)}"

    def drawn_from(self, stage: str, benchmarks: list[str]) -> str:
        """The same for what is made from all evaluations of some benchmarks."""
        families = {self.benchmark(b).family.name for b in benchmarks}
        evaluations = sorted(self.depends("evaluations", f, m) for f in families for m in set(self.config.methods))
        return f"{stage} {self.code(stage)}, evaluations {digest(evaluations)}"

    def code(self, stage: str, method: str = "") -> str:
        """Digest of the code of a stage, or of a method's part in it."""
        if stage == "baselines":
            return code_digest(BASELINES[method].module)
        if stage == "evaluations":
            return code_digest("dibs.evaluation.evaluate", get_method(method).module)
        return code_digest(*(code_of(method) if stage == "templates" else CODE[stage]))

    @cache  # noqa: B019
    def family_digest(self, name: str) -> str:
        """Digest of a family's description."""
        return family_digest(self.family(name))

    def _settings_digest(self, stage: str, family: str, method: str) -> str:
        settings = {
            "teachers": lambda: self.teacher_settings(family),
            "datasets": lambda: self.dataset_settings(family),
            "templates": lambda: self.template_settings(method, family),
            "baselines": lambda: self.baseline_settings(method),
            "evaluations": lambda: self.evaluation_settings,
        }
        return digest(settings[stage]())

    @cache  # noqa: B019
    def teacher_settings(self, family: str) -> str:
        """`--settings` of a family's teachers."""
        return difference(self.config.teacher_settings(self.family(family)), TeacherSettings())

    @cache  # noqa: B019
    def dataset_settings(self, family: str) -> str:
        """`--settings` of a family's datasets."""
        return difference(self.config.dataset_settings(self.family(family)), DatasetSettings())

    @cache  # noqa: B019
    def template_settings(self, method: str, family: str) -> str:
        """`--settings` of a method's fit to a family."""
        plain = parse_settings(FitSettings, TEMPLATE_METHODS[method])
        return difference(self.config.template_settings(method, self.family(family)), plain)

    @cache  # noqa: B019
    def baseline_settings(self, method: str) -> str:
        """`--settings` of a baseline."""
        return difference(self.config.baseline_settings(method), BASELINES[method].settings())

    @cached_property
    def evaluation_settings(self) -> str:
        """`--settings` of every evaluation."""
        return difference(self.config.evaluation, EvaluationSettings())

    # --- counting ------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """How many artefacts of each stage there are."""
        teachers = {
            file
            for s in self.splits
            for file in self.teachers(s.family, s.gap, s.seed)
            if file.endswith(".safetensors")
        }
        artefacts = {self.artefact(e.method, e.benchmark, e.gap, e.seed) for e in self.evaluations}
        templates = sum(len(self.splits) for method in set(self.config.methods) if method in TEMPLATE_METHODS)
        return {
            "teachers": len(teachers),
            "datasets": len(teachers),
            "templates": templates,
            "baselines": len(artefacts) - templates,
            "evaluations": len(self.evaluations),
        }


def middle_gap(gaps: Iterable[int]) -> int:
    """The middle one by |Train|, the denser of two: what a figure of one split shows."""
    by_train = sorted(gaps, reverse=True)
    return by_train[len(by_train) // 2]
