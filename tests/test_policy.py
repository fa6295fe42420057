"""The policy of one index: what it predicts, that its file stands alone, and where it ends."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dibs.gym.environments
from dibs import policy as policy_module
from dibs import registry
from dibs.envs import Environment
from dibs.errors import DibsError
from dibs.evaluation.evaluate import recorded
from dibs.families import Benchmark, Family, get_family, load_family
from dibs.files import KEY, read_tensors
from dibs.methods import Method, Model, get_method, load_model
from dibs.policy import IndexPolicy, load_policy
from dibs.runs import Chain, method_settings
from dibs.simulation import BasePolicy, Moment, SpecTask, evaluation_draws
from dibs.simulation.composed import Composed
from dibs.spectrl import satisfied
from dibs.templates.template import Template, evolution_of

ROOT = Path(__file__).parents[1]


def benchmark_of(family: Family) -> Benchmark:
    return Benchmark(family.benchmark_ids[-1], family, family.benchmark_ids[-1], family.source)


def at(model: Model, family: Family, index: int, method: str = "dibs") -> IndexPolicy:
    gap = family.split("gap2")
    return IndexPolicy(get_method(method), model, benchmark_of(family), gap, 0, index, "the model's id")


@pytest.fixture(scope="module")
def model(pipeline) -> Model:
    return load_model(pipeline.layout.model("dibs", "tiny", "gap2", 0))[0]


@pytest.fixture(scope="module")
def template(model) -> Template:
    found = evolution_of(model, "")
    assert isinstance(found, Template)
    return found


@pytest.fixture
def policy(model, tiny) -> IndexPolicy:
    return at(model, tiny, 3)


# --- predict ---------------------------------------------------------------------------------------------


def test_it_acts_as_the_edges_network_on_scaled_observations(policy, template):
    seen = np.array([0.7, 0.1], dtype=np.float32)
    scaled = (seen - template.scaling.center[0]) / template.scaling.half[0]
    expected = template.network.forward(template.actors([3])[3][0], scaled[None])[0]
    for given in (seen, seen.tolist(), seen.astype(np.float64)):
        action, state = policy.predict(given)
        np.testing.assert_allclose(action, expected, atol=1e-5)
        assert action.shape == (2,) and action.dtype == np.float32 and state.stage.tolist() == [0]


def test_it_goes_on_to_the_next_edge_where_a_target_is_entered(policy, template, tiny):
    inside = tiny.regions_at(3)["a"].center
    action, state = policy.predict(inside)
    assert state.stage.tolist() == [1]
    scaled = (inside.astype(np.float32) - template.scaling.center[1]) / template.scaling.half[1]
    np.testing.assert_allclose(action, template.network.forward(template.actors([3])[3][1], scaled[None])[0], atol=1e-5)
    _, state = policy.predict(tiny.regions_at(3)["b"].center, state)
    assert state.stage.tolist() == [1]  # the last edge stays
    _, state = policy.predict([0.7, 0.1], state, True)
    assert state.stage.tolist() == [0]


def test_a_batch_is_as_many_single_episodes(policy, tiny):
    rng = np.random.default_rng(0)
    seen = rng.uniform(-1, 7, (5, 6, 2)).astype(np.float32)  # times, episodes, variables
    starts = rng.random((5, 6)) < 0.3
    batch: Any = None
    alone: list[Any] = [None] * 6
    for now, begin in zip(seen, starts, strict=True):
        actions, batch = policy.predict(now, batch, begin)
        assert actions.shape == (6, 2)
        for n in range(6):
            action, alone[n] = policy.predict(now[n], alone[n], begin[n])
            np.testing.assert_allclose(action, actions[n], atol=1e-6)
        assert batch.stage.tolist() == [int(one.stage[0]) for one in alone]


@pytest.mark.parametrize(
    "seen, message",
    [([1.0], "length 2"), ([np.nan, 0.0], "finite"), (["a", "b"], "numbers"), ([[[0.0, 0.0]]], "one or a batch")],
)
def test_observations_that_make_no_sense_are_refused(policy, seen, message):
    with pytest.raises(DibsError, match=message):
        policy.predict(seen)


def test_a_state_of_another_batch_is_refused(policy):
    _, state = policy.predict([[0.0, 0.0]] * 3)
    with pytest.raises(DibsError, match="state: is of 3 episodes, found 2 observations"):
        policy.predict([[0.0, 0.0]] * 2, state)


def test_stable_baselines_drives_it(policy):
    """`evaluate_policy` passes states and episode starts as for any of its own policies."""
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv

    won: list[bool] = []
    env = DummyVecEnv([policy.make_env] * 2)
    env.seed(0)

    def note(seen: dict[str, Any], _: Any) -> None:
        if seen["done"]:
            won.append(bool(seen["info"]["satisfied"]))

    evaluate_policy(policy, env, n_eval_episodes=20, callback=note, warn=False)
    assert len(won) >= 20 and np.mean(won) == policy.evaluate(100).rate == 1.0


# --- episodes of predict and evaluations -----------------------------------------------------------------


def driven(policy: IndexPolicy, count: int, monkeypatch) -> list[bool]:
    """Success of episodes in the Gymnasium environment, with the initial states and noise of an evaluation."""
    task = SpecTask(policy.tasks, policy.policy.rewards or SpecTask(policy.tasks).rewards)
    draws = evaluation_draws(task, count, policy.seed)
    pending: deque[np.ndarray] = deque()
    monkeypatch.setattr(dibs.gym.environments, "sample_noise", lambda rng, shape: pending.popleft().reshape(shape))
    env, won = policy.make_env(), []
    horizon, composed = policy.family.horizon, isinstance(policy.policy, Composed)
    for n in range(count):
        seen, info = env.reset(options={"state": draws.starts[0, n]})
        memory, stage, steps, over = None, 0, 0, False
        while not over:
            action, memory = policy.predict(seen, memory)
            if composed and memory.stage[0] != stage:
                stage, steps = memory.stage[0], 0
            if composed and steps == horizon:
                break  # each edge has a horizon of its own
            pending.append(draws.noise[stage * horizon + steps, 0, n])
            seen, _, terminated, truncated, info = env.step(action)
            steps += 1
            over = terminated or truncated
        won.append(bool(info["satisfied"]))
    return won


def evaluated(policy: IndexPolicy, count: int) -> list[bool]:
    """Success of the same episodes in an evaluation."""
    args = (policy.family, policy.benchmark.specification, [policy.index], count, policy.seed)
    ((task, found),) = recorded(policy.method, policy.model, *args)
    regions = task.grounded.regions_at(policy.index)
    return satisfied(task.grounded.spec, regions, found.states[0], found.lengths[0]).tolist()


SMALL: dict[str, dict[str, Any]] = {
    "dibs": {"max_steps": 60, "batch": 64},
    "ars": {"steps": 20_000, "restarts": 1, "trial": 2, "check_rollouts": 10},
    "bc": {"max_steps": 200, "hidden": [8]},
    "genrl": {"steps": 20_000},
    "maml-adapted": {"steps": 2_000, "hidden": [8]},
    "varibad": {"steps": 30_000, "hidden": [16], "recurrent": 8, "embedding": 4, "check_rollouts": 5},
}


@pytest.fixture(scope="module")
def chain(pipeline) -> Chain:
    """The tiny family's teachers and datasets, from the session's files."""
    from dibs.datasets.build import DatasetSettings
    from dibs.settings import parse_settings
    from dibs.teachers.train import TeacherSettings

    family = get_family(str(pipeline.file))
    teachers = parse_settings(TeacherSettings, pipeline.settings["teacher"])
    rows = parse_settings(DatasetSettings, pipeline.settings["dataset"])
    found = Chain(family, family.split("gap2"), 0, teachers, rows, pipeline.root)
    for index in (0, 2, 4):  # read now, so that models are not looked for in the session's results
        found.teacher(index)
        found.dataset(index)
    found.layout = None
    return found


@pytest.fixture(scope="module")
def small(chain) -> Callable[[str, int], IndexPolicy]:
    """Policies of methods that are trained a little, each once."""
    made: dict[str, Model] = {}

    def policy(name: str, index: int) -> IndexPolicy:
        method = get_method(name)
        if name not in made:
            made[name] = chain.model(method, benchmark_of(chain.family), method_settings(method, SMALL[name]))
        return at(made[name], chain.family, index, name)

    return policy


@pytest.mark.parametrize("name", SMALL)
def test_predict_gives_the_episodes_of_an_evaluation(small, name, tmp_path, monkeypatch):
    """For every kind of method, after a round through a file."""
    policy = small(name, 3)
    policy.save(tmp_path / "p.safetensors")
    again = load_policy(tmp_path / "p.safetensors")
    assert driven(again, 12, monkeypatch) == evaluated(policy, 12)


def test_these_methods_are_not_all_failures(small):
    """So that the comparison above means something."""
    rates = {name: small(name, 2).evaluate(50).rate for name in ("dibs", "bc", "varibad")}
    assert rates["dibs"] > 0.5 and max(rates["bc"], rates["varibad"]) > 0.2, rates


class Heading(BasePolicy):
    """Goes straight to the middle of a target, in the first two state variables."""

    def __init__(self, targets: np.ndarray) -> None:
        self.targets = targets  # (tasks, 2)

    def act(self, now: Moment, memory: None) -> tuple[np.ndarray, None]:
        return np.clip(0.7 * (self.targets[:, None] - now.observation[..., :2]), -1, 1).astype(np.float32), None


class Arm(BasePolicy):
    """Pulls the tip of a two-link arm to a target: transposed Jacobian and damping, from observations only."""

    def __init__(self, targets: np.ndarray) -> None:
        self.targets = targets

    def act(self, now: Moment, memory: None) -> tuple[np.ndarray, None]:
        cos, sin = now.observation[..., 0:2], now.observation[..., 2:4]
        speed, tip = now.observation[..., 4:6], now.observation[..., 6:8]
        elbow = 0.1 * np.stack([cos[..., 0], sin[..., 0]], axis=-1)
        pull = self.targets[:, None] - tip
        turn = [-pull[..., 0] * arm[..., 1] + pull[..., 1] * arm[..., 0] for arm in (tip, tip - elbow)]
        return np.clip(150.0 * np.stack(turn, axis=-1) - 0.12 * speed, -1, 1).astype(np.float32), None


@dataclass(frozen=True)
class Nothing:
    """No settings."""


def scripted(name: str, kind: type, first: int) -> Method:
    """A method whose edge policies are written by hand: what another package might register."""

    def policy(model: Model, tasks: Any) -> Composed:
        paths = [tuple(edge.name for edge in tasks.graph.paths()[0])] * len(tasks.indices)

        def stage_policy(rows: Any, names: Any) -> Any:
            heads = [tasks.regions_at(tasks.indices[r])[n.partition(">")[2]] for r, n in zip(rows, names, strict=True)]
            return kind(np.stack([region.center[first : first + 2] for region in heads]))

        return Composed(paths, stage_policy)

    return Method(name, name, Nothing, lambda training, settings: Model({}, {}, 0), policy)


def test_predict_in_an_environment_that_recovers_its_states(monkeypatch):
    """The boat of examples/extension sees its distance from a buoy as well."""
    spec = importlib.util.spec_from_file_location("boat", ROOT / "examples/extension/dibs_boat/boat.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "boat", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(registry._added["environments"], "Boat", module.Boat)
    monkeypatch.setitem(registry._added["methods"], "heading", scripted("heading", Heading, 0))
    regions = {"a": {"center": [2.0, 3.0], "half_width": 0.4}, "b": {"center": [-4.0, 6.0], "half_width": 0.4}}
    family = load_family(
        {
            "name": "boats",
            "environment": {"name": "Boat", "noise": 0.4},
            "specification": "achieve reach(a); achieve reach(b)",
            "start": {"center": [0.0, 0.0], "noise": 0.2},
            "regions": regions,
            "last_index": 4,
            "horizon": 8,
            "network": {"hidden": [8]},
        }
    )
    policy = at(Model({}, {}, 0), family, 1, "heading")
    won = driven(policy, 60, monkeypatch)
    assert won == evaluated(policy, 60) and 0 < sum(won) < 60


def test_predict_in_mujoco(monkeypatch):
    """Reacher-v5: the tip, which targets constrain, is part of the observation."""
    pytest.importorskip("mujoco")
    monkeypatch.setitem(registry._added["methods"], "arm", scripted("arm", Arm, 8))
    family = get_family(str(ROOT / "examples" / "families" / "reacher-torque.yaml"))
    environment = family.environment
    assert environment.state_names[8:10] == ("tip_x", "tip_y")
    outcomes = []
    for index in (0, 4):
        policy = at(Model({}, {}, 0), family, index, "arm")
        won = driven(policy, 6, monkeypatch)
        assert won == evaluated(policy, 6)
        outcomes += won
    assert any(outcomes)
    told = environment.recover(
        environment.observe(environment.project(np.zeros((2, len(environment.state_names)), np.float32)))
    )
    unknown = {name for k, name in enumerate(environment.state_names) if np.isnan(told[:, k]).all()}
    assert {"joint0", "target_x", "obs4"} <= unknown and not {"tip_x", "tip_y", "obs0"} & unknown


def test_quantities_are_recovered_from_the_observation():
    """The environment's own observation contains what the quantities are read from."""
    pytest.importorskip("mujoco")
    from dibs.gym.simulators import GymnasiumEnvironment

    named = {"speed": {"observation": 6, "scale": 2.0}, "angle": {"state": "joint0"}}
    environment = GymnasiumEnvironment("Reacher-v5", quantities=named)
    states = environment.project(np.linspace(-1, 1, len(environment.state_names), dtype=np.float32)[None])
    told = environment.recover(environment.observe(states))
    names = environment.state_names
    assert told[0, names.index("speed")] == states[0, names.index("speed")]
    assert np.isnan(told[0, names.index("angle")])


def test_environments_without_observations_recover_everything():
    class Plain(Environment):
        state_names = ("x",)
        action_names = ("a",)
        noise_scale = (0.0,)

        def step(self, states, actions, noise):
            return states

    seen = np.ones((2, 1), dtype=np.float32)
    assert np.array_equal(Plain().recover(seen), seen)


# --- files -----------------------------------------------------------------------------------------------


def test_it_reads_back_the_same(policy, tmp_path):
    file = tmp_path / "p.safetensors"
    policy.save(file)
    again = load_policy(file)
    for name in ("index", "paths", "role", "seed", "split", "family", "made_from"):
        assert getattr(again, name) == getattr(policy, name)
    seen = np.random.default_rng(0).uniform(-1, 5, (20, 2)).astype(np.float32)
    assert np.array_equal(again.predict(seen)[0], policy.predict(seen)[0])
    before = file.read_bytes()
    again.save(file)
    assert file.read_bytes() == before


@pytest.mark.parametrize("index, role", [(0, "train"), (1, "unseen"), (4, "train"), (5, "beyond"), (8, "beyond")])
def test_the_role_is_that_of_the_index(model, tiny, index, role):
    assert at(model, tiny, index).role == role


ALONE = """
import sys
import dibs.families
def absent(*names):
    raise AssertionError("the registry of families was asked")
dibs.families.descriptions = dibs.families.get_family = dibs.families.get_benchmark = absent
import dibs

policy = dibs.load(sys.argv[1])
env = policy.make_env()
seen, info = env.reset(seed=0)
state, over = None, False
while not over:
    action, state = policy.predict(seen, state)
    seen, _, terminated, truncated, info = env.step(action)
    over = terminated or truncated
print(policy.index, bool(info["satisfied"]), "torch" in sys.modules, "dibs.paper" in sys.modules)
"""


def test_the_file_stands_alone(policy, tmp_path):
    """A fresh process, elsewhere, without the family's description or any registry; and without torch."""
    policy.save(tmp_path / "p.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", ALONE, "p.safetensors"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "3 True False False\n"


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
        at(model, get_family("car2d-reach"), 1)


def test_damage_is_named(policy, tmp_path, pipeline):
    from safetensors.numpy import save_file

    file = tmp_path / "p.safetensors"
    policy.save(file)
    tensors, meta = read_tensors(file)
    broken = {name: tensor for name, tensor in tensors.items() if name != "kappa"}
    save_file(broken, tmp_path / "q.safetensors", metadata={KEY: json.dumps(meta)})
    with pytest.raises(DibsError, match="no tensor kappa"):
        load_policy(tmp_path / "q.safetensors")
    del meta["model"]
    save_file(tensors, tmp_path / "q.safetensors", metadata={KEY: json.dumps(meta)})
    with pytest.raises(DibsError, match=r"q\.safetensors: written by an older version"):
        load_policy(tmp_path / "q.safetensors")
    with pytest.raises(DibsError, match=r"seed0\.safetensors: expected kind 'policy', found 'model'"):
        load_policy(pipeline.layout.model("dibs", "tiny", "gap2", 0))


@pytest.mark.parametrize("raised", ["method", "environment"])
def test_a_file_of_an_older_version_is_refused(raised, policy, tmp_path, monkeypatch):
    file = tmp_path / "p.safetensors"
    policy.save(file)
    load_policy(file)
    if raised == "method":
        newer = replace(policy.method, version=policy.method.version + 1)
        monkeypatch.setattr(policy_module, "get_method", lambda name: newer)
        message = r"p\.safetensors: was made by another version \(.*make it again: `dibs policy tiny .*--index 3`"
    else:
        kind = type(policy.family.environment)
        monkeypatch.setattr(kind, "version", kind.version + 1)
        message = r"p\.safetensors: was made from another description of tiny .*make it again: `dibs policy tiny "
    with pytest.raises(DibsError, match=message):
        load_policy(file)


# --- episodes --------------------------------------------------------------------------------------------


def test_episodes_repeat_and_are_decided_by_the_semantics(policy, tiny):
    runs, again = (policy.episodes(4, seed=11) for _ in range(2))
    for one, other in zip(runs, again, strict=True):
        assert np.array_equal(one.states, other.states) and (one.index, one.role) == (3, "unseen")
        assert one.success == bool(satisfied(tiny.spec, tiny.regions_at(3), one.states[None].astype(float))[0])
    assert not np.array_equal(runs[0].states[0], runs[1].states[0])
    assert np.array_equal(policy.episodes(1, seed=13)[0].states, runs[2].states)  # each has a seed of its own


def test_a_policy_beyond_l_runs(model, tiny):
    runs = at(model, tiny, 5).episodes(3)
    assert len(runs) == 3 and all(len(run.states) <= 21 for run in runs)
    start = np.stack([run.states[0] for run in runs])
    assert np.abs(start - [5 * 0.25, 0.0]).max() <= 0.1 + 1e-6  # the task of index 5


def test_there_must_be_an_episode(policy):
    with pytest.raises(DibsError, match="expected at least 1, found 0"):
        policy.episodes(0, seed=0)
