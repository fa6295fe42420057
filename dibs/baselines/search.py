"""One update of augmented random search (Mania et al. 2018), for searches over any parameters."""

from __future__ import annotations

from typing import Literal

import numpy as np

from dibs.envs import Array


def ascent(scores: Array, delta: Array, best: int, step: float, spread: Literal["best", "all"]) -> Array:
    """Where to go from the scores (n, 2 · directions) of +δ and −δ: an update (n, *parameters).

    `delta` is (n, directions, *parameters); the `best` directions, by their better sign, are followed, each as
    far as its two scores differ, over best · σ, with σ the standard deviation of the scores of the directions
    followed or of all.
    """
    directions = delta.shape[1]
    plus, minus = scores[:, :directions], scores[:, directions:]
    order = np.argsort(-np.maximum(plus, minus), axis=1, kind="stable")[:, :best]
    followed = np.stack([np.take_along_axis(plus, order, axis=1), np.take_along_axis(minus, order, axis=1)])
    sigma = scores.std(axis=1) if spread == "all" else followed.std(axis=(0, 2))
    gain = (followed[0] - followed[1]) * (step / (best * np.maximum(sigma, 1e-6)))[:, None]
    chosen = np.take_along_axis(delta.reshape(*delta.shape[:2], -1), order[..., None], axis=1)
    return np.einsum("nb,nbp->np", gain, chosen).reshape(delta.shape[0], *delta.shape[2:])
