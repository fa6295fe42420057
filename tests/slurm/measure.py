"""What the full reproduction costs, and what a cluster adds to it: the numbers of docs/cluster.md.

    python tests/slurm/measure.py overhead      a small study here, and on a cluster of two nodes on this machine
    python tests/slurm/measure.py cost          one job of each stage for every kind of family, times their number

Both print a Markdown table. `cost` keeps what it has measured in --file, one line a job, and goes on from there.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import yaml

from dibs.config import TEMPLATE_METHODS, load_config
from dibs.evaluation.methods import METHODS
from dibs.families import Family
from dibs.plan import Plan

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from cluster import NODES, Cluster, install  # noqa: E402

# --- overhead --------------------------------------------------------------------------------------------

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
CHAIN = "chain_{family}_gap{gap}_seed{seed}"
ALONE = {"teacher": "t_{family}_{gap}_{seed}_{index}", "dataset": "d_{family}_{gap}_{seed}_{index}"}
WAYS: dict[str, tuple[str, ...]] = {
    "here, one core": ("--profile", "profiles/local", "--cores", "1"),
    "cluster, every teacher and dataset a job": (*FAST, "--groups", *(f"{k}={v}" for k, v in ALONE.items())),
    "cluster, chains grouped": (*FAST, "--groups", f"teacher={CHAIN}", f"dataset={ALONE['dataset']}"),
    "cluster, chains grouped with their datasets (the profile)": FAST,
}


def overhead(chains: int, links: int) -> None:
    """Run a study of so many chains of teachers in all WAYS, and print each as soon as it is done."""
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
    """Seconds that a run took, seconds of processor time of all its processes, and seconds of each cluster job."""
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
    """Become the parent of what slurmd starts and leaves alone, so that its processor time is counted here."""
    set_child_subreaper = 36  # of linux/prctl.h
    if ctypes.CDLL(None, use_errno=True).prctl(set_child_subreaper, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def _processor_seconds() -> float:
    """Processor time of all that was started from here and has ended; other programs do not lengthen it."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _seconds(clock: str) -> int:
    """Seconds in SLURM's [days-][hours:]minutes:seconds."""
    days, _, rest = clock.rpartition("-")
    total = 0
    for part in rest.split(":"):
        total = 60 * total + int(part)
    return total + 86400 * int(days or 0)


# --- cost ------------------------------------------------------------------------------------------------

KINDS = {
    "car2d-reach": "car2d-reach",
    "car2d-reach-obs": "car2d-reach-obs",
    "car2d-choice": "car2d-choice",
    "simpledrone-reach": "simpledrone-reach",
    "droneattitude-reach": "droneattitude-reach",
    "reacher-drop-same-8": "reacher-*",
}
"""Families measured, and those that each stands for."""


def cost(file: Path, results: Path, kinds: list[str]) -> None:
    """Measure one job of each kind, then add up what all of them take."""
    plan = Plan(load_config(ROOT / "config.yaml"))
    done = (
        {tuple(e["job"]): e["seconds"] for e in map(json.loads, file.read_text().splitlines())} if file.exists() else {}
    )
    for name in kinds:
        for job, command in _commands(plan, name, results):
            if job not in done:
                done[job] = _cpu_seconds(command)
                with file.open("a") as out:
                    print(json.dumps({"job": job, "seconds": done[job]}), file=out)
                print(f"{done[job]:8.1f} s  {' '.join(command[:6])}", file=sys.stderr, flush=True)
    _print_cost(plan, done)


def _commands(plan: Plan, name: str, results: Path) -> Iterator[tuple[tuple[str, str], list[str]]]:
    """(family, stage) and the command of one job of each stage, at the family's widest gap."""
    family = plan.family(name)
    common = ["--gap", str(_measured_gap(plan, family)), "--seed", "0", "--results", str(results), "--quiet"]
    first, second, *later = family.train_indices(_measured_gap(plan, family))
    teachers, datasets = plan.teacher_settings(name), plan.dataset_settings(name)
    for index in (first, second, *later):
        stage = "base" if index == first else "link" if index == second else f"link {index}"
        yield (name, f"teacher {stage}"), ["teacher", name, *common, "--index", str(index), "--settings", teachers]
        yield (name, f"dataset {stage}"), ["dataset", name, *common, "--index", str(index), "--settings", datasets]
    largest = family.benchmark_ids[-1]
    evaluation = ["evaluate", largest, *common, "--settings", plan.evaluation_settings, "--method"]
    for method in plan.config.methods:
        if method in TEMPLATE_METHODS:
            settings = plan.template_settings(method, name)
            yield (name, f"fit {method}"), ["fit", name, *common, "--method", method, "--settings", settings]
        else:
            yield (
                (name, f"baseline {method}"),
                ["baseline", method, largest, *common, "--settings", plan.baseline_settings(method)],
            )
        yield (name, f"evaluate {method}"), [*evaluation, method]


def _measured_gap(plan: Plan, family: Family) -> int:
    return max(plan.config.gaps_of(family))


def _cpu_seconds(command: list[str]) -> float:
    """Seconds of processor time, which other programs on the machine do not lengthen."""
    before = _processor_seconds()
    done = subprocess.run([sys.executable, "-m", "dibs", *command], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"dibs {' '.join(command)}: {done.stderr}")
    return round(_processor_seconds() - before, 2)


def _print_cost(plan: Plan, seconds: dict[tuple[str, str], float]) -> None:
    """Core-hours by stage and kind of family; what rests on all training indices is scaled by their number."""
    hours: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    number: dict[str, int] = defaultdict(int)
    for measured, stood_for in KINDS.items():
        if (measured, "teacher base") not in seconds:
            continue
        for family in (
            f for f in plan.config.families.values() if f.name == measured or _stands_for(stood_for, f.name)
        ):
            for stage, count, each in _jobs(plan, family, measured, seconds):
                hours[stage][stood_for] += count * each / 3600
                number[stage] += count
    kinds = [k for k in KINDS.values() if any(k in row for row in hours.values())]
    print(f"| core-hours | jobs | {' | '.join(kinds)} | all |")
    print("|---|---" + "|---" * (len(kinds) + 1) + "|")
    for stage, row in hours.items():
        print(f"| {stage} | {number[stage]} | {' | '.join(f'{row[k]:.1f}' for k in kinds)} | {sum(row.values()):.0f} |")
    print(
        f"| all | {sum(number.values())} | {' | '.join(f'{sum(r[k] for r in hours.values()):.0f}' for k in kinds)}",
        end="",
    )
    print(f" | {sum(sum(row.values()) for row in hours.values()):.0f} |")


def _stands_for(pattern: str, name: str) -> bool:
    return pattern.endswith("*") and name.startswith(pattern[:-1])


def _jobs(
    plan: Plan, family: Family, measured: str, seconds: dict[tuple[str, str], float]
) -> Iterator[tuple[str, int, float]]:
    """(stage, number of jobs, seconds of each) of a family."""
    seeds = len(plan.config.seeds)
    of_links = {s: [v for (f, stage), v in seconds.items() if f == measured and stage.startswith(f"{s} link")]
                for s in ("teacher", "dataset")}  # fmt: skip
    yield "teachers", seeds, seconds[measured, "teacher base"]
    yield "datasets", seeds, seconds[measured, "dataset base"]
    widest = len(plan.family(measured).train_indices(_measured_gap(plan, plan.family(measured))))
    benchmarks = [b for b in plan.config.chosen.values() if b.family.name == family.name]
    for gap in plan.config.gaps_of(family):
        train = len(family.train_indices(gap))
        for stage, each in of_links.items():
            yield f"{stage}s", seeds * (train - 1), sum(each) / len(each)
        for method in plan.config.methods:
            if method in TEMPLATE_METHODS:
                yield "templates", seeds, seconds[measured, f"fit {method}"] * train / widest
            else:
                units = {plan.artefact(method, b.id, gap, 0) for b in benchmarks}
                yield f"baseline {method}", seeds * len(units), seconds[measured, f"baseline {method}"] * train / widest
            assert method in METHODS
            yield "evaluations", seeds * len(benchmarks), seconds[measured, f"evaluate {method}"]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("overhead", "cost"))
    parser.add_argument("--file", type=Path, default=Path("cost.jsonl"), help="where `cost` keeps what it measured")
    parser.add_argument("--results", type=Path, default=Path("results/cost"), help="root of what its jobs write")
    parser.add_argument("--families", nargs="+", default=list(KINDS), choices=list(KINDS), help="families to measure")
    parser.add_argument("--chains", type=int, default=2, help="chains of teachers that `overhead` runs")
    parser.add_argument("--links", type=int, default=6, help="teachers in each")
    args = parser.parse_args()
    overhead(args.chains, args.links) if args.what == "overhead" else cost(args.file, args.results, args.families)


if __name__ == "__main__":
    main()
