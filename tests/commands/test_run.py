"""`dibs run` makes every file once, the same for any number of processes, and survives what goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dibs import cli
from dibs.commands.arguments import seeds
from dibs.files import read_metadata
from dibs.paths import Layout

SETTINGS = {
    "teachers": {"capacity": 300, "probes": 50, "rollouts": 100},
    "datasets": {"size": 200},
    "templates": {"max_steps": 100, "batch": 64},
    "baselines": {"bc-index": {"max_steps": 100}},
    "evaluation": {"rollouts": 40},
}

OWN_BUDGET = [
    part
    for key, value in {"steps": 500, "restarts": 1, "trial": 1, "check_rollouts": 2, "directions": 2, "best": 1}.items()
    for part in ("--set", f"baselines.ars.{key}={value}")
]


@pytest.fixture
def family(tmp_path, tiny_description, tiny_teachers) -> Path:
    file = tmp_path / "tiny.yaml"
    options = {**tiny_teachers["options"], "iterations": 40, "restarts": 2}
    file.write_text(json.dumps(tiny_description(teacher_options=options)))
    (tmp_path / "settings.yaml").write_text(json.dumps(SETTINGS))
    return file


def command(family: Path, results: str, *more: str) -> list[str]:
    where = ["--results", str(family.parent / results), "--config", str(family.parent / "settings.yaml")]
    return ["run", str(family), "--train", "0,4", *where, *more]


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files but logs and timing."""
    files = [f for f in folder.rglob("*") if f.is_file() and "logs" not in f.parts and ".timing." not in f.name]
    return {str(f.relative_to(folder)): f.read_bytes() for f in files}


@pytest.mark.slow
def test_any_number_of_cores_gives_the_same_bytes(family, capsys):
    for cores in ("1", "3"):
        options = ["--methods", "dibs,bc-index", "--seeds", "2", "--cores", cores]
        assert cli.main(command(family, cores, *options)) == 0
    one, three = (contents(family.parent / cores) for cores in ("1", "3"))
    assert one == three and len(one) > 30
    shown = capsys.readouterr()
    assert "seed 1, teacher 4: success" in shown.err and "seed 0, evaluate dibs on tiny: training" in shown.err
    for name in ("tables/tiny-train-0-4.csv", "figures/tiny-train-0-4.png", "figures/tiny-train-0-4.pdf"):
        assert name in one and name in shown.out
    row = next(line.split() for line in shown.out.splitlines() if line.startswith("tiny  "))
    assert row[1:3] == ["dibs", "2"] and 0.0 <= float(row[3]) <= 1.0


@pytest.mark.slow
def test_run_keeps_what_is_up_to_date(family, capsys):
    assert cli.main(command(family, "results", "--methods", "dibs")) == 0
    before = {f: os.stat(f).st_mtime_ns for f in (family.parent / "results").rglob("*.safetensors")}
    assert "fit dibs to tiny" in capsys.readouterr().err
    assert cli.main(command(family, "results", "--methods", "dibs")) == 0
    again = capsys.readouterr()
    assert again.err == "" and "zero-shot" in again.out
    # Another setting of the fit makes the model and its evaluation again, and no teacher.
    assert cli.main(command(family, "results", "--methods", "dibs", "--set", "templates.max_steps=90")) == 0
    assert [line.partition(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "seed 0, fit dibs to tiny",
        "seed 0, evaluate dibs on tiny",
    ]
    after = {f: os.stat(f).st_mtime_ns for f in before}
    assert [f.parts[-5] for f in before if before[f] != after[f]] == ["models"]
    model = Layout(family.parent / "results").model("dibs", "tiny", "train-0-4", 0)
    assert read_metadata(model)["settings"]["max_steps"] == 90


def test_run_makes_only_what_the_methods_read(family, capsys):
    """With a budget of its own, `ars` reads no teacher."""
    assert cli.main(command(family, "results", "--methods", "ars", *OWN_BUDGET)) == 0
    made = {f.name for f in (family.parent / "results").iterdir()}
    assert "models" in made and not made & {"teachers", "datasets"}


def started(family: Path, results: str, *more: str) -> subprocess.Popen[str]:
    """Start a run whose teachers take long, and that heeds Ctrl-C even where the tests do not, as in the background."""
    slow = ["--set", "teachers.options.iterations=100000", "--set", "teachers.options.patience=100000"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    code = [sys.executable, "-m", "dibs", *command(family, results, "--methods", "dibs", *slow, *more)]
    return subprocess.Popen(
        code, **pipes, start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    )


def wait_for_log(file: Path) -> None:
    """Wait until a job has begun."""
    limit = time.monotonic() + 60
    while not file.exists():
        assert time.monotonic() < limit, f"{file}: no job has begun"
        time.sleep(0.1)
    time.sleep(0.3)


@pytest.mark.slow
def test_an_interrupted_run_says_how_to_continue(family):
    run = started(family, "results")
    wait_for_log(family.parent / "results/logs/teachers/tiny/base/seed0/0.log")
    os.killpg(run.pid, signal.SIGINT)  # as Ctrl-C does: to all processes
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 130
    assert errors.strip() == "interrupted: 0 of 6 jobs are done and kept. Run the same command again to continue."
    assert not list(family.parent.rglob("*.part"))


@pytest.mark.slow
def test_a_killed_process_fails_its_own_job_only(family):
    """What needs it is not made; results from before are kept and shown."""
    assert cli.main(command(family, "results", "--methods", "dibs", "--seeds", "2", "--cores", "2")) == 0
    layout = Layout(family.parent / "results")
    layout.teacher("tiny", "train-0-4", 0, 0).unlink()
    shutil.rmtree(family.parent / "results/logs")
    run = started(family, "results", "--seeds", "1")
    wait_for_log(family.parent / "results/logs/teachers/tiny/base/seed0/0.log")
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    workers = [c for c in children if "spawn_main" in Path(f"/proc/{c}/cmdline").read_text()]
    assert len(workers) == 1
    os.kill(int(workers[0]), signal.SIGKILL)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 1
    assert "seed 0, teacher 0: FAILED: its process ended unexpectedly (killed by SIGKILL); see " in errors
    assert "seed 0, teacher 4: needs seed 0, teacher 0" in errors and "6 of 6 jobs could not be done" in errors


@pytest.mark.slow
def test_a_failing_job_names_its_log_and_stops_only_what_needs_it(family, capsys):
    """A teacher that may not be that bad; `ars` does not need it."""
    bad = ["--set", "teachers.options.iterations=0", "--set", "teachers.require=1.0"]
    assert cli.main(command(family, "results", "--methods", "dibs,ars", *bad, *OWN_BUDGET)) == 1
    shown = capsys.readouterr()
    log = family.parent / "results/logs/teachers/tiny/base/seed0/0.log"
    assert "seed 0, teacher 0: FAILED: tiny index 0 seed 0: edge start>a succeeds in" in shown.err
    assert f"see {log}" in shown.err and "below teachers.require = 1.0" in log.read_text()
    assert "seed 0, evaluate dibs on tiny: needs seed 0, fit dibs to tiny" in shown.err
    assert "seed 0, evaluate ars on tiny: training" in shown.err and "6 of 8 jobs could not be done" in shown.err
    assert [line.split()[1] for line in shown.out.splitlines() if line.startswith("tiny  ")] == ["ars"]


@pytest.mark.slow
def test_what_is_outdated_is_not_shown(family, capsys):
    """The evaluation of other teachers is still there."""
    assert cli.main(command(family, "results", "--methods", "dibs,ars", *OWN_BUDGET)) == 0
    capsys.readouterr()
    bad = ["--set", "teachers.options.iterations=0", "--set", "teachers.require=1.0"]
    assert cli.main(command(family, "results", "--methods", "dibs,ars", *bad, *OWN_BUDGET)) == 1
    shown = capsys.readouterr()
    assert "6 of 6 jobs could not be done" in shown.err
    assert [line.split()[1] for line in shown.out.splitlines() if line.startswith("tiny  ")] == ["ars"]


def test_settings_are_checked_before_any_work(family, capsys):
    for option, message in {
        "teachers.optoins=3": "teachers.optoins",
        "teachers.options.iterations=x": "iterations",
        "colour=3": "unknown section of settings 'colour'",
        "templates.degree": "expected KEY=VALUE",
    }.items():
        assert cli.main(command(family, "results", "--set", option)) == 1
        assert message in capsys.readouterr().err
    assert not (family.parent / "results").exists()


def test_run_needs_a_training_set(family, capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["run", str(family)])
    assert "--gap 5, --train 0,3,7,20 and --split gap5" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "expected"), [("1", (0,)), ("3", (0, 1, 2)), ("1000,", (1000,)), ("12,10", (12, 10))])
def test_seeds_are_a_count_or_a_list(text, expected):
    assert seeds(text) == expected


@pytest.mark.parametrize("text", ["0", "-1", "x", ",", "1,1", "1,-2", "1,x"])
def test_seeds_that_are_neither(text, capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "tiny", "--gap", "2", "--seeds", text])
    assert f"expected a count ≥ 1 or different seeds such as 10,11,12, found '{text}'" in capsys.readouterr().err


def test_one_large_seed_is_not_taken_for_a_count(capsys):
    with pytest.raises(SystemExit):
        cli.main(["run", "tiny", "--gap", "2", "--seeds", "1000"])
    assert "write '1000,' for the one seed 1000" in capsys.readouterr().err
