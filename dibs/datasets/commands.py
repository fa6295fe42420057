"""`dibs dataset`: the confidence-filtered dataset of one teacher."""

from __future__ import annotations

import argparse
from typing import Any

from dibs.arguments import add_run, layout, provenance


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "dataset",
        help="build the labelled, filtered dataset of one teacher",
        description="Draw candidate states from the teacher's rollouts, its replay buffer and resets, keep those "
        "its confidence head trusts, label them with its actions, and write them as Parquet.",
    )
    add_run(parser)
    parser.add_argument("--index", type=int, required=True, help="training index of the teacher")
    parser.add_argument("--teacher", help="the teacher's weights (default: by the layout)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Build, save, and print the number of rows per edge."""
    from pathlib import Path

    from dibs.datasets.build import DatasetSettings, build
    from dibs.datasets.store import save_dataset
    from dibs.families import get_family
    from dibs.settings import parse_settings
    from dibs.teachers.commands import check_previous
    from dibs.teachers.store import load_replay, load_teacher

    family = get_family(args.family)
    settings = parse_settings(DatasetSettings, args.settings, "--settings")
    places = layout(args)
    path = Path(args.teacher or places.teacher(family.name, args.gap, args.index, args.seed))
    teacher = load_teacher(path)
    check_previous(teacher, family.name, args.gap, args.index, args.seed, str(path))
    output = Path(args.output or places.dataset(family.name, args.gap, args.index, args.seed))
    rows = save_dataset(
        output,
        teacher,
        family.dynamics.state_names,
        family.dynamics.action_names,
        build(family, teacher, load_replay(path, teacher.edges), settings),
        provenance(family, settings, "dibs.datasets.build", "dibs.datasets.store"),
    )
    label = f"dataset {family.name} gap {args.gap} index {args.index} seed {args.seed}"
    for name, count in rows.items():
        print(f"{label}: {name}  {count} rows" + ("" if count else "  (none: the teacher failed this edge)"))
    print(f"{label}: → {output}")
    return 0
