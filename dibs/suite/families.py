"""The suite's families as data: tasks that neither a policy without the index nor a motion solves (docs/suite.md).

The arguments are of the same two kinds in all of them:

- From the same starts, distant indices need different things, and nothing shows a policy which index it is at before
  it is too late. A policy that does not receive the index behaves alike at both, so it solves at most one of them.
- A motion (a shift, rotation or dilation) preserves the ratios of lengths. In these families they change with the
  index, or some of the regions turn and others do not.

Families whose names begin with `dev-` are twins of the same kind with other numbers. Methods may be tuned on them,
never on the suite itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

Description = dict[str, Any]

FAR = 8.5  # half-width of walls: farther than anything gets within the horizon
WALL = 0.8  # half of a wall's thickness: no single step leads across
CAR: Description = {
    "environment": {"name": "Car2D"},
    "teacher": "ars",
    "teacher_minutes": 3,
    "network": {"hidden": [8]},
}
DRONE: Description = {
    "environment": {"name": "SimpleDrone"},
    "teacher": "ppo",
    "teacher_minutes": 6,
    "network": {"hidden": [64, 64]},
}
ARM: Description = {
    "environment": {"name": "Reacher"},
    "teacher": "ppo",
    "teacher_minutes": 6,
    # As for the paper's towers: targets are small compared with what a joint's turn does. The tight horizon takes more
    # iterations: after 100, some teachers come near the block and are still too late.
    "teacher_options": {
        "iterations": 300,
        "n_steps": 8,
        "batch": 1024,
        "rate": 0.01,
        "gamma": 0.97,
        "std": 0.3,
        "std_rate": 5.0,
        "value": [32, 32],
    },
    "network": {"hidden": [8]},
}


def _family(
    name: str, targets: Sequence[str], regions: Description, last: int, horizon: int, description: str
) -> Description:
    """Return what all families share: targets in order, all other regions to be avoided."""
    text = "; ".join(f"achieve reach({target})" for target in targets)
    walls = [region for region in regions if region not in targets]
    if walls:
        text = f"({text}) ensuring " + " & ".join(f"avoid({wall})" for wall in walls)
    return {
        "name": name,
        "specification": text,
        "regions": regions,
        "last_index": last,
        "gaps": [10, 5, 4, 2] if last == 20 else [8, 4, 2],
        "horizon": horizon,
        "reward": {"unit": 10.0, "depth": 0.4} | ({"margin": 0.2} if walls else {}),
        "description": description,
    }


def _rates(
    name: str, base: Description, goals: Sequence[Sequence[float]], fast: float, slow: float, last: int, horizon: int
) -> Description:
    """Goals in order that move at two rates in turn: the first one fast, the second one slowly, as the start."""
    names, still = [f"g{j + 1}" for j in range(len(goals))], [0.0] * (len(goals[0]) - 1)
    regions = {
        g: {"center": list(center), "half_width": 1.0, "shift": [slow if j % 2 else fast, *still]}
        for j, (g, center) in enumerate(zip(names, goals, strict=True))
    }
    text = "k goals in order; odd ones move fast, even ones and the start slowly"
    family = _family(name, names, regions, last, horizon, text)
    prefixes = {k + 1: "; ".join(f"achieve reach({g})" for g in names[: k + 1]) for k in range(len(names))}
    start = {"center": [0.0, *still], "noise": 0.3, "shift": [slow, *still]}
    return base | family | {"start": start, "benchmarks": {f"{name}-k{k}": text for k, text in prefixes.items()}}


def _door(
    name: str,
    base: Description,
    goal: Sequence[float],
    wall: float,
    door: Sequence[float],
    shift: Sequence[float],
    last: int,
    horizon: int,
) -> Description:
    """Start and goal on the two sides of a wall across y; `door` and its `shift` are in the other variables."""
    dim = len(goal)
    across = [0, 2][: len(door)]
    middle, moves, half = [wall] * dim, [0.0] * dim, [WALL] * dim
    for d, place, by in zip(across, door, shift, strict=True):
        middle[d], moves[d], half[d] = place, by, 0.7
    regions: Description = {
        "door": {"center": middle, "half_width": half, "shift": moves},
        "goal": {"center": list(goal), "half_width": 1.0},
    }
    for d in across:
        for side, sign in zip({0: ("left", "right"), 2: ("below", "above")}[d], (-1.0, 1.0), strict=True):
            center: list[float | None] = [None] * dim
            center[1], center[d] = wall, middle[d] + sign * (FAR + 1.0)
            regions[side] = {
                "center": center,
                "half_width": [FAR if v == d else WALL for v in range(dim)],
                "shift": [moves[v] if v == d else 0.0 for v in range(dim)],
            }
    text = "through a wall whose opening moves, from a fixed start to a fixed goal"
    family = _family(name, ["door", "goal"], regions, last, horizon, text) | {
        "gaps": [5, 4, 2] if last == 20 else [4, 2]
    }
    return base | family | {"start": {"center": [0.0] * dim, "noise": 0.3}}


def _orbit(
    name: str, goal: Sequence[float], degrees: float, end: float, wall: float, last: int, horizon: int
) -> Description:
    """The start is in a corridor along x that ends at `end`; its walls are at ±`wall`."""
    regions: Description = {"goal": {"center": list(goal), "half_width": 1.0, "rotate": degrees}}
    for side, sign in (("lower", -1.0), ("upper", 1.0)):
        regions[side] = {"center": [end - FAR, sign * wall], "half_width": [FAR, 0.7]}
    text = "out of a corridor that stays to a goal that turns about the fixed start"
    return CAR | _family(name, ["goal"], regions, last, horizon, text) | {"start": {"center": [0.0, 0.0], "noise": 0.3}}


def _shrink(name: str, goal: Description, block: Description, last: int, horizon: int) -> Description:
    """A block that grows in place, and behind it a goal that shrinks while it moves."""
    text = "to a goal that shrinks and moves, past a block that grows"
    family = _family(name, ["goal"], {"goal": goal, "block": block}, last, horizon, text)
    family["reward"]["depth"] = 0.3
    return CAR | family | {"start": {"center": [0.0, 0.0], "noise": 0.3}}


def _towers(
    name: str, tower: float, other: float, block: float, rail: Sequence[float], start: Sequence[float], last: int
) -> Description:
    """Blocks from a tower at x = `tower`, over a rail, to a tower on the opposite side, at x = `other`."""
    low, grip = 0.4, 0.4
    regions: Description = {
        "pick": {"center": [tower, low], "half_width": grip, "shift": [0.0, block]},
        "carry": {"center": list(rail), "half_width": grip},
        "place": {"center": [other, low + last * block], "half_width": grip, "shift": [0.0, -block]},
    }
    text = "a block from a tower, over a rail, to a tower on the opposite side; tight horizon"
    own = {"gaps": [6, 4, 3, 2] if last == 12 else [5, 2], "reward": {"unit": 5.0, "depth": 0.15}}
    family = _family(name, list(regions), regions, last, 9, text) | own
    return ARM | family | {"start": {"center": list(start), "noise": 0.1}}


def _heights(count: int, x: float, *steps: float) -> list[list[float]]:
    """Return goals at equal steps in all variables but x, which is `x` for odd goals and 0 for even ones."""
    return [[x * (j % 2), *(step * j for step in steps)] for j in range(1, count + 1)]


@cache
def descriptions() -> dict[str, Description]:
    """Descriptions of the suite's families and of their development twins by name."""
    families = [
        _rates("suite-car2d-rates", CAR, _heights(5, -7.0, 7.0), 0.7, 0.02, 20, 12),
        _rates("suite-drone-rates", DRONE, _heights(5, -10.0, 8.0, 4.0), 1.0, 0.02, 20, 12),
        _door("suite-car2d-door", CAR, [0.0, 10.0], 5.0, [-4.0], [0.4], 20, 12),
        _door("suite-drone-door", DRONE, [0.0, 10.0, 0.0], 4.0, [-5.0, -2.0], [0.5, 0.2], 20, 12),
        _orbit("suite-car2d-orbit", [2.2, -8.4], 7.5, 1.5, 2.5, 20, 12),
        _shrink(
            "suite-car2d-shrink",
            {"center": [-8.0, 10.0], "shift": [0.65, 0.0], "half_width": 1.8, "scale": 0.96},
            {"center": [-18.0, 5.0], "half_width": [13.0, 0.8], "scale": 1.025},
            20,
            14,
        ),
        _towers("suite-reacher-opposite", 3.8, -4.0, 0.69, [0.2, 4.9], [-0.8, 3.6], 12),
        _rates("dev-car2d-rates", CAR, _heights(3, -6.4, 6.5), 0.8, 0.02, 16, 11),
        _rates("dev-drone-rates", DRONE, _heights(3, -9.5, 7.0, 3.0), 1.2, 0.02, 16, 12),
        _door("dev-car2d-door", CAR, [1.0, 11.0], 5.5, [-3.6], [0.45], 16, 12),
        _door("dev-drone-door", DRONE, [1.0, 11.0, 1.0], 4.5, [-5.2, 2.0], [0.65, -0.25], 16, 12),
        _orbit("dev-car2d-orbit", [2.9, -8.0], 8.75, 1.2, 2.3, 16, 12),
        _shrink(
            "dev-car2d-shrink",
            {"center": [-7.0, 9.5], "shift": [0.75, 0.0], "half_width": 1.7, "scale": 0.96},
            {"center": [-17.0, 4.8], "half_width": [12.5, 0.8], "scale": 1.03},
            16,
            13,
        ),
        _towers("dev-reacher-opposite", 3.8, -3.4, 0.8, [0.5, 5.0], [-0.5, 3.6], 10),
    ]
    return {family["name"]: family for family in families}
