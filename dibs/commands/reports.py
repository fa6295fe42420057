"""`dibs table`, `dibs figure`, `dibs results`, `dibs study`: what the evaluations say."""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path
from typing import Any


def register(subparsers: Any) -> None:
    """Add the commands."""
    kinds = {
        "table": (
            "evaluations",
            "FILE.csv|.md|.html|.tex",
            "one file per format (default: Markdown on standard output)",
        ),
        "figure": (
            "evaluations, models or teachers, as the list of figures says",
            "FILE.pdf|.png",
            "one file per format",
        ),
    }
    for kind, (inputs, metavar, output) in kinds.items():
        about = f"Make a {kind}. Without a name, list all of them."
        parser = subparsers.add_parser(kind, help=f"make a {kind} from results", description=about)
        parser.add_argument("name", nargs="?", metavar="NAME", help=f"the {kind}'s name; leave out to list them")
        _add_inputs(parser, inputs)
        parser.add_argument("--output", type=Path, nargs="+", metavar=metavar, help=f"where to write, {output}")
        parser.add_argument("--split", default="", help="split to show where one is shown (default: the middle one)")
        parser.add_argument("--benchmark", default="", metavar="ID", help="show this benchmark only")
        parser.add_argument("--methods", nargs="+", default=[], metavar="METHOD", help="show these methods only")
        parser.set_defaults(run=run_report, kind=kind)

    parser = subparsers.add_parser(
        "results",
        help="show what has been evaluated so far",
        description="Print training and zero-shot ratios of every benchmark and method that has been evaluated.",
    )
    _add_inputs(parser, "evaluations")
    parser.set_defaults(run=run_results)

    parser = subparsers.add_parser(
        "list",
        help="list evaluations of a benchmark in a file, for `dibs table --inputs`",
        description="List the evaluations of a benchmark for all combinations of methods, splits and seeds, each after "
        "a comment with its checksum. All of them must exist.",
    )
    parser.add_argument("benchmark", metavar="BENCHMARK", help="id of the benchmark")
    parser.add_argument("--methods", nargs="+", required=True, metavar="METHOD", help="methods")
    parser.add_argument("--splits", nargs="+", required=True, metavar="NAME", help="splits")
    parser.add_argument("--seeds", type=int, nargs="+", required=True, metavar="N", help="seeds")
    parser.add_argument("--results", type=Path, default=Path("results"), help="root of results (default: results)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: standard output)")
    parser.set_defaults(run=run_list)

    parser = subparsers.add_parser(
        "study",
        help="make the table and figure of an ablation or a sweep",
        description="Compare the variants of a study, as the workflow lists them in a file. A sweep also says which "
        "point its rule chooses, from training indices only. With --config, a study of that config is "
        "made from what exists so far.",
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE.json|STUDY", help="the study; with --config: ablations/NAME or sweeps/NAME"
    )
    parser.add_argument("--config", nargs="+", metavar="FILE.yaml", help="config files, each merged over those before")
    parser.add_argument(
        "--output",
        type=Path,
        nargs="+",
        metavar="FILE.csv|.md|.html|.tex|.pdf|.png|.json",
        help="where to write, one file per format (default: the table as Markdown on standard output)",
    )
    parser.set_defaults(run=run_study)


def _add_inputs(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--inputs",
        type=Path,
        nargs="+",
        metavar="FILE",
        help=f"{what}: files, folders, or lists of files, one per line (default: all in --results)",
    )
    parser.add_argument("--results", type=Path, default=Path("results"), help="root of results (default: results)")


def run_report(args: argparse.Namespace) -> None:
    """Make a table or figure and write it; print a table without --output; list all if none is named."""
    from dibs.errors import DibsError
    from dibs.files import check_suffix
    from dibs.studies.collect import find, find_variants
    from dibs.studies.reports import SUFFIXES, Options, find_report, make, reports, write_report

    if args.name is None:
        for name, report in reports().items():
            if report.kind == args.kind:
                print(f"{name + ('-BENCHMARK' if report.each else ''):<30}{report.caption} (from {report.inputs})")
        return
    report, _ = find_report(args.name, args.kind)
    if args.kind == "figure" and not args.output:
        raise DibsError(f"dibs figure {args.name}: name one or more files with --output")
    for output in args.output or []:
        check_suffix(output, SUFFIXES[report.kind])
    paths = [] if report.inputs == "none" else find(report.inputs, args.inputs, args.results, report.methods)
    if report.ablation and not args.inputs:
        paths += find_variants(args.results, report.ablation)
    made = make(args.name, paths, Options(tuple(args.methods), args.benchmark, args.split))
    for output in args.output or []:
        write_report(made, output)
        print(output)
    if not args.output:
        from dibs.studies.formats import to_markdown

        print(to_markdown(made), end="")  # type: ignore[arg-type]


def run_results(args: argparse.Namespace) -> None:
    """Print a short table."""
    from dibs.studies.collect import collect, find
    from dibs.studies.tables import summary

    print(summary(collect(find("evaluations", args.inputs, args.results))))


def run_list(args: argparse.Namespace) -> None:
    """Write or print the list; it changes if one of the files does."""
    from dibs.files import atomic
    from dibs.paths import Layout
    from dibs.studies.collect import listed

    cells = product(args.methods, args.splits, args.seeds)
    text = listed(Layout(args.results).evaluation(m, args.benchmark, split, seed) for m, split, seed in cells)
    if args.output is None:
        print(text, end="")
        return
    with atomic(args.output) as file:
        file.write_text(text)
    print(args.output)


def run_study(args: argparse.Namespace) -> None:
    """Write or print what a study found."""
    from dibs.files import check_suffix
    from dibs.studies.formats import to_markdown
    from dibs.studies.studies import parse_study, read_study
    from dibs.studies.summaries import FORMATS, summarize_study

    for output in args.output or []:
        check_suffix(output, FORMATS)
    study = parse_study(_described(args.file, args.config), args.file) if args.config else read_study(args.file)
    summary = summarize_study(study)
    if not args.output:
        print(to_markdown(summary.table), end="")
    for output in args.output or []:
        summary.write(output)
        print(output)


def _described(name: Path, files: list[str]) -> dict[str, Any]:
    """Return the study of a config, as the workflow lists it."""
    from dibs.errors import DibsError
    from dibs.studies.checks import load_config
    from dibs.studies.variants import Variants

    variants = Variants(load_config(*files))
    if len(name.parts) != 2 or name.parts[0] not in variants.names:
        raise DibsError(f"{name}: expected {' or '.join(f'{kind}/NAME' for kind in variants.names)} with --config")
    return variants.described(*name.parts)
