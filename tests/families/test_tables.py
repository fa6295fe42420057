"""Regions and starts that are given by a table: what is refused, what they ground to, and how families read back."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import yaml

from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings, roles
from dibs.families import families, get_family, load_family
from dibs.families.description import RegionModel, StartModel

LAST = 6


def center(index: int) -> list[float]:
    """A path that no shift and drift describe."""
    return [5.0 + np.sin(index), 5.0 + 0.5 * abs(index - 3)]


def tabled() -> dict[str, Any]:
    """A family whose start and first region follow a table; the second region moves by a shift."""
    return {
        "name": "tabled",
        "environment": {"name": "Car2D"},
        "specification": "achieve reach(a); achieve reach(b)",
        "start": {"table": [{"center": [0.1 * i**3, 0.0]} for i in range(LAST + 1)], "noise": [0.3, 0.1]},
        "regions": {
            "a": {"table": [{"center": center(i), "half_width": [1.0 + 0.1 * i, 0.5]} for i in range(LAST + 1)]},
            "b": {"center": [5.0, 12.0], "half_width": 1.0, "shift": [0.5, 0.0]},
        },
        "last_index": LAST,
        "gaps": [3],
        "horizon": 20,
        "network": {"hidden": [8]},
    }


Change = Callable[[dict[str, Any]], object]


def region(data: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = data["regions"]["a"]
    return found


REFUSED: list[tuple[str, Change, str]] = [
    (
        "too short",
        lambda d: region(d)["table"].pop(),
        r"regions\.a\.table: expected 7 entries \(index 0 … 6\), found 6",
    ),
    (
        "too long",
        lambda d: region(d)["table"].append({"center": [0.0, 0.0], "half_width": 1.0}),
        r"regions\.a\.table: expected 7 entries \(index 0 … 6\), found 8",
    ),
    ("start too short", lambda d: d["start"]["table"].pop(), r"start\.table: expected 7 entries .*, found 6"),
    (
        "center of the wrong dimension",
        lambda d: region(d)["table"][2].update(center=[1.0, 2.0, 3.0]),
        r"regions\.a\.table\.2\.center: expected 2 numbers, found 3",
    ),
    (
        "half-width of the wrong dimension",
        lambda d: region(d)["table"][4].update(half_width=[1.0]),
        r"regions\.a\.table\.4\.half_width: expected 2 numbers, found 1",
    ),
    (
        "start of the wrong dimension",
        lambda d: d["start"]["table"][1].update(center=[1.0]),
        r"start\.table\.1\.center: expected 2 numbers, found 1",
    ),
    ("noise", lambda d: d["start"].update(noise=[0.1] * 3), r"start\.noise: expected 2 numbers \(x, y\), found 3"),
    ("center as well", lambda d: region(d).update(center=[5.0, 5.0]), r"regions\.a\.table: replaces center"),
    ("shift as well", lambda d: region(d).update(shift=[1.0, 0.0]), r"regions\.a\.table: replaces shift"),
    ("drift as well", lambda d: region(d).update(drift=[1.0, 0.0]), r"regions\.a\.table: replaces drift"),
    ("half-width as well", lambda d: region(d).update(half_width=2.0), r"regions\.a\.table: replaces half_width"),
    ("scale as well", lambda d: region(d).update(scale=0.9), r"regions\.a\.table: replaces scale"),
    ("start with center", lambda d: d["start"].update(center=[0.0, 0.0]), r"start\.table: replaces center; leave that"),
    ("start with shift", lambda d: d["start"].update(shift=[0.0, 1.0]), r"start\.table: replaces shift"),
    (
        "no half-width",
        lambda d: region(d)["table"][3].pop("half_width"),
        r"regions\.a\.table\.3: expected one of half_width .*found none of them",
    ),
    (
        "negative half-width",
        lambda d: region(d)["table"][3].update(half_width=-1.0),
        r"regions\.a\.table\.3\.half_width.*: .*greater than 0",
    ),
    ("NaN", lambda d: region(d)["table"][3].update(center=[float("nan"), 0.0]), r"table\.3\.center\.0.*: .*finite"),
    (
        "free start",
        lambda d: d["start"]["table"][0].update(center=[None, 0.0]),
        r"start\.table\.0\.center\.0: .*number",
    ),
    (
        "unknown key",
        lambda d: region(d)["table"][3].update(diameter=1.0),
        r"regions\.a\.table\.3\.diameter: unknown key 'diameter'\..* Known: center, half_width, normal, radius\.",
    ),
    (
        "other variables free",
        lambda d: region(d)["table"][3].update(center=[None, 5.0]),
        r"regions\.a\.table\.3\.center: leaves other variables free than the first entry",
    ),
    (
        "nothing fixed",
        lambda d: [entry.update(center=[None, None]) for entry in region(d)["table"]],
        r"regions\.a\.table\.0\.center: at least one state variable must be fixed",
    ),
]


@pytest.mark.parametrize("change, message", [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED])
def test_mistakes_are_named_by_key_and_reason(change: Change, message: str):
    data = tabled()
    change(data)
    with pytest.raises(DibsError) as error:
        load_family(data)
    assert re.search(message, str(error.value)), str(error.value)


@pytest.mark.parametrize("index", range(LAST + 1))
def test_geometry_is_checked_at_every_entry(index):
    data = tabled()
    data["regions"]["o"] = {"center": center(index), "half_width": 0.01}
    data["specification"] = "(achieve reach(a); achieve reach(b)) ensuring avoid(o)"
    with pytest.raises(DibsError, match=rf"regions\.a: its center lies inside o, .* at index {index}"):
        load_family(data)


# --- grounding -------------------------------------------------------------------------------------------


def test_grounding_is_the_table():
    data, family = tabled(), load_family(tabled())
    for indices in (range(LAST + 1), [4], [6, 0, 3, 3]):
        tasks = family.tasks(indices)
        assert tasks.start_center.tolist() == [data["start"]["table"][i]["center"] for i in indices]
        assert tasks.start_half.tolist() == [[0.3, 0.1]] * len(indices)
        assert tasks.regions["a"].center.tolist() == [region(data)["table"][i]["center"] for i in indices]
        assert tasks.regions["a"].half_width.tolist() == [region(data)["table"][i]["half_width"] for i in indices]
        assert tasks.regions["b"].center.tolist() == [[5.0 + 0.5 * i, 12.0] for i in indices]
    for i in range(LAST + 1):
        box = family.regions_at(i)["a"]
        assert (box.center.tolist(), box.half_width.tolist()) == (center(i), region(data)["table"][i]["half_width"])


def test_free_variables_and_single_half_widths():
    moving = RegionModel(table=[{"center": [None, 1.0], "half_width": 2.0}, {"center": [None, 3.0], "half_width": 4.0}])
    box = moving.ground(np.array([1, 0]))
    assert box.center.tolist() == [[0.0, 3.0], [0.0, 1.0]]
    assert box.half_width.tolist() == [[np.inf, 4.0], [np.inf, 2.0]]


def test_a_table_that_repeats_the_operators_is_the_same_family():
    """Each index written out: the same tasks, down to the digest."""
    family = get_family("car2d-choice")
    indices = range(family.last_index + 1)
    written = family.description_data() | {"name": "written"}
    written["start"] = {
        "noise": family.start.noise,
        "table": [{"center": row.tolist()} for row in family.tasks(indices).start_center],
    }
    written["regions"] = {
        name: {"table": [{"center": b.center.tolist(), "half_width": b.half_width.tolist()} for b in boxes]}
        for name, boxes in ((name, [family.regions_at(i)[name] for i in indices]) for name in family.regions)
    }
    assert load_family(written).tasks_digest([0, 7, 20]) == family.tasks_digest([0, 7, 20])


def test_the_table_ends_at_the_last_index():
    family = load_family(tabled())
    message = "index 7: the table of values ends at index 6"
    for ask in (lambda: family.tasks([0, 7]), lambda: family.regions_at(7), lambda: family.tasks_digest([7])):
        with pytest.raises(DibsError, match=message):
            ask()
    with pytest.raises(DibsError, match="ends at index 1"):
        StartModel(table=[{"center": [0.0]}, {"center": [1.0]}]).at(np.array([0, 2]))


def test_nothing_is_measured_beyond_a_table():
    assert not load_family(tabled()).extends and get_family("car2d-reach").extends
    only_start = tabled()
    only_start["regions"]["a"] = {"center": [5.0, 5.0], "half_width": 1.0}
    for data in (tabled(), only_start):
        role = roles(load_family(data), (0, 3, 6), EvaluationSettings(beyond=True))
        assert list(role) == list(range(LAST + 1)) and "beyond" not in role.values()


# --- reading back ----------------------------------------------------------------------------------------

DESCRIPTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    **{name: family.description_data for name, family in families().items()},
    "tabled": tabled,
    "with everything": lambda: {
        **tabled(),
        "environment": {"name": "Car2D", "speed": 0.7, "noise": 0},
        "benchmarks": {"one": "achieve reach(a)", "both": "achieve reach(a); achieve reach(b)"},
        "teacher": "ppo",
        "teacher_options": {"rate": 0.001, "value": [16, 16]},
        "teacher_minutes": 3,
        "teacher_memory_mb": 1000,
        "network": {"hidden": [8, 4], "activation": "relu"},
        "reward": {"unit": 3.0, "unsafe_penalty": 2.0, "margin": 0.1, "depth": 0.2},
        "description": "Äußerst: 'seltsam'\n  und lang",
    },
}


@pytest.mark.parametrize("name", DESCRIPTIONS)
def test_a_family_reads_back_the_same(name, tmp_path):
    data = DESCRIPTIONS[name]()
    given = copy.deepcopy(data)
    family = load_family(data)
    assert data == given  # a description is not changed
    file = tmp_path / "family.yaml"
    file.write_text(family.to_yaml())
    for again in (
        load_family(file),
        load_family(family.description_data()),
        load_family(yaml.safe_load(family.to_yaml())),
    ):
        assert again == family
        assert again.description_data() == family.description_data() and again.to_yaml() == family.to_yaml()
        every = range(family.last_index + 1)
        assert again.tasks_digest(every) == family.tasks_digest(every)
        assert again.environment == family.environment


def test_a_description_is_plain_data():
    def check(value: object) -> None:
        assert type(value) in (dict, list, str, int, float, bool, type(None))
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(inner)

    for describe in DESCRIPTIONS.values():
        check(load_family(describe()).description_data())


def test_a_description_leaves_out_what_is_default():
    assert load_family(tabled()).description_data() == tabled()
