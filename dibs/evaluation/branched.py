"""How the policies of a branched template are measured: as those of a template, each index in its mode."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dibs.evaluation.count import count
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family
from dibs.templates.branched import load_any


def count_template(
    family: Family, text: str, artefact: Path, seed: int, indices: Sequence[int], settings: EvaluationSettings
) -> dict[int, int]:
    """Satisfying rollouts per index of policies unrolled from a template, branched or not."""
    return count(family, text, load_any(artefact), seed, indices, settings.rollouts)
