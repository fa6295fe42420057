"""The guard: which branch an index takes, from training indices only."""

from __future__ import annotations

import dataclasses

import pytest

from dibs.spectrl import graph, parse
from dibs.templates.guards import EdgeRecord, choose_path

CHOICE = graph(parse("(achieve reach(left) or achieve reach(right)); achieve reach(goal)"))
LEFT = ("start>left", "left>goal")
RIGHT = ("start>right", "right>goal")
TRAIN = (0, 10, 20)


def records(**success: tuple[float, ...]) -> dict[str, EdgeRecord]:
    """Records of all four edges; those not named succeed everywhere with a return of −1."""
    names = {"left": "start>left", "right": "start>right", "left_goal": "left>goal", "right_goal": "right>goal"}
    sure = {name: EdgeRecord(TRAIN, (1.0,) * 3, (-1.0,) * 3) for name in names.values()}
    return sure | {names[key]: EdgeRecord(TRAIN, values, (-1.0,) * 3) for key, values in success.items()}


def returns(known: dict[str, EdgeRecord], name: str, values: tuple[float, ...]) -> dict[str, EdgeRecord]:
    return known | {name: dataclasses.replace(known[name], returns=values)}


def test_it_switches_where_the_teachers_success_switches():
    known = records(left=(1.0, 0.5, 0.0), right=(0.0, 0.5, 1.0))
    assert [choose_path(CHOICE, known, i) for i in (0, 3, 9)] == [LEFT] * 3
    assert [choose_path(CHOICE, known, i) for i in (11, 15, 20)] == [RIGHT] * 3


def test_a_path_is_as_good_as_all_its_edges_together():
    known = records(left=(1.0, 1.0, 1.0), left_goal=(0.5, 0.5, 0.5), right=(0.8, 0.8, 0.8), right_goal=(0.8, 0.8, 0.8))
    assert choose_path(CHOICE, known, 5) == RIGHT  # 0.64 against 0.5


def test_among_good_paths_the_return_decides():
    known = records(left=(1.0, 1.0, 1.0), right=(0.96, 0.96, 0.96))
    known = returns(known, "start>left", (-3.0, -2.0, -1.0))
    known = returns(known, "start>right", (-1.0, -2.0, -3.0))
    assert choose_path(CHOICE, known, 4) == RIGHT and choose_path(CHOICE, known, 16) == LEFT


def test_among_bad_paths_success_decides_whatever_the_return():
    known = returns(records(left=(0.8,) * 3, right=(0.9,) * 3), "start>left", (100.0,) * 3)
    assert choose_path(CHOICE, known, 7) == RIGHT


def test_equal_paths_are_taken_in_the_order_of_the_specification():
    assert {choose_path(CHOICE, records(), i) for i in range(25)} == {LEFT}


def test_only_training_indices_are_asked():
    """The record holds nothing else, and between two of them both measures lie between theirs."""
    record = EdgeRecord((0, 10, 20), (1.0, 0.4, 0.8), (-1.0, -5.0, -3.0))
    assert {f.name for f in dataclasses.fields(EdgeRecord)} == {"indices", "success", "returns"}
    assert record.at(10) == (pytest.approx(0.4), pytest.approx(-5.0))
    assert record.at(5) == (pytest.approx(0.7), pytest.approx(-3.0))
    assert record.at(15) == (pytest.approx(0.6), pytest.approx(-4.0))


def test_beyond_the_last_training_index_nothing_changes():
    known = records(left=(1.0, 0.5, 0.0), right=(0.0, 0.5, 1.0))
    record = known["start>right"]
    assert record.at(1000) == record.at(20)
    assert choose_path(CHOICE, known, 1000) == RIGHT


def test_a_specification_without_a_choice_needs_no_record():
    assert choose_path(graph(parse("achieve reach(a); achieve reach(b)")), {}, 3) == ("start>a", "a>b")


def test_branches_of_different_length():
    abstract = graph(parse("(achieve reach(a); achieve reach(b)) or achieve reach(c)"))
    known = {name: EdgeRecord((0,), (0.9,), (-1.0,)) for name in ("start>a", "a>b", "start>c")}
    assert choose_path(abstract, known, 0) == ("start>c",)  # 0.9 against 0.81
