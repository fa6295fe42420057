"""Gymnasium environments: the library's own checkers, equal results from every adapter, rewards, and errors."""

from __future__ import annotations

import itertools
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from matplotlib.colors import to_rgb
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import dibs.gym
from dibs import registry
from dibs.drawing.film import BANNER, OUTCOMES, QUIET
from dibs.envs import Array, Environment, Reacher, truncated_normal
from dibs.errors import DibsError
from dibs.families import Benchmark, Family, ReachAvoid, get_benchmark, get_family, load_family
from dibs.gym import TaskEnv, TaskVectorEnv
from dibs.gym.environments import make_task
from dibs.gym.sb3 import ReachAvoidVecEnv
from dibs.simulation import EdgeTask, SpecTask
from dibs.spectrl import satisfied

FAMILIES = {
    "Car2D": "car2d-reach",
    "Reacher": "reacher-stack-same-8",
    "SimpleDrone": "simpledrone-reach",
    "DroneAttitude": "droneattitude-reach",
}
BENCHMARKS = {
    "Car2D": "car2d-choice-l2",
    "Reacher": "reacher-drop-opposite-9",
    "SimpleDrone": "simpledrone-reach-k2",
    "DroneAttitude": "droneattitude-reach-k3",
}
NAMES = sorted(FAMILIES)
CAR: dict[str, Any] = {"family": "car2d-reach", "edge": "start>g1"}
# o1 is [2.7, 4.1] × [3.0, 4.4], g1 is [4, 6] × [7, 9]
OBSTACLE: dict[str, Any] = {"family": "car2d-reach-obs", "edge": "start>g1"}


def edge_of(name: str, edge: int = 0) -> dict[str, Any]:
    """Arguments for one edge of the family of an environment."""
    return {"family": FAMILIES[name], "edge": get_family(FAMILIES[name]).edges[edge].name}


def task_of(family: str, edge: int = 0, index: int = 0) -> ReachAvoid:
    chosen = get_family(family)
    return chosen.tasks([index]).reach_avoid(edges=[chosen.edges[edge].name])


def hold(positions: np.ndarray) -> np.ndarray:
    """Reacher actions that hold the arm at the given positions, once it is there."""
    theta1, theta2 = Reacher().joints(positions)
    return np.stack([(theta1 / np.pi - 0.25) / 0.75, (theta2 / np.pi - 0.5) / 0.5], axis=-1)


def still(family: str) -> Family:
    """The family without noise in its steps."""
    described = get_family(family).description_data()
    return load_family({**described, "environment": {"name": described["environment"]["name"], "noise": 0.0}})


# --- registration and checkers ----------------------------------------------------------------------------


def test_every_environment_is_registered() -> None:
    assert {f"dibs/{name}-v0" for name in registry.names("environments")} <= set(gymnasium.registry)
    code = (
        "import gymnasium as g; e = g.make('dibs.gym:dibs/Car2D-v0', family='car2d-reach');"
        "print(e.reset(seed=0)[0].shape); import sys; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["(2,)", "False"], done.stderr


def check(env: Any) -> None:
    """Run the checkers of Gymnasium and Stable-Baselines3; any warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*infinity.*")  # positions are unbounded
        check_env(env.unwrapped)
        sb3_check_env(env.unwrapped)


@pytest.mark.filterwarnings("ignore:.*Box observation space m.*infinity")
@pytest.mark.parametrize("what", ["family", "benchmark", "edge"])
@pytest.mark.parametrize("name", NAMES)
def test_checkers_pass(name: str, what: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "family": {"family": FAMILIES[name]},
        "benchmark": {"benchmark": BENCHMARKS[name]},
        "edge": {**edge_of(name, 1), "index": 3},
    }
    check(gymnasium.make(f"dibs/{name}-v0", **options[what]))


def test_specification_of_an_environment_makes_it_again() -> None:
    env = gymnasium.make("dibs/Car2D-v0", family="car2d-reach", index=5, edge="g2>g3")
    assert env.spec is not None
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    np.testing.assert_array_equal(env.reset(seed=1)[0], again.reset(seed=1)[0])


def test_make_vec_takes_the_native_one() -> None:
    envs = gymnasium.make_vec(
        "dibs/Reacher-v0", num_envs=6, vectorization_mode="vector_entry_point", family="reacher-stack-same-8"
    )
    assert isinstance(envs, TaskVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    states, _ = envs.reset(seed=0)
    assert states.shape == (6, 2) and states in envs.observation_space
    by_default = gymnasium.make_vec("dibs/Reacher-v0", num_envs=2, family="reacher-stack-same-8")
    assert isinstance(by_default, TaskVectorEnv)


def test_make_without_an_id() -> None:
    """By the name of a family or benchmark; without an edge the whole specification is run."""
    whole, k3 = dibs.gym.make("car2d-reach", index=5), dibs.gym.make("car2d-reach-k3", index=5)
    edge = dibs.gym.make(get_family("car2d-reach"), index=5, edge="g2>g3", render_mode="rgb_array")
    assert isinstance(whole.batch.task, SpecTask) and whole.batch.task.stages == 5
    assert isinstance(k3.batch.task, SpecTask) and k3.batch.task.stages == 3
    assert isinstance(edge.batch.task, EdgeTask) and edge.batch.task.edges.names == ("g2>g3@5",)
    assert edge.render_mode == "rgb_array"
    own = dibs.gym.make("car2d-reach", specification="achieve reach(g2)")
    assert own.batch.task.grounded.specification == "achieve reach(g2)"
    same = gymnasium.make("dibs/Car2D-v0", benchmark="car2d-reach-k3", index=5)
    np.testing.assert_array_equal(k3.reset(seed=3)[0], same.reset(seed=3)[0])
    envs = dibs.gym.make_vec("car2d-reach-k3", 7, index=5)
    assert envs.num_envs == 7 and envs.reset(seed=0)[0].shape == (7, 2)


# --- custom families and environments ---------------------------------------------------------------------


@dataclass(frozen=True)
class Boat(Environment):
    """Drifts in a river; the policy sees its heading as sine and cosine."""

    name: ClassVar[str] = "Boat"
    state_names: ClassVar[tuple[str, ...]] = ("x", "y", "heading")
    action_names: ClassVar[tuple[str, ...]] = ("rudder",)
    speed: float = 1.0

    @property
    def noise_scale(self) -> tuple[float, ...]:
        return (0.01, 0.01, 0.0)

    @property
    def periods(self) -> tuple[float, ...]:
        return (0.0, 0.0, 2.0 * np.pi)

    def step(self, states: Array, actions: Array, noise: Array) -> Array:
        heading = states[..., 2] + 0.5 * np.clip(actions[..., 0], -1.0, 1.0)
        x, y = states[..., 0] + self.speed * np.cos(heading), states[..., 1] + self.speed * np.sin(heading)
        scale = np.asarray(self.noise_scale, dtype=states.dtype)
        return np.asarray(np.stack([x, y, heading], axis=-1) + scale * noise, dtype=states.dtype)

    def observe(self, states: Array) -> Array:
        heading = states[..., 2]
        return np.stack([states[..., 0], states[..., 1], np.cos(heading), np.sin(heading)], axis=-1)


@pytest.fixture
def river(tmp_path: Path) -> Iterator[str]:
    """The file of a family in an environment that is registered at run time."""
    registry.register("environments", "Boat", Boat)
    path = tmp_path / "river.yaml"
    path.write_text(
        "name: river\nenvironment: {name: Boat, speed: 0.5}\n"
        "specification: (achieve reach(buoy); achieve reach(dock)) ensuring avoid(rock)\n"
        "benchmarks: {river-buoy: achieve reach(buoy) ensuring avoid(rock), "
        "river-both: (achieve reach(buoy); achieve reach(dock)) ensuring avoid(rock)}\n"
        "start: {center: [0, 0, 0], noise: [0.1, 0.1, 0]}\n"
        "regions: {buoy: {center: [3, 0, null], half_width: 0.5, shift: [1, 0, 0]}, "
        "dock: {center: [6, 0, null], half_width: 0.5, shift: [1, 0, 0]}, "
        "rock: {center: [4, 3, null], half_width: 0.5}}\n"
        "last_index: 4\nhorizon: 12\nnetwork: {hidden: [8]}\n"
    )
    yield str(path)
    registry._added["environments"].pop("Boat", None)
    gymnasium.registry.pop("dibs/Boat-v0", None)


@pytest.mark.filterwarnings("ignore:.*Box observation space m.*infinity")
def test_a_third_party_environment(river: str) -> None:
    dibs.gym.register()
    straight = np.zeros(1, dtype=np.float32)
    env = gymnasium.make("dibs.gym:dibs/Boat-v0", family=river, index=2, edge="start>buoy", render_mode="rgb_array")
    check(env)
    assert env.observation_space.shape == (4,)
    observed, _ = env.reset(seed=0)
    for _ in range(12):
        observed, _, terminated, truncated, info = env.step(straight)
        if terminated or truncated:
            break
    assert info["success"] and 4.5 <= observed[0] <= 5.5 and observed[2:].tolist() == [1.0, 0.0]
    assert env.render() is not None
    check(gymnasium.make("dibs.gym:dibs/Boat-v0", benchmark=f"{river}:river-both"))
    envs = dibs.gym.make_vec(f"{river}:river-both", 3, index=1)
    observed, info = envs.reset(seed=0, options={"state": [2.0, 0.0, 0.0]})
    while not info["stage"].all():
        observed, *_, info = envs.step(np.zeros((3, 1), dtype=np.float32))
    assert observed.shape == (3, 4) and observed in envs.observation_space
    with pytest.raises(DibsError, match="family of Boat, not of Car2D: make dibs/Boat-v0"):
        gymnasium.make("dibs/Car2D-v0", family=river)


def test_a_state_need_not_have_two_variables_unless_drawn() -> None:
    @dataclass(frozen=True)
    class Train(Environment):
        name: ClassVar[str] = "Train"
        state_names: ClassVar[tuple[str, ...]] = ("x",)
        action_names: ClassVar[tuple[str, ...]] = ("v",)

        @property
        def noise_scale(self) -> tuple[float, ...]:
            return (0.0,)

        def step(self, states: Array, actions: Array, noise: Array) -> Array:
            return np.asarray(states + actions)

    registry.register("environments", "Train", Train)
    try:
        line = {
            "name": "line",
            "environment": {"name": "Train"},
            "specification": "achieve reach(end)",
            "start": {"center": [0.0]},
            "regions": {"end": {"center": [3.0], "half_width": 0.5}},
            "last_index": 1,
            "horizon": 5,
            "network": {"hidden": [4]},
        }
        env = dibs.gym.make(load_family(line))
        env.reset(seed=0)
        *_, info = [env.step(np.ones(1, dtype=np.float32)) for _ in range(3)][-1]
        assert info["success"]
        with pytest.raises(DibsError, match="a picture needs two state variables"):
            dibs.gym.make(load_family(line), render_mode="rgb_array")
    finally:
        registry._added["environments"].pop("Train", None)


# --- every adapter gives the same results -----------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_all_forms_give_the_same_trajectories(name: str, tape: Any) -> None:
    """Pure functions, Env, VectorEnv and SB3's VecEnv, on the same noise and actions."""
    n, steps = 5, 6
    task = EdgeTask(task_of(FAMILIES[name]))
    dim, m = task.edges.dim, task.environment.action_dim
    rng = np.random.default_rng(0)
    uniforms = rng.random((steps + 1, n, dim), dtype=np.float32)
    actions = rng.uniform(-1.2, 1.2, (steps, n, m)).astype(np.float32)

    states = task.initial(uniforms[:1])[0]
    progress = task.begin(states[None])
    pure = [states]
    rewards = []
    for t in range(steps):
        states = task.environment.step(states, actions[t], truncated_normal(uniforms[t + 1]))
        before, progress = progress, task.advance(progress, states[None])
        pure.append(states)
        rewards.append(task.reward(before, progress, t)[0])

    envs = TaskVectorEnv(n, **edge_of(name))
    envs.np_random = tape(uniforms)
    vector = [envs.reset()[0]]
    sb3: Any = ReachAvoidVecEnv(task.edges, n, rng=tape(uniforms))
    batched = [sb3.reset()]
    for t in range(steps):
        state, reward, *_ = envs.step(actions[t])
        vector.append(state)
        np.testing.assert_array_equal(reward, rewards[t])
        state, reward, _, _ = sb3.step(actions[t])
        batched.append(state)
        np.testing.assert_array_equal(reward, rewards[t])
    np.testing.assert_array_equal(vector, pure)
    np.testing.assert_array_equal(batched, pure)

    for i in range(n):
        env = TaskEnv(**edge_of(name))
        env.np_random = tape(uniforms, i)
        np.testing.assert_allclose(env.reset()[0], pure[0][i], rtol=0, atol=1e-6)
        for t in range(steps):
            state, single, *_ = env.step(actions[t, i])
            np.testing.assert_allclose(state, pure[t + 1][i], rtol=0, atol=1e-5)
            assert single == pytest.approx(rewards[t][i], abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_one_seed_gives_the_same_episodes(name: str) -> None:
    """With one environment, every adapter draws in the same order, restarts included."""
    env, envs = TaskEnv(**edge_of(name)), TaskVectorEnv(1, **edge_of(name))
    sb3: Any = ReachAvoidVecEnv(task_of(FAMILIES[name]), 1)
    sb3.seed(11)
    state, _ = env.reset(seed=11)
    np.testing.assert_array_equal(envs.reset(seed=11)[0][0], state)
    np.testing.assert_array_equal(sb3.reset()[0], state)
    env.action_space.seed(0)
    ended = 0
    for _ in range(70):
        action = env.action_space.sample()
        state, reward, terminated, truncated, info = env.step(action)
        vector = envs.step(action[None])
        batched = sb3.step(action[None])
        assert vector[1][0] == reward == batched[1][0]
        assert (vector[2][0], vector[3][0], batched[2][0]) == (terminated, truncated, terminated or truncated)
        if terminated or truncated:
            ended += 1
            np.testing.assert_array_equal(vector[4]["final_obs"][0], state)
            np.testing.assert_array_equal(batched[3][0]["terminal_observation"], state)
            assert vector[4]["final_info"]["success"][0] == info["success"] == batched[3][0]["is_success"]
            state, info = env.reset()
        np.testing.assert_array_equal(vector[0][0], state)
        np.testing.assert_array_equal(batched[0][0], state)
        assert {key: vector[4][key][0] for key in info} == info
    assert ended >= 3


def test_seeds() -> None:
    env, envs = TaskEnv("simpledrone-reach"), TaskVectorEnv(3, "simpledrone-reach")
    for one in (env, envs):
        first, second, other = (one.reset(seed=s)[0] for s in (5, 5, 6))
        np.testing.assert_array_equal(first, second)
        assert (first != other).all()
    states, _ = envs.reset(seed=5)
    assert len(np.unique(states)) == states.size, "no two environments share their noise"


def test_starts_are_states() -> None:
    """The arm's lowest pick region reaches below the floor; no episode does."""
    task = EdgeTask(task_of("reacher-stack-same-8", edge=1))
    states = task.initial(np.random.default_rng(0).random((1, 500, 2), dtype=np.float32))
    assert states[..., 1].min() == 0.0
    env = TaskEnv("reacher-stack-same-8", edge="pick>place")
    for seed in range(20):
        assert env.reset(seed=seed)[0] in env.observation_space


# --- what an edge's episode means -------------------------------------------------------------------------


def test_reaching_ends_the_episode(drive: Any) -> None:
    env = TaskEnv(**CAR)
    state, info = env.reset(seed=0)
    assert info == {"success": False, "unsafe": False}
    terminated, steps = False, 0
    while not terminated:
        steps += 1
        state, reward, terminated, truncated, info = env.step(drive(state, (5, 8)))
        inside = bool((np.abs(state - [5, 8]) <= 1).all())
        assert (terminated, info["success"]) == (inside, inside)
        assert not truncated
        assert (reward == 0.0) if inside else (reward < 0.0)
    assert 8 <= steps <= 12, "9.4 away, less the region's half-width, at a speed of 1"


def test_the_horizon_cuts_off() -> None:
    env = TaskEnv(**CAR)
    env.reset(seed=0)
    stay = np.array([-1.0, 0.0], dtype=np.float32)
    ends = [env.step(stay)[2:] for _ in range(20)]
    assert [truncated for _, truncated, _ in ends] == [False] * 19 + [True]
    assert not any(terminated or info["success"] for terminated, _, info in ends)


def test_reaching_at_the_horizon_is_no_cut() -> None:
    """Twenty steps are enough for 19 units: the goal is reached in the last one, or missed in it."""
    env = TaskEnv(still("car2d-reach"), edge="start>g1")
    up = np.array([1.0, 0.5], dtype=np.float32)
    for start, reached in ((-12.5, True), (-13.5, False)):
        env.reset(seed=0, options={"state": [5.0, start]})
        ends = [env.step(up)[2:] for _ in range(20)]
        assert not any(terminated or truncated for terminated, truncated, _ in ends[:-1])
        terminated, truncated, info = ends[-1]
        assert (terminated, truncated, info["success"]) == (reached, not reached, reached)


def test_once_unsafe_never_a_success(drive: Any) -> None:
    env = TaskEnv(**OBSTACLE)
    state, _ = env.reset(options={"state": [3.4, 2.4]}, seed=0)
    terminated = False
    unsafe: list[bool] = []
    while not terminated:
        state, reward, terminated, truncated, info = env.step(drive(state, (3.4, 3.7) if not unsafe else (5, 8)))
        unsafe.append(info["unsafe"])
        if 2.7 < state[0] < 4.1 and 3.0 < state[1] < 4.4:
            assert info["unsafe"] and reward < -10
        assert not truncated
    assert unsafe == [True] * len(unsafe) and len(unsafe) > 1
    assert info == {"success": False, "unsafe": True}
    assert env.reset()[1] == {"success": False, "unsafe": False}


def test_safety_is_asked_after_the_first_state(drive: Any) -> None:
    env = TaskEnv(**OBSTACLE)
    state, info = env.reset(options={"state": [4.0, 4.3]}, seed=0)  # just inside the obstacle's corner
    assert not info["unsafe"]
    terminated = False
    while not terminated:
        state, _, terminated, _, info = env.step(drive(state, (5, 8)))
    assert info["success"]


def outside(family: Family, region: str, state: np.ndarray) -> float:
    """Euclidean distance to a box of index 0; 0 inside."""
    box = family.regions_at(0)[region]
    return float(np.linalg.norm(np.maximum(np.abs(state - box.center) - box.half_width, 0.0)))


def hazard(family: Family, obstacles: list[str], state: np.ndarray) -> float:
    """1 inside an obstacle; in the margin around it from 0.5 at its side to 0."""
    boxes = [family.regions_at(0)[name] for name in obstacles]
    if any((np.abs(state - box.center) < box.half_width).all() for box in boxes):
        return 1.0
    near = min(outside(family, name, state) for name in obstacles)
    return 0.5 * max(0.0, 1.0 - near / family.reward.margin)


def test_rewards_of_an_edge(drive: Any) -> None:
    """Minus the distance to the target in units, minus the penalty for unsafe states and half of it near them."""
    family = get_family("car2d-reach-obs")
    avoided = [name for name in family.regions if name.startswith("o")]
    env = TaskEnv(**OBSTACLE)
    rng, kinds = np.random.default_rng(3), []
    for seed in range(30):
        state, _ = env.reset(seed=seed, options={"state": rng.uniform([2.0, 2.0], [5.0, 5.0])})
        for _ in range(6):
            state, reward, *_ = env.step(env.action_space.sample() if seed % 2 else drive(state, (3.4, 3.7)))
            risk = hazard(family, avoided, state)
            assert reward == pytest.approx(-outside(family, "g1", state) / 10.0 - 10.0 * risk, abs=1e-4)
            kinds.append(np.ceil(risk * 2) / 2)
    assert set(kinds) == {0.0, 0.5, 1.0}, "clear of obstacles, near one, and in one"


# --- whole specifications ---------------------------------------------------------------------------------


def test_stages_of_a_benchmark(drive: Any) -> None:
    env = TaskEnv(benchmark="car2d-reach-k3", index=4)
    goals = [(7.0, 8.0), (12.0, 16.0), (17.0, 24.0)]
    state, info = env.reset(seed=0)
    assert info == {"stage": 0, "satisfied": False, "violated": False, "success": False}
    terminated, stages = False, [0]
    while not terminated:
        state, reward, terminated, truncated, info = env.step(drive(state, goals[info["stage"]]))
        assert not truncated
        grew = info["stage"] - stages[-1]
        assert (grew == 1) == bool(stages[-1] < 3 and (np.abs(state - goals[stages[-1]]) <= 1).all())
        to_go = 9.5 * (3 - info["stage"])  # the goals are 9.4 apart
        assert grew - to_go / 10.0 - 1e-6 <= reward <= grew
        stages.append(info["stage"])
    assert info == {"stage": 3, "satisfied": True, "violated": False, "success": True}
    assert sorted(set(stages)) == [0, 1, 2, 3] and stages == sorted(stages)
    assert reward == 1.0, "nothing left to reach, and one stage more"


def test_a_violation_ends_and_never_pays(drive: Any) -> None:
    env = TaskEnv(benchmark="car2d-reach-obs-k2")
    state, _ = env.reset(seed=0, options={"state": [3.4, 1.6]})
    violated_return = 0.0
    terminated = False
    while not terminated:
        state, reward, terminated, _, info = env.step(drive(state, (3.4, 3.7)))
        violated_return += reward
    assert info["violated"] and not info["success"]
    env.reset(seed=0, options={"state": [3.4, 1.6]})
    idle_return, truncated, steps = 0.0, False, 0
    while not truncated:
        _, reward, terminated, truncated, info = env.step(np.array([-1.0, 0.0], dtype=np.float32))
        assert not terminated
        idle_return, steps = idle_return + reward, steps + 1
    assert steps == 2 * get_family("car2d-reach-obs").horizon
    assert violated_return < idle_return - 5.0


def to_go(benchmark: Benchmark, stages: list[list[str]], stage: int, state: np.ndarray) -> float:
    """Distance to the next target and on through the centers of the remaining ones, by trying all choices."""
    boxes = benchmark.family.regions_at(0)
    ways = []
    for names in itertools.product(*stages[stage:]):
        centers = [boxes[name].center for name in names]
        legs = sum(float(np.linalg.norm(b - a)) for a, b in itertools.pairwise(centers))
        ways.append(outside(benchmark.family, names[0], state) + legs if names else 0.0)
    return min(ways)


@pytest.mark.parametrize(
    ("name", "stages", "avoided"),
    [
        ("car2d-reach-k3", [["g1"], ["g2"], ["g3"]], []),
        ("car2d-reach-obs-k2", [["g1"], ["g2"]], ["o1", "o2", "o3", "o4", "o5"]),
        ("car2d-choice-l1", [["g11", "g12"], ["goal1"]], ["wall1", "wall2"]),
    ],
)
def test_rewards_of_a_specification(name: str, stages: list[list[str]], avoided: list[str], drive: Any) -> None:
    """Minus the distance to go, plus 1 per stage; a violation costs what standing still would, and the penalty."""
    benchmark = get_benchmark(name)
    model, boxes = benchmark.family.reward, benchmark.family.regions_at(0)
    env = TaskEnv(benchmark=name)
    env.action_space.seed(0)
    violations = completed = near = 0
    for seed in range(40):
        state, info = env.reset(seed=seed)
        for time in range(env.batch.task.horizon):
            stage, before = info["stage"], to_go(benchmark, stages, info["stage"], state)
            aim = boxes[avoided[0] if avoided and seed % 4 == 3 else stages[stage][seed % len(stages[stage])]].center
            action = drive(state, aim) + (0.2 * env.action_space.sample() if seed % 2 else 0.0)
            state, reward, terminated, truncated, info = env.step(action)
            risk = hazard(benchmark.family, avoided, state) if avoided else 0.0
            assert info["violated"] == (risk == 1.0)
            if info["violated"]:
                expected = -before / model.unit * (env.batch.task.horizon - time) - model.unsafe_penalty
                violations += 1
            else:
                grew = info["stage"] - stage
                expected = grew - to_go(benchmark, stages, info["stage"], state) / model.unit
                expected -= model.unsafe_penalty * risk
                completed, near = completed + grew, near + (risk > 0.0)
            assert reward == pytest.approx(expected, rel=1e-4, abs=1e-4)
            if terminated or truncated:
                break
    assert completed > 20 and (violations > 3) == (near > 3) == bool(avoided)


@pytest.mark.parametrize(
    ("name", "text", "way"),
    [
        ("car2d-reach-obs-k2", None, [(5, 8), (10, 16)]),
        ("car2d-choice-l1", None, [(5, 8), (1, 16)]),
        ("reacher-stack-same-8", None, [(5, 0.3), (2.5, 5.1)]),
        (  # branches of different length, and obstacles that matter on one of them only
            "car2d-reach-obs",
            "achieve reach(g1) ensuring avoid(o1); (achieve reach(g2) or (achieve reach(g3) ensuring avoid(o2)))",
            [(5, 8), (10, 16), (10, 16)],
        ),
    ],
)
def test_the_answer_is_that_of_the_semantics(name: str, text: str | None, way: list[Any], drive: Any) -> None:
    """Noisy episodes, judged step by step and again from the recording."""
    n, rng = 128, np.random.default_rng(2)
    what: dict[str, Any] = {} if text is None else {"specification": text}
    envs = dibs.gym.make_vec(name, n, **what)
    family = get_benchmark(name).family if text is None else get_family(name)
    envs.action_space.seed(2)
    state, info = envs.reset(seed=1)
    recorded, running = [state], np.ones(n, dtype=bool)
    verdicts: np.ndarray = np.zeros(n, dtype=bool)
    lengths = np.ones(n, dtype=int)
    for _ in range(envs.batch.task.horizon):
        action = envs.action_space.sample()
        goals = np.array([*way, way[-1]])[info["stage"]]
        wanted = hold(goals) if family.environment.name == "Reacher" else drive(state, goals)
        action[n // 8 :] = wanted[n // 8 :] + rng.normal(scale=0.15, size=(n - n // 8, 2))
        state, reward, terminated, truncated, info = envs.step(action)
        assert np.isfinite(reward).all()
        ended = terminated | truncated
        last = state.copy()
        for row in np.flatnonzero(ended):
            last[row] = info["final_obs"][row]
        recorded.append(last)
        lengths += running
        if (running & ended).any():
            verdicts[running & ended] = info["final_info"]["satisfied"][running & ended]
        running &= ~ended
    assert not running.any() and 0.05 < verdicts.mean() < 0.95
    states, spec = np.stack(recorded, axis=1), envs.batch.task.grounded.spec
    for i in range(n):
        assert verdicts[i] == satisfied(spec, family.regions_at(0), states[i, : lengths[i]]), i


# --- the vector environment's bookkeeping -----------------------------------------------------------------


def test_vector_infos_are_shaped_like_gymnasiums() -> None:
    """The same keys and kinds as its own SyncVectorEnv gives in the same mode."""
    mine = TaskVectorEnv(2, **CAR)
    theirs = SyncVectorEnv([lambda: TaskEnv(**CAR)] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    stay = np.full((2, 2), [-1.0, 0.0], dtype=np.float32)
    for envs in (mine, theirs):
        envs.reset(seed=0)
    for _ in range(20):
        ours, reference = mine.step(stay), theirs.step(stay)
        for a, b in zip(ours[:4], reference[:4], strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
        assert ours[4].keys() == reference[4].keys()
        for key in ours[4].keys() - {"final_info"}:
            assert ours[4][key].dtype == reference[4][key].dtype, key
    assert ours[4]["final_info"].keys() == reference[4]["final_info"].keys()
    assert ours[3].all() and ours[4]["_final_obs"].all()


def test_episodes_end_one_by_one() -> None:
    envs = TaskVectorEnv(3, **CAR)
    envs.reset(seed=0, options={"state": [[5.0, 6.5], [0.0, 0.0], [-9.0, 0.0]]})
    up = np.array([[1.0, 0.5]] * 3, dtype=np.float32)
    states, _, terminated, truncated, info = envs.step(up)
    assert terminated.tolist() == [True, False, False] and not truncated.any()
    assert info["final_info"]["success"].tolist() == [True, False, False]
    assert info["_final_info"].tolist() == [True, False, False]
    assert not info["success"].any(), "the new episode has not succeeded"
    np.testing.assert_allclose(info["final_obs"][0], [5.0, 7.5], atol=0.06)
    assert np.abs(states[0]).max() <= 0.31, "started again"
    assert envs.batch.steps.tolist() == [0, 1, 1]
    kept = states.copy()
    envs.step(up)
    np.testing.assert_array_equal(states, kept)


def test_episode_statistics_wrapper() -> None:
    envs = RecordEpisodeStatistics(TaskVectorEnv(4, **CAR))
    envs.reset(seed=0)
    for _ in range(20):
        *_, info = envs.step(np.full((4, 2), [-1.0, 0.0], dtype=np.float32))
    assert info["episode"]["l"].tolist() == [20] * 4


# --- rendering --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("benchmark", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_frames(name: str, benchmark: bool) -> None:
    what: dict[str, Any] = {"benchmark": BENCHMARKS[name]} if benchmark else edge_of(name)
    env = TaskEnv(**what, render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    for _ in range(3):
        env.step(np.full(env.action_space.shape, 0.4, dtype=np.float32))  # type: ignore[arg-type]
    later = env.render()
    assert first is not None and later is not None and first.shape == later.shape
    assert 0.0 < (first != later).any(axis=-1).mean() < 0.2, "only the agent, its trail and the count have changed"
    env.reset(seed=0)
    np.testing.assert_array_equal(env.render(), first)


def test_frames_show_the_outcome(drive: Any) -> None:
    def outcomes(goal: tuple[float, float], steps: int) -> list[str]:
        env = TaskEnv(**OBSTACLE, render_mode="rgb_array")
        state, _ = env.reset(seed=0, options={"state": [5.0, 4.9]})
        for _ in range(steps):
            state, *_ = env.step(drive(state, goal))
        frame = env.render()
        assert frame is not None
        pill = frame[:BANNER, 380:].reshape(-1, 3)
        colors = {"running": QUIET, "success": OUTCOMES["success"], "unsafe": OUTCOMES["unsafe"]}
        counts = {
            name: (pill == [round(255 * c) for c in to_rgb(color)]).all(axis=-1) for name, color in colors.items()
        }
        return [name for name, count in counts.items() if count.sum() > 100]

    assert outcomes((5, 8), 1) == ["running"]
    assert outcomes((5, 8), 4) == ["success"]
    assert outcomes((3.4, 3.7), 2) == ["unsafe"]


def test_frames_of_many() -> None:
    envs = gymnasium.make_vec("dibs/Car2D-v0", num_envs=3, render_mode="rgb_array", **CAR)
    envs.reset(seed=0)
    for _ in range(25):  # across a restart
        envs.step(np.full((3, 2), [0.0, 1.0], dtype=np.float32))
    frames = envs.render()
    assert frames is not None and len(frames) == 3
    assert not np.array_equal(frames[0], frames[1])


def test_no_frames_unless_asked() -> None:
    env = TaskEnv(**CAR)
    env.reset()
    assert env.render() is None and env.batch.trail is None


# --- errors -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "message"),
    [
        ([np.nan, 0.0], "action: nan at position"),
        ([0.0], "length 2"),
        ([0.0, 0.0, 0.0], "length 2"),
        ([[0.0, 0.0]], r"expected shape \(2,\)"),
        (["left", "right"], "expected numbers"),
    ],
)
def test_bad_actions(action: Any, message: str) -> None:
    env = TaskEnv(**CAR)
    env.reset(seed=0)
    with pytest.raises(DibsError, match=message):
        env.step(action)
    state, *_ = env.step(np.zeros(2, dtype=np.float32))
    again = TaskEnv(**CAR)
    again.reset(seed=0)
    np.testing.assert_array_equal(again.step(np.zeros(2, dtype=np.float32))[0], state, "nothing was drawn")


def test_bad_batches_of_actions() -> None:
    envs = TaskVectorEnv(3, **CAR)
    envs.reset(seed=0)
    with pytest.raises(DibsError, match=r"expected shape \(3, 2\), found \(2, 2\)"):
        envs.step(np.zeros((2, 2), dtype=np.float32))
    with pytest.raises(DibsError, match=r"nan at position \(1, 0\)"):
        envs.step(np.array([[0, 0], [np.nan, 0], [0, 0]], dtype=np.float32))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "pass family= .* or benchmark="),
        ({**CAR, "environment": "Car3D"}, "unknown environment 'Car3D'. Did you mean 'Car2D'"),
        ({"family": "car2d-rech"}, "Did you mean 'car2d-reach'"),
        ({"family": "nowhere.yaml"}, "nowhere.yaml: no such family file"),
        (
            {"family": "simpledrone-reach", "environment": "Car2D"},
            "of SimpleDrone, not of Car2D: make dibs/SimpleDrone-v0",
        ),
        ({"benchmark": "simpledrone-reach-k1", "environment": "Car2D"}, "make dibs/SimpleDrone-v0"),
        ({"benchmark": "car2d-reach-k9"}, "unknown benchmark"),
        ({"benchmark": "car2d-reach-k1", "edge": "start>g1"}, "leave out family, edge"),
        ({"benchmark": "car2d-reach-k1", "family": "car2d-reach"}, "leave out family, edge"),
        ({"family": "car2d-reach", "edge": "g1>g9"}, "unknown edge"),
        ({"family": "car2d-reach", "specification": "achieve reach(g9)"}, "unknown region of car2d-reach 'g9'"),
        ({**CAR, "index": -1}, "expected a whole number"),
        ({**CAR, "render_mode": "human"}, "unknown render mode"),
    ],
)
def test_bad_arguments(kwargs: dict[str, Any], message: str) -> None:
    for kind in (TaskEnv, TaskVectorEnv):
        with pytest.raises(DibsError, match=message):
            kind(**kwargs)


def test_bad_options_and_order() -> None:
    env = TaskEnv(**CAR)
    with pytest.raises(DibsError, match="call reset"):
        env.step(np.zeros(2, dtype=np.float32))
    with pytest.raises(DibsError, match=r"unknown reset option 'stat'\. Did you mean 'state'"):
        env.reset(options={"stat": [0.0, 0.0]})
    with pytest.raises(DibsError, match="nan"):
        env.reset(options={"state": [0.0, np.nan]})
    with pytest.raises(DibsError, match="expected"):
        env.reset(options={"state": np.zeros((3, 2))})
    with pytest.raises(DibsError, match="at least 1"):
        TaskVectorEnv(0, **CAR)


def test_any_index_beyond_the_last() -> None:
    task = make_task(**CAR, index=100).task
    assert isinstance(task, EdgeTask) and task.edges.target.center[0, 0].tolist() == [55.0, 8.0]
