"""The stages of the pipeline, each from explicit input files to explicit output files.

The command line, the workflow and the Python interface all call these functions. Each one checks the provenance of what
it reads, and refuses to write anything but what the caller expects. `*_origin` functions say what a file is made from;
they need no files, so a plan can compute the ids of everything in advance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dibs import datasets, evaluation, methods, teachers
from dibs.datasets.build import DatasetSettings, build
from dibs.datasets.store import save_dataset
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings, count_satisfied, roles, save_evaluation, summarize
from dibs.families import Benchmark, Family, Split, Tasks
from dibs.files import read_metadata, write_json
from dibs.methods import Method, Model, Training, load_model, save_model
from dibs.paths import metrics, split_of, timing
from dibs.provenance import Origin, check_input, check_kind, check_origin, settings_digest
from dibs.teachers.base import get_algorithm
from dibs.teachers.checkpoints import checkpoint_key, keep, restore
from dibs.teachers.store import load_replay, load_teacher, save_teacher
from dibs.teachers.train import Teacher, TeacherSettings, resolve, train_teacher

Progress = Callable[[str], None]


# --- what files are made from ----------------------------------------------------------------------------


def teacher_tasks(family: Family, index: int) -> Tasks:
    """Return the tasks that the teacher of an index may know: its own, and the first and last, which set the
    scaling."""
    return family.tasks(_known_to_teacher(family, index))


def _known_to_teacher(family: Family, index: int) -> list[int]:
    return sorted({0, index, family.last_index})


def teacher_origin(
    family: Family, split: str, index: int, seed: int, settings: TeacherSettings, previous: str | None
) -> Origin:
    """Describe a teacher; `settings` are resolved, `previous` is the id of the teacher before it."""
    return Origin(
        "teacher",
        {"family": family.name, "split": split_of(split, index), "index": index, "seed": seed},
        family.tasks_digest(_known_to_teacher(family, index)),
        settings_digest(settings),
        {"teachers": teachers.VERSION, settings.algorithm: get_algorithm(settings.algorithm).version},
        () if previous is None else (previous,),
    )


def dataset_origin(
    family: Family, split: str, index: int, seed: int, settings: DatasetSettings, teacher: str
) -> Origin:
    """Describe a dataset; `teacher` is the id of its teacher."""
    return Origin(
        "dataset",
        {"family": family.name, "split": split_of(split, index), "index": index, "seed": seed},
        family.tasks_digest(_known_to_teacher(family, index)),
        settings_digest(settings),
        {"datasets": datasets.VERSION},
        (teacher,),
    )


@dataclass(frozen=True)
class Unit:
    """What a model is of: a family, or one of its benchmarks."""

    name: str
    family: Family
    specification: str
    source: str
    """How a command line names it."""

    @classmethod
    def of(cls, method: Method, benchmark: Benchmark) -> Unit:
        family = benchmark.family
        if method.per_family:
            return cls(family.name, family, family.specification, benchmark.family_source)
        return cls(benchmark.id, family, benchmark.specification, benchmark.source)


def model_origin(method: Method, unit: Unit, split: Split, seed: int, settings: Any, inputs: Sequence[str]) -> Origin:
    """Describe a model; `inputs` are the ids of the teachers and datasets it is made from."""
    return Origin(
        "model",
        {"method": method.name, "family": unit.family.name, "benchmark": unit.name, "split": split.name, "seed": seed},
        unit.family.tasks_digest(split.indices, unit.specification),
        settings_digest(settings),
        {"models": methods.VERSION, method.name: method.version},
        tuple(inputs),
    )


def evaluation_origin(
    method: Method, benchmark: Benchmark, split: Split, seed: int, settings: EvaluationSettings, model: str
) -> Origin:
    """Describe an evaluation; `model` is the id of the model."""
    family = benchmark.family
    indices = sorted(roles(family, split.indices, settings))
    return Origin(
        "evaluation",
        {
            "method": method.name,
            "family": family.name,
            "benchmark": benchmark.id,
            "split": split.name,
            "seed": seed,
        },
        family.tasks_digest(indices, benchmark.specification),
        settings_digest(settings),
        {"evaluation": evaluation.VERSION, method.name: method.version},
        (model,),
    )


# --- checks of what is read ------------------------------------------------------------------------------


def _command(verb: str, source: str, split: Split, seed: int, *more: str) -> str:
    train = [] if split.derived else ["--train", ",".join(map(str, split.indices))]
    return " ".join(["`dibs", verb, source, *more, "--split", split.name, *train, "--seed", f"{seed}`"])


def check_teacher(path: Path, family: Family, split: Split, index: int, seed: int) -> dict[str, Any]:
    """Return the metadata of a teacher's file; refuse another teacher, or an outdated one."""
    found = read_metadata(path)
    check_kind(path, found, "teacher")
    try:
        current = {n: teachers.VERSION if n == "teachers" else get_algorithm(n).version for n in found["versions"]}
    except DibsError as error:  # trained by an algorithm of a package that is no longer installed
        raise DibsError(f"{path}: {error}") from None
    identity = {"family": family.name, "split": split_of(split.name, index), "index": index, "seed": seed}
    expected = Origin("teacher", identity, family.tasks_digest(_known_to_teacher(family, index)), "", current)
    check_origin(path, found, expected, _teacher_command(family, split, index, seed))
    return found


def _teacher_command(family: Family, split: Split, index: int, seed: int) -> str:
    return _command("teacher", family.source, split, seed, "--index", str(index))


def check_dataset(
    path: Path, teacher: Path | None, family: Family, split: Split, index: int, seed: int
) -> dict[str, Any]:
    """Return the metadata of a dataset; refuse another one, or one that was not made from `teacher` as it is now."""
    found = read_metadata(path)
    check_kind(path, found, "dataset")
    identity = {"family": family.name, "split": split_of(split.name, index), "index": index, "seed": seed}
    tasks = family.tasks_digest(_known_to_teacher(family, index))
    rerun = _command("dataset", family.source, split, seed, "--index", str(index))
    check_origin(path, found, Origin("dataset", identity, tasks, "", {"datasets": datasets.VERSION}), rerun)
    if teacher is not None:
        check_input(path, found, {str(teacher): read_metadata(teacher)["id"]}, rerun)
    return found


def read_model(path: Path, method: Method, unit: Unit, split: Split, seed: int) -> tuple[Model, dict[str, Any]]:
    """Read a method's model; refuse another one, or one that was trained on other tasks than the family now has."""
    model, found = load_model(path)
    rerun = _command("fit", unit.source, split, seed, "--method", method.name)
    check_origin(path, found, model_origin(method, unit, split, seed, None, ()), rerun)
    return model, found


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
    expect: str = "",
    resume: bool = False,
    progress: Progress | None = None,
) -> Teacher | None:
    """Train and save one teacher (Stage I); None if a kept copy was restored instead.

    `settings` may leave algorithm and options to the family.
    """
    family.check_index(index)
    settings = resolve(settings, family.teacher, family.teacher_options)
    before, before_id = None, None
    earlier = None if index == 0 else split.before(index)
    if earlier is not None:
        if previous is None:
            raise DibsError(f"the teacher of index {index} starts from that of index {earlier}: pass --previous")
        before_id = check_teacher(previous, family, split, earlier, seed)["id"]
        before = load_teacher(previous)
    origin = teacher_origin(family, split.name, index, seed, settings, before_id)
    origin.check(expect)
    key = checkpoint_key(origin, previous) if resume else ""
    if key and restore(output, key):
        return None
    teacher, buffers, seconds = train_teacher(
        teacher_tasks(family, index), split, index, seed, before, settings, progress
    )
    save_teacher(output, teacher, buffers, origin, seconds)
    if key:
        keep(output, key)
    return teacher


def make_dataset(
    family: Family,
    split: Split,
    index: int,
    seed: int,
    settings: DatasetSettings,
    teacher: Path,
    output: Path,
    *,
    expect: str = "",
) -> dict[str, int]:
    """Build and save the dataset of one teacher; returns the number of rows per edge."""
    found = check_teacher(teacher, family, split, index, seed)
    origin = dataset_origin(family, split.name, index, seed, settings, found["id"])
    origin.check(expect)
    loaded = load_teacher(teacher)
    environment = family.environment
    tasks = loaded.starts(teacher_tasks(family, index))
    blocks = build(tasks, split, loaded, load_replay(teacher, loaded.edges), settings)
    return save_dataset(output, loaded, environment.state_names, environment.action_names, blocks, origin)


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
    progress: Progress | None = None,
) -> tuple[Model, float]:
    """Train and save a method's model; returns it and the seconds it took."""
    family = unit.family
    needed = method.inputs(settings, split.indices)
    inputs = _check_inputs(method, needed, family, split, seed, teacher_files, dataset_files)
    origin = model_origin(method, unit, split, seed, settings, inputs)
    origin.check(expect)
    began = time.perf_counter()
    tasks = family.tasks(split.indices, unit.specification)
    training = Training(tasks, unit.name, split, seed, tuple(teacher_files), tuple(dataset_files), progress)
    model = method.train(training, settings)
    seconds = time.perf_counter() - began
    write_json(metrics(output), {**origin.identity, "train": list(split.indices), **model.metrics})
    write_json(timing(output), {"seconds": seconds})
    save_model(output, model, origin, asdict(settings))
    return model, seconds


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
    ids: list[str] = []
    found: dict[int, tuple[Path, str]] = {}  # teachers: file and id by index
    for index, file in zip(needed["teachers"], teacher_files, strict=True):
        teacher = check_teacher(file, family, split, index, seed)
        before = None if index == 0 else split.before(index)
        if before in found:
            previous, previous_id = found[before]
            check_input(file, teacher, {str(previous): previous_id}, _teacher_command(family, split, index, seed))
        found[index] = (file, teacher["id"])
        ids.append(teacher["id"])
    for index, file in zip(needed["datasets"], dataset_files, strict=True):
        source = found[index][0] if index in found else None
        ids.append(check_dataset(file, source, family, split, index, seed)["id"])
    return ids


def make_evaluation(
    method: Method,
    benchmark: Benchmark,
    split: Split,
    seed: int,
    settings: EvaluationSettings,
    model_file: Path,
    output: Path,
    *,
    expect: str = "",
) -> dict[str, float]:
    """Measure a model at every index and save the result; returns the three ratios."""
    trained = methods.get_method(method.model_method)
    model, found = read_model(model_file, trained, Unit.of(trained, benchmark), split, seed)
    origin = evaluation_origin(method, benchmark, split, seed, settings, found["id"])
    origin.check(expect)
    role = roles(benchmark.family, split.indices, settings)
    counts = count_satisfied(
        method, model, benchmark.family, benchmark.specification, list(role), settings.rollouts, seed
    )
    tasks = benchmark.family.tasks([0], benchmark.specification)
    more: Mapping[str, Any] = {
        "specification": benchmark.specification,
        "train": list(split.indices),
        "steps": model.steps_on(tasks.edge_names),
    }
    table = save_evaluation(output, counts, role, settings, origin, more)
    return summarize(table["role"].to_pylist(), table["succeeds"].to_pylist())


__all__ = [
    "Unit",
    "check_dataset",
    "check_teacher",
    "dataset_origin",
    "evaluation_origin",
    "make_dataset",
    "make_evaluation",
    "make_model",
    "make_teacher",
    "model_origin",
    "read_model",
    "teacher_origin",
    "teacher_tasks",
]
