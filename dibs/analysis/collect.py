"""Read evaluations into tidy frames: one row per evaluation, or one row per evaluated index.

Every file is checked for being what it says: a damaged one, one of another kind, two files of one and the same
evaluation, or evaluations by different thresholds are errors that name the file, never numbers in a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dibs.analysis.methods import BRANCHING, OURS, in_order
from dibs.errors import DibsError
from dibs.files import damaged, read_table
from dibs.paths import Layout

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

IDENTITY = ("method", "benchmark", "gap", "seed")
"""What tells one evaluation from another."""
COLUMNS = (
    *IDENTITY,
    "family",
    "k",  # goals in a row, NaN where the benchmark does not count them
    "train_size",
    "unseen_size",
    "training_count",
    "training_ratio",
    "zero_shot_count",
    "zero_shot_ratio",
    "beyond_ratio",
    "straddling",  # tasks up to L whose interval holds δ: solved or not, more rollouts could tell otherwise
    "steps",  # environment steps that training took; NaN where the evaluation does not say
    "rollouts",
    "delta",
    "file",
)
"""Of the frame with one row per evaluation."""
ROLES = ("train", "unseen", "beyond")
_KEYS = (*IDENTITY, "family", "delta")
_COLUMNS = ("index", "role", "rollouts", "satisfied", "rate", "lower", "upper", "succeeds", "straddles")


# --- which files -----------------------------------------------------------------------------------------


def in_results(root: Path, kind: str) -> list[Path]:
    """Files of one kind (evaluation, template, branched template or teacher) below a root of results."""
    places = Layout(Path())
    patterns = {
        "evaluation": [places.evaluation("*", "*", "*", "*")],
        "template": [places.template(method, "*", "*", "*") for method in OURS],
        "branched template": [places.template(method, "*", "*", "*") for method in BRANCHING],
        "teacher": [places.teacher("*", "*", "*", "*")],
    }[kind]
    return sorted(path for pattern in patterns for path in root.glob(str(pattern)))


def listed(entries: Sequence[Path], kind: str) -> list[Path]:
    """The files that the entries name: a result itself, all in a folder, or those listed in any other file."""
    files: list[Path] = []
    for entry in entries:
        if entry.is_dir():
            files += in_results(entry, kind) or _below(entry, kind)
        elif entry.suffix in (".parquet", ".safetensors", ".json"):
            files.append(entry)
        else:
            files += _lines(entry)
    return files


def find(kind: str, inputs: Sequence[Path] | None, results: Path) -> list[Path]:
    """The files of `inputs` if there are any, otherwise those of the results."""
    files = listed(inputs, kind) if inputs else in_results(results, kind)
    if not files:
        where = ", ".join(map(str, inputs)) if inputs else results
        raise DibsError(f"{where}: no {kind} there; run the workflow first, or name files with --inputs")
    return files


def _below(folder: Path, kind: str) -> list[Path]:
    suffix = ".parquet" if kind == "evaluation" else ".safetensors"
    return sorted(path for path in folder.rglob(f"*{suffix}") if not path.name.startswith("."))


def _lines(file: Path) -> list[Path]:
    try:
        lines = [line.strip() for line in file.read_text().splitlines()]
    except FileNotFoundError:
        raise DibsError(f"{file}: no such list of files") from None
    except UnicodeDecodeError:
        raise DibsError(f"{file}: expected a list of files, one per line; found something that is not text") from None
    return [Path(line) for line in lines if line and not line.startswith("#")]


# --- frames ----------------------------------------------------------------------------------------------


def read_evaluation(path: Path) -> tuple[pa.Table, dict[str, Any]]:
    """One evaluation, checked, and what it says about itself."""
    table, meta = read_table(path)
    if meta.get("kind") != "evaluation":
        raise DibsError(f"{path}: expected an evaluation, found a file of kind {meta.get('kind')!r}")
    absent = [f"column {c}" for c in _COLUMNS if c not in table.column_names]
    absent += [f"metadata {k}" for k in _KEYS if k not in meta]
    if absent:
        raise damaged(path, f"no {', '.join(absent)}")
    index, role = table["index"].to_pylist(), table["role"].to_pylist()
    if len(set(index)) != len(index):
        raise damaged(path, "the same index twice")
    if not set(role) <= set(ROLES) or "train" not in role:
        raise damaged(path, f"roles {sorted(map(str, set(role)))}; expected train and any of {', '.join(ROLES[1:])}")
    return table, meta


def collect(files: Iterable[Path]) -> pd.DataFrame:
    """One row per evaluation: the paper's metrics and what they were computed from."""
    import pandas as pd

    from dibs.evaluation.evaluate import summarise

    rows = []
    for file in files:
        table, meta = read_evaluation(file)
        role = table["role"].to_pylist()
        succeeds = table["succeeds"].to_pylist()
        straddles = table["straddles"].to_pylist()
        rows.append(
            {
                **{key: meta[key] for key in IDENTITY},
                "family": meta["family"],
                "k": _goals(meta["benchmark"], meta["family"]),
                "train_size": role.count("train"),
                "unseen_size": role.count("unseen"),
                "training_count": sum(s for s, r in zip(succeeds, role, strict=True) if r == "train"),
                **summarise(role, succeeds),
                "straddling": sum(s for s, r in zip(straddles, role, strict=True) if r != "beyond"),
                "steps": meta.get("steps"),
                "rollouts": max(table["rollouts"].to_pylist()),
                "delta": meta["delta"],
                "file": str(file),
            }
        )
    frame = pd.DataFrame(rows, columns=list(COLUMNS)).astype({"steps": float, "k": float})
    _check_unique(frame)
    _check_delta(frame)
    return _sorted(frame)


def collect_indices(files: Iterable[Path], benchmark: str, gap: int) -> pd.DataFrame:
    """One row per evaluated index of one benchmark and split; evaluations of others are left out."""
    import pandas as pd

    frames = []
    for file in files:
        table, meta = read_evaluation(file)
        if (meta["benchmark"], meta["gap"]) == (benchmark, gap):
            frame = table.select(list(_COLUMNS)).to_pandas()
            frames.append(frame.assign(**{key: meta[key] for key in (*IDENTITY, "delta")}))
    empty = pd.DataFrame(columns=[*_COLUMNS, *IDENTITY, "delta"])
    return pd.concat(frames, ignore_index=True) if frames else empty


def benchmark_order(names: Iterable[str]) -> list[str]:
    """Benchmarks in the paper's order, one's own last."""
    from dibs.families import benchmarks

    known = list(benchmarks())
    return sorted(set(names), key=lambda b: (known.index(b) if b in known else len(known), b))


def _goals(benchmark: str, family: str) -> int | None:
    """The k of k-reachability."""
    tail = benchmark.removeprefix(f"{family}-k")
    return int(tail) if tail.isdigit() else None


def _sorted(frame: pd.DataFrame) -> pd.DataFrame:
    """In an order that does not depend on that of the files."""
    methods = {m: n for n, m in enumerate(in_order(frame["method"]))}
    names = {b: n for n, b in enumerate(benchmark_order(frame["benchmark"]))}
    keys = frame.assign(method=frame["method"].map(methods), benchmark=frame["benchmark"].map(names), gap=-frame["gap"])
    return frame.loc[keys.sort_values(["benchmark", "method", "gap", "seed"]).index].reset_index(drop=True)


def _check_unique(frame: pd.DataFrame) -> None:
    twice = frame[frame.duplicated(list(IDENTITY), keep=False)]
    if len(twice):
        first = twice.iloc[0]
        same = twice[(twice[list(IDENTITY)] == first[list(IDENTITY)]).all(axis=1)]["file"].tolist()
        raise DibsError(
            f"{same[1]}: the same evaluation as {same[0]} ({first['method']}, {first['benchmark']}, "
            f"gap {first['gap']}, seed {first['seed']}); name only one of them"
        )


def _check_delta(frame: pd.DataFrame) -> None:
    other = frame[frame["delta"] != frame["delta"].iloc[0]] if len(frame) else frame
    if len(other):
        raise DibsError(
            f"{other['file'].iloc[0]}: a task counts as solved above {other['delta'].iloc[0]}, but above "
            f"{frame['delta'].iloc[0]} in {frame['file'].iloc[0]}; they cannot be compared: evaluate one of them again"
        )
