"""What a benchmark requires: nothing, motion, or more (docs/requirements.md).

*Nothing*: a policy that does not know the index solves it. *Motion*: the teacher of index 0, moved along with its task,
solves it. *More*: neither was found to, with the budget of the search. The search uses all indices of the benchmark: it
says something about the benchmark, not about a method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

import numpy as np

from dibs import registry
from dibs.baselines import ars
from dibs.baselines.flat import FlatView, flat_policy
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings, count_satisfied
from dibs.evaluation.index_free import SLOW, Found, Search, SearchSettings, kinds
from dibs.families import Benchmark, Family
from dibs.files import read_json
from dibs.methods import Model, get_method
from dibs.progress import Reporter
from dibs.provenance import digest
from dibs.seeding import stream
from dibs.settings import STRICT, Count, Natural
from dibs.simulation import Policy, Rewards, SpecTask, evaluation_draws
from dibs.simulation.composed import record
from dibs.spectrl import satisfied

VERSION = 1
"""Raised by hand when the results of the search change."""
ENOUGH = 0.95
"""Share of the indices that a policy must solve to count as solving the benchmark."""
GROUPS = {
    "nothing": "a policy that does not know the index solves it",
    "motion": "the teacher of index 0, moved along with its task, solves it",
    "more": "no index-free policy and no motion was found that solves it",
}
UNKNOWN = "not measured"
CHUNK = 8  # indices measured together


@dataclass(frozen=True)
class RequirementSettings:
    """How what a benchmark requires is measured."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    search: SearchSettings | None = None
    """Effort of the search over simple policies; null: the default, less for environments that step one state at a
    time."""
    ars_factor: Natural = 10
    """Environment steps of one ARS policy for all indices, in units of what teachers of the training indices cost if
    each costs as much as the one of index 0; 0: none is trained."""
    ars_steps: Count = 100_000_000
    """Most environment steps of that policy; a hundredth for environments that step one state at a time."""
    ars_hidden: tuple[Count, ...] = (16,)
    """Hidden layers of that policy."""
    rollouts: Count = 1000
    """Rollouts per index that decide whether an index is solved."""
    delta: float = EvaluationSettings.delta
    """An index is solved if its rate exceeds this."""


@dataclass(frozen=True)
class Requirement:
    """The measured answer for one benchmark."""

    benchmark: str
    tasks: str
    """Digest of the tasks of all indices: a changed family makes the answer stale."""
    index_free: float
    """Share of the indices that the best known index-free policy solves."""
    policy: str
    """That policy, in words."""
    candidates: Mapping[str, float]
    """Share of the indices by kind of policy; a kind is not tried once a simpler one has solved all indices."""
    motion: float
    """Share of the indices that the moved teacher of index 0 solves."""
    edges: Mapping[str, str]
    """What is known of the motion of every edge, in words."""
    steps: int
    """Environment steps, including those of the teacher of index 0."""
    seconds: float
    seed: int
    version: int = VERSION

    @property
    def group(self) -> str:
        """What the benchmark requires, of `GROUPS`."""
        if self.index_free >= ENOUGH:
            return "nothing"
        return "motion" if self.motion >= ENOUGH else "more"

    def is_of(self, benchmark: Benchmark) -> bool:
        """Whether it was measured on the family as it is now, by this version of the search."""
        return self.version == VERSION and self.tasks == tasks_digest(benchmark)

    @property
    def sentence(self) -> str:
        """The answer in one line."""
        return (
            f"{self.group}: {GROUPS[self.group]} (index-free {self.index_free:.0%} of the indices, by {self.policy}; "
            f"motion {self.motion:.0%})"
        )

    def data(self) -> dict[str, Any]:
        """Return what files contain."""
        return {"requires": self.group, **asdict(self)}


# --- answers that are known ------------------------------------------------------------------------------


def known_requirement(benchmark: Benchmark) -> Requirement | None:
    """Return the registered answer; None if there is none, or if it is of another description of the family."""
    for name in registry.names("requirements"):
        entry = registry.load("requirements", name)
        found = (entry() if callable(entry) else entry).get(benchmark.id)
        answer = None if found is None else requirement_of(found, f"answers of '{name}'")
        if answer is not None and answer.is_of(benchmark):
            return answer
    return None


def known_group(benchmark: Benchmark, file: Path | None = None) -> str:
    """Return what a benchmark requires: the registered answer, or the one in a file of `dibs requires`."""
    found = known_requirement(benchmark)
    if found is None and file is not None and file.is_file() and benchmark.id in (answers := read_json(file)):
        answer = requirement_of(answers[benchmark.id], str(file))
        found = answer if answer.is_of(benchmark) else None
    return UNKNOWN if found is None else found.group


def requirement_of(data: Mapping[str, Any], where: str) -> Requirement:
    """Read an answer; errors name `where` it is from."""
    try:
        return Requirement(**{key: value for key, value in data.items() if key != "requires"})
    except TypeError as error:
        raise DibsError(f"{where}: not an answer of `dibs requires` ({error})") from None


def tasks_digest(benchmark: Benchmark) -> str:
    """Return the digest of all tasks of a benchmark."""
    family = benchmark.family
    return family.tasks_digest(range(family.last_index + 1), benchmark.specification)


def requirements_id(family: Family, settings: RequirementSettings) -> str:
    """Return the digest of all that decides the answers for the benchmarks of a family."""
    tasks = {b: tasks_digest(Benchmark(b, family, b, family.name)) for b in family.benchmark_ids}
    return digest([tasks, asdict(settings), VERSION])


# --- measuring -------------------------------------------------------------------------------------------


@dataclass
class Measurement:
    """A measurement of one benchmark; `motion` is a model of the method `motion`, from any training set."""

    benchmark: Benchmark
    motion: Model
    train: Sequence[int]
    settings: RequirementSettings
    seed: int
    found: dict[str, Found] = field(default_factory=dict)
    """Policies by kind that were found for a longer benchmark of the family, and then for this one."""

    def run(self, report: Reporter) -> Requirement:
        """Measure what the benchmark requires."""
        began, edges = perf_counter(), self.every.edge_names
        moved = self._moved(report)
        motions = self.motion.metadata["motions"]
        shares, words, steps = self._index_free(report)
        best = max(shares, key=lambda kind: shares[kind])  # the simplest of equally good ones
        return Requirement(
            self.benchmark.id,
            tasks_digest(self.benchmark),
            shares[best],
            words[best],
            shares,
            moved,
            {name: motions[name]["reason"] or motions[name]["words"] for name in edges},
            steps + self.motion.steps_on(edges),
            round(perf_counter() - began, 1),
            self.seed,
        )

    @cached_property
    def every(self) -> Any:
        """The tasks of all indices."""
        return self._tasks(range(self.benchmark.family.last_index + 1))

    def _tasks(self, indices: Sequence[int]) -> Any:
        return self.benchmark.family.tasks(indices, self.benchmark.specification)

    @property
    def slow(self) -> bool:
        return self.benchmark.family.environment.by_row

    def _moved(self, report: Reporter) -> float:
        family, text, method = self.benchmark.family, self.benchmark.specification, get_method("motion")
        counts = count_satisfied(
            method, self.motion, family, text, range(family.last_index + 1), self.settings.rollouts, self.seed
        )
        share = self._share([counts[i] for i in sorted(counts)])
        report(f"motion: {share:.0%} of the indices")
        return share

    def _index_free(self, report: Reporter) -> tuple[dict[str, float], dict[str, str], int]:
        """Try kinds of policies, simple ones first, until one solves everything; return shares, words and steps."""
        settings, last = self.settings, self.benchmark.family.last_index
        effort = settings.search or (SLOW if self.slow else SearchSettings())
        compared = np.unique(np.linspace(0, last, min(effort.indices, last + 1)).round().astype(int)).tolist()
        rng = stream("index-free", self.benchmark.id, self.seed)
        search = Search(SpecTask(self._tasks(compared)), effort, rng)
        shares: dict[str, float] = {}
        words: dict[str, str] = {}
        for kind, forms in kinds(self.benchmark.family.environment).items():
            found = self.found[kind] = search.best(forms, self.found.get(kind))
            shares[kind] = self._measure(search.policy(*found))
            words[kind] = _in_words([form.words for form in found.forms])
            report(f"{words[kind]}: {shares[kind]:.0%} of the indices, {search.steps:,} steps")
            if shares[kind] == 1.0:
                return shares, words, search.steps
        steps = search.steps
        if settings.ars_factor:
            model = self._ars(rng, report)
            shares["network"], words["network"] = self._measure(flat_policy(model, self.every)), "one network (ARS)"
            steps += model.steps_on(())
            report(f"{words['network']}: {shares['network']:.0%} of the indices, {model.steps:,} steps")
        return shares, words, steps

    def _ars(self, rng: np.random.Generator, report: Reporter) -> Model:
        """Train one policy on all indices."""
        settings, family = self.settings, self.benchmark.family
        base = self.motion.steps_on(self.every.edge_names)  # the teacher of index 0, and what motion queried
        most = settings.ars_steps // (100 if self.slow else 1)
        steps = int(min(settings.ars_factor * base * len(self.train), most))
        own = replace(ars.Settings(), steps=steps, hidden=settings.ars_hidden, depth=family.reward.depth)
        task = SpecTask(self.every, Rewards(own.reward, own.bonus), own.depth)
        return ars.search(task, FlatView.of_tasks(self.every, observe_stage=True), own, rng, report)

    def _measure(self, policy: Policy) -> float:
        """Return the share of all indices that a policy solves, judged by SPECTRL."""
        counts: list[int] = []
        for at in range(0, len(self.every.indices), CHUNK):
            task = SpecTask(self.every.at(self.every.indices[at : at + CHUNK]))
            found = record(policy, task, evaluation_draws(task, self.settings.rollouts, self.seed))
            for i, index in enumerate(task.indices):
                regions = task.grounded.regions_at(index)
                counts.append(int(satisfied(task.grounded.spec, regions, found.states[i], found.lengths[i]).sum()))
        return self._share(counts)

    def _share(self, counts: Sequence[int]) -> float:
        return float(np.mean(np.array(counts) / self.settings.rollouts > self.settings.delta))


def _in_words(stages: Sequence[str]) -> str:
    """Name the forms of all stages: one name if they are the same."""
    return stages[0] if len(set(stages)) == 1 else ", then ".join(stages)
