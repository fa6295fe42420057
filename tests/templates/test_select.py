"""Choosing what dibs-plus adds: which indices are left out, and what decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dibs.methods import Training
from dibs.simulation import EdgeTask, NetworkPolicy, draw, rollout
from dibs.templates import select as module
from dibs.templates.fit import FitSettings, fit
from dibs.templates.polynomial import identity, unroll
from dibs.templates.select import CANDIDATES, ROLLOUTS, Candidate, Selection, interior, with_bridges
from dibs.templates.template import gather, load_sources

QUICK = FitSettings(max_steps=50, batch=64)


@pytest.fixture(scope="module")
def selection(training: Training) -> Selection:
    sources = load_sources(training)
    first = sources[0].teacher
    data = gather(training.tasks, sources, QUICK)
    return Selection(training.tasks, data, first.network, first.scaling, QUICK, np.random.default_rng(0))


def seeded(selection: Selection, seed: int, **changes) -> Selection:
    return replace(selection, rng=np.random.default_rng(seed), **changes)


def test_only_interior_training_indices_are_left_out():
    assert interior(np.ones(3, bool)) == [1]
    assert interior(np.ones(9, bool)) == [1, 7]
    late = np.array([False, False, True, True, True, False])  # a branch with teachers at three indices
    assert interior(late) == [3]


@pytest.mark.parametrize("present", [[True, True], [True, False, False, True], [False, True]])
def test_both_ends_are_never_left_out(present):
    assert interior(np.array(present)) == []


def test_the_first_candidate_is_the_papers_objective():
    assert CANDIDATES[0] == (0.0, 0.0, False, False)
    assert len(set(CANDIDATES)) == len(CANDIDATES)


def test_where_nothing_can_be_left_out_the_papers_objective_is_used(selection):
    data = replace(selection.data, present=np.array([[True, False, True]] * 2))
    chosen, success = seeded(selection, 0, data=data).choose()
    assert chosen == [0, 0] and np.isnan(success).all()
    assert with_bridges(data, chosen, np.random.default_rng(0)) is data
    plus, taken = seeded(selection, 1, data=data).fit()
    plain = fit(data, selection.network, QUICK, np.random.default_rng(1))
    assert taken == [0, 0] and np.array_equal(plus.kappa, plain.kappa)


def test_success_decides_and_then_the_return(selection, monkeypatch):
    scores = [
        (np.array([0.5, 0.9, 0.2, 0.9, 0.1]), np.array([-1.0, -3.0, -1.0, -2.0, -1.0])),
        (np.array([1.0, 0.999, 0.998, 0.0, 0.0]), np.array([-3.0, -1.0, -2.0, -1.0, 0.0])),  # alike to a percent
    ]
    monkeypatch.setattr(Selection, "trial", lambda self, e, folds: scores[e])
    chosen, _ = seeded(selection, 0).choose()
    assert chosen == [3, 1]
    seen = []
    monkeypatch.setattr(module, "fit", lambda *args: seen.append(args) or fit(*args))
    seeded(selection, 0).fit()
    assert [args[5:] for args in seen] == [(), ([CANDIDATES[3][:3], CANDIDATES[1][:3]],)]


def test_only_the_edges_that_chose_them_are_supervised_between_training_indices(selection):
    bridges = next(c for c, candidate in enumerate(CANDIDATES) if candidate == Candidate(bridged=True))
    more = with_bridges(selection.data, [0, bridges], np.random.default_rng(0))
    assert more.indices.tolist() == [0, 2, 4, 1, 3]
    assert more.present.tolist() == [[True] * 3 + [False] * 2, [True] * 5]


def test_the_reported_loss_is_the_papers(selection, monkeypatch):
    last = len(CANDIDATES) - 1
    monkeypatch.setattr(Selection, "choose", lambda self: ([last] * 2, np.zeros((2, len(CANDIDATES)))))
    result, taken = seeded(selection, 0).fit()
    assert all(t in (0, last) for t in taken)
    assert result.per_index.shape == selection.data.present.shape
    np.testing.assert_allclose(result.loss, result.per_index.sum(axis=1), rtol=1e-6)


def test_the_same_seed_gives_the_same_choice(selection, monkeypatch):
    monkeypatch.setattr(module, "STEPS", 30)
    (one, first), (two, second) = (seeded(selection, 3).choose() for _ in range(2))
    assert one == two and np.array_equal(first, second)
    assert all(0 <= c < len(CANDIDATES) for c in one) and first.shape == (2, len(CANDIDATES))


def test_each_candidate_is_measured_with_its_own_policy_at_the_left_out_index(selection, monkeypatch):
    """All candidates share one batch of rollouts; compared with one batch per candidate."""
    spread = np.linspace(0.0, 1.0, len(CANDIDATES))  # the further from the identity, the worse
    monkeypatch.setattr(module, "fit", lambda data, network, settings, rng, priors: _planted(data, priors, spread))
    success, returns = seeded(selection, 5).trial(0, [1])
    task = EdgeTask(selection.tasks.ground([(2, "start>a")]))
    draws = draw(task, ROLLOUTS, np.random.default_rng(5))
    base, scaling, network = selection.data.base[0].astype(float), selection.scaling, selection.network
    for c in range(len(CANDIDATES)):
        theta = unroll(_kappa(base.shape, spread[c]), base, 2)[2][None].astype(np.float32)
        acting = NetworkPolicy(network, network.fold(theta, scaling.center[0], scaling.half[0]))
        outcome = rollout(task, acting, draws)
        assert success[c] == pytest.approx(outcome.success.mean())
        assert returns[c] == pytest.approx(outcome.returns.mean(), rel=1e-5)
    assert len(set(returns.tolist())) == len(CANDIDATES)


def _kappa(shape, spread):
    kappa = identity(1, shape)
    kappa[0] += 0.3 * spread
    return kappa


def _planted(data, priors, spread):
    """A fit whose κ shows which candidate each row belongs to."""
    bridged = len(data.indices) > 3
    rows = [
        c
        for prior, _, _ in priors
        for c, candidate in enumerate(CANDIDATES)
        if candidate.bridged == bridged and candidate.prior == prior
    ]
    kappa = np.stack([_kappa(data.base.shape[1:], spread[c]) for c in rows], axis=1)
    return module.Fit(kappa, np.zeros(data.present.shape), 0, [])


def test_an_edge_that_loses_success_reverts(selection):
    data, network = selection.data, selection.network
    good = fit(data, network, FitSettings(max_steps=300, batch=64), np.random.default_rng(0))
    bad = replace(good, kappa=good.kappa + 0.3, per_index=good.per_index + 1.0)
    for fits, wanted in (((good, bad), 0), ((bad, good), 1), ((good, good), 1)):
        joined, taken = seeded(selection, 1).better(*fits)
        assert taken == [wanted, wanted]
        assert np.array_equal(joined.kappa, fits[wanted].kappa)
        assert np.array_equal(joined.loss, fits[wanted].loss)
    half = replace(good, kappa=good.kappa + 0.3 * np.arange(2)[:, None])  # only the second edge is spoilt
    joined, taken = seeded(selection, 1).better(half, bad)
    assert taken[0] == 0 and np.array_equal(joined.kappa[:, 0], good.kappa[:, 0])
