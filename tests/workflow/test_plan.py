"""The plan: the full paper counted independently, in bounded time and without torch; which ids a change affects."""

from __future__ import annotations

import re
import resource
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from dibs import registry
from dibs.errors import DibsError
from dibs.methods import get_method
from dibs.studies.checks import load_config, parse_config
from dibs.studies.collect import middle_split
from dibs.studies.plan import Plan, middle
from dibs.studies.variants import Variants
from dibs.teachers.base import get_algorithm

from .conftest import ROOT, SPARSE, TINY, Clone, job_counts

pytestmark = pytest.mark.timeout(900)

SEEDS = 10
# The paper's families: how many, last index, gaps, benchmarks each. From the paper and docs/choices.md, not from code.
FAMILIES = [
    (4, 40, (20, 10, 8, 5, 4, 2), 5),  # car2d-reach, car2d-reach-obs, simpledrone-reach, droneattitude-reach
    (1, 20, (10, 5, 4, 2), 2),  # car2d-choice
    (4, 8, (4, 2), 1),  # reacher, towers of 8, 9, 10
    (4, 9, (3,), 1),
    (4, 10, (5, 2), 1),
]
STAGES = ("teacher", "dataset", "model", "evaluation")
PER_FAMILY = {"dibs", "dibs-plus", "genrl"}  # one model for all benchmarks of a family
FIGURES = 34 + 4 + 24  # one per benchmark, four over all of them, those of the paper


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def expected(methods: list[str]) -> dict[str, int]:
    """Return the number of jobs by rule."""
    bases = sum(n for n, *_ in FAMILIES)
    links = sum(n * sum(last // gap for gap in gaps) for n, last, gaps, _ in FAMILIES)  # indices gap, 2·gap, …, L
    splits = sum(n * len(gaps) for n, _, gaps, _ in FAMILIES)
    cells = sum(n * len(gaps) * benchmarks for n, _, gaps, benchmarks in FAMILIES)
    trained = [m for m in methods if m != "maml-adapted"]
    return {
        "teacher": SEEDS * (bases + links),
        "dataset": SEEDS * (bases + links),
        "model": SEEDS * sum(splits if m in PER_FAMILY else cells for m in trained),
        "evaluation": SEEDS * cells * len(methods),
        "evaluation_list": 34,
        "table": 8,
        "figure": FIGURES,
    }


def test_the_calculation_is_that_of_the_paper():
    count = expected(["dibs", "dibs-plus", "genrl", "ars", "bc", "maml", "varibad", "maml-adapted"])
    assert count["teacher"] == count["dataset"] == 2980
    assert count["model"] == 3 * 480 + 4 * 1480
    assert count["evaluation"] == 8 * 1480


@pytest.mark.slow
def test_full_plan(tmp_path: Path):
    """`snakemake -n --quiet` prints the counted plan in less than a minute of one core, without torch."""
    modules = tmp_path / "modules"
    (tmp_path / "sitecustomize.py").write_text(
        f"import atexit, sys\natexit.register(lambda: open({str(modules)!r}, 'a').write(' '.join(sys.modules)))\n"
    )
    clone = Clone(ROOT)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        clone.command("-n", "--quiet", "--nolock", "--forceall", "--config", f"results={tmp_path}/none"),
        cwd=ROOT,
        env=clone.environment | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=800,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    methods = yaml.safe_load((ROOT / "config.yaml").read_text())["methods"]
    assert job_counts(done.stdout) == expected(methods)
    loaded = set(modules.read_text().split())
    assert "snakemake" in loaded
    assert not loaded & {"torch", "scipy", "matplotlib", "stable_baselines3"}
    # An idle core takes 25 s. Processor time is compared, with a wide margin, because tests share the machine.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 120


def test_check_counts_the_same():
    jobs = expected(yaml.safe_load(Path("config.yaml").read_text())["methods"])
    stages = {f"{stage}s": jobs[stage] for stage in ("teacher", "dataset", "model", "evaluation")}
    assert Plan(load_config("config.yaml")).counts() == stages


def test_benchmarks_of_a_family_share_what_they_are_trained_on():
    """k = 1 … 5 share teachers, datasets and templates. The teacher of index 0 serves all splits."""
    plan = Plan(load_config("config.yaml"))
    for method in ("dibs", "dibs-plus"):
        assert len({plan.model(method, f"car2d-reach-k{k}", "gap5", 0) for k in range(1, 6)}) == 1
    firsts = {plan.teachers("car2d-reach", f"gap{gap}", 0)[0] for gap in (20, 10, 8, 5, 4, 2)}
    assert firsts == {"results/teachers/car2d-reach/base/seed0/0.safetensors"}
    assert plan.previous("car2d-reach", "gap20", 20, 3) == ["results/teachers/car2d-reach/base/seed3/0.safetensors"]
    assert plan.previous("car2d-reach", "gap5", 20, 3) == ["results/teachers/car2d-reach/gap5/seed3/15.safetensors"]
    assert plan.previous("car2d-reach", "base", 0, 3) == []


def test_only_what_methods_read_is_planned(monkeypatch: pytest.MonkeyPatch):
    """ARS with a budget of its own reads no teachers. A method that reads index 4 needs the chain up to it."""
    raw = {**yaml.safe_load(Path("tests/workflow/tiny.yaml").read_text()), "methods": ["ars"], "ablations": {}}
    raw |= {"sweeps": {}, "gaps": [2]}

    def plan(**changes: Any) -> Plan:
        return Plan(parse_config(raw | changes, "test"))

    budget = plan(baselines={"ars": {"steps": 1000}})
    assert plan().counts()["teachers"] == 3 and plan().counts()["datasets"] == 0
    assert budget.counts() == {"teachers": 0, "datasets": 0, "models": 1, "evaluations": 1}
    assert budget.model_inputs("ars", "tiny-reach-k2", "gap2", 0) == {"teachers": [], "metrics": [], "datasets": []}
    assert plan().model_id("ars", "tiny-reach-k2", "gap2", 0) != budget.model_id("ars", "tiny-reach-k2", "gap2", 0)

    def reads(settings: Any, train: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return {"teachers": train[:1], "datasets": train[1:2]}

    middle_only = replace(get_method("bc"), name="middle-only", reads=reads)
    monkeypatch.setitem(registry._added["methods"], "middle-only", middle_only)
    chosen = plan(methods=["middle-only"])
    inputs = chosen.model_inputs("middle-only", "tiny-reach-k2", "gap2", 0)
    assert [Path(f).stem for f in inputs["teachers"] + inputs["metrics"] + inputs["datasets"]] == ["0", "0", "2"]
    assert chosen.counts()["teachers"] == 2 and chosen.counts()["datasets"] == 1
    assert not [file for file in chosen.reports("figure") if "drift" in file]  # shows teachers of all indices


@pytest.mark.parametrize(
    ("read", "message"),
    [
        ({"models": (0,)}, "reads() returns 'models', which `needs` does not list"),
        ({"teachers": (0, 1)}, "reads() returns teachers of [0, 1]; expected training indices"),
        ({"teachers": (4, 0)}, "reads() returns teachers of [4, 0]; expected training indices in increasing order"),
    ],
)
def test_a_wrong_record_is_named(read: dict[str, tuple[int, ...]], message: str):
    wrong = replace(get_method("bc"), reads=lambda settings, train: read)
    with pytest.raises(DibsError, match=re.escape(f"method 'bc': {message}")):
        wrong.inputs(None, (0, 2, 4))


# --- code that family files name -------------------------------------------------------------------------

PENDULUM = """
name: pendulum
environment: {gymnasium: Pendulum-v1, simulator: "my_simulator:Pendulum", quantities: {angle: {state: s0}}}
specification: achieve reach(up)
start: {center: {s0: 3.0, s1: 0.0}, noise: 0.1}
regions: {up: {center: {angle: 0.5}, half_width: 0.5, shift: {angle: 0.1}}}
last_index: 4
gaps: [4]
horizon: 20
network: {hidden: [8], activation: tanh}
reward: {unit: 1.0}
"""
SIMULATOR = """
import numpy as np

class Pendulum:
    def read(self, env): return np.array(env.state)
    def restore(self, env, vector): env.state = vector
"""


def test_only_the_config_allows_code(clone: Clone):
    """A family file cannot allow what it names; `allow_code: true` reaches the plan and every command."""
    (clone.path / "pendulum.yaml").write_text(PENDULUM)
    (clone.path / "my_simulator.py").write_text(SIMULATOR)
    methods = ("methods=[ars]", "ablations={}", "sweeps={}")
    short = "teachers={probes: 8, rollouts: 8, algorithms: {ars: {directions: 2, best: 1, iterations: 1, restarts: 1}}}"
    chosen = (*TINY, "--config", "benchmarks=[pendulum.yaml]", *methods, short)
    teacher = "results/teachers/pendulum/base/seed0/0.safetensors"
    refused = clone.run(teacher, *chosen, fails=True)
    assert "environment.simulator: my_simulator:Pendulum runs code that the family file names" in refused
    assert "allow_code: true" in refused and not (clone.path / teacher).exists()
    clone.run(teacher, *chosen, "allow_code=true")
    assert (clone.path / teacher).exists()
    wrong = clone.path / "wrong.yaml"
    wrong.write_text(PENDULUM + "allow_code: true\n")
    assert "allow_code" in clone.python("-m", "dibs", "benchmarks", "wrong.yaml", fails=True).stderr
    assert "pendulum" in clone.python("-m", "dibs", "--allow-code", "benchmarks", "pendulum.yaml").stdout


def test_allow_code_is_a_boolean():
    raw = {"methods": ["dibs"], "seeds": 1, "benchmarks": ["car2d-reach-k1"], "allow_code": "sure"}
    with pytest.raises(DibsError, match="allow_code: "):
        parse_config(raw, "test")
    assert not registry.code_allowed()


# --- resources -------------------------------------------------------------------------------------------


def asked(clone: Clone, *config: str) -> dict[str, tuple[int, int]]:
    """Return megabytes and minutes of the planned jobs, by what they make."""
    for file in (clone.path / "workflow" / "rules").glob("*.smk"):  # with a message, Snakemake shows no resources
        file.write_text(re.sub(r"^    message:\n        .*\n", "", file.read_text(), flags=re.MULTILINE))
    output = clone.run("-n", *TINY, "--config", *config)
    jobs = re.findall(r"^ +output: ([^\s,]+).*?^ +resources: (.*?)$", output, re.MULTILINE | re.DOTALL)
    resources = {made.removeprefix("results/"): dict(re.findall(r"(\w+)=(\d+)\b", text)) for made, text in jobs}
    return {
        made: (int(found["mem_mb"]), int(found["runtime"])) for made, found in resources.items() if "mem_mb" in found
    }


def test_jobs_ask_for_what_family_method_and_settings_need(clone: Clone):
    family = yaml.safe_load((ROOT / "tests" / "workflow" / "family.yaml").read_text())
    edges, last = 2, family["last_index"]
    methods = "methods=[dibs, maml-adapted, varibad]"
    plain = asked(
        clone,
        methods,
        "gaps=[4]",
        "evaluation={rollouts: 100000}",
        "datasets={size: 5000000}",
        "templates={samples: 5000000}",
    )
    teacher, model = get_algorithm("ars"), get_method("varibad")
    assert plain["teachers/tiny-reach/gap4/seed0/4.safetensors"] == (teacher.memory_mb, teacher.minutes)
    assert plain["models/varibad/tiny-reach-k2/gap4/seed0.safetensors"] == (model.memory_mb, model.minutes)
    # Four candidates per row, a rollout for every eight of them, six million steps a minute.
    rows = -(-4 * 5_000_000 * edges * family["horizon"] // 8 // 6_000_000)
    assert plain["datasets/tiny-reach/gap4/seed0/4.parquet"] == (1000, 2 + rows)
    steps = (last + 1) * 100_000 * edges * family["horizon"]
    recorded = 6 * 4 * 8 * 100_000 * edges * family["horizon"] * 2 // 10**6
    for method, factor, memory in (("dibs", 1, 1000), ("varibad", 8, 1000), ("maml-adapted", 2, 3000)):
        found = plain[f"evaluations/{method}/tiny-reach-k2/gap4/seed0.parquet"]
        assert found == (memory + recorded, 2 + -(-steps * factor // 6_000_000))

    file = clone.path / "tests" / "workflow" / "family.yaml"
    own = {f"{kind}_{what}": n for n, kind in enumerate(STAGES, 11) for what in ("minutes", "memory_mb")}
    file.write_text(yaml.safe_dump(family | own))
    told = asked(clone, methods, "gaps=[4]")
    kinds = {f"{kind}s": (n, n) for n, kind in enumerate(STAGES, 11)}
    assert {file: found for file, found in told.items() if file.partition("/")[0] in kinds} == {
        file: kinds[file.partition("/")[0]] for file in told if file.partition("/")[0] in kinds
    }
    assert {file.partition("/")[0] for file in told} >= set(kinds)


def test_gymnasium_environments_get_more_time():
    raw = {"methods": ["dibs"], "seeds": 1, "gaps": [2], "benchmarks": ["examples/families/reacher-torque.yaml"]}
    plan = Plan(parse_config(raw, "test"))
    (family,) = plan.config.families.values()
    assert family.environment.by_row
    slow = plan.evaluation_resources("dibs", family.benchmark_ids[-1], "gap2")[1]
    steps = 1000 * (2 * family.last_index + 1) * family.horizon * 2
    assert slow == 2 + -(-steps // 120_000) > 5
    assert plan.dataset_resources(family.name)[1] > 2 + 1


# --- reports ---------------------------------------------------------------------------------------------


def made(plan: Plan) -> set[str]:
    return {Path(file).stem for kind in ("table", "figure") for file in plan.reports(kind)}


def test_figures_of_one_split_show_the_one_they_choose_themselves():
    """The plan makes the split that such a figure chooses among all evaluations."""
    plan = Plan(load_config("config.yaml"))
    for family in plan.config.families.values():
        splits = plan.config.splits_of(family)
        frame = pd.DataFrame([{"split": s.name, "train_size": len(s.indices)} for s in splits])
        assert middle(splits).name == middle_split(frame)
    models = [f"results/models/dibs/car2d-choice/gap4/seed{seed}.safetensors" for seed in range(SEEDS)]
    assert plan.report_inputs("choice_trajectories") == models
    assert len(plan.report_inputs("loss_curves")) == SEEDS * sum(n for n, *_ in FAMILIES)
    assert "results/teachers/car2d-reach/gap5/seed9/40.safetensors" in plan.report_inputs("drift")
    assert plan.report_inputs("environments") == []


def test_nothing_is_trained_only_for_a_figure():
    config = load_config("config.yaml")
    found = made(Plan(config.model_copy(update={"methods": ["maml"]})))
    assert "scalability_k5" in found and not found & {"loss_curves", "drift", "choice_trajectories"}


def test_the_branched_template_is_shown_next_to_the_single_one():
    root = "results/ablations/branching/independent"
    plan = Variants(load_config("config.yaml", "config/paper-ablations.yaml"))[root]
    assert "branching" in made(plan)
    assert plan.report_inputs("branching") == [
        f"{root}/models/{method}/car2d-switch/gap4/seed{seed}.safetensors"
        for method in ("dibs", "dibs-branched")
        for seed in range(3)
    ]
    assert {Path(file).parts[-4] for file in plan.report_inputs("loss_curves")} == {"dibs"}
    only = Plan(plan.config.model_copy(update={"methods": ["dibs-branched"]}))
    assert "branching" not in made(only)


def test_losses_are_those_of_a_template():
    """Not of another method that needs datasets and has one model per family."""
    data = yaml.safe_load(Path("tests/workflow/tiny.yaml").read_text())
    plan = Plan(parse_config(data | {"methods": ["bc-index", "hyper", "dibs-plus", "dibs"]}))
    assert {Path(file).parts[-4] for file in plan.report_inputs("loss_curves")} == {"dibs-plus"}
    assert "loss_curves" not in made(
        Plan(parse_config(data | {"methods": ["bc-index"], "ablations": {}, "sweeps": {}}))
    )


GENERIC = {
    "overview",
    "relative",
    "benchmarks",
    "splits",
    "budgets",
    "improvement",
    "ratios",
    "by_requirement",
    "loss_curves",
    "drift",
}


def test_a_custom_family_gets_no_report_of_the_paper():
    """Only generic tables and figures, of the requested methods."""
    for overlay in ({}, {"reports": None}, {"benchmarks": ["tests/workflow/family.yaml"]}):
        data = yaml.safe_load(Path("tests/workflow/tiny.yaml").read_text())
        plan = Plan(parse_config(data | overlay))
        shown = {f"success_by_index-{benchmark}" for benchmark in plan.config.chosen}
        assert made(plan) == GENERIC | shown
        assert set(plan.captions) == GENERIC | shown
        assert {e.method for e in plan.evaluations} == {"dibs", "dibs-plus", "ars"}
        for name in ("table1", "claims", "environments", "scalability_k5", "spec-reach"):
            with pytest.raises(DibsError, match=f"unknown report of this config '{name}'"):
                plan.report_inputs(name)


def test_a_mixed_study_shows_the_papers_benchmarks_only_in_the_papers_reports():
    data = yaml.safe_load(Path("tests/workflow/tiny.yaml").read_text())
    plan = Plan(parse_config(data | {"benchmarks": ["car2d-reach-k1", "tests/workflow/family.yaml"]}))
    assert {"table1", "claims", "scalability_k1", *GENERIC} <= made(plan)
    assert plan.report_inputs("table1") == ["results/inputs/car2d-reach-k1.txt"]
    assert len(plan.report_inputs("relative")) == 3


@pytest.mark.parametrize(
    "ask, text",
    [
        (
            lambda plan: plan.report_inputs("scalability_k6"),
            "unknown report of this config 'scalability_k6'. Did you mean",
        ),
        (
            lambda plan: plan.report_inputs("relativ"),
            "unknown report of this config 'relativ'. Did you mean 'relative'",
        ),
        (lambda plan: plan.model("dibs", "car2d-reach-k9", "gap5", 0), "unknown benchmark 'car2d-reach-k9'"),
        (lambda plan: plan.teachers("car2d-rech", "gap5", 0), "unknown family 'car2d-rech'. Did you mean"),
        (lambda plan: plan.teachers("car2d-reach", "spars", 0), "unknown split of car2d-reach 'spars'"),
        (lambda plan: plan.teachers("car2d-reach", "gap41", 0), "the gap is larger than the last index 40"),
    ],
)
def test_what_the_config_does_not_have_is_named(ask: Callable[[Plan], Any], text: str):
    with pytest.raises(DibsError, match=re.escape(text)):
        ask(Plan(load_config("config.yaml")))


# --- ids: what test_reruns.py checks with Snakemake, here with more families, methods and algorithms --------------


STUDY: dict[str, Any] = {
    "seeds": 1,
    "benchmarks": ["car2d-reach-k1", "car2d-reach-k2", "simpledrone-reach-k1"],  # teachers: ars, ars, ppo
    "gaps": [20, 10],
    "methods": ["dibs", "dibs-plus", "genrl", "ars", "maml", "maml-adapted"],
}


def ids(data: dict[str, Any]) -> dict[tuple[str, ...], str]:
    """Return all ids of a config by stage, method, family and what else identifies a file."""
    plan = Plan(parse_config(data))
    found: dict[tuple[str, ...], str] = {}
    for family, split, seed in plan.splits:
        for index in plan.split(family, split).indices:
            found["teacher", "", family, split, str(index)] = plan.teacher_id(family, split, index, seed)
            found["dataset", "", family, split, str(index)] = plan.dataset_id(family, split, index, seed)
    for e in plan.evaluations:
        family = plan.benchmark(e.benchmark).family.name
        path = Path(plan.model(e.method, e.benchmark, e.split, e.seed))
        method, unit = path.parts[-4:-2]
        found["model", method, family, unit, e.split] = plan.model_id(method, unit, e.split, e.seed)
        found["evaluation", e.method, family, e.benchmark, e.split] = plan.evaluation_id(
            e.method, e.benchmark, e.split, e.seed
        )
    return found


def changed(before: dict[tuple[str, ...], str], after: dict[tuple[str, ...], str]) -> set[tuple[str, str, str]]:
    """Return stage, method and family of all ids that differ; either all files of such a triple differ or none."""
    assert before.keys() == after.keys()
    kinds = {key[:3] for key in before if before[key] != after[key]}
    assert not [key for key in before if key[:3] in kinds and before[key] == after[key]]
    return kinds


def test_ids_differ():
    """Except for the teacher and dataset of index 0, which all splits share."""
    found = ids(STUDY)
    own = {key: value for key, value in found.items() if key[0] not in ("teacher", "dataset") or key[4] != "0"}
    assert len(set(own.values())) == len(own)
    shared = {value for key, value in found.items() if key not in own}
    assert len(shared) == 4 and not shared & set(own.values())


def test_version_of_an_algorithm(monkeypatch: pytest.MonkeyPatch):
    before = ids(STUDY)
    monkeypatch.setitem(vars(get_algorithm("ppo")), "version", 2)
    kinds = changed(before, ids(STUDY))
    assert {family for _, _, family in kinds} == {"simpledrone-reach"}
    assert {(stage, method) for stage, method, _ in kinds} == {
        *(("teacher", ""), ("dataset", "")),
        *((stage, m) for stage in ("model", "evaluation") for m in ("dibs", "dibs-plus", "genrl", "ars")),
    }  # MAML uses no teachers


def test_version_of_a_method(monkeypatch: pytest.MonkeyPatch):
    before = ids(STUDY)
    families = ("car2d-reach", "simpledrone-reach")
    for name, evaluated in {"genrl": ["genrl"], "maml": ["maml", "maml-adapted"]}.items():
        with monkeypatch.context() as patch:
            patch.setitem(vars(get_method(name)), "version", get_method(name).version + 1)
            after = changed(before, ids(STUDY))
        models = {("model", name, family) for family in families}
        assert after == models | {("evaluation", m, family) for m in evaluated for family in families}
    with monkeypatch.context() as patch:
        patch.setitem(vars(get_method("maml-adapted")), "version", get_method("maml-adapted").version + 1)
        assert {kind[:2] for kind in changed(before, ids(STUDY))} == {("evaluation", "maml-adapted")}


@pytest.mark.parametrize(
    "overlay, stages",
    [
        ({"teachers": {"probes": 7}}, {"teacher", "dataset", "model", "evaluation"}),
        ({"datasets": {"size": 7}}, {"dataset", "model", "evaluation"}),
        ({"evaluation": {"rollouts": 7}}, {"evaluation"}),
        ({"teachers": {"families": {"car2d-choice": {"probes": 7}}}}, set()),
        ({"methods": list(reversed(STUDY["methods"])), "benchmarks": list(reversed(STUDY["benchmarks"]))}, set()),
    ],
)
def test_settings(overlay: dict[str, Any], stages: set[str]):
    kinds = changed(ids(STUDY), ids(STUDY | overlay))
    assert {stage for stage, *_ in kinds} == stages
    assert not {kind for kind in kinds if "datasets" in overlay and kind[1] in ("ars", "genrl", "maml")}


def test_a_family_changes_alone(tmp_path: Path):
    text = Path("tests/workflow/family.yaml").read_text()
    file = tmp_path / "family.yaml"
    data = {**STUDY, "benchmarks": ["car2d-reach-k1", str(file)], "gaps": [4, 2]}

    def with_text(new: str) -> dict[tuple[str, ...], str]:
        file.write_text(new)
        return ids(data)

    before = with_text(text)
    for old, new in {"two goals in order": "two goals", "gaps: [4, 2]": "gaps: [2]", "teacher: ars": ""}.items():
        assert changed(before, with_text(text.replace(old, new))) == set(), old
    for old, new in {"noise: 0.1": "noise: 0.2", "horizon: 10": "horizon: 11", "hidden: [4]": "hidden: [5]"}.items():
        kinds = changed(before, with_text(text.replace(old, new)))
        assert {stage for stage, *_ in kinds} == {"teacher", "dataset", "model", "evaluation"}, old
        assert {family for *_, family in kinds} == {"tiny-reach"}, old
    # Another specification of one benchmark concerns its evaluations and the methods with one model per benchmark.
    other = text.replace("k1: achieve reach(g1)", "k1: achieve reach(g1); achieve reach(g2)")
    after = with_text(other)
    differing = {key[:2] for key in before if before[key] != after[key]}
    assert {key for key in differing if key[0] == "model"} == {("model", "ars"), ("model", "maml")}
    assert {key[3] for key in before if before[key] != after[key]} == {"tiny-reach-k1"}


def test_what_a_family_requires_is_measured_again_when_its_tasks_change(tmp_path: Path, monkeypatch):
    text = Path("tests/workflow/family.yaml").read_text()
    file = tmp_path / "family.yaml"

    def found(new: str = text) -> str:
        file.write_text(new)
        config = parse_config({**STUDY, "benchmarks": [f"{file}:tiny-reach-k2"], "gaps": [4, 2]})
        return Plan(config).requirements_id("tiny-reach")

    before = found()
    for old, new in {"two goals in order": "two goals", "gaps: [4, 2]": "gaps: [2, 4]"}.items():
        assert found(text.replace(old, new)) == before, old
    # Of any index, and of any benchmark: the command measures all of the family.
    both = "k1: achieve reach(g1); achieve reach(g2)"
    edits = {"[1.5, 3.0]": "[1.6, 3.0]", "[3.5, 6.0]": "[3.6, 6.0]", "k1: achieve reach(g1)": both}
    assert len({before, *(found(text.replace(old, new)) for old, new in edits.items())}) == 4
    monkeypatch.setattr("dibs.evaluation.requirements.VERSION", 1000)
    assert found() != before


# --- Snakemake -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_named_splits_are_planned(clone: Clone):
    """Splits whose last index is that of no family in the study are rejected; others replace or extend the gaps."""
    assert clone.plan("teachers", *TINY, *SPARSE) == {"teacher": 3, "teachers": 1}
    assert clone.plan("teachers", *TINY, "--config", "splits={sparse: [0, 1, 4]}")["teacher"] == 4 + 2
    output = clone.run("-n", *TINY, "--config", "splits={sparse: [0, 1, 5]}", fails=True)
    assert "splits.sparse: fits no chosen family" in output


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ablations", "sweeps"])
def test_a_config_without_variants_says_where_the_papers_are(clone: Clone, kind: str):
    output = clone.run("-n", kind, fails=True)
    assert f"the config has no {kind}: pass one that has, such as --configfile config/paper-{kind}.yaml" in output


@pytest.mark.slow
def test_workflow_is_formatted_and_linted():
    clone = Clone(ROOT)
    done = subprocess.run(
        [*clone.command("--lint")], cwd=ROOT, env=clone.environment, capture_output=True, text=True, timeout=300
    )
    # The rules run in the environment that runs Snakemake.
    found = set(re.findall(r"^ +\* (.*)", done.stdout + done.stderr, re.MULTILINE))
    assert found == {"Specify a conda environment or container for each rule.:"}, done.stdout + done.stderr
    files = [ROOT / "Snakefile", *sorted((ROOT / "workflow/rules").glob("*.smk"))]
    done = subprocess.run(["snakefmt", "--check", *map(str, files)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
