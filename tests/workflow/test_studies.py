"""Ablations and sweeps: what they share with the config, what is made for them, and what is wrong with one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from snakemake.utils import Paramspace

from dibs.config import load_config, parse_config
from dibs.errors import DibsError
from dibs.files import read_table
from dibs.variants import Variants, columns, folder, points

from .conftest import ROOT, TINY, Clone

SMALL = {"benchmarks": ["car2d-reach-k1"], "methods": ["dibs"]}
STUDY = {"benchmarks": ["car2d-reach-k5"], "gaps": [5]}


@pytest.fixture(autouse=True)
def in_root(monkeypatch):
    monkeypatch.chdir(ROOT)


# --- plans -----------------------------------------------------------------------------------------------


@pytest.fixture
def variants() -> Variants:
    return Variants(load_config("config.yaml", "config/paper-sweeps.yaml"))


@pytest.mark.parametrize(
    "variant, roots",
    [
        ("template/degree-1", ("results", "results", "results")),
        ("template/degree-2", ("results", "results", "{}")),
        ("confidence-filter/unfiltered", ("results", "{}", "{}")),
        ("template/width-4", ("{}", "{}", "{}")),
    ],
)
def test_what_is_the_same_is_not_made_again(variant: str, roots: tuple[str, ...], variants: Variants):
    root = f"results/ablations/{variant}"
    plan = variants[root]
    split = ("car2d-reach", 5, 0)
    found = plan.teachers(*split)[1], plan.datasets(*split)[1], plan.artefact("dibs", "car2d-reach-k5", 5, 0)
    tails = "teachers/car2d-reach/gap5", "datasets/car2d-reach/gap5", "templates/car2d-reach/gap5"
    for file, of, tail in zip(found, roots, tails, strict=True):
        assert file.startswith(f"{of.format(root)}/{tail}"), file
    # What the commands are told leads to the same files.
    options = dict(zip(plan.where[::2], plan.where[1::2], strict=True))
    assert options["--results"] == roots[2].format(root)
    assert options.get("--teachers", options["--results"]) == roots[0].format(root)
    assert options.get("--datasets", options["--results"]) == roots[1].format(root)


def test_settings_of_a_variant(variants: Variants):
    family = variants.main.family("car2d-reach")
    config = variants["results/ablations/cross-index/independent"].config
    assert config.teacher_settings(family).cross_index == 0.0 and not config.teacher_settings(family).warm_start
    assert config.teacher_settings(family).probes == variants.config.teacher_settings(family).probes
    assert config.seeds == list(range(10)) and config.gaps == [20, 5] and config.methods == ["dibs", "dibs-plus"]
    restarts = variants["results/ablations/branching/independent"].config.teachers.algorithms["ars"]
    assert restarts["restarts"] == 18 and restarts["directions"] == 20  # merged, not replaced


def test_points_are_where_snakemake_looks_for_them(variants: Variants):
    for sweep in variants.config.sweeps.values():
        names = {key: name for name, key in columns(sweep).items()}
        grid = pd.DataFrame(points(sweep), dtype=object).rename(columns=names)
        assert list(Paramspace(grid).instance_patterns) == [folder(point) for point in points(sweep)]
    assert len(points(variants.config.sweeps["rates"])) == 125
    plan = variants["results/sweeps/rates/alpha~0.6/beta~0.1/gamma~1.0"]
    assert (plan.config.datasets.alpha, plan.config.datasets.beta, plan.config.datasets.gamma) == (0.6, 0.1, 1.0)
    assert not plan.config.evaluation.unseen and not plan.config.evaluation.beyond


@pytest.mark.parametrize(
    "root, text",
    [
        ("results/ablations/templat/degree-1", "unknown ablation 'templat'. Did you mean 'template'"),
        ("results/ablations/template/degree-9", "unknown variant of ablation 'template' 'degree-9'. Did you mean"),
        ("results/sweeps/degree/degree~7", "not a point of the grid of sweep 'degree'"),
    ],
)
def test_what_there_is_not_is_told(root: str, text: str, variants: Variants):
    with pytest.raises(DibsError, match=text):
        variants[root]


def test_the_grids_are_the_papers(variants: Variants):
    """Appendix E; everything else stays as config.yaml has it, which lies on every grid."""
    tenths = [0.6, 0.7, 0.8, 0.9, 1.0]
    grids = {name: sweep.grid for name, sweep in variants.config.sweeps.items()}
    assert grids == {
        "cross-index": {"teachers.cross_index": [0.0, 1e-4, 1e-3, 1e-2]},
        "confidence-weight": {"teachers.confidence": [0.1, 0.3, 0.5, 0.7, 0.9]},
        "threshold": {"datasets.threshold": [0.7, 0.8, 0.9]},
        "rates": {"datasets.alpha": tenths, "datasets.beta": [0.1, 0.3, 0.5, 0.7, 0.9], "datasets.gamma": tenths},
        "size": {"datasets.size": [500, 5000, 50000, 500000, 5000000]},
        "degree": {"templates.degree": [0, 1, 2, 3]},
    }
    for sweep in variants.config.sweeps.values():
        assert variants.held(sweep, "car2d-reach") in points(sweep)


def test_the_config_has_what_the_sweeps_chose(variants: Variants):
    """What was chosen is kept in docs/sweeps; where the config has something else, docs/results.md says so."""
    files = sorted(Path("docs/sweeps").glob("*.json"))
    assert files
    differing = Path("docs/results.md").read_text().partition("\n## Sweeps\n")[2].partition("\n## ")[0]
    for file in files:
        told = json.loads(file.read_text())
        name, family = variants.swept(told["study"])
        sweep = variants.config.sweeps[name]
        assert told["family"] == family and told["rule"] == sweep.rule, file
        assert told["held"] == variants.held(sweep, family), f"{file}: the config has changed since"
        assert told["agrees"] == (told["chosen"] == told["held"]), file
        assert told["agrees"] or f"`{told['study']}`: not followed" in differing, file


# --- what is wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data, text",
    [
        (
            {"ablations": {"a": {**STUDY, "variants": {"x": {"teacher": {}}}}}},
            "ablations.a.variants.x.teacher: unknown key. Did you mean 'teachers'?",
        ),
        (
            {"ablations": {"a": {**STUDY, "variants": {"x": {"teachers": {"cross_idx": 1}}}}}},
            "ablations.a.variants.x.teachers.cross_idx: unknown key. Did you mean 'cross_index'?",
        ),
        (
            {"ablations": {"a": {**STUDY, "variants": {"x": {"datasets": {"alpha": 0, "beta": 0, "gamma": 0}}}}}},
            "ablations.a.variants.x.datasets: alpha, beta and gamma are all 0",
        ),
        ({"ablations": {"a": {**STUDY, "gaps": [7], "variants": {"x": {}}}}}, "ablations.a.gaps: 7 divides"),
        ({"ablations": {"a": {**STUDY, "variants": {}}}}, "ablations.a.variants: at least one is needed"),
        ({"ablations": {"a": {**STUDY, "variant": {}}}}, "ablations.a.variant: unknown key. Did you mean 'variants'?"),
        (
            {"sweeps": {"s": {**STUDY, "rule": "best-training", "grid": {"teachers.cross": [1]}}}},
            "sweeps.s.grid.teachers.cross: expected a setting such as teachers.cross_index",
        ),
        (
            {"sweeps": {"s": {**STUDY, "rule": "best-training", "grid": {"datasets.threshold": [0.5, 1.5]}}}},
            "sweeps.s.grid.datasets.threshold: input should be less than or equal to 1",
        ),
        (
            {"sweeps": {"s": {**STUDY, "rule": "best", "grid": {"datasets.threshold": [0.5]}}}},
            "sweeps.s.rule: input should be 'largest-harmless'",
        ),
    ],
)
def test_what_is_wrong_is_told(data: dict, text: str):
    with pytest.raises(DibsError) as error:
        parse_config(SMALL | data)
    told = [line.strip() for line in str(error.value).splitlines()[1:]]
    assert any(line.startswith(text) for line in told), told


def test_what_is_wrong_with_the_config_is_told_once():
    data = {**SMALL, "methods": ["dibz"], "teachers": {"algorithm": "arz"}}
    ablations = {"a": {**STUDY, "variants": {"x": {}, "y": {}}}}
    with pytest.raises(DibsError) as without:
        parse_config(data)
    with pytest.raises(DibsError) as beside:
        parse_config({**data, "ablations": ablations})
    assert str(beside.value) == str(without.value)


# --- the workflow ----------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ablation_and_sweep_end_to_end(finished: Clone):
    """Beside a finished run only what differs is made; summaries are there; sweeps measure no unseen index."""
    ablation = [f"results/ablations/tiny.{suffix}" for suffix in ("csv", "md", "tex", "pdf", "png")]
    sweep = [f"results/sweeps/tiny-tiny-reach.{suffix}" for suffix in ("csv", "md", "tex", "pdf", "png", "json")]
    plan = finished.plan(*ablation, *TINY)
    made = {"base_dataset": 1, "dataset": 2, "template_dibs": 2, "evaluation": 2, "ablation_list": 1, "ablation": 1}
    assert plan == made
    said = finished.run(*ablation, *sweep, *TINY)
    for file in (*ablation, *sweep):
        assert (finished.path / file).stat().st_size > 0, said[-2000:]
    table = pd.read_csv(finished.path / "results/ablations/tiny.csv")
    assert set(table["variant"]) == {"plain", "unfiltered", "degree-2"}
    point = finished.results / "sweeps/tiny/threshold~0.0/size~100"
    rows, _ = read_table(point / "evaluations/dibs/tiny-reach-k2/gap2/seed0.parquet")
    assert set(rows["role"].to_pylist()) == {"train"} and rows["index"].to_pylist() == [0, 2, 4]
    assert not (point / "teachers").exists()
    choice = json.loads((finished.path / sweep[-1]).read_text())
    assert set(choice["chosen"]) == {"datasets.threshold", "datasets.size"}
    assert choice["held"] == {"datasets.threshold": 0.7, "datasets.size": 300}
    assert "Nothing to be done" in finished.run(*ablation, *sweep, *TINY)
    changed = finished.plan(*ablation, *TINY, "--config", "teachers={probes: 60}")
    assert changed["base_teacher"] == 1 and changed["teacher"] == 2 and changed["evaluation"] == 3
    assert not list(Path(finished.results).rglob("*.part"))
    check_by_hand(finished, ["config.yaml", *TINY[1:]])


def check_by_hand(clone: Clone, config: list[str]) -> None:
    """`dibs study --config` tells what the workflow tells, and what is there when a job has failed."""

    def told() -> str:
        command = [sys.executable, "-m", "dibs", "study", "ablations/tiny", "--config", *config]
        return subprocess.run(command, cwd=clone.path, check=True, capture_output=True, text=True, timeout=120).stdout

    assert told() == (clone.results / "ablations/tiny.md").read_text()
    evaluation = next((clone.results / "ablations/tiny/degree-2/evaluations").rglob("*.parquet"))
    content = evaluation.read_bytes()
    evaluation.unlink()
    try:
        assert "Results that are listed but not there: 1." in told()
    finally:
        evaluation.write_bytes(content)
