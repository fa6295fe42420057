"""`dibs evaluate`, `dibs policy`, `dibs rollout`: measure, take away, and watch a method's policies."""

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

    policy = subparsers.add_parser(
        "policy",
        help="write the policy of one index, seen or not",
        description="Unroll a fitted template to one index (any index ≥ 0) and write the composed policy as a file "
        "that stands alone: dibs.evaluation.policy.load_policy reads it.",
    )
    add_run(policy, "BENCHMARK")
    policy.add_argument("--index", type=int, required=True, help="index of the task")
    policy.add_argument("--method", default="dibs", help="template to unroll (default: dibs)")
    policy.set_defaults(run=run_policy)

    rollout = subparsers.add_parser(
        "rollout",
        help="run a policy and draw or record it",
        description="Run a policy written by `dibs policy` in its Gymnasium environment. The output's suffix decides: "
        ".png or .pdf draws the trajectories, .gif films the first episode, .parquet records the states.",
    )
    rollout.add_argument("policy", metavar="POLICY", help="file written by `dibs policy`")
    rollout.add_argument("--episodes", type=int, default=10, help="episodes to run (default: 10)")
    rollout.add_argument("--seed", type=int, default=0, help="seed of the first episode (default: 0)")
    rollout.add_argument("--output", metavar="FILE", help="FILE.png, .pdf, .gif or .parquet (default: only print)")
    rollout.set_defaults(run=run_rollout)


def run(args: argparse.Namespace) -> int:
    """Evaluate, save, and print the three ratios."""
    from pathlib import Path

    from dibs.evaluation.evaluate import EvaluationSettings, roles, save_evaluation, summarise
    from dibs.evaluation.methods import Case, get_method
    from dibs.families import benchmark_id, get_benchmark
    from dibs.settings import parse_settings

    method = get_method(args.method)
    family, text = get_benchmark(args.benchmark)
    settings = parse_settings(EvaluationSettings, args.settings, "--settings")
    role = roles(family.last_index, family.train_indices(args.gap), settings.beyond, settings.unseen)
    name = benchmark_id(args.benchmark)
    places = layout(args)
    case = Case(family, name, text, args.gap, args.seed, places)
    counts = method.counter()(family, text, method.artefact(case), args.seed, list(role), settings)
    output = Path(args.output or places.evaluation(args.method, name, args.gap, args.seed))
    identity = {
        "method": args.method,
        "benchmark": name,
        "specification": text,
        "family": family.name,
        "gap": args.gap,
        "seed": args.seed,
        "steps": method.steps(case),
    }
    made = provenance(family, settings, "dibs.evaluation.evaluate", method.module)
    table = save_evaluation(output, counts, role, settings, {**identity, **made})
    s = summarise(table["role"].to_pylist(), table["succeeds"].to_pylist())
    print(
        f"{args.method} {name} gap {args.gap} seed {args.seed}: training {s['training_ratio']:.3f}  "
        f"zero-shot {s['zero_shot_ratio']:.3f} ({s['zero_shot_count']:.0f})  beyond {s['beyond_ratio']:.3f}  → {output}"
    )
    return 0


def run_policy(args: argparse.Namespace) -> int:
    """Unroll, save, and print the path taken."""
    from pathlib import Path

    from dibs.evaluation.evaluate import EvaluationSettings
    from dibs.evaluation.methods import Case, get_method
    from dibs.evaluation.policy import policy_at, save_policy
    from dibs.families import benchmark_id, get_benchmark
    from dibs.templates.branched import load_any

    family, text = get_benchmark(args.benchmark)
    case = Case(family, benchmark_id(args.benchmark), text, args.gap, args.seed, layout(args))
    template = load_any(get_method(args.method).artefact(case))
    policy = policy_at(template, family, text, args.index)
    output = Path(args.output or f"{case.benchmark}-{args.index}.safetensors")
    made = provenance(family, EvaluationSettings(), "dibs.evaluation.policy")
    save_policy(output, policy, {"method": args.method, "gap": args.gap, "seed": args.seed, **made})
    print(f"{args.method} {args.benchmark} index {args.index}: {' '.join(policy.path)} → {output}")
    return 0


def run_rollout(args: argparse.Namespace) -> int:
    """Run episodes, let the monitor decide, and draw or record them."""
    from dibs.evaluation.policy import load_policy
    from dibs.evaluation.show import episodes, show

    policy = load_policy(args.policy)
    film = str(args.output or "").endswith(".gif")
    runs = episodes(policy, args.episodes, args.seed, film)
    for n, run in enumerate(runs):
        print(f"episode {n}: {len(run.states) - 1} steps, {'satisfied' if run.satisfied else 'not satisfied'}")
    print(f"{sum(run.satisfied for run in runs)} of {len(runs)} episodes satisfy index {policy.index}")
    if args.output:
        show(policy, runs, args.output)
        print(args.output)
    return 0
