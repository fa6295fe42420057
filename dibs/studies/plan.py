"""What a config makes: every file, what it is made from, and its id.

The rules of the workflow ask here; nothing is run and nothing heavy imported. The id of a file (`dibs.provenance`)
covers its tasks, settings and versions, and the ids of everything it is made from. Rules pass it to Snakemake as a
parameter and to the command as `--expect`: a change of settings, of a family or of a version reruns what depends on it,
and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from dibs import studies
from dibs.datasets.build import DatasetSettings
from dibs.errors import unknown
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.evaluation.requirements import RequirementSettings, known_group, requirements_id, tasks_digest
from dibs.families import Benchmark, Family, Split, find_benchmarks, get_family
from dibs.families.splits import GAP
from dibs.methods import Method, get_method
from dibs.paths import BASE, Layout, buffers, curve, metrics, timing
from dibs.pipeline import from_file
from dibs.provenance import digest
from dibs.settings import parse_settings
from dibs.stages import Unit, dataset_origin, evaluation_origin, model_origin, teacher_origin
from dibs.studies.config import Config, difference
from dibs.studies.reports import SUFFIXES, Report, applicable
from dibs.studies.resources import Resources, dataset_resources, evaluation_resources
from dibs.teachers.base import get_algorithm
from dibs.teachers.train import TeacherSettings
from dibs.templates.template import template_policy


@dataclass(frozen=True)
class PlannedEvaluation:
    """A method on a benchmark at a split with a seed."""

    method: str
    benchmark: str
    split: str
    seed: int


def teacher_files(weights: Path) -> dict[str, str]:
    """Return all files of a teacher by kind."""
    return {
        "weights": str(weights),
        "buffers": str(buffers(weights)),
        "metrics": str(metrics(weights)),
        "curve": str(curve(weights)),
        "timing": str(timing(weights)),
    }


class Plan:
    """The files of one config. It lives as long as the process, so its methods may be cached."""

    def __init__(self, config: Config, layout: Layout | None = None, also: Iterable[Benchmark] = ()) -> None:
        """`layout` is given if another run makes some of the files, `also` lists benchmarks that may be asked for as
        well."""
        self.config = config
        self.layout = layout or Layout(Path(config.results))
        self._also = tuple(also)

    # --- families, benchmarks, splits ----------------------------------------------------------------

    @cached_property
    def _known(self) -> dict[str, Benchmark]:
        return {b.id: b for b in self._also} | self.config.chosen

    @cached_property
    def _families(self) -> dict[str, Benchmark]:
        """Some benchmark of each family."""
        return {b.family.name: b for b in self._known.values()}

    def family(self, name: str) -> Family:
        """Return a family by its name: one of the config, or a registered one."""
        return self._of_family(name).family

    @property
    def described(self) -> list[Family]:
        """The families that files describe."""
        return [b.family for b in self._families.values() if from_file(b.family)]

    def family_source(self, name: str) -> str:
        """Return how a command line names the family: its name, or its file."""
        return self._of_family(name).family_source

    def benchmark(self, name: str) -> Benchmark:
        """Return a benchmark by its id: one of the config, or a registered one."""
        return self._known.get(name) or find_benchmarks(name, exact=True)[0]

    @cache  # noqa: B019
    def _of_family(self, name: str) -> Benchmark:
        if name in self._families:
            return self._families[name]
        family = get_family(name)
        return Benchmark(family.benchmark_ids[0], family, family.benchmark_ids[0], name)

    @cache  # noqa: B019
    def split(self, family: str, name: str) -> Split:
        """Return a split of a family: one of the config, any `gapN`, or `base`."""
        of = self.family(family)
        if name == BASE:
            return of.split(BASE, (0, of.last_index))
        known = {split.name: split for split in self.config.splits_of(of)}
        if name in known:
            return known[name]
        if GAP.fullmatch(name) is None:
            raise unknown(f"split of {family}", name, known)
        return of.split(name)

    def split_arguments(self, family: str, name: str) -> list[str]:
        """Return how a command is given the split."""
        if name == BASE or GAP.fullmatch(name):
            return ["--split", name]
        return ["--split", name, "--train", ",".join(map(str, self.split(family, name).indices))]

    # --- what there is -------------------------------------------------------------------------------

    @cached_property
    def splits(self) -> list[tuple[str, str, int]]:
        """All (family, split, seed)."""
        return [
            (family.name, split.name, seed)
            for family in self.config.families.values()
            for split in self.config.splits_of(family)
            for seed in self.config.seeds
        ]

    @cached_property
    def evaluations(self) -> list[PlannedEvaluation]:
        """All evaluations."""
        return [
            PlannedEvaluation(method, b.id, split.name, seed)
            for method in dict.fromkeys(self.config.methods)
            for b in self.config.chosen.values()
            for split in self.config.splits_of(b.family)
            for seed in self.config.seeds
        ]

    # --- files ---------------------------------------------------------------------------------------

    def previous(self, family: str, split: str, index: int, seed: int) -> list[str]:
        """Return the weights of the teacher at the training index before, if there is one."""
        before = None if index == 0 else self.split(family, split).before(index)
        return [] if before is None else [str(self.layout.teacher(family, split, before, seed))]

    @cache  # noqa: B019
    def teachers(
        self, family: str, split: str, seed: int, kind: str = "weights", indices: tuple[int, ...] | None = None
    ) -> list[str]:
        """Return the files of one kind of the teachers of a split, by default of all training indices."""
        chosen = self.split(family, split).indices if indices is None else indices
        return [teacher_files(self.layout.teacher(family, split, i, seed))[kind] for i in chosen]

    @cache  # noqa: B019
    def datasets(self, family: str, split: str, seed: int, indices: tuple[int, ...] | None = None) -> list[str]:
        """Return the datasets of a split, by default of all training indices."""
        chosen = self.split(family, split).indices if indices is None else indices
        return [str(self.layout.dataset(family, split, i, seed)) for i in chosen]

    @cache  # noqa: B019
    def _read(self, method: str, family: str, split: str) -> dict[str, tuple[int, ...]]:
        """Return the training indices whose teachers and datasets a method's model is made from."""
        record = get_method(get_method(method).model_method)
        return record.inputs(self._method_settings(record.name, family), self.split(family, split).indices)

    @cache  # noqa: B019
    def needed(self, family: str, split: str) -> dict[str, tuple[int, ...]]:
        """Return the training indices whose teachers and datasets the config's methods need, earlier teachers of the
        chain included."""
        read = [self._read(method, family, split) for method in self.config.methods]
        last = max((i for of in read for indices in of.values() for i in indices), default=-1)
        return {
            "teachers": tuple(i for i in self.split(family, split).indices if i <= last),
            "datasets": tuple(sorted({i for of in read for i in of["datasets"]})),
        }

    def needed_teachers(self, splits: Iterable[tuple[str, str, int]], kind: str = "weights") -> list[str]:
        """Return the files of one kind of the teachers that the config's methods need at some (family, split, seed)."""
        found = (self.teachers(f, s, n, kind, self.needed(f, s)["teachers"]) for f, s, n in splits)
        return list(dict.fromkeys(file for files in found for file in files))

    def needed_datasets(self, splits: Iterable[tuple[str, str, int]]) -> list[str]:
        """Return the datasets that the config's methods need at some (family, split, seed)."""
        found = (self.datasets(f, s, n, self.needed(f, s)["datasets"]) for f, s, n in splits)
        return list(dict.fromkeys(file for files in found for file in files))

    def model_inputs(self, method: str, unit: str, split: str, seed: int) -> dict[str, list[str]]:
        """Return what a method reads: teachers with their metrics, and datasets."""
        family = self.unit(method, unit).family.name
        read = self._read(method, family, split)
        return {
            "teachers": self.teachers(family, split, seed, indices=read["teachers"]),
            "metrics": self.teachers(family, split, seed, "metrics", read["teachers"]),
            "datasets": self.datasets(family, split, seed, read["datasets"]),
        }

    def unit(self, method: str, name: str) -> Unit:
        """Return what a method's model is of, by the name of the family or benchmark."""
        record = get_method(method)
        return Unit.of(record, self._of_family(name) if record.per_family else self.benchmark(name))

    def model(self, method: str, benchmark: str, split: str, seed: int) -> str:
        """Return the model that an evaluation measures."""
        record = get_method(get_method(method).model_method)
        unit = record.unit(self.benchmark(benchmark).family.name, benchmark)
        return str(self.layout.model(record.name, unit, split, seed))

    def evaluation(self, of: PlannedEvaluation) -> str:
        """Return the file of an evaluation."""
        return str(self.layout.evaluation(of.method, of.benchmark, of.split, of.seed))

    @cached_property
    def _by_benchmark(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for e in self.evaluations:
            found.setdefault(e.benchmark, []).append(self.evaluation(e))
        return found

    def evaluations_of(self, benchmark: str) -> list[str]:
        """Return the evaluations of a benchmark."""
        return self._by_benchmark[benchmark]

    def measured(self, benchmark: str) -> dict[str, list[Any]]:
        """Return the methods, splits and seeds with which a benchmark is evaluated: in all combinations.

        Sorted: the order in a config or a family must not rerun anything.
        """
        splits = self.config.splits_of(self.benchmark(benchmark).family)
        return {
            "methods": sorted(set(self.config.methods)),
            "splits": sorted(split.name for split in splits),
            "seeds": sorted(self.config.seeds),
        }

    def evaluation_list(self, benchmark: str) -> str:
        """Return the file that lists a benchmark's evaluations: too many of them for a command line."""
        return str(self.layout.root / "inputs" / f"{benchmark}.txt")

    # --- reports -------------------------------------------------------------------------------------

    @cached_property
    def _reports(self) -> dict[str, tuple[Report, tuple[str, ...]]]:
        """Reports that the config asks for and that can be made from its methods, by name."""
        return {name: found for name, found in self.config.made_reports().items() if self._can_make(*found)}

    def _can_make(self, report: Report, benchmarks: Iterable[str]) -> bool:
        if report.inputs == "models":
            return bool(self._shown_methods(report))
        if report.inputs == "evaluations":
            return set(report.methods) <= set(self.config.methods)
        if report.inputs == "teachers":
            middles = self._middle_splits(benchmarks)
            return all(self.needed(f, split.name)["teachers"] == split.indices for f, split in middles)
        return True

    def _middle_splits(self, benchmarks: Iterable[str]) -> list[tuple[str, Split]]:
        """Return the middle split of each family of the benchmarks."""
        families = {self.benchmark(b).family.name: self.benchmark(b).family for b in benchmarks}
        return [(name, middle(self.config.splits_of(family))) for name, family in families.items()]

    def _shown_methods(self, report: Report) -> list[str]:
        """Methods whose models a report reads: those it names, or the first of the config that fits a family's
        template."""
        if report.methods:
            chosen = [m for m in report.methods if m in self.config.methods]
            return chosen if len(chosen) == len(report.methods) else []
        known = {m: get_method(m) for m in self.config.methods}
        return [m for m, method in known.items() if method.policy is template_policy and "datasets" in method.needs][:1]

    def reports(self, kind: str) -> list[str]:
        """Return all files of the reports of one kind, `table` or `figure`."""
        place = self.layout.table if kind == "table" else self.layout.figure
        return [
            str(place(f"{name}{suffix}"))
            for name, (report, _) in self._reports.items()
            if report.kind == kind
            for suffix in SUFFIXES[kind]
        ]

    @property
    def captions(self) -> dict[str, str]:
        """Captions of all reports that may be made."""
        return {name: report.caption for name, (report, _) in applicable(self.config.chosen).items()}

    def _report(self, name: str) -> tuple[Report, tuple[str, ...]]:
        found = applicable(self.config.chosen)
        if name not in found:
            raise unknown("report of this config", name, found)
        return found[name]

    def report_inputs(self, name: str) -> list[str]:
        """Return what a report is made from: lists of evaluations, models or teachers of middle splits, or nothing."""
        report, benchmarks = self._report(name)
        if report.inputs == "evaluations":
            return [self.evaluation_list(benchmark) for benchmark in benchmarks]
        if report.inputs == "none":
            return []
        splits = [(f, split.name, s) for f, split in self._middle_splits(benchmarks) for s in self.config.seeds]
        if report.inputs == "teachers":
            return list(dict.fromkeys(file for split in splits for file in self.teachers(*split)))
        return [str(self.layout.model(m, *split)) for m in self._shown_methods(report) for split in splits]

    def report_id(self, name: str) -> str:
        """Return the digest of what decides a report besides its input files: versions, arguments, what its benchmarks
        require, and the tasks that an illustration draws."""
        report, shown = self._report(name)
        about = {"none": self._tasks, "evaluations": self._required}.get(report.inputs)
        return digest(
            [name, studies.VERSION, report.version, report.arguments, [about(b) for b in shown] if about else []]
        )

    @cache  # noqa: B019
    def _tasks(self, benchmark: str) -> str:
        return tasks_digest(self.benchmark(benchmark))

    @cache  # noqa: B019
    def _required(self, benchmark: str) -> str:
        of = self.benchmark(benchmark)
        return known_group(of, self.layout.requirements(of.family.name))

    # --- ids -----------------------------------------------------------------------------------------

    @cache  # noqa: B019
    def teacher_id(self, family: str, split: str, index: int, seed: int) -> str:
        """Return the id of a teacher."""
        of = self.family(family)
        before = None if index == 0 else self.split(family, split).before(index)
        previous = None if before is None else self.teacher_id(family, split if before else BASE, before, seed)
        return teacher_origin(of, split, index, seed, self._teacher_settings(family), previous).id

    @cache  # noqa: B019
    def dataset_id(self, family: str, split: str, index: int, seed: int) -> str:
        """Return the id of a dataset."""
        settings, teacher = self._dataset_settings(family), self.teacher_id(family, split, index, seed)
        return dataset_origin(self.family(family), split, index, seed, settings, teacher).id

    @cache  # noqa: B019
    def model_id(self, method: str, unit: str, split: str, seed: int) -> str:
        """Return the id of a model."""
        record, of = get_method(method), self.unit(method, unit)
        name, chosen = of.family.name, self.split(of.family.name, split)
        read = self._read(method, name, split)
        inputs = [self.teacher_id(name, split if i else BASE, i, seed) for i in read["teachers"]]
        inputs += [self.dataset_id(name, split if i else BASE, i, seed) for i in read["datasets"]]
        return model_origin(record, of, chosen, seed, self._method_settings(method, name), inputs).id

    def evaluation_id(self, method: str, benchmark: str, split: str, seed: int) -> str:
        """Return the id of an evaluation."""
        record, of = get_method(method), self.benchmark(benchmark)
        trained = get_method(record.model_method)
        model = self.model_id(trained.name, trained.unit(of.family.name, benchmark), split, seed)
        return evaluation_origin(record, of, self.split(of.family.name, split), seed, self.config.evaluation, model).id

    def requirements_id(self, family: str) -> str:
        """Return the id of what the benchmarks of a family require."""
        return requirements_id(self.family(family), RequirementSettings())

    # --- settings and resources ----------------------------------------------------------------------

    @cache  # noqa: B019
    def _teacher_settings(self, family: str) -> TeacherSettings:
        return self.config.teacher_settings(self.family(family))

    @cache  # noqa: B019
    def _dataset_settings(self, family: str) -> DatasetSettings:
        return self.config.dataset_settings(self.family(family))

    @cache  # noqa: B019
    def _method_settings(self, method: str, family: str) -> Any:
        return self.config.method_settings(method, self.family(family))

    @cache  # noqa: B019
    def teacher_settings(self, family: str) -> str:
        """Return `--settings` of a family's teachers."""
        return difference(self._teacher_settings(family), TeacherSettings())

    @cache  # noqa: B019
    def dataset_settings(self, family: str) -> str:
        """Return `--settings` of a family's datasets."""
        return difference(self._dataset_settings(family), DatasetSettings())

    @cache  # noqa: B019
    def method_settings(self, method: str, family: str) -> str:
        """Return `--settings` of a method on a family."""
        record: Method = get_method(method)
        plain: Any = parse_settings(record.settings, dict(record.defaults), method)
        return difference(self._method_settings(method, family), plain)

    @cached_property
    def evaluation_settings(self) -> str:
        """Return `--settings` of every evaluation."""
        return difference(self.config.evaluation, EvaluationSettings())

    @cache  # noqa: B019
    def teacher_resources(self, family: str) -> Resources:
        """Return megabytes and minutes of one teacher on a cluster."""
        of, algorithm = self.family(family), get_algorithm(self._teacher_settings(family).algorithm)
        return of.teacher_memory_mb or algorithm.memory_mb, of.teacher_minutes or algorithm.minutes

    @cache  # noqa: B019
    def dataset_resources(self, family: str) -> Resources:
        """Return megabytes and minutes of one dataset on a cluster."""
        return dataset_resources(self.family(family), self._dataset_settings(family))

    @cache  # noqa: B019
    def model_resources(self, method: str, unit: str) -> Resources:
        """Return megabytes and minutes of one model on a cluster."""
        family, record = self.unit(method, unit).family, get_method(method)
        return family.model_memory_mb or record.memory_mb, family.model_minutes or record.minutes

    @cache  # noqa: B019
    def evaluation_resources(self, method: str, benchmark: str, split: str) -> Resources:
        """Return megabytes and minutes of one evaluation on a cluster."""
        of = self.benchmark(benchmark)
        chosen = self.split(of.family.name, split)
        return evaluation_resources(get_method(method), of, chosen, self.config.evaluation)

    # --- counting ------------------------------------------------------------------------------------

    def counts(self) -> dict[str, int]:
        """Return how many files of each stage there are."""
        models = {self.model(e.method, e.benchmark, e.split, e.seed) for e in self.evaluations}
        return {
            "teachers": len(self.needed_teachers(self.splits)),
            "datasets": len(self.needed_datasets(self.splits)),
            "models": len(models),
            "evaluations": len(self.evaluations),
        }


def middle(splits: Sequence[Split]) -> Split:
    """Return the split with the median number of training tasks; of two, the larger one."""
    ordered = sorted(splits, key=lambda split: len(split.indices))
    return ordered[len(ordered) // 2]
