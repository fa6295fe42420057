"""docs/python.md and the notebook run as they are written."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
FAST = {"directions": 8, "best": 4, "rollouts": 8, "iterations": 60, "restarts": 2, "check_rollouts": 50, "patience": 2}


def blocks() -> list[str]:
    """Return the code of the page, block by block."""
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_page_runs_as_written(tmp_path, tiny_description, monkeypatch, capsys):
    tiny = tiny_description(name="mine", last_index=20, teacher_options={**FAST, "step": 0.1, "exploration": 0.1})
    (tmp_path / "mine.yaml").write_text(json.dumps(tiny))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    page: dict[str, object] = {}
    found = blocks()
    assert len(found) > 5
    for number, code in enumerate(found):
        exec(compile(code, f"docs/python.md, block {number + 1}", "exec"), page)
    written = {file.name for file in tmp_path.iterdir()} - {"mine.yaml"}
    named = {name for code in found for name in re.findall(r'"([\w-]+\.\w+)"', code)} - {"mine.yaml"}
    assert written == named  # nothing is written but what was asked for
    shown = capsys.readouterr()
    assert "index 13 (unseen): " in shown.out and "seed 0, teacher 20: success " in shown.err


def test_the_page_has_the_example_of_the_readme():
    """One example, the same words."""
    if "dibs.train(" in (ROOT / "README.md").read_text():
        assert blocks()[0].strip() in (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_notebook_runs(tmp_path):
    """In a process of its own, as Jupyter runs it; the outputs are not compared."""
    code = f"""
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read({str(NOTEBOOK)!r}, 4)
assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs"
resources = {{"metadata": {{"path": {str(tmp_path)!r}}}}}
NotebookClient(notebook, timeout=200, kernel_name="python3", resources=resources).execute()
outputs = [o for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs]
assert sum("image/png" in o.get("data", {{}}) for o in outputs) >= 2
print([o["data"].get("text/plain") for o in outputs if "data" in o])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Run(" in done.stdout and "Evaluation(" in done.stdout
