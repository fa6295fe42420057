"""Where results live: the only module that spells the layout of `results/`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dibs.errors import DibsError

if TYPE_CHECKING:
    from dibs.families import Family


@dataclass(frozen=True)
class Layout:
    """Paths of all results below one root; names in braces are Snakemake wildcards where strings are given."""

    root: Path = Path("results")
    teachers: Path | None = None
    """Root of the teachers, if they are another run's."""
    datasets: Path | None = None
    """Root of the datasets, if they are another run's."""

    def split(self, gap: int | str, index: int | str) -> str:
        """Folder of a teacher's gap: the index-0 teacher has no predecessor and serves all gaps."""
        return "base" if str(index) == "0" else f"gap{gap}"

    def teacher(self, family: str, gap: int | str, index: int | str, seed: int | str) -> Path:
        return (
            (self.teachers or self.root)
            / "teachers"
            / family
            / self.split(gap, index)
            / f"seed{seed}"
            / f"{index}.safetensors"
        )

    def dataset(self, family: str, gap: int | str, index: int | str, seed: int | str) -> Path:
        return (
            (self.datasets or self.root)
            / "datasets"
            / family
            / self.split(gap, index)
            / f"seed{seed}"
            / f"{index}.parquet"
        )

    def template(self, method: str, family: str, gap: int | str, seed: int | str) -> Path:
        folder = "templates" if method == "dibs" else f"templates-{method.removeprefix('dibs-')}"
        return self.root / folder / family / f"gap{gap}" / f"seed{seed}.safetensors"

    def baseline(self, method: str, benchmark: str, gap: int | str, seed: int | str) -> Path:
        return self.root / "baselines" / method / benchmark / f"gap{gap}" / f"seed{seed}.safetensors"

    def evaluation(self, method: str, benchmark: str, gap: int | str, seed: int | str) -> Path:
        return self.root / "evaluations" / method / benchmark / f"gap{gap}" / f"seed{seed}.parquet"

    def table(self, name: str) -> Path:
        return self.root / "tables" / name

    def figure(self, name: str) -> Path:
        return self.root / "figures" / name


def buffers(teacher: Path) -> Path:
    """The state buffers beside a teacher's weights."""
    return teacher.with_suffix(".buffers.parquet")


def metrics(artefact: Path) -> Path:
    """The metrics beside an artefact."""
    return artefact.with_suffix(".json")


def timing(artefact: Path) -> Path:
    """Seconds taken, kept apart from the metrics so that equal runs give equal bytes."""
    return artefact.with_suffix(".timing.json")


def teacher_files(weights: Path) -> dict[str, str]:
    """All files of a teacher by kind."""
    return {
        "weights": str(weights),
        "buffers": str(buffers(weights)),
        "metrics": str(metrics(weights)),
        "timing": str(timing(weights)),
    }


def previous_index(family: Family, gap: int, index: int) -> int | None:
    """The training index before `index`, or None at 0."""
    train = family.train_indices(gap)
    family.check_index(index)
    if index not in train:
        raise DibsError(f"index {index} is not a training index of {family.name} at gap {gap}: {list(train)}")
    return None if index == 0 else train[train.index(index) - 1]
