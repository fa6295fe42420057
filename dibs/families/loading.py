"""Descriptions of families as YAML, and errors that name the offending key."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from dibs.errors import DibsError, unknown
from dibs.families.description import Dilation, RegionEntry, RegionModel, Rotation, StartEntry, StartModel
from dibs.families.tasks import NetworkModel, RewardModel

SECTIONS: dict[str, type[BaseModel]] = {
    "start": StartModel,
    "regions": RegionModel,
    "network": NetworkModel,
    "reward": RewardModel,
}
MOTIONS: dict[str, type[BaseModel]] = {"rotate": Rotation, "dilate": Dilation}


def read_yaml(path: Path) -> Mapping[str, Any]:
    """Return the mapping in a family file."""
    try:
        data = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise DibsError("no such family file") from None
    except yaml.YAMLError as error:
        raise DibsError(f"not valid YAML: {error}") from None
    if not isinstance(data, Mapping):
        raise DibsError(f"expected a mapping of family keys, found {type(data).__name__}")
    return data


def checked_keys(data: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a description whose keys are all strings."""
    wrong = [key for key in data if not isinstance(key, str)]
    if wrong:
        raise DibsError(f"expected names as keys, found {wrong[0]!r}")
    return dict(data)


def explain(error: ValidationError, family: type[BaseModel]) -> str:
    """Return all problems of a description, one per line."""
    problems = error.errors()
    if any(problem["loc"][:1] == ("environment",) for problem in problems):
        # Mappings from names of state variables are only read when the environment says which there are.
        problems = [
            p for p in problems if not (isinstance(p["input"], Mapping) and p["loc"][0] in ("start", "regions"))
        ]
    lines = [f"  {_explain_one(problem, family)}" for problem in problems]
    return "not a valid family description\n" + "\n".join(lines)


def _explain_one(problem: Any, family: type[BaseModel]) -> str:
    """Return one problem in one line: the key, the reason, and for an unknown key the nearest known one."""
    # Alternatives of a union ("one number or a list") have inner names that mean nothing to a reader.
    where = [str(part) for part in problem["loc"] if not str(part).startswith(("list[", "constrained-", "float"))]
    key = ".".join(where) or "family"
    if problem["type"] != "extra_forbidden":
        return f"{key}: {problem['msg'].removeprefix('Value error, ')}"
    kind = SECTIONS.get(where[0], family) if len(where) > 1 else family
    if "table" in where[:-1]:
        kind = StartEntry if kind is StartModel else RegionEntry
    kind = MOTIONS.get(where[-2] if len(where) > 1 else "", kind)
    known = [field.alias or name for name, field in kind.model_fields.items()]
    return f"{key}: {unknown('key', where[-1], known)}"
