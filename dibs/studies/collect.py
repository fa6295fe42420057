"""Evaluations as tidy frames: one row per evaluation, or one row per evaluated index.

Every file is checked. A damaged file, a file of another kind or version, two files of the same evaluation, or
evaluations with different thresholds, descriptions of a family or versions are errors that name the file.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from dibs import evaluation, registry
from dibs.errors import DibsError
from dibs.evaluation.evaluate import summarize
from dibs.evaluation.requirements import UNKNOWN, known_group
from dibs.families import Benchmark, benchmarks, families, get_benchmark, load_family
from dibs.files import damaged, read_json, read_metadata, read_table
from dibs.methods import get_method, in_order
from dibs.paths import Layout, timing
from dibs.provenance import check_input, check_kind, check_versions, list_versions
from dibs.stages import evaluation_versions

IDENTITY = ("method", "benchmark", "split", "seed")
"""What distinguishes one evaluation from another."""
COLUMNS = (
    *(*IDENTITY, "family", "requires", "train_size", "unseen_size", "training_count", "training_ratio"),
    "training_rate",  # mean satisfaction rate at the training indices
    *("zero_shot_count", "zero_shot_ratio", "beyond_ratio", "far_ratio"),
    "straddling",  # tasks up to L whose interval contains δ: with more rollouts they might count differently
    "steps",  # environment steps of training; NaN if the evaluation does not record them
    "seconds",  # of training, with the teachers it rests on; NaN if the model is not where the layout has it
    *("rollouts", "delta", "file"),
    *("tasks", "indices"),  # digest of the evaluated tasks, and their indices
    "versions",  # of the evaluation and of the method, as one text
)
"""Columns of the frame with one row per evaluation."""
ROLES = ("train", "unseen", "beyond", "far")
CHECKSUM = re.compile(r"# ([0-9a-f]{64})")
"""In a list of files, of the file on the next line."""
_KEYS = (*IDENTITY, "family", "delta")
_COLUMNS = ("index", "role", "rollouts", "satisfied", "rate", "lower", "upper", "succeeds", "straddles")


# --- which files -----------------------------------------------------------------------------------------


def find(kind: str, inputs: Sequence[Path] | None, results: Path, methods: Sequence[str] = ()) -> list[Path]:
    """Return the files that `inputs` name, or all evaluations, models (of some methods) or teachers of the results."""
    files = _listed(inputs, kind, methods) if inputs else _in_results(results, kind, methods)
    if not files:
        where = ", ".join(map(str, inputs)) if inputs else results
        raise DibsError(f"{where}: no {kind} there; run the workflow first, or name files with --inputs")
    return files


def find_variants(results: Path, ablation: str) -> list[Path]:
    """Return the evaluations of all variants of an ablation of the results."""
    roots = sorted((results / "ablations" / ablation).glob("*"))
    return [file for root in roots for file in _in_results(root, "evaluations", ())]


def listed(files: Iterable[Path]) -> str:
    """Return a list of files that `find` reads, each after a comment with its checksum."""
    return "".join(f"# {_checksum(file)}\n{file}\n" for file in files)


def _checksum(file: str | Path) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()


def _in_results(root: Path, kind: str, methods: Sequence[str]) -> list[Path]:
    layout, first = Layout(Path()), methods if kind == "models" and methods else ["*"]
    pattern = {"evaluations": layout.evaluation, "models": layout.model, "teachers": layout.teacher}[kind]
    return [path for name in first for path in sorted(root.glob(str(pattern(name, "*", "*", "*"))))]


def _listed(entries: Sequence[Path], kind: str, methods: Sequence[str]) -> list[Path]:
    """Return the files that entries name: a result itself, all in a folder, or those listed in any other file."""
    suffix = ".parquet" if kind == "evaluations" else ".safetensors"
    files: list[Path] = []
    for entry in entries:
        if entry.is_dir():
            files += _in_results(entry, kind, methods) or sorted(entry.rglob(f"[!.]*{suffix}"))
        elif entry.suffix in (".parquet", ".safetensors", ".json"):
            files.append(entry)
        else:
            files += _read_list(entry, kind)
    return files


def _read_list(entry: Path, kind: str) -> list[Path]:
    """Return the files of a list; refuse one that differs from the checksum before it."""
    try:
        lines = [line.strip() for line in entry.read_text().splitlines()]
    except FileNotFoundError:
        raise DibsError(f"{entry}: no such list of files") from None
    except UnicodeDecodeError:
        raise DibsError(f"{entry}: expected a list of files, one per line; found binary data") from None
    files = [Path(line) for line in lines if line and not line.startswith("#")]
    for before, line in pairwise(lines):
        checksum = CHECKSUM.fullmatch(before)
        if checksum and line and not line.startswith("#") and Path(line).is_file() and _checksum(line) != checksum[1]:
            check_kind(line, read_metadata(line), kind.removesuffix("s"))  # what is wrong with the file itself
            raise DibsError(
                f"{line}: has changed since {entry} was made; delete the list, so that the workflow makes it again, or "
                "name the file itself"
            )
    return files


# --- frames ----------------------------------------------------------------------------------------------


def read_evaluation(path: Path) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Read and check one evaluation, one row per index, and its metadata."""
    table, meta = read_table(path)
    check_kind(path, meta, "evaluation")
    absent = [f"column {c}" for c in _COLUMNS if c not in table.column_names]
    absent += [f"metadata {k}" for k in _KEYS if k not in meta]
    if absent:
        raise damaged(path, f"no {', '.join(absent)}")
    kept = [*_COLUMNS, *(name for name in ("predicted",) if name in table.column_names)]
    rows = table.select(kept).to_pandas()
    if rows["index"].duplicated().any():
        raise damaged(path, "the same index twice")
    role = set(rows["role"])
    if not role <= set(ROLES) or "train" not in role:
        raise damaged(path, f"roles {sorted(map(str, role))}; expected train and any of {', '.join(ROLES[1:])}")
    name = meta["method"]
    if name in registry.names("methods"):
        versions = evaluation_versions(get_method(name))
    else:  # results of a method that is not installed can still be read
        versions = {**(meta.get("versions") or {}), "evaluation": evaluation.VERSION}
    check_versions(path, meta, versions, _evaluate(meta))
    model = _model_of(path, meta)
    variant = {"ablations", "sweeps"} & set(path.absolute().parts)  # may be measured on a model of the main study
    if model is not None and model.is_file() and not variant:
        check_input(path, meta, {str(model): read_metadata(model)["id"]}, _evaluate(meta))
    return rows, meta


def _evaluate(run: Mapping[Any, Any] | pd.Series) -> str:
    """Return the command that makes an evaluation again."""
    return "`dibs evaluate {benchmark} --method {method} --split {split} --seed {seed}`".format_map(run)


def collect(files: Iterable[Path]) -> pd.DataFrame:
    """Return one row per evaluation: the metrics and what they were computed from, in an order of their own."""
    frame = pd.DataFrame([_run(file) for file in files], columns=list(COLUMNS)).astype(
        {"steps": float, "seconds": float}
    )
    _check_unique(frame)
    check_comparable(frame)
    return _in_order(frame, ("benchmark", "method", "train_size", "split", "seed"))


def _run(file: Path) -> dict[str, Any]:
    rows, meta = read_evaluation(file)
    train, unseen, beyond, far = (rows["role"] == role for role in ROLES)
    return {
        **{key: meta[key] for key in _KEYS},
        "requires": requires(meta["benchmark"], meta["family"], Layout(Path(*file.parts[:-5]))),
        **{"train_size": int(train.sum()), "unseen_size": int(unseen.sum())},
        **{"training_count": float(rows["succeeds"][train].sum()), "training_rate": rows["rate"][train].mean()},
        **summarize(rows["role"].tolist(), rows["succeeds"].tolist()),
        **{"straddling": int(rows["straddles"][~(beyond | far)].sum()), "steps": meta.get("steps")},
        **{"seconds": _seconds(file, meta)},
        **{"rollouts": int(rows["rollouts"].max()), "file": str(file)},
        **{"tasks": meta.get("tasks"), "indices": tuple(sorted(rows["index"]))},
        **{"versions": list_versions(meta.get("versions"))},
    }


def _model_of(evaluation: Path, meta: Mapping[str, Any]) -> Path | None:
    """Return where the model of an evaluation is, if both are in a folder of results."""
    root, name = evaluation.absolute().parents[len(IDENTITY) :][:1], meta["method"]
    if not root or name not in registry.names("methods"):
        return None
    method, layout = get_method(name), Layout(root[0])
    place = meta["benchmark"], meta["split"], meta["seed"]
    if layout.evaluation(name, *place) != evaluation.absolute():
        return None
    return layout.model(method.model_method, method.unit(meta["family"], meta["benchmark"]), *place[1:])


def _seconds(evaluation: Path, meta: Mapping[str, Any]) -> float:
    """Return how long training the model of an evaluation took, from the timing next to the model."""
    model = _model_of(evaluation, meta)
    return float(sum(read_json(timing(model)).values())) if model and timing(model).exists() else float("nan")


@cache
def requires(benchmark: str, family: str, layout: Layout) -> str:
    """Return what a benchmark requires: the registered answer, or the one in the folder of the results."""
    if benchmark in benchmarks():
        return known_group(get_benchmark(benchmark), layout.requirements(family))
    description = layout.family(family)
    if not description.is_file():
        return UNKNOWN
    measured = Benchmark(benchmark, load_family(description), benchmark, family)
    return known_group(measured, layout.requirements(family))


def collect_indices(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row per index of the evaluations in a frame of runs."""
    found = [read_evaluation(Path(file)) for file in runs["file"]]
    frames = [rows.assign(**{key: meta[key] for key in _KEYS}) for rows, meta in found]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*_COLUMNS, *_KEYS])


def where(frame: pd.DataFrame, **values: Any) -> pd.DataFrame:
    """Return the rows that have the given values."""
    return frame[(frame[list(values)] == pd.Series(values)).all(axis=1)]


def groups(frame: pd.DataFrame, *columns: str) -> list[tuple[Any, pd.DataFrame]]:
    """Return values of some columns and the rows that have them, in the order of tables and legends."""
    return list(_in_order(frame, columns).groupby(list(columns), sort=False))


def _in_order(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    orders = {"benchmark": benchmark_order, "family": benchmark_order, "method": in_order}

    def position(column: pd.Series) -> pd.Series:
        return column.map(orders[str(column.name)](column).index) if column.name in orders else column

    return frame.sort_values(list(columns), key=position, kind="stable", ignore_index=True)


def benchmark_order(names: Iterable[str]) -> list[str]:
    """Return benchmarks, or families, in the order in which they are registered, others last."""
    known = [*benchmarks(), *families()]
    return sorted(set(names), key=lambda b: (known.index(b) if b in known else len(known), b))


def split_order(frame: pd.DataFrame) -> list[str]:
    """Return the splits in a frame by |Train|, then by name."""
    return [str(s) for s in frame.sort_values(["train_size", "split"])["split"].unique()]


def middle_split(frame: pd.DataFrame) -> str:
    """Return the split with median |Train| (on a tie, the larger one) of those with most rows."""
    complete = split_order(frame[frame["split"].isin(frame["split"].mode())])
    return complete[len(complete) // 2]


def _check_unique(frame: pd.DataFrame) -> None:
    twice = frame[frame.duplicated(list(IDENTITY), keep=False)].sort_values(list(IDENTITY), kind="stable")
    if len(twice):
        first, other = twice.iloc[0], twice.iloc[1]
        raise DibsError(
            f"{other['file']}: the same evaluation as {first['file']} ({first['method']}, {first['benchmark']}, "
            f"{first['split']}, seed {first['seed']}); name only one of them"
        )


def _differing(frame: pd.DataFrame, column: str) -> list[tuple[pd.Series, pd.Series]]:
    """Return the first two runs that differ in a column; nothing if all have the same value."""
    different = frame.drop_duplicates(column)
    return [(different.iloc[0], different.iloc[1])] if len(different) > 1 else []


def check_comparable(frame: pd.DataFrame) -> None:
    """Reject evaluations with different thresholds, of different descriptions of a benchmark, or of two versions of a
    method."""
    for first, other in _differing(frame, "delta"):
        raise DibsError(
            f"{other['file']}: a task counts as solved above {other['delta']}, but above {first['delta']} in "
            f"{first['file']}; they cannot be compared: evaluate one of them again"
        )
    # The digest of the tasks covers the evaluated indices, so it is the same for all evaluations at these indices.
    for (benchmark, _), found in frame.groupby(["benchmark", "indices"], sort=False):
        for first, other in _differing(found, "tasks"):
            raise DibsError(
                f"{other['file']}: was made from another description of {benchmark} than {first['file']} (environment, "
                "specification, regions, start, horizon, reward or network differ); train and evaluate the older one "
                f"again: {_evaluate(other)} or {_evaluate(first)}"
            )
    for method, found in frame.groupby("method", sort=False):
        for first, other in _differing(found, "versions"):
            raise DibsError(
                f"{other['file']}: was made by another version of {method} ({other['versions']}) than {first['file']} "
                f"({first['versions']}); they cannot be compared: make the older one again: "
                f"{_evaluate(other)} or {_evaluate(first)}"
            )
