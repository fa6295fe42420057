"""Predicted success: what it is computed from, what it says, and where it goes."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from dibs import cli
from dibs.methods import Model, Training, load_model, save_model
from dibs.provenance import Origin
from dibs.stages import measure
from dibs.templates.affine import AffineSettings
from dibs.templates.explanation import explain
from dibs.templates.methods import DIBS, DIBS_AFFINE
from dibs.templates.moved import MOTION, MotionSettings
from dibs.templates.prediction import (
    BEYOND,
    FAR,
    FOLDS,
    WITHIN,
    Curve,
    Evidence,
    curve,
    curves,
    grid,
    left_out,
    predict,
    weight,
    with_prediction,
)
from dibs.templates.template import Joined, evolution_of

from .test_joined import only


def evidence(apart: list[float], *trained: int, success: float = 1.0, training: float = 0.0) -> Evidence:
    measured = tuple((index, success) for index in trained or (0,))
    return Evidence(tuple(range(len(apart))), training, tuple(apart), measured)


def test_the_first_index_is_never_left_out_and_the_last_always():
    assert left_out(np.ones(3, bool)) == [1, 2]
    assert left_out(np.array([False, True, True])) == [2]
    assert left_out(np.array([False, True])) == []
    many = left_out(np.ones(40, bool))
    assert len(many) == FOLDS and many[0] == 1 and many[-1] == 39


def test_a_weighted_error_of_one_halves_success_and_larger_ones_cost_more():
    apart = np.array([5.0, 1.0, 3.0, 0.0]) / weight(np.arange(4), np.array([0]))
    found = curve(evidence(apart.tolist(), success=0.8)).success
    measured = 0.8  # index 0 is trained
    assert found == pytest.approx((measured, 0.4, 0.2, 0.8), abs=1e-3)
    worse = curve(evidence(apart.tolist(), success=0.8, training=1.0)).success
    assert worse[0] == measured and all(a < b for a, b in zip(worse[1:], found[1:], strict=True))


def test_disagreement_counts_more_the_farther_away_training_indices_are():
    found = weight(np.array([0, 4, 5, 7, 8, 10, 12, 20, 100_000]), np.array([0, 10, 14]))
    assert found[0] == found[5] == WITHIN[0] < found[1] < found[2] > found[3] > found[4]
    assert found[2] == pytest.approx(WITHIN[0] * np.exp(WITHIN[1] / 2))  # half a gap of 10 away
    assert found[6] == pytest.approx(found[2])  # half a gap of 4 away
    assert found[7] == pytest.approx(BEYOND[0] * np.exp(BEYOND[1] * 6 / 4))
    assert np.isfinite(found[8])


def test_templates_on_which_all_fits_agree_are_trusted_at_any_distance():
    found = curve(evidence([0.0] * 50, 0, 5, 10))
    assert set(found.success) == {1.0}


def test_predictions_of_another_version_are_not_used(model: Model, training: Training):
    predicted = {**model.metadata["predicted"], "version": 1}
    old = replace(model, metadata={**model.metadata, "predicted": predicted})
    assert curves(model) and not curves(old) and predict(old, training.tasks) is None


def test_the_grid_has_all_near_indices_or_a_hundred_of_them():
    assert grid(20) == (*range(41), *FAR)
    assert len(grid(5000)) == 101 + 1 and grid(5000)[-2:] == (10_000, 100_000)


def test_between_its_indices_a_curve_is_interpolated():
    found = Curve((0, 10, 1000), (1.0, 0.5, 0.0))
    assert [found.at(i) for i in (0, 10, 1000, 10**6)] == [1.0, 0.5, 0.0, 0.0]
    assert 0.0 < found.at(100) < 0.5 < found.at(3) < 1.0


@pytest.fixture(scope="module")
def models(training: Training, model: Model) -> dict[str, Model]:
    affine = DIBS_AFFINE.train(training, AffineSettings(iterations=30, restarts=0))
    moved = MOTION.train(replace(training, teachers=training.teachers[:1]), MotionSettings(rollouts=50))
    joined = Joined((only(evolution_of(model, ""), 0), only(evolution_of(model, ""), 1))).to_model({}, {})
    return {"polynomial": model, "affine": affine, "motion": moved, "joined": with_prediction(joined, curves(model))}


@pytest.mark.parametrize("kind", ["polynomial", "affine", "motion", "joined"])
def test_every_class_predicts_and_explains_itself(kind, models, training, tmp_path, capsys):
    model = models[kind]
    found = predict(model, training.tasks)
    assert found is not None and list(found) == [0, 2, 4] and all(0.8 < rate <= 1.0 for rate in found.values())
    one, two = curves(model).values()
    assert found[2] == pytest.approx(one.at(2) * two.at(2))
    origin = Origin("model", {"method": "dibs", "benchmark": "tiny", "split": "gap2", "seed": 0}, "", "", {})
    save_model(tmp_path / "m.safetensors", model, origin, {})
    assert curves(load_model(tmp_path / "m.safetensors")[0]) == curves(model)
    assert cli.main(["template", str(tmp_path / "m.safetensors"), "--indices", "0,3,100000"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"dibs tiny gap2 seed 0: class {kind}, training indices 0, 2, 4\nstart>a: ")
    texts = {"motion": "motion of the teacher", "affine": "affine maps"}
    assert out.count(texts.get(kind, "polynomial of degree 1")) == 2
    assert [line.split()[0] for line in out.splitlines()[-3:]] == ["0", "3", "100,000"]


def test_the_fit_does_not_depend_on_predicting(training: Training, model: Model):
    from dibs.templates.fit import FitSettings

    plain = DIBS.train(training, FitSettings(max_steps=300, batch=128, predict=False))
    assert all(np.array_equal(plain.tensors[key], value) for key, value in model.tensors.items())
    assert predict(plain, training.tasks) is None and "predicts no success" in explain(plain, "")[-1]


def test_what_has_run_away_is_predicted_to_fail(model: Model, training: Training):
    """Between training indices the tiny family is solved; a template that was fitted to few steps ends far out."""
    evidence = model.metrics["evidence"]
    json.dumps(evidence)  # it goes into the metrics' file
    for name, found in curves(model).items():
        assert evidence[name]["disagreement"][0] == 0.0 < evidence[name]["disagreement"][3]
        assert found.at(3) > 0.8 and found.at(100_000) < 0.3


def test_evaluations_have_a_column_of_it(pipeline, tiny, models):
    from dibs.evaluation.evaluate import EvaluationSettings
    from dibs.families import Benchmark

    split = tiny.split("gap2")
    benchmark = Benchmark("tiny", tiny, "tiny", "tiny")
    origin = Origin("evaluation", {}, "", "", {})
    model = models["polynomial"]
    found = measure(DIBS, benchmark, split, 0, EvaluationSettings(rollouts=20), model, origin, [0, 3, 1000]).table
    expected = predict(model, tiny.tasks([0, 3, 1000]))
    assert dict(zip(found["index"].to_pylist(), found["predicted"].to_pylist(), strict=True)) == expected
    bare = replace(model, metadata={k: v for k, v in model.metadata.items() if k != "predicted"})
    found = measure(DIBS, benchmark, split, 0, EvaluationSettings(rollouts=20), bare, origin, [0]).table
    assert found["predicted"].to_pylist() == [None]
