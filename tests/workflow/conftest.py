"""A copy of the repository to run the workflow in, and one that has been run to its end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COPIED = ("Snakefile", "config.yaml", "environment.yml", "config", "workflow", "profiles", "dibs", "tests/workflow")
TINY = ("--configfile", "tests/workflow/tiny.yaml")


class Clone:
    """A working copy of what the workflow needs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.results = path / "results"

    def command(self, *args: str) -> list[str]:
        return [sys.executable, "-m", "snakemake", "--cores", "2", *args]

    @property
    def environment(self) -> dict[str, str]:
        return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "SNAKEMAKE_PROFILE")}

    def run(self, *args: str, fails: bool = False) -> str:
        """Run Snakemake to its end; all that it says."""
        done = subprocess.run(
            self.command(*args), cwd=self.path, env=self.environment, stdout=-1, stderr=-2, text=True, timeout=800
        )
        assert (done.returncode != 0) == fails, done.stdout[-6000:]
        return done.stdout

    def plan(self, *args: str) -> dict[str, int]:
        """Jobs by rule that Snakemake would run, the targets themselves left out."""
        return job_counts(self.run(*args, "-n", "--quiet"))

    def copy(self, path: Path) -> Clone:
        shutil.copytree(self.path, path)  # with times, which Snakemake goes by
        return Clone(path)

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a piece of a file that is there once."""
        text = (self.path / file).read_text()
        assert text.count(old) == 1, f"{file}: {text.count(old)} × {old!r}"
        (self.path / file).write_text(text.replace(old, new))


def job_counts(output: str) -> dict[str, int]:
    """The table of jobs in what a quiet dry run says."""
    found = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE)}
    return {name: count for name, count in found.items() if name not in ("all", "total")}


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
    """A copy in which the tiny config has been run; made once, whichever test process comes first."""
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
        assert "steps (100%) done" in done.read_text(), "the run that all tests share has failed: see the other error"
        return Clone(path)
    said = "failed"
    try:
        said = new_clone(path).run(*TINY)
    finally:
        (shared / "finished.part").write_text(said)
        (shared / "finished.part").rename(done)
    return Clone(path)


@pytest.fixture
def unstarted(finished_once: Clone, tmp_path: Path) -> Clone:
    """The same sources as those of the finished run, to compare with it, and nothing made yet."""
    path = tmp_path / "clone"
    shutil.copytree(finished_once.path, path, ignore=shutil.ignore_patterns("results", ".snakemake", "__pycache__"))
    return Clone(path)


@pytest.fixture
def finished(finished_once: Clone, tmp_path: Path) -> Iterator[Clone]:
    """A copy of one's own of the finished run."""
    clone = finished_once.copy(tmp_path / "clone")
    yield clone
    shutil.rmtree(clone.path, ignore_errors=True)
