"""The methods DIBS is compared with, by name (paper, section 5.1), and what each one's module must offer.

A baseline is one module of this package with

    Settings                                a frozen dataclass; every field has a docstring
    train(run, settings) -> Trained         what `dibs baseline` calls
    count(family, text, artefact, seed, indices, settings) -> {index: satisfied rollouts}
                                            what `dibs evaluate` calls, `settings` being the evaluation's

Modules are imported when they are asked for, so a method that needs torch burdens no other.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dibs.errors import unknown
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family
from dibs.paths import Layout

Counter = Callable[[Family, str, Path, int, Sequence[int], EvaluationSettings], dict[int, int]]
"""Satisfying rollouts per index: (family, specification, artefact, seed, indices, settings)."""


@dataclass(frozen=True)
class Run:
    """What a baseline is trained on: one benchmark, one split, one seed."""

    family: Family
    benchmark: str
    text: str
    """The benchmark's specification."""
    gap: int
    seed: int
    places: Layout
    """Where teachers and datasets are, for baselines that need them."""
    progress: Callable[[str], None] | None = None

    @property
    def train(self) -> tuple[int, ...]:
        """The training indices."""
        return self.family.train_indices(self.gap)


@dataclass(frozen=True, eq=False)
class Trained:
    """What training gives back; the command writes it."""

    tensors: Mapping[str, np.ndarray]
    """The weights: all of the artefact but its metadata."""
    metadata: Mapping[str, Any]
    """What `count` must know beside them (shape of the network, observe_stage, …)."""
    steps: int
    """Environment steps used, those of the teachers it rests on included."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """What a reader may want to know: curves, the variant that won."""


@dataclass(frozen=True)
class Baseline:
    """A method: where its code is and what must be there before it can be trained."""

    name: str
    module: str
    needs: tuple[str, ...] = ()
    """What it reads of all training indices: teachers, datasets, or how many steps the teachers took."""
    per_family: bool = False
    """One artefact serves all benchmarks of a family."""
    counter: str = "count"
    """Function of the module that measures it."""
    trained_as: str = ""
    """Method whose artefact it is measured on, if that is not its own."""

    def artefact(self, places: Layout, family: Family, benchmark: str, gap: int | str, seed: int | str) -> Path:
        """Where its weights are."""
        return places.baseline(self.trained_as or self.name, family.name if self.per_family else benchmark, gap, seed)

    @property
    def settings(self) -> type:
        """The dataclass of its settings."""
        return self._load().Settings

    def train(self, run: Run, settings: Any) -> Trained:
        return self._load().train(run, settings)

    @property
    def count(self) -> Counter:
        return getattr(self._load(), self.counter)

    def _load(self) -> Any:
        return importlib.import_module(self.module)


BASELINES: dict[str, Baseline] = {
    baseline.name: baseline
    for baseline in (
        Baseline("genrl", "dibs.baselines.genrl", needs=("teachers", "steps"), per_family=True),
        Baseline("ars", "dibs.baselines.ars", needs=("steps",)),
        Baseline("bc", "dibs.baselines.bc", needs=("steps", "datasets")),
        Baseline("maml", "dibs.baselines.maml"),
        Baseline("maml-adapted", "dibs.baselines.maml", counter="count_adapted", trained_as="maml"),
        Baseline("varibad", "dibs.baselines.varibad"),
    )
}


def get_baseline(name: str) -> Baseline:
    """A baseline by its name."""
    if name not in BASELINES:
        raise unknown("baseline", name, BASELINES)
    return BASELINES[name]


def trainable() -> tuple[str, ...]:
    """Names of the baselines that are trained, without those measured on another's artefact."""
    return tuple(name for name, baseline in BASELINES.items() if not baseline.trained_as)
