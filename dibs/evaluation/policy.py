"""The policy of one index as a file of its own: load it and run it without anything else.

    from dibs.evaluation.policy import load_policy

    policy = load_policy("policy.safetensors")
    env = policy.make_env()
    observation, info = env.reset()
    action = policy(env.state)                  # step by step; policy.reset() at the start of an episode

The policy follows its path of reach-avoid edges and switches when it enters an edge's target.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dibs import gym
from dibs.envs import Array, check_array
from dibs.errors import DibsError
from dibs.families import Family, Tasks, load_family
from dibs.files import read_tensors, write_tensors
from dibs.methods import Model
from dibs.provenance import Origin, check_kind
from dibs.seeding import stream
from dibs.simulation import EdgeTask, Moment, SpecTask, draw
from dibs.simulation.composed import Composed
from dibs.spectrl import satisfied
from dibs.templates.template import check_fits, compose, evolution_of


class IndexPolicy:
    """Edge policies composed along one path, at one index."""

    def __init__(self, family: Family, specification: str, index: int, model: Model, where: str) -> None:
        """`model` is a template's; errors name `where` it is from."""
        self.family, self.specification, self.index, self.model = family, specification, index, model
        self.template = evolution_of(model, where)
        check_fits(self.template, self.tasks)
        self.path = self.template.path(self.tasks.graph, index)
        self.role = "train" if index in self.template.train else "unseen"
        self._targets = [EdgeTask(self.tasks.ground([(index, name)])) for name in self.path]
        self._policies = [self.template.edge_policy(family.environment, [(index, name)]) for name in self.path]
        self.stage = 0

    def __repr__(self) -> str:
        return f"IndexPolicy({self.family.name}, index {self.index} ({self.role}), {' '.join(self.path)})"

    @property
    def tasks(self) -> Tasks:
        """The task that it solves."""
        return self.family.tasks([self.index], self.specification)

    def reset(self) -> None:
        """Start again with the first edge."""
        self.stage = 0

    def __call__(self, state: Any) -> Array:
        """Return the action for one state (dim,); advance to the next edge if the current target is entered."""
        environment = self.family.environment
        state = check_array("state", state, len(environment.state_names)).astype(np.float32)
        entered = self._targets[self.stage].target_distance(state[None, None])[0, 0] >= 0.0
        if entered and self.stage < len(self.path) - 1:
            self.stage += 1
        one = state[None, None]  # a single task and rollout
        still = np.ones((1, 1), dtype=bool)
        now = Moment(environment.observe(one), one, None, np.zeros((1, 1), dtype=np.intp), still)
        return self._policies[self.stage].act(now, None)[0][0, 0]

    def make_env(self, **kwargs: Any) -> Any:
        """Return the Gymnasium environment of this policy's specification and index."""
        return gym.make(self.family, specification=self.specification, index=self.index, **kwargs)

    def composed(self) -> Composed:
        """Return the policy in the form that the simulator runs."""
        return compose(self.template, self.tasks)

    def episodes(self, count: int, seed: int) -> list[tuple[Array, bool]]:
        """Run episodes; return the states (time, dim) of each and whether they satisfy the specification."""
        if count < 1:
            raise DibsError(f"--episodes: expected at least 1, found {count}")
        tasks = self.tasks
        found = []
        for n in range(count):  # each from a stream of its own: the first ones do not depend on how many follow
            drawn = draw(SpecTask(tasks), 1, stream("episode", self.family.name, self.index, seed + n))
            run = self.composed().follow(tasks, drawn)
            states = run.states[0, 0, : run.lengths[0, 0]]
            found.append((states, bool(satisfied(tasks.spec, tasks.regions_at(self.index), states[None])[0])))
        return found


def policy_at(model: Model, where: str, family: Family, specification: str, index: int) -> IndexPolicy:
    """Return the composed policy of any index ≥ 0, from a template's model alone; `where` names the model in errors."""
    family.check_index(index, beyond=True)
    policy = IndexPolicy(family, specification, index, model, where)
    if not policy.template.holds(index, policy.path):
        raise DibsError(f"index {index}: the template's parameters run away before it; it does not extend that far")
    return policy


def save_policy(path: Path, policy: IndexPolicy, origin: Origin) -> None:
    """Write a policy with its template and its family's description, so that the file needs no other."""
    write_tensors(
        path,
        policy.model.tensors,
        {
            **origin.metadata(),
            "index": policy.index,
            "path": list(policy.path),
            "role": policy.role,
            "specification": policy.specification,
            "model": dict(policy.model.metadata),
            "description": policy.family.description_data(),
        },
    )


def load_policy(path: str | Path) -> IndexPolicy:
    """Read a policy."""
    tensors, meta = read_tensors(path)
    check_kind(path, meta, "policy")
    if "model" not in meta:
        raise DibsError(f"{path}: written by an older version; write it again with `dibs policy`")
    model = Model(tensors, meta["model"], 0)
    return IndexPolicy(load_family(meta["description"]), meta["specification"], meta["index"], model, str(path))
