"""`dibs teacher`: train one teacher of Stage I."""

from __future__ import annotations

import argparse
import os
from typing import Any

from dibs.arguments import add_run, layout, provenance, reporter


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "teacher",
        help="train the teacher of one index (Stage I)",
        description="Train one actor and confidence head per edge at one index, pulled towards the teacher of "
        "the previous training index. Writes the weights (.safetensors) with the state buffers "
        "(.buffers.parquet), metrics (.json) and timing (.timing.json) beside them.",
    )
    add_run(parser)
    parser.add_argument("--index", type=int, required=True, help="training index of the teacher")
    parser.add_argument("--previous", help="teacher of the previous training index (default: by the layout)")
    parser.add_argument(
        "--resume",
        action="store_true",
        default=os.environ.get("DIBS_RESUME") == "1",
        help="keep a copy in .checkpoints beside the teacher, and take it from there instead of training again if "
        "nothing that it depends on has changed (for chains that were interrupted; also by DIBS_RESUME=1)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Train, save, and print one line per edge."""
    from pathlib import Path

    from dibs.families import get_family
    from dibs.paths import previous_index
    from dibs.settings import parse_settings
    from dibs.teachers.checkpoints import checkpoint_key, keep, restore
    from dibs.teachers.store import load_teacher, save_teacher
    from dibs.teachers.train import TeacherSettings, train_teacher

    family = get_family(args.family)
    settings = parse_settings(TeacherSettings, args.settings, "--settings")
    before = previous_index(family, args.gap, args.index)
    places = layout(args)
    previous = path = None
    if before is not None:
        path = Path(args.previous or places.teacher(family.name, args.gap, before, args.seed))
        previous = load_teacher(path)
        check_previous(previous, family.name, args.gap, before, args.seed, str(path))
    label = f"teacher {family.name} gap {args.gap} index {args.index} seed {args.seed}"
    output = args.output or places.teacher(family.name, args.gap, args.index, args.seed)
    origin = provenance(family, settings, "dibs.teachers.train", "dibs.teachers.store")
    key = checkpoint_key(origin, args.gap, args.index, args.seed, path) if args.resume else ""
    if key and restore(output, key):
        print(f"{label}: kept by an earlier attempt and verified → {output}")
        return 0
    teacher, buffers, seconds = train_teacher(
        family, args.gap, args.index, args.seed, previous, settings, reporter(args, label)
    )
    save_teacher(output, teacher, buffers, origin, seconds)
    if key:
        keep(output, key)
    for name, edge in teacher.metrics["edges"].items():
        drift = "" if edge["drift"] is None else f"  drift {edge['drift']:.2f}"
        # Without states of both kinds there is nothing to tell apart: the teacher succeeds (or fails) wherever it was.
        confidence = f"confidence {edge['confidence']['accuracy']:.2f}" if edge["confidence"] else "one kind of states"
        failed = "  FAILED" if name in teacher.metrics["failed"] else ""
        print(f"{label}: {name}  success {edge['success']:.3f}{drift}  {confidence}{failed}")
    print(f"{label}: {teacher.metrics['steps']} steps in {seconds:.1f} s → {output}")
    return 0


def check_previous(previous: Any, family: str, gap: int, index: int, seed: int, path: str) -> None:
    """Refuse a teacher that belongs to another family, gap, index or seed; that of index 0 serves all gaps."""
    from dibs.errors import DibsError

    found = (previous.family, previous.gap, previous.index, previous.seed)
    if found != (family, gap if index else previous.gap, index, seed):
        raise DibsError(
            f"{path}: expected the teacher of {family} gap {gap} index {index} seed {seed}, "
            f"found that of {found[0]} gap {found[1]} index {found[2]} seed {found[3]}"
        )
