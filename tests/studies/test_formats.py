"""CSV, Markdown and LaTeX of all tables: well-formed, escaped, the same bytes every time."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from importlib import import_module

import pytest

from dibs.errors import DibsError
from dibs.studies import formats
from dibs.studies.formats import Column, Table, to_csv, to_latex, to_markdown
from dibs.studies.reports import REPORTS, USUAL

NAMES = [report.name for report in REPORTS if report.kind == "table"]


@pytest.fixture(scope="module")
def tables(frame) -> dict[str, Table]:
    module = import_module("dibs.studies.tables")
    return {name: getattr(module, name)(frame, USUAL) for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_latex_is_balanced(name, tables):
    text = to_latex(tables[name])
    plain = re.sub(r"\\[\\{}%&$#_]", "", text)
    depth = 0
    for character in plain:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0 and plain.count("$") % 2 == 0
    opened = re.findall(r"\\begin\{(\w+)\}", text)
    assert sorted(opened) == sorted(re.findall(r"\\end\{(\w+)\}", text))
    assert text.count("\\begingroup") == text.count("\\endgroup")
    assert re.search(r"\\toprule[\s\S]*\\midrule[\s\S]*\\bottomrule", text)
    columns = len(tables[name].columns)
    for line in text.splitlines():
        if line.endswith(r"\\") and not line.startswith((r"\multicolumn", r"\caption")):
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
        assert line.isascii(), line


@pytest.mark.parametrize("name", NAMES)
def test_markdown_and_csv_hold_together(name, tables):
    table = tables[name]
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in to_markdown(table).splitlines() if line.startswith("|")}
    assert widths == {len(table.columns) + 1}
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(rows) == len(table.rows) and list(rows[0]) == list(table.rows[0])
    assert not {"nan", "None"} & {value for row in rows for value in row.values()}


def hand(rows: int = 1) -> Table:
    columns = [
        Column("a", lambda r: r["a"], "l"),
        Column("b|c", lambda r: f"{r['b']:.1f}"),
        Column("b", lambda r: "x_y"),
    ]
    return Table(
        "t", "50% of a_b", [{"a": "same", "b": 0.5, "c": None} for _ in range(rows)], columns, 1, ["δ & more."]
    )


def test_formats_by_hand():
    lines = to_markdown(hand(2)).splitlines()
    assert lines[0] == "**50% of a_b**" and lines[-1] == "δ & more."
    cells = [[c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines if line.startswith("|")]
    assert cells[0] == ["a", r"b\|c", "b"] and cells[2:] == [["same", "0.5", "x_y"], ["", "0.5", "x_y"]]
    assert cells[1][0].startswith(":") and cells[1][1].endswith(":")
    assert to_csv(hand()) == "a,b,c\nsame,0.5,\n"
    text = to_latex(hand())
    assert r"\caption{50\% of a\_b}" in text and r"\label{tab:t}" in text and r"\begin{tabular}{lrr}" in text
    assert r"a & b$|$c & b \\" in text and r"same & 0.5 & x\_y \\" in text
    assert text.index(r"\end{adjustbox}") < text.index(r"$\delta$ \& more.") < text.index(r"\end{table}")


def test_a_long_table_breaks_over_pages():
    text = to_latex(hand(formats.LONG + 1))
    assert r"\begin{longtable}" in text and r"\endhead" in text and r"\begin{table}" not in text
    assert text.index(r"\end{longtable}") < text.index(r"$\delta$ \& more.") < text.index(r"\endgroup")


def test_text_for_latex():
    assert formats.tex("50% of a_b & |c| ± 1 [δ]") == r"50\% of a\_b \& $|$c$|$ $\pm$ 1 [$\delta$]"


@pytest.mark.parametrize("suffix", ["csv", "md", "html", "tex"])
def test_the_same_table_has_the_same_bytes(suffix, frame, tmp_path):
    relative = import_module("dibs.studies.tables").relative
    files = [tmp_path / "new" / f"{n}.{suffix}" for n in "ab"]
    formats.save(relative(frame, USUAL), files[0])
    formats.save(relative(frame.sample(frac=1.0, random_state=0).sort_index(), USUAL), files[1])
    assert files[0].read_bytes() == files[1].read_bytes()
    assert [p.name for p in files[0].parent.iterdir() if p.name.startswith(".")] == []


def test_another_format_is_refused(tmp_path):
    with pytest.raises(DibsError, match=r"t\.txt: expected a name that ends in \.csv, \.md, \.html or \.tex"):
        formats.save(hand(), tmp_path / "t.txt")


def test_a_table_for_a_browser():
    """It has the cells of the other formats, and characters of HTML are escaped."""
    odd = replace(hand(2), caption="a < b & c", notes=["d > e"])
    text = formats.to_html(odd)
    rows = [re.findall(r"<t[hd]>(.*?)</t[hd]>", row) for row in re.findall(r"<tr.*?</tr>", text, re.DOTALL)]
    assert rows == [list(odd.text().columns), *odd.text().to_numpy().tolist()]
    assert "a &lt; b &amp; c" in text and "d &gt; e" in text and "#t :is(td,th):nth-child(2)" in text
