"""The Python interface agrees with the commands, and writes nothing on its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

import dibs
from dibs import cli, stages
from dibs.datasets.store import load_dataset
from dibs.files import read_table, read_tensors
from dibs.paths import Layout
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
    for indices, places in (([0, 3], [0.0, 3.0]), ([3, 900], [3.0]), ([800, 900], [800.0, 900.0])):
        (ax,) = template.evaluate(rollouts=10, indices=indices).plot().axes
        assert ax.lines[1].get_xdata().tolist() == places, "the rate; far indices alone are drawn to scale"
    assert (tmp_path / "rates.png").is_file()


def test_predict_takes_one_observation_or_a_batch(template):
    policy = template.policy(index=3)
    one, state = policy.predict([0.75, 0.0])
    assert one.shape == (2,) and state.stage.tolist() == [0]
    batch, state = policy.predict([[0.75, 0.0], [2.75, 3.0]])  # the second is inside region a
    assert batch.shape == (2, 2) and state.stage.tolist() == [0, 1]
    np.testing.assert_allclose(batch[0], one, rtol=1e-6)


def test_a_policy_is_the_one_of_the_command(template, pipeline, tmp_path):
    """The Python interface and `dibs policy` write the same bytes."""
    command = ["policy", str(pipeline.file), "--gap", "2", "--results", str(pipeline.root), "--index", "3"]
    assert cli.main([*command, "--output", str(tmp_path / "a.safetensors")]) == 0
    template.policy(3).save(tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.parametrize("kind", ["teacher", "dataset", "model", "evaluation", "policy", "family"])
def test_load_reads_any_file(kind, template, run, pipeline, tmp_path):
    layout = pipeline.layout
    template.policy(3).save(tmp_path / "policy.safetensors")
    files = {
        "teacher": layout.teacher("tiny", "gap2", 4, 0),
        "dataset": layout.dataset("tiny", "gap2", 4, 0),
        "model": layout.model("dibs", "tiny", "gap2", 0),
        "evaluation": layout.evaluation("dibs", "tiny", "gap2", 0),
        "policy": tmp_path / "policy.safetensors",
        "family": pipeline.file,
    }
    found = dibs.load(files[kind], **({"family": str(pipeline.file)} if kind == "model" else {}))
    if kind == "teacher":
        assert found.actor.tobytes() == run.teachers[4].actor.tobytes()
        assert repr(found) == repr(run.teachers[4]) and repr(found).startswith(
            "Teacher(tiny, index 4, seed 0; success "
        )
    elif kind == "dataset":
        assert repr(found) == repr(run.datasets[4])
    elif kind == "model":
        assert found.id == template.id and found.policy(3).evaluate(20) == template.policy(3).evaluate(20)
    elif kind == "evaluation":
        assert found.ratios == template.evaluate(200).ratios
        assert repr(found).startswith("Evaluation(dibs, tiny, gap2, seed 0): training 1.000, zero-shot 1.000, beyond")
    elif kind == "policy":
        assert repr(found) == repr(template.policy(3)) == "IndexPolicy(dibs, tiny, index 3 (unseen))"
    else:
        assert found == run.family


def test_load_says_what_is_missing(pipeline, tmp_path):
    with pytest.raises(dibs.DibsError, match="is of the family 'tiny', which is not registered; name its file"):
        dibs.load(shutil.copy(pipeline.layout.model("dibs", "tiny", "gap2", 0), tmp_path))
    with pytest.raises(dibs.DibsError, match="no such file"):
        dibs.load(tmp_path / "none.safetensors")


def test_results_are_kept_and_resumed(run, pipeline, tmp_path, monkeypatch):
    """With a results folder, files are those of the commands, and nothing is trained twice."""
    settings = {kind: json.loads(pipeline.settings[kind]) for kind in ("teacher", "dataset")}

    def train():
        family = dibs.Family.load(pipeline.file)
        named = {"teachers": settings["teacher"], "datasets": settings["dataset"]}
        return dibs.train(family, gap=2, results=tmp_path, progress=False, **named)

    train()
    for index in (0, 2, 4):
        for place in ("teacher", "dataset"):
            new, old = (getattr(root, place)("tiny", "gap2", index, 0) for root in (Layout(tmp_path), pipeline.layout))
            assert new.read_bytes() == old.read_bytes()
    monkeypatch.setattr(stages, "train_teacher", None)
    monkeypatch.setattr(stages, "build", None)
    again = train()
    assert again.teachers[4].actor.tobytes() == run.teachers[4].actor.tobytes()
    fitted = again.fit("dibs", **json.loads(pipeline.settings["fit"]))
    model = Layout(tmp_path).model("dibs", "tiny", "gap2", 0)
    assert model.read_bytes() == pipeline.layout.model("dibs", "tiny", "gap2", 0).read_bytes()
    assert dibs.load(model).id == fitted.id  # the family's description lies next to the results


def test_a_method_that_is_not_a_template(run):
    fitted = run.fit("ars", check_rollouts=20, steps=20_000)
    assert 0.0 <= fitted.policy(1).evaluate(rollouts=20).rate <= 1.0


def test_import_is_light():
    code = "import sys, dibs; assert 'numpy' not in sys.modules and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_edge_that_failed_is_named(tiny_description, tiny_teachers, capsys):
    """Past a wall that fills the plane there is no way."""
    wall = {"center": [None, 4.5], "half_width": 0.5}
    family = tiny_description(specification="achieve reach(a); achieve reach(b) ensuring avoid(wall)")
    family["regions"]["wall"] = wall
    options = {**tiny_teachers["options"], "iterations": 5, "restarts": 1}
    settings = {"teachers": {**tiny_teachers, "options": options}, "datasets": {"size": 100}}
    run = dibs.train(dibs.Family(**family), train=[0, 4], **settings)
    failed = run.teachers[0].metrics["failed"]
    assert "a>b" in failed
    assert f"seed 0, teacher 0: success 0.000, failed on {', '.join(failed)}, " in capsys.readouterr().err
