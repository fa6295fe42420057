"""The full paper's plan: counted against a calculation that shares nothing with it, in bounded time, without torch."""

from __future__ import annotations

import re
import resource
import subprocess
from pathlib import Path

import pytest
import yaml

from dibs.config import load_config
from dibs.errors import DibsError
from dibs.plan import FIGURES, TABLES, Plan, middle_gap
from dibs.variants import Variants

from .conftest import ROOT, Clone, job_counts

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
PER_FAMILY = {"genrl"}  # trained once for all benchmarks of a family


def expected(methods: list[str]) -> dict[str, int]:
    """Jobs by rule, by hand."""
    bases = sum(n for n, *_ in FAMILIES)
    links = sum(n * sum(last // gap for gap in gaps) for n, last, gaps, _ in FAMILIES)  # indices gap, 2·gap, …, L
    splits = sum(n * len(gaps) for n, _, gaps, _ in FAMILIES)
    cells = sum(n * len(gaps) * benchmarks for n, _, gaps, benchmarks in FAMILIES)
    templates = [m for m in methods if m.startswith("dibs")]
    trained = [m for m in methods if m not in templates and m != "maml-adapted"]
    return {
        "base_teacher": SEEDS * bases,
        "teacher": SEEDS * links,
        "base_dataset": SEEDS * bases,
        "dataset": SEEDS * links,
        **{f"template_{m.replace('-', '_')}": SEEDS * splits for m in templates},
        "baseline": SEEDS * sum(splits if m in PER_FAMILY else cells for m in trained),
        "evaluation": SEEDS * cells * len(methods),
        "evaluation_list": 34,
        "table": 5,
        "figure": 24,
    }


def test_the_calculation_is_that_of_the_paper():
    count = expected(["dibs", "dibs-plus", "genrl", "ars", "bc", "maml", "varibad"])
    assert count["base_teacher"] + count["teacher"] == count["base_dataset"] + count["dataset"] == 2980
    assert count["template_dibs"] == 480
    assert count["baseline"] == 4 * 1480 + 480
    assert count["evaluation"] == 7 * 1480


@pytest.mark.slow
def test_full_plan(tmp_path: Path):
    """`snakemake -n --quiet`: the counted plan, in less than a minute of one core, without torch."""
    seen = tmp_path / "modules"
    (tmp_path / "sitecustomize.py").write_text(
        f"import atexit, sys\natexit.register(lambda: open({str(seen)!r}, 'a').write(' '.join(sys.modules)))\n"
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
    loaded = set(seen.read_text().split())
    assert "snakemake" in loaded
    assert not loaded & {"torch", "scipy", "matplotlib", "stable_baselines3"}
    # A quiet core takes half a minute. Seconds of the processor are counted, not of the clock, and twice as many
    # allowed: tests share the machine.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 120


def test_check_counts_the_same(monkeypatch):
    monkeypatch.chdir(ROOT)
    counted = Plan(load_config("config.yaml")).counts()
    jobs = expected(yaml.safe_load(Path("config.yaml").read_text())["methods"])
    assert counted == {
        "teachers": jobs["base_teacher"] + jobs["teacher"],
        "datasets": jobs["base_dataset"] + jobs["dataset"],
        "templates": sum(n for rule, n in jobs.items() if rule.startswith("template")),
        "baselines": jobs["baseline"],
        "evaluations": jobs["evaluation"],
    }


def test_goals_share_what_they_are_trained_on(monkeypatch):
    """k = 1 … 5 have one set of teachers, datasets and templates; index 0 has one teacher for all gaps."""
    monkeypatch.chdir(ROOT)
    plan = Plan(load_config("config.yaml"))
    for method in ("dibs", "dibs-plus"):
        assert len({plan.artefact(method, f"car2d-reach-k{k}", 5, 0) for k in range(1, 6)}) == 1
    firsts = {plan.teachers("car2d-reach", gap, 0)[0] for gap in (20, 10, 8, 5, 4, 2)}
    assert firsts == {"results/teachers/car2d-reach/base/seed0/0.safetensors"}
    assert plan.previous_teacher("car2d-reach", 20, 20, 3) == "results/teachers/car2d-reach/base/seed3/0.safetensors"
    assert plan.previous_teacher("car2d-reach", 5, 20, 3) == "results/teachers/car2d-reach/gap5/seed3/15.safetensors"


def test_plan_knows_the_tables_and_figures_there_are():
    from dibs.analysis import figures, tables

    assert set(TABLES) == set(tables.TABLES)
    assert set(figures.FIGURES) <= set(FIGURES) <= {*figures.FIGURES, *figures.illustrations()}
    for name, shown in FIGURES.items():
        needs = None if shown.of == "nothing" else shown.of.removesuffix("s")
        assert (figures.FIGURES[name].needs if name in figures.FIGURES else None) == needs, name


def test_figures_of_one_split_show_the_same_one(monkeypatch):
    """What the plan makes for them is what they choose by themselves among all splits."""
    import pandas as pd

    from dibs.analysis import figures

    monkeypatch.chdir(ROOT)
    plan = Plan(load_config("config.yaml"))
    for family in plan.config.families.values():
        gaps = plan.config.gaps_of(family)
        assert middle_gap(gaps) == figures.middle_gap(pd.DataFrame({"gap": gaps}))
    shown = plan.figure_inputs("choice_trajectories")
    assert shown == ["results/templates/car2d-choice/gap4/seed0.safetensors"]
    assert len(plan.figure_inputs("loss_curves")) == SEEDS * sum(n for n, *_ in FAMILIES)
    assert "results/teachers/car2d-reach/gap5/seed9/40.safetensors" in plan.figure_inputs("drift")


def test_nothing_is_trained_for_a_figure_only(monkeypatch):
    monkeypatch.chdir(ROOT)
    config = load_config("config.yaml")
    names = {Path(file).stem for file in Plan(config.model_copy(update={"methods": ["maml"]})).figures}
    assert "scalability_k5" in names and not names & {"loss_curves", "drift", "choice_trajectories"}


def test_the_branched_template_is_shown_beside_the_single_one(monkeypatch):
    monkeypatch.chdir(ROOT)
    root = "results/ablations/branching/independent"
    plan = Variants(load_config("config.yaml"))[root]
    assert f"{root}/figures/branching.png" in plan.figures
    assert plan.figure_inputs("branching") == [
        f"{root}/{folder}/car2d-switch/gap4/seed{seed}.safetensors"
        for folder in ("templates", "templates-branched")
        for seed in range(3)
    ]
    assert not any("branched/c" in file for file in plan.figure_inputs("loss_curves"))  # single templates only
    assert (
        plan.code("templates", "dibs") == plan.code("templates", "dibs-plus") != plan.code("templates", "dibs-branched")
    )
    only = Plan(plan.config.model_copy(update={"methods": ["dibs-branched"]}))
    assert not {"branching", "loss_curves"} & {Path(file).stem for file in only.figures}


@pytest.mark.parametrize(
    "ask, text",
    [
        (lambda plan: plan.figure_inputs("scalability_k6"), "unknown figure 'scalability_k6'. Did you mean"),
        (lambda plan: plan.table_inputs("relativ"), "unknown table 'relativ'. Did you mean 'relative'"),
        (lambda plan: plan.artefact("dibs", "car2d-reach-k9", 5, 0), "unknown benchmark 'car2d-reach-k9'"),
        (lambda plan: plan.teachers("car2d-rech", 5, 0), "unknown family 'car2d-rech'. Did you mean"),
    ],
)
def test_what_is_not_in_the_config_is_told(ask, text, monkeypatch):
    monkeypatch.chdir(ROOT)
    with pytest.raises(DibsError, match=re.escape(text)):
        ask(Plan(load_config("config.yaml")))


@pytest.mark.slow
def test_workflow_is_formatted_and_linted():
    clone = Clone(ROOT)
    said = subprocess.run(
        [*clone.command("--lint")], cwd=ROOT, env=clone.environment, capture_output=True, text=True, timeout=300
    )
    assert said.returncode == 0, said.stdout + said.stderr
    files = [ROOT / "Snakefile", *sorted((ROOT / "workflow/rules").glob("*.smk"))]
    said = subprocess.run(["snakefmt", "--check", *map(str, files)], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
