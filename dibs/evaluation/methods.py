"""The one registry of methods: how each one's policies are found and rolled out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dibs.errors import unknown
from dibs.evaluation.composed import rollouts, satisfaction
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family
from dibs.paths import Layout
from dibs.spectrl import graph, parse
from dibs.templates.template import load_template

Counter = Callable[[Family, str, Path, int, Sequence[int], EvaluationSettings], dict[int, int]]


def count_template(
    family: Family, text: str, artefact: Path, seed: int, indices: Sequence[int], settings: EvaluationSettings
) -> dict[int, int]:
    """Satisfying rollouts per index of policies unrolled from a template and composed along its guard's path."""
    template = load_template(artefact)
    spec = parse(text)
    edges = graph(spec)
    recorded = rollouts(
        family,
        template.network,
        template.scaling,
        template.actors(list(indices)),
        {i: template.path(edges, i) for i in indices},
        settings.rollouts,
        seed,
    )
    return satisfaction(family, spec, recorded)


METHODS: dict[str, Counter] = {"dibs": count_template, "dibs-plus": count_template}


def satisfied_counts(
    method: str,
    family: Family,
    text: str,
    benchmark: str,
    gap: int,
    seed: int,
    indices: Sequence[int],
    settings: EvaluationSettings,
    places: Layout,
) -> dict[int, int]:
    """Number of satisfying rollouts at every index."""
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if method in ("dibs", "dibs-plus"):
        artefact = places.template(method, family.name, gap, seed)
    else:
        artefact = places.baseline(method, benchmark, gap, seed)
    return METHODS[method](family, text, artefact, seed, indices, settings)
