"""The methods with a fitted template: the paper's DIBS, DIBS+, and three variants.

`dibs` minimizes the paper's objective. `dibs-plus` adds weak priors and estimates between training indices, chosen by
leaving some of these out. `dibs-weights` fits the teachers' weights instead of their actions, to show what limits a
template. `dibs-branched` clusters the teachers' trajectories into routing modes and fits one polynomial per mode.
`dibs-affine` fits affine maps around the base policy instead of a polynomial.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from dibs.methods import Method, Model, Training, teacher_steps
from dibs.seeding import stream
from dibs.templates.affine import SHORT, Affine, AffineSettings, fit_affine
from dibs.templates.branched import fit_branches
from dibs.templates.fit import FitSettings, Supervision, fit
from dibs.templates.guards import teacher_records
from dibs.templates.prediction import Fold, curve, gather_evidence, left_out, with_prediction
from dibs.templates.select import BATCH, CANDIDATES, STEPS, Selection
from dibs.templates.template import (
    PolicyEvolution,
    Source,
    Template,
    assemble,
    gather,
    load_sources,
    template_policy,
)
from dibs.templates.weights import fit_teachers


def train(training: Training, settings: FitSettings) -> Model:
    """Fit one polynomial per edge to the datasets of all training indices."""
    sources, rng = load_sources(training), _stream(training)
    teachers = [source.teacher for source in sources]
    network, scaling = teachers[0].network, teachers[0].scaling
    data = gather(training.tasks, sources, settings)
    chosen: dict[str, int] | None = None
    if settings.space == "weights":
        result = fit_teachers(data, np.stack([t.actor for t in teachers], axis=1), network, settings)
    elif settings.select:
        tasks = reduce(lambda known, source: source.teacher.starts(known), sources, training.tasks)
        selection = Selection(tasks, data, network, scaling, settings, rng, training.progress)
        result, taken = selection.fit()
        chosen = dict(zip(teachers[0].edges, taken, strict=True))
    else:
        result = fit(data, network, settings, rng, training.progress)
    template = assemble(teachers, data, result.kappa)
    metrics = {**result.metrics(template.edges), "train": template.train, "chosen": chosen}
    model = template.to_model(_steps(sources), metrics)
    if not settings.predict or settings.space == "weights":
        return model
    quick = replace(settings, max_steps=min(STEPS, settings.max_steps), batch=BATCH, refine=0)
    priors = None if chosen is None else [CANDIDATES[c][:3] for c in chosen.values()]

    def refit(some: Supervision, rng: np.random.Generator) -> Template:
        return replace(template, kappa=fit(some, network, quick, rng, priors=priors).kappa)

    return _predicting(model, training, sources, data, template, refit)


def train_branched(training: Training, settings: FitSettings) -> Model:
    """Fit one template per routing mode of the teachers."""
    sources = load_sources(training)
    template, modes, fits = fit_branches(training, sources, settings, _stream(training))
    by_mode = zip(template.modes, fits, strict=True)
    fitted = [{**result.metrics(mode.edges), "train": mode.train} for mode, result in by_mode]
    silhouette = {str(count): score for count, score in modes.silhouette.items()}
    metrics = {"train": template.train, "modes": fitted, "silhouette": silhouette}
    return template.to_model(_steps(sources), metrics)


def train_affine(training: Training, settings: AffineSettings) -> Model:
    """Fit one pair of affine maps per edge to the datasets of all training indices."""
    sources = load_sources(training)
    teachers = [source.teacher for source in sources]
    first = teachers[0]
    data = gather(training.tasks, sources, FitSettings(samples=settings.samples))
    maps = fit_affine(data, first.network, settings, _stream(training))
    records = teacher_records(teachers)
    shared = (training.tasks.indices, first.edges, first.network, first.scaling)
    template = Affine(*shared, maps.inputs, maps.outputs, data.base, data.base_index, records)
    loss, per_index = (dict(zip(first.edges, values.tolist(), strict=True)) for values in (maps.loss, maps.per_index))
    metrics = {"train": template.train, "edges": loss, "per_index": per_index}
    model = template.to_model(_steps(sources), metrics)
    if not settings.predict:
        return model
    quick = replace(settings, iterations=min(SHORT, settings.iterations), restarts=0)

    def refit(some: Supervision, rng: np.random.Generator) -> Affine:
        found = fit_affine(some, first.network, quick, rng)
        return replace(template, inputs=found.inputs, outputs=found.outputs)

    return _predicting(model, training, sources, data, template, refit)


def _predicting(
    model: Model,
    training: Training,
    sources: list[Source],
    data: Supervision,
    template: PolicyEvolution,
    refit: Callable[[Supervision, np.random.Generator], PolicyEvolution],
) -> Model:
    """Return the model with predicted success; `refit` fits a template of the same kind to fewer datasets."""
    rng = stream("prediction", training.tasks.name, training.split.key, training.seed)
    tasks = reduce(lambda known, source: source.teacher.starts(known), sources, training.tasks)
    left = [left_out(present) for present in data.present]
    folds = []
    for k in range(max(map(len, left))):
        present = data.present.copy()
        for e, positions in enumerate(left):
            present[e, positions[k : k + 1]] = False
        without = {tasks.edge_names[e]: int(data.indices[n[k]]) for e, n in enumerate(left) if k < len(n)}
        folds.append(Fold(refit(replace(data, present=present), rng), without))
    scaling = sources[0].teacher.scaling
    evidence = gather_evidence(tasks, data, scaling, template, folds, rng)
    predicted = {name: curve(found) for name, found in evidence.items()}
    return with_prediction(model, predicted, {name: found.facts() for name, found in evidence.items()})


def _stream(training: Training) -> np.random.Generator:
    return stream("template", training.tasks.name, training.split.key, training.seed)


def _steps(sources: list[Source]) -> dict[str, int]:
    """Return the environment steps of all teachers by edge; the fit itself takes none."""
    metrics = [source.teacher.metrics for source in sources]
    return {name: sum(teacher_steps(m, [name]) for m in metrics) for name in sources[0].teacher.edges}


LOOKS: dict[str, dict[str, Any]] = {
    "dibs": {"color": "#D62728", "marker": "x", "hatch": "///", "dashes": (), "order": 7},
    "dibs-plus": {"color": "#111111", "marker": "*", "hatch": "", "dashes": (4.0, 1.2), "order": 8},
    "dibs-weights": {"color": "#E377C2", "marker": "P", "hatch": "ooo", "dashes": (1.5, 1.0), "order": 9},
    "dibs-branched": {"color": "#17809C", "marker": "h", "hatch": "**", "dashes": (5.0, 1.0, 1.5, 1.0), "order": 10},
    "dibs-affine": {
        "color": "#B15928",
        "marker": "p",
        "hatch": "\\\\",
        "dashes": (6.0, 1.0, 1.0, 1.0, 1.0, 1.0),
        "order": 12,
    },
}
NEEDS = ("teachers", "datasets")


def _method(
    name: str, label: str, train: Callable[[Training, Any], Model], settings: type = FitSettings, **defaults: Any
) -> Method:
    more = {"per_family": True, "defaults": defaults, "memory_mb": 4000, **LOOKS[name]}
    return Method(name, label, settings, train, template_policy, NEEDS, **more)


DIBS = _method("dibs", "DIBS", train)
DIBS_PLUS = _method("dibs-plus", "DIBS+", train, select=True)
DIBS_WEIGHTS = _method("dibs-weights", "DIBS (weights)", train, space="weights")
DIBS_BRANCHED = _method("dibs-branched", "DIBS (branched)", train_branched)
DIBS_AFFINE = _method("dibs-affine", "DIBS (affine)", train_affine, AffineSettings)
