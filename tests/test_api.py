"""The Python interface agrees with the commands, and writes nothing on its own."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

import dibs
from dibs.datasets.store import load_dataset
from dibs.files import read_table, read_tensors
from dibs.teachers.store import load_teacher


@pytest.fixture(scope="module")
def run(pipeline, tmp_path_factory):
    family = dibs.Family.load(pipeline.file)
    settings = {kind: json.loads(pipeline.settings[kind]) for kind in ("teacher", "dataset")}
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("empty")
        patch.chdir(folder)
        found = dibs.train(family, gap=2, teachers=settings["teacher"], datasets=settings["dataset"], progress=False)
        assert not list(folder.iterdir())
    return found


@pytest.fixture(scope="module")
def template(run, pipeline):
    return run.fit("dibs", **json.loads(pipeline.settings["fit"]))


def test_teachers_and_datasets_equal_those_of_the_commands(run, pipeline):
    for index in (0, 2, 4):
        saved = load_teacher(pipeline.layout.teacher("tiny", "gap2", index, 0))
        assert run.teachers[index].id == saved.id
        assert run.teachers[index].actor.tobytes() == saved.actor.tobytes()
        assert run.teachers[index].head.tobytes() == saved.head.tobytes()
        assert run.teachers[index].metrics == saved.metrics
        rows, _ = load_dataset(pipeline.layout.dataset("tiny", "gap2", index, 0))
        for name, (states, actions) in rows.items():
            assert run.datasets[index].rows[name][0].tobytes() == states.tobytes()
            assert run.datasets[index].rows[name][1].tobytes() == actions.tobytes()


def test_model_and_evaluation_equal_those_of_the_commands(template, pipeline):
    tensors, _ = read_tensors(pipeline.layout.model("dibs", "tiny", "gap2", 0))
    assert {n: np.asarray(t).tobytes() for n, t in template.model.tensors.items()} == {
        n: t.tobytes() for n, t in tensors.items()
    }
    table, _ = read_table(pipeline.layout.evaluation("dibs", "tiny", "gap2", 0))
    assert template.evaluate(rollouts=200).table["satisfied"].tolist() == table["satisfied"].to_pylist()


def test_policy_of_an_unseen_index(template, tmp_path):
    policy = template.policy(index=3)
    assert "index 3 (unseen)" in repr(policy)
    assert 0.0 <= policy.evaluate(rollouts=50).rate <= 1.0
    policy.film(tmp_path / "film.mp4")
    assert (tmp_path / "film.mp4").stat().st_size > 1000
    template.evaluate(rollouts=50).plot(tmp_path / "rates.png")
    assert (tmp_path / "rates.png").is_file()


def test_predict_takes_one_observation_or_a_batch(template):
    policy = template.policy(index=3)
    one, state = policy.predict([0.75, 0.0])
    assert one.shape == (2,) and state.tolist() == [0]
    batch, state = policy.predict([[0.75, 0.0], [2.75, 3.0]])  # the second is inside region a
    assert batch.shape == (2, 2) and state.tolist() == [0, 1]
    np.testing.assert_allclose(batch[0], one, rtol=1e-6)
    _, state = policy.predict([[0.75, 0.0], [0.75, 0.0]], state, [False, True])
    assert state.tolist() == [0, 0]


def test_a_method_that_is_not_a_template(run):
    fitted = run.fit("ars", check_rollouts=20, steps=20_000)
    assert 0.0 <= fitted.policy(1).evaluate(rollouts=20).rate <= 1.0


def test_import_is_light():
    code = "import sys, dibs; assert 'numpy' not in sys.modules and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
