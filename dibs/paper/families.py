"""The paper's task families as data (section 5.1, appendices F and G): 34 benchmarks and the obstacle switch.

Numbers that the paper leaves out come from the authors' public code where it has them; docs/choices.md says
which are ours and why.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

Description = dict[str, Any]

RIGHT = 0.5  # everything that moves shifts right by this much per index
CAR: Description = {
    "environment": {"name": "Car2D"},
    "teacher": "ars",
    "teacher_minutes": 3,
    "network": {"hidden": [8]},
}
PAST_OBSTACLES = {"unit": 10.0, "margin": 0.2, "depth": 0.4}
"""Reward of cars that must avoid something."""


def _sequence(names: Sequence[str], obstacles: Sequence[str] = ()) -> str:
    text = "; ".join(f"achieve reach({name})" for name in names)
    if obstacles:
        text = f"({text}) ensuring " + " & ".join(f"avoid({name})" for name in obstacles)
    return text


def _reach(name: str, goals: list[list[float]], obstacles: Sequence[list[float]] = (), **more: Any) -> Description:
    """k-reachability for k = 1 … 5: goals in a fixed order, start and regions shifting right; `more` are other keys."""
    shift = [RIGHT] + [0.0] * (len(goals[0]) - 1)
    width, noise = more.pop("width", 1.0), more.pop("noise", 0.3)
    targets = {f"g{j}": {"center": c, "half_width": width, "shift": shift} for j, c in enumerate(goals, 1)}
    avoided = {f"o{j}": {"center": c, "half_width": 0.7, "shift": shift} for j, c in enumerate(obstacles, 1)}
    texts = [_sequence(list(targets)[:k], list(avoided)) for k in range(1, len(goals) + 1)]
    return {
        "name": name,
        "specification": texts[-1],
        "benchmarks": {f"{name}-k{k}": text for k, text in enumerate(texts, 1)},
        "start": {"center": [0.0] * len(shift), "noise": noise, "shift": shift},
        "regions": targets | avoided,
        "last_index": 40,
        "gaps": [20, 10, 8, 5, 4, 2],
        "horizon": 20,
        "reward": {"unit": 10.0, "depth": 0.4},
        **more,
    }


def _choice() -> Description:
    """Choice with one and two levels: past a wall by either of two fixed waypoints, then to the goal.

    The starts pass below a wall that cannot be jumped over. From far out, the way around it to the other waypoint takes
    too long: only one waypoint is in reach at indices 0 … 6, only the other at 14 … 20, and both at 8 … 12.
    """
    wall, aside = 11.0, 6.0  # the start is below the wall at half of the last index
    regions: dict[str, Any] = {}
    levels = []
    for level in (1, 2):
        up = 16.0 * (level - 1)
        regions |= {
            f"g{level}1": {"center": [wall - aside, 8.0 + up], "half_width": 1.0},
            f"g{level}2": {"center": [wall + aside, 8.0 + up], "half_width": 1.0},
            f"goal{level}": {"center": [1.0, 16.0 + up], "half_width": 1.0, "shift": [2 * RIGHT, 0.0]},
            f"wall{level}": {"center": [wall, 5.75 + up], "half_width": [0.6, 4.25]},
        }
        levels.append(f"(achieve reach(g{level}1) or achieve reach(g{level}2)); achieve reach(goal{level})")
    safe = "avoid(wall1) & avoid(wall2)"
    return {
        **CAR,
        "name": "car2d-choice",
        "specification": f"({'; '.join(levels)}) ensuring {safe}",
        "benchmarks": {
            "car2d-choice-l1": f"({levels[0]}) ensuring {safe}",
            "car2d-choice-l2": f"({'; '.join(levels)}) ensuring {safe}",
        },
        "start": {"center": [1.0, 0.0], "noise": 0.3, "shift": [2 * RIGHT, 0.0]},
        "regions": regions,
        "last_index": 20,
        "gaps": [10, 5, 4, 2],
        "horizon": 12,
        "reward": PAST_OBSTACLES,
        "description": "one or two levels of: reach either waypoint, then the goal, past a wall",
    }


BLOCK = 0.6  # height of a block; the arm's links are 5 long
GRIP = 0.4  # half-width of the region in which a block is picked or placed


def _reacher(kind: str, side: str, blocks: int) -> Description:
    """Tower de-stacking: index i picks at height i and stacks at height h − i, or drops into a box."""
    target_x = 2.5 if side == "same" else -4.0
    pick = {"center": [5.0, BLOCK / 2], "shift": [0.0, BLOCK], "half_width": GRIP}
    place: dict[str, Any] = {"center": [target_x, BLOCK / 2], "half_width": GRIP}
    if kind == "stack":
        place |= {"center": [target_x, BLOCK / 2 + blocks * BLOCK], "shift": [0.0, -BLOCK]}
    gaps = [g for g in (5, 4, 3, 2) if blocks % g == 0]
    return {
        "name": f"reacher-{kind}-{side}-{blocks}",
        "environment": {"name": "Reacher"},
        "specification": _sequence(["pick", "place"]),
        "start": {"center": [4.0, 6.0], "noise": 0.3},
        "regions": {"pick": pick, "place": place},
        "last_index": blocks,
        "gaps": gaps,
        "horizon": 20,
        "teacher": "ppo",
        "teacher_minutes": 6,
        # The target is small compared with what a joint's turn does, and the network is tiny: many small, bold steps.
        "teacher_options": {
            "n_steps": 8,
            "batch": 1024,
            "rate": 0.01,
            "gamma": 0.97,
            "std": 0.3,
            "std_rate": 5.0,
            "value": [32, 32],
        },
        "network": {"hidden": [8]},
        "reward": {"unit": 5.0, "depth": 0.15},
        "description": f"tower of {blocks}: pick the top block, then {kind} it on the {side} side",
    }


def _switch() -> Description:
    """The last ablation: the start moves past a central obstacle, so the right way around it switches."""
    return {
        **CAR,
        "name": "car2d-switch",
        "specification": "achieve reach(goal) ensuring avoid(block)",
        # So wide that the wrong way around takes too long from far out: one route cannot serve all indices.
        "start": {"center": [-10.0, 0.0], "noise": 0.3, "shift": [2 * RIGHT, 0.0]},
        "regions": {
            "goal": {"center": [0.0, 10.0], "half_width": 1.0},
            "block": {"center": [0.0, 5.0], "half_width": [5.0, 1.0]},
        },
        "last_index": 20,
        "gaps": [10, 5, 4, 2],
        "horizon": 20,
        "reward": PAST_OBSTACLES,
        "description": "the start crosses below a central obstacle: first around its left, then its right",
    }


@cache
def descriptions() -> dict[str, Description]:
    """Descriptions of all of the paper's families by name."""
    flat = [[5.0 * j, 8.0 * j] for j in range(1, 6)]
    high = [[5.0 * j, 8.0 * j, 4.0 * j] for j in range(1, 6)]
    offset = [[x - 2.5 + 0.9, y - 4.0 - 0.3] for x, y in flat]  # clips the straight line between two goals
    families = [
        _reach("car2d-reach", flat, description="k goals in order", **CAR),
        _reach(
            "car2d-reach-obs",
            flat,
            offset,
            reward=PAST_OBSTACLES,
            description="k goals in order, past obstacles",
            **CAR,
        ),
        _reach(
            "simpledrone-reach",
            high,
            environment={"name": "SimpleDrone"},
            teacher="ppo",
            teacher_minutes=6,
            network={"hidden": [64, 64]},
            description="k goals in order, in three dimensions",
        ),
        _reach(
            "droneattitude-reach",
            [[*goal, 0.0, 0.0] for goal in high],
            width=[1.0, 1.0, 1.0, 0.5, 0.5],
            noise=[0.3, 0.3, 0.3, 0.1, 0.1],
            environment={"name": "DroneAttitude"},
            teacher="ppo",
            teacher_minutes=10,
            network={"hidden": [128, 128]},
            description="k goals in order, each entered level and facing along x",
        ),
        _choice(),
    ]
    for blocks in (8, 9, 10):
        for kind in ("drop", "stack"):
            families += [_reacher(kind, side, blocks) for side in ("same", "opposite")]
    families.append(_switch())
    return {family["name"]: family for family in families}
