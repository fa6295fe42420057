"""What the documents name exists: modules, functions and files. No merge conflict is left in them."""

from __future__ import annotations

import dataclasses
import importlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dibs.envs import Environment
from dibs.methods import Method
from dibs.teachers.base import Algorithm, Assignment

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "CONTRIBUTING.md", "config/README.md", "results/README.md")
DOCUMENTS = [*(ROOT / page for page in PAGES), *sorted((ROOT / "docs").rglob("*.md"))]
GROUPS = ("environments", "adapters", "teachers", "methods", "families", "reports", "requirements")
"""Groups of entry points are called like modules: `dibs.methods` is both."""


def found(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for attribute in parts[count:]:
            fields = getattr(thing, "__annotations__", {}) | getattr(thing, "model_fields", {})
            if not hasattr(thing, attribute) and attribute not in fields:
                return False
            thing = getattr(thing, attribute, None)
        return True
    return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_and_files_in_documents_exist(document: Path):
    text = document.read_text()
    names = {name for name in re.findall(r"`(dibs(?:\.\w+)+)`", text) if name.removeprefix("dibs.") not in GROUPS}
    files = set(re.findall(r"`((?:dibs|tests|docs|workflow|profiles|examples|benchmarks)/[\w./-]+)`", text))
    assert [name for name in sorted(names) if not found(name)] == []
    assert [name for name in sorted(files) if not (ROOT / name).exists()] == []
    assert re.findall(r"^(?:<{7}|>{7}|={7}$).*", text, re.MULTILINE) == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path):
    found = re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", document.read_text())
    broken = [path for path, _ in found if path and not (document.parent / path).exists()]
    pages = [((document.parent / path) if path else document, anchor) for path, anchor in found if anchor]
    assert broken == [] and [(str(page), a) for page, a in pages if a not in anchors(page)] == []


def test_the_layers_of_the_page_on_architecture():
    """Their order, from the bottom, is that which import-linter checks."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = [{*layer.split(" : ")} - {"__main__"} for layer in reversed(contracts[0]["layers"])]
    page = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", page[: page.index("## The simulator")], re.MULTILINE)
    assert [{*re.findall(r"\w+", row)} for row in rows] == [layer for layer in layers if layer]


def test_functions_are_in_the_files_that_documents_name():
    """`name` (`dibs/file.py`) in a document is a name in that file."""
    text = "".join(document.read_text() for document in DOCUMENTS)
    found = re.findall(r"`([\w.]+)(?:\([^`]*\))?` \(`(dibs/[\w/]+\.py)`", text)
    gone = {(n, file) for n, file in found if not re.search(rf"\b{n.split('.')[-1]}\b", (ROOT / file).read_text())}
    assert len(found) > 20 and gone == set()


def test_the_page_on_extensions_describes_every_member():
    members = {name for name in vars(Environment) if not name.startswith("_")}
    members |= {field.name for record in (Method, Algorithm, Assignment) for field in dataclasses.fields(record)}
    fences = re.compile(r"```python\n(.*?)```", re.DOTALL)
    page = (ROOT / "docs/extending.md").read_text()
    code = [*fences.findall(page), *re.findall(r"`([^`\n]+)`", fences.sub("", page))]
    assert [name for name in sorted(members) if not re.search(rf"\b{name}\b", " ".join(code))] == []
