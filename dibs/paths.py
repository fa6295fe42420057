"""The default layout of `results/`, and the files that lie next to each other.

The workflow and `dibs` commands without explicit files use it; commands read and write the files they are given.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

BASE = "base"
"""Split of the teacher of index 0: it has no predecessor and serves all splits."""


def split_of(split: str, index: int | str) -> str:
    """Return the split under which the teacher of an index is stored."""
    return BASE if str(index) == "0" else split


@dataclass(frozen=True)
class Layout:
    """Paths of all results below one root; strings may be Snakemake wildcards."""

    root: Path = Path("results")
    teachers: Path | None = None
    """Root of the teachers, if another run made them."""
    datasets: Path | None = None
    """Root of the datasets, if another run made them."""

    def teacher(self, family: str, split: str, index: int | str, seed: int | str) -> Path:
        folder = (self.teachers or self.root) / "teachers" / family / split_of(split, index)
        return folder / f"seed{seed}" / f"{index}.safetensors"

    def dataset(self, family: str, split: str, index: int | str, seed: int | str) -> Path:
        folder = (self.datasets or self.root) / "datasets" / family / split_of(split, index)
        return folder / f"seed{seed}" / f"{index}.parquet"

    def model(self, method: str, unit: str, split: str, seed: int | str) -> Path:
        """A method's model of a family or benchmark, whichever its unit is."""
        return self.root / "models" / method / unit / split / f"seed{seed}.safetensors"

    def evaluation(self, method: str, benchmark: str, split: str, seed: int | str) -> Path:
        return self.root / "evaluations" / method / benchmark / split / f"seed{seed}.parquet"

    def family(self, name: str) -> Path:
        """The description of a family that was run here, so that models can be opened without its file."""
        return self.root / "families" / f"{name}.yaml"

    def requirements(self, family: str) -> Path:
        """What the benchmarks of a family require, as measured here."""
        return self.root / "requirements" / f"{family}.json"

    @property
    def requirements_work(self) -> Layout:
        """What measuring them trains and reads: apart from the files of a study, whose settings may differ."""
        return Layout(self.root / "requirements" / "work")

    def table(self, name: str) -> Path:
        return self.root / "tables" / name

    def figure(self, name: str) -> Path:
        return self.root / "figures" / name


def buffers(teacher: Path) -> Path:
    """Return the state buffers next to a teacher's weights."""
    return teacher.with_suffix(".buffers.parquet")


def metrics(weights: Path) -> Path:
    """Return the metrics next to a teacher or model."""
    return weights.with_suffix(".json")


def curve(weights: Path) -> Path:
    """Return the training curve next to a teacher or model."""
    return weights.with_suffix(".curve.parquet")


def timing(weights: Path) -> Path:
    """Return the file with the seconds taken: apart from the metrics, so that equal runs give equal bytes."""
    return weights.with_suffix(".timing.json")
