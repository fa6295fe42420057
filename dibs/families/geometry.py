"""Checks of a family's regions at every index: what is impossible, and what is doubtful.

Impossible families are refused when they are loaded. Doubts are warnings: `Family.warnings()` returns them, and
commands print them once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from dibs import registry
from dibs.families.description import FamilyModel
from dibs.families.tasks import Tasks
from dibs.seeding import stream
from dibs.spectrl import Edge, Region, cnf, conjuncts

VANISHED = 1e-9
"""Smallest half-width that counts as a region."""
HURRY = 0.9
"""Share of the horizon above which a straight way at top speed is doubtful."""
OUTSIDE = 0.25
"""Share of a region's width beyond the environment's bounds above which it is doubtful."""
MANY_WEIGHTS = 2_000
"""Weights of a network above which random search (ars) is doubtful."""
SIGHT = 5.0
"""Ratio of the horizon to the steps that a teacher's discount looks ahead above which it is doubtful."""
SAMPLED = 500
"""States in which a Gymnasium environment shows which values its quantities have."""
MANY = 1_000
"""Indices or steps per edge above which a family is doubtful."""


class Finding(NamedTuple):
    """Something that may be wrong at some indices."""

    wrong: np.ndarray  # (indices,) bool
    say: str | Callable[[int], str]
    """A sentence about one of them: text in which {i} stands for the index, or a function of it."""

    def sentence(self, i: int) -> str:
        """Return the sentence about index i."""
        return self.say.replace("{i}", str(i)) if isinstance(self.say, str) else self.say(i)


def problems(tasks: Tasks) -> Iterator[str]:
    """Yield the first problem of the first index at which the tasks are impossible."""
    found = [(int(np.argmax(f.wrong)), f) for f in _impossible(tasks) if f.wrong.any()]
    if found:
        index, finding = min(found, key=lambda problem: problem[0])
        yield finding.sentence(index)
    for name, region in tasks.regions.items():
        size = region.reach.min(axis=-1)
        if (size < VANISHED).any():
            index = int(np.argmax(size < VANISHED))
            yield f"regions.{name}: vanishes at index {index}, where its half-width is {size[index]:g}"


def doubts(family: FamilyModel, tasks: Tasks, far: Mapping[int, str]) -> Iterator[str]:
    """Yield a sentence about everything that is possible but doubtful, with the first index at which it is."""
    yield from _general_doubts(family, tasks)
    if far:
        yield far[min(far)] + _and_others(len(far))
    for finding in _doubtful(tasks, far):
        if finding.wrong.any():
            yield finding.sentence(int(np.argmax(finding.wrong))) + _and_others(int(finding.wrong.sum()))


def _and_others(count: int) -> str:
    return f" (and at {count - 1} more)" if count > 1 else ""


def out_of_reach(tasks: Tasks) -> dict[int, str]:
    """Return the indices at which no policy reaches a target in time, each with a sentence about it.

    They are refused as training indices. At other indices they are doubts: every method fails there. If the
    specification leaves a choice, all of its ways are out of reach at these indices.
    """
    horizon, environment = tasks.horizon, tasks.environment
    found: dict[str, dict[int, str]] = {}
    for edge in tasks.edges:
        far = found.setdefault(edge.name, {})
        for target in _targets(edge):
            nearest, _ = _ways(tasks, edge, target)
            helped = np.maximum(nearest - horizon * np.array(environment.noise_scale), 0.0)  # noise may help all along
            least = environment.least_steps(helped)
            if least is None:
                return {}
            for i in np.flatnonzero(least > horizon * (1.0 + 1e-9)):
                far.setdefault(
                    int(i),
                    f"regions.{target}: out of reach at index {i}: edge {edge.name} takes at least "
                    f"{np.ceil(least[i]):.0f} steps at top speed, and horizon is {horizon}",
                )
    blocked = _on_every_path(tasks, {name: np.isin(tasks.indices, list(far)) for name, far in found.items()})
    return {int(i): next(far[int(i)] for far in found.values() if int(i) in far) for i in np.flatnonzero(blocked)}


def _on_every_path(tasks: Tasks, edges: Mapping[str, np.ndarray]) -> np.ndarray:
    """At which indices (indices,) every way through the specification has one of its edges (indices,) marked."""
    paths = [np.any([edges[edge.name] for edge in path], axis=0) for path in tasks.graph.paths()]
    return np.asarray(np.all(paths, axis=0))


# --- impossible ------------------------------------------------------------------------------------------


def _impossible(tasks: Tasks) -> Iterator[Finding]:
    environment, start, noise = tasks.environment.name, tasks.start_center, tasks.start_half
    yield Finding(
        _no_state(tasks, start),
        lambda i: f"start: its center {start[i].tolist()} is not a state of {environment} at index {i}",
    )
    for edge in tasks.edges:
        avoided = _avoided(edge)
        for target in _targets(edge):
            yield from _impossible_target(tasks, edge, target)
        for name in avoided if edge.source is None else ():
            touched = _touches(tasks.regions[name], start - noise, start + noise)
            yield Finding(touched, f"start: overlaps {name}, which must be avoided, at index {{i}}")
        for clause in cnf(edge.safe) if edge.source is None else ():
            known = np.isfinite(start).all(axis=-1)  # the rest is as the environment's reset draws it
            unsafe = known & np.all([tasks.regions[name].contains(start) != inside for name, inside in clause], axis=0)
            words = " or ".join(f"{'inside' if inside else 'outside'} {name}" for name, inside in clause)
            yield Finding(unsafe, f"start: its center must be {words}, and is not at index {{i}}")


def _impossible_target(tasks: Tasks, edge: Edge, target: str) -> Iterator[Finding]:
    region, depth, environment = tasks.regions[target], tasks.reward.depth, tasks.environment.name
    middle, narrowest = region.center, region.reach.min(axis=-1)
    yield Finding(
        np.asarray(narrowest <= depth),
        lambda i: f"reward.depth: {depth:g} leaves nothing of {target} at index {i}, half-width {narrowest[i]:g}",
    )
    for name in _avoided(edge):
        inside = tasks.regions[name].contains(middle)
        yield Finding(inside, f"regions.{target}: its center lies inside {name}, to be avoided, at index {{i}}")
    for name in (name for name, inside in conjuncts(edge.target) if not inside):
        covered = _within(region, tasks.regions[name])
        yield Finding(
            covered, f"regions.{target}: lies inside {name}, where edge {edge.name} must not end, at index {{i}}"
        )
    yield Finding(
        _no_state(tasks, middle),
        lambda i: f"regions.{target}: its center {middle[i].tolist()} is not a state of {environment} at index {i}",
    )


def _no_state(tasks: Tasks, states: np.ndarray) -> np.ndarray:
    """Which of the states (n, dim) the environment does not have; derived variables follow from the others."""
    environment = tasks.environment
    moved = np.where(environment.is_derived, 0.0, np.abs(environment.project(states) - states)).max(axis=-1)
    return np.asarray(moved > 1e-3 * np.maximum(np.abs(states).max(axis=-1), 1e-9))


# --- doubtful --------------------------------------------------------------------------------------------


def _general_doubts(family: FamilyModel, tasks: Tasks) -> Iterator[str]:
    """Yield doubts that concern no particular index."""
    if family.last_index > MANY:
        yield f"last_index: {family.last_index} is large; every index is checked, drawn and evaluated"
    if family.horizon > MANY:
        yield f"horizon: {family.horizon} steps per edge is large; every rollout may take that many"
    sizes = [tasks.environment.observation_dim, *family.network.hidden, tasks.environment.action_dim]
    weights = sum((a + 1) * b for a, b in pairwise(sizes))
    if family.teacher == "ars" and weights > MANY_WEIGHTS:
        yield (
            f"teacher: ars searches at random, and the network has {weights} weights; use ppo, or a smaller network "
            "such as hidden: [8]"
        )
    yield from _short_sighted(family)
    used = {name for edge in tasks.edges for clause in (*cnf(edge.safe), conjuncts(edge.target)) for name, _ in clause}
    for name in family.regions:
        if name not in used:
            yield f"regions.{name}: the specification does not use it"
    parts = [tasks.start_center, *(v for name in used for v in tasks.regions[name].arrays().values())]
    if all((part == part[:1]).all() for part in parts):
        yield "regions: nothing moves or grows, so all tasks are the same"


def _short_sighted(family: FamilyModel) -> Iterator[str]:
    """Find a discount that forgets the end of an edge."""
    kind = registry.load("teachers", family.teacher).settings
    default = next((f.default for f in dataclasses.fields(kind) if f.name == "gamma"), None)
    nested = family.teacher_options.get("options", {})
    gamma = nested.get("gamma") if default is None else family.teacher_options.get("gamma", default)
    if isinstance(gamma, int | float) and family.horizon * (1.0 - gamma) > SIGHT:
        key = "options: {gamma: …}" if default is None else "gamma: …"
        yield (
            f"teacher: with gamma = {gamma:g}, {family.teacher} looks about {1.0 / max(1.0 - gamma, 1e-9):.0f} steps "
            f"ahead, and horizon is {family.horizon}; set teacher_options: {{{key}}}, such as "
            f"{1.0 - 2.0 / family.horizon:.2g}"
        )


def _doubtful(tasks: Tasks, far: Collection[int]) -> Iterator[Finding]:
    start, half = tasks.start_center, tasks.start_half
    yield from _beyond_bounds(tasks, "start", start, half, OUTSIDE)
    for name in dict.fromkeys(target for edge in tasks.edges for target in _targets(edge)):
        region = tasks.regions[name]
        yield from _beyond_bounds(tasks, f"regions.{name}", region.center, region.reach, OUTSIDE)
        narrow = np.asarray((region.reach < np.array(tasks.environment.noise_scale)).any(axis=-1))
        yield Finding(narrow, f"regions.{name}: narrower than the noise of one step at index {{i}}")
    for name in dict.fromkeys(name for edge in tasks.edges for name in _avoided(edge)):
        region = tasks.regions[name]
        if not region.arrays()["normal"].any():
            yield from _beyond_bounds(tasks, f"regions.{name}", region.center, region.reach, 1.0)
    for edge in tasks.edges:
        yield from _doubtful_edge(tasks, edge)
    yield from _hurried(tasks, far)
    if tasks.environment.derived:
        yield from _beyond_range(tasks)


def _beyond_range(tasks: Tasks) -> Iterator[Finding]:
    """Find targets that ask for values which a variable never has, however far from the start the state is.

    A variable has a range if it does not grow with the distance from the start, like the position of an arm's hand.
    """
    assert tasks.start_wide is not None
    environment, center = tasks.environment, tasks.start_center[0]
    low, high = (np.array(bound) for bound in environment.bounds)
    unit = stream("range of states").uniform(-1.0, 1.0, (SAMPLED, len(center)))
    near, wide = (
        environment.project(np.clip(center + k * tasks.start_wide[0] * unit, low, high).astype(np.float32))
        for k in (4.0, 8.0)  # far enough that an angle turns around
    )
    least, most = np.minimum(near.min(axis=0), wide.min(axis=0)), np.maximum(near.max(axis=0), wide.max(axis=0))
    width, names = most - least, environment.state_names
    limited = (width <= 1.1 * np.ptp(near, axis=0)) & (width > 0.0)
    for name in dict.fromkeys(target for edge in tasks.edges for target in _targets(edge)):
        region = tasks.regions[name]
        gap = np.maximum(region.center - region.reach - most, least - region.center - region.reach)
        outside = limited & np.isfinite(region.reach) & (gap > 0.05 * width)

        def say(i: int, name: str = name, outside: np.ndarray = outside) -> str:
            d = int(np.argmax(outside[i]))
            return (
                f"regions.{name}: out of reach at index {i}? {names[d]} lies between {least[d]:.3g} and {most[d]:.3g} "
                f"in all of {SAMPLED} states around the start"
            )

        yield Finding(outside.any(axis=-1), say)


def _beyond_bounds(tasks: Tasks, key: str, center: np.ndarray, half: np.ndarray, share: float) -> Iterator[Finding]:
    """Find where at least a share of a region's width lies outside the environment's bounds, in any variable."""
    low, high = (np.array(bound) for bound in tasks.environment.bounds)
    half = np.where(np.isfinite(half), half, 0.0)  # free variables are never outside
    beyond = np.maximum(low - (center - half), 0.0) + np.maximum(center + half - high, 0.0)
    outside = (beyond >= share * 2.0 * half) & (beyond > 0.0)
    names = tasks.environment.state_names

    def say(i: int) -> str:
        d = int(np.argmax(outside[i]))
        where = f"{names[d]} in [{center[i, d] - half[i, d]:g}, {center[i, d] + half[i, d]:g}]"
        part = "wholly" if share == 1.0 else "partly"
        return f"{key}: {part} outside the bounds at index {i}: {where}, bounds [{low[d]:g}, {high[d]:g}]"

    yield Finding(outside.any(axis=-1), say)


def _doubtful_edge(tasks: Tasks, edge: Edge) -> Iterator[Finding]:
    center, half, known = _source(tasks, edge)
    for name in _avoided(edge) if edge.source is not None else ():
        obstacle = tasks.regions[name]
        low, high = np.where(known, center - half, -np.inf), np.where(known, center + half, np.inf)
        bounded = (np.isfinite(obstacle.reach) | (obstacle.arrays()["normal"] != 0.0)) & ~known
        yield Finding(
            _touches(obstacle, low, high) & ~bounded.any(axis=-1),
            f"specification: edge {edge.name} starts in a region that overlaps {name}, which must be avoided, at index "
            "{i}",
        )
    for target in _targets(edge):
        region = tasks.regions[target]
        needed = np.isfinite(region.reach) | (region.arrays()["normal"] != 0.0)
        yield Finding(
            region.contains(np.where(known, center, 0.0)) & (known | ~needed).all(axis=-1),
            f"regions.{target}: edge {edge.name} starts inside it at index {{i}}, so there is nothing to do",
        )


def _hurried(tasks: Tasks, far: Collection[int]) -> Iterator[Finding]:
    """Find targets that take most of the horizon to reach, at indices where no way avoids that."""
    slow: dict[tuple[str, str], np.ndarray] = {}
    for edge in tasks.edges:
        for target in _targets(edge):
            _, farthest = _ways(tasks, edge, target)
            steps = tasks.environment.least_steps(farthest)
            if steps is None:
                return
            slow[edge.name, target] = steps
    late = {key: steps > HURRY * tasks.horizon for key, steps in slow.items()}
    by_edge = {edge.name: np.zeros(len(tasks.indices), dtype=bool) for edge in tasks.edges}
    for (name, _), found in late.items():
        by_edge[name] |= found
    asked = _on_every_path(tasks, by_edge) & ~np.isin(tasks.indices, list(far))
    for (name, target), steps in slow.items():
        yield Finding(
            asked & late[name, target],
            lambda i, name=name, target=target, steps=steps: (  # type: ignore[misc]
                f"regions.{target}: hard to reach in time at index {i}: from its farthest start, edge {name} "
                f"takes at least {np.ceil(steps[i]):.0f} of {tasks.horizon} steps at top speed"
            ),
        )


# --- edges -----------------------------------------------------------------------------------------------


def _targets(edge: Edge) -> list[str]:
    return [name for name, inside in conjuncts(edge.target) if inside]


def _avoided(edge: Edge) -> list[str]:
    """Regions that an edge must avoid in any case."""
    return [name for clause in cnf(edge.safe) if len(clause) == 1 for name, inside in clause if not inside]


def _within(region: Region, other: Region) -> np.ndarray:
    """Which regions (n,) surely lie inside others: these are convex, so the corners of the box around one tell."""
    matter = np.flatnonzero((np.isfinite(other.reach) | (other.arrays()["normal"] != 0.0)).any(axis=0))
    found = np.ones(len(region.center), dtype=bool)
    for signs in product((-1.0, 1.0), repeat=len(matter)):
        corner = region.center.copy()
        corner[:, matter] += np.array(signs) * region.reach[:, matter]  # infinite where the region does not end
        found &= other.contains(corner)
    return found


def _touches(region: Region, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Which of the boxes (n, dim) between two corners have a state in the region."""
    normal = region.arrays()["normal"]
    # The state that is deepest inside: nearest to the center, or farthest along the normal.
    deepest = np.where(normal.any(axis=-1, keepdims=True), np.where(normal > 0, high, low), region.center)
    inside = np.clip(deepest, low, high)
    return region.contains(np.where(np.isfinite(inside), inside, 0.0))


def _source(tasks: Tasks, edge: Edge) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return center and half-width (indices, dim) of where an edge starts, and which variables are known there.

    Of a ball, the cube inside it: all of it is part of the source.
    """
    center, half = tasks.start_center, tasks.start_half
    if edge.source is None:
        return center, half, np.ones(center.shape, dtype=bool)
    known = np.zeros(center.shape, dtype=bool)
    for name in (name for name, inside in conjuncts(edge.source) if inside):
        region = tasks.regions[name]
        fixed = np.isfinite(region.reach)
        dims = np.maximum(fixed.sum(axis=-1, keepdims=True), 1)
        width = np.where(region.arrays()["radius"][:, None] > 0.0, region.reach / np.sqrt(dims), region.reach)
        center, half = np.where(fixed, region.center, center), np.where(fixed, width, half)
        known |= fixed
    return center, half, known


def _ways(tasks: Tasks, edge: Edge, target: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the least change (indices, dim) of each variable from the nearest and from the farthest start.

    The nearest way leads to any state of the target, the farthest one to where training counts it as reached.
    """
    center, inner, known = _source(tasks, edge)
    region, periods = tasks.regions[target], np.array(tasks.environment.periods)
    normal, width, offset = region.arrays()["normal"], region.reach, region.center - center
    turns = np.where(periods > 0.0, np.round(offset / np.where(periods > 0.0, periods, 1.0)), 0.0)
    distance = np.abs(offset - turns * periods)
    # A plane across one variable bounds it on one side. Oblique planes are left out.
    plane = (normal != 0.0) & ((normal != 0.0).sum(axis=-1, keepdims=True) == 1)
    distance, width = np.where(plane, np.sign(normal) * offset, distance), np.where(plane, 0.0, width)
    outer = inner * np.sqrt(known.sum(axis=-1, keepdims=True)) if edge.source is not None else inner  # around a ball
    bounded = known & np.isfinite(width)
    width = np.where(bounded, width, 0.0)
    near, far = distance - width - outer, distance - width + inner + tasks.reward.depth
    return np.where(bounded, np.maximum(near, 0.0), 0.0), np.where(bounded, np.maximum(far, 0.0), 0.0)
