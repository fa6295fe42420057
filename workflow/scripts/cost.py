"""Core-hours of a study per stage, from the times of jobs that were run, and its number of cluster jobs.

    python workflow/scripts/cost.py config.yaml --measured results/laptop     core-hours of the full paper
    snakemake -n --profile profiles/slurm | python workflow/scripts/cost.py --cluster-jobs

A job that was not measured is given the mean of those most like it: of its family and gap, of its family, of its
environment, of its method. What nothing like it was measured of is said to be unknown, never left out silently.
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

from dibs.config import TEMPLATE_METHODS, load_config
from dibs.errors import DibsError
from dibs.plan import Plan

STAGES = ("teachers", "datasets", "templates", "baselines", "evaluations")


class Job(NamedTuple):
    """What decides how long a job takes."""

    stage: str
    method: str
    family: str
    gap: int
    """0 of what serves all gaps."""

    def alike(self) -> Iterator[tuple[str, ...]]:
        """Kinds of jobs that it belongs to, closest first."""
        yield ("gap", *map(str, self))
        yield ("family", *self[:3])
        yield ("environment", self.stage, self.method, self.family.partition("-")[0])
        yield ("method", self.stage, self.method)


def jobs_of(plan: Plan) -> Counter[Job]:
    """All jobs of a config that take time."""
    count: Counter[Job] = Counter()
    for stage in STAGES[:2]:
        for family in plan.config.families:
            count[Job(stage, "", family, 0)] += len(plan.config.seeds)
        for split in plan.splits:
            count[Job(stage, "", split.family, split.gap)] += len(plan.indices(split.family, split.gap)) - 1
    trained = set()
    for e in plan.evaluations:
        family = plan.benchmark(e.benchmark).family.name
        count[Job("evaluations", e.method, family, e.gap)] += 1
        if (artefact := plan.artefact(e.method, e.benchmark, e.gap, e.seed)) not in trained:
            trained.add(artefact)
            count[Job("templates" if e.method in TEMPLATE_METHODS else "baselines", e.method, family, e.gap)] += 1
    return count


def measured_in(times: Path, plan: Plan) -> Iterator[tuple[Job, float]]:
    """Jobs that were run, with their seconds."""
    for file in sorted(times.rglob("*.tsv")):
        stage, *names = file.relative_to(times).parts
        method = names.pop(0) if stage in STAGES[2:] else ""
        try:
            family = plan.benchmark(names[0]).family.name
        except DibsError:
            continue  # of a family that the config does not have
        with file.open() as rows:
            seconds = [float(row["s"]) for row in csv.DictReader(rows, delimiter="\t")]
        yield Job(stage, method, family, int(names[1].removeprefix("gap") if names[1] != "base" else 0)), sum(seconds)


def table(wanted: Counter[Job], measured: list[tuple[Job, float]]) -> str:
    """Core-hours by stage and method, in Markdown."""
    known: dict[tuple[str, ...], list[float]] = defaultdict(list)
    for job, seconds in measured:
        for kind in job.alike():
            known[kind].append(seconds)
    runs = Counter((job.stage, job.method) for job, _ in measured)
    count: Counter[tuple[str, str]] = Counter()
    hours: dict[tuple[str, str], float] = defaultdict(float)
    borrowed: Counter[tuple[str, str]] = Counter()
    unknown: Counter[tuple[str, str]] = Counter()
    for job, number in wanted.items():
        row = job.stage, job.method
        count[row] += number
        kind = next((k for k in job.alike() if k in known), None)
        if kind is None:
            unknown[row] += number
            continue
        hours[row] += number * sum(known[kind]) / len(known[kind]) / 3600
        borrowed[row] += number * (kind[0] not in ("gap", "family"))
    lines = [
        "| stage | jobs | measured | from another family | seconds a job | core-hours |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row, number in sorted(count.items(), key=lambda item: (STAGES.index(item[0][0]), item[0][1])):
        timed = number - unknown[row]
        each = f"{3600 * hours[row] / timed:.1f}" if timed else "unknown"
        total = f"{hours[row]:.1f}" if timed else "unknown"
        if timed and unknown[row]:
            total += f" and {unknown[row]} jobs unknown"
        name = " ".join(part for part in row if part)
        lines.append(f"| {name} | {number} | {runs[row]} | {borrowed[row]} | {each} | {total} |")
    rest = sum(unknown.values())
    total = f"{sum(hours.values()):.0f}" + (f" and {rest} jobs unknown" if rest else "")
    lines.append(f"| all | {sum(count.values())} | {sum(runs.values())} | {sum(borrowed.values())} | | {total} |")
    return "\n".join(lines)


def cluster_jobs(listing: str) -> Counter[str]:
    """Submissions by the first word of their message, or group, in what a dry run lists; lists are made locally."""
    alone = re.findall(r"^Job \d+: (\w+)", listing, re.MULTILINE)  # members of groups are indented
    groups = re.findall(r"^(?:\[[^]]*\] )?Group job ([a-z]+)", listing, re.MULTILINE)
    return Counter([*(word for word in alone if word != "list"), *(f"{name} (group)" for name in groups)])


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "configs", nargs="*", default=["config.yaml"], help="config and overlays whose cost is asked for"
    )
    parser.add_argument("--measured", nargs="+", type=Path, default=[], help="results of runs whose times are used")
    parser.add_argument("--cluster-jobs", action="store_true", help="count those in a dry run on standard input")
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
        raise SystemExit(
            f"error: no times of jobs below {', '.join(map(str, args.measured)) or '(no --measured)'}/times"
        )
    print(table(jobs_of(plan), found))


if __name__ == "__main__":
    main()
