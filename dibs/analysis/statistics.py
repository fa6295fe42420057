"""Statistics of the tables: intervals of rates, robust means over seeds, bootstrap (numpy only).

`rliable` has the interquartile mean and stratified bootstrap, too, but does not install beside this stack.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Z95 = 1.959963984540054


def wilson(successes: npt.ArrayLike, trials: npt.ArrayLike, z: float = Z95) -> tuple[np.ndarray, np.ndarray]:
    """Wilson score interval of a binomial proportion."""
    k, n = np.asarray(successes, dtype=float), np.asarray(trials, dtype=float)
    p = k / n
    center = p + z * z / (2 * n)
    spread = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return np.clip((center - spread) / scale, 0.0, 1.0), np.clip((center + spread) / scale, 0.0, 1.0)


def interquartile_mean(values: npt.ArrayLike, axis: int = -1) -> np.ndarray:
    """Mean of the middle half of the values (25% trimmed at both ends)."""
    ordered = np.sort(np.asarray(values, dtype=float), axis=axis)
    n = ordered.shape[axis]
    cut = int(0.25 * n)
    return np.asarray(np.take(ordered, np.arange(cut, n - cut), axis=axis).mean(axis=axis))


def bootstrap(
    scores: npt.ArrayLike, statistic: str = "iqm", draws: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """Point estimate and 95% interval over scores (seeds, tasks), resampling seeds within each task."""
    table = np.asarray(scores, dtype=float)
    table = table if table.ndim == 2 else table[:, None]  # one task
    reduce = {
        "iqm": lambda x: interquartile_mean(x.reshape(*x.shape[:-2], -1)),
        "mean": lambda x: x.mean((-2, -1)),
    }[statistic]
    rng = np.random.default_rng(seed)
    seeds, tasks = table.shape
    picks = rng.integers(seeds, size=(draws, seeds, tasks))
    samples = reduce(table[picks, np.arange(tasks)])
    low, high = np.percentile(samples, [2.5, 97.5])
    return float(reduce(table)), float(low), float(high)


def probability_of_improvement(ours: npt.ArrayLike, theirs: npt.ArrayLike) -> float:
    """Probability that a run of ours scores above a run of theirs (ties count half)."""
    a, b = np.asarray(ours, dtype=float)[:, None], np.asarray(theirs, dtype=float)[None]
    return float(np.mean((a > b) + 0.5 * (a == b)))
