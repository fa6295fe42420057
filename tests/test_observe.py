"""An environment with observations of its own goes through all stages; states and observations are never mixed up."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from dibs import cli, registry
from dibs.datasets.store import load_dataset
from dibs.envs import Array, Car2D
from dibs.errors import DibsError
from dibs.families import Family, get_family, load_family
from dibs.files import read_table
from dibs.methods import load_model
from dibs.paths import Layout
from dibs.policies.scaling import edge_scaling, joint_scaling
from dibs.policy import load_policy
from dibs.teachers.store import load_replay, load_teacher
from dibs.templates.template import evolution_of

TRAIN = ("0", "2", "4")


@dataclass(frozen=True)
class Beacon(Car2D):
    """A car that also sees its distance to the origin."""

    name: ClassVar[str] = "Beacon"

    def observe(self, states: Array) -> Array:
        distance = np.hypot(states[..., 0], states[..., 1])
        return np.concatenate([states, distance[..., None]], axis=-1)


@dataclass(frozen=True)
class Turned(Car2D):
    """A car that sees its position in other units and the other way around."""

    name: ClassVar[str] = "Turned"

    def observe(self, states: Array) -> Array:
        return 100.0 - 7.0 * states[..., ::-1]


@pytest.fixture(scope="module", autouse=True)
def registered() -> Iterator[None]:
    for kind in (Beacon, Turned):
        registry.register("environments", kind.name, kind)
    yield
    for kind in (Beacon, Turned):
        registry._added["environments"].pop(kind.name, None)


@dataclass(frozen=True)
class Run:
    """Results of one family, made by the commands."""

    family: Family
    file: Path
    layout: Layout
    dibs: Callable[..., str]


@pytest.fixture(scope="module")
def make(tmp_path_factory, tiny_description, tiny_teachers) -> Callable[[str], Run]:
    """Take a family in a given environment through the commands."""
    made: dict[str, Run] = {}

    def run(environment: str) -> Run:
        if environment in made:
            return made[environment]
        folder = tmp_path_factory.mktemp(environment)
        file = folder / "seeing.yaml"
        file.write_text(json.dumps(tiny_description(name="seeing", environment={"name": environment})))

        def dibs(command: str, *rest: str, settings: dict[str, Any] | None = None) -> str:
            argv = [command, *(() if command == "rollout" else (str(file), "--gap", "2", "--quiet"))]
            argv += () if command == "rollout" else ("--results", str(folder / "results"))
            argv += ["--settings", json.dumps(settings)] if settings else []
            with contextlib.redirect_stdout(io.StringIO()) as text:
                assert cli.main([*argv, *rest]) == 0
            return text.getvalue()

        for index in TRAIN:
            dibs("teacher", "--index", index, settings=tiny_teachers)
            dibs("dataset", "--index", index, settings={"size": 300})
        dibs("fit", settings={"max_steps": 300, "batch": 128})
        dibs("fit", "--method", "bc", settings={"max_steps": 300, "hidden": [16]})
        for method in ("dibs", "bc"):
            dibs("evaluate", "--method", method, settings={"rollouts": 100})
        for index in ("1", "4"):
            dibs("policy", "--index", index, "--output", str(folder / f"{index}.safetensors"))
        made[environment] = Run(get_family(str(file)), file, Layout(folder / "results"), dibs)
        return made[environment]

    return run


@pytest.fixture(scope="module")
def run(make) -> Run:
    found: Run = make("Beacon")
    return found


def rates(run: Run, method: str) -> dict[int, float]:
    table, _ = read_table(run.layout.evaluation(method, "seeing", "gap2", 0))
    return dict(zip(table["index"].to_pylist(), table["rate"].to_pylist(), strict=True))


# --- the stages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dibs-plus-still", "dibs-affine"])
def test_methods_that_compare_tasks_with_inputs(run, method):
    """Observations have other entries than states, so tasks say nothing about how inputs move."""
    options = {"max_steps": 300, "batch": 128, "refine": 5} if method == "dibs-plus-still" else {"iterations": 50}
    run.dibs("fit", "--method", method, settings=options)
    run.dibs("evaluate", "--method", method, settings={"rollouts": 50})
    assert min(rates(run, method)[index] for index in (0, 2, 4)) > 0.9


def test_networks_have_as_many_inputs_as_there_are_observations(run):
    environment = run.family.environment
    assert (environment.observation_dim, len(environment.state_names)) == (3, 2)
    for index in (0, 2, 4):
        teacher = load_teacher(run.layout.teacher("seeing", "gap2", index, 0))
        assert teacher.network.inputs == 3 and teacher.scaling.center.shape == (2, 3)
        scaling = edge_scaling(run.family.tasks([0, 4]))
        assert np.array_equal(teacher.scaling.half, scaling.half)
    template = evolution_of(load_model(run.layout.model("dibs", "seeing", "gap2", 0))[0], "")
    assert template.network.inputs == 3 and template.scaling.half.shape == (2, 3)


def test_buffers_and_datasets_contain_states(run):
    file = run.layout.teacher("seeing", "gap2", 2, 0)
    teacher = load_teacher(file)
    assert all(states.shape[1] == 2 for states in load_replay(file, teacher.edges))
    data, meta = load_dataset(run.layout.dataset("seeing", "gap2", 2, 0))
    assert meta["states"] == ["x", "y"]
    for row, name in enumerate(teacher.edges):
        states, actions = data[name]
        assert states.shape == (300, 2) and actions.shape == (300, 2)
        # Labels are the teacher's actions on what it sees there.
        inputs = (run.family.environment.observe(states) - teacher.scaling.center[row]) / teacher.scaling.half[row]
        np.testing.assert_allclose(actions, teacher.network.forward(teacher.actor[row], inputs), atol=1e-4)


def test_flat_methods_see_observations_and_stages(run):
    model, _ = load_model(run.layout.model("bc", "seeing", "gap2", 0))
    center, half = joint_scaling(run.family.tasks([0, 2, 4]))
    assert np.array_equal(model.tensors["center"], center) and np.array_equal(model.tensors["half"], half)
    assert center.shape == (3,)


def test_teachers_learn_and_the_template_generalizes(run):
    for index in (0, 2, 4):
        teacher = load_teacher(run.layout.teacher("seeing", "gap2", index, 0))
        assert not teacher.metrics["failed"]
    measured = rates(run, "dibs")
    assert set(measured) == set(range(9)) and min(measured[i] for i in (0, 2, 4)) > 0.9
    assert max(measured[i] for i in (1, 3)) > 0.5
    assert set(rates(run, "bc")) == set(range(9))


# --- policies --------------------------------------------------------------------------------------------


def test_a_policy_acts_on_observations(run):
    policy = load_policy(run.file.parent / "4.safetensors")
    assert policy.family == run.family
    template = evolution_of(policy.model, "")
    state = np.array([1.2, 0.3], dtype=np.float32)
    seen = run.family.environment.observe(state)
    assert seen.shape == (3,)
    scaled = (seen - template.scaling.center[0]) / template.scaling.half[0]
    expected = template.network.forward(template.actors([4])[4][0], scaled[None])[0]
    action, memory = policy.predict(seen, states=state)
    np.testing.assert_allclose(action, expected, atol=1e-5)
    assert memory.stage.tolist() == [0]
    with pytest.raises(DibsError, match="observation: expected last axis of length 3"):
        policy.predict(state)


def test_a_policy_says_what_it_must_be_told(run):
    """This environment does not say how to recover states, so switching edges needs them."""
    policy = load_policy(run.file.parent / "4.safetensors")
    with pytest.raises(DibsError, match=r"observations of Beacon do not show x, y: pass states= to predict, or define"):
        policy.predict([1.2, 0.3, 1.24])
    with pytest.raises(DibsError, match=r"states: expected one per observation \(2\), found 1"):
        policy.predict([[1.2, 0.3, 1.24]] * 2, states=[1.2, 0.3])


def test_a_policy_runs_in_its_environment(run):
    policy = load_policy(run.file.parent / "4.safetensors")
    env = policy.make_env()
    seen, _ = env.reset(seed=3)
    assert env.observation_space.shape == seen.shape == (3,)
    memory, over, won = None, False, False
    while not over:
        np.testing.assert_allclose(seen[2], np.hypot(seen[0], seen[1]), rtol=1e-5)
        action, memory = policy.predict(seen, memory, states=env.state)
        seen, _, terminated, truncated, info = env.step(action)
        over, won = terminated or truncated, info["satisfied"]
    assert won


@pytest.mark.parametrize("suffix", ["png", "gif", "parquet"])
def test_rollouts_are_drawn_filmed_and_recorded(run, tmp_path, suffix):
    output = tmp_path / f"run.{suffix}"
    shown = run.dibs("rollout", str(run.file.parent / "4.safetensors"), "--episodes", "4", "--output", str(output))
    assert "4 of 4 episodes satisfy index 4" in shown and output.stat().st_size > 500
    if suffix == "parquet":
        table, _ = read_table(output)
        assert table.column_names == ["index", "role", "rollout", "time", "x", "y"]


# --- the environment is part of the tasks ----------------------------------------------------------------


def test_results_of_another_environment_are_refused(run, tiny_description, tmp_path, capsys):
    """Same states, same numbers, but other observations."""
    file = tmp_path / "seeing.yaml"
    file.write_text(json.dumps(tiny_description(name="seeing", environment={"name": "Car2D"})))
    assert cli.main(["evaluate", str(file), "--gap", "2", "--results", str(run.layout.root)]) == 1
    assert "was made from another description of seeing (environment, " in capsys.readouterr().err


def test_an_environment_that_is_not_registered_is_named(run, capsys):
    registry._added["environments"].pop("Beacon", None)
    try:
        assert cli.main(["rollout", str(run.file.parent / "4.safetensors")]) == 1
        assert "unknown environment 'Beacon'" in capsys.readouterr().err
    finally:
        registry.register("environments", "Beacon", Beacon)


def test_other_coordinates_make_no_difference(make, pipeline, tiny):
    """Inputs are scaled to the same box: in a mirrored, stretched view the tasks are as hard as before."""
    turned = make("Turned")
    scaling, plain = edge_scaling(turned.family.tasks([0, 4])), edge_scaling(tiny.tasks([0, 4]))
    np.testing.assert_allclose(scaling.half, 7.0 * plain.half[:, ::-1], rtol=1e-5)
    np.testing.assert_allclose(scaling.center, 100.0 - 7.0 * plain.center[:, ::-1], rtol=1e-5)
    measured = rates(turned, "dibs")
    assert min(measured[i] for i in (0, 2, 4)) > 0.9


def test_a_description_with_a_new_environment_reads_back(tiny_description):
    family = load_family(tiny_description(environment={"name": "Beacon", "noise": 0.01}))
    assert family.environment == Beacon(noise=0.01) != Car2D(noise=0.01)
    assert load_family(family.description_data()) == family
    with pytest.raises(DibsError, match=r"unknown constant of Beacon 'nois'\. Did you mean 'noise'\?"):
        load_family(tiny_description(environment={"name": "Beacon", "nois": 0.01}))
