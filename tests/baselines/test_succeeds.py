"""Each of ARS, BC and GenRL where its own literature says it must succeed, before it is compared."""

from __future__ import annotations

import numpy as np
import pytest

from dibs.baselines import ars, bc, genrl
from dibs.baselines.ars import Shared, flat_network
from dibs.baselines.flat import FlatTask, evaluate_flat
from dibs.datasets.build import DatasetSettings, build
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family, get_benchmark, get_family, load_family
from dibs.seeding import stream
from dibs.teachers.rollouts import draw, roll
from dibs.teachers.train import Teacher, TeacherSettings, train_teacher

pytestmark = pytest.mark.slow
MEASURED = EvaluationSettings(rollouts=300)


@pytest.fixture(scope="module")
def one_edge() -> Family:
    """Car2D's first edge as a family of its own: 1-reach, without the other edges' cost."""
    described = get_family("car2d-reach").model_dump()
    described |= {"name": "car2d-one", "specification": "achieve reach(g1)", "benchmarks": {}}
    described["regions"] = {"g1": described["regions"]["g1"]}
    return load_family(described)


@pytest.fixture(scope="module")
def teacher(one_edge: Family) -> tuple[Teacher, list[np.ndarray]]:
    """Its index-0 teacher, and the states that it replayed."""
    taught, buffers, _ = train_teacher(one_edge, 20, 0, 0, None, TeacherSettings())
    assert taught.metrics["success"] > 0.99
    return taught, [buffers.edges[0]["replay"].view()]


@pytest.mark.parametrize(
    "benchmark", ["car2d-reach-k2", "simpledrone-reach-k1", "droneattitude-reach-k1", "reacher-drop-same-8"]
)
def test_ars_solves_a_single_task(benchmark: str) -> None:
    family, text = get_benchmark(benchmark)
    index = 2
    settings = ars.Settings(rollouts=8, patience=1)
    found = ars.search(FlatTask(family, text, (index,)), settings, 4_000_000, stream("test", benchmark))
    counts = evaluate_flat(family, text, Shared(found.network, found.theta), [index], MEASURED, 0)
    assert counts[index] > 0.9 * MEASURED.rollouts


def test_bc_clones_one_index_to_its_teachers_level(one_edge: Family, teacher: tuple[Teacher, list[np.ndarray]]) -> None:
    taught, replay = teacher
    blocks = list(build(one_edge, taught, replay, DatasetSettings(size=5000)))
    states, actions = (np.concatenate([getattr(b, k) for b in blocks]) for k in ("states", "actions"))
    task = FlatTask(one_edge, one_edge.specification, (0,))
    settings = bc.Settings()
    network = flat_network(task, settings.hidden)
    theta, losses = bc.clone(
        network, task.observe(states, np.zeros(len(states), dtype=np.intp)), actions, settings, stream("test", "bc")
    )
    counts = evaluate_flat(one_edge, task.text, Shared(network, theta), [0], MEASURED, 0)
    assert losses[-1] < losses[0] / 50
    assert counts[0] / MEASURED.rollouts > taught.metrics["success"] - 0.02


@pytest.mark.parametrize("variant", ["softmin", "mean", "public"])
def test_genrl_solves_one_reach_with_three_training_tasks(
    one_edge: Family, teacher: tuple[Teacher, list[np.ndarray]], variant: str
) -> None:
    taught, _ = teacher
    train = one_edge.train_indices(20)
    problem = genrl.Problem(
        one_edge, taught.edges, train, taught.network, taught.scaling, taught.actor, np.zeros(1, dtype=np.int64)
    )
    settings = genrl.Settings(rollouts=4, **genrl.VARIANTS[variant])
    search = genrl.Search(problem, settings, stream("test", "genrl", variant))
    search.advance(4_000_000)
    policies = genrl._policies(problem, np.arange(1), search.best_kappa[:, :, None])
    tasks = problem.tasks(np.arange(1))
    success = roll(taught.network, policies, tasks, draw(tasks, 300, stream("test", "measure"))).success[:, 0]
    assert (success > 0.9).all(), success
