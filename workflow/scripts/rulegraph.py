"""Draw the rules and what flows between them, from `snakemake --rulegraph`; graphviz is not needed."""
# ruff: noqa: F821 (`snakemake` is put there by Snakemake)

import re
import subprocess
import sys
from functools import cache
from itertools import combinations, islice, pairwise, permutations, product
from typing import Any

import matplotlib as mpl

mpl.use("svg")

from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from matplotlib.path import Path as MplPath

COLOURS = {
    "teacher": "#d6e4f5",
    "dataset": "#d9efdc",
    "template": "#fbe3c8",
    "baseline": "#e9def3",
    "evaluation": "#fbd9d7",
}
PLAIN = "#eeeeee"
ACROSS, DOWN = 2.0, 0.7  # between columns and rows
WIDE, HIGH, PAD = 1.5, 0.36, 0.06  # a box


def read_dot(text: str) -> tuple[list[str], set[tuple[str, str]]]:
    """Rules, and pairs (from, to), of a graph in the dot language."""
    names = dict(re.findall(r'^\s*(\d+)\[label = "(\w+)"', text, re.MULTILINE))
    arrows = re.findall(r"^\s*(\d+) -> (\d+)", text, re.MULTILINE)
    return list(names.values()), {(names[a], names[b]) for a, b in arrows}


def reduced(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Without the arrows that a longer way says already."""
    after: dict[str, set[str]] = {}
    for a, b in arrows:
        if a != b:
            after.setdefault(a, set()).add(b)

    def reaches(a: str, b: str) -> bool:
        return any(c == b or reaches(c, b) for c in after.get(a, ()))

    return {(a, b) for a, b in arrows if a == b or not any(reaches(c, b) for c in after[a] - {b})}


Bend = tuple[str, str, int]  # where an arrow passes a column it does not end in


def layers_of(rules: list[str], arrows: set[tuple[str, str]]) -> list[list[str | Bend]]:
    """Columns of rules, by the length of the longest way to them, and of bends; ordered so that few lines cross."""

    @cache
    def depth(rule: str) -> int:
        return max((depth(a) + 1 for a, b in arrows if b == rule and a != b), default=0)

    layers: list[list[str | Bend]] = [[] for _ in range(max(map(depth, rules)) + 1)]
    for rule in sorted(rules):
        layers[depth(rule)].append(rule)
    lines: list[tuple[str | Bend, str | Bend]] = []
    for a, b in sorted(arrows):
        way = [a, *((a, b, d) for d in range(depth(a) + 1, depth(b))), b]
        for bend in way[1:-1]:
            layers[bend[2]].append(bend)  # type: ignore[arg-type]
        lines += [line for line in pairwise(way) if a != b]

    def crossings(tried: tuple[tuple[str | Bend, ...], ...]) -> int:
        at = {node: (x, y) for x, layer in enumerate(tried) for y, node in enumerate(layer)}
        ends = [(at[a], at[b]) for a, b in lines]
        return sum(p[0] == q[0] and (p[1] - q[1]) * (r[1] - s[1]) < 0 for (p, r), (q, s) in combinations(ends, 2))

    return [list(layer) for layer in min(islice(product(*map(permutations, layers)), 20_000), key=crossings)]


def draw(rules: list[str], arrows: set[tuple[str, str]]) -> Figure:
    """Columns from left to right, arrows between boxes, a loop where a rule needs itself."""
    arrows = reduced(arrows)
    layers = layers_of(rules, arrows)
    place: dict[str | Bend, tuple[float, float]] = {
        node: (ACROSS * x, DOWN * ((len(layer) - 1) / 2 - y))
        for x, layer in enumerate(layers)
        for y, node in enumerate(layer)
    }
    width, height = ACROSS * (len(layers) - 1) + WIDE + 0.3, DOWN * max(map(len, layers)) + 0.25
    figure = Figure(figsize=(0.8 * width, 0.8 * height))
    ax = figure.add_axes((0, 0, 1, 1), xlim=(-WIDE / 2 - 0.15, width - WIDE / 2 - 0.15), ylim=(-height / 2, height / 2))
    ax.set_axis_off()
    style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 10, "color": "#777777", "linewidth": 1.0}
    for a, b in sorted(arrows):
        (x, y), (u, v) = place[a], place[b]
        if a == b:
            ends = (x + 0.35, y + HIGH / 2), (x - 0.35, y + HIGH / 2)
            ax.add_patch(FancyArrowPatch(*ends, connectionstyle="arc3,rad=0.7", **style))
            continue
        way = [
            (x + WIDE / 2, y),
            *(place[a, b, d] for d in range(len(layers)) if (a, b, d) in place),
            (u - WIDE / 2, v),
        ]
        points, codes = [way[0]], [MplPath.MOVETO]
        for (x, y), (u, v) in pairwise(way):
            points += [((x + u) / 2, y), ((x + u) / 2, v), (u, v)]
            codes += [MplPath.CURVE4] * 3
        ax.add_patch(FancyArrowPatch(path=MplPath(points, codes), **style))
    for rule in rules:
        x, y = place[rule]
        colour = next((c for key, c in COLOURS.items() if key in rule), PLAIN)
        corner = (x - WIDE / 2 + PAD, y - HIGH / 2 + PAD)
        box = FancyBboxPatch(corner, WIDE - 2 * PAD, HIGH - 2 * PAD, boxstyle=f"round,pad={PAD}", facecolor=colour)
        ax.add_patch(box)
        box.set(edgecolor="#555555", linewidth=0.8)
        ax.text(x, y, rule.replace("_", " "), ha="center", va="center", fontsize=8)
    return figure


dot = subprocess.run(
    [sys.executable, "-m", "snakemake", "--rulegraph", "--configfile", "config/demo.yaml", "--", "all"],
    check=True,
    capture_output=True,
    text=True,
).stdout
with mpl.rc_context({"svg.hashsalt": "dibs", "svg.fonttype": "none", "font.family": "DejaVu Sans"}):
    picture = draw(*read_dot(dot))
    picture.savefig(snakemake.output.svg, metadata={"Date": None}, facecolor="white")
    picture.savefig(snakemake.output.png, dpi=150, metadata={"Software": None}, facecolor="white")
