from __future__ import annotations

from collections.abc import Callable

import pytest

from dibs.families import Family
from dibs.methods import Model

from .small import Small


@pytest.fixture(scope="session")
def small(tiny: Family, tmp_path_factory: pytest.TempPathFactory) -> Small:
    """Short trainings on the tiny family."""
    return Small(tiny, tmp_path_factory.mktemp("small"))


@pytest.fixture(scope="session")
def trained(small: Small) -> Callable[[str], Model]:
    """Return the model of a method, trained once with seed 0."""
    models: dict[str, Model] = {}

    def get(name: str) -> Model:
        if name not in models:
            models[name] = small.train(name)
        return models[name]

    return get
