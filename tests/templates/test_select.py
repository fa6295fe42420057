"""Choosing a class of templates: which indices are left out, what decides, and when an edge reverts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dibs.methods import Training
from dibs.simulation import EdgeTask, NetworkPolicy, rollout
from dibs.templates import methods
from dibs.templates import select as module
from dibs.templates.affine import Affine
from dibs.templates.fit import Fit, FitSettings, fit
from dibs.templates.moved import Moved, MovedPolicy
from dibs.templates.polynomial import identity, unroll
from dibs.templates.select import (
    CANDIDATES,
    NONE,
    PLAIN,
    ROLLOUTS,
    WEAK,
    Candidate,
    Row,
    Selection,
    left_out,
    no_worse,
    within,
)
from dibs.templates.template import Joined, Template, evolution_of, load_sources

QUICK = FitSettings(max_steps=50, batch=64)
pytestmark = pytest.mark.usefixtures("quick_selection")
TASK, AFFINE, ACTIONS = Candidate(form="task"), Candidate(form="full"), Candidate("actions")


def streams(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    return np.random.default_rng(seed), np.random.default_rng(seed + 1)


@pytest.fixture(scope="module")
def selection(training: Training) -> Selection:
    edges = training.tasks.edge_names
    return Selection.of(training.tasks, load_sources(training), edges, QUICK, streams(0))


def seeded(selection: Selection, seed: int, **changes) -> Selection:
    rng, plain_rng = streams(seed)
    return replace(selection, rng=rng, plain_rng=plain_rng, queried={}, draws={}, final=[], **changes)


def test_interior_training_indices_and_the_last_one_are_left_out():
    assert left_out(np.ones(3, bool)) == [1, 2]
    assert left_out(np.ones(9, bool)) == [1, 7, 8]
    late = np.array([False, False, True, True, True, False])  # a branch with teachers at three indices
    assert left_out(late) == [3, 4]


@pytest.mark.parametrize("present", [[True, True], [True, False, False, True], [False, True]])
def test_of_two_training_indices_none_is_left_out(present):
    assert left_out(np.array(present)) == []


def test_candidates_have_names_and_the_fewest_free_parameters_come_first(selection):
    assert Candidate(None, NONE, None) == PLAIN and len({c.words for c in CANDIDATES}) == len(CANDIDATES)
    n, m = selection.network.inputs, selection.network.outputs
    free = {"task": 0, "full": n * (n + 1) + m * (m + 1), None: 2 * selection.network.size}
    counts = [free[c.form] for c in CANDIDATES]
    assert counts == sorted(counts)


def test_settings_leave_candidates_out(selection):
    def words(**changes) -> set[str]:
        chosen = replace(selection, settings=replace(QUICK, **changes))
        return {c.words for c in CANDIDATES if chosen.allows(c)}

    everything = words()
    assert everything == {c.words for c in CANDIDATES}
    assert words(priors=False) == {w for w in everything if "priors" not in w}
    assert words(bridges=False) == {w for w in everything if "bridges" not in w}
    assert words(affine=False) == {w for w in everything if "affine" not in w}
    assert words(priors=False, bridges=False, affine=False) == {"polynomial"}


def test_what_success_within_noise_of_the_best_is():
    some = [TASK, AFFINE, ACTIONS, PLAIN]

    def good(*success: float, folds: int = 3) -> list[Candidate]:
        return within(dict(zip(some, success, strict=True)), folds, max(success))

    assert good(0.5, 0.7, 0.8, 0.95) == [PLAIN]
    assert good(0.5, 0.7, 0.87, 0.95) == [ACTIONS, PLAIN]  # equal but for the spread between indices
    assert good(0.5, 0.7, 0.82, 0.95, folds=2) == [ACTIONS, PLAIN]  # the fewer indices, the less they say
    assert good(0.5, 0.945, 0.9, 0.96) == [AFFINE, ACTIONS, PLAIN]
    assert good(0.5, 0.93, 0.9, 0.96) == [ACTIONS, PLAIN]  # affine maps must really be as good


@pytest.mark.parametrize(
    "success, best, tried",
    [
        ({TASK: 0.99}, [TASK], 1),  # no other candidate can be better by more than noise
        ({TASK: 0.5, AFFINE: 1.0}, [AFFINE], 2),
        ({ACTIONS: 0.91}, [ACTIONS], 3),
        ({ACTIONS: 0.8, PLAIN: 1.0}, [PLAIN, ACTIONS], 7),
        ({ACTIONS: 0.6, AFFINE: 0.65}, [AFFINE, ACTIONS], 7),
    ],
)
def test_candidates_are_tried_until_no_other_one_can_win(selection, monkeypatch, success, best, tried):
    monkeypatch.setattr(
        Selection, "trial", lambda self, folds, some: {e: np.array([success.get(c, 0.0) for c in some]) for e in folds}
    )
    data = replace(selection.data, indices=np.arange(4), present=np.ones((2, 4), dtype=bool))
    ranked, table = seeded(selection, 1, data=data).choose()
    assert [order[: len(best)] for order in ranked] == [best] * 2
    assert [len(scores) for scores in table] == [tried] * 2


def test_where_nothing_can_be_left_out_the_papers_objective_is_used(selection):
    data = replace(selection.data, present=np.array([[True, False, True]] * 2))
    parts, metrics = seeded(selection, 1, data=data).fit()
    plain = fit(data, selection.network, QUICK, np.random.default_rng(2))
    assert metrics["chosen"] == dict.fromkeys(selection.edges, "polynomial")
    assert metrics["left_out"] == {name: {} for name in selection.edges}
    assert len(parts) == 1 and np.array_equal(parts[0].kappa, plain.kappa)


def test_the_same_seed_gives_the_same_choice(selection):
    (one, first), (two, second) = (seeded(selection, 3).choose() for _ in range(2))
    assert one == two and first == second
    assert [set(order) for order in one] == [set(scores) for scores in first] != [set()] * 2


def test_each_candidate_is_measured_with_its_own_policy_at_the_left_out_indices(selection, monkeypatch):
    """All candidates, folds and edges share one fit; compared with rollouts of one candidate at a time."""
    some = [Candidate(None, prior) for prior in (NONE, WEAK, (1.0, 1.0, True))]
    spread = {NONE: 0.0, WEAK: 0.25, (1.0, 1.0, True): 1.0}  # the further from the identity, the worse

    def planted(data, network, settings, rng, priors):
        kappa = np.stack([_kappa(data.base.shape[1:], spread[prior]) for prior in priors], axis=1)
        return Fit(kappa, np.zeros(data.present.shape), 0, [])

    monkeypatch.setattr(module, "fit", planted)
    own = seeded(selection, 5)
    success = own.trial({0: [1, 2], 1: [2]}, some)
    network = selection.network
    for e, indices in ((0, [2, 4]), (1, [4])):
        name, steps = selection.edges[e], 0
        task = EdgeTask(selection.tasks.ground([(i, name) for i in indices]))
        base = selection.data.base[e].astype(float)
        for c, candidate in enumerate(some):
            theta = unroll(_kappa(base.shape, spread[candidate.prior]), base, 4)[indices].astype(np.float32)
            folded = network.fold(theta, selection.scaling.center[e], selection.scaling.half[e])
            outcome = rollout(task, NetworkPolicy(network, folded), own.draws[e, ROLLOUTS])
            steps += outcome.steps
            assert success[e][c] == pytest.approx(outcome.success.mean())
        assert len(set(success[e].tolist())) > 1
        assert own.queried[name] == steps


def _kappa(shape, spread):
    kappa = identity(1, shape)
    kappa[0] += 0.3 * spread
    return kappa


def test_the_base_policy_in_task_coordinates_is_the_shifted_policy(selection):
    """The tiny family shifts by (0.25, 0) per index; no weight but the first layer's biases changes."""
    found = seeded(selection, 1).fitted([Row(0, TASK), Row(1, TASK, 1), Row(0, TASK, 2)])
    x = np.random.default_rng(0).uniform(-1, 1, (30, 2))
    for row, e in zip(found, (0, 1, 0), strict=True):
        base, half = selection.data.base[e].astype(float), selection.scaling.half[e]
        ahead = np.array([7]) - selection.data.base_index[e]
        there = x + ahead * np.array([0.25, 0.0]) / half
        moved = row.actors([7])[0].astype(float)
        np.testing.assert_allclose(
            selection.network.forward(moved, there), selection.network.forward(base, x), atol=1e-5
        )
        hidden = selection.network.hidden[0]
        assert set(np.flatnonzero(moved != base)) <= set(range(2 * hidden, 3 * hidden))


def test_successes_at_training_indices_are_compared_one_by_one():
    before = np.array([1.0, 0.95, 0.5])
    assert no_worse(before, before) and no_worse(before, np.array([0.99, 0.95, 0.6]))
    assert not no_worse(before, np.array([1.0, 0.89, 1.0]))  # a training task is lost
    assert not no_worse(before, np.array([0.97, 1.0, 1.0]))  # less often, though it is still solved
    assert not no_worse(before, np.array([0.985, 0.935, 0.485]))  # a little less often everywhere


@pytest.mark.parametrize("wanted", [(PLAIN, AFFINE), (AFFINE, TASK), (ACTIONS, Candidate("pairs"))])
def test_each_edge_gets_the_class_that_it_chose(selection, monkeypatch, wanted):
    monkeypatch.setattr(Selection, "choose", lambda self: ([[c] for c in wanted], [{}, {}]))
    monkeypatch.setattr(module, "no_worse", lambda before, after: True)
    parts, metrics = seeded(selection, 2, settings=replace(QUICK, refine=3)).fit()
    by_edge = {name: part for part in parts for name in part.edges}
    assert set(by_edge) == set(selection.edges)
    for name, candidate in zip(selection.edges, wanted, strict=True):
        assert isinstance(by_edge[name], Template if candidate.form is None else Affine)
        assert metrics["chosen"][name] == candidate.words
        assert len(metrics["per_index"][name]) == 3  # the paper's loss, at training indices only
    joined = Joined(tuple(parts))
    again = evolution_of(joined.to_model({}, {}), "")
    pairs = [(index, name) for index in (0, 3, 9) for name in selection.edges]
    policies = [t.edge_policy(selection.tasks.environment, pairs) for t in (joined, again)]
    assert type(policies[0]) is type(policies[1])


def test_if_a_candidate_is_worse_the_next_one_is_tried_and_then_the_papers_objective(selection, monkeypatch):
    monkeypatch.setattr(Selection, "choose", lambda self: ([[AFFINE, TASK], [TASK, AFFINE]], [{}, {}]))
    monkeypatch.setattr(
        Selection, "_at_training", lambda self, e, found: np.full(3, 0.5 if isinstance(found.template, Affine) else 1.0)
    )
    _, metrics = seeded(selection, 2).fit()
    assert metrics["chosen"] == dict.fromkeys(selection.edges, "polynomial")

    real, made = Selection.fitted, list[tuple[object, Candidate]]()

    def noted(self, rows, quick=False):
        found = real(self, rows, quick)
        made.extend((one, row.candidate) for one, row in zip(found, rows, strict=True))
        return found

    def only_tasks(self, e, found):
        success = {TASK: 1.0, AFFINE: 0.5}
        return np.full(3, next((success[c] for one, c in made if one is found), 0.8))

    monkeypatch.setattr(Selection, "fitted", noted)
    monkeypatch.setattr(Selection, "_at_training", only_tasks)
    _, metrics = seeded(selection, 2).fit()
    assert metrics["chosen"] == dict.fromkeys(selection.edges, "affine (task)")


def test_if_all_edges_lose_the_template_is_that_of_dibs(training, monkeypatch):
    """Same data, same stream: the plain fit is that of `dibs`, bit by bit."""
    monkeypatch.setattr(Selection, "choose", lambda self: ([[AFFINE]] * 2, [{}, {}]))
    monkeypatch.setattr(module, "no_worse", lambda before, after: False)
    made = methods.DIBS_PLUS_STILL.train(training, QUICK)
    dibs = methods.DIBS.train(training, QUICK)
    assert made.metadata["class"] == "polynomial"
    assert np.array_equal(made.tensors["kappa"], dibs.tensors["kappa"])
    assert made.metrics["chosen"] == dict.fromkeys(training.tasks.edge_names, "polynomial")


# --- motion in dibs-plus ---------------------------------------------------------------------------------


def test_edges_whose_motion_holds_are_moved_and_not_fitted(training, monkeypatch):
    """On the tiny family, regions shift and Car2D does not care where it is."""
    monkeypatch.setattr(Selection, "fit", lambda self: pytest.fail(f"fitted {self.edges}"))
    model = methods.DIBS_PLUS.train(training, replace(QUICK, motion=True))
    template = evolution_of(model, "")
    assert isinstance(template, Moved) and template.edges == training.tasks.edge_names
    assert model.metrics["chosen"] == dict.fromkeys(template.edges, "motion")
    dibs = methods.DIBS.train(training, QUICK)
    for name in template.edges:
        assert model.steps[name] == dibs.steps[name] + model.metrics["queried"][name] > dibs.steps[name]


def test_the_other_edges_are_fitted_and_the_template_is_joined(training, monkeypatch):
    real = module.Selection.of
    fitted = []

    def one_fails(self, edge):
        motion, record, steps = found(self, edge)
        return (replace(motion, reason="made to fail") if edge.name == "a>b" else motion), record, steps

    found = methods.Mover.edge
    monkeypatch.setattr(methods.Mover, "edge", one_fails)
    monkeypatch.setattr(module.Selection, "of", lambda *args: fitted.append(args[2]) or real(*args))
    model = methods.DIBS_PLUS.train(training, replace(QUICK, motion=True))
    template = evolution_of(model, "")
    assert fitted == [["a>b"]] and isinstance(template, Joined)
    assert isinstance(template.part("start>a"), Moved) and not isinstance(template.part("a>b"), Moved)
    policy = template.edge_policy(training.tasks.environment, [(7, "start>a")])
    assert isinstance(policy, MovedPolicy)
    assert set(model.metrics["chosen"]) == {"start>a", "a>b"} and model.metrics["fitted"] == ("a>b",)
    dibs = methods.DIBS.train(training, QUICK)
    assert all(model.steps[name] > dibs.steps[name] for name in template.edges)
