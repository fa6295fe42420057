"""Training curves: as Parquet next to teachers and models, and as event files of TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dibs
from dibs import paths
from dibs.cli import main
from dibs.files import read_json, read_metadata, read_table

BUDGET = {"steps": 20_000, "check_rollouts": 20}


def test_the_curve_of_a_teacher(pipeline):
    weights = pipeline.layout.teacher("tiny", "gap2", 2, 0)
    table, metadata = read_table(paths.curve(weights))
    assert table.to_pylist() == read_json(paths.metrics(weights))["metrics"]["curve"] != []
    assert set(table.column_names) == {"iteration", "steps", "success", "return"}
    assert metadata["id"] == read_metadata(weights)["id"]


def test_the_curve_of_a_template(pipeline):
    weights = pipeline.layout.model("dibs", "tiny", "gap2", 0)
    rows = read_table(paths.curve(weights))[0].to_pylist()
    for e, edge in enumerate(("start>a", "a>b")):
        losses = [(row["step"], row["loss"]) for row in rows if row["edge"] == edge]
        assert losses == [(row[0], row[1 + e]) for row in read_json(paths.metrics(weights))["curve"]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "settings", "columns"),
    [
        ("ars", BUDGET, {"steps", "success", "return", "stage"}),
        ("genrl", {"steps": 600_000}, {"variant", "steps", "edge", "success"}),
        ("bc", {"max_steps": 100}, {"check", "loss"}),
        ("bc-index", {"max_steps": 100}, {"check", "edge", "loss"}),
        ("hyper", {"max_steps": 100}, {"check", "edge", "loss"}),
        ("dibs-branched", {"max_steps": 100}, {"mode", "step", "edge", "loss"}),
    ],
)
def test_curves_of_methods(method, settings, columns, trained):
    rows = trained.fit(method, **settings).model.curve_rows
    assert rows and all(set(row) == columns for row in rows)


@pytest.fixture(scope="module")
def events(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="module")
def trained(pipeline, events):
    family = dibs.Family.load(pipeline.file)
    settings = {kind: json.loads(pipeline.settings[kind]) for kind in ("teacher", "dataset")}
    named = {"teachers": settings["teacher"], "datasets": settings["dataset"]}
    return dibs.train(family, train=[0, 4], progress=False, tensorboard=events, **named)


@pytest.mark.slow
def test_event_files_contain_the_curves(trained, events):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def scalars(folder: Path, tag: str) -> list[tuple[int, float]]:
        read = EventAccumulator(str(folder))
        read.Reload()
        return [(event.step, event.value) for event in read.Scalars(tag)]

    model = trained.fit("ars-plain", **BUDGET).model
    found = {"teachers/tiny/base/seed0/0": trained.teachers[0].metrics["curve"]}
    found["models/ars-plain/tiny/train-0-4/seed0"] = model.metrics["curve"]
    for folder, rows in found.items():
        for tag in ("success", "return"):
            assert scalars(events / folder, tag) == [(row["steps"], pytest.approx(row[tag], 1e-6)) for row in rows]


def test_without_tensorboard_nothing_is_done(pipeline, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("dibs.progress.importlib.util.find_spec", lambda name: None)
    for command in (["run"], ["teacher", "--index", "0"], ["fit"]):
        argv = [command[0], str(pipeline.file), "--gap", "2", *command[1:], "--tensorboard", str(tmp_path / "events")]
        assert main([*argv, "--results", str(tmp_path / "results")]) == 1
        assert "pip install 'dibs[tensorboard]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
