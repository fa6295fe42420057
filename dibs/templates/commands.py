"""`dibs fit`: the κ-template of one split."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from dibs.arguments import add_run, layout, provenance, reporter

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np

    from dibs.families import Family
    from dibs.teachers.train import Teacher
    from dibs.templates.fit import Fit, FitSettings

DEFAULTS: dict[str, dict[str, Any]] = {
    "dibs": {},
    "dibs-plus": {"select": True},
    "dibs-weights": {"space": "weights"},
    "dibs-branched": {},
}
"""Methods of the template stage and what sets each apart from the paper's objective."""
CODE = tuple(f"dibs.templates.{name}" for name in ("fit", "select", "template", "weights"))
"""Modules that decide what a template is."""
BRANCHED = frozenset({"dibs-branched"})
"""Methods with one template per routing mode."""


def code_of(method: str) -> tuple[str, ...]:
    """Modules that decide what a method's template is."""
    return (*CODE, "dibs.templates.branched") if method in BRANCHED else CODE


def register(subparsers: Any) -> None:
    """Add the command."""
    parser = subparsers.add_parser(
        "fit",
        help="fit the template to the datasets of all training indices (Stage II)",
        description="Fit one polynomial per edge by behavioural cloning through its unrolling. Method dibs is the "
        "paper's objective; dibs-plus adds weak priors and guesses between training indices, chosen by leaving some of "
        "these out; dibs-weights fits the teachers' weights instead of their actions, to tell what limits a template; "
        "dibs-branched clusters the teachers' trajectories into routing modes and fits one polynomial per mode.",
    )
    add_run(parser)
    parser.add_argument("--method", choices=sorted(DEFAULTS), default="dibs", help="objective (default: dibs)")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Fit, save, and print the loss per edge."""
    from pathlib import Path

    import numpy as np

    from dibs.families import get_family
    from dibs.files import write_json
    from dibs.paths import metrics, timing
    from dibs.seeding import stream
    from dibs.settings import parse_settings, values_of
    from dibs.teachers.store import load_teacher
    from dibs.templates.fit import FitSettings, fit
    from dibs.templates.select import fit_selected
    from dibs.templates.template import assemble, gather, save_template
    from dibs.templates.weights import fit_teachers

    family = get_family(args.family)
    chosen = {**DEFAULTS[args.method], **values_of(args.settings, "--settings")}
    settings = parse_settings(FitSettings, chosen, "--settings")
    places = layout(args)
    train = family.train_indices(args.gap)
    teachers = [load_teacher(places.teacher(family.name, args.gap, i, args.seed)) for i in train]
    files = [places.dataset(family.name, args.gap, i, args.seed) for i in train]
    label = f"{args.method} {family.name} gap {args.gap} seed {args.seed}"
    rng = stream("template", family.name, args.gap, args.seed)
    network, progress = teachers[0].network, reporter(args, label)
    output = Path(args.output or places.template(args.method, family.name, args.gap, args.seed))
    if args.method in BRANCHED:
        return _branch(args, family, teachers, files, settings, rng, output)
    data, records = gather(teachers, files, settings)
    chosen_by_edge = None
    if settings.space == "weights":
        result = fit_teachers(data, np.stack([t.actor for t in teachers], axis=1), network, settings)
    elif settings.select:
        result, taken = fit_selected(family, data, network, teachers[0].scaling, settings, rng, progress)
        chosen_by_edge = dict(zip(teachers[0].edges, taken, strict=True))
    else:
        result = fit(data, network, settings, rng, progress)
    template = assemble(args.method, teachers, data, records, result)
    write_json(
        metrics(output),
        {
            **_told(template.edges, result),
            "train": train,
            "chosen": chosen_by_edge,
        },
    )
    write_json(timing(output), {"seconds": result.seconds})
    save_template(output, template, provenance(family, settings, *code_of(args.method)))
    for name, loss in zip(template.edges, result.loss, strict=True):
        print(f"{label}: {name}  loss {loss:.5f}")
    print(f"{label}: {result.steps} steps in {result.seconds:.1f} s → {output}")
    return 0


def _told(edges: tuple[str, ...], result: Fit) -> dict[str, Any]:
    """What the metrics say of a fit."""
    return {
        "edges": dict(zip(edges, result.loss, strict=True)),
        "per_index": dict(zip(edges, result.per_index, strict=True)),
        "steps": result.steps,
        "curve": result.curve,
    }


def _branch(
    args: argparse.Namespace,
    family: Family,
    teachers: list[Teacher],
    files: list[Path],
    settings: FitSettings,
    rng: np.random.Generator,
    output: Path,
) -> int:
    """Fit and save a branched template, and print its modes."""
    from dibs.files import write_json
    from dibs.paths import metrics, timing
    from dibs.templates.branched import fit_branches, save_branched

    label = f"{args.method} {family.name} gap {args.gap} seed {args.seed}"
    template, modes, fits = fit_branches(args.method, family, teachers, files, settings, rng, reporter(args, label))
    told = [
        {**_told(mode.edges, result), "train": mode.train} for mode, result in zip(template.modes, fits, strict=True)
    ]
    silhouette = {str(count): score for count, score in modes.silhouette.items()}
    write_json(metrics(output), {"train": template.train, "modes": told, "silhouette": silhouette})
    seconds = sum(result.seconds for result in fits)
    write_json(timing(output), {"seconds": seconds})
    save_branched(output, template, provenance(family, settings, *code_of(args.method)))
    for m, (mode, result) in enumerate(zip(template.modes, fits, strict=True)):
        print(f"{label}: mode {m} of indices {', '.join(map(str, mode.train))}  loss {result.loss.sum():.5f}")
    print(f"{label}: {sum(result.steps for result in fits)} steps in {seconds:.1f} s → {output}")
    return 0
