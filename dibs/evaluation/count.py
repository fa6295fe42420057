"""How the policies of a template are measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dibs.evaluation.composed import rollouts, satisfaction
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family
from dibs.spectrl import graph, parse
from dibs.templates.template import load_template


def count_template(
    family: Family, text: str, artefact: Path, seed: int, indices: Sequence[int], settings: EvaluationSettings
) -> dict[int, int]:
    """Satisfying rollouts per index of policies unrolled from a template and composed along its guard's path."""
    template = load_template(artefact)
    template.check(family)
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
