"""`dibs run`: all stages of a family, one after another."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

DESCRIPTION = (
    "Train teachers, build datasets, fit methods and evaluate them, then print the ratios. "
    "Files go to the default layout below --results. A later call skips every file whose id shows that nothing "
    "it depends on has changed, so an interrupted run resumes."
)


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("run", help="run all stages of a family", description=DESCRIPTION)
    parser.add_argument("family", metavar="FAMILY", help="name of a family, or a YAML file that describes one")
    parser.add_argument("--gap", type=int, metavar="N", help="train on every N-th index and the last one")
    parser.add_argument("--train", metavar="I,I,…", help="training indices, increasing, from 0 to the last index")
    parser.add_argument("--split", metavar="NAME", help="gapN, or the name of the indices in --train")
    parser.add_argument("--methods", default="dibs,dibs-plus", help="methods to fit (default: dibs,dibs-plus)")
    parser.add_argument("--seeds", type=int, default=1, metavar="N", help="run seeds 0 … N-1 (default: 1)")
    parser.add_argument("--rollouts", type=int, default=1000, help="rollouts per evaluated index (default: 1000)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where files go (default: results)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Run every stage that is not up to date."""
    from dibs.errors import DibsError
    from dibs.evaluation.evaluate import EvaluationSettings
    from dibs.families import find_benchmarks, get_family
    from dibs.methods import get_method
    from dibs.runs import Chain, method_settings
    from dibs.stages import ratios_of

    family = get_family(args.family)
    if (args.gap is None) + (args.split is None and not args.train) != 1:
        raise DibsError("name the training set by one of --gap 5, --train 0,3,7,20 or --split gap5")
    if args.seeds < 1:
        raise DibsError(f"--seeds: expected at least 1, found {args.seeds}")
    try:
        train = [int(i) for i in args.train.split(",")] if args.train else None
    except ValueError:
        raise DibsError(f"--train: expected indices such as 0,3,{family.last_index}, found {args.train!r}") from None
    name = f"gap{args.gap}" if args.gap is not None else args.split
    split = family.split(name, train) if name else family.split_of(train or ())
    methods = [get_method(name) for name in args.methods.split(",")]
    path = args.family if args.family.endswith((".yaml", ".yml")) else ""
    names = [f"{path}:{i}" if path else i for i in family.benchmark_ids]
    benchmarks = [find_benchmarks(name, exact=True)[0] for name in names]
    rows = []
    for seed in range(args.seeds):
        chain = Chain(family, split, seed, results=args.results, tell=lambda what, state: print(f"{what}: {state}"))
        measured = EvaluationSettings(rollouts=args.rollouts)
        for method in methods:
            for benchmark in benchmarks:
                table, _ = chain.evaluation(method, benchmark, method_settings(method), measured)
                ratios = ratios_of(table)
                rows.append([method.name, benchmark.id, seed, ratios["training_ratio"], ratios["zero_shot_ratio"]])
    from tabulate import tabulate

    print("\n" + tabulate(rows, ["method", "benchmark", "seed", "training", "zero-shot"], floatfmt=".3f"))
    print(f"\nresults: {args.results}")
