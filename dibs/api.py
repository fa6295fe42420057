"""The Python interface: train on a family, fit a method, use and measure its policies, all in memory.

run = dibs.train(family, gap=5)
template = run.fit("dibs-plus")
print(template.policy(index=13).evaluate())
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dibs.datasets.build import DatasetSettings
from dibs.datasets.store import Dataset
from dibs.drawing.regions import Trajectory
from dibs.drawing.rollouts import SUFFIXES, write_rollouts
from dibs.drawing.style import check_output, save
from dibs.envs import Array
from dibs.errors import DibsError, unknown
from dibs.evaluation.evaluate import (
    EvaluationSettings,
    count_satisfied,
    evaluation_table,
    recorded,
    roles,
    summarize,
)
from dibs.families import Benchmark, Family, Split
from dibs.methods import Method, Model, get_method
from dibs.runs import Chain, Tell, method_settings
from dibs.settings import parse_settings
from dibs.simulation import EdgeTask, Moment
from dibs.simulation.composed import Composed
from dibs.teachers.train import Teacher, TeacherSettings


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
) -> Run:
    """Train the teachers of all training indices and build their datasets (Stage I).

    Name the training set by `gap`, by its indices `train`, or by `split`. `teachers` and `datasets` are settings that
    differ from the defaults. Nothing is written unless `results` names a folder: files go there in the default layout,
    and what is up to date there is read instead of made.
    """
    chain = Chain(
        family,
        _split(family, gap, train, split),
        seed,
        parse_settings(TeacherSettings, teachers, "teachers"),
        parse_settings(DatasetSettings, datasets, "datasets"),
        None if results is None else Path(results),
        _teller(family, seed) if progress else None,
    )
    for index in chain.split.indices:
        chain.teacher(index)
        chain.dataset_source(index)
    return Run(chain)


def _teller(family: Family, seed: int) -> Tell:
    def tell(what: str, state: str) -> None:
        if state not in ("making", "kept"):
            print(f"{family.name} seed {seed}: {what}: {state}", file=sys.stderr, flush=True)

    return tell


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
        return f"Run({self.family.name}, {self.split.name}, seed {self.seed}; teachers' success {rates})"

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
        model = self.chain.model(chosen, aim, method_settings(chosen, settings))
        return Fitted(chosen, model, aim, self.split, self.seed)


@dataclass(frozen=True, eq=False)
class Fitted:
    """A trained method: its policy at any index."""

    method: Method
    model: Model
    benchmark: Benchmark
    split: Split
    seed: int

    def __repr__(self) -> str:
        return f"Fitted({self.method.name}, {self.benchmark.id}, {self.split.name}, seed {self.seed})"

    def policy(self, index: int) -> IndexedPolicy:
        """Return the policy of any index, trained on or not."""
        self.benchmark.family.check_index(index, beyond=True)
        return IndexedPolicy(self, index)

    def evaluate(self, rollouts: int = 1000, indices: Sequence[int] | None = None, delta: float = 0.9) -> Evaluation:
        """Measure the policies at the given indices, by default 0 … L and L + 1 … 2L."""
        family, settings = self.benchmark.family, EvaluationSettings(rollouts, delta)
        role = roles(family, self.split.indices, settings)
        if indices is not None:
            role = {i: role.get(i, "beyond") for i in sorted(set(indices))}
        counts = count_satisfied(
            self.method, self.model, family, self.benchmark.specification, list(role), rollouts, self.seed
        )
        return Evaluation(repr(self), evaluation_table(counts, role, settings).to_pandas(), delta)


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Success at every measured index."""

    title: str
    table: Any
    """A DataFrame with one row per index."""
    delta: float

    @property
    def ratios(self) -> dict[str, float]:
        """Training, zero-shot and beyond ratios."""
        return summarize(self.table["role"].tolist(), self.table["succeeds"].tolist())

    def __repr__(self) -> str:
        r = self.ratios
        return (
            f"{self.title}: training {r['training_ratio']:.3f}, zero-shot {r['zero_shot_ratio']:.3f}, "
            f"beyond {r['beyond_ratio']:.3f}"
        )

    def plot(self, path: str | Path | None = None) -> Any:
        """Draw success over the index; returns the figure and writes it if a path is given."""
        from matplotlib.figure import Figure

        if path is not None:
            check_output(path)
        figure = Figure(figsize=(5.0, 2.6))
        ax = figure.subplots()
        ax.axhline(self.delta, color="#999999", lw=0.8, ls="--")
        looks = {"train": ("#1450C8", "o"), "unseen": ("#D0202A", "s"), "beyond": ("#777777", "^")}
        for role, rows in self.table.groupby("role", sort=False):
            error = np.clip([rows["rate"] - rows["lower"], rows["upper"] - rows["rate"]], 0.0, None)
            color, marker = looks[role]
            ax.errorbar(rows["index"], rows["rate"], error, color=color, fmt=marker, ms=4, lw=0.8, label=role)
        ax.set(xlabel="index", ylabel="success", ylim=(-0.03, 1.03), title=self.title)
        ax.legend(frameon=False)
        if path is not None:
            save(figure, path)
        return figure


@dataclass(frozen=True)
class Rate:
    """Share of satisfying rollouts with its 95% Wilson interval."""

    index: int
    role: str
    rate: float
    lower: float
    upper: float
    rollouts: int

    def __repr__(self) -> str:
        interval = f"[{self.lower:.3f}, {self.upper:.3f}]"
        return f"index {self.index} ({self.role}): {self.rate:.3f} {interval} of {self.rollouts} rollouts"


class IndexedPolicy:
    """The policy of one index."""

    def __init__(self, fitted: Fitted, index: int) -> None:
        self.fitted, self.index = fitted, index
        self.family = fitted.benchmark.family
        self.tasks = self.family.tasks([index], fitted.benchmark.specification)
        self.policy = fitted.method.policy(fitted.model, self.tasks)
        self.role = "train" if index in fitted.split.indices else "unseen"

    def __repr__(self) -> str:
        return f"IndexedPolicy({self.fitted.method.name}, {self.family.name}, index {self.index} ({self.role}))"

    def predict(
        self, observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = True
    ) -> tuple[Array, Any]:
        """Return actions and the next state, for one observation or a batch, as in Stable-Baselines3.

        The state is the stage of each episode: how many edges of its path are completed.
        """
        if not isinstance(self.policy, Composed):
            raise DibsError(f"{self.fitted.method.name}: predict needs a method that composes edge policies")
        given = np.asarray(observation, dtype=np.float32)
        rows = np.atleast_2d(given)
        environment, path = self.family.environment, self.policy.paths[0]
        if rows.shape[1] != len(environment.state_names):
            raise DibsError(f"observation: expected {len(environment.state_names)} numbers, found {rows.shape[1]}")
        stage = np.zeros(len(rows), dtype=np.intp) if state is None else np.array(np.atleast_1d(state), dtype=np.intp)
        if episode_start is not None:
            stage[np.broadcast_to(episode_start, stage.shape)] = 0
        actions = np.empty((len(rows), len(environment.action_names)), dtype=np.float32)
        before = stage.copy()
        for s, name in enumerate(path):
            here = np.flatnonzero(before == s)
            if len(here) and s < len(path) - 1:
                target = EdgeTask(self.tasks.ground([(self.index, name)]))
                stage[here] += target.target_distance(rows[None, here])[0] >= 0.0
        for s, name in enumerate(path):
            here = np.flatnonzero(stage == s)
            if len(here):
                states = rows[None, here]
                alive = np.ones((1, len(here)), dtype=bool)
                now = Moment(environment.observe(states), states, None, np.zeros((1, len(here)), dtype=np.intp), alive)
                actions[here] = self.policy.stage_policy([0], [name]).act(now, None)[0][0]
        return (actions[0] if given.ndim == 1 else actions), stage

    def evaluate(self, rollouts: int = 1000) -> Rate:
        """Measure the rate of rollouts that satisfy the specification."""
        row = self.fitted.evaluate(rollouts, [self.index]).table.iloc[0]
        return Rate(self.index, self.role, float(row["rate"]), float(row["lower"]), float(row["upper"]), rollouts)

    def film(self, path: str | Path, rollouts: int = 1) -> None:
        """Write rollouts as a film (.mp4, .gif), a drawing (.png, .pdf) or a table (.parquet)."""
        check_output(path, SUFFIXES)
        args = (self.fitted.method, self.fitted.model, self.family, self.fitted.benchmark.specification)
        _, found = next(recorded(*args, [self.index], rollouts, self.fitted.seed))
        runs = [found.states[0, n, : found.lengths[0, n]] for n in range(rollouts)]
        write_rollouts(path, self.tasks, [Trajectory(self.index, self.role, states) for states in runs])


__all__ = ["Evaluation", "Fitted", "IndexedPolicy", "Rate", "Run", "train"]
