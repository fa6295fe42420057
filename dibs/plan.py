"""What a config makes: every artefact, what it is made from, and what it depends on besides files.

The workflow's rules ask here; nothing is run and nothing heavy imported. Besides its input files, an artefact
depends on its stage's settings, its family's description and the code of its stage. The rules hand these to
Snakemake as `params`, so that a change of any of them reruns what depends on it, and a docstring nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path

from dibs.arguments import family_digest
from dibs.baselines.registry import BASELINES
from dibs.config import TEMPLATE_METHODS, Benchmark, Config, difference
from dibs.datasets.build import DatasetSettings
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.evaluation.methods import METHODS, Case
from dibs.families import Family
from dibs.paths import Layout, buffers, metrics, previous_index, timing
from dibs.provenance import code_digest
from dibs.settings import parse_settings
from dibs.teachers.train import TeacherSettings
from dibs.templates.fit import FitSettings

CODE = {
    "teachers": ("dibs.teachers.train", "dibs.teachers.store"),
    "datasets": ("dibs.datasets.build", "dibs.datasets.store"),
    "templates": ("dibs.templates.fit", "dibs.templates.select", "dibs.templates.template"),
    "tables": ("dibs.analysis.tables", "dibs.analysis.collect"),
    "figures": ("dibs.analysis.figures", "dibs.analysis.collect"),
}
"""Entry modules whose digest the artefacts of a stage carry; a test compares with what the commands write."""

TABLES = ("relative", "benchmarks", "splits", "improvement", "claims")
"""Tables of all evaluations."""

REACH = ("car2d-reach", "simpledrone-reach", "droneattitude-reach")
FIGURES: dict[str, tuple[str, ...]] = {
    "scalability_k5": tuple(f"{family}-k*" for family in REACH),
    **{f"scalability_k{k}": tuple(f"{family}-k{k}" for family in (*REACH, "car2d-reach-obs")) for k in (4, 3, 2, 1)},
    "obstacles": ("car2d-reach-obs-k*",),
    "choice": ("car2d-choice-l*",),
    **{f"reacher_{h}": (f"reacher-*-{h}",) for h in (8, 9, 10)},
    "success_by_index": ("*",),
    "choice_trajectories": ("car2d-choice-l*",),
    "environments": (),
    "specifications": (),
}
"""Figures by name, and the benchmarks they show; one none of whose benchmarks is in the config is left out."""
OF_ONE_TEMPLATE = frozenset({"choice_trajectories"})
"""Figures that show one template, not evaluations."""


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


class Plan:
    """The artefacts of one config; one lives as long as the process, so its methods may be cached."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.places = Layout(Path(config.results))

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

    def family(self, name: str) -> Family:
        """A family of the config by its name."""
        return self.config.families[name]

    def family_source(self, name: str) -> str:
        """How the command line is told of the family: its name, or its file."""
        return next(b.family_source for b in self.config.chosen.values() if b.family.name == name)

    def benchmark(self, name: str) -> Benchmark:
        """A benchmark by its id; by its family's name, the last one of that family."""
        if name in self.config.chosen:
            return self.config.chosen[name]
        return [b for b in self.config.chosen.values() if b.family.name == name][-1]

    # --- files ---------------------------------------------------------------------------------------

    def teacher(self, family: str, gap: int | str, index: int | str, seed: int | str) -> dict[str, str]:
        """The files of a teacher."""
        return _teacher_files(self.places.teacher(family, gap, index, seed))

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
        return str(METHODS[method].artefact(case))

    @cached_property
    def tables(self) -> list[str]:
        """All tables in all formats."""
        return [str(self.places.table(f"{name}.{suffix}")) for name in TABLES for suffix in ("csv", "md", "tex")]

    @cached_property
    def figures(self) -> list[str]:
        """All figures that the config's benchmarks appear in, in both formats."""
        shown = [name for name, patterns in FIGURES.items() if not patterns or self._benchmarks_in(name)]
        return [str(self.places.figure(f"{name}.{suffix}")) for name in shown for suffix in ("pdf", "png")]

    def _benchmarks_in(self, figure: str) -> list[str]:
        return [b for b in self.config.chosen if any(fnmatchcase(b, pattern) for pattern in FIGURES[figure])]

    def figure_inputs(self, name: str) -> list[str]:
        """What a figure shows: lists of its benchmarks' evaluations, or one template (first method, middle gap)."""
        shown = self._benchmarks_in(name)
        if name not in OF_ONE_TEMPLATE:
            return [self.evaluation_list(benchmark) for benchmark in shown]
        method = next((m for m in self.config.methods if m in TEMPLATE_METHODS), next(iter(TEMPLATE_METHODS)))
        gaps = sorted(self.config.gaps_of(self.benchmark(shown[0]).family))
        return [self.artefact(method, shown[0], gaps[len(gaps) // 2], self.config.seeds[0])]

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
        """What a baseline reads: teachers (the steps they took) or datasets, as its registry entry says."""
        family = self.benchmark(unit).family.name
        needs = BASELINES[method].needs
        metrics = self.teachers(family, gap, seed, "metrics") if "teachers" in needs else []
        return metrics + (self.datasets(family, gap, seed) if "datasets" in needs else [])

    # --- what the commands are told, and what else decides the bytes ---------------------------------

    def depends(self, stage: str, family: str = "", method: str = "") -> str:
        """Digests of the stage's code and the family's description, for Snakemake to compare."""
        if stage == "baselines":
            entries: tuple[str, ...] = (BASELINES[method].module,)
        elif stage == "evaluations":
            entries = ("dibs.evaluation.evaluate", METHODS[method].module)
        else:
            entries = CODE[stage]
        code = f"code {code_digest(*entries)}"
        return f"{code} family {self._family_digest(family)}" if family else code

    @cache  # noqa: B019
    def _family_digest(self, name: str) -> str:
        return family_digest(self.family(name))

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


def _teacher_files(weights: Path) -> dict[str, str]:
    return {
        "weights": str(weights),
        "buffers": str(buffers(weights)),
        "metrics": str(metrics(weights)),
        "timing": str(timing(weights)),
    }
