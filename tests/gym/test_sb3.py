"""The Stable-Baselines3 adapter: the library's contract, the recorder, and speed."""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import Wrapper
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from dibs.envs import Array, Car2D
from dibs.errors import DibsError
from dibs.families import ReachAvoid, get_family
from dibs.gym import TaskEnv
from dibs.gym.sb3 import EpisodeRecorder, FinishedEpisodes, ReachAvoidVecEnv

UP = np.array([1.0, 0.5], dtype=np.float32)  # Car2D: one unit up
STAY = np.array([-1.0, 0.0], dtype=np.float32)


def task_of(family: str = "car2d-reach", edge: int = 0, index: int = 0) -> ReachAvoid:
    chosen = get_family(family)
    return chosen.tasks([index]).reach_avoid(edges=[chosen.edges[edge].name])


def make(n: int, **kwargs: Any) -> Any:
    return ReachAvoidVecEnv(task_of(), n, rng=np.random.default_rng(0), **kwargs)


# --- the contract of a VecEnv -----------------------------------------------------------------------------


def test_infos_of_an_end() -> None:
    """One environment reaches its goal in this step, one runs out of time, one goes on."""
    env = make(3)
    env.reset()
    for _ in range(19):
        env.step(np.tile(STAY, (3, 1)))
    env.batch.states[:] = [[5.0, 6.5], [0.0, 0.0], [1.0, 1.0]]
    env.batch.steps[2] = 3
    observed, reward, done, infos = env.step(np.tile(UP, (3, 1)))
    assert done.tolist() == [True, True, False] and done.dtype == bool
    assert reward.dtype == np.float32 and reward[0] == 0.0 and (reward[1:] < 0).all()
    np.testing.assert_allclose(infos[0]["terminal_observation"], [5.0, 7.5], atol=0.06)
    np.testing.assert_allclose(infos[1]["terminal_observation"], [0.0, 1.0], atol=0.06)
    assert [infos[i]["TimeLimit.truncated"] for i in (0, 1)] == [False, True]
    assert [infos[i]["is_success"] for i in (0, 1)] == [True, False]
    assert [infos[i]["episode"]["l"] for i in (0, 1)] == [20, 20]
    assert infos[2] == {}
    assert np.abs(observed[:2]).max() <= 0.31, "the next episodes have begun"
    np.testing.assert_allclose(observed[2], [1.0, 2.0], atol=0.06)
    assert env.batch.steps.tolist() == [0, 0, 4]


def test_reaching_in_the_last_step_is_no_cut() -> None:
    env = make(1)
    env.reset()
    env.batch.states[:], env.batch.steps[:] = (5.0, 6.5), 19
    _, _, done, infos = env.step(UP[None])
    assert done[0] and not infos[0]["TimeLimit.truncated"] and infos[0]["is_success"]


def test_unsafe_is_no_success() -> None:
    env = ReachAvoidVecEnv(task_of("car2d-reach-obs"), 2, rng=np.random.default_rng(0))
    env.set_options({"state": np.array([3.4, 2.4])})
    env.reset()
    _, reward, done, _ = env.step(np.tile(UP, (2, 1)))
    assert (reward < -10).all() and not done.any()
    env.batch.states[:] = [[5.0, 6.5], [0.0, 0.0]]
    *_, infos = env.step(np.tile(UP, (2, 1)))
    assert infos[0]["is_success"] is False and infos[0]["TimeLimit.truncated"] is False
    env.batch.states[:] = [5.0, 6.5]
    *_, infos = env.step(np.tile(UP, (2, 1)))
    assert [info["is_success"] for info in infos] == [True, False], "a new episode has a clean slate"


@pytest.mark.parametrize("family", ["car2d-reach-obs", "reacher-drop-same-8", "droneattitude-reach"])
def test_agrees_with_dummy_vec_env(family: str) -> None:
    """One seeded environment behaves as Stable-Baselines3's own VecEnv around `TaskEnv`."""
    dummy: Any = DummyVecEnv([lambda: TaskEnv(family, edge=get_family(family).edges[0].name)])
    native: Any = ReachAvoidVecEnv(task_of(family), 1)
    dummy.seed(3)
    native.seed(3)
    np.testing.assert_array_equal(native.reset(), dummy.reset())
    native.action_space.seed(0)
    for _ in range(65):
        action = native.action_space.sample()[None]
        mine, theirs = native.step(action), dummy.step(action)
        for a, b in zip(mine[:3], theirs[:3], strict=True):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
        if mine[2][0]:
            for key in ("terminal_observation", "TimeLimit.truncated"):
                np.testing.assert_array_equal(mine[3][0][key], theirs[3][0][key])
            assert mine[3][0]["is_success"] == theirs[3][0]["success"]


def test_episode_returns_and_lengths() -> None:
    env = make(7)
    env.reset()
    rng = np.random.default_rng(1)
    returns, lengths, checked = np.zeros(7), np.zeros(7, dtype=int), 0
    for _ in range(100):
        _, reward, done, infos = env.step(rng.uniform(-1, 1, (7, 2)).astype(np.float32))
        returns, lengths = returns + reward, lengths + 1
        for i in np.flatnonzero(done):
            assert infos[i]["episode"]["r"] == pytest.approx(returns[i], abs=1e-5)
            assert infos[i]["episode"]["l"] == lengths[i]
            assert infos[i]["episode"]["t"] >= 0.0
            returns[i] = lengths[i] = 0
            checked += 1
    assert checked >= 35
    quiet = make(2, episode_info=False)
    quiet.reset()
    for _ in range(20):
        *_, infos = quiet.step(np.tile(STAY, (2, 1)))
    assert "episode" not in infos[0] and "terminal_observation" in infos[0]


def test_infos_survive_a_caller_that_writes_into_them() -> None:
    env = make(3)
    env.reset()
    *_, infos = env.step(np.tile(STAY, (3, 1)))
    infos[1]["mine"] = 1
    infos[2] = {"replaced": True}
    *_, infos = env.step(np.tile(STAY, (3, 1)))
    assert infos == [{}, {}, {}]
    assert len({id(info) for info in infos}) == 3, "one for each"


def test_returned_arrays_belong_to_the_caller() -> None:
    env, twin = make(4), make(4)
    for one in (env, twin):
        one.reset()[:] = np.nan
    for _ in range(25):
        mine, theirs = env.step(np.tile(UP, (4, 1))), twin.step(np.tile(UP, (4, 1)))
        np.testing.assert_array_equal(mine[0], theirs[0])
        for array in mine[:3]:
            array[...] = 1
        for info in mine[3]:
            info.get("terminal_observation", np.zeros(1))[:] = 1


def test_seeds() -> None:
    def run(env: Any, seed: int | None = None) -> np.ndarray:
        if seed is not None:
            env.seed(seed)
        return np.stack([env.reset(), *(env.step(np.tile(STAY, (5, 1)))[0] for _ in range(25))])

    env = make(5)
    np.testing.assert_array_equal(run(env, 1), run(env, 1))
    assert (run(env, 2) != run(env, 1)).all()
    assert (run(env) != run(env)).all(), "without a new seed the stream goes on"
    np.testing.assert_array_equal(run(make(5)), run(make(5)))
    one = run(env, 1)[0]
    assert len(np.unique(one)) == one.size, "no two environments share their noise"


def test_scaled_observations() -> None:
    center, half = np.array([2.5, 4.0]), np.array([5.0, 8.0])
    raw, scaled = make(6), make(6, scale=(center, half))
    np.testing.assert_allclose(scaled.reset(), (raw.reset() - center) / half, atol=1e-6)
    for _ in range(21):
        mine, theirs = scaled.step(np.tile(UP, (6, 1))), raw.step(np.tile(UP, (6, 1)))
        assert mine[0].dtype == np.float32
        np.testing.assert_allclose(mine[0], (theirs[0] - center) / half, atol=1e-6)
        np.testing.assert_array_equal(mine[1], theirs[1])
        for a, b in zip(mine[3], theirs[3], strict=True):
            if a:
                last = (b["terminal_observation"] - center) / half
                np.testing.assert_allclose(a["terminal_observation"], last, atol=1e-6)
    arm: Any = ReachAvoidVecEnv(task_of("reacher-stack-same-8"), 1, scale=([0.0, 5.0], [10.0, 5.0]))
    assert arm.observation_space.low.tolist() == [-1, -1] and arm.observation_space.high.tolist() == [1, 1]
    with pytest.raises(DibsError, match="scale half: expected numbers above 0"):
        make(1, scale=(0.0, [1.0, 0.0]))


def test_attributes() -> None:
    env = make(3)
    assert env.get_attr("render_mode") == [None] * 3
    assert env.get_attr("num_envs", indices=[0, 2]) == [3, 3]
    assert env.has_attr("batch") and not env.has_attr("nothing")
    env.set_attr("note", 1)
    assert env.get_attr("note") == [1, 1, 1]
    assert env.env_is_wrapped(Wrapper) == [False] * 3
    with pytest.raises(DibsError, match="share their attributes"):
        env.set_attr("note", 2, indices=0)
    with pytest.raises(DibsError, match="have no methods"):
        env.env_method("reset")
    env.close()


def test_bad_input() -> None:
    env = make(3)
    with pytest.raises(DibsError, match="call reset"):
        env.step(np.zeros((3, 2)))
    env.reset()
    with pytest.raises(DibsError, match=r"nan at position \(2, 1\)"):
        env.step(np.array([[0, 0], [0, 0], [0, np.nan]]))
    with pytest.raises(DibsError, match=r"expected shape \(3, 2\), found \(2,\)"):
        env.step(np.zeros(2))
    with pytest.raises(DibsError, match="length 2"):
        env.step(np.zeros((3, 3)))
    with pytest.raises(DibsError, match=r"one reach-avoid task, found 5: start>g1@0.*\.take"):
        ReachAvoidVecEnv(get_family("car2d-reach").tasks([0]).reach_avoid(), 4)
    with pytest.raises(DibsError, match="at least 1"):
        make(0)
    env.set_options([{"state": [0.0, 0.0]}, {}, {}])
    with pytest.raises(DibsError, match="for every environment or for none"):
        env.reset()
    env.set_options([{"state": [float(i), 0.0]} for i in range(3)])
    np.testing.assert_array_equal(env.reset(), [[0, 0], [1, 0], [2, 0]])


@pytest.mark.parametrize("n", [1, 2, 4096])
def test_any_number_of_environments(n: int) -> None:
    env: Any = ReachAvoidVecEnv(task_of("droneattitude-reach", edge=1, index=7), n, rng=np.random.default_rng(0))
    assert env.reset().shape == (n, 5)
    for _ in range(21):
        observed, reward, done, infos = env.step(np.zeros((n, 5), dtype=np.float32))
        assert observed.shape == (n, 5) and reward.shape == done.shape == (n,) and len(infos) == n
        assert np.isfinite(observed).all() and np.isfinite(reward).all()


def test_wrappers_of_the_library() -> None:
    env = VecNormalize(VecMonitor(make(8, episode_info=False)), gamma=0.99)
    env.reset()
    rng = np.random.default_rng(0)
    ends = 0
    for _ in range(45):
        _, _, done, infos = env.step(rng.uniform(-1, 1, (8, 2)).astype(np.float32))
        ends += sum("episode" in infos[i] for i in np.flatnonzero(done))
    assert ends >= 16


class Compass(Car2D):
    """A car that observes its distance from the origin and its bearing, but not its position."""

    def observe(self, states: Array) -> Array:
        x, y = states[..., 0], states[..., 1]
        bearing = np.arctan2(y, x)
        return np.stack([np.hypot(x, y), np.cos(bearing), np.sin(bearing)], axis=-1)


def test_observations_that_are_not_states() -> None:
    """The agent gets scaled observations; the recorder gets states; dynamics and rewards are those of the states."""
    center, half = np.array([5.0, 0.0, 0.5]), np.array([5.0, 1.0, 2.0])
    plain = make(4)
    recorder = EpisodeRecorder()
    compass = replace(task_of(), environment=Compass())
    env: Any = ReachAvoidVecEnv(compass, 4, rng=np.random.default_rng(0), scale=(center, half), recorder=recorder)
    assert env.observation_space.shape == (3,)

    def expected(states: Any) -> Any:
        return (Compass().observe(np.asarray(states)) - center) / half

    states = plain.reset()
    np.testing.assert_allclose(env.reset(), expected(states), atol=1e-6)
    visited = [states]
    for _ in range(20):
        states, reward, _, infos = plain.step(np.tile(STAY, (4, 1)))
        mine = env.step(np.tile(STAY, (4, 1)))
        assert mine[0].dtype == np.float32
        np.testing.assert_allclose(mine[0], expected(states), atol=1e-6)
        np.testing.assert_array_equal(mine[1], reward)
        visited.append(states)
    last = np.stack([info["terminal_observation"] for info in infos])
    np.testing.assert_allclose([info["terminal_observation"] for info in mine[3]], expected(last), atol=1e-6)
    np.testing.assert_array_equal(drained(recorder).states, np.stack([*visited[:-1], last], axis=1))


# --- the recorder -----------------------------------------------------------------------------------------


def drained(recorder: EpisodeRecorder) -> FinishedEpisodes:
    episodes = recorder.drain()
    assert episodes is not None
    return episodes


def test_recorder_keeps_whole_episodes() -> None:
    n = 9
    recorder = EpisodeRecorder(capacity=64)
    env = make(n, recorder=recorder)
    running: list[list[np.ndarray]] = [[state] for state in env.reset()]
    expected: list[tuple[list[np.ndarray], bool]] = []
    rng = np.random.default_rng(5)
    for _ in range(60):
        action = rng.uniform(-1, 1, (n, 2)).astype(np.float32)
        action[: n // 2] = [1.0, 0.32]  # to the goal
        observed, _, done, infos = env.step(action)
        for i in range(n):
            running[i].append(infos[i]["terminal_observation"] if done[i] else observed[i])
            if done[i]:
                expected.append((running[i], infos[i]["is_success"]))
                running[i] = [observed[i]]
    assert len(recorder) == len(expected)
    episodes = drained(recorder)
    assert len(recorder) == 0
    assert episodes.states.shape == (len(expected), 21, 2)
    for k, (states, success) in enumerate(expected):
        assert episodes.length[k] == len(states) and episodes.success[k] == success
        np.testing.assert_array_equal(episodes.states[k, : len(states)], states)
        assert not episodes.states[k, len(states) :].any()
    assert 0 < episodes.success.mean() < 1
    assert recorder.drain() is None, "handed over once"


@pytest.mark.parametrize("capacity", [1, 3, 7, 100])
def test_recorder_is_bounded(capacity: int) -> None:
    """The last `capacity` episodes stay, in order, however many end at once."""
    recorder, rng, labels = EpisodeRecorder(capacity), np.random.default_rng(0), list[float]()
    for _ in range(12):
        states = np.arange(len(labels), len(labels) + rng.integers(1, 6), dtype=np.float32)
        labels += states.tolist()
        length = rng.integers(1, 4, len(states))
        recorder.keep(np.broadcast_to(states[:, None, None], (len(states), 3, 1)), length, states > 2)
        assert len(recorder) < capacity + 5
    episodes = drained(recorder)
    assert episodes.states[:, 0, 0].tolist() == labels[-capacity:]
    assert episodes.success.tolist() == [label > 2 for label in labels[-capacity:]]


def test_recorder_forgets_what_a_reset_interrupts() -> None:
    recorder = EpisodeRecorder()
    env = make(2, recorder=recorder)
    env.reset()
    for _ in range(7):
        env.step(np.tile(STAY, (2, 1)))
    env.reset()
    for _ in range(20):
        env.step(np.tile(STAY, (2, 1)))
    assert drained(recorder).length.tolist() == [21, 21]


# --- in use -----------------------------------------------------------------------------------------------


def test_ppo_learns_on_it() -> None:
    """A few updates, without one warning; returns and successes arrive in the library's own buffers."""
    recorder = EpisodeRecorder()
    env = ReachAvoidVecEnv(
        task_of("simpledrone-reach"),
        64,
        scale=([2.5, 4.0, 2.0], [5.0, 8.0, 4.0]),
        recorder=recorder,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = PPO("MlpPolicy", env, n_steps=32, batch_size=512, n_epochs=4, learning_rate=3e-3, seed=0, device="cpu")
        model.set_logger(Logger(None, []))
        model.learn(64 * 32 * 2)
        early = np.mean([episode["r"] for episode in model.ep_info_buffer])  # type: ignore[union-attr]
        model.learn(64 * 32 * 8, reset_num_timesteps=False)
    late = np.mean([episode["r"] for episode in model.ep_info_buffer])  # type: ignore[union-attr]
    assert late > early + 1.0
    assert len(model.ep_success_buffer) == 100  # type: ignore[arg-type]
    assert len(recorder) > 1000 and drained(recorder).success.any()


def test_faster_than_environments_one_by_one(record_property: Any) -> None:
    """CPU time per environment step against Stable-Baselines3's DummyVecEnv around single environments."""
    n, steps = 64, 40
    actions = np.random.default_rng(0).uniform(-1, 1, (steps, n, 2)).astype(np.float32)

    def best(env: Any, repeats: int) -> float:
        env.reset()
        times = []
        for _ in range(repeats):
            begun = time.process_time()
            for action in actions:
                env.step(action)
            times.append(time.process_time() - begun)
        return min(times) / (steps * n)

    one_by_one = best(DummyVecEnv([lambda: TaskEnv("car2d-reach", edge="start>g1")] * n), 3)
    batched = best(make(n), 10)
    record_property("ratio", one_by_one / batched)
    print(f"\n{1e6 * one_by_one:.1f} µs one by one, {1e6 * batched:.2f} µs batched: {one_by_one / batched:.0f}×")
    assert one_by_one > 5 * batched
