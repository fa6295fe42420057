"""`dibs table`, `dibs figure`, `dibs results`, `dibs study`: what the evaluations say."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dibs.analysis.studies import Study


def register(subparsers: Any) -> None:
    """Add the commands."""
    parser = subparsers.add_parser(
        "table",
        help="make a table from evaluations",
        description="Make a table: relative (the paper's Table 1 beside ours), benchmarks, splits (the same per gap), "
        "improvement (probability of improvement) or claims (what the paper says and what was measured).",
    )
    parser.add_argument("name", metavar="NAME", help="relative, benchmarks, splits, improvement or claims")
    _add_inputs(parser, "evaluations")
    parser.add_argument(
        "--output",
        type=Path,
        nargs="+",
        metavar="FILE.csv|.md|.tex",
        help="where to write, one file per format (default: Markdown on standard output)",
    )
    parser.set_defaults(run=run_table)

    parser = subparsers.add_parser(
        "figure",
        help="make a figure from results, or one of the paper's illustrations",
        description="Make a figure. Without a name, list all of them.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the figure's name; leave out to list them")
    _add_inputs(parser, "evaluations, templates (loss_curves, choice_trajectories, branching) or teachers (drift)")
    parser.add_argument(
        "--output",
        type=Path,
        nargs="+",
        metavar="FILE.pdf|.png",
        help="where to write, one file per format",
    )
    parser.add_argument("--gap", type=int, help="split to show where the figure shows one (default: the middle one)")
    parser.add_argument(
        "--benchmark", default="", metavar="ID", help="benchmark of success_by_index, choice_trajectories, branching"
    )
    parser.add_argument(
        "--methods", nargs="+", default=[], metavar="METHOD", help="methods to show (default: the paper's)"
    )
    parser.set_defaults(run=run_figure)

    parser = subparsers.add_parser(
        "results",
        help="show what has been evaluated so far",
        description="Print training and zero-shot ratios of every benchmark and method that has been evaluated.",
    )
    _add_inputs(parser, "evaluations")
    parser.set_defaults(run=run_results)

    parser = subparsers.add_parser(
        "study",
        help="make the table and figure of an ablation or a sweep",
        description="Compare the variants of a study, as the workflow lists them in a file. A sweep also says which "
        "point the paper's rule chooses, from training indices only; as JSON with --output FILE.json. With --config, "
        "a study of that config from whatever has been made of it so far, which a failed job does not hinder.",
    )
    parser.add_argument(
        "file", type=Path, metavar="FILE.json|STUDY", help="the study; with --config: ablations/NAME or sweeps/NAME"
    )
    parser.add_argument("--config", nargs="+", metavar="FILE.yaml", help="config files, each merged over those before")
    parser.add_argument(
        "--output",
        type=Path,
        nargs="+",
        metavar="FILE.csv|.md|.tex|.pdf|.png|.json",
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


def run_table(args: argparse.Namespace) -> int:
    """Write or print a table."""
    from dibs.analysis import tables
    from dibs.analysis.collect import collect, find
    from dibs.errors import unknown

    if args.name not in tables.TABLES:
        raise unknown("table", args.name, tables.TABLES)
    for output in args.output or []:
        tables.check_output(output)
    table = tables.make(args.name, collect(find("evaluation", args.inputs, args.results)))
    if not args.output:
        print(tables.to_markdown(table), end="")
    for output in args.output or []:
        tables.write(table, output)
        print(output)
    return 0


def run_figure(args: argparse.Namespace) -> int:
    """Write a figure, or list their names."""
    from dibs.analysis import draw, figures
    from dibs.analysis.collect import find
    from dibs.errors import DibsError

    if args.name is None:
        _list_figures()
        return 0
    if not args.output:
        raise DibsError(f"dibs figure {args.name}: where to? Name one or more files with --output")
    for output in args.output:
        draw.check_output(output)
    options = figures.Options(tuple(args.methods), args.benchmark, args.gap)
    figure, save = figures.make(args.name, lambda kind: find(kind, args.inputs, args.results), options)
    for output in args.output:
        save(figure, output)
        print(output)
    return 0


def _list_figures() -> None:
    from dibs.analysis import figures

    print("from results")
    for name, entry in figures.FIGURES.items():
        print(f"  {name:<28}{entry.about} (from {entry.needs}s)")
    print("illustrations")
    for name in figures.illustrations():
        print(f"  {name}")


def run_results(args: argparse.Namespace) -> int:
    """Print a short table."""
    from dibs.analysis.collect import collect, find
    from dibs.analysis.tables import summary

    print(summary(collect(find("evaluation", args.inputs, args.results))))
    return 0


def _planned_study(name: Path, files: list[str]) -> Study:
    """The study of a config, as the workflow lists it."""
    from dibs.analysis.studies import parse_study
    from dibs.config import load_config
    from dibs.errors import DibsError
    from dibs.variants import Variants

    variants = Variants(load_config(*files))
    if len(name.parts) != 2 or name.parts[0] not in variants.names:
        raise DibsError(f"{name}: expected {' or '.join(f'{kind}/NAME' for kind in variants.names)} with --config")
    return parse_study(variants.described(*name.parts), name)


def run_study(args: argparse.Namespace) -> int:
    """Write or print what a study found."""
    from dibs.analysis import ablations, figures, studies, study_figures, sweeps, tables
    from dibs.files import write_json

    study = _planned_study(args.file, args.config) if args.config else studies.read_study(args.file)
    for output in args.output or []:
        _check_study_output(output, study.kind)
    if study.kind == "sweep":
        points = sweeps.points(study)
        choice = sweeps.choose(study, points)
        table = sweeps.sweep(study, points, choice)
    else:
        measured = studies.measure(study)
        table = ablations.ablation(study, measured)
    if not args.output:
        print(tables.to_markdown(table), end="")
    for output in args.output or []:
        if output.suffix in tables.FORMATS:
            tables.write(table, output)
        elif output.suffix == ".json":
            write_json(output, sweeps.decision(study, points, choice))
        elif study.kind == "sweep":
            figures.save(study_figures.sweep_figure(study, points, choice), output)
        else:
            figures.save(study_figures.ablation_figure(study, measured), output)
        print(output)
    return 0


def _check_study_output(output: Path, kind: str) -> None:
    from dibs.errors import DibsError

    known = [".csv", ".md", ".tex", ".pdf", ".png", *([".json"] if kind == "sweep" else [])]
    if output.suffix not in known:
        raise DibsError(f"{output}: expected, of {kind}s, a name that ends in {', '.join(known)}")
