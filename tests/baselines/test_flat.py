"""What methods without a graph see, and what holds for all of them on the tiny family."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.baselines.flat import FlatPolicy, FlatView
from dibs.evaluation.evaluate import count_satisfied
from dibs.families import Family, get_benchmark
from dibs.files import plain
from dibs.methods import Method, Model
from dibs.policies.network import Network
from dibs.simulation import Moment, Rewards, Stopped

from .small import MEASURED, TRAINED, Small, model_bytes

Trained = Callable[[str], Model]


# --- what a policy sees ----------------------------------------------------------------------------------


def test_inputs_are_scaled_states_and_flags_of_the_stages() -> None:
    found = get_benchmark("car2d-reach-k3")
    tasks = found.family.tasks((0, found.family.last_index), found.specification)
    view = FlatView.of_tasks(tasks, observe_stage=True)
    center, half = view.center, view.half
    inputs = view.inputs(np.stack([center, center + half, center]), np.array([0, 1, 2]))
    np.testing.assert_allclose(inputs, [[0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 1, 1]], atol=1e-6)
    assert inputs.shape[-1] == view.size
    blind = FlatView.of_tasks(tasks, observe_stage=False)
    assert blind.inputs(center[None], np.array([1])).shape == (1, blind.size) == (1, 2)


@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.booleans())
def test_inputs_are_those_of_plain_python(seed: int, stages: int, observe_stage: bool) -> None:
    rng = np.random.default_rng(seed)
    center, half = rng.normal(size=3).astype(np.float32), rng.uniform(0.5, 2.0, 3).astype(np.float32)
    view = FlatView(center, half, stages, observe_stage)
    observation = rng.normal(size=(2, 4, 3)).astype(np.float32)
    stage = rng.integers(0, stages + 1, (2, 4))
    inputs = view.inputs(observation, stage)
    for at in np.ndindex(2, 4):
        scaled = [(observation[at][d] - center[d]) / half[d] for d in range(3)]
        flags = [1.0 if stage[at] > k else 0.0 for k in range(stages - 1)] if observe_stage else []
        assert inputs[at].tolist() == [float(x) for x in (*scaled, *flags)]


def test_networks_act_each_on_their_own_candidate() -> None:
    rng = np.random.default_rng(0)
    view = FlatView(np.zeros(2, dtype=np.float32), np.ones(2, dtype=np.float32), 2)
    network = Network(view.size, (4,), 2)
    theta = network.initial(rng, (5,))
    states = rng.normal(size=(5, 2, 3, 2)).astype(np.float32)
    stage = rng.integers(0, 2, (5, 2, 3))

    def act(parameters: np.ndarray, at: int | slice) -> np.ndarray:
        now = Moment(states[at], states[at], None, stage[at], np.ones(stage[at].shape, dtype=bool))
        return FlatPolicy(network, parameters, view).act(now, None)[0]

    together = act(theta, slice(None))
    assert together.shape == (5, 2, 3, 2)
    for c in range(5):
        np.testing.assert_allclose(together[c], act(theta[c], c), rtol=1e-5, atol=1e-6)


def test_exploration_is_added_to_what_the_network_does() -> None:
    rng = np.random.default_rng(0)
    view = FlatView(np.zeros(2, dtype=np.float32), np.ones(2, dtype=np.float32), 1)
    network = Network(2, (4,), 2)
    theta, states = network.initial(rng), rng.normal(size=(2, 3, 2)).astype(np.float32)
    now = Moment(states, states, None, np.zeros((2, 3), dtype=np.intp), np.ones((2, 3), dtype=bool))
    plain_actions, _ = FlatPolicy(network, theta, view).act(now, None)
    noisy, _ = FlatPolicy(network, theta, view, explore=lambda actions: actions + 1.0).act(now, None)
    np.testing.assert_allclose(noisy, plain_actions + 1.0)


# --- all methods -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRAINED)
def test_the_same_seed_gives_the_same_bytes(small: Small, trained: Trained, name: str) -> None:
    first = model_bytes(trained(name))
    assert model_bytes(small.train(name)) == first
    assert model_bytes(small.train(name, seed=1)) != first


@pytest.mark.parametrize("method", MEASURED, ids=lambda m: m.name)
def test_an_index_counts_the_same_in_any_company(tiny: Family, trained: Trained, method: Method) -> None:
    model = trained(method.model_method)

    def count(indices: list[int]) -> dict[int, int]:
        return count_satisfied(method, model, tiny, tiny.specification, indices, 50, 0)

    together = count([0, 1, 2, 3, 4, 7, 8, 5, 6, 9])
    assert count([3]) == {3: together[3]}
    assert count([9, 2]) == {2: together[2], 9: together[9]}


@pytest.mark.parametrize("method", MEASURED, ids=lambda m: m.name)
def test_metadata_and_tensors_are_all_that_a_policy_needs(tiny: Family, trained: Trained, method: Method) -> None:
    """A model that was written as JSON and tensors acts as the one that training returned."""
    model = trained(method.model_method)
    stored = replace(model, metadata=json.loads(json.dumps(plain(dict(model.metadata)))))
    counts = [count_satisfied(method, m, tiny, tiny.specification, [0, 1], 50, 0) for m in (model, stored)]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("method", MEASURED, ids=lambda m: m.name)
def test_only_varibad_reads_rewards(tiny: Family, trained: Trained, method: Method) -> None:
    policy = method.policy(trained(method.model_method), tiny.tasks([0, 1]))
    assert policy.rewards == (Rewards("progress", 0.3, 0.1) if method.name == "varibad" else None)


@pytest.mark.parametrize("method", [m for m in MEASURED if m.name not in ("ars", "bc")], ids=lambda m: m.name)
def test_a_diverged_model_solves_nothing(tiny: Family, trained: Trained, method: Method) -> None:
    model = trained(method.model_method)
    diverged = replace(model, metadata={**model.metadata, "diverged": True})
    assert isinstance(method.policy(diverged, tiny.tasks([0, 1])), Stopped)
    assert count_satisfied(method, diverged, tiny, tiny.specification, [0, 1], 5, 0) == {0: 0, 1: 0}


def test_the_records_say_what_is_measured_and_what_is_needed() -> None:
    records = {method.name: method for method in MEASURED}
    assert list(records) == ["ars", "bc", "maml", "varibad", "maml-adapted"]
    assert sorted(records, key=lambda n: records[n].order) == ["ars", "bc", "maml", "maml-adapted", "varibad"]
    assert [n for n, m in records.items() if not m.zero_shot] == ["maml-adapted"]
    assert records["maml-adapted"].model_method == "maml"
    assert {n: m.needs for n, m in records.items() if m.needs} == {"ars": ("teachers",), "bc": ("teachers", "datasets")}


def test_records_are_read_without_torch() -> None:
    names = ", ".join(TRAINED)
    code = f"import sys; from dibs.baselines import {names}; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert found.stdout.strip() == "False"
