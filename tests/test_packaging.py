"""The package as it is shipped: consistent versions and entry points, a light import, no paths of a machine."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
REQUIREMENTS = [Requirement(r) for r in [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]]

LIST = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
HEAVY = {"torch", "stable_baselines3", "gymnasium", "pandas", "pyarrow", "matplotlib", "sklearn", "snakemake"}


def python(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)


def pins() -> dict[str, str]:
    lines = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#"))
    matches = [re.fullmatch(r"([\w.-]+)==([\w.]+)", line) for line in lines]
    return {canonicalize_name(match[1]): match[2] for match in matches}


PINS = pins()


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_every_requirement_is_a_range_with_a_pin_inside(requirement):
    assert {">=", ">"} & {bound.operator for bound in requirement.specifier}
    assert not {"==", "==="} & {bound.operator for bound in requirement.specifier}
    assert requirement.specifier.contains(PINS[canonicalize_name(requirement.name)])


def test_installed_versions_are_the_pinned_ones():
    # A build such as torch's "+cpu" is not part of the pin. Some packages are needed on other systems only.
    installed = {canonicalize_name(d.metadata["Name"]): d.version.partition("+")[0] for d in metadata.distributions()}
    different = {name: (pin, installed[name]) for name, pin in PINS.items() if installed.get(name, pin) != pin}
    assert not different
    assert {canonicalize_name(requirement.name) for requirement in REQUIREMENTS} <= installed.keys()


def test_environment_yml_uses_the_constraints():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["name"] == PROJECT["name"]
    assert environment["dependencies"] == ["python=3.11", "pip", {"pip": ["-c constraints.txt", "-e .[dev]"]}]


def test_the_supported_python_is_the_tested_one():
    assert SpecifierSet(PROJECT["requires-python"]) == SpecifierSet(">=3.11,<3.12")
    assert sys.version_info[:2] == (3, 11)
    assert PYPROJECT["tool"]["mypy"]["python_version"] == "3.11"
    assert PYPROJECT["tool"]["ruff"]["target-version"] == "py311"
    assert "PYTHON ?= python3.11\n" in (ROOT / "Makefile").read_text()


def test_installed_entry_points_are_those_of_pyproject():
    expected = {"console_scripts": PROJECT["scripts"], **PROJECT["entry-points"]}
    installed: dict[str, dict[str, str]] = {}
    for entry in metadata.distribution("dibs").entry_points:
        installed.setdefault(entry.group, {})[entry.name] = entry.value
    assert installed == expected, "the installation is out of date; run: pip install --no-deps --editable ."


@pytest.mark.parametrize("group", PROJECT["entry-points"])
def test_every_entry_point_loads(group):
    for entry in metadata.distribution("dibs").entry_points.select(group=group):
        entry.load()


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"] == metadata.version("dibs")
    assert f"## {PROJECT['version']}" in (ROOT / "CHANGELOG.md").read_text()


def test_import_is_quick_and_light():
    code = f"""
import sys, time
start = time.perf_counter()
import dibs
print(time.perf_counter() - start, *({HEAVY!r} & sys.modules.keys()))
"""
    seconds, *heavy = zip(*(python("-c", code).stdout.split() for _ in range(5)), strict=True)
    assert not heavy
    assert min(map(float, seconds)) < 0.3


def test_help_imports_nothing_heavy():
    code = f"""
import sys
from dibs.cli import parser
parser().format_help()
print(*({HEAVY!r} & sys.modules.keys()))
"""
    assert python("-c", code).stdout.strip() == ""


@pytest.mark.parametrize("module", ["dibs", "dibs.cli"])
def test_module_runs(module):
    assert python("-m", module, "--help").stdout.startswith("usage: dibs ")


def test_no_path_of_a_particular_machine():
    try:
        listing = subprocess.run(["git", *LIST], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    # Folders where people keep their work. System folders such as /usr are fine.
    private = re.compile(rf"(?<![\w.~$}})*-])/(?:home|root|work|workspace|mnt|Users)/|{re.escape(str(ROOT))}")
    found = []
    for name in filter(None, listing.decode().split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            lines = content.decode(errors="replace").splitlines()
            found += [f"{name}:{n}: {line}" for n, line in enumerate(lines, 1) if private.search(line)]
    assert not found, "\n".join(found)
