"""`dibs teacher`, `dibs dataset`, `dibs fit`, `dibs evaluate`: one stage of the pipeline each."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from dibs.commands.arguments import (
    add_run,
    add_tensorboard,
    chosen_model,
    chosen_split,
    layout,
    reporting,
    teacher_chain,
    whole_numbers,
    writing,
)


def register(subparsers: Any) -> None:
    """Add the commands."""
    parser = subparsers.add_parser(
        "teacher",
        help="train the teacher of one index (Stage I)",
        description="Train one actor and confidence head per edge at one index, pulled towards the teacher of the "
        "previous training index. Writes the weights (.safetensors) and, next to them, state buffers "
        "(.buffers.parquet), the training curve (.curve.parquet), metrics (.json) and timing (.timing.json).",
    )
    add_run(parser)
    parser.add_argument("--index", type=int, required=True, help="training index of the teacher")
    parser.add_argument(
        "--previous", type=Path, metavar="FILE", help="teacher of the previous training index (default: in --results)"
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        default=os.environ.get("DIBS_RESUME") == "1",
        help="keep a copy in .checkpoints next to the teacher, and restore it instead of training again if nothing "
        "that it depends on has changed (for interrupted chains; also with DIBS_RESUME=1)",
    )
    parser.add_argument(
        "--checkpoint",
        type=float,
        metavar="SECONDS",
        help="while training, save a checkpoint this often in .checkpoints next to the teacher; a killed command "
        "continues from it when it is run again (default: 300, or DIBS_CHECKPOINT; 0: never)",
    )
    add_tensorboard(parser)
    parser.set_defaults(run=run_teacher)

    parser = subparsers.add_parser(
        "dataset",
        help="build the labeled, filtered dataset of one teacher",
        description="Draw candidate states from the teacher's rollouts, its replay buffer and resets, keep those that "
        "its confidence head trusts, label them with its actions, and write them as Parquet.",
    )
    add_run(parser)
    parser.add_argument("--index", type=int, required=True, help="training index of the teacher")
    parser.add_argument("--teacher", type=Path, metavar="FILE", help="the teacher's weights (default: in --results)")
    parser.set_defaults(run=run_dataset)

    parser = subparsers.add_parser(
        "fit",
        help="train a method on the training tasks of a split (Stage II, or a baseline)",
        description="Train any registered method and write its model. `dibs` is the paper's template, fitted to the "
        "teachers' datasets by behavioral cloning. `dibs methods` lists all methods. Methods with one "
        "model per family accept a family's name as well.",
    )
    add_run(parser, "BENCHMARK")
    parser.add_argument("--method", default="dibs", help="method to train (default: dibs)")
    parser.add_argument(
        "--teachers", type=Path, nargs="+", metavar="FILE", help="teachers that the method reads, by training index"
    )
    parser.add_argument(
        "--datasets", type=Path, nargs="+", metavar="FILE", help="datasets that the method reads, by training index"
    )
    add_tensorboard(parser)
    parser.set_defaults(run=run_fit)

    parser = subparsers.add_parser(
        "evaluate",
        help="measure a method's policies at every index of a benchmark",
        description="Roll out the policies of indices 0 … L (and L+1 … 2L), let the SPECTRL semantics decide which "
        "rollouts satisfy the specification, and write one row per index. Name a benchmark and a split, or the file of "
        "a model, which says both.",
    )
    add_run(parser, "BENCHMARK|MODEL")
    parser.add_argument(
        "--indices",
        type=whole_numbers,
        metavar="I,J,…",
        help="also measure these indices, however large, such as 1000,100000 (default: evaluation.indices of "
        "--settings)",
    )
    parser.set_defaults(run=run_evaluate)

    parser = subparsers.add_parser("methods", help="list the registered methods")
    parser.set_defaults(run=run_methods)


def run_teacher(args: argparse.Namespace) -> None:
    """Train, save, and print one line per edge."""
    from dibs.families import get_family, show_warnings
    from dibs.pipeline import make_teacher
    from dibs.settings import parse_settings
    from dibs.teachers.train import TeacherSettings

    family = get_family(args.family)
    show_warnings(family)
    split = chosen_split(args, family)
    settings = parse_settings(TeacherSettings, args.settings, "--settings")
    files = layout(args)
    previous = args.previous
    before = None if args.index == 0 else split.before(args.index)
    chain = {}
    if before is not None and previous is None:
        previous = files.teacher(family.name, split.name, before, args.seed)
        chain = teacher_chain(files, family, split, before, args.seed)
    usual = files.teacher(family.name, split.name, args.index, args.seed)
    label = f"teacher {family.name} {split.name} index {args.index} seed {args.seed}"
    with writing(args, files, family, usual) as output, reporting(args, label) as report:
        teacher = make_teacher(
            family,
            split,
            args.index,
            args.seed,
            settings,
            output,
            previous,
            chain=chain,
            expect=args.expect,
            resume=args.resume,
            checkpoint=args.checkpoint,
            progress=report,
        )
    if teacher is None:
        print(f"{label}: restored from an earlier attempt → {output}")
        return
    for name, edge in teacher.metrics["edges"].items():
        drift = "" if edge["drift"] is None else f"  drift {edge['drift']:.2f}"
        # Without states of both kinds, the confidence head has nothing to distinguish.
        confidence = f"confidence {edge['confidence']['accuracy']:.2f}" if edge["confidence"] else "one kind of states"
        failed = "  FAILED" if name in teacher.metrics["failed"] else ""
        print(f"{label}: {name}  success {edge['success']:.3f}{drift}  {confidence}{failed}")
    print(f"{label}: {teacher.metrics['steps']} steps → {output}")


def run_dataset(args: argparse.Namespace) -> None:
    """Build, save, and print the number of rows per edge."""
    from dibs.datasets.build import DatasetSettings
    from dibs.families import get_family
    from dibs.pipeline import make_dataset
    from dibs.settings import parse_settings

    family = get_family(args.family)
    split = chosen_split(args, family)
    settings = parse_settings(DatasetSettings, args.settings, "--settings")
    files = layout(args)
    teacher = args.teacher or files.teacher(family.name, split.name, args.index, args.seed)
    chain = {} if args.teacher else teacher_chain(files, family, split, args.index, args.seed)
    with writing(args, files, family, files.dataset(family.name, split.name, args.index, args.seed)) as output:
        rows = make_dataset(
            family, split, args.index, args.seed, settings, teacher, output, chain=chain, expect=args.expect
        )
    label = f"dataset {family.name} {split.name} index {args.index} seed {args.seed}"
    for name, count in rows.items():
        print(f"{label}: {name}  {count} rows" + ("" if count else "  (the teacher failed this edge)"))
    print(f"{label}: → {output}")


def run_fit(args: argparse.Namespace) -> None:
    """Train, save, and print one line."""
    from dibs.errors import DibsError
    from dibs.methods import get_method
    from dibs.pipeline import Unit, make_model
    from dibs.settings import parse_settings, values_of

    method = get_method(args.method)
    if method.trained_as:
        raise DibsError(f"{method.name} is measured on the model of {method.trained_as}: train that one")
    unit = Unit.of(method, _benchmark(args.benchmark, method.per_family))
    split = chosen_split(args, unit.family)
    settings: Any = parse_settings(
        method.settings, {**method.defaults, **values_of(args.settings, "--settings")}, "--settings"
    )
    files = layout(args)
    teachers, datasets = args.teachers or [], args.datasets or []
    needed = method.inputs(settings, split.indices)
    if not teachers:
        teachers = [files.teacher(unit.family.name, split.name, i, args.seed) for i in needed["teachers"]]
    if not datasets:
        datasets = [files.dataset(unit.family.name, split.name, i, args.seed) for i in needed["datasets"]]
    usual = files.model(method.name, unit.name, split.name, args.seed)
    label = f"{method.name} {unit.name} {split.name} seed {args.seed}"
    with writing(args, files, unit.family, usual) as output, reporting(args, label) as report:
        model, seconds = make_model(
            method,
            unit,
            split,
            args.seed,
            settings,
            output,
            teachers,
            datasets,
            expect=args.expect,
            progress=report,
        )
    measure = "loss" if "per_index" in model.metrics else "success"
    for name, value in model.metrics.get("edges", {}).items():
        print(f"{label}: {name}  {measure} {value:.5f}")
    print(f"{label}: {seconds:.1f} s → {output}")


def run_evaluate(args: argparse.Namespace) -> None:
    """Evaluate, save, and print the three ratios."""
    from dibs.evaluation.evaluate import EvaluationSettings, describe
    from dibs.pipeline import make_evaluation
    from dibs.settings import parse_settings

    settings = parse_settings(EvaluationSettings, args.settings, "--settings")
    if args.indices is not None:
        settings = replace(settings, indices=args.indices)
    found = chosen_model(args)
    where = (found.method.name, found.benchmark.id, found.split.name, found.seed)
    files = found.layout or layout(args)
    with writing(args, files, found.benchmark.family, files.evaluation(*where)) as output:
        ratios = make_evaluation(found, settings, output, expect=args.expect)
    print(
        f"{found.method.name} {found.benchmark.id} {found.split.name} seed {found.seed}: {describe(ratios)} → {output}"
    )


def run_methods(args: argparse.Namespace) -> None:
    """List methods, what they are trained from, and whether they are zero-shot."""
    from dibs import registry
    from dibs.methods import get_method, in_order

    for name in in_order(registry.names("methods")):
        method = get_method(name)
        needs = " and ".join(method.needs) or "tasks only"
        notes = ["one model per family" if method.per_family else "one model per benchmark"]
        notes += [] if method.zero_shot else ["adapts on the evaluated task"]
        notes += [f"measured on the model of {method.trained_as}"] if method.trained_as else []
        print(f"{name:<16} {method.label:<18} from {needs:<22} {', '.join(notes)}")


def _benchmark(name: str, per_family: bool) -> Any:
    """Return the named benchmark; of a family's name, any benchmark of that family if its model serves them all."""
    from dibs.families import Benchmark, descriptions, get_benchmark, get_family

    is_family = name in descriptions() or (name.endswith((".yaml", ".yml")) and ":" not in name)
    if per_family and is_family:
        family = get_family(name)
        return Benchmark(family.benchmark_ids[0], family, f"{name}", name)
    return get_benchmark(name)
