"""`dibs evaluate`: the satisfaction rate of a method's policies at every index of a benchmark."""

from __future__ import annotations

import argparse
from typing import Any

from dibs.arguments import add_run, layout, provenance


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "evaluate",
        help="measure a method's policies at every index of a benchmark",
        description="Roll out the policies of indices 0 … L (and L+1 … 2L), let the SPECTRL semantics decide which "
        "rollouts satisfy the specification, and write one row per index.",
    )
    add_run(parser, "BENCHMARK")
    parser.add_argument("--method", default="dibs", help="method whose policies are measured (default: dibs)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Evaluate, save, and print the three ratios."""
    from pathlib import Path

    from dibs.evaluation.evaluate import EvaluationSettings, roles, save_evaluation, summarise
    from dibs.evaluation.methods import satisfied_counts
    from dibs.families import get_benchmark
    from dibs.settings import parse_settings

    family, text = get_benchmark(args.benchmark)
    settings = parse_settings(EvaluationSettings, args.settings, "--settings")
    role = roles(family.last_index, family.train_indices(args.gap), settings.beyond)
    identity_name = args.benchmark.rpartition(":")[2].removesuffix(".yaml").rpartition("/")[2]
    name = identity_name if identity_name in family.benchmark_ids else family.benchmark_ids[0]
    places = layout(args)
    counts = satisfied_counts(args.method, family, text, name, args.gap, args.seed, list(role), settings, places)
    output = Path(args.output or places.evaluation(args.method, name, args.gap, args.seed))
    identity = {
        "method": args.method,
        "benchmark": name,
        "family": family.name,
        "gap": args.gap,
        "seed": args.seed,
    }
    made = provenance(family, settings, "dibs.evaluation.methods", "dibs.evaluation.evaluate")
    table = save_evaluation(output, counts, role, settings, {**identity, **made})
    s = summarise(table["role"].to_pylist(), table["succeeds"].to_pylist())
    print(
        f"{args.method} {name} gap {args.gap} seed {args.seed}: training {s['training_ratio']:.3f}  "
        f"zero-shot {s['zero_shot_ratio']:.3f} ({s['zero_shot_count']:.0f})  beyond {s['beyond_ratio']:.3f}  → {output}"
    )
    return 0
