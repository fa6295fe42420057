"""Print the shares of tasks that are solved at training indices, unseen ones, L + 1 … 2L and far beyond.

    python workflow/scripts/induction.py results/induction

One row per benchmark, split and method, mean over seeds. A dash: no such index was measured.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[2]))

from dibs.evaluation.evaluate import summarize
from dibs.files import read_table
from dibs.methods import in_order

SHOWN = {"training_ratio": "training", "zero_shot_ratio": "unseen", "beyond_ratio": "beyond L", "far_ratio": "far"}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("results", type=Path, help="folder of results")
    rows = []
    for file in sorted(parser.parse_args().results.glob("evaluations/**/*.parquet")):
        table, meta = read_table(file)
        found = summarize(table["role"].to_pylist(), table["succeeds"].to_pylist())
        about = {"benchmark": meta["benchmark"], "split": meta["split"], "method": meta["method"]}
        rows.append(about | {"seeds": meta["seed"]} | {name: found[key] for key, name in SHOWN.items()})
    if not rows:
        sys.exit("no evaluations there")
    frame = pd.DataFrame(rows)
    order = {name: n for n, name in enumerate(in_order(frame["method"]))}
    measured = dict.fromkeys(SHOWN.values(), "mean")
    means = frame.groupby(["benchmark", "split", "method"], as_index=False).agg({"seeds": "nunique"} | measured)
    means = means.sort_values(["benchmark", "split", "method"], key=lambda c: c.map(order) if c.name == "method" else c)
    means = means.astype(object).where(means.notna(), None)
    print(means.to_markdown(index=False, floatfmt=".2f", missingval="–"))


if __name__ == "__main__":
    main()
