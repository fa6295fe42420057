"""`dibs controls`: whether methods lose what they solve if the tasks no longer move as they did."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dibs.commands.arguments import add_methods, add_training_set, chosen_methods, chosen_split

DESCRIPTION = (
    "Negative controls of a benchmark: train methods on it and on the same tasks in random order, and measure them "
    "also where the unseen tasks are in reverse order. A method whose zero-shot ratio does not drop in both cases "
    "shows that the benchmark measures something else than induction; the status is then 1."
)


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("controls", help="negative controls of a benchmark", description=DESCRIPTION)
    parser.add_argument("benchmark", metavar="BENCHMARK", help="id of a benchmark, or FILE.yaml[:ID]")
    add_training_set(parser)
    add_methods(parser, "dibs,bc-index,motion")
    parser.add_argument("--seed", type=int, default=1000, help="seed of training and of the order (default: 1000)")
    parser.add_argument("--rollouts", type=int, default=200, metavar="N", help="rollouts per index (default: 200)")
    parser.add_argument("--results", type=Path, help="keep files in this folder, or read them from there")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one row per method."""
    from tabulate import tabulate

    from dibs.controls import controls
    from dibs.families import get_benchmark, show_warnings

    benchmark, methods = get_benchmark(args.benchmark), chosen_methods(args)
    show_warnings(benchmark.family)
    split = chosen_split(args, benchmark.family)
    found = controls(benchmark, split, args.seed, methods, args.rollouts, args.results)
    rows = [[c.method, c.right, c.shuffled, c.wrong, c.verdict] for c in found]
    headers = ["method", "zero-shot", "shuffled", "wrong", ""]
    print(f"{benchmark.id}, {split.name}, seed {args.seed}")
    print(tabulate(rows, headers=headers, tablefmt="plain", floatfmt=".2f"))
    return int(any(c.verdict.startswith("broken") for c in found))
