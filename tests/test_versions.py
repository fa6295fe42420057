"""Short fixed runs of every stage and report, compared with stored numbers: a change of results needs a new version.

Files carry the versions of the stages that wrote them (`dibs.provenance`), not a digest of code. If numbers changed,
raise the version that the message names, so that old results are made again, and store the new numbers:

    python tests/test_versions.py [CASE ...]
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Callable
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dibs import datasets, evaluation, registry, studies, teachers
from dibs.datasets.build import DatasetSettings
from dibs.datasets.store import load_dataset
from dibs.evaluation.evaluate import EvaluationSettings, roles
from dibs.families import Benchmark, get_benchmark, load_family
from dibs.files import read_table
from dibs.methods import get_method, load_model
from dibs.paths import Layout
from dibs.pipeline import OpenedModel, Unit, make_dataset, make_evaluation, make_model, make_teacher, read_model
from dibs.provenance import Origin
from dibs.settings import parse_settings
from dibs.stages import EvaluationResult, evaluation_versions
from dibs.studies.formats import Table
from dibs.studies.reports import find_report, make, reports
from dibs.studies.studies import StudyFile, VariantFiles
from dibs.studies.summaries import summarize_study
from dibs.teachers.base import get_algorithm
from dibs.teachers.store import load_teacher
from dibs.teachers.train import TeacherSettings

STORED = Path(__file__).parent / "versions.json"
TRAIN = (0, 1, 3)
FAMILY = {
    "name": "fixed",
    "environment": {"name": "Car2D"},
    "specification": "((achieve reach(a) or achieve reach(c)); achieve reach(b)) ensuring avoid(o)",
    "start": {"center": [0.0, 0.0], "noise": 0.1, "shift": [0.25, 0.0]},
    "regions": {
        "a": {"center": [1.0, 2.0], "half_width": 1.0, "shift": [0.25, 0.0]},
        "b": {"center": [0.0, 4.0], "half_width": 1.0, "shift": [0.25, 0.0]},
        "c": {"center": [-1.0, 2.0], "half_width": 1.0, "shift": [0.25, 0.0]},
        "o": {"center": [0.1, 1.6], "half_width": 0.2, "shift": [0.25, 0.0]},
    },
    "last_index": 3,
    "horizon": 8,
    "network": {"hidden": [4]},
    "reward": {"unit": 5.0, "depth": 0.2, "margin": 0.3},
}
SEQUENCE = {
    "name": "fixed-drone",
    "environment": {"name": "SimpleDrone"},
    "specification": "achieve reach(a); achieve reach(b)",
    "start": {"center": [0.0, 0.0, 0.0], "noise": 0.1, "shift": [0.25, 0.0, 0.0]},
    "regions": {
        "a": {"center": [1.0, 1.5, 1.0], "half_width": 1.4, "shift": [0.25, 0.0, 0.0]},
        "b": {"center": [0.5, 3.0, 1.5], "half_width": 1.4, "shift": [0.25, 0.0, 0.0]},
    },
    **{key: FAMILY[key] for key in ("last_index", "horizon", "network", "reward")},
}
"""What the first family is not: edges in a fixed order, in space, with teachers by PPO."""
COMMON = {"capacity": 500, "probes": 20, "rollouts": 50}
OPTIONS: dict[str, dict[str, Any]] = {
    "ars": {"iterations": 20, "rollouts": 4, "restarts": 2, "check_rollouts": 20},
    "ppo": {"iterations": 2, "n_envs": 16, "batch": 256, "restarts": 1, "checks": 20},
    "a2c": {"steps": 400, "n_envs": 8, "check_every": 200, "checks": 20},
    "sac": {"steps": 60, "n_envs": 4, "check_every": 40, "checks": 10, "options": {"learning_starts": 20}},
    "td3": {"steps": 60, "n_envs": 4, "check_every": 40, "checks": 10, "options": {"learning_starts": 20}},
    "ddpg": {"steps": 60, "n_envs": 4, "check_every": 40, "checks": 10, "options": {"learning_starts": 20}},
}
SMALL: dict[str, dict[str, Any]] = {
    "ars": {"steps": 5_000, "restarts": 1, "trial": 2},
    "bc": {"max_steps": 30},
    "genrl": {"steps": 12_000},
    "maml": {"steps": 600, "hidden": [8]},
    "varibad": {"steps": 600, "hidden": [8], "recurrent": 8, "embedding": 4},
    "bc-index": {"max_steps": 30, "hidden": [8]},
    "ppo-index": {"steps": 600, "hidden": [8], "rollouts": 4},
    "hyper": {"max_steps": 30, "hidden": [4], "layers": [4]},
    "ppo-goal": {"steps": 600, "hidden": [8], "rollouts": 4, "record_rollouts": 5},
    "ars-plain": {"steps": 5_000, "restarts": 1, "trial": 2},
    "bc-plain": {"max_steps": 30},
    "genrl-public": {"steps": 12_000, "hidden": [4]},
    "dibs": {"max_steps": 20},
    "dibs-plus": {"max_steps": 20},
    "dibs-plus-still": {"max_steps": 20, "refine": 5},
    "dibs-weights": {"max_steps": 20},
    "dibs-branched": {"max_steps": 20},
    "dibs-affine": {"iterations": 20},
    "motion": {"rollouts": 40},
}


class Runs:
    """The fixed runs below one folder, each made once."""

    def __init__(self, root: Path, description: dict[str, Any] = FAMILY, algorithm: str = "ars") -> None:
        self.root, self.algorithm = root, algorithm
        self.family = load_family(description)
        self.split = self.family.split("fixed", TRAIN)
        self.benchmark = Benchmark(self.family.name, self.family, self.family.name, self.family.name)

    @cached_property
    def sequence(self) -> Runs:
        return Runs(self.root / "sequence", SEQUENCE, "ppo")

    @cached_property
    def made_up(self) -> list[Path]:
        return made_up(self.root / "made-up")

    def teacher(self, algorithm: str, index: int = 0) -> Path:
        """A short run of an algorithm; later indices start from the one before."""
        file = self.root / algorithm / f"{index}.safetensors"
        if not file.exists():
            settings = parse_settings(
                TeacherSettings, {**COMMON, "algorithm": algorithm, "options": OPTIONS[algorithm]}
            )
            before = self.split.before(index)
            previous = None if before is None else self.teacher(algorithm, before)
            make_teacher(self.family, self.split, index, 0, settings, file, previous)
        return file

    def dataset(self, index: int) -> Path:
        file = self.root / "datasets" / f"{index}.parquet"
        if not file.exists():
            settings = DatasetSettings(size=60, require=0.0, threshold=0.5, least_acceptance=1e-4)
            make_dataset(self.family, self.split, index, 0, settings, self.teacher(self.algorithm, index), file)
        return file

    def model(self, name: str) -> Path:
        file = self.root / "models" / f"{name}.safetensors"
        if not file.exists():
            method = get_method(name)
            settings: Any = parse_settings(method.settings, {**method.defaults, **SMALL[name]}, name)
            needed = method.inputs(settings, TRAIN)
            weights = [self.teacher(self.algorithm, i) for i in needed["teachers"]]
            data = [self.dataset(i) for i in needed["datasets"]]
            make_model(method, Unit.of(method, self.benchmark), self.split, 0, settings, file, weights, data)
        return file

    def evaluation(self, name: str) -> dict[str, float]:
        file = self.root / "evaluations" / f"{name}.parquet"
        method = get_method(name)
        settings = EvaluationSettings(rollouts=40)
        trained = get_method(method.model_method)
        unit = Unit.of(trained, self.benchmark)
        model, found = read_model(self.model(trained.name), trained, unit, self.split, 0)
        make_evaluation(OpenedModel(method, model, self.benchmark, self.split, 0, found["id"]), settings, file)
        table, meta = read_table(file)
        return {"satisfied": float(np.sum(table["satisfied"].to_numpy())), "steps": float(meta["steps"])}


def of_teacher(runs: Runs, name: str) -> dict[str, float]:
    last = load_teacher(runs.teacher(name, 1))
    return {"actor": size(last.actor), "head": size(last.head), "steps": float(last.metrics["steps"])}


def of_model(runs: Runs, name: str) -> dict[str, float]:
    model, _ = load_model(runs.model(name))
    numbers = {key: size(tensor) for key, tensor in sorted(model.tensors.items())}
    return {**numbers, **runs.evaluation(name)}


def of_sequence(runs: Runs, name: str) -> dict[str, float]:
    return of_model(runs.sequence, name)


def of_dataset(runs: Runs, _: str) -> dict[str, float]:
    found, _ = load_dataset(runs.dataset(1))
    return {f"{edge} {k}": size(array) for edge, pair in found.items() for k, array in enumerate(pair)}


def size(array: np.ndarray) -> float:
    """One number that a change of any entry changes."""
    flat = np.asarray(array, dtype=np.float64).ravel()
    return float(flat @ np.cos(np.arange(len(flat))))


def of_environment(_: Runs, name: str) -> dict[str, float]:
    """Steps from fixed states, and what is observed of them."""
    environment = registry.load("environments", name)()
    rng = np.random.default_rng(0)
    dim = len(environment.state_names)
    states = environment.project(rng.uniform(-4, 4, (50, dim)))
    moved = environment.step(
        states, rng.uniform(-1.2, 1.2, (50, environment.action_dim)), rng.uniform(-1, 1, (50, dim))
    )
    return {"project": size(states), "step": size(moved), "observe": size(environment.observe(moved))}


MEASURED = {
    **{"car2d-reach-k1": ("gap20", "gap8"), "car2d-reach-k5": ("gap20", "gap8"), "car2d-reach-obs-k5": ("gap8",)},
    **{"car2d-choice-l1": ("gap10", "gap5"), "car2d-choice-l2": ("gap5",)},
    **{f"reacher-stack-opposite-{blocks}": ("gap4",) for blocks in (8, 9, 10)},
}
"""Benchmarks and splits of made-up evaluations."""
COMPARED = ("ars", "bc", "genrl", "ars-plain", "bc-plain", "genrl-public", "dibs", "dibs-plus")


def made_up(root: Path) -> list[Path]:
    """Evaluations whose rates differ between all of them."""
    made = []
    for number, (name, method) in enumerate(product(MEASURED, COMPARED)):
        benchmark = get_benchmark(name)
        for split, seed in product(MEASURED[name], range(2)):
            role = roles(benchmark.family, benchmark.family.split(split).indices, EvaluationSettings())
            rate = 0.9 + 0.1 * np.sin(number + 0.2 * seed + len(split) + 0.05 * np.array(list(role)))
            identity = {"method": method, "benchmark": name, "family": benchmark.family.name}
            identity |= {"split": split, "seed": seed}
            origin = Origin("evaluation", identity, "", "", evaluation_versions(get_method(method)))
            counts = dict(zip(role, (200 * rate).astype(int).tolist(), strict=True))
            file = Layout(root).evaluation(method, name, split, seed)
            more = {"steps": 1000 * (number + 1)}
            EvaluationResult(counts, role, EvaluationSettings(rollouts=200), origin, more).save(file)
            made.append(file)
    return made


def of_report(runs: Runs, name: str) -> dict[str, float]:
    """The numbers of a table, or what the axes of a figure show."""
    kind = find_report(name)[0].inputs
    inputs = {
        "evaluations": lambda: runs.made_up,
        "models": lambda: [runs.model("dibs")],
        "teachers": lambda: [runs.teacher("ars", index) for index in TRAIN],
    }
    return numbers_of(make(name, inputs[kind]()))


def of_ablation(runs: Runs, _: str) -> dict[str, float]:
    variants = [
        VariantFiles(name, evaluations=[f for f in runs.made_up if f.match(f"{name}/car2d-reach-k5/*/*")])
        for name in ("bc", "dibs")
    ]
    return numbers_of(summarize_study(StudyFile("made-up", "ablation", "?", variants, "bc")).table)


def numbers_of(made: Any) -> dict[str, float]:
    if isinstance(made, Table):
        frame = pd.DataFrame(made.rows)
        numbers = frame.select_dtypes(["number"]).astype(float).fillna(-1.0)
        found = {column: size(values.to_numpy()) for column, values in numbers.items()}
        text = " ".join(frame["measured"]) if "measured" in frame else ""
        return found | {"measured": size(np.array(re.findall(r"\d+\.\d+", text), dtype=float))}
    drawn = [np.nan_to_num(line.get_xydata().astype(float), nan=-1.0) for ax in every(made) for line in ax.lines]
    bars = [bar.get_height() for ax in every(made) for bars in ax.containers for bar in bars.patches]
    return {"lines": float(sum(map(size, drawn))), "bars": size(np.array(bars))}


def every(figure: Any) -> list[Any]:
    """The axes of a figure and of its parts."""
    return [*figure.axes, *(ax for part in figure.subfigs for ax in every(part) if ax not in figure.axes)]


SHOWN = [
    f"success_by_index-{next(iter(MEASURED))}" if report.each else name
    for name, report in reports().items()
    if (report.inputs == "evaluations" and report.matching(MEASURED)) or name in ("loss_curves", "drift")
]
"""Reports with a fixed run: not illustrations, those that roll out templates of the paper's families, and those that
call the same function for another k."""
METHODS = [name for name in registry.names("methods") if not get_method(name).trained_as]
CASES: dict[str, tuple[Callable[[Runs, str], dict[str, float]], str, dict[str, int]]] = {
    **{
        f"teacher {name}": (of_teacher, name, {"teachers": teachers.VERSION, name: get_algorithm(name).version})
        for name in registry.names("teachers")
    },
    **{
        f"environment {name}": (of_environment, name, {name: registry.load("environments", name).version})
        for name in registry.names("environments")
    },
    "dataset": (of_dataset, "", {"datasets": datasets.VERSION}),
    **{
        f"method {name}": (of_model, name, {name: get_method(name).version, "evaluation": evaluation.VERSION})
        for name in METHODS
    },
    **{
        f"sequence {name}": (of_sequence, name, {name: get_method(name).version, "evaluation": evaluation.VERSION})
        for name in METHODS
    },
    "method maml-adapted": (
        lambda runs, name: runs.evaluation(name),
        "maml-adapted",
        {"maml-adapted": get_method("maml-adapted").version, "evaluation": evaluation.VERSION},
    ),
    **{
        f"report {name}": (of_report, name, {"studies": studies.VERSION, "report": find_report(name)[0].version})
        for name in SHOWN
    },
    "ablation": (of_ablation, "", {"studies": studies.VERSION}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("versions"))


@pytest.mark.parametrize("case", CASES)
def test_results_are_those_of_the_version(runs: Runs, case: str) -> None:
    stored = json.loads(STORED.read_text())[case]
    compute, name, versions = CASES[case]
    assert stored["versions"] == versions, f"{case}: new version; store its numbers with python tests/test_versions.py"
    found = compute(runs, name)
    raise_one = f"{case}: results changed. Raise one of {versions}, then run python tests/test_versions.py"
    assert found.keys() == stored["numbers"].keys(), raise_one
    for key, value in found.items():
        assert value == pytest.approx(stored["numbers"][key], rel=1e-2, abs=1e-3), f"{raise_one} ({key})"


def test_every_algorithm_and_method_has_a_fixed_run() -> None:
    assert set(OPTIONS) == set(registry.names("teachers"))
    assert set(SMALL) == set(METHODS)


def store(cases: list[str]) -> None:
    """Write the numbers of the code as it is, of the given cases or of all."""
    found = json.loads(STORED.read_text()) if cases else {}
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(Path(folder))
        for case in cases or CASES:
            compute, name, versions = CASES[case]
            found[case] = {"versions": versions, "numbers": compute(runs, name)}
    STORED.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    store(sys.argv[1:])
