"""Copies of the repository in which the workflow runs, one of them with a finished run."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("Snakefile", "config.yaml", "config", "workflow", "profiles", "dibs", "tests/workflow")
TINY = ("--configfile", "tests/workflow/tiny.yaml")
SPARSE = ("--config", "splits={sparse: [0, 1, 4]}", "gaps=[]")
"""A named training set instead of the gaps."""
FAILED = "failed"
"""Output of a run that did not end well."""


class Clone:
    """A copy of all that the workflow needs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = path / "results"

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--cores", "2", *args]

    @property
    def environment(self) -> dict[str, str]:
        return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SNAKEMAKE_PROFILE")}

    def run(self, *args: str, fails: bool = False) -> str:
        """Run Snakemake to its end and return its output."""
        done = subprocess.run(
            self.command(*args), cwd=self.path, env=self.environment, stdout=-1, stderr=-2, text=True, timeout=800
        )
        assert (done.returncode != 0) == fails, done.stdout[-6000:]
        return done.stdout

    def python(self, *args: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        """Run Python in the copy and capture its output."""
        command = [sys.executable, *args]
        done = subprocess.run(command, cwd=self.path, env=self.environment, capture_output=True, text=True, timeout=300)
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done

    def plan(self, *args: str) -> dict[str, int]:
        """Return the planned jobs by rule, without the targets. Models and evaluations are counted by method."""
        return planned(self.run(*args, "-n"))

    def copy(self, path: Path) -> Clone:
        shutil.copytree(self.path, path)  # with modification times, which Snakemake compares
        return Clone(path)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace text that occurs once in a file."""
        text = (self.path / file).read_text()
        assert text.count(old) == 1, f"{file}: {text.count(old)} × {old!r}"
        (self.path / file).write_text(text.replace(old, new))


def job_counts(output: str) -> dict[str, int]:
    """Return the table of jobs that a dry run prints."""
    found = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE)}
    return {name: count for name, count in found.items() if name not in ("all", "total")}


def planned(output: str) -> dict[str, int]:
    """Return the jobs of a dry run by rule, models and evaluations also by method, as their messages name them."""
    counts = job_counts(output)
    methods = Counter(re.findall(r"^Job \d+: ((?:model|evaluation) of [\w-]+) on ", output, re.MULTILINE))
    for rule in ("model", "evaluation"):
        named = {key.replace(" of ", " "): n for key, n in methods.items() if key.startswith(f"{rule} ")}
        assert sum(named.values()) == counts.pop(rule, 0), output
        counts |= named
    return counts


def new_clone(path: Path) -> Clone:
    for name in COPIED:
        source, target = ROOT / name, path / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return Clone(path)


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    """A fresh copy of the repository."""
    return new_clone(tmp_path / "clone")


@pytest.fixture(scope="session")
def finished_once(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    """A copy in which the tiny config was run. The first test process makes it, the others wait."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    path, done = shared / "finished", shared / "finished.log"
    try:
        path.mkdir()
    except FileExistsError:
        limit = time.monotonic() + 800
        while not done.exists():
            assert time.monotonic() < limit, f"{path}: still not finished"
            time.sleep(0.5)
        assert done.read_text() != FAILED, "the run that all tests share has failed: see the other error"
        return Clone(path)
    output = FAILED
    try:
        output = new_clone(path).run(*TINY)
    finally:
        (shared / "finished.part").write_text(output)
        (shared / "finished.part").rename(done)
    return Clone(path)


@pytest.fixture
def unstarted(finished_once: Clone, tmp_path: Path) -> Clone:
    """The sources of the finished run, without its results."""
    path = tmp_path / "clone"
    shutil.copytree(finished_once.path, path, ignore=shutil.ignore_patterns("results", ".snakemake", "__pycache__"))
    return Clone(path)


@pytest.fixture
def finished(finished_once: Clone, tmp_path: Path) -> Iterator[Clone]:
    """A private copy of the finished run."""
    clone = finished_once.copy(tmp_path / "clone")
    yield clone
    shutil.rmtree(clone.path, ignore_errors=True)
