"""Choosing a class of templates: which indices are left out, what decides, and when an edge reverts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dibs.methods import Training
from dibs.simulation import EdgeTask, NetworkPolicy, draw, rollout
from dibs.templates import methods
from dibs.templates import select as module
from dibs.templates.affine import Affine
from dibs.templates.fit import FitSettings, fit
from dibs.templates.moved import Moved, MovedPolicy
from dibs.templates.polynomial import identity, unroll
from dibs.templates.select import CANDIDATES, NONE, ROLLOUTS, WEAK, Candidate, Selection, left_out
from dibs.templates.template import Joined, Template, evolution_of, load_sources

QUICK = FitSettings(max_steps=50, batch=64)
pytestmark = pytest.mark.usefixtures("quick_selection")
PLAIN, AFFINE = CANDIDATES[0], Candidate(form="full")


@pytest.fixture(scope="module")
def selection(training: Training) -> Selection:
    edges = training.tasks.edge_names
    return Selection.of(training.tasks, load_sources(training), edges, QUICK, np.random.default_rng(0))


def seeded(selection: Selection, seed: int, **changes) -> Selection:
    return replace(selection, rng=np.random.default_rng(seed), queried={}, **changes)


def test_interior_training_indices_and_the_last_one_are_left_out():
    assert left_out(np.ones(3, bool)) == [1, 2]
    assert left_out(np.ones(9, bool)) == [1, 7, 8]
    late = np.array([False, False, True, True, True, False])  # a branch with teachers at three indices
    assert left_out(late) == [3, 4]


@pytest.mark.parametrize("present", [[True, True], [True, False, False, True], [False, True]])
def test_of_two_training_indices_none_is_left_out(present):
    assert left_out(np.array(present)) == []


def test_the_first_candidate_is_the_papers_objective_and_all_have_names():
    assert CANDIDATES[0] == Candidate(None, NONE, None)
    assert len({candidate.words for candidate in CANDIDATES}) == len(CANDIDATES)


def test_settings_leave_candidates_out(selection):
    def words(**changes) -> set[str]:
        return {c.words for c in replace(selection, settings=replace(QUICK, **changes)).candidates}

    everything = words()
    assert everything == {c.words for c in CANDIDATES}
    assert words(priors=False) == {w for w in everything if "priors" not in w}
    assert words(bridges=False) == {w for w in everything if "bridges" not in w}
    assert words(affine=False) == {w for w in everything if "affine" not in w}
    assert words(priors=False, bridges=False, affine=False) == {"polynomial"}


def test_free_parameters_are_those_of_the_fits(selection):
    network = selection.network
    assert PLAIN.parameters(network, 1) == identity(1, (network.size,)).size
    n, m = network.inputs, network.outputs
    assert AFFINE.parameters(network, 1) == n * (n + 1) + m * (m + 1)
    assert Candidate(form="shift").parameters(network, 1) == n + m


def test_success_decides_then_free_parameters_then_the_order(selection):
    some = [PLAIN, Candidate(None, WEAK), Candidate("actions"), AFFINE]

    def best(*success: float, folds: int = 3) -> Candidate:
        return selection.best(some, np.array(success), folds)

    assert best(0.95, 0.8, 0.7, 0.5) == PLAIN
    assert best(0.95, 0.9, 0.7, 0.5) == some[1]  # equal but for the spread between indices
    assert best(0.95, 0.9, 0.87, 0.5) == some[2]
    assert best(0.95, 0.8, 0.82, 0.5, folds=2) == some[2]  # the fewer indices, the less they say
    assert best(0.95, 0.96, 0.9, 0.945) == AFFINE  # far fewer numbers
    assert best(0.95, 0.96, 0.9, 0.93) == some[2]  # affine maps must really be as good


def test_where_nothing_can_be_left_out_the_papers_objective_is_used(selection):
    data = replace(selection.data, present=np.array([[True, False, True]] * 2))
    parts, metrics = seeded(selection, 1, data=data).fit()
    plain = fit(data, selection.network, QUICK, np.random.default_rng(1))
    assert metrics["chosen"] == dict.fromkeys(selection.edges, "polynomial")
    assert metrics["left_out"] == {name: {} for name in selection.edges}
    assert len(parts) == 1 and np.array_equal(parts[0].kappa, plain.kappa)


def test_the_same_seed_gives_the_same_choice(selection):
    (one, first), (two, second) = (seeded(selection, 3).choose() for _ in range(2))
    assert one == two and first == second
    assert all(set(scores) == {c.words for c in CANDIDATES} for scores in first)


def test_each_candidate_is_measured_with_its_own_policy_at_the_left_out_indices(selection, monkeypatch):
    """All candidates and folds share one batch of rollouts; compared with one batch per candidate."""
    some = [Candidate(None, prior) for prior in (NONE, WEAK, module.STRONG)]
    spread = {NONE: 0.0, WEAK: 0.25, module.STRONG: 1.0}  # the further from the identity, the worse

    def planted(data, network, settings, rng, priors):
        kappa = np.stack([_kappa(data.base.shape[1:], spread[prior]) for prior in priors], axis=1)
        return module.Fit(kappa, np.zeros(data.present.shape), 0, [])

    monkeypatch.setattr(module, "fit", planted)
    own = seeded(selection, 5)
    success = own.trial(0, [1, 2], some)
    task = EdgeTask(selection.tasks.ground([(2, "start>a"), (4, "start>a")]))
    draws = draw(task, ROLLOUTS, np.random.default_rng(5))
    base, scaling, network = selection.data.base[0].astype(float), selection.scaling, selection.network
    steps = 0
    for c, candidate in enumerate(some):
        theta = unroll(_kappa(base.shape, spread[candidate.prior]), base, 4)[[2, 4]].astype(np.float32)
        acting = NetworkPolicy(network, network.fold(theta, scaling.center[0], scaling.half[0]))
        outcome = rollout(task, acting, draws)
        steps += outcome.steps
        assert success[c] == pytest.approx(outcome.success.mean())
    assert len(set(success.tolist())) == len(some)
    assert own.queried == {"start>a": steps}


def _kappa(shape, spread):
    kappa = identity(1, shape)
    kappa[0] += 0.3 * spread
    return kappa


def test_an_edge_reverts_if_it_succeeds_less_often_at_any_training_index(selection):
    good = fit(selection.data, selection.network, FitSettings(max_steps=300, batch=64), np.random.default_rng(0))
    shared = selection.tasks.indices, selection.edges, selection.network, selection.scaling
    own = selection.data.base, selection.data.base_index, selection.records
    plain, spoilt = (Template(*shared, kappa, *own) for kappa in (good.kappa, good.kappa + 0.3))
    found = seeded(selection, 1)
    assert found.no_worse(0, plain, plain, 0) and found.no_worse(1, plain, plain, 1)
    assert not found.no_worse(0, plain, spoilt, 0)
    assert found.no_worse(0, spoilt, plain, 0)


@pytest.mark.parametrize("wanted", [(PLAIN, AFFINE), (AFFINE, AFFINE), (Candidate("actions"), Candidate("pairs"))])
def test_each_edge_gets_the_class_that_it_chose(selection, monkeypatch, wanted):
    monkeypatch.setattr(Selection, "choose", lambda self: (list(wanted), [{}, {}]))
    monkeypatch.setattr(Selection, "no_worse", lambda self, e, plain, template, row: True)
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


def test_if_all_edges_lose_the_template_is_that_of_dibs(selection, training, monkeypatch):
    """Same data, same stream: the plain fit is that of `dibs`, bit by bit."""
    monkeypatch.setattr(Selection, "choose", lambda self: ([AFFINE] * 2, [{}, {}]))
    monkeypatch.setattr(Selection, "no_worse", lambda self, e, plain, template, row: False)
    made = methods.DIBS_PLUS_STILL.train(training, QUICK)
    dibs = methods.DIBS.train(training, QUICK)
    assert made.metadata["class"] == "polynomial"
    assert np.array_equal(made.tensors["kappa"], dibs.tensors["kappa"])
    assert made.metrics["chosen"] == dict.fromkeys(selection.edges, "polynomial")


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
