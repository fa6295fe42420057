"""What is registered, under which names, and what is said about names and entries that are wrong."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

from dibs import registry
from dibs.envs import Car2D
from dibs.errors import DibsError
from dibs.families import get_benchmark, get_family
from dibs.methods import Method, get_method, in_order, label
from dibs.teachers.base import Algorithm, get_algorithm

OURS = {
    "environments": {"Car2D", "SimpleDrone", "DroneAttitude", "Reacher"},
    "adapters": {"gymnasium"},
    "teachers": {"ars", "ppo"},
    "methods": {
        "ars",
        "bc",
        "maml",
        "maml-adapted",
        "varibad",
        "genrl",
        "ars-plain",
        "bc-plain",
        "genrl-public",
        "bc-index",
        "ppo-index",
        "ppo-goal",
        "hyper",
        "dibs",
        "dibs-plus",
        "dibs-plus-still",
        "dibs-weights",
        "dibs-branched",
    },
}


@pytest.fixture
def add() -> Iterator[Callable[[str, str, object], None]]:
    """Register an entry for one test."""
    added = []

    def register(kind: str, name: str, target: object) -> None:
        registry.register(kind, name, target)
        added.append((kind, name))

    yield register
    for kind, name in added:
        registry._added[kind].pop(name, None)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Replace what the installed packages register, for one test."""
    caches = (registry._installed, registry._loaded)

    def install(*entries: tuple[str, str], kind: str = "environments") -> None:
        group = f"dibs.{kind}"
        points = [EntryPoint(name, value, group) for name, value in entries]
        monkeypatch.setattr(registry, "entry_points", lambda group: [p for p in points if p.group == group])
        for cache in caches:
            cache.cache_clear()

    yield install
    monkeypatch.undo()
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("kind", OURS)
def test_names_are_those_of_the_entry_points(kind):
    found = registry.names(kind)
    assert found == sorted(found) and set(found) >= OURS[kind]


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_entry_can_be_loaded(kind):
    for name in registry.names(kind):
        assert registry.load(kind, name) is registry.load(kind, name)


def test_records_have_the_name_they_are_registered_under():
    assert registry.load("environments", "Car2D") is Car2D
    for name in registry.names("environments"):
        assert registry.load("environments", name).name == name
    for name in registry.names("methods"):
        assert isinstance(get_method(name), Method) and get_method(name).name == name
    for name in registry.names("teachers"):
        assert isinstance(get_algorithm(name), Algorithm) and get_algorithm(name).name == name


@pytest.mark.parametrize(
    "kind, name, message",
    [
        ("environments", "Car3D", r"unknown environment 'Car3D'\. Did you mean 'Car2D'\? Known: .*Reacher"),
        ("teachers", "pppo", r"unknown teacher algorithm 'pppo'\. Did you mean 'ppo'\?"),
        ("methods", "dibbs", r"unknown method 'dibbs'\. Did you mean 'dibs'\?"),
        ("reports", "xyz", r"unknown collection of reports 'xyz'\. Known: "),
    ],
)
def test_unknown_names_suggest_the_nearest(kind, name, message):
    with pytest.raises(DibsError, match=message):
        registry.load(kind, name)


# --- at run time -----------------------------------------------------------------------------------------


def test_an_object_or_its_path_is_added_at_run_time(add):
    target = object()
    add("environments", "Boat", target)
    add("environments", "Ship", "dibs.envs.car2d:Car2D")
    assert {"Boat", "Ship", "Car2D"} <= set(registry.names("environments"))
    assert registry.load("environments", "Boat") is target and registry.load("environments", "Ship") is Car2D
    assert "Boat" not in registry.names("methods")
    with pytest.raises(DibsError, match="Did you mean 'Boat'"):
        registry.load("environments", "Boats")


def test_what_is_added_replaces_what_is_installed_until_it_is_removed():
    target = object()
    registry.register("environments", "Car2D", target)
    assert registry.load("environments", "Car2D") is target
    registry._added["environments"].pop("Car2D", None)
    assert registry.load("environments", "Car2D") is Car2D
    registry._added["environments"].pop("Car2D", None)  # nothing to remove: no error, and nothing installed goes
    assert registry.load("environments", "Car2D") is Car2D


def test_an_unknown_kind_is_an_error():
    with pytest.raises(DibsError, match=r"unknown kind of registry entry 'boats'\..* Known: adapters, environments"):
        registry.register("boats", "Boat", object())


def test_a_method_added_at_run_time_has_its_place_in_legends(add):
    add("methods", "mine", SimpleNamespace(name="mine", label="Mine", order=55))
    assert label("mine") == "Mine" and label("no-such-method") == "no-such-method"
    order = in_order(["dibs", "mine", "gone", "ars", "dibs"])
    assert order[0] == "ars" and order[-1] == "gone" and set(order) == {"ars", "mine", "dibs", "gone"}


# --- other packages --------------------------------------------------------------------------------------


def test_two_packages_with_one_name(installed):
    installed(("Boat", "one.boat:Boat"), ("Boat", "two.boat:Boat"))
    message = (
        "two installed packages register the environment 'Boat': one.boat:Boat and two.boat:Boat; rename or uninstall"
    )
    with pytest.raises(DibsError, match=message):
        registry.names("environments")
    with pytest.raises(DibsError, match="'Boat'"):
        registry.load("environments", "Boat")


def test_the_same_entry_twice_is_one(installed):
    """An editable installation next to a normal one."""
    installed(("Boat", "dibs.envs.car2d:Car2D"), ("Boat", "dibs.envs.car2d:Car2D"))
    assert registry.names("environments") == ["Boat"] and registry.load("environments", "Boat") is Car2D


def test_without_an_installation(installed):
    installed()
    with pytest.raises(DibsError, match="no environment is registered: install the package first"):
        registry.names("environments")


def test_an_installation_older_than_its_checkout_is_named(installed, tmp_path: Path, monkeypatch):
    """Code of an editable installation is always new; its entry points are those of the time of the installation."""
    text, file = registry.PYPROJECT.read_text(), tmp_path / "pyproject.toml"
    monkeypatch.setattr(registry, "PYPROJECT", file)
    line = 'ars = "dibs.teachers.ars:ALGORITHM"\n'
    assert text.count(line) == 1
    for same in ("", 'name = "other"', text, text.replace('"dibs"', '"other"').replace(line, ""), "[project"):
        file.write_text(same)
        assert registry.outdated() == ""
    file.unlink()
    assert registry.outdated() == ""
    reason = f"the installation is older than {file}: run `make env`"
    for other in (f'{line}boat = "boat:ALGORITHM"\n', "", line.replace("ALGORITHM", "OTHER")):
        file.write_text(text.replace(line, other))
        assert registry.outdated() == reason
    for ask in (lambda: registry.load("teachers", "boat"), lambda: get_family("boat"), lambda: get_benchmark("boat")):
        with pytest.raises(DibsError, match=rf"unknown .*'boat'\.(.*\?)? T{re.escape(reason[1:])}\. Known: "):
            ask()
    installed()
    with pytest.raises(DibsError) as error:
        registry.names("requirements")
    assert str(error.value) == f"no collection of measured requirements is registered: {reason}"
    file.write_text(text)
    registry._installed.cache_clear()
    assert registry.names("requirements") == []


@pytest.mark.parametrize(
    "value, reason",
    [("no_such_package.boat:Boat", "No module named"), ("dibs.envs.car2d:Boat", "has no attribute 'Boat'")],
)
def test_import_errors_name_the_entry(installed, value, reason):
    installed(("Boat", value))
    assert registry.names("environments") == ["Boat"]  # names need no import
    with pytest.raises(DibsError) as error:
        registry.load("environments", "Boat")
    assert str(error.value).startswith(f"dibs.environments 'Boat' = {value}: cannot be imported (")
    assert reason in str(error.value)


@pytest.mark.parametrize("path", ["no_such_package:Boat", "dibs.envs.car2d:Boat", "dibs.envs.car2d"])
def test_paths_that_cannot_be_imported_are_named(add, path):
    add("environments", "Boat", path)
    with pytest.raises(DibsError, match=rf"{path}: cannot be imported \("):
        registry.load("environments", "Boat")


def test_targets_are_imported_when_they_are_asked_for(installed, tmp_path: Path, monkeypatch):
    (tmp_path / "boat_for_tests.py").write_text("Boat = object()\n")
    monkeypatch.syspath_prepend(tmp_path)
    installed(("Boat", "boat_for_tests:Boat"), ("Car2D", "dibs.envs.car2d:Car2D"))
    assert registry.load("environments", "Car2D") is Car2D and "boat_for_tests" not in sys.modules
    try:
        assert registry.load("environments", "Boat") is sys.modules["boat_for_tests"].Boat
    finally:
        sys.modules.pop("boat_for_tests", None)
