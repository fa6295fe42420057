"""One cluster for all tests of a session. Without SLURM they are skipped, with a message that says so."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .cluster import INSTALL, Cluster, ClusterError, install, running_cluster


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A running SLURM cluster of two nodes. With `-m slurm` it is installed if necessary."""
    if pytestconfig.getoption("markexpr") == "slurm":
        os.environ.setdefault(INSTALL, "1")
    try:
        install()
    except ClusterError as error:
        pytest.skip(f"NOTHING ABOUT SLURM WAS TESTED: {error}")
    with running_cluster() as running:
        yield running
