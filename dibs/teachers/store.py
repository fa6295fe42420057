"""A teacher on disk: weights (safetensors), state buffers and curve (Parquet), metrics (JSON)."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from dibs import paths
from dibs.files import (
    damaged,
    plain,
    read_metadata,
    read_table,
    read_tensors,
    write_json,
    write_rows,
    write_table,
    write_tensors,
)
from dibs.methods import teacher_metrics
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.provenance import Origin, check_kind, check_together
from dibs.teachers.buffers import KINDS, StateBuffers
from dibs.teachers.train import Teacher


def save_teacher(path: Path, teacher: Teacher, buffers: StateBuffers, origin: Origin, seconds: float) -> None:
    """Write the buffers, curve, metrics and timing, then the weights: where these are, the others are complete."""
    import pyarrow as pa

    identity = {**origin.metadata(), "edges": list(teacher.edges), "states": list(buffers.state_names)}
    parts = [(name, kind, buffers.edges[e][kind].view()) for e, name in enumerate(teacher.edges) for kind in KINDS]
    states = np.concatenate([view for _, _, view in parts])
    counts = [len(view) for _, _, view in parts]
    columns: dict[str, Any] = {
        "edge": pa.array(np.repeat([name for name, _, _ in parts], counts)).dictionary_encode(),
        "buffer": pa.array(np.repeat([kind for _, kind, _ in parts], counts)).dictionary_encode(),
    }
    columns |= {name: pa.array(states[:, d]) for d, name in enumerate(buffers.state_names)}
    write_table(paths.buffers(path), pa.table(columns), identity)
    curve = [
        {**row, "edge": teacher.edges[int(row["edge"])]} if "edge" in row else row for row in teacher.metrics["curve"]
    ]
    write_rows(paths.curve(path), curve, origin.metadata())
    write_json(paths.metrics(path), {**identity, "metrics": teacher.metrics})
    write_json(paths.timing(path), {"seconds": seconds})
    write_tensors(
        path,
        {
            "actor": teacher.actor,
            "head": teacher.head.astype(np.float32),
            **teacher.scaling.tensors,
            **{f"arrivals {name}": states for name, states in teacher.arrivals.items()},
        },
        {**identity, "network": asdict(teacher.network), "settings": teacher.settings},
    )


def load_teacher(path: str | Path | Teacher) -> Teacher:
    """Read a teacher and its metrics; a teacher in memory is returned as it is."""
    if isinstance(path, Teacher):
        return path
    tensors, meta = read_tensors(path)
    check_kind(path, meta, "teacher")
    network = Network(**{**meta["network"], "hidden": tuple(meta["network"]["hidden"])})
    expected = {
        "actor": (len(meta["edges"]), network.size),
        "head": (len(meta["edges"]), network.hidden[-1] + 1),
        "scaling_center": (len(meta["edges"]), network.inputs),
        "scaling_half": (len(meta["edges"]), network.inputs),
    }
    for name, shape in expected.items():
        if name not in tensors or tensors[name].shape != shape:
            found = tensors[name].shape if name in tensors else "nothing"
            raise damaged(path, f"{name}: expected shape {shape}, found {found}")
    return Teacher(
        family=meta["family"],
        split=meta["split"],
        index=meta["index"],
        seed=meta["seed"],
        edges=tuple(meta["edges"]),
        network=network,
        scaling=Scaling.of(tensors),
        actor=tensors["actor"],
        head=tensors["head"],
        metrics=dict(teacher_metrics(path)),
        settings=meta["settings"],
        arrivals={n: tensors[f"arrivals {n}"] for n in meta["edges"] if f"arrivals {n}" in tensors},
        id=meta["id"],
    )


def as_saved(teacher: Teacher, origin: Origin) -> Teacher:
    """Return a trained teacher exactly as `load_teacher` would read it from its file."""
    return replace(teacher, head=teacher.head.astype(np.float32), metrics=plain(teacher.metrics), id=origin.id)


def load_replay(path: str | Path, edges: tuple[str, ...]) -> list[np.ndarray]:
    """Read the replay buffer (n, dim) of every edge, from the file next to a teacher."""
    file = paths.buffers(Path(path))
    table, meta = read_table(file)
    check_kind(file, meta, "teacher")
    check_together(file, meta, path, read_metadata(path)["id"])
    states = np.stack([table[name].to_numpy() for name in meta["states"]], axis=1)
    edge, kind = (np.asarray(table[c].combine_chunks().dictionary_decode()) for c in ("edge", "buffer"))
    return [states[(edge == name) & (kind == "replay")] for name in edges]
