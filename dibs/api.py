"""The Python interface: train on a family, fit a method, use and measure its policies, all in memory.

run = dibs.train(family, gap=5)
template = run.fit("dibs-plus")
print(template.policy(index=13).evaluate())
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dibs import stages
from dibs.datasets.build import DatasetSettings
from dibs.datasets.store import Dataset, read_dataset
from dibs.drawing.style import FORMATS, save
from dibs.errors import DibsError, unknown
from dibs.evaluation.evaluate import EvaluationSettings, describe, summarize
from dibs.families import SUFFIXES as FAMILY_SUFFIXES
from dibs.families import Benchmark, Family, Split, show_warnings
from dibs.files import check_suffix, read_metadata, read_table
from dibs.methods import Method, Model, get_method
from dibs.pipeline import open_model
from dibs.policy import IndexPolicy, Rate, load_policy
from dibs.progress import check_tensorboard, display
from dibs.provenance import check_kind
from dibs.runs import Chain, method_settings
from dibs.settings import parse_settings
from dibs.teachers.store import load_teacher
from dibs.teachers.train import Teacher, TeacherSettings
from dibs.templates.explanation import explain


def train(
    family: Family,
    gap: int | None = None,
    train: Sequence[int] | None = None,
    split: str | Split | None = None,
    seed: int = 0,
    progress: bool = True,
    results: str | Path | None = None,
    teachers: Mapping[str, Any] | None = None,
    datasets: Mapping[str, Any] | None = None,
    tensorboard: str | Path | None = None,
) -> Run:
    """Train the teachers of all training indices and build their datasets (Stage I).

    Name the training set by `gap`, by its indices `train`, or by `split`. `teachers` and `datasets` are settings that
    differ from the defaults. Nothing is written unless `results` names a folder: files go there in the default layout,
    and what is up to date there is read instead of made. With `tensorboard`, event files of teachers and methods are
    written below that folder.
    """
    if progress:
        show_warnings(family)
    if tensorboard is not None:
        check_tensorboard()
    chain = Chain(
        family,
        _split(family, gap, train, split),
        seed,
        parse_settings(TeacherSettings, teachers, "teachers"),
        parse_settings(DatasetSettings, datasets, "datasets"),
        None if results is None else Path(results),
        display(progress),
        None if tensorboard is None else Path(tensorboard),
    )
    with chain.display as shown:
        shown.expect(2 * len(chain.split.indices))
        for index in chain.split.indices:
            chain.teacher(index)
            chain.dataset_source(index)
    return Run(chain)


def _split(family: Family, gap: int | None, train: Sequence[int] | None, split: str | Split | None) -> Split:
    if sum(value is not None for value in (gap, train, split)) != 1 and not (isinstance(split, str) and train):
        raise DibsError("name the training set by one of gap=5, train=[0, 3, 7, 20] or split='gap5'")
    if isinstance(split, Split):
        return split
    if gap is not None:
        return family.split(f"gap{gap}")
    return family.split(split, train) if split else family.split_of(train or ())


class Run:
    """Teachers and datasets of one training set."""

    def __init__(self, chain: Chain) -> None:
        self.chain, self.family, self.split, self.seed = chain, chain.family, chain.split, chain.seed

    def __repr__(self) -> str:
        rates = ", ".join(f"{i}: {t.metrics['success']:.3f}" for i, t in self.teachers.items())
        return (
            f"Run({self.family.name}, {self.split.name}, seed {self.seed}; teachers' success on the worst edge {rates})"
        )

    @property
    def teachers(self) -> dict[int, Teacher]:
        """The teachers by training index."""
        return {index: self.chain.teacher(index) for index in self.split.indices}

    @property
    def datasets(self) -> dict[int, Dataset]:
        """The datasets by training index."""
        return {index: self.chain.dataset(index) for index in self.split.indices}

    def fit(self, method: str = "dibs", benchmark: str | None = None, **settings: Any) -> Fitted:
        """Train a method; `settings` are its own. `benchmark` defaults to the family's last one."""
        chosen = get_method(method)
        known = self.family.benchmark_ids
        if benchmark is not None and benchmark not in known:
            raise unknown(f"benchmark of {self.family.name}", benchmark, known)
        name = benchmark or known[-1]
        aim = Benchmark(name, self.family, name, self.family.source)
        values = method_settings(chosen, settings)
        with self.chain.display:
            model = self.chain.model(chosen, aim, values)
        return Fitted(chosen, model, aim, self.split, self.seed, self.chain.model_origin(chosen, aim, values).id)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained method: its policy at any index."""

    method: Method
    model: Model
    benchmark: Benchmark
    split: Split
    seed: int
    id: str
    """Of the model, as in its file."""

    def __repr__(self) -> str:
        return f"Fitted({self.method.name}, {self.benchmark.id}, {self.split.name}, seed {self.seed})"

    def policy(self, index: int) -> IndexPolicy:
        """Return the policy of any index, trained on or not."""
        return IndexPolicy(self.method, self.model, self.benchmark, self.split, self.seed, index, self.id)

    def explain(self, indices: Sequence[int] | None = None) -> str:
        """Say in words what a template does per edge, how far to trust it, and what success it predicts."""
        return "\n".join(explain(self.model, repr(self), indices))

    def evaluate(self, rollouts: int = 1000, indices: Sequence[int] | None = None, delta: float = 0.9) -> Evaluation:
        """Measure the policies at the given indices, by default 0 … L and L + 1 … 2L."""
        aim, settings = (self.method, self.benchmark, self.split, self.seed), EvaluationSettings(rollouts, delta)
        origin = stages.evaluation_origin(*aim, settings, self.id)
        made = stages.measure(*aim, settings, self.model, origin, indices)
        return Evaluation(made.table.to_pandas(), made.metadata)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Success at every measured index."""

    table: Any
    """A DataFrame with one row per index."""
    metadata: Mapping[str, Any]
    """What was measured and how, as in its file."""

    @property
    def title(self) -> str:
        """The method, benchmark, split and seed."""
        return "{method}, {benchmark}, {split}, seed {seed}".format(**self.metadata)

    @property
    def ratios(self) -> dict[str, float]:
        """Training, zero-shot and beyond ratios."""
        return summarize(self.table["role"].tolist(), self.table["succeeds"].tolist())

    def __repr__(self) -> str:
        return f"Evaluation({self.title}): {describe(self.ratios)}"

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw success over the index; returns the figure and writes it if a path is given."""
        from dibs.studies.figures import rates  # a second to import, and most programs plot nothing

        if path is not None:
            check_suffix(path, FORMATS)
        rows = self.table.assign(**{key: self.metadata[key] for key in ("seed", "delta")})
        figure = rates(rows, self.metadata["method"], self.title)
        if path is not None:
            save(figure, path)
        return figure


def load(path: str | Path, family: str | Family | None = None, benchmark: str | None = None) -> Any:
    """Read any file of ours: a family, teacher, dataset, model, evaluation or policy.

    A model names its family. Pass `family` if that is not a registered one, and `benchmark` if it has several (the
    last one is the default).
    """
    if Path(path).suffix in FAMILY_SUFFIXES:
        return Family.load(path)
    kind = read_metadata(path).get("kind")
    if kind == "model":
        found = open_model(Path(path), family, benchmark)
        return Fitted(found.method, found.model, found.benchmark, found.split, found.seed, found.id)
    if kind == "evaluation":
        table, metadata = read_table(path)
        check_kind(path, metadata, kind)
        return Evaluation(table.to_pandas(), metadata)
    readers: dict[Any, Callable[[Any], Any]] = {"teacher": load_teacher, "dataset": read_dataset, "policy": load_policy}
    if kind not in readers:
        raise DibsError(f"{path}: expected a teacher, dataset, model, evaluation or policy, found kind {kind!r}")
    return readers[kind](path)


__all__ = ["Evaluation", "Fitted", "IndexPolicy", "Rate", "Run", "load", "train"]
