"""PPO with the regions: one reach-avoid policy that sees the current edge's regions relative to its state.

Goal-conditioned reinforcement learning over the edges of all training tasks, as current zero-shot work on temporal
logic does it (GenZ-LTL, NeurIPS 2025): the specification's subgoals are solved one at a time by a policy that receives
the target and the nearest regions to avoid. It is composed along the guard's path like a template.

It knows more than the other methods. At run time it is given the *evaluated* task's own regions, which a template never
sees; training uses those of training tasks only. Any number of edges works, and boxes, balls and half-spaces.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dibs.baselines import ppo_core as ppo
from dibs.envs import Array
from dibs.families import ReachAvoid, Tasks
from dibs.methods import Method, Model, Training, teachers_for_budget
from dibs.policies.network import Network
from dibs.policies.scaling import joint_scaling
from dibs.seeding import stream
from dibs.simulation import BasePolicy, Bools, EdgeTask, Levels, Moment, Policy, Stopped, draw, rollout
from dibs.simulation.composed import Composed
from dibs.spectrl import Region
from dibs.templates.guards import EdgeRecord, choose_path, read_records, records_of, stored_records


@dataclass(frozen=True)
class Settings(ppo.PPOSettings):
    """Settings of PPO on reach-avoid edges."""

    rollouts: int = 8
    """Episodes per edge, index and iteration."""
    tasks: int = 60
    """Most pairs of an edge and an index in an iteration; with more, this many are drawn each time."""
    observe_state: bool = True
    """Whether the policy sees the scaled observation, too; without it, it knows only where the regions are."""
    obstacles: int = 2
    """Most regions to avoid that it sees: the nearest ones."""
    record_rollouts: int = 200
    """Episodes per edge and index that measure the success for the guard."""


# --- what the policy sees --------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GoalView:
    """Maps states to the inputs of the network; made for the training tasks, and used for any tasks after that."""

    center: Array  # (observation,)
    half: Array  # (observation,)
    unit: float
    """Distance that counts as 1."""
    targets: int
    """Regions of a target that are seen; a target is usually one region."""
    obstacles: int
    observe_state: bool

    @classmethod
    def of_tasks(cls, tasks: Tasks, settings: Settings) -> GoalView:
        """Return the view of a policy that is trained on `tasks`."""
        edges = tasks.reach_avoid()
        most = edges.safe_sign[0].size  # padded to the same number at every task
        shape = (edges.target_sign.shape[1], min(settings.obstacles, most))
        return cls(*joint_scaling(tasks), tasks.reward.unit, *shape, settings.observe_state)

    def size(self, dim: int) -> int:
        """Number of inputs with `dim` state variables."""
        return (self.targets + self.obstacles) * (4 * dim + 3) + (len(self.center) if self.observe_state else 0)

    def inputs(self, states: Array, edges: ReachAvoid) -> Array:
        """Return inputs (..., tasks, rollouts, size) for states (..., tasks, rollouts, dim) on the given edges."""
        safe, signs = _flattened(edges.safe, edges.safe_sign)
        parts = [
            self._nearest(states, edges.target, edges.target_sign, self.targets),
            self._nearest(states, safe, signs, self.obstacles),
        ]
        if self.observe_state:
            parts.append((edges.environment.observe(states) - self.center) / self.half)
        return np.concatenate(parts, axis=-1).astype(np.float32)

    def _nearest(self, states: Array, regions: Region, signs: Array, count: int) -> Array:
        """Describe the `count` of the regions (tasks, n) that matter most: the least satisfied, by signed distance.

        A sign of 1 asks to be in the region, −1 to stay out of it; 0 stands for no region, which is described by 0.
        """
        if count == 0:
            return states[..., :0]
        described, satisfied = describe(states, regions, signs, self.unit)
        missing = count - described.shape[-2]
        if missing > 0:
            described = np.pad(described, [(0, 0)] * (described.ndim - 2) + [(0, missing), (0, 0)])
        elif missing < 0:
            order = np.argsort(satisfied, axis=-1, kind="stable")[..., :count]
            described = np.take_along_axis(described, order[..., None], axis=-2)
        return described.reshape(*states.shape[:-1], -1)


def describe(states: Array, regions: Region, signs: Array, unit: float) -> tuple[Array, Array]:
    """Describe regions (tasks, n) relative to states (..., tasks, rollouts, dim).

    Returns (..., tasks, rollouts, n, 4 · dim + 3): the way to the center (of a half-space: to its plane), its
    direction, extents, normal, radius, signed distance and sign; and how well each region is satisfied (..., n).
    """
    region = regions[:, None]  # (tasks, 1, n)
    arrays = {name: np.asarray(value, dtype=np.float32) for name, value in region.arrays().items()}
    here = states[..., None, :]  # (..., tasks, rollouts, 1, dim)
    bounded = np.isfinite(arrays["half_width"])
    way = np.where(bounded, arrays["center"] - here, 0.0)
    height = np.where(np.isfinite(region.offset), region.offset, 0.0) - (arrays["normal"] * here).sum(axis=-1)
    way = way + arrays["normal"] * height[..., None]
    extent = np.where(bounded, arrays["half_width"] + arrays["radius"][..., None], 0.0)
    # Inside a region the direction fades to 0 instead of jumping.
    least = np.where(bounded, extent, np.inf).min(axis=-1, keepdims=True)
    length = np.maximum(np.linalg.norm(way, axis=-1, keepdims=True), np.where(np.isfinite(least), least, 1.0))
    distance = region.signed_distance(here)
    shape = (*distance.shape, states.shape[-1])
    columns = [way / unit, way / length, extent / unit, arrays["normal"]]
    numbers = [arrays["radius"] / unit, np.clip(distance / unit, -10.0, 10.0), signs[:, None].astype(np.float32)]
    described = np.concatenate(
        [*(np.broadcast_to(c, shape) for c in columns), *(np.broadcast_to(x, shape[:-1])[..., None] for x in numbers)],
        axis=-1,
    )
    there = signs[:, None] != 0
    satisfied = np.where(there, distance * signs[:, None], np.inf)
    return np.where(there[..., None], described, 0.0), satisfied


def _flattened(regions: Region, signs: Array) -> tuple[Region, Array]:
    """Return regions (tasks, clauses, literals) as (tasks, n)."""
    tasks = len(signs)
    arrays = {name: value.reshape(tasks, -1, *value.shape[3:]) for name, value in regions.arrays().items()}
    return Region(**arrays), signs.reshape(tasks, -1)


class GoalPolicy(BasePolicy):
    """One network for all edges; `explore` adds exploration noise."""

    def __init__(
        self, network: Network, theta: Array, view: GoalView, edges: ReachAvoid, explore: Any | None = None
    ) -> None:
        self.network, self.theta, self.view, self.edges, self.explore = network, theta, view, edges, explore

    def act(self, now: Moment, memory: None) -> tuple[Array, None]:
        actions = self.network.forward(self.theta, self.view.inputs(now.states, self.edges))
        return actions if self.explore is None else self.explore(actions), None


# --- learning --------------------------------------------------------------------------------------------


class Learner(ppo.PolicyLearner):
    """The policy and its value function."""

    def __init__(
        self,
        task: EdgeTask,
        view: GoalView,
        settings: Settings,
        rng: np.random.Generator,
        paths: Sequence[Sequence[int]],
    ) -> None:
        super().__init__(view.size(len(task.environment.state_names)), task, settings, rng)
        self.view, self.paths = view, paths

    def inputs(self, task: EdgeTask) -> Callable[[Array, Levels], Array]:
        return lambda states, _: self.view.inputs(states, task.edges)

    def policy(self, task: EdgeTask, explore: ppo.Noise | None = None) -> GoalPolicy:
        return GoalPolicy(self.model.actor, self.parameters["actor"], self.view, task.edges, explore)

    def check(self, task: EdgeTask) -> tuple[list[Bools], int]:
        """Return successes without exploration on every index's best path, and the steps this took.

        Where a specification branches, edges of the other paths may be out of reach.
        """
        success, steps = super().check(task)
        return [on_best_paths(success[0], self.paths)], steps


def on_best_paths(success: Bools, paths: Sequence[Sequence[int]]) -> Bools:
    """Return the rows of successes (indices · edges, rollouts) that are on the best path of their index.

    `paths` are edges by number. A path is as good as its worst edge; on a tie, the first one is chosen.
    """
    edges = 1 + max(edge for path in paths for edge in path)
    rates = success.mean(axis=-1).reshape(-1, edges)
    best = [max(paths, key=lambda path: rate[list(path)].min()) for rate in rates]
    return success[[n * edges + edge for n, path in enumerate(best) for edge in sorted(path)]]


def train(training: Training, settings: Settings) -> Model:
    """Train one policy on all edges of all training tasks."""
    tasks = training.tasks
    settings = replace(settings, steps=settings.steps or training.teacher_steps())
    rng = stream("baseline", "ppo-goal", tasks.name, training.split.key, training.seed)
    task, view = EdgeTask(tasks.reach_avoid(), tasks.reward.depth), GoalView.of_tasks(tasks, settings)
    paths = [[tasks.edges.index(edge) for edge in path] for path in tasks.graph.paths()]
    learner = Learner(task, view, settings, rng, paths)
    found = ppo.learn(learner, task, lambda: ppo.some_of(task, settings.tasks, rng), settings, training.progress)
    learner.parameters.update(found.tensors)
    records, taken = measure(learner, tasks, settings, rng)
    share = round((found.steps + taken) / len(tasks.edges))
    metadata = {
        "view": {"unit": view.unit, "targets": view.targets, "obstacles": view.obstacles},
        "observe_state": view.observe_state,
        "network": asdict(learner.model.actor),
        "records": stored_records(records),
        "diverged": found.diverged,
    }
    tensors = {**found.tensors, "center": view.center, "half": view.half}
    return Model(tensors, metadata, dict.fromkeys(tasks.edge_names, share), found.metrics)


def measure(
    learner: Learner, tasks: Tasks, settings: Settings, rng: np.random.Generator
) -> tuple[dict[str, EdgeRecord], int]:
    """Return how the policy does on every edge at every training index, for the guard, and the steps this took."""
    task = EdgeTask(tasks.reach_avoid())
    outcome = rollout(task, learner.policy(task), draw(task, settings.record_rollouts, rng))
    shape = (len(tasks.indices), len(tasks.edges))
    success, returns = (x.mean(axis=-1).reshape(shape).T for x in (outcome.success, outcome.returns))
    return records_of(tasks.indices, tasks.edge_names, success, returns), outcome.steps


# --- acting ----------------------------------------------------------------------------------------------


def policy(model: Model, tasks: Tasks) -> Policy | Composed:
    """Return the policy on the regions of the given tasks, each along the path that the guard takes at its index."""
    if model.metadata["diverged"]:
        return Stopped(tasks.environment.action_dim)
    meta, tensors = model.metadata, model.tensors
    view = GoalView(tensors["center"], tensors["half"], **meta["view"], observe_state=meta["observe_state"])
    network, records = Network(**meta["network"]), read_records(meta["records"])

    def stage_policy(rows: Sequence[int], names: Sequence[str]) -> Policy:
        edges = tasks.ground([(tasks.indices[row], name) for row, name in zip(rows, names, strict=True)])
        return GoalPolicy(network, tensors["actor"], view, edges)

    return Composed([choose_path(tasks.graph, records, index) for index in tasks.indices], stage_policy)


LOOK: dict[str, Any] = {"color": "#EE99CC", "marker": "<", "hatch": "xx.", "dashes": (6.0, 1.5), "order": 22}
KIND: dict[str, Any] = {"per_family": True, "version": 2, "minutes": 240, "evaluation_factor": 3.0}
METHOD = Method(
    "ppo-goal", "PPO (regions)", Settings, train, policy, ("teachers",), teachers_for_budget, **KIND, **LOOK
)
