"""`dibs policy` and `dibs rollout`: take a policy away, run it, draw or film it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dibs.commands.arguments import add_run, chosen_split, model_file


def register(subparsers: Any) -> None:
    """Add the commands."""
    policy = subparsers.add_parser(
        "policy",
        help="write the policy of one index, trained on or not",
        description="Unroll a fitted template to one index (any index ≥ 0) and write the composed policy as a file "
        "that needs no other: dibs.evaluation.policy.load_policy reads it.",
    )
    add_run(policy, "BENCHMARK", settings=False)
    policy.add_argument("--index", type=int, required=True, help="index of the task")
    policy.add_argument("--method", default="dibs", help="method whose template is unrolled (default: dibs)")
    policy.add_argument("--model", type=Path, metavar="FILE", help="the method's model (default: in --results)")
    policy.set_defaults(run=run_policy)

    rollout = subparsers.add_parser(
        "rollout",
        help="run a policy and draw, film or record it",
        description="Run a policy written by `dibs policy`. The output's suffix decides: .png or .pdf draws the "
        "trajectories, .gif or .mp4 films the first episode, .parquet records the states.",
    )
    rollout.add_argument("policy", metavar="POLICY", help="file written by `dibs policy`")
    rollout.add_argument("--episodes", type=int, default=10, help="episodes to run (default: 10)")
    rollout.add_argument("--seed", type=int, default=0, help="seed of the first episode (default: 0)")
    rollout.add_argument(
        "--output", metavar="FILE", help="FILE.png, .pdf, .gif, .mp4 or .parquet (default: only print)"
    )
    rollout.set_defaults(run=run_rollout)


def run_policy(args: argparse.Namespace) -> None:
    """Unroll, save, and print the path taken."""
    from dibs.evaluation.policy import policy_at, save_policy
    from dibs.families import get_benchmark
    from dibs.methods import get_method
    from dibs.pipeline import Unit, read_model
    from dibs.provenance import Origin

    benchmark = get_benchmark(args.benchmark)
    method = get_method(get_method(args.method).model_method)
    split = chosen_split(args, benchmark.family)
    unit = Unit.of(method, benchmark)
    file, checked = model_file(args, method, benchmark, split)
    model, found = read_model(file, method, unit, split, args.seed, checked)
    policy = policy_at(model, str(file), benchmark.family, benchmark.specification, args.index)
    identity = {
        "method": args.method,
        "family": benchmark.family.name,
        "benchmark": benchmark.id,
        "split": split.name,
        "seed": args.seed,
        "index": args.index,
    }
    origin = Origin("policy", identity, policy.tasks.digest, "", {}, (found["id"],))
    origin.check(args.expect)
    output = args.output or Path(f"{benchmark.id}-{args.index}.safetensors")
    save_policy(output, policy, origin)
    print(f"{args.method} {benchmark.id} index {args.index}: {' '.join(policy.path)} → {output}")


def run_rollout(args: argparse.Namespace) -> None:
    """Run episodes, let the semantics decide, and draw, film or record them."""
    from dibs.drawing.regions import Trajectory
    from dibs.drawing.rollouts import SUFFIXES, write_rollouts
    from dibs.drawing.style import check_output
    from dibs.evaluation.policy import load_policy

    if args.output:
        check_output(args.output, SUFFIXES)
    policy = load_policy(args.policy)
    runs = policy.episodes(args.episodes, args.seed)
    for n, (states, won) in enumerate(runs):
        print(f"episode {n}: {len(states) - 1} steps, {'satisfied' if won else 'not satisfied'}")
    print(f"{sum(won for _, won in runs)} of {len(runs)} episodes satisfy index {policy.index}")
    if args.output:
        shown = [Trajectory(policy.index, policy.role, states) for states, _ in runs]
        write_rollouts(args.output, policy.tasks, shown)
        print(args.output)
