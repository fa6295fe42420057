"""No module of the package imports itself through others, not even within a function or for types only."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
MODULES = {
    ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file
    for file in (ROOT / "dibs").rglob("*.py")
}


def imported(name: str) -> set[str]:
    """Modules of the package that a module imports anywhere."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inner & MODULES.keys() or {str(node.module)}
    return found & MODULES.keys() - {name}


def test_imports_have_no_cycle() -> None:
    assert len(MODULES) > 100
    TopologicalSorter({name: imported(name) for name in MODULES}).prepare()
