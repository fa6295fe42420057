"""Tables against hand calculations; three formats that hold together."""

from __future__ import annotations

import csv
import io
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from dibs.analysis import tables
from dibs.analysis.collect import COLUMNS
from dibs.analysis.methods import BASELINES, LOOKS, OURS, PAPER, RELATIVE
from dibs.analysis.statistics import bootstrap, probability_of_improvement
from dibs.errors import DibsError


def runs(*rows, **common) -> pd.DataFrame:
    """A frame of (method, benchmark, gap, seed, training_count, zero_shot_count) with 4 and 10 tasks."""
    names = ("method", "benchmark", "gap", "seed", "training_count", "zero_shot_count")
    frame = pd.DataFrame([dict(zip(names, row, strict=True)) for row in rows])
    frame = frame.assign(family=frame["benchmark"].str.replace(r"-[kl]\d$", "", regex=True))
    frame = frame.assign(k=frame["benchmark"].str.extract(r"-k(\d)$")[0].astype(float), train_size=4, unseen_size=10)
    frame["training_ratio"] = frame["training_count"] / frame["train_size"]
    frame["zero_shot_ratio"] = frame["zero_shot_count"] / frame["unseen_size"]
    rest = {"beyond_ratio": 0.5, "straddling": 1, "steps": np.nan, "rollouts": 1000, "delta": 0.9, "file": "x"}
    return frame.assign(**{**rest, **common})[list(COLUMNS)]


HAND = runs(
    ("dibs", "car2d-reach-k1", 10, 0, 4, 10),
    ("dibs", "car2d-reach-k1", 10, 1, 3, 8),
    ("dibs", "car2d-reach-k2", 10, 0, 2, 6),  # GenRL lacks this one
    ("dibs", "car2d-reach-k1", 5, 0, 4, 9),
    ("genrl", "car2d-reach-k1", 10, 0, 2, 2),
    ("genrl", "car2d-reach-k1", 10, 1, 0, 4),
    ("genrl", "car2d-reach-k1", 5, 0, 1, 0),
    ("bc", "car2d-reach-k1", 10, 0, 1, 0),
)


def row(table: tables.Table, **where):
    (found,) = [r for r in table.rows if all(r[k] == v for k, v in where.items())]
    return found


# --- relative --------------------------------------------------------------------------------------------


def test_relative_by_hand():
    table = tables.relative(HAND)
    genrl = row(table, baseline="genrl")
    # Common cells: k1 at gaps 10 and 5. Ours: mean(4, 3) + 4 = 7.5; theirs: mean(2, 0) + 1 = 2.
    assert (genrl["training_ours"], genrl["training_theirs"]) == (7.5, 2.0)
    assert genrl["training_ratio"] == pytest.approx(3.75)
    # Ours: mean(10, 8) + 9 = 18; theirs: mean(2, 4) + 0 = 3.
    assert genrl["unseen_ratio"] == pytest.approx(6.0)
    assert (genrl["cells"], genrl["cells_ours"], genrl["seeds"]) == (2, 3, "1–2")
    assert (genrl["training_paper"], genrl["unseen_paper"]) == (3.82, 6.19)
    assert genrl["training_low"] is None  # a cell with one seed has no interval
    bc = row(table, baseline="bc")
    assert bc["training_ratio"] == pytest.approx(3.5) and bc["unseen_ratio"] is None and bc["cells"] == 1
    assert row(table, baseline="ars")["cells"] == 0


def test_relative_as_read():
    text = tables.to_markdown(tables.relative(HAND))
    lines = {
        line.split("|")[1].strip(): [c.strip() for c in line.split("|")[2:-1]]
        for line in text.splitlines()
        if "|" in line
    }
    assert lines["GenRL"] == ["3.75×", "3.82×", "6.00×", "6.19×", "7.5 to 2.0", "18.0 to 3.0", "2 of 3", "1–2"]
    assert lines["BC"] == ["3.50×", "3.94×", "–", "–", "3.5 to 1.0", "9.0 to 0.0", "1 of 3", "1–2"]
    assert lines["MAML"][:4] == ["not run", "10.83×", "not run", "14.04×"]
    assert "DIBS+" not in text


def test_relative_of_dibs_plus_has_no_number_of_the_paper(frame):
    table = tables.relative(frame)
    plus = row(table, method="dibs-plus", baseline="genrl")
    assert plus["training_ratio"] > 1.0 and plus["training_paper"] is None
    part = frame[frame["method"].isin(["dibs-plus", "genrl"])]
    sums = part.groupby(["method", "benchmark", "gap"])["training_count"].mean().unstack("method").dropna().sum()
    assert plus["training_ratio"] == pytest.approx(sums["dibs-plus"] / sums["genrl"])
    adapted = row(table, method="dibs", baseline="maml-adapted")
    assert adapted["training_paper"] is None
    assert any("trained on each unseen task" in note for note in table.notes)


def test_the_interval_of_a_ratio_holds_it(frame):
    rows = [r for r in tables.relative(frame).rows if r["training_low"] is not None]
    assert rows
    for r in rows:
        assert r["training_low"] <= r["training_ratio"] <= r["training_high"]


def test_a_method_of_ones_own_is_a_baseline_too():
    table = tables.relative(pd.concat([HAND, runs(("mine", "car2d-reach-k1", 5, 0, 2, 3))]))
    assert row(table, baseline="mine")["training_ratio"] == 2.0


def test_an_ablation_is_not_aggregated():
    more = pd.concat([HAND, runs(("dibs", "car2d-switch", 5, 0, 4, 4), ("genrl", "car2d-switch", 5, 0, 4, 4))])
    for name in ("relative", "improvement", "claims"):
        assert tables.make(name, more).rows == tables.make(name, HAND).rows
    assert any(r["benchmark"] == "car2d-switch" for r in tables.benchmarks(more).rows)


# --- per benchmark ---------------------------------------------------------------------------------------


def test_splits_by_hand():
    one = row(tables.splits(HAND), benchmark="car2d-reach-k1", gap=10, method="dibs")
    assert one["training_ratio_mean"] == pytest.approx(0.875)
    assert one["training_ratio_std"] == pytest.approx(np.std([1.0, 0.75], ddof=1))
    assert (one["zero_shot_count_mean"], one["zero_shot_count_std"]) == (9.0, pytest.approx(np.sqrt(2)))
    assert (one["straddling"], one["tasks"], one["seeds"], one["steps_mean"]) == (2, 28, "2", None)


def test_benchmarks_by_hand():
    rows = runs(*[("dibs", "b", gap, seed, t, t) for gap, seed, t in [(4, 0, 4), (4, 1, 2), (2, 0, 3), (2, 1, 1)]])
    one = row(tables.benchmarks(rows.assign(steps=5e5)), benchmark="b")
    assert one["gaps"] == "4 2" and (one["train_size"], one["unseen_size"]) == (8, 20)
    assert one["training_ratio_mean"] == pytest.approx((4 + 2 + 3 + 1) / 16)
    assert one["training_ratio_std"] == pytest.approx(np.std([7 / 8, 3 / 8], ddof=1))
    assert one["training_count_mean"] == pytest.approx(5.0)  # of eight: three at gap 4 and two at gap 2
    assert one["training_count_std"] == pytest.approx(np.std([7, 3], ddof=1))
    assert one["training_ratio_iqm"] == pytest.approx(stats.trim_mean([1.0, 0.5, 0.75, 0.25], 0.25))
    assert one["steps_mean"] == 5e5


def test_the_interval_is_that_of_the_stratified_bootstrap():
    rng = np.random.default_rng(0)
    scores = rng.integers(0, 5, size=(8, 2))  # (seeds, gaps)
    rows = runs(*[("dibs", "b", gap, seed, scores[seed, g], 0) for g, gap in enumerate((4, 2)) for seed in range(8)])
    one = row(tables.benchmarks(rows), benchmark="b")
    point, low, high = bootstrap(scores / 4.0, "iqm", draws=tables.DRAWS)
    assert one["training_ratio_iqm"] == pytest.approx(point)
    assert (one["training_ratio_low"], one["training_ratio_high"]) == pytest.approx((low, high), abs=0.04)


def test_gaps_with_different_seeds_are_all_used():
    rows = runs(*[("dibs", "b", gap, seed, 4, 0) for gap, seed in [(4, 0), (4, 1), (4, 2), (2, 0), (2, 5)]])
    one = row(tables.benchmarks(rows), benchmark="b")
    assert one["seeds"] == "2–3" and one["training_ratio_iqm"] == 1.0
    assert one["training_ratio_std"] is None  # only seed 0 has both gaps


def test_rows_stand_in_the_papers_order(frame):
    rows = tables.benchmarks(frame).rows
    assert rows[0]["benchmark"] == "car2d-reach-k1"
    first = [r["method"] for r in rows if r["benchmark"] == "car2d-reach-k1"]
    assert first == [m for m in LOOKS if m in first]
    gaps = [r["gap"] for r in tables.splits(frame).rows if r["benchmark"] == "car2d-reach-k5"]
    assert gaps == sorted(gaps, reverse=True)


# --- probability of improvement --------------------------------------------------------------------------


def test_improvement_is_the_mean_over_cells():
    found = row(tables.improvement(HAND), baseline="genrl")
    cells = [([10, 8], [2, 4]), ([9], [0])]
    assert found["zero_shot_ratio_p"] == np.mean([probability_of_improvement(a, b) for a, b in cells]) == 1.0
    tied = runs(*[(m, "b", 2, s, s, s) for m in ("dibs", "genrl") for s in range(4)])
    assert row(tables.improvement(tied), baseline="genrl")["training_ratio_p"] == 0.5


# --- claims ----------------------------------------------------------------------------------------------


def verdicts(frame: pd.DataFrame) -> dict[str, str]:
    return {r["claim"]: r["verdict"] for r in tables.claims(frame).rows}


def story(**score) -> pd.DataFrame:
    """Every benchmark of the claims, ratios by a function of (k, |Train|) per method."""
    rows = []
    for method in PAPER:
        ratios = score.get(method, lambda k, n: (0.0, 0.0))
        for family, goals in [(f, (1, 5)) for f in tables.MAIN] + [
            ("car2d-choice", (8,)),
            ("reacher-drop-same-8", (8,)),
        ]:
            for k in goals:
                benchmark = (
                    f"{family}-k{k}" if family in tables.MAIN else f"{family}-l1" if "choice" in family else family
                )
                for gap, n in ((20, 3), (2, 21)):
                    seen, unseen = ratios(k, n)
                    rows.append(
                        {
                            **dict.fromkeys(COLUMNS, 0.0),
                            **{"method": method, "benchmark": benchmark, "family": family, "gap": gap, "seed": 0},
                            **{"k": k if family in tables.MAIN else np.nan, "train_size": n, "unseen_size": 41 - n},
                            **{"training_ratio": seen, "training_count": seen * n},
                            **{"zero_shot_ratio": unseen, "zero_shot_count": unseen * (41 - n)},
                        }
                    )
    return pd.DataFrame(rows)


def test_the_papers_own_story_agrees():
    frame = story(
        dibs=lambda k, n: (1.0, 0.95),
        genrl=lambda k, n: (0.5 - 0.02 * n, 0.3 - 0.01 * n),
        varibad=lambda k, n: (1.0, 1.0) if k == 1 else (0.1, 0.05),
        maml=lambda k, n: (0.2, 0.15) if k == 1 else (0.0, 0.0),
        bc=lambda k, n: (0.6, 0.0) if k < 8 else (0.0, 0.0),
    )
    found = verdicts(frame)
    for start in (
        "BC scales well",
        "BC does not generalise",
        "BC solves no unseen",
        "ARS solves no",
        "MAML fades with k",
        "VariBAD fades with k",
        "GenRL fades with |Train|",
        "VariBAD is slightly ahead",
        "DIBS keeps the strongest",
        "DIBS consistently outperforms",
        "DIBS has a usable template",
        "Training success and zero-shot",
    ):
        chosen = [verdict for claim, verdict in found.items() if claim.startswith(start)]
        assert chosen and set(chosen) == {"agree"}, start


def test_the_opposite_disagrees():
    frame = story(
        dibs=lambda k, n: (0.5, 0.0),
        genrl=lambda k, n: (0.9, 0.9),
        varibad=lambda k, n: (0.9, 0.9),
        maml=lambda k, n: (0.9, 0.9),
        bc=lambda k, n: (0.9, 0.9),
        ars=lambda k, n: (0.9, 0.9),
    )
    found = verdicts(frame)
    assert found.pop("Training success and zero-shot generalisation are strongly correlated") == "agree"
    assert found.pop("BC scales well in |Train| (longest k-reachability)") == "agree"
    (ablation,) = [claim for claim, verdict in found.items() if verdict == "not measured"]
    assert ablation.startswith("Without drift regularisation")
    assert [claim for claim, verdict in found.items() if verdict == "agree"] == []


def test_a_ratio_agrees_within_a_factor():
    def ratio(ours, theirs):
        rows = runs(("dibs", "b", 2, 0, ours, 0), ("genrl", "b", 2, 0, theirs, 0))
        return row(tables.claims(rows), claim="DIBS solves more training tasks than GenRL, by this factor")

    assert ratio(4, 1)["verdict"] == "agree" and ratio(4, 1)["measured"] == "4.00×"
    assert ratio(4, 2)["verdict"] == "disagree"
    assert (ratio(4, 0)["verdict"], ratio(4, 0)["measured"]) == ("disagree", "GenRL solves none")


def test_what_is_not_measured_is_not_judged():
    only = runs(("dibs", "car2d-reach-k5", 20, 0, 4, 10), ("dibs", "car2d-reach-k5", 10, 0, 4, 10))
    assert set(verdicts(only).values()) == {"not measured"}


def test_the_papers_numbers_are_as_printed():
    assert set(RELATIVE) == set(BASELINES)
    printed = {"genrl": (3.82, 6.19), "varibad": (3.02, 3.04), "maml": (10.83, 14.04), "bc": (3.94, None)}
    assert {b: (RELATIVE[b].training, RELATIVE[b].unseen) for b in printed} == printed
    assert (RELATIVE["ars"].training, RELATIVE["ars"].unseen) == (None, None)


def test_looks_can_be_told_apart():
    for kind in ("color", "hatch", "label"):
        assert len({getattr(look, kind) for look in LOOKS.values()}) == len(LOOKS)
    assert len({(look.marker, look.hollow) for look in LOOKS.values()}) == len(LOOKS)
    assert set(OURS) | set(PAPER) <= set(LOOKS)


# --- formats ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tables.TABLES)
def test_latex_is_balanced(name, frame):
    text = tables.to_latex(tables.make(name, frame))
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
    columns = len(tables.make(name, frame).columns)
    for line in text.splitlines():
        if line.endswith(r"\\") and not line.startswith((r"\multicolumn", r"\caption")):
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
        assert line.isascii(), line


@pytest.mark.parametrize("name", tables.TABLES)
def test_markdown_and_csv_hold_together(name, frame):
    table = tables.make(name, frame)
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in tables.to_markdown(table).splitlines() if "|" in line[:1]}
    assert widths == {len(table.columns) + 1}
    rows = list(csv.DictReader(io.StringIO(tables.to_csv(table))))
    assert len(rows) == len(table.rows) and list(rows[0]) == list(table.rows[0])
    assert not {"nan", "None"} & {value for row in rows for value in row.values()}


def test_text_for_latex():
    assert tables.tex("50% of a_b & |c| ± 1 [δ]") == r"50\% of a\_b \& $|$c$|$ $\pm$ 1 [$\delta$]"


@pytest.mark.parametrize("suffix", ["csv", "md", "tex"])
def test_the_same_table_has_the_same_bytes(suffix, frame, tmp_path):
    files = [tmp_path / "new" / f"{n}.{suffix}" for n in "ab"]
    tables.write(tables.make("relative", frame), files[0])
    tables.write(tables.make("relative", frame.sample(frac=1.0, random_state=0).sort_index()), files[1])
    assert files[0].read_bytes() == files[1].read_bytes()
    assert [p.name for p in files[0].parent.iterdir() if p.name.startswith(".")] == []


def test_another_format_or_name_is_refused(frame, tmp_path):
    with pytest.raises(DibsError, match=r"t\.html: expected a name that ends in \.csv, \.md, \.tex"):
        tables.write(tables.make("relative", frame), tmp_path / "t.html")
    with pytest.raises(DibsError, match=r"unknown table 'relativ'\. Did you mean 'relative'\?"):
        tables.make("relativ", frame)


def test_summary(frame):
    lines = tables.summary(frame).splitlines()
    assert lines[0].split()[:4] == ["benchmark", "gaps", "seeds", "ARS"]
    k5 = next(line for line in lines if line.startswith("car2d-reach-k5"))
    assert k5.count("·") == 2  # MAML and VariBAD
    assert k5.count("*") == 1  # GenRL lacks a gap
    assert lines[-1] == f"{len(frame)} evaluations"
