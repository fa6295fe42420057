"""Stale, swapped and damaged inputs are refused by every command, by name, before anything is written."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dibs import api, cli, datasets, evaluation, methods, pipeline, registry, stages, teachers
from dibs.datasets.build import DatasetSettings
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Tasks, get_benchmark, get_family, load_family
from dibs.files import KEY, read_metadata, read_table, read_tensors, write_json
from dibs.methods import Method, Model, Training, get_method, load_model
from dibs.paths import Layout, timing
from dibs.settings import parse_settings
from dibs.teachers.base import get_algorithm
from dibs.teachers.store import load_teacher
from dibs.teachers.train import TeacherSettings, resolve

TRAIN = (0, 2, 4)


@dataclass(frozen=True)
class Workspace:
    """A copy of the tiny family's results that a test may spoil."""

    file: Path
    root: Path
    settings: Mapping[str, str]
    capsys: pytest.CaptureFixture[str]
    split: tuple[str, ...] = ("--split", "gap2")

    @property
    def layout(self) -> Layout:
        return Layout(self.root)

    def __call__(self, command: str, *rest: str, source: str = "", status: int = 0) -> str:
        """Run a command; return what it printed, or the error."""
        argv = [command, source or str(self.file), *self.split, "--results", str(self.root), "--quiet", *rest]
        if "--settings" not in rest and command in self.settings:
            argv += ["--settings", self.settings[command]]
        self.capsys.readouterr()
        assert cli.main(argv) == status, self.capsys.readouterr().err
        out, err = self.capsys.readouterr()
        assert "Traceback" not in err
        return err if status else out

    def refuses(self, command: str, *rest: str, source: str = "") -> str:
        """Run a command that must fail and change no file; return the error."""
        before = self.digest()
        message = self(command, *rest, source=source, status=1)
        assert self.digest() == before
        assert message.startswith("error: ") and message.count("\n") == 1, message
        return message.removeprefix("error: ").rstrip("\n")

    def digest(self) -> dict[str, str]:
        """Contents of all files, by name."""
        files = [file for file in self.root.parent.rglob("*") if file.is_file()]
        return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    def describe(self, **changes: Any) -> None:
        """Change the description of the family."""
        self.file.write_text(json.dumps(json.loads(self.file.read_text()) | changes))

    def teacher(self, index: int) -> Path:
        return self.layout.teacher("tiny", "gap2", index, 0)

    def dataset(self, index: int) -> Path:
        return self.layout.dataset("tiny", "gap2", index, 0)

    @property
    def model(self) -> Path:
        return self.layout.model("dibs", "tiny", "gap2", 0)


@pytest.fixture
def work(pipeline, tmp_path, capsys, monkeypatch) -> Workspace:
    shutil.copytree(pipeline.file.parent, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")  # `dibs policy` writes here
    return Workspace(
        tmp_path / "work" / pipeline.file.name, tmp_path / "work" / pipeline.root.name, pipeline.settings, capsys
    )


POLICY = ("policy", "--index", "3")


def all_commands(work: Workspace) -> dict[tuple[str, ...], tuple[Path, str]]:
    """Every command that reads a file: the file that it must refuse, and what makes that file again."""
    run = f"{work.file} --index {{}} --split gap2 --seed 0`"
    fit = f"`dibs fit {work.file} --method dibs --split gap2 --seed 0`"
    return {
        ("teacher", "--index", "2"): (work.teacher(0), "`dibs teacher " + run.format(0)),
        ("teacher", "--index", "4"): (work.teacher(2), "`dibs teacher " + run.format(2)),
        ("dataset", "--index", "0"): (work.teacher(0), "`dibs teacher " + run.format(0)),
        ("dataset", "--index", "4"): (work.teacher(4), "`dibs teacher " + run.format(4)),
        ("fit",): (work.teacher(0), "`dibs teacher " + run.format(0)),
        ("evaluate",): (work.model, fit),
        POLICY: (work.model, fit),
    }


# --- (a) another description of the family ---------------------------------------------------------------


def moved(data: dict[str, Any]) -> dict[str, Any]:
    return {"regions": {**data["regions"], "a": {**data["regions"]["a"], "shift": [0.3, 0.0]}}}


DESCRIPTIONS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "shift of a region": moved,
    "shift of the start": lambda data: {"start": {**data["start"], "shift": [0.2, 0.0]}},
    "constant of the environment": lambda data: {"environment": {"name": "Car2D", "noise": 0.06}},
    "horizon": lambda data: {"horizon": 11},
    "reward": lambda data: {"reward": {"unit": 9.0, "depth": 0.2}},
}


@pytest.mark.parametrize("change", DESCRIPTIONS.values(), ids=DESCRIPTIONS)
def test_nothing_is_made_from_files_of_another_description(work: Workspace, change):
    work.describe(**change(json.loads(work.file.read_text())))
    for command, (file, rerun) in all_commands(work).items():
        message = work.refuses(*command)
        assert message.startswith(f"{file}: was made from another description of tiny (environment, "), command
        assert message.endswith(f"make it again: {rerun}"), command


def test_the_command_that_an_error_names_repairs_it(work: Workspace):
    work.describe(**moved(json.loads(work.file.read_text())))
    assert work.refuses("teacher", "--index", "2").endswith(
        f"make it again: `dibs teacher {work.file} --index 0 --split gap2 --seed 0`"
    )
    work("teacher", "--index", "0")
    work("teacher", "--index", "2")
    assert str(work.teacher(2)) in work.refuses("dataset", "--index", "4", "--teacher", str(work.teacher(2)))
    message = work.refuses("dataset", "--index", "4")
    assert message.startswith(f"{work.teacher(4)}: was made from another description")
    work("teacher", "--index", "4")
    message = work.refuses("fit")
    assert message.startswith(f"{work.dataset(0)}: was made from another description of tiny")
    assert message.endswith(f"make it again: `dibs dataset {work.file} --index 0 --split gap2 --seed 0`")
    for index in TRAIN:
        work("dataset", "--index", str(index))
    assert work.refuses("evaluate").startswith(f"{work.model}: was made from another description of tiny")
    work("fit")
    work("evaluate")
    work(*POLICY)


@pytest.mark.parametrize(
    "change",
    [
        {"description": "in other words"},
        {"gaps": [1]},
        {"teacher_minutes": 5, "dataset_minutes": 5, "model_memory_mb": 5, "evaluation_minutes": 5},
        {"benchmarks": {"tiny": "achieve reach(a); achieve reach(b)"}},
    ],
)
def test_what_the_results_do_not_depend_on_may_change(work: Workspace, change):
    work.describe(**change)
    before = work.digest()
    work("dataset", "--index", "2")
    work("fit")
    work("evaluate")
    after = work.digest()
    assert {name for name in after if before[name] != after[name]} <= {
        str(work.file),
        str(work.layout.family("tiny")),
        str(work.model.with_suffix(".timing.json")),
    }


def test_a_change_at_unseen_indices_leaves_the_training_files_valid(work: Workspace, tiny):
    """The same tasks at 0, 2 and 4, written as a table, with another one at index 1."""
    table = [{"center": (box := tiny.regions_at(i)["a"]).center.tolist(), "half_width": 1.0} for i in range(5)]
    assert box.half_width.tolist() == [1.0, 1.0]
    table[1]["center"] = [2.5, 3.1]
    data = json.loads(work.file.read_text())
    work.describe(regions={**data["regions"], "a": {"table": table}})
    before = work.digest()
    work("dataset", "--index", "2")
    work("fit")
    assert work.digest()[str(work.model)] == before[str(work.model)]
    evaluation = work.layout.evaluation("dibs", "tiny", "gap2", 0)
    old = read_metadata(evaluation)
    work("evaluate")
    assert read_metadata(evaluation)["tasks"] != old["tasks"] and read_metadata(evaluation)["inputs"] == old["inputs"]
    assert len(read_table(evaluation)[0]) == 5  # nothing beyond the table


# --- (b) a teacher that was trained again ----------------------------------------------------------------


def other_settings(work: Workspace) -> str:
    return json.dumps(json.loads(work.settings["teacher"]) | {"probes": 90})


@pytest.mark.parametrize("method", ["dibs", "bc", "dibs-weights"])
def test_a_dataset_of_the_old_teacher_is_refused(work: Workspace, method):
    for index in ("0", "2", "4"):
        work("teacher", "--index", index, "--settings", other_settings(work))
        if index != "4":
            work("dataset", "--index", index)
    message = work.refuses("fit", "--method", method, "--settings", "")
    rerun = f"`dibs dataset {work.file} --index 4 --split gap2 --seed 0`"
    assert message == f"{work.dataset(4)}: was not made from {work.teacher(4)} as it is now; make it again: {rerun}"


@pytest.mark.parametrize("method", ["dibs", "genrl"])
def test_a_teacher_that_started_from_the_old_one_is_refused(work: Workspace, method):
    work("teacher", "--index", "0", "--settings", other_settings(work))
    work("dataset", "--index", "0")
    message = work.refuses("fit", "--method", method, "--settings", "")
    rerun = f"`dibs teacher {work.file} --index 2 --split gap2 --seed 0`"
    assert message == f"{work.teacher(2)}: was not made from {work.teacher(0)} as it is now; make it again: {rerun}"


def test_equal_settings_make_the_same_teacher(work: Workspace):
    """The id depends on what went in, not on when it was made."""
    before = read_metadata(work.teacher(4))["id"]
    work("teacher", "--index", "4")
    assert read_metadata(work.teacher(4))["id"] == before
    work("fit")


def test_every_command_notices_that_an_earlier_teacher_was_trained_again(work: Workspace):
    """Index 0 is new; index 2 still starts from the old one, and all that follows rests on that."""
    work("teacher", "--index", "0", "--settings", other_settings(work))
    rerun = f"`dibs teacher {work.file} --index 2 --split gap2 --seed 0`"
    expected = f"{work.teacher(2)}: was not made from {work.teacher(0)} as it is now; make it again: {rerun}"
    for command in (("teacher", "--index", "4"), ("dataset", "--index", "2"), ("dataset", "--index", "4")):
        assert work.refuses(*command) == expected, command
    rerun = f"`dibs fit {work.file} --method dibs --split gap2 --seed 0`"
    for command in (("evaluate",), POLICY):
        message = work.refuses(*command)
        assert message == f"{work.model}: was not made from {work.teacher(0)} as it is now; make it again: {rerun}"


def test_evaluate_notices_a_new_dataset(work: Workspace):
    work("dataset", "--index", "4", "--settings", json.dumps({"size": 200}))
    message = work.refuses("evaluate")
    assert message.startswith(f"{work.model}: was not made from {work.dataset(4)} as it is now; make it again: ")


def test_template_and_reports_notice_what_was_made_again(work: Workspace):
    """`dibs template` reads a model, tables and figures read evaluations; neither is what the files now say."""
    work("evaluate")
    (evaluation,) = work.root.glob("evaluations/dibs/*/gap2/seed0.parquet")
    reports = [["results"], ["table", "splits", "--output", "t.csv"], ["table", "splits", "--inputs", str(evaluation)]]
    for argv in ([*reports[0], "--results", str(work.root)], reports[2]):
        assert cli.main(argv) == 0
    work("dataset", "--index", "4", "--settings", json.dumps({"size": 200}))
    work.capsys.readouterr()
    assert cli.main(["template", str(work.model)]) == 1
    assert f"{work.model}: was not made from {work.dataset(4)} as it is now" in work.capsys.readouterr().err
    work("fit")
    assert cli.main(["template", str(work.model)]) == 0
    for argv in ([*reports[0], "--results", str(work.root)], [*reports[1], "--results", str(work.root)], reports[2]):
        work.capsys.readouterr()
        assert cli.main(argv) == 1
        assert f"{evaluation}: was not made from {work.model} as it is now; make it again: `dibs evaluate" in (
            work.capsys.readouterr().err
        )


def test_explicit_files_are_all_that_is_read(work: Workspace):
    """A rule of the workflow declares its inputs; their ids were planned."""
    work("teacher", "--index", "0", "--settings", other_settings(work))
    work("dataset", "--index", "4", "--teacher", str(work.teacher(4)))
    work("evaluate", "--model", str(work.model))


def test_teachers_of_a_chain_that_were_deleted_say_nothing(work: Workspace):
    shutil.rmtree(work.root / "teachers")
    shutil.rmtree(work.root / "datasets")
    work("evaluate")


def test_a_teacher_is_not_continued_with_other_settings(work: Workspace):
    message = work.refuses("teacher", "--index", "4", "--settings", other_settings(work))
    assert message.startswith(f"{work.teacher(2)}: was trained with other settings than requested for index 4 (probes ")
    assert "probes 100 instead of 90" in message and "--settings" in message
    other = json.dumps({**json.loads(work.settings["teacher"]), "algorithm": "ppo", "options": {}})
    assert "algorithm 'ars' instead of 'ppo'" in work.refuses("teacher", "--index", "4", "--settings", other)


def test_a_method_is_not_trained_on_teachers_with_different_settings(work: Workspace):
    """Made with explicit files, so that no command could notice before."""
    from dibs.files import write_tensors

    tensors, meta = read_tensors(work.teacher(4))
    write_tensors(work.teacher(4), tensors, meta | {"settings": meta["settings"] | {"probes": 90}})
    message = work.refuses("fit")
    assert message.startswith(f"{work.teacher(4)}: was trained with other settings than {work.teacher(0)} (probes 90 ")


# --- (c) names of registered families --------------------------------------------------------------------


def test_two_family_files_of_one_name_do_not_share_results(work: Workspace, tmp_path):
    """Even where no file is shared: the next command of the first family would find those of the second."""
    work("dataset", "--index", "2")  # keeps the description
    kept = work.layout.family("tiny")
    assert kept.read_text().startswith("# from ") and get_family(str(kept)) == get_family(str(work.file))
    other = tmp_path / "other.yaml"
    other.write_text(json.dumps(json.loads(work.file.read_text()) | {"last_index": 6}))
    message = f"{other}: 'tiny' is also the name of the family in {os.path.relpath(work.file)}, whose results are in"
    train = ("--split", "own", "--train", "0,6")
    for command in (["teacher", "--index", "0"], ["fit", "--method", "ars"], ["run", "--gap", "6"]):
        rest = ["--method", "ars", *train] if command[0] == "fit" else [*command[1:]]
        argv = [command[0], str(other), *rest, "--results", str(work.root)]
        argv += train if command[0] == "teacher" else []
        work.capsys.readouterr()
        assert cli.main(argv) == 1
        assert message in work.capsys.readouterr().err
    with pytest.raises(DibsError, match="is also the name of the family in"):
        api.train(load_family(other), gap=6, results=work.root)
    elsewhere = ["--output", str(tmp_path / "own/0.safetensors")]  # a file of one's own
    assert (
        cli.main(["teacher", str(other), "--index", "0", *train, *elsewhere, "--settings", work.settings["teacher"]])
        == 0
    )


def test_a_family_file_may_be_edited_or_moved(work: Workspace, tmp_path):
    work("dataset", "--index", "2")
    moved = work.file.rename(tmp_path / "elsewhere.yaml")
    work("dataset", "--index", "2", source=str(moved))
    moved.rename(work.file)
    work.describe(horizon=json.loads(work.file.read_text())["horizon"] + 1)
    work("teacher", "--index", "0")
    assert get_family(str(work.layout.family("tiny"))) == get_family(str(work.file))


def test_a_file_with_the_name_of_a_registered_family_is_refused(work: Workspace):
    work.describe(name="car2d-reach")
    for command in all_commands(work):
        message = work.refuses(*command)
        assert message == f"{work.file}: the name 'car2d-reach' belongs to a registered family; choose another name"


# --- (d) another model -----------------------------------------------------------------------------------


@pytest.fixture
def others(work: Workspace) -> dict[str, Path]:
    """Models that are not the one of dibs, tiny, gap2, seed 0."""
    work("fit", "--method", "dibs-weights", "--settings", "")
    tensors, meta = read_tensors(work.model)
    from dibs.files import write_tensors

    made = {"method": work.layout.model("dibs-weights", "tiny", "gap2", 0)}
    for key, value in {"split": "gap4", "seed": 1, "benchmark": "large", "family": "large"}.items():
        made[key] = work.root / f"another-{key}.safetensors"
        write_tensors(made[key], tensors, meta | {key: value})
    return made


def test_a_model_of_something_else_is_refused(work: Workspace, others):
    expected = "expected the model of method dibs family tiny benchmark tiny split gap2 seed 0, found the model of"
    found = {"method": "method dibs-weights", "split": "split gap4", "seed": "seed 1"}
    found |= {"benchmark": "benchmark large", "family": "family large"}
    for key, file in others.items():
        for command in (("evaluate",), POLICY):
            message = work.refuses(*command, "--model", str(file))
            assert message.startswith(f"{file}: {expected}") and found[key] in message.partition("found")[2]
    assert "training" in work("evaluate", "--method", "dibs-weights", "--output", "e.parquet")


def test_a_model_of_one_benchmark_is_not_that_of_another(work: Workspace):
    work.describe(benchmarks={"one": "achieve reach(a)", "both": "achieve reach(a); achieve reach(b)"})
    quick = json.dumps({"max_steps": 20, "batch": 64})
    work("fit", "--method", "bc", "--settings", quick, source=f"{work.file}:one")
    model = work.layout.model("bc", "one", "gap2", 0)
    message = work.refuses("evaluate", "--method", "bc", "--model", str(model), source=f"{work.file}:both")
    assert message.startswith(f"{model}: expected the model of method bc family tiny benchmark both split gap2 seed 0")
    assert "benchmark one" in message.partition("found")[2]
    # A template serves both, and an error names a benchmark's command.
    for name in ("one", "both"):
        work("evaluate", source=f"{work.file}:{name}")
    work.describe(horizon=11)
    message = work.refuses("evaluate", "--method", "bc", source=f"{work.file}:one")
    assert message.endswith(f"make it again: `dibs fit {work.file}:one --method bc --split gap2 --seed 0`")


def test_teachers_and_datasets_of_something_else_are_refused(work: Workspace):
    swapped = [str(work.teacher(i)) for i in (0, 4, 2)]
    message = work.refuses("fit", "--teachers", *swapped)
    assert message.startswith(
        f"{work.teacher(4)}: expected the teacher of family tiny split gap2 index 2 seed 0, found"
    )
    message = work.refuses("fit", "--datasets", *(str(work.dataset(i)) for i in (2, 0, 4)))
    assert message.startswith(
        f"{work.dataset(2)}: expected the dataset of family tiny split base index 0 seed 0, found"
    )
    message = work.refuses("dataset", "--index", "2", "--teacher", str(work.teacher(4)))
    found, command = "found the teacher of family tiny split gap2 index 4 seed 0", f"dibs teacher {work.file} --index 2"
    assert message.endswith(f"{found}; name the right file, or make it: `{command} --split gap2 --seed 0`")
    message = work.refuses("teacher", "--index", "4", "--previous", str(work.teacher(0)))
    assert "expected the teacher of family tiny split gap2 index 2 seed 0" in message
    message = work.refuses("dataset", "--index", "2", "--seed", "1", "--teacher", str(work.teacher(2)))
    assert "index 2 seed 1, found" in message


def test_all_training_indices_are_needed(work: Workspace):
    for kind, files in {"teachers": work.teacher, "datasets": work.dataset}.items():
        message = work.refuses("fit", f"--{kind}", str(files(0)), str(files(2)))
        assert message == f"dibs needs the {kind} of index 0, 2, 4 of gap2, found 2: pass --{kind}"


@pytest.fixture
def base_only(monkeypatch) -> str:
    """A method that reads the teacher of index 0 only, or with `all: true` in its settings, all of them."""

    @dataclass(frozen=True)
    class Settings:
        all: bool = False

    def reads(settings: Settings, train: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {"teachers": train if settings.all else train[:1]}

    def train(training: Training, settings: Settings) -> Model:
        teachers = [load_teacher(file) for file in training.teachers]
        return Model({"actors": np.stack([t.actor for t in teachers])}, {}, training.teacher_steps())

    def policy(model: Model, tasks: Tasks) -> Any:
        raise AssertionError("not measured")

    method = Method("base-only", "Base", Settings, train, policy, ("teachers",), reads, per_family=True)
    monkeypatch.setitem(registry._added["methods"], "base-only", method)
    return "base-only"


def test_a_method_reads_what_it_says_for_its_settings(work: Workspace, base_only):
    output = work.root / "base.safetensors"
    for index in (2, 4):
        work.teacher(index).unlink()  # not read
    work("fit", "--method", base_only, "--settings", "{}", "--output", str(output))
    model, meta = load_model(output)
    assert len(model.tensors["actors"]) == 1
    assert meta["inputs"] == [read_metadata(work.teacher(0))["id"]]
    message = work.refuses("fit", "--method", base_only, "--settings", '{"all": true}')
    assert str(work.teacher(2)) in message
    both = [str(work.teacher(0)), str(work.teacher(2))]
    message = work.refuses("fit", "--method", base_only, "--settings", "{}", "--teachers", *both)
    assert message == "base-only needs the teachers of index 0 of gap2, found 2: pass --teachers"


def test_files_that_a_method_does_not_read_are_refused(work: Workspace):
    message = work.refuses("fit", "--method", "maml", "--settings", "{}", "--teachers", str(work.teacher(0)))
    assert message == "maml reads no teachers with these settings, found 1: leave out --teachers"


def test_ars_with_a_budget_reads_no_teachers(work: Workspace):
    for index in (0, 2, 4):
        work.teacher(index).unlink()
    few = {"steps": 2000, "restarts": 1, "trial": 1, "check_rollouts": 2, "directions": 2, "best": 1}
    given = ["fit", "--method", "ars", "--output", str(work.root / "ars.safetensors")]
    work(*given, "--settings", json.dumps(few))
    assert load_model(work.root / "ars.safetensors")[1]["inputs"] == []
    assert str(work.teacher(0)) in work.refuses(*given, "--settings", "{}")


# --- (e) versions ----------------------------------------------------------------------------------------


@pytest.fixture
def newer(monkeypatch):
    """Register a record again, with a higher version."""

    def raise_version(kind: str, name: str) -> None:
        record = registry.load(kind, name)
        monkeypatch.setitem(registry._added[kind], name, replace(record, version=record.version + 1))

    return raise_version


def test_a_new_version_of_teachers(work: Workspace, monkeypatch):
    monkeypatch.setattr(teachers, "VERSION", teachers.VERSION + 1)
    ars = get_algorithm("ars").version
    shown = f"(ars {ars}, teachers {teachers.VERSION - 1} instead of ars {ars}, teachers {teachers.VERSION})"
    for command, (file, rerun) in all_commands(work).items():
        if command[0] in ("teacher", "dataset", "fit"):
            message = work.refuses(*command)
            assert message == f"{file}: was made by another version {shown}; make it again: {rerun}"
    work("evaluate")  # a model that was accepted once depends on nothing but itself


def test_a_new_version_of_the_algorithm(work: Workspace, newer):
    newer("teachers", "ars")
    for command, (file, _) in all_commands(work).items():
        if command[0] in ("teacher", "dataset", "fit"):
            assert work.refuses(*command).startswith(f"{file}: was made by another version (")


def test_a_new_version_of_another_algorithm_does_not_matter(work: Workspace, newer):
    newer("teachers", "ppo")
    work("dataset", "--index", "2")


def test_a_teacher_of_an_algorithm_that_is_not_installed(work: Workspace, monkeypatch):
    monkeypatch.setitem(registry._added["teachers"], "mine", replace(get_algorithm("ars"), name="mine"))
    work(
        "teacher",
        "--index",
        "0",
        "--settings",
        json.dumps({**json.loads(work.settings["teacher"]), "algorithm": "mine"}),
    )
    work("dataset", "--index", "0")
    monkeypatch.delitem(registry._added["teachers"], "mine")
    for command in (("teacher", "--index", "2"), ("dataset", "--index", "0")):
        assert work.refuses(*command).startswith(f"{work.teacher(0)}: unknown teacher algorithm 'mine'. ")


def test_a_new_version_of_datasets(work: Workspace, monkeypatch):
    monkeypatch.setattr(datasets, "VERSION", datasets.VERSION + 1)
    shown = f"(datasets {datasets.VERSION - 1} instead of datasets {datasets.VERSION})"
    rerun = f"`dibs dataset {work.file} --index 0 --split gap2 --seed 0`"
    for method in ("dibs", "bc"):
        message = work.refuses("fit", "--method", method, "--settings", "")
        assert message == f"{work.dataset(0)}: was made by another version {shown}; make it again: {rerun}"
    for index in TRAIN:
        work("dataset", "--index", str(index))
    work("fit")


def test_a_new_version_of_a_method(work: Workspace, newer):
    newer("methods", "dibs")
    rerun = f"`dibs fit {work.file} --method dibs --split gap2 --seed 0`"
    for command in (("evaluate",), POLICY):
        message = work.refuses(*command)
        assert message.startswith(f"{work.model}: was made by another version (")
        assert message.endswith(f"make it again: {rerun}")
    work("fit")
    work("evaluate")


def test_a_new_layout_of_models(work: Workspace, monkeypatch):
    monkeypatch.setattr(methods, "VERSION", methods.VERSION + 1)
    assert work.refuses("evaluate").startswith(f"{work.model}: was made by another version (")


def test_files_of_version_0_1_are_refused(work: Workspace):
    from dibs.files import write_table, write_tensors

    def age(file: Path) -> None:
        if file.suffix == ".parquet":
            table, meta = read_table(file)
            write_table(file, table, {key: value for key, value in meta.items() if key != "format"})
        else:
            tensors, meta = read_tensors(file)
            write_tensors(file, tensors, {key: value for key, value in meta.items() if key != "format"})

    expected = "was written by dibs 0.1, whose results cannot be read; delete it and make it again"
    age(work.model)
    for command in (("evaluate",), POLICY):
        assert work.refuses(*command) == f"{work.model}: {expected}"
    age(work.dataset(2))
    assert work.refuses("fit") == f"{work.dataset(2)}: {expected}"
    age(work.teacher(0))
    for command in (("teacher", "--index", "2"), ("dataset", "--index", "0"), ("fit",)):
        assert work.refuses(*command) == f"{work.teacher(0)}: {expected}"


# --- (f) what was planned --------------------------------------------------------------------------------


def test_what_was_not_planned_is_not_started(work: Workspace, monkeypatch):
    """The check comes before the work."""

    def fail(*args: object, **kwargs: object) -> None:
        raise AssertionError("work was done")

    for name in ("train_teacher", "build", "count_satisfied"):
        monkeypatch.setattr(stages, name, fail)
    monkeypatch.setitem(registry._added["methods"], "dibs", replace(get_method("dibs"), train=fail))
    kinds = {"teacher": "teacher", "dataset": "dataset", "fit": "model", "evaluate": "evaluation", "policy": "policy"}
    for command in all_commands(work):
        message = work.refuses(*command, "--expect", "0123456789abcdef")
        assert message.startswith(f"this would write the {kinds[command[0]]} of "), command
        assert "but 0123456789abcdef was planned" in message


def test_what_was_planned_is_written(work: Workspace):
    """Ids computed from descriptions and settings alone are those of the files."""
    family, seed = get_family(str(work.file)), 0
    split = family.split("gap2")
    chosen = parse_settings(TeacherSettings, work.settings["teacher"])
    chosen = resolve(chosen, family.teacher, family.teacher_options)
    sampled = parse_settings(DatasetSettings, work.settings["dataset"])
    ids: list[str] = []
    made: list[str] = []
    for n, index in enumerate(TRAIN):
        ids.append(pipeline.teacher_origin(family, "gap2", index, seed, chosen, ids[n - 1] if n else None).id)
        made.append(pipeline.dataset_origin(family, "gap2", index, seed, sampled, ids[n]).id)
    method = get_method("dibs")
    benchmark = get_benchmark(str(work.file))
    unit = pipeline.Unit.of(method, benchmark)
    fitted = parse_settings(method.settings, {**method.defaults, **json.loads(work.settings["fit"])})
    model = pipeline.model_origin(method, unit, split, seed, fitted, [*ids, *made]).id
    measured = parse_settings(EvaluationSettings, work.settings["evaluate"])
    result = pipeline.evaluation_origin(method, benchmark, split, seed, measured, model).id

    assert [read_metadata(work.teacher(i))["id"] for i in TRAIN] == ids
    assert [read_metadata(work.dataset(i))["id"] for i in TRAIN] == made
    assert read_metadata(work.model)["id"] == model
    assert read_metadata(work.layout.evaluation("dibs", "tiny", "gap2", seed))["id"] == result
    work("teacher", "--index", "4", "--expect", ids[2])
    work("dataset", "--index", "4", "--expect", made[2])
    work("fit", "--expect", model)
    work("evaluate", "--expect", result)


@pytest.mark.parametrize("command", ["teacher", "dataset", "fit", "evaluate"])
def test_other_settings_are_not_what_was_planned(work: Workspace, command):
    files = {"teacher": work.teacher(4), "dataset": work.dataset(4), "fit": work.model}
    file = files.get(command, work.layout.evaluation("dibs", "tiny", "gap2", 0))
    planned = read_metadata(file)["id"]
    other = {"teacher": {"probes": 90}, "dataset": {"size": 301}, "fit": {"batch": 127}, "evaluate": {"rollouts": 201}}
    settings = json.dumps(json.loads(work.settings[command]) | other[command])
    index = ("--index", "4") if command in ("teacher", "dataset") else ()
    message = work.refuses(command, *index, "--settings", settings, "--expect", planned)
    assert f"but {planned} was planned: the inputs, the family, the settings or the installed version" in message


# --- (g) damage ------------------------------------------------------------------------------------------


def inputs(work: Workspace) -> dict[Path, list[tuple[str, ...]]]:
    """Every file that some command reads, and which commands."""
    return {
        work.teacher(0): [("teacher", "--index", "2"), ("dataset", "--index", "0"), ("fit",)],
        work.teacher(2): [("teacher", "--index", "4"), ("dataset", "--index", "2"), ("fit",)],
        work.teacher(2).with_suffix(".buffers.parquet"): [("dataset", "--index", "2")],
        work.teacher(2).with_suffix(".json"): [("teacher", "--index", "4"), ("fit",)],
        work.dataset(4): [("fit",)],
        work.model: [("evaluate",), POLICY],
    }


@pytest.mark.parametrize("number", range(6))
def test_a_missing_file_is_named(work: Workspace, number):
    file, commands = list(inputs(work).items())[number]
    file.unlink()
    verbs = {0: "teacher --index 0", 1: "teacher --index 2", 4: "dataset --index 4", 5: "fit --method dibs"}
    verb, _, options = verbs.get(number, "").partition(" ")
    made_by = f"`dibs {verb} {work.file} {options} --split gap2 --seed 0`" if verb else "the step that makes it"
    for command in commands:
        assert work.refuses(*command) == f"{file}: no such file; run {made_by} first"


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("damage", ["empty", "half", "end", "other"])
def test_a_damaged_file_is_named(work: Workspace, number, damage):
    file, commands = list(inputs(work).items())[number]
    content = file.read_bytes()
    changed = {"empty": b"", "half": content[: len(content) // 2], "end": content[:-3], "other": b"<html>not found"}
    file.write_bytes(changed[damage])
    for command in commands:
        message = work.refuses(*command)
        assert re.fullmatch(re.escape(str(file)) + r": damaged or not what it should be \(.+\); delete it .*", message)


def test_swapped_files_are_named(work: Workspace):
    kept = work.teacher(2).read_bytes()
    shutil.copyfile(work.teacher(4), work.teacher(2))
    for command in (("teacher", "--index", "4"), ("dataset", "--index", "2"), ("fit",)):
        message = work.refuses(*command)
        assert message.startswith(f"{work.teacher(2)}: expected the teacher of family tiny split gap2 index 2 seed 0")
        found = "found the teacher of family tiny split gap2 index 4 seed 0; name the right file, or make it: "
        assert message.endswith(f"{found}`dibs teacher {work.file} --index 2 --split gap2 --seed 0`")
    work.teacher(2).write_bytes(kept)
    shutil.copyfile(work.dataset(2), work.dataset(4))
    assert work.refuses("fit").startswith(f"{work.dataset(4)}: expected the dataset of family tiny split gap2 index 4")


@pytest.mark.parametrize(
    "command, option, given, expected, found",
    [
        (("dataset", "--index", "2"), "--teacher", "model", "teacher", "model"),
        (("dataset", "--index", "2"), "--teacher", "dataset", "teacher", "dataset"),
        (("teacher", "--index", "2"), "--previous", "model", "teacher", "model"),
        (("evaluate",), "--model", "teacher", "model", "teacher"),
        (POLICY, "--model", "teacher", "model", "teacher"),
    ],
)
def test_a_file_of_another_kind_is_named(work: Workspace, command, option, given, expected, found):
    files = {"model": work.model, "dataset": work.dataset(2), "teacher": work.teacher(2)}
    message = work.refuses(*command, option, str(files[given]))
    assert message == f"{files[given]}: expected kind '{expected}', found '{found}'"


def test_contents_that_do_not_fit_are_named(work: Workspace):
    """Metadata that promise something else than the tensors."""
    from safetensors.numpy import save_file

    tensors, meta = read_tensors(work.teacher(2))
    save_file({**tensors, "actor": tensors["actor"][:, :-1].copy()}, work.teacher(2), metadata={KEY: json.dumps(meta)})
    for command in (("teacher", "--index", "4"), ("dataset", "--index", "2"), ("fit",)):
        message = work.refuses(*command)
        assert message.startswith(f"{work.teacher(2)}: damaged or not what it should be (actor: expected shape (2, 42)")
    tensors, meta = read_tensors(work.model)
    del tensors["kappa"]
    save_file(tensors, work.model, metadata={KEY: json.dumps(meta)})
    for command in (("evaluate",), POLICY):
        assert "no tensor kappa" in work.refuses(*command)


# --- (h) named splits ------------------------------------------------------------------------------------

SPARSE = ("--split", "sparse", "--train", "0,1,4")


def test_a_named_split_goes_through_all_commands(work: Workspace):
    work = replace(work, split=SPARSE)
    assert work.refuses("teacher", "--index", "2") == "index 2 is not a training index of split sparse: [0, 1, 4]"
    for index in ("0", "1", "4"):
        work("teacher", "--index", index)
        work("dataset", "--index", index)
    work("fit")
    assert "tiny sparse seed 0: training" in work("evaluate")
    assert "start>a a>b" in work(*POLICY)
    files = work.layout
    assert read_metadata(files.teacher("tiny", "sparse", 1, 0))["split"] == "sparse"
    assert read_metadata(files.teacher("tiny", "sparse", 0, 0))["split"] == "base"
    table, meta = read_table(files.evaluation("dibs", "tiny", "sparse", 0))
    assert (meta["split"], meta["train"]) == ("sparse", [0, 1, 4])
    assert [r for r in table["role"].to_pylist() if r != "beyond"] == ["train", "train", "unseen", "unseen", "train"]
    # The model cannot be mistaken for one of a split with the same name and other indices.
    message = replace(work, split=("--split", "sparse", "--train", "0,2,4")).refuses("evaluate")
    model = files.model("dibs", "tiny", "sparse", 0)
    assert message.startswith(f"{model}: was made from another description of tiny")
    assert message.endswith(f"`dibs fit {work.file} --method dibs --split sparse --train 0,2,4 --seed 0`")
    # And what makes a file again can be copied from the error.
    work.describe(horizon=11)
    rerun = f"`dibs teacher {work.file} --index 1 --split sparse --train 0,1,4 --seed 0`"
    assert work.refuses("dataset", "--index", "1").endswith(f"make it again: {rerun}")


def test_teachers_of_a_split_with_other_indices_are_refused(work: Workspace):
    """Index 4 was trained after index 1; now it should have been trained after index 3."""
    one, other = (replace(work, split=("--split", "sparse", "--train", t)) for t in ("0,1,4", "0,3,4"))
    for index in ("1", "4"):
        one("teacher", "--index", index)
    other("teacher", "--index", "3")
    files = [work.layout.teacher("tiny", "sparse", index, 0) for index in (4, 3)]
    for index in ("0", "3"):
        other("dataset", "--index", index)
    for command in (("dataset", "--index", "4"), ("fit", "--datasets", "a", "b", "c")):
        assert other.refuses(*command).startswith(f"{files[0]}: was not made from {files[1]} as it is now"), command


@pytest.mark.parametrize(
    "split, message",
    [
        (("--split", "sparse"), "split 'sparse' of tiny: expected gapN, or a name with its training indices"),
        (
            ("--split", "sparse", "--train", "0,3"),
            "split 'sparse' of tiny: expected increasing indices from 0 to L = 4, found [0, 3]",
        ),
        (("--split", "sparse", "--train", "1,4"), "split 'sparse' of tiny: expected increasing indices from 0 to"),
        (("--split", "sparse", "--train", "0,3,2,4"), "split 'sparse' of tiny: expected increasing indices from 0 to"),
        (("--split", "sparse", "--train", "0,4,9"), "split 'sparse' of tiny: expected increasing indices from 0 to"),
        (("--split", "sparse", "--train", "0,x,4"), "--train: expected indices such as 0,3,7,4, found '0,x,4'"),
        (("--split", "sparse", "--train", "0;4"), "--train: expected indices such as"),
        (("--split", "gap2", "--train", "0,1,4"), "split gap2 of tiny: this name means [0, 2, 4]; choose another"),
        (("--split", "base", "--train", "0,1,4"), "split base of tiny: this name means [0, 4]; choose another"),
        (("--split", "../up", "--train", "0,4"), "split '../up' of tiny: expected lowercase letters, digits and"),
        (("--split", "gap5"), "split gap5 of tiny: the gap is larger than the last index 4"),
        (("--gap", "0"), "split 'gap0' of tiny: expected gapN"),
        (("--gap", "-2"), "split 'gap-2' of tiny: expected gapN"),
    ],
)
def test_wrong_splits_are_explained(work: Workspace, split, message):
    work = replace(work, split=split)
    for command in (("teacher", "--index", "0"), ("dataset", "--index", "0"), ("fit",), ("evaluate",), POLICY):
        assert work.refuses(*command).startswith(message)


def test_a_gap_is_short_for_its_split(work: Workspace):
    before = work.digest()
    replace(work, split=("--gap", "2"))("evaluate")
    replace(work, split=("--split", "gap2", "--train", "0,2,4"))("evaluate")
    assert work.digest() == before
    replace(work, split=("--split", "base"))("dataset", "--index", "0")
    assert work.digest() == before


@pytest.mark.parametrize("split", [(), ("--gap", "2", "--split", "gap2")])
def test_exactly_one_split_is_named(work: Workspace, split, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["evaluate", str(work.file), *split])
    assert stop.value.code == 2 and "--split" in capsys.readouterr().err


# --- what is written -------------------------------------------------------------------------------------


def test_files_say_what_they_are(work: Workspace):
    """And metrics next to a model do, too: tables are made from them."""
    identity = {"family": "tiny", "split": "gap2", "seed": 0}
    metrics = json.loads(work.model.with_suffix(".json").read_text())
    assert {key: metrics[key] for key in identity} == identity
    assert (metrics["method"], metrics["benchmark"], metrics["train"]) == ("dibs", "tiny", [0, 2, 4])
    metrics = json.loads(work.teacher(4).with_suffix(".json").read_text())
    assert {key: metrics[key] for key in identity} == identity and metrics["index"] == 4
    work(*POLICY)
    meta = read_metadata("tiny-3.safetensors")
    assert (meta["kind"], meta["index"], meta["inputs"]) == ("policy", 3, [read_metadata(work.model)["id"]])
    assert load_family(meta["description"]) == get_family(str(work.file))


def test_methods_that_are_measured_on_another_model_are_not_trained(work: Workspace):
    message = work.refuses("fit", "--method", "maml-adapted", "--settings", "")
    assert message == "maml-adapted is measured on the model of maml: train that one"


def test_a_failed_run_leaves_the_old_model(work: Workspace, monkeypatch):
    def fail(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(registry._added["methods"], "dibs", replace(get_method("dibs"), train=fail))
    before = work.digest()
    with pytest.raises(ZeroDivisionError):
        work("fit")
    assert work.digest() == before


def test_evaluation_has_a_version_of_its_own(work: Workspace, monkeypatch):
    file = work.layout.evaluation("dibs", "tiny", "gap2", 0)
    planned = read_metadata(file)["id"]
    monkeypatch.setattr(evaluation, "VERSION", evaluation.VERSION + 1)
    assert f"but {planned} was planned" in work.refuses("evaluate", "--expect", planned)
    work("evaluate")
    assert read_metadata(file)["versions"]["evaluation"] == evaluation.VERSION


def test_metrics_do_not_decide_what_a_teacher_is(work: Workspace):
    """They lie next to it and may be lost or replaced; what counts is recorded in the weights."""
    metrics = json.loads(work.teacher(4).with_suffix(".json").read_text())
    write_json(work.teacher(4).with_suffix(".json"), metrics | {"index": 2})
    work("dataset", "--index", "4")


@pytest.mark.parametrize(("method", "made_from"), [("dibs", (0, 2, 4)), ("motion", (0,)), ("ars", ()), ("genrl", (0,))])
def test_the_time_of_a_model_includes_the_teachers_that_it_is_made_from(work: Workspace, method: str, made_from):
    """ARS reads the teachers for its budget only, and GenRL all but the base."""
    for n, index in enumerate((0, 2, 4)):
        timing(work.teacher(index)).write_text(json.dumps({"seconds": 10.0**n}))
    settings = {"ars": {"steps": 0, "trial": 2}, "genrl": {"times": 0.01}}.get(method, {})
    work("fit", "--method", method, "--settings", json.dumps(settings))
    found = json.loads(timing(work.layout.model(method, "tiny", "gap2", 0)).read_text())
    assert found["teachers"] == sum({0: 1.0, 2: 10.0, 4: 100.0}[index] for index in made_from)
