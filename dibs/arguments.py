"""What the stages' commands share: arguments, progress, provenance."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dibs.paths import Layout


def add_run(parser: argparse.ArgumentParser, what: str = "FAMILY") -> None:
    """Arguments that name a run: family or benchmark, gap, seed, where results live, settings."""
    if what == "FAMILY":
        parser.add_argument("family", metavar="FAMILY", help="a family's name, or the YAML file of one's own")
    else:
        parser.add_argument("benchmark", metavar="BENCHMARK", help="a benchmark's id, or FILE.yaml[:ID]")
    parser.add_argument("--gap", type=int, required=True, help="spacing of the training indices")
    parser.add_argument("--seed", type=int, default=0, help="seed of the run (default: 0)")
    parser.add_argument("--results", type=Path, default=Path("results"), help="root of results (default: results)")
    for stage in ("teachers", "datasets"):
        parser.add_argument(f"--{stage}", type=Path, metavar="ROOT", help=f"root of the {stage} (default: --results)")
    parser.add_argument(
        "--settings",
        default="",
        help="settings that differ from the defaults: JSON text, or a JSON or YAML file",
    )
    parser.add_argument("--output", type=Path, help="where to write (default: by the layout of --results)")
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")


def layout(args: argparse.Namespace) -> Layout:
    """The layout of results below `--results`, or where `--teachers` and `--datasets` say."""
    return Layout(args.results, args.teachers, args.datasets)


def reporter(args: argparse.Namespace, label: str, every: float = 5.0) -> Callable[[str], None]:
    """A progress callback that writes to standard error at most every few seconds."""
    last = time.monotonic()

    def progress(message: str) -> None:
        nonlocal last
        now = time.monotonic()
        if not args.quiet and now - last >= every:
            last = now
            print(f"{label}: {message}", file=sys.stderr, flush=True)

    return progress


def provenance(family: Any, settings: Any, *entries: str) -> dict[str, Any]:
    """What made a file: digests of the family, the settings and the code of the stage."""
    from dataclasses import asdict

    from dibs import __version__
    from dibs.provenance import code_digest, digest

    return {
        "version": __version__,
        "family_digest": family_digest(family),
        "config_digest": digest(asdict(settings)),
        "code_digest": code_digest(*entries),
        "states": list(family.dynamics.state_names),
    }


def family_digest(family: Any) -> str:
    """Digest of a family's description, but for prose and the list of gaps and benchmarks."""
    from dibs.provenance import digest

    return digest(family.model_dump(exclude={"description", "gaps", "benchmarks"}))
