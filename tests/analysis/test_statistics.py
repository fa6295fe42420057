"""Statistics against formulas that are not ours."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dibs.analysis.statistics import bootstrap, interquartile_mean, probability_of_improvement, wilson

SCORES = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30)


@given(st.integers(1, 2000), st.data())
def test_wilson(trials, data):
    successes = data.draw(st.integers(0, trials))
    low, high = wilson(successes, trials)
    expected = stats.binomtest(successes, trials).proportion_ci(0.95, method="wilson")
    assert (float(low), float(high)) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_wilson_takes_arrays():
    low, high = wilson([0, 50, 100], [100, 100, 100])
    assert low.shape == high.shape == (3,)
    assert low[0] == pytest.approx(0.0, abs=1e-12) and high[2] == pytest.approx(1.0) and np.all(low < high)


@given(SCORES)
def test_interquartile_mean(scores):
    assert float(interquartile_mean(scores)) == pytest.approx(stats.trim_mean(scores, 0.25), abs=1e-12)


def test_interquartile_mean_ignores_the_ends_and_keeps_the_axes():
    assert float(interquartile_mean([-1000.0, 1.0, 3.0, 1000.0])) == 2.0
    table = np.arange(24.0).reshape(2, 3, 4)
    np.testing.assert_allclose(interquartile_mean(table, axis=1), stats.trim_mean(table, 0.25, axis=1))


@given(SCORES, SCORES)
def test_probability_of_improvement(ours, theirs):
    found = probability_of_improvement(ours, theirs)
    u = stats.mannwhitneyu(ours, theirs, method="asymptotic").statistic
    assert found == pytest.approx(u / (len(ours) * len(theirs)), abs=1e-12)
    assert found + probability_of_improvement(theirs, ours) == pytest.approx(1.0)


@pytest.mark.parametrize("statistic", ["iqm", "mean"])
def test_bootstrap_covers_the_truth_about_as_often_as_it_says(statistic):
    """Twenty seeds of three tasks of means 0.2, 0.5 and 0.8: the truth of both statistics is 0.5."""
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        scores = np.array([0.2, 0.5, 0.8]) + rng.normal(0.0, 0.1, size=(20, 3))
        point, low, high = bootstrap(scores, statistic, draws=300)
        assert low <= point <= high
        hits += low <= 0.5 <= high
    assert 0.85 <= hits / 200 <= 1.0


def test_bootstrap_resamples_seeds_within_tasks_only():
    """Tasks that every seed solves equally well leave nothing to resample, however much they differ."""
    scores = np.tile([0.0, 0.5, 1.0], (6, 1))
    assert bootstrap(scores, "mean") == (0.5, 0.5, 0.5)
    assert bootstrap(scores, "iqm") == (0.5, 0.5, 0.5)


def test_bootstrap_agrees_with_scipy():
    scores = np.random.default_rng(2).beta(2, 1, size=(25, 1))
    _, low, high = bootstrap(scores, "mean", draws=20_000)
    expected = stats.bootstrap(
        (scores[:, 0],), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(3)
    ).confidence_interval
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=0.005)


def test_bootstrap_is_deterministic():
    scores = np.random.default_rng(4).random((5, 3))
    assert bootstrap(scores) == bootstrap(scores)
