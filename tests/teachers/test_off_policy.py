"""Teachers may come from any RL algorithm: an off-policy one learns an edge of a drone."""

from __future__ import annotations

import numpy as np
import pytest

from dibs.families import get_family, load_family
from dibs.teachers.train import TeacherSettings, resolve, train_teacher


@pytest.mark.slow
def test_td3_solves_an_edge_of_simpledrone():
    whole = get_family("simpledrone-reach").description_data()
    one = {"name": "one", "specification": "achieve reach(g1)", "regions": {"g1": whole["regions"]["g1"]}}
    family = load_family({**whole, **one, "benchmarks": {}})
    options = {"steps": 30_000, "check_every": 1_000, "options": {"learning_rate": 3e-3, "gradient_steps": 2}}
    settings = resolve(TeacherSettings(algorithm="td3", options=options), family.teacher, family.teacher_options)
    tasks = family.tasks([0, family.last_index])
    teacher, buffers, _ = train_teacher(tasks, family.split("gap5"), 0, 0, None, settings)
    assert teacher.metrics["algorithm"] == "td3"
    (edge,) = teacher.metrics["edges"].values()
    assert edge["success"] >= 0.99
    assert len(buffers.edges[0]["high"].view()) > 1000
    # What was measured is the network of the paper, evaluated without torch.
    actions = teacher.act(0, np.array([[0.0, 0.0, 0.0]], dtype=np.float32))
    assert actions.shape == (1, 3) and (actions > 0).all()  # towards (5, 8, 4)
