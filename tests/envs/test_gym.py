"""Gymnasium environments: the library's own checkers, one meaning in every form, every promise kept."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from dibs.envs import ENVIRONMENTS, Reacher
from dibs.envs.base import truncated_normal
from dibs.envs.gym import FIRST_FAMILY, EdgeTask, TaskEnv, TaskVectorEnv, make_task
from dibs.envs.sb3 import ReachAvoidVecEnv
from dibs.errors import DibsError
from dibs.families import Family, get_benchmark, get_family, load_family, reach_avoid
from dibs.spectrl import parse, satisfied

BENCHMARKS = {
    "Car2D": "car2d-choice-l2",
    "Reacher": "reacher-drop-opposite-9",
    "SimpleDrone": "simpledrone-reach-k2",
    "DroneAttitude": "droneattitude-reach-k3",
}
NAMES = sorted(FIRST_FAMILY)
OBSTACLE: dict[str, Any] = {
    "family": "car2d-reach-obs",
    "index": 0,
}  # o1 is [2.7, 4.1] × [3.0, 4.4], g1 is [4, 6] × [7, 9]


def task_of(family: str, edge: int = 0, index: int = 0) -> Any:
    chosen = get_family(family)
    return reach_avoid(chosen, [index], [chosen.edges[edge].name])


def hold(positions: np.ndarray) -> np.ndarray:
    """Reacher actions that hold the arm at the given positions, once it is there."""
    theta1, theta2 = Reacher().joints(positions)
    return np.stack([(theta1 / np.pi - 0.25) / 0.75, (theta2 / np.pi - 0.5) / 0.5], axis=-1)


def still(family: str) -> Family:
    """The family without noise in its steps."""
    described = get_family(family).model_dump()
    return load_family({**described, "environment": {"name": described["environment"]["name"], "noise": 0.0}})


# --- registration and checkers ----------------------------------------------------------------------------


def test_every_environment_is_registered() -> None:
    assert set(FIRST_FAMILY) == set(ENVIRONMENTS)
    code = (
        "import gymnasium as g; e = g.make('dibs.envs.gym:dibs/Car2D-v0'); print(e.reset(seed=0)[0].shape);"
        "import sys; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["(2,)", "False"], done.stderr


@pytest.mark.filterwarnings("ignore:.*Box observation space m.*infinity")
@pytest.mark.parametrize("what", [{}, {"benchmark": True}, {"index": 3, "edge": 1}])
@pytest.mark.parametrize("name", NAMES)
def test_checkers_pass(name: str, what: dict[str, Any]) -> None:
    from stable_baselines3.common.env_checker import check_env as sb3_check_env

    kwargs = dict(what)
    if "benchmark" in kwargs:
        kwargs["benchmark"] = BENCHMARKS[name]
    if "edge" in kwargs:
        kwargs["edge"] = get_family(FIRST_FAMILY[name]).edges[1].name
    env = gymnasium.make(f"dibs/{name}-v0", **kwargs)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", message=".*infinity.*")  # positions are unbounded
        check_env(env.unwrapped)
        sb3_check_env(env.unwrapped)


def test_specification_of_an_environment_makes_it_again() -> None:
    env = gymnasium.make("dibs/Car2D-v0", family="car2d-reach", index=5, edge="g2>g3")
    assert env.spec is not None
    again = gymnasium.make(gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    np.testing.assert_array_equal(env.reset(seed=1)[0], again.reset(seed=1)[0])


def test_make_vec_takes_the_native_one() -> None:
    envs = gymnasium.make_vec("dibs/Reacher-v0", num_envs=6, vectorization_mode="vector_entry_point")
    assert isinstance(envs, TaskVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    states, _ = envs.reset(seed=0)
    assert states.shape == (6, 2) and states in envs.observation_space
    assert isinstance(gymnasium.make_vec("dibs/Reacher-v0", num_envs=2), TaskVectorEnv), "by default, too"


def test_a_family_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: mine\nenvironment: {name: Car2D, speed: 0.5}\nspecification: achieve reach(home)\n"
        "start: {center: [0, 0], noise: 0.1}\n"
        "regions: {home: {center: [3, 0], half_width: 0.5, shift: [1, 0]}}\n"
        "last_index: 4\nhorizon: 12\nnetwork: {hidden: [8]}\n"
    )
    env = TaskEnv("Car2D", family=str(path), index=2, render_mode="rgb_array")
    state, _ = env.reset(seed=0)
    for _ in range(12):
        state, _, terminated, truncated, info = env.step(np.array([1.0, 0.0], dtype=np.float32))
        if terminated or truncated:
            break
    assert info["success"] and 4.5 <= state[0] <= 5.5
    assert env.render() is not None


# --- one meaning in every form ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_all_forms_give_the_same_trajectories(name: str, tape: Any) -> None:
    """Pure functions, Env, VectorEnv and SB3's VecEnv, on the same noise and actions."""
    n, steps = 5, 6
    task = EdgeTask(task_of(FIRST_FAMILY[name]))
    dim, m = len(task.dynamics.state_names), len(task.dynamics.action_names)
    rng = np.random.default_rng(0)
    uniforms = rng.random((steps + 1, n, dim), dtype=np.float32)
    actions = rng.uniform(-1.2, 1.2, (steps, n, m)).astype(np.float32)

    states = task.initial(uniforms[0])
    seen = task.begin(states)
    pure = [states]
    rewards = []
    for t in range(steps):
        states = task.dynamics.step(states, actions[t], truncated_normal(uniforms[t + 1]))
        seen = task.watch(seen, states)
        pure.append(states)
        rewards.append(task.reward(seen))

    envs = TaskVectorEnv(name, n)
    envs.np_random = tape(uniforms)
    vector = [envs.reset()[0]]
    sb3: Any = ReachAvoidVecEnv(task.task, n, rng=tape(uniforms))
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
        env = TaskEnv(name)
        env.np_random = tape(uniforms, i)
        np.testing.assert_allclose(env.reset()[0], pure[0][i], rtol=0, atol=1e-6)
        for t in range(steps):
            state, single, *_ = env.step(actions[t, i])
            np.testing.assert_allclose(state, pure[t + 1][i], rtol=0, atol=1e-5)
            assert single == pytest.approx(rewards[t][i], abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_one_seed_gives_one_story_across_episodes(name: str) -> None:
    """With one environment the draws come in the same order in every form, restarts included."""
    env, envs = TaskEnv(name), TaskVectorEnv(name, 1)
    sb3: Any = ReachAvoidVecEnv(task_of(FIRST_FAMILY[name]), 1)
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
    env, envs = TaskEnv("SimpleDrone"), TaskVectorEnv("SimpleDrone", 3)
    for one in (env, envs):
        first, second, other = (one.reset(seed=s)[0] for s in (5, 5, 6))
        np.testing.assert_array_equal(first, second)
        assert (first != other).all()
    states, _ = envs.reset(seed=5)
    assert len(np.unique(states)) == states.size, "no two environments share their noise"


def test_starts_are_states() -> None:
    """The arm's lowest pick region reaches below the floor; no episode does."""
    task = EdgeTask(task_of("reacher-stack-same-8", edge=1))
    states = task.initial(np.random.default_rng(0).random((500, 2), dtype=np.float32))
    assert states[:, 1].min() == 0.0
    env = TaskEnv("Reacher", edge="pick>place")
    for seed in range(20):
        assert env.reset(seed=seed)[0] in env.observation_space


# --- what an edge's episode means -------------------------------------------------------------------------


def test_reaching_ends_the_episode(drive: Any) -> None:
    env = TaskEnv("Car2D")
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
    env = TaskEnv("Car2D")
    env.reset(seed=0)
    stay = np.array([-1.0, 0.0], dtype=np.float32)
    ends = [env.step(stay)[2:] for _ in range(20)]
    assert [truncated for _, truncated, _ in ends] == [False] * 19 + [True]
    assert not any(terminated or info["success"] for terminated, _, info in ends)


def test_reaching_at_the_horizon_is_no_cut() -> None:
    """Twenty steps are enough for 19 units: the goal is reached in the last one, or missed in it."""
    env = TaskEnv("Car2D", family=still("car2d-reach"))
    up = np.array([1.0, 0.5], dtype=np.float32)
    for start, reached in ((-12.5, True), (-13.5, False)):
        env.reset(seed=0, options={"state": [5.0, start]})
        ends = [env.step(up)[2:] for _ in range(20)]
        assert not any(terminated or truncated for terminated, truncated, _ in ends[:-1])
        terminated, truncated, info = ends[-1]
        assert (terminated, truncated, info["success"]) == (reached, not reached, reached)


def test_once_unsafe_never_a_success(drive: Any) -> None:
    env = TaskEnv("Car2D", **OBSTACLE)
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
    env = TaskEnv("Car2D", **OBSTACLE)
    state, info = env.reset(options={"state": [4.0, 4.3]}, seed=0)  # just inside the obstacle's corner
    assert not info["unsafe"]
    terminated = False
    while not terminated:
        state, _, terminated, _, info = env.step(drive(state, (5, 8)))
    assert info["success"]


def test_rewards_are_the_tasks() -> None:
    task = task_of("car2d-reach-obs")
    env = TaskEnv("Car2D", **OBSTACLE)
    env.reset(seed=3)
    env.action_space.seed(3)
    for _ in range(20):
        state, reward, *_ = env.step(env.action_space.sample())
        batch = state[None, None]
        assert reward == task.reward(task.target_distance(batch), task.safe_distance(batch))[0, 0]


# --- whole specifications ---------------------------------------------------------------------------------


def test_stages_of_a_benchmark(drive: Any) -> None:
    env = TaskEnv("Car2D", benchmark="car2d-reach-k3", index=4)
    goals = [(7.0, 8.0), (12.0, 16.0), (17.0, 24.0)]
    state, info = env.reset(seed=0)
    assert info == {"stage": 0, "satisfied": False, "violated": False, "success": False}
    terminated, stages = False, [0]
    while not terminated:
        state, reward, terminated, truncated, info = env.step(drive(state, goals[info["stage"]]))
        assert not truncated
        grew = info["stage"] - stages[-1]
        assert (grew == 1) == bool(stages[-1] < 3 and (np.abs(state - goals[stages[-1]]) <= 1).all())
        assert (reward > -1.0 + grew) and (reward <= grew)
        stages.append(info["stage"])
    assert info == {"stage": 3, "satisfied": True, "violated": False, "success": True}
    assert sorted(set(stages)) == [0, 1, 2, 3] and stages == sorted(stages)
    assert reward == 1.0, "nothing left to reach, and one stage more"


def test_a_violation_ends_and_never_pays(drive: Any) -> None:
    env = TaskEnv("Car2D", benchmark="car2d-reach-obs-k2")
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


@pytest.mark.parametrize(
    ("benchmark", "way"),
    [
        ("car2d-reach-obs-k2", [(5, 8), (10, 16)]),
        ("car2d-choice-l1", [(2, 8), (0, 16)]),
        ("reacher-stack-same-8", [(5, 0.3), (2.5, 5.1)]),
    ],
)
def test_the_answer_is_that_of_the_semantics(benchmark: str, way: list[Any], drive: Any) -> None:
    """Episodes that go astray, judged step by step and again from the recording."""
    family, text = get_benchmark(benchmark)
    n, rng = 128, np.random.default_rng(2)
    envs = TaskVectorEnv(family.environment.name, n, benchmark=benchmark)
    envs.action_space.seed(2)
    state, info = envs.reset(seed=1)
    recorded, running = [state], np.ones(n, dtype=bool)
    verdicts: np.ndarray = np.zeros(n, dtype=bool)
    lengths = np.ones(n, dtype=int)
    for _ in range(envs.batch.task.limit):
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
    states, spec = np.stack(recorded, axis=1), parse(text)
    for i in range(n):
        assert verdicts[i] == satisfied(spec, family.boxes(0), states[i, : lengths[i]]), i


# --- the vector environment's bookkeeping -----------------------------------------------------------------


def test_vector_infos_are_shaped_like_gymnasiums() -> None:
    """The same keys and kinds as its own SyncVectorEnv gives in the same mode."""
    mine = TaskVectorEnv("Car2D", 2)
    theirs = SyncVectorEnv([lambda: TaskEnv("Car2D")] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
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
    envs = TaskVectorEnv("Car2D", 3)
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
    envs = RecordEpisodeStatistics(TaskVectorEnv("Car2D", 4))
    envs.reset(seed=0)
    for _ in range(20):
        *_, info = envs.step(np.full((4, 2), [-1.0, 0.0], dtype=np.float32))
    assert info["episode"]["l"].tolist() == [20] * 4


# --- drawing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("benchmark", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_frames(name: str, benchmark: bool) -> None:
    env = TaskEnv(name, benchmark=BENCHMARKS[name] if benchmark else None, render_mode="rgb_array")
    env.reset(seed=0)
    first = env.render()
    for _ in range(3):
        env.step(np.full(env.action_space.shape, 0.4, dtype=np.float32))  # type: ignore[arg-type]
    later = env.render()
    assert first is not None and later is not None
    for frame in (first, later):
        assert frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3
        assert frame.shape[0] % 16 == frame.shape[1] % 16 == 0, "video encoders ask for it"
        assert len(np.unique(frame @ (1, 256, 65536))) > 20 and frame.std() > 5, "not blank"
    assert (first != later).any(axis=-1).mean() < 0.2, "only the agent, its trail and the count have changed"
    assert (first != later).any()
    env.reset(seed=0)
    np.testing.assert_array_equal(env.render(), first)


def test_frames_of_many() -> None:
    envs = gymnasium.make_vec("dibs/Car2D-v0", num_envs=3, render_mode="rgb_array")
    envs.reset(seed=0)
    for _ in range(25):  # across a restart
        envs.step(np.full((3, 2), [0.0, 1.0], dtype=np.float32))
    frames = envs.render()
    assert frames is not None and len(frames) == 3
    assert not np.array_equal(frames[0], frames[1])


def test_no_frames_unless_asked() -> None:
    env = TaskEnv("Car2D")
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
    env = TaskEnv("Car2D")
    env.reset(seed=0)
    with pytest.raises(DibsError, match=message):
        env.step(action)
    state, *_ = env.step(np.zeros(2, dtype=np.float32))
    again = TaskEnv("Car2D")
    again.reset(seed=0)
    np.testing.assert_array_equal(again.step(np.zeros(2, dtype=np.float32))[0], state, "nothing was drawn")


def test_bad_batches_of_actions() -> None:
    envs = TaskVectorEnv("Car2D", 3)
    envs.reset(seed=0)
    with pytest.raises(DibsError, match=r"expected shape \(3, 2\), found \(2, 2\)"):
        envs.step(np.zeros((2, 2), dtype=np.float32))
    with pytest.raises(DibsError, match=r"nan at position \(1, 0\)"):
        envs.step(np.array([[0, 0], [np.nan, 0], [0, 0]], dtype=np.float32))


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"environment": "Car3D"}, "unknown environment 'Car3D'. Did you mean 'Car2D'"),
        ({"family": "car2d-rech"}, "Did you mean 'car2d-reach'"),
        ({"family": "simpledrone-reach"}, "family of SimpleDrone, not of Car2D: make dibs/SimpleDrone-v0"),
        ({"benchmark": "simpledrone-reach-k1"}, "make dibs/SimpleDrone-v0"),
        ({"benchmark": "car2d-reach-k9"}, "unknown benchmark"),
        ({"benchmark": "car2d-reach-k1", "edge": "start>g1"}, "leave out family and edge"),
        ({"edge": "g1>g9"}, "unknown edge"),
        ({"index": -1}, "expected a whole number"),
        ({"render_mode": "human"}, "unknown render mode"),
    ],
)
def test_bad_arguments(kwargs: dict[str, Any], message: str) -> None:
    for make in (TaskEnv, TaskVectorEnv):
        with pytest.raises(DibsError, match=message):
            make(**{"environment": "Car2D", **kwargs})


def test_bad_options_and_order() -> None:
    env = TaskEnv("Car2D")
    with pytest.raises(DibsError, match="call reset"):
        env.step(np.zeros(2, dtype=np.float32))
    with pytest.raises(DibsError, match=r"unknown reset option 'stat'\. Did you mean 'state'"):
        env.reset(options={"stat": [0.0, 0.0]})
    with pytest.raises(DibsError, match="nan"):
        env.reset(options={"state": [0.0, np.nan]})
    with pytest.raises(DibsError, match="expected"):
        env.reset(options={"state": np.zeros((3, 2))})
    with pytest.raises(DibsError, match="at least 1"):
        TaskVectorEnv("Car2D", 0)
    with pytest.raises(DibsError, match=r"found 5: start>g1@0.*\.take"):
        EdgeTask(reach_avoid(get_family("car2d-reach"), [0]))


def test_any_index_beyond_the_last() -> None:
    task, _ = make_task("Car2D", index=100)
    assert isinstance(task, EdgeTask) and task.task.target_center[0, 0].tolist() == [55.0, 8.0]
