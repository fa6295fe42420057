"""`snakemake --profile profiles/slurm` on a real cluster, with faults.

The project's Snakefile runs a tiny study. Faults that concern only Snakemake and SLURM (jobs that are cancelled, run
out of time or lose their node) are tried with the jobs of faults.smk, which do nothing but wait. Polling is faster than
in the profile, whose values suit shared clusters.

Every test waits for what it reads. Time limits are generous, for busy machines, and matter only if a test fails.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .cluster import Cluster

pytestmark = [pytest.mark.slurm, pytest.mark.slow, pytest.mark.timeout(3600)]

ROOT = Path(__file__).parents[2]
FAST = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "20")
STUDY = {
    "results": "results",
    "seeds": 2,
    "benchmarks": ["tiny.yaml"],
    "methods": ["dibs"],
    "datasets": {"size": 300},
    "templates": {"max_steps": 200, "batch": 128},
    "evaluation": {"rollouts": 100, "beyond": False},
}
# Snakemake whose plugin polls at least every three seconds. By itself it adds ten to each wait without a success.
# Ctrl-C works even if the tests run in the background of a script, where processes start with it ignored.
QUICK = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor
wait = RemoteExecutor.next_seconds_between_status_checks
RemoteExecutor.next_seconds_between_status_checks = wait.setter(lambda self, s: wait.fset(self, min(s, 3)))
from snakemake.cli import main
main(sys.argv[1:])
"""
TARGETS = ("evaluations", "results/tables/benchmarks.csv")
UNEQUAL = (".timing.json", ".log", ".tsv")
"""Ends of files that describe a run, not its results."""


@dataclass
class Run:
    """Snakemake at work in a folder."""

    folder: Path
    process: subprocess.Popen[bytes]
    output: Path

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self.output.read_text()

    def finish(self, seconds: float = 1800) -> str:
        """Wait for the end; what it printed."""
        try:
            self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"not finished in {seconds:.0f} s:\n{self.text}")
        return self.text

    def succeed(self) -> str:
        text = self.finish()
        assert self.process.returncode == 0, text
        return text

    def fail(self) -> str:
        text = self.finish()
        assert self.process.returncode != 0, text
        return text

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        """Wait for something that happens while it runs."""

        def reached() -> bool:
            # In this order: what a run does last, it has done when it has ended.
            ended = self.process.poll() is not None
            if condition():
                return True
            assert not ended, f"the run ended before {what}:\n{self.text}"
            return False

        wait_until(reached, what, lambda: self.text)


Start = Callable[..., Run]


@pytest.fixture(scope="module")
def start(cluster: Cluster) -> Iterator[Start]:
    """Start Snakemake in a folder, on the cluster or here; whatever still runs in the end is ended."""
    runs: list[Run] = []

    def begin(folder: Path, *arguments: str, snakefile: Path, profile: str = "slurm") -> Run:
        output = folder / f"run{len(runs)}.txt"
        command = [sys.executable, "-c", QUICK, "--snakefile", str(snakefile), "--nocolor"]
        command += ["--profile", str(ROOT / "profiles" / profile)]
        command += ["--workflow-profile", str(ROOT / "profiles" / "default")]
        command += FAST if profile == "slurm" else ()
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*command, *arguments],
                cwd=folder,
                env=cluster.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
        runs.append(Run(folder, process, output))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.wait()


def wait_until(condition: Callable[[], Any], what: str, text: Callable[[], str] = str, seconds: float = 900) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}\n{text()}"
        time.sleep(0.2)


def jobs_of(cluster: Cluster, folder: Path) -> list[dict[str, str]]:
    """The jobs that SLURM got from runs in a folder, oldest first."""
    return sorted((j for j in cluster.jobs() if j["folder"] == str(folder)), key=lambda j: int(j["id"]))


def ended_jobs_of(cluster: Cluster, folder: Path) -> list[dict[str, str]]:
    """The same once all have ended: SLURM may take a while to clean up after a job whose end Snakemake knows of."""
    running = {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "STAGE_OUT"}
    wait_until(lambda: not running & {job["state"] for job in jobs_of(cluster, folder)}, f"the jobs of {folder} to end")
    return jobs_of(cluster, folder)


# --- the project's own workflow --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory, tiny_description: Any, tiny_teachers: Any) -> Callable[[str], Path]:
    """Make a folder with a tiny study: one family, one gap (2, 4, 6 after 0), two seeds."""

    def make(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name).resolve()
        (folder / "tiny.yaml").write_text(json.dumps(tiny_description(last_index=6, gaps=[2])))
        teachers = {k: v for k, v in tiny_teachers.items() if k != "options"}
        teachers["algorithms"] = {"ars": tiny_teachers["options"]}
        (folder / "study.yaml").write_text(json.dumps({**STUDY, "teachers": teachers}))
        return folder

    return make


Workflow = Callable[..., Run]


@pytest.fixture(scope="module")
def workflow(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """Start the project's workflow, all runs from the same copy of the sources."""
    sources = tmp_path_factory.mktemp("sources").resolve()
    for name in ("workflow", "dibs"):
        shutil.copytree(ROOT / name, sources / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("Snakefile", "config.yaml"):
        shutil.copy2(ROOT / name, sources)

    def begin(folder: Path, *arguments: str, profile: str = "slurm", targets: tuple[str, ...] = TARGETS) -> Run:
        more = ("--configfile", "study.yaml", *arguments)
        return start(folder, *targets, *more, snakefile=sources / "Snakefile", profile=profile)

    return begin


@pytest.fixture(scope="module")
def here(workflow: Workflow, study: Callable[[str], Path]) -> Run:
    """The study run without a cluster, begun in the background."""
    return workflow(study("here"), "--cores", "1", profile="local")


@dataclass(frozen=True)
class Broken:
    """The study on the cluster, of whose first seed the second link fails, and the same again once that is repaired."""

    folder: Path
    first: str
    second: str
    left: dict[str, bytes]
    """What the first run left."""
    jobs: list[dict[str, str]]
    """Cluster jobs of the first run."""
    later_jobs: list[dict[str, str]]
    """Cluster jobs of the second run."""


@pytest.fixture(scope="module")
def broken(workflow: Workflow, here: Run, waiting: Waiting, study: Callable[[str], Path], cluster: Cluster) -> Broken:
    folder = study("there")
    # A log that cannot be written, for there is a folder of its name that Snakemake does not remove: the job fails.
    obstacle = folder / "results/logs/teachers/tiny/gap2/seed0/4.log/obstacle"
    obstacle.mkdir(parents=True)
    first = workflow(folder, "--retries", "0").fail()
    left, jobs = contents(folder), ended_jobs_of(cluster, folder)
    obstacle.rmdir()
    obstacle.parent.rmdir()
    second = workflow(folder).succeed()
    return Broken(folder, first, second, left, jobs, ended_jobs_of(cluster, folder)[len(jobs) :])


def contents(folder: Path) -> dict[str, bytes]:
    """Everything that was made, but for what tells how the run went."""
    files = [f for f in (folder / "results").rglob("*") if f.is_file() and ".checkpoints" not in f.parts]
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(files) if not f.name.endswith(UNEQUAL)}


def test_results_are_those_of_a_run_without_cluster(broken: Broken, here: Run) -> None:
    here.succeed()
    expected, found = contents(here.folder), contents(broken.folder)
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []
    assert any("evaluations" in name for name in expected) and any("tables" in name for name in expected)


def test_chain_of_teachers_is_one_cluster_job(broken: Broken) -> None:
    (chain,) = (job for job in broken.jobs if "chain_tiny_gap2_seed1" in job["comment"])
    assert (chain["state"], chain["cores"]) == ("COMPLETED", "1") and "teacher" in chain["comment"]
    assert not [job for job in broken.jobs if job["comment"].startswith(("rule_teacher", "rule_dataset"))]
    made = {f"results/teachers/tiny/gap2/seed1/{index}.safetensors" for index in (2, 4, 6)}
    assert made <= set(broken.left)


def test_failed_link_is_reported_with_its_logs_and_costs_no_other_chain(broken: Broken) -> None:
    assert "Error in group chain_tiny_gap2_seed0" in broken.first
    assert "results/logs/teachers/tiny/gap2/seed0/4.log" in broken.first
    (chain,) = (job for job in broken.jobs if "chain_tiny_gap2_seed0" in job["comment"])
    assert chain["state"] == "FAILED"
    assert "results/evaluations/dibs/tiny/gap2/seed1.parquet" in broken.left
    assert not [name for name in broken.left if "teachers/tiny/gap2/seed0" in name], "Snakemake deletes all links"


def test_second_run_starts_at_the_failed_link_and_does_nothing_twice(broken: Broken) -> None:
    logs = broken.folder / "results/logs/teachers/tiny/gap2/seed0"
    assert "restored from an earlier attempt" in (logs / "2.log").read_text()
    for index in (4, 6):
        assert " steps → " in (logs / f"{index}.log").read_text()
    kinds = ["chain_tiny_gap2_seed0", "model", "evaluation_dibs_gap2_seed0", "table"]
    assert [k for job in broken.later_jobs for k in kinds if job["comment"].startswith(f"rule_{k}")] == kinds
    assert len(broken.later_jobs) == len(kinds)
    after = contents(broken.folder)
    assert {name: after[name] for name in broken.left} == broken.left


def test_missing_link_is_made_without_those_before_it(workflow: Workflow, broken: Broken, tmp_path: Path) -> None:
    """A job of the last link leaves the others alone, which other jobs may be reading."""
    folder = tmp_path.resolve() / "again"
    shutil.copytree(broken.folder, folder)
    chain = folder / "results/teachers/tiny/gap2/seed1"
    for file in chain.glob("6.*"):
        file.unlink()
    before = {file: file.stat().st_mtime_ns for file in chain.glob("[24].*")}
    text = workflow(folder, targets=("results/teachers/tiny/gap2/seed1/6.safetensors",)).succeed()
    assert _planned(text, "teacher") == 1
    assert len(before) == 10 and {file: file.stat().st_mtime_ns for file in before} == before


# --- faults ----------------------------------------------------------------------------------------------


class Waiting(Run):
    """A run of faults.smk: `done` is allowed to end, the other jobs wait."""

    def jobs(self, cluster: Cluster, name: str) -> list[dict[str, str]]:
        """The cluster jobs that were to make a file."""
        comments = {f"rule_{name}", f"rule_wait_wildcards_{name}"}
        return [job for job in jobs_of(cluster, self.folder) if job["comment"] in comments]

    def wait_for(self, *names: str) -> None:
        """Wait until jobs have begun."""
        self.wait_until(lambda: all((self.folder / "started" / n).exists() for n in names), f"{names} began")

    def wait_for_done(self) -> None:
        """Wait until Snakemake knows that `done`, the only job that is allowed to end, has ended."""
        self.wait_until(lambda: "\n1 of " in self.text, "the end of `done` was noticed")

    def wait_for_state(self, cluster: Cluster, name: str, state: str) -> None:
        """Wait until the last job that was to make a file is in a state."""
        wait_until(lambda: self.jobs(cluster, name)[-1]["state"] == state, f"the job of {name} to be {state}")

    def allow(self, *names: str) -> None:
        for name in names:
            (self.folder / "allowed" / name).touch()


def wait_in(start: Start, folder: Path, *names: str) -> Waiting:
    (folder / "allowed").mkdir(exist_ok=True)
    (folder / "allowed" / "done").touch()
    run = start(folder, "--config", f"names={'+'.join(names)}", snakefile=Path(__file__).parent / "faults.smk")
    return Waiting(run.folder, run.process, run.output)


def check_reported(run: Waiting, text: str, name: str, state: str) -> None:
    """The message names rule, wildcards (in output and log), state, the job's own log and SLURM's."""
    # The first of them: after it comes SLURM's log, which tells the same from the node's side.
    block = next(b for b in text.split("Error in rule ")[1:] if f"output: {name}.txt" in b)
    assert block.startswith("wait:")
    assert state in block.partition("jobid:")[0]
    log = next(line for line in block.splitlines() if line.strip().startswith("log:"))
    assert f"logs/{name}.log" in log and f"/rule_wait/{name}/" in log
    assert not (run.folder / f"{name}.txt").exists()


def check_rest_is_done(start: Start, run: Waiting, *names: str, kept: tuple[str, ...] = ("done",)) -> None:
    """A second run makes what is missing and nothing else."""
    before = {name: (run.folder / f"{name}.txt").stat().st_mtime_ns for name in kept}
    run.allow(*names)
    text = wait_in(start, run.folder, *kept, *names).succeed()
    assert _planned(text, "wait") == len(names)
    assert all((run.folder / f"{name}.txt").read_text() == f"{name}\n" for name in (*kept, *names))
    assert {name: (run.folder / f"{name}.txt").stat().st_mtime_ns for name in kept} == before


def _planned(text: str, rule: str) -> int:
    """How many jobs of a rule a run set out to do, as our workflow or Snakemake's own output says."""
    found = re.search(rf"^\d+ jobs?: .*?\b(\d+) {rule}s?\b", text, re.MULTILINE) or re.search(
        rf"^{rule} +(\d+)", text, re.MULTILINE
    )
    assert found, text
    return int(found[1])


@pytest.fixture(scope="module")
def waiting(start: Start, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Waiting:
    """A run, begun in the background, one of whose jobs was cancelled, and one runs out of time after a minute."""
    run = wait_in(start, tmp_path_factory.mktemp("faults").resolve(), "done", "hungry", "cancelled", "overtime")
    run.wait_for("cancelled")
    cluster.run("scancel", run.jobs(cluster, "cancelled")[-1]["id"])
    return run


def test_job_killed_for_its_memory_gets_more_memory_and_time(cluster: Cluster, waiting: Waiting) -> None:
    waiting.wait_until((waiting.folder / "hungry.txt").exists, "the second attempt was done")
    waiting.wait_for_state(cluster, "hungry", "COMPLETED")
    first, second = waiting.jobs(cluster, "hungry")
    # Not OUT_OF_MEMORY: what has too much is a step in the job, whose end makes the job's own script fail.
    assert (first["memory"], first["limit"], first["state"]) == ("600M", "10:00", "FAILED")
    assert (second["memory"], second["limit"], second["state"]) == ("1200M", "20:00", "COMPLETED")
    # SLURM's log is shown with the failure.
    assert f"StepId={first['id']}.0 exceeded memory limit" in waiting.text
    assert "Trying to restart job" in waiting.text


def test_run_keeps_others_out_and_resumes_after_an_interrupt(start: Start, cluster: Cluster, tmp_path: Path) -> None:
    run = wait_in(start, tmp_path.resolve(), "done", "interrupted")
    run.wait_for("interrupted")
    run.wait_for_done()
    assert "Directory cannot be locked" in wait_in(start, run.folder, "done", "interrupted").fail()
    assert run.process.poll() is None
    run.process.send_signal(signal.SIGINT)
    run.fail()
    ended_jobs_of(cluster, run.folder)
    assert [job["state"] for job in run.jobs(cluster, "interrupted")] == ["CANCELLED"]
    check_rest_is_done(start, run, "interrupted")


def test_killed_run_is_unlocked_and_what_it_had_finished_is_kept(
    start: Start, cluster: Cluster, tmp_path: Path
) -> None:
    run = wait_in(start, tmp_path.resolve(), "done", "orphan", "lost")
    run.wait_for("orphan", "lost")
    run.wait_for_done()
    run.process.kill()
    run.finish()
    assert "Directory cannot be locked" in wait_in(start, run.folder, "done", "orphan", "lost").fail()
    # Its jobs go on. On this cluster alone they can be seen from here, for the nodes are this machine.
    assert [job["state"] for name in ("orphan", "lost") for job in run.jobs(cluster, name)] == ["RUNNING"] * 2
    assert "already runs in this directory" in _unlock(run.folder, status=1)
    run.allow("orphan")
    run.wait_for_state(cluster, "orphan", "COMPLETED")
    cluster.run("scancel", run.jobs(cluster, "lost")[-1]["id"])
    run.wait_for_state(cluster, "lost", "CANCELLED")
    wait_until(lambda: not _at_work(run.folder), "the jobs' processes to end")
    assert "removing the lock" in _unlock(run.folder)
    check_rest_is_done(start, run, "lost", kept=("done", "orphan"))


def _unlock(folder: Path, status: int = 0) -> str:
    command = [sys.executable, str(ROOT / "workflow/scripts/unlock.py")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == status, done.stderr
    return done.stderr


def _at_work(folder: Path) -> list[int]:
    """Processes in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.readlink(entry / "cwd") == str(folder):
                found.append(int(entry.name))
    return found


def test_cancelled_job_and_one_out_of_time_are_reported_and_the_rest_is_done(start: Start, waiting: Waiting) -> None:
    text = waiting.fail()
    check_reported(waiting, text, "cancelled", "CANCELLED")
    check_reported(waiting, text, "overtime", "TIMEOUT")
    check_rest_is_done(start, waiting, "cancelled", "overtime")


def test_dead_node_is_reported_and_the_rest_is_done(start: Start, cluster: Cluster, tmp_path: Path) -> None:
    run = wait_in(start, tmp_path.resolve(), "done", "doomed")
    run.wait_for("doomed")
    run.wait_for_done()
    node = run.jobs(cluster, "doomed")[-1]["node"]
    try:
        with cluster.quick_death():
            cluster.kill_node(node)
            text = run.fail()
        check_reported(run, text, "doomed", "NODE_FAIL")
        check_rest_is_done(start, run, "doomed")
        assert run.jobs(cluster, "doomed")[-1]["node"] != node
    finally:
        cluster.start_node(node)
        cluster.wait_for_nodes((node,), "idle")


def test_cluster_listens_on_this_machine_alone(cluster: Cluster) -> None:
    """Every socket of the cluster's daemons is bound to loopback."""
    mine = {name for pid in cluster.processes() for name in _descriptors(pid)}
    listening = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    bound = [entry[1] for entry in listening if entry[3] == "0A" and f"socket:[{entry[9]}]" in mine]
    assert len(bound) >= 3 and all(address.startswith("0100007F:") for address in bound)


def _descriptors(pid: int) -> list[str]:
    """What a process has open."""
    found = []
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(os.readlink(entry))
    return found
