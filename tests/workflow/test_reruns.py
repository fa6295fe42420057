"""What is made again after a change, read from the dry run's plan: what depends on it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .conftest import TINY, Clone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# Of the tiny config: one seed, gaps 4 and 2, that is indices 0, 4 and 0, 2, 4; one benchmark, three methods. Of its
# four figures one shows evaluations, one templates of `dibs`, one teachers, and one is an illustration.
MEASURE = {"evaluation_list": 1, "table": 5, "figure": 1}
EVALUATIONS = {"evaluation": 6, **MEASURE}
TEMPLATES = {"template_dibs": 2, "template_dibs_plus": 2, "evaluation": 4, **MEASURE, "figure": 2}
DATASETS = {"base_dataset": 1, "dataset": 3, **TEMPLATES}
BASELINES = {"baseline": 2, "evaluation": 2, **MEASURE}
EVERYTHING = {"base_teacher": 1, "teacher": 3, "baseline": 2, **DATASETS, "evaluation": 6, "figure": 3}


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


def several(
    *changes: tuple[Callable[[Clone], None], tuple[str, ...]],
) -> tuple[Callable[[Clone], None], tuple[str, ...]]:
    def change(clone: Clone) -> None:
        for each, _ in changes:
            each(clone)

    return change, tuple(argument for _, arguments in changes for argument in arguments)


CASES = {
    "evaluation setting": (setting("evaluation={rollouts: 60}"), EVALUATIONS),
    "template setting": (setting("templates={max_steps: 90}"), TEMPLATES),
    "setting of one method": (
        setting("templates={methods: {dibs-plus: {clip: 5.0}}}"),
        {"template_dibs_plus": 2, "evaluation": 2, **MEASURE},
    ),
    "dataset setting": (setting("datasets={size: 200}"), DATASETS),
    "baseline setting": (setting("baselines={ars: {best: 4}}"), BASELINES),
    "teacher setting": (setting("teachers={algorithms: {ars: {best: 4}}}"), EVERYTHING),
    "one seed more": (
        setting("seeds=2"),
        {
            **{"base_teacher": 1, "teacher": 3, "base_dataset": 1, "dataset": 3, "baseline": 2},
            **{"template_dibs": 2, "template_dibs_plus": 2, "evaluation": 6, **MEASURE, "figure": 3},
        },
    ),
    # Figures unroll templates with the same code.
    "code of the fit": (code("dibs/templates/polynomial.py"), {**TEMPLATES, "figure": 4}),
    "code of the tables": (code("dibs/analysis/tables.py"), {"table": 5}),
    "a region of the family": (edit("tests/workflow/family.yaml", "[1.5, 3.0]", "[1.6, 3.0]"), EVERYTHING),
    # At once, for none of them may rerun anything: a setting at its default, one of another family, docstrings and
    # a comment, code of another baseline, the text of a rule, prose of the family.
    "what changes nothing": (
        several(
            setting("teachers={algorithms: {ars: {best: 8}}, families: {reacher-*: {probes: 3}}}"),
            words("dibs/templates/polynomial.py"),
            code("dibs/baselines/maml.py"),
            edit(
                "workflow/rules/teachers.smk",
                "--gap {wildcards.gap} --index",
                "--quiet --gap {wildcards.gap} --index",
            ),
            edit("tests/workflow/family.yaml", "two goals in order", "two goals, in order"),
        ),
        {},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_plan_after_a_change(case: str, finished: Clone):
    (change, arguments), expected = CASES[case]
    change(finished)
    assert finished.plan(*TINY, *arguments) == expected


def test_a_missing_file_is_made_again_with_what_follows(finished: Clone):
    """Also one that only lies between others: the default target names all evaluations."""
    (finished.results / "evaluations/dibs/tiny-reach-k2/gap2/seed0.parquet").unlink()
    (finished.results / "templates/tiny-reach/gap2/seed0.safetensors").unlink()
    assert finished.plan(*TINY) == {"template_dibs": 1, "evaluation": 1, **MEASURE, "figure": 2}


def test_one_figure_needs_only_its_own(clone: Clone):
    plan = clone.plan("results/figures/choice_trajectories.pdf")
    # One split of Choice: gap 4, the denser of the two in the middle, indices 0, 4, …, 20, one seed.
    assert plan == {
        "base_teacher": 1, "teacher": 5, "base_dataset": 1, "dataset": 5, "template_dibs": 1, "figure": 1,
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
    assert finished.plan("results/figures/success_by_index.pdf", *changed) == {**figure, "figure": 1}
