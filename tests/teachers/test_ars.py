"""Augmented random search: compared with sb3-contrib's, its anchor, its restarts, its repeatability."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dibs.families import get_family, load_family
from dibs.teachers.ars import ArsSettings, _best_restart, train
from dibs.teachers.base import Assignment

QUICK = ArsSettings(
    directions=8, best=4, rollouts=8, iterations=40, restarts=1, check_rollouts=50, exploration=0.1, step=0.05
)


@pytest.fixture(scope="module")
def able(tiny, assign, quality) -> np.ndarray:
    """Actors of `tiny` at index 0 that succeed."""
    theta = train(assign(tiny), replace(QUICK, restarts=4)).theta
    assert quality(assign(tiny), theta)[0].min() > 0.95
    return theta


def test_it_learns_a_car2d_edge(assign, quality):
    given = assign(get_family("car2d-reach"), edges=["start>g1"])
    learned = train(given, QUICK)
    success, _ = quality(given, learned.theta)
    assert success[0] >= 0.99
    assert learned.theta.shape == (1, given.network.size) and learned.theta.dtype == np.float32
    assert learned.head is None  # the head is fitted on the final trunk
    assert learned.iterations <= QUICK.iterations
    iterations = [point["iteration"] for point in learned.curve]
    assert iterations == [float(i) for i in range(0, learned.iterations + 1, QUICK.check_every)]
    assert [point["success"] for point in learned.curve] == sorted(point["success"] for point in learned.curve)
    assert learned.curve[-1]["steps"] == learned.steps


@pytest.mark.slow
def test_as_good_as_sb3_contrib_at_as_many_steps(assign, quality):
    """The same edge, network, settings and number of environment steps."""
    import torch
    from sb3_contrib import ARS
    from sb3_contrib.ars.policies import ARSPolicy
    from stable_baselines3.common.logger import Logger

    from dibs.gym.sb3 import ReachAvoidVecEnv

    given = assign(get_family("car2d-reach"), edges=["start>g1"])
    ours = train(given, QUICK)
    torch.set_num_threads(1)
    env = ReachAvoidVecEnv(given.edges, 8, scale=(given.scaling.center[0], given.scaling.half[0]))
    theirs = ARS(
        ARSPolicy,
        env,
        n_delta=QUICK.directions,
        n_top=QUICK.best,
        delta_std=QUICK.exploration,
        learning_rate=QUICK.step,
        n_eval_episodes=QUICK.rollouts,
        zero_policy=False,
        policy_kwargs={"net_arch": [8], "activation_fn": torch.nn.Tanh, "squash_output": True},
        seed=0,
    )
    theirs.set_logger(Logger(None, []))
    theirs.learn(ours.steps)
    layers = [layer for layer in theirs.policy.action_net if isinstance(layer, torch.nn.Linear)]
    pieces = [p.detach().numpy().T.ravel() for layer in layers for p in (layer.weight, layer.bias)]
    our_success, our_return = quality(given, ours.theta)
    their_success, their_return = quality(given, np.concatenate(pieces)[None].astype(np.float32))
    assert ours.steps == pytest.approx(theirs.num_timesteps, rel=0.1)
    assert our_success[0] >= their_success[0] - 0.01
    assert our_return[0] >= their_return[0] - 0.15 * abs(their_return[0])
    assert their_success[0] > 0.9  # it was a fair opponent


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tiny, assign):
    settings = replace(QUICK, iterations=10, restarts=2)
    runs = [train(assign(tiny, seed=seed), settings) for seed in (3, 3, 4)]
    assert runs[0].theta.tobytes() == runs[1].theta.tobytes() and runs[0].curve == runs[1].curve
    assert runs[0].theta.tobytes() != runs[2].theta.tobytes()


# --- the anchor ------------------------------------------------------------------------------------------


def drift(tiny, previous: np.ndarray, anchor: float, seed: int, assign, quality) -> tuple[float, float]:
    given = assign(tiny, index=4, seed=seed, previous=previous, anchor=anchor)
    # No early stop: all weights are pulled for as long.
    learned = train(given, replace(QUICK, iterations=20, patience=1000))
    return float(np.linalg.norm(learned.theta - previous)), float(quality(given, learned.theta)[0].min())


def test_the_anchor_shrinks_the_drift(tiny, able, assign, quality):
    drifts = {
        anchor: [drift(tiny, able, anchor, seed, assign, quality) for seed in range(3)] for anchor in (0.0, 1e-2, 1.0)
    }
    mean = {anchor: np.mean([d for d, _ in runs]) for anchor, runs in drifts.items()}
    assert mean[1.0] < mean[1e-2] < mean[0.0]
    assert all(success > 0.9 for _, success in drifts[1e-2])


def test_no_anchor_is_the_same_search_without_a_pull(tiny, assign):
    """λ_x = 0 leaves everything else equal: the start, the noise, the candidates of the first iteration."""
    previous = assign(tiny).network.initial(np.random.default_rng(1), (2,))
    once = replace(QUICK, iterations=5)
    free, barely, pulled = (
        train(assign(tiny, index=4, previous=previous, anchor=anchor), once) for anchor in (0.0, 1e-12, 1.0)
    )
    np.testing.assert_allclose(free.theta, barely.theta, atol=1e-4)
    assert not np.array_equal(free.theta, pulled.theta)


def test_a_warm_start_begins_at_the_previous_teacher(tiny, able, assign):
    learned = train(assign(tiny, previous=able), replace(QUICK, iterations=0))
    assert np.array_equal(learned.theta, able) and not np.shares_memory(learned.theta, able)
    assert len(learned.curve) == 1 and learned.curve[0]["success"] >= 0.9


def test_from_scratch_the_anchor_still_pulls(tiny, able, assign):
    """Without a warm start: random weights, restarts, and every restart drawn to the teacher before."""
    settings = replace(QUICK, restarts=3, iterations=20, patience=1000)
    runs = [train(replace(assign(tiny, previous=able, anchor=a), warm=False), settings) for a in (0.0, 1.0)]
    began = train(replace(assign(tiny, previous=able), warm=False), replace(settings, iterations=0)).theta
    assert not np.array_equal(began, able)
    free, pulled, before = (np.linalg.norm(theta - able) for theta in (runs[0].theta, runs[1].theta, began))
    assert pulled < free and pulled < 0.9 * before


def test_the_best_iterate_is_kept_not_the_last(tiny, able, assign, quality):
    """With steps far too large every iterate after the first is worse."""
    given = assign(tiny, previous=able)
    learned = train(given, replace(QUICK, step=100.0, iterations=10))
    assert quality(given, learned.theta)[0].min() > 0.95


# --- restarts --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("anchor", [0.0, 1e6])
def test_among_equals_the_best_iterate_has_the_best_return_minus_anchor(tiny, able, assign, monkeypatch, anchor):
    """Candidates are not pulled, so the search moves; all iterates that it measures are."""
    plain = Assignment.pull
    monkeypatch.setattr(Assignment, "pull", lambda self, theta, edges: plain(self, theta, edges) * (theta.ndim == 2))
    given = assign(tiny, previous=able, anchor=anchor)
    learned = train(given, replace(QUICK, patience=3))
    moved = np.linalg.norm(learned.theta - able, axis=1)
    if anchor:  # nothing is better than the previous teacher, which succeeds
        assert not moved.any() and learned.iterations == 3 * QUICK.check_every
    else:
        assert np.all(moved > 0.1) and learned.iterations > 3 * QUICK.check_every


def test_the_pull_is_the_squared_distance_to_the_previous_teacher(tiny, assign):
    rng = np.random.default_rng(0)
    given = assign(tiny)
    previous = given.network.initial(rng, (2,))
    theta = given.network.initial(rng, (3, 4))
    edges = np.array([1, 0, 1])
    found = assign(tiny, previous=previous, anchor=0.5).pull(theta, edges)
    for row, candidate in np.ndindex(3, 4):
        apart = [float(a) - float(b) for a, b in zip(theta[row, candidate], previous[edges[row]], strict=True)]
        assert found[row, candidate] == pytest.approx(0.5 * sum(x * x for x in apart), rel=1e-5)
    assert not given.pull(theta, edges).any() and not assign(tiny, previous=previous).pull(theta, edges).any()


def test_the_best_restart_is_by_success_then_by_return():
    success = np.array([0.2, 0.9, 0.9, 1.0, 0.0, 1.0])
    returns = np.array([-1.0, -5.0, -3.0, -9.0, -0.1, -2.0])
    assert _best_restart(success, returns, 2, 3).tolist() == [2, 5]


def test_restarts_rescue_an_unlucky_start(tiny, assign, quality):
    """With so short a search a single start sometimes fails; the best of eight does not."""
    brief = replace(QUICK, iterations=15)
    alone = [quality(assign(tiny), train(assign(tiny, seed=seed), brief).theta)[0].min() for seed in range(6)]
    assert min(alone) < 0.5
    unlucky = int(np.argmin(alone))
    many = train(assign(tiny, seed=unlucky), replace(brief, restarts=8))
    assert quality(assign(tiny), many.theta)[0].min() > 0.9


def test_edges_are_searched_side_by_side_and_end_up_in_their_rows(tiny, assign, quality):
    both = assign(tiny)
    success, _ = quality(both, train(both, replace(QUICK, restarts=3)).theta)
    assert success.min() > 0.9


# --- buffers and confidence ------------------------------------------------------------------------------


def test_visited_states_are_offered_to_the_buffers(tiny, assign):
    given = assign(tiny)
    train(given, replace(QUICK, iterations=5))
    for edge in given.buffers.edges:
        assert edge["replay"].offered == edge["high"].offered + edge["low"].offered > 0
        assert np.isfinite(edge["replay"].view()).all()


def test_the_confidence_loss_takes_part_in_the_score(tiny, assign):
    """Without it the search goes where it went; with it, elsewhere, once both kinds of states are known."""
    longer = replace(QUICK, restarts=4, patience=1000)
    runs = [assign(tiny, confidence=weight) for weight in (0.0, 0.0, 1.0)]
    thetas = [train(run, longer).theta for run in runs]
    assert all(run.buffers.ready(np.array([0, 1])) for run in runs)
    assert np.array_equal(thetas[0], thetas[1]) and not np.array_equal(thetas[0], thetas[2])


def test_an_edge_that_never_fails_does_not_stop_the_others(tiny_description, assign, quality):
    """Its low-quality buffer stays empty; once it has converged nobody may sample from it."""
    regions = tiny_description()["regions"] | {"a": {"center": [2.0, 3.0], "half_width": 8.0, "shift": [0.25, 0.0]}}
    family = load_family(tiny_description(regions=regions))
    given = assign(family, confidence=0.1)
    learned = train(given, replace(QUICK, patience=1, iterations=60, restarts=4))
    assert given.buffers.edges[0]["low"].offered == 0
    assert given.buffers.ready(np.array([1]))  # so the head was fitted, for the other edge
    assert quality(given, learned.theta)[0][0] == 1.0 and learned.iterations == 60


def test_it_stops_when_it_has_converged(tiny, able, assign):
    learned = train(assign(tiny, previous=able), replace(QUICK, iterations=1000, patience=2))
    assert learned.iterations < 200
