"""Settings: from mappings, JSON text and files; every bad key is named."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import pytest

from dibs.datasets.build import DatasetSettings
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.settings import STRICT, Count, Share, parse_settings, values_of
from dibs.teachers.train import TeacherSettings
from dibs.templates.fit import FitSettings


@dataclasses.dataclass(frozen=True)
class Example:
    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    rate: Share = 0.5
    count: Count = 3
    name: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


@pytest.mark.parametrize("nothing", [None, "", {}, "{}"])
def test_nothing_said_means_the_defaults(nothing):
    assert parse_settings(Example, nothing) == Example()


def test_a_mapping_json_text_and_files_say_the_same(tmp_path):
    expected = Example(rate=0.25, name="x", options={"a": [1]})
    (tmp_path / "s.yaml").write_text("rate: 0.25\nname: x\noptions: {a: [1]}\n")
    (tmp_path / "s.json").write_text('{"rate": 0.25, "name": "x", "options": {"a": [1]}}')
    for said in (
        {"rate": 0.25, "name": "x", "options": {"a": [1]}},
        ' {"rate": 0.25, "name": "x", "options": {"a": [1]}}',
        str(tmp_path / "s.yaml"),
        str(tmp_path / "s.json"),
    ):
        assert parse_settings(Example, said) == expected


@pytest.mark.parametrize(
    "said, message",
    [
        ({"rat": 0.5}, r"here: not valid for Example\n  rat: unknown key 'rat'\. Did you mean 'rate'\?"),
        ({"rate": 2}, r"rate: Input should be less than or equal to 1 \(found 2\)"),
        ({"rate": "fast"}, r"rate: Input should be a valid number.*\(found 'fast'\)"),
        ({"count": 0}, r"count: Input should be greater than or equal to 1 \(found 0\)"),
        ({"count": 2.5}, r"count: Input should be a valid integer.*\(found 2\.5\)"),
        ({"options": 3}, r"options: Input should be a valid dictionary \(found 3\)"),
        ("{rate: 0.5}", r"here: not valid JSON: "),
        ("none.yaml", r"here: 'none\.yaml' is neither JSON text nor a file"),
    ],
)
def test_mistakes_are_named(said, message):
    with pytest.raises(DibsError, match=message):
        parse_settings(Example, said, "here")


def test_every_mistake_is_named_at_once():
    with pytest.raises(DibsError) as told:
        parse_settings(Example, {"rate": -1, "count": 0, "x": 1})
    assert str(told.value).count("\n") == 3


@pytest.mark.parametrize("text, found", [("- a\n- b\n", "list"), ("", "NoneType"), ("just text", "str")])
def test_a_file_that_holds_no_mapping_is_named(tmp_path, text, found):
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(DibsError, match=rf"s\.yaml: expected a mapping of settings, found {found}"):
        parse_settings(Example, str(tmp_path / "s.yaml"))


def test_a_file_that_is_no_yaml_is_named(tmp_path):
    (tmp_path / "s.yaml").write_text("rate: [0.5\nname: x")
    with pytest.raises(DibsError, match=r"s\.yaml: not valid YAML: "):
        values_of(str(tmp_path / "s.yaml"), "here")


@pytest.mark.parametrize("kind", [TeacherSettings, DatasetSettings, FitSettings, EvaluationSettings])
def test_the_stages_settings_are_frozen_strict_and_documented(kind):
    from pydantic import TypeAdapter

    assert parse_settings(kind, {}) == kind()
    with pytest.raises(dataclasses.FrozenInstanceError):
        kind().seed = 1
    with pytest.raises(DibsError, match="no_such_setting"):
        parse_settings(kind, {"no_such_setting": 1})
    described = TypeAdapter(kind).json_schema()["properties"]
    assert all(described[field.name].get("description") for field in dataclasses.fields(kind))


def test_the_papers_hyperparameters_are_the_defaults():
    assert (FitSettings().rate, FitSettings().batch, FitSettings().degree) == (0.1, 512, 1)
    assert EvaluationSettings() == EvaluationSettings(rollouts=1000, delta=0.9)
    grids = {
        "alpha": (0.6, 0.7, 0.8, 0.9, 1.0),
        "beta": (0.1, 0.3, 0.5, 0.7, 0.9),
        "gamma": (0.6, 0.7, 0.8, 0.9, 1.0),
        "threshold": (0.7, 0.8, 0.9),
        "size": (500, 5000, 50_000, 500_000, 5_000_000),
    }
    for name, grid in grids.items():
        assert getattr(DatasetSettings(), name) in grid
    assert TeacherSettings().cross_index in (0, 1e-4, 1e-3, 1e-2)
    assert TeacherSettings().confidence in (0.1, 0.3, 0.5, 0.7, 0.9)
