"""What holds for all tests: one thread per process, and the same examples on every run."""

from __future__ import annotations

import os

# Before anything imports numpy or torch: the test processes already fill the cores.
for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS"):
    os.environ[_name] = "1"
os.environ.setdefault("MPLBACKEND", "Agg")

from hypothesis import settings  # noqa: E402

settings.register_profile("dibs", derandomize=True, deadline=None, database=None)
settings.load_profile("dibs")
