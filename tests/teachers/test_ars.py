"""Augmented random search: beside sb3-contrib's, its anchor, its restarts, its repeatability."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dibs.errors import DibsError
from dibs.families import get_family, load_family, reach_avoid
from dibs.policies.network import Network
from dibs.policies.scaling import edge_scaling
from dibs.teachers.ars import ArsSettings, _best_restart, train
from dibs.teachers.base import Lesson
from dibs.teachers.buffers import StateBuffers
from dibs.teachers.registry import train_with
from dibs.teachers.rollouts import draw, roll

QUICK = ArsSettings(
    directions=8, best=4, rollouts=8, iterations=40, restarts=1, check_rollouts=50, exploration=0.1, step=0.05
)


def lesson(family, index=0, seed=0, edges=None, **more) -> Lesson:
    rng = np.random.default_rng(seed)
    names = [edge.name for edge in family.edges]
    chosen = names if edges is None else edges
    scaling = edge_scaling(family).take(np.array([names.index(name) for name in chosen]))
    network = Network(2, tuple(family.network.hidden), 2)
    buffers = StateBuffers(len(chosen), 2, rng, capacity=1000)
    return Lesson(reach_avoid(family, [index], chosen), network, scaling, buffers, rng, seed, **more)


def quality(given: Lesson, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Success and return of every edge on fresh rollouts."""
    folded = given.network.fold(theta, given.scaling.center, given.scaling.half)[:, None]
    outcome = roll(given.network, folded, given.tasks, draw(given.tasks, 500, np.random.default_rng(99)))
    return outcome.success[:, 0], outcome.returns[:, 0]


@pytest.fixture(scope="module")
def able(tiny) -> np.ndarray:
    """Actors of `tiny` at index 0 that succeed."""
    theta = train(lesson(tiny), replace(QUICK, restarts=4)).theta
    assert quality(lesson(tiny), theta)[0].min() > 0.95
    return theta


def test_it_learns_a_car2d_edge():
    given = lesson(get_family("car2d-reach"), edges=["start>g1"])
    learnt = train(given, QUICK)
    success, _ = quality(given, learnt.theta)
    assert success[0] >= 0.99
    assert learnt.theta.shape == (1, given.network.size) and learnt.theta.dtype == np.float32
    assert learnt.head is None  # the head is fitted on the final trunk
    assert learnt.iterations <= QUICK.iterations
    iterations = [point["iteration"] for point in learnt.curve]
    assert iterations == [float(i) for i in range(0, learnt.iterations + 1, QUICK.check_every)]
    assert [point["success"] for point in learnt.curve] == sorted(point["success"] for point in learnt.curve)
    assert learnt.curve[-1]["steps"] == learnt.steps


@pytest.mark.slow
def test_as_good_as_sb3_contrib_at_as_many_steps():
    """The same edge, network, settings and number of environment steps."""
    import torch
    from sb3_contrib import ARS
    from sb3_contrib.ars.policies import ARSPolicy
    from stable_baselines3.common.logger import Logger

    from dibs.envs.sb3 import ReachAvoidVecEnv

    given = lesson(get_family("car2d-reach"), edges=["start>g1"])
    ours = train(given, QUICK)
    torch.set_num_threads(1)
    env = ReachAvoidVecEnv(given.tasks, 8, scale=(given.scaling.center[0], given.scaling.half[0]))
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


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tiny):
    settings = replace(QUICK, iterations=10, restarts=2)
    runs = [train(lesson(tiny, seed=seed), settings) for seed in (3, 3, 4)]
    assert runs[0].theta.tobytes() == runs[1].theta.tobytes() and runs[0].curve == runs[1].curve
    assert runs[0].theta.tobytes() != runs[2].theta.tobytes()


# --- the anchor ------------------------------------------------------------------------------------------


def drift(tiny, previous: np.ndarray, anchor: float, seed: int) -> tuple[float, float]:
    given = lesson(tiny, index=4, seed=seed, previous=previous, anchor=anchor)
    # No early stop: all weights are pulled for as long.
    learnt = train(given, replace(QUICK, iterations=20, patience=1000))
    return float(np.linalg.norm(learnt.theta - previous)), float(quality(given, learnt.theta)[0].min())


def test_the_anchor_shrinks_the_drift(tiny, able):
    drifts = {anchor: [drift(tiny, able, anchor, seed) for seed in range(3)] for anchor in (0.0, 1e-2, 1.0)}
    mean = {anchor: np.mean([d for d, _ in runs]) for anchor, runs in drifts.items()}
    assert mean[1.0] < mean[1e-2] < mean[0.0]
    assert all(success > 0.9 for _, success in drifts[1e-2])


def test_no_anchor_is_the_same_search_without_a_pull(tiny):
    """λ_x = 0 leaves everything else equal: the start, the noise, the candidates of the first iteration."""
    previous = lesson(tiny).network.initial(np.random.default_rng(1), (2,))
    once = replace(QUICK, iterations=5)
    free, barely, pulled = (
        train(lesson(tiny, index=4, previous=previous, anchor=anchor), once) for anchor in (0.0, 1e-12, 1.0)
    )
    np.testing.assert_allclose(free.theta, barely.theta, atol=1e-4)
    assert not np.array_equal(free.theta, pulled.theta)


def test_a_warm_start_begins_at_the_previous_teacher(tiny, able):
    learnt = train(lesson(tiny, previous=able), replace(QUICK, iterations=0))
    assert np.array_equal(learnt.theta, able) and not np.shares_memory(learnt.theta, able)
    assert len(learnt.curve) == 1 and learnt.curve[0]["success"] >= 0.9


def test_from_scratch_the_anchor_still_pulls(tiny, able):
    """Without a warm start: random weights, restarts, and every restart drawn to the teacher before."""
    settings = replace(QUICK, restarts=3, iterations=20, patience=1000)
    runs = [train(replace(lesson(tiny, previous=able, anchor=a), warm=False), settings) for a in (0.0, 1.0)]
    began = train(replace(lesson(tiny, previous=able), warm=False), replace(settings, iterations=0)).theta
    assert not np.array_equal(began, able)
    free, pulled, before = (np.linalg.norm(theta - able) for theta in (runs[0].theta, runs[1].theta, began))
    assert pulled < free and pulled < 0.9 * before


def test_the_best_iterate_is_kept_not_the_last(tiny, able):
    """With steps far too large every iterate after the first is worse."""
    given = lesson(tiny, previous=able)
    learnt = train(given, replace(QUICK, step=100.0, iterations=10))
    assert quality(given, learnt.theta)[0].min() > 0.95


# --- restarts --------------------------------------------------------------------------------------------


def test_the_best_restart_is_by_success_then_by_return():
    success = np.array([0.2, 0.9, 0.9, 1.0, 0.0, 1.0])
    returns = np.array([-1.0, -5.0, -3.0, -9.0, -0.1, -2.0])
    assert _best_restart(success, returns, 2, 3).tolist() == [2, 5]


def test_restarts_rescue_an_unlucky_start(tiny):
    """With so short a search a single start sometimes fails; the best of eight does not."""
    brief = replace(QUICK, iterations=15)
    alone = [quality(lesson(tiny), train(lesson(tiny, seed=seed), brief).theta)[0].min() for seed in range(6)]
    assert min(alone) < 0.5
    unlucky = int(np.argmin(alone))
    many = train(lesson(tiny, seed=unlucky), replace(brief, restarts=8))
    assert quality(lesson(tiny), many.theta)[0].min() > 0.9


def test_edges_are_searched_side_by_side_and_end_up_in_their_rows(tiny):
    both = lesson(tiny)
    success, _ = quality(both, train(both, replace(QUICK, restarts=3)).theta)
    assert success.min() > 0.9


# --- buffers and confidence ------------------------------------------------------------------------------


def test_visited_states_are_offered_to_the_buffers(tiny):
    given = lesson(tiny)
    train(given, replace(QUICK, iterations=5))
    for edge in given.buffers.edges:
        assert edge["replay"].seen == edge["high"].seen + edge["low"].seen > 0
        assert np.isfinite(edge["replay"].view()).all()


def test_the_confidence_loss_takes_part_in_the_score(tiny):
    """Without it the search goes where it went; with it, elsewhere, once both kinds of states are known."""
    longer = replace(QUICK, restarts=4, patience=1000)
    runs = [lesson(tiny, confidence=weight) for weight in (0.0, 0.0, 1.0)]
    thetas = [train(run, longer).theta for run in runs]
    assert all(run.buffers.ready(np.array([0, 1])) for run in runs)
    assert np.array_equal(thetas[0], thetas[1]) and not np.array_equal(thetas[0], thetas[2])


def test_an_edge_that_never_fails_does_not_stop_the_others(tiny_description):
    """Its low-quality buffer stays empty; once it has converged nobody may sample from it."""
    regions = tiny_description()["regions"] | {"a": {"center": [2.0, 3.0], "half_width": 8.0, "shift": [0.25, 0.0]}}
    family = load_family(tiny_description(regions=regions))
    given = lesson(family, confidence=0.1)
    learnt = train(given, replace(QUICK, patience=1, iterations=60, restarts=4))
    assert given.buffers.edges[0]["low"].seen == 0
    assert given.buffers.ready(np.array([1]))  # so the head was fitted, for the other edge
    assert quality(given, learnt.theta)[0][0] == 1.0 and learnt.iterations == 60


def test_it_stops_when_it_has_converged(tiny, able):
    learnt = train(lesson(tiny, previous=able), replace(QUICK, iterations=1000, patience=2))
    assert learnt.iterations < 200


# --- registry --------------------------------------------------------------------------------------------


def test_options_are_checked(tiny):
    with pytest.raises(DibsError, match=r"unknown setting of ars 'direction'. Did you mean 'directions'"):
        train_with("ars", lesson(tiny), {"direction": 8})
    with pytest.raises(DibsError, match=r"teachers.options \(ars\).*\n.*iterations: .*\(found 'many'\)"):
        train_with("ars", lesson(tiny), {"iterations": "many"})
    with pytest.raises(DibsError, match=r"unknown teacher algorithm 'arss'. Did you mean 'ars'"):
        train_with("arss", lesson(tiny), {})
