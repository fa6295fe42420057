"""Environments, teacher algorithms, methods, families and reports by name.

Everything is registered through entry points, built-in and third-party alike. A package adds to DIBS with a few lines
in its own `pyproject.toml`:

    [project.entry-points."dibs.environments"]
    Boat = "my_package.boat:Boat"

Groups are
- `dibs.environments`: a class, see `dibs.envs`;
- `dibs.adapters`: a class of environments of another library; its field of the entry's name says which one, as in
  `environment: {gymnasium: Reacher-v5}`;
- `dibs.teachers`: an `Algorithm`, see `dibs.teachers.base`;
- `dibs.methods`: a `Method`, see `dibs.methods`;
- `dibs.families`: a mapping from names to descriptions, or a function that returns one;
- `dibs.requirements`: a mapping from benchmarks to what `dibs requires` has measured, or a function that returns one;
- `dibs.reports`: a sequence of `Report` records, see `dibs.studies.reports`.

Targets are imported when they are first asked for. `register` adds an entry at run time, for notebooks and tests.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from pathlib import Path
from typing import Any

from dibs.errors import DibsError, unknown

KINDS = {
    "environments": "environment",
    "adapters": "adapter of another library's environments",
    "teachers": "teacher algorithm",
    "methods": "method",
    "families": "collection of families",
    "requirements": "collection of measured requirements",
    "reports": "collection of reports",
}
"""Kinds of entries, and what errors call one of each."""
OPTIONAL = ("requirements",)
"""Kinds of which there may be no entry."""
ALLOW_CODE = "DIBS_ALLOW_CODE"
"""Environment variable: with the value 1, family files may name code to import."""
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
"""Of a checkout, which may be newer than what is installed."""

_added: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}


def names(kind: str) -> list[str]:
    """Return the names of all entries of one kind, sorted."""
    return sorted({*_installed(kind), *_added[kind]})


def load(kind: str, name: str) -> Any:
    """Return the object that an entry points at; import it if necessary."""
    if name in _added[kind]:
        return resolved(_added[kind][name])
    found = _installed(kind)
    if name not in found:
        raise unregistered(KINDS[kind], name, names(kind))
    return _loaded(found[name])


def register(kind: str, name: str, target: Any) -> None:
    """Add an entry: an object, or its import path as `package.module:attribute`."""
    if kind not in KINDS:
        raise unknown("kind of registry entry", kind, KINDS)
    _added[kind][name] = target


def allow_code() -> None:
    """Allow family files to name code to import, in this process and those it starts."""
    os.environ[ALLOW_CODE] = "1"


def code_allowed() -> bool:
    """Whether family files may name code to import: `dibs --allow-code`, `allow_code: true` in a config, or the
    environment variable."""
    return os.environ.get(ALLOW_CODE) == "1"


def resolve(path: str) -> Any:
    """Import `package.module:attribute`."""
    module, _, attribute = path.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise DibsError(f"{path}: cannot be imported ({error})") from error


def resolved(target: Any) -> Any:
    """Return an object that is given as itself or by its import path."""
    return resolve(target) if isinstance(target, str) else target


def unregistered(kind: str, name: object, known: Iterable[str]) -> DibsError:
    """Build the error for a name that no installed package provides."""
    return unknown(kind, name, known, outdated())


def outdated() -> str:
    """Say that this checkout declares other entry points than are installed; empty if it does not.

    An editable installation runs the code as it is, but its entry points are those of the time of the installation.
    """
    try:
        project = tomllib.loads(PYPROJECT.read_text())["project"]
        installed = {(e.group, e.name, e.value) for e in distribution("dibs").entry_points}
    except (OSError, KeyError, tomllib.TOMLDecodeError, PackageNotFoundError):
        return ""  # no checkout, or no installation
    groups = project.get("entry-points", {}) if project.get("name") == "dibs" else {}
    declared = {(group, name, value) for group, entries in groups.items() for name, value in entries.items()}
    ours = {entry for entry in installed if entry[0].startswith("dibs.")}
    if not declared or declared == ours:
        return ""
    return f"the installation is older than {PYPROJECT}: run `make env`"


@cache
def _installed(kind: str) -> dict[str, EntryPoint]:
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=f"dibs.{kind}"):
        known = found.get(entry.name)
        if known is not None and known.value != entry.value:
            raise DibsError(
                f"two installed packages register the {KINDS[kind]} '{entry.name}': {known.value} and {entry.value}; "
                "rename or uninstall one"
            )
        found[entry.name] = entry
    if not found and kind not in OPTIONAL:
        raise DibsError(f"no {KINDS[kind]} is registered: install the package first (`pip install -e .`)")
    if not found and (reason := outdated()):
        raise DibsError(f"no {KINDS[kind]} is registered: {reason}")
    return found


@cache
def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise DibsError(f"{entry.group} '{entry.name}' = {entry.value}: cannot be imported ({error})") from error
