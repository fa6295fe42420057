"""A dataset on disk: one Parquet file per teacher, readable as it is by pandas, polars or DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dibs.datasets.build import SOURCES, Block
from dibs.errors import DibsError
from dibs.files import KEY, atomic, damaged, plain, read_table
from dibs.teachers.train import Teacher


def save_dataset(
    path: Path,
    teacher: Teacher,
    state_names: tuple[str, ...],
    action_names: tuple[str, ...],
    blocks: Iterator[Block],
    provenance: dict[str, Any],
) -> dict[str, int]:
    """Stream blocks into row groups; returns the number of rows per edge."""
    import json

    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.dictionary(pa.int8(), pa.string())
    fields = [("edge", text), *((n, pa.float32()) for n in state_names)]
    fields += [(f"action_{n}", pa.float32()) for n in action_names]
    fields += [("source", text), ("p_conf", pa.float32())]
    identity = {
        "kind": "dataset",
        "family": teacher.family,
        "gap": teacher.gap,
        "index": teacher.index,
        "seed": teacher.seed,
        "edges": list(teacher.edges),
        "states": list(state_names),
        "actions": [f"action_{n}" for n in action_names],
        **provenance,
    }
    schema = pa.schema(fields, metadata={KEY: json.dumps(plain(identity), sort_keys=True)})
    rows = dict.fromkeys(teacher.edges, 0)
    with atomic(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for block in blocks:
            columns = [
                _category(np.full(len(block.states), block.edge), teacher.edges),
                *(pa.array(block.states[:, d].astype(np.float32)) for d in range(len(state_names))),
                *(pa.array(block.actions[:, d].astype(np.float32)) for d in range(len(action_names))),
                _category(block.source, SOURCES),
                pa.array(block.confidence.astype(np.float32)),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            rows[teacher.edges[block.edge]] += len(block.states)
    return rows


def load_dataset(
    path: str | Path, most: int | None = None
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], dict[str, Any]]:
    """States and actions per edge (at most `most` rows each: rows are in random order) and the metadata."""
    table, meta = read_table(path)
    if meta.get("kind") != "dataset":
        raise DibsError(f"{path}: expected a dataset, found a file of kind {meta.get('kind')!r}")
    try:
        codes = table["edge"].combine_chunks()
        edge = np.asarray(codes.indices)
        names = codes.dictionary.to_pylist() if table.num_rows else []
        states = np.stack([table[n].to_numpy() for n in meta["states"]], axis=1)
        actions = np.stack([table[n].to_numpy() for n in meta["actions"]], axis=1)
    except KeyError as error:
        raise damaged(path, f"column {error}") from None
    if not (np.isfinite(states).all() and np.isfinite(actions).all()):
        raise damaged(path, "a state or action is not finite")
    found = {}
    for code, name in enumerate(names):
        rows = np.flatnonzero(edge == code)[:most]
        if len(rows):
            found[name] = (states[rows], actions[rows])
    return found, meta


def _category(codes: np.ndarray, names: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(list(names)))
