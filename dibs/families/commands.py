"""`dibs benchmarks`, `dibs spec`, `dibs family`, `dibs draw`: look at families before training."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dibs.families import Family
    from dibs.spectrl import Box, Edge

Row = dict[str, Any]

WIDTH = 72
"""Characters of a specification that the tables for reading show."""


def register(subparsers: Any) -> None:
    """Add the commands of this stage."""
    a_benchmark = "a benchmark of `dibs benchmarks`, or FILE.yaml, or FILE.yaml:ID"

    add = subparsers.add_parser("benchmarks", help="list the benchmarks, the paper's or a family file's")
    add.add_argument("file", nargs="?", metavar="FAMILY.yaml", help="list this family's benchmarks instead")
    add.add_argument("--format", choices=FORMATS, default="table", help="csv and json show everything in full")
    add.set_defaults(run=run_benchmarks)

    add = subparsers.add_parser("spec", help="show the specification of one task")
    add.add_argument("name", metavar="NAME", help=a_benchmark)
    add.add_argument("--index", type=int, default=0, metavar="I", help="the task's index (default 0)")
    add.set_defaults(run=run_spec)

    add = subparsers.add_parser("family", help="print a family as YAML, to start one's own from")
    add.add_argument("name", metavar="NAME", help="a family of the paper, or FILE.yaml")
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
    from dibs.families import benchmarks, get_family

    names = list(benchmarks())
    if args.file is not None:
        names = [f"{args.file}:{name}" for name in get_family(args.file).benchmark_ids]
    FORMATS[args.format]([benchmark_row(name) for name in names])


def benchmark_row(name: str) -> Row:
    """What `dibs benchmarks` tells about one benchmark."""
    from dibs.families import get_benchmark
    from dibs.spectrl import graph, parse

    family, text = get_benchmark(name)
    return {
        "benchmark": name.partition(":")[2] or name,
        "environment": family.environment.name,
        "edges": len(graph(parse(text)).edges),
        "L": family.last_index,
        "horizon": family.horizon,
        "network": list(family.network.hidden),
        "teacher": family.teacher,
        "specification": text,
    }


def shorten(specification: str, width: int = WIDTH) -> str:
    """Say a specification briefly: `g` for reach(g), `!g` for avoid(g), the middle of chains left out."""
    text = " ".join(specification.split()).replace("achieve ", "")
    text = re.sub(r"\breach\((\w+)\)", r"\1", text)
    text = re.sub(r"\bavoid\((\w+)\)", r"!\1", text)
    text = re.sub(r"\((!?\w+)\)", r"\1", text)
    text = re.sub(r"(!?\w+)(; | & | \| | or )(?:!?\w+\2)+(?=!?\w)", r"\1\2…\2", text)
    if len(text) <= width:
        return text
    tail = width // 3
    return f"{text[: width - tail - 3].rstrip()} … {text[-tail:].lstrip()}"


def _cells(rows: Sequence[Row], brief: bool) -> list[list[str]]:
    """Header and rows as text."""
    cells = [list(rows[0])]
    for row in rows:
        shown = row | {"network": "×".join(map(str, row["network"]))}
        if brief:
            shown["specification"] = shorten(row["specification"])
        cells.append([str(value) for value in shown.values()])
    return cells


def _table(rows: Sequence[Row]) -> None:
    cells = _cells(rows, brief=True)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _markdown(rows: Sequence[Row]) -> None:
    cells = [[cell.replace("|", "\\|") for cell in line] for line in _cells(rows, brief=True)]
    for line in (cells[0], ["---"] * len(cells[0]), *cells[1:]):
        print(f"| {' | '.join(line)} |")


def _csv(rows: Sequence[Row]) -> None:
    import csv

    csv.writer(sys.stdout, lineterminator="\n").writerows(_cells(rows, brief=False))


def _json(rows: Sequence[Row]) -> None:
    import json

    print(json.dumps(list(rows), indent=2, ensure_ascii=False))


FORMATS = {"table": _table, "csv": _csv, "json": _json, "md": _markdown}


# --- dibs spec -------------------------------------------------------------------------------------------


def run_spec(args: argparse.Namespace) -> None:
    """Show one task: specification, regions at its index, initial states, edges and paths."""
    from dibs.families import get_benchmark
    from dibs.spectrl import graph, parse, regions_of

    family, text = get_benchmark(args.name)
    boxes = family.boxes(args.index)
    spec = parse(text)
    used = regions_of(spec)
    abstract = graph(spec)
    beyond = f", beyond L = {family.last_index}" if args.index > family.last_index else ""
    print(
        f"{args.name} at index {args.index}{beyond}",
        f"({family.environment.name}, {family.horizon} steps per edge)",
    )
    print(f"\nspecification\n  {' '.join(text.split())}")
    _section("regions", [(name, _box(family, box)) for name, box in boxes.items() if name in used])
    _section("start (normal, truncated at one standard deviation)", _start(family, args.index))
    _section("edges", [(edge.name, _edge(edge)) for edge in abstract.edges])
    paths = [" → ".join(edge.name for edge in path) for path in abstract.paths()]
    _section("paths", [(str(number), path) for number, path in enumerate(paths, 1)])


def _section(title: str, lines: Sequence[tuple[str, str]]) -> None:
    width = max(len(name) for name, _ in lines)
    print(f"\n{title}")
    for name, text in lines:
        print(f"  {name.ljust(width)}  {text}")


def _box(family: Family, box: Box) -> str:
    sides = zip(family.dynamics.state_names, box.center, box.half_width, strict=True)
    bounded = [f"{name} in [{c - h:.4g}, {c + h:.4g}]" for name, c, h in sides if math.isfinite(h)]
    return ", ".join(bounded) or "anywhere"


def _edge(edge: Edge) -> str:
    return f"achieve {edge.target}" + (f" ensuring {edge.safe}" if edge.safe is not None else "")


def _start(family: Family, index: int) -> list[tuple[str, str]]:
    from dibs.families.model import start_box

    low, high = start_box(family, index)
    return [
        (name, f"{(a + b) / 2:.4g} ± {(b - a) / 2:.4g}")
        for name, a, b in zip(family.dynamics.state_names, low, high, strict=True)
    ]


# --- dibs family and dibs draw ---------------------------------------------------------------------------


def run_family(args: argparse.Namespace) -> None:
    """Print a family's description as YAML."""
    from dibs.families import get_family

    print(family_yaml(get_family(args.name)), end="")


def family_yaml(family: Family) -> str:
    """The family as YAML that `load_family` reads back as the same family."""
    import dataclasses

    import yaml

    class Dumper(yaml.SafeDumper):
        """Lists on one line, mappings one key a line."""

    Dumper.add_representer(
        list, lambda dumper, value: dumper.represent_sequence("tag:yaml.org,2002:seq", value, flow_style=True)
    )
    brief = family.model_dump(mode="json", exclude_defaults=True)
    # Every key that one may want to change is shown, but not what regions leave at its default.
    data = family.model_dump(mode="json") | {key: brief[key] for key in ("start", "regions")}
    data = {key: value for key, value in data.items() if value not in ("", [], {})}
    dynamics: Any = family.dynamics
    constants = ", ".join(f"{f.name} {f.default}" for f in dataclasses.fields(dynamics))
    return (
        f"# Lists hold one number per state variable: {', '.join(dynamics.state_names)}.\n"
        f"# Constants of {dynamics.name} that may stand beside its name: {constants}.\n"
    ) + yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1000)


def run_draw(args: argparse.Namespace) -> int | None:
    """Draw tasks (see `dibs.analysis.draw`)."""
    from dibs.analysis import draw

    status: int | None = draw.main(args)
    return status
