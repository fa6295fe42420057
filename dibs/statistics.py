"""Statistics that every job needs; tables and figures use SciPy (see `dibs.studies`).

`scipy.stats.binomtest` has this interval too, but `scipy.stats` takes a second to import. Tests compare the two.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Z95 = 1.959963984540054  # the 97.5% quantile of the standard normal


def wilson(successes: npt.ArrayLike, trials: npt.ArrayLike, z: float = Z95) -> tuple[np.ndarray, np.ndarray]:
    """Return lower and upper end of Wilson's score interval of a binomial proportion."""
    k, n = np.asarray(successes, dtype=float), np.asarray(trials, dtype=float)
    p = k / n
    center = p + z * z / (2 * n)
    spread = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return np.clip((center - spread) / scale, 0.0, 1.0), np.clip((center + spread) / scale, 0.0, 1.0)
