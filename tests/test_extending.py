"""docs/extending.md: its examples are run as they stand there."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from dibs import cli
from dibs.analysis.statistics import wilson
from dibs.baselines import registry as baselines
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import get_family, load_family, reach_avoid
from dibs.files import read_table, write_tensors
from dibs.policies.network import Network
from dibs.policies.scaling import edge_scaling
from dibs.teachers.base import Lesson
from dibs.teachers.buffers import StateBuffers
from dibs.teachers.rollouts import draw, roll

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
FAMILY = ROOT / "examples" / "families" / "car2d-delivery.yaml"


def example(name: str) -> str:
    """The block of code after `<!-- example: NAME -->`."""
    found = re.findall(rf"<!-- example: {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert len(found) == 1, name
    return found[0]


@pytest.fixture
def module(tmp_path):
    """An example as a module."""
    loaded = []

    def load(name: str) -> ModuleType:
        file = tmp_path / f"example_{name}.py"
        file.write_text(example(name))
        spec = importlib.util.spec_from_file_location(f"example_{name}", file)
        made = importlib.util.module_from_spec(spec)
        sys.modules[made.__name__] = made
        loaded.append(made.__name__)
        spec.loader.exec_module(made)
        return made

    yield load
    for name in loaded:
        del sys.modules[name]


def test_the_page_shows_the_family_file():
    shown, file = (re.sub(r"^#.*\n", "", text, flags=re.MULTILINE) for text in (example("family"), FAMILY.read_text()))
    assert shown == file and len(file.splitlines()) <= 30


def test_paths_on_the_page_exist():
    for path in set(re.findall(r"`(dibs/[\w/]+\.py|examples/[\w/.-]+)`", PAGE)) - {"dibs/teachers/cem.py"}:
        assert (ROOT / path).exists(), path


# --- the family ------------------------------------------------------------------------------------------

SMALL = {
    "capacity": 1000,
    "probes": 100,
    "rollouts": 200,
    "options": {
        "directions": 10,
        "best": 5,
        "rollouts": 10,
        "check_rollouts": 100,
        "iterations": 120,
        "restarts": 3,
        "exploration": 0.1,
        "step": 0.1,
        "patience": 2,
    },
}


def test_the_familys_regions_drift_and_shrink():
    family = get_family(str(FAMILY))
    door = [family.boxes(i)["door"] for i in (0, 4, 8)]
    np.testing.assert_allclose([box.center[0] for box in door], [2.0, 2.0 + 2.0 + 0.48, 2.0 + 4.0 + 1.92])
    np.testing.assert_allclose([box.half_width[1] for box in door], [1.2, 1.2 * 0.98**4, 1.2 * 0.98**8])


@pytest.mark.slow
def test_the_family_end_to_end(tmp_path, monkeypatch, capsys):
    """The page's commands, with smaller settings: teachers, datasets, template, evaluation, policy, rollout."""
    monkeypatch.chdir(tmp_path)
    for command in (
        *(step for i in "02468" for step in (["teacher", "--index", i], ["dataset", "--index", i])),
        ["fit"],
    ):
        settings = {"teacher": SMALL, "dataset": {"size": 1000}, "fit": {"max_steps": 500, "batch": 128}}[command[0]]
        argv = [command[0], str(FAMILY), "--gap", "2", *command[1:], "--settings", json.dumps(settings), "--quiet"]
        assert cli.main(argv) == 0
    assert "FAILED" not in capsys.readouterr().out
    benchmark = [f"{FAMILY}:car2d-delivery", "--gap", "2"]
    assert cli.main(["evaluate", *benchmark, "--settings", '{"rollouts": 200}']) == 0
    table, _ = read_table("results/evaluations/dibs/car2d-delivery/gap2/seed0.parquet")
    rates = dict(zip(table["index"].to_pylist(), table["rate"].to_pylist(), strict=True))
    assert min(rates[i] for i in (0, 2, 4, 6, 8)) > 0.9
    assert np.mean([rates[i] > 0.9 for i in (1, 3, 5, 7)]) == 1.0
    assert cli.main(["policy", *benchmark, "--index", "3"]) == 0
    assert cli.main(["rollout", "car2d-delivery-3.safetensors", "--episodes", "3", "--output", "delivery-3.png"]) == 0
    assert "3 of 3 episodes satisfy index 3" in capsys.readouterr().out
    assert (tmp_path / "delivery-3.png").stat().st_size > 10_000
    names: dict = {}
    exec(example("policy"), names)
    assert names["info"]["satisfied"]


# --- a teacher algorithm ---------------------------------------------------------------------------------


def lesson(family, index: int = 0, **more) -> Lesson:
    rng = np.random.default_rng(0)
    tasks, network = reach_avoid(family, [index]), Network(2, (8,), 2)
    return Lesson(tasks, network, edge_scaling(family), StateBuffers(2, 2, rng), rng, 0, depth=0.2, **more)


def test_the_cross_entropy_method_teaches(module, tiny):
    cem = module("teacher")
    given = lesson(tiny)
    learnt = cem.train(given, cem.CemSettings(iterations=25, rollouts=8))
    folded = given.network.fold(learnt.theta, given.scaling.center, given.scaling.half)[:, None]
    outcome = roll(given.network, folded, given.tasks, draw(given.tasks, 300, np.random.default_rng(1)))
    assert outcome.success.min() > 0.9
    assert learnt.theta.shape == (2, given.network.size) and learnt.head is None and learnt.steps > 10_000
    assert all(edge["high"].seen and edge["low"].seen for edge in given.buffers.edges)
    again = cem.train(lesson(tiny), cem.CemSettings(iterations=25, rollouts=8))
    assert np.array_equal(again.theta, learnt.theta)


def test_the_anchor_holds_the_example_back(module, tiny):
    cem = module("teacher")
    previous = Network(2, (8,), 2).initial(np.random.default_rng(2), (2,))
    drifts = []
    for anchor in (0.0, 1.0):
        given = lesson(tiny, 4, previous=previous, anchor=anchor)
        learnt = cem.train(given, cem.CemSettings(iterations=10, rollouts=4))
        drifts.append(np.linalg.norm(learnt.theta - previous))
    assert drifts[1] < 0.7 * drifts[0]


# --- a method to compare ---------------------------------------------------------------------------------


def test_the_nearest_teacher_is_trained_and_measured(module, pipeline, tmp_path):
    entry = baselines.Baseline("nearest", module("baseline").__name__, needs=("teachers",))
    run = baselines.Run(load_family(pipeline.file), "tiny", "achieve reach(a); achieve reach(b)", 2, 0, pipeline.places)
    trained = entry.train(run, entry.settings())
    assert trained.steps > 0
    artefact = tmp_path / "nearest.safetensors"
    write_tensors(artefact, trained.tensors, {**trained.metadata, "train": list(run.train)})
    counts = entry.count(run.family, run.text, artefact, 0, [0, 1, 2, 3, 4, 60], EvaluationSettings(rollouts=200))
    for index in run.train:  # there it is the teacher itself
        assert wilson(counts[index], 200)[1] > 0.95
    assert counts[60] < 100  # far away from the last one it is lost
