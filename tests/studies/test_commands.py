"""`dibs table`, `dibs figure`, `dibs results` and `dibs study` from the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dibs import cli


@pytest.fixture
def dibs(capsys: pytest.CaptureFixture[str]):
    """Run `dibs …` and return what it printed; errors are on standard error."""

    def run(*argv: object, status: int = 0) -> str:
        assert cli.main([str(word) for word in argv]) == status
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return err if status else out

    return run


def test_tables_in_several_formats(dibs, results: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"relative.{suffix}" for suffix in ("csv", "md", "html", "tex")]
    assert dibs("table", "relative", "--results", results, "--output", *files).splitlines() == list(map(str, files))
    assert files[0].read_text().startswith("method,")
    assert "DIBS" in files[1].read_text() and "VariBAD" in files[1].read_text()
    assert "<td>VariBAD</td>" in files[2].read_text() and r"\toprule" in files[3].read_text()


def test_a_table_on_the_terminal(dibs, results: Path) -> None:
    assert "verdict" in dibs("table", "claims", "--results", results)


def test_methods_and_benchmark_can_be_chosen(dibs, results: Path) -> None:
    chosen = ("--methods", "dibs", "bc", "--benchmark", "car2d-reach-k1")
    shown = dibs("table", "benchmarks", "--results", results, *chosen)
    assert "DIBS" in shown and "BC" in shown and "VariBAD" not in shown and "car2d-reach-k5" not in shown


def test_inputs_by_a_list(dibs, results: Path, tmp_path: Path) -> None:
    names = tmp_path / "inputs.list"
    names.write_text("\n".join(str(p) for p in sorted(results.rglob("*/car2d-choice-l1/*/*.parquet"))))
    out = dibs("results", "--inputs", names)
    assert out.splitlines()[1].startswith("car2d-choice-l1") and "car2d-reach" not in out


def test_figures_in_several_formats(dibs, results: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"choice.{suffix}" for suffix in ("pdf", "png")]
    assert dibs("figure", "choice", "--results", results, "--output", *files).splitlines() == list(map(str, files))
    assert all(file.stat().st_size > 1000 for file in files)


def test_an_illustration_needs_no_results(dibs, tmp_path: Path) -> None:
    file = tmp_path / "environments.png"
    dibs("figure", "environments", "--output", file)
    assert file.stat().st_size > 1000


def test_the_lists(dibs) -> None:
    figures, tables = dibs("figure"), dibs("table")
    assert "scalability_k5" in figures and "(from teachers)" in figures and "spec-reach-obs" in figures
    assert "success_by_index-BENCHMARK" in figures and "claims" not in figures
    assert "claims" in tables and "relative" in tables and "drift" not in tables


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["table", "relativ"], "unknown table 'relativ'. Did you mean 'relative'"),
        (["table", "relative", "--output", "t.txt"], "t.txt: expected a name that ends in .csv, .md, .html or .tex"),
        (["figure", "choice"], "dibs figure choice: name one or more files with --output"),
        (["figure", "choice", "--output", "f.svg"], "f.svg: expected a name that ends in .pdf or .png"),
        (["figure", "choise", "--output", "f.png"], "unknown figure 'choise'. Did you mean 'choice'"),
        (["figure", "choice", "--output", "f.png"], "results: no evaluations there"),
        (["figure", "drift", "--output", "f.png"], "results: no teachers there"),
        (["results"], "results: no evaluations there"),
        (["study", "none.json"], "none.json: no such file"),
        (["study", "none.json", "--output", "f.svg"], "f.svg: expected a name that ends in"),
    ],
)
def test_mistakes_are_reported(argv, message, dibs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in dibs(*argv, status=1)
    assert list(tmp_path.iterdir()) == []


def test_nothing_heavy_is_imported_before_a_command_runs() -> None:
    script = (
        "import sys; from dibs import cli; cli.parser(); "
        "print([m for m in ('numpy', 'pandas', 'matplotlib', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
