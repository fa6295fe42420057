"""Choosing what dibs-plus adds: which indices are left out, and what decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dibs.teachers.store import load_teacher
from dibs.templates import select as module
from dibs.templates.fit import FitSettings, fit
from dibs.templates.select import CANDIDATES, Candidate, Choice, _folds, better, fit_selected, select
from dibs.templates.template import gather

QUICK = FitSettings(max_steps=50, batch=64)


@pytest.fixture(scope="module")
def gathered(pipeline):
    teachers = [load_teacher(pipeline.places.teacher("tiny", 2, i, 0)) for i in (0, 2, 4)]
    data, _ = gather(teachers, [pipeline.places.dataset("tiny", 2, i, 0) for i in (0, 2, 4)], QUICK)
    return data, teachers[0].network, teachers[0].scaling


def test_only_interior_training_indices_are_left_out():
    assert _folds(np.ones(3, bool)) == [1]
    assert _folds(np.ones(9, bool)) == [1, 7]
    late = np.array([False, False, True, True, True, False])  # a branch with teachers at three indices
    assert _folds(late) == [3]


@pytest.mark.parametrize("present", [[True, True], [True, False, False, True], [False, True]])
def test_both_ends_are_never_left_out(present):
    assert _folds(np.array(present)) == []


def test_the_first_candidate_is_the_papers_objective():
    assert CANDIDATES[0] == (0.0, 0.0, False, False)
    assert len(set(CANDIDATES)) == len(CANDIDATES)


def test_where_nothing_can_be_left_out_the_papers_objective_stands(tiny, gathered):
    data, network, scaling = gathered
    data = type(data)(**{**data.__dict__, "present": np.array([[True, False, True]] * 2)})
    choice = select(tiny, data, network, scaling, QUICK, np.random.default_rng(0))
    assert choice.chosen == [0, 0] and choice.supervision(data, np.random.default_rng(0)) is data
    plus, taken = fit_selected(tiny, data, network, scaling, QUICK, np.random.default_rng(1))
    plain = fit(data, network, QUICK, np.random.default_rng(1))
    assert taken == [0, 0] and np.array_equal(plus.kappa, plain.kappa)


def test_success_decides_and_then_the_return(tiny, gathered, monkeypatch):
    data, network, scaling = gathered
    scores = [
        (np.array([0.5, 0.9, 0.2, 0.9, 0.1]), np.array([-1.0, -3.0, -1.0, -2.0, -1.0])),
        (np.array([1.0, 0.999, 0.998, 0.0, 0.0]), np.array([-3.0, -1.0, -2.0, -1.0, 0.0])),  # alike to a percent
    ]
    monkeypatch.setattr(module, "_trial", lambda family, e, *rest: scores[e])
    choice = select(tiny, data, network, scaling, QUICK, np.random.default_rng(0))
    assert choice.chosen == [3, 1]
    priors = choice.priors(network)
    assert priors.identity.tolist() == [CANDIDATES[3].prior, CANDIDATES[1].prior]
    assert priors.movement.max(axis=1).tolist() == [CANDIDATES[3].movement, CANDIDATES[1].movement]


def test_only_the_edges_that_chose_them_are_supervised_between_training_indices(gathered):
    data, *_ = gathered
    with_bridges = next(c for c, candidate in enumerate(CANDIDATES) if candidate == Candidate(bridged=True))
    more = Choice([0, with_bridges], np.zeros((2, len(CANDIDATES)))).supervision(data, np.random.default_rng(0))
    assert more.indices.tolist() == [0, 2, 4, 1, 3]
    assert more.present.tolist() == [[True] * 3 + [False] * 2, [True] * 5]


def test_the_loss_that_is_told_is_the_papers(tiny, gathered, monkeypatch):
    data, network, scaling = gathered
    chosen = Choice([len(CANDIDATES) - 1] * 2, np.zeros((2, len(CANDIDATES))))
    monkeypatch.setattr(module, "select", lambda *_: chosen)
    result, taken = fit_selected(tiny, data, network, scaling, QUICK, np.random.default_rng(0))
    assert all(t in (0, len(CANDIDATES) - 1) for t in taken)
    assert result.per_index.shape == data.present.shape
    np.testing.assert_allclose(result.loss, result.per_index.sum(axis=1), rtol=1e-6)


def test_the_same_seed_gives_the_same_choice(tiny, gathered, monkeypatch):
    monkeypatch.setattr(module, "STEPS", 30)
    choices = [select(tiny, *gathered, QUICK, np.random.default_rng(3)) for _ in range(2)]
    assert choices[0].chosen == choices[1].chosen and np.array_equal(choices[0].success, choices[1].success)
    assert all(0 <= c < len(CANDIDATES) for c in choices[0].chosen) and choices[0].success.shape == (2, len(CANDIDATES))


def test_an_edge_worse_off_with_its_prior_goes_back(tiny, gathered):
    data, network, scaling = gathered
    good = fit(data, network, FitSettings(max_steps=300, batch=64), np.random.default_rng(0))
    bad = replace(good, kappa=good.kappa + 0.3, loss=good.loss + 1.0, per_index=good.per_index + 1.0, seconds=1.0)
    for fits, wanted in (((good, bad), 0), ((bad, good), 1), ((good, good), 1)):
        joined, taken = better(tiny, data, network, scaling, fits, np.random.default_rng(1))
        assert taken == [wanted, wanted]
        assert np.array_equal(joined.kappa, fits[wanted].kappa)
        assert np.array_equal(joined.loss, fits[wanted].loss)
        assert joined.seconds == fits[0].seconds + fits[1].seconds
    half = replace(good, kappa=good.kappa + 0.3 * np.arange(2)[:, None])  # only the second edge is spoilt
    joined, taken = better(tiny, data, network, scaling, (half, bad), np.random.default_rng(1))
    assert taken[0] == 0 and np.array_equal(joined.kappa[:, 0], good.kappa[:, 0])
