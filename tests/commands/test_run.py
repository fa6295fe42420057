"""`dibs run` makes every file, and makes none of them twice."""

from __future__ import annotations

import json

import pytest

from dibs import cli


@pytest.mark.slow
def test_run_resumes(tmp_path, tiny_description, tiny_teachers, capsys):
    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps(tiny_description(teacher_options=tiny_teachers["options"])))
    command = ["run", str(file), "--train", "0,4", "--methods", "dibs", "--rollouts", "50"]
    command += ["--results", str(tmp_path / "results")]
    assert cli.main(command) == 0
    first = capsys.readouterr().out
    assert "making it" in first and "zero-shot" in first
    assert cli.main(command) == 0
    again = capsys.readouterr().out
    assert "making it" not in again and again.count("up to date") == 6


def test_run_needs_a_training_set(tmp_path, tiny_description, capsys):
    file = tmp_path / "tiny.yaml"
    file.write_text(json.dumps(tiny_description()))
    assert cli.main(["run", str(file)]) == 1
    assert "--gap 5" in capsys.readouterr().err
