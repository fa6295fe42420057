"""`dibs table`, `dibs figure`, `dibs results` from the command line."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dibs.errors import DibsError


def test_tables_in_several_formats(dibs, results, tmp_path, capsys):
    files = [tmp_path / f"relative.{suffix}" for suffix in ("csv", "md", "tex")]
    assert dibs("table", "relative", "--results", results, "--output", *files) == 0
    assert capsys.readouterr().out.splitlines() == list(map(str, files))
    assert files[0].read_text().startswith("method,baseline,training_ratio")
    assert files[1].read_text().startswith("**Relative aggregate")
    assert r"\toprule" in files[2].read_text()


def test_a_table_on_the_terminal(dibs, results, capsys):
    assert dibs("table", "claims", "--results", results) == 0
    assert "| verdict |" in capsys.readouterr().out


def test_inputs_by_a_list(dibs, results, tmp_path, capsys):
    names = tmp_path / "inputs.list"
    names.write_text("\n".join(str(p) for p in sorted(results.rglob("*/car2d-choice-l1/*/*.parquet"))))
    assert dibs("results", "--inputs", names) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].startswith("car2d-choice-l1") and "car2d-reach" not in out


def test_figures_in_several_formats(dibs, results, tmp_path, capsys):
    files = [tmp_path / f"reacher.{suffix}" for suffix in ("pdf", "png")]
    assert dibs("figure", "reacher_8", "--results", results, "--output", *files) == 0
    assert capsys.readouterr().out.splitlines() == list(map(str, files))
    assert all(file.stat().st_size > 1000 for file in files)


def test_an_illustration(dibs, tmp_path):
    file = tmp_path / "environments.png"
    assert dibs("figure", "environments", "--output", file) == 0
    assert file.stat().st_size > 1000


def test_the_list_of_figures(dibs, capsys):
    assert dibs("figure") == 0
    out = capsys.readouterr().out
    assert "scalability_k5" in out and "(from teachers)" in out and "spec-reach-obs" in out


@pytest.mark.parametrize(
    "argv, message",
    [
        (["table", "relativ"], r"unknown table 'relativ'\. Did you mean 'relative'"),
        (["table", "relative", "--output", "t.txt"], r"t\.txt: expected a name that ends in \.csv, \.md, \.tex"),
        (["figure", "choice"], "where to"),
        (["figure", "choice", "--output", "f.svg"], r"f\.svg: expected a name that ends in \.png or \.pdf"),
        (["figure", "choise", "--output", "f.png"], r"unknown figure 'choise'\. Did you mean 'choice'"),
        (["figure", "choice", "--output", "f.png"], "results: no evaluation there"),
        (["figure", "drift", "--output", "f.png"], "results: no teacher there"),
        (["results"], "results: no evaluation there"),
    ],
)
def test_mistakes_are_told(argv, message, dibs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DibsError, match=message):
        dibs(*argv)
    assert list(tmp_path.iterdir()) == []


def test_nothing_heavy_is_imported_before_a_command_runs():
    script = (
        "import argparse, sys; from dibs.analysis import commands; "
        "commands.register(argparse.ArgumentParser().add_subparsers()); "
        "print([m for m in ('numpy', 'pandas', 'matplotlib', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
