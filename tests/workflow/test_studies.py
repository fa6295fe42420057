"""Ablations and sweeps: what they share with the config, what is made for them, and how they are summarized."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from dibs.errors import DibsError
from dibs.files import read_table
from dibs.studies.checks import load_config
from dibs.studies.variants import ROOT as VARIANT
from dibs.studies.variants import Variants, folder, grid_points

from .conftest import ROOT, TINY, Clone


@pytest.fixture(autouse=True)
def in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


# --- plans -----------------------------------------------------------------------------------------------


@pytest.fixture
def variants() -> Variants:
    return Variants(load_config("config.yaml", "config/paper-ablations.yaml", "config/paper-sweeps.yaml"))


@pytest.mark.parametrize(
    "variant, roots",
    [
        ("template/degree-1", ("results", "results", "results")),
        ("template/degree-2", ("results", "results", "{}")),
        ("confidence-filter/unfiltered", ("results", "{}", "{}")),
        ("template/width-4", ("{}", "{}", "{}")),
    ],
)
def test_equal_files_are_made_once(variant: str, roots: tuple[str, ...], variants: Variants):
    """A variant shares teachers and datasets with the config as long as their settings, and so their ids, are equal."""
    root = f"results/ablations/{variant}"
    plan, main = variants[root], variants.main
    split = ("car2d-reach", "gap5", 0)
    found = plan.teachers(*split)[1], plan.datasets(*split)[1], plan.model("dibs", "car2d-reach-k5", "gap5", 0)
    ends = "teachers/car2d-reach/gap5", "datasets/car2d-reach/gap5", "models/dibs/car2d-reach/gap5"
    ids = [
        (p.teacher_id(*split[:2], 5, 0), p.dataset_id(*split[:2], 5, 0), p.model_id("dibs", "car2d-reach", "gap5", 0))
        for p in (plan, main)
    ]
    for file, of, end, own, theirs in zip(found, roots, ends, *ids, strict=True):
        assert file.startswith(f"{of.format(root)}/{end}"), file
        assert (own == theirs) == (of == "results"), file


def test_claims_are_made_from_their_ablation_too(variants: Variants):
    """From its evaluations on SimpleDrone and Car2D; those of the anchored variant are the config's own."""
    found = variants.report_inputs("results", "claims")
    assert found[:34] == variants.main.report_inputs("claims") and "results/inputs/car2d-reach-k1.txt" in found
    assert {tuple(Path(file).parts[1:4]) for file in found[34:]} == {
        ("ablations", "cross-index", "no-anchor"),
        ("ablations", "cross-index", "independent"),
    }
    assert len(found) == 34 + 2 * 2 * 2 * 2 * 10  # variants, benchmarks, gaps, methods, seeds
    assert variants.report_inputs("results", "table1") == variants.main.report_inputs("table1")


def test_settings_of_a_variant(variants: Variants):
    family = variants.main.family("car2d-reach")
    config = variants["results/ablations/cross-index/independent"].config
    assert config.teacher_settings(family).cross_index == 0.0 and not config.teacher_settings(family).warm_start
    assert config.teacher_settings(family).probes == variants.config.teacher_settings(family).probes
    assert config.seeds == list(range(10)) and config.gaps == [20, 5] and config.methods == ["dibs", "dibs-plus"]
    restarts = variants["results/ablations/branching/independent"].config.teachers.algorithms["ars"]
    assert restarts["restarts"] == 18 and restarts["directions"] == 20  # merged, not replaced


def test_every_point_has_a_folder_that_the_rules_accept(variants: Variants):
    roots = {root for sweep in variants.config.sweeps.values() for root in map(folder, grid_points(sweep))}
    assert len(roots) == sum(len(grid_points(sweep)) for sweep in variants.config.sweeps.values())
    assert all(re.fullmatch(VARIANT, f"/sweeps/some-name/{root}") for root in roots)
    assert len(grid_points(variants.config.sweeps["rates"])) == 125
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
def test_unknown_variants_are_named(root: str, text: str, variants: Variants):
    with pytest.raises(DibsError, match=text):
        variants[root]


def test_the_grids_are_the_papers(variants: Variants):
    """Appendix E, but for the largest M. The values of config.yaml lie on every grid."""
    tenths = [0.6, 0.7, 0.8, 0.9, 1.0]
    grids = {name: sweep.grid for name, sweep in variants.config.sweeps.items()}
    assert grids == {
        "cross-index": {"teachers.cross_index": [0.0, 1e-4, 1e-3, 1e-2]},
        "confidence-weight": {"teachers.confidence": [0.1, 0.3, 0.5, 0.7, 0.9]},
        "threshold": {"datasets.threshold": [0.7, 0.8, 0.9]},
        "rates": {"datasets.alpha": tenths, "datasets.beta": [0.1, 0.3, 0.5, 0.7, 0.9], "datasets.gamma": tenths},
        "size": {"datasets.size": [500, 5000, 50000, 500000]},  # without the 5e6 of the paper: fits read at most 5e5
        "degree": {"templates.degree": [0, 1, 2, 3]},
    }
    for sweep in variants.config.sweeps.values():
        assert variants.held(sweep, "car2d-reach") in grid_points(sweep)


def test_the_config_has_what_the_sweeps_chose(variants: Variants):
    """docs/sweeps keeps the choices. docs/results.md lists those that the config does not follow."""
    files = sorted(Path("docs/sweeps").glob("*.json"))
    assert files
    differing = Path("docs/results.md").read_text().partition("\n## Sweeps\n")[2].partition("\n## ")[0]
    for file in files:
        choice = json.loads(file.read_text())
        name, family = variants.swept(choice["study"])
        sweep = variants.config.sweeps[name]
        assert choice["family"] == family and choice["rule"] == sweep.rule, file
        assert choice["held"] == variants.held(sweep, family), f"{file}: the config has changed since"
        assert choice["agrees"] == (choice["chosen"] == choice["held"]), file
        assert choice["agrees"] or f"`{choice['study']}`: not followed" in differing, file


# --- the workflow ----------------------------------------------------------------------------------------

ABLATION = [f"results/ablations/tiny.{suffix}" for suffix in ("csv", "md", "html", "tex", "pdf", "png", "json")]
SWEEP = [f"results/sweeps/tiny-tiny-reach.{suffix}" for suffix in ("csv", "md", "html", "tex", "pdf", "png", "json")]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ablation_and_sweep_end_to_end(finished: Clone):
    """After a finished run only what differs is made. Sweeps measure no unseen index."""
    # Index 0, 2 and 4 of gap 2 without a filter; one model each without a filter and of degree 2.
    made = {"dataset": 3, "model dibs": 2, "evaluation dibs": 2, "study_list": 1, "study": 1}
    assert finished.plan(*ABLATION, *TINY) == made
    assert finished.plan("ablations", *TINY) == {**made, "ablations": 1}  # none of the paper's
    output = finished.run(*ABLATION, *SWEEP, *TINY)
    for file in (*ABLATION, *SWEEP):
        assert (finished.path / file).stat().st_size > 0, output[-2000:]
    table = pd.read_csv(finished.path / "results/ablations/tiny.csv")
    assert set(table["variant"]) == {"plain", "unfiltered", "degree-2"}
    point = finished.results / "sweeps/tiny/threshold~0.0/size~100"
    rows, _ = read_table(point / "evaluations/dibs/tiny-reach-k2/gap2/seed0.parquet")
    assert set(rows["role"].to_pylist()) == {"train"} and rows["index"].to_pylist() == [0, 2, 4]
    assert not (point / "teachers").exists()
    choice = json.loads((finished.path / SWEEP[-1]).read_text())
    assert set(choice["chosen"]) == {"datasets.threshold", "datasets.size"}
    assert choice["held"] == {"datasets.threshold": 0.7, "datasets.size": 300}
    assert "Nothing to be done" in finished.run(*ABLATION, *SWEEP, *TINY)
    assert finished.plan(*TINY) == {}  # variants share files with the config without making them again
    changed = finished.plan(*ABLATION, *TINY, "--config", "teachers={probes: 60}")
    assert changed == {"teacher": 3, "dataset": 6, "model dibs": 3, "evaluation dibs": 3, "study_list": 1, "study": 1}
    assert not list(Path(finished.results).rglob("*.part"))
    check_command(finished, ["config.yaml", *TINY[1:]])


def check_command(clone: Clone, config: list[str]) -> None:
    """`dibs study --config` prints what the workflow writes, and works while results are missing."""

    def printed() -> str:
        return clone.python("-m", "dibs", "study", "ablations/tiny", "--config", *config).stdout

    assert printed() == (clone.results / "ablations/tiny.md").read_text()
    evaluation = next((clone.results / "ablations/tiny/degree-2/evaluations").rglob("*.parquet"))
    evaluation.unlink()
    assert "Listed results that do not exist: 1." in printed()
