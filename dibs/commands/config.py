"""`dibs config`: check a config before anything is run; print its JSON schema for editors."""

from __future__ import annotations

import argparse
from typing import Any


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "config",
        help="check a config of the workflow, or print its JSON schema",
        description="Check a config of the workflow, or print the JSON schema by which editors complete and check it.",
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        help="list everything that is wrong with a config, or count what it makes",
        description="Check config files, each merged over those before it as `snakemake --configfile` does.",
    )
    check.add_argument("files", nargs="+", metavar="FILE", help="such as config.yaml, or config.yaml config/demo.yaml")
    check.set_defaults(run=run_check)
    actions.add_parser("schema", help="print the JSON schema").set_defaults(run=run_schema)


def run_check(args: argparse.Namespace) -> None:
    """Check, and count what the config makes."""
    from dibs.studies.checks import load_config
    from dibs.studies.plan import Plan

    config = load_config(*args.files)
    counts = ", ".join(f"{count} {stage}" for stage, count in Plan(config).counts().items())
    print(
        f"{' + '.join(args.files)}: valid. {len(config.chosen)} benchmarks of {len(config.families)} families, "
        f"{len(config.methods)} methods, {len(config.seeds)} seeds: {counts}"
    )


def run_schema(args: argparse.Namespace) -> None:
    """Print the schema that config/schema.json holds."""
    from dibs.studies.checks import json_schema

    print(json_schema(), end="")
