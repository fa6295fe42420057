"""The methods with a fitted template: the paper's DIBS, DIBS+, and their variants.

`dibs` minimizes the paper's objective. `dibs-plus` chooses a class of templates for every edge: motion where it holds,
otherwise what does best at left-out training indices. `dibs-plus-still` does the same without motion. `dibs-weights`
fits the teachers' weights instead of their actions, to show what limits a template. `dibs-branched` clusters the
teachers' trajectories into routing modes and fits one polynomial per mode. `dibs-affine` fits affine maps around the
base policy instead of a polynomial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from dibs.templates.moved import Mover
from dibs.templates.prediction import Curve, Fold, curve, gather_evidence, left_out, with_prediction
from dibs.templates.select import BATCH, STEPS, Selection
from dibs.templates.template import (
    Joined,
    Part,
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
    data = gather(training.tasks, sources, settings)
    network = teachers[0].network
    if settings.space == "weights":
        result = fit_teachers(data, np.stack([t.actor for t in teachers], axis=1), network, settings)
    else:
        result = fit(data, network, settings, rng, training.progress)
    template = assemble(teachers, data, result.kappa)
    metrics = {**result.metrics(template.edges), "train": template.train}
    model = replace(template.to_model(_steps(sources), metrics), curve=result.rows(template.edges))
    if not settings.predict or settings.space == "weights":
        return model
    quick = replace(settings, max_steps=min(STEPS, settings.max_steps), batch=BATCH, refine=0)

    def refit(some: Supervision, rng: np.random.Generator) -> Template:
        return replace(template, kappa=fit(some, network, quick, rng).kappa)

    return _predicting(model, training, sources, data, template, refit)


def train_plus(training: Training, settings: FitSettings) -> Model:
    """Move the edges whose motion holds, and choose a class of templates for each of the others."""
    sources = load_sources(training)
    first, steps = sources[0].teacher, _steps(sources)
    parts: list[Part] = []
    predicted: dict[str, Curve] = {}
    metrics: dict[str, Any] = {"train": training.tasks.indices, "edges": {}, "per_index": {}, "chosen": {}}
    if settings.motion and first.index == 0:
        rng = stream("motion", training.tasks.name, training.split.key, training.seed)
        every, queried = Mover(training.tasks, first, rng, settings.motion_rollouts).template()
        metrics |= {"motion": {name: motion.facts() for name, motion in every.motions.items()}, "queried": queried}
        steps = {name: count + queried[name] for name, count in steps.items()}
        held = [name for name in every.edges if every.motions[name].holds]
        if held:
            parts.append(every.only(held))
            metrics["chosen"] |= dict.fromkeys(held, "motion")
            predicted |= every.only(held).predicted()
        if training.progress is not None:
            for name in every.edges:
                training.progress(f"{name}: {every.motions[name].sentence}")
    others = [name for name in first.edges if name not in metrics["chosen"]]
    if others:
        streams = stream("selection", training.tasks.name, training.split.key, training.seed), _stream(training)
        selection = Selection.of(training.tasks, sources, others, settings, streams, training.progress)
        fitted, found = selection.fit()
        parts += fitted
        joined = {key: {**metrics.get(key, {}), **value} for key, value in found.items() if isinstance(value, dict)}
        metrics |= {**found, **joined}
        steps = {name: count + selection.queried.get(name, 0) for name, count in steps.items()}
    template = parts[0] if len(parts) == 1 else Joined(tuple(parts))
    model = template.to_model(steps, metrics)
    if not settings.predict:
        return model
    if not others:
        return with_prediction(model, predicted)
    return _predicting(model, training, sources, selection.data, template, selection.refit, others, predicted)


def train_branched(training: Training, settings: FitSettings) -> Model:
    """Fit one template per routing mode of the teachers."""
    sources = load_sources(training)
    template, modes, fits = fit_branches(training, sources, settings, _stream(training))
    by_mode = zip(template.modes, fits, strict=True)
    fitted = [{**result.metrics(mode.edges), "train": mode.train} for mode, result in by_mode]
    silhouette = {str(count): score for count, score in modes.silhouette.items()}
    metrics = {"train": template.train, "modes": fitted, "silhouette": silhouette}
    curve = [{"mode": m, **row} for m, result in enumerate(fits) for row in result.rows(template.modes[m].edges)]
    return replace(template.to_model(_steps(sources), metrics), curve=curve)


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
    edges: Sequence[str] | None = None,
    known: Mapping[str, Curve] | None = None,
) -> Model:
    """Return the model with predicted success; `refit` fits a template of the same kind to fewer datasets.

    `data` are those of some `edges` (all by default); predictions of the others are `known`.
    """
    names = training.tasks.edge_names if edges is None else tuple(edges)
    rng = stream("prediction", training.tasks.name, training.split.key, training.seed)
    tasks = reduce(lambda known, source: source.teacher.starts(known), sources, training.tasks)
    left = [left_out(present) for present in data.present]
    folds = []
    for k in range(max(map(len, left))):
        present = data.present.copy()
        for e, positions in enumerate(left):
            present[e, positions[k : k + 1]] = False
        without = {names[e]: int(data.indices[n[k]]) for e, n in enumerate(left) if k < len(n)}
        folds.append(Fold(refit(replace(data, present=present), rng), without))
    first = sources[0].teacher
    scaling = first.scaling.take(np.array([first.edges.index(name) for name in names]))
    evidence = gather_evidence(tasks, names, data, scaling, template, folds, rng)
    predicted = {**(known or {}), **{name: curve(found) for name, found in evidence.items()}}
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
    "dibs-plus-still": {"color": "#7A7A7A", "marker": "X", "hatch": "..", "dashes": (2.0, 1.2), "order": 9},
    "dibs-weights": {"color": "#E377C2", "marker": "P", "hatch": "ooo", "dashes": (1.5, 1.0), "order": 10},
    "dibs-branched": {"color": "#17809C", "marker": "h", "hatch": "**", "dashes": (5.0, 1.0, 1.5, 1.0), "order": 11},
    "dibs-affine": {
        "color": "#E5C494",
        "marker": "p",
        "hatch": "\\\\",
        "dashes": (6.0, 1.0, 1.0, 1.0, 1.0, 1.0),
        "order": 13,
    },
}
NEEDS = ("teachers", "datasets")


def _method(
    name: str,
    label: str,
    train: Callable[[Training, Any], Model],
    settings: type = FitSettings,
    version: int = 1,
    **defaults: Any,
) -> Method:
    more = {"per_family": True, "defaults": defaults, "version": version, "memory_mb": 4000, **LOOKS[name]}
    return Method(name, label, settings, train, template_policy, NEEDS, **more)


DIBS = _method("dibs", "DIBS", train)
DIBS_PLUS = _method("dibs-plus", "DIBS+", train_plus, motion=True, refine=50, version=6)
DIBS_PLUS_STILL = _method("dibs-plus-still", "DIBS+ (no motion)", train_plus, refine=50, version=5)
DIBS_WEIGHTS = _method("dibs-weights", "DIBS (weights)", train, space="weights")
DIBS_BRANCHED = _method("dibs-branched", "DIBS (branched)", train_branched)
DIBS_AFFINE = _method("dibs-affine", "DIBS (affine)", train_affine, AffineSettings, version=3)
