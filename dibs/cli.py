"""The command line, `dibs COMMAND …`: what people and the workflow's rules call."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

# One thread per job, before numpy is imported: jobs share the cores, and sums keep their order.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

from dibs import __version__, registry  # noqa: E402
from dibs.errors import DibsError  # noqa: E402
from dibs.progress import write_to  # noqa: E402

# Modules of dibs.commands, in the order in which `dibs --help` lists their commands.
COMMANDS = ("run", "families", "requires", "controls", "stages", "policies", "reports", "config")

EPILOG = """a first session:
  dibs benchmarks                                       list the tasks that are installed
  dibs draw car2d-reach-k2 --index 0 9 --output k2.png  look at some of them
  dibs family car2d-reach > mine.yaml                   print a family, to edit and rename
  dibs run mine.yaml --gap 5 --cores 4                  train, fit and measure it: all stages in one

`dibs COMMAND --help` explains a command."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status; errors that the user can fix are one message."""
    args = parser().parse_args(argv)
    if args.allow_code:
        registry.allow_code()
    try:
        if args.log is not None:
            write_to(args.log)
        status = args.run(args)
        sys.stdout.flush()  # a closed pipe raises here, not at exit
        return int(status or 0)
    except BrokenPipeError:  # `dibs … | head`: not an error
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        if args.debug:
            raise
        return 130
    except DibsError as error:
        if args.debug:
            raise
        return _complain(str(error))
    except OSError as error:
        if args.debug or error.filename is None:
            raise
        return _complain(f"{error.filename}: {error.strerror}")


def parser() -> argparse.ArgumentParser:
    """Build the parser with the commands of every stage."""
    top = argparse.ArgumentParser(
        prog="dibs",
        description="Inductive generalization in reinforcement learning from specifications.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"dibs {__version__}")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    top.add_argument(
        "--allow-code",
        action="store_true",
        help="allow families to name code that runs (environment.simulator; also with DIBS_ALLOW_CODE=1)",
    )
    top.add_argument("--log", type=Path, metavar="FILE", help="write all output to this file instead of the terminal")
    subparsers = top.add_subparsers(metavar="COMMAND", required=True)
    for module in COMMANDS:
        importlib.import_module(f"dibs.commands.{module}").register(subparsers)
    for command in subparsers.choices.values():  # so that these may follow the command, too
        command.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        command.add_argument("--log", type=Path, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    return top


def _complain(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
