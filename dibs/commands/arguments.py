"""Arguments that the commands of the stages share."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dibs.errors import DibsError
from dibs.paths import BASE, Layout
from dibs.progress import Reporter, display, tensorboard

if TYPE_CHECKING:
    from dibs.families import Family, Split
    from dibs.pipeline import OpenedModel


def add_run(parser: argparse.ArgumentParser, what: str = "FAMILY", settings: bool = True) -> None:
    """Add the arguments that name a run: family, benchmark or model, split, seed, results, settings, output."""
    if what == "FAMILY":
        parser.add_argument("family", metavar="FAMILY", help="name of a family, or a YAML file that describes one")
    elif what == "BENCHMARK":
        parser.add_argument("benchmark", metavar=what, help="id of a benchmark, or FILE.yaml[:ID]")
    else:
        parser.add_argument(
            "benchmark", metavar=what, help="id of a benchmark, FILE.yaml[:ID], or a model, MODEL.safetensors"
        )
        add_model(parser)
        parser.add_argument("--method", help="method (default: dibs, or that of the model)")
        parser.add_argument("--model", type=Path, metavar="FILE", help="the method's model (default: in --results)")
    add_training_set(parser)
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the run (default: 0)")
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        metavar="DIR",
        help="folder of results, in which files that are not named are read and written (default: results)",
    )
    if settings:
        parser.add_argument(
            "--settings",
            default="",
            metavar="JSON|FILE",
            help="settings that differ from the defaults: JSON text, or a JSON or YAML file",
        )
    parser.add_argument("--output", type=Path, metavar="FILE", help="where to write (default: in --results)")
    parser.add_argument("--expect", default="", metavar="ID", help="fail unless the output would have this id")
    add_quiet(parser)


def add_tensorboard(parser: argparse.ArgumentParser) -> None:
    """Add where event files go."""
    parser.add_argument("--tensorboard", type=Path, metavar="DIR", help="write event files for TensorBoard into DIR")


def add_training_set(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a training set."""
    group = parser.add_argument_group("training set", "one of --gap, --train and --split")
    group.add_argument("--gap", type=int, metavar="N", help="train on every N-th index and the last one")
    group.add_argument("--train", metavar="I,I,…", help="training indices: increasing, from 0 to the last index")
    group.add_argument("--split", metavar="NAME", help="gapN, or a name for the indices in --train")
    parser.set_defaults(usage_error=parser.error)


def add_methods(parser: argparse.ArgumentParser, usual: str) -> None:
    """Add the argument that names methods; `chosen_methods` reads it."""
    about = f"methods, of `dibs methods` (default: {usual})"
    parser.add_argument("--methods", default=usual, metavar="NAME,NAME,…", help=about)


def chosen_methods(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the names of the methods that the arguments list, each once."""
    from dibs.methods import get_method

    return tuple(dict.fromkeys(get_method(name.strip()).name for name in args.methods.split(",")))


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add what turns progress off."""
    parser.add_argument("--quiet", action="store_true", help="no progress on standard error")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add what a model's file does not say."""
    parser.add_argument("--family", metavar="FILE", help="family of a model, if it is not a registered one")
    parser.add_argument("--benchmark", dest="aim", metavar="ID", help="benchmark of a model that serves several")


def chosen_model(args: argparse.Namespace) -> OpenedModel:
    """Read the model that the arguments name: a file, or the one of a benchmark, method, split and seed."""
    from dibs.families import get_benchmark
    from dibs.methods import get_method
    from dibs.pipeline import OpenedModel, Unit, open_model, read_model

    if args.benchmark.endswith(".safetensors"):
        if args.split or args.train or args.gap is not None or args.model:
            args.usage_error("a model's file names its split: leave out --gap, --train, --split and --model")
        found = open_model(Path(args.benchmark), args.family, args.aim)
        method = get_method(args.method or found.method.name)
        if method.model_method != found.method.name:
            raise DibsError(
                f"{args.benchmark}: is a model of {found.method.name}, which {method.name} is not measured on"
            )
        return replace(found, method=method)
    if args.family or args.aim:
        args.usage_error("--family and --benchmark describe a model's file")
    method, benchmark = get_method(args.method or "dibs"), get_benchmark(args.benchmark)
    split, trained = chosen_split(args, benchmark.family), get_method(method.model_method)
    unit = Unit.of(trained, benchmark)
    # Only the model itself is read if it is given: the files next to it need not be those it was made from.
    files = None if args.model else layout(args)
    file = args.model or layout(args).model(trained.name, unit.name, split.name, args.seed)
    model, metadata = read_model(file, trained, unit, split, args.seed, files)
    return OpenedModel(method, model, benchmark, split, args.seed, metadata["id"], layout(args))


def chosen_split(args: argparse.Namespace, family: Family) -> Split:
    """Return the split that the arguments name."""
    if (args.gap is not None) + bool(args.split or args.train) != 1:
        args.usage_error("name the training set by one of --gap 5, --train 0,3,7,20 and --split gap5")
    try:
        train = [int(i) for i in args.train.split(",")] if args.train else None
    except ValueError:
        raise DibsError(f"--train: expected indices such as 0,3,7,{family.last_index}, found {args.train!r}") from None
    if args.split == BASE and not train:  # the teacher of index 0 is the same in all splits
        return family.split(BASE, (0, family.last_index))
    name = f"gap{args.gap}" if args.gap is not None else args.split
    return family.split(name, train) if name else family.split_of(train or ())


def whole_numbers(text: str) -> tuple[int, ...]:
    """Parse numbers such as 1000,100000."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = (-1,)
    if min(found) < 0:
        raise argparse.ArgumentTypeError(f"expected indices such as 1000,100000, found {text!r}")
    return found


MOST_SEEDS = 100


def seeds(text: str) -> tuple[int, ...]:
    """Parse a number of seeds, 3 for 0, 1, 2, or a list such as 10,11,12; a comma makes one number a list."""
    try:
        listed = [int(part) for part in text.split(",") if part]
    except ValueError:
        listed = []
    if "," not in text and listed and listed[0] > MOST_SEEDS:
        raise argparse.ArgumentTypeError(f"{text} seeds are too many; write '{text},' for the one seed {text}")
    found = tuple(listed) if "," in text or not listed else tuple(range(listed[0]))
    if not found or min(found) < 0 or len(set(found)) < len(found):
        raise argparse.ArgumentTypeError(f"expected a count ≥ 1 or different seeds such as 10,11,12, found {text!r}")
    return found


def layout(args: argparse.Namespace) -> Layout:
    """Return the default layout below `--results`."""
    return Layout(args.results)


@contextmanager
def writing(args: argparse.Namespace, files: Layout, family: Family, default: Path) -> Iterator[Path]:
    """Yield where a command writes; in the default layout, keep the family's description next to its results."""
    from dibs.pipeline import check_description, keep_description

    if args.output is not None:
        yield args.output
        return
    check_description(files, family)
    yield default
    keep_description(files, family)


def teacher_chain(files: Layout, family: Family, split: Split, last: int, seed: int) -> dict[int, Path]:
    """Return the teachers up to a training index in the default layout: what may have changed since."""
    return {i: files.teacher(family.name, split.name, i, seed) for i in split.indices if i <= last}


@contextmanager
def reporting(args: argparse.Namespace, what: str) -> Iterator[Reporter]:
    """Yield what a stage reports to: a display, and event files if they are asked for."""
    with display(not args.quiet) as shown:
        shown.begin(what)

        def report(message: str, done: float | None = None, step: float | None = None, values: Any = None) -> None:
            shown.report(what, message, done)

        with tensorboard(args.tensorboard, report) as reporter:
            yield reporter
