"""Checkpoints within a teacher: an interrupted run ends with the same bytes as one that was left alone."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dibs.errors import DibsError
from dibs.families import Family, load_family
from dibs.stages import teacher_tasks
from dibs.teachers.buffers import StateBuffers
from dibs.teachers.journal import Journal, Tree, read_tree, write_tree
from dibs.teachers.train import TeacherSettings, resolve, train_teacher

CAR: dict[str, Any] = {
    "name": "short",
    "environment": {"name": "Car2D"},
    "specification": "achieve reach(a); achieve reach(b)",
    "start": {"center": [0.0, 0.0], "noise": 0.1},
    "regions": {
        "a": {"center": [1.0, 2.0], "half_width": 0.5, "shift": [0.25, 0.0]},
        "b": {"center": [0.0, 4.0], "half_width": 0.5, "shift": [0.25, 0.0]},
    },
    "last_index": 2,
    "gaps": [1],
    "horizon": 8,
    "network": {"hidden": [4]},
}
# Regions of derived variables: the second edge starts where the first one arrives.
PENDULUM: dict[str, Any] = {
    **CAR,
    "name": "swing",
    "environment": {"gymnasium": "Pendulum-v1", "variables": ["angle", "speed"]},
    "start": {
        "center": {"angle": 3.14, "speed": 0.0},
        "noise": {"angle": 0.05, "speed": 0.05},
        "wide": {"angle": 1.0, "speed": 2.0},
    },
    "regions": {
        "a": {"center": {"obs1": 0.2}, "half_width": 0.15, "shift": {"obs1": 0.02}},
        "b": {"center": {"obs1": -0.2}, "half_width": 0.15, "shift": {"obs1": -0.02}},
    },
    "horizon": 12,
}
OFF_POLICY = {"steps": 80, "n_envs": 4, "check_every": 30, "checks": 4, "options": {"learning_starts": 20}}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "ars": {"iterations": 6, "directions": 4, "best": 2, "rollouts": 2, "restarts": 2, "check_rollouts": 5},
    "ppo": {"iterations": 3, "n_envs": 4, "n_steps": 8, "batch": 16, "restarts": 2, "checks": 4, "patience": 9},
    "a2c": {"steps": 160, "n_envs": 4, "check_every": 60, "checks": 4},
    "sac": OFF_POLICY,
    "td3": OFF_POLICY,
    "ddpg": OFF_POLICY,
}


class Killed(Exception):
    """Stands for a signal."""


class Dying(Journal):
    """Raises at the given checkpoint."""

    left = 0

    def tick(self, piece: str, state: Any) -> None:
        super().tick(piece, state)
        self.left -= 1
        if self.left == 0:
            raise Killed


def run(family: Family, algorithm: str, journal: Journal | None) -> dict[str, Any]:
    """Train index 0 and return everything that its files contain."""
    options = {"algorithm": algorithm, "options": ALGORITHMS[algorithm], "confidence": 0.5}
    settings = TeacherSettings(**options, capacity=300, probes=8, rollouts=8)
    settings = resolve(settings, family.teacher, family.teacher_options)
    tasks = teacher_tasks(family, 0)
    teacher, buffers, _ = train_teacher(tasks, family.split("gap1"), 0, 1000, None, settings, None, journal)
    arrays = {"actor": teacher.actor, "head": teacher.head, **teacher.arrivals}
    for e, edge in enumerate(buffers.edges):
        arrays |= {f"{e} {kind}": reservoir.view() for kind, reservoir in edge.items()}
    return {**{k: hashlib.sha256(v.tobytes()).hexdigest() for k, v in arrays.items()}, "metrics": repr(teacher.metrics)}


@pytest.mark.parametrize(
    ("description", "algorithm"),
    [(CAR, "ars"), (CAR, "ppo"), *((PENDULUM, name) for name in ALGORITHMS)],
    ids=lambda value: value if isinstance(value, str) else value["name"],
)
def test_an_interrupted_run_gives_the_same_teacher(
    description: dict[str, Any], algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family, file = load_family(description), tmp_path / "0.partial.safetensors"
    expected = run(family, algorithm, None)
    kills = 0
    for ticks in (2, 4, 10**9):
        dying = Dying(file, "key", 1e-9)
        dying.left = ticks
        try:
            found = run(family, algorithm, dying)
            break
        except Killed:
            kills += 1
            np.random.rand(3)  # a new process has another global stream  # noqa: NPY002
    assert kills >= 2
    assert "continuing an interrupted run" in capsys.readouterr().err
    assert found == expected


def test_checkpoints_are_written_only_when_due(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    journal = Journal(tmp_path / "j.safetensors", "key", 3600.0).begin(rng, StateBuffers(1, ["x"], rng, 4))
    journal.tick("piece", lambda: 1 / 0)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("what", ["key", "damaged"])
def test_a_checkpoint_of_something_else_is_not_used(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, rng = tmp_path / "j.safetensors", np.random.default_rng(0)
    first = Journal(file, "key", 1e-9).begin(rng, StateBuffers(1, ["x"], rng, 4))
    first.once("before", lambda: 1)
    first.tick("piece", lambda: {"x": 1})
    if what == "damaged":
        file.write_bytes(file.read_bytes()[:40])
    again = Journal(file, "other" if what == "key" else "key", 1e-9).begin(rng, StateBuffers(1, ["x"], rng, 4))
    assert again.resume("piece") is None and again.once("before", lambda: 2) == 2
    expected = "other settings, tasks or versions" if what == "key" else "damaged"
    assert expected in capsys.readouterr().err
    assert Journal(file, "key", 1e-9).begin(rng, StateBuffers(1, ["x"], rng, 4)).resume("else") is None


def test_trees_survive_a_file(tmp_path: Path) -> None:
    tree: Tree = {
        "a": [np.arange(6, dtype=np.uint32).reshape(2, 3), None, -np.inf, 2**127 + 1],
        3: {"b": np.float32(0.1), "c": np.array(2.5), "empty": np.zeros((0, 2), dtype=bool)},
    }
    write_tree(tmp_path / "t.safetensors", tree)
    found = read_tree(tmp_path / "t.safetensors")
    assert found["a"][1:] == [None, -np.inf, 2**127 + 1]
    np.testing.assert_array_equal(found["a"][0], tree["a"][0])
    assert found["a"][0].dtype == np.uint32 and found[3]["c"].shape == () and found[3]["empty"].shape == (0, 2)
    assert np.float32(found[3]["b"]) == np.float32(0.1)
    with pytest.raises(DibsError, match="no such file"):
        read_tree(tmp_path / "none.safetensors")


def test_kill_minus_nine_and_run_again(tmp_path: Path) -> None:
    """A real process is killed while it trains; the same command then ends with the same bytes as elsewhere."""
    (tmp_path / "short.yaml").write_text(load_family(CAR).to_yaml())
    options = {**ALGORITHMS["ars"], "iterations": 1000, "patience": 10**6}
    settings = f'{{"algorithm": "ars", "options": {options!r}, "rollouts": 50}}'.replace("'", '"')
    command = [sys.executable, "-m", "dibs", "teacher", "short.yaml", "--gap", "1", "--index", "0", "--quiet"]
    command += ["--settings", settings]

    def start(results: str, seconds: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, "--results", results, "--checkpoint", seconds], cwd=tmp_path, stderr=subprocess.PIPE, text=True
        )

    folder = tmp_path / "killed/teachers/short/base/seed0"
    partial = folder / ".checkpoints/0.partial.safetensors"
    process = start("killed", "0.05")
    deadline = time.monotonic() + 60
    while not partial.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert partial.exists() and not (folder / "0.safetensors").exists()
    again = start("killed", "0.05")
    error = again.communicate(timeout=120)[1]
    assert again.returncode == 0 and "continuing an interrupted run" in error
    assert start("whole", "0").communicate(timeout=120)[1] == ""
    for name in ("0.safetensors", "0.buffers.parquet", "0.json"):
        assert (folder / name).read_bytes() == (tmp_path / "whole/teachers/short/base/seed0" / name).read_bytes(), name
    assert not list((folder / ".checkpoints").iterdir())
