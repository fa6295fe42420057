"""Stable-Baselines3 adapter: thousands of copies of one reach-avoid task in one array.

A step is one chain of numpy calls over all environments. Python loops only over environments whose episode ended.
`EpisodeRecorder` keeps whole episodes for the teacher's buffers (paper, section 4).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from gymnasium.utils import seeding
from stable_baselines3.common.vec_env import VecEnv
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvStepReturn

from dibs.envs import Array, check_array
from dibs.errors import DibsError
from dibs.families import ReachAvoid
from dibs.gym.environments import EpisodeBatch, checked_actions, spaces_of
from dibs.simulation import Bools, EdgeTask, Rows


class ReachAvoidVecEnv(VecEnv):
    """`n_envs` copies of one reach-avoid task.

    An episode ends when the target is reached or, as `TimeLimit.truncated`, at the horizon. The info of an episode that
    ended has `terminal_observation`, `TimeLimit.truncated`, `is_success` (reached, and never unsafe) and, unless
    `episode_info` is off, `episode`: its return, length and time. All other infos are empty.
    """

    render_mode: str | None = None

    def __init__(
        self,
        task: ReachAvoid,
        n_envs: int,
        *,
        rng: np.random.Generator | None = None,
        scale: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
        episode_info: bool = True,
        recorder: EpisodeRecorder | None = None,
    ) -> None:
        """Prepare the environments; `reset` starts them.

        `rng` draws noise and initial states until `seed` is called. With `scale` = (center, half), observations are
        (observation - center) / half.
        """
        if task.tasks != 1:
            raise DibsError(
                f"an environment runs one reach-avoid task, found {task.tasks}: {', '.join(task.names)}; "
                "take one of them with .take([i])"
            )
        self.batch = EpisodeBatch(EdgeTask(task), n_envs, keep_trail=recorder is not None)
        self.recorder = recorder
        self._rng = rng if rng is not None else seeding.np_random()[0]
        self._scale = None if scale is None else _checked_scale(scale, task.environment.observation_dim)
        self._episode_info = episode_info
        self._created = time.time()
        self._returns = np.zeros(n_envs)
        self._empty: list[dict[str, Any]] = [{} for _ in range(n_envs)]
        space, action_space = spaces_of(task.environment)
        if self._scale is not None:
            space = spaces.Box(self._scaled(space.low), self._scaled(space.high))
        super().__init__(n_envs, space, action_space)

    def reset(self) -> npt.NDArray[Any]:
        """Start all episodes."""
        if self._seeds[0] is not None:
            self._rng = seeding.np_random(self._seeds[0])[0]
        self.batch.reset(self._rng, self._joint_options())
        self._reset_seeds()
        self._reset_options()
        self._returns[:] = 0.0
        return self._scaled(self.batch.observed())

    def _joint_options(self) -> dict[str, Any]:
        """Return the reset options of all environments (`set_options`), one array per option."""
        names = set().union(*self._options)
        if any(len(options) != len(names) for options in self._options):
            raise DibsError(f"reset options: expected {sorted(names)} for every environment or for none")
        return {name: np.array([options[name] for options in self._options]) for name in names}

    def step_async(self, actions: npt.NDArray[Any]) -> None:
        """Take the actions (n_envs, m) of the step that `step_wait` makes."""
        self._actions = checked_actions(actions, (self.num_envs, self.batch.actions))

    def step_wait(self) -> VecEnvStepReturn:
        """Make the step; episodes that end start again at once."""
        batch = self.batch
        reward, terminated, truncated = batch.move(self._actions, self._rng)
        self._returns += reward
        finished = terminated | truncated
        success = batch.success
        infos = self._blank_infos()
        rows = np.flatnonzero(finished)
        if len(rows):
            self._fill_infos(infos, rows, truncated, success)
            if self.recorder is not None:
                assert batch.trail is not None
                self.recorder.keep(batch.trail[rows], batch.steps[rows] + 1, success[rows])
            batch.renew(rows, self._rng)
            self._returns[rows] = 0.0
        return self._scaled(batch.observed()), reward.astype(np.float32), finished, infos

    def _blank_infos(self) -> list[dict[str, Any]]:
        """Return one empty dictionary per environment. They are reused until a caller writes into one."""
        if any(self._empty):
            self._empty = [{} for _ in range(self.num_envs)]
        return self._empty.copy()

    def _fill_infos(self, infos: list[dict[str, Any]], rows: Rows, truncated: Bools, success: Bools) -> None:
        last = self._scaled(self.batch.observed(rows))
        outcomes = zip(rows.tolist(), last, truncated[rows].tolist(), success[rows].tolist(), strict=True)
        for row, state, cut, succeeded in outcomes:
            infos[row] = {"terminal_observation": state, "TimeLimit.truncated": cut, "is_success": succeeded}
        if self._episode_info:
            returns, lengths = np.round(self._returns[rows], 6).tolist(), self.batch.steps[rows].tolist()
            now = round(time.time() - self._created, 6)
            for row, r, length in zip(rows.tolist(), returns, lengths, strict=True):
                infos[row]["episode"] = {"r": r, "l": length, "t": now}

    def _scaled(self, observed: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        if self._scale is None:
            return observed
        center, half = self._scale
        return np.asarray((observed - center) / half, dtype=np.float32)

    def saved(self) -> dict[str, Any]:
        """Return what `restore` needs to go on with the running episodes."""
        batch = self.batch
        episodes = {"states": batch.states, "steps": batch.steps, "returns": self._returns, "trail": batch.trail}
        progress = {"alive": batch.progress.alive, "safe": batch.progress.safe}
        return {**episodes, **progress, "rng": self._rng.bit_generator.state}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Go on with saved episodes instead of a reset."""
        self.batch.begin(saved["states"])
        self.batch.steps, self.batch.trail = saved["steps"], saved["trail"]
        self.batch.progress = self.batch.progress._replace(alive=saved["alive"], safe=saved["safe"])
        self._returns = saved["returns"]
        self._rng = seeding.np_random(0)[0]
        self._rng.bit_generator.state = saved["rng"]
        self._reset_seeds()

    def close(self) -> None:
        """Do nothing: there is nothing to release."""

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        """Return an attribute, the same for every environment."""
        value = getattr(self, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        """Set an attribute of all environments; they share it."""
        if len(list(self._get_indices(indices))) != self.num_envs:
            raise DibsError(f"set_attr '{attr_name}': the environments share their attributes; leave out indices")
        setattr(self, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Refuse: there are no single environments whose methods could be called."""
        raise DibsError(f"env_method '{method_name}': the environments are rows of one array and have no methods")

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """Return False: a row of an array cannot be wrapped."""
        return [False for _ in self._get_indices(indices)]


def _checked_scale(scale: Sequence[npt.ArrayLike], dim: int) -> tuple[npt.NDArray[np.float32], ...]:
    center, half = (
        np.array(
            np.broadcast_to(check_array(f"scale {name}", np.atleast_1d(values), np.size(values)), (dim,)),
            np.float32,
        )
        for name, values in zip(("center", "half"), scale, strict=True)
    )
    if not (half > 0).all():
        raise DibsError(f"scale half: expected numbers above 0, found {half.tolist()}")
    return center, half


class FinishedEpisodes(NamedTuple):
    """Whole episodes, oldest first."""

    states: npt.NDArray[np.float32]  # (episodes, horizon + 1, dim), zero after the last state
    length: npt.NDArray[np.int32]  # (episodes,): states of each, the first and the last included
    success: Bools  # (episodes,)


class EpisodeRecorder:
    """Keeps the last `capacity` episodes that ended until `drain` hands them over."""

    def __init__(self, capacity: int = 4096) -> None:
        self.capacity = capacity
        self._kept: list[FinishedEpisodes] = []

    def __len__(self) -> int:
        return sum(len(part.length) for part in self._kept)

    def keep(self, states: Array, length: Rows, success: Bools) -> None:
        """Take episodes that ended: `states` (episodes, time, dim), of which the first `length` mean something."""
        inside = (np.arange(states.shape[1]) < length[:, None])[..., None]
        found = FinishedEpisodes(np.where(inside, states, np.float32(0.0)), length.astype(np.int32), success)
        self._kept.append(FinishedEpisodes._make(part[-self.capacity :] for part in found))
        while len(self) - len(self._kept[0].length) >= self.capacity:
            del self._kept[0]

    def drain(self) -> FinishedEpisodes | None:
        """Hand over the episodes that ended since the last call, oldest first; None: no episode did."""
        kept, self._kept = self._kept, []
        if not kept:
            return None
        return FinishedEpisodes._make(np.concatenate(parts)[-self.capacity :] for parts in zip(*kept, strict=True))

    def saved(self) -> list[Any]:
        """Return what `restore` needs."""
        return [list(part) for part in self._kept]

    def restore(self, saved: Sequence[Any]) -> None:
        """Put the recorder into a saved state."""
        self._kept = [FinishedEpisodes(*part) for part in saved]
