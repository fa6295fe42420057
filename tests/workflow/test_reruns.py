"""What Snakemake plans after a change to a finished run: what depends on the change, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dibs.evaluation.requirements import Requirement, tasks_digest
from dibs.families import find_benchmarks
from dibs.files import write_json
from dibs.paths import Layout

from .conftest import TINY, Clone

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

# The tiny config has one seed, one benchmark, three methods and gaps 4 and 2, that is indices 0, 4 and 0, 2, 4. Six
# tables and three figures show evaluations, one figure shows the loss of `dibs` and one the teachers, both at gap 2.
FAMILY = "tests/workflow/family.yaml"
REPORTS = {"evaluation_list": 1, "table": 6, "figure": 3}
TEMPLATES = {"model dibs": 2, "evaluation dibs": 2, "model dibs-plus": 2, "evaluation dibs-plus": 2}
BASELINE = {"model ars": 2, "evaluation ars": 2}
AFTER_DATASETS = {**TEMPLATES, **REPORTS, "figure": 4}
EVERYTHING = {"teacher": 4, "dataset": 4, **TEMPLATES, **BASELINE, **REPORTS, "figure": 5}
EVALUATIONS = {"evaluation dibs": 2, "evaluation dibs-plus": 2, "evaluation ars": 2, **REPORTS}

Change = tuple[Callable[[Clone], None], tuple[str, ...]]
"""An edit of the sources, and arguments of Snakemake."""


def setting(*values: str) -> Change:
    return (lambda clone: None), ("--config", *values)


def edit(file: str, old: str, new: str) -> Change:
    return (lambda clone: clone.edit(file, old, new)), ()


def code(file: str, text: str = "CHANGED = True\n") -> Change:
    """Append code to a module."""

    def change(clone: Clone) -> None:
        path = clone.path / file
        path.write_text(f"{path.read_text()}\n\n{text}")

    return change, ()


def docstring(file: str) -> Change:
    def change(clone: Clone) -> None:
        path = clone.path / file
        path.write_text(path.read_text().replace('"""', '"""Other words. ', 1) + "\n\n# a comment\n")

    return change, ()


def version(module: str, record: str) -> Change:
    """Raise the version of a method or an algorithm."""
    lines = f"import dataclasses\n\n{record} = dataclasses.replace({record}, version={record}.version + 1)\n"
    return code(module, lines)


CASES: dict[str, tuple[Change, dict[str, int]]] = {
    "no change": (setting(), {}),
    # Settings.
    "evaluation setting": (setting("evaluation={rollouts: 60}"), EVALUATIONS),
    "template setting": (setting("templates={max_steps: 90}"), AFTER_DATASETS),
    "setting of one template method": (
        setting("templates={methods: {dibs-plus: {clip: 5.0}}}"),
        {"model dibs-plus": 2, "evaluation dibs-plus": 2, **REPORTS},
    ),
    "dataset setting": (setting("datasets={size: 200}"), {"dataset": 4, **AFTER_DATASETS}),
    "baseline setting": (setting("baselines={ars: {best: 4}}"), {**BASELINE, **REPORTS}),
    "teacher setting": (setting("teachers={algorithms: {ars: {best: 4}}}"), EVERYTHING),
    "one seed more": (setting("seeds=2"), EVERYTHING),
    "one method less": (setting("methods=[dibs, dibs-plus]"), REPORTS),
    # Versions.
    "version of all teachers": (code("dibs/teachers/__init__.py", "VERSION += 1\n"), EVERYTHING),
    "version of the teachers' algorithm": (version("dibs/teachers/ars.py", "ALGORITHM"), EVERYTHING),
    "version of the datasets": (
        code("dibs/datasets/__init__.py", "VERSION += 1\n"),
        {"dataset": 4, **AFTER_DATASETS},
    ),
    "version of a template method": (
        version("dibs/templates/methods.py", "DIBS"),
        {"model dibs": 2, "evaluation dibs": 2, **REPORTS, "figure": 4},
    ),
    "version of a baseline": (version("dibs/baselines/ars.py", "METHOD"), {**BASELINE, **REPORTS}),
    "version of the evaluation": (code("dibs/evaluation/__init__.py", "VERSION += 1\n"), EVALUATIONS),
    "version of a report": (
        code(
            "dibs/studies/reports.py",
            "from dataclasses import replace as other\n\n"
            "REPORTS = tuple(other(r, version=2) if r.name in ('relative', 'ratios') else r for r in REPORTS)\n",
        ),
        {"table": 1, "figure": 1},
    ),
    "version of all reports": (code("dibs/studies/__init__.py", "VERSION += 1\n"), {"table": 6, "figure": 5}),
    # The family. Index 1 is in no training set. Index 2 is in that of gap 2, where the teacher of index 4 follows it.
    "a region of the family": (edit(FAMILY, "[1.5, 3.0]", "[1.6, 3.0]"), EVERYTHING),
    "an unseen task": (edit(FAMILY, "[3.5, 6.0]", "[3.6, 6.0]"), EVALUATIONS),
    "a task of one training set": (
        edit(FAMILY, "[4.0, 6.0]", "[4.1, 6.0]"),
        {
            **{"teacher": 2, "dataset": 2, "model dibs": 1, "model dibs-plus": 1, "model ars": 1},
            **{**EVALUATIONS, "figure": 5},
        },
    ),
}


UNCHANGED: dict[str, Change] = {
    "settings at their defaults, and of another family": setting(
        "teachers={algorithms: {ars: {best: 8}}, families: {reacher-*: {probes: 3}}}"
    ),
    "color of a method": edit("dibs/templates/methods.py", "#D62728", "#D62729"),
    "error message": edit("dibs/provenance.py", "was written by dibs 0.1", "comes from dibs 0.1"),
    "docstring": docstring("dibs/templates/polynomial.py"),
    "caption": edit("dibs/studies/reports.py", '"How the fit of a template', '"How the fit of one template'),
    "code of another algorithm": code("dibs/teachers/sb3.py"),
    "version of another algorithm": version("dibs/teachers/sb3.py", "PPO_ALGORITHM"),
    "version of another method": version("dibs/baselines/maml.py", "METHOD"),
    "shell command of a rule": edit("workflow/rules/teachers.smk", '"dibs teacher ', '"dibs teacher --quiet '),
    "description of the family": edit(FAMILY, "two goals in order", "two goals, in order"),
    "order of the family's gaps": edit(FAMILY, "gaps: [4, 2]", "gaps: [2, 4]"),
    "spelling of the family's path": setting("benchmarks=['./tests/../tests/workflow/family.yaml:tiny-reach-k2']"),
    "resources": edit("dibs/teachers/ars.py", "minutes=20", "minutes=25"),
    "time stamp of the family": ((lambda clone: (clone.path / FAMILY).touch()), ()),
}
"""What no result depends on."""


@pytest.mark.parametrize("case", CASES)
def test_plan_after_a_change(case: str, finished: Clone):
    (change, arguments), expected = CASES[case]
    change(finished)
    assert finished.plan(*TINY, *arguments) == expected


@pytest.mark.parametrize("case", UNCHANGED)
def test_plan_is_empty_after_irrelevant_changes(case: str, finished: Clone):
    change, arguments = UNCHANGED[case]
    change(finished)
    assert finished.plan(*TINY, *arguments) == {}


def test_gaps_of_the_family_decide_only_what_there_is(finished: Clone):
    """One more gap adds its own chain. One gap less leaves the files of the other alone."""
    finished.edit(FAMILY, "gaps: [4, 2]", "gaps: [4, 2, 1]")
    more = {"teacher": 4, "dataset": 4, "model dibs": 1, "model dibs-plus": 1, "model ars": 1}
    # Gap 2 is now the middle split, as before: figures of teachers and losses stay.
    evaluations = {"evaluation dibs": 1, "evaluation dibs-plus": 1, "evaluation ars": 1}
    assert finished.plan(*TINY) == {**more, **evaluations, **REPORTS}
    finished.edit(FAMILY, "gaps: [4, 2, 1]", "gaps: [2]")
    assert finished.plan(*TINY) == REPORTS


def test_an_answer_of_requires_remakes_what_shows_it(finished: Clone):
    """Nobody has registered the family, so the answer is a file of the results: nothing else plans to measure it."""
    benchmark = find_benchmarks(f"{finished.path / FAMILY}:tiny-reach-k2")[0]
    words = dict.fromkeys(("policy", "candidates", "edges", "seed"))
    answer = Requirement("tiny-reach-k2", tasks_digest(benchmark), 0.5, motion=0.2, steps=1, seconds=0.0, **words)
    file = Layout(finished.results).requirements("tiny-reach")
    write_json(file, {"tiny-reach-k1": answer.data()})
    assert finished.plan(*TINY) == {}  # an answer for another benchmark
    write_json(file, {"tiny-reach-k2": answer.data()})
    assert finished.plan(*TINY) == {"table": 6, "figure": 3}
    finished.run(*TINY)
    assert "| more" in (finished.results / "tables/benchmarks.md").read_text()
    assert finished.plan(*TINY) == {}
    file.unlink()
    assert finished.plan(*TINY) == {"table": 6, "figure": 3}


def test_another_family_of_the_same_name_is_refused(finished: Clone):
    """Snakemake deletes outputs before a job, so the job could not tell: the plan does."""
    other = finished.path / "other.yaml"
    other.write_text((finished.path / FAMILY).read_text())
    config = finished.path / TINY[1]
    first = config.read_text()
    config.write_text(first.replace(FAMILY, "other.yaml"))
    finished.plan(*TINY)  # the same family in another place
    finished.edit("other.yaml", "horizon: 10", "horizon: 9")
    for more in ([], ["-n"]):
        said = finished.run(*TINY, *more, fails=True)
        assert "other.yaml: 'tiny-reach' is also the name of the family in tests/workflow/family.yaml" in said
    config.write_text(first)
    finished.edit(FAMILY, "[1.5, 3.0]", "[1.6, 3.0]")  # the first one may change
    assert finished.plan(*TINY) == EVERYTHING


def test_a_missing_file_is_made_again_with_what_follows(finished: Clone):
    """The default target names all evaluations, so one that only lies between other files is made again, too."""
    (finished.results / "evaluations/dibs/tiny-reach-k2/gap2/seed0.parquet").unlink()
    (finished.results / "models/dibs/tiny-reach/gap2/seed0.safetensors").unlink()
    assert finished.plan(*TINY) == {"model dibs": 1, "evaluation dibs": 1, **REPORTS, "figure": 4}


def test_one_figure_needs_only_its_own_inputs(clone: Clone):
    # Choice at gap 4, the larger of the two splits in the middle: indices 0, 4, …, 20, one seed.
    plan = clone.plan("results/figures/choice_trajectories.pdf", "--config", "seeds=1")
    assert plan == {"teacher": 6, "dataset": 6, "model dibs": 1, "figure": 1}


def test_requirements_are_measured_again_when_the_family_changes(clone: Clone):
    rule = "workflow/rules/evaluation.smk"
    command = '"dibs requires {params.family:q} --results {wildcards.root:q} --output {output:q} --log {log:q}"'
    clone.edit(rule, command, '"echo {{}} > {output:q}"')  # what is planned is asked here, not the answers
    clone.run("requirements", *TINY)
    clone.edit(FAMILY, "two goals in order", "two goals, in order")
    assert clone.plan("requirements", *TINY, "--config", "seeds=2") == {}
    clone.edit(FAMILY, "[1.5, 3.0]", "[1.6, 3.0]")
    assert clone.plan("requirements", *TINY) == {"requirements_of": 1, "requirements": 1}


def test_a_failed_rerun_is_not_forgotten(finished: Clone):
    """Snakemake deletes what it makes again. If that fails, files made from the old version must not seem current."""
    changed = (*TINY, "--config", "templates={max_steps: 90}")
    command, line = "dibs/commands/stages.py", "    method = get_method(args.method)\n    if method.trained_as:\n"
    finished.edit(command, line, f"    raise SystemExit(3)\n{line}")
    model = finished.results / "models/dibs/tiny-reach/gap2/seed0.safetensors"
    finished.run(str(model.relative_to(finished.path)), *changed, fails=True)
    assert not model.exists()
    finished.edit(command, f"    raise SystemExit(3)\n{line}", line)
    assert finished.plan(*changed) == AFTER_DATASETS
    one = finished.plan("results/figures/success_by_index-tiny-reach-k2.pdf", *changed)
    assert one == {**TEMPLATES, "evaluation_list": 1, "figure": 1}
