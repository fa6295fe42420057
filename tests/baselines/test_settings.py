"""docs/choices.md gives every setting of the paper's five baselines, with its value."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from dibs.methods import get_method

PAGE = (Path(__file__).parents[2] / "docs/choices.md").read_text().partition("### Settings of the five baselines")[2]
NAMES = {"ars": "ARS", "bc": "BC", "genrl": "GenRL", "maml": "MAML", "varibad": "VariBAD"}


def listed(method: str) -> dict[str, str]:
    """The settings that the method's table names, with the text of their values."""
    table = PAGE.partition(f"| {NAMES[method]} | from |")[2].partition("\n\n")[0]
    cells = " , ".join(line.split("|")[1] for line in table.splitlines()[2:])
    return {name: value.strip(" ,") for name, value in re.findall(r"`(\w+)`([^`]*)", cells)}


@pytest.mark.parametrize("method", NAMES)
def test_every_setting_is_listed_with_its_default(method: str) -> None:
    settings, found = get_method(method).settings(), listed(method)
    assert found.keys() == {field.name for field in fields(settings)}
    for name, text in found.items():
        value = getattr(settings, name)
        if not text:
            assert method == "varibad" and value == getattr(get_method("maml").settings(), name)
        elif isinstance(value, tuple):
            assert text == (", ".join(map(str, value)) or "()")
        elif isinstance(value, bool | str):
            assert text == str(value).lower()
        else:
            assert float(text.partition(" ")[0]) == value
