"""Digests of code and settings: what a result depends on, so that a change reruns that and nothing else.

A stage's code digest covers the modules of this package that its entry module imports, directly or not, and
ignores comments, docstrings and layout. The paper's family descriptions are left out of it: a result
depends on its own family, whose digest is separate.
"""

from __future__ import annotations

import ast
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
NOT_CODE = frozenset({"dibs.families.paper", "dibs.provenance", "dibs.cli"})


def digest(value: Any) -> str:
    """A short digest of plain data (JSON with sorted keys)."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def code_digest(*entries: str) -> str:
    """Digest of the modules reachable from the given entry modules, e.g. `dibs.teachers.train`."""
    todo, done = list(entries), set()
    while todo:
        module = todo.pop()
        if module in done or module in NOT_CODE or _source(module) is None:
            continue
        done.add(module)
        todo += _imports(module)
    return digest({module: _essence(module) for module in sorted(done)})


def _source(module: str) -> Path | None:
    base = ROOT.joinpath(*module.split(".")[1:])
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None


@cache
def _tree(module: str) -> ast.Module:
    path = _source(module)
    assert path is not None
    tree = ast.parse(path.read_text())
    for node in _statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            # Bare strings in a body are docstrings, of the thing itself or of the field above them.
            node.body = [s for s in node.body if not _is_text(s)] or [ast.Pass()]
    return tree


def _statements(tree: ast.Module) -> list[ast.AST]:
    """The module and all statements in it: a walk that spares the expressions, which are most of a tree."""
    found: list[ast.AST] = [tree]
    for node in found:
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, part, None)
            if isinstance(inner, list):
                found += inner
    return found


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


@cache
def _essence(module: str) -> str:
    return hashlib.sha256(ast.dump(_tree(module)).encode()).hexdigest()


@cache
def _imports(module: str) -> list[str]:
    found = []
    for node in _statements(_tree(module)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.startswith("dibs")]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dibs"):
            found += [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    return found
