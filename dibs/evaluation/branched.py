"""How the policies of a branched template are measured: as those of a template, each index in its mode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dibs.evaluation.composed import rollouts, satisfaction
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family
from dibs.spectrl import graph, parse
from dibs.templates.branched import load_any


def count_template(
    family: Family, text: str, artefact: Path, seed: int, indices: Sequence[int], settings: EvaluationSettings
) -> dict[int, int]:
    """Satisfying rollouts per index of policies unrolled from a template, branched or not."""
    template = load_any(artefact)
    template.check(family)
    spec = parse(text)
    edges = graph(spec)
    paths = {i: template.path(edges, i) for i in indices}
    actors = template.actors(list(indices))
    recorded = rollouts(family, template.network, template.scaling, actors, paths, settings.rollouts, seed)
    return satisfaction(family, spec, recorded)
