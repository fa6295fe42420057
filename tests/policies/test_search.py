"""One update of augmented random search, against the definition."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from dibs.policies.search import ascent


@pytest.mark.parametrize("spread", ["best", "all"])
@pytest.mark.parametrize("shape", [(4,), (2, 3)])
def test_the_update_follows_the_best_directions(spread: Literal["best", "all"], shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    scores, delta = rng.normal(size=(3, 10)), rng.normal(size=(3, 5, *shape))
    found = ascent(scores, delta, 2, 0.5, spread)
    assert found.shape == (3, *shape)
    for n in range(3):
        plus, minus = scores[n, :5], scores[n, 5:]
        top = sorted(range(5), key=lambda d: -max(plus[d], minus[d]))[:2]
        sigma = scores[n].std() if spread == "all" else np.r_[plus[top], minus[top]].std()
        expected = sum((plus[d] - minus[d]) * delta[n, d] for d in top) * 0.5 / (2 * sigma)
        np.testing.assert_allclose(found[n], expected)


@pytest.mark.parametrize("spread", ["best", "all"])
def test_single_precision_stays_single(spread: Literal["best", "all"]) -> None:
    rng = np.random.default_rng(1)
    scores, delta = rng.normal(size=(2, 40)), rng.normal(size=(2, 20, 7))
    found = ascent(scores.astype(np.float32), delta.astype(np.float32), 8, 0.05, spread)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, ascent(scores, delta, 8, 0.05, spread), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("spread", ["best", "all"])
def test_equal_scores_move_nothing(spread: Literal["best", "all"]) -> None:
    assert not ascent(np.ones((1, 6)), np.ones((1, 3, 2)), 2, 1.0, spread).any()


def test_rows_do_not_influence_each_other() -> None:
    rng = np.random.default_rng(2)
    scores, delta = rng.normal(size=(4, 12)), rng.normal(size=(4, 6, 5))
    together = ascent(scores, delta, 3, 0.1, "best")
    for n in range(4):
        np.testing.assert_allclose(ascent(scores[[n]], delta[[n]], 3, 0.1, "best")[0], together[n], rtol=1e-12)


def test_ties_follow_the_first_directions() -> None:
    """In searches over all scores; the other sort breaks ties in an order that depends on the processor."""
    delta = np.eye(20)[None]
    scores = np.concatenate([np.ones((1, 20)), np.zeros((1, 20))], axis=1)
    assert np.flatnonzero(ascent(scores, delta, 5, 1.0, "all")[0]).tolist() == [0, 1, 2, 3, 4]
    assert np.count_nonzero(ascent(scores, delta, 5, 1.0, "best")[0]) == 5
