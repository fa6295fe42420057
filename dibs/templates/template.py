"""A fitted template: κ, the base policies it starts from, and the guard; on disk as safetensors.

`policy(index)` unrolls the actors of any index, seen or not, from nothing but this file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dibs.datasets.store import load_dataset
from dibs.envs import Array
from dibs.errors import DibsError
from dibs.families import Family
from dibs.files import damaged, read_tensors, write_tensors
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.spectrl import Graph
from dibs.teachers.train import Teacher
from dibs.templates.fit import Fit, FitSettings, Supervision
from dibs.templates.guards import EdgeRecord, choose_path
from dibs.templates.polynomial import unroll

RUNAWAY = 1e6  # parameters this large mean that a template does not extend to an index


@dataclass(frozen=True, eq=False)
class Template:
    """One polynomial per edge of a family."""

    method: str
    family: str
    gap: int
    seed: int
    train: tuple[int, ...]
    edges: tuple[str, ...]
    network: Network
    scaling: Scaling
    kappa: Array  # (degree + 1, edges, size)
    base: Array  # (edges, size)
    base_index: npt.NDArray[Any]  # (edges,)
    records: dict[str, EdgeRecord]

    def actors(self, indices: list[int]) -> dict[int, Array]:
        """Actors (edges, size) of every given index, unrolled from the base."""
        for index in indices:
            if index < 0:
                raise DibsError(f"index {index}: a template unrolls to indices ≥ 0")
        length = max(indices, default=0)
        with np.errstate(over="ignore", invalid="ignore"):
            policies = unroll(self.kappa, self.base.astype(np.float64), length)
        edges = np.arange(len(self.edges))
        chosen = {}
        for index in indices:
            # An edge whose teachers start later has no policy before: its first one stands in.
            ahead = np.maximum(index - self.base_index, 0)
            # A polynomial may run away beyond its last training index; what is left is a policy that fails.
            actors = np.nan_to_num(policies[ahead, edges], nan=RUNAWAY).clip(-RUNAWAY, RUNAWAY)
            chosen[index] = actors.astype(np.float32)
        return chosen

    def check(self, family: Family) -> None:
        """Refuse a family whose edges are not those that the template was fitted to."""
        edges = tuple(edge.name for edge in family.edges)
        if (self.family, self.edges) != (family.name, edges):
            raise DibsError(
                f"template of {self.family} with edges {', '.join(self.edges)}: does not fit {family.name} with edges "
                f"{', '.join(edges)}; fit it again"
            )

    def path(self, graph: Graph, index: int) -> tuple[str, ...]:
        """The path that the guard takes at `index`."""
        return choose_path(graph, self.records, index)


def gather(
    teachers: list[Teacher], dataset_files: list[Path], settings: FitSettings
) -> tuple[Supervision, dict[str, EdgeRecord]]:
    """Stack the datasets of all training indices; missing edges stay out of the loss."""
    edges, first = teachers[0].edges, teachers[0]
    indices = np.array([t.index for t in teachers])
    loaded = [load_dataset(path, settings.samples) for path in dataset_files]
    for path, teacher, (_, meta) in zip(dataset_files, teachers, loaded, strict=True):
        keys = ("family", "gap", "index", "seed")
        found, wanted = {k: meta[k] for k in keys}, {k: getattr(teacher, k) for k in keys}
        if found != wanted:
            raise DibsError(f"{path}: expected the dataset of {wanted}, found that of {found}; build it again")
        kin = teacher.edges == edges and teacher.network == first.network
        if not kin or not np.array_equal(teacher.scaling.half, first.scaling.half):
            raise DibsError(
                f"teachers of {teacher.family}: those of index {teacher.index} and {first.index} have different edges, "
                "networks or scalings; train them all with the same family description"
            )
    present = np.array([[name in data for data, _ in loaded] for name in edges])
    rows = min((len(s) for data, _ in loaded for s, _ in data.values()), default=0)
    for e, name in enumerate(edges):
        if not present[e].any():
            raise DibsError(f"edge {name}: no teacher of any training index succeeded on it; there is nothing to fit")
    dim, m = first.network.inputs, first.network.outputs
    states = np.zeros((len(edges), len(indices), rows, dim), dtype=np.float32)
    actions = np.zeros((len(edges), len(indices), rows, m), dtype=np.float32)
    for n, (data, _) in enumerate(loaded):
        for name, (s, a) in data.items():
            e = edges.index(name)
            states[e, n] = (s[:rows] - first.scaling.center[e]) / first.scaling.half[e]
            actions[e, n] = a[:rows]
    starts = present.argmax(axis=1)
    base = np.stack([teachers[starts[e]].actor[e] for e in range(len(edges))])
    return (
        Supervision(indices, states, actions, present, base, indices[starts]),
        edge_records(teachers),
    )


def edge_records(teachers: list[Teacher]) -> dict[str, EdgeRecord]:
    """Teachers' success and return per edge over the training indices."""
    return {
        name: EdgeRecord(
            tuple(t.index for t in teachers),
            tuple(float(t.metrics["edges"][name]["success"]) for t in teachers),
            tuple(float(t.metrics["edges"][name]["return"]) for t in teachers),
        )
        for name in teachers[0].edges
    }


def assemble(
    method: str, teachers: list[Teacher], data: Supervision, records: dict[str, EdgeRecord], fit: Fit
) -> Template:
    """Join a fit with what it started from."""
    first = teachers[0]
    return Template(
        method,
        first.family,
        teachers[-1].gap,
        first.seed,
        tuple(t.index for t in teachers),
        first.edges,
        first.network,
        first.scaling,
        fit.kappa,
        data.base,
        data.base_index,
        records,
    )


def contents(template: Template) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Tensors and metadata of a template's file."""
    tensors: dict[str, np.ndarray] = {
        "kappa": template.kappa,
        "base": template.base,
        "base_index": template.base_index.astype(np.int64),
        "scaling_center": template.scaling.center,
        "scaling_half": template.scaling.half,
    }
    return tensors, {
        "kind": "template",
        "method": template.method,
        "family": template.family,
        "gap": template.gap,
        "seed": template.seed,
        "train": list(template.train),
        "edges": list(template.edges),
        "network": asdict(template.network),
        "records": {name: asdict(record) for name, record in template.records.items()},
    }


def save_template(path: Path, template: Template, provenance: dict[str, Any]) -> None:
    """Write a template."""
    tensors, metadata = contents(template)
    write_tensors(path, tensors, {**metadata, **provenance})


def load_template(path: str | Path) -> Template:
    """Read a template."""
    return parse_template(path, *read_tensors(path))


def parse_template(path: str | Path, tensors: dict[str, np.ndarray], meta: dict[str, Any]) -> Template:
    """A template from the contents of its file, which errors name."""
    if meta.get("kind") != "template":
        raise DibsError(f"{path}: expected a template, found a file of kind {meta.get('kind')!r}")
    network = Network(**{**meta["network"], "hidden": tuple(meta["network"]["hidden"])})
    shape = (len(meta["edges"]), network.size)
    for name in ("kappa", "base", "base_index", "scaling_center", "scaling_half"):
        if name not in tensors:
            raise damaged(path, f"no tensor {name}")
    if tensors["base"].shape != shape or tensors["kappa"].shape[1:] != shape:
        raise damaged(path, f"expected {shape} parameters, found {tensors['base'].shape}, {tensors['kappa'].shape}")
    return Template(
        meta["method"],
        meta["family"],
        meta["gap"],
        meta["seed"],
        tuple(meta["train"]),
        tuple(meta["edges"]),
        network,
        Scaling(tensors["scaling_center"], tensors["scaling_half"]),
        tensors["kappa"],
        tensors["base"],
        tensors["base_index"],
        parse_records(meta["records"]),
    )


def parse_records(told: dict[str, Any]) -> dict[str, EdgeRecord]:
    """Records by edge, from the metadata of a file."""
    return {
        name: EdgeRecord(*(tuple(record[k]) for k in ("indices", "success", "returns")))
        for name, record in told.items()
    }
