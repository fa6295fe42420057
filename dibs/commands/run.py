"""`dibs run`: all stages of a family, in parallel."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

from dibs.commands.arguments import (
    add_methods,
    add_quiet,
    add_tensorboard,
    add_training_set,
    chosen_methods,
    chosen_split,
    seeds,
)

DESCRIPTION = (
    "Train teachers, build datasets, fit methods and measure them at every index; then print the ratios and write a "
    "table and a figure. What is up to date in --results is kept, so run the same command again to continue after an "
    "interruption. Example: dibs run mine.yaml --gap 5 --methods dibs,dibs-plus,genrl --seeds 3 --cores 4"
)
SECTIONS = ("teachers", "datasets", "templates", "baselines", "evaluation")


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("run", help="run all stages of a family", description=DESCRIPTION)
    parser.add_argument("family", metavar="FAMILY", help="name of a family, or a YAML file that describes one")
    add_training_set(parser)
    add_methods(parser, "dibs,dibs-plus")
    parser.add_argument(
        "--seeds",
        type=seeds,
        default=(0,),
        metavar="N|I,J,…",
        help="so many seeds, 0 … N-1, or those listed; 1000, with a comma is the one seed 1000 (default: 1)",
    )
    parser.add_argument("--rollouts", type=int, metavar="N", help="rollouts per evaluated index (default: 1000)")
    parser.add_argument("--cores", type=int, default=1, metavar="N", help="processes at a time (default: 1)")
    parser.add_argument(
        "--results", type=Path, default=Path("results"), metavar="DIR", help="where files go (default: results)"
    )
    parser.add_argument(
        "--config",
        metavar="FILE.yaml",
        help=f"settings of the stages, in the sections of the workflow's config: {', '.join(SECTIONS)}",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one of these settings, such as teachers.options.iterations=50 or baselines.genrl.steps=1000000; "
        "may be repeated",
    )
    add_tensorboard(parser)
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Make what is not up to date, and show the results; the status is 1 if something could not be made."""
    from dibs.families import get_family, show_warnings
    from dibs.paths import Layout
    from dibs.pipeline import keep_description
    from dibs.progress import check_tensorboard, display
    from dibs.workers import do_all

    if args.tensorboard is not None:
        check_tensorboard()
    family = get_family(args.family)
    show_warnings(family)
    work = _work(args, family)
    keep_description(Layout(args.results), family)
    jobs = work.jobs()
    again = "Run the same command again to continue."
    try:
        with display(not args.quiet) as shown:
            shown.expect(len(jobs))
            failed = do_all(work, jobs, args.cores, shown)
    except KeyboardInterrupt:
        left = len(work.jobs())
        print(f"\ninterrupted: {len(jobs) - left} of {len(jobs)} jobs are done and kept. {again}", file=sys.stderr)
        return 130
    _show(work, failed)
    if failed:
        print(f"\n{len(failed)} of {len(jobs)} jobs could not be done:", file=sys.stderr)
        for job, why in failed.items():
            print(f"  {work.name(job)}: {why}", file=sys.stderr)
        print(f"{again} What is done is kept.", file=sys.stderr)
    return 1 if failed else 0


def _work(args: argparse.Namespace, family: Any) -> Any:
    from dibs.errors import DibsError
    from dibs.methods import get_method
    from dibs.runs import Work
    from dibs.studies.checks import parse_config

    if args.cores < 1:
        raise DibsError(f"--cores: expected at least 1, found {args.cores}")
    split = chosen_split(args, family)
    methods = chosen_methods(args)
    settings = _settings(args)
    if args.rollouts is not None:
        settings["evaluation"] = {**settings.get("evaluation", {}), "rollouts": args.rollouts}
    path = args.family if args.family.endswith((".yaml", ".yml")) else ""
    names = [f"{path}:{i}" if path else i for i in family.benchmark_ids]
    data = {"benchmarks": names, "methods": list(methods), "gaps": [], "splits": {"all": [0, family.last_index]}}
    config = parse_config({**data, **settings}, "settings (--config, --set)")
    return Work(
        description=family.description_data(),
        split=split,
        seeds=args.seeds,
        methods=methods,
        benchmarks=tuple(family.benchmark_ids),
        teachers=config.teacher_settings(family),
        datasets=config.dataset_settings(family),
        settings={get_method(m).model_method: config.method_settings(m, family) for m in methods},
        evaluation=config.evaluation,
        results=args.results,
        tensorboard=args.tensorboard,
    )


def _settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return the sections of a config that the arguments give."""
    import yaml

    from dibs.errors import DibsError, unknown
    from dibs.settings import values_of
    from dibs.studies.config import merge

    found = dict(values_of(args.config, "--config"))
    for entry in args.set:
        key, equals, text = entry.partition("=")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            equals = ""
        if not equals:
            raise DibsError(f"--set: expected KEY=VALUE such as teachers.rollouts=200, found {entry!r}")
        for part in reversed(key.split(".")):
            value = {part: value}
        found = merge(found, value)
    for section in found:
        if section not in SECTIONS:
            raise unknown("section of settings", section, SECTIONS)
    return found


def _show(work: Any, failed: Container[Any]) -> None:
    """Print the ratios of all evaluations that have not failed, and write them as a table and a figure."""
    from tabulate import tabulate

    from dibs.paths import Layout
    from dibs.studies.collect import collect, groups
    from dibs.studies.reports import make, write_report

    files = [work.file(job) for job in work.evaluations if job not in failed]
    if not files:
        return
    layout, name = Layout(work.results), f"{work.family.name}-{work.split.name}"
    tables = [layout.table(f"{name}.{suffix}") for suffix in ("csv", "md")]
    figures = [layout.figure(f"{name}.{suffix}") for suffix in ("png", "pdf")]
    for report, outputs in (("splits", tables), ("success_by_index", figures)):
        made = make(report, files)
        for output in outputs:
            write_report(made, output)
    ratios = ["training_ratio", "zero_shot_ratio", "beyond_ratio"]
    rows = [
        (*key, len(part), *(None if r != r else r for r in part[ratios].mean()))  # NaN: no such task was measured
        for key, part in groups(collect(files), "benchmark", "method")
    ]
    header = ["benchmark", "method", "seeds", "training", "zero-shot", f"beyond {work.family.last_index}"]
    print(f"\nShare of solved tasks, {work.split.name}, mean over seeds\n")
    print(tabulate(rows, header, floatfmt=".3f", missingval="-"))
    print(f"\ntables:  {', '.join(map(str, tables))}\nfigures: {', '.join(map(str, figures))}\nresults: {work.results}")
