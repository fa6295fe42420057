"""What a file was made from: ids that change with every part, and what is refused, in which words."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from dibs import provenance
from dibs.datasets.build import DatasetSettings
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.provenance import FORMAT, Origin, check_input, check_kind, check_origin, describe, digest, settings_digest

IDENTITY = {"family": "f", "split": "gap5", "index": 5, "seed": 0}
ORIGIN = Origin("teacher", IDENTITY, "tasks", "settings", {"teachers": 1, "ars": 2}, ("one", "two"))

CHANGES: dict[str, dict[str, Any]] = {
    "kind": {"kind": "dataset"},
    "family": {"identity": IDENTITY | {"family": "g"}},
    "split": {"identity": IDENTITY | {"split": "gap4"}},
    "index": {"identity": IDENTITY | {"index": 10}},
    "seed": {"identity": IDENTITY | {"seed": 1}},
    "more identity": {"identity": IDENTITY | {"method": "dibs"}},
    "less identity": {"identity": {"family": "f"}},
    "tasks": {"tasks": "other"},
    "settings": {"settings": "other"},
    "swapped": {"tasks": "settings", "settings": "tasks"},
    "version of the stage": {"versions": {"teachers": 2, "ars": 2}},
    "version of the algorithm": {"versions": {"teachers": 1, "ars": 3}},
    "algorithm": {"versions": {"teachers": 1, "ppo": 2}},
    "input": {"inputs": ("one", "three")},
    "order of inputs": {"inputs": ("two", "one")},
    "fewer inputs": {"inputs": ("one",)},
    "no inputs": {"inputs": ()},
}


# --- ids -------------------------------------------------------------------------------------------------


def test_every_part_changes_the_id():
    ids = {"": ORIGIN.id} | {name: replace(ORIGIN, **change).id for name, change in CHANGES.items()}
    assert len(set(ids.values())) == len(ids), ids
    assert all(len(i) == 16 for i in ids.values())


def test_the_order_of_keys_and_the_kind_of_sequence_do_not():
    same = Origin(
        "teacher", dict(reversed(IDENTITY.items())), "tasks", "settings", {"ars": 2, "teachers": 1}, ["one", "two"]
    )
    assert same.id == ORIGIN.id


def test_ids_are_the_same_in_another_process():
    """Whatever the order of sets and dictionaries there."""
    script = (
        "from dibs.provenance import Origin, settings_digest; from dibs.datasets.build import DatasetSettings as S;"
        f"print(Origin('teacher', {IDENTITY!r}, 'tasks', settings_digest(S()), {{'ars': 2}}, ('one',)).id)"
    )
    ids = {
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=env, check=True).stdout
        for env in ({"PYTHONHASHSEED": str(n), "PYTHONPATH": ":".join(sys.path)} for n in (1, 2))
    }
    here = Origin("teacher", IDENTITY, "tasks", settings_digest(DatasetSettings()), {"ars": 2}, ("one",)).id
    assert ids == {here + "\n"}


def test_an_id_is_pinned():
    """If this changes, all results have to be made again."""
    assert Origin("teacher", IDENTITY, "tasks", "settings", {"teachers": 1}, ("one",)).id == "7be0a3ad7d3de014"


def test_digest_of_data():
    assert digest({"a": 1, "b": [1, 2]}) == digest({"b": (1, 2), "a": 1})
    assert digest({"a": 1}) != digest({"a": 2}) != digest({"b": 2})
    assert len(digest({})) == 16


def test_settings_count_by_their_values():
    assert settings_digest(EvaluationSettings()) == settings_digest(EvaluationSettings(rollouts=1000))
    assert settings_digest(EvaluationSettings()) == digest(EvaluationSettings())
    assert settings_digest(EvaluationSettings(rollouts=10)) != settings_digest(EvaluationSettings())


def test_settings_that_come_and_go_are_not_mixed_up():
    """Objects may get the address of earlier ones."""
    found = {n: settings_digest(EvaluationSettings(rollouts=n)) for n in range(1, 200)}
    assert len(set(found.values())) == 199
    assert all(value == digest(EvaluationSettings(rollouts=n)) for n, value in found.items())


# --- what is recorded ------------------------------------------------------------------------------------


def test_a_file_records_all_of_it():
    found = ORIGIN.metadata()
    assert {key: found[key] for key in IDENTITY} == IDENTITY
    assert (found["format"], found["kind"], found["id"]) == (FORMAT, "teacher", ORIGIN.id)
    assert (found["tasks"], found["settings_digest"]) == ("tasks", "settings")
    assert (found["versions"], found["inputs"]) == ({"teachers": 1, "ars": 2}, ["one", "two"])
    assert found["libraries"]["numpy"] and found["libraries"]["dibs"]


def test_versions_of_libraries_are_recorded_but_never_compared(monkeypatch):
    found = ORIGIN.metadata()
    monkeypatch.setattr(provenance, "installed", lambda names: {"numpy": "9"})
    assert ORIGIN.metadata()["id"] == found["id"] and ORIGIN.metadata()["libraries"] != found["libraries"]
    check_origin("f", found | {"libraries": {}}, ORIGIN, "")


# --- what is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "old",
    [
        {"kind": "teacher", "family": "f", "gap": 5, "family_digest": "x", "code_digest": "y"},
        {},
        {"format": 1, "kind": "teacher"},
        {"format": "2", "kind": "teacher"},
    ],
)
def test_files_of_version_0_1_are_refused_by_name(old):
    with pytest.raises(DibsError, match=r"results/t\.safetensors: was written by dibs 0\.1, .* make it again"):
        check_kind("results/t.safetensors", old, "teacher")


def test_a_file_of_another_kind_is_refused():
    check_kind("t.safetensors", ORIGIN.metadata(), "teacher")
    with pytest.raises(DibsError, match=r"t\.safetensors: expected kind 'model', found 'teacher'"):
        check_kind("t.safetensors", ORIGIN.metadata(), "model")


def refused(expected: Origin, **found: Any) -> str:
    with pytest.raises(DibsError) as error:
        check_origin("results/t.safetensors", ORIGIN.metadata() | found, expected, "`dibs teacher f`")
    assert str(error.value).startswith("results/t.safetensors: ")
    return str(error.value)


def test_what_is_expected_is_accepted():
    check_origin("t", ORIGIN.metadata(), ORIGIN, "")
    # A reader knows neither settings nor inputs of what it reads.
    check_origin("t", ORIGIN.metadata(), replace(ORIGIN, settings="", inputs=()), "")
    check_origin("t", ORIGIN.metadata(), replace(ORIGIN, identity={"family": "f", "index": 5}), "")


@pytest.mark.parametrize("key, value", [("family", "g"), ("split", "gap4"), ("index", 10), ("seed", 1)])
def test_another_identity_is_refused(key, value):
    message = refused(replace(ORIGIN, identity=IDENTITY | {key: value}))
    assert f"expected the teacher of {describe('', IDENTITY | {key: value})[len('the  of ') :]}, found" in message
    found = "found the teacher of family f split gap5 index 5 seed 0"
    assert message.endswith(f"{found}; name the right file, or make it: `dibs teacher f`")


def test_a_missing_part_of_the_identity_is_refused():
    assert "method dibs" in refused(replace(ORIGIN, identity=IDENTITY | {"method": "dibs"}))


def test_other_tasks_are_refused():
    message = refused(replace(ORIGIN, tasks="others"))
    assert "was made from another description of f (environment, specification, regions" in message
    assert message.endswith("make it again: `dibs teacher f`")


@pytest.mark.parametrize(
    "versions, shown",
    [
        ({"teachers": 2, "ars": 2}, "(teachers 1, ars 2 instead of teachers 2, ars 2)"),
        ({"teachers": 1, "ars": 1}, "(teachers 1, ars 2 instead of teachers 1, ars 1)"),
        ({"teachers": 1}, "(teachers 1, ars 2 instead of teachers 1)"),
        ({}, "(teachers 1, ars 2 instead of none)"),
    ],
)
def test_other_versions_are_refused(versions, shown):
    message = refused(replace(ORIGIN, versions=versions))
    assert f"was made by another version {shown}; make it again: `dibs teacher f`" in message


def test_a_file_without_versions_is_refused():
    assert "(none instead of teachers 1, ars 2)" in refused(ORIGIN, versions=None)


def test_inputs_must_be_what_it_was_made_from():
    found = ORIGIN.metadata()
    check_input("t", found, {"a": "one"}, "")
    check_input("t", found, {"a": "two", "b": "one"}, "")
    check_input("t", found, {}, "")
    with pytest.raises(DibsError) as error:
        check_input("data.parquet", found, {"a": "one", "teacher.safetensors": "three"}, "`dibs dataset f`")
    expected = "data.parquet: was not made from teacher.safetensors as it is now; make it again: `dibs dataset f`"
    assert str(error.value) == expected


def test_only_the_expected_id_may_be_written():
    ORIGIN.check("")  # nothing was planned
    ORIGIN.check(ORIGIN.id)
    with pytest.raises(DibsError) as error:
        ORIGIN.check("0123456789abcdef")
    assert str(error.value).startswith("this would write the teacher of family f split gap5 index 5 seed 0 with id ")
    assert f"{ORIGIN.id}, but 0123456789abcdef was planned" in str(error.value)
