"""The tables of docs/results.md, as Markdown, from a folder of results.

    python workflow/scripts/study.py results/study                            print them
    python workflow/scripts/study.py results/study --into docs/results.md     put them where that page has their names

Whatever is there is told: teachers per family, template methods and (where most seeds were run) all methods per
benchmark and gap, losses, Table 1 and the paper's claims over everything, ablations and sweeps. In a page, a table
stands between `<!-- NAME: begin -->` and `<!-- NAME: end -->`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from dibs.analysis.collect import collect, find
from dibs.analysis.methods import in_order, label
from dibs.analysis.tables import make, to_markdown
from dibs.evaluation.methods import METHODS
from dibs.files import read_table

GOOD = 0.99  # success per edge that a teacher should have
Evaluation = tuple[str, str, int, int, Any]
"""Benchmark, method, gap, seed and rows."""


def table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def spread(values: list[float]) -> str:
    """Mean ± standard deviation over seeds, the latter if there is any."""
    deviation = f"{np.std(values):.2f}"
    return f"{np.mean(values):.2f}" + (f" ± {deviation}" if deviation != "0.00" else "")


def teachers(root: Path) -> str:
    """Success and drift of the teachers of every family."""
    cells: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for file in sorted(root.glob("teachers/*/*/seed*/*.json")):
        if file.name.endswith(".timing.json"):
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
        rows.append([f"`{family}`", f"{good} of {len(found)}", weak, f"{np.mean(drift):.2f}" if drift else "–"])
    return table(["family", f"cells with success ≥ {GOOD}", "worst cell", "drift per edge"], rows)


def evaluations(root: Path) -> Iterator[Evaluation]:
    """Benchmark, method, gap, seed and rows of every evaluation."""
    for file in sorted(root.glob("evaluations/*/*/gap*/seed*.parquet")):
        method, benchmark, gap, seed = file.parts[-4:]
        data, _ = read_table(file)
        yield benchmark, method, int(gap[3:]), int(seed[4:].partition(".")[0]), data.to_pandas()


def methods(measured: list[Evaluation], beside: str, shown: tuple[str, ...], most: bool = False) -> str:
    """Training / zero-shot ratio, mean ± standard deviation over seeds, wherever the method `beside` was measured.

    `most`: only where it was measured with most seeds.
    """
    found: dict[tuple[str, int], dict[str, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for benchmark, method, gap, _, rows in measured:
        ratios = [float(rows.loc[rows["role"] == role, "succeeds"].mean()) for role in ("train", "unseen")]
        found[benchmark, gap][method].append((ratios[0], ratios[1]))
    seeds = {key: len(cell[beside]) for key, cell in found.items() if beside in cell}
    least = max(seeds.values(), default=0) if most else 1
    found = {key: found[key] for key, count in seeds.items() if count >= least}  # type: ignore[assignment]
    names = [m for m in in_order({m for cell in found.values() for m in cell}) if m in shown]
    lines = []
    for (benchmark, gap), cell in sorted(found.items(), key=lambda item: (item[0][0], -item[0][1])):
        told = [" / ".join(spread(list(r)) for r in zip(*cell[m], strict=True)) if cell[m] else "–" for m in names]
        counts = sorted({len(cell[m]) for m in names if cell[m]})
        lines.append([f"`{benchmark}`", str(gap), "–".join(map(str, counts[:1] + counts[1:][-1:])), *told])
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


def without_title(text: str) -> str:
    """A table that the workflow makes, as it stands below a heading of its own."""
    return text.partition("\n")[2].strip()


def tables(root: Path) -> dict[str, str]:
    """All tables by name."""
    every = list(evaluations(root))
    found = {
        "teachers": teachers(root),
        "templates": methods(every, "dibs-weights", ("dibs", "dibs-plus", "dibs-weights")),
        "methods": methods(every, "ars", tuple(name for name in METHODS if name != "dibs-weights"), most=True),
        "losses": losses(root),
    }
    measured = collect(find("evaluation", None, root))
    found |= {name: without_title(to_markdown(make(name, measured))) for name in ("relative", "claims")}
    kinds = (root / "ablations", root / "sweeps")
    return found | {
        f"{kind.name} {file.stem}": without_title(file.read_text())
        for kind in kinds
        for file in sorted(kind.glob("*.md"))
    }


def put(page: Path, found: dict[str, str]) -> None:
    """Write the tables where the page has their names."""

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in found:
            print(f"{page}: {name}: left as it is", file=sys.stderr)
            return match[0]
        return f"<!-- {name}: begin -->\n{found[name]}\n<!-- {name}: end -->"

    marked = r"<!-- (?P<name>[^:>]+): begin -->\n.*?<!-- (?P=name): end -->"
    page.write_text(re.sub(marked, replaced, page.read_text(), flags=re.DOTALL))


def main() -> int:
    """Print all tables, or put them into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="root of results")
    parser.add_argument("--into", type=Path, metavar="PAGE.md", help="a page with the tables' names")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these tables only, for example: methods")
    args = parser.parse_args()
    if not args.results.is_dir():
        parser.error(f"{args.results}: no such folder")
    found = tables(args.results)
    if unknown := set(args.only or ()) - set(found):
        parser.error(f"--only: no table {', '.join(sorted(unknown))}; there are {', '.join(found)}")
    found = {name: text for name, text in found.items() if args.only is None or name in args.only}
    if args.into:
        put(args.into, found)
    else:
        print("\n\n".join(f"### {name}\n\n{text}" for name, text in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
