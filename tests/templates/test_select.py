"""Choosing the priors of dibs-plus: which indices are left out, and what decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dibs.teachers.store import load_teacher
from dibs.templates import select as module
from dibs.templates.fit import FitSettings, fit
from dibs.templates.select import CANDIDATES, _folds, better, select
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
    assert CANDIDATES[0] == (0.0, 0.0, False)


def test_where_nothing_can_be_left_out_the_papers_objective_stands(tiny, gathered):
    data, network, scaling = gathered
    data = type(data)(**{**data.__dict__, "present": np.array([[True, False, True]] * 2)})
    choice = select(tiny, data, network, scaling, QUICK, np.random.default_rng(0))
    assert choice.chosen == [0, 0]
    plus, plain = (fit(data, network, QUICK, np.random.default_rng(1), priors=p) for p in (choice.priors, None))
    assert np.array_equal(plus.kappa, plain.kappa)


def test_success_decides_and_then_the_return(tiny, gathered, monkeypatch):
    data, network, scaling = gathered
    scores = [
        (np.array([0.5, 0.9, 0.2, 0.9]), np.array([-1.0, -3.0, -1.0, -2.0])),
        (np.array([1.0, 0.999, 0.998, 0.0]), np.array([-3.0, -1.0, -2.0, -1.0])),  # alike to a percent
    ]
    monkeypatch.setattr(module, "_trial", lambda family, e, *rest: scores[e])
    choice = select(tiny, data, network, scaling, QUICK, np.random.default_rng(0))
    assert choice.chosen == [3, 1]
    assert choice.priors.identity.tolist() == [CANDIDATES[3][0], CANDIDATES[1][0]]
    assert choice.priors.movement.max(axis=1).tolist() == [CANDIDATES[3][1], CANDIDATES[1][1]]


def test_the_same_seed_gives_the_same_choice(tiny, gathered, monkeypatch):
    monkeypatch.setattr(module, "STEPS", 30)
    choices = [select(tiny, *gathered, QUICK, np.random.default_rng(3)) for _ in range(2)]
    assert choices[0].chosen == choices[1].chosen and np.array_equal(choices[0].success, choices[1].success)
    assert all(0 <= c < len(CANDIDATES) for c in choices[0].chosen) and choices[0].success.shape == (2, 6)


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
