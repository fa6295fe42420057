"""A teacher's metrics count only next to the weights that they were written with."""

from __future__ import annotations

import numpy as np
import pytest

from dibs.errors import DibsError
from dibs.files import write_json, write_tensors
from dibs.methods import teacher_metrics


def test_metrics_of_another_training_run_are_refused(tmp_path):
    file = tmp_path / "5.safetensors"
    write_tensors(file, {"actor": np.zeros(1)}, {"id": "new"})
    write_json(tmp_path / "5.json", {"id": "new", "metrics": {"steps": 7}})
    assert teacher_metrics(file) == {"steps": 7}
    write_json(tmp_path / "5.json", {"id": "old", "metrics": {"steps": 9}})
    with pytest.raises(DibsError, match=r"5\.json: was not written together with .*5\.safetensors"):
        teacher_metrics(file)
