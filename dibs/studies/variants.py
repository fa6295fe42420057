"""The plans of all variants of a config: those of its ablations and the points of its sweeps.

Each variant has a root of its own below the config's and is planned as a config by itself. Teachers and datasets whose
settings do not differ are shared with the config's own run. A variant that differs in nothing is the config's own run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

from dibs.errors import DibsError, unknown
from dibs.families import find_benchmarks
from dibs.methods import get_method
from dibs.paths import Layout, metrics
from dibs.studies.config import Ablation, Config, Study, Sweep, variant_config
from dibs.studies.plan import Plan
from dibs.studies.reports import find_report

ROOT = r"(?:/ablations/[a-z0-9-]+/[a-z0-9-]+|/sweeps/[a-z0-9-]+(?:/[a-z_]+~[^/]+)+)?"
"""What may follow the config's root in the root of a plan, as a regular expression."""


def grid_points(sweep: Sweep) -> list[dict[str, Any]]:
    """Return all points of a sweep's grid."""
    return [dict(zip(sweep.grid, values, strict=True)) for values in product(*sweep.grid.values())]


def folder(point: Mapping[str, Any]) -> str:
    """Return the folder of a point: `alpha~0.6/beta~0.1`."""
    return "/".join(f"{key.partition('.')[2]}~{value}" for key, value in point.items())


def files(plan: Plan, family: str = "") -> dict[str, list[str]]:
    """Return what a summary reads of a variant, or of one family in it, by stage."""
    splits = [split for split in plan.splits if family in ("", split[0])]
    measured = [e for e in plan.evaluations if family in ("", plan.benchmark(e.benchmark).family.name)]
    fitted = [m for m in plan.config.methods if "datasets" in get_method(m).needs and get_method(m).per_family]
    return {
        "evaluations": [plan.evaluation(e) for e in measured],
        "teachers": plan.needed_teachers(splits, "metrics"),
        "datasets": plan.needed_datasets(splits),
        "models": [str(metrics(plan.layout.model(m, *split))) for m in fitted for split in splits],
    }


@dataclass(frozen=True)
class PlannedVariant:
    """A variant, its plan, and what a summary reads of it."""

    name: str
    label: str
    point: Mapping[str, Any]
    """Of a sweep: the value of each setting."""
    plan: Plan
    files: Mapping[str, list[str]]


class Variants:
    """The plan of a config, and those of its variants, by root."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.root = config.results
        studies: tuple[Study, ...] = (*config.ablations.values(), *config.sweeps.values())
        self.main = Plan(config, also=[b for s in studies for entry in s.benchmarks for b in find_benchmarks(entry)])

    @cache  # noqa: B019
    def __getitem__(self, root: str) -> Plan:
        """Return the plan whose results are below a root."""
        if root == self.root:
            return self.main
        kind, name, variant = root.removeprefix(f"{self.root}/").split("/", 2)
        study = self._study(kind, name)
        if isinstance(study, Ablation):
            if variant not in study.variants:
                raise unknown(f"variant of ablation '{name}'", variant, study.variants)
            return self._plan(study, variant, root)
        assert isinstance(study, Sweep)
        grid = {folder(point): point for point in grid_points(study)}
        if variant not in grid:
            raise DibsError(f"{root}: not a point of the grid of sweep '{name}'")
        return self._plan(study, grid[variant], root)

    def _study(self, kind: str, name: str) -> Study:
        known: Mapping[str, Study] = getattr(self.config, kind)
        if name not in known:
            raise unknown(kind.removesuffix("s"), name, known)
        return known[name]

    def _plan(self, study: Study, variant: str | Mapping[str, Any], root: str) -> Plan:
        config = variant_config(self.config, study, variant, root)
        shared = self._shared(config)
        if "evaluations" in shared:
            return Plan(config.model_copy(update={"results": self.root}))
        common = {stage: Path(self.root) for stage in ("teachers", "datasets") if stage in shared}
        return Plan(config, Layout(Path(root), **common))

    def _shared(self, own: Config) -> set[str]:
        """Return the stages whose settings, and those of all stages before them, are the config's."""
        families, methods, shared = own.families.values(), own.methods, set[str]()
        settings: dict[str, Callable[[Config], Any]] = {
            "teachers": lambda c: [c.teacher_settings(f) for f in families],
            "datasets": lambda c: [c.dataset_settings(f) for f in families],
            "evaluations": lambda c: ([c.method_settings(m, f) for m in methods for f in families], c.evaluation),
        }
        for stage, of in settings.items():
            if of(own) != of(self.config):
                break
            shared.add(stage)
        return shared

    # --- summaries -----------------------------------------------------------------------------------

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """Names of the summaries of each kind: an ablation's name, or a sweep's name and its family's."""
        return {"ablations": list(self.config.ablations), "sweeps": list(self._swept)}

    @cached_property
    def _swept(self) -> dict[str, tuple[str, str]]:
        return {
            f"{name}-{b.family.name}": (name, b.family.name)
            for name, sweep in self.config.sweeps.items()
            for entry in sweep.benchmarks
            for b in find_benchmarks(entry)
        }

    def swept(self, name: str) -> tuple[str, str]:
        """Return the sweep and the family of a summary's name."""
        if name not in self._swept:
            raise unknown("sweep and family", name, self._swept)
        return self._swept[name]

    @cache  # noqa: B019
    def variants(self, kind: str, name: str) -> list[PlannedVariant]:
        """Return the variants that a summary compares."""
        if kind == "ablations":
            study = self._study(kind, name)
            assert isinstance(study, Ablation)
            plans = {variant: self[f"{self.root}/{kind}/{name}/{variant}"] for variant in study.variants}
            return [PlannedVariant(v, study.variants[v].label, {}, plan, files(plan)) for v, plan in plans.items()]
        sweep, family = self.swept(name)
        found = []
        for point in grid_points(self.config.sweeps[sweep]):
            plan = self[f"{self.root}/{kind}/{sweep}/{folder(point)}"]
            found.append(PlannedVariant(folder(point), "", point, plan, files(plan, family)))
        return found

    def inputs(self, kind: str, name: str) -> list[str]:
        """Return all files that a summary reads."""
        return _unique(
            file for variant in self.variants(kind, name) for found in variant.files.values() for file in found
        )

    def report_inputs(self, root: str, name: str) -> list[str]:
        """Return what a report is made from: what its plan says, and the evaluations of its ablation's variants."""
        found, ablation = self[root].report_inputs(name), find_report(name)[0].ablation
        if root == self.root and ablation in self.config.ablations:
            variants = self.variants("ablations", ablation)
            found = found + [
                file for v in variants if v.plan.layout.root != Path(root) for file in v.files["evaluations"]
            ]
        return _unique(found)

    def described(self, kind: str, name: str) -> dict[str, Any]:
        """Return what `dibs study` reads of an ablation or a sweep."""
        study = self._study(kind, name if kind == "ablations" else self.swept(name)[0])
        variants = self.variants(kind, name)
        description: dict[str, Any] = {
            "name": name,
            "kind": kind.removesuffix("s"),
            "question": study.question or name,
            "base": variants[0].name if kind == "ablations" else "",
            "variants": [{"name": v.name, "label": v.label, "point": v.point, **v.files} for v in variants],
        }
        if isinstance(study, Sweep):
            description |= {"rule": study.rule, "held": self.held(study, self.swept(name)[1])}
        return description

    def held(self, sweep: Sweep, family: str) -> dict[str, Any]:
        """Return the config's values of what a sweep varies."""
        of = self.main.family(family)
        stages = {
            "teachers": self.config.teacher_settings(of),
            "datasets": self.config.dataset_settings(of),
            "templates": self.config.method_settings(sweep.methods[0], of),
        }
        return {key: getattr(stages[key.partition(".")[0]], key.partition(".")[2]) for key in sweep.grid}


def _unique(found: Any) -> list[str]:
    return list(dict.fromkeys(found))
