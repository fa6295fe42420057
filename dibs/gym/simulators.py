"""Gymnasium environments as environments of this package.

The state is [simulator variables | named quantities | observation] in float32. A step restores the simulator from its
variables, moves it, and computes everything else from what was read back. Nothing hidden survives a step, so the
process is Markov and deterministic; `GymnasiumEnvironment` checks this when it is built. Quantities and observation are
derived from the simulator variables: `project` computes them again.

MuJoCo and Gymnasium's classic control can be saved and restored without further help. Other environments need an object
with `read(env)`, `restore(env, vector)` and, if the environment has no `_get_obs()`, `observe(env)`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar, Protocol

import gymnasium
import numpy as np
from gymnasium import spaces

from dibs import registry
from dibs.envs import Array, Environment
from dibs.errors import DibsError, unknown

TRUSTED = ("gymnasium_robotics",)  # packages that an id `package:Name-v0` may import without permission
AXES = {"x": 0, "y": 1, "z": 2}


class Simulator(Protocol):
    """Saves and restores one Gymnasium environment. All vectors are float64."""

    env: Any
    names: list[str]
    bounds: tuple[list[float], list[float]]

    def reset(self, seed: int) -> None:
        """Begin an episode as the environment does."""

    def read(self) -> Array:
        """Return the simulator variables."""

    def restore(self, vector: Array) -> None:
        """Put the simulator into a state; everything that is not in the vector gets a fixed value."""

    def move(self, vector: Array, action: Array) -> Array:
        """Restore a state, step once, and return the simulator variables."""

    def step(self, action: Array) -> None:
        """Move one step with an action in the bounds of the action space."""

    def observe(self) -> Array:
        """Return the observation in the restored state."""


class MujocoSimulator:
    """Positions, velocities and activations of a MuJoCo model."""

    def __init__(self, env: Any) -> None:
        import mujoco

        self.whole = env
        # The mazes of gymnasium-robotics put a goal around an environment whose _get_obs takes no argument.
        env = next((getattr(env, name) for name in ("point_env", "ant_env") if hasattr(env, name)), env)
        self.env, self.model, self.data, self.mujoco = env, env.model, env.data, mujoco
        model = self.model
        positions, velocities = [""] * model.nq, [""] * model.nv
        low, high = np.full(model.nq, -np.inf), np.full(model.nq, np.inf)
        for j in range(model.njnt):
            name = mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_JOINT, j) or f"joint_{j}"
            q, v = int(model.jnt_qposadr[j]), int(model.jnt_dofadr[j])
            nq, nv = {0: (7, 6), 1: (4, 3)}.get(int(model.jnt_type[j]), (1, 1))  # free, ball, slide or hinge
            positions[q : q + nq] = [name] if nq == 1 else [f"{name}_{k}" for k in range(nq)]
            velocities[v : v + nv] = [f"{name}_velocity"] if nv == 1 else [f"{name}_velocity_{k}" for k in range(nv)]
            if nq == 1 and model.jnt_limited[j]:
                low[q], high[q] = model.jnt_range[j]
        self.names = [*positions, *velocities, *(f"activation_{k}" for k in range(model.na))]
        rest = np.full(model.nv + model.na, np.inf)
        self.bounds = (np.append(low, -rest).tolist(), np.append(high, rest).tolist())
        self._parts = model.nq, model.nq + model.nv
        # Views of the simulator's memory: reading an attribute of MjData costs more than writing through a view.
        self._views = tuple(np.asarray(getattr(self.data, name)) for name in ("qpos", "qvel", "act", "ctrl"))
        self._warm = np.asarray(self.data.qacc_warmstart)
        self.direct = hasattr(env, "frame_skip") and hasattr(env, "do_simulation")
        """Whether a step is `ctrl` and `mj_step`; `_verify` turns it off for environments that do more."""

    def reset(self, seed: int) -> None:
        self.whole.reset(seed=seed)

    def read(self) -> Array:
        return np.concatenate(self._views[:3])

    def restore(self, vector: Array) -> None:
        self._set(vector)
        self.mujoco.mj_forward(self.model, self.data)
        self.mujoco.mj_rnePostConstraint(self.model, self.data)
        self._warm[:] = 0.0

    def move(self, vector: Array, action: Array) -> Array:
        if self.direct:
            self._set(vector)  # mj_step computes the rest itself
        else:
            self.restore(vector)
        self.step(action)
        return self.read()

    def _set(self, vector: Array) -> None:
        qpos, qvel, act, ctrl = self._views
        nq, nv = self._parts
        qpos[:] = vector[:nq]
        qvel[:] = vector[nq:nv]
        if len(act):
            act[:] = vector[nv:]
        ctrl[:] = 0.0
        self._warm[:] = 0.0
        self.data.time = 0.0

    def step(self, action: Array) -> None:
        if self.direct:
            self._views[3][:] = action
            self.mujoco.mj_step(self.model, self.data, self.env.frame_skip)
        else:
            self.env.step(action)

    def observe(self) -> Array:
        found = self.env._get_obs()
        return _flat(self.env, found[0] if isinstance(found, tuple) else found)

    def place(self, kind: str, name: str) -> Array:
        """Return the position (3,) of a body, geom or site; it is updated by `restore`."""
        tables = {"body": self.data.xpos, "geom": self.data.geom_xpos, "site": self.data.site_xpos}
        objects = {"body": "mjOBJ_BODY", "geom": "mjOBJ_GEOM", "site": "mjOBJ_SITE"}
        which = getattr(self.mujoco.mjtObj, objects[kind])
        number = self.mujoco.mj_name2id(self.model, which, name)
        if number < 0:
            known = [self.mujoco.mj_id2name(self.model, which, k) for k in range(len(tables[kind]))]
            raise unknown(kind, name, [n for n in known if n])
        return np.asarray(tables[kind][number])


class CodeSimulator:
    """Any environment, with an object that reads and restores it."""

    def __init__(self, env: Any, code: Any) -> None:
        self.env, self.code = env, code
        for method in ("read", "restore"):
            if not callable(getattr(code, method, None)):
                raise DibsError(f"simulator: expected an object with {method}(env, …), found {code!r}")
        if not hasattr(code, "observe") and not hasattr(env, "_get_obs"):
            raise DibsError("simulator: the environment has no _get_obs(); the object needs observe(env) -> vector")
        dim = len(self.read())
        self.names = [f"s{k}" for k in range(dim)]
        self.bounds = ([-np.inf] * dim, [np.inf] * dim)

    def reset(self, seed: int) -> None:
        self.env.reset(seed=seed)

    def read(self) -> Array:
        return np.asarray(self.code.read(self.env), dtype=np.float64).reshape(-1)

    def restore(self, vector: Array) -> None:
        self.code.restore(self.env, np.array(vector, dtype=np.float64))

    def move(self, vector: Array, action: Array) -> Array:
        self.restore(vector)
        self.step(action)
        return self.read()

    def step(self, action: Array) -> None:
        self.env.step(action)

    def observe(self) -> Array:
        return _flat(self.env, self.code.observe(self.env) if hasattr(self.code, "observe") else self.env._get_obs())


class ClassicControl:
    """Gymnasium's classic control keeps everything in `env.state`."""

    def read(self, env: Any) -> Array:
        return np.asarray(env.state, dtype=np.float64)

    def restore(self, env: Any, vector: Array) -> None:
        env.state = vector

    def observe(self, env: Any) -> Array:
        return np.asarray(env._get_obs() if hasattr(env, "_get_obs") else env.state)


def _flat(env: Any, observation: Any) -> Array:
    if isinstance(observation, np.ndarray) and observation.ndim == 1:
        return observation
    return np.asarray(spaces.utils.flatten(env.observation_space, observation), dtype=np.float64)


def make_env(name: str, options: Mapping[str, Any]) -> Any:
    """Return the Gymnasium environment without its wrappers."""
    module, colon, _ = name.partition(":")
    if colon and module not in TRUSTED:
        _check_allowed(f"gymnasium: {name}")
    try:
        return gymnasium.make(name, disable_env_checker=True, **options).unwrapped
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        extra = "robotics" if module in TRUSTED else "mujoco" if "mujoco" in str(error).lower() else ""
        hint = f"run `pip install 'dibs[{extra}]'`" if extra else "install it, or put its folder on PYTHONPATH"
        raise DibsError(f"{name}: a package is missing ({error}); {hint}") from None
    except gymnasium.error.Error as error:
        raise DibsError(f"environment.gymnasium: {error}") from None
    except TypeError as error:
        raise DibsError(f"environment.options of {name}: {error}") from None


def _check_allowed(key: str) -> None:
    if not registry.code_allowed():
        raise DibsError(
            f"environment.{key} runs code that the family file names; if you trust the file, allow it with "
            f"`dibs --allow-code …`, `allow_code: true` in the config, or {registry.ALLOW_CODE}=1"
        )


@cache
def _simulator(name: str, options: str, code: str) -> Simulator:
    """Return the simulator of an environment; all families of a process share it, since steps leave nothing behind."""
    if code:
        _check_allowed(f"simulator: {code}")
    env = make_env(name, json.loads(options))
    if not isinstance(env.action_space, spaces.Box) or len(env.action_space.shape) != 1:
        raise DibsError(f"{name}: expected continuous actions, found {env.action_space}")
    if not np.isfinite([env.action_space.low, env.action_space.high]).all():
        raise DibsError(f"{name}: expected bounded actions, found {env.action_space}")
    env.reset(seed=0)  # what is not part of the state stays as this leaves it
    if code:
        found = registry.resolve(code)
        return CodeSimulator(env, found() if isinstance(found, type) else found)
    if hasattr(env, "model") and hasattr(env, "data") and hasattr(env, "_get_obs"):
        simulator = MujocoSimulator(env)
        simulator.mujoco.set_mju_user_warning(
            lambda message: None
        )  # high speeds may be unstable, which is no news here
        _verify(simulator)
        simulator.mujoco.set_mju_user_warning(None)
        return simulator
    if type(env).__module__.startswith("gymnasium.envs.classic_control"):
        return CodeSimulator(env, ClassicControl())
    raise DibsError(
        f"{name}: there is no built-in way to save and restore it; set environment.simulator to "
        "package.module:object with read(env) and restore(env, vector)"
    )


def _verify(simulator: MujocoSimulator) -> None:
    """Step through `env.step` wherever that does something else than `ctrl` and `mj_step`."""
    if not simulator.direct:
        return
    env, rng = simulator.env, np.random.default_rng(0)
    rest = state = simulator.read()
    moving = slice(simulator.model.nq, simulator.model.nq + simulator.model.nv)
    for speed in (0.0, 0.0, 0.0, 1.0, 10.0, 100.0):  # some environments limit speeds
        if speed:
            state = rest.copy()
            state[moving] = speed * rng.uniform(-1.0, 1.0, simulator.model.nv)
        action = _scaled(env, rng.uniform(-1.0, 1.0, env.action_space.shape))
        after = []
        for direct in (True, False):
            simulator.direct = direct
            simulator.restore(state)
            simulator.step(action)
            after.append(simulator.read())
        if not np.allclose(after[0], after[1], rtol=1e-9, atol=1e-12):
            return
        state = after[0]
    simulator.direct = True


def _scaled(env: Any, actions: Array) -> Array:
    low, high = (np.asarray(bound, dtype=np.float64) for bound in (env.action_space.low, env.action_space.high))
    return low + (np.clip(np.asarray(actions, dtype=np.float64), -1.0, 1.0) + 1.0) / 2.0 * (high - low)


@dataclass(frozen=True, eq=False)
class GymnasiumEnvironment(Environment):
    """A Gymnasium environment with continuous actions; fields are the keys of `environment:` in a family."""

    version: ClassVar[int] = 3
    by_row: ClassVar[bool] = True

    gymnasium: str
    """Id of the environment, such as Reacher-v5."""
    quantities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Named quantities: `{observation: 8}`, `{state: joint0}`, or `{body: fingertip, axis: x}` (also geom, site);
    each with an optional factor `scale`."""
    observation: Sequence[str] = ()
    """State variables that the policy sees; empty: the environment's own observation."""
    variables: Sequence[str] = ()
    """Names of the simulator variables; empty: those of MuJoCo's joints, otherwise s0, s1, …"""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of `gymnasium.make`."""
    simulator: str = ""
    """`package.module:object` that reads and restores the environment."""

    def __post_init__(self) -> None:
        names = list(self.state_names)
        for name in names:
            if names.count(name) > 1:
                raise DibsError(f"environment: two state variables are called '{name}'; rename the quantity")
        for name in self.observation:
            if name not in names:
                raise unknown("state variable in environment.observation", name, names)
        assert self._readers is not None
        self._check()

    # --- names ---------------------------------------------------------------------------------------

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.gymnasium

    @cached_property
    def _sim(self) -> Simulator:
        return _simulator(self.gymnasium, json.dumps(dict(self.options), sort_keys=True), self.simulator)

    @cached_property
    def _variables(self) -> tuple[str, ...]:
        if self.variables and len(self.variables) != len(self._sim.names):
            raise DibsError(
                f"environment.variables: expected {len(self._sim.names)} names, found {len(self.variables)}"
            )
        return tuple(self.variables or self._sim.names)

    @cached_property
    def _own_entries(self) -> int:
        """How many entries the environment's own observation has."""
        return int(spaces.utils.flatdim(self._env.observation_space))

    @property
    def _env(self) -> Any:
        return self._sim.env

    @cached_property
    def state_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self._variables, *self.derived)

    @cached_property
    def derived(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.quantities, *(f"obs{k}" for k in range(self._own_entries)))

    @cached_property
    def action_names(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(f"a{k}" for k in range(self._env.action_space.shape[0]))

    @property
    def noise_scale(self) -> tuple[float, ...]:
        return (0.0,) * len(self.state_names)

    @cached_property
    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        more = (np.inf,) * len(self.derived)
        low, high = self._sim.bounds
        return (*low, *(-x for x in more)), (*high, *more)

    @property
    def drawn(self) -> tuple[int, int]:
        """The first two quantities; without them, the first two simulator variables."""
        first = len(self._variables) if len(self.quantities) >= 2 else 0
        return (first, first + 1)

    @property
    def space(self) -> tuple[int, int, int] | None:
        """The first three quantities, if they are the x, y and z of something."""
        axes = [entry.get("axis") for entry in self.quantities.values()]
        first = len(self._variables)
        return (first, first + 1, first + 2) if axes[:3] == ["x", "y", "z"] else None

    # --- states --------------------------------------------------------------------------------------

    def step(self, states: Array, actions: Array, noise: Array) -> Array:
        sim, count = self._sim, len(self._variables)
        flat = np.asarray(states, dtype=np.float32).reshape(-1, states.shape[-1])
        moves = np.broadcast_to(actions, (*states.shape[:-1], actions.shape[-1])).reshape(len(flat), -1)
        moves = _scaled(self._env, moves)
        after = np.empty_like(flat)
        for row in range(len(flat)):
            self._fill(after[row], sim.move(flat[row, :count], moves[row]))
        return after.reshape(states.shape).astype(states.dtype, copy=False)

    def observe(self, states: Array) -> Array:
        return states[..., self._observed]

    def recover(self, observations: Array) -> Array:
        """Return the states that observations show: variables that they contain, multiples of these, and quantities
        that are entries of these."""
        states = np.full((*observations.shape[:-1], len(self.state_names)), np.nan, dtype=np.float32)
        states[..., self._observed] = observations
        for variable, entry, factor, offset in self._multiples:
            states[..., variable] = factor * observations[..., entry] + offset
        count, first = (
            len(self._variables),
            len(self.state_names) - self._own_entries,
        )  # of variables; of the observation
        for k, (source, at, scale) in enumerate(self._readers):
            if source is None or source is _OBSERVATION:
                missing = np.isnan(states[..., count + k])
                value = scale * states[..., at if source is None else first + at]
                states[..., count + k] = np.where(missing, value, states[..., count + k])
        return states

    @cached_property
    def _multiples(self) -> list[tuple[int, int, float, float]]:
        """Simulator variables that are not observed but multiples of an observed entry plus a constant: variable,
        entry, factor, constant. Judged by states around that of `reset(seed=0)`."""
        count = len(self._variables)
        states = np.zeros((32, len(self.state_names)), dtype=np.float32)
        self._sim.reset(0)
        rest, (low, high) = self._sim.read(), self._sim.bounds
        around = rest + 0.2 * np.random.default_rng(0).uniform(-1.0, 1.0, (len(states), count))
        states[:, :count] = np.clip(around, low, high)
        states = self.project(states).astype(np.float64)
        observed, found = self.observe(states), []
        known = set(np.arange(len(self.state_names))[self._observed].tolist())
        for variable in (v for v in range(count) if v not in known and np.ptp(states[:, v]) > 0.0):
            for entry in np.flatnonzero(np.ptp(observed, axis=0) > 0.0):
                factor, offset = np.polyfit(observed[:, entry], states[:, variable], 1)
                error = np.abs(factor * observed[:, entry] + offset - states[:, variable]).max()
                if error <= 1e-5 * np.ptp(states[:, variable]):
                    found.append((variable, int(entry), float(factor), float(offset)))
                    break
        return found

    def project(self, states: Array) -> Array:
        """Return the states with derived variables computed from the simulator variables.

        These are not clipped to their bounds: MuJoCo's joint limits are soft, and moving joints exceed them.
        """
        flat = np.asarray(states, dtype=np.float32).reshape(-1, states.shape[-1])
        fixed = np.empty_like(flat)
        for row in range(len(flat)):
            self._fill(fixed[row], flat[row, : len(self._variables)])
        return fixed.reshape(states.shape).astype(states.dtype, copy=False)

    def reset(self, uniforms: Array) -> Array:
        """Return states as the environment's own reset draws them, seeded by the uniforms (..., n)."""
        flat = np.asarray(uniforms).reshape(-1, uniforms.shape[-1])
        count = len(self._variables)
        env = _resetter(self.gymnasium, json.dumps(dict(self.options), sort_keys=True), self.simulator)
        states = np.empty((len(flat), len(self.state_names)), dtype=np.float32)
        for row, seeds in enumerate((flat[:, :2] * 2**16).astype(np.int64)):
            env.reset(int(seeds[0] * 2**14 + seeds[1] % 2**14))
            states[row, :count] = env.read()
        return self.project(states).reshape(uniforms.shape).astype(uniforms.dtype, copy=False)

    @cached_property
    def _observed(self) -> Any:
        if not self.observation:
            return slice(len(self.state_names) - self._own_entries, None)
        return [self.state_names.index(name) for name in self.observation]

    def _fill(self, row: Array, vector: Array) -> None:
        """Write simulator variables, rounded to float32, and everything derived from them into one state."""
        sim, count = self._sim, len(self._variables)
        row[:count] = vector
        sim.restore(row[:count])
        own = sim.observe()
        row[len(row) - self._own_entries :] = own
        for k, (source, at, scale) in enumerate(self._readers):
            row[count + k] = scale * (row if source is None else own if source is _OBSERVATION else source)[at]

    @cached_property
    def _readers(self) -> list[tuple[Any, int, float]]:
        """Array, entry and factor of every quantity; the array is None for the state itself."""
        return [self._reader(name, dict(entry)) for name, entry in self.quantities.items()]

    def _reader(self, name: str, entry: dict[str, Any]) -> tuple[Any, int, float]:
        key = f"environment.quantities.{name}"
        scale = entry.pop("scale", 1.0)
        if isinstance(scale, bool) or not isinstance(scale, int | float) or not np.isfinite(scale) or scale == 0:
            raise DibsError(f"{key}.scale: expected a number other than 0, found {scale!r}")
        axis = entry.pop("axis", None)
        if len(entry) != 1:
            raise DibsError(f"{key}: expected one of observation, state, body, geom, site; found {sorted(entry)}")
        ((kind, value),) = entry.items()
        if kind == "observation":
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < self._own_entries:
                raise DibsError(f"{key}: the observation has entries 0 … {self._own_entries - 1}, found {value!r}")
            return _OBSERVATION, value, scale
        if kind == "state":
            if value not in self._variables:
                raise unknown(f"simulator variable in {key}", value, self._variables)
            return None, self._variables.index(value), scale
        if kind not in ("body", "geom", "site"):
            raise DibsError(
                f"{key}: {unknown('kind of quantity', kind, ['observation', 'state', 'body', 'geom', 'site'])}"
            )
        if not isinstance(self._sim, MujocoSimulator):
            raise DibsError(f"{key}: {self.gymnasium} is not a MuJoCo environment and has no {kind}")
        if axis not in AXES:
            raise DibsError(f"{key}.axis: expected x, y or z, found {axis!r}")
        return self._sim.place(kind, value), AXES[axis], scale

    def _check(self) -> None:
        """Refuse an environment whose next state or observation is not a function of its simulator variables."""
        rng, count = np.random.default_rng(0), len(self._variables)
        states = np.zeros((4, len(self.state_names)), dtype=np.float32)
        self._sim.reset(0)
        states[:, :count] = self._sim.read()
        states = self.project(states)
        actions = rng.uniform(-1.0, 1.0, (4, self.action_dim)).astype(np.float32)
        for _ in range(3):
            states = self.step(states, actions, states)
        once, again = self.step(states, actions, states), self.step(states[::-1], actions[::-1], states)[::-1]
        for what, first, second in (("next state", once, again), ("observation", once, self.project(once))):
            wrong = np.flatnonzero((first != second).any(axis=0))
            if not np.isfinite(first).all():
                raise DibsError(f"{self.gymnasium}: the {what} is not finite")
            if len(wrong):
                raise DibsError(
                    f"{self.gymnasium}: the {what} is not a function of the simulator variables "
                    f"({', '.join(self.state_names[k] for k in wrong)} differ after restoring the same state)"
                )


_OBSERVATION = object()


@cache
def _resetter(name: str, options: str, code: str) -> Any:
    """Return a second copy to reset, so that the copy that steps keeps what is not part of the state."""
    return _simulator.__wrapped__(name, options, code)


__all__ = ["ClassicControl", "CodeSimulator", "GymnasiumEnvironment", "MujocoSimulator", "Simulator"]
