"""Film a family over the index: rollouts of trained models, and the share that satisfies the specification.

    dibs run examples/families/car2d-turn.yaml --gap 10 --methods bc-index,dibs-plus
    python examples/film_family.py turn.gif results/models/{bc-index,dibs-plus}/car2d-turn/gap10/seed0.safetensors \
        --indices 0-40 1000 100000

The models are of one family in a plane, and trained on the same indices.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

import dibs
from dibs.drawing.regions import ROLES
from dibs.drawing.style import INK, STYLE
from dibs.drawing.tasks import draw_task
from dibs.files import atomic

WORDS = {"train": "trained", "unseen": "never trained", "beyond": "beyond the last index", "far": "far beyond"}
FRAME, HOLD = 260, 1800  # milliseconds; the second one where the index jumps, and at the end


def main() -> None:
    """Roll out every model at every index and write the film."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, metavar="OUTPUT.gif")
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--indices", nargs="+", required=True, metavar="I or I-J")
    parser.add_argument("--rollouts", type=int, default=100, help="rollouts per index that are counted")
    args = parser.parse_args()
    indices = [index for text in args.indices for index in expand(text)]
    models = [dibs.load(file) for file in args.models]
    policies = [[model.policy(index) for index in indices] for model in models]
    rates = np.array([[policy.evaluate(args.rollouts).rate for policy in row] for row in policies])
    with mpl.rc_context({**STYLE, "font.size": 9.0, "axes.titlesize": 10.0}):
        view = joint_view(policies[0])
        frames = [frame([row[n] for row in policies], rates, n, indices, view) for n in range(len(indices))]
    jumps = [n + 1 == len(indices) or indices[n + 1] > indices[n] + 1 for n in range(len(indices))]
    every = np.concatenate([np.asarray(image) for image in frames[:: max(1, len(frames) // 8)] + frames[-1:]])
    palette = Image.fromarray(every).quantize(128, dither=Image.Dither.NONE)
    images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in frames]
    with atomic(args.output) as temporary:
        times = [HOLD if jump else FRAME for jump in jumps]
        images[0].save(temporary, format="GIF", save_all=True, append_images=images[1:], duration=times, loop=0)


def expand(text: str) -> Sequence[int]:
    """Return the indices that `7` or `0-40` means."""
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def joint_view(policies: Sequence[Any]) -> np.ndarray:
    """Return limits (axes, 2) of the plane in which all tasks are visible."""
    limits = []
    for policy in policies:
        ax = Figure().add_subplot()
        draw_task(ax, policy.tasks)
        limits.append([ax.get_xlim(), ax.get_ylim()])
    low, high = np.min(limits, axis=0)[:, 0], np.max(limits, axis=0)[:, 1]
    return np.stack([low, high], axis=1)


def frame(policies: Sequence[Any], rates: np.ndarray, n: int, indices: Sequence[int], view: np.ndarray) -> Image.Image:
    """Draw one index: for every model the plane with some rollouts, and below it the rates so far."""
    figure = Figure(figsize=(3.3 * len(policies), 4.5), dpi=100, layout="constrained")
    grid = figure.subplots(2, len(policies), squeeze=False, height_ratios=[5, 1])
    for column, policy in enumerate(policies):
        ax, below = grid[:, column]
        draw_task(ax, policy.tasks, policy.episodes(8))
        ax.set(xlim=view[0], ylim=view[1], title=policy.method.label)
        ax.set_axis_off()
        draw_rates(below, rates[column], n, indices, policies[0])
        below.set_ylabel("satisfied" if column == 0 else "")
    role = policies[0].role
    figure.suptitle(f"index {indices[n]:,}: {WORDS[role]}", color=ROLES[role][0], fontsize=13)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy())


def draw_rates(ax: Axes, rates: np.ndarray, n: int, indices: Sequence[int], policy: Any) -> None:
    """Draw the rates of the first n + 1 indices; dots are trained indices, and gaps are jumps of the index."""
    places = np.cumsum([0, *np.where(np.diff(indices) > 1, 8, 1)])
    trained = np.array([index in policy.split.indices for index in indices])
    color = [INK if t else "white" for t in trained[: n + 1]]
    ax.scatter(places[: n + 1], rates[: n + 1], s=14, c=color, edgecolors=INK, linewidths=0.8)
    named = [k for k in range(len(indices)) if trained[k] or (k and indices[k] > indices[k - 1] + 1)]
    ax.set_xticks(
        places[named], [f"{indices[k]:,}" if indices[k] < 10_000 else f"{indices[k] // 1000:,}k" for k in named]
    )
    ax.set(xlim=(-1, places[-1] + 2), ylim=(-0.15, 1.15), yticks=[0, 1], xlabel="index (filled: trained)")


if __name__ == "__main__":
    main()
