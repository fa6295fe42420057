"""Print the tables of docs/results.md from a folder of results, as Markdown, or put them into a page.

    python workflow/scripts/study.py results/study                            print all tables
    python workflow/scripts/study.py results/study --into docs/results.md     replace the tables of that page

Tables: teachers per family; per benchmark and split, template methods, all methods where most seeds were run, methods
that know the index, and baselines in both versions; losses of the fits; tables of the workflow over everything that was
evaluated; ablations and sweeps. A page marks the place of a table by `<!-- NAME: begin -->` and `<!-- NAME: end -->`.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from dibs.errors import DibsError
from dibs.files import read_json
from dibs.methods import in_order, label
from dibs.paper.numbers import AS_PUBLISHED
from dibs.studies.collect import collect, find
from dibs.studies.formats import NONE, span, to_markdown
from dibs.studies.reports import applicable, make

GOOD = 0.99  # success per edge that a teacher should have
REPORTS = ("relative", "table1", "table1-versions", "claims", "budgets")


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [[cell.replace("|", "\\|") for cell in head], ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def spread(values: pd.Series) -> str:
    """Return mean ± standard deviation over seeds; the latter only if it is not zero."""
    deviation = f"{np.std(values):.2f}"
    return f"{np.mean(values):.2f}" + (f" ± {deviation}" if deviation != "0.00" else "")


def metrics_files(root: Path, pattern: str) -> list[Path]:
    """Return the metrics next to teachers or models."""
    return [file for file in sorted(root.glob(pattern)) if not file.name.endswith(".timing.json")]


def teachers(root: Path) -> str:
    """Show success and drift of the teachers of every family."""
    cells: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for file in metrics_files(root, "teachers/*/*/seed*/*.json"):
        data = read_json(file)
        for edge, measured in data["metrics"]["edges"].items():
            name = f"{edge}, index {data['index']}, seed {data['seed']}"
            cells[data["family"]].append({"name": name, **measured})
    rows = []
    for family, found in cells.items():
        good = sum(cell["success"] >= GOOD for cell in found)
        worst = min(found, key=lambda cell: cell["success"])
        drift = [cell["drift"] for cell in found if cell["drift"] is not None]
        weakest = f"{worst['success']:.3f} ({worst['name']})" if worst["success"] < 1.0 else "1.000"
        rows.append([f"`{family}`", f"{good} of {len(found)}", weakest, f"{np.mean(drift):.2f}" if drift else NONE])
    return table(["family", f"cells with success ≥ {GOOD}", "worst cell", "drift per edge"], rows)


@cache
def evaluations(root: Path) -> pd.DataFrame:
    """Return one row per evaluation."""
    return collect(find("evaluations", None, root))


def methods(root: Path, measured: str, shown: Callable[[str], bool], most: bool = False) -> str:
    """Show training / zero-shot ratio per benchmark and split where the method `measured` was evaluated.

    `most`: only where it was evaluated with as many seeds as anywhere.
    """
    runs = evaluations(root)
    cell = ["benchmark", "train_size", "split"]
    seeds = runs[runs["method"] == measured].groupby(cell, sort=False).size()
    chosen = [key for key, count in seeds.items() if count >= (seeds.max() if most else 1)]
    runs = runs.set_index(cell)
    runs = runs[runs.index.isin(chosen)].sort_index()
    names = [name for name in in_order(runs["method"]) if shown(name)]
    rows = []
    for benchmark, size, split in runs.index.unique():
        here = runs.loc[[(benchmark, size, split)]]
        by_method = {name: here[here["method"] == name] for name in names}
        counts = span([len(found) for found in by_method.values() if len(found)])
        ratios = [
            f"{spread(found['training_ratio'])} / {spread(found['zero_shot_ratio'])}" if len(found) else NONE
            for found in by_method.values()
        ]
        rows.append([f"`{benchmark}`", split, str(size), counts, *ratios])
    return table(["benchmark", "split", "|Train|", "seeds", *map(label, names)], rows)


def losses(root: Path) -> str:
    """Show the final loss of the fits per training index and edge, and how long they took."""
    found: dict[tuple[str, int, str, str], list[Path]] = defaultdict(list)
    for file in metrics_files(root, "models/*/*/*/seed*.json"):
        data = read_json(file)
        if data.get("edges") and "per_index" in data:  # edges that are moved are not fitted
            found[data["family"], len(data["train"]), data["split"], data["method"]].append(file)
    rows = []
    for (family, size, split, method), files in sorted(found.items()):
        losses = [loss / size for file in files for loss in read_json(file)["edges"].values()]
        timings = [file.with_suffix(".timing.json") for file in files]
        seconds = [read_json(file)["seconds"] for file in timings if file.exists()]
        took = f"{np.mean(seconds):.1f}" if seconds else NONE
        rows.append(
            [f"`{family}`", split, str(size), label(method), f"{np.mean(losses):.4f}", f"{max(losses):.4f}", took]
        )
    return table(["family", "split", "|Train|", "method", "mean loss", "worst edge", "s"], rows)


def report(root: Path, name: str) -> str:
    """Return a table of the workflow, over everything that was evaluated."""
    return without_title(to_markdown(make(name, find("evaluations", None, root))))


def summary(file: Path) -> str:
    """Return the table of an ablation or a sweep."""
    return without_title(file.read_text())


def without_title(text: str) -> str:
    """Return a table of the workflow without its caption: a page has a heading instead."""
    return text.partition("\n")[2].strip()


def tables(root: Path) -> dict[str, Callable[[], str]]:
    """Return the functions that make the tables, by name."""
    shown = applicable(evaluations(root)["benchmark"].unique())
    fitted = ("dibs", "dibs-plus", "dibs-weights")
    found: dict[str, Callable[[], str]] = {
        "teachers": partial(teachers, root),
        "templates": partial(methods, root, "dibs-weights", lambda m: m in fitted),
        "methods": partial(methods, root, "ars", lambda m: m != "dibs-weights", most=True),
        "index": partial(methods, root, "bc-index", lambda m: m not in AS_PUBLISHED.values()),
        "versions": partial(
            methods, root, "genrl-public", lambda m: m in ("dibs", *AS_PUBLISHED, *AS_PUBLISHED.values())
        ),
        "losses": partial(losses, root),
    }
    found |= {name: partial(report, root, name) for name in REPORTS if name in shown}
    files = [file for kind in ("ablations", "sweeps") for file in sorted((root / kind).glob("*.md"))]
    return found | {f"{file.parent.name} {file.stem}": partial(summary, file) for file in files}


def put(page: Path, found: dict[str, str]) -> None:
    """Replace the tables of a page that have been made; name those that have not."""

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        if name not in found:
            print(f"{page}: no table '{name}'; left unchanged", file=sys.stderr)
            return match[0]
        return f"<!-- {name}: begin -->\n{found[name]}\n<!-- {name}: end -->"

    marked = r"<!-- (?P<name>[^:>]+): begin -->\n.*?<!-- (?P=name): end -->"
    page.write_text(re.sub(marked, replaced, page.read_text(), flags=re.DOTALL))


def main() -> int:
    """Print the tables, or put them into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="root of the results")
    parser.add_argument("--into", type=Path, metavar="PAGE.md", help="page with markers for the tables")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these tables only, for example: methods")
    args = parser.parse_args()
    if not args.results.is_dir():
        parser.error(f"{args.results}: no such folder")
    try:
        known = tables(args.results)
        if unknown := set(args.only or ()) - set(known):
            parser.error(f"--only: no table '{sorted(unknown)[0]}'; there are {', '.join(known)}")
        found = {name: made() for name, made in known.items() if args.only is None or name in args.only}
    except DibsError as error:
        raise SystemExit(f"error: {error}") from None
    if args.into:
        put(args.into, found)
    else:
        print("\n\n".join(f"### {name}\n\n{text}" for name, text in found.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
