"""The paper's statements: they agree with its own story, disagree with the opposite, and need data."""

from __future__ import annotations

import pandas as pd
import pytest

from dibs.paper.numbers import MAIN, METHODS
from dibs.paper.tables import claims
from dibs.studies.collect import COLUMNS
from dibs.studies.formats import to_latex, to_markdown
from dibs.studies.reports import USUAL


def verdicts(frame: pd.DataFrame) -> dict[str, str]:
    return {r["claim"]: r["verdict"] for r in claims(frame, USUAL).rows}


def story(**score) -> pd.DataFrame:
    """Every benchmark of the claims, ratios by a function of (k, |Train|) per method."""
    tasks = [(family, f"{family}-k{k}", k) for family in MAIN for k in (1, 5)]
    tasks += [("car2d-choice", "car2d-choice-l1", 8), ("reacher-drop-same-8", "reacher-drop-same-8", 8)]
    rows = []
    for method in METHODS:
        ratios = score.get(method, lambda k, n: (0.0, 0.0))
        for family, benchmark, k in tasks:
            for split, n in (("gap20", 3), ("gap2", 21)):
                trained, unseen = ratios(k, n)
                rows.append(
                    {
                        **dict.fromkeys(COLUMNS, 0.0),
                        **{"method": method, "benchmark": benchmark, "family": family, "split": split, "seed": 0},
                        **{"train_size": n, "unseen_size": 41 - n},
                        **{"training_ratio": trained, "training_count": trained * n},
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
        "BC does not generalize",
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
    others = dict.fromkeys(("genrl", "varibad", "maml", "bc", "ars"), lambda k, n: (0.9, 0.9))
    found = verdicts(story(dibs=lambda k, n: (0.5, 0.0), **others))
    assert found.pop("Training success and zero-shot generalization are strongly correlated") == "agree"
    assert found.pop("BC scales well in |Train| (longest k-reachability)") == "agree"
    (ablation,) = [claim for claim, verdict in found.items() if verdict == "not measured"]
    assert ablation.startswith("Without drift regularization")
    assert [claim for claim, verdict in found.items() if verdict == "agree"] == []


def chosen(frame: pd.DataFrame, start: str, **variants: pd.DataFrame) -> dict[str, object]:
    (row,) = [r for r in claims(frame, USUAL, variants).rows if r["claim"].startswith(start)]
    return row


@pytest.mark.parametrize(
    ("theirs", "verdict"),
    [((0.99, 0.93), "agree"), ((0.99, 0.95), "disagree"), ((1.0, 0.99), "disagree"), ((0.9, 0.95), "disagree")],
)
def test_what_fades_loses_more_than_a_margin(theirs, verdict):
    """At k = 1 and 5; DIBS keeps all of 1.00."""
    one, five = theirs
    frame = story(dibs=lambda k, n: (1.0, 1.0), maml=lambda k, n: (1.0, one if k == 1 else five))
    assert chosen(frame, "MAML fades with k")["verdict"] == verdict


def test_fading_is_compared_with_that_of_dibs():
    """Both lose the same: neither fades more."""
    same = {m: lambda k, n: (1.0, 1.0 if k == 1 else 0.5) for m in ("dibs", "maml")}
    assert chosen(story(**same), "MAML fades with k")["verdict"] == "disagree"
    less = {**same, "maml": lambda k, n: (1.0, 1.0 if k == 1 else 0.44)}
    assert chosen(story(**less), "MAML fades with k")["verdict"] == "agree"


def test_a_tie_is_not_ahead():
    others = {m: lambda k, n: (0.5, 0.5) for m in ("ars", "bc", "maml", "varibad")}
    frame = story(dibs=lambda k, n: (1.0, 1.0), genrl=lambda k, n: (0.995, 0.995), **others)
    row = chosen(frame, "DIBS keeps the strongest")
    assert (row["measured"], row["verdict"]) == ("ahead of 4 of 5; level with GenRL (0.99 to 1.00)", "disagree")
    behind = story(dibs=lambda k, n: (0.6, 0.6), genrl=lambda k, n: (0.7, 0.7), **others)
    row = chosen(behind, "DIBS keeps the strongest")
    assert (row["measured"], row["verdict"]) == ("ahead of 4 of 5; behind GenRL (0.70 to 0.60)", "disagree")
    assert chosen(behind, "DIBS consistently outperforms")["verdict"] == "disagree"


def drone(gap20: list[int], gap5: list[int]) -> pd.DataFrame:
    """Runs of DIBS on SimpleDrone by the number of unseen tasks they solve."""
    cells = {"gap20": gap20, "gap5": gap5}
    return pd.DataFrame(
        [
            {**dict.fromkeys(COLUMNS, 0.0), "method": "dibs", "family": "simpledrone-reach", "split": split}
            | {"benchmark": "simpledrone-reach-k5", "seed": seed, "zero_shot_count": float(count)}
            for split, counts in cells.items()
            for seed, count in enumerate(counts)
        ]
    )


def test_the_drift_ablation_is_read_from_its_runs():
    """The best run, per split; all ways of leaving the regularizer out that were run must lose half."""
    main = drone([9, 12], [20, 26])
    row = chosen(main, "Without drift", **{"no-anchor": drone([1, 3], [0, 2]), "independent": drone([2, 0], [3, 0])})
    assert (row["verdict"], row["cells"], row["paper"]) == ("agree", 2, "26 → 3")
    assert (
        row["measured"] == "gap20: 12 → 3 (warm start), 2 (from scratch); gap5: 26 → 2 (warm start), 3 (from scratch)"
    )
    row = chosen(main, "Without drift", **{"no-anchor": drone([1, 3], [0, 25]), "independent": drone([2, 0], [3, 0])})
    assert row["verdict"] == "disagree"
    row = chosen(main, "Without drift", anchored=drone([1], [2]), independent=drone([2], [2]))
    assert row["measured"] == "gap20: 1 → 2 (from scratch); gap5: 2 → 2 (from scratch)"
    assert chosen(main, "Without drift")["verdict"] == "not measured"


@pytest.mark.parametrize(
    "theirs, verdict, measured", [(1, "agree", "4.00×"), (2, "disagree", "2.00×"), (0, "disagree", "GenRL solves none")]
)
def test_a_ratio_agrees_within_a_factor(theirs, verdict, measured, runs):
    frame = runs(("dibs", "b", "gap2", 0, 4, 0), ("genrl", "b", "gap2", 0, theirs, 0))
    (found,) = [
        r for r in claims(frame, USUAL).rows if r["claim"].startswith("DIBS solves more training tasks than GenRL")
    ]
    assert (found["verdict"], found["measured"], found["paper"]) == (verdict, measured, "3.82×")


def test_what_is_not_measured_is_not_judged(runs):
    only = runs(("dibs", "car2d-reach-k5", "gap20", 0, 4, 10), ("dibs", "car2d-reach-k5", "gap10", 0, 4, 10))
    assert set(verdicts(only).values()) == {"not measured"}


def test_formats(frame):
    table = claims(frame, USUAL)
    assert to_latex(table).isascii() and r"p{4.4cm}" in to_latex(table)
    assert "agree" in to_markdown(table) and r"\|Train\|" in to_markdown(table)
    assert sum(int(part.split()[0]) for part in table.notes[0].split(";")[0].split(", ")) == len(table.rows) == 23
