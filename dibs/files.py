"""Reading and writing results: atomic, free of pickles, with what made a file kept inside it.

A file appears under its name only when it is complete (temporary name, then rename), so a killed job leaves
nothing that a later one could mistake for a result. Reading a damaged file names it and says what to do.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dibs.errors import DibsError

if TYPE_CHECKING:
    import pyarrow as pa

KEY = "dibs"  # the metadata entry, one JSON object, that carries a file's provenance


@contextmanager
def atomic(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path next to `path` that takes its name once the block has succeeded."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def damaged(path: str | Path, why: object) -> DibsError:
    """Build the error for a file that cannot be read as what it should be."""
    return DibsError(f"{path}: damaged or not what it should be ({why}); delete it and rerun to rebuild it")


def existing(path: str | Path, command: str = "the step that makes it") -> Path:
    """The path of a file that must be there; `command` makes it."""
    if not Path(path).is_file():
        raise DibsError(f"{path}: no such file; run {command} first")
    return Path(path)


def check_suffix(output: str | Path, suffixes: Sequence[str]) -> str:
    """Return the suffix of a file to write, in lower case; refuse one that is not among those expected."""
    suffix = Path(output).suffix.lower()
    if suffix not in suffixes:
        raise DibsError(f"{output}: expected a name that ends in {', '.join(suffixes[:-1])} or {suffixes[-1]}")
    return suffix


def write_json(path: str | Path, data: Any) -> None:
    """Write `data` as indented JSON; NaN becomes null."""
    with atomic(path) as temporary:
        temporary.write_text(json.dumps(plain(data), indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(existing(path).read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise damaged(path, error) from None


def write_tensors(path: str | Path, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Write arrays as safetensors; every value must be finite."""
    from safetensors.numpy import save_file

    for name, tensor in tensors.items():
        if not np.isfinite(tensor).all():
            raise DibsError(f"{path}: refusing to write {name}, which has values that are not finite")
    contiguous = {name: np.ascontiguousarray(tensor) for name, tensor in sorted(tensors.items())}
    with atomic(path) as temporary:
        # One entry only: the library does not keep the order of several, and bytes must repeat.
        save_file(contiguous, temporary, metadata={KEY: json.dumps(plain(metadata), sort_keys=True)})


def read_tensors(path: str | Path) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read a safetensors file and its metadata."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(existing(path)), framework="numpy") as file:
            metadata = json.loads((file.metadata() or {})[KEY])
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise damaged(path, error) from None


def read_metadata(path: str | Path) -> dict[str, Any]:
    """Read the metadata of a safetensors or Parquet file, without its contents."""
    from safetensors import SafetensorError, safe_open

    try:
        if Path(path).suffix == ".parquet":
            import pyarrow.parquet as pq

            return dict(json.loads((pq.read_metadata(existing(path)).metadata or {})[KEY.encode()]))
        with safe_open(str(existing(path)), framework="numpy") as file:
            return dict(json.loads((file.metadata() or {})[KEY]))
    except (SafetensorError, KeyError, ValueError, OSError) as error:  # ArrowInvalid is a ValueError
        raise damaged(path, error) from None


def write_table(path: str | Path, table: pa.Table, metadata: Mapping[str, Any]) -> None:
    """Write an Arrow table as Parquet."""
    import pyarrow.parquet as pq

    with atomic(path) as temporary:
        pq.write_table(with_metadata(table, metadata), temporary, compression="zstd")


def write_rows(path: str | Path, rows: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]) -> None:
    """Write rows as Parquet; what a row does not have is null."""
    import pyarrow as pa

    names = list(dict.fromkeys(name for row in rows for name in row))
    write_table(path, pa.table({name: [row.get(name) for row in rows] for name in names}), metadata)


def with_metadata(table: pa.Table, metadata: Mapping[str, Any]) -> pa.Table:
    """The table with its provenance as the only schema metadata."""
    return table.replace_schema_metadata({KEY: json.dumps(plain(metadata), sort_keys=True)})


def read_table(path: str | Path, columns: list[str] | None = None) -> tuple[pa.Table, dict[str, Any]]:
    """Read a Parquet file and its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(existing(path)) as file:  # pq.read_table would import pandas
            table = file.read(columns)
        metadata = json.loads((table.schema.metadata or {})[KEY.encode()])
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise damaged(path, error) from None
    return table, metadata


def plain(value: Any) -> Any:
    """Numbers, strings, lists and mappings only."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value
