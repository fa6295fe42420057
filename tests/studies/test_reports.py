"""The registry of reports: which apply to a study, and how one is made."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dibs import registry
from dibs.cli import main
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings, roles
from dibs.families import get_family
from dibs.files import check_suffix
from dibs.paths import Layout
from dibs.studies.collect import find
from dibs.studies.formats import Table
from dibs.studies.reports import (
    REPORTS,
    SUFFIXES,
    Options,
    Report,
    applicable,
    find_report,
    make,
    reports,
    write_report,
)

pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def files(results):
    return find("evaluations", None, results)


def test_every_report_has_a_caption_and_a_function():
    for report in reports().values():
        assert report.caption.endswith(".") and callable(registry.resolve(report.make))


def test_families_of_ones_own_get_generic_reports_only():
    found = applicable(["mine-a", "mine-b"])
    each = {"success_by_index-mine-a", "success_by_index-mine-b"}
    assert set(found) == {report.name for report in REPORTS} - {"success_by_index"} | each
    assert found["ratios"][1] == ("mine-a", "mine-b") and found["success_by_index-mine-b"][1] == ("mine-b",)


def test_a_report_is_drawn_from_its_benchmarks_only(files):
    table = make("table1", files)
    whole = make("relative", files)
    assert isinstance(table, Table) and isinstance(whole, Table)
    figure = make("success_by_index-car2d-choice-l1", files, Options(methods=("dibs",), split="gap2"))
    assert [sub.get_suptitle() for sub in figure.subfigs] == ["car2d-choice-l1, gap2"]
    assert [ax.get_title("left") for ax in figure.axes][:1] == ["DIBS"]


def test_claims_read_the_runs_of_their_ablation(tmp_path, save_run, capsys):
    """From a folder of results, or from files that are named."""
    family = get_family("simpledrone-reach")
    split = family.split("gap20")
    role = roles(family, split.indices, EvaluationSettings(beyond=False))
    unseen = [i for i in role if role[i] == "unseen"]

    def write(root: Path, solved: int) -> Path:
        counts = {i: 100 if role[i] == "train" or i in unseen[:solved] else 0 for i in role}
        identity = {"method": "dibs", "benchmark": "simpledrone-reach-k5", "family": family.name}
        file = Layout(root).evaluation("dibs", "simpledrone-reach-k5", "gap20", 0)
        return save_run(file, counts, role, identity | {"split": "gap20", "seed": 0})

    files = [write(tmp_path, 26), write(tmp_path / "ablations/cross-index/no-anchor", 3)]
    write(tmp_path / "ablations/other/no-anchor", 9)
    for options in (["--results", str(tmp_path)], ["--inputs", *map(str, files)]):
        assert main(["table", "claims", *options]) in (0, None)
        assert "gap20: 26 → 3 (warm start) | agree" in " ".join(capsys.readouterr().out.split())
    assert main(["table", "claims", "--inputs", str(files[0])]) in (0, None)
    assert "| 26 → 3 | – | not measured" in " ".join(capsys.readouterr().out.split())


def test_nothing_to_show(files):
    with pytest.raises(DibsError, match=r"reacher_8: no evaluation of reacher-drop-same-8 or .* among the inputs"):
        make("reacher_8", files)
    with pytest.raises(DibsError, match="ratios: no evaluation of car2d-choice-l1 by ars among the inputs"):
        make("ratios", files, Options(methods=("ars",), benchmark="car2d-choice-l1"))


def test_names():
    assert find_report("success_by_index-mine")[1] == "mine"
    with pytest.raises(DibsError, match=r"unknown table 'relativ'\. Did you mean 'relative'\?"):
        find_report("relativ", "table")
    with pytest.raises(DibsError, match=r"unknown figure 'scalability_k6'\. Did you mean 'scalability_k"):
        find_report("scalability_k6", "figure")
    with pytest.raises(DibsError, match="unknown table 'ratios'"):
        find_report("ratios", "table")


def test_outputs(files, tmp_path):
    for name, suffix in (("relative", "csv"), ("ratios", "png")):
        write_report(make(name, files), tmp_path / f"x.{suffix}")
        assert (tmp_path / f"x.{suffix}").stat().st_size > 100
    with pytest.raises(DibsError, match=r"x\.txt: expected a name that ends in \.csv, \.md, \.html or \.tex"):
        check_suffix("x.txt", SUFFIXES["table"])
    with pytest.raises(DibsError, match=r"x\.svg: expected a name that ends in \.pdf or \.png"):
        check_suffix("x.svg", SUFFIXES["figure"])


def test_a_report_of_ones_own(files):
    mine = Report("mine", "table", "Mine.", lambda runs, options, scale: scale * len(runs), arguments={"scale": 2})
    registry.register("reports", "mine", [mine])
    try:
        assert make("mine", files) == 2 * len(files)
        registry.register("reports", "mine", [mine, mine])
        with pytest.raises(DibsError, match="two reports are called 'mine'"):
            reports()
    finally:
        registry._added["reports"].pop("mine", None)


def test_the_registry_imports_nothing_heavy():
    script = (
        "import sys; from dibs.studies.reports import applicable; applicable(['mine']); "
        "print([m for m in ('pandas', 'matplotlib', 'torch', 'scipy', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"
