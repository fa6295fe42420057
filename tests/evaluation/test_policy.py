"""A policy as a file of its own: what it does, that it stands alone, and where it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from dibs.errors import DibsError
from dibs.evaluation.policy import IndexPolicy, load_policy, policy_at, save_policy
from dibs.families import Family, get_family
from dibs.files import KEY, read_tensors
from dibs.methods import Model, load_model
from dibs.provenance import Origin
from dibs.spectrl import satisfied
from dibs.templates.template import Template, evolution_of

ORIGIN = Origin("policy", {"method": "dibs", "family": "tiny", "seed": 0}, "tasks", "", {}, ("model",))


@pytest.fixture(scope="module")
def model(pipeline) -> Model:
    return load_model(pipeline.layout.model("dibs", "tiny", "gap2", 0))[0]


@pytest.fixture(scope="module")
def template(model) -> Template:
    found = evolution_of(model, "")
    assert isinstance(found, Template)
    return found


def at(model: Model, tiny: Family, index: int) -> IndexPolicy:
    return policy_at(model, "the model", tiny, tiny.specification, index)


@pytest.fixture
def policy(model, tiny) -> IndexPolicy:
    return at(model, tiny, 3)


def test_it_is_the_template_unrolled(policy, template):
    assert policy.path == ("start>a", "a>b") and policy.index == 3
    assert np.array_equal(policy.template.actors([3])[3], template.actors([3])[3])


def test_it_acts_as_the_edges_network_on_scaled_states(policy, template):
    state = np.array([0.7, 0.1], dtype=np.float32)
    scaled = (state - template.scaling.center[0]) / template.scaling.half[0]
    expected = template.network.forward(template.actors([3])[3][0], scaled[None])[0]
    np.testing.assert_allclose(policy(state), expected, atol=1e-5)
    assert policy(state.tolist()).shape == (2,) and policy.stage == 0


def test_it_goes_on_to_the_next_edge_where_a_target_is_entered(policy, template, tiny):
    inside = tiny.regions_at(3)["a"].center
    action = policy(inside)
    assert policy.stage == 1
    scaled = (inside.astype(np.float32) - template.scaling.center[1]) / template.scaling.half[1]
    np.testing.assert_allclose(action, template.network.forward(template.actors([3])[3][1], scaled[None])[0], atol=1e-5)
    policy(tiny.regions_at(3)["b"].center)
    assert policy.stage == 1  # the last edge stays
    policy.reset()
    assert policy.stage == 0


@pytest.mark.parametrize("state, message", [([1.0], "length 2"), ([np.nan, 0.0], "finite"), (["a", "b"], "numbers")])
def test_states_that_make_no_sense_are_refused(policy, state, message):
    with pytest.raises(DibsError, match=message):
        policy(state)


def test_it_reads_back_the_same(policy, tmp_path):
    file = tmp_path / "p.safetensors"
    save_policy(file, policy, ORIGIN)
    again = load_policy(file)
    for name in ("index", "path", "specification", "role"):
        assert getattr(again, name) == getattr(policy, name)
    assert again.family == policy.family
    states = np.random.default_rng(0).uniform(-1, 5, (20, 2)).astype(np.float32)
    for state in states:
        assert np.array_equal(again(state), policy(state))
    before = file.read_bytes()
    save_policy(file, again, ORIGIN)
    assert file.read_bytes() == before


@pytest.mark.parametrize("index, role", [(0, "train"), (1, "unseen"), (4, "train"), (5, "unseen"), (8, "unseen")])
def test_the_role_is_that_of_the_index(model, tiny, index, role):
    assert at(model, tiny, index).role == role


ALONE = """
import sys
import dibs.families
def absent(*names):
    raise AssertionError("the registry of families was asked")
dibs.families.descriptions = dibs.families.get_family = dibs.families.get_benchmark = absent
from dibs.evaluation.policy import load_policy

policy = load_policy(sys.argv[1])
env = policy.make_env()
state, info = env.reset(seed=0)
over = False
while not over:
    state, _, terminated, truncated, info = env.step(policy(state))
    over = terminated or truncated
print(policy.index, bool(info["satisfied"]), "torch" in sys.modules, "dibs.paper" in sys.modules)
"""


def test_the_file_stands_alone(policy, tmp_path):
    """A fresh process, elsewhere, without the family's description or any registry; and without torch."""
    save_policy(tmp_path / "p.safetensors", policy, ORIGIN)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, "p.safetensors"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 True False False\n"


def test_a_policy_beyond_l_runs(model, tiny, tmp_path):
    save_policy(tmp_path / "p.safetensors", at(model, tiny, 5), ORIGIN)
    runs = load_policy(tmp_path / "p.safetensors").episodes(3, seed=0)
    assert len(runs) == 3 and all(len(states) <= 21 for states, _ in runs)
    start = np.stack([states[0] for states, _ in runs])
    assert np.abs(start - [5 * 0.25, 0.0]).max() <= 0.1 + 1e-6  # the task of index 5


@pytest.mark.parametrize("kappa", [3.0, -2.0])
def test_a_template_that_runs_away_is_refused(template, tiny, kappa):
    wild = replace(template, kappa=np.stack([np.zeros_like(template.base), np.full_like(template.base, kappa)]))
    assert at(wild.to_model({}, {}), tiny, 2).index == 2
    with pytest.raises(DibsError, match="index 40: the template's parameters run away before it"):
        at(wild.to_model({}, {}), tiny, 40)


def test_a_template_that_ends_in_no_numbers_is_refused(template, tiny):
    """0 · ∞: what is left must not be mistaken for a policy of zeros."""
    kappa = np.stack([np.zeros_like(template.base), np.full_like(template.base, 1e9), np.zeros_like(template.base)])
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(DibsError, match="run away"):
        at(replace(template, kappa=kappa).to_model({}, {}), tiny, 200)


def test_only_indices_and_edges_that_exist(model, tiny):
    with pytest.raises(DibsError, match="index -1 of tiny: expected a whole number"):
        at(model, tiny, -1)
    with pytest.raises(DibsError, match="does not fit car2d-reach with edges start>g1"):
        policy_at(model, "the model", get_family("car2d-reach"), "achieve reach(g1)", 1)


def test_only_templates_have_policies_of_one_index(tiny):
    flat = Model({}, {"stages": 2}, 0)
    with pytest.raises(DibsError, match=r"the model: expected a template of class polynomial or .*, found None"):
        at(flat, tiny, 1)


def test_damage_is_named(policy, tmp_path, pipeline):
    from safetensors.numpy import save_file

    file = tmp_path / "p.safetensors"
    save_policy(file, policy, ORIGIN)
    tensors, meta = read_tensors(file)
    del tensors["base"]
    save_file(tensors, tmp_path / "q.safetensors", metadata={KEY: json.dumps(meta)})
    with pytest.raises(DibsError, match=r"q\.safetensors: damaged .*no tensor base"):
        load_policy(tmp_path / "q.safetensors")
    del meta["model"]
    save_file(tensors, tmp_path / "q.safetensors", metadata={KEY: json.dumps(meta)})
    with pytest.raises(DibsError, match=r"q\.safetensors: written by an older version; write it again with"):
        load_policy(tmp_path / "q.safetensors")
    with pytest.raises(DibsError, match=r"seed0\.safetensors: expected kind 'policy', found 'model'"):
        load_policy(pipeline.layout.model("dibs", "tiny", "gap2", 0))


# --- episodes --------------------------------------------------------------------------------------------


def test_episodes_repeat_and_are_decided_by_the_semantics(policy, tiny):
    runs, again = (policy.episodes(4, seed=11) for _ in range(2))
    for (states, won), (other, _) in zip(runs, again, strict=True):
        assert np.array_equal(states, other)
        assert won == bool(satisfied(tiny.spec, tiny.regions_at(3), states[None].astype(float))[0])
    assert not np.array_equal(runs[0][0][0], runs[1][0][0])
    assert np.array_equal(policy.episodes(1, seed=13)[0][0], runs[2][0])  # each has a seed of its own


def test_there_must_be_an_episode(policy):
    with pytest.raises(DibsError, match="expected at least 1, found 0"):
        policy.episodes(0, seed=0)


def test_composed_and_stepped_policies_act_alike(policy, tiny):
    """What the simulator runs is what a user steps."""
    for states, _ in policy.episodes(5, seed=0):
        policy.reset()
        stages = []
        for state in states:
            policy(state)
            stages.append(policy.stage)
        assert stages[0] == 0 and stages == sorted(stages)
        inside = tiny.regions_at(3)["a"].contains(states.astype(float))
        assert stages.index(1) == inside.argmax() if inside.any() else max(stages) == 0
