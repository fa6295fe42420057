"""Affine templates: their closed form, the gradient of the fit, what it finds, and files."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from dibs.envs import Car2D
from dibs.errors import DibsError
from dibs.files import read_tensors, write_tensors
from dibs.methods import Model, Training
from dibs.policies.network import Network
from dibs.simulation import Moment
from dibs.templates.affine import Affine, AffineLoss, AffineSettings, fit_affine, unroll_affine
from dibs.templates.methods import DIBS_AFFINE
from dibs.templates.objective import Supervision
from dibs.templates.template import RUNAWAY, evolution_of

NETWORK = Network(2, (8,), 3)
TRAIN = np.array([0, 2, 5, 8])


def turned(degrees: float, shift: list[float]) -> np.ndarray:
    """A rotation about the third axis (or in the plane), then a shift, as a homogeneous matrix."""
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    matrix = np.eye(len(shift) + 1)
    matrix[:2, :2], matrix[:-1, -1] = [[c, -s], [s, c]], shift
    return matrix


def stepwise(base: np.ndarray, g: np.ndarray, h: np.ndarray, index: int, x: np.ndarray) -> np.ndarray:
    """Actions by the recursion of the definition, without folding."""
    if index:
        raw = np.arctanh(
            np.clip(stepwise(base, g, h, index - 1, x @ g[:-1, :-1].T + g[:-1, -1]), -1 + 1e-15, 1 - 1e-15)
        )
        return np.tanh(raw @ h[:-1, :-1].T + h[:-1, -1])
    return NETWORK.forward(base, x)


def planted(rows: int = 200, seed: int = 0) -> tuple[Supervision, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    base = NETWORK.initial(rng, (1,))
    g, h = turned(9.0, [0.02, -0.05]), turned(-6.0, [0.03, 0.0, -0.02])
    states = rng.uniform(-1, 1, (1, len(TRAIN), rows, 2)).astype(np.float32)
    every = [stepwise(base[0].astype(float), g, h, i, states[0, n].astype(float)) for n, i in enumerate(TRAIN)]
    present = np.ones((1, len(TRAIN)), dtype=bool)
    return Supervision(TRAIN, states, np.array(every)[None].astype(np.float32), present, base, np.zeros(1, int)), g, h


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("index", [0, 1, 7])
def test_folded_networks_are_the_recursion(index):
    data, g, h = planted()
    x = np.random.default_rng(1).uniform(-1, 1, (20, 2))
    theta = unroll_affine(NETWORK, data.base[0], np.linalg.matrix_power(g, index), np.linalg.matrix_power(h, index))
    np.testing.assert_allclose(
        NETWORK.forward(theta, x), stepwise(data.base[0].astype(float), g, h, index, x), atol=1e-9
    )


@pytest.mark.parametrize("form", ["shift", "diagonal", "full"])
def test_the_gradient_against_finite_differences(form):
    data, _, _ = planted(rows=16)
    data.present[0, 2] = False
    loss = AffineLoss.of(data, NETWORK, 0, form, 0.01)
    assert loss.size == {"shift": 5, "diagonal": 10, "full": 18}[form]
    z = 0.5 * np.random.default_rng(2).standard_normal(loss.size)
    found = loss.value_and_gradient(z)[1]
    np.testing.assert_allclose(found, approx_fprime(z, lambda x: loss.value_and_gradient(x)[0], 1e-6), atol=1e-4)


def test_the_fit_finds_what_was_planted_and_goes_on_beyond_it():
    data, g, h = planted()
    found = fit_affine(data, NETWORK, AffineSettings(prior=0.0), rng())
    assert found.loss[0] < 1e-6
    np.testing.assert_allclose(found.per_index.sum(axis=1), found.loss)
    x = np.random.default_rng(3).uniform(-1, 1, (30, 2))
    for index in (1, 3, 20):
        maps = (np.linalg.matrix_power(m[0], index) for m in (found.inputs, found.outputs))
        theta = unroll_affine(NETWORK, data.base[0], *maps)
        expected = stepwise(data.base[0].astype(float), g, h, index, x)
        np.testing.assert_allclose(NETWORK.forward(theta, x), expected, atol=0.02)


def test_restricted_forms_leave_the_rest_alone():
    data, _, _ = planted(rows=50)
    both = replace(
        data,
        **{k: np.concatenate([getattr(data, k)] * 2) for k in ("states", "actions", "present", "base", "base_index")},
    )
    found = fit_affine(both, NETWORK, AffineSettings(iterations=20, restarts=0), rng(), ["shift", "diagonal"])
    for maps in (found.inputs, found.outputs):
        linear = maps[:, :-1, :-1]
        assert np.array_equal(linear[0], np.eye(linear.shape[-1]))
        assert np.array_equal(linear[1], np.diag(np.diag(linear[1]))) and not np.array_equal(linear[1], linear[0])
    assert found.loss[1] <= found.loss[0]


def test_left_out_indices_do_not_matter():
    """The selection leaves out training indices by `present`."""
    data, _, _ = planted(rows=50)
    data.present[0, 2] = False
    other = replace(data, actions=data.actions.copy())
    other.actions[0, 2] = 1.0
    settings = AffineSettings(iterations=20, restarts=0)
    one, two = (fit_affine(d, NETWORK, settings, rng()) for d in (data, other))
    assert np.array_equal(one.inputs, two.inputs) and np.isnan(one.per_index[0, 2])


# --- the template ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(training: Training) -> Model:
    return DIBS_AFFINE.train(training, AffineSettings(iterations=30, restarts=0))


def actions(template: Affine, index: int, edge: str, states: np.ndarray) -> np.ndarray:
    policy = template.edge_policy(Car2D(), [(index, edge)])
    yes = np.ones((1, len(states)), dtype=bool)
    now = Moment(states[None], states[None], None, np.zeros((1, len(states)), dtype=np.intp), yes)
    return np.asarray(policy.act(now, None)[0][0])


def test_index_0_is_the_teacher(training: Training, model: Model):
    from dibs.teachers.store import load_teacher

    template, teacher = evolution_of(model, ""), load_teacher(training.teachers[0])
    assert isinstance(template, Affine)
    states = np.random.default_rng(4).uniform(-1, 5, (9, 2)).astype(np.float32)
    for e, edge in enumerate(template.edges):
        np.testing.assert_allclose(actions(template, 0, edge, states), teacher.act(e, states), atol=1e-5)


def test_far_indices_take_milliseconds_and_overflow_fails(model: Model):
    template = evolution_of(model, "")
    assert isinstance(template, Affine)
    pairs = [(100_000, name) for name in template.edges]
    template.edge_policy(Car2D(), pairs)
    began = time.perf_counter()
    template.edge_policy(Car2D(), pairs)
    assert time.perf_counter() - began < 0.02
    inputs = template.inputs.copy()
    inputs[0, :-1, :-1] *= 1.5
    wild = replace(template, inputs=inputs)
    edge = template.edges[0]
    assert template.holds(3, [edge]) and not wild.holds(100_000, [edge])
    theta = wild.edge_policy(Car2D(), [(100_000, edge)]).theta
    assert (
        np.isfinite(wild.actors([100_000])[100_000]).all() and np.abs(wild.actors([100_000])[100_000]).max() == RUNAWAY
    )
    assert np.isfinite(theta).all()


def test_files_hold_all_of_it(model: Model, tmp_path):
    write_tensors(tmp_path / "a.safetensors", model.tensors, dict(model.metadata))
    tensors, metadata = read_tensors(tmp_path / "a.safetensors")
    one, two = evolution_of(model, ""), evolution_of(Model(tensors, metadata, {}), "a.safetensors")
    states = np.random.default_rng(5).uniform(-1, 5, (9, 2)).astype(np.float32)
    for edge in one.edges:
        assert np.array_equal(actions(one, 3, edge, states), actions(two, 3, edge, states))
        assert one.describe(edge) == two.describe(edge)
    with pytest.raises(DibsError, match=r"f: damaged .*no tensor outputs"):
        evolution_of(replace(model, tensors={k: v for k, v in tensors.items() if k != "outputs"}), "f")
    with pytest.raises(DibsError, match=r"f: damaged .*inputs: expected"):
        evolution_of(replace(model, tensors={**tensors, "inputs": tensors["inputs"][:, :-1]}), "f")
