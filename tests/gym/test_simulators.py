"""Gymnasium environments as environments of families: physics, restoring, quantities, errors, and later edges."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from dibs.errors import DibsError
from dibs.families import Family, load_family
from dibs.gym.simulators import GymnasiumEnvironment
from dibs.policies.scaling import edge_scaling
from dibs.simulation import EdgeTask, draw
from dibs.teachers.train import TeacherSettings, random_resets, resolve, train_teacher

pytest.importorskip("mujoco")
FILE = Path(__file__).parents[2] / "examples/families/reacher-torque.yaml"
TIP = {"tip_x": {"body": "fingertip", "axis": "x"}, "tip_y": {"body": "fingertip", "axis": "y"}}


@pytest.fixture(scope="module")
def family() -> Family:
    return load_family(FILE)


@pytest.fixture(scope="module")
def reacher() -> GymnasiumEnvironment:
    return GymnasiumEnvironment("Reacher-v5", TIP)


def states_of(environment: GymnasiumEnvironment, count: int = 16) -> np.ndarray:
    rng = np.random.default_rng(0)
    states = np.zeros((count, len(environment.state_names)), dtype=np.float32)
    states[:, :2] = rng.uniform(-2, 2, (count, 2))
    states[:, 4:6] = rng.uniform(-5, 5, (count, 2))
    return environment.project(states)


def test_a_step_is_the_environments_own(reacher: GymnasiumEnvironment) -> None:
    states = states_of(reacher)
    actions = np.random.default_rng(1).uniform(-1, 1, (len(states), 2)).astype(np.float32)
    after = reacher.step(states, actions, states)
    env = gymnasium.make("Reacher-v5").unwrapped
    env.reset(seed=3)
    for row in range(len(states)):
        env.set_state(states[row, :4].astype(float), states[row, 4:8].astype(float))
        env.data.qacc_warmstart[:] = 0.0
        observation, *_ = env.step(actions[row])
        np.testing.assert_allclose(after[row, :4], env.data.qpos, atol=1e-6)
        np.testing.assert_allclose(after[row, 4:8], env.data.qvel, rtol=1e-6, atol=1e-5)
        # After a step the environment's own fingertip lags behind; everything else agrees.
        np.testing.assert_allclose(after[row, 10:18], observation[:8], rtol=1e-5, atol=1e-5)


def test_restoring_is_exact_and_derived_variables_are_functions(reacher: GymnasiumEnvironment) -> None:
    states = states_of(reacher)
    actions = np.full((len(states), 2), 0.3, dtype=np.float32)
    once = reacher.step(states, actions, states)
    np.testing.assert_array_equal(once[::-1], reacher.step(states[::-1], actions, states))
    np.testing.assert_array_equal(once, reacher.project(once))
    theta0, theta1 = once[:, 0], once[:, 0] + once[:, 1]
    np.testing.assert_allclose(once[:, 8], 0.1 * np.cos(theta0) + 0.11 * np.cos(theta1), atol=1e-6)


def test_its_own_reset_follows_the_uniforms(reacher: GymnasiumEnvironment) -> None:
    uniforms = np.random.default_rng(0).random((3, len(reacher.state_names)), dtype=np.float32)
    first, second = reacher.reset(uniforms), reacher.reset(uniforms)
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first[0], first[1])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"gymnasium": "Reach-v5"}, "Reach"),
        ({"gymnasium": "CartPole-v1"}, "continuous actions"),
        ({"gymnasium": "Reacher-v5", "quantities": {"q": {"state": "joint9"}}}, "Did you mean 'joint"),
        ({"gymnasium": "Reacher-v5", "quantities": {"q": {"body": "fingertop", "axis": "x"}}}, "fingertip"),
        ({"gymnasium": "Reacher-v5", "quantities": {"q": {"observation": 10}}}, "0 … 9"),
        ({"gymnasium": "Reacher-v5", "observation": ["tip"]}, "environment.observation"),
        ({"gymnasium": "Reacher-v5", "options": {"nonsense": 1}}, "options"),
        ({"gymnasium": "Pendulum-v1", "simulator": "os:system"}, "--allow-code"),
        ({"gymnasium": "os:Reacher-v5"}, "--allow-code"),
    ],
)
def test_errors_name_the_key(keys: dict, message: str) -> None:
    with pytest.raises(DibsError, match=message):
        GymnasiumEnvironment(**keys)


def test_missing_mujoco_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **kwargs: object) -> None:
        raise ModuleNotFoundError("No module named 'mujoco'")

    monkeypatch.setattr(gymnasium, "make", missing)
    with pytest.raises(DibsError, match=r"pip install 'dibs\[mujoco\]'"):
        GymnasiumEnvironment("Swimmer-v5")


class Pendulum:
    """Reads and restores Pendulum-v1."""

    def read(self, env: object) -> np.ndarray:
        return np.array(env.state)  # type: ignore[attr-defined]

    def restore(self, env: object, vector: np.ndarray) -> None:
        env.state = vector  # type: ignore[attr-defined]


class Forgetful(Pendulum):
    """Forgets the velocity."""

    def read(self, env: object) -> np.ndarray:
        return np.array(env.state[:1])  # type: ignore[attr-defined]

    def restore(self, env: object, vector: np.ndarray) -> None:
        env.state = np.array([vector[0], env.state[1]])  # type: ignore[attr-defined]


def test_a_simulator_object_is_used_and_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pendulum_code", sys.modules[__name__])
    monkeypatch.setenv("DIBS_ALLOW_CODE", "1")
    mine = GymnasiumEnvironment("Pendulum-v1", variables=["angle", "speed"], simulator="pendulum_code:Pendulum")
    builtin = GymnasiumEnvironment("Pendulum-v1")
    assert mine.state_names == ("angle", "speed", "obs0", "obs1", "obs2")
    states = builtin.project(np.array([[0.5, 1.0, 0, 0, 0]], dtype=np.float32))
    action = np.array([[0.4]], dtype=np.float32)
    np.testing.assert_array_equal(mine.step(states, action, states), builtin.step(states, action, states))
    np.testing.assert_allclose(states[0, 2:], [np.cos(0.5), np.sin(0.5), 1.0], rtol=1e-6)
    with pytest.raises(DibsError, match="not a function"):
        GymnasiumEnvironment("Pendulum-v1", simulator="pendulum_code:Forgetful")


def test_the_family_survives_saving(family: Family, tmp_path: Path) -> None:
    assert load_family(family.description_data()) == family
    (tmp_path / "f.yaml").write_text(family.to_yaml())
    assert load_family(tmp_path / "f.yaml") == family


def test_an_unknown_variable_in_a_region_is_named(family: Family) -> None:
    data = {**family.description_data(), "regions": {"pick": {"center": {"tip_z": 0.0}, "half_width": 0.1}}}
    with pytest.raises(DibsError, match=r"unknown state variable 'tip_z'.*Did you mean 'tip_"):
        load_family(data)


def test_later_edges_start_from_arrivals_and_wider(family: Family) -> None:
    tasks = family.tasks([0])
    first, second = tasks.edges
    assert not tasks.from_arrivals(first) and tasks.from_arrivals(second)
    known = np.zeros((5, len(family.environment.state_names)), dtype=np.float32)
    known[:, 0] = np.linspace(0.1, 0.5, 5)
    edges = tasks.arriving({(0, second.name): known}).reach_avoid()
    task = EdgeTask(edges)
    starts = draw(task, 50, np.random.default_rng(0)).starts
    assert set(np.round(starts[1, :, 0], 6)) <= set(np.round(known[:, 0], 6))
    assert np.abs(starts[0, :, 0]).max() <= 0.1
    wild = random_resets(task, 50, np.random.default_rng(0)).starts
    assert np.abs(wild[..., 0]).max() > 1.0
    np.testing.assert_array_equal(wild, family.environment.project(wild))
    # Without arrivals, starts are wide.
    assert np.abs(draw(EdgeTask(tasks.reach_avoid()), 50, np.random.default_rng(0)).starts[1, :, 0]).max() > 1.0


def hill(**regions: dict) -> Family:
    """A car in a valley; regions constrain its position, not its speed."""
    data = {
        "name": "hill",
        "environment": {"gymnasium": "MountainCarContinuous-v0", "variables": ["position", "velocity"]},
        "specification": "achieve reach(left); achieve reach(right)",
        "start": {"center": {"position": -0.5, "velocity": 0.0}, "wide": {"position": 0.2, "velocity": 0.05}},
        "regions": {
            "left": {"center": {"position": -0.8}, "half_width": 0.1},
            "right": {"center": {"position": 0.2}, "half_width": 0.1, "shift": {"position": 0.01}},
            **regions,
        },
        "last_index": 2,
        "horizon": 50,
        "network": {"hidden": [8]},
    }
    return load_family(data)


def test_what_a_source_leaves_free_is_as_the_edge_before_leaves_it() -> None:
    tasks = hill().tasks([0])
    second = tasks.edges[1]
    assert tasks.from_arrivals(second)
    known = np.zeros((5, 4), dtype=np.float32)
    known[:, 1] = np.linspace(-0.05, -0.01, 5)
    starts = draw(
        EdgeTask(tasks.arriving({(0, second.name): known}).reach_avoid()), 50, np.random.default_rng(0)
    ).starts
    assert set(starts[1, :, 1]) == set(known[:, 1])
    # Without arrivals, starts are wide around the middle of the source.
    states = draw(EdgeTask(tasks.reach_avoid()), 200, np.random.default_rng(0)).starts[1]
    assert abs(states[:, 0].mean() + 0.8) < 0.05 and 0.04 < np.abs(states[:, 1]).max() <= 0.05
    whole = {"center": {"position": -0.8, "velocity": 0.0}, "half_width": {"position": 0.1, "velocity": 0.02}}
    determined = hill(left=whole).tasks([0])
    assert not determined.from_arrivals(determined.edges[1])


def test_targets_beyond_the_range_of_a_quantity_are_doubtful(family: Family) -> None:
    data = family.description_data()
    pick = {"center": {"tip_x": 0.13, "tip_y": 0.1}, "half_width": 0.025, "shift": {"tip_y": 0.05}}
    (found,) = load_family({**data, "regions": {**data["regions"], "pick": pick}}).warnings()
    # The arm is 0.21 long, and the region begins at y = 0.275 at index 4.
    assert "regions.pick: out of reach at index 4? tip_y lies between -0.2" in found and "(and at 4 more)" in found
    assert hill().warnings() == ()


def test_the_range_of_an_angle_s_cosine_is_known_if_starts_do_not_turn_around() -> None:
    data = {
        "name": "cosine",
        "environment": {"gymnasium": "Pendulum-v1", "quantities": {"up": {"observation": 0}}},
        "specification": "achieve reach(a)",
        "start": {"center": {"s0": 3.0, "s1": 0.0}, "wide": {"s0": 1.0, "s1": 3.0}},
        "regions": {"a": {"center": {"up": 0.3}, "half_width": 0.1, "shift": {"up": 0.2}}},
        "last_index": 6,
        "horizon": 20,
        "teacher": "td3",
        "network": {"hidden": [8]},
    }
    (found,) = load_family(data).warnings()
    # The region begins at 1.2 at index 5; 0.1 beyond the range, at index 4.5, is what counts.
    assert "regions.a: out of reach at index 5? up lies between -1 and 1" in found and "(and at 1 more)" in found


def test_a_maze_limits_speeds_and_its_walls_are_solid() -> None:
    pytest.importorskip("gymnasium_robotics")
    maze = GymnasiumEnvironment("gymnasium_robotics:PointMaze_UMaze-v3", variables=["x", "y", "vx", "vy"])
    states = maze.project(np.array([[-1, 1, 100, 0, 0, 0, 0, 0], [-1, 1, 0, 0, 0, 0, 0, 0]], dtype=np.float32))
    action = np.array([[0.0, 0.0], [0.0, -1.0]], dtype=np.float32)
    states = maze.step(states, action, states)
    assert 4.0 < states[0, 2] <= 5.0
    for _ in range(100):
        states = maze.step(states, action, states)
    assert 0.55 < states[1, 1] < 0.65  # the wall ends at y = 0.5, and the ball's radius is 0.1
    seen = maze.observe(states)
    np.testing.assert_array_equal(seen, states[:, :4])


@pytest.mark.parametrize("index", range(9))
def test_doing_nothing_fails(family: Family, index: int) -> None:
    task = EdgeTask(family.tasks([index]).reach_avoid())
    states = draw(task, 16, np.random.default_rng(index)).starts
    states[1, :, :2] = 0.0
    states[1, :, 4:6] = 0.0
    states = family.environment.project(states)
    for _ in range(20):
        assert (task.target_distance(states) < 0.0).all()
        states = family.environment.step(states, np.zeros((*states.shape[:-1], 2), np.float32), states)


@pytest.mark.slow
def test_a_teacher_of_both_edges(family: Family, tmp_path: Path) -> None:
    settings = resolve(TeacherSettings(rollouts=200, probes=50, capacity=200), family.teacher, family.teacher_options)
    tasks = family.tasks([0, 8])
    teacher, _, _ = train_teacher(tasks, family.split("gap4"), 0, 1000, None, settings)
    assert teacher.metrics["success"] >= 0.95
    assert set(teacher.arrivals) == {"pick>place"}
    inside = EdgeTask(tasks.reach_avoid([0], ["start>pick"])).target_distance(teacher.arrivals["pick>place"][None])
    assert (inside >= 0.0).all()
    assert edge_scaling(tasks).half.shape == (2, 8)


def test_observations_tell_variables_that_they_are_multiples_of() -> None:
    pendulum = GymnasiumEnvironment(
        "Pendulum-v1", {"half": {"state": "speed", "scale": 0.5}}, variables=["angle", "speed"]
    )
    states = pendulum.project(np.array([[0.5, 1.2, 0, 0, 0, 0], [2.0, -3.0, 0, 0, 0, 0]], dtype=np.float32))
    told = pendulum.recover(pendulum.observe(states))
    assert np.isnan(told[:, 0]).all()  # an angle is not a multiple of its sine
    np.testing.assert_allclose(told[:, 1:], states[:, 1:], atol=1e-6)
    scaled = GymnasiumEnvironment("Pendulum-v1", {"half": {"state": "s1", "scale": 0.5}}, observation=["obs0", "half"])
    states = scaled.project(states)
    np.testing.assert_allclose(scaled.recover(scaled.observe(states))[:, 1:3], states[:, 1:3], atol=1e-6)


def test_three_coordinates_are_drawn_in_space():
    axes = {"x": {"body": "fingertip", "axis": "x"}, "y": {"body": "fingertip", "axis": "y"}}
    more = {"z": {"body": "fingertip", "axis": "z"}, "speed": {"state": "joint0_velocity"}}
    space = GymnasiumEnvironment("Reacher-v5", quantities=axes | more)
    assert [space.state_names[k] for k in space.space or ()] == ["x", "y", "z"]
    plane = GymnasiumEnvironment("Reacher-v5", quantities=axes)
    assert plane.space is None and [plane.state_names[k] for k in plane.drawn] == ["x", "y"]


def test_checks_at_high_speeds_leave_no_log(tmp_path, monkeypatch, capfd):
    """The check of what a step is makes a swimmer unstable, which MuJoCo would write to MUJOCO_LOG.TXT."""
    monkeypatch.chdir(tmp_path)
    GymnasiumEnvironment("Swimmer-v5")
    assert not list(tmp_path.iterdir()) and "unstable" not in capfd.readouterr().out
