"""`dibs requires`: what a benchmark requires, the first thing to ask of a family."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from dibs.commands.arguments import add_quiet

DESCRIPTION = (
    "Measure what a benchmark requires: nothing (a policy that does not know the index solves it), motion (the teacher "
    "of index 0, moved along with its task, solves it), or more. It takes a few minutes per benchmark."
)


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser("requires", help="measure what a benchmark requires", description=DESCRIPTION)
    parser.add_argument(
        "benchmark",
        metavar="BENCHMARK",
        help="id of a benchmark, a pattern such as 'car2d-*', or FAMILY.yaml:ID; a family or FAMILY.yaml for all its "
        "benchmarks",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE.json", help="add the answers to this file (default: in --results)"
    )
    parser.add_argument("--seed", type=int, default=1000, help="seed of the search (default: 1000)")
    parser.add_argument(
        "--results",
        type=Path,
        help="keep the teacher of index 0 below this folder, in requirements/work, or read it from there",
    )
    parser.add_argument(
        "--settings", default="", help="settings of the search that differ from the defaults: JSON text, or a file"
    )
    add_quiet(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Measure one benchmark after the other; answers are written as they come."""
    from dibs.errors import DibsError
    from dibs.evaluation.requirements import Measurement, RequirementSettings
    from dibs.families import find_benchmarks, show_warnings
    from dibs.files import read_json, write_json
    from dibs.methods import get_method
    from dibs.paths import Layout
    from dibs.progress import display
    from dibs.runs import Chain, densest_split, method_settings
    from dibs.settings import parse_settings
    from dibs.spectrl import parse
    from dibs.spectrl.stages import stages_of

    settings = parse_settings(RequirementSettings, args.settings, "--settings")
    if args.output is not None and args.output.suffix != ".json":
        raise DibsError(f"{args.output}: expected a name that ends in .json")
    layout = None if args.results is None else Layout(args.results)
    work = None if layout is None else layout.requirements_work.root
    motion, chains = get_method("motion"), dict[str, Chain]()
    policies: dict[str, dict[str, Any]] = {}
    # Long benchmarks first: their policies are tried on others of the family.
    chosen = sorted(
        find_benchmarks(args.benchmark), key=lambda b: (b.family.name, -stages_of(parse(b.specification)).depth)
    )
    with display(not args.quiet) as shown:
        for benchmark in chosen:
            family = benchmark.family
            show_warnings(family)
            if family.name not in chains:
                split = densest_split(family)
                chains[family.name] = Chain(family, split, args.seed, results=work, display=shown)
            chain = chains[family.name]
            model = chain.model(motion, benchmark, method_settings(motion))
            shown.begin(benchmark.id)
            measurement = Measurement(
                benchmark, model, chain.split.indices, settings, args.seed, policies.get(family.name, {})
            )
            found = measurement.run(lambda text, *_, name=benchmark.id: shown.report(name, text))
            shown.finish(benchmark.id, f"{found.seconds:.0f} s, {found.steps:,} steps")
            print(f"{benchmark.id}: {found.sentence}", flush=True)
            output = args.output or (None if layout is None else layout.requirements(family.name))
            if output is not None:
                answers = read_json(output) if output.is_file() else {}
                write_json(output, dict(sorted({**answers, benchmark.id: found.data()}.items())))
