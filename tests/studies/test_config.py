"""Configs: all problems in one message, merging, settings of families and methods, and the files in config/."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import jsonschema
import pytest
import yaml

from dibs import registry
from dibs.datasets.build import DatasetSettings
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.methods import Method
from dibs.settings import STRICT
from dibs.studies.checks import json_schema, load_config, parse_config
from dibs.studies.config import Config, difference, variant_config
from dibs.studies.variants import Variants
from dibs.teachers.base import Algorithm, get_algorithm
from dibs.teachers.train import TeacherSettings
from dibs.templates.fit import FitSettings

pytestmark = pytest.mark.filterwarnings("error")

ROOT = Path(__file__).parents[2]
FAMILY = "tests/workflow/family.yaml"
ABLATIONS, SWEEPS = "config/paper-ablations.yaml", "config/paper-sweeps.yaml"
BELOW = {
    "config/study/ablations.yaml": ABLATIONS,
    "config/study/ablations-drone.yaml": ABLATIONS,
    "config/study/sweeps.yaml": SWEEPS,
}
"""What has to be between config.yaml and an overlay."""
FILES = [
    "config.yaml",
    "config/demo.yaml",
    "config/suite.yaml",
    "config/laptop.yaml",
    ABLATIONS,
    SWEEPS,
    "tests/workflow/tiny.yaml",
    *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "config/study").glob("*.yaml"))),
]
SMALL: dict[str, Any] = {"benchmarks": ["car2d-reach-k1"], "methods": ["dibs"]}


def problems(data: dict[str, Any]) -> list[str]:
    with pytest.raises(DibsError) as error:
        parse_config(data)
    return [line.strip() for line in str(error.value).splitlines()[1:]]


def splits(config: Config) -> dict[str, dict[str, tuple[int, ...]]]:
    return {name: {s.name: s.indices for s in config.splits_of(f)} for name, f in config.families.items()}


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


# --- problems --------------------------------------------------------------------------------------------


def test_one_error_lists_all_problems() -> None:
    found = problems(
        {
            "seeds": 0,
            "benchmark": [],
            "benchmarks": ["car2d-reech-k1", "car2d-reach-k*", "nowhere.yaml"],
            "gaps": [3, 20, "x"],
            "splits": {"sparse": [0, 3, 41], "falling": [0, 7, 3, 40], "gap4": [0, 4, 40], "base": [0, 40]},
            "methods": ["dibs", "dibz"],
            "teachers": {
                "cross_idx": 1,
                "rollouts": "many",
                "algorithms": {"arss": {}, "ars": {"itterations": 3, "best": "x"}},
                "families": {"car2d-reahc": {"cross_index": 1.0, "foo": 2}},
            },
            "templates": {"methods": {"dibs-pluss": {}, "ars": {}}},
            "evaluation": 3,
            "baselines": {"arz": {}, "ars": {"stepz": 3}, "dibs": {}, "maml-adapted": {}},
            "reports": ["relativ", "reacher_8", "ratio*"],
        }
    )
    expected = [
        "seeds: expected a count ≥ 1 or a list of seeds (found 0)",
        "benchmark: unknown key. Did you mean 'benchmarks'?",
        "benchmarks: unknown benchmark 'car2d-reech-k1'. Did you mean 'car2d-reach-k1'?",
        "benchmarks: nowhere.yaml: no such family file",
        "gaps.2: input should be a valid integer",
        "gaps: 3 divides the last index of no chosen family (car2d-reach L = 40)",
        "splits.sparse: fits no chosen family: it ends at 41 (car2d-reach L = 40)",
        "splits.falling: expected increasing indices from 0 to a family's last index L, found [0, 7, 3, 40]",
        "splits.gap4: this name is reserved; choose another",
        "splits.base: this name is reserved; choose another",
        "methods: unknown method 'dibz'. Did you mean 'dibs'?",
        "teachers.cross_idx: unknown key. Did you mean 'cross_index'?",
        "teachers.rollouts: input should be a valid integer",
        "teachers.algorithms.arss: unknown teacher algorithm 'arss'. Did you mean 'ars'?",
        "teachers.algorithms.ars: unknown setting 'itterations'. Did you mean 'iterations'?",
        "teachers.algorithms.ars: best: Input should be a valid integer",
        "teachers.families: unknown family 'car2d-reahc'. Did you mean 'car2d-reach'?",
        "teachers.families.car2d-reahc.foo: unknown key. Known: cross_index",
        "templates.methods: unknown method 'dibs-pluss'. Did you mean 'dibs-plus'?",
        "templates.methods: settings of 'ars' belong under baselines.ars",
        "evaluation: input should be a dictionary",
        "baselines: unknown method 'arz'. Did you mean 'ars'?",
        "baselines.ars: unknown setting 'stepz'. Did you mean 'step'?",
        "baselines: settings of 'dibs' belong under templates.methods.dibs",
        "baselines: 'maml-adapted' is measured on the model of 'maml', whose settings it has",
        "reports: unknown report 'relativ'. Did you mean 'relative'?",
        "reports: 'reacher_8' shows none of the chosen benchmarks",
    ]
    for text in expected:
        assert any(line.startswith(text) for line in found), f"{text}\nnot among\n" + "\n".join(found)
    assert len(found) == len(expected), "\n".join(found)


@pytest.mark.parametrize(
    "data, text",
    [
        ({"seeds": [1, 1]}, "seeds: expected a count ≥ 1 or different numbers ≥ 0, found [1, 1]"),
        ({"seeds": [-1]}, "seeds: expected a count ≥ 1 or different numbers ≥ 0, found [-1]"),
        ({"seeds": "ten"}, "seeds: expected a count ≥ 1 or a list of seeds (found 'ten')"),
        ({"seeds": True}, "seeds: expected a count ≥ 1 or a list of seeds (found True)"),
        ({"results": ""}, "results: expected the name of a folder, found ''"),
        ({"results": "{family}"}, "results: expected the name of a folder, found '{family}'"),
        ({"benchmarks": []}, "benchmarks: at least one is needed"),
        ({"benchmarks": 3}, "benchmarks: input should be a valid list (found 3)"),
        ({"benchmarks": ["car3d-*"]}, "benchmarks: unknown benchmark 'car3d-*'. Did you mean"),
        ({"methods": []}, "methods: at least one is needed"),
        ({"methods": [1]}, "methods.0: input should be a valid string (found 1)"),
        ({"gaps": []}, "gaps: at least one is needed, or null for each family's own"),
        ({"gaps": [0]}, "gaps: expected numbers ≥ 1, found 0"),
        ({"datasets": {"alpha": 0, "beta": 0, "gamma": 0}}, "datasets: alpha, beta and gamma are all 0"),
        (
            {"datasets": {"families": {"car2d-*": {"alpha": 0, "beta": 0, "gamma": 0}}}},
            "datasets: alpha, beta and gamma are all 0",
        ),
        ({"datasets": {"threshold": 1.5}}, "datasets.threshold: input should be less than or equal to 1"),
        (
            {"datasets": {"size": 600_000}, "methods": ["dibs"]},
            "datasets.size: 600000 rows per edge and index of 'car2d-reach', of which 'dibs' reads only 500000",
        ),
        (
            {"datasets": {"size": 900}, "methods": ["bc"], "baselines": {"bc": {"samples": 800}}},
            "datasets.size: 900 rows per edge and index of 'car2d-reach', of which 'bc' reads only 800",
        ),
        ({"datasets": {"size": 0}}, "datasets.size: input should be greater than or equal to 1"),
        ({"teachers": {"algorithm": "pppo"}}, "teachers.algorithm: unknown teacher algorithm 'pppo'. Did you mean"),
        ({"teachers": {"options": {"itrations": 3}}}, "teachers.options: unknown setting 'itrations'. Did you mean"),
        (
            {"teachers": {"families": {"car2d-*": {"options": {"n_steps": 3}}}}},
            "teachers.families.car2d-*.options: unknown setting 'n_steps'.",
        ),
        (
            {"teachers": {"families": {"car2d-*": {"algorithm": "arz"}}}},
            "teachers.families.car2d-*.algorithm: unknown teacher algorithm 'arz'. Did you mean",
        ),
    ],
)
def test_a_single_problem(data: dict[str, Any], text: str) -> None:
    found = problems(SMALL | data)
    assert len(found) == 1 and found[0].startswith(text), found


@pytest.mark.parametrize("key", SMALL)
def test_benchmarks_and_methods_are_required(key: str) -> None:
    assert problems({k: v for k, v in SMALL.items() if k != key}) == [f"{key}: at least one is needed"]


def test_missing_and_invalid_files(tmp_path: Path) -> None:
    with pytest.raises(DibsError, match=r"nowhere\.yaml: no such config file"):
        load_config("nowhere.yaml")
    (tmp_path / "list.yaml").write_text("[]")
    with pytest.raises(DibsError, match="expected a mapping, found list"):
        load_config(tmp_path / "list.yaml")


def test_two_families_or_benchmarks_with_one_name(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text(Path(FAMILY).read_text())
    expected = [f"benchmarks: family 'tiny-reach' is described by {FAMILY} and {mine}; rename one"]
    assert problems({**SMALL, "benchmarks": [FAMILY, str(mine)]}) == expected
    study = {"benchmarks": [str(mine)], "variants": {"plain": {}}}
    assert problems({**SMALL, "benchmarks": [FAMILY], "ablations": {"other-file": study}}) == expected
    other = tmp_path / "other.yaml"
    other.write_text(mine.read_text().replace("name: tiny-reach", "name: other"))
    found = problems({**SMALL, "benchmarks": [FAMILY, str(other)]})
    assert found == [
        f"benchmarks: 'tiny-reach-k{k}' is a benchmark of tiny-reach and other; rename one" for k in (1, 2)
    ]


def test_exceptions_for_family_files(tmp_path: Path) -> None:
    """Exceptions may name the families of files, by name or pattern, also where ablations and sweeps have others."""
    mine = tmp_path / "mine.yaml"
    mine.write_text(Path(FAMILY).read_text().replace("tiny-reach", "mine"))
    study = {"benchmarks": [str(mine)], "gaps": [2]}
    data = {
        "methods": ["dibs"],
        "seeds": 1,
        "benchmarks": [str(mine)],
        "teachers": {"families": {"mine": {"cross_index": 0.5}}},
        "datasets": {"families": {"mi*": {"size": 7}}},
        "templates": {"families": {"mine": {"degree": 2}}},
        "ablations": {
            "filter": {**study, "variants": {"plain": {}, "unfiltered": {"datasets": {"threshold": 0.0}}}},
            "elsewhere": {"benchmarks": ["car2d-reach-k1"], "gaps": [5], "variants": {"plain": {}}},
        },
        "sweeps": {"rates": {**study, "grid": {"datasets.alpha": [0.5, 0.7]}, "rule": "best-training"}},
    }
    variants = Variants(parse_config(data))
    mains = [variants.main, *(v.plan for v in variants.variants("ablations", "filter"))]
    mains += [v.plan for v in variants.variants("sweeps", "rates-mine")]
    assert [json.loads(plan.dataset_settings("mine"))["size"] for plan in mains] == [7] * 5
    assert [json.loads(plan.teacher_settings("mine"))["cross_index"] for plan in mains] == [0.5] * 5
    assert [json.loads(plan.method_settings("dibs", "mine"))["degree"] for plan in mains] == [2] * 5
    assert problems({**data, "teachers": {"families": {"miner": {}}}}) == [
        "teachers.families: unknown family 'miner'. Did you mean 'mine'?"
    ]


def test_a_variant_that_an_exception_hides(tmp_path: Path) -> None:
    study = {"benchmarks": [FAMILY], "gaps": [2]}
    hidden = {"plain": {}, "short": {"datasets": {"size": 9, "alpha": 0.5}}}
    data = {
        **SMALL,
        "benchmarks": [FAMILY],
        "datasets": {"families": {"tiny-*": {"size": 7}}},
        "ablations": {"a": {**study, "variants": hidden}},
        "sweeps": {"s": {**study, "grid": {"datasets.size": [5, 6]}, "rule": "best-training"}},
    }
    text = "has no effect on family 'tiny-reach': datasets.families.tiny-* sets it, too"
    assert problems(data) == [
        f"ablations.a.variants.short.datasets.size: {text}",
        f"sweeps.s.grid.datasets.size: {text}",
    ]
    hidden["short"]["datasets"]["families"] = {"tiny-*": {"size": 9}}
    parse_config({**data, "sweeps": {}})


def test_a_split_that_nothing_is_trained_on() -> None:
    """The family of an ablation has this last index, but the ablation has gaps of its own."""
    ablation = {"benchmarks": ["car2d-choice-l1"], "variants": {"plain": {}}}
    data = {**SMALL, "benchmarks": ["car2d-reach-k1"], "splits": {"sparse": [0, 3, 20]}, "gaps": [5]}
    problem = "splits.sparse: fits no chosen family: it ends at 20 (car2d-reach L = 40)"
    assert problems(data) == [problem]
    assert problems({**data, "ablations": {"a": {**ablation, "gaps": [5]}}}) == [problem]
    parse_config({**data, "ablations": {"a": {**ablation, "splits": ["sparse"]}}})
    parse_config({**data, "ablations": {"a": ablation}})


def test_teachers_of_a_family_file_are_checked(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    text = Path(FAMILY).read_text().replace("tiny-reach", "mine")
    mine.write_text(text.replace("teacher: ars", "teacher: arss"))
    found = problems({**SMALL, "benchmarks": [str(mine)]})
    assert found == [
        f"benchmarks: {mine}: not a valid family description",
        "family: teacher: unknown teacher algorithm 'arss'. Did you mean 'ars'?",
    ]
    mine.write_text(text + "teacher_options: {itrations: 3}\n")
    found = problems({**SMALL, "benchmarks": [str(mine)]})
    assert found[0] == f"benchmarks: {mine}: not a valid family description"
    assert "teacher_options: unknown setting of ars 'itrations'. Did you mean 'iterations'?" in found[1]


# --- ablations and sweeps --------------------------------------------------------------------------------

ABLATION: dict[str, Any] = {"benchmarks": ["simpledrone-reach-k1"], "variants": {"plain": {}, "other": {}}}


def test_a_pattern_may_match_any_family_of_the_config() -> None:
    """Of the main list or of a study: variants that do not train the family keep its settings."""
    settings = {section: {"families": {"tiny-*": {}}} for section in ("teachers", "datasets", "templates")}
    sweep = {"benchmarks": ["car2d-reach-k2"], "grid": {"datasets.size": [10, 20]}, "rule": "best-training"}
    studies = {"ablations": {"drone": ABLATION}, "sweeps": {"size": sweep}}
    parse_config({**SMALL, "benchmarks": [FAMILY], **studies, **settings})
    parse_config({**SMALL, "ablations": {"tiny": {**ABLATION, "benchmarks": [FAMILY]}}, **settings})
    found = problems({**SMALL, **studies, **settings})
    assert [line.partition(":")[0] for line in found] == [f"{section}.families" for section in settings]


def test_options_of_families_that_a_variant_does_not_train() -> None:
    teachers = {"families": {"reacher-*": {"options": {"n_steps": 4}}}}
    variants = {"plain": {}, "ars": {"teachers": {"algorithm": "ars"}}}
    study = {**ABLATION, "variants": variants}
    config = {**SMALL, "benchmarks": ["reacher-stack-same-8"], "teachers": teachers}
    parse_config(config | {"ablations": {"drone": study}})
    found = problems(config | {"ablations": {"arm": {**study, "benchmarks": ["reacher-stack-same-8"]}}})
    key = "ablations.arm.variants.ars.teachers.families.reacher-*.options"
    assert len(found) == 1 and found[0].startswith(f"{key}: unknown setting 'n_steps'.")


def test_problems_of_studies() -> None:
    ablation = {
        "benchmarks": ["simpledrone-reach-k1", "nowhere-*"],
        "gaps": [3, 5],
        "splits": ["sparse", "sprse", "short"],
        "methods": ["dibz"],
        "figures": ["branchin"],
        "variants": {
            "plain": {"teachers": {"cross_idx": 1.0}, "template": {}},
            "other": {"baselines": {"arz": {}}, "teachers": {"algorithm": "a3c"}, "datasets": {"size": 0}},
        },
    }
    sweeps = {
        "stages": {
            "benchmarks": ["car2d-reach-k1"],
            "grid": {"size": [1], "datasets.alpha": []},
            "rule": "best-training",
        },
        "values": {"benchmarks": ["car2d-reach-k1"], "grid": {"datasets.size": [10, "x"]}, "rule": "best-training"},
        "both": {
            "benchmarks": ["car2d-reach-k1"],
            "grid": {"datasets.threshold": [0.1], "teachers.threshold": [0.1]},
            "rule": "best-training",
        },
        "lacking": {"benchmarks": ["car2d-reach-k1"]},
    }
    named = {"sparse": [0, 3, 40], "short": [0, 3, 8]}
    benchmarks = ["car2d-reach-k1", "reacher-stack-same-8"]
    data = {**SMALL, "benchmarks": benchmarks, "splits": named, "sweeps": sweeps}
    found = problems({**data, "ablations": {"a": ablation, "none": {**ABLATION, "variants": {}}}})
    expected = [
        "ablations.a.benchmarks: unknown benchmark 'nowhere-*'.",
        "ablations.a.gaps: 3 divides the last index of no chosen family (simpledrone-reach L = 40)",
        "ablations.a.splits: unknown split 'sprse'. Did you mean 'sparse'?",
        "ablations.a.splits: 'short' fits no chosen family (simpledrone-reach L = 40)",
        "ablations.a.methods: unknown method 'dibz'. Did you mean 'dibs'?",
        "ablations.a.figures: unknown figure 'branchin'. Did you mean 'branching'?",
        "ablations.a.variants.plain.teachers.cross_idx: unknown key. Did you mean 'cross_index'?",
        "ablations.a.variants.plain.template: unknown key. Did you mean 'templates'?",
        "ablations.a.variants.other.baselines: unknown method 'arz'. Did you mean 'ars'?",
        "ablations.a.variants.other.teachers.algorithm: unknown teacher algorithm 'a3c'. Did you mean",
        "ablations.a.variants.other.datasets.size: input should be greater than or equal to 1",
        "ablations.none.variants: at least one is needed",
        "sweeps.stages.grid.size: expected a setting such as teachers.cross_index",
        "sweeps.stages.grid.datasets.alpha: expected a setting such as teachers.cross_index, and a list of values",
        "sweeps.values.grid.datasets.size: input should be a valid integer",
        "sweeps.both.grid: 'threshold' of two stages cannot be swept together",
        "sweeps.lacking.grid: is missing",
        "sweeps.lacking.rule: is missing",
    ]
    for text in expected:
        assert any(line.startswith(text) for line in found), f"{text}\nnot among\n" + "\n".join(found)
    assert len(found) == len(expected), "\n".join(found)


def test_undefined_splits_of_a_study() -> None:
    found = problems({**SMALL, "ablations": {"a": {**ABLATION, "splits": ["sparse"]}}})
    assert found == ["ablations.a.splits: 'sparse' is not defined. Named training sets are defined under `splits`."]


def test_config_of_a_variant() -> None:
    study = {**ABLATION, "seeds": [4], "variants": {"plain": {"label": "x", "datasets": {"size": 7}}}}
    sweep = {"benchmarks": ["car2d-reach-k2"], "grid": {"datasets.size": [10]}, "rule": "best-training"}
    config = parse_config({**SMALL, "datasets": {"alpha": 0.5}, "ablations": {"a": study}, "sweeps": {"s": sweep}})
    variant = variant_config(config, config.ablations["a"], "plain", "results/a/plain")
    assert (variant.results, variant.seeds, list(variant.families)) == ("results/a/plain", [4], ["simpledrone-reach"])
    assert (variant.datasets.size, variant.datasets.alpha, variant.evaluation.unseen) == (7, 0.5, True)
    point = variant_config(config, config.sweeps["s"], {"datasets.size": 10}, "results/s")
    assert (point.datasets.size, point.seeds) == (10, config.seeds)
    assert not point.evaluation.unseen and not point.evaluation.beyond


# --- training sets ---------------------------------------------------------------------------------------


def test_gaps_of_the_family_or_of_the_config() -> None:
    names = {
        name: list(of) for name, of in splits(parse_config({**SMALL, "benchmarks": ["car2d-*-k1", FAMILY]})).items()
    }
    assert names["car2d-reach"] == ["gap20", "gap10", "gap8", "gap5", "gap4", "gap2"]
    assert names["tiny-reach"] == ["gap4", "gap2"]
    config = parse_config({**SMALL, "benchmarks": ["car2d-reach-k1", "reacher-stack-same-9"], "gaps": [5, 3]})
    assert [list(of) for of in splits(config).values()] == [["gap5"], ["gap3"]]


def test_gaps_that_divide_no_last_index_all_apply() -> None:
    config = parse_config({**SMALL, "gaps": [7, 15]})
    assert splits(config) == {"car2d-reach": {"gap7": (0, 7, 14, 21, 28, 35, 40), "gap15": (0, 15, 30, 40)}}
    config = parse_config({**SMALL, "benchmarks": ["car2d-reach-k1", "reacher-stack-same-8"], "gaps": [20, 5]})
    assert splits(config)["reacher-stack-same-8"] == {"gap5": (0, 5, 8)}  # 20 is beyond its last index
    found = problems({**SMALL, "benchmarks": ["car2d-reach-k1", "reacher-drop-same-8"], "gaps": [20]})
    reason = "is shorter than all gaps [20], and no split fits it: it has no training set"
    assert found == [f"gaps: family 'reacher-drop-same-8' (L = 8) {reason}"]


def test_named_splits(tmp_path: Path) -> None:
    named = {"sparse": [0, 3, 7, 40], "tower": [0, 2, 8]}
    benchmarks = ["car2d-reach-k1", "reacher-stack-same-8"]
    config = parse_config({**SMALL, "benchmarks": benchmarks, "gaps": [20], "splits": named})
    assert splits(config) == {
        "car2d-reach": {"gap20": (0, 20, 40), "sparse": (0, 3, 7, 40)},
        "reacher-stack-same-8": {"tower": (0, 2, 8)},
    }
    config = parse_config({**SMALL, "gaps": [], "splits": {"sparse": named["sparse"]}})
    assert splits(config) == {"car2d-reach": {"sparse": (0, 3, 7, 40)}}
    mine = tmp_path / "mine.yaml"
    mine.write_text(Path(FAMILY).read_text().replace("gaps: [4, 2]", "gaps: []").replace("tiny-reach", "mine"))
    assert "gaps: family 'mine' (L = 4) has no gaps, and no split" in problems({**SMALL, "benchmarks": [str(mine)]})[0]
    assert parse_config({**SMALL, "benchmarks": [str(mine)], "splits": {"odd": [0, 1, 4]}})


def test_training_sets_of_a_study() -> None:
    """Those it names and no others; if it names none, those of the config."""
    named = {"sparse": [0, 3, 40], "dense": [0, 1, 2, 40]}
    chosen: dict[str, dict[str, Any]] = {
        "as-config": {},
        "gaps-only": {"gaps": [10]},
        "split-only": {"splits": ["dense"]},
        "both": {"gaps": [10], "splits": ["sparse"]},
    }
    ablations = {name: {**ABLATION, **keys} for name, keys in chosen.items()}
    config = parse_config({**SMALL, "gaps": [20], "splits": named, "ablations": ablations})
    found = {
        name: list(splits(variant_config(config, study, "plain", "results/x"))["simpledrone-reach"])
        for name, study in config.ablations.items()
    }
    assert found == {
        "as-config": ["gap20", "sparse", "dense"],
        "gaps-only": ["gap10"],
        "split-only": ["dense"],
        "both": ["gap10", "sparse"],
    }


# --- settings --------------------------------------------------------------------------------------------


def test_seeds_by_number_or_list() -> None:
    assert parse_config(SMALL | {"seeds": 3}).seeds == [0, 1, 2]
    assert parse_config(SMALL | {"seeds": [7, 3]}).seeds == [7, 3]


def test_teacher_settings_of_a_family_and_its_algorithm() -> None:
    config = parse_config(
        {
            "benchmarks": ["car2d-reach-k1", "reacher-drop-same-8"],
            "methods": ["dibs"],
            "teachers": {
                "cross_index": "2e-2",  # how YAML reads 2e-2
                "algorithms": {"ars": {"iterations": 50, "best": 8}},
                "families": {
                    "reacher-*": {"cross_index": 0.5},
                    "car2d-*": {"options": {"restarts": 2}},
                    "car2d-reach": {"probes": 9},
                },
            },
        }
    )
    car, arm = (config.teacher_settings(f) for f in config.families.values())
    ars = dataclasses.asdict(get_algorithm("ars").settings(iterations=50, restarts=2))
    assert car == TeacherSettings(cross_index=0.02, probes=9, algorithm="ars", options=ars)
    assert (arm.cross_index, arm.algorithm, arm.options["n_steps"]) == (0.5, "ppo", 8)  # the family's own option
    assert json.loads(difference(car, TeacherSettings())) == {
        "algorithm": "ars",
        "cross_index": 0.02,
        "options": json.loads(json.dumps(ars)),
        "probes": 9,
    }


def test_which_options_override_those_of_the_family() -> None:
    """Options by algorithm do unless they equal the default; options of all teachers or of the family always do."""
    benchmarks, plain = ["reacher-drop-same-8"], get_algorithm("ppo").settings()

    def rate(**teachers: Any) -> float:
        config = parse_config({**SMALL, "benchmarks": benchmarks, "teachers": teachers})
        options = config.teacher_settings(config.families["reacher-drop-same-8"]).options
        return float(options["rate"])

    assert rate() == 0.01 != plain.rate
    assert rate(algorithms={"ppo": {"rate": plain.rate}}) == 0.01
    assert rate(algorithms={"ppo": {"rate": 0.5}}) == 0.5
    assert rate(options={"rate": plain.rate}) == plain.rate
    assert rate(families={"reacher-*": {"options": {"rate": plain.rate}}}) == plain.rate


def test_settings_of_template_methods() -> None:
    """What sets a method apart overrides what holds for all methods or for the family."""
    data = {"rate": 0.05, "prior": 0.0, "motion": False, "methods": {"dibs": {"degree": 2}}}
    config = parse_config(SMALL | {"templates": {**data, "families": {"car2d-*": {"rate": 0.2}}}})
    family = config.families["car2d-reach"]
    dibs, plus = (config.method_settings(method, family) for method in ("dibs", "dibs-plus"))
    assert (dibs.rate, dibs.degree, plus.rate, plus.degree) == (0.2, 2, 0.2, 1)
    assert not dibs.motion and plus.motion


def test_settings_of_other_methods() -> None:
    config = parse_config(SMALL | {"baselines": {"maml": {"steps": 5}}})
    family = config.families["car2d-reach"]
    assert config.method_settings("maml", family).steps == config.method_settings("maml-adapted", family).steps == 5


def test_files_merge_as_in_snakemake(tmp_path: Path) -> None:
    over = tmp_path / "over.yaml"
    over.write_text("seeds: 2\nmethods: [dibs]\ndatasets: {size: 70}\n")
    config = load_config("config.yaml", over)
    assert config.seeds == [0, 1] and config.methods == ["dibs"]
    assert config.datasets.size == 70 and config.datasets.alpha == 0.8
    assert len(config.chosen) == 34


def test_reports_by_name_or_pattern() -> None:
    everything = parse_config(SMALL).made_reports()
    assert {"relative", "benchmarks", "ratios"} <= set(everything)
    some = parse_config(SMALL | {"reports": ["relative", "r*", "success_by_index"]}).made_reports()
    expected = {n for n, (r, _) in everything.items() if n.startswith("r") or r.name == "success_by_index"}
    assert set(some) == expected and any(n.startswith("success_by_index") for n in some)
    assert parse_config(SMALL | {"reports": []}).made_reports() == {}


# --- third-party methods and algorithms ------------------------------------------------------------------


@dataclass(frozen=True)
class OwnSettings:
    """Settings of a method or an algorithm that is not built in."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    width: int = 3
    """A setting."""


@pytest.fixture
def third_party() -> Iterator[None]:
    def unused(*_: Any) -> Any:
        raise AssertionError("nothing is trained here")

    added = {
        ("methods", "mine"): Method("mine", "Mine", OwnSettings, unused, unused, defaults={"width": 4}),
        ("methods", "my-template"): Method("my-template", "T", FitSettings, unused, unused, defaults={"degree": 3}),
        ("teachers", "evolution"): Algorithm("evolution", OwnSettings, unused),
    }
    for (kind, name), target in added.items():
        registry.register(kind, name, target)
    yield
    for kind, name in added:
        registry._added[kind].pop(name, None)


@pytest.mark.usefixtures("third_party")
def test_third_party_methods_and_algorithms() -> None:
    data = {**SMALL, "methods": ["mine", "my-template"], "teachers": {"algorithm": "evolution"}}
    config = parse_config(data)
    family = config.families["car2d-reach"]
    assert config.method_settings("mine", family) == OwnSettings(4)
    assert config.method_settings("my-template", family) == FitSettings(degree=3)
    assert config.teacher_settings(family).options == {"width": 3}
    config = parse_config(
        data
        | {"baselines": {"mine": {"width": 5}}, "templates": {"methods": {"my-template": {"degree": 2}}}}
        | {"teachers": {"algorithm": "evolution", "algorithms": {"evolution": {"width": 6}}}}
    )
    assert config.method_settings("mine", family) == OwnSettings(5)
    assert config.method_settings("my-template", family) == FitSettings(degree=2)
    assert config.teacher_settings(family).options == {"width": 6}
    found = problems(data | {"baselines": {"mine": {"with": 1}}, "teachers": {"algorithm": "evolutoin"}})
    assert found == [
        "baselines.mine: unknown setting 'with'. Did you mean 'width'?",
        "teachers.algorithm: unknown teacher algorithm 'evolutoin'. Did you mean 'evolution'?",
    ]


# --- files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES)
def test_configs_are_valid_and_name_their_schema(file: str) -> None:
    assert load_config(*dict.fromkeys(["config.yaml", *BELOW.get(file, "").split(), file]))
    text = (ROOT / file).read_text()
    named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert ((ROOT / file).parent / named).resolve() == ROOT / "config/schema.json"
    jsonschema.validate(yaml.safe_load(text), json.loads((ROOT / "config/schema.json").read_text()))


def test_an_overlay_of_sweeps_needs_the_config_below_it() -> None:
    """One message names every missing key, although each sweep lacks several."""
    with pytest.raises(DibsError) as error:
        load_config("config.yaml", "config/study/sweeps.yaml")
    for name in ("cross-index", "threshold", "degree"):
        assert f"sweeps.{name}.grid: is missing" in str(error.value)
        assert f"sweeps.{name}.rule: is missing" in str(error.value)


@pytest.mark.parametrize("file", [f for f in FILES if "ablations" not in f and "sweeps" not in f])
def test_a_study_has_the_ablations_and_sweeps_that_it_lists(file: str) -> None:
    """And none of the paper's, which are not in config.yaml below it."""
    config, own = load_config(*dict.fromkeys(["config.yaml", file])), yaml.safe_load((ROOT / file).read_text())
    ablations = {"tests/workflow/tiny.yaml": {"tiny"}, "config/study/versions.yaml": {"genrl-steps"}}.get(file, set())
    assert set(config.ablations) == set(own.get("ablations", {})) == ablations
    assert set(config.sweeps) == set(own.get("sweeps", {})) == ({"tiny"} if "tiny" in file else set())


def test_the_schema_file_is_current() -> None:
    kept = (ROOT / "config/schema.json").read_text()
    assert kept == json_schema(), "run `dibs config schema > config/schema.json`"


def test_the_schema_describes_every_key() -> None:
    schema = json.loads(json_schema())
    for name, section in schema["$defs"].items():
        for key, value in section["properties"].items():
            assert value.get("description"), f"{name}.{key} has no docstring"
    assert all("description" in value for value in schema["properties"].values())
    jsonschema.Draft202012Validator.check_schema(schema)


def test_the_full_config_has_the_defaults_of_the_stages() -> None:
    """A command without settings and the same command run by the workflow must write the same bytes."""
    config = load_config("config.yaml")
    written = yaml.safe_load(Path("config.yaml").read_text())
    kinds: dict[str, Any] = {
        "teachers": TeacherSettings,
        "datasets": DatasetSettings,
        "templates": FitSettings,
        "evaluation": EvaluationSettings,
    }
    for section, kind in kinds.items():
        for field in dataclasses.fields(kind):
            if field.name in written[section]:
                assert getattr(getattr(config, section), field.name) == getattr(kind(), field.name), field.name
    for algorithm, options in written["teachers"]["algorithms"].items():
        plain = get_algorithm(algorithm).settings()
        assert options == {key: getattr(plain, key) for key in options}
    assert config.seeds == Config.model_fields["seeds"].default


def test_every_number_of_the_full_config_has_a_comment() -> None:
    for line in Path("config.yaml").read_text().splitlines():
        code, _, comment = line.partition("#")
        if any(c.isdigit() for c in code.partition(":")[2]) and not code.lstrip().startswith("-"):
            assert comment.strip() or any(key in code for key in ("seeds", "benchmarks", "label")), line


def test_reading_a_config_imports_nothing_heavy() -> None:
    script = (
        "import sys, dibs.studies.checks as c; c.load_config('config.yaml', 'config/demo.yaml'); print(*sys.modules)"
    )
    loaded = set(subprocess.check_output([sys.executable, "-c", script], text=True).split())
    assert not loaded & {"torch", "scipy", "matplotlib", "pandas", "pyarrow", "stable_baselines3", "sklearn"}
