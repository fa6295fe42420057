"""docs/extending.md: its commands work, its code is the example package's, and the package runs in the workflow."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dibs import cli
from dibs.families import get_family
from dibs.files import read_table

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "extending.md").read_text()
FAMILY = ROOT / "examples" / "families" / "car2d-delivery.yaml"
PACKAGE = ROOT / "examples" / "extension"


def example(name: str) -> str:
    """The block of code after `<!-- example: NAME -->`."""
    found = re.findall(rf"<!-- example: {name} -->\n```\w+\n(.*?)```", PAGE, re.DOTALL)
    assert len(found) == 1, name
    return found[0]


# --- the page --------------------------------------------------------------------------------------------


def test_the_page_shows_the_family_file() -> None:
    shown, file = (re.sub(r"^#.*\n", "", text, flags=re.MULTILINE) for text in (example("family"), FAMILY.read_text()))
    assert shown == file and len(file.splitlines()) <= 30


@pytest.mark.parametrize(
    ("name", "file"),
    [("pyproject", "pyproject.toml"), *((n, f"dibs_boat/{n}.py") for n in ("boat", "cem", "nearest"))],
)
def test_the_page_shows_the_package(name: str, file: str) -> None:
    assert example(name) in (PACKAGE / file).read_text()


def test_paths_on_the_page_exist() -> None:
    found = set(re.findall(r"`(dibs/[\w/]+\.py|examples/[\w/.-]+)`", PAGE))
    assert len(found) > 5
    for path in found:
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


def test_the_familys_regions_drift_and_shrink() -> None:
    family = get_family(str(FAMILY))
    door = [family.regions_at(i)["door"] for i in (0, 4, 8)]
    np.testing.assert_allclose([box.center[0] for box in door], [2.0, 2.0 + 2.0 + 0.48, 2.0 + 4.0 + 1.92])
    np.testing.assert_allclose([box.half_width[1] for box in door], [1.2, 1.2 * 0.98**4, 1.2 * 0.98**8])


@pytest.mark.slow
def test_the_family_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """The page's commands, with smaller settings: teachers, datasets, template, evaluation, policy, rollout."""
    monkeypatch.chdir(tmp_path)
    for command in (
        *(step for i in "02468" for step in (["teacher", "--index", i], ["dataset", "--index", i])),
        ["fit"],
    ):
        settings = {"teacher": SMALL, "dataset": {"size": 1000}, "fit": {"max_steps": 500, "batch": 128}}[command[0]]
        argv = [command[0], str(FAMILY), "--split", "gap2", *command[1:]]
        assert cli.main([*argv, "--settings", json.dumps(settings), "--quiet"]) == 0
    assert "FAILED" not in capsys.readouterr().out
    benchmark = [f"{FAMILY}:car2d-delivery", "--split", "gap2"]
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


# --- the package -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which the example package is installed; `dibs` itself is not touched."""
    folder = tmp_path_factory.mktemp("extension")
    source = folder / "source"
    shutil.copytree(PACKAGE, source)
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--no-index", "--target", str(target), str(source)], check=True, timeout=200)
    kept = {name: value for name, value in os.environ.items() if name != "SNAKEMAKE_PROFILE"}
    return {**kept, "PYTHONPATH": str(target)}


def dibs(installed: dict[str, str], folder: Path, *args: str) -> str:
    """Run a command with the package installed."""
    command = [sys.executable, "-m", "dibs", *args]
    done = subprocess.run(command, cwd=folder, env=installed, stdout=-1, stderr=-2, text=True, timeout=200)
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_the_package_is_known(installed: dict[str, str], tmp_path: Path) -> None:
    assert "boat-buoys" in dibs(installed, tmp_path, "benchmarks")
    assert "nearest" in dibs(installed, tmp_path, "methods")
    assert "Boat" in dibs(installed, tmp_path, "spec", "boat-buoys", "--index", "3")
    dibs(installed, tmp_path, "draw", "boat-buoys", "--index", "0", "4", "--output", "boat.png")
    assert (tmp_path / "boat.png").stat().st_size > 5_000
    assert "Boat" in dibs(installed, tmp_path, "family", "boat-buoys")


STUDY = """
results: results
seeds: 1
benchmarks: [boat-buoys]
gaps: [2]
splits: {ends: [0, 1, 4]}
methods: [dibs, nearest, bc, ars]
teachers: {capacity: 500, probes: 50, rollouts: 100, algorithms: {cem: {iterations: 25, rollouts: 8}}}
datasets: {size: 300, require: 0.0}
templates: {max_steps: 200}
baselines: {ars: {steps: 40000, restarts: 1, trial: 2}, bc: {max_steps: 200}}
evaluation: {rollouts: 100, beyond: false}
"""


@pytest.mark.slow
def test_the_package_runs_through_the_workflow(installed: dict[str, str], tmp_path: Path) -> None:
    """Its environment, algorithm, method and family, with methods of ours next to it, up to tables and figures."""
    for name in ("Snakefile", "config.yaml", "config", "workflow", "profiles", "dibs"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    (tmp_path / "study.yaml").write_text(STUDY)
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--configfile", "study.yaml", "--quiet", "all"]
    done = subprocess.run(command, cwd=tmp_path, env=installed, stdout=-1, stderr=-2, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-5000:]
    results = tmp_path / "results"
    for split, train in (("gap2", (0, 2, 4)), ("ends", (0, 1, 4))):
        table, meta = read_table(results / "evaluations" / "nearest" / "boat-buoys" / split / "seed0.parquet")
        assert meta["method"] == "nearest" and tuple(meta["train"]) == train and meta["steps"] > 0
        rates = dict(zip(table["index"].to_pylist(), table["rate"].to_pylist(), strict=True))
        assert all(rates[index] > 0.9 for index in train)  # there it is the teacher itself
    metrics = json.loads((results / "teachers" / "boat-buoys" / "base" / "seed0" / "0.json").read_text())["metrics"]
    assert metrics["algorithm"] == "cem" and metrics["success"] > 0.9
    markdown = (results / "tables" / "benchmarks.md").read_text()
    assert "Nearest teacher" in markdown and "VariBAD" not in markdown
    made = {file.stem for folder in ("tables", "figures") for file in (results / folder).iterdir()}
    assert {"relative", "ratios", "success_by_index-boat-buoys"} <= made
    assert not made & {"claims", "table1", "environments", "obstacles"}
    # Policies, drawings and Gymnasium environments of the package's environment
    model = str(results / "models" / "dibs" / "boat-buoys" / "gap2" / "seed0.safetensors")
    dibs(installed, tmp_path, "policy", "boat-buoys", "--gap", "2", "--index", "3", "--model", model)
    said = dibs(installed, tmp_path, "rollout", "boat-buoys-3.safetensors", "--episodes", "2", "--output", "boat.gif")
    assert "episodes satisfy index 3" in said and (tmp_path / "boat.gif").stat().st_size > 5_000
    done = subprocess.run(
        [sys.executable, "-c", example("policy").replace("car2d-delivery-3", "boat-buoys-3") + "\nprint(info)"],
        cwd=tmp_path,
        env=installed,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0 and "'satisfied': True" in done.stdout, done.stderr
    code = (
        "import gymnasium; from gymnasium.utils.env_checker import check_env; "
        "env = gymnasium.make('dibs.gym:dibs/Boat-v0', family='boat-buoys', index=2); "
        "check_env(env.unwrapped); print(env.observation_space.shape)"
    )
    shown = subprocess.run([sys.executable, "-c", code], env=installed, capture_output=True, text=True, timeout=100)
    assert shown.returncode == 0 and "(3,)" in shown.stdout, shown.stderr
