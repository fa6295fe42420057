"""The hypernetwork: its gradient path, what it starts from, and that it clones actors that depend on the index."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from dibs.baselines import hyper
from dibs.errors import DibsError
from dibs.policies.network import Network
from dibs.templates.fit import Supervision

ACTOR = Network(2, (6,), 1)
SETTINGS = hyper.Settings(layers=(16,), max_steps=800, check_every=100, batch=64)


def shown(rows: int = 300, lacking: tuple[int, int] | None = None) -> Supervision:
    """Two edges at indices 0, 2, 4: actors whose weights move linearly with the index label random states."""
    rng = np.random.default_rng(0)
    indices = np.array([0, 2, 4])
    base, move = ACTOR.initial(rng, (2,)), 0.3 * ACTOR.initial(rng, (2,))
    states = rng.standard_normal((2, 3, rows, 2)).astype(np.float32)
    theta = base[:, None] + indices[None, :, None] * move[:, None]  # (edges, indices, size)
    actions = np.stack([[ACTOR.forward(theta[e, n], states[e, n]) for n in range(3)] for e in range(2)])
    present = np.ones((2, 3), dtype=bool)
    if lacking is not None:
        present[lacking] = False
        actions[lacking] = 9.0  # must not be read
    return Supervision(indices, states, actions.astype(np.float32), present, base, np.zeros(2, dtype=np.int64))


def test_it_starts_from_nearly_equal_random_actors() -> None:
    phi = hyper.initial(ACTOR, SETTINGS, 2, np.random.default_rng(0))
    network = hyper.hypernetwork(ACTOR, SETTINGS.layers)
    assert phi.shape == (2, network.size)
    actors = hyper.weights(network, ACTOR, {"phi": phi}, np.array([-1.0, 0.0, 1.0], dtype=np.float32))
    assert actors.shape == (3, 2, ACTOR.size)
    assert np.abs(actors[0] - actors[2]).max() < 0.1 < np.abs(actors[0]).max()
    assert np.abs(actors[:, 0] - actors[:, 1]).max() > 0.1


def test_it_clones_every_index_and_moves_between_them() -> None:
    data = shown()
    phi, losses = hyper.clone(ACTOR, data, 4, SETTINGS, np.random.default_rng(1))
    assert (np.min(losses, axis=0) < np.array(losses[0]) / 20).all()
    of_index = partial(hyper.weights, hyper.hypernetwork(ACTOR, SETTINGS.layers), ACTOR, {"phi": phi})
    actors = of_index(np.array([-1.0, 0.0, 1.0], dtype=np.float32))
    for e in range(2):
        for n in range(3):
            error = ACTOR.forward(actors[n, e], data.states[e, n]) - data.actions[e, n]
            assert np.mean(error**2) < 0.02
    # An index in between gets an actor of its own.
    assert np.abs(of_index(np.array([0.5], dtype=np.float32))[0] - actors[1]).max() > 1e-2


def test_what_a_dataset_lacks_stays_out_of_the_loss() -> None:
    few = hyper.Settings(layers=(4,), max_steps=50, check_every=25)
    with_gap = hyper.clone(ACTOR, shown(lacking=(1, 2)), 4, few, np.random.default_rng(1))
    plain = hyper.clone(ACTOR, shown(), 4, few, np.random.default_rng(1))
    np.testing.assert_allclose(with_gap[0][0], plain[0][0], atol=1e-5)  # the other edge is not affected
    assert max(losses[1] for losses in with_gap[1]) < 9.0


def test_a_damaged_dataset_is_refused() -> None:
    data = shown(rows=50)
    data.actions[0, 0, 0] = np.nan
    with pytest.raises(DibsError, match="not finite"):
        hyper.clone(ACTOR, data, 4, hyper.Settings(layers=(4,), max_steps=20, check_every=10), np.random.default_rng(0))
