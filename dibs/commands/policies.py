"""`dibs template`, `dibs policy` and `dibs rollout`: explain a model, take a policy away, run it, draw or film it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dibs.commands.arguments import add_model, add_run, chosen_model, whole_numbers


def register(subparsers: Any) -> None:
    """Add the commands."""
    template = subparsers.add_parser(
        "template",
        help="explain a template: class, what moves, how far to trust it",
        description="Print, for every edge of a model of any template class (polynomial, affine, motion, joined), the "
        "class, what moves per index, how far to trust it, and the success that the training evidence predicts.",
    )
    template.add_argument("model", type=Path, metavar="MODEL", help="file of a model with a template")
    template.add_argument(
        "--indices",
        type=whole_numbers,
        metavar="I,J,…",
        help="indices at which to predict success (default: 0 … 2L, 1000, 100000)",
    )
    template.set_defaults(run=run_template)

    policy = subparsers.add_parser(
        "policy",
        help="write the policy of one index, trained on or not",
        description="Write the policy of any method at one index (any index ≥ 0) as a file that needs no other: "
        "dibs.load reads it. Name a benchmark and a split, or the file of a model, which says both.",
    )
    add_run(policy, "BENCHMARK|MODEL", settings=False)
    policy.add_argument("--index", type=int, required=True, help="index of the task")
    policy.set_defaults(run=run_policy)

    rollout = subparsers.add_parser(
        "rollout",
        help="run a policy and draw, film or record it",
        description="Run a policy written by `dibs policy`, or a model's policy of one index. The output's suffix "
        "decides: .png or .pdf draws the trajectories, .gif or .mp4 films the first episode, .parquet records the "
        "states.",
    )
    rollout.add_argument("policy", metavar="POLICY|MODEL", help="file of a policy, or of a model together with --index")
    rollout.add_argument("--index", type=int, help="index of the task, if the file is a model")
    add_model(rollout)
    rollout.add_argument("--episodes", type=int, default=10, help="episodes to run (default: 10)")
    rollout.add_argument("--seed", type=int, default=0, help="seed of the first episode (default: 0)")
    rollout.add_argument(
        "--output", metavar="FILE", help="FILE.png, .pdf, .gif, .mp4 or .parquet (default: only print)"
    )
    rollout.set_defaults(run=run_rollout)


def run_template(args: argparse.Namespace) -> None:
    """Explain a template."""
    from dibs.methods import load_model
    from dibs.pipeline import open_model, results_of
    from dibs.templates.explanation import explain

    model, metadata = load_model(args.model)
    if results_of(args.model, metadata) is not None:
        open_model(args.model)  # refuses a model that was made from other teachers or datasets than those there
    lines = explain(model, str(args.model), args.indices)
    print("{method} {benchmark} {split} seed {seed}: ".format(**metadata) + "\n".join(lines))


def run_policy(args: argparse.Namespace) -> None:
    """Write the policy of one index."""
    from dibs.policy import IndexPolicy

    found = chosen_model(args)
    policy = IndexPolicy(found.method, found.model, found.benchmark, found.split, found.seed, args.index, found.id)
    policy.origin.check(args.expect)
    output = args.output or Path(f"{found.benchmark.id}-{args.index}.safetensors")
    policy.save(output)
    path = "".join(f": {' '.join(path)}" for path in policy.paths)
    print(f"{found.method.name} {found.benchmark.id} index {args.index}{path} → {output}")


def run_rollout(args: argparse.Namespace) -> None:
    """Run episodes, let the semantics decide, and draw, film or record them."""
    from dibs.drawing.rollouts import SUFFIXES, write_rollouts
    from dibs.errors import DibsError
    from dibs.files import check_suffix, read_metadata
    from dibs.pipeline import open_model
    from dibs.policy import IndexPolicy, load_policy

    if args.output:
        check_suffix(args.output, SUFFIXES)
    if read_metadata(args.policy).get("kind") != "model":
        policy = load_policy(args.policy)
        if args.index not in (None, policy.index):
            raise DibsError(f"{args.policy}: is a policy of index {policy.index}; leave out --index {args.index}")
    elif args.index is None:
        raise DibsError(f"{args.policy}: is a model; name an index of a task with --index")
    else:
        found = open_model(Path(args.policy), args.family, args.aim)
        policy = IndexPolicy(found.method, found.model, found.benchmark, found.split, found.seed, args.index, found.id)
    runs = policy.episodes(args.episodes, args.seed)
    for n, run in enumerate(runs):
        print(f"episode {n}: {len(run.states) - 1} steps, {'satisfied' if run.success else 'not satisfied'}")
    won = sum(bool(run.success) for run in runs)
    print(f"{won} of {len(runs)} episodes satisfy index {policy.index} ({policy.role})")
    if args.output:
        write_rollouts(args.output, policy.tasks, runs)
        print(args.output)
