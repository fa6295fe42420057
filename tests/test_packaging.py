"""The package as it is shipped: pins in step, a light import, nothing of the machine it was written on."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]

LIST = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"]
HEAVY = {"torch", "stable_baselines3", "gymnasium", "pandas", "pyarrow", "matplotlib", "sklearn", "snakemake"}


def python(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *argv], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)


def test_environment_yml_is_in_step_with_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    conda = [item for item in environment["dependencies"] if isinstance(item, str)]
    (pip,) = [item["pip"] for item in environment["dependencies"] if isinstance(item, dict)]
    assert environment["name"] == PROJECT["name"]
    assert conda == ["python=3.11", "pip"]
    assert pip == [*PINS, "-e ."]


@pytest.mark.parametrize("pin", PINS)
def test_every_requirement_is_pinned_to_what_is_installed(pin):
    name, version = re.fullmatch(r"([\w.-]+)==([\w.]+)", pin).groups()
    assert metadata.version(name).partition("+")[0] == version


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


def test_entry_point():
    (script,) = metadata.entry_points(group="console_scripts", name="dibs")
    assert script.value == "dibs.cli:main"


def test_no_path_of_a_particular_machine():
    try:
        listing = subprocess.run(["git", *LIST], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("not a git checkout")
    # The folders in which people keep their work, not those that every system has.
    private = re.compile(rf"(?<![\w.~$}})*-])/(?:home|root|work|workspace|mnt|Users)/|{re.escape(str(ROOT))}")
    found = []
    for name in filter(None, listing.decode().split("\0")):
        path = ROOT / name
        if path.is_file() and b"\0" not in (content := path.read_bytes()):
            lines = content.decode(errors="replace").splitlines()
            found += [f"{name}:{n}: {line}" for n, line in enumerate(lines, 1) if private.search(line)]
    assert not found, "\n".join(found)
