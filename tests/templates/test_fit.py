"""The fit by behavioral cloning: its loss, its gradient, what it finds, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.optimize import check_grad

from dibs.errors import DibsError
from dibs.policies.network import Network
from dibs.settings import parse_settings
from dibs.templates.fit import FitSettings, Objective, Supervision, _Batches, fit
from dibs.templates.polynomial import identity, unroll
from dibs.templates.refine import continued, minimize, refine

NETWORK = Network(2, (8,), 2)
TRAIN = np.array([0, 2, 4, 6, 8])


def planted(
    degree: int = 1, indices: np.ndarray = TRAIN, edges: int = 2, rows: int = 300, spread: float = 0.02, seed: int = 0
) -> tuple[Supervision, np.ndarray]:
    """Actions of policies that a known κ unrolls, and that κ."""
    rng = np.random.default_rng(seed)
    base = NETWORK.initial(rng, (edges,))
    kappa = identity(degree, base.shape)
    kappa += spread * rng.standard_normal(kappa.shape) / (1.0 + np.arange(degree + 1))[:, None, None] ** 2
    policies = unroll(kappa, base.astype(float), int(indices.max()))
    states = rng.uniform(-1, 1, (edges, len(indices), rows, 2)).astype(np.float32)
    actions = NETWORK.forward(policies[indices].swapaxes(0, 1).astype(np.float32), states)
    present = np.ones((edges, len(indices)), dtype=bool)
    return Supervision(indices, states, actions, present, base, np.zeros(edges, dtype=int)), kappa


def objective(data: Supervision, settings: FitSettings) -> Objective:
    priors = [(settings.prior, settings.movement, settings.free_biases)] * len(data.base)
    return Objective(data, NETWORK, settings.degree, priors)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


# --- the loss --------------------------------------------------------------------------------------------


def naive_loss(data: Supervision, kappa: np.ndarray, edge: int) -> float:
    """Σ_i 1/|D_i| Σ_{(s,a)} ‖π_i(s) − a‖², with every policy unrolled by itself, as printed in section 4.2."""
    total = 0.0
    for n, index in enumerate(data.indices):
        if not data.present[edge, n]:
            continue
        theta = data.base[edge].astype(float)
        for _ in range(index - data.base_index[edge]):
            theta = sum(kappa[r, edge] * theta**r for r in range(len(kappa)))
        squares = [
            np.sum((NETWORK.forward(theta, s[None].astype(float))[0] - a) ** 2)
            for s, a in zip(data.states[edge, n], data.actions[edge, n], strict=True)
        ]
        total += sum(squares) / len(squares)
    return total


@pytest.mark.parametrize("degree", [1, 2])
def test_the_loss_is_the_printed_formula(degree):
    data, _ = planted(degree, rows=40)
    at = objective(data, FitSettings(degree=degree))
    z = 0.3 * np.random.default_rng(1).standard_normal(at.start.shape)
    expected = [naive_loss(data, at.kappa(z), edge) for edge in (0, 1)]
    np.testing.assert_allclose(at.value(z), expected, rtol=1e-4)


def test_the_reported_loss_is_the_papers_even_with_priors():
    data, _ = planted(rows=50)
    settings = FitSettings(max_steps=100, prior=0.1, movement=0.1)
    found = fit(data, NETWORK, settings, rng())
    np.testing.assert_allclose(found.loss, [naive_loss(data, found.kappa, e) for e in (0, 1)], rtol=1e-3)
    np.testing.assert_allclose(found.loss, found.per_index.sum(axis=1))


def test_the_priors_are_added_to_what_is_minimized():
    data, _ = planted(rows=20)
    z = np.random.default_rng(2).standard_normal((2, 2, NETWORK.size))
    plain, pulled, still, freed = (
        objective(data, FitSettings(**weights)).value(z)
        for weights in ({}, {"prior": 0.5}, {"movement": 0.25}, {"movement": 0.25, "free_biases": True})
    )
    np.testing.assert_allclose(pulled - plain, 0.5 * (z[1] ** 2).sum(axis=1))
    np.testing.assert_allclose(still - plain, 0.25 * (z[0] ** 2).sum(axis=1))
    biases = slice(16, 24)  # of the first layer: after its 2 × 8 weights
    np.testing.assert_allclose(still - freed, 0.25 * (z[0, :, biases] ** 2).sum(axis=1))


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("prior", [0.0, 0.01])
def test_the_gradient_against_autograd(degree, prior):
    data, _ = planted(degree, rows=32)
    data.present[1, 3] = False
    at = objective(data, FitSettings(degree=degree, prior=prior, movement=prior / 2))
    z = 0.2 * np.random.default_rng(3).standard_normal(at.start.shape)
    for edges in (np.array([0, 1]), np.array([1])):
        got = at.gradient(z, edges, slice(0, 32))
        variable = torch.tensor(z, requires_grad=True)
        kappa = torch.tensor(at.start) + variable / torch.tensor(at.scale)
        loss = torch.zeros((), dtype=torch.float64)
        theta = torch.tensor(data.base, dtype=torch.float64)
        for index in range(int(TRAIN.max()) + 1):
            for n in np.flatnonzero(index == TRAIN):
                for e in edges:
                    if not data.present[e, n]:
                        continue
                    w1, b1 = theta[e, :16].reshape(2, 8), theta[e, 16:24]
                    w2, b2 = theta[e, 24:40].reshape(8, 2), theta[e, 40:]
                    x, a = (torch.tensor(v[e, n], dtype=torch.float64) for v in (data.states, data.actions))
                    out = torch.tanh(torch.tanh(x @ w1 + b1) @ w2 + b2)
                    loss = loss + ((out - a) ** 2).sum(dim=1).mean()
            step = [kappa[r] * theta**r for r in range(degree + 1)]
            theta = sum(step[1:], step[0]) if degree else theta + kappa[0]
        loss = loss + prior * (variable[1:] ** 2).sum() + prior / 2 * (variable[0] ** 2).sum()
        (expected,) = torch.autograd.grad(loss, variable)
        expected = expected.numpy()[:, edges]
        np.testing.assert_allclose(got, expected, atol=2e-4 * np.abs(expected).max())


# --- what it finds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [0, 1, 2])
def test_it_recovers_the_policies_of_a_planted_template(degree):
    """At the training indices, and between them: κ itself need not be found, what it does must be."""
    data, kappa = planted(degree, rows=600)
    settings = FitSettings(degree=degree, max_steps=1500, batch=256)
    found = fit(data, NETWORK, settings, rng())
    start = objective(data, settings).value(np.zeros_like(found.kappa))
    assert np.all(found.loss < 0.01 * start)
    states = np.random.default_rng(4).uniform(-1, 1, (2, 500, 2)).astype(np.float32)
    for unseen in (1, 3, 5, 7):
        ours, theirs = (
            NETWORK.forward(unroll(k, data.base.astype(float), 8)[unseen].astype(np.float32), states)
            for k in (found.kappa, kappa)
        )
        assert np.sqrt(np.mean((ours - theirs) ** 2)) < 0.05


@pytest.mark.parametrize("degree", [1, 2, 3])
def test_it_stays_finite_over_forty_indices(degree):
    """At the paper's rate of 0.1, with policies that move as far as a teacher's do."""
    indices = np.arange(0, 41, 5)
    data, _ = planted(1, indices, edges=2, rows=128, spread=0.01)
    found = fit(data, NETWORK, FitSettings(degree=degree, max_steps=300, batch=64), rng())
    start = objective(data, FitSettings(degree=degree)).value(np.zeros_like(found.kappa))
    assert np.isfinite(found.kappa).all() and np.isfinite(unroll(found.kappa, data.base, 40)).all()
    assert np.all(found.loss < 0.5 * start)


def test_a_higher_degree_fits_no_worse_than_the_one_it_contains():
    """Forty indices, the paper's rate, teachers that no polynomial joins: higher powers run away if they are let."""
    indices = np.arange(0, 41, 5)
    data, _ = planted(1, indices, edges=3, rows=256, spread=0.01)
    teachers = data.base[:, None] + 0.7 * rng().standard_normal((3, len(indices), NETWORK.size))
    data = replace(data, actions=NETWORK.forward(teachers.astype(np.float32), data.states))
    fits = [fit(data, NETWORK, FitSettings(degree=degree, max_steps=400), rng()) for degree in (1, 2, 3)]
    for lower, higher in pairwise(fits):
        assert np.all(higher.loss <= lower.loss)
        assert higher.steps > lower.steps  # the curve goes on where the lower degree's ended
        assert higher.curve[: len(lower.curve)] == lower.curve
    assert fits[2].loss.sum() < fits[0].loss.sum()


def test_the_base_policy_is_not_changed():
    data, _ = planted(rows=64)
    before = data.base.copy()
    fit(data, NETWORK, FitSettings(max_steps=50), rng())
    assert np.array_equal(data.base, before)


def test_the_best_iterate_is_returned():
    data, _ = planted(rows=64)
    found = fit(data, NETWORK, FitSettings(max_steps=120, batch=4, rate=2.0, check_every=5, patience=1000), rng())
    seen = np.array([row[1:] for row in found.curve])
    assert np.any(seen.argmin(axis=0) < len(seen) - 1)  # not the last one of every edge
    np.testing.assert_allclose(found.loss, seen.min(axis=0), rtol=1e-5)
    assert [row[0] for row in found.curve] == list(range(0, found.steps + 1, 5))


@pytest.mark.parametrize("steps", [0, 1, 73])
def test_the_last_step_is_looked_at_whatever_their_number(steps):
    data, _ = planted(rows=64)
    found = fit(data, NETWORK, FitSettings(max_steps=steps), rng())
    assert found.curve[-1][0] == found.steps == steps


def test_it_stops_when_nothing_moves_any_more():
    data, _ = planted(rows=64, spread=0.0)  # the identity is the answer
    found = fit(data, NETWORK, FitSettings(), rng())
    assert found.steps < 3000 and np.all(found.loss < 1e-10)


def test_an_edge_is_fitted_the_same_in_any_company():
    """Edges share the array program, not their search."""
    data, _ = planted(rows=64)
    both = fit(data, NETWORK, FitSettings(max_steps=100), rng())
    alone = Supervision(
        data.indices, *(getattr(data, f)[1:] for f in ("states", "actions", "present", "base", "base_index"))
    )
    one = fit(alone, NETWORK, FitSettings(max_steps=100), rng())
    np.testing.assert_allclose(one.kappa[:, 0], both.kappa[:, 1], atol=1e-5)


def test_the_same_seed_gives_the_same_bytes():
    data, _ = planted(rows=2000)
    kappas = [
        fit(data, NETWORK, FitSettings(max_steps=30), np.random.default_rng(seed)).kappa.tobytes() for seed in (0, 0, 1)
    ]
    assert kappas[0] == kappas[1] != kappas[2]


def test_absent_datasets_stay_out_of_the_loss():
    data, _ = planted(rows=64)
    data.present[0, 2] = False
    data.actions[0, 2] = 1e6  # whatever stands there
    found = fit(data, NETWORK, FitSettings(max_steps=300), rng())
    assert np.isnan(found.per_index[0, 2]) and np.isfinite(np.delete(found.per_index[0], 2)).all()
    assert found.loss[0] < 1.0


def test_a_branch_that_begins_later_unrolls_from_there():
    """Index 4 is its base; what was before it has no teacher."""
    late, kappa = planted(indices=np.array([0, 2, 4]), edges=1, rows=400)
    indices = np.array([0, 2, 4, 6, 8])
    pad = np.full((1, 2, 400, 2), 7.0, np.float32)
    data = Supervision(
        indices,
        np.concatenate([pad, late.states], axis=1),
        np.concatenate([pad, late.actions], axis=1),
        np.array([[False, False, True, True, True]]),
        late.base,
        np.array([4]),
    )
    found = fit(data, NETWORK, FitSettings(max_steps=800, batch=128), rng())
    assert found.loss[0] < 0.05 * objective(late, FitSettings()).value(np.zeros_like(kappa))[0]


# --- L-BFGS after Adam ----------------------------------------------------------------------------------


@pytest.mark.parametrize("degree", [1, 2])
def test_the_gradient_of_one_edge_against_finite_differences(degree):
    data, _ = planted(degree, rows=40)
    data.present[1, 3] = False
    at = objective(data, FitSettings(degree=degree, prior=0.01, movement=0.005)).only(1)
    shape = at.start.shape
    z = 0.2 * np.random.default_rng(1).standard_normal(shape)
    off = check_grad(
        lambda flat: at.value_and_gradient(flat.reshape(shape))[0][0],
        lambda flat: at.value_and_gradient(flat.reshape(shape))[1].reshape(-1),
        z.reshape(-1),
    )
    assert off < 1e-5 * np.abs(at.value_and_gradient(z)[1]).max()
    np.testing.assert_allclose(at.value_and_gradient(z)[0], at.value(z))


def test_one_edge_has_the_loss_it_has_among_others():
    data, _ = planted(rows=64)
    data = replace(data, base_index=np.array([0, 2]))  # edges of different lengths share one scale
    whole = objective(data, FitSettings(prior=0.1, movement=0.1))
    z = 0.2 * np.random.default_rng(2).standard_normal(whole.start.shape)
    for e in (0, 1):
        np.testing.assert_allclose(whole.only(e).value(z[:, e : e + 1]), whole.value(z)[e], rtol=1e-5)


@pytest.mark.parametrize("degree", [1, 2])
def test_lbfgs_finds_the_policies_of_a_planted_template(degree):
    """The minimum is zero: the rows were labeled by policies that a known κ unrolls."""
    data, kappa = planted(degree, rows=200)
    adam = fit(data, NETWORK, FitSettings(degree=degree, max_steps=100), rng())
    both = fit(data, NETWORK, FitSettings(degree=degree, max_steps=100, refine=400), rng())
    assert np.all(both.loss < 0.02 * adam.loss) and np.all(both.loss < 1e-5)
    states = np.random.default_rng(4).uniform(-1, 1, (2, 500, 2))
    for unseen in (1, 3, 5, 7):  # what κ does between training indices is found, too
        ours, theirs = (
            NETWORK.forward(unroll(k, data.base.astype(float), 8)[unseen], states) for k in (both.kappa, kappa)
        )
        assert np.sqrt(np.mean((ours - theirs) ** 2)) < 0.02


def test_continuation_starts_from_the_identity_and_fits_all_indices():
    data, _ = planted(rows=200, spread=0.05)
    one = objective(data, FitSettings()).only(0)
    start = one.value(np.zeros_like(one.start))[0]
    assert one.value(continued(one, 400))[0] < 0.01 * start
    nothing = replace(data, present=np.array([[True, False, False, False, False]] * 2))
    alone = objective(nothing, FitSettings()).only(0)
    assert not continued(alone, 100).any()  # nothing but the base: the identity


def test_restarts_leave_a_bad_minimum():
    """A start with saturated units, where the gradient is almost zero, is where a search stays."""
    data, _ = planted(edges=1, rows=200)
    whole = objective(data, FitSettings())
    stuck = np.zeros_like(whole.start)
    stuck[0, :, 16:24] = 40.0 * np.sign(data.base[:, 16:24])  # first layer's biases
    before = whole.value(stuck)[0]
    stays = whole.value(refine(whole, stuck, 100, 0, rng()))[0]
    leaves = whole.value(refine(whole, stuck, 100, 1, rng()))[0]
    assert stays > 0.1 * before and leaves < 1e-3 * before


def test_lbfgs_never_makes_an_edge_worse():
    data, _ = planted(rows=64, edges=3)
    whole = objective(data, FitSettings())
    for seed in range(3):
        z = 3.0 * np.random.default_rng(seed).standard_normal(whole.start.shape)
        assert np.all(whole.value(refine(whole, z, 3, 2, rng())) <= whole.value(z))


def test_iterates_whose_parameters_run_away_are_left():
    data, _ = planted(edges=1, rows=64)
    one = objective(data, FitSettings()).only(0)
    far = np.full_like(one.start, 1e4)
    assert np.isinf(one.value_and_gradient(far)[0])
    assert np.array_equal(minimize(one, far, 10), far)


def test_lbfgs_is_off_in_the_papers_fit():
    settings = parse_settings(FitSettings, {})
    assert settings.refine == 0 and settings.restarts == 0


# --- minibatches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows, size", [(1000, 512), (5000, 512), (512, 512), (300, 512), (1, 1)])
def test_minibatches_are_full_and_leave_no_row_out_for_good(rows, size):
    batches = _Batches(rows, np.random.default_rng(0))
    used = np.zeros(rows, dtype=int)  # rounds in which a row was used
    rounds = max(rows // size, 1)
    for _ in range(200):
        seen = np.zeros(rows, dtype=int)
        for _ in range(rounds):
            seen[batches.next(size)] += 1
        assert seen.max() == 1 and seen.sum() == min(rows, rounds * size)  # no row twice in a round
        used += seen
    assert used.min() > 70


# --- what it refuses -------------------------------------------------------------------------------------


def test_a_fit_that_diverges_is_an_error():
    data, _ = planted(rows=64)
    with pytest.raises(DibsError, match=r"the fit diverged \(degree 2, 8 unrolled steps\); use a smaller rate"):
        fit(data, NETWORK, FitSettings(degree=2, rate=1e6, max_steps=200), rng())


@pytest.mark.parametrize("field", ["states", "actions", "base"])
def test_numbers_that_are_not_finite_are_an_error(field):
    data, _ = planted(rows=64)
    array = getattr(data, field).copy()
    array[(0,) * array.ndim] = np.nan
    with pytest.raises(DibsError, match="not finite before the first step: a dataset or base policy is damaged"):
        fit(replace(data, **{field: array}), NETWORK, FitSettings(max_steps=10), rng())


@pytest.mark.parametrize("bad", [{"degree": -1}, {"rate": 0}, {"batch": 0}, {"prior": -1}, {"samples": 0}])
def test_settings_that_make_no_sense_are_refused(bad):
    with pytest.raises(DibsError, match=next(iter(bad))):
        parse_settings(FitSettings, bad)
