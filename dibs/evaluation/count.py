"""How the policies of a template are measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from dibs.envs import Array
from dibs.evaluation.composed import Recorded, rollouts, satisfaction
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.spectrl import Graph, graph, parse
from dibs.templates.template import load_template


class Unrolled(Protocol):
    """What gives every index its policy and its path: a template, branched or not."""

    @property
    def network(self) -> Network: ...

    @property
    def scaling(self) -> Scaling: ...

    def check(self, family: Family) -> None: ...

    def actors(self, indices: list[int]) -> dict[int, Array]: ...

    def path(self, graph: Graph, index: int) -> tuple[str, ...]: ...


def count_template(
    family: Family, text: str, artefact: Path, seed: int, indices: Sequence[int], settings: EvaluationSettings
) -> dict[int, int]:
    """Satisfying rollouts per index of policies unrolled from a template and composed along its guard's path."""
    return count(family, text, load_template(artefact), seed, indices, settings.rollouts)


def count(
    family: Family, text: str, template: Unrolled, seed: int, indices: Sequence[int], rollouts: int
) -> dict[int, int]:
    """The same of a template at hand, in so many rollouts per index."""
    return satisfaction(family, parse(text), record(family, text, template, seed, indices, rollouts))


def record(
    family: Family, text: str, template: Unrolled, seed: int, indices: Sequence[int], count: int
) -> dict[int, Recorded]:
    """So many rollouts per index of a template's policies, composed along its guard's path."""
    template.check(family)
    edges = graph(parse(text))
    paths = {i: template.path(edges, i) for i in indices}
    return rollouts(family, template.network, template.scaling, template.actors(list(indices)), paths, count, seed)
