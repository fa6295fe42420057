"""A dataset on disk: one Parquet file per teacher, which pandas, polars and DuckDB can read directly."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dibs.datasets.build import SOURCES, Block
from dibs.files import KEY, atomic, damaged, existing, plain, read_metadata
from dibs.provenance import Origin, check_kind
from dibs.teachers.train import Teacher


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset in memory: what `load_dataset` reads from a file."""

    index: int
    rows: Mapping[str, tuple[np.ndarray, np.ndarray]]
    """States (n, dim) and actions (n, m) by edge."""
    metadata: Mapping[str, Any]

    def __repr__(self) -> str:
        counts = ", ".join(f"{name} {len(states)}" for name, (states, _) in self.rows.items())
        return f"Dataset(index {self.index}, rows: {counts or 'none'})"


def collect_dataset(teacher: Teacher, blocks: Iterator[Block], origin: Origin) -> Dataset:
    """Collect blocks in memory; the rows are those that `save_dataset` writes."""
    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    for block in blocks:
        rows = block.states.astype(np.float32), block.actions.astype(np.float32)
        parts.setdefault(teacher.edges[block.edge], []).append(rows)
    joined = {name: (np.concatenate([s for s, _ in p]), np.concatenate([a for _, a in p])) for name, p in parts.items()}
    return Dataset(teacher.index, joined, {**origin.metadata(), "edges": list(teacher.edges)})


def save_dataset(
    path: Path,
    teacher: Teacher,
    state_names: tuple[str, ...],
    action_names: tuple[str, ...],
    blocks: Iterator[Block],
    origin: Origin,
) -> dict[str, int]:
    """Write blocks as row groups, one at a time; returns the number of rows per edge."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.dictionary(pa.int8(), pa.string())
    fields = [("edge", text), *((n, pa.float32()) for n in state_names)]
    fields += [(f"action_{n}", pa.float32()) for n in action_names]
    fields += [("source", text), ("p_conf", pa.float32())]
    identity = {
        **origin.metadata(),
        "edges": list(teacher.edges),
        "states": list(state_names),
        "actions": [f"action_{n}" for n in action_names],
    }
    schema = pa.schema(fields, metadata={KEY: json.dumps(plain(identity), sort_keys=True)})
    rows, acceptance, thresholds = dict.fromkeys(teacher.edges, 0), dict[str, float](), dict[str, float]()
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
            acceptance[teacher.edges[block.edge]] = block.acceptance
            thresholds[teacher.edges[block.edge]] = block.threshold
        # Known only at the end; replaces the metadata of the schema.
        complete = {**identity, "acceptance": acceptance, "thresholds": thresholds}
        writer.add_key_value_metadata({KEY: json.dumps(plain(complete), sort_keys=True)})
    return rows


def read_acceptance(path: str | Path) -> dict[str, float] | None:
    """Return the share of candidates that passed the filter, by edge; None if the file does not have it."""
    return read_metadata(path).get("acceptance")


def load_dataset(
    path: str | Path | Dataset, most: int | None = None
) -> tuple[dict[str, tuple[np.ndarray, np.ndarray]], dict[str, Any]]:
    """Return states and actions per edge, at most `most` rows of each, and the metadata.

    Rows are in random order, so the first ones are a sample. Row groups of edges that have enough rows are not read:
    memory is bounded by `most`, not by the file. A dataset in memory gives the same rows as its file.
    """
    if isinstance(path, Dataset):
        return {name: (states[:most], actions[:most]) for name, (states, actions) in path.rows.items()}, dict(
            path.metadata
        )
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
    missing: dict[str, int | None] = {}
    try:
        with pq.ParquetFile(existing(path)) as file:
            meta = json.loads((file.schema_arrow.metadata or {})[KEY.encode()])
            check_kind(path, meta, "dataset")
            for group in range(file.num_row_groups):
                if missing.get(_only_edge(file, group), most) == 0:
                    continue
                table = file.read_row_group(group, columns=["edge", *meta["states"], *meta["actions"]])
                edge = table["edge"].combine_chunks()
                states, actions = (np.stack([table[n].to_numpy() for n in meta[k]], 1) for k in ("states", "actions"))
                if not (np.isfinite(states).all() and np.isfinite(actions).all()):
                    raise damaged(path, "a state or action is not finite")
                for code, name in enumerate(edge.dictionary.to_pylist()):
                    left = missing.get(name, most)
                    rows = np.flatnonzero(np.asarray(edge.indices) == code)[:left]
                    if len(rows):
                        parts.setdefault(name, []).append((states[rows], actions[rows]))
                        missing[name] = None if left is None else left - len(rows)
    except KeyError as error:
        raise damaged(path, f"no column or entry {error}") from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise damaged(path, error) from None
    found = {}
    for name in meta["edges"]:
        if name in parts:
            found[name] = (np.concatenate([s for s, _ in parts[name]]), np.concatenate([a for _, a in parts[name]]))
    return found, meta


def read_dataset(path: str | Path) -> Dataset:
    """Read a whole dataset into memory."""
    rows, metadata = load_dataset(path)
    return Dataset(metadata["index"], rows, metadata)


def _only_edge(file: Any, group: int) -> str:
    """Return the edge of a row group if its statistics show that it has only one, else an empty string."""
    statistics = file.metadata.row_group(group).column(0).statistics
    if statistics is None or not statistics.has_min_max or statistics.min != statistics.max:
        return ""
    return str(statistics.min)


def _category(codes: np.ndarray, names: tuple[str, ...]) -> Any:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int8)), pa.array(list(names)))
