"""`dibs benchmarks`, `dibs spec`, `dibs family`, `dibs draw`: look at families before training."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dibs.families import Family
    from dibs.spectrl import Edge, Region

Row = dict[str, Any]

WIDTH = 45
"""Characters of a specification that tables for reading show."""


def register(subparsers: Any) -> None:
    """Add the commands of this stage."""
    a_benchmark = "a benchmark of `dibs benchmarks`, or FILE.yaml, or FILE.yaml:ID"

    add = subparsers.add_parser("benchmarks", help="list the registered benchmarks, or those of a family file")
    add.add_argument("file", nargs="?", metavar="FAMILY.yaml", help="list this family's benchmarks instead")
    add.add_argument("--format", choices=FORMATS, default="table", help="csv and json show everything in full")
    add.set_defaults(run=run_benchmarks)

    add = subparsers.add_parser("spec", help="show the specification of one task")
    add.add_argument("name", metavar="NAME", help=a_benchmark)
    add.add_argument("--index", type=int, default=0, metavar="I", help="the task's index (default 0)")
    add.set_defaults(run=run_spec)

    add = subparsers.add_parser("family", help="print a family as YAML, as a starting point for a custom one")
    add.add_argument("name", metavar="NAME", help="a registered family, or FILE.yaml")
    add.set_defaults(run=run_family)

    add = subparsers.add_parser("draw", help="draw the regions of one or more tasks")
    add.add_argument("name", metavar="NAME", help=a_benchmark)
    add.add_argument("--index", type=int, nargs="+", default=[0], metavar="I", help="indices (default 0)")
    add.add_argument("--output", required=True, metavar="F.png|F.pdf", help="where the drawing goes")
    add.add_argument("--trajectories", metavar="FILE.parquet", help="recorded rollouts to draw as well")
    add.set_defaults(run=run_draw)


# --- dibs benchmarks -------------------------------------------------------------------------------------


def run_benchmarks(args: argparse.Namespace) -> None:
    """List benchmarks: one row each."""
    from dibs.families import benchmarks, get_family, show_warnings

    names = list(benchmarks())
    if args.file is not None:
        show_warnings(get_family(args.file))
        names = [f"{args.file}:{name}" for name in get_family(args.file).benchmark_ids]
    print(FORMATS[args.format]([benchmark_row(name) for name in names]))


def benchmark_row(name: str) -> Row:
    """Return what `dibs benchmarks` shows of one benchmark."""
    from dibs.evaluation.requirements import UNKNOWN, known_requirement
    from dibs.families import get_benchmark
    from dibs.spectrl import graph, parse

    benchmark = get_benchmark(name)
    family, text = benchmark.family, benchmark.specification
    answer = known_requirement(benchmark)
    return {
        "benchmark": benchmark.id,
        "requires": UNKNOWN if answer is None else answer.group,
        "index_free": None if answer is None else answer.index_free,
        "motion": None if answer is None else answer.motion,
        "environment": family.environment.name,
        "edges": len(graph(parse(text)).edges),
        "L": family.last_index,
        "horizon": family.horizon,
        "network": list(family.network.hidden),
        "teacher": family.teacher,
        "specification": text,
    }


def shorten(specification: str, width: int = WIDTH) -> str:
    """Shorten a specification: `g` for reach(g), `!g` for avoid(g), the middle of chains left out."""
    text = " ".join(specification.split()).replace("achieve ", "")
    text = re.sub(r"\breach\((\w+)\)", r"\1", text)
    text = re.sub(r"\bavoid\((\w+)\)", r"!\1", text)
    text = re.sub(r"\((!?\w+)\)", r"\1", text)
    text = re.sub(r"(!?\w+)(; | & | \| | or )(?:!?\w+\2)+(?=!?\w)", r"\1\2…\2", text)
    if len(text) <= width:
        return text
    tail = width // 3
    return f"{text[: width - tail - 3].rstrip()} … {text[-tail:].lstrip()}"


def _text(rows: Sequence[Row], style: str) -> str:
    from tabulate import tabulate

    shown = [
        {key: value for key, value in row.items() if key not in ("index_free", "motion")}
        | {"network": "×".join(map(str, row["network"])), "specification": shorten(row["specification"])}
        for row in rows
    ]
    if style == "github":
        shown = [{key: str(value).replace("|", "\\|") for key, value in row.items()} for row in shown]
    return tabulate(shown, headers="keys", tablefmt=style, disable_numparse=True)


def _csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row | {"network": "×".join(map(str, row["network"]))} for row in rows)
    return text.getvalue().rstrip("\n")


FORMATS: dict[str, Callable[[Sequence[Row]], str]] = {
    "table": lambda rows: _text(rows, "plain"),
    "csv": _csv,
    "json": lambda rows: json.dumps(list(rows), indent=2, ensure_ascii=False),
    "md": lambda rows: _text(rows, "github"),
}


# --- dibs spec -------------------------------------------------------------------------------------------


def run_spec(args: argparse.Namespace) -> None:
    """Show one task: specification, regions at its index, initial states, edges and paths."""
    from dibs.evaluation.requirements import UNKNOWN, known_requirement
    from dibs.families import get_benchmark, show_warnings
    from dibs.spectrl import graph, parse, regions_of

    benchmark = get_benchmark(args.name)
    show_warnings(benchmark.family)
    family, text = benchmark.family, benchmark.specification
    regions = family.regions_at(args.index)
    spec = parse(text)
    used = regions_of(spec)
    abstract = graph(spec)
    beyond = f", beyond L = {family.last_index}" if args.index > family.last_index else ""
    print(
        f"{args.name} at index {args.index}{beyond}",
        f"({family.environment.name}, {family.horizon} steps per edge)",
    )
    answer = known_requirement(benchmark)
    print(f"requires {f'{UNKNOWN}: dibs requires {args.name}' if answer is None else answer.sentence}")
    print(f"\nspecification\n  {' '.join(text.split())}")
    _section("regions", [(name, _region(family, region)) for name, region in regions.items() if name in used])
    _section("start (normal, truncated at one standard deviation)", _start(family, args.index))
    _section("edges", [(edge.name, _edge(edge)) for edge in abstract.edges])
    paths = [" → ".join(edge.name for edge in path) for path in abstract.paths()]
    _section("paths", [(str(number), path) for number, path in enumerate(paths, 1)])


def _section(title: str, lines: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in lines)
    print(f"\n{title}")
    for name, text in lines:
        print(f"  {name.ljust(width)}  {text}")


def _region(family: Family, region: Region) -> str:
    """Describe a region in one line."""
    names, normal = family.environment.state_names, region.arrays()["normal"]
    if normal.any():
        terms = " + ".join(f"{n:.4g}·{name}" for name, n in zip(names, normal, strict=True) if n)
        return f"{terms} ≥ {float(region.offset):.4g}"
    fixed = [(name, c, h) for name, c, h in zip(names, region.center, region.reach, strict=True) if math.isfinite(h)]
    if region.radius > 0:
        center = ", ".join(f"{c:.4g}" for _, c, _ in fixed)
        return f"({', '.join(name for name, _, _ in fixed)}) within {float(region.radius):.4g} of ({center})"
    return ", ".join(f"{name} in [{c - h:.4g}, {c + h:.4g}]" for name, c, h in fixed) or "anywhere"


def _edge(edge: Edge) -> str:
    return f"achieve {edge.target}" + (f" ensuring {edge.safe}" if edge.safe is not None else "")


def _start(family: Family, index: int) -> list[tuple[str, str]]:
    tasks, derived = family.tasks([index]), family.environment.derived
    names = family.environment.state_names
    reset = [False] * len(names) if tasks.start_reset is None else tasks.start_reset[0]
    return [
        (name, "as the environment's reset draws it" if drawn else f"{center:.4g} ± {half:.4g}")
        for name, center, half, drawn in zip(names, tasks.start_center[0], tasks.start_half[0], reset, strict=True)
        if name not in derived
    ]


# --- dibs family and dibs draw ---------------------------------------------------------------------------


def run_family(args: argparse.Namespace) -> None:
    """Print a family's description as YAML."""
    from dibs.families import get_family

    print(get_family(args.name).to_yaml(), end="")


def run_draw(args: argparse.Namespace) -> None:
    """Draw tasks."""
    from dibs.drawing.rollouts import read_trajectories
    from dibs.drawing.style import FORMATS as FIGURES
    from dibs.drawing.style import save
    from dibs.drawing.tasks import figure_task
    from dibs.families import get_benchmark, show_warnings
    from dibs.files import check_suffix

    check_suffix(args.output, FIGURES)
    benchmark = get_benchmark(args.name)
    show_warnings(benchmark.family)
    indices = sorted(set(args.index))
    tasks = benchmark.family.tasks(indices, benchmark.specification)
    between = benchmark.family.tasks(range(indices[0], indices[-1] + 1), benchmark.specification)
    shown = read_trajectories(args.trajectories, tasks) if args.trajectories else []
    save(figure_task(tasks, shown, between), args.output)
    print(args.output)
