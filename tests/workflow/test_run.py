"""The tiny config end to end: complete, interrupted, with damaged or old files, with a named split."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dibs.files import read_json, read_metadata, read_table, read_tensors, write_table, write_tensors
from dibs.studies.checks import load_config
from dibs.studies.plan import Plan

from .conftest import ROOT, SPARSE, TINY, Clone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, finished: Clone) -> Plan:
    monkeypatch.chdir(finished.path)
    return Plan(load_config("config.yaml", "tests/workflow/tiny.yaml"))


def test_everything_is_there(finished: Clone, plan: Plan):
    assert plan.counts() == {"teachers": 4, "datasets": 4, "models": 6, "evaluations": 6}
    files = [*plan.reports("table"), *plan.reports("figure"), *map(plan.evaluation, plan.evaluations)]
    for file in files:
        assert Path(file).stat().st_size > 0
    for name in ("teachers", "datasets", "models", "evaluations", "tables", "figures"):
        assert any((finished.results / "logs" / name).rglob("*.log")), f"no log of {name}"
    assert not list(finished.results.rglob("*.part"))


def test_a_study_of_a_custom_family_shows_nothing_of_the_paper(finished: Clone):
    """No claims, no Table 1, no figure of the paper, and only the requested methods."""
    tables = {file.name for file in (finished.results / "tables").iterdir()}
    names = ("overview", "relative", "benchmarks", "splits", "budgets", "improvement")
    assert tables == {f"{name}.{suffix}" for name in names for suffix in ("csv", "md", "html", "tex")}
    figures = {file.name for file in (finished.results / "figures").iterdir()}
    names = ("ratios", "by_requirement", "success_by_index-tiny-reach-k2", "loss_curves", "drift")
    assert figures == {f"{name}.{suffix}" for name in names for suffix in ("pdf", "png")}
    assert set(pd.read_csv(finished.results / "tables/benchmarks.csv")["method"]) == {"dibs", "dibs-plus", "ars"}
    relative = pd.read_csv(finished.results / "tables/relative.csv")
    assert not [column for column in relative if "paper" in column]
    for file in (finished.results / "tables").iterdir():
        assert not re.search(r"genrl|maml|varibad|GenRL|MAML|VariBAD|paper", file.read_text()), file


def test_printed_commands_can_be_pasted(clone: Clone, finished_once: Clone):
    """Every command of `snakemake -n -p`, in bash without Snakemake, in a folder without results."""
    config = ("methods=[dibs]", "gaps=[4]", "reports=[benchmarks, ratios]")
    printed = clone.run("-n", "-p", *TINY, "--config", *config)
    commands = re.findall(r"^Shell command: (dibs .*)$", printed, re.MULTILINE)
    count = {"teacher": 2, "dataset": 2, "fit": 1, "evaluate": 1, "list": 1, "table": 1, "figure": 1}
    verbs = [command.split()[1] for command in commands]
    assert {verb: verbs.count(verb) for verb in verbs} == count
    shutil.rmtree(clone.path / ".snakemake")
    index = {command: int(n[1]) for command in commands if (n := re.search(r"--index (\d+)", command))}
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    for command in sorted(commands, key=lambda c: (list(count).index(c.split()[1]), index.get(c, 0))):
        subprocess.run(["bash", "-euc", command], cwd=clone.path, env={"PATH": path}, check=True, timeout=300)
    same = "evaluations/dibs/tiny-reach-k2/gap4/seed0.parquet"
    assert read_table(clone.results / same)[0] == read_table(finished_once.results / same)[0]
    listed = (clone.results / "inputs/tiny-reach-k2.txt").read_text().splitlines()
    assert [line for line in listed if not line.startswith("#")] == [f"results/{same}"]
    assert "index 4" in (clone.results / "logs/teachers/tiny-reach/gap4/seed0/4.log").read_text()
    left = clone.plan(*TINY, "--rerun-triggers", "mtime", "input", "--config", *config)
    assert left == {}  # Snakemake finds nothing missing


def test_files_have_the_ids_that_decide_what_is_rerun(plan: Plan):
    family, benchmark = "tiny-reach", "tiny-reach-k2"
    found: dict[str, str] = {}
    for family, split, seed in plan.splits:
        files = zip(plan.teachers(family, split, seed), plan.datasets(family, split, seed), strict=True)
        for index, (teacher, dataset) in zip(plan.split(family, split).indices, files, strict=True):
            found[teacher] = plan.teacher_id(family, split, index, seed)
            found[dataset] = plan.dataset_id(family, split, index, seed)
    for e in plan.evaluations:
        unit = benchmark if e.method == "ars" else family
        found[plan.model(e.method, benchmark, e.split, e.seed)] = plan.model_id(e.method, unit, e.split, e.seed)
        found[plan.evaluation(e)] = plan.evaluation_id(e.method, benchmark, e.split, e.seed)
    assert len(found) == 4 + 4 + 6 + 6 and len(set(found.values())) == len(found)
    for file, identity in found.items():
        assert read_metadata(Path(file))["id"] == identity, file


def test_a_second_run_does_nothing(finished: Clone):
    before = times(finished)
    assert "Nothing to be done" in finished.run(*TINY)
    assert times(finished) == before


def test_report(finished: Clone):
    finished.run(*TINY, "--report", "report.html")
    page = (finished.path / "report.html").read_text()
    shown = ("Figures", "Tables", "relative.html", "success_by_index-tiny-reach-k2.png", "drift.png")
    for text in (*shown, "Share of rollouts that satisfy the specification at every index", "3 methods were trained"):
        assert text in page
    opening = json.loads(re.search(r"var workflow_desc = (.*);\n", page)[1])
    table = (finished.results / "tables/overview.html").read_text()
    assert table[table.index("<table") : table.index("</table")] in opening  # before the graph of jobs
    assert "results['results/figures/success_by_index-tiny-reach-k2.png'].data_uri" in opening


def test_the_readme_of_the_results_reads_them(finished: Clone):
    """Its examples run, and it names the columns of an evaluation."""
    text = (ROOT / "results/README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(examples) == 4
    here = {"car2d-reach-k3": "tiny-reach-k2", "car2d-reach": "tiny-reach", "gap5": "gap2", "5.parquet": "2.parquet"}
    for example in examples:
        for name, tiny in here.items():
            example = example.replace(name, tiny)
        assert finished.python("-c", example).stdout
    table, _ = read_table(finished.results / "evaluations/dibs/tiny-reach-k2/gap2/seed0.parquet")
    assert set(table.column_names) <= set(re.findall(r"`(\w+)`", text[text.index("Columns of an evaluation") :]))


def test_tables_are_put_into_a_page(finished: Clone):
    page = finished.path / "page.md"
    page.write_text("".join(f"<!-- {name}: begin -->\nold\n<!-- {name}: end -->\n" for name in ("methods", "sweeps x")))
    command = ("workflow/scripts/study.py", "results", "--into", "page.md")
    assert "no table 'sweeps x'; left unchanged" in finished.python(*command).stderr
    head, _, *rows = (line for line in page.read_text().splitlines() if line.startswith("|"))
    assert head == "| benchmark | split | \\|Train\\| | seeds | ARS | DIBS | DIBS+ |"
    cells = [row.strip("| ").split(" | ")[:4] for row in rows]
    assert cells == [["`tiny-reach-k2`", "gap4", "2", "1"], ["`tiny-reach-k2`", "gap2", "3", "1"]]
    assert page.read_text().count("old") == 1
    text = page.read_text()
    finished.python(*command, "--only", "losses")
    assert page.read_text() == text  # the page has no marker for losses
    done = finished.python(*command, "--only", "loss", fails=True)
    assert (
        done.returncode == 2
        and "no table 'loss'; there are teachers, templates, methods, index, versions, losses" in done.stderr
    )


def test_tables_of_the_documents(finished: Clone):
    output = finished.python("workflow/scripts/study.py", "results").stdout
    found = dict(text.split("\n", 1) for text in output.split("### ")[1:])
    names = ["teachers", "templates", "methods", "index", "versions", "losses", "relative", "budgets"]
    assert list(found) == names  # no claims, no table1
    assert found["teachers"].count("| `tiny-reach` |") == 1 and " of 8 |" in found["teachers"]  # 4 teachers, 2 edges
    rows = [line for line in found["methods"].splitlines() if line.startswith("| `tiny-reach-k2` |")]
    assert len(rows) == 2 and all(row.count(" / ") == 3 for row in rows)
    assert found["losses"].count("| `tiny-reach` |") == 2  # `dibs`; `dibs-plus` moves all edges and fits none
    assert "| ARS" in found["relative"]


def times(clone: Clone) -> dict[Path, int]:
    """Return when each result was written."""
    kinds = ("teachers", "datasets", "models", "evaluations")
    files = (file for kind in kinds for file in (clone.results / kind).rglob("[!.]*.*"))
    return {file.relative_to(clone.path): file.stat().st_mtime_ns for file in files}


@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
def test_stopped_and_resumed(way: signal.Signals, unstarted: Clone, finished_once: Clone):
    """After Ctrl-C or kill −9, finished files stay, and the rest is made with the same bytes."""
    chain = "results/teachers/tiny-reach"
    target = f"{chain}/gap2/seed0/4.safetensors"
    process = subprocess.Popen(
        unstarted.command(target, *TINY),
        cwd=unstarted.path,
        env=unstarted.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # A script's background jobs, such as these tests may be, start with Ctrl-C ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    # The log of a job exists as long as it runs.
    second = unstarted.results / "logs/teachers/tiny-reach/gap2/seed0/2.log"
    deadline = time.monotonic() + 600
    while not second.exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.killpg(process.pid, way)
    assert process.wait(timeout=120) != 0
    assert not (unstarted.path / target).exists()
    before = {file: time for file, time in times(unstarted).items() if "base" in file.parts}
    assert len(before) == 5

    if way == signal.SIGKILL:
        assert "locked" in unstarted.run(target, *TINY, fails=True).lower()
        assert "removing the lock" in unstarted.python("workflow/scripts/unlock.py").stderr
    unstarted.run(target, *TINY)
    after = times(unstarted)
    assert {file: after[file] for file in before} == before
    for file in after:
        if not file.name.endswith(".timing.json"):
            assert (unstarted.path / file).read_bytes() == (finished_once.path / file).read_bytes(), file


def test_a_lock_that_is_held_stays(clone: Clone):
    """The script that removes stale locks leaves the lock of a live run alone."""
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
        done = clone.python("workflow/scripts/unlock.py", fails=True)
        assert done.returncode == 1 and f"process {process.pid}" in done.stderr
        assert any(locks.iterdir())
    finally:
        # Snakemake may ignore a polite request this early.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# A file of each kind, and a file made from it. None of them depends on another.
INPUTS = {
    "teacher": ("teachers/tiny-reach/gap2/seed0/4.safetensors", "datasets/tiny-reach/gap2/seed0/4.parquet"),
    "buffers": ("teachers/tiny-reach/gap2/seed0/2.buffers.parquet", "datasets/tiny-reach/gap2/seed0/2.parquet"),
    "dataset": ("datasets/tiny-reach/gap4/seed0/4.parquet", "models/dibs/tiny-reach/gap4/seed0.safetensors"),
    "template": (
        "models/dibs-plus/tiny-reach/gap4/seed0.safetensors",
        "evaluations/dibs-plus/tiny-reach-k2/gap4/seed0.parquet",
    ),
    "baseline": (
        "models/ars/tiny-reach-k2/gap4/seed0.safetensors",
        "evaluations/ars/tiny-reach-k2/gap4/seed0.parquet",
    ),
}
EVALUATION = "evaluations/dibs-plus/tiny-reach-k2/gap2/seed0.parquet"


def garbage(file: Path) -> None:
    file.write_bytes(b"\xff" * file.stat().st_size)


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def silently(damage: Callable[[Path], None], file: Path) -> None:
    """Change a file but keep its modification time, as a failing disk does."""
    before = file.stat()
    damage(file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_damaged_files_are_named_and_rebuilt(finished: Clone):
    whole = {name: (finished.results / name).read_bytes() for name, _ in INPUTS.values()}
    whole[EVALUATION] = (finished.results / EVALUATION).read_bytes()
    garbage(finished.results / EVALUATION)
    output = finished.run("results/tables/relative.csv", *TINY, fails=True)
    assert f"error: results/{EVALUATION}: damaged" in output and "Error in rule table" in output

    for damage, (name, made) in zip(cycle((truncate, garbage)), INPUTS.values(), strict=False):
        silently(damage, finished.results / name)
        (finished.results / made).unlink()
    targets = [f"results/{made}" for _, made in INPUTS.values()]
    output = finished.run(*targets, *TINY, fails=True)
    for kind, (name, made) in INPUTS.items():
        assert f"error: results/{name}: damaged" in output, kind
        assert f"output: results/{made}" in output, kind
        assert not (finished.results / made).exists()

    for name in whole:
        (finished.results / name).unlink()
    finished.run(*(f"results/{name}" for name in whole), *TINY)
    for name, content in whole.items():
        assert (finished.results / name).read_bytes() == content, name


# --- results of version 0.1 ------------------------------------------------------------------------------


def without_format(file: Path) -> None:
    """Rewrite a file as version 0.1 would have: with metadata, but no format."""
    write: Callable[[Path, Any, dict[str, Any]], None]
    data, meta = read_table(file) if file.suffix == ".parquet" else read_tensors(file)
    write = write_table if file.suffix == ".parquet" else write_tensors
    write(file, data, {key: value for key, value in meta.items() if key != "format"})


def test_results_of_version_0_1_are_rejected_by_name(finished: Clone):
    """They may lie under names that the new version uses. Snakemake has no record of how they were made."""
    silently(without_format, finished.results / EVALUATION)
    (finished.results / "tables/relative.csv").unlink()
    output = finished.run("results/tables/relative.csv", *TINY, fails=True)
    assert f"error: results/{EVALUATION}: was written by dibs 0.1" in output
    for name, made in INPUTS.values():
        silently(without_format, finished.results / name)
        (finished.results / made).unlink()
    output = finished.run(*(f"results/{made}" for _, made in INPUTS.values()), *TINY, fails=True)
    for name, _ in INPUTS.values():
        assert f"error: results/{name}: was written by dibs 0.1" in output, name


# --- a named split ---------------------------------------------------------------------------------------


def test_a_named_split_end_to_end_and_printed_commands_work_in_a_shell(finished: Clone):
    """`snakemake -n -p` prints commands that make the same bytes when pasted into a shell."""
    finished.run(*TINY, *SPARSE)
    evaluation = finished.results / "evaluations/dibs/tiny-reach-k2/sparse/seed0.parquet"
    assert read_table(evaluation)[1]["train"] == [0, 1, 4]
    assert read_json(finished.results / "models/dibs/tiny-reach/sparse/seed0.json")["train"] == [0, 1, 4]
    assert set(pd.read_csv(finished.results / "tables/splits.csv")["split"]) == {"sparse"}
    assert finished.plan(*TINY, *SPARSE) == {}

    made = {file: file.read_bytes() for file in finished.results.rglob("*") if is_result(file)}
    output = finished.run("-n", "-p", "--forceall", *TINY, *SPARSE)
    commands = re.findall(r"^Shell command: (dibs .*)$", output, re.MULTILINE)
    kinds = ("teacher", "dataset", "fit", "evaluate", "table", "figure")
    assert [sum(c.startswith(f"dibs {kind} ") for c in commands) for kind in kinds] == [3, 3, 3, 3, 6, 5]
    for file in made:
        if file.parent != finished.results / "inputs":
            file.unlink()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = finished.environment | {"PATH": path, "PYTHONPATH": str(finished.path)}
    for command in commands:
        if not command.startswith("dibs figure"):
            done = subprocess.run(command, shell=True, cwd=finished.path, env=environment, timeout=120)
            assert done.returncode == 0, (command, Path(finished.path, command.split()[-2]).read_text())
    for file, content in made.items():
        same = {"sparse", "base", "tables"} & set(file.parts) and file.stem != "budgets"  # shows times
        if same:
            assert file.read_bytes() == content, file


def is_result(file: Path) -> bool:
    return file.is_file() and not {"logs", "times"} & set(file.parts) and not file.name.endswith(".timing.json")
