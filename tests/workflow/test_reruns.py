"""What is made again after a change, read from the dry run's plan: what depends on it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import TINY, Clone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Of the tiny config: two seeds, gaps 4 and 2, that is indices 0, 4 and 0, 2, 4; one benchmark, three methods.
MEASURE = {"evaluation_list": 1, "table": 5, "figure": 1}
EVALUATIONS = {"evaluation": 12, **MEASURE}
OURS = {"evaluation": 8, **MEASURE}
TEMPLATES = {"template_dibs": 4, "template_dibs_plus": 4, **OURS}
DATASETS = {"base_dataset": 2, "dataset": 6, **TEMPLATES}
BASELINES = {"baseline": 4, "evaluation": 4, **MEASURE}
EVERYTHING = {"base_teacher": 2, "teacher": 6, "baseline": 4, **DATASETS, **EVALUATIONS}


def setting(*values: str) -> tuple[Callable[[Clone], None], tuple[str, ...]]:
    return (lambda clone: None), ("--config", *values)


def edit(file: str, old: str, new: str) -> tuple[Callable[[Clone], None], tuple[str, ...]]:
    return (lambda clone: clone.edit(file, old, new)), ()


def code(file: str) -> tuple[Callable[[Clone], None], tuple[str, ...]]:
    def change(clone: Clone) -> None:
        path = clone.path / file
        path.write_text(path.read_text() + "\n\nCHANGED = True\n")

    return change, ()


def words(file: str) -> tuple[Callable[[Clone], None], tuple[str, ...]]:
    def change(clone: Clone) -> None:
        path = clone.path / file
        path.write_text(path.read_text().replace('"""', '"""Other words. ', 1) + "\n\n# a comment\n")

    return change, ()


CASES = {
    "nothing": (setting(), {}),
    "evaluation setting": (setting("evaluation={rollouts: 60}"), EVALUATIONS),
    "template setting": (setting("templates={max_steps: 90}"), TEMPLATES),
    "setting of one method": (
        setting("templates={methods: {dibs-plus: {clip: 5.0}}}"),
        {"template_dibs_plus": 4, "evaluation": 4, **MEASURE},
    ),
    "dataset setting": (setting("datasets={size: 200}"), DATASETS),
    "baseline setting": (setting("baselines={ars: {best: 4}}"), BASELINES),
    "teacher setting": (setting("teachers={algorithms: {ars: {best: 4}}}"), EVERYTHING),
    "setting at its default": (setting("teachers={algorithms: {ars: {best: 8}}}"), {}),
    "setting of another family": (setting("teachers={families: {reacher-*: {probes: 3}}}"), {}),
    "one seed more": (
        setting("seeds=3"),
        {
            **{"base_teacher": 1, "teacher": 3, "base_dataset": 1, "dataset": 3, "baseline": 2},
            **{"template_dibs": 2, "template_dibs_plus": 2, "evaluation": 6, **MEASURE},
        },
    ),
    "docstrings and a comment": (words("dibs/templates/polynomial.py"), {}),
    "code of the fit": (code("dibs/templates/polynomial.py"), TEMPLATES),
    "code of the tables": (code("dibs/analysis/tables.py"), {"evaluation_list": 1, "table": 5}),
    "code of another baseline": (code("dibs/baselines/maml.py"), {}),
    "text of a rule": (
        edit("workflow/rules/teachers.smk", "--gap {wildcards.gap} --index", "--quiet --gap {wildcards.gap} --index"),
        {},
    ),
    "prose of the family": (edit("tests/workflow/family.yaml", "two goals in order", "two goals, in order"), {}),
    "a region of the family": (edit("tests/workflow/family.yaml", "[1.5, 3.0]", "[1.6, 3.0]"), EVERYTHING),
}


@pytest.mark.parametrize("case", CASES)
def test_plan_after_a_change(case: str, finished: Clone):
    (change, arguments), expected = CASES[case]
    change(finished)
    assert finished.plan(*TINY, *arguments) == expected


def test_one_figure_needs_only_its_own(clone: Clone, tmp_path: Path):
    plan = clone.plan("results/figures/choice_trajectories.pdf")
    # One split of Choice: gap 5, indices 0, 5, …, 20, one seed.
    assert plan == {
        "base_teacher": 1, "teacher": 4, "base_dataset": 1, "dataset": 4, "template_dibs": 1, "figure": 1,
    }  # fmt: skip


def test_a_failed_rerun_is_not_forgotten(finished: Clone):
    """Snakemake deletes what it makes again: when that fails, what was made from it must not pass for up to date."""
    changed = (*TINY, "--config", "templates={max_steps: 90}")
    command, line = "dibs/templates/commands.py", "    family = get_family(args.family)\n"
    finished.edit(command, line, "    raise SystemExit(3)\n")
    finished.run("results/templates/tiny-reach/gap2/seed0.safetensors", *changed, fails=True)
    assert not (finished.results / "templates/tiny-reach/gap2/seed0.safetensors").exists()
    finished.edit(command, "    raise SystemExit(3)\n", line)
    assert finished.plan(*changed) == TEMPLATES
    figure = {rule: count for rule, count in TEMPLATES.items() if rule != "table"}
    assert finished.plan("results/figures/success_by_index.pdf", *changed) == figure
