"""Templates of several classes in one, and unrolling far beyond the last training index."""

from __future__ import annotations

import time
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from dibs.envs import Car2D
from dibs.errors import DibsError
from dibs.files import read_tensors, write_tensors
from dibs.methods import load_model
from dibs.simulation import BasePolicy, Moment
from dibs.simulation.composed import PerTask
from dibs.templates.polynomial import LONGEST, STEPWISE, power, unroll, unroll_to
from dibs.templates.template import Joined, Template, compose, evolution_of

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("degree", [0, 1])
def test_closed_forms_agree_with_the_recursion(degree):
    kappa = np.stack([1e-3 * RNG.standard_normal((2, 5)), 1 + 1e-4 * RNG.standard_normal((2, 5))])[: degree + 1]
    theta, steps = RNG.standard_normal((2, 5)), STEPWISE + 777
    stepwise = unroll(kappa, theta, steps)[-1]
    np.testing.assert_allclose(unroll_to(kappa, theta, [steps])[steps], stepwise, rtol=1e-10)


def test_a_power_is_exact():
    """Against exact fractions, at an index where the recursion would take long."""
    shift, factor = 0.125, 1.0 + 2.0**-12
    total, rise = power(np.array([[shift], [factor]]), 100_000)[:, 0]
    exact = Fraction(factor) ** 100_000
    assert rise == pytest.approx(float(exact), rel=1e-10)
    assert total == pytest.approx(float(Fraction(shift) * (exact - 1) / (Fraction(factor) - 1)), rel=1e-10)


def test_few_steps_are_taken_one_by_one_to_the_last_bit():
    kappa, theta = RNG.standard_normal((3, 4, 6)), RNG.standard_normal((4, 6))
    with np.errstate(over="ignore", invalid="ignore"):
        every, found = unroll(kappa, theta, 9), unroll_to(kappa, theta, [9, 0, 4])
    assert sorted(found) == [0, 4, 9]
    for steps, policy in found.items():
        assert np.array_equal(policy, every[steps], equal_nan=True)
    assert unroll_to(kappa, theta, []) == {}


def test_higher_degrees_refuse_what_they_cannot_hold():
    with pytest.raises(DibsError, match="degree 2 has no closed form and is unrolled at most 100,000 steps"):
        unroll_to(np.zeros((3, 1)), np.zeros(1), [LONGEST + 1])


@pytest.fixture(scope="module")
def template(pipeline) -> Template:
    found = evolution_of(load_model(pipeline.layout.model("dibs", "tiny", "gap2", 0))[0], "")
    assert isinstance(found, Template)
    return found


def only(template: Template, e: int) -> Template:
    """The template of one edge."""
    take = slice(e, e + 1)
    return replace(
        template,
        edges=template.edges[take],
        scaling=template.scaling.take(np.array([e])),
        kappa=template.kappa[:, take],
        base=template.base[take],
        base_index=template.base_index[take],
        records={template.edges[e]: template.records[template.edges[e]]},
    )


def test_index_100_000_takes_milliseconds(template):
    wide = replace(template, kappa=template.kappa * 1.0)
    wide.edge_policy(Car2D(), [(0, wide.edges[0])])
    began = time.perf_counter()
    wide.edge_policy(Car2D(), [(100_000, name) for name in wide.edges])
    assert time.perf_counter() - began < 0.2


def test_parts_act_as_the_whole_does(template, tiny, tmp_path):
    joined = Joined((only(template, 1), only(template, 0)))
    model = joined.to_model({}, {})
    write_tensors(tmp_path / "j.safetensors", model.tensors, dict(model.metadata))
    tensors, metadata = read_tensors(tmp_path / "j.safetensors")
    again = evolution_of(replace(model, tensors=tensors, metadata=metadata), "j.safetensors")
    assert isinstance(again, Joined) and again.edges == ("a>b", "start>a")
    tasks = tiny.tasks([0, 3, 5])
    pairs = [(3, "a>b"), (0, "start>a"), (5, "a>b")]
    states = RNG.uniform(-1, 5, (3, 7, 2)).astype(np.float32)
    yes = np.ones((3, 7), dtype=bool)
    now = Moment(states, states, None, np.zeros((3, 7), dtype=np.intp), yes)
    actions = []
    for one in (template, joined, again):
        policy = one.edge_policy(tasks.environment, pairs)
        actions.append(policy.act(now, policy.begin((3, 7)))[0])
        assert compose(one, tasks).paths == compose(template, tasks).paths
        assert one.describe("a>b") == template.describe("a>b")
        assert one.holds(3, ["start>a", "a>b"])
    np.testing.assert_array_equal(actions[1], actions[0])
    np.testing.assert_array_equal(actions[2], actions[0])


def test_damaged_parts_are_named(template):
    model = Joined((only(template, 0), only(template, 1))).to_model({}, {})
    tensors = {name: value for name, value in model.tensors.items() if name != "1 base"}
    with pytest.raises(DibsError, match=r"f, part 1: damaged .*no tensor base"):
        evolution_of(replace(model, tensors=tensors), "f")
    with pytest.raises(DibsError, match=r"f: damaged .*no parts"):
        evolution_of(replace(model, metadata={"class": "joined", "parts": []}), "f")


class Counting(BasePolicy):
    """Returns how often it has acted, plus a constant."""

    def __init__(self, constant: float) -> None:
        self.constant = constant

    def begin(self, shape):
        return np.zeros(shape)

    def act(self, now, memory):
        return (self.constant + memory)[..., None], memory + 1


def test_each_task_has_the_policy_and_memory_of_its_own():
    policy = PerTask([np.array([2, 0]), np.array([1])], [Counting(10.0), Counting(20.0)])
    states = np.zeros((4, 3, 5, 2))  # candidates, tasks, rollouts, dim
    now = Moment(states, states, None, np.zeros((4, 3, 5), dtype=np.intp), np.ones((4, 3, 5), dtype=bool))
    memory = policy.begin((4, 3, 5))
    for step in range(3):
        actions, memory = policy.act(now, memory)
        assert actions.shape == (4, 3, 5, 1)
        assert np.array_equal(actions[:, :, 0, 0], np.tile([10.0 + step, 20.0 + step, 10.0 + step], (4, 1)))
