"""What a file was made from: recorded in every file, checked by every command that reads one.

A file's `Origin` names the grounded tasks, the settings, the versions of the stage that wrote it, and the ids of the
files it was made from. Its `id` is a digest of all of that. Ids can be computed from a config alone, before any file
exists: the workflow passes them to Snakemake, so a change reruns exactly what depends on it, and to the commands, which
refuse to write anything else.

Code is not part of an id. A stage has a version, an integer that is raised manually when its results change. Short
fixed runs in tests/test_versions.py catch a forgotten increase.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from dibs.errors import DibsError
from dibs.files import plain

FORMAT = 2
"""Layout of the metadata. Files of version 0.1 have none and are rejected."""
LIBRARIES = ("dibs", "numpy", "scipy", "torch", "stable-baselines3", "gymnasium")
"""Their versions are recorded in every file. They are never compared."""


def digest(value: Any) -> str:
    """Return a short digest of plain data (JSON with sorted keys); dataclasses count as mappings."""
    data = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    text = json.dumps(plain(data), sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


_settings: dict[int, tuple[Any, str]] = {}


def settings_digest(settings: Any) -> str:
    """Return the digest of a settings dataclass; a plan asks for the same few objects thousands of times."""
    known = _settings.get(id(settings))
    if known is None or known[0] is not settings:
        known = _settings[id(settings)] = (settings, digest(settings))
    return known[1]


@dataclass(frozen=True)
class Origin:
    """What one file is and what it was made from."""

    kind: str
    """teacher, dataset, model, evaluation or policy."""
    identity: Mapping[str, Any]
    """Which one it is: family, split, index, seed, method, benchmark, as far as they apply."""
    tasks: str
    """Digest of the grounded tasks (`dibs.families.Tasks.digest`)."""
    settings: str
    """Digest of the settings."""
    versions: Mapping[str, int]
    """Versions of the stage, and of the algorithm or method."""
    inputs: Sequence[str] = field(default_factory=tuple)
    """Ids of the files it was made from, in order."""

    @property
    def id(self) -> str:
        """Digest of everything above."""
        parts = (self.kind, dict(self.identity), self.tasks, self.settings, dict(self.versions), list(self.inputs))
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]

    def check(self, expected: str) -> None:
        """Refuse to go on if the id is not the one that the caller planned (`--expect`)."""
        if expected and expected != self.id:
            raise DibsError(
                f"this would write {describe(self.kind, self.identity)} with id {self.id}, but {expected} was planned: "
                "the inputs, the family, the settings or the installed version differ from those of the plan"
            )

    def metadata(self) -> dict[str, Any]:
        """Return what the file records."""
        return {
            "format": FORMAT,
            "kind": self.kind,
            **self.identity,
            "id": self.id,
            "tasks": self.tasks,
            "settings_digest": self.settings,
            "versions": dict(self.versions),
            "inputs": list(self.inputs),
            "libraries": installed(LIBRARIES),
        }


def check_kind(path: str | Path, metadata: Mapping[str, Any], kind: str) -> None:
    """Refuse a file of another kind or of an older format."""
    if metadata.get("format") != FORMAT:
        raise DibsError(f"{path}: was written by dibs 0.1, whose results cannot be read; delete it and make it again")
    if metadata.get("kind") != kind:
        raise DibsError(f"{path}: expected kind '{kind}', found '{metadata.get('kind')}'")


def check_origin(path: str | Path, metadata: Mapping[str, Any], expected: Origin, rerun: str) -> None:
    """Refuse an input that is not what it should be, or that was made from something else than what there is now.

    `expected` describes the file as it should be; its settings and inputs are not compared, because a reader does not
    know them. `rerun` is the command that makes the file again.
    """
    check_kind(path, metadata, expected.kind)
    for key, value in expected.identity.items():
        if metadata.get(key) != value:
            wanted = describe(expected.kind, expected.identity)
            found = describe(expected.kind, {k: metadata.get(k) for k in expected.identity})
            raise DibsError(f"{path}: expected {wanted}, found {found}; name the right file, or make it: {rerun}")
    if metadata.get("tasks") != expected.tasks:
        raise DibsError(
            f"{path}: was made from another description of {expected.identity.get('family')} (environment, "
            f"specification, regions, start, horizon, reward or network differ); make it again: {rerun}"
        )
    check_versions(path, metadata, expected.versions, rerun)


def check_versions(path: str | Path, metadata: Mapping[str, Any], versions: Mapping[str, int], rerun: str) -> None:
    """Refuse a file that was not made by these versions."""
    if metadata.get("versions") != dict(versions):
        raise DibsError(
            f"{path}: was made by another version ({list_versions(metadata.get('versions'))} instead of "
            f"{list_versions(versions)}); make it again: {rerun}"
        )


def check_input(path: str | Path, metadata: Mapping[str, Any], made_from: Mapping[str, str], rerun: str) -> None:
    """Refuse a file that was not made from the given files, {path: id}."""
    for other, identity in made_from.items():
        if identity not in metadata["inputs"]:
            raise DibsError(f"{path}: was not made from {other} as it is now; make it again: {rerun}")


def check_together(path: str | Path, metadata: Mapping[str, Any], weights: str | Path, identity: str) -> None:
    """Refuse a file that lies next to weights of this id but was not written with them."""
    if metadata.get("id") != identity:
        raise DibsError(f"{path}: was not written together with {weights}; make both again")


def describe(kind: str, identity: Mapping[str, Any]) -> str:
    """Return one line that names a file's contents."""
    return f"the {kind} of " + " ".join(f"{key} {value}" for key, value in identity.items())


def list_versions(versions: Mapping[str, Any] | None) -> str:
    """Return one line that lists the versions in a file's metadata."""
    return ", ".join(f"{name} {number}" for name, number in (versions or {}).items()) or "none"


@cache
def installed(names: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of those of the packages that are installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
