"""Training sets without a name are called after their indices."""

from __future__ import annotations

import pytest

from dibs.errors import DibsError
from dibs.families import get_family


def test_training_sets_without_a_name_never_share_one():
    family = get_family("car2d-reach")
    sets = [(0, 40), (0, 4, 40), (0, 3, 7, 40), tuple(range(41)), (*range(39), 40)]
    splits = [family.split_of(indices) for indices in sets]
    assert [split.indices for split in splits] == sets
    assert len({split.name for split in splits}) == len(sets)
    assert splits[2].name == "train-0-3-7-40"
    with pytest.raises(DibsError, match="expected increasing indices from 0 to L = 40"):
        family.split_of([0, 5])
