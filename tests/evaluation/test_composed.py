"""Composed rollouts against one episode at a time, what decides satisfaction, and what is never touched."""

from __future__ import annotations

import itertools
from collections import deque

import numpy as np
import pytest

import dibs.envs.gym
from dibs.envs import sample_noise
from dibs.evaluation.composed import Recorded, rollouts, satisfaction
from dibs.evaluation.count import count_template
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.evaluation.policy import Policy, policy_at
from dibs.families import get_benchmark, get_family, ground, load_family
from dibs.policies.network import Network
from dibs.policies.scaling import Scaling, edge_scaling
from dibs.seeding import stream
from dibs.spectrl import graph, parse
from dibs.templates.template import load_template


def heading(v: float, turn: float) -> np.ndarray:
    """Parameters of a 1×8 actor whose actions are constant."""
    theta = np.zeros(Network(2, (8,), 2).size, dtype=np.float32)
    theta[-2:] = [np.arctanh(v), np.arctanh(turn)]
    return theta


def one_episode(policy: Policy, start, noise, monkeypatch) -> tuple[np.ndarray, bool]:
    """Step the Gymnasium environment with the policy; the noise (stages, horizon, dim) is handed in."""
    pending: deque[np.ndarray] = deque()
    monkeypatch.setattr(dibs.envs.gym, "sample_noise", lambda rng, shape: pending.popleft().reshape(shape))
    env = policy.make_env()
    state, info = env.reset(options={"state": start})
    policy.reset()
    states, stage, steps, over = [state], 0, 0, False
    while not over:
        action = policy(state)
        if policy.stage != stage:
            stage, steps = policy.stage, 0
        if steps == noise.shape[1]:
            break  # the edge's horizon is over
        pending.append(noise[stage, steps])
        state, _, terminated, truncated, info = env.step(action)
        steps += 1
        states.append(state)
        over = terminated or truncated
    return np.stack(states), bool(info["satisfied"])


@pytest.mark.parametrize("name, index", [("car2d-reach-k2", 3), ("car2d-reach-obs-k2", 30), ("car2d-choice-l1", 7)])
def test_against_single_episodes_in_the_gymnasium_environment(name, index, monkeypatch):
    """The same policies, initial states and noise: the same states and the same verdicts."""
    family, text = get_benchmark(name)
    spec = parse(text)
    path = tuple(edge.name for edge in graph(spec).paths()[-1])
    names = [edge.name for edge in family.edges]
    network, scaling, count = Network(2, (8,), 2), edge_scaling(family), 25
    rng = np.random.default_rng(5)
    actors = 0.25 * network.initial(rng, (len(names),))
    boxes, at = family.boxes(index), family.start.at(np.asarray(index))
    for edge in path:  # head for the next target, more or less
        target = boxes[edge.partition(">")[2]].center
        turn = np.arctan2(*(target - at)[::-1]) / np.pi
        actors[names.index(edge), -2:] = [1.0, np.arctanh(turn)]
        at = target
    recorded = rollouts(family, network, scaling, {index: actors}, {index: path}, count, seed=4)[index]
    counted = satisfaction(family, spec, {index: recorded})[index]

    draws = stream("evaluation", family.name, index, 4)
    uniforms = draws.random((count, 2), dtype=np.float32)
    noise = sample_noise(draws, (len(path), family.horizon, count, 2))
    starts = ground(family, [(index, path[0])]).initial(uniforms[None])[0]
    rows = [names.index(edge) for edge in path]
    policy = Policy(family, text, index, path, network, scaling.take(np.array(rows)), actors[rows])
    verdicts = []
    for r in range(count):
        states, verdict = one_episode(policy, starts[r], noise[:, :, r], monkeypatch)
        verdicts.append(verdict)
        # The environment ends an episode at its first unsafe state; the batch goes on, to no avail.
        assert len(states) <= recorded.lengths[r]
        np.testing.assert_allclose(recorded.states[r, : len(states)], states, atol=2e-4)
        if verdict or "avoid" not in text:
            assert len(states) == recorded.lengths[r]
    assert counted == sum(verdicts)
    assert 0 < sum(verdicts) < count  # both verdicts were compared


def test_a_fitted_template_against_single_episodes(pipeline, tiny, monkeypatch):
    template = load_template(pipeline.places.template("dibs", "tiny", 2, 0))
    for index in (1, 6):
        policy = policy_at(template, tiny, tiny.specification, index)
        recorded = rollouts(
            tiny,
            template.network,
            template.scaling,
            template.actors([index]),
            {index: template.path(tiny.graph, index)},
            20,
            seed=0,
        )[index]
        draws = stream("evaluation", "tiny", index, 0)
        uniforms = draws.random((20, 2), dtype=np.float32)
        noise = sample_noise(draws, (2, 10, 20, 2))
        starts = ground(tiny, [(index, "start>a")]).initial(uniforms[None])[0]
        for r in range(20):
            states, _ = one_episode(policy, starts[r], noise[:, :, r], monkeypatch)
            assert len(states) == recorded.lengths[r]
            np.testing.assert_allclose(recorded.states[r, : len(states)], states, atol=2e-4)


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
    return rollouts(family, Network(2, (8,), 2), flat(2), actors, {0: ("start>a", "a>b")}, 3, seed=0)[0]


def test_a_controller_that_arrives_through_the_wall_has_not_succeeded(walled):
    recorded = straight(walled)
    last = recorded.states[np.arange(3), recorded.lengths - 1]
    assert walled.boxes(0)["b"].contains(last.astype(float)).all()  # the controller thinks it is done
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
    artefact = pipeline.places.template("dibs", "tiny", 2, 0)
    settings = EvaluationSettings(rollouts=120)

    def counts(indices) -> dict[int, int]:
        return count_template(tiny, tiny.specification, artefact, 0, list(indices), settings)

    every = counts(range(20))  # more than are rolled out together
    assert 0 < sum(every.values()) < 20 * 120
    for subset in ([7], [1, 3], [19, 0, 8], range(19, -1, -1), range(1, 20, 2)):
        assert counts(subset) == {i: every[i] for i in subset}


def test_paths_of_different_length_do_not_disturb_each_other():
    family = get_family("car2d-reach")
    network, scaling = Network(2, (8,), 2), edge_scaling(family)
    rng = np.random.default_rng(1)
    actors = {i: network.initial(rng, (5,)) for i in range(6)}
    full = [edge.name for edge in family.edges]
    paths = {i: tuple(full[: 1 + i % 3]) for i in actors}
    together = rollouts(family, network, scaling, actors, paths, 30, seed=2)
    for i in actors:
        alone = rollouts(family, network, scaling, {i: actors[i]}, {i: paths[i]}, 30, seed=2)[i]
        assert np.array_equal(alone.lengths, together[i].lengths)
        for r, length in enumerate(alone.lengths):
            assert np.array_equal(alone.states[r, :length], together[i].states[r, :length])


def test_nothing_of_an_unseen_index_is_asked_for_before_it_is_measured(pipeline, tiny_description, monkeypatch):
    """Watch who grounds what: training, datasets, both fits and the guard ask for training indices only."""
    from dibs.datasets.build import DatasetSettings, build
    from dibs.families.model import Moving
    from dibs.policies.scaling import edge_scaling
    from dibs.settings import parse_settings
    from dibs.teachers.store import load_replay, load_teacher
    from dibs.teachers.train import TeacherSettings, train_teacher
    from dibs.templates.fit import FitSettings
    from dibs.templates.select import fit_selected
    from dibs.templates.template import assemble, gather

    family = load_family(tiny_description())  # checking the description looks at every index; that is before
    asked: set[int] = set()
    plain = Moving.at
    monkeypatch.setattr(
        Moving, "at", lambda self, indices: asked.update(np.ravel(indices).tolist()) or plain(self, indices)
    )
    places, train = pipeline.places, (0, 2, 4)
    teachers = [load_teacher(places.teacher("tiny", 2, i, 0)) for i in train]
    short = parse_settings(
        TeacherSettings,
        {"rollouts": 20, "probes": 20, "options": {"iterations": 2, "restarts": 1}},
    )
    edge_scaling(family)
    train_teacher(family, 2, 2, 0, teachers[0], short)
    for index, teacher in zip(train, teachers, strict=True):
        replay = load_replay(places.teacher("tiny", 2, index, 0), teacher.edges)
        list(build(family, teacher, replay, DatasetSettings(size=50)))
    data, records = gather(teachers, [places.dataset("tiny", 2, i, 0) for i in train], FitSettings())
    quick = FitSettings(max_steps=20, batch=64)
    fitted, _ = fit_selected(family, data, teachers[0].network, teachers[0].scaling, quick, np.random.default_rng(0))
    template = assemble("dibs-plus", teachers, data, records, fitted)
    for index in range(9):  # policies and paths of all indices, seen or not
        template.actors([index])
        template.path(family.graph, index)
    assert asked == set(train)
    rollouts(family, template.network, template.scaling, template.actors([3]), {3: ("start>a",)}, 2, seed=0)
    assert asked == {0, 2, 3, 4}  # the watch works: measuring index 3 is what asks for it


def test_all_methods_meet_the_same_noise():
    """Initial states depend on the family, the index and the seed, not on the policy or its neighbours."""
    family = get_family("car2d-reach")
    network, scaling = Network(2, (8,), 2), edge_scaling(family)
    starts = {}
    for seed, turn in itertools.product((0, 1), (0.1, 0.6)):
        actors = {i: np.stack([heading(0.5, turn)] * 5) for i in (2, 3)}
        paths = {i: ("start>g1",) for i in actors}
        recorded = rollouts(family, network, scaling, actors, paths, 10, seed)
        starts[seed, turn] = {i: recorded[i].states[:, 0] - [0.5 * i, 0.0] for i in actors}
    assert np.array_equal(starts[0, 0.1][2], starts[0, 0.6][2])
    assert not np.allclose(starts[0, 0.1][2], starts[1, 0.1][2])
    assert not np.allclose(starts[0, 0.1][2], starts[0, 0.1][3])
