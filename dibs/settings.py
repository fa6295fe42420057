"""Settings of a stage: frozen dataclasses, checked against what a config or a command line says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field

from dibs.errors import DibsError, unknown

T = TypeVar("T")

Natural = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

STRICT: dict[str, Any] = {"extra": "forbid", "use_attribute_docstrings": True}
"""`__pydantic_config__` of every settings dataclass: unknown keys are errors, docstrings are descriptions."""


@cache
def _adapter(kind: type) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def parse_settings(kind: type[T], data: Mapping[str, Any] | str | None, where: str = "settings") -> T:
    """Build `kind` from a mapping, JSON text or the path of a JSON or YAML file; name every bad key."""
    from pydantic import ValidationError

    values = values_of(data, where)
    try:
        return _adapter(kind).validate_python(dict(values))  # type: ignore[arg-type]
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc']))}: {_problem(kind, e)}" for e in error.errors()]
        raise DibsError(f"{where}: not valid for {kind.__name__}\n" + "\n".join(lines)) from None


def _problem(kind: type, error: Mapping[str, Any]) -> str:
    """Say what is wrong with a value, or which keys there are."""
    if error["type"] == "unexpected_keyword_argument" and len(error["loc"]) == 1:
        return str(unknown("key", error["loc"][0], [field.name for field in fields(kind)]))
    return f"{error['msg']} (found {error['input']!r})"


def values_of(data: Mapping[str, Any] | str | None, where: str) -> Mapping[str, Any]:
    if data is None or data == "":
        return {}
    if isinstance(data, Mapping):
        return data
    if data.lstrip().startswith("{"):
        try:
            return dict(json.loads(data))
        except json.JSONDecodeError as error:
            raise DibsError(f"{where}: not valid JSON: {error}") from None
    path = Path(data)
    if not path.is_file():
        raise DibsError(f"{where}: '{data}' is neither JSON text nor a file")
    import yaml

    try:
        loaded = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise DibsError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(loaded, dict):
        raise DibsError(f"{path}: expected a mapping of settings, found {type(loaded).__name__}")
    return loaded
