"""How the policies of a branched template are measured: as those of a template, each index in its mode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dibs.evaluation.composed import Recorded, rollouts, satisfaction
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family
from dibs.spectrl import graph, parse
from dibs.templates.branched import Branched, load_any
from dibs.templates.template import Template


def count_template(
    family: Family, text: str, artefact: Path, seed: int, indices: Sequence[int], settings: EvaluationSettings
) -> dict[int, int]:
    """Satisfying rollouts per index of policies unrolled from a template, branched or not."""
    recorded = record(family, text, load_any(artefact), seed, indices, settings.rollouts)
    return satisfaction(family, parse(text), recorded)


def record(
    family: Family, text: str, template: Template | Branched, seed: int, indices: Sequence[int], count: int
) -> dict[int, Recorded]:
    """So many rollouts per index of a template's policies, composed along its guard's path."""
    template.check(family)
    edges = graph(parse(text))
    paths = {i: template.path(edges, i) for i in indices}
    return rollouts(family, template.network, template.scaling, template.actors(list(indices)), paths, count, seed)
