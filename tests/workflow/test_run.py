"""The tiny config end to end; killed half-way; with damaged files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dibs.config import load_config
from dibs.files import read_json, read_table, read_tensors
from dibs.plan import Plan

from .conftest import TINY, Clone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_everything_is_there(finished: Clone, monkeypatch):
    monkeypatch.chdir(finished.path)
    plan = Plan(load_config("config.yaml", "tests/workflow/tiny.yaml"))
    assert plan.counts() == {"teachers": 8, "datasets": 8, "templates": 8, "baselines": 4, "evaluations": 12}
    for file in [*plan.tables, *plan.figures, *map(plan.evaluation, plan.evaluations)]:
        assert Path(file).stat().st_size > 0
    for name in ("teachers", "datasets", "templates", "baselines", "evaluations", "tables", "figures"):
        assert any((finished.results / "logs" / name).rglob("*.log")), f"no log of {name}"
    assert not list(finished.results.rglob("*.part"))


def test_files_carry_the_digests_that_decide_what_is_rerun(finished: Clone, monkeypatch):
    monkeypatch.chdir(finished.path)
    plan = Plan(load_config("config.yaml", "tests/workflow/tiny.yaml"))
    teacher = plan.teacher("tiny-reach", 2, 2, 0)
    made = {
        ("teachers", ""): read_json(teacher["metrics"]),
        ("datasets", ""): read_table(plan.datasets("tiny-reach", 2, 0)[1])[1],
        ("templates", ""): read_tensors(plan.artefact("dibs", "tiny-reach-k2", 2, 0))[1],
        ("baselines", "ars"): read_tensors(plan.artefact("ars", "tiny-reach-k2", 2, 0))[1],
    }
    for method in ("dibs", "dibs-plus", "ars"):
        file = plan.places.evaluation(method, "tiny-reach-k2", 2, 0)
        made["evaluations", method] = read_table(file)[1]
    for (stage, method), meta in made.items():
        digests = f"code {meta['code_digest']} family {meta['family_digest']}"
        assert plan.depends(stage, "tiny-reach", method) == digests, stage


def test_a_second_run_does_nothing(finished: Clone):
    before = times(finished)
    assert "Nothing to be done" in finished.run(*TINY)
    assert times(finished) == before


def test_report(finished: Clone):
    finished.run(*TINY, "--report", "report.html")
    page = (finished.path / "report.html").read_text()
    for text in ("Figures", "Tables", "relative.csv", "success_by_index.png", "Satisfaction rate at every index"):
        assert text in page


def times(clone: Clone) -> dict[Path, int]:
    """When each result was written."""
    kinds = ("teachers", "datasets", "templates", "templates-plus", "baselines", "evaluations")
    files = (file for kind in kinds for file in (clone.results / kind).rglob("[!.]*.*"))
    return {file.relative_to(clone.path): file.stat().st_mtime_ns for file in files}


def test_killed_and_resumed(clone: Clone, finished_once: Clone):
    """kill −9 of Snakemake and its jobs: what was finished stays, the rest is made, to the same bytes."""
    target = "results/templates/tiny-reach/gap2/seed0.safetensors"
    process = subprocess.Popen(
        clone.command(target, *TINY),
        cwd=clone.path,
        env=clone.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    half = clone.results / "teachers/tiny-reach/gap2/seed0/2.safetensors"
    finished_before = clone.path / ".snakemake/metadata"
    deadline = time.monotonic() + 600
    while not half.exists() or len(list(finished_before.rglob("*"))) < 5:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    complete = [f for f in times(clone) if "base" in f.parts and "teachers" in f.parts]
    assert complete
    before = {file: times(clone)[file] for file in complete}

    assert "locked" in clone.run(target, *TINY, fails=True).lower()
    unlock = [sys.executable, "workflow/scripts/unlock.py"]
    subprocess.run(unlock, cwd=clone.path, env=clone.environment, check=True, timeout=120)
    clone.run(target, *TINY)
    after = times(clone)
    assert {file: after[file] for file in complete} == before
    assert not [file for file in clone.results.rglob("*.part") if file.stat().st_mtime_ns > max(before.values())]
    for file in ("teachers/tiny-reach/gap2/seed0/4.safetensors", "templates/tiny-reach/gap2/seed0.safetensors"):
        assert (clone.results / file).read_bytes() == (finished_once.results / file).read_bytes()


def test_a_lock_that_is_held_stays(clone: Clone):
    """Two runs in one directory are kept apart, and the script that removes stale locks knows a live one."""
    locks = clone.path / ".snakemake/locks"
    process = subprocess.Popen(
        clone.command("results/teachers/tiny-reach/base/seed0/0.json", *TINY),
        cwd=clone.path,
        env=clone.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 300
        while not (locks.is_dir() and any(locks.iterdir())):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        unlock = [sys.executable, "workflow/scripts/unlock.py"]
        said = subprocess.run(unlock, cwd=clone.path, capture_output=True, text=True, timeout=120)
        assert said.returncode == 1 and f"process {process.pid}" in said.stderr
        assert any(locks.iterdir())
    finally:
        process.send_signal(signal.SIGCONT)
        process.terminate()
        process.wait(timeout=120)


# What is damaged, by kind, and the rule that reads it. The readers do not depend on one another.
DAMAGED = {
    "buffers": ("teachers/tiny-reach/gap4/seed0/4.buffers.parquet", "dataset"),
    "dataset": ("datasets/tiny-reach/gap2/seed0/2.parquet", "template_dibs"),
    "teacher": ("teachers/tiny-reach/gap4/seed1/4.safetensors", "dataset"),
    "template": ("templates/tiny-reach/gap2/seed1.safetensors", "evaluation"),
}
EVALUATION = "evaluations/dibs-plus/tiny-reach-k2/gap2/seed1.parquet"


def garbage(file: Path) -> None:
    size = file.stat().st_size
    file.write_bytes(b"\xff" * size)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize("damage", [garbage, truncate])
def test_damaged_files_are_named_and_rebuilt(damage, finished: Clone):
    whole = {name: (finished.results / name).read_bytes() for name, _ in DAMAGED.values()}
    whole[EVALUATION] = (finished.results / EVALUATION).read_bytes()
    damage(finished.results / EVALUATION)
    said = finished.run("results/tables/relative.csv", *TINY, fails=True)
    assert f"error: results/{EVALUATION}: damaged" in said and "Error in rule table" in said

    for name, _ in DAMAGED.values():
        damage(finished.results / name)
    said = finished.run(*TINY, fails=True)
    for name, rule in DAMAGED.values():
        assert f"error: results/{name}: damaged" in said, name
        assert f"Error in rule {rule}" in said

    for name in whole:
        (finished.results / name).unlink()
    finished.run(*TINY)
    for name, content in whole.items():
        assert (finished.results / name).read_bytes() == content, name
