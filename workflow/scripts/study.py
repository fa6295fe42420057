"""The tables of docs/results.md, as Markdown, from a folder of results.

    python workflow/scripts/study.py results/study

Whatever is there is told: teachers per family, templates per benchmark and gap, methods per benchmark and gap.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from dibs.analysis.methods import in_order, label
from dibs.files import read_table

GOOD = 0.99  # success per edge that a teacher should have


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def spread(values: list[float]) -> str:
    """Mean ± standard deviation over seeds."""
    return f"{np.mean(values):.2f} ± {np.std(values):.2f}"


def teachers(root: Path) -> str:
    """Success, drift and cost of the teachers of every family."""
    cells: dict[str, list[dict[str, Any]]] = defaultdict(list)
    seconds: dict[str, dict[bool, list[float]]] = defaultdict(lambda: defaultdict(list))
    for file in sorted(root.glob("teachers/*/*/seed*/*.json")):
        if file.name.endswith(".timing.json"):
            seconds[file.parts[-4]][file.parts[-3] == "base"].append(json.loads(file.read_text())["seconds"])
            continue
        told = json.loads(file.read_text())
        where = f"index {told['index']}, seed {told['seed']}"
        for edge, measured in told["metrics"]["edges"].items():
            cells[told["family"]].append({"where": f"{edge}, {where}", **measured})
    rows = []
    for family, found in cells.items():
        good = sum(cell["success"] >= GOOD for cell in found)
        worst = min(found, key=lambda cell: cell["success"])
        drift = [cell["drift"] for cell in found if cell["drift"] is not None]
        weak = f"{worst['success']:.3f} ({worst['where']})" if worst["success"] < 1.0 else "1.000"
        rows.append(
            [
                f"`{family}`",
                f"{good} of {len(found)}",
                weak,
                f"{np.mean(drift):.2f}" if drift else "–",
                *(f"{np.mean(seconds[family][base]):.1f}" if seconds[family][base] else "–" for base in (True, False)),
            ]
        )
    head = ["family", f"cells with success ≥ {GOOD}", "worst cell", "drift per edge", "s, index 0", "s, later index"]
    return table(head, rows)


def evaluations(root: Path) -> Iterator[tuple[str, str, int, int, Any]]:
    """Benchmark, method, gap, seed and rows of every evaluation."""
    for file in sorted(root.glob("evaluations/*/*/gap*/seed*.parquet")):
        method, benchmark, gap, seed = file.parts[-4:]
        data, _ = read_table(file)
        yield benchmark, method, int(gap[3:]), int(seed[4:].partition(".")[0]), data.to_pandas()


def methods(root: Path) -> str:
    """Training ratio / zero-shot ratio of every method, mean ± standard deviation over seeds."""
    found: dict[tuple[str, int], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for benchmark, method, gap, _, rows in evaluations(root):
        ratios = [float(rows.loc[rows["role"] == role, "succeeds"].mean()) for role in ("train", "unseen")]
        found[benchmark, gap][method].append((ratios[0], ratios[1]))
    names = in_order({method for cell in found.values() for method in cell})
    lines = []
    for (benchmark, gap), cell in sorted(found.items(), key=lambda item: (item[0][0], -item[0][1])):
        seeds = max(len(v) for v in cell.values())
        shown = [" / ".join(spread(list(r)) for r in zip(*cell[m], strict=True)) if cell[m] else "–" for m in names]
        lines.append([f"`{benchmark}`", str(gap), str(seeds), *shown])
    return table(["benchmark", "gap", "seeds", *map(label, names)], lines)


def losses(root: Path) -> str:
    """Final loss of the templates per training index and edge, and how long the fit took."""
    rows = []
    for folder in sorted(root.glob("templates*/*/gap*")):
        told = [json.loads(f.read_text()) for f in sorted(folder.glob("*.json")) if "timing" not in f.name]
        timed = [json.loads(f.read_text())["seconds"] for f in sorted(folder.glob("*.timing.json"))]
        if not told:
            continue
        per = [loss / len(one["train"]) for one in told for loss in one["edges"].values()]
        method = "dibs" + folder.parts[-3].removeprefix("templates")
        timing = f"{np.mean(timed):.1f}" if timed else "–"
        numbers = [f"{np.mean(per):.4f}", f"{np.max(per):.4f}", timing]
        rows.append([f"`{folder.parts[-2]}`", folder.name[3:], label(method), *numbers])
    return table(["family", "gap", "method", "mean loss", "worst edge", "s"], sorted(rows))


def main() -> int:
    """Print all tables."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        print(f"usage: python {sys.argv[0]} RESULTS", file=sys.stderr)
        return 2
    root = Path(sys.argv[1])
    for title, make in (("Teachers", teachers), ("Methods", methods), ("Templates", losses)):
        print(f"### {title}\n\n{make(root)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
