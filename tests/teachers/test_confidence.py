"""The confidence head: its fit beside scikit-learn's, its report by hand, and what relabelling does."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dibs.families import load_family, reach_avoid
from dibs.policies.network import Network
from dibs.policies.scaling import edge_scaling
from dibs.teachers.buffers import StateBuffers
from dibs.teachers.confidence import RIDGE, ConfidenceHead, candidate_losses, fit_logistic, report, sigmoid
from dibs.teachers.rollouts import Draws, roll
from dibs.teachers.train import network_of, relabel


def labelled(n: int, features: int, sharpness: float, bias: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, features))
    p = sigmoid(sharpness * x @ rng.standard_normal(features) + bias)
    return x, (rng.random(n) < p).astype(float)


@pytest.mark.parametrize(
    "n, features, sharpness, bias",
    [(500, 8, 0.5, 0.0), (2000, 8, 3.0, -3.0), (4000, 64, 1.0, 1.0), (300, 8, 30.0, 0.0), (200, 3, 1.0, 2.5)],
)
def test_fit_against_scikit_learn(n, features, sharpness, bias):
    x, y = labelled(n, features, sharpness, bias, seed=n)
    ours = fit_logistic(x, y)
    # scikit-learn's weights of a class sum to half the samples; its penalty is on their sum, not their mean.
    theirs = LogisticRegression(class_weight="balanced", C=1.0 / (RIDGE * n), tol=1e-10, max_iter=10_000).fit(x, y)
    expected = np.append(theirs.coef_[0], theirs.intercept_)
    np.testing.assert_allclose(ours, expected, atol=2e-3 * max(1.0, np.abs(expected).max()))
    np.testing.assert_allclose(sigmoid(x @ ours[:-1] + ours[-1]), theirs.predict_proba(x)[:, 1], atol=1e-3)


def test_a_start_elsewhere_ends_at_the_same_place():
    x, y = labelled(800, 8, 1.5, 0.5, seed=1)
    far = fit_logistic(x, y, start=np.full(9, 3.0, dtype=np.float32), steps=50)
    np.testing.assert_allclose(far, fit_logistic(x, y, steps=50), atol=1e-3)


def test_separable_classes_stay_finite():
    x = np.concatenate([np.full((50, 2), 1.0), np.full((50, 2), -1.0)])
    weights = fit_logistic(x, np.repeat([1.0, 0.0], 50))
    assert np.isfinite(weights).all() and np.all(weights[:-1] > 0.5)


def test_sigmoid_does_not_overflow():
    with np.errstate(all="raise"):
        assert sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0.0, 0.5, 1.0]


def test_heads_in_a_batch_are_dot_products():
    head = ConfidenceHead(np.array([[1.0, 2.0, -0.5], [0.0, -1.0, 3.0]], dtype=np.float32))
    features = np.array([[[1.0, 1.0], [0.0, 0.0]], [[5.0, 3.0], [1.0, 1.0]]], dtype=np.float32)
    np.testing.assert_allclose(head.logits(features), [[2.5, -0.5], [0.0, 2.0]], atol=1e-6)
    np.testing.assert_allclose(head.probability(features), sigmoid(head.logits(features)))
    assert head.take(np.array([1])).weights.tolist() == [[0.0, -1.0, 3.0]]


# --- report ----------------------------------------------------------------------------------------------


def test_report_by_hand():
    p = np.array([0.95, 0.92, 0.65, 0.15, 0.75, 0.12])
    labels = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    told = report(p, labels, threshold=0.7)
    # Balanced: three of four high states above 0.5, one of two low ones below.
    assert told.accuracy == pytest.approx(0.5 * 3 / 4 + 0.5 * 1 / 2)
    assert told.high_kept == pytest.approx(2 / 4)
    assert told.low_kept == pytest.approx(1 / 2)
    # A high state weighs 1/8, a low one 1/4. Bins: [.9, 1] two high, [.6, .7) one high, [.7, .8) one low,
    # [.1, .2) one of each.
    bins = [
        abs((0.95 - 1) / 8 + (0.92 - 1) / 8),
        abs((0.65 - 1) / 8),
        abs(0.75 / 4),
        abs((0.15 - 1) / 8 + 0.12 / 4),
    ]
    assert told.calibration == pytest.approx(sum(bins))


def test_a_perfect_head_scores_perfectly():
    told = report(np.array([1.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0]), 0.7)
    assert (told.accuracy, told.calibration, told.high_kept, told.low_kept) == (1.0, 0.0, 1.0, 0.0)


def test_calibration_of_probabilities_that_are_true_is_small():
    rng = np.random.default_rng(2)
    p = rng.random(200_000)
    labels = (rng.random(len(p)) < p).astype(float)
    assert report(p, labels, 0.5).calibration < 0.01
    assert report(np.sqrt(p), labels, 0.5).calibration > 0.1


# --- the joint objective of ARS --------------------------------------------------------------------------


def filled(edges: int, dim: int, rng: np.random.Generator) -> StateBuffers:
    buffers = StateBuffers(edges, dim, rng, capacity=400)
    for edge in range(edges):
        states = rng.standard_normal((1, 300, dim)).astype(np.float32)
        buffers.add_episodes(edge, states, np.ones((1, 300), bool), states[0, :, 0] > 0.0)
    return buffers


def test_candidate_losses_are_the_cross_entropy_of_each_trunk(tiny):
    rng = np.random.default_rng(3)
    network, scaling = network_of(tiny), edge_scaling(tiny)
    buffers = filled(2, 2, rng)
    candidates = network.initial(rng, (3, 5))
    edges = np.array([1, 0, 1])
    head = ConfidenceHead(rng.standard_normal((3, 9)).astype(np.float32))
    got = candidate_losses(network, candidates, head, scaling, edges, buffers, np.random.default_rng(4), sample=20)
    again = np.random.default_rng(4)
    expected = np.zeros((3, 5))
    for kind, label in (("high", 1.0), ("low", 0.0)):
        for r, edge in enumerate(edges):
            view = buffers.edges[edge][kind].view()
            x = (view[again.integers(len(view), size=20)] - scaling.center[edge]) / scaling.half[edge]
            for c in range(5):
                logit = network.trunk(candidates[r, c], x) @ head.weights[r, :-1] + head.weights[r, -1]
                p = 1.0 / (1.0 + np.exp(-logit.astype(float)))
                expected[r, c] += -np.log(p if label else 1.0 - p).mean()
    np.testing.assert_allclose(got, expected, rtol=1e-4)


def test_refit_lowers_the_loss_it_is_used_in(tiny):
    rng = np.random.default_rng(5)
    network, scaling = network_of(tiny), edge_scaling(tiny)
    buffers, theta, edges = filled(2, 2, rng), network.initial(rng, (2,)), np.array([0, 1])
    blank = ConfidenceHead.zeros(2, 8)
    fitted = blank.refit(network, theta, scaling, edges, buffers, rng)
    before, after = (
        candidate_losses(network, theta[:, None], head, scaling, edges, buffers, np.random.default_rng(6), 200)
        for head in (blank, fitted)
    )
    np.testing.assert_allclose(before, 2 * np.log(2.0), rtol=1e-5)
    assert np.all(after < 0.7 * before)


def test_refit_of_some_edges_does_not_look_at_the_others(tiny):
    """An edge that has converged without a single failure has no low-quality states to sample."""
    rng = np.random.default_rng(7)
    network, scaling = network_of(tiny), edge_scaling(tiny)
    buffers, theta = filled(2, 2, rng), network.initial(rng, (1,))
    del buffers.edges[0]
    buffers.edges.insert(0, StateBuffers(1, 2, rng).edges[0])
    head = ConfidenceHead.zeros(1, 8).refit(network, theta, scaling, np.array([1]), buffers, rng)
    assert np.isfinite(head.weights).all() and head.weights.any()


# --- relabelling -----------------------------------------------------------------------------------------


def steady() -> tuple[Network, np.ndarray]:
    """An actor of (x, y) whose actions are constant: full speed along +x."""
    network = Network(2, (8,), 2)
    theta = np.zeros((1, 1, network.size), dtype=np.float32)
    theta[..., -2:] = [10.0, 0.0]
    return network, theta


def test_relabel_asks_the_converged_teacher(tiny_description):
    family = load_family(
        tiny_description(
            environment={"name": "Car2D", "noise": 0.0},
            specification="achieve reach(a)",
            regions={"a": {"center": [5.0, 0.0], "half_width": 1.0}},
        )
    )
    network, theta = steady()
    tasks = reach_avoid(family, [0])
    rng = np.random.default_rng(8)
    buffers = StateBuffers(1, 2, rng, capacity=300)
    states = rng.uniform([-8.0, -3.0], [8.0, 3.0], (500, 2)).astype(np.float32)
    # While it trained, states were labelled by chance.
    buffers.add_episodes(0, states[None], np.ones((1, 500), bool), rng.random(500) < 0.5)
    held = {tuple(s) for kind in ("high", "low") for s in buffers.edges[0][kind].view().tolist()}
    replay = buffers.edges[0]["replay"].view().copy()
    steps = relabel(network, theta, tasks, buffers, rng)
    high, low = (buffers.edges[0][kind].view() for kind in ("high", "low"))

    def succeeds(x: float, y: float) -> bool:
        """Ten steps of length one along x meet the box; the first step is taken whatever the start."""
        return abs(y) <= 1.0 and any(4.0 <= x + n <= 6.0 for n in range(1, 11))

    assert all(succeeds(*s) for s in high.tolist()) and not any(succeeds(*s) for s in low.tolist())
    assert len(high) > 20 and len(low) == 300  # more failures than fit: a sample of them
    assert {tuple(s) for s in np.concatenate([high, low]).tolist()} <= held
    assert np.array_equal(buffers.edges[0]["replay"].view(), replay)
    draws = Draws(np.array([sorted(held)], dtype=np.float32), np.zeros((10, 1, len(held), 2), np.float32))
    assert steps == roll(network, theta, tasks, draws).steps
