"""A specification as stages: one per `achieve`, linked to the stages that may come before it.

Write F(φ, A, safe)[k] for "some l in A has safe states from l to k and the subrollout l..k satisfies φ".
The definition of satisfaction (paper, appendix "SPECTRL Specification Language") unfolds into

    F(achieve b, A, safe)[k]    = safe[k] and ((waiting[k] and b[k]) or F(achieve b, A, safe)[k-1])
        with waiting[k]         = safe[k] and (A[k] or waiting[k-1])
    F(φ ensuring b, A, safe)    = F(φ, A, safe and b)
    F(φ1; φ2, A, safe)          = F(φ2, A2, safe)  with A2[k] = F(φ1, A, safe)[k-1]
    F(φ1 or φ2, A, safe)        = F(φ1, A, safe) or F(φ2, A, safe)

and a rollout satisfies φ if F(φ, {0}, true) holds at its last state. The equations are exact: a split of
`;` after τ gives [l..τ] to φ1 and [τ+1..k] to φ2, whose safe contexts cover exactly those two pieces,
and the context of an enclosing `ensuring` is part of both. So every `ensuring` is pushed down to the
`achieve`s inside it and every `;` and `or` becomes links between them; all links delay by one step.

With (or, and) read as (max, min) over signed distances the same equations give robustness. `Scan` runs
them for either reading, for whole rollouts and for a monitor that sees one state at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dibs.spectrl.regions import Region
from dibs.spectrl.syntax import (
    Achieve,
    And,
    Avoid,
    Choice,
    Ensuring,
    Not,
    Or,
    Predicate,
    Reach,
    Sequence,
    Spec,
    regions_of,
)

Signal: TypeAlias = npt.NDArray[Any]
"""Truth values or signed distances, as the logic has it."""


@dataclass(frozen=True)
class Stage:
    """One `achieve`: what must be reached, what must hold meanwhile, and which stages come before."""

    target: Predicate
    safe: Predicate | None
    after: tuple[int, ...]
    """Numbers of the stages of which one must be done; empty for a stage that begins the rollout."""


@dataclass(frozen=True)
class Stages:
    """All stages of a specification, each after those that it needs."""

    stages: tuple[Stage, ...]
    exits: tuple[int, ...]
    """The stages of which one must be done at the last state."""
    levels: tuple[int, ...]
    """How far the specification has come once a stage is done; every exit is at `depth`."""
    depth: int
    """The number of stages on the longest way through the specification."""
    regions: tuple[str, ...]
    predicates: tuple[Predicate, ...]
    """The different targets and safe contexts."""
    targets: tuple[int, ...]
    """The place of each stage's target in `predicates`."""
    contexts: tuple[int | None, ...]
    """The place of each stage's safe context in `predicates`; None where anything is safe."""

    @property
    def links(self) -> tuple[tuple[int, int], ...]:
        """Return every (earlier, later) pair of stages."""
        return tuple((a, b) for b, stage in enumerate(self.stages) for a in stage.after)

    @property
    def entries(self) -> tuple[int, ...]:
        """Return how far the specification has come when each stage begins.

        The stages before a stage all exit the same part of the specification and so share a level.
        """
        return tuple(self.levels[stage.after[0]] if stage.after else 0 for stage in self.stages)


@lru_cache(maxsize=256)
def stages_of(spec: Spec) -> Stages:
    """Return the stages of `spec`."""
    stages: list[Stage] = []

    def visit(node: Spec, after: tuple[int, ...], safe: Predicate | None) -> tuple[int, ...]:
        """Add the stages of `node`; return those that end it."""
        match node:
            case Achieve(predicate):
                stages.append(Stage(predicate, safe, after))
                return (len(stages) - 1,)
            case Ensuring(inner, predicate):
                return visit(inner, after, predicate if safe is None else And(safe, predicate))
            case Sequence(first, second):
                return visit(second, visit(first, after, safe), safe)
            case Choice(left, right):
                return visit(left, after, safe) + visit(right, after, safe)

    exits = visit(spec, (), None)
    remaining = [0] * len(stages)
    for number in reversed(range(len(stages))):
        for before in stages[number].after:
            remaining[before] = max(remaining[before], remaining[number] + 1)
    depth = 1 + max(remaining)
    places: dict[Predicate, int] = {}
    return Stages(
        stages=tuple(stages),
        exits=exits,
        levels=tuple(depth - left for left in remaining),
        depth=depth,
        regions=tuple(sorted(regions_of(spec))),
        targets=tuple(places.setdefault(s.target, len(places)) for s in stages),
        contexts=tuple(None if s.safe is None else places.setdefault(s.safe, len(places)) for s in stages),
        predicates=tuple(places),
    )


@dataclass(frozen=True)
class Logic:
    """How the equations are read: as truth values or as signed distances.

    Disjunction and conjunction are numpy's `maximum` and `minimum`, which on booleans are `or` and `and`.
    """

    dtype: npt.DTypeLike
    bottom: bool | float
    top: bool | float
    atom: Callable[[Region, npt.NDArray[Any]], Signal]
    negate: Callable[[Signal], Signal]


BOOLEAN = Logic(np.bool_, False, True, Region.contains, np.logical_not)
QUANTITATIVE = Logic(np.float64, -np.inf, np.inf, Region.signed_distance, np.negative)


def evaluate(predicate: Predicate, atoms: Mapping[str, Signal], logic: Logic) -> Signal:
    """Return the value of `predicate`, given that of `reach(r)` for every region r in it."""
    match predicate:
        case Reach(region):
            return atoms[region]
        case Avoid(region):
            return logic.negate(atoms[region])
        case Not(inner):
            return logic.negate(evaluate(inner, atoms, logic))
        case And(left, right):
            return np.minimum(evaluate(left, atoms, logic), evaluate(right, atoms, logic))
        case Or(left, right):
            return np.maximum(evaluate(left, atoms, logic), evaluate(right, atoms, logic))


@dataclass
class Scan:
    """The values of `waiting` and `done` for every stage, and the loop that moves them through time."""

    program: Stages
    logic: Logic
    waiting: Signal  # (stages, *batch)
    done: Signal  # (stages, *batch)

    @classmethod
    def before_start(cls, program: Stages, logic: Logic, batch: tuple[int, ...]) -> Scan:
        """Return the values before the first state: the stages that begin the rollout are awaited."""
        waiting = np.full((len(program.stages), *batch), logic.bottom, dtype=logic.dtype)
        for number, stage in enumerate(program.stages):
            if not stage.after:
                waiting[number] = logic.top
        return cls(program, logic, waiting, np.full_like(waiting, logic.bottom))

    def signals(self, atoms: Mapping[str, Signal]) -> tuple[Signal, Signal | None]:
        """Return the targets and safe contexts that `run` takes, from atoms of shape (*batch, time).

        Both are (time, stages or 1, *batch); the safe context is None if nothing is to be ensured.
        """
        stages, *batch = self.waiting.shape
        time = next(iter(atoms.values())).shape[-1]
        time_first = (len(batch), *range(len(batch)))
        values = [evaluate(p, atoms, self.logic) for p in self.program.predicates]
        values = [np.broadcast_to(v, (*batch, time)).transpose(time_first) for v in values]

        def stack(places: tuple[int | None, ...]) -> Signal:
            first = places[0]
            if first is not None and places.count(first) == stages:
                return values[first][:, None]
            stacked = np.empty((time, stages, *batch), dtype=self.logic.dtype)
            for stage, place in enumerate(places):
                stacked[:, stage] = self.logic.top if place is None else values[place]
            return stacked

        contexts = self.program.contexts
        safe = None if contexts.count(None) == stages else stack(contexts)
        return stack(self.program.targets), safe

    def run(self, targets: Signal, safe: Signal | None) -> None:
        """Move through the states whose `targets` and `safe` are given, time first, in place."""
        waiting, done = self.waiting, self.done
        reached = np.empty_like(done)
        links = [(done[a, ...], waiting[b, ...]) for a, b in self.program.links]
        for k in range(len(targets)):
            for done_before, waiting_after in links:
                np.maximum(waiting_after, done_before, out=waiting_after)
            if safe is not None:
                np.minimum(waiting, safe[k], out=waiting)
            np.minimum(waiting, targets[k], out=reached)
            np.maximum(done, reached, out=done)
            if safe is not None:
                np.minimum(done, safe[k], out=done)

    def result(self) -> Signal:
        """Return the value of the specification on the states seen so far."""
        return np.asarray(np.maximum.reduce(self.done[list(self.program.exits)], axis=0))
