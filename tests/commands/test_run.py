"""`dibs run` makes every file, and makes none of them twice."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from dibs import cli, registry
from dibs.methods import get_method


@pytest.mark.slow
def test_run_resumes(tmp_path, tiny_description, tiny_teachers, capsys):
    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps(tiny_description(teacher_options=tiny_teachers["options"])))
    command = ["run", str(file), "--train", "0,4", "--methods", "dibs", "--rollouts", "50"]
    command += ["--results", str(tmp_path / "results")]
    assert cli.main(command) == 0
    first = capsys.readouterr().out
    assert ": making" in first and "zero-shot" in first
    assert cli.main(command) == 0
    again = capsys.readouterr().out
    assert ": making" not in again and again.count(": kept") == 1


def test_run_makes_only_what_the_methods_read(tmp_path, tiny_description, tiny_teachers, monkeypatch):
    """With a budget of its own, `ars` reads no teacher; a method that reads index 0 gets that one only."""
    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps(tiny_description(teacher_options=tiny_teachers["options"])))
    few = {"steps": 500, "restarts": 1, "trial": 1, "check_rollouts": 2, "directions": 2, "best": 1}
    plain = get_method("ars")
    for name, reads in {"own": plain.reads, "first": lambda settings, train: {"teachers": train[:1]}}.items():
        method = replace(plain, name=name, defaults=few, reads=reads)
        monkeypatch.setitem(registry._added["methods"], name, method)
    for name, made in {"own": [], "first": ["0.safetensors"]}.items():
        results = tmp_path / name
        command = ["run", str(file), "--train", "0,4", "--methods", name, "--rollouts", "5", "--results", str(results)]
        assert cli.main(command) == 0
        assert [f.name for f in results.glob("teachers/**/*.safetensors")] == made
        assert not (results / "datasets").exists()


def test_run_needs_a_training_set(tmp_path, tiny_description, capsys):
    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps(tiny_description()))
    assert cli.main(["run", str(file)]) == 1
    assert "--gap 5" in capsys.readouterr().err
