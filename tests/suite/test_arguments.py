"""The suite's families require induction: the arguments of docs/suite.md, checked by brute force."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from dibs.families import get_family
from dibs.spectrl import conjuncts
from dibs.suite.families import descriptions
from dibs.templates.motion import relations

from .reachability import Lattice, largest_clique, turned

FAMILIES = list(descriptions())
OURS = [name for name in FAMILIES if name.startswith("suite-")]
SWEPT = [name for name in OURS if name.split("-")[-1] in ("rates", "orbit", "shrink")]
CROSSED = [name for name in OURS if name.split("-")[-1] in ("door", "towers")]
DELTA = 0.9
MOST = {  # indices that one policy without the index can solve, of 21 (towers: of 11); docs/suite.md quotes them
    "suite-car2d-rates": 12,
    "suite-drone-rates": 10,
    "suite-car2d-door": 5,
    "suite-drone-door": 4,
    "suite-car2d-orbit": 8,
    "suite-car2d-shrink": 13,
}


# --- no policy without the index -------------------------------------------------------------------------


@pytest.mark.parametrize("name", SWEPT)
def test_one_trajectory_solves_few_indices(name):
    family = get_family(name)
    lattice, count = Lattice.of(family), family.last_index + 1
    assert all(lattice.reached(i) for i in range(count))  # the check is not so strict that it refuses what is possible
    joined = np.eye(count, dtype=bool)
    for i, j in combinations(range(count), 2):
        joined[i, j] = joined[j, i] = lattice.compatible(i, j)
    assert all(joined[i, i + 1] for i in range(count - 1))
    assert largest_clique(joined) <= MOST[name]
    # Starts move a little. Two indices that exclude each other start alike so often that not both exceed δ: the sum of
    # their rates is at most 1 + the total variation distance of their starts.
    for i, j in zip(*np.nonzero(~joined), strict=True):
        assert 1.0 + start_distance(family, i, j) < 2.0 * DELTA


def start_distance(family, i, j):
    """Total variation distance of the starts of two indices, which differ in x only, by integration."""
    tasks = family.tasks([i, j])
    (a, b), half = tasks.start_center[:, 0], tasks.start_half[0, 0]
    x = np.linspace(min(a, b) - half, max(a, b) + half, 4001)
    density = [np.where(np.abs(x - c) <= half, np.exp(-0.5 * ((x - c) / half) ** 2), 0.0) for c in (a, b)]
    density = [d / np.trapezoid(d, x) for d in density]
    return 0.5 * np.trapezoid(np.abs(density[0] - density[1]), x)


@pytest.mark.parametrize("name", CROSSED)
def test_a_wall_is_entered_once(name):
    """Every way to the first target has a first state inside the layer of the wall. It must be in the opening.

    A policy without the index enters the layer in the same state at all indices, so it solves no more indices than
    there are whose openings share a point.
    """
    family = get_family(name)
    environment, count = family.environment, family.last_index + 1
    edge = family.edges[0]
    (target,) = [name for name, _ in conjuncts(edge.target)]
    axis, wall = (0, "over_take") if environment.name == "Reacher" else (1, "left")
    walls = ["over_take", "under_take"] if environment.name == "Reacher" else ["left", "right", "above", "below"]
    walls = [w for w in walls if w in family.regions]
    at = [family.regions_at(i) for i in range(count)]
    low, high = ([r[wall].center[axis] + sign * r[wall].reach[axis] for r in at] for sign in (-1.0, 1.0))
    assert np.ptp(low) == np.ptp(high) == 0.0  # the layer stays
    low, high = low[0], high[0]
    start = family.tasks(range(count))
    assert (start.start_center + start.start_half)[:, axis].max() < low
    assert min(r[target].center[axis] - r[target].reach[axis] for r in at) >= low - 1e-9
    assert longest_step(environment, axis, low) < high - low  # no step leads across
    sides = [np.linspace(-family.horizon - 2.0, family.horizon + 2.0, 200)] * len(environment.state_names)
    sides[axis] = np.linspace(low, high, 7)
    points = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, len(sides))
    if environment.name == "Reacher":
        points = points[points[:, 1] >= 0.0]
    safe = np.stack([~np.any([r[w].contains(points) for w in walls], axis=0) for r in at])
    assert safe.any(axis=1).all() and safe.sum(axis=0).max() == MOST[name]


def longest_step(environment, axis, low):
    """Return the longest step along an axis into what lies beyond `low`, over random states and extreme actions."""
    rng, count = np.random.default_rng(0), 100_000
    states = rng.uniform(-10.0, 10.0, (count, len(environment.state_names)))
    states[:, axis] = rng.uniform(low - 2.0, low, count)
    if environment.name == "Reacher":
        states[:, 1] = rng.uniform(0.0, 9.0, count)
        states = environment.project(states)
    actions = rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0], (count, environment.action_dim))
    after = environment.step(states, actions, np.zeros_like(states))
    crosses = (states[:, axis] < low) & (after[:, axis] >= low)
    return (after - states)[crosses, axis].max() + environment.noise


# --- no motion -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_motion_refuses(name):
    family = get_family(name)
    split = family.split(f"gap{family.gaps[0]}")  # the sparsest: more training tasks are harder to relate
    found = relations(family.tasks(split.indices))
    text = "in the way" if name.endswith("orbit") else "no single motion relates the regions"
    assert all(text in motion.reason for motion in found.values())


@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.endswith("orbit")])
def test_no_similarity_relates_the_tasks(name):
    """Shifts, rotations and dilations preserve the distance from source to target in widths of the target."""
    family = get_family(name)
    tasks = family.tasks([0, family.last_index // 2, family.last_index])
    for edge in tasks.edges:
        (target,) = (tasks.regions[n] for n, _ in conjuncts(edge.target))
        source = tasks.start_center
        if edge.source is not None:
            source = next(tasks.regions[n].center for n, inside in conjuncts(edge.source) if inside)
        ratio = np.linalg.norm(target.center - source, axis=-1) / target.reach[:, 0]
        assert np.ptp(ratio) > 1.0, edge.name


@pytest.mark.parametrize("name", ["suite-car2d-orbit", "dev-car2d-orbit"])
def test_no_way_turns_with_the_goal(name):
    """Start and goal of the orbit are related by a rotation. But no way out at index 0 is one at all others, turned.

    In the frame that turns with the goal, the walls of all training indices are unsafe at once.
    """
    family = get_family(name)
    degrees = family.regions["goal"].rotate.degrees
    assert Lattice.of(family).reached(0)
    assert turned(family, {0: 0.0}).reached(0)
    assert not turned(family, {index: -degrees * index for index in (0, family.last_index)}).reached(0)
