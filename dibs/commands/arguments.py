"""Arguments that the commands of the stages share."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from dibs.errors import DibsError
from dibs.paths import BASE, Layout

if TYPE_CHECKING:
    from dibs.families import Benchmark, Family, Split
    from dibs.methods import Method


def add_run(parser: argparse.ArgumentParser, what: str = "FAMILY", settings: bool = True) -> None:
    """Add the arguments that name a run: family or benchmark, split, seed, results, settings, output."""
    if what == "FAMILY":
        parser.add_argument("family", metavar="FAMILY", help="name of a family, or a YAML file that describes one")
    else:
        parser.add_argument("benchmark", metavar=what, help="id of a benchmark, or FILE.yaml[:ID]")
    split = parser.add_mutually_exclusive_group(required=True)
    split.add_argument("--split", metavar="NAME", help="training set: gapN, or any name together with --train")
    split.add_argument("--gap", type=int, metavar="N", help="short for --split gapN")
    parser.add_argument(
        "--train", metavar="I,I,…", help="training indices of a named split: increasing, from 0 to the last index"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (default: 0)")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="root of the default layout, used for files that are not given (default: results)",
    )
    if settings:
        parser.add_argument(
            "--settings",
            default="",
            help="settings that differ from the defaults: JSON text, or a JSON or YAML file",
        )
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: in --results)")
    parser.add_argument("--expect", default="", metavar="ID", help="fail unless the output would have this id")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")


def chosen_split(args: argparse.Namespace, family: Family) -> Split:
    """Return the split that the arguments name."""
    name = f"gap{args.gap}" if args.gap is not None else args.split
    if args.train:
        try:
            return family.split(name, [int(i) for i in args.train.split(",")])
        except ValueError:
            raise DibsError(
                f"--train: expected indices such as 0,3,7,{family.last_index}, found {args.train!r}"
            ) from None
    if name == BASE:  # the teacher of index 0 is the same in all splits
        return family.split(BASE, (0, family.last_index))
    return family.split(name)


def layout(args: argparse.Namespace) -> Layout:
    """Return the default layout below `--results`."""
    return Layout(args.results)


def teacher_chain(files: Layout, family: Family, split: Split, last: int, seed: int) -> dict[int, Path]:
    """Return the teachers up to a training index in the default layout: what may have changed since."""
    return {i: files.teacher(family.name, split.name, i, seed) for i in split.indices if i <= last}


def model_file(
    args: argparse.Namespace, method: Method, benchmark: Benchmark, split: Split
) -> tuple[Path, Layout | None]:
    """Return the model that a method is measured on, and the layout in which to look for what it was made from.

    Only the model itself is read if it is given by `--model`.
    """
    from dibs.methods import get_method

    if args.model:
        return args.model, None
    files, trained = layout(args), get_method(method.model_method)
    unit = trained.unit(benchmark.family.name, benchmark.id)
    return files.model(trained.name, unit, split.name, args.seed), files


def reporter(args: argparse.Namespace, label: str, every: float = 5.0) -> Callable[[str], None]:
    """Return a progress callback that writes to standard error at most every few seconds."""
    last = time.monotonic()

    def progress(message: str) -> None:
        nonlocal last
        now = time.monotonic()
        if not args.quiet and now - last >= every:
            last = now
            print(f"{label}: {message}", file=sys.stderr, flush=True)

    return progress
