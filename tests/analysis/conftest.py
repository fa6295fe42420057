"""Synthetic evaluations: rates that look like the paper's story, written by the code that writes real ones."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dibs import paths
from dibs.analysis import commands, draw, figures
from dibs.analysis.collect import collect, find
from dibs.evaluation.evaluate import EvaluationSettings, roles, save_evaluation
from dibs.families import get_benchmark, get_family
from dibs.files import write_json, write_tensors
from dibs.paths import Layout
from dibs.policies.scaling import edge_scaling
from dibs.seeding import stream
from dibs.teachers.train import network_of
from dibs.templates.guards import EdgeRecord
from dibs.templates.polynomial import identity
from dibs.templates.template import Template, save_template

ALL = ("ars", "bc", "maml", "maml-adapted", "varibad", "genrl", "dibs", "dibs-plus")


def rates(method: str, k: int, index: np.ndarray, train: Sequence[int], rng: np.random.Generator) -> np.ndarray:
    """Satisfaction rates over the index in the manner of a method."""
    apart = np.min(np.abs(index[:, None] - np.array(train)[None]), axis=1)  # to the nearest training index
    n, last = len(train), max(train)
    beyond = np.maximum(index - last, 0)
    good, slope = {
        "ars": (0.05, 0.0),
        "bc": (1.02 - 0.02 * k, 0.06),
        "maml": (1.13 - 0.13 * k, 0.02),
        "maml-adapted": (1.1 - 0.08 * k, 0.015),
        "varibad": (1.09 - 0.06 * k, 0.003),
        "genrl": (1.05 - 0.02 * k - 0.006 * n, 0.01),
        "dibs": (1.02 - 0.01 * k, 0.008),
        "dibs-plus": (1.02 - 0.005 * k, 0.004),
    }.get(method, (0.5, 0.01))
    noise = rng.normal(0.0, 0.03, len(index)) + rng.normal(0.0, 0.02)
    return np.clip(good - slope * apart - 0.02 * beyond + noise, 0.0, 1.0)


def synthesise(
    root: Path,
    methods: Iterable[str] = ALL,
    benchmarks: Iterable[str] = ("car2d-reach-k5",),
    gaps: Sequence[int] | None = None,
    seeds: int = 2,
    rollouts: int = 200,
    steps: bool = True,
) -> list[Path]:
    """Write evaluations in the layout of results; return their files."""
    files = []
    for method in methods:
        for benchmark in benchmarks:
            family, _ = get_benchmark(benchmark)
            k = int(benchmark[-1]) if "-k" in benchmark else 2 + 2 * ("choice" in benchmark)
            for gap in [g for g in family.gaps if gaps is None or g in gaps]:
                train = family.train_indices(gap)
                role = roles(family.last_index, train, beyond=True)
                index = np.array(list(role))
                for seed in range(seeds):
                    rng = stream("synthetic", method, benchmark, gap, seed)
                    rate = rates(method, k, index, train, rng)
                    counts = dict(zip(role, rng.binomial(rollouts, rate).tolist(), strict=True))
                    identity = {"method": method, "benchmark": benchmark, "family": family.name}
                    identity |= {"gap": gap, "seed": seed}
                    if steps:
                        identity["steps"] = 100_000 * len(train)
                    path = Layout(root).evaluation(method, benchmark, gap, seed)
                    save_evaluation(path, counts, role, EvaluationSettings(rollouts=rollouts), identity)
                    files.append(path)
    return files


@pytest.fixture(scope="session")
def synthetic():
    """What writes synthetic evaluations."""
    return synthesise


@pytest.fixture(scope="session")
def results(tmp_path_factory) -> Path:
    """Results with all methods, but not everywhere: MAML and VariBAD lack a benchmark, GenRL a gap."""
    root = tmp_path_factory.mktemp("results")
    synthesise(root, [m for m in ALL if m != "genrl"], ["car2d-reach-k1"], [20, 8, 4])
    synthesise(root, [m for m in ALL if m not in ("genrl", "maml", "varibad")], ["car2d-reach-k5"], [20, 8, 4])
    synthesise(root, ["genrl"], ["car2d-reach-k1", "car2d-reach-k5"], [20, 4])
    synthesise(root, ["genrl", "dibs", "bc"], ["car2d-choice-l1", "reacher-drop-same-8", "reacher-stack-same-8"])
    return root


@pytest.fixture(scope="session")
def frame(results) -> pd.DataFrame:
    return collect(find("evaluation", None, results))


def make_template(path: Path, family_name: str, gap: int, method: str = "dibs", seed: int = 0) -> Path:
    """Write a template of random base policies that stay as they are, and metrics as `dibs fit` would."""
    family = get_family(family_name)
    network = network_of(family)
    rng = stream("synthetic template", family_name, gap, seed)
    edges = tuple(edge.name for edge in family.edges)
    base = rng.normal(size=(len(edges), network.size))
    train = family.train_indices(gap)
    one = tuple(1.0 for _ in train)
    template = Template(
        method,
        family_name,
        gap,
        seed,
        train,
        edges,
        network,
        edge_scaling(family),
        identity(1, base.shape),
        base,
        np.zeros(len(edges), dtype=int),
        {name: EdgeRecord(train, one, one) for name in edges},
    )
    save_template(path, template, {})
    curve = [[50.0 * n, *(10.0 ** (-n / 4) * (1 + e) for e in range(len(edges)))] for n in range(8)]
    write_json(paths.metrics(path), {"curve": curve, "steps": 350})
    return path


def make_teacher(path: Path, family: str, gap: int, index: int, seed: int, weight: float, warm: bool = True) -> Path:
    """Write what the figure of drift reads of a teacher."""
    drift = None if index == 0 else 1.0 + 0.1 * seed + (2.0 if weight == 0.0 else 0.0) + (0.0 if warm else 4.0)
    name = {"kind": "teacher", "family": family, "gap": gap, "index": index, "seed": seed}
    write_tensors(path, {"actor": np.zeros(3)}, {**name, "settings": {"cross_index": weight, "warm_start": warm}})
    write_json(paths.metrics(path), {**name, "metrics": {"drift": drift}})
    return path


@pytest.fixture
def template():
    """What writes a synthetic template."""
    return make_template


@pytest.fixture
def teacher():
    """What writes a synthetic teacher."""
    return make_teacher


@pytest.fixture
def dibs(monkeypatch):
    """Run a command of this stage."""
    for style in (figures.STYLE, draw.STYLE):
        monkeypatch.setitem(style, "savefig.dpi", 60)
    parser = argparse.ArgumentParser()
    commands.register(parser.add_subparsers(required=True))

    def run(*argv: object) -> int:
        args = parser.parse_args(list(map(str, argv)))
        return int(args.run(args) or 0)

    return run
