"""GenRL, ARS and BC on the tiny family: they train from the command line, repeat, and are judged by the semantics."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from dibs import cli
from dibs.baselines import registry
from dibs.baselines.bc import stage_of_edges
from dibs.baselines.commands import METHODS
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.evaluation.methods import METHODS as MEASURED
from dibs.families import get_benchmark
from dibs.files import read_tensors

SETTINGS: dict[str, dict[str, Any]] = {
    "genrl": {"steps": 200_000},
    "ars": {"steps": 300_000, "check_rollouts": 20},
    "bc": {"hidden": [16], "max_steps": 300},
}


@pytest.fixture(scope="module")
def pipeline(pipeline, tmp_path_factory):
    """The common results, copied: what these tests add is theirs alone."""
    root = tmp_path_factory.mktemp("baselines") / "results"
    shutil.copytree(pipeline.root, root)
    return replace(pipeline, root=root)


def train(pipeline: Any, method: str, seed: int = 0, folder: Any = None) -> Any:
    """Train a baseline by its command and return its artefact."""
    output = None if folder is None else folder / f"{method}.safetensors"
    argv = ["baseline", method, str(pipeline.file), "--gap", "2", "--seed", str(seed), "--quiet"]
    argv += ["--results", str(pipeline.root), "--settings", json.dumps(SETTINGS[method])]
    argv += [] if output is None else ["--output", str(output)]
    assert cli.main(argv) == 0
    name = "tiny"
    return output or pipeline.places.baseline(method, name, 2, seed)


def test_the_command_knows_the_registry() -> None:
    assert tuple(sorted(registry.trainable())) == METHODS
    assert set(registry.BASELINES) <= set(MEASURED)


@pytest.mark.parametrize("method", SETTINGS)
def test_the_same_seed_gives_the_same_bytes(pipeline: Any, method: str, tmp_path: Any) -> None:
    first = train(pipeline, method).read_bytes()
    assert train(pipeline, method, folder=tmp_path).read_bytes() == first


@pytest.mark.parametrize("method", SETTINGS)
def test_evaluation_writes_a_row_per_index_and_the_steps_used(pipeline: Any, method: str) -> None:
    train(pipeline, method)
    argv = ["evaluate", str(pipeline.file), "--method", method, "--gap", "2", "--results", str(pipeline.root)]
    assert cli.main([*argv, "--settings", '{"rollouts": 100}']) == 0
    table = pq.read_table(pipeline.places.evaluation(method, "tiny", 2, 0))
    assert table["index"].to_pylist() == list(range(9))
    meta = json.loads(table.schema.metadata[b"dibs"])
    assert meta["method"] == method and meta["steps"] > 0


@pytest.mark.parametrize("method", SETTINGS)
def test_what_is_measured_at_an_index_does_not_depend_on_the_others(pipeline: Any, method: str) -> None:
    artefact = train(pipeline, method)
    family, text = get_benchmark(str(pipeline.file))
    count = registry.get_baseline(method).count
    settings = EvaluationSettings(rollouts=50)
    together = count(family, text, artefact, 0, [0, 1, 2, 3], settings)
    assert count(family, text, artefact, 0, [3], settings) == {3: together[3]}
    assert count(family, text, artefact, 0, [2, 0], settings) == {0: together[0], 2: together[2]}


def test_bc_clones_its_teachers_at_the_training_indices(pipeline: Any) -> None:
    SETTINGS["bc"] = {"hidden": [32], "max_steps": 2000, "check_every": 200}
    artefact = train(pipeline, "bc")
    family, text = get_benchmark(str(pipeline.file))
    rates = registry.get_baseline("bc").count(family, text, artefact, 0, [0], EvaluationSettings(rollouts=100))
    assert rates[0] > 50  # one policy for all indices: better than chance where a teacher has shown the way


def test_genrl_improves_on_its_start(pipeline: Any) -> None:
    artefact = train(pipeline, "genrl")
    tensors, meta = read_tensors(artefact)
    assert meta["kind"] == "template" and meta["method"] == "genrl"
    assert np.isfinite(tensors["kappa"]).all()


def test_stages_of_edges_count_what_lies_behind() -> None:
    text = "(achieve reach(g1) or achieve reach(g2)); achieve reach(goal)"
    assert stage_of_edges(text) == {"start>g1": 0, "start>g2": 0, "g1>goal": 1, "g2>goal": 1}
