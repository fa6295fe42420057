"""The stages of the pipeline, each from explicit input files to explicit output files.

Commands and the workflow call these functions. Each one checks the provenance of what it reads, and refuses to write
anything but what the caller expects. What a stage does is in `dibs.stages`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from dibs import methods, stages, teachers
from dibs.datasets.build import DatasetSettings
from dibs.errors import DibsError, unknown
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import SUFFIXES, Benchmark, Family, Split, descriptions, get_family
from dibs.files import atomic, existing, plain, read_json, read_metadata
from dibs.methods import Method, Model, load_model
from dibs.paths import Layout, metrics, split_of
from dibs.progress import Reporter
from dibs.provenance import Origin, check_input, check_kind, check_origin
from dibs.settings import parse_settings
from dibs.stages import (
    Unit,
    dataset_origin,
    evaluation_origin,
    known_to_teacher,
    model_origin,
    teacher_origin,
)
from dibs.teachers.base import get_algorithm
from dibs.teachers.checkpoints import checkpoint_key, keep, open_journal, restore
from dibs.teachers.store import load_replay, load_teacher
from dibs.teachers.train import Teacher, TeacherSettings, resolve

# --- checks of what is read ------------------------------------------------------------------------------


def _command(verb: str, source: str, split: Split, seed: int, *more: str) -> str:
    train = [] if split.derived else ["--train", ",".join(map(str, split.indices))]
    return " ".join(["`dibs", verb, source, *more, "--split", split.name, *train, "--seed", f"{seed}`"])


def check_teacher(path: Path, family: Family, split: Split, index: int, seed: int) -> dict[str, Any]:
    """Return the metadata of a teacher's file; refuse another teacher, or an outdated one."""
    command = _teacher_command(family, split, index, seed)
    found = read_metadata(existing(path, command))
    check_kind(path, found, "teacher")
    try:
        current = {n: teachers.VERSION if n == "teachers" else get_algorithm(n).version for n in found["versions"]}
    except DibsError as error:  # trained by an algorithm of a package that is no longer installed
        raise DibsError(f"{path}: {error}") from None
    identity = {"family": family.name, "split": split_of(split.name, index), "index": index, "seed": seed}
    expected = Origin("teacher", identity, family.tasks_digest(known_to_teacher(family, index)), "", current)
    check_origin(path, found, expected, command)
    return found


def _teacher_command(family: Family, split: Split, index: int, seed: int) -> str:
    return _command("teacher", family.source, split, seed, "--index", str(index))


def check_chain(files: Mapping[int, Path], family: Family, split: Split, seed: int) -> None:
    """Refuse teachers by training index of which one did not start from the one before it as it is now.

    Files that do not exist say nothing.
    """
    found = {index: read_metadata(file) for index, file in files.items() if file.is_file()}
    for before, index in pairwise(split.indices):
        if before in found and index in found:
            made_from = {str(files[before]): found[before]["id"]}
            check_input(files[index], found[index], made_from, _teacher_command(family, split, index, seed))


def check_settings(where: str, found: Mapping[str, Any], other: str, wanted: Mapping[str, Any]) -> None:
    """Refuse a teacher that was trained with other settings than those of `other`: a chain has one set of them."""
    mine, theirs = ({**settings, **settings["options"], "options": None} for settings in (found, plain(wanted)))
    differ = [f"{key} {mine.get(key)!r} instead of {theirs[key]!r}" for key in theirs if mine.get(key) != theirs[key]]
    if differ:
        raise DibsError(
            f"{where}: was trained with other settings than {other} ({', '.join(differ)}); all teachers of a split "
            "have the same settings: train one of the two again with those of the other (--settings)"
        )


def check_dataset(
    path: Path, teacher: Path | None, family: Family, split: Split, index: int, seed: int
) -> dict[str, Any]:
    """Return the metadata of a dataset; refuse another one, or one that was not made from `teacher` as it is now."""
    rerun = _command("dataset", family.source, split, seed, "--index", str(index))
    found = read_metadata(existing(path, rerun))
    check_origin(path, found, dataset_origin(family, split.name, index, seed, None, ""), rerun)
    if teacher is not None:
        check_input(path, found, {str(teacher): read_metadata(teacher)["id"]}, rerun)
    return found


def read_model(
    path: Path, method: Method, unit: Unit, split: Split, seed: int, files: Layout | None = None
) -> tuple[Model, dict[str, Any]]:
    """Read a method's model; refuse another one, or one that was trained on other tasks than the family now has.

    With a layout, refuse a model that was not made from the teachers and datasets there; those that are missing say
    nothing.
    """
    rerun = _command("fit", unit.source, split, seed, "--method", method.name)
    model, found = load_model(existing(path, rerun))
    check_origin(path, found, model_origin(method, unit, split, seed, None, ()), rerun)
    if files is not None:
        needed = method.inputs(parse_settings(method.settings, found["settings"], str(path)), split.indices)
        places = {"teachers": files.teacher, "datasets": files.dataset}
        made_from = [places[kind](unit.family.name, split.name, i, seed) for kind in needed for i in needed[kind]]
        check_input(path, found, {str(f): read_metadata(f)["id"] for f in made_from if f.is_file()}, rerun)
    return model, found


@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model's file and what it says of itself."""

    method: Method
    model: Model
    benchmark: Benchmark
    split: Split
    seed: int
    id: str
    layout: Layout | None = None
    """Of the results folder in which it lies; None: elsewhere."""


def results_of(path: Path, found: Mapping[str, Any]) -> Layout | None:
    """Return the layout of the results folder in which a model lies; None: it is elsewhere."""
    file = path.absolute()
    layout = Layout(file.parents[min(4, len(file.parents) - 1)])
    place = found["method"], found["benchmark"], found["split"], found["seed"]
    return layout if file == layout.model(*place) else None


def open_model(path: Path, family: str | Family | None = None, benchmark: str | None = None) -> OpenedModel:
    """Read a model together with its method, family and split, and check that they fit.

    The family is `family`, or the registered one of its name, or `families/NAME.yaml` in the results folder of the
    model. A model that serves all benchmarks of a family is opened for `benchmark`, by default the last one.
    """
    model, found = load_model(path)
    method, name, seed = methods.get_method(found["method"]), found["family"], found["seed"]
    files = results_of(path, found)
    if family is None and name not in descriptions():
        if files is not None and files.family(name).is_file():
            family = str(files.family(name))
        else:
            raise DibsError(f"{path}: is of the family '{name}', which is not registered; name its file with --family")
    known = family if isinstance(family, Family) else get_family(family or name)
    aim = benchmark or (known.benchmark_ids[-1] if method.per_family else found["benchmark"])
    if aim not in known.benchmark_ids:
        raise unknown(f"benchmark of {known.name}", aim, known.benchmark_ids)
    chosen = Benchmark(aim, known, f"{known.source}:{aim}" if known.source != known.name else aim, known.source)
    train = None if Split(found["split"], ()).derived else read_json(metrics(path))["train"]
    split = known.split(found["split"], train)
    model, found = read_model(path, method, Unit.of(method, chosen), split, seed, files)
    return OpenedModel(method, model, chosen, split, seed, found["id"], files)


# --- descriptions of families ----------------------------------------------------------------------------

FROM = "# from "
"""Begins a kept description; the path of the family's file, relative to the results folder, follows."""


def check_description(layout: Layout, family: Family) -> Path:
    """Return where the description of a family is kept in a results folder.

    Refuse a family file if results of another file's family of the same name are there: they would share files.
    """
    kept = layout.family(family.name)
    if kept.is_file() and from_file(family):
        line = kept.read_text().partition("\n")[0]
        other = layout.root / line.removeprefix(FROM) if line.startswith(FROM) else None
        if other is not None and other.resolve() != Path(family.source).resolve() and get_family(str(kept)) != family:
            raise DibsError(
                f"{family.source}: '{family.name}' is also the name of the family in {os.path.relpath(other)}, whose "
                f"results are in {layout.root}; rename one, or choose another results folder (if it is the same "
                f"family, moved and edited: delete {kept})"
            )
    return kept


def keep_description(layout: Layout, family: Family) -> None:
    """Keep the description of a family next to its results, so that models can be opened without its own file."""
    kept, text = check_description(layout, family), family.to_yaml()
    if not kept.is_file() or not kept.read_text().endswith(text):
        source = f"{FROM}{os.path.relpath(family.source, layout.root)}\n" if from_file(family) else ""
        with atomic(kept) as file:
            file.write_text(source + text)


def from_file(family: Family) -> bool:
    """Whether a family was read from a file."""
    return family.source.endswith(SUFFIXES)


# --- stages ----------------------------------------------------------------------------------------------


def make_teacher(
    family: Family,
    split: Split,
    index: int,
    seed: int,
    settings: TeacherSettings,
    output: Path,
    previous: Path | None = None,
    *,
    chain: Mapping[int, Path] | None = None,
    expect: str = "",
    resume: bool = False,
    checkpoint: float | None = None,
    progress: Reporter | None = None,
) -> Teacher | None:
    """Train and save one teacher (Stage I); None if a kept copy was restored instead.

    `settings` may leave algorithm and options to the family. `chain` are earlier teachers by index, to be checked. A
    checkpoint is written every `checkpoint` seconds (DIBS_CHECKPOINT, or 300; 0: never), from which a run that was
    killed continues.
    """
    family.check_index(index)
    settings = resolve(settings, family.teacher, family.teacher_options)
    before, before_id = None, None
    earlier = None if index == 0 else split.before(index)
    if earlier is not None:
        if previous is None:
            raise DibsError(f"the teacher of index {index} starts from that of index {earlier}: pass --previous")
        found = check_teacher(previous, family, split, earlier, seed)
        check_chain(chain or {}, family, split, seed)
        before, before_id = load_teacher(previous), found["id"]
    origin = teacher_origin(family, split.name, index, seed, settings, before_id)
    origin.check(expect)
    if before is not None:
        check_settings(str(previous), before.settings, f"requested for index {index}", asdict(settings))
    key = checkpoint_key(origin, previous) if resume else ""
    if key and restore(output, key):
        return None
    journal = open_journal(output, origin, previous, checkpoint)
    made = stages.teach(family, split, seed, settings, before, origin, progress, journal)
    made.save(output)
    if key:
        keep(output, key)
    journal.close()
    return made.teacher


def make_dataset(
    family: Family,
    split: Split,
    index: int,
    seed: int,
    settings: DatasetSettings,
    teacher: Path,
    output: Path,
    *,
    chain: Mapping[int, Path] | None = None,
    expect: str = "",
) -> dict[str, int]:
    """Build and save the dataset of one teacher; returns the number of rows per edge.

    `chain` are the teachers up to this one by index, to be checked.
    """
    found = check_teacher(teacher, family, split, index, seed)
    check_chain(chain or {}, family, split, seed)
    origin = dataset_origin(family, split.name, index, seed, settings, found["id"])
    origin.check(expect)
    loaded = load_teacher(teacher)
    return stages.sample(family, split, settings, loaded, load_replay(teacher, loaded.edges), origin).save(output)


def make_model(
    method: Method,
    unit: Unit,
    split: Split,
    seed: int,
    settings: Any,
    output: Path,
    teacher_files: Sequence[Path] = (),
    dataset_files: Sequence[Path] = (),
    *,
    expect: str = "",
    progress: Reporter | None = None,
) -> tuple[Model, float]:
    """Train and save a method's model; returns it and the seconds it took."""
    needed = method.inputs(settings, split.indices)
    inputs = _check_inputs(method, needed, unit.family, split, seed, teacher_files, dataset_files)
    origin = model_origin(method, unit, split, seed, settings, inputs)
    origin.check(expect)
    made = stages.fit(method, unit, split, seed, settings, teacher_files, dataset_files, origin, progress)
    made.save(output)
    return made.model, made.seconds


def _check_inputs(
    method: Method,
    needed: Mapping[str, Sequence[int]],
    family: Family,
    split: Split,
    seed: int,
    teacher_files: Sequence[Path],
    dataset_files: Sequence[Path],
) -> list[str]:
    """Return the ids of all teachers and datasets that a method needs, `Method.inputs`."""
    for kind, given in (("teachers", teacher_files), ("datasets", dataset_files)):
        indices = needed[kind]
        if len(given) != len(indices):
            listed = f"{', '.join(map(str, indices))} of {split.name}"
            wanted = f"needs the {kind} of index {listed}" if indices else f"reads no {kind} with these settings"
            todo = f"pass --{kind}" if indices else f"leave out --{kind}"
            raise DibsError(f"{method.name} {wanted}, found {len(given)}: {todo}")
    files = dict(zip(needed["teachers"], teacher_files, strict=True))
    found = [check_teacher(file, family, split, index, seed) for index, file in files.items()]
    check_chain(files, family, split, seed)
    for file, metadata in zip(teacher_files, found, strict=True):
        check_settings(str(file), metadata["settings"], str(teacher_files[0]), found[0]["settings"])
    ids = [metadata["id"] for metadata in found]
    for index, file in zip(needed["datasets"], dataset_files, strict=True):
        ids.append(check_dataset(file, files.get(index), family, split, index, seed)["id"])
    return ids


def make_evaluation(
    found: OpenedModel, settings: EvaluationSettings, output: Path, *, expect: str = ""
) -> dict[str, float]:
    """Measure a model at every index and save the result; returns the three ratios."""
    aim = (found.method, found.benchmark, found.split, found.seed)
    origin = evaluation_origin(*aim, settings, found.id)
    origin.check(expect)
    made = stages.measure(*aim, settings, found.model, origin)
    made.save(output)
    return stages.ratios_of(made.table)
