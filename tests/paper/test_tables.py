"""Table 1 and the paper's numbers."""

from __future__ import annotations

import pandas as pd
import pytest

from dibs.paper.numbers import BASELINES, BENCHMARKS, METHODS, OURS, RELATIVE, goals
from dibs.paper.tables import table1, table1_versions
from dibs.studies.formats import to_latex, to_markdown
from dibs.studies.reports import USUAL, Report


@pytest.fixture
def hand(runs) -> pd.DataFrame:
    return runs(
        ("dibs", "car2d-reach-k1", "gap10", 0, 4, 10),
        ("dibs", "car2d-reach-k1", "gap10", 1, 3, 8),
        ("dibs", "car2d-reach-k2", "gap10", 0, 2, 6),  # GenRL lacks this one
        ("dibs", "car2d-reach-k1", "gap5", 0, 4, 9),
        ("genrl", "car2d-reach-k1", "gap10", 0, 2, 2),
        ("genrl", "car2d-reach-k1", "gap10", 1, 0, 4),
        ("genrl", "car2d-reach-k1", "gap5", 0, 1, 0),
        ("bc", "car2d-reach-k1", "gap10", 0, 1, 0),
    )


def row(table, **where):
    (found,) = [r for r in table.rows if all(r[k] == v for k, v in where.items())]
    return found


def test_table_1_by_hand(hand):
    table = table1(hand, USUAL)
    genrl = row(table, baseline="genrl")
    # Common cells: k1 at gap10 and gap5. Ours: mean(4, 3) + 4 = 7.5; theirs: mean(2, 0) + 1 = 2.
    assert genrl["training_ratio"] == pytest.approx(3.75) and genrl["unseen_ratio"] == pytest.approx(6.0)
    assert (genrl["training_paper"], genrl["unseen_paper"]) == (3.82, 6.19)
    assert row(table, baseline="ars")["cells"] == 0


def test_table_1_as_read(hand):
    text = to_markdown(table1(hand, USUAL))
    split = [[c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    lines = {line[1]: line[2:] for line in split}
    assert lines["GenRL"] == ["3.75×", "3.82×", "6.00×", "6.19×", "7.5 to 2.0", "18.0 to 3.0", "2 of 3", "1–2"]
    assert lines["BC"] == ["3.50×", "3.94×", "–", "–", "3.5 to 1.0", "9.0 to 0.0", "1 of 3", "1–2"]
    assert lines["MAML"][:4] == ["not run", "10.83×", "not run", "14.04×"]
    assert "DIBS+" not in text and to_latex(table1(hand, USUAL)).isascii()


def test_dibs_plus_has_no_number_of_the_paper(frame):
    table = table1(frame, USUAL)
    plus = row(table, method="dibs-plus", baseline="genrl")
    part = frame[frame["method"].isin(["dibs-plus", "genrl"])]
    sums = part.groupby(["method", "benchmark", "split"])["training_count"].mean().unstack("method").dropna().sum()
    assert plus["training_ratio"] == pytest.approx(sums["dibs-plus"] / sums["genrl"]) and plus["training_paper"] is None
    assert row(table, method="dibs", baseline="maml-adapted")["training_paper"] is None
    assert any("trained on each unseen task" in note for note in table.notes)


def test_the_papers_numbers_are_as_printed():
    assert all(set(numbers) == set(BASELINES) for numbers in RELATIVE.values())
    assert set(METHODS) == {*BASELINES, "dibs"} and OURS[0] == "dibs"
    printed = {"genrl": (3.82, 6.19), "varibad": (3.02, 3.04), "maml": (10.83, 14.04), "bc": (3.94, None)}
    assert {b: (RELATIVE["training"][b], RELATIVE["unseen"][b]) for b in printed} == printed
    assert RELATIVE["training"]["ars"] is None and RELATIVE["unseen"]["ars"] is None


def test_the_papers_benchmarks():
    from dibs.families import benchmarks

    matching = Report("x", "table", "", "", BENCHMARKS).matching(benchmarks())
    assert len(matching) == 34 and "car2d-switch" not in matching
    assert (
        goals("car2d-reach-obs-k3") == 3 and pd.isna(goals("car2d-choice-l1")) and pd.isna(goals("reacher-drop-same-8"))
    )


def test_both_versions_of_table1_by_hand(runs):
    """Sums over the cells that DIBS and both versions of a baseline have."""
    frame = runs(
        *[("dibs", "b", split, 0, 4, 10) for split in ("gap10", "gap5", "gap2")],
        *[("genrl", "b", split, 0, 4, 5) for split in ("gap10", "gap5", "gap2")],
        *[("genrl-public", "b", split, 0, 1, 0) for split in ("gap10", "gap5")],
        ("ars", "b", "gap10", 0, 2, 4),
    )
    rows = {row["baseline"]: row for row in table1_versions(frame, USUAL).rows}
    assert list(rows) == ["ars", "bc", "genrl"]
    found = rows["genrl"]
    assert (found["strong_training_ratio"], found["published_training_ratio"]) == (1.0, 4.0)
    assert (found["strong_unseen_ratio"], found["published_unseen_ratio"]) == (2.0, None)
    assert (found["strong_unseen_ours"], found["strong_unseen_theirs"], found["strong_cells"]) == (20.0, 10.0, 2)
    assert (found["training_paper"], found["unseen_paper"]) == (3.82, 6.19)
    text = to_markdown(table1_versions(frame, USUAL))
    line = next(line for line in text.splitlines() if line.startswith("| GenRL"))
    assert [cell.strip() for cell in line.split("|")[2:10]] == [
        *("1.00×", "4.00×", "3.82×", "8.0 / 8.0 / 2.0"),
        *("2.00×", "–", "6.19×", "20.0 / 10.0 / 0.0"),
    ]
    assert "not run" in next(line for line in text.splitlines() if line.startswith("| ARS"))  # never both versions
