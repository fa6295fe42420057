"""Estimate the core-hours of a study per stage from the times of earlier runs, and count its cluster jobs.

    python workflow/scripts/cost.py config.yaml --measured results/laptop     core-hours of the full paper
    snakemake -n --profile profiles/slurm | python workflow/scripts/cost.py --cluster-jobs

A job that was not measured gets the mean of the most similar jobs that were: those of its family and split, of its
family, of its environment, of its method. If there are none, the table says that its time is unknown.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

from dibs.errors import DibsError
from dibs.methods import get_method
from dibs.paths import split_of
from dibs.studies.checks import load_config
from dibs.studies.plan import Plan

STAGES = ("teachers", "datasets", "models", "evaluations")


class Job(NamedTuple):
    """What the time of a job depends on."""

    stage: str
    method: str
    family: str
    split: str
    environment: str

    def kinds(self) -> Iterator[tuple[str, ...]]:
        """Yield the kinds of jobs that it belongs to, most specific first."""
        yield ("split", self.stage, self.method, self.family, self.split)
        yield ("family", self.stage, self.method, self.family)
        yield ("environment", self.stage, self.method, self.environment)
        yield ("method", self.stage, self.method)


def jobs_of(plan: Plan) -> Counter[Job]:
    """Count all jobs of a config that take time."""
    count: Counter[Job] = Counter()
    files: set[str] = set()
    for family, split, seed in plan.splits:
        environment = plan.family(family).environment.name
        stages = {"teachers": plan.teachers(family, split, seed), "datasets": plan.datasets(family, split, seed)}
        for stage, made in stages.items():
            for index, file in zip(plan.split(family, split).indices, made, strict=True):
                count[Job(stage, "", family, split_of(split, index), environment)] += file not in files
                files.add(file)
    for e in plan.evaluations:
        family = plan.benchmark(e.benchmark).family
        count[Job("evaluations", e.method, family.name, e.split, family.environment.name)] += 1
        file = plan.model(e.method, e.benchmark, e.split, e.seed)
        trained = get_method(e.method).model_method
        count[Job("models", trained, family.name, e.split, family.environment.name)] += file not in files
        files.add(file)
    return count


def measured_in(times: Path, plan: Plan) -> Iterator[tuple[Job, float]]:
    """Yield the jobs of a run with their seconds."""
    for file in sorted(times.rglob("*.tsv")):
        stage, *names = file.relative_to(times).parts
        if stage not in STAGES:
            continue  # of version 0.1
        method = names.pop(0) if stage in ("models", "evaluations") else ""
        try:
            by_family = not method or (stage == "models" and get_method(method).per_family)
            family = plan.family(names[0]) if by_family else plan.benchmark(names[0]).family
        except DibsError:
            continue  # of a method or family that is not installed
        with file.open() as rows:
            seconds = [float(row["s"]) for row in csv.DictReader(rows, delimiter="\t")]
        yield Job(stage, method, family.name, names[1], family.environment.name), sum(seconds)


def table(wanted: Counter[Job], measured: list[tuple[Job, float]]) -> str:
    """Return the core-hours by stage and method, as Markdown."""
    known: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for job, seconds in measured:
        for kind in job.kinds():
            known[kind].append(seconds)
    runs = Counter((job.stage, job.method) for job, _ in measured)
    count: Counter[tuple[str, str]] = Counter()
    hours: dict[tuple[str, str], float] = defaultdict(float)
    borrowed: Counter[tuple[str, str]] = Counter()
    unknown: Counter[tuple[str, str]] = Counter()
    for job, number in wanted.items():
        row = job.stage, job.method
        count[row] += number
        kind = next((k for k in job.kinds() if k in known), None)
        if kind is None:
            unknown[row] += number
            continue
        hours[row] += number * sum(known[kind]) / len(known[kind]) / 3600
        borrowed[row] += number * (kind[0] not in ("split", "family"))
    lines = [
        "| stage | jobs | measured | from another family | seconds per job | core-hours |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row, number in sorted(count.items(), key=lambda item: (STAGES.index(item[0][0]), item[0][1])):
        timed = number - unknown[row]
        each = f"{3600 * hours[row] / timed:.1f}" if timed else "unknown"
        total = f"{hours[row]:.2f}" if timed else "unknown"
        if timed and unknown[row]:
            total += f" and {unknown[row]} jobs unknown"
        name = " ".join(part for part in row if part)
        lines.append(f"| {name} | {number} | {runs[row]} | {borrowed[row]} | {each} | {total} |")
    rest = sum(unknown.values())
    total = f"{sum(hours.values()):.1f}" + (f" and {rest} jobs unknown" if rest else "")
    lines.append(f"| all | {sum(count.values())} | {sum(runs.values())} | {sum(borrowed.values())} | | {total} |")
    return "\n".join(lines)


def cluster_jobs(listing: str) -> Counter[str]:
    """Count the submissions in the output of a dry run, by rule or group. Lists are made locally."""
    alone = re.findall(r"^Job \d+: (\w+)", listing, re.MULTILINE)  # members of groups are indented
    groups = re.findall(r"^(?:\[[^]]*\] )?Group job ([a-z]+)", listing, re.MULTILINE)
    return Counter([*(word for word in alone if word != "list"), *(f"{name} (group)" for name in groups)])


def main() -> None:
    """Print the estimate, or the number of cluster jobs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", default=["config.yaml"], help="config and overlays of the study")
    parser.add_argument("--measured", nargs="+", type=Path, default=[], help="results of earlier runs, with times")
    parser.add_argument("--cluster-jobs", action="store_true", help="count the jobs of a dry run on standard input")
    args = parser.parse_args()
    if args.cluster_jobs:
        count = cluster_jobs(sys.stdin.read())
        width = max(map(len, [*count, "total"]))
        for name, number in [*sorted(count.items()), ("total", count.total())]:
            print(f"{name:<{width}} {number:>8}")
        return
    try:
        plan = Plan(load_config(*args.configs))
    except DibsError as error:
        raise SystemExit(f"error: {error}") from None
    found = [job for root in args.measured for job in measured_in(root / "times", plan)]
    if not found:
        where = ", ".join(map(str, args.measured)) or "(no --measured)"
        raise SystemExit(f"error: no times of jobs below {where}/times")
    print(table(jobs_of(plan), found))


if __name__ == "__main__":
    main()
