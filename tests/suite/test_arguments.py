"""The suite's families require induction: the arguments of docs/suite.md, checked by brute force."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.spatial import KDTree

from dibs.evaluation.requirements import known_requirement
from dibs.families import get_benchmark, get_family
from dibs.spectrl import conjuncts
from dibs.suite.families import descriptions
from dibs.suite.requirements import answers
from dibs.templates.motion import relations

from .reachability import Lattice, grid, largest_clique, turned

FAMILIES = list(descriptions())
OURS = [name for name in FAMILIES if name.startswith("suite-")]
SWEPT = [name for name in OURS if name.split("-")[-1] in ("rates", "orbit", "shrink", "opposite")]
CROSSED = [name for name in OURS if name.endswith("door")]
DELTA = 0.9
MOST = {  # indices that one policy without the index can solve, of 21 (towers: of 13); docs/suite.md quotes them
    "suite-car2d-rates": 12,
    "suite-drone-rates": 10,
    "suite-car2d-door": 5,
    "suite-drone-door": 4,
    "suite-car2d-orbit": 8,
    "suite-car2d-shrink": 13,
    "suite-reacher-opposite": 9,
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


@pytest.mark.parametrize("name", ["suite-car2d-rates", "suite-drone-rates", "suite-reacher-opposite"])
def test_the_lattice_contains_what_random_policies_reach(name):
    """Random commands that change now and then; every state must be in or next to a cell that the check spreads to."""
    family, rng = get_family(name), np.random.default_rng(0)
    lattice, environment, (points, cell) = Lattice.of(family), family.environment, grid(family)
    tasks = family.tasks([0])
    states = tasks.start_center + tasks.start_half * rng.uniform(-1.0, 1.0, (2000, tasks.start_center.shape[-1]))
    actions, cells = np.zeros((len(states), environment.action_dim)), lattice.start
    for _ in range(family.horizon // 2):
        other = rng.uniform(size=(len(states), 1)) < 0.3
        actions = np.where(other, rng.choice([-1.0, -0.3, 0.0, 0.3, 1.0], actions.shape), actions)
        states = environment.step(states, actions, rng.choice([-1.0, 1.0], states.shape))
        cells = lattice.spread(cells)
        assert KDTree(points[cells]).query(states[:, :2])[0].max() < 2.0 * np.max(cell)
    assert not cells.all()


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
    walls = [wall for wall in ("left", "right", "above", "below") if wall in family.regions]
    at = [family.regions_at(i) for i in range(count)]
    low, high = ([r["left"].center[1] + sign * r["left"].reach[1] for r in at] for sign in (-1.0, 1.0))
    assert np.ptp(low) == np.ptp(high) == 0.0  # the layer stays
    low, high = low[0], high[0]
    start = family.tasks(range(count))
    assert (start.start_center + start.start_half)[:, 1].max() < low
    assert min(r["door"].center[1] - r["door"].reach[1] for r in at) >= low - 1e-9
    assert longest_step(environment, low) < high - low  # no step leads across
    sides = [np.linspace(-family.horizon - 2.0, family.horizon + 2.0, 200)] * len(environment.state_names)
    sides[1] = np.linspace(low, high, 7)
    points = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, len(sides))
    safe = np.stack([~np.any([r[w].contains(points) for w in walls], axis=0) for r in at])
    assert safe.any(axis=1).all() and safe.sum(axis=0).max() == MOST[name]


def longest_step(environment, low):
    """Return the longest step along y into what lies beyond `low`, over random states and extreme actions."""
    rng, count = np.random.default_rng(0), 100_000
    states = rng.uniform(-10.0, 10.0, (count, len(environment.state_names)))
    states[:, 1] = rng.uniform(low - 2.0, low, count)
    actions = rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0], (count, environment.action_dim))
    after = environment.step(states, actions, np.zeros_like(states))
    crosses = (states[:, 1] < low) & (after[:, 1] >= low)
    return (after - states)[crosses, 1].max() + environment.noise


@pytest.mark.parametrize("name", list(answers()))
def test_what_the_search_found_is_within_the_bounds(name):
    """`dibs requires` looks for policies without the index; the best one solves no more indices than one trajectory."""
    benchmark = get_benchmark(name)
    found, count = known_requirement(benchmark), benchmark.family.last_index + 1
    assert found is not None and found.group == "more"
    assert round(found.index_free * count) <= MOST[benchmark.family.name]


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
