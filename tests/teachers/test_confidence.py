"""The confidence head: its fit and report against scikit-learn, and what relabeling does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score

from dibs.families import load_family
from dibs.simulation import Draws, EdgeTask, NetworkPolicy, rollout
from dibs.teachers.base import Assignment
from dibs.teachers.buffers import StateBuffers
from dibs.teachers.confidence import RIDGE, ConfidenceHead, candidate_losses, fit_logistic, relabel, report, sigmoid


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
    found = report(p, labels, threshold=0.7)
    # Balanced: three of four high states above 0.5, one of two low ones below.
    assert found.accuracy == pytest.approx(0.5 * 3 / 4 + 0.5 * 1 / 2)
    assert found.high_kept == pytest.approx(2 / 4)
    assert found.low_kept == pytest.approx(1 / 2)
    # A high state weighs 1/8, a low one 1/4. Bins: [.9, 1] two high, [.6, .7) one high, [.7, .8) one low,
    # [.1, .2) one of each.
    bins = [
        abs((0.95 - 1) / 8 + (0.92 - 1) / 8),
        abs((0.65 - 1) / 8),
        abs(0.75 / 4),
        abs((0.15 - 1) / 8 + 0.12 / 4),
    ]
    assert found.calibration == pytest.approx(sum(bins))


@pytest.mark.parametrize("threshold", [0.3, 0.7])
@pytest.mark.parametrize("n, share", [(50, 0.5), (2000, 0.1), (2000, 0.9)])
def test_report_against_scikit_learn(n, share, threshold):
    rng = np.random.default_rng(n)
    labels = (rng.random(n) < share).astype(float)
    p = sigmoid(rng.normal(2.0 * labels - 1.0, 1.5))
    found = report(p, labels, threshold)
    assert found.accuracy == pytest.approx(balanced_accuracy_score(labels, p >= 0.5))
    assert found.high_kept == pytest.approx((p[labels == 1.0] >= threshold).mean())
    assert found.low_kept == pytest.approx((p[labels == 0.0] >= threshold).mean())


def test_a_perfect_head_scores_perfectly():
    found = report(np.array([1.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0]), 0.7)
    assert (found.accuracy, found.calibration, found.high_kept, found.low_kept) == (1.0, 0.0, 1.0, 0.0)


def test_calibration_of_probabilities_that_are_true_is_small():
    rng = np.random.default_rng(2)
    p = rng.random(200_000)
    labels = (rng.random(len(p)) < p).astype(float)
    assert report(p, labels, 0.5).calibration < 0.01
    assert report(np.sqrt(p), labels, 0.5).calibration > 0.1


# --- the joint objective of ARS --------------------------------------------------------------------------


def fill(assignment: Assignment) -> None:
    """Give every edge 300 states; those with x > 0 are of high quality."""
    for edge in range(assignment.edges.tasks):
        states = assignment.rng.standard_normal((1, 300, assignment.edges.dim)).astype(np.float32)
        assignment.buffers.add_episodes(edge, states, np.ones((1, 300), bool), states[0, :, 0] > 0.0)


def test_candidate_losses_are_the_cross_entropy_of_each_trunk(tiny, assign):
    given = assign(tiny, seed=3)
    network, scaling, rng = given.network, given.scaling, np.random.default_rng(3)
    fill(given)
    candidates = network.initial(rng, (3, 5))
    edges = np.array([1, 0, 1])
    head = ConfidenceHead(rng.standard_normal((3, 9)).astype(np.float32))
    found = candidate_losses(replace(given, rng=np.random.default_rng(4)), candidates, head, edges, sample=20)
    again = np.random.default_rng(4)
    expected = np.zeros((3, 5))
    for kind, label in (("high", 1.0), ("low", 0.0)):
        for r, edge in enumerate(edges):
            view = given.buffers.edges[edge][kind].view()
            x = (view[again.integers(len(view), size=20)] - scaling.center[edge]) / scaling.half[edge]
            for c in range(5):
                logit = network.trunk(candidates[r, c], x) @ head.weights[r, :-1] + head.weights[r, -1]
                p = 1.0 / (1.0 + np.exp(-logit.astype(float)))
                expected[r, c] += -np.log(p if label else 1.0 - p).mean()
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_refit_lowers_the_loss_it_is_used_in(tiny, assign):
    given = assign(tiny, seed=5)
    fill(given)
    theta, edges = given.network.initial(given.rng, (2,)), np.array([0, 1])
    blank = ConfidenceHead.zeros(2, 8)
    fitted = blank.refit(given, theta, edges)
    before, after = (
        candidate_losses(replace(given, rng=np.random.default_rng(6)), theta[:, None], head, edges, 200)
        for head in (blank, fitted)
    )
    np.testing.assert_allclose(before, 2 * np.log(2.0), rtol=1e-5)
    assert np.all(after < 0.7 * before)


def test_refit_of_some_edges_does_not_look_at_the_others(tiny, assign):
    """An edge that has converged without a single failure has no low-quality states to sample."""
    given = assign(tiny, seed=7)
    fill(given)
    given.buffers.edges[0] = StateBuffers(1, ["x", "y"], given.rng).edges[0]
    theta = given.network.initial(given.rng, (1,))
    head = ConfidenceHead.zeros(1, 8).refit(given, theta, np.array([1]))
    assert np.isfinite(head.weights).all() and head.weights.any()


# --- relabeling ------------------------------------------------------------------------------------------


def test_relabel_asks_the_converged_teacher(tiny_description, assign):
    family = load_family(
        tiny_description(
            environment={"name": "Car2D", "noise": 0.0},
            specification="achieve reach(a)",
            regions={"a": {"center": [5.0, 0.0], "half_width": 1.0}},
        )
    )
    given = assign(family, seed=8)
    rng = given.rng
    theta = np.zeros((1, given.network.size), dtype=np.float32)
    theta[..., -2:] = [10.0, 0.0]  # the same action everywhere: full speed along x
    policy = NetworkPolicy(given.network, theta)
    buffers = StateBuffers(1, ["x", "y"], rng, capacity=300)
    states = rng.uniform([-8.0, -3.0], [8.0, 3.0], (500, 2)).astype(np.float32)
    # While it trained, states were labeled by chance.
    buffers.add_episodes(0, states[None], np.ones((1, 500), bool), rng.random(500) < 0.5)
    held = {tuple(s) for kind in ("high", "low") for s in buffers.edges[0][kind].view().tolist()}
    replay = buffers.edges[0]["replay"].view().copy()
    steps = relabel(replace(given, buffers=buffers), policy)
    high, low = (buffers.edges[0][kind].view() for kind in ("high", "low"))

    def succeeds(x: float, y: float) -> bool:
        """Ten steps of length one along x meet the box; the first step is taken whatever the start."""
        return abs(y) <= 1.0 and any(4.0 <= x + n <= 6.0 for n in range(1, 11))

    assert all(succeeds(*s) for s in high.tolist()) and not any(succeeds(*s) for s in low.tolist())
    assert len(high) > 20 and len(low) == 300  # more failures than fit: a sample of them
    assert {tuple(s) for s in np.concatenate([high, low]).tolist()} <= held
    assert np.array_equal(buffers.edges[0]["replay"].view(), replay)
    draws = Draws(np.array([sorted(held)], dtype=np.float32), np.zeros((10, 1, len(held), 2), np.float32))
    assert steps == rollout(EdgeTask(given.edges), policy, draws).steps
