"""The policy of one index: use it, measure it, film it, or take it away as a file that needs no other.

    policy = dibs.load("policy.safetensors")
    env = policy.make_env()
    observation, info = env.reset()
    action, state = policy.predict(observation)            # at the start of an episode
    action, state = policy.predict(observation, state)     # from then on

A file holds the model of any registered method, the family's description and the index.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dibs import gym
from dibs.drawing.regions import Trajectory
from dibs.drawing.rollouts import SUFFIXES, write_rollouts
from dibs.envs import Array, check_array
from dibs.errors import DibsError
from dibs.evaluation.evaluate import count_satisfied, role_of
from dibs.families import Benchmark, Split, Tasks, load_family
from dibs.files import check_suffix, read_tensors, write_tensors
from dibs.methods import Method, Model, get_method
from dibs.provenance import Origin, check_kind, check_origin
from dibs.seeding import stream
from dibs.simulation import Bools, EdgeTask, Levels, Moment, Policy, Progress, Rewards, SpecTask, draw
from dibs.simulation.composed import Composed, record
from dibs.spectrl import regions_of, satisfied
from dibs.stages import model_versions
from dibs.statistics import wilson
from dibs.templates.template import CLASSES, evolution_of


@dataclass(frozen=True)
class Rate:
    """Share of satisfying rollouts with its 95% Wilson interval."""

    index: int
    role: str
    rate: float
    lower: float
    upper: float
    rollouts: int

    def __repr__(self) -> str:
        interval = f"[{self.lower:.3f}, {self.upper:.3f}]"
        return f"index {self.index} ({self.role}): {self.rate:.3f} {interval} of {self.rollouts} rollouts"


class PolicyState(NamedTuple):
    """What `predict` returns as state: how far each of n episodes has come."""

    stage: Levels  # (n,): completed edges of a composed policy's path, or stages of the specification
    steps: Levels  # (n,): since the episode began
    progress: Progress | None  # (1, n): in the specification, for policies that are not composed of edges
    own: tuple[Any, ...]  # (n): what the method's policy remembers; None: nothing


class IndexPolicy:
    """A method's policy at one index of a benchmark."""

    def __init__(
        self,
        method: Method,
        model: Model,
        benchmark: Benchmark,
        split: Split,
        seed: int,
        index: int,
        made_from: str = "",
    ) -> None:
        """`made_from` is the id of the model."""
        benchmark.family.check_index(index, beyond=True)
        self.method, self.model, self.benchmark, self.split, self.seed = method, model, benchmark, split, seed
        self.index, self.family, self.made_from = index, benchmark.family, made_from
        self.tasks: Tasks = self.family.tasks([index], benchmark.specification)
        self.policy: Policy | Composed = method.policy(model, self.tasks)
        template = evolution_of(model, method.name) if model.metadata.get("class") in CLASSES else None
        if template is not None and not all(template.holds(index, path) for path in self.paths):
            raise DibsError(f"index {index}: the template's parameters run away before it; it does not extend that far")

    def __repr__(self) -> str:
        return f"IndexPolicy({self.method.name}, {self.benchmark.id}, index {self.index} ({self.role}))"

    @property
    def role(self) -> str:
        """train, unseen, beyond the family's last index, or far beyond it."""
        return role_of(self.index, self.family.last_index, self.split.indices)

    @property
    def paths(self) -> tuple[tuple[str, ...], ...]:
        """The path of edges that it follows, if it is composed of edge policies."""
        return self.policy.paths if isinstance(self.policy, Composed) else ()

    # --- acting --------------------------------------------------------------------------------------

    def predict(
        self,
        observation: Any,
        state: PolicyState | None = None,
        episode_start: Any = None,
        deterministic: bool = True,
        *,
        states: Any = None,
        rewards: Any = None,
    ) -> tuple[Array, PolicyState]:
        """Return actions and the next state for one observation or a batch of them, as in Stable-Baselines3.

        The state says how far each episode has come: pass back what the last call returned. None, or `episode_start`
        (one truth value or one per observation), begins an episode. Policies are deterministic, whatever
        `deterministic` says.

        Progress depends on the environment's states, which are recovered from the observations
        (`Environment.recover`). Pass `states` if observations do not show the variables that targets constrain.
        `rewards` of the step before are read by few methods (VariBAD). By default they are computed from the states,
        as in training.
        """
        environment = self.family.environment
        given = check_array("observation", observation, environment.observation_dim).astype(np.float32)
        if given.ndim > 2:
            raise DibsError(f"observation: expected one or a batch of them, found shape {given.shape}")
        rows = np.atleast_2d(given)
        where = environment.recover(rows) if states is None else self._states(states, len(rows))
        fresh = np.ones(len(rows), dtype=bool)
        if state is not None:
            if len(state.stage) != len(rows):
                raise DibsError(f"state: is of {len(state.stage)} episodes, found {len(rows)} observations")
            fresh = np.array(np.broadcast_to(False if episode_start is None else episode_start, len(rows)), dtype=bool)
        act = self._act_composed if isinstance(self.policy, Composed) else self._act_flat
        actions, after = act(rows, where, state, fresh, rewards)
        if not np.isfinite(actions).all():
            if np.isnan(where).any():
                raise self._not_shown(where)
            raise DibsError(f"{self!r} gives up here: its action is not a number")
        return (actions[0] if given.ndim == 1 else actions), after

    def _states(self, states: Any, count: int) -> Array:
        found = np.atleast_2d(check_array("states", states, len(self.family.environment.state_names)))
        if found.shape[0] != count:
            raise DibsError(f"states: expected one per observation ({count}), found {found.shape[0]}")
        return found.astype(np.float32)

    def _not_shown(self, states: Array) -> DibsError:
        names = self.family.environment.state_names
        unknown = ", ".join(names[k] for k in np.flatnonzero(np.isnan(states).any(axis=0)))
        return DibsError(
            f"observations of {self.family.environment.name} do not show {unknown}: pass states= to predict, or define "
            "Environment.recover"
        )

    def _act_composed(
        self, observations: Array, states: Array, before: PolicyState | None, fresh: Bools, rewards: Any
    ) -> tuple[Array, PolicyState]:
        """Advance to the next edge where the current target is entered, then act with the edge's policy."""
        count = len(observations)
        stage = np.where(fresh, 0, 0 if before is None else before.stage)
        steps = np.where(fresh, 0, 0 if before is None else before.steps + 1)
        own = [None if f or before is None else before.own[n] for n, f in enumerate(fresh)]
        old = stage.copy()
        for s, target in enumerate(self._targets):
            here = np.flatnonzero(old == s)
            if s < len(self._targets) - 1 and len(here):
                inside = target.target_distance(states[None, here])[0]
                if np.isnan(inside).any():
                    raise self._not_shown(states)
                stage[here] += inside >= 0.0
        actions = np.empty((count, self.family.environment.action_dim), dtype=np.float32)
        for s, policy in enumerate(self._edge_policies):
            here = np.flatnonzero(stage == s)
            if len(here):
                mine = [own[n] if old[n] == s else None for n in here]
                actions[here], kept = _act(policy, observations[here], states[here], None, stage[here], mine)
                for n, memory in zip(here, kept, strict=True):
                    own[n] = memory
        return actions, PolicyState(stage, steps, None, tuple(own))

    def _act_flat(
        self, observations: Array, states: Array, before: PolicyState | None, fresh: Bools, rewards: Any
    ) -> tuple[Array, PolicyState]:
        """Follow the specification and act on how far each episode has come."""
        assert not isinstance(self.policy, Composed)
        task, count = self._spec_task, len(observations)
        if np.isnan(states).any():  # only the variables that the specification constrains matter
            states = np.where(self._constrained, states, np.nan_to_num(states))
            if np.isnan(states).any():
                raise self._not_shown(states)
        if before is None or before.progress is None:
            progress, steps, reward = task.begin(states[None]), np.zeros(count, dtype=np.intp), None
            own: Sequence[Any] = [None] * count
        else:
            progress, steps, own = task.advance(before.progress, states[None]), before.steps + 1, before.own
            reward = task.reward(before.progress, progress, before.steps[None])[0]
            if fresh.any():
                progress = task.restart(progress, states[None], np.flatnonzero(fresh))
                steps = np.where(fresh, 0, steps)
        if rewards is not None and reward is not None:
            reward = np.broadcast_to(np.asarray(rewards, dtype=np.float32), (count,))
        stage = progress.stage[0]
        mine = [None if new else memory for new, memory in zip(fresh, own, strict=True)]
        actions, kept = _act(self.policy, observations, states, reward, stage, mine)
        return actions, PolicyState(stage, steps, progress, tuple(kept))

    @cached_property
    def _targets(self) -> list[EdgeTask]:
        assert isinstance(self.policy, Composed)
        return [EdgeTask(self.tasks.ground([(self.index, name)])) for name in self.policy.paths[0]]

    @cached_property
    def _edge_policies(self) -> list[Policy]:
        assert isinstance(self.policy, Composed)
        return [self.policy.stage_policy([0], [name]) for name in self.policy.paths[0]]

    @cached_property
    def _spec_task(self) -> SpecTask:
        return SpecTask(self.tasks, self.policy.rewards or Rewards(bonus=1.0))

    @cached_property
    def _constrained(self) -> Bools:
        """Which state variables some region constrains."""
        regions = self.tasks.regions_at(self.index)
        parts = [regions[name].arrays() for name in regions_of(self.tasks.spec)]
        return np.any([np.isfinite(p["half_width"]) | (p["normal"] != 0.0) for p in parts], axis=0)

    def make_env(self, **kwargs: Any) -> Any:
        """Return the Gymnasium environment of this policy's specification and index."""
        return gym.make(self.family, specification=self.benchmark.specification, index=self.index, **kwargs)

    # --- measuring and showing -----------------------------------------------------------------------

    def evaluate(self, rollouts: int = 1000) -> Rate:
        """Measure the rate of rollouts that satisfy the specification, as `dibs evaluate` does."""
        where = (self.family, self.benchmark.specification, [self.index])
        won = count_satisfied(self.method, self.model, *where, rollouts, self.seed)[self.index]
        low, high = (float(bound) for bound in wilson(np.array(won), rollouts))
        return Rate(self.index, self.role, won / rollouts, low, high, rollouts)

    def episodes(self, count: int, seed: int = 0) -> list[Trajectory]:
        """Run episodes; the semantics of the specification decide which ones succeed."""
        if count < 1:
            raise DibsError(f"--episodes: expected at least 1, found {count}")
        found = []
        for n in range(count):  # each from a stream of its own: the first ones do not depend on how many follow
            drawn = draw(self._spec_task, 1, stream("episode", self.family.name, self.index, seed + n))
            run = record(self.policy, self._spec_task, drawn)
            states = run.states[0, 0, : run.lengths[0, 0]]
            won = bool(satisfied(self.tasks.spec, self.tasks.regions_at(self.index), states[None])[0])
            found.append(Trajectory(self.index, self.role, states, won))
        return found

    def film(self, path: str | Path, rollouts: int = 1, seed: int = 0) -> None:
        """Write rollouts as a film (.mp4, .gif), a drawing (.png, .pdf) or a table (.parquet)."""
        check_suffix(path, SUFFIXES)
        write_rollouts(path, self.tasks, self.episodes(rollouts, seed))

    # --- files ---------------------------------------------------------------------------------------

    @property
    def origin(self) -> Origin:
        """What its file is made from."""
        return _origin(self.method, self.benchmark, self.split, self.seed, self.index, self.made_from)

    def save(self, path: str | Path) -> None:
        """Write the policy as a file that `dibs.load` reads without anything else."""
        metadata = {
            **self.origin.metadata(),
            "role": self.role,
            "train": list(self.split.indices),
            "specification": self.benchmark.specification,
            "model": dict(self.model.metadata),
            "description": self.family.description_data(),
        }
        write_tensors(Path(path), self.model.tensors, metadata)


def _origin(method: Method, benchmark: Benchmark, split: Split, seed: int, index: int, made_from: str) -> Origin:
    identity: dict[str, Any] = {"method": method.name, "family": benchmark.family.name}
    identity |= {"benchmark": benchmark.id, "split": split.name, "seed": seed, "index": index}
    tasks = benchmark.family.tasks_digest([index], benchmark.specification)
    return Origin("policy", identity, tasks, "", model_versions(method), (made_from,) if made_from else ())


def _act(
    policy: Policy, observations: Array, states: Array, reward: Array | None, stage: Levels, own: Sequence[Any]
) -> tuple[Array, Sequence[Any]]:
    """Act in n episodes of one task, each with its own memory; None: it begins."""
    count = len(observations)
    if policy.begin((1, count)) is None:
        return _step(policy, observations, states, reward, stage, None)[0], own
    each = []  # a policy with memory acts in one episode after another
    for n, memory in enumerate(own):
        one = slice(n, n + 1)
        got = None if reward is None or memory is None else reward[one]
        known = policy.begin((1, 1)) if memory is None else memory
        each.append(_step(policy, observations[one], states[one], got, stage[one], known))
    return np.concatenate([actions for actions, _ in each]), [memory for _, memory in each]


def _step(
    policy: Policy, observations: Array, states: Array, reward: Array | None, stage: Levels, memory: Any
) -> tuple[Array, Any]:
    """Act in episodes (n,) of one task that share a memory."""
    alive = np.ones((1, len(observations)), dtype=bool)
    got = None if reward is None else reward[None]
    actions, memory = policy.act(Moment(observations[None], states[None], got, stage[None], alive), memory)
    return actions[0], memory


def load_policy(path: str | Path) -> IndexPolicy:
    """Read a policy; refuse one that was made before the environment's or the method's version was raised."""
    tensors, meta = read_tensors(path)
    check_kind(path, meta, "policy")
    if "model" not in meta or "train" not in meta:
        raise DibsError(f"{path}: written by an older version; write it again with `dibs policy`")
    family = load_family(meta["description"])
    aim = Benchmark(meta["benchmark"], family, meta["benchmark"], family.source)
    split = Split(meta["split"], tuple(meta["train"]))
    made_from = meta["inputs"][0] if meta["inputs"] else ""
    found = (aim, split, meta["seed"], meta["index"], made_from)
    method = get_method(meta["method"])
    train = "" if split.derived else f" --train {','.join(map(str, split.indices))}"
    rerun = (
        f"`dibs policy {aim.id} --method {method.name} --split {split.name}{train} --seed {meta['seed']} "
        f"--index {meta['index']}`"
    )
    check_origin(path, meta, _origin(method, *found), rerun)
    return IndexPolicy(method, Model(tensors, meta["model"], 0), *found)
