"""How a policy without a graph sees a whole specification: what ARS, BC, MAML and VariBAD share (paper, section 5.1).

The policy sees the observation, scaled by constants of the training tasks, and (`observe_stage`) one flag per
completed stage of the specification. Flags stay up: a stage that is met for the first time then looks like the one
before it, and what was learned there still holds. Only `ppo-index` sees the index as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dibs.envs import Array, Environment
from dibs.families import Tasks
from dibs.methods import Model
from dibs.policies.network import Network
from dibs.policies.scaling import joint_scaling
from dibs.simulation import Levels, Moment, NetworkPolicy
from dibs.spectrl.stages import stages_of


def scaled_index(indices: npt.ArrayLike, last: int) -> Array:
    """Return indices as network inputs: −1 at index 0, 1 at the last training index."""
    return np.asarray(2.0 * np.asarray(indices) / max(last, 1) - 1.0, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class FlatView:
    """Maps an observation and a stage to the inputs of a network."""

    center: Array  # (observation,)
    half: Array  # (observation,)
    stages: int
    """Stages on the longest way through the specification."""
    observe_stage: bool = True
    last: int = 0
    """Last training index, if the policy sees the index; 0: it does not."""
    index: Array | None = None  # (tasks,): scaled indices of the tasks in which it acts

    @classmethod
    def of_tasks(cls, tasks: Tasks, observe_stage: bool, observe_index: bool = False) -> FlatView:
        """Return the view of policies that are trained on `tasks`."""
        last = tasks.indices[-1] if observe_index else 0
        return cls(*joint_scaling(tasks), stages_of(tasks.spec).depth, observe_stage, last)

    def at(self, indices: Sequence[int]) -> FlatView:
        """Return the view of the tasks of the given indices."""
        return replace(self, index=scaled_index(indices, self.last)) if self.last else self

    @classmethod
    def of_model(cls, model: Model) -> FlatView:
        """Return the view with which a model was trained."""
        center, half = (np.asarray(model.tensors[name]) for name in ("center", "half"))
        meta = model.metadata
        return cls(center, half, int(meta["stages"]), bool(meta["observe_stage"]), int(meta.get("last", 0)))

    def model(
        self, tensors: Mapping[str, Array], metadata: Mapping[str, Any], steps: int, metrics: Mapping[str, Any]
    ) -> Model:
        """Return a model of policies with this view, which `of_model` finds in it."""
        own = {"stages": self.stages, "observe_stage": self.observe_stage, **({"last": self.last} if self.last else {})}
        return Model({**tensors, "center": self.center, "half": self.half}, {**metadata, **own}, steps, metrics)

    @property
    def size(self) -> int:
        """Number of inputs."""
        return len(self.center) + (self.stages - 1 if self.observe_stage else 0) + (1 if self.last else 0)

    def inputs(self, observation: Array, stage: Levels) -> Array:
        """Return inputs (..., size) for observations (..., n) at stages (...); the last axes are tasks and rollouts."""
        parts: list[Array] = [(observation - self.center) / self.half]
        if self.observe_stage:
            parts.append(self._flags[stage])
        if self.index is not None:
            parts.append(np.broadcast_to(self.index[:, None, None], (*observation.shape[:-1], 1)))
        return np.concatenate(parts, axis=-1) if len(parts) > 1 else parts[0]

    def seen(self, environment: Environment) -> Callable[[Array, Levels], Array]:
        """Return the function from states and stages to the inputs that a policy with this view is given there."""
        return lambda states, stage: self.inputs(environment.observe(states), stage)

    @cached_property
    def _flags(self) -> Array:
        """(stages + 1, stages − 1): which stages are completed; the last one never is while an episode lasts."""
        return np.tri(self.stages + 1, self.stages - 1, -1, dtype=np.float32)


class FlatPolicy(NetworkPolicy):
    """Networks that act on a whole specification, without memory.

    `theta` is (size,), or (n, size) with one network per entry of the first axis: candidates or tasks. `explore` adds
    exploration noise to actions.
    """

    def __init__(
        self, network: Network, theta: Array, view: FlatView, explore: Callable[[Array], Array] | None = None
    ) -> None:
        super().__init__(network, theta)
        self.view, self.explore = view, explore

    def act(self, now: Moment, memory: None) -> tuple[Array, None]:
        inputs = self.view.inputs(now.observation, now.stage)
        rows = inputs if self.theta.ndim == 1 else inputs.reshape(len(self.theta), -1, inputs.shape[-1])
        actions = self.network.forward(self.theta, rows).reshape(*inputs.shape[:-1], -1)
        return actions if self.explore is None else self.explore(actions), None


def flat_policy(model: Model, tasks: Tasks) -> FlatPolicy:
    """Return the policy of a model that is one network for all indices."""
    return FlatPolicy(Network(**model.metadata["network"]), model.tensors["theta"], FlatView.of_model(model))
