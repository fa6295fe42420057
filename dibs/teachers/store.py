"""A teacher on disk: weights (safetensors), state buffers (Parquet), metrics (JSON)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dibs import paths
from dibs.errors import DibsError
from dibs.files import damaged, read_json, read_table, read_tensors, write_json, write_table, write_tensors
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.teachers.buffers import KINDS, StateBuffers
from dibs.teachers.train import Teacher


def save_teacher(
    path: Path, teacher: Teacher, buffers: StateBuffers, provenance: dict[str, Any], seconds: float
) -> None:
    """Write the buffers, metrics and timing, then the weights: whoever sees these finds the others."""
    import pyarrow as pa

    identity = {
        "kind": "teacher",
        "family": teacher.family,
        "gap": teacher.gap,
        "index": teacher.index,
        "seed": teacher.seed,
        "edges": list(teacher.edges),
        **provenance,
    }
    state_names = provenance["states"]
    parts = [(name, kind, buffers.edges[e][kind].view()) for e, name in enumerate(teacher.edges) for kind in KINDS]
    states = np.concatenate([view for _, _, view in parts])
    counts = [len(view) for _, _, view in parts]
    columns: dict[str, Any] = {
        "edge": pa.array(np.repeat([name for name, _, _ in parts], counts)).dictionary_encode(),
        "buffer": pa.array(np.repeat([kind for _, kind, _ in parts], counts)).dictionary_encode(),
    }
    columns |= {name: pa.array(states[:, d]) for d, name in enumerate(state_names)}
    write_table(paths.buffers(path), pa.table(columns), identity)
    write_json(paths.metrics(path), {**identity, "metrics": teacher.metrics})
    write_json(paths.timing(path), {"seconds": seconds})
    write_tensors(
        path,
        {
            "actor": teacher.actor,
            "head": teacher.head.astype(np.float32),
            "scaling_center": teacher.scaling.center,
            "scaling_half": teacher.scaling.half,
        },
        {**identity, "network": asdict(teacher.network), "settings": teacher.settings},
    )


def load_teacher(path: str | Path) -> Teacher:
    """Read a teacher and its metrics."""
    tensors, meta = read_tensors(path)
    if meta.get("kind") != "teacher":
        raise DibsError(f"{path}: expected a teacher, found a file of kind {meta.get('kind')!r}")
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
    metrics = read_json(paths.metrics(Path(path)))["metrics"]
    return Teacher(
        meta["family"],
        meta["gap"],
        meta["index"],
        meta["seed"],
        tuple(meta["edges"]),
        network,
        Scaling(tensors["scaling_center"], tensors["scaling_half"]),
        tensors["actor"],
        tensors["head"],
        metrics,
        meta["settings"],
    )


def load_replay(path: str | Path, edges: tuple[str, ...]) -> list[np.ndarray]:
    """The replay buffer (n, dim) of every edge, from the file beside a teacher."""
    file = paths.buffers(Path(path))
    table, meta = read_table(file)
    states = np.stack([table[name].to_numpy() for name in meta["states"]], axis=1)
    edge, kind = (np.asarray(table[c].combine_chunks().dictionary_decode()) for c in ("edge", "buffer"))
    return [states[(edge == name) & (kind == "replay")] for name in edges]
