"""The config: everything wrong is told in one message, overlays merge, schema and defaults are in step."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from dibs import cli
from dibs.config import Config, difference, json_schema, load_config, parse_config
from dibs.datasets.build import DatasetSettings
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.teachers.registry import settings_of
from dibs.teachers.train import TeacherSettings
from dibs.templates.fit import FitSettings

ROOT = Path(__file__).parents[2]
FILES = [
    "config.yaml",
    "config/demo.yaml",
    "config/laptop.yaml",
    "config/paper-sweeps.yaml",
    "tests/workflow/tiny.yaml",
    *(str(p.relative_to(ROOT)) for p in sorted((ROOT / "config/study").glob("*.yaml")) if p.name != "sweeps.yaml"),
]
SMALL = {"benchmarks": ["car2d-reach-k1"], "methods": ["dibs"]}


def problems(data: dict) -> list[str]:
    with pytest.raises(DibsError) as error:
        parse_config(data)
    return [line.strip() for line in str(error.value).splitlines()[1:]]


@pytest.fixture(autouse=True)
def in_root(monkeypatch):
    monkeypatch.chdir(ROOT)


# --- what is wrong ---------------------------------------------------------------------------------------


def test_every_problem_is_told_at_once():
    told = problems(
        {
            "seeds": 0,
            "benchmark": [],
            "benchmarks": ["car2d-reech-k1", "car2d-reach-k*", "nowhere.yaml"],
            "gaps": [3, 20, "x"],
            "methods": ["dibs", "dibz"],
            "teachers": {
                "cross_idx": 1,
                "rollouts": "many",
                "algorithms": {"arss": {}, "ars": {"itterations": 3, "best": "x"}},
                "families": {"car2d-reahc": {"cross_index": 1.0, "foo": 2}},
            },
            "templates": {"methods": {"dibs-pluss": {}}},
            "evaluation": 3,
            "baselines": {"arz": {}, "ars": {"stepz": 3}},
        }
    )
    expected = [
        "seeds: expected a count ≥ 1 or a list of seeds (found 0)",
        "benchmark: unknown key. Did you mean 'benchmarks'?",
        "benchmarks: unknown benchmark 'car2d-reech-k1'. Did you mean 'car2d-reach-k1'?",
        "benchmarks: nowhere.yaml: no such family file",
        "gaps.2: input should be a valid integer",
        "gaps: 3 divides the last index of no chosen family (car2d-reach L = 40)",
        "methods: unknown method 'dibz'. Did you mean 'dibs'?",
        "teachers.cross_idx: unknown key. Did you mean 'cross_index'?",
        "teachers.rollouts: input should be a valid integer",
        "teachers.algorithms.arss: unknown teacher algorithm 'arss'. Did you mean 'ars'?",
        "teachers.algorithms.ars: unknown setting 'itterations'. Did you mean 'iterations'?",
        "teachers.algorithms.ars: best: Input should be a valid integer",
        "teachers.families: unknown family 'car2d-reahc'. Did you mean 'car2d-reach'?",
        "teachers.families.car2d-reahc.foo: unknown key. Known: cross_index",
        "templates.methods: unknown method 'dibs-pluss'. Did you mean 'dibs-plus'?",
        "evaluation: input should be a dictionary",
        "baselines: unknown baseline 'arz'. Did you mean 'ars'?",
        "baselines.ars: unknown setting 'stepz'. Did you mean 'step'?",
    ]
    for text in expected:
        assert any(line.startswith(text) for line in told), f"{text}\nnot among\n" + "\n".join(told)
    assert len(told) == len(expected)


@pytest.mark.parametrize(
    "data, text",
    [
        ({"seeds": [1, 1]}, "seeds: expected a count ≥ 1 or different numbers ≥ 0, found [1, 1]"),
        ({"seeds": [-1]}, "seeds: expected a count ≥ 1 or different numbers ≥ 0, found [-1]"),
        ({"seeds": "ten"}, "seeds: expected a count ≥ 1 or a list of seeds (found 'ten')"),
        ({"seeds": True}, "seeds: expected a count ≥ 1 or a list of seeds (found True)"),
        ({"results": ""}, "results: expected a folder's name, found ''"),
        ({"results": "{family}"}, "results: expected a folder's name, found '{family}'"),
        ({"benchmarks": []}, "benchmarks: at least one is needed"),
        ({"benchmarks": ["car3d-*"]}, "benchmarks: unknown benchmark 'car3d-*'. Did you mean"),
        ({"methods": []}, "methods: at least one is needed"),
        ({"gaps": []}, "gaps: at least one is needed, or null for each family's own"),
        ({"gaps": [0]}, "gaps: expected numbers ≥ 1, found 0"),
        ({"gaps": [7]}, "gaps: 7 divides the last index of no chosen family (car2d-reach L = 40)"),
        ({"datasets": {"alpha": 0, "beta": 0, "gamma": 0}}, "datasets: alpha, beta and gamma are all 0"),
        ({"datasets": {"threshold": 1.5}}, "datasets.threshold: input should be less than or equal to 1"),
        ({"datasets": {"size": 0}}, "datasets.size: input should be greater than or equal to 1"),
        ({"teachers": {"algorithm": "pppo"}}, "teachers.algorithm: unknown teacher algorithm 'pppo'. Did you mean"),
        ({"teachers": {"options": {"itrations": 3}}}, "teachers.options: unknown setting 'itrations'. Did you mean"),
        (
            {"teachers": {"families": {"car2d-*": {"options": {"n_steps": 3}}}}},
            "teachers.families.car2d-*.options: unknown setting 'n_steps'.",
        ),
    ],
)
def test_what_cannot_be(data, text):
    told = problems(SMALL | data)
    assert any(line.startswith(text) for line in told), told


def test_a_family_no_gap_of_the_list_divides():
    told = problems({**SMALL, "benchmarks": ["car2d-reach-k1", "reacher-drop-same-8"], "gaps": [20]})
    assert told == ["gaps: none of [20] divides L = 8 of reacher-drop-same-8: it could not be trained"]


def test_two_files_of_one_name(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text((ROOT / "tests/workflow/family.yaml").read_text())
    told = problems({**SMALL, "benchmarks": ["tests/workflow/family.yaml", str(mine)]})
    assert told == [
        f"benchmarks: family 'tiny-reach' is described by tests/workflow/family.yaml and {mine}; rename one"
    ]
    other = tmp_path / "other.yaml"
    other.write_text(mine.read_text().replace("name: tiny-reach", "name: other"))
    told = problems({**SMALL, "benchmarks": ["tests/workflow/family.yaml", str(other)]})
    assert told == [f"benchmarks: 'tiny-reach-k{k}' is a benchmark of tiny-reach and other; rename one" for k in (1, 2)]


# --- what it means ---------------------------------------------------------------------------------------


def test_seeds_by_number_or_list():
    assert parse_config(SMALL | {"seeds": 3}).seeds == [0, 1, 2]
    assert parse_config(SMALL | {"seeds": [7, 3]}).seeds == [7, 3]


def test_gaps_are_each_familys_own_or_those_that_divide():
    config = parse_config({**SMALL, "benchmarks": ["car2d-reach-k1", "car2d-choice-l1"]})
    assert [config.gaps_of(f) for f in config.families.values()] == [(20, 10, 8, 5, 4, 2), (10, 5, 4, 2)]
    config = parse_config({**SMALL, "benchmarks": ["car2d-reach-k1", "reacher-stack-same-9"], "gaps": [5, 3]})
    assert [config.gaps_of(f) for f in config.families.values()] == [(5,), (3,)]


def test_settings_of_a_family_and_its_algorithm():
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
    # What equals the algorithm's default (best: 8) need not be said.
    assert car == TeacherSettings(cross_index=0.02, probes=9, options={"iterations": 50, "restarts": 2})
    assert arm == TeacherSettings(cross_index=0.5)
    said = {"cross_index": 0.02, "options": {"iterations": 50, "restarts": 2}, "probes": 9}
    assert json.loads(difference(car, TeacherSettings())) == said


def test_what_sets_a_method_apart_wins_over_what_holds_for_all():
    data = {"rate": 0.05, "prior": 0.0, "select": False, "methods": {"dibs": {"degree": 2}}}
    config = parse_config(SMALL | {"templates": {**data, "families": {"car2d-*": {"rate": 0.2}}}})
    family = config.families["car2d-reach"]
    dibs, plus = (config.template_settings(method, family) for method in ("dibs", "dibs-plus"))
    assert (dibs.rate, dibs.degree, plus.rate, plus.degree) == (0.2, 2, 0.2, 1)
    assert dibs != FitSettings() and plus.select


def test_files_merge_like_snakemakes(tmp_path):
    over = tmp_path / "over.yaml"
    over.write_text("seeds: 2\nmethods: [dibs]\ndatasets: {size: 70}\n")
    config = load_config("config.yaml", over)
    assert config.seeds == [0, 1] and config.methods == ["dibs"]
    assert config.datasets.size == 70 and config.datasets.alpha == 0.8
    assert len(config.chosen) == 34


# --- files that are kept ---------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES)
def test_configs_are_valid_and_know_their_schema(file, capsys):
    assert cli.main(["config", "check", *dict.fromkeys(["config.yaml", file])]) == 0
    assert "valid." in capsys.readouterr().out
    text = (ROOT / file).read_text()
    named = text.splitlines()[0].removeprefix("# yaml-language-server: $schema=")
    assert ((ROOT / file).parent / named).resolve() == ROOT / "config/schema.json"
    jsonschema.validate(yaml.safe_load(text), json.loads((ROOT / "config/schema.json").read_text()))


def test_an_overlay_of_the_sweeps_alone_lacks_what_it_overlays(capsys):
    """One message that names every missing key, although there are several to a sweep; over the sweeps it is valid."""
    assert cli.main(["config", "check", "config.yaml", "config/study/sweeps.yaml"]) == 1
    told = capsys.readouterr().err
    for name in ("cross-index", "threshold", "degree"):
        assert f"sweeps.{name}.grid: is missing" in told and f"sweeps.{name}.rule: is missing" in told
    assert cli.main(["config", "check", "config.yaml", "config/paper-sweeps.yaml", "config/study/sweeps.yaml"]) == 0


def test_schema_is_in_step():
    kept = (ROOT / "config/schema.json").read_text()
    assert kept == json_schema(), "run `dibs config schema > config/schema.json`"


def test_schema_explains_every_key():
    schema = json.loads(json_schema())
    for name in ("Teachers", "Datasets", "Templates", "EvaluationSettings"):
        for key, value in schema["$defs"][name]["properties"].items():
            assert value.get("description"), f"{name}.{key} has no docstring"
    assert all("description" in value for value in schema["properties"].values())


def test_full_config_says_what_the_stages_do_by_themselves():
    """A command run by hand and the same one run by the workflow must give the same bytes."""
    config = load_config("config.yaml")
    said = yaml.safe_load(Path("config.yaml").read_text())
    kinds = {
        "teachers": TeacherSettings,
        "datasets": DatasetSettings,
        "templates": FitSettings,
        "evaluation": EvaluationSettings,
    }
    for section, kind in kinds.items():
        for field in dataclasses.fields(kind):
            if field.name in said[section]:
                assert getattr(getattr(config, section), field.name) == getattr(kind(), field.name), field.name
    for algorithm, options in said["teachers"]["algorithms"].items():
        plain = settings_of(algorithm)()
        assert options == {key: getattr(plain, key) for key in options}


def test_every_number_of_the_full_config_is_commented():
    for line in Path("config.yaml").read_text().splitlines():
        code, _, comment = line.partition("#")
        if any(c.isdigit() for c in code.partition(":")[2]) and not code.lstrip().startswith("-"):
            assert comment.strip() or any(key in code for key in ("seeds", "benchmarks", "label")), line


def test_defaults_are_the_full_paper():
    assert len(Config().chosen) == 34
    assert Config().seeds == list(range(10))


def test_importing_the_config_is_light():
    script = "import sys, dibs.config, dibs.plan; print(*sys.modules)"
    loaded = set(subprocess.check_output([sys.executable, "-c", script], text=True).split())
    assert not loaded & {"torch", "scipy", "matplotlib", "pandas", "pyarrow", "stable_baselines3", "sklearn"}
