"""What holds for all tests: one thread per process, the same examples on every run, and one tiny family."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Before anything imports numpy or torch: the test processes already fill the cores.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

from dibs.families import Family, load_family  # noqa: E402
from dibs.paths import Layout  # noqa: E402

settings.register_profile("dibs", derandomize=True, deadline=None, database=None)
settings.load_profile("dibs")

TINY_TEACHERS: dict[str, Any] = {
    "capacity": 1000,
    "probes": 100,
    "rollouts": 200,
    "options": {
        "directions": 8,
        "best": 4,
        "rollouts": 8,
        "iterations": 60,
        "restarts": 3,
        "check_rollouts": 50,
        "patience": 2,
        "step": 0.1,
        "exploration": 0.1,
    },
}


@pytest.fixture(scope="session")
def tiny_description() -> Callable[..., dict[str, Any]]:
    """Describe a family of two short Car2D edges that is learned in seconds; keys given replace its own."""

    def describe(**changes: Any) -> dict[str, Any]:
        return {
            "name": "tiny",
            "environment": {"name": "Car2D"},
            "specification": "achieve reach(a); achieve reach(b)",
            "start": {"center": [0.0, 0.0], "noise": 0.1, "shift": [0.25, 0.0]},
            "regions": {
                "a": {"center": [2.0, 3.0], "half_width": 1.0, "shift": [0.25, 0.0]},
                "b": {"center": [0.0, 6.0], "half_width": 1.0, "shift": [0.25, 0.0]},
            },
            "last_index": 4,
            "gaps": [2, 4],
            "horizon": 10,
            "network": {"hidden": [8]},
            "reward": {"unit": 10.0, "depth": 0.2},
        } | changes

    return describe


@pytest.fixture(scope="session")
def tiny_teachers() -> dict[str, Any]:
    """Settings with which the teachers of `tiny` succeed within a second each."""
    return json.loads(json.dumps(TINY_TEACHERS))


@pytest.fixture(scope="session")
def tiny(tiny_description: Callable[..., dict[str, Any]]) -> Family:
    return load_family(tiny_description())


@dataclass(frozen=True)
class Pipeline:
    """A tiny family taken through all stages, once per test session, by the commands."""

    file: Path
    root: Path
    printed: dict[str, str]
    """Standard output by command."""
    settings: dict[str, str]
    """JSON text of each stage's settings."""

    @property
    def layout(self) -> Layout:
        return Layout(self.root)


@pytest.fixture(scope="session")
def pipeline(tmp_path_factory: pytest.TempPathFactory, tiny_description: Callable[..., dict[str, Any]]) -> Pipeline:
    """Teachers, datasets, template and evaluation of `tiny` at gap 2 (0, 2, 4 trained, 1 and 3 unseen), seed 0."""
    from dibs import cli

    folder = tmp_path_factory.mktemp("pipeline")
    file = folder / "tiny.yaml"
    file.write_text(json.dumps(tiny_description()))  # JSON is YAML
    root = folder / "results"
    settings = {
        "teacher": json.dumps(TINY_TEACHERS),
        "dataset": '{"size": 300}',
        "fit": '{"max_steps": 300, "batch": 128}',
        "evaluate": '{"rollouts": 200}',
    }
    printed: dict[str, str] = {}

    def dibs(command: str, *rest: str) -> None:
        text = io.StringIO()
        argv = [command, str(file), "--gap", "2", "--results", str(root), "--quiet", *rest]
        with contextlib.redirect_stdout(text):
            assert cli.main([*argv, "--settings", settings[command]]) == 0
        printed[command] = printed.get(command, "") + text.getvalue()

    for index in ("0", "2", "4"):
        dibs("teacher", "--index", index)
        dibs("dataset", "--index", index)
    dibs("fit")
    dibs("evaluate")
    return Pipeline(file, root, printed, settings)
