"""Later edges start where the one before has arrived, in any environment whose regions leave a variable free."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import dibs
from dibs import registry
from dibs.envs import Array, Environment
from dibs.families import Family, load_family
from dibs.simulation import EdgeTask, draw


@dataclass(frozen=True)
class Tug(Environment):
    """A boat that keeps its heading, which no region constrains."""

    name: ClassVar[str] = "Tug"
    state_names: ClassVar[tuple[str, ...]] = ("x", "y", "heading")
    action_names: ClassVar[tuple[str, ...]] = ("thrust", "rudder")

    @property
    def noise_scale(self) -> tuple[float, ...]:
        return (0.02, 0.02, 0.0)

    def step(self, states: Array, actions: Array, noise: Array) -> Array:
        thrust, rudder = np.moveaxis(np.clip(actions, -1.0, 1.0), -1, 0)
        moved = states + np.asarray(self.noise_scale, dtype=states.dtype) * noise
        moved[..., 2] += 1.5 * rudder
        speed = 0.5 + 0.5 * thrust
        moved[..., 0] += speed * np.cos(moved[..., 2])
        moved[..., 1] += speed * np.sin(moved[..., 2])
        return moved

    def observe(self, states: Array) -> Array:
        heading = states[..., 2:]
        return np.concatenate([states[..., :2], np.cos(heading), np.sin(heading)], axis=-1)


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    registry.register("environments", "Tug", Tug)
    yield
    registry._added["environments"].pop("Tug", None)


@pytest.fixture
def described(tiny_description) -> Any:
    def describe(heading: float | None = None, width: float = 1.2) -> Family:
        half = [width, width, 9.0] if heading is not None else width
        regions = {
            name: {"center": [x, y, heading], "half_width": half, "shift": [0.1, 0.0, 0.0]}
            for name, x, y in (("a", 3.0, 1.0), ("b", 3.0, 5.0))
        }
        start = {"center": [0.0, 0.0, 1.6], "noise": 0.1}
        return load_family(
            tiny_description(
                name="tug", environment={"name": "Tug"}, start=start, regions=regions, gaps=[4], horizon=8,
            )
        )  # fmt: skip

    return describe


def test_only_sources_that_leave_a_variable_free_need_arrivals(described, tiny):
    free, fixed = described().tasks([0]), described(heading=1.6).tasks([0])
    assert [free.from_arrivals(edge) for edge in free.edges] == [False, True]
    assert free.start_wide is not None and free.start_wide[0, 2] > 1.5  # headings that the rudder can bring about
    for tasks in (fixed, tiny.tasks([0])):
        assert not any(map(tasks.from_arrivals, tasks.edges)) and tasks.start_wide is None


def test_edges_start_from_known_arrivals(described):
    tasks = described().tasks([0])
    arrived = np.array([[0.5, 2.5, 0.3], [-0.5, 2.2, 2.0]], dtype=np.float32)
    task = EdgeTask(tasks.arriving({(0, "a>b"): arrived}).reach_avoid())
    starts = draw(task, 500, np.random.default_rng(0)).starts[1]
    assert {tuple(row) for row in starts} == {tuple(row) for row in arrived}


def test_the_second_teacher_is_trained_where_the_first_one_arrives(described, tiny_teachers):
    family = described()
    run = dibs.train(family, gap=4, seed=1000, teachers=tiny_teachers, datasets={"size": 100}, progress=False)
    teacher = run.teachers[0]
    arrived = teacher.starts(family.tasks([0])).arrivals[0, "a>b"]
    assert family.regions_at(0)["a"].contains(arrived).all()
    assert np.abs(arrived[:, 2] - 1.6).min() > 0.3  # it had to turn
    assert teacher.metrics["success"] > 0.9
    # At index 0, `dibs` is the teachers, one after the other.
    assert run.fit("dibs", max_steps=5).policy(index=0).evaluate(rollouts=200).rate > 0.9
