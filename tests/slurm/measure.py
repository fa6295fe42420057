"""Measure what a cluster adds to the time of a small study: the numbers of docs/cluster.md.

    python tests/slurm/measure.py

The study runs on this machine without a cluster, and on a cluster of two nodes on this machine with several kinds of
groups. The script prints a Markdown table.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from cluster import NODES, Cluster, install  # noqa: E402

FAMILY = {
    "name": "tiny",
    "environment": {"name": "Car2D"},
    "specification": "achieve reach(a)",
    "start": {"center": [0.0, 0.0], "noise": 0.1, "shift": [0.25, 0.0]},
    "regions": {"a": {"center": [2.0, 3.0], "half_width": 1.0, "shift": [0.25, 0.0]}},
    "gaps": [1],
    "horizon": 10,
    "network": {"hidden": [8]},
    "reward": {"unit": 10.0, "depth": 0.2},
}
STUDY = {
    "benchmarks": ["tiny.yaml"],
    "methods": ["dibs"],
    "teachers": {"capacity": 300, "probes": 50, "rollouts": 100, "algorithms": {"ars": {"iterations": 20}}},
    "datasets": {"size": 300, "require": 0.0},
    "templates": {"max_steps": 100},
    "evaluation": {"rollouts": 50, "beyond": False},
}
FAST = ("--slurm-init-seconds-before-status-checks", "2", "--latency-wait", "20")
CHAIN = "chain_{family}_{split}_seed{seed}"
ALONE = {"teacher": "t_{family}_{split}_{seed}_{index}", "dataset": "d_{family}_{split}_{seed}_{index}"}
WAYS: dict[str, tuple[str, ...]] = {
    "here, one core": ("--profile", "profiles/local", "--cores", "1"),
    "cluster, every teacher and dataset a job": (*FAST, "--groups", *(f"{k}={v}" for k, v in ALONE.items())),
    "cluster, chains grouped": (*FAST, "--groups", f"teacher={CHAIN}", f"dataset={ALONE['dataset']}"),
    "cluster, chains grouped with their datasets (the profile)": FAST,
}


def overhead(chains: int, links: int) -> None:
    """Run a study with this many chains of teachers in all WAYS, and print each as soon as it is done."""
    install()
    _adopt_orphans()
    cluster = Cluster()
    try:
        cluster.start()
        columns = (
            "cluster jobs",
            "total, s",
            "in cluster jobs, s",
            "processor time, s",
            "more of it than here, s a job",
        )
        print(f"| {chains} × {links} teachers | {' | '.join(columns)} |\n|---|{'--:|' * len(columns)}", flush=True)
        alone = 0.0
        for way, options in WAYS.items():
            taken, used, jobs = _study(cluster, options, chains, links)
            alone = alone or used
            more = f"{(used - alone) / len(jobs):.1f}" if jobs else ""
            print(f"| {way} | {len(jobs) or ''} | {taken:.0f} | {sum(jobs) or ''} | {used:.0f} | {more} |", flush=True)
    finally:
        cluster.stop()


def _study(cluster: Cluster, options: tuple[str, ...], chains: int, links: int) -> tuple[float, float, list[int]]:
    """Return the seconds of a run, the processor time of all its processes, and the seconds of each cluster job."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "tiny.yaml").write_text(yaml.safe_dump({**FAMILY, "last_index": links}))
        (folder / "study.yaml").write_text(yaml.safe_dump({**STUDY, "seeds": chains}))
        command = [sys.executable, "-m", "snakemake", "evaluations", "--snakefile", str(ROOT / "Snakefile")]
        command += ["--configfile", "study.yaml"]
        if "--profile" not in options:
            command += ["--profile", "profiles/slurm"]
        command = [str(ROOT / word) if word.startswith("profiles/") else word for word in [*command, *options]]
        before, began = _processor_seconds(), time.monotonic()
        done = subprocess.run(command, cwd=folder, env=cluster.environment, capture_output=True, text=True)
        taken = time.monotonic() - began
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        cluster.wait_for_nodes(NODES, "idle")
        time.sleep(1)  # for the last slurmstepd to end
        jobs = [_seconds(job["taken"]) for job in cluster.jobs() if job["folder"] == str(folder)]
        return taken, _processor_seconds() - before, jobs


def _adopt_orphans() -> None:
    """Become the parent of processes that slurmd leaves behind, so that their processor time is counted here."""
    set_child_subreaper = 36  # of linux/prctl.h
    if ctypes.CDLL(None, use_errno=True).prctl(set_child_subreaper, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _processor_seconds() -> float:
    """Return the processor time of all finished child processes; other programs do not affect it."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _seconds(clock: str) -> int:
    """Return the seconds of SLURM's [days-][hours:]minutes:seconds."""
    days, _, rest = clock.rpartition("-")
    total = 0
    for part in rest.split(":"):
        total = 60 * total + int(part)
    return total + 86400 * int(days or 0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=2, help="number of chains of teachers (default: 2)")
    parser.add_argument("--links", type=int, default=6, help="teachers after the first in each chain (default: 6)")
    args = parser.parse_args()
    overhead(args.chains, args.links)


if __name__ == "__main__":
    main()
