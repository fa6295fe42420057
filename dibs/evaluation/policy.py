"""A policy for one index as a file of its own: load it in three lines and run it in its environment.

    from dibs.evaluation.policy import load_policy
    policy = load_policy("policy.safetensors")
    env = policy.make_env()                     # then: action = policy(state), step by step

The policy follows its path of reach-avoid edges and switches when it enters an edge's target; `reset()` it
at the start of every episode.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dibs.envs import Array, check_array
from dibs.errors import DibsError
from dibs.families import Family, ground, load_family
from dibs.files import damaged, read_tensors, write_tensors
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.spectrl import graph, parse
from dibs.templates.branched import Branched
from dibs.templates.template import RUNAWAY, Template


class Policy:
    """Edge policies composed along one path, at one index."""

    def __init__(
        self,
        family: Family,
        specification: str,
        index: int,
        path: tuple[str, ...],
        network: Network,
        scaling: Scaling,  # of the path's edges
        actors: Array,  # (stages, size)
        role: str = "unseen",  # or train
    ) -> None:
        self.family, self.specification, self.index, self.path = family, specification, index, path
        self.network, self.scaling, self.actors, self.role = network, scaling, actors, role
        self._tasks = ground(family, [(index, name) for name in path])
        self._folded = network.fold(actors, scaling.center, scaling.half)
        self.stage = 0

    def reset(self) -> None:
        """Forget the episode: start again with the first edge."""
        self.stage = 0

    def __call__(self, state: Any) -> Array:
        """Action for one state (dim,); advances to the next edge where the current target is entered."""
        state = check_array("state", state, self.network.inputs).astype(np.float32)
        entered = self._tasks.take([self.stage]).target_distance(state[None, None])[0, 0] >= 0.0
        if entered and self.stage < len(self.path) - 1:
            self.stage += 1
        return self.network.forward(self._folded[self.stage], state[None])[0]

    def make_env(self, **kwargs: Any) -> Any:
        """The Gymnasium environment of this policy's specification and index."""
        import gymnasium

        name = self.family.dynamics.name
        return gymnasium.make(
            f"dibs.envs.gym:dibs/{name}-v0",
            family=self.family,
            specification=self.specification,
            index=self.index,
            **kwargs,
        )


def policy_at(template: Template | Branched, family: Family, specification: str, index: int) -> Policy:
    """The composed policy of any index ≥ 0, from a template alone."""
    family.check_index(index, beyond=True)
    template.check(family)
    path = template.path(graph(parse(specification)), index)
    rows = [template.edges.index(name) for name in path]
    actors = template.actors([index])[index][rows]
    if np.abs(actors).max() >= RUNAWAY:
        raise DibsError(f"index {index}: the template's parameters run away before it; it does not extend that far")
    scaling = template.scaling.take(np.array(rows))
    role = "train" if index in template.train else "unseen"
    return Policy(family, specification, index, path, template.network, scaling, actors, role)


def save_policy(path: Path, policy: Policy, provenance: dict[str, Any]) -> None:
    """Write a policy with its family's description, so that the file stands alone."""
    write_tensors(
        path,
        {"actors": policy.actors, "scaling_center": policy.scaling.center, "scaling_half": policy.scaling.half},
        {
            "kind": "policy",
            "index": policy.index,
            "path": list(policy.path),
            "role": policy.role,
            "specification": policy.specification,
            "network": asdict(policy.network),
            "description": policy.family.model_dump(),
            **provenance,
        },
    )


def load_policy(path: str | Path) -> Policy:
    """Read a policy."""
    tensors, meta = read_tensors(path)
    if meta.get("kind") != "policy":
        raise DibsError(f"{path}: expected a policy, found a file of kind {meta.get('kind')!r}")
    network = Network(**{**meta["network"], "hidden": tuple(meta["network"]["hidden"])})
    stages = len(meta["path"])
    expected = {"actors": (stages, network.size)}
    expected |= {name: (stages, network.inputs) for name in ("scaling_center", "scaling_half")}
    for name, shape in expected.items():
        if name not in tensors or tensors[name].shape != shape:
            found = tensors[name].shape if name in tensors else "nothing"
            raise damaged(path, f"{name}: expected shape {shape}, found {found}")
    return Policy(
        load_family(meta["description"]),
        meta["specification"],
        meta["index"],
        tuple(meta["path"]),
        network,
        Scaling(tensors["scaling_center"], tensors["scaling_half"]),
        tensors["actors"],
        meta["role"],
    )
