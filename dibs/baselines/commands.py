"""`dibs baseline`: train one of the methods DIBS is compared with."""

from __future__ import annotations

import argparse
from typing import Any

from dibs.arguments import add_run, layout, provenance, reporter

METHODS = ("ars", "bc", "genrl", "maml", "varibad")  # the registry's; a test compares


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "baseline",
        help="train a method that DIBS is compared with",
        description="Train one method on the training indices of a benchmark. Writes the weights (.safetensors) "
        "with metrics (.json) and timing (.timing.json) beside them.",
    )
    parser.add_argument("method", metavar="METHOD", choices=METHODS, help=f"one of {', '.join(METHODS)}")
    add_run(parser, "BENCHMARK")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train, save, and print one line."""
    import time
    from pathlib import Path

    from dibs.baselines.registry import Run, get_baseline
    from dibs.families import benchmark_id, get_benchmark
    from dibs.files import write_json, write_tensors
    from dibs.paths import metrics, timing
    from dibs.settings import parse_settings

    began = time.perf_counter()
    baseline = get_baseline(args.method)
    settings: Any = parse_settings(baseline.settings, args.settings, "--settings")
    family, text = get_benchmark(args.benchmark)
    name = benchmark_id(args.benchmark)
    places = layout(args)
    label = f"{args.method} {family.name if baseline.per_family else name} gap {args.gap} seed {args.seed}"
    trained = baseline.train(
        Run(family, name, text, args.gap, args.seed, places, reporter(args, label)),
        settings,
    )
    output = Path(args.output or baseline.artefact(places, family, name, args.gap, args.seed))
    identity = {
        "kind": "baseline",
        "method": args.method,
        "family": family.name,
        **({} if baseline.per_family else {"benchmark": name}),
        "gap": args.gap,
        "seed": args.seed,
        "train": list(family.train_indices(args.gap)),
        "steps": trained.steps,
        **provenance(family, settings, baseline.module),
    }
    write_json(metrics(output), {**identity, "metrics": trained.metrics})
    seconds = time.perf_counter() - began
    write_json(timing(output), {"seconds": seconds})
    write_tensors(output, trained.tensors, {**identity, **trained.metadata})
    print(f"{label}: {trained.steps} steps in {seconds:.1f} s → {output}")
    return 0
