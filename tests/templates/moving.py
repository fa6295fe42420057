"""Families made to test motion, and hand-written teachers of index 0 that need no training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dibs.families import Tasks, load_family
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.teachers.train import Teacher

SMALL = 1e-3  # a hidden layer that is scaled by this is linear


def family(environment: str, regions: dict[str, Any], **changes: Any) -> Any:
    """One edge from the start to region a; other regions are avoided. What `regions` leaves out has a default."""
    others = [name for name in regions if name not in ("a", "start")]
    avoid = " ensuring " + " and ".join(f"avoid({name})" for name in others) if others else ""
    data = {
        "name": "moving",
        "environment": {"name": environment, **changes.pop("constants", {})},
        "specification": f"achieve reach(a){avoid}",
        "start": regions.pop("start"),
        "regions": regions,
        "last_index": 20,
        "horizon": 16,
        "network": {"hidden": [5]},
        "reward": {"unit": 10.0, "depth": 0.1},
        **changes,
    }
    return load_family(data)


def tasks_of(environment: str, regions: dict[str, Any], gap: int = 5, **changes: Any) -> Tasks:
    one = family(environment, regions, **changes)
    return one.tasks(one.split(f"gap{gap}").indices)


def teacher(tasks: Tasks, actors: dict[str, tuple[np.ndarray, np.ndarray]]) -> Teacher:
    """A teacher whose policy on every edge is tanh(W x + b), given as (W, b)."""
    environment = tasks.environment
    n, m = environment.observation_dim, environment.action_dim
    network = Network(n, (n,), m)
    theta = np.zeros((len(tasks.edge_names), network.size), dtype=np.float32)
    for e, name in enumerate(tasks.edge_names):
        gain, bias = actors[name]
        (first, _), (second, last) = network.layers(theta[e : e + 1])
        first[0], second[0], last[0, 0] = SMALL * np.eye(n), np.asarray(gain).T / SMALL, bias
    return Teacher(
        family=tasks.name,
        split="base",
        index=0,
        seed=0,
        edges=tasks.edge_names,
        network=network,
        scaling=Scaling(np.zeros((len(theta), n), np.float32), np.ones((len(theta), n), np.float32)),
        actor=theta,
        head=np.zeros((len(theta), n + 1)),
        metrics={"steps": 0, "edges": {name: {"steps": 1000} for name in tasks.edge_names}},
        settings={},
    )


def heading(degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """Car2D: drive at nearly full speed in one direction."""
    return np.zeros((2, 2)), np.arctanh([0.98, degrees / 180.0])


def homing(goal: list[float], gain: float = 0.25) -> tuple[np.ndarray, np.ndarray]:
    """SimpleDrone: fly towards a point."""
    return -gain * np.eye(len(goal)), gain * np.array(goal)


def policy_of(template: Any, tasks: Tasks, index: int, edge: str) -> Callable[[np.ndarray], np.ndarray]:
    """Return a template's policy at one index, as a function of states (n, dim)."""
    from dibs.simulation import Moment

    policy = template.edge_policy(tasks.environment, [(index, edge)])

    def act(states: np.ndarray) -> np.ndarray:
        batch = states[None].astype(np.float32)
        yes = np.ones(batch.shape[:2], dtype=bool)
        now = Moment(tasks.environment.observe(batch), batch, None, np.zeros(batch.shape[:2], dtype=np.intp), yes)
        return np.asarray(policy.act(now, None)[0][0])

    return act
