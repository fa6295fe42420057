"""The tiny config end to end; killed half-way; with damaged files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import cycle
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
    assert plan.counts() == {"teachers": 4, "datasets": 4, "templates": 4, "baselines": 2, "evaluations": 6}
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
        assert plan.code(stage, method) == meta["code_digest"], stage
        assert plan.family_digest("tiny-reach") == meta["family_digest"], stage


def test_a_second_run_does_nothing(finished: Clone):
    before = times(finished)
    assert "Nothing to be done" in finished.run(*TINY)
    assert times(finished) == before


def test_report(finished: Clone):
    finished.run(*TINY, "--report", "report.html")
    page = (finished.path / "report.html").read_text()
    for text in (
        "Figures",
        "Tables",
        "relative.csv",
        "success_by_index.png",
        "drift.png",
        "Satisfaction rate at every index",
    ):
        assert text in page


def test_tables_are_put_into_a_page(finished: Clone):
    page = finished.path / "page.md"
    page.write_text("".join(f"<!-- {name}: begin -->\nold\n<!-- {name}: end -->\n" for name in ("methods", "sweeps x")))
    command = [sys.executable, "workflow/scripts/study.py", "results", "--into", "page.md"]
    said = subprocess.run(command, cwd=finished.path, check=True, capture_output=True, text=True, timeout=120)
    assert "sweeps x: left as it is" in said.stderr
    head, _, *rows = (line for line in page.read_text().splitlines() if line.startswith("|"))
    assert head == "| benchmark | gap | seeds | ARS | DIBS | DIBS+ |"
    assert [row.split(" | ")[:3] for row in rows] == [["| `tiny-reach-k2`", gap, "1"] for gap in ("4", "2")]
    assert page.read_text().count("old") == 1
    told = page.read_text()
    subprocess.run([*command, "--only", "losses"], cwd=finished.path, check=True, timeout=120)
    assert page.read_text() == told  # the page has no place for losses
    said = subprocess.run([*command, "--only", "loss"], cwd=finished.path, capture_output=True, text=True, timeout=120)
    assert said.returncode == 2 and "no table loss; there are teachers, templates, methods, losses" in said.stderr


def times(clone: Clone) -> dict[Path, int]:
    """When each result was written."""
    kinds = ("teachers", "datasets", "templates", "templates-plus", "baselines", "evaluations")
    files = (file for kind in kinds for file in (clone.results / kind).rglob("[!.]*.*"))
    return {file.relative_to(clone.path): file.stat().st_mtime_ns for file in files}


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_stopped_and_resumed(way: signal.Signals, unstarted: Clone, finished_once: Clone):
    """Ctrl-C, and kill −9 of Snakemake and its jobs: what was finished stays, the rest is made, to the same bytes."""
    chain = "results/teachers/tiny-reach"
    target = f"{chain}/gap2/seed0/4.safetensors"
    process = subprocess.Popen(
        unstarted.command(target, *TINY),
        cwd=unstarted.path,
        env=unstarted.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # Tests that run in the background of a script are started with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # The log of the second link's job is there from its beginning to its end.
    second = unstarted.results / "logs/teachers/tiny-reach/gap2/seed0/2.log"
    deadline = time.monotonic() + 600
    while not second.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, way)
    assert process.wait(timeout=120) != 0
    assert not (unstarted.path / target).exists()
    before = {file: time for file, time in times(unstarted).items() if "base" in file.parts}
    assert len(before) == 4

    if way == signal.SIGKILL:
        assert "locked" in unstarted.run(target, *TINY, fails=True).lower()
        unlock = [sys.executable, "workflow/scripts/unlock.py"]
        subprocess.run(unlock, cwd=unstarted.path, env=unstarted.environment, check=True, timeout=120)
    unstarted.run(target, *TINY)
    after = times(unstarted)
    assert {file: after[file] for file in before} == before
    for file in after:
        if not file.name.endswith(".timing.json"):
            assert (unstarted.path / file).read_bytes() == (finished_once.path / file).read_bytes(), file


def test_a_lock_that_is_held_stays(clone: Clone):
    """Two runs in one directory are kept apart, and the script that removes stale locks knows a live one."""
    locks = clone.path / ".snakemake/locks"
    process = subprocess.Popen(
        clone.command("results/teachers/tiny-reach/base/seed0/0.json", *TINY),
        cwd=clone.path,
        env=clone.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
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
        # Asked to end so early, Snakemake may never do so.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# What is damaged, by kind, and what is made from it. These do not depend on one another.
DAMAGED = {
    "teacher": ("teachers/tiny-reach/gap2/seed0/4.safetensors", "datasets/tiny-reach/gap2/seed0/4.parquet"),
    "buffers": ("teachers/tiny-reach/gap2/seed0/2.buffers.parquet", "datasets/tiny-reach/gap2/seed0/2.parquet"),
    "dataset": ("datasets/tiny-reach/gap4/seed0/4.parquet", "templates/tiny-reach/gap4/seed0.safetensors"),
    "template": (
        "templates-plus/tiny-reach/gap4/seed0.safetensors",
        "evaluations/dibs-plus/tiny-reach-k2/gap4/seed0.parquet",
    ),
    "baseline": (
        "baselines/ars/tiny-reach-k2/gap4/seed0.safetensors",
        "evaluations/ars/tiny-reach-k2/gap4/seed0.parquet",
    ),
}
EVALUATION = "evaluations/dibs-plus/tiny-reach-k2/gap2/seed0.parquet"


def garbage(file: Path) -> None:
    file.write_bytes(b"\xff" * file.stat().st_size)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def silently(damage: Callable[[Path], None], file: Path) -> None:
    """As a disk does it: without a trace in the file's times."""
    before = file.stat()
    damage(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_damaged_files_are_named_and_rebuilt(finished: Clone):
    whole = {name: (finished.results / name).read_bytes() for name, _ in DAMAGED.values()}
    whole[EVALUATION] = (finished.results / EVALUATION).read_bytes()
    garbage(finished.results / EVALUATION)
    said = finished.run("results/tables/relative.csv", *TINY, fails=True)
    assert f"error: results/{EVALUATION}: damaged" in said and "Error in rule table" in said

    for damage, (name, made) in zip(cycle((truncate, garbage)), DAMAGED.values(), strict=False):
        silently(damage, finished.results / name)
        (finished.results / made).unlink()
    targets = [f"results/{made}" for _, made in DAMAGED.values()]
    said = finished.run(*targets, *TINY, fails=True)
    for kind, (name, made) in DAMAGED.items():
        assert f"error: results/{name}: damaged" in said, kind
        assert f"output: results/{made}" in said, kind
        assert not (finished.results / made).exists()

    for name in whole:
        (finished.results / name).unlink()
    finished.run(*(f"results/{name}" for name in whole), *TINY)
    for name, content in whole.items():
        assert (finished.results / name).read_bytes() == content, name


def test_the_tables_of_the_documents_are_made_of_what_is_there(finished: Clone):
    script = finished.path / "workflow/scripts/study.py"
    told = subprocess.run([sys.executable, str(script), str(finished.results)], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    teachers, _, methods, losses, relative, claims = told.stdout.split("### ")[1:]
    assert teachers.count("| `tiny-reach` |") == 1 and " of 8 |" in teachers  # four teachers of two edges
    rows = [line for line in methods.splitlines() if line.startswith("| `tiny-reach-k2` |")]
    assert [row.split(" | ")[1] for row in rows] == ["4", "2"] and all(row.count(" / ") == 3 for row in rows)
    assert losses.count("| `tiny-reach` |") == 4
    assert relative.startswith("relative") and "| ARS |" in relative and claims.startswith("claims")
