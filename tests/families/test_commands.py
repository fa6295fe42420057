"""`dibs benchmarks`, `dibs spec` and `dibs family`: what they print, and that it can be read back."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest

from dibs import cli
from dibs.commands.families import WIDTH, shorten
from dibs.families import benchmarks, families, get_family, load_family

COLUMNS = ["benchmark", "requires", "environment", "edges", "L", "horizon", "network", "teacher", "specification"]
SHARES = ["index_free", "motion"]


@pytest.fixture
def dibs(capsys):
    """Run `dibs …` and return what it printed."""

    def run(*argv: str, status: int = 0) -> str:
        assert cli.main(list(argv)) == status
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return err if status else out

    return run


def test_benchmarks_as_table(dibs):
    lines = dibs("benchmarks").splitlines()
    assert lines[0].split() == COLUMNS
    assert [line.split()[0] for line in lines[1:]] == list(benchmarks())
    assert max(map(len, lines)) < 150


def test_benchmarks_as_json_are_complete(dibs):
    rows = json.loads(dibs("benchmarks", "--format", "json"))
    assert len(rows) == len(benchmarks())
    by_name = {row["benchmark"]: row for row in rows}
    assert list(rows[0]) == [*COLUMNS[:2], *SHARES, *COLUMNS[2:]]
    assert {key: value for key, value in by_name["simpledrone-reach-k3"].items() if key not in SHARES} == {
        "benchmark": "simpledrone-reach-k3",
        "requires": "nothing",
        "environment": "SimpleDrone",
        "edges": 3,
        "L": 40,
        "horizon": 20,
        "network": [64, 64],
        "teacher": "ppo",
        "specification": "achieve reach(g1); achieve reach(g2); achieve reach(g3)",
    }
    # Two ways in and two ways on, once per level; the goal between the levels is one place.
    assert by_name["car2d-choice-l1"]["edges"] == 4
    assert by_name["car2d-choice-l2"]["edges"] == 8


def test_benchmarks_as_csv_read_back(dibs):
    rows = list(csv.DictReader(io.StringIO(dibs("benchmarks", "--format", "csv"))))
    full = json.loads(dibs("benchmarks", "--format", "json"))
    assert [row["specification"] for row in rows] == [row["specification"] for row in full]
    assert {row["network"] for row in rows} == {"8", "64×64", "128×128"}


def test_benchmarks_as_markdown(dibs):
    lines = dibs("benchmarks", "--format", "md").splitlines()
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert cells[0] == COLUMNS and {len(row) for row in cells} == {len(COLUMNS)}
    assert [row[0] for row in cells[2:]] == list(benchmarks())


def test_benchmarks_of_a_file(dibs, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text(dibs("family", "car2d-choice"))  # the copy of a registered family is that family
    rows = json.loads(dibs("benchmarks", str(file), "--format", "json"))
    assert [row["benchmark"] for row in rows] == ["car2d-choice-l1", "car2d-choice-l2"]
    assert f"{file}:car2d-choice-l1 at index 3" in dibs("spec", f"{file}:car2d-choice-l1", "--index", "3")


def test_a_specification_over_several_lines_is_shown_on_one(dibs, tmp_path):
    data = get_family("car2d-switch").description_data() | {"name": "mine"}
    data["specification"] = "achieve reach(goal)\n  ensuring\n  avoid(block)\n"
    data["regions"]["block"]["center"] = [None, 5.0]
    file = tmp_path / "mine.yaml"
    file.write_text(load_family(data).to_yaml())
    assert dibs("benchmarks", str(file)).splitlines()[1].endswith("  goal ensuring !block")
    shown = dibs("spec", str(file))
    assert "\n  achieve reach(goal) ensuring avoid(block)\n" in shown
    assert "  block  y in [4, 6]\n" in shown  # x is free


def test_benchmarks_of_a_missing_file(dibs, tmp_path):
    file = tmp_path / "none.yaml"
    assert dibs("benchmarks", str(file), status=1) == f"error: {file}: no such family file\n"


@pytest.mark.parametrize(
    "text, brief",
    [
        ("achieve reach(g1)", "g1"),
        ("(achieve reach(g1)) ensuring avoid(o)", "g1 ensuring !o"),
        ("achieve reach(g1);\n  achieve reach(g2)", "g1; g2"),
        (
            "(achieve reach(a); achieve reach(b); achieve reach(c)) ensuring avoid(d) & avoid(e) & avoid(f)",
            "(a; …; c) ensuring !d & … & !f",
        ),
        (
            "(achieve reach(a) or achieve reach(b)); achieve reach(c); achieve reach(d) or achieve reach(e)",
            "(a or b); c; d or e",
        ),
    ],
)
def test_shorten(text, brief):
    assert shorten(text) == brief


def test_shorten_leaves_out_the_middle_of_what_is_long():
    text = " or ".join(f"(achieve reach(first{i}); achieve reach(second{i}))" for i in range(9))
    brief = shorten(text)
    assert len(brief) == WIDTH
    assert brief.startswith("(first0; second0) or") and " … " in brief and brief.endswith("second8)")


def test_spec_shows_the_regions_at_the_index(dibs):
    shown = dibs("spec", "car2d-reach-obs-k1", "--index", "4")
    assert "\n  (achieve reach(g1)) ensuring avoid(o1) & " in shown
    assert "  g1  x in [6, 8], y in [7, 9]\n" in shown  # (5 + 4 · 0.5, 8) ± 1
    assert "  g2 " not in shown  # not in this benchmark
    assert "  x  2 ± 0.3\n" in shown
    assert "  start>g1  achieve reach(g1) ensuring avoid(o1) & avoid(o2)" in shown


def test_spec_shows_every_path(dibs):
    shown = dibs("spec", "car2d-choice-l2")
    paths = shown.split("\npaths\n")[1].splitlines()
    assert len(paths) == 4


def test_spec_beyond_the_last_index_says_so(dibs):
    assert "at index 50, beyond L = 40" in dibs("spec", "car2d-reach-k1", "--index", "50")


@pytest.mark.parametrize(
    "argv, message",
    [
        (["spec", "car2d-reach-k6"], "unknown benchmark 'car2d-reach-k6'. Did you mean 'car2d-reach-k"),
        (["spec", "car2d-reach-k1", "--index", "-1"], "index -1 of car2d-reach: expected a whole number"),
        (["family", "car2d-chioce"], "unknown family 'car2d-chioce'. Did you mean 'car2d-choice'?"),
        (["family", "no.yaml"], "no.yaml: no such family file"),
    ],
)
def test_mistakes_are_named(dibs, argv, message):
    assert dibs(*argv, status=1).startswith(f"error: {message}")


@pytest.mark.parametrize("name", families())
def test_family_reads_back_the_same(dibs, tmp_path, name):
    file = tmp_path / "copy.yaml"
    file.write_text(dibs("family", name))
    assert load_family(file) == get_family(name) == get_family(str(file))
    assert load_family(file).to_yaml() == file.read_text() == dibs("family", str(file))


def test_family_keeps_constants_and_free_variables(tmp_path):
    data = get_family("car2d-switch").description_data()
    data["environment"]["noise"] = 0.07
    data["regions"]["block"]["center"] = [None, 5.0]
    data["start"]["center"] = [-5.0, -10.0]
    mine = load_family(data)
    file = tmp_path / "mine.yaml"
    file.write_text(mine.to_yaml())
    assert load_family(file).environment == mine.environment != get_family("car2d-switch").environment
    assert load_family(file) == mine and load_family(file).description_data() == data


def test_family_explains_lists_and_constants(dibs):
    lines = dibs("family", "droneattitude-reach").splitlines()
    assert lines[0] == "# Lists hold one number per state variable: x, y, z, psi, theta."
    assert lines[1].startswith("# Constants of DroneAttitude that may be set next to its name: speed ")


def test_methods_are_listed_with_what_they_need(dibs):
    lines = dibs("methods").splitlines()
    names = [line.split()[0] for line in lines]
    ours = ["ars", "bc", "maml", "maml-adapted", "varibad", "genrl"]
    ours += ["dibs", "dibs-plus", "dibs-plus-still", "dibs-weights", "dibs-branched"]
    assert [name for name in names if name in ours] == ours  # the order of legends and tables
    by_name = dict(zip(names, lines, strict=True))
    assert "from teachers and datasets" in by_name["dibs"] and "one model per family" in by_name["dibs"]
    assert "adapts on the evaluated task, measured on the model of maml" in by_name["maml-adapted"]
    assert "from tasks only" in by_name["varibad"] and "one model per benchmark" in by_name["varibad"]
