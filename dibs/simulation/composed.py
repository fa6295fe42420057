"""Edge policies composed along a path of the reach-avoid graph (paper, sections 3.2 and 5.1).

A rollout follows its path edge by edge: it acts with an edge's policy until it enters the edge's target, then goes on
with the next edge's. An edge has the family's horizon; a rollout that has not arrived by then ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dibs.envs import Array
from dibs.families import Tasks
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling
from dibs.simulation.loop import BasePolicy, Draws, Moment, NetworkPolicy, Policy, StateRecorder, rollout
from dibs.simulation.specifications import SpecTask
from dibs.simulation.tasks import EdgeTask, Rewards, Rows

Path = tuple[str, ...]


class Recorded(NamedTuple):
    """Recorded rollouts of several tasks."""

    states: Array  # (tasks, rollouts, time, dim); what follows the first `lengths` states means nothing
    lengths: Rows  # (tasks, rollouts): number of recorded states


class Composed:
    """One path of edges per task, and the policies that follow them."""

    rewards: Rewards | None = None
    """Edge policies do not read rewards."""

    def __init__(self, paths: Sequence[Path], stage_policy: Callable[[Sequence[int], Sequence[str]], Policy]) -> None:
        """`stage_policy(rows, names)` returns the policy for edge names[n] of the task in row rows[n]."""
        self.paths, self.stage_policy = tuple(paths), stage_policy

    def follow(self, tasks: Tasks, draws: Draws) -> Recorded:
        """Run all tasks along their paths."""
        shape, dim = draws.starts.shape[:2], draws.starts.shape[2]
        longest = max(len(path) for path in self.paths)
        if all(len(path) == longest for path in self.paths):
            return self._follow(tasks, range(len(self.paths)), longest, draws)
        states = np.zeros((*shape, longest * tasks.horizon + 1, dim), dtype=draws.starts.dtype)
        lengths = np.ones(shape, dtype=np.intp)
        for stages in sorted({len(path) for path in self.paths}):
            rows = [row for row, path in enumerate(self.paths) if len(path) == stages]
            part = Draws(draws.starts[rows], draws.noise[:, rows])
            found = self._follow(tasks, rows, stages, part)
            states[rows, :, : found.states.shape[2]] = found.states
            lengths[rows] = found.lengths
        return Recorded(states, lengths)

    def _follow(self, tasks: Tasks, rows: Sequence[int], stages: int, draws: Draws) -> Recorded:
        """Run tasks whose paths have the same length."""
        horizon = tasks.horizon
        count, rollouts, dim = draws.starts.shape
        path = np.zeros((count, rollouts, stages * horizon + 1, dim), dtype=draws.starts.dtype)
        time = np.zeros((count, rollouts), dtype=np.intp)
        here = path[:, :, 0] = draws.starts
        going = None  # episodes that have entered every target so far
        # One index per state: several times faster than an index per axis.
        flat = path.reshape(-1, dim)
        first = np.arange(count * rollouts) * path.shape[2]  # where each episode's states begin
        for stage in range(stages):
            names = [self.paths[row][stage] for row in rows]
            task = EdgeTask(tasks.ground([(tasks.indices[row], name) for row, name in zip(rows, names, strict=True)]))
            # As in the semantics of `;`, a state that ended one edge does not end the next one as well.
            moving = task.target_distance(here) < 0.0 if going is None else going
            recorder = StateRecorder()
            noise = draws.noise[stage * horizon : (stage + 1) * horizon]
            outcome = rollout(task, self.stage_policy(rows, names), Draws(here, noise), recorder=recorder, alive=moving)
            recorded = recorder.states()  # (time, tasks, rollouts, dim)
            taken = outcome.lengths - 1
            last = first + time.reshape(-1)
            for t in range(1, len(recorded)):
                on = np.flatnonzero(t <= taken)
                flat[last[on] + t] = recorded[t].reshape(-1, dim)[on]
            time += taken
            here = flat[first + time.reshape(-1)].reshape(count, rollouts, dim)
            arrived = ~moving if going is None else np.zeros_like(moving)
            going = arrived | (moving & (task.target_distance(here) >= 0.0))
        return Recorded(path, time + 1)


class PerTask(BasePolicy):
    """Several policies, each for some of the tasks of a batch."""

    def __init__(self, rows: Sequence[Rows], policies: Sequence[Policy]) -> None:
        """`policies[n]` acts in the tasks `rows[n]`; together these are all tasks."""
        self.rows, self.policies = rows, policies
        self.stops = any(policy.stops for policy in policies)

    def begin(self, shape: tuple[int, ...]) -> list[Any]:
        return [
            policy.begin((*shape[:-2], len(rows), shape[-1]))
            for rows, policy in zip(self.rows, self.policies, strict=True)
        ]

    def act(self, now: Moment, memory: list[Any]) -> tuple[Array, list[Any]]:
        actions, after = None, []
        for rows, policy, own in zip(self.rows, self.policies, memory, strict=True):
            reward = None if now.reward is None else now.reward[..., rows, :]
            part = Moment(
                now.observation[..., rows, :, :],
                now.states[..., rows, :, :],
                reward,
                now.stage[..., rows, :],
                now.alive[..., rows, :],
            )
            found, own = policy.act(part, own)
            if actions is None:
                actions = np.empty((*now.states.shape[:-1], found.shape[-1]), dtype=found.dtype)
            actions[..., rows, :, :] = found
            after.append(own)
        assert actions is not None
        return actions, after


def network_paths(
    network: Network, scaling: Scaling, edges: Sequence[str], actors: Array, paths: Sequence[Path]
) -> Composed:
    """Compose actors (tasks, edges, size), one network per task and edge."""
    position = {name: e for e, name in enumerate(edges)}

    def stage_policy(rows: Sequence[int], names: Sequence[str]) -> Policy:
        chosen = np.array([position[name] for name in names])
        theta = np.stack([actors[row, e] for row, e in zip(rows, chosen, strict=True)]).astype(np.float32)
        return NetworkPolicy(network, network.fold(theta, scaling.center[chosen], scaling.half[chosen]))

    return Composed(paths, stage_policy)


def record(policy: Policy | Composed, task: SpecTask, draws: Draws) -> Recorded:
    """Run any policy on whole specifications and return what was visited."""
    if isinstance(policy, Composed):
        return policy.follow(task.grounded, draws)
    recorder = StateRecorder()
    outcome = rollout(task, policy, draws, recorder=recorder)
    states, lengths = recorder.states(axis=-2), outcome.lengths
    # A policy that has diverged leaves states that are no numbers: they count as never visited.
    finite: Any = np.isfinite(states).all(axis=-1)
    if not finite.all():
        states = np.where(finite[..., None], states, 0.0)
        lengths = np.minimum(lengths, np.where(finite.all(axis=-1), lengths, finite.argmin(axis=-1)))
    return Recorded(states, lengths)
