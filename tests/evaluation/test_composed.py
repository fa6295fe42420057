"""Composed rollouts against one episode at a time, what decides satisfaction, and what is never touched."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

import dibs.gym.environments
from dibs.envs import Array
from dibs.evaluation.evaluate import count_satisfied
from dibs.families import Benchmark, Family, get_benchmark, get_family, load_family
from dibs.methods import Training, get_method, load_model
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling, edge_scaling
from dibs.policy import IndexPolicy
from dibs.settings import parse_settings
from dibs.simulation import SpecTask, evaluation_draws
from dibs.simulation.composed import Recorded, network_paths, record
from dibs.spectrl import parse, satisfied
from dibs.spectrl.syntax import Spec
from dibs.templates.guards import EdgeRecord
from dibs.templates.polynomial import identity
from dibs.templates.template import Template, compose, evolution_of

NETWORK = Network(2, (8,), 2)


def heading(v: float, turn: float) -> np.ndarray:
    """Parameters of a 1×8 actor whose actions are constant."""
    theta = np.zeros(NETWORK.size, dtype=np.float32)
    theta[-2:] = [np.arctanh(v), np.arctanh(turn)]
    return theta


def rollouts(
    family: Family,
    scaling: Scaling,
    actors: Mapping[int, Array],  # (edges, size) by index
    paths: Mapping[int, tuple[str, ...]],
    count: int,
    seed: int,
) -> dict[int, Recorded]:
    """Roll out composed networks as an evaluation does."""
    indices = list(actors)
    task = SpecTask(family.tasks(indices))
    names = [edge.name for edge in family.edges]
    stacked = np.stack([actors[i] for i in indices])
    composed = network_paths(NETWORK, scaling, names, stacked, [paths[i] for i in indices])
    states, lengths = record(composed, task, evaluation_draws(task, count, seed))
    return {index: Recorded(states[n], lengths[n]) for n, index in enumerate(indices)}


def satisfaction(family: Family, spec: Spec, recorded: Mapping[int, Recorded]) -> dict[int, int]:
    """Count the rollouts that satisfy the specification."""
    return {i: int(satisfied(spec, family.regions_at(i), r.states, r.lengths).sum()) for i, r in recorded.items()}


def one_episode(policy: IndexPolicy, start, noise, monkeypatch) -> tuple[np.ndarray, bool]:
    """Step the Gymnasium environment with the policy; the noise (stages, horizon, dim) is given."""
    pending: deque[np.ndarray] = deque()
    monkeypatch.setattr(dibs.gym.environments, "sample_noise", lambda rng, shape: pending.popleft().reshape(shape))
    env = policy.make_env()
    seen, info = env.reset(options={"state": start})
    states, memory, stage, steps, over = [env.state], None, 0, 0, False
    while not over:
        action, memory = policy.predict(seen, memory)
        if memory.stage[0] != stage:
            stage, steps = memory.stage[0], 0
        if steps == noise.shape[1]:
            break  # the edge's horizon is over
        pending.append(noise[stage, steps])
        seen, _, terminated, truncated, info = env.step(action)
        steps += 1
        states.append(env.state)
        over = terminated or truncated
    return np.stack(states), bool(info["satisfied"])


@pytest.mark.parametrize("name, index", [("car2d-reach-k2", 3), ("car2d-reach-obs-k2", 30), ("car2d-choice-l1", 14)])
def test_against_single_episodes_in_the_gymnasium_environment(name, index, monkeypatch):
    """The same policies, initial states and noise: the same states and the same verdicts."""
    benchmark = get_benchmark(name)
    family, text = benchmark.family, benchmark.specification
    tasks = family.tasks([index], text)
    path = tuple(edge.name for edge in tasks.graph.paths()[-1])
    names = [edge.name for edge in family.edges]
    scaling, count = edge_scaling(family.tasks([0, family.last_index])), 25
    rng = np.random.default_rng(5)
    actors = 0.25 * NETWORK.initial(rng, (len(names),))
    boxes, at = family.regions_at(index), tasks.start_center[0]
    for edge in path:  # head for the next target, more or less
        target = boxes[edge.partition(">")[2]].center
        turn = np.arctan2(*(target - at)[::-1]) / np.pi
        actors[names.index(edge), -2:] = [1.0, np.arctanh(turn)]
        at = target
    task = SpecTask(tasks)
    draws = evaluation_draws(task, count, 4)
    states, lengths = record(network_paths(NETWORK, scaling, names, actors[None], [path]), task, draws)
    counted = satisfaction(family, tasks.spec, {index: Recorded(states[0], lengths[0])})[index]

    noise = draws.noise[: len(path) * family.horizon, 0].reshape(len(path), family.horizon, count, 2)
    records = {edge: EdgeRecord((0,), (float(edge in path),), (0.0,)) for edge in names}  # the guard takes this path
    still = identity(1, actors.shape)
    template = Template((0,), tuple(names), NETWORK, scaling, still, actors, np.zeros(len(names), np.intp), records)
    split = family.split("all", range(family.last_index + 1))
    policy = IndexPolicy(get_method("dibs"), template.to_model({}, {}), benchmark, split, 0, index)
    assert policy.paths == (path,)
    verdicts = []
    for r in range(count):
        alone, verdict = one_episode(policy, draws.starts[0, r], noise[:, :, r], monkeypatch)
        verdicts.append(verdict)
        # The environment ends an episode at its first unsafe state; the batch goes on, to no avail.
        assert len(alone) <= lengths[0, r]
        np.testing.assert_allclose(states[0, r, : len(alone)], alone, atol=2e-4)
        if verdict or "avoid" not in text:
            assert len(alone) == lengths[0, r]
    assert counted == sum(verdicts)
    assert 0 < sum(verdicts) < count  # both verdicts were compared


def test_a_fitted_template_against_single_episodes(pipeline, tiny, monkeypatch):
    file = pipeline.layout.model("dibs", "tiny", "gap2", 0)
    model, _ = load_model(file)
    template = evolution_of(model, str(file))
    for index in (1, 6):
        aim = Benchmark("tiny", tiny, "tiny", "tiny")
        policy = IndexPolicy(get_method("dibs"), model, aim, tiny.split("gap2"), 0, index)
        task = SpecTask(tiny.tasks([index]))
        draws = evaluation_draws(task, 20, 0)
        states, lengths = record(compose(template, task.grounded), task, draws)
        noise = draws.noise[:, 0].reshape(2, 10, 20, 2)
        for r in range(20):
            alone, _ = one_episode(policy, draws.starts[0, r], noise[:, :, r], monkeypatch)
            assert len(alone) == lengths[0, r]
            np.testing.assert_allclose(states[0, r, : len(alone)], alone, atol=2e-4)


# --- what decides ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def walled(tiny_description):
    """Straight to the right through a wall to a, then on to b; no noise."""
    return load_family(
        tiny_description(
            environment={"name": "Car2D", "noise": 0.0},
            specification="(achieve reach(a); achieve reach(b)) ensuring avoid(wall)",
            start={"center": [0.0, 0.0]},
            regions={
                "a": {"center": [5.0, 0.0], "half_width": 1.0},
                "b": {"center": [10.0, 0.0], "half_width": 1.0},
                "wall": {"center": [2.0, 0.0], "half_width": 0.4},
            },
        )
    )


def flat(edges: int) -> Scaling:
    return Scaling(np.zeros((edges, 2), np.float32), np.ones((edges, 2), np.float32))


def aside(**centers: list[float]) -> dict[str, dict]:
    return {name: {"center": center, "half_width": 1.0} for name, center in centers.items()}


def straight(family) -> Recorded:
    """Three rollouts at half a step per step along x, on both edges."""
    actors = {0: np.stack([heading(0.0, 0.0)] * len(family.edges))}
    return rollouts(family, flat(2), actors, {0: ("start>a", "a>b")}, 3, seed=0)[0]


def test_a_controller_that_arrives_through_the_wall_has_not_succeeded(walled):
    recorded = straight(walled)
    last = recorded.states[np.arange(3), recorded.lengths - 1]
    assert walled.regions_at(0)["b"].contains(last.astype(float)).all()  # the controller thinks it is done
    assert satisfaction(walled, walled.spec, {0: recorded}) == {0: 0}
    assert satisfaction(walled, parse("achieve reach(a); achieve reach(b)"), {0: recorded}) == {0: 3}


def test_visiting_the_regions_in_the_wrong_order_is_not_enough(walled):
    states = np.array([[[0.0, 5.0], [10.0, 0.0], [7.0, 2.0], [5.0, 0.0]]] * 2)
    wrong = Recorded(states, np.array([4, 4]))
    assert satisfaction(walled, walled.spec, {0: wrong}) == {0: 0}
    right = Recorded(states[:, ::-1], np.array([4, 2]))  # the second one was cut short of b
    assert satisfaction(walled, walled.spec, {0: right}) == {0: 1}


def test_what_stands_after_the_end_is_not_looked_at(walled):
    states = np.array([[[0.0, 5.0], [5.0, 0.0], [7.0, 2.0], [10.0, 0.0], [2.0, 0.0], [np.nan, np.nan]]])
    assert satisfaction(walled, walled.spec, {0: Recorded(states, np.array([4]))}) == {0: 1}
    assert satisfaction(walled, walled.spec, {0: Recorded(states, np.array([3]))}) == {0: 0}
    assert satisfaction(walled, walled.spec, {0: Recorded(states, np.array([5]))}) == {0: 0}  # then into the wall


def test_a_rollout_that_misses_a_target_does_not_go_on(tiny_description):
    """It stops where the first edge's horizon ends; the next edge's policy never acts."""
    missed = load_family(
        tiny_description(environment={"name": "Car2D", "noise": 0.0}, regions=aside(a=[0.0, 50.0], b=[7.0, 0.0]))
    )
    recorded = straight(missed)
    assert recorded.lengths.tolist() == [11] * 3


def test_a_target_inside_the_one_before_takes_another_step(tiny_description):
    """A sequence asks for its second part after the first: the state that ended one edge cannot end the next."""
    nested = load_family(
        tiny_description(
            environment={"name": "Car2D", "noise": 0.0},
            start={"center": [0.0, 0.0]},
            regions=aside(a=[5.0, 0.0], b=[4.5, 0.0]),
        )
    )
    recorded = straight(nested)
    assert recorded.lengths.tolist() == [1 + 8 + 1] * 3  # x = 4.0 is in both
    assert satisfaction(nested, nested.spec, {0: recorded}) == {0: 3}


def test_an_edge_has_its_own_horizon(walled, tiny_description):
    """Ten steps per edge: what is left of one is not given to the next."""
    slow = load_family(
        tiny_description(
            environment={"name": "Car2D", "noise": 0.0},
            start={"center": [4.0, 0.0]},
            regions={
                "a": {"center": [6.0, 0.0], "half_width": 1.0},
                "b": {"center": [12.5, 0.0], "half_width": 1.0},
            },
        )
    )
    recorded = straight(slow)  # half a step per step: a after 2 steps, b would take 13 more
    assert recorded.lengths.tolist() == [1 + 2 + 10] * 3
    assert satisfaction(slow, slow.spec, {0: recorded}) == {0: 0}


# --- what is never touched -------------------------------------------------------------------------------


def test_indices_in_any_subset_or_order_give_the_same_counts(pipeline, tiny):
    model, _ = load_model(pipeline.layout.model("dibs", "tiny", "gap2", 0))

    def counts(indices: Iterable[int]) -> dict[int, int]:
        return count_satisfied(get_method("dibs"), model, tiny, tiny.specification, list(indices), 120, 0)

    every = counts(range(20))  # more than are rolled out together
    assert 0 < sum(every.values()) < 20 * 120
    for subset in ([7], [1, 3], [19, 0, 8], range(19, -1, -1), range(1, 20, 2)):
        assert counts(subset) == {i: every[i] for i in subset}


def test_paths_of_different_length_do_not_disturb_each_other():
    family = get_family("car2d-reach")
    scaling = edge_scaling(family.tasks([0, family.last_index]))
    rng = np.random.default_rng(1)
    actors = {i: NETWORK.initial(rng, (5,)) for i in range(6)}
    full = [edge.name for edge in family.edges]
    paths = {i: tuple(full[: 1 + i % 3]) for i in actors}
    together = rollouts(family, scaling, actors, paths, 30, seed=2)
    for i in actors:
        alone = rollouts(family, scaling, {i: actors[i]}, {i: paths[i]}, 30, seed=2)[i]
        assert np.array_equal(alone.lengths, together[i].lengths)
        for r, length in enumerate(alone.lengths):
            assert np.array_equal(alone.states[r, :length], together[i].states[r, :length])


QUICK = {
    "dibs": {"max_steps": 20, "batch": 64},
    "dibs-plus": {"max_steps": 20, "batch": 64, "motion_rollouts": 40},
    "dibs-plus-still": {"max_steps": 20, "batch": 64, "refine": 5},
    "dibs-branched": {"max_steps": 20, "batch": 64},
    "dibs-weights": {},
    "genrl": {"steps": 3000, "directions": 4, "best": 2, "variant": "own"},
    "bc": {"max_steps": 20, "batch": 64},
    "ars": {"steps": 3000, "directions": 4, "best": 2, "restarts": 1},
}


def test_nothing_of_an_unseen_index_is_asked_for_before_it_is_measured(
    pipeline, tiny_description, monkeypatch, tmp_path: Path
):
    """Watch which indices are grounded: teachers, datasets and all fits ask for training indices only."""
    from dibs import pipeline as stages
    from dibs.datasets.build import DatasetSettings
    from dibs.families.description import Moving
    from dibs.pipeline import Unit
    from dibs.teachers.train import TeacherSettings

    family = load_family(tiny_description())  # checking the description looks at every index; that is before
    split = family.split("gap2")
    asked: set[int] = set()
    plain = Moving.at

    def watched(self: Moving, indices: np.ndarray, names: Sequence[str] = ()) -> np.ndarray:
        asked.update(np.ravel(indices).tolist())
        return plain(self, indices, names)

    monkeypatch.setattr(Moving, "at", watched)
    files = pipeline.layout
    teachers = [files.teacher("tiny", "gap2", i, 0) for i in split.indices]
    datasets = [files.dataset("tiny", "gap2", i, 0) for i in split.indices]
    short = parse_settings(TeacherSettings, {"rollouts": 20, "probes": 20, "options": {"iterations": 2, "restarts": 1}})
    stages.make_teacher(family, split, 0, 0, short, tmp_path / "0.safetensors")
    stages.make_teacher(family, split, 2, 0, short, tmp_path / "t.safetensors", tmp_path / "0.safetensors")
    for index, teacher in zip(split.indices, teachers, strict=True):
        stages.make_dataset(family, split, index, 0, DatasetSettings(size=50), teacher, tmp_path / f"{index}.parquet")
    unit = Unit("tiny", family, family.specification, "tiny")
    for name, quick in QUICK.items():
        method = get_method(name)
        settings = parse_settings(method.settings, {**method.defaults, **quick})
        output = tmp_path / name / "model.safetensors"
        needed = method.inputs(settings, split.indices)
        given = [teachers if needed["teachers"] else [], datasets if needed["datasets"] else []]
        stages.make_model(method, unit, split, 0, settings, output, *given)
    environment, edges = family.tasks([0]).environment, [edge.name for edge in family.edges]
    for name in ("dibs-plus", "dibs-plus-still"):
        model, _ = load_model(tmp_path / name / "model.safetensors")
        template = evolution_of(model, "")
        for index in range(9):  # policies and paths of all indices, trained or not
            template.edge_policy(environment, [(index, edge) for edge in edges])
            template.path(family.graph, index)
    assert asked == set(split.indices)
    count_satisfied(get_method("dibs-plus"), model, family, family.specification, [3], 2, 0)
    assert asked == {0, 2, 3, 4}  # the watch works: measuring index 3 is what asks for it


def test_a_method_cannot_ask_for_an_unseen_index(tiny):
    """What training is given has no other tasks."""
    given = Training(tiny.tasks(tiny.split("gap2").indices), "tiny", tiny.split("gap2"), 0)
    assert given.tasks.indices == (0, 2, 4)
    assert not any(isinstance(getattr(given, name), Family) for name in given.__dataclass_fields__)


def test_all_methods_meet_the_same_noise():
    """Initial states depend on the family, the index and the seed, not on the policy or its neighbors."""
    family = get_family("car2d-reach")
    scaling = edge_scaling(family.tasks([0, family.last_index]))
    starts = {}
    for seed, turn in itertools.product((0, 1), (0.1, 0.6)):
        actors = {i: np.stack([heading(0.5, turn)] * 5) for i in (2, 3)}
        recorded = rollouts(family, scaling, actors, {i: ("start>g1",) for i in actors}, 10, seed)
        starts[seed, turn] = {i: recorded[i].states[:, 0] - [0.5 * i, 0.0] for i in actors}
    assert np.array_equal(starts[0, 0.1][2], starts[0, 0.6][2])
    assert not np.allclose(starts[0, 0.1][2], starts[1, 0.1][2])
    assert not np.allclose(starts[0, 0.1][2], starts[0, 0.1][3])
