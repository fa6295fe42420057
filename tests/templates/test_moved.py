"""Motion: which map takes the regions along, how it acts on actions, and when it does not hold.

The references are closed forms: the operators of the families, complex numbers for headings, rotation matrices.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from dibs.envs import Car2D, DroneAttitude, SimpleDrone
from dibs.families import Tasks, load_family
from dibs.methods import Model, Training
from dibs.simulation import EdgeTask, draw, rollout
from dibs.templates.alignment import align, apply, difference, edge_shapes, power, wrapped
from dibs.templates.motion import FARTHEST, Motion, relations
from dibs.templates.moved import MotionSettings, Moved, Mover, train
from dibs.templates.symmetry import Dynamics, Transitions, find_law
from dibs.templates.template import compose, evolution_of

from .moving import family, heading, homing, policy_of, tasks_of, teacher

TURN = {"degrees": 9.0, "about": [1.0, 0.0]}


def only(tasks: Tasks) -> Motion:
    (found,) = relations(tasks).values()
    return found


def aligned(tasks: Tasks):
    (edge,) = tasks.edges
    periods = np.array(tasks.environment.periods)
    return align(edge_shapes(tasks, edge, {}), tasks.indices, tasks.environment.state_names, periods)


def move(one: Tasks) -> Moved:
    """The template of a car that drives to the right."""
    made = teacher(one, {name: heading(0.0) for name in one.edge_names})
    template, _ = Mover(one, made, np.random.default_rng(0), 100).template()
    return template


# --- the map of the states -------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    st.floats(-17.0, 17.0),
    st.tuples(st.floats(-5, 5), st.floats(-5, 5)),
    st.sampled_from([(0, 1), (1, 2), (0, 2)]),
    st.sampled_from([1.0, 0.9, 1.07]),
    st.floats(-0.5, 0.5),
)
def test_the_map_is_that_of_the_family(degrees, center, plane, factor, along):
    """Against SciPy's rotations: where a point goes, at an index far beyond those aligned."""
    names = ("x", "y", "z")
    about = np.zeros(3)
    about[list(plane)] = center
    (third,) = set(range(3)) - set(plane)
    shift = np.zeros(3)
    shift[third] = along if factor == 1.0 else 0.0
    turn = {"degrees": degrees, "about": about.tolist(), "plane": [names[v] for v in plane]}
    more = {"rotate": turn, "shift": shift.tolist(), "dilate": {"factor": factor, "about": about.tolist()}}
    regions = {
        "start": {"center": [1.0, 2.0, 3.0], "noise": 0.2, **more},
        "a": {"center": [4.0, -1.0, 2.0], "radius": 1.0, **more},
    }
    found = aligned(tasks_of("SimpleDrone", regions, 4, last_index=12))
    assert found.misfit < 1e-6
    axis = np.cross(*np.eye(3)[list(plane)])
    point = np.array([2.0, 0.5, -1.5])
    for index in (1, 7, 30):
        turned = Rotation.from_rotvec(axis * np.deg2rad(degrees * index)).apply(point - about + index * shift)
        np.testing.assert_allclose(apply(power(found.matrix, index), point), about + factor**index * turned, atol=1e-5)


@pytest.mark.parametrize(
    "regions, kind, words",
    [
        ({"start": {"center": [0, 0], "noise": 0.1}, "a": {"center": [4, 0], "half_width": 1}}, "identity", "nothing"),
        (
            {
                "start": {"center": [0, 0], "noise": 0.1, "shift": [0.5, 0]},
                "a": {"center": [4, None], "half_width": 1.0, "shift": [0.5, 0]},
            },
            "shift",
            "shift (0.5, 0) per index",
        ),
        (
            {
                "start": {"center": [1, 0], "noise": 0.1},
                "a": {"center": [4, 0], "radius": 1, "rotate": TURN},
                "w": {"center": [9, 0], "normal": [1, 0], "rotate": TURN},
            },
            "rotation",
            "rotation by 9° per index about (1, 0) in the plane x, y",
        ),
        (
            {
                "start": {"center": [0, 0], "noise": 0.1, "dilate": {"factor": 0.99, "about": [2, 1]}},
                "a": {"center": [4, 0], "half_width": 1, "dilate": {"factor": 0.99, "about": [2, 1]}},
            },
            "dilation",
            "dilation by 0.99 per index about (2, 1)",
        ),
    ],
)
def test_the_simplest_map_is_taken(regions, kind, words):
    found = aligned(tasks_of("Car2D", regions))
    assert found.kind == kind and found.words.startswith(words) and found.misfit < 1e-9


def test_an_oblong_does_not_turn_but_a_square_does():
    def turning(half_width):
        start = {"center": [0, 0], "noise": 0.1}
        return tasks_of("Car2D", {"start": start, "a": {"center": [4, 0], "half_width": half_width, "rotate": 9.0}})

    assert aligned(turning(1.0)).misfit < 1e-9
    found = aligned(turning([1.0, 0.5]))
    assert found.misfit > 0.4  # after a quarter turn one side is as long as the other was
    assert "no single motion relates the regions" in only(turning([1.0, 0.5])).reason


def test_full_turns_between_training_tasks_are_noticed():
    start = {"center": [0, 0], "noise": 0.1}
    one = tasks_of("Car2D", {"start": start, "a": {"center": [4, 0], "half_width": 1.0, "rotate": 9.0}})
    assert only(one).warnings == (
        "turning by -63° per index fits the training tasks as well; the smaller angle is taken",
    )
    data = {"start": start, "a": {"center": [4, 0], "half_width": 1.0, "rotate": -63.0}}
    other = family("Car2D", data)
    assert aligned(other.tasks([0, 5, 11, 20])).words.startswith("rotation by -63° per index")  # 5 and 6 apart


def test_regions_that_no_motion_relates():
    """Two rates: start and goal move by different amounts."""
    regions = {
        "start": {"center": [0, 0], "noise": 0.1},
        "a": {"center": [4, 0], "half_width": 1.0, "shift": [0.3, 0]},
    }
    found = only(tasks_of("Car2D", regions))
    assert not found.holds
    assert found.sentence.startswith("no motion: no single motion relates the regions of the training tasks (misfit")


def test_regions_that_drift_slowly_are_trusted_until_they_have_drifted():
    """The regions move by 0.1 i + c i². Against where they are: the last trusted index is still within the target."""
    for drift in (2e-5, 1e-4):
        moving = {"shift": [0.1, 0], "drift": [drift, 0]}
        regions = {
            "start": {"center": [0, 0], "noise": 0.1, **moving},
            "a": {"center": [4, 0], "half_width": 1.0, **moving},
        }
        found = only(tasks_of("Car2D", regions))
        assert found.holds and 1e-3 < found.misfit < 0.1 and 20 < found.last < 200
        off = 0.1 * found.last + drift * found.last**2 - found.last * found.motion[0, -1]
        assert 0.1 < off < 1.0


# --- the map of the actions ------------------------------------------------------------------------------


def law_of(environment, motion, indices=(0, 5, 20)):
    rng = np.random.default_rng(0)
    states = rng.uniform(-2, 2, (64, len(environment.state_names)))
    states = environment.project(states * [1, 1, 1, 0.2, 0.1][: states.shape[1]])
    actions = rng.uniform(-0.6, 0.6, (64, environment.action_dim))
    return find_law(Transitions.of(Dynamics(environment), states, actions), motion, indices)


def turning(dim, plane=(0, 1), degrees=9.0):
    matrix = np.eye(dim + 1)
    matrix[np.ix_(plane, plane)] = Rotation.from_euler("z", degrees, degrees=True).as_matrix()[:2, :2]
    return matrix


def test_a_shift_leaves_actions_alone():
    for environment in (Car2D(), SimpleDrone(), DroneAttitude()):
        shift = np.eye(len(environment.state_names) + 1)
        shift[0, -1] = 0.5
        law, residual = law_of(environment, shift)
        assert np.array_equal(law, np.eye(environment.action_dim + 1)) and residual < 1e-12


def test_a_rotation_turns_the_heading_of_a_car():
    law, residual = law_of(Car2D(), turning(2))
    assert residual < 1e-9
    np.testing.assert_allclose(law, [[1, 0, 0], [0, 1, 9 / 180], [0, 0, 1]], atol=1e-10)


def test_a_rotation_turns_the_velocity_of_a_drone():
    law, residual = law_of(SimpleDrone(), turning(3, (0, 2), 7.0))
    assert residual < 1e-9
    np.testing.assert_allclose(law, turning(3, (0, 2), 7.0), atol=1e-9)


def test_a_dilation_slows_a_drone_down():
    law, residual = law_of(SimpleDrone(), np.diag([0.94, 0.94, 0.94, 1.0]))
    assert residual < 1e-9
    np.testing.assert_allclose(law, np.diag([0.94, 0.94, 0.94, 1.0]), atol=1e-9)


def test_a_shift_of_reacher_is_no_symmetry():
    regions = {
        "start": {"center": [3, 2], "noise": 0.1, "shift": [0, 0.2]},
        "a": {"center": [5, 4], "half_width": 0.5, "shift": [0, 0.2]},
    }
    found = only(tasks_of("Reacher", regions, 2, last_index=4))
    assert found.kind == "shift" and 0.05 < found.residual < 1.0
    assert found.reason.startswith(
        "the regions move by a shift (0, 0.2) per index, but the dynamics are not symmetric ("
    )


def test_noise_that_grows_is_no_symmetry():
    def shrinking(factor):
        more = {"dilate": {"factor": factor}}
        regions = {
            "start": {"center": [0, 0, 0], "noise": 0.1, **more},
            "a": {"center": [4, 0, 0], "half_width": 1.0, **more},
        }
        return only(tasks_of("SimpleDrone", regions))

    held = shrinking(0.99)
    assert held.holds and held.noise == pytest.approx(0.99**-20, rel=0.02)
    assert held.last == pytest.approx(np.log(1.5) / -np.log(0.99), abs=3)  # where noise is half as large again
    assert held.trust == f"trust it up to index {held.last}"
    assert shrinking(0.94).reason.endswith(f"noise grows {0.94**-20:.1f}-fold relative to the regions")


# --- what stays behind -----------------------------------------------------------------------------------


def with_obstacle(y: float, **more) -> Tasks:
    """A car whose way to the right shifts upwards; the obstacle does not."""
    regions = {
        "start": {"center": [0, 0], "noise": 0.1, "shift": [0, 0.5]},
        "a": {"center": [6, 0], "half_width": 1.0, "shift": [0, 0.5]},
        "wall": {"center": [3, y], "half_width": 0.5, **more},
    }
    return tasks_of("Car2D", regions)


def test_a_fixed_obstacle_in_the_way_rules_motion_out():
    found = move(with_obstacle(5.0)).motions["start>a"]  # where the way of index 10 is
    assert found.reason == (
        "the regions move by a shift (0, 0.5) per index, but wall does not move along, and it is in the way"
    )


def test_a_fixed_obstacle_aside_is_a_warning():
    found = move(with_obstacle(-3.0)).motions["start>a"]
    assert found.holds and found.warnings == (
        "wall does not move along; the way is clear of it at training indices only",
    )
    assert found.last == 20 and found.trust == "trust it up to index 20"


def test_an_obstacle_that_moves_along_is_none():
    found = move(with_obstacle(-3.0, shift=[0, 0.5])).motions["start>a"]
    assert found.holds and not found.warnings
    assert found.sentence == "shift (0, 0.5) per index, symmetry residual 0.000, 5 of 5 training tasks solved"
    assert found.last == FARTHEST


def test_a_free_variable_stays():
    """The goal constrains x only, and nothing moves in y, so nothing is asked of it."""
    regions = {
        "start": {"center": [0, 0], "noise": 0.1, "shift": [0.5, 0]},
        "a": {"center": [6, None], "half_width": 1.0, "shift": [0.5, 0]},
    }
    template = move(tasks_of("Car2D", regions))
    np.testing.assert_allclose(template.motions["start>a"].motion, [[1, 0, 0.5], [0, 1, 0], [0, 0, 1]], atol=1e-12)


class Hangar(SimpleDrone):
    """A drone above a floor."""

    @property
    def bounds(self):
        return (-np.inf, -np.inf, 0.0), (np.inf, np.inf, np.inf)


@pytest.mark.parametrize("rate, last", [(-0.5, None), (-0.05, 42)])
def test_a_floor_that_a_late_image_would_cross(rate, last):
    """Index 20 is trained. At -0.5 per index its image would be below the floor, at -0.05 a later one is."""
    regions = {
        "start": {"center": [0, 0, 2.1], "noise": 0.1, "shift": [0, 0, rate]},
        "a": {"center": [4, 0, 5], "half_width": 1.0, "shift": [0, 0, rate]},
    }
    found = only(replace(tasks_of("SimpleDrone", regions), environment=Hangar()))
    if last is None:
        text = f"the regions move by a shift (0, 0, {rate}) per index, but at index 5 z leaves the environment's bounds"
        assert found.reason == text
    else:
        assert found.holds and found.last == pytest.approx(last, abs=2)  # starts are 2.0 … 2.2 above the floor


# --- angles ----------------------------------------------------------------------------------------------


@given(st.floats(-30, 30), st.floats(-30, 30))
def test_angles_wrap_as_complex_numbers_do(a, b):
    period = np.array([2 * np.pi])
    inside = wrapped(np.array([a]), period, -np.pi)
    assert -np.pi <= inside[0] <= np.pi
    assert np.exp(1j * inside[0]) == pytest.approx(np.exp(1j * a), abs=1e-9)
    between = difference(np.array([a]), np.array([b]), period)[0]
    assert abs(between) == pytest.approx(abs(np.angle(np.exp(1j * (a - b)))), abs=1e-9)


def test_angles_in_range_and_other_variables_keep_their_bits():
    values = np.array([0.1 + 0.2, 1e9])
    assert np.array_equal(wrapped(values, np.array([2.0, 0.0]), -1.0), values)


def test_a_state_that_is_an_angle_wraps():
    """Goals ask for a yaw that goes on by 30° per index, past a full turn."""
    yaw = {"shift": [0, 0, 0, float(np.pi / 6), 0]}
    table = [{"center": [0.5 * i, 0, 0, float(np.angle(np.exp(1j * i * np.pi / 6))), 0]} for i in range(21)]
    regions = {
        "start": {"table": table, "noise": 0.02},
        "a": {"table": [{**entry, "half_width": 0.5} for entry in table]},
    }
    found = aligned(tasks_of("DroneAttitude", regions, 1))
    assert found.kind == "shift" and found.misfit < 1e-9
    np.testing.assert_allclose(found.matrix[:-1, -1], [0.5, 0, 0, yaw["shift"][3], 0], atol=1e-9)
    moved = Dynamics(DroneAttitude()).move(np.zeros((1, 5)), power(found.matrix, 16))
    assert moved[0, 3] == pytest.approx(np.angle(np.exp(1j * 16 * np.pi / 6)))


# --- moved policies --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def car() -> tuple[Tasks, Moved]:
    """Goals that turn about the start: headings wrap at index 20."""
    regions = {
        "start": {"center": [1, 0], "noise": 0.2, "rotate": TURN},
        "a": {"center": [8, 0], "half_width": 1.2, "rotate": TURN},
    }
    one = family("Car2D", regions)
    return one, move(one.tasks(one.split("gap5").indices))


def test_headings_wrap(car):
    one, template = car
    assert template.motions["start>a"].holds and template.motions["start>a"].solved == 5
    for index in (0, 7, 13, 20, 25, 100_000):
        found = policy_of(template, one.tasks([index]), index, "start>a")(np.array([[2.0, 3.0]]))[0]
        angle = np.angle(np.exp(1j * np.deg2rad(9.0 * index))) / np.pi
        assert found[0] == pytest.approx(0.98, abs=1e-3)
        assert np.exp(1j * np.pi * found[1]) == pytest.approx(np.exp(1j * np.pi * angle), abs=2e-3)
        assert -1.0 <= found[1] <= 1.0


@pytest.mark.parametrize("index", [3, 27, 1000, 100_000])
def test_tasks_that_were_not_trained_are_solved(car, index):
    one, template = car
    task = EdgeTask(one.tasks([index]).reach_avoid())
    policy = template.edge_policy(one.environment, [(index, "start>a")])
    outcome = rollout(task, policy, draw(task, 200, np.random.default_rng(0)))
    assert outcome.success.mean() > 0.98


def test_a_drone_that_turns():
    """Against the closed form π_i(s) = R^i π_0(R^-i s)."""
    regions = {
        "start": {"center": [0, 0, 0], "noise": 0.1},
        "a": {"center": [6, 2, 3], "half_width": 1.0, "rotate": 9.0},
    }
    one = family("SimpleDrone", regions)
    training = one.tasks(one.split("gap5").indices)
    made = teacher(training, {"start>a": homing([6.0, 2.0, 3.0])})
    template, steps = Mover(training, made, np.random.default_rng(0), 100).template()
    assert template.motions["start>a"].holds and steps["start>a"] > 100
    states = np.random.default_rng(1).uniform(-3, 3, (20, 3))
    for index in (1, 11, 30):
        turn = Rotation.from_euler("z", 9.0 * index, degrees=True)
        expected = turn.apply(made.act(0, turn.inv().apply(states).astype(np.float32)))
        np.testing.assert_allclose(
            policy_of(template, training, index, "start>a")(states), expected, atol=1e-4, err_msg=str(index)
        )


def test_it_reads_back_the_same(car):
    one, template = car
    again = evolution_of(template.to_model({"start>a": 5}, {}), "m.safetensors")
    assert isinstance(again, Moved) and again.describe("start>a") == template.describe("start>a")
    states = np.random.default_rng(0).uniform(-3, 9, (30, 2))
    for index in (0, 4, 1000):
        first, second = (policy_of(t, one.tasks([index]), index, "start>a")(states) for t in (template, again))
        assert np.array_equal(first, second)
    assert compose(again, one.tasks([3])).paths == (("start>a",),)


def test_index_100_000_takes_milliseconds(car):
    one, template = car
    began = time.perf_counter()
    template.edge_policy(one.environment, [(100_000, "start>a")])
    assert time.perf_counter() - began < 0.05
    assert template.holds(100_000, ["start>a"])


def test_success_without_a_motion_is_not_predicted_beyond_the_training_indices():
    regions = {
        "start": {"center": [0, 0, 0], "noise": 0.0},
        "a": {"center": [4, 0, 0], "half_width": 1.0, "shift": [0.02, 0, 0]},
    }
    one = family("SimpleDrone", regions, constants={"noise": 0.0})
    training = one.tasks(one.split("gap5").indices)
    made = teacher(training, {"start>a": homing([4.0, 0.0, 0.0])})
    template, _ = Mover(training, made, np.random.default_rng(0), 50).template()
    assert not template.motions["start>a"].holds
    last, curve = training.indices[-1], template.predicted()["start>a"]
    record = template.records["start>a"]
    assert [curve.at(i) for i in record.indices] == pytest.approx(record.success)
    assert record.success[-1] > 0.9  # of the policy that stays as it is
    assert 0.0 < curve.at(last + last // 2) < record.success[-1] and curve.at(2 * last) == curve.at(100_000) == 0.0


def test_a_map_that_cannot_be_held_gives_up():
    regions = {
        "start": {"center": [0, 0, 0], "noise": 0.0, "dilate": {"factor": 0.99}},
        "a": {"center": [4, 0, 0], "half_width": 1.0, "dilate": {"factor": 0.99}},
    }
    one = family("SimpleDrone", regions, constants={"noise": 0.0})
    training = one.tasks(one.split("gap5").indices)
    made = teacher(training, {"start>a": homing([4.0, 0.0, 0.0])})
    template, _ = Mover(training, made, np.random.default_rng(0), 50).template()
    assert template.motions["start>a"].holds
    assert template.holds(100, ["start>a"]) and not template.holds(100_000, ["start>a"])
    assert template.edge_policy(one.environment, [(100_000, "start>a")]).stops


def test_a_weak_teacher_is_the_reason(car):
    one, _ = car
    training = one.tasks([0, 10, 20])
    weak = teacher(training, {"start>a": heading(90.0)})
    template, _ = Mover(training, weak, np.random.default_rng(0), 50).template()
    motion = template.motions["start>a"]
    assert motion.reason == "the teacher of index 0 succeeds in 0% of its rollouts only"
    assert np.array_equal(motion.motion, np.eye(3)) and motion.solved < 3


def test_the_method_counts_what_it_asked(car):
    one, _ = car
    split = one.split("gap10")
    training = one.tasks(split.indices)
    made = teacher(training, {"start>a": heading(0.0)})
    said: list[str] = []
    model: Model = train(
        Training(training, one.name, split, 0, [made], progress=lambda message, *_: said.append(message)),
        MotionSettings(50),
    )
    assert model.metrics["share"] == 1.0 and said[0].startswith("start>a: rotation by 9° per index about (1, 0)")
    queried = model.metrics["queried"]["start>a"]
    assert model.steps == {"start>a": 1000 + queried}
    assert queried > 50 * 4 * 5  # at least the rollouts: four batches of 50 that take five steps or more


@pytest.mark.parametrize(("gain", "reason"), [(1000.0, "no single motion"), (0.0, "0% of its rollouts")])
def test_without_a_motion_the_policy_acts_on_observations(gain, reason):
    """A car that pumps itself up a hill; its observations are not its states."""
    data = {
        "name": "hill",
        "environment": {"gymnasium": "MountainCarContinuous-v0", "variables": ["position", "velocity"]},
        "specification": "achieve reach(hill)",
        "start": {"center": {"position": -0.5, "velocity": 0.0}, "noise": {"position": 0.05}},
        "regions": {"hill": {"center": {"position": 0.3}, "half_width": 0.1, "shift": {"position": 0.01}}},
        "last_index": 4,
        "horizon": 150,
        "network": {"hidden": [5]},
    }
    one = load_family(data)
    training = one.tasks([0, 2, 4])
    pumping = teacher(training, {"start>hill": (np.array([[0.0, gain]]), np.zeros(1))})
    template, _ = Mover(training, pumping, np.random.default_rng(0), 20).template()
    motion = template.motions["start>hill"]
    assert reason in motion.reason and motion.solved == (3 if gain else 0)
    policy = template.edge_policy(one.environment, [(4, "start>hill")])
    task = EdgeTask(one.tasks([4]).reach_avoid())
    assert rollout(task, policy, draw(task, 20, np.random.default_rng(1))).success.mean() == (gain > 0.0)


def test_a_pendulum_on_a_slide_moves_along_until_the_slide_ends():
    """`InvertedPendulum-v5` in MuJoCo: balanced by a linear regulator, whose gains were computed for its dynamics."""
    everything = {"slider": 0.0, "hinge": 0.0, "slider_velocity": 0.0, "hinge_velocity": 0.0}
    data = {
        "name": "pendulum",
        "environment": {"gymnasium": "InvertedPendulum-v5"},
        "specification": "achieve reach(a)",
        "start": {"center": everything, "noise": {"hinge": 0.01}, "shift": {"slider": 0.02}},
        "regions": {
            "a": {
                "center": {"slider": 0.3, "hinge": 0.0},
                "half_width": {"slider": 0.05, "hinge": 0.1},
                "shift": {"slider": 0.02},
            }
        },
        "last_index": 10,
        "horizon": 80,
        "network": {"hidden": [5]},
    }
    one = load_family(data)
    training = one.tasks([0, 5, 10])
    gain = np.array([[0.963, 4.463, 0.936, 0.829]])
    made = teacher(training, {"start>a": (gain, -0.3 * gain[:, 0])})
    template, _ = Mover(training, made, np.random.default_rng(0), 10).template()
    motion = template.motions["start>a"]
    assert motion.holds and motion.residual < 1e-3 and motion.solved == 3
    assert 30 <= motion.last <= 40  # the slide ends at 1; at index 37 the pendulum overshoots to it
    for index, rate in ((3, 1.0), (30, 1.0), (45, 0.0)):
        policy = template.edge_policy(one.environment, [(index, "start>a")])
        task = EdgeTask(one.tasks([index]).reach_avoid())
        assert rollout(task, policy, draw(task, 5, np.random.default_rng(1))).success.mean() == rate
