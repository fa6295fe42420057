"""ARS: its budget, and single tasks, where random search must succeed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dibs.baselines import ars
from dibs.baselines.flat import FlatView
from dibs.errors import DibsError
from dibs.evaluation.evaluate import count_satisfied
from dibs.families import Family, get_benchmark
from dibs.methods import Model, Training
from dibs.seeding import stream
from dibs.simulation import SpecTask

from .small import SETTINGS, TEACHER_STEPS, Small


def test_the_budget_is_that_of_the_teachers(small: Small, trained: Callable[[str], Model]) -> None:
    model, settings = trained("ars"), SETTINGS["ars"]
    assert model.metrics["budget"] == 3 * 2 * TEACHER_STEPS
    # Ten iterations and one check may begin before the budget is spent.
    horizon, tasks = 2 * small.family.horizon, 3
    iteration = settings.restarts * 2 * settings.directions * settings.rollouts * tasks * horizon
    most = settings.check_every * iteration + settings.restarts * settings.check_rollouts * tasks * horizon
    assert model.steps <= model.metrics["budget"] + most
    assert model.metrics["success"] >= 1.0 or model.steps >= model.metrics["budget"]
    assert model.metrics["curve"][-1]["steps"] == model.steps


def test_it_learns_the_training_tasks(tiny: Family, trained: Callable[[str], Model]) -> None:
    counts = count_satisfied(ars.METHOD, trained("ars"), tiny, tiny.specification, [0, 2, 4], 100, 0)
    assert trained("ars").metrics["success"] > 0.9
    assert min(counts.values()) > 80


def test_a_budget_without_teachers_is_refused(tiny: Family) -> None:
    split = tiny.split("gap2")
    training = Training(tiny.tasks(split.indices), "tiny", split, 0)
    with pytest.raises(DibsError, match="budget"):
        ars.train(training, ars.Settings())


@pytest.mark.slow
@pytest.mark.parametrize(
    "benchmark", ["car2d-reach-k2", "simpledrone-reach-k1", "droneattitude-reach-k1", "reacher-drop-same-8"]
)
def test_it_solves_a_single_task(benchmark: str) -> None:
    """A family of one task, with the scaling of all."""
    found = get_benchmark(benchmark)
    family, text, index = found.family, found.specification, 2
    settings = ars.Settings(steps=4_000_000, rollouts=8, patience=1)
    tasks = family.tasks((0, index, family.last_index), text)
    view = FlatView.of_tasks(tasks, settings.observe_stage)
    model = ars.search(SpecTask(tasks.at([index])), view, settings, stream("test", benchmark))
    counts = count_satisfied(ars.METHOD, model, family, text, [index], 300, 0)
    assert counts[index] > 270
