"""A family from Python, from YAML and from a file that it saved is the same family."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dibs
from dibs.errors import DibsError

NAMES = ("x", "y", "z")
LAST = 6
number = st.floats(-4.0, 4.0, width=32).map(float)
small_number = st.floats(-0.25, 0.25, width=32).map(float)
size = st.floats(0.5, 2.0, width=32).map(float)


@st.composite
def per_variable(draw: st.DrawFn, numbers: st.SearchStrategy[float] = small_number) -> Any:
    """One number per variable, as a list or by name."""
    values = draw(st.lists(numbers, min_size=3, max_size=3))
    return dict(zip(NAMES, values, strict=True)) if draw(st.booleans()) else values


@st.composite
def extents(draw: st.DrawFn, center: list[float | None]) -> dict[str, Any]:
    kind = draw(st.sampled_from(["one", "list", "names", "radius", "normal"]))
    if kind == "one":
        return {"half_width": draw(size)}
    if kind == "radius":
        return {"radius": draw(size)}
    if kind == "normal":
        return {"normal": [0.0 if c is None else 1.0 for c in center]}
    values = draw(st.lists(size, min_size=3, max_size=3))
    return {"half_width": values if kind == "list" else dict(zip(NAMES, values, strict=True))}


@st.composite
def regions(draw: st.DrawFn, kinds: tuple[str, ...] = ()) -> dict[str, Any]:
    """A region with any operators, or a table."""
    free = draw(st.sampled_from([(), (), (2,)]))
    center: list[float | None] = [None if d in free else draw(number) for d in range(3)]
    extent = draw(extents(center).filter(lambda e: not kinds or set(e) <= set(kinds)))
    if draw(st.integers(0, 3)) == 0:
        moved = [[None if c is None else c + 0.1 * i for c in center] for i in range(LAST + 1)]
        return {"table": [{"center": at, **extent} for at in moved]}
    if draw(st.booleans()) and not free:
        region: dict[str, Any] = {"center": dict(zip(NAMES, center, strict=True)), **extent}
    else:
        region = {"center": center, **extent}
    region |= draw(st.fixed_dictionaries({}, optional={"shift": per_variable(), "drift": per_variable()}))
    if draw(st.booleans()):
        region["scale"] = draw(st.floats(0.9, 1.1))
    short, turn = draw(st.booleans()), draw(st.floats(-20.0, 20.0))
    if draw(st.booleans()):
        plane = ["x", "y"] if free else draw(st.permutations(NAMES))[:2]
        region["rotate"] = turn if short else {"degrees": turn, "about": draw(per_variable(number)), "plane": plane}
    if draw(st.booleans()):
        region["dilate"] = {"factor": draw(st.floats(0.9, 1.1)), "about": draw(per_variable(number))}
    return region


@st.composite
def descriptions(draw: st.DrawFn) -> dict[str, Any]:
    start: dict[str, Any] = {"center": draw(per_variable(number)), "noise": draw(st.floats(0.0, 0.3))}
    start |= draw(st.fixed_dictionaries({}, optional={"shift": per_variable(), "rotate": st.floats(-20.0, 20.0)}))
    return {
        "name": "random",
        "environment": {"name": "SimpleDrone", "speed": draw(st.floats(1.0, 2.0))},
        "specification": "achieve reach(a); achieve reach(b)",
        "start": start,
        "regions": {"a": draw(regions(("half_width", "radius"))), "b": draw(regions())},
        "last_index": LAST,
        "gaps": draw(st.lists(st.integers(1, LAST), max_size=2)),
        "horizon": draw(st.integers(1, 30)),
        "teacher": draw(st.sampled_from(["ars", "ppo", "sac"])),
        "teacher_options": draw(st.sampled_from([{}, {"patience": 3}])),
        "network": {"hidden": draw(st.lists(st.integers(1, 9), min_size=1, max_size=2))},
        "reward": {"unit": draw(size)},
    }


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(descriptions())
def test_python_yaml_and_a_saved_file_give_the_same_family(description):
    family = dibs.Family(**description)
    with tempfile.TemporaryDirectory() as folder:
        written, saved = Path(folder) / "written.yaml", Path(folder) / "saved.yaml"
        written.write_text(yaml.safe_dump(description))
        family.save(saved)
        others = [dibs.Family.load(written), dibs.Family.load(saved)]
        others[1].save(saved)
        others.append(dibs.Family.load(saved))
    indices = range(LAST + 1)
    for other in others:
        assert other == family and other.warnings() == family.warnings()
        assert other.tasks(indices).digest == family.tasks(indices).digest


def carousel(**change: Any) -> dict[str, Any]:
    return {
        "name": "mine",
        "environment": {"name": "SimpleDrone"},
        "specification": "achieve reach(a)",
        "start": {"center": [0.0, 0.0, 5.0], "noise": 0.1},
        "regions": {"a": {"center": [6.0, 0.0, 6.0], "radius": 1.0, "rotate": 9.0}},
        "last_index": 4,
        "horizon": 20,
        "network": {"hidden": [8]},
    } | change


def test_numpy_arrays_are_lists():
    family = dibs.Family(**carousel())
    turned = {"center": np.array([6.0, 0.0, 6.0]), "radius": np.float64(1.0), "rotate": np.float32(9.0)}
    start = {"center": np.array([0.0, 0.0, 5.0]), "noise": 0.1}
    assert dibs.Family(**carousel(regions={"a": turned}, start=start)) == family


def test_python_gets_the_errors_of_files():
    with pytest.raises(DibsError, match=r"not a valid family description\n  regions\.a\.sped: unknown key"):
        dibs.Family(**carousel(regions={"a": {"center": [1.0, 1.0, 1.0], "radius": 1.0, "sped": 2}}))


@pytest.mark.parametrize(
    "region, message",
    [
        ({"center": {"x": 1.0, "y": 2.0}, "half_width": {"x": 1.0}}, "half_width: no number for y, which center fixes"),
        ({"center": {"x": 1.0, "w": 2.0}, "half_width": 1.0}, "center: unknown state variable 'w'"),
        (
            {"center": [1.0, 1.0, 1.0], "radius": 1.0, "rotate": {"degrees": 9, "about": {"w": 1}}},
            "about: unknown state",
        ),
        ({"table": 3, "center": {"x": 1.0}}, "regions.a.table: "),
        ({"table": [3], "center": {"x": 1.0}}, "regions.a.table.0: "),
    ],
)
def test_mistakes_in_named_values(region, message):
    with pytest.raises(DibsError, match=message):
        dibs.Family(**carousel(regions={"a": region}))


def test_a_family_shows_what_it_is():
    assert repr(dibs.Family(**carousel())) == "Family(mine: SimpleDrone, indices 0 … 4, edges start>a)"
