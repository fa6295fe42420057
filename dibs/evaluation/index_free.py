"""The strongest policy that does not know the index: a search over simple policies (docs/requirements.md).

A policy sees the observation and how many stages of the specification are completed. Each stage has a form: a constant
action, a piecewise linear function of one variable, or an affine function of the observation. The forms of a stage are
searched by the cross-entropy method, stage after stage, and then all stages together. All candidates of a generation
meet the same initial states and noise, at all indices of the search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from dibs.envs import Array, Environment
from dibs.policies.scaling import joint_scaling
from dibs.settings import STRICT, Count
from dibs.simulation import BasePolicy, Bools, Moment, Progress, SpecTask, draw, rollout

KNOTS = 9
"""Of a function of one variable, over a quarter more than the range of starts and targets."""
BEYOND = 1.25
ELITE = 4
"""Share of a generation that the next one is drawn from: one in so many."""
REACHED = 0.95
"""Success at an index above which a candidate gains nothing more there."""
DONE = 0.99
"""Score above which a search ends."""
NEAR = 0.5
"""What the closest approach of an episode counts, compared with arriving."""


@dataclass(frozen=True)
class SearchSettings:
    """Effort of the search for an index-free policy."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    searches: Count = 2
    """Searches from scratch, stage after stage; the best one is continued on all stages together."""
    population: Count = 128
    """Candidates per generation; the first one has four times as many."""
    generations: Count = 24
    """Generations per stage and form; three times as many on all stages together."""
    rollouts: Count = 8
    """Rollouts per candidate and index."""
    indices: Count = 11
    """Indices, evenly spaced, on which candidates are compared; the result is measured on all."""


SLOW = SearchSettings(searches=1, population=24, generations=5, rollouts=2, indices=5)
"""For environments that are simulated one state at a time."""


# --- forms of a policy -----------------------------------------------------------------------------------


class Form(Protocol):
    """What a policy can be in one stage; parameters are (candidates, size, actions)."""

    @property
    def size(self) -> int: ...
    @property
    def words(self) -> str: ...

    def start(self, rng: np.random.Generator, count: int, actions: int) -> Array:
        """Return random parameters."""

    def act(self, theta: Array, scaled: Array) -> Array:
        """Return actions for scaled observations (candidates, tasks, rollouts, inputs)."""


@dataclass(frozen=True)
class Constant:
    """One action."""

    size: ClassVar[int] = 1
    words: ClassVar[str] = "a constant action"

    def start(self, rng: np.random.Generator, count: int, actions: int) -> Array:
        return rng.uniform(-1.0, 1.0, (count, 1, actions))

    def act(self, theta: Array, scaled: Array) -> Array:
        return np.broadcast_to(theta[:, :, None], (*scaled.shape[:-1], theta.shape[-1]))


@dataclass(frozen=True)
class OneVariable:
    """A piecewise linear function of one variable, constant beyond its ends."""

    variable: int
    name: str
    size: ClassVar[int] = KNOTS

    @property
    def words(self) -> str:
        return f"a function of {self.name}"

    def start(self, rng: np.random.Generator, count: int, actions: int) -> Array:
        """Smooth random functions: a constant, a slope and a walk."""
        knots = np.linspace(-1.0, 1.0, KNOTS)[:, None]
        level, slope = rng.uniform(-1.0, 1.0, (2, count, 1, actions))
        walk = np.cumsum(rng.normal(0.0, 0.25, (count, KNOTS, actions)), axis=1)
        return level + rng.choice([0.0, 1.0], (count, 1, 1)) * slope * knots + rng.uniform(0, 1, (count, 1, 1)) * walk

    def act(self, theta: Array, scaled: Array) -> Array:
        place = (np.clip(scaled[..., self.variable] / BEYOND, -1.0, 1.0) + 1.0) * ((KNOTS - 1) / 2)
        below = np.minimum(place.astype(np.intp), KNOTS - 2)
        share = (place - below)[..., None]
        rows = below + KNOTS * np.arange(len(theta))[:, None, None]
        flat = theta.reshape(-1, theta.shape[-1])
        return flat[rows] * (1.0 - share) + flat[rows + 1] * share


@dataclass(frozen=True)
class Sum:
    """A sum of functions of one variable each."""

    parts: tuple[OneVariable, ...]
    words: ClassVar[str] = "a sum of functions of single variables"

    @property
    def size(self) -> int:
        return KNOTS * len(self.parts)

    def start(self, rng: np.random.Generator, count: int, actions: int) -> Array:
        return np.concatenate([part.start(rng, count, actions) for part in self.parts], axis=1) / len(self.parts)

    def act(self, theta: Array, scaled: Array) -> Array:
        split = np.split(theta, len(self.parts), axis=1)
        return np.sum([part.act(own, scaled) for part, own in zip(self.parts, split, strict=True)], axis=0)


@dataclass(frozen=True)
class Affine:
    """An affine function of the observation."""

    inputs: int
    words: ClassVar[str] = "an affine function of the state"

    @property
    def size(self) -> int:
        return self.inputs + 1

    def start(self, rng: np.random.Generator, count: int, actions: int) -> Array:
        theta = rng.normal(0.0, 1.0, (count, self.size, actions)) * rng.choice([0.3, 1.0, 3.0], (count, 1, 1))
        theta[:, 0] = rng.uniform(-1.0, 1.0, (count, actions))
        return theta

    def act(self, theta: Array, scaled: Array) -> Array:
        flat = scaled.reshape(len(scaled), -1, scaled.shape[-1])
        return (theta[:, :1] + flat @ theta[:, 1:]).reshape(*scaled.shape[:-1], -1)


def kinds(environment: Environment) -> dict[str, tuple[Form, ...]]:
    """Return the kinds of policies in the order in which they are tried, each with the forms of a stage."""
    plain = type(environment).observe is Environment.observe
    names = environment.state_names if plain else [f"observation {n}" for n in range(environment.observation_dim)]
    single = tuple(OneVariable(n, name) for n, name in enumerate(names))
    return {"constant": (Constant(),), "affine": (Affine(len(names)),), "one variable": single, "sum": (Sum(single),)}


# --- the policy ------------------------------------------------------------------------------------------


class IndexFree(BasePolicy):
    """One form and its parameters (candidates, size, actions) per stage; one candidate serves all."""

    def __init__(self, forms: Sequence[Form], theta: Sequence[Array], center: Array, half: Array) -> None:
        self.forms, self.theta, self.center, self.half = forms, theta, center, half

    def act(self, now: Moment, memory: None) -> tuple[Array, None]:
        shape = now.stage.shape
        seen = ((now.observation - self.center) / self.half).reshape(-1, *shape[-2:], now.observation.shape[-1])
        stage = np.minimum(now.stage, len(self.forms) - 1).reshape(seen.shape[:-1])
        going = np.unique(stage[now.alive.reshape(stage.shape)])
        actions = np.zeros((*seen.shape[:-1], self.theta[0].shape[-1]), dtype=np.float32)
        for s in going.tolist():
            theta = np.broadcast_to(self.theta[s], (len(seen), *self.theta[s].shape[1:]))
            found = self.forms[s].act(theta, seen)
            if len(going) == 1:
                actions[...] = found
            else:
                np.copyto(actions, found.astype(np.float32), where=(stage == s)[..., None])
        return np.clip(actions, -1.0, 1.0).reshape(*shape, -1), None


# --- what candidates are compared by ---------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class UpTo:
    """The first stages of a specification as a task of their own."""

    task: SpecTask
    stages: int

    @property
    def environment(self) -> Environment:
        return self.task.environment

    @property
    def tasks(self) -> int:
        return self.task.tasks

    @property
    def horizon(self) -> int:
        return self.stages * self.task.grounded.horizon

    def initial(self, uniforms: Array) -> Array:
        return self.task.initial(uniforms)

    def begin(self, states: Array) -> Progress:
        return self._cut(self.task.begin(states))

    def advance(self, progress: Progress, states: Array) -> Progress:
        return self._cut(self.task.advance(progress, states))

    def reward(self, before: Progress, after: Progress, time: Any) -> Array:
        """Nothing is learned from rewards."""
        return np.zeros(after.alive.shape, dtype=np.float32)

    def success(self, progress: Progress) -> Bools:
        return np.asarray(progress.stage >= self.stages)

    def _cut(self, progress: Progress) -> Progress:
        return progress._replace(alive=progress.alive & (progress.stage < self.stages))


class Closest:
    """Keeps the smallest distance to go of every episode, from the last of some stages on."""

    def __init__(self, stage: int) -> None:
        self.stage = stage

    def begin(self, states: Array, progress: Progress) -> None:
        self.found = np.asarray(progress.distance, dtype=np.float32).copy()

    def step(self, now: Moment, actions: Array, rewards: Array, states: Array, after: Progress) -> None:
        near = now.alive & after.safe & (after.stage <= self.stage)
        np.minimum(self.found, after.distance, out=self.found, where=near & after.alive)


# --- the search ------------------------------------------------------------------------------------------


class Found(NamedTuple):
    """A policy by stage."""

    forms: tuple[Form, ...]
    theta: tuple[Array, ...]  # each (1, size, actions)


@dataclass
class Search:
    """A search of one benchmark's index-free policy; `task` has the indices on which candidates are compared."""

    task: SpecTask
    settings: SearchSettings
    rng: np.random.Generator
    steps: int = 0
    center: Array = field(init=False)
    half: Array = field(init=False)

    def __post_init__(self) -> None:
        self.center, self.half = joint_scaling(self.task.grounded)
        self.actions = self.task.environment.action_dim
        self.scale = float(np.linalg.norm(self.half)) + 1e-6

    def policy(self, forms: Sequence[Form], theta: Sequence[Array]) -> IndexFree:
        return IndexFree(tuple(forms), [np.asarray(t, dtype=np.float32) for t in theta], self.center, self.half)

    def best(self, choices: Sequence[Form], known: Found | None = None) -> Found:
        """Return the best form and parameters of every stage.

        What is `known` from a benchmark with the same first stages is tried first.
        """
        found: list[tuple[Found, float]] = []
        stages = self.task.stages
        if known is not None and len(known.forms) >= stages:
            prefix = Found(known.forms[:stages], known.theta[:stages])
            found.append((prefix, self._score(prefix)))
        # One search is enough for a few numbers per stage.
        searches = 1 if all(form.size == 1 for form in choices) else self.settings.searches
        while len(found) < searches and not (found and found[-1][1] > DONE):
            chosen = self._stage_by_stage(choices)
            found.append((chosen, self._score(chosen)))
        best, score = max(found, key=lambda one: one[1])
        if score > DONE:
            return best
        joint, better = self._together(best)
        return joint if better > score else best

    def _stage_by_stage(self, choices: Sequence[Form]) -> Found:
        """Search every stage over the given forms, after the ones before it are fixed."""
        forms: list[Form] = []
        theta: list[Array] = []
        for stage in range(self.task.stages):
            found = []
            for form in choices:

                def compare(population: Array, form: Form = form, stage: int = stage) -> Array:
                    return self._scores([*forms, form], [*theta, population], stage + 1)

                first = form.start(self.rng, 4 * self.settings.population, self.actions)
                found.append((form, *self._evolve(compare, first, self.settings.generations)))
                if found[-1][2] > DONE:
                    break
            form, chosen, _ = max(found, key=lambda one: one[2])
            forms.append(form)
            theta.append(chosen[None])
        return Found(tuple(forms), tuple(theta))

    def _together(self, found: Found) -> tuple[Found, float]:
        """Search the parameters of all stages from where they are."""
        forms, theta = found
        sizes = np.cumsum([form.size * self.actions for form in forms])[:-1]

        def split(population: Array) -> list[Array]:
            parts = np.split(population.reshape(len(population), -1), sizes, axis=1)
            return [part.reshape(len(part), form.size, self.actions) for part, form in zip(parts, forms, strict=True)]

        start = np.concatenate([part.reshape(-1) for part in theta])
        spread = self.rng.normal(0.0, 0.1, (4 * self.settings.population, len(start)))
        spread[0] = 0.0
        compare = lambda population: self._scores(forms, split(population), self.task.stages, 4)  # noqa: E731
        chosen, score = self._evolve(compare, start + spread, 3 * self.settings.generations, 0.03)
        return Found(forms, tuple(split(chosen[None]))), score

    def _evolve(
        self, compare: Callable[[Array], Array], first: Array, generations: int, jitter: float = 0.1
    ) -> tuple[Array, float]:
        """Return the best parameters that the cross-entropy method finds, and their score on fresh rollouts."""
        count, population = self.settings.population, first
        kept: Array = first[:0]
        for generation in range(generations):
            scores = compare(population)
            elite = population[np.argsort(-scores, kind="stable")[: max(count // ELITE, 2)]]
            if generation > 2 and scores.mean() > DONE:
                break
            # Drawn from the covariance of the elite, and a little more: the spread must not shrink too early.
            mean, shape = elite.mean(axis=0), (count, *first.shape[1:])
            apart = (elite - mean) / np.sqrt(len(elite))
            mixed = np.tensordot(self.rng.standard_normal((count, len(elite))), apart, axes=1)
            more = jitter * (1.0 - generation / generations) ** 2
            population = mean + mixed + more * self.rng.standard_normal(shape)
            kept = np.concatenate([elite[:2], mean[None]])
            population[: len(kept)] = kept
        finalists = np.concatenate([kept, elite])
        scores = np.mean([compare(finalists) for _ in range(4)], axis=0)
        best = int(scores.argmax())
        return finalists[best], float(scores[best])

    def _score(self, found: Found) -> float:
        return float(np.mean([self._scores(found.forms, found.theta, self.task.stages)[0] for _ in range(4)]))

    def _scores(self, forms: Sequence[Form], theta: Sequence[Array], stages: int, times: int = 1) -> Array:
        """Return the mean over indices (candidates,) of how well the first stages are done; 1 is solved everywhere."""
        count = max(len(part) for part in theta)
        task, closest = UpTo(self.task, stages), Closest(stages - 1)
        draws = draw(task, times * self.settings.rollouts, self.rng)
        outcome = rollout(task, self.policy(forms, theta), draws, candidates=(count,), recorder=closest)
        self.steps += outcome.steps
        solved = np.minimum(outcome.success.mean(axis=-1) / REACHED, 1.0)  # (candidates, tasks)
        missed = np.where(outcome.success, 0.0, closest.found / self.scale + 0.1).mean(axis=-1)
        return np.asarray((solved - NEAR * missed).mean(axis=-1))
