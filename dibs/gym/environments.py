"""Gymnasium environments: one reach-avoid edge of a family, or a whole specification, at one index.

    gymnasium.make("dibs.gym:dibs/Car2D-v0", family="mine.yaml", index=3, edge="a>b")
    gymnasium.make_vec("dibs.gym:dibs/Car2D-v0", num_envs=64, benchmark="mine.yaml:short")

There is one id per registered environment. What a task means is defined in `dibs.simulation`. The classes here
translate between its `Episodes` and Gymnasium's conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

from dibs import registry
from dibs.envs import Array, Environment, check_array, sample_noise
from dibs.errors import DibsError, unknown
from dibs.families import SUFFIXES, Family, Tasks, descriptions, get_benchmark, get_family
from dibs.simulation import Bools, EdgeTask, Episodes, Rows, SpecTask
from dibs.spectrl import Edge, parse, regions_of

if TYPE_CHECKING:
    from dibs.drawing.film import Frame, Scene

# --- tasks ------------------------------------------------------------------------------------------------


class SingleTask(NamedTuple):
    """What an environment runs: one edge or one specification, at one index."""

    task: EdgeTask | SpecTask
    grounded: Tasks
    edges: tuple[Edge, ...]
    title: str

    def scene(self) -> Scene:
        """Return the drawing of the task."""
        from dibs.drawing.film import Scene  # matplotlib takes half a second, and most environments draw nothing

        start = self.task.edges if isinstance(self.task, EdgeTask) else self.grounded
        drawn = replace(self.grounded, start_center=start.start_center, start_half=start.start_half)
        return Scene(drawn, self.title, edges=self.edges)


def make_task(
    family: str | Family | None = None,
    index: int = 0,
    edge: str | None = None,
    benchmark: str | None = None,
    specification: str | None = None,
    environment: str | None = None,
) -> SingleTask:
    """Build the task of an environment.

    Give a `family` (a name, the path of a YAML file, or a `Family`) or a `benchmark` (an id, or FILE.yaml:ID). The
    task is one `edge` of the family at `index`, or without `edge` a whole specification: the benchmark's, the family's
    own, or `specification` over the family's regions. A family of another environment than `environment` is an error.
    """
    if environment is not None and environment not in registry.names("environments"):
        raise registry.unregistered("environment", environment, registry.names("environments"))
    if benchmark is not None:
        if (family, edge, specification) != (None, None, None):
            raise DibsError(
                f"benchmark '{benchmark}' names its family and specification; leave out family, edge and specification"
            )
        found = get_benchmark(benchmark)
        chosen, specification = found.family, found.specification
    elif family is not None:
        chosen = family if isinstance(family, Family) else get_family(family)
    else:
        raise DibsError(
            "nothing to run: pass family= (a name, the path of a YAML file, or a Family) "
            "or benchmark= (an id, or FILE.yaml:ID)"
        )
    kind = chosen.environment_model.name
    if environment not in (None, kind):
        raise DibsError(f"{chosen.name} is a family of {kind}, not of {environment}: make dibs/{kind}-v0")
    for region in sorted(regions_of(parse(specification)) - set(chosen.regions)) if specification else ():
        raise unknown(f"region of {chosen.name}", region, chosen.regions)
    grounded = chosen.tasks([index], specification or "")
    if edge is None:
        return SingleTask(SpecTask(grounded), grounded, grounded.edges, f"{benchmark or chosen.name}  i = {index}")
    task = EdgeTask(grounded.reach_avoid(edges=[edge]))
    picked = tuple(e for e in grounded.edges if e.name == edge)
    return SingleTask(task, grounded, picked, f"{chosen.name}  i = {index}  {edge}")


# --- what all adapters share ------------------------------------------------------------------------------


class EpisodeBatch(Episodes):
    """Episodes with checked input. It draws what is random and, if asked to, keeps the states so far."""

    trail: Array | None  # (n, horizon + 1, dim): states of the running episodes

    def __init__(self, task: EdgeTask | SpecTask, n: int, keep_trail: bool = False) -> None:
        if n < 1:
            raise DibsError(f"number of environments: expected at least 1, found {n}")
        super().__init__(task, n)
        self.dim, self.actions = len(task.environment.state_names), task.environment.action_dim
        self.trail = np.zeros((n, task.horizon + 1, self.dim), dtype=np.float32) if keep_trail else None

    def reset(self, rng: np.random.Generator, options: Mapping[str, Any] | None) -> None:
        """Start all episodes, in states that are drawn or given as `options["state"]`."""
        self.begin(self._initial(rng, self.n) if not options else self._given(options))
        if self.trail is not None:
            self.trail[:, 0] = self.states

    def renew(self, rows: Rows, rng: np.random.Generator) -> None:
        """Start the episodes in `rows` again."""
        self.restart(rows, self._initial(rng, len(rows)))
        if self.trail is not None:
            self.trail[rows, 0] = self.states[rows]

    def _initial(self, rng: np.random.Generator, count: int) -> Array:
        states: Array = self.task.initial(rng.random((count, self.dim), dtype=np.float32)[None])[0]
        return states

    def _given(self, options: Mapping[str, Any]) -> Array:
        for name in options:
            if name != "state":
                raise unknown("reset option", name, ["state"])
        states = check_array("reset option 'state'", options["state"], self.dim)
        if states.ndim > 2 or (states.ndim == 2 and len(states) not in (1, self.n)):
            raise DibsError(f"reset option 'state': expected {(self.n, self.dim)}, found {states.shape}")
        return np.array(np.broadcast_to(states, (self.n, self.dim)), dtype=np.float32)

    def move(self, actions: Array, rng: np.random.Generator) -> tuple[Array, Bools, Bools]:
        """Move every episode one step; return reward, terminated and truncated (n,)."""
        if not hasattr(self, "progress"):
            raise DibsError("step: no episode has begun; call reset() first")
        result = self.step(actions, sample_noise(rng, (self.n, self.dim)))
        if self.trail is not None:
            self.trail[np.arange(self.n), np.minimum(self.steps, self.task.horizon)] = self.states
        return result

    def observed(self, rows: Rows | None = None) -> Array:
        """Return what a policy sees (n, inputs) of all episodes or of some, as a new array."""
        states = self.states if rows is None else self.states[rows]
        return self.task.environment.observe(states).astype(np.float32)

    def info(self) -> dict[str, npt.NDArray[Any]]:
        """Return one new array (n,) per key; `success` is always among them."""
        success, bad = self.success, ~self.progress.safe[0]
        if isinstance(self.task, EdgeTask):
            return {"success": success, "unsafe": bad}
        stage = self.progress.stage[0].copy()
        return {"stage": stage, "satisfied": success, "violated": bad, "success": success.copy()}

    def frame(self, scene: Scene, row: int) -> Frame:
        """Draw one episode so far."""
        assert self.trail is not None
        info = {key: values[row] for key, values in self.info().items()}
        bad = info.get("unsafe") or info.get("violated")
        steps, horizon = int(self.steps[row]), self.task.horizon
        stage = f"stage {info['stage']}   " if "stage" in info else ""
        return scene.paint(
            self.trail[row, : min(steps, horizon) + 1],
            "success" if info["success"] else "unsafe" if bad else "running",
            f"{stage}step {steps} / {horizon}",
        )


def checked_actions(actions: npt.ArrayLike, shape: tuple[int, ...]) -> Array:
    """Return actions as float32, or say what is wrong with them."""
    array = check_array("action", actions, shape[-1])
    if array.shape != shape:
        raise DibsError(f"action: expected shape {shape}, found {array.shape}")
    return array.astype(np.float32, copy=False)


def spaces_of(environment: Environment) -> tuple[spaces.Box, spaces.Box]:
    """Return the observation and action space; observations that are not the states have no bounds."""
    low, high = (np.asarray(bound, dtype=np.float32) for bound in environment.bounds)
    if not environment.observes_states:
        low = np.full(environment.observation_dim, -np.inf, dtype=np.float32)
        high = -low
    return spaces.Box(low, high), spaces.Box(-1.0, 1.0, (environment.action_dim,))


# --- Gymnasium's conventions ------------------------------------------------------------------------------


class TaskEnv(gymnasium.Env[npt.NDArray[Any], npt.NDArray[Any]]):
    """One environment. See `make_task` for the arguments."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 8}  # type: ignore[misc]

    def __init__(self, family: str | Family | None = None, *, render_mode: str | None = None, **task: Any) -> None:
        self.render_mode = _checked_mode(render_mode)
        single = make_task(family, **task)
        self._scene = None if render_mode is None else single.scene()
        self.batch = EpisodeBatch(single.task, 1, keep_trail=render_mode is not None)
        self.observation_space, self.action_space = spaces_of(single.task.environment)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start an episode; options may contain the initial `state`."""
        super().reset(seed=seed)
        self.batch.reset(self.np_random, options)
        return self.batch.observed()[0], self._info()

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Take one step."""
        actions = checked_actions(action, (self.batch.actions,))[None]
        reward, terminated, truncated = self.batch.move(actions, self.np_random)
        return self.batch.observed()[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), self._info()

    def render(self) -> Frame | None:
        """Draw the episode so far."""
        return None if self._scene is None else self.batch.frame(self._scene, 0)

    @property
    def state(self) -> Array:
        """The current state (dim,): observations may not show all of it, and policies switch edges by it."""
        return self.batch.states[0].copy()

    def _info(self) -> dict[str, Any]:
        return {key: values[0].item() for key, values in self.batch.info().items()}


class TaskVectorEnv(gymnasium.vector.VectorEnv[Array, Array, npt.NDArray[Any]]):
    """Many environments in one array; an episode that ends starts again within the same step.

    See `make_task` for the arguments.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (declared so in the base class)
        **TaskEnv.metadata,
        "autoreset_mode": AutoresetMode.SAME_STEP,
    }

    def __init__(
        self, num_envs: int = 1, family: str | Family | None = None, *, render_mode: str | None = None, **task: Any
    ) -> None:
        self.render_mode = _checked_mode(render_mode)
        single = make_task(family, **task)
        self._scene = None if render_mode is None else single.scene()
        self.batch = EpisodeBatch(single.task, num_envs, keep_trail=render_mode is not None)
        self.num_envs = num_envs
        self.single_observation_space, self.single_action_space = spaces_of(single.task.environment)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start all episodes; options may contain the initial `state`, one for all or one each."""
        super().reset(seed=seed)
        self.batch.reset(self.np_random, options)
        return self.batch.observed(), self._info()

    def step(
        self, actions: Array
    ) -> tuple[Array, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        """Take one step in every environment; `final_obs` and `final_info` describe episodes that ended."""
        actions = checked_actions(actions, (self.num_envs, self.batch.actions))
        reward, terminated, truncated = self.batch.move(actions, self.np_random)
        finished = terminated | truncated
        rows = np.flatnonzero(finished)
        final: dict[str, Any] = {}
        if len(rows):
            last = np.full(self.num_envs, None, dtype=object)
            for row, observed in zip(rows, self.batch.observed(rows), strict=True):
                last[row] = observed
            final = {"final_obs": last, "_final_obs": finished.copy()}
            final |= {"final_info": self._info(finished), "_final_info": finished.copy()}
            self.batch.renew(rows, self.np_random)
        return self.batch.observed(), reward.astype(np.float64), terminated, truncated, self._info() | final

    def render(self) -> tuple[Frame, ...] | None:
        """Draw every episode so far, one frame each."""
        if self._scene is None:
            return None
        return tuple(self.batch.frame(self._scene, row) for row in range(self.num_envs))

    def _info(self, mask: Bools | None = None) -> dict[str, Any]:
        """Return the info as Gymnasium does: an array per key, and under `_key` which entries count."""
        mask = np.ones(self.num_envs, dtype=bool) if mask is None else mask
        info: dict[str, Any] = {}
        for key, values in self.batch.info().items():
            info[key], info[f"_{key}"] = np.where(mask, values, np.zeros_like(values)), mask.copy()
        return info


def _checked_mode(render_mode: str | None) -> str | None:
    if render_mode not in (None, "rgb_array"):
        raise unknown("render mode", render_mode, ["rgb_array"])
    return render_mode


# --- how to get one ---------------------------------------------------------------------------------------


def make(task: str | Family, index: int = 0, **kwargs: Any) -> TaskEnv:
    """Return the environment of a family or benchmark, each by name or YAML file, without a Gymnasium id.

    It runs the whole specification, or one `edge` if given; see `make_task` for the other keyword arguments.
    """
    return TaskEnv(**_named(task), index=index, **kwargs)


def make_vec(task: str | Family, num_envs: int = 1, index: int = 0, **kwargs: Any) -> TaskVectorEnv:
    """Return `num_envs` environments in one array; see `make`."""
    return TaskVectorEnv(num_envs, **_named(task), index=index, **kwargs)


def _named(task: str | Family) -> dict[str, Any]:
    """Return the argument that names a family or a benchmark."""
    is_family = isinstance(task, Family) or task.endswith(SUFFIXES) or task in descriptions()
    return {"family" if is_family else "benchmark": task}


def register() -> None:
    """Register the id `dibs/NAME-v0` of every environment with Gymnasium.

    Importing `dibs.gym` calls this. Call it again after `registry.register("environments", ...)`.
    """
    for name in registry.names("environments"):
        if f"dibs/{name}-v0" not in gymnasium.registry:
            gymnasium.register(
                id=f"dibs/{name}-v0",
                entry_point="dibs.gym.environments:TaskEnv",
                vector_entry_point="dibs.gym.environments:TaskVectorEnv",
                kwargs={"environment": name},
            )
