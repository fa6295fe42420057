"""Candidates and update of augmented random search (Mania et al. 2018), for searches over any parameters."""

from __future__ import annotations

from typing import Literal

import numpy as np

from dibs.envs import Array


def perturbed(theta: Array, directions: int, exploration: float, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return normal directions δ (n, directions, size), and the candidates theta (n, size) ± exploration · δ.

    The candidates are (n, 2 · directions, size): first those of +δ.
    """
    delta = rng.standard_normal((len(theta), directions, theta.shape[-1]), dtype=np.float32)
    spread = np.float32(exploration) * delta
    return delta, np.concatenate([theta[:, None] + spread, theta[:, None] - spread], axis=1)


def ascent(scores: Array, delta: Array, best: int, step: float, spread: Literal["best", "all"]) -> Array:
    """Return the update (n, *parameters) that follows from the scores (n, 2 · directions) of +δ and −δ.

    `delta` is (n, directions, *parameters). The `best` directions, by their better sign, are followed, each as far as
    its two scores differ, times step / (best · σ), where σ is the standard deviation of the scores of the directions
    followed, or of all.
    """
    n, directions = delta.shape[:2]
    plus, minus = scores[:, :directions], scores[:, directions:]
    # How ties are broken and when the scale is applied matters for rounding only. Both are as in version 0.1, so equal
    # seeds give equal bytes.
    kind: Literal["stable", "quicksort"] = "stable" if spread == "all" else "quicksort"
    order = np.argsort(-np.maximum(plus, minus), axis=1, kind=kind)[:, :best]
    followed = np.stack([np.take_along_axis(plus, order, axis=1), np.take_along_axis(minus, order, axis=1)], axis=1)
    sigma = scores.std(axis=1) if spread == "all" else followed.std(axis=(1, 2))
    scale = (step / (order.shape[1] * np.maximum(sigma, 1e-6)))[:, None]
    gain = followed[:, 0] - followed[:, 1]
    chosen = np.take_along_axis(delta.reshape(n, directions, -1), order[..., None], axis=1)
    if spread == "all":
        update = np.einsum("nb,nbp->np", gain * scale, chosen)
    else:
        update = scale * np.einsum("nb,nbp->np", gain, chosen)
    return update.reshape(n, *delta.shape[2:])
