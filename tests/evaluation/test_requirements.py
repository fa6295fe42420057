"""What a benchmark requires: the search for index-free policies, and the answers.

The families are ours: their answers follow from their geometry.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dibs import registry
from dibs.cli import main
from dibs.envs import Reacher
from dibs.errors import DibsError
from dibs.evaluation.index_free import Affine, Closest, Constant, IndexFree, OneVariable, Search, SearchSettings, UpTo
from dibs.evaluation.requirements import (
    UNKNOWN,
    Measurement,
    Requirement,
    RequirementSettings,
    known_group,
    known_requirement,
    requirement_of,
    tasks_digest,
)
from dibs.families import Benchmark, Family, get_benchmark, load_family
from dibs.methods import get_method
from dibs.paths import Layout
from dibs.runs import Chain, densest_split, method_settings
from dibs.simulation import BasePolicy, Moment, SpecTask, StateRecorder, draw, rollout
from dibs.spectrl import satisfied
from dibs.studies.collect import requires

SMALL = SearchSettings(searches=1, population=32, generations=8, rollouts=4, indices=5)


def family(**changes: Any) -> Family:
    """Two goals, one after the other, 3 up each."""
    data: dict[str, Any] = {
        "name": "mine",
        "environment": {"name": "Car2D"},
        "specification": "achieve reach(a); achieve reach(b)",
        "start": {"center": [0.0, 0.0], "noise": 0.1, "shift": [1.0, 0.0]},
        "regions": {
            "a": {"center": [0.0, 3.0], "half_width": 0.8, "shift": [1.0, 0.0]},
            "b": {"center": [0.0, 6.0], "half_width": 0.8, "shift": [1.0, 0.0]},
        },
        "last_index": 6,
        "horizon": 6,
        "network": {"hidden": [4]},
    }
    return load_family(data | changes)


APART = {
    "a": {"center": [-3.0, 3.0], "half_width": 0.8, "shift": [1.0, 0.0]},
    "b": {"center": [0.0, 6.0], "half_width": 0.8},
}
"""A fixed start, and a first goal that moves away to both sides of it."""


def search(found: Family, settings: SearchSettings = SMALL) -> Search:
    return Search(SpecTask(found.tasks(range(found.last_index + 1))), settings, np.random.default_rng(1000))


# --- the search ------------------------------------------------------------------------------------------


def test_a_constant_action_is_found_where_start_and_goals_move_together():
    one = search(family())
    forms, theta = one.best([Constant()])
    assert [form.words for form in forms] == ["a constant action"] * 2
    for part in theta:  # speed is free, the heading is straight up
        assert np.pi * part[0, 0, 1] == pytest.approx(np.pi / 2, abs=0.5)
    outcome = rollout(one.task, one.policy(forms, theta), draw(one.task, 200, np.random.default_rng(0)))
    assert (outcome.success.mean(axis=-1) > 0.9).all() and one.steps > 0


def test_no_policy_reaches_goals_in_opposite_directions_from_one_start():
    """From the fixed start, no way of five steps passes through both of two targets that are 6 apart."""
    found = family(start={"center": [0.0, 0.0], "noise": 0.1}, regions=APART, horizon=5)
    one = search(found)
    for forms in ([Constant()], [Affine(2)], [OneVariable(0, "x"), OneVariable(1, "y")]):
        chosen, theta = one.best(forms)
        outcome = rollout(one.task, one.policy(chosen, theta), draw(one.task, 200, np.random.default_rng(0)))
        assert (outcome.success.mean(axis=-1) > 0.9).mean() < 0.8


def test_equal_seeds_find_equal_policies():
    first, again = (search(family()).best([OneVariable(0, "x"), OneVariable(1, "y")]) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first[1], again[1], strict=True)) and first[0] == again[0]


def test_a_candidate_of_a_batch_acts_as_it_does_alone():
    rng = np.random.default_rng(0)
    one = search(family())
    forms = [OneVariable(1, "y"), Affine(2)]
    theta = [form.start(rng, 3, 2) for form in forms]
    draws = draw(one.task, 5, rng)
    batch = StateRecorder()
    rollout(one.task, one.policy(forms, theta), draws, candidates=(3,), recorder=batch)
    for n in range(3):
        alone = StateRecorder()
        rollout(one.task, one.policy(forms, [part[[n]] for part in theta]), draws, recorder=alone)
        length = min(len(alone.states()), len(batch.states()))
        np.testing.assert_allclose(alone.states()[:length], batch.states()[:length, n], atol=1e-5)


def test_functions_of_one_variable_interpolate():
    form = OneVariable(1, "y")
    theta = np.random.default_rng(1).normal(size=(2, form.size, 3))
    scaled = np.random.default_rng(2).uniform(-2.0, 2.0, (2, 4, 5, 2))
    knots = np.linspace(-1.25, 1.25, form.size)
    for candidate in range(2):
        for action in range(3):
            expected = np.interp(scaled[candidate, ..., 1], knots, theta[candidate, :, action])
            np.testing.assert_allclose(form.act(theta, scaled)[candidate, ..., action], expected, atol=1e-12)


def test_a_policy_does_not_see_the_index():
    """Equal observations at equal stages get equal actions in all tasks."""
    one = search(family())
    policy = one.policy([Affine(2), Constant()], [np.ones((1, 3, 2)), np.zeros((1, 1, 2))])
    assert isinstance(policy, IndexFree)
    recorder = StateRecorder()
    draws = draw(one.task, 3, np.random.default_rng(0))
    same = replace(draws, starts=np.zeros_like(draws.starts), noise=np.zeros_like(draws.noise))
    rollout(UpTo(one.task, 1), policy, same, recorder=recorder)
    first = recorder.states()[1]  # (tasks, rollouts, dim)
    np.testing.assert_array_equal(first, np.broadcast_to(first[0, 0], first.shape))


def test_the_first_stages_are_those_of_the_whole():
    one = search(family())
    policy = one.policy([Constant()] * 2, [np.array([[[1.0, 0.5]]])] * 2)
    draws, part = draw(one.task, 50, np.random.default_rng(0)), UpTo(one.task, 1)
    recorder, closest = StateRecorder(), Closest(0)
    outcome = rollout(part, policy, draws, recorder=recorder)
    rollout(part, policy, draws, recorder=closest)
    spec = family().tasks([0], "achieve reach(a)").spec
    for n, index in enumerate(one.task.indices):
        states = recorder.states(axis=-2)[n]
        won = satisfied(spec, family().regions_at(index), states, outcome.lengths[n])
        assert np.array_equal(won, outcome.success[n])
    assert outcome.success.all() and part.horizon == 6
    assert closest.found.max() < 1.0 + 3.0  # a step before the first goal, and the way on to the second


# --- the answer ------------------------------------------------------------------------------------------


def measure(found: Family, **settings: Any) -> Requirement:
    chain = Chain(found, densest_split(found), 1000)
    benchmark = Benchmark(found.name, found, found.name, found.name)
    motion = get_method("motion")
    model = chain.model(motion, benchmark, method_settings(motion))
    effort = RequirementSettings(**{"search": SMALL, "ars_factor": 0, "rollouts": 100, **settings})
    return Measurement(benchmark, model, chain.split.indices, effort, 1000).run(lambda *_: None)


def test_a_family_that_requires_nothing():
    answer = measure(family())
    assert (answer.group, answer.index_free, answer.motion) == ("nothing", 1.0, 1.0)
    assert answer.candidates == {"constant": 1.0} and answer.policy == "a constant action"
    assert set(answer.edges) == {"start>a", "a>b"} and "shift (1, 0)" in answer.edges["a>b"]
    assert requirement_of(json.loads(json.dumps(answer.data())), "here") == answer


def test_a_family_that_requires_motion():
    """The goal rotates about the fixed start, all the way around: no constant, and a policy cannot tell where to go."""
    goal = {"center": [3.0, 0.0], "half_width": 0.8, "rotate": 60.0}
    found = family(
        specification="achieve reach(a)", start={"center": [0.0, 0.0], "noise": 0.1}, regions={"a": goal}, last_index=5
    )
    found = load_family(found.description_data() | {"environment": {"name": "SimpleDrone"}} | spatial())
    answer = measure(found, ars_factor=1)
    assert answer.group == "motion" and answer.motion == 1.0 and answer.index_free < 0.95
    assert list(answer.candidates) == ["constant", "affine", "one variable", "sum", "network"]
    assert answer.index_free == max(answer.candidates.values())


def spatial() -> dict[str, Any]:
    goal = {"radius": 0.8, "center": [3.0, 0.0, 0.0], "rotate": 60.0}
    return {"start": {"center": [0.0, 0.0, 0.0], "noise": 0.1}, "regions": {"a": goal}}


def test_a_family_that_requires_more():
    """Two targets that move at different rates from one start: no single motion relates them to it."""
    found = family(start={"center": [0.0, 0.0], "noise": 0.1}, regions=APART, horizon=5)
    answer = measure(found)
    assert answer.group == "more" and answer.motion < 0.5
    assert answer.edges["start>a"].startswith("no single motion")
    assert answer.sentence.startswith("more: no index-free policy and no motion was found")


def test_the_densest_training_set_leaves_out_what_is_out_of_reach():
    assert densest_split(family()).name == "gap1"
    assert densest_split(family(gaps=[3, 2])).indices == (0, 2, 4, 6)
    table = [{"center": [0.0, 3.0 + 9.0 * (i == 2)], "half_width": 0.8} for i in range(7)]
    found = family(regions={"a": {"table": table}, "b": APART["b"]}, start={"center": [0.0, 0.0], "noise": 0.1})
    assert set(found.out_of_reach) == {2} and densest_split(found).indices == (0, 1, 3, 4, 5, 6)


# --- answers that are known ------------------------------------------------------------------------------


@pytest.mark.parametrize("collection", registry.names("requirements"))
def test_registered_answers_are_of_the_families_as_they_are(collection):
    for name in registry.load("requirements", collection)():
        answer = known_requirement(get_benchmark(name))
        assert answer is not None, f"{name}: its family or the search has changed; run `dibs requires` again"
        assert answer.benchmark == name and answer.index_free == max(answer.candidates.values())


@pytest.mark.parametrize("name", ["car2d-reach-k5", "simpledrone-reach-k5"])
def test_the_constant_actions_that_were_found_are_real(name):
    """Straight to the first goal and on in the same direction; found independently of the search."""
    found = get_benchmark(name)
    answer = known_requirement(found)
    assert answer is not None and answer.group == "nothing" and answer.candidates == {"constant": 1.0}
    task = SpecTask(found.family.tasks(range(0, 41, 8), found.specification))
    straight = {"Car2D": [1.0, np.arctan2(8.0, 5.0) / np.pi], "SimpleDrone": [0.625, 1.0, 0.5]}
    theta = [np.array([[straight[found.family.environment.name]]])] * 5
    policy = Search(task, SMALL, np.random.default_rng(0)).policy([Constant()] * 5, theta)
    outcome = rollout(task, policy, draw(task, 300, np.random.default_rng(1)))
    assert (outcome.success.mean(axis=-1) > 0.9).all()


def test_an_answer_of_another_family_is_stale(monkeypatch):
    found = family()
    benchmark = Benchmark("mine", found, "mine", "mine")
    assert known_group(benchmark) == UNKNOWN
    answer = Requirement("mine", tasks_digest(benchmark), 0.4, "p", {"constant": 0.4}, 1.0, {}, 1, 1.0, 1000)
    monkeypatch.setitem(registry._added["requirements"], "test", {"mine": answer.data()})
    assert known_group(benchmark) == "motion" and known_requirement(benchmark) == answer
    changed = family(horizon=7)
    assert known_group(Benchmark("mine", changed, "mine", "mine")) == UNKNOWN
    monkeypatch.setitem(registry._added["requirements"], "test", {"mine": {**answer.data(), "version": 0}})
    assert known_group(benchmark) == UNKNOWN


def test_damaged_answers_are_named():
    with pytest.raises(DibsError, match="here: not an answer of `dibs requires`"):
        requirement_of({"benchmark": "mine"}, "here")


# --- the command -----------------------------------------------------------------------------------------


QUICK = json.dumps({"search": {"population": 32, "generations": 8, "searches": 1}, "rollouts": 100})


def saved(found: Family, folder: Path) -> Path:
    """Write a family's file."""
    found.save(folder / "mine.yaml")
    return folder / "mine.yaml"


def test_the_command_adds_answers_to_a_file(tmp_path, capsys):
    file, output = saved(family(), tmp_path), tmp_path / "answers.json"
    output.write_text('{"other": {"requires": "more"}}')
    argv = ["requires", str(file), "--settings", QUICK, "--results", str(tmp_path), "--output", str(output)]
    assert main(argv) == 0
    said = capsys.readouterr()
    assert said.out.startswith("mine: nothing: a policy that does not know the index solves it (index-free 100%")
    found = json.loads(output.read_text())
    assert list(found) == ["mine", "other"] and found["mine"]["requires"] == "nothing"
    assert main([*argv, "--quiet"]) == 0  # the teacher is read from the results
    again = json.loads(output.read_text())["mine"]
    assert again | {"seconds": 0} == found["mine"] | {"seconds": 0} and capsys.readouterr().err == ""


def test_the_files_of_a_study_are_left_alone(tmp_path):
    """A study may have a teacher of the same seed, with other settings, or another description of the family."""
    layout = Layout(tmp_path / "results")
    place = "mine", densest_split(family()).name
    kept = [layout.teacher(*place, 0, 1000), layout.model("motion", *place, 1000), layout.family("mine")]
    for path in kept:
        path.parent.mkdir(parents=True)
        path.write_text("of a study")
    argv = ["requires", str(saved(family(), tmp_path)), "--settings", QUICK, "--results", str(layout.root), "--quiet"]
    assert main(argv) == 0
    files = {path for path in layout.root.rglob("*") if path.is_file()}
    answers = layout.requirements("mine")
    assert {path for path in files if not path.is_relative_to(answers.parent)} == set(kept)
    assert {path.read_text() for path in kept} == {"of a study"}
    work = layout.root / "requirements" / "work"
    assert {work / path.relative_to(layout.root) for path in kept} | {answers} <= files


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["requires", "car2d-reach-k6"], "unknown benchmark 'car2d-reach-k6'"),
        (["requires", "car2d-reach-k1", "--output", "x.csv"], "x.csv: expected a name that ends in .json"),
        (
            ["requires", "car2d-reach-k1", "--settings", '{"rollout": 3}'],
            "rollout: unknown key 'rollout'. Did you mean 'rollouts'?",
        ),
        (["requires", "car2d-reach-k1", "--settings", '{"rollouts": 0}'], "rollouts: Input should be greater"),
        (
            ["requires", "car2d-reach-k1", "--settings", '{"search": {"population": 0}}'],
            "search.population: Input should",
        ),
        (["requires", "car2d-reach-k1", "--settings", '{"ars_steps": 0}'], "ars_steps: Input should be greater"),
        (["requires", "no.yaml"], "no.yaml: no such family file"),
    ],
)
def test_mistakes_are_named(argv, message, capsys):
    assert main(argv) == 1
    assert message in capsys.readouterr().err


def test_tables_show_the_answers_in_the_folder_of_the_results(tmp_path):
    """Of a family that nobody has registered, as long as its description is the one that was measured."""
    found = family()
    layout = Layout(tmp_path)
    assert requires("mine", "mine", layout) == UNKNOWN
    assert main(["requires", str(saved(found, tmp_path)), "--settings", QUICK, "--results", str(tmp_path)]) == 0
    found.save(layout.family("mine"))  # as every command does that writes results of the family
    requires.cache_clear()
    assert requires("mine", "mine", layout) == "nothing"
    family(horizon=7).save(layout.family("mine"))
    requires.cache_clear()
    assert requires("mine", "mine", layout) == UNKNOWN


class Sweep(BasePolicy):
    """Down along the tower, then down along its new place, whatever the index."""

    def __init__(self, arm: Reacher, stack: bool) -> None:
        self.arm, self.stack = arm, stack

    def act(self, now: Moment, memory: None) -> tuple[Any, None]:
        picked = now.stage > 0
        x = np.where(picked, 2.5, 5.0)
        top = np.where(picked, 5.6 if self.stack else 0.3, 5.9)
        y = np.where(np.abs(now.states[..., 0] - x) > 0.3, top, now.states[..., 1] - 0.4)
        first, second = self.arm.joints(np.stack([x, np.maximum(y, 0.05)], axis=-1))
        return np.stack([(first / np.pi - 0.25) / 0.75, (second / np.pi - 0.5) / 0.5], axis=-1).astype(np.float32), None


@pytest.mark.parametrize("name", [f"reacher-{kind}-same-{blocks}" for kind in ("drop", "stack") for blocks in (8, 9)])
def test_a_sweep_solves_the_towers_on_the_same_side(name):
    """Known beyond what the search finds (docs/requirements.md)."""
    found = get_benchmark(name)
    arm = found.family.environment
    assert isinstance(arm, Reacher)
    task = SpecTask(found.family.tasks(range(found.family.last_index + 1)))
    outcome = rollout(task, Sweep(arm, "stack" in name), draw(task, 200, np.random.default_rng(0)))
    assert (outcome.success.mean(axis=-1) > 0.9).all()
