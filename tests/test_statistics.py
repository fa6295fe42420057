"""Wilson's interval against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dibs.statistics import wilson


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
