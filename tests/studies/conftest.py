"""Synthetic results: rates with a plausible pattern, written by the code that writes real evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dibs import paths
from dibs.drawing.style import STYLE as DRAWING
from dibs.evaluation.evaluate import EvaluationSettings, roles
from dibs.families import get_benchmark, get_family
from dibs.files import write_json, write_tensors
from dibs.methods import get_method
from dibs.paths import Layout
from dibs.provenance import Origin
from dibs.seeding import stream
from dibs.stages import EvaluationResult, evaluation_versions
from dibs.studies.collect import collect, find

ALL = ("ars", "bc", "maml", "maml-adapted", "varibad", "genrl", "dibs", "dibs-plus")
SKILL = {
    "ars": (0.05, 0.0),
    "bc": (0.95, 0.06),
    "maml": (0.7, 0.02),
    "maml-adapted": (0.85, 0.015),
    "varibad": (0.95, 0.003),
    "genrl": (0.93, 0.01),
    "dibs": (1.0, 0.008),
    "dibs-plus": (1.0, 0.004),
}
"""Rate at training indices, and what every index of distance to one costs."""


def save(path: Path, counts: dict[int, int], role: dict[int, str], identity: dict, rollouts=100, delta=0.9, **more):
    """Write an evaluation."""
    origin = Origin("evaluation", identity, "", "", evaluation_versions(get_method(identity["method"])))
    EvaluationResult(counts, role, EvaluationSettings(rollouts=rollouts, delta=delta), origin, more).save(path)
    return path


def synthesize(
    root: Path, methods: Iterable[str], benchmarks: Iterable[str], splits: Sequence[str], seeds: int = 2
) -> list[Path]:
    """Write evaluations in the layout of results; return their files."""
    files = []
    for method in methods:
        for benchmark in benchmarks:
            family = get_benchmark(benchmark).family
            for split in splits:
                train = np.array(family.split(split).indices)
                role = roles(family, train.tolist(), EvaluationSettings())
                index = np.array(list(role))
                good, slope = SKILL[method]
                apart = np.abs(index[:, None] - train[None]).min(axis=1)
                for seed in range(seeds):
                    rng = stream("synthetic", method, benchmark, split, seed)
                    rate = np.clip(good - slope * apart + rng.normal(0.0, 0.03, len(index)), 0.0, 1.0)
                    counts = dict(zip(role, rng.binomial(200, rate).tolist(), strict=True))
                    identity = {"method": method, "benchmark": benchmark, "family": family.name}
                    path = Layout(root).evaluation(method, benchmark, split, seed)
                    identity |= {"split": split, "seed": seed}
                    files.append(save(path, counts, role, identity, 200, steps=100_000 * len(train)))
    return files


@pytest.fixture
def save_run():
    """What writes one evaluation."""
    return save


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> Path:
    """Results with all methods, but not everywhere: MAML and VariBAD lack a benchmark, GenRL a split."""
    root = tmp_path_factory.mktemp("results")
    sparse = ["gap20", "gap8", "gap4"]
    synthesize(root, [m for m in ALL if m != "genrl"], ["car2d-reach-k1"], sparse)
    synthesize(root, [m for m in ALL if m not in ("genrl", "maml", "varibad")], ["car2d-reach-k5"], sparse)
    synthesize(root, ["genrl"], ["car2d-reach-k1", "car2d-reach-k5"], ["gap20", "gap4"])
    synthesize(root, ["genrl", "dibs", "bc"], ["car2d-choice-l1"], ["gap10", "gap5", "gap2"])
    return root


@pytest.fixture(scope="session")
def frame(results) -> pd.DataFrame:
    return collect(find("evaluations", None, results))


@pytest.fixture
def model():
    """What writes the metrics of a template's fit, and its edges."""

    def write(path: Path, family: str, split: str, method: str = "dibs", seed: int = 0, **metrics: object) -> Path:
        edges = [edge.name for edge in get_family(family).edges]
        identity = {"method": method, "family": family, "benchmark": family, "split": split, "seed": seed}
        origin = Origin("model", identity, "", "", {})
        write_tensors(path, {"kappa": np.zeros(3)}, {**origin.metadata(), "model": {"edges": edges}})
        curve = [[50.0 * n, *(10.0 ** (-n / 4) * (1 + e) for e in range(len(edges)))] for n in range(8)]
        train = list(get_family(family).split(split).indices)
        about = {**identity, "id": origin.id, "train": train}
        write_json(paths.metrics(path), {**about, "curve": curve, "steps": 350, **metrics})
        return path

    return write


@pytest.fixture
def teacher():
    """What writes the drift and the settings of a teacher."""

    def write(path: Path, family: str, split: str, index: int, seed: int, weight: float, warm: bool = True) -> Path:
        drift = None if index == 0 else 1.0 + 0.1 * seed + (2.0 if weight == 0.0 else 0.0) + (0.0 if warm else 4.0)
        identity = {"family": family, "split": paths.split_of(split, index), "index": index, "seed": seed}
        origin, settings = Origin("teacher", identity, "", "", {}), {"cross_index": weight, "warm_start": warm}
        write_tensors(path, {"actor": np.zeros(3)}, {**origin.metadata(), "settings": settings})
        write_json(paths.metrics(path), {**identity, "id": origin.id, "metrics": {"drift": drift}})
        return path

    return write


@pytest.fixture
def quick(monkeypatch) -> None:
    """Write pictures with fewer dots."""
    monkeypatch.setitem(DRAWING, "savefig.dpi", 60)
