"""The command line itself: help, version, errors without tracebacks, pipes."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

import dibs
from dibs import cli
from dibs.errors import DibsError


def run(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "dibs", *argv], capture_output=True, text=True, timeout=60)


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch):
    """Let `dibs probe` call a function of the test."""

    def install(function):
        def register(subparsers):
            subparsers.add_parser("probe").set_defaults(run=function)

        monkeypatch.setattr(cli, "COMMANDS", ("a.module",))
        fake = SimpleNamespace(import_module=lambda _: SimpleNamespace(register=register))
        monkeypatch.setattr(cli, "importlib", fake)

    return install


def raising(error: BaseException):
    def function(args: argparse.Namespace) -> None:
        raise error

    return function


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--help"])
    assert stop.value.code == 0
    shown = capsys.readouterr().out
    every = ["benchmarks", "spec", "family", "draw", "teacher", "dataset", "fit", "evaluate", "methods"]
    every += ["policy", "rollout", "table", "figure", "results", "study", "config"]
    for name in every:
        assert re.search(rf"^    {name}\b", shown, re.MULTILINE), name


@pytest.mark.parametrize("command", ["teacher", "dataset", "fit", "evaluate", "policy", "rollout", "config"])
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0 and f"usage: dibs {command}" in capsys.readouterr().out


def test_help_is_quick():
    """No stage is imported before a command runs, not even numpy."""
    code = """
import sys, time
start = time.perf_counter()
from dibs.cli import parser
parser().format_help()
print(time.perf_counter() - start, *({"numpy", "pydantic", "torch", "yaml"} & sys.modules.keys()))
"""
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(5)]
    seconds, *heavy = zip(*(done.stdout.split() for done in runs), strict=True)
    assert not heavy
    assert min(map(float, seconds)) < 0.3


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"dibs {dibs.__version__}\n"


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["spec"], ["spec", "car2d-reach-k1", "--index", "x"]])
def test_wrong_usage_exits_with_2(argv, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(argv)
    assert stop.value.code == 2
    assert "usage: dibs" in capsys.readouterr().err


@pytest.mark.parametrize("result, status", [(None, 0), (0, 0), (3, 3)])
def test_status_of_a_command(command, result, status):
    command(lambda args: result)
    assert cli.main(["probe"]) == status


def test_dibs_error_is_one_message(command, capsys):
    command(raising(DibsError("config.yaml: gap 50 is larger than 40")))
    assert cli.main(["probe"]) == 1
    assert capsys.readouterr() == ("", "error: config.yaml: gap 50 is larger than 40\n")


def test_missing_file_is_one_message(command, capsys, tmp_path):
    command(lambda args: (tmp_path / "none").open())
    assert cli.main(["probe"]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'none'}: No such file or directory\n"


@pytest.mark.parametrize("argv", [["--debug", "probe"], ["probe", "--debug"]])
@pytest.mark.parametrize("error", [DibsError("x"), KeyboardInterrupt(), FileNotFoundError(2, "no", "f")])
def test_debug_raises(command, argv, error):
    command(raising(error))
    with pytest.raises(type(error)):
        cli.main(argv)


def test_a_bug_is_not_hidden(command):
    command(raising(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        cli.main(["probe"])


def test_interrupt_is_130(command):
    command(raising(KeyboardInterrupt()))
    assert cli.main(["probe"]) == 130


def test_reader_that_goes_away_is_no_error():
    script = f"{sys.executable} -m dibs benchmarks --format json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (141, "")


def test_python_m_dibs_reports_a_typo_without_traceback():
    done = run("spec", "car2d-reech-k3")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: unknown benchmark 'car2d-reech-k3'. Did you mean 'car2d-reach-k3'?")
    assert "Traceback" not in done.stderr


def test_policy_takes_no_settings(capsys):
    """They would be ignored."""
    with pytest.raises(SystemExit):
        cli.main(["policy", "car2d-reach-k1", "--split", "gap5", "--index", "3", "--settings", "{}"])
    assert "unrecognized arguments: --settings" in capsys.readouterr().err
