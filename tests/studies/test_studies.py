"""Ablations and sweeps: tables by hand, the paper's rules case by case, figures that show what they should."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import stats

from dibs import paths
from dibs.drawing.style import save
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.files import check_suffix, read_table, write_json, write_table
from dibs.methods import get_method
from dibs.provenance import Origin
from dibs.stages import EvaluationResult, evaluation_versions
from dibs.studies import ablations, formats, studies, study_figures, summaries, sweeps

FAMILY, BENCHMARK, SPLIT = "car2d-reach", "car2d-reach-k1", "gap10"
ROLES = {0: "train", 1: "unseen", 2: "unseen", 3: "unseen", 4: "unseen", 5: "train"}
EDGES = ("start>goal1", "goal1>goal2")


# --- files as the pipeline writes them -------------------------------------------------------------------


def evaluation(root: Path, seed: int, solved: str, method: str = "dibs", rate: float = 1.0, delta: float = 0.9) -> str:
    """An evaluation at six indices; `solved` says which with 1, the others have rate 0."""
    path = root / "evaluations" / f"{method}-{seed}.parquet"
    counts = {i: round(100 * rate) * int(c) for i, c in enumerate(solved)}
    name = {"method": method, "benchmark": BENCHMARK, "family": FAMILY, "split": SPLIT, "seed": seed}
    origin = Origin("evaluation", name, "", "", evaluation_versions(get_method(method)))
    EvaluationResult(counts, ROLES, EvaluationSettings(rollouts=100, delta=delta), origin, {}).save(path)
    return str(path)


def taught(root: Path, index: int, success: float, drift: float | None, seed: int = 0, split: str = SPLIT) -> str:
    """A teacher's metrics; its second edge succeeds always and has no accuracy of its confidence."""
    path = root / "teachers" / f"{split}-{seed}-{index}.json"
    each = {
        EDGES[0]: {"success": success, "drift": drift, "confidence": {"accuracy": 0.8}},
        EDGES[1]: {"success": 1.0, "drift": drift, "confidence": None},
    }
    name = {"kind": "teacher", "family": FAMILY, "split": paths.split_of(split, index), "index": index, "seed": seed}
    write_json(path, {**name, "metrics": {"edges": each, "drift": drift}})
    return str(path)


def dataset(root: Path, index: int, *acceptance: float) -> str:
    """A dataset of some edges, each with the share of candidates that passed the filter."""
    path = root / "datasets" / f"{index}.parquet"
    shares = dict(zip(EDGES, acceptance, strict=False))
    write_table(path, pa.table({"edge": list(shares)}), {"kind": "dataset", "acceptance": shares})
    return str(path)


@pytest.fixture
def fitted(model):
    """What writes the metrics of a fit with losses per index."""

    def write(root: Path, *terms: float | None, method: str = "dibs", seed: int = 0) -> str:
        path = root / "models" / f"{method}-{seed}.safetensors"
        return str(paths.metrics(model(path, FAMILY, SPLIT, method, seed, per_index=dict.fromkeys(EDGES, terms))))

    return write


def written(path: Path, **study: object) -> Path:
    write_json(path, study)
    return path


@pytest.fixture
def ablation_file(tmp_path, fitted) -> Path:
    """Anchored with three seeds, independent with two of three, a third variant of which nothing is there."""
    a, b = tmp_path / "a", tmp_path / "b"
    anchored = {
        "name": "anchored",
        "label": "λ_x = 0.001, warm start from the teacher before, as in the paper",
        "evaluations": [evaluation(a, s, solved) for s, solved in enumerate(["111111", "111101", "101101"])],
        "teachers": [
            taught(a, 0, 1.0, None, split="gap4"),
            taught(a, 5, 0.9, 1.0),
            taught(a, 5, 0.5, 9.0, split="gap4"),
        ],
        "models": [fitted(a, 0.0, 0.2), fitted(a, 0.0, 0.8, method="dibs-plus")],
    }
    independent = {
        "name": "independent",
        "evaluations": [*(evaluation(b, s, "111001") for s in (0, 1)), str(b / "2.parquet")],
        "teachers": [taught(b, 0, 1.0, None), taught(b, 5, 1.0, 5.0)],
        "models": [fitted(b, 0.0, None, 0.6)],
    }
    return written(
        tmp_path / "study.json",
        name="cross-index",
        kind="ablation",
        question="Does cross-index regularization help?",
        base="anchored",
        variants=[independent, anchored, {"name": "later"}],
        digest="abc",
    )


def sweep_file(root: Path, fitted, **changes: object) -> Path:
    """λ_x = 0, 0.001 and 0.01, of which the last one lacks a file."""
    variants = []
    for number, (value, drift) in enumerate([(0.01, 0.1), (0.0, 5.0), (0.001, 1.0)]):
        place = root / str(number)
        variant = {
            "name": f"p{number}",
            "point": {"teachers.cross_index": value},
            "evaluations": [evaluation(place, s, "100001", rate=0.95 + 0.01 * s) for s in (0, 1)],
            "teachers": [taught(place, 0, 1.0, None), taught(place, 5, 1.0, drift)],
            "datasets": [dataset(place, 0, 0.9), dataset(place, 5, 0.7)],
            "models": [fitted(place, 0.0, 0.002 * (1 + number))],
        }
        variants.append(variant)
    variants[0]["evaluations"].append(str(root / "nowhere.parquet"))
    study = {"name": "cross-index", "kind": "sweep", "question": "How strong should it be?", "variants": variants}
    study |= {"rule": "largest-harmless", "held": {"teachers.cross_index": 0.001}}
    return written(root / "sweep.json", **{**study, **changes})


# --- the study's file ------------------------------------------------------------------------------------


def sweep_of(*points: dict[str, float], **changes: object) -> dict[str, object]:
    variants = [{"name": f"p{n}", "point": point} for n, point in enumerate(points)]
    study = {"name": "s", "kind": "sweep", "question": "?", "variants": variants, "rule": "best-training"}
    return {**study, "held": {"a": 1}, **changes}


@pytest.mark.parametrize(
    "study, message",
    [
        ({"kind": "ablation", "question": "?", "variants": [{"name": "a"}]}, "name: Field required"),
        (
            {"name": "s", "kind": "survey", "question": "?", "variants": [{"name": "a"}]},
            "kind: .*'ablation' or 'sweep'",
        ),
        ({"name": "s", "kind": "ablation", "question": "?", "variants": []}, "variants: "),
        ({"name": "s", "kind": "ablation", "question": "?", "variants": [{}]}, r"variants\.0\.name: Field required"),
        (
            {"name": "s", "kind": "ablation", "question": "?", "variants": [{"name": "a", "teacher": []}]},
            r"variants\.0\.teacher",
        ),
        (
            {"name": "s", "kind": "ablation", "question": "?", "variants": [{"name": "a"}, {"name": "a"}]},
            r"variants\.name: expected every variant once, found 'a' twice",
        ),
        (
            {"name": "s", "kind": "ablation", "question": "?", "base": "b", "variants": [{"name": "a"}]},
            "base: expected the name of a variant or nothing, found 'b'",
        ),
        (sweep_of({"a": 1}, rule="best"), "rule: expected one of largest-harmless, .*found 'best'"),
        (sweep_of({}), r"variants\.0\.point: expected the value of every swept key"),
        (sweep_of({"a": 1}, {"b": 1}), r"variants\.1\.point: expected the keys a; found b"),
        (sweep_of({"a": 1}, {"a": "much"}), r"variants\.1\.point\.a"),
        (sweep_of({"a": 1}, {"a": 1}), r"variants\.point: .* found \(1,\) twice"),
        (sweep_of({"a": 1}, held={}), "held: expected the keys a; found none"),
        (
            sweep_of({"a": 1, "b": 2}, held={"a": 1, "b": 2}, rule="smallest-sufficient"),
            "rule: smallest-sufficient orders one swept key, found a, b",
        ),
    ],
)
def test_a_malformed_study_names_file_and_key(study, message, tmp_path):
    path = written(tmp_path / "study.json", **study)
    with pytest.raises(DibsError, match=message) as error:
        studies.read_study(path)
    assert str(error.value).startswith(str(path))


def test_a_study_must_be_an_object(tmp_path):
    (tmp_path / "s.json").write_text("[]")
    with pytest.raises(DibsError, match=r"s\.json: expected a study, one JSON object; found list"):
        studies.read_study(tmp_path / "s.json")


def test_a_point_keeps_its_numbers_as_they_are(tmp_path):
    study = studies.read_study(written(tmp_path / "s.json", **sweep_of({"a": 5}, {"a": 0.5})))
    assert [json.dumps(v.point) for v in study.variants] == ['{"a": 5}', '{"a": 0.5}']


@pytest.mark.parametrize("kind", ["teacher", "template"])
def test_metrics_of_something_else_are_rejected(kind, tmp_path):
    write_json(tmp_path / "x.json", {"some": "thing"})
    read = studies.edges if kind == "teacher" else studies.losses
    with pytest.raises(DibsError, match=rf"x\.json: damaged .*expected the metrics of a {kind}"):
        read([tmp_path / "x.json"])


def test_a_branched_template_has_losses_per_mode(tmp_path, model):
    modes = [{"per_index": {"e": [0.0, 0.1]}}, {"per_index": {"e": [0.2, None]}}]
    path = model(tmp_path / "x.safetensors", FAMILY, SPLIT, "dibs-branched", modes=modes)
    assert studies.losses([paths.metrics(path)])["loss"].tolist() == [pytest.approx(0.1)]


# --- ablations -------------------------------------------------------------------------------------------


def made(path: Path) -> tuple[studies.StudyFile, studies.Results, formats.Table]:
    study = studies.read_study(path)
    measured = studies.read_results(study)
    return study, measured, ablations.ablation(study, measured)


def test_an_ablation_by_hand(ablation_file):
    _, _, table = made(ablation_file)
    assert [(r["variant"], r["seeds"]) for r in table.rows] == [("independent", 2), ("anchored", 3), ("later", 0)]
    independent, anchored, later = table.rows
    # Unseen are indices 1 to 4: 4, 3 and 2 of them solved; independent: 2 and 2.
    assert anchored["zero_shot_ratio_mean"] == pytest.approx(0.75)
    rng = np.random.default_rng(1)
    expected = stats.bootstrap(([1.0, 0.75, 0.5],), np.mean, method="percentile", rng=rng).confidence_interval
    interval = anchored["zero_shot_ratio_low"], anchored["zero_shot_ratio_high"]
    assert interval == pytest.approx((expected.low, expected.high))
    assert (anchored["zero_shot_count_mean"], anchored["zero_shot_count_best"], anchored["unseen_size"]) == (3, 4, 4)
    assert anchored["training_ratio_mean"] == 1.0 and anchored["difference_mean"] is None
    # Paired over the two seeds that both have: 0.5 − 1 and 0.5 − 0.75.
    assert independent["difference_mean"] == pytest.approx(-0.375) and independent["difference_seeds"] == 2
    assert independent["difference_low"] == -0.5 and independent["difference_high"] == -0.25
    # Edges at index 0 (of any gap) and 5 (of this one): 1, 1, 0.9, 1.
    assert anchored["teacher_success"] == pytest.approx(0.975) and anchored["teacher_share"] == 0.75
    assert (anchored["drift"], independent["drift"]) == (1.0, 5.0)
    assert anchored["template_loss"] == pytest.approx(0.1)  # that of DIBS+ is another method's
    assert independent["template_loss"] == pytest.approx(0.3)  # an index without data has no loss
    assert later["zero_shot_ratio_mean"] is None and later["drift"] is None


def test_an_ablation_as_read(ablation_file):
    _, _, table = made(ablation_file)
    text = formats.to_markdown(table)
    assert text.startswith("**Does cross-index regularization help?**") and BENCHMARK in text and SPLIT in text
    line = " ".join(next(line for line in text.splitlines() if "independent" in line).split())
    assert line.startswith(f"| {BENCHMARK} | {SPLIT} | DIBS | independent | 2 |")
    assert "| 0.50 [0.50, 0.50] | -0.38 [-0.50, -0.25] | 2.0 of 4 | 2 |" in line
    assert "Listed results that do not exist: 1." in text
    assert r"$\lambda$\_x = 0.001" in formats.to_latex(table)


def test_one_seed_has_no_interval_and_empty_columns_go(tmp_path):
    variants = [{"name": "only", "evaluations": [evaluation(tmp_path, 0, "110001")]}]
    path = written(tmp_path / "s.json", name="s", kind="ablation", question="?", variants=variants)
    _, _, table = made(path)
    assert "| 1.00 [n/a] | 0.25 [n/a] |" in " ".join(formats.to_markdown(table).split())
    assert not {"difference_mean", "teacher_success", "drift", "template_loss"} & set(table.rows[0])
    assert [c.header for c in table.columns][-2:] == ["Unseen solved", "best"]


def test_a_variant_without_a_method_has_no_row_of_it(tmp_path):
    both = [evaluation(tmp_path / "a", 0, "110001"), evaluation(tmp_path / "a", 0, "110001", "dibs-plus")]
    lost = [str(tmp_path / "teacher.json")]  # a teacher that is missing says nothing about methods
    variants = [{"name": "a", "evaluations": both}, {"name": "b", "evaluations": both[:1], "teachers": lost}]
    path = written(tmp_path / "s.json", name="s", kind="ablation", question="?", variants=variants)
    assert [(r["method"], r["variant"]) for r in made(path)[2].rows] == [
        ("dibs", "a"),
        ("dibs", "b"),
        ("dibs-plus", "a"),
    ]


def test_nothing_run_yet_and_different_thresholds_are_reported(tmp_path):
    path = written(tmp_path / "s.json", name="s", kind="ablation", question="?", variants=[{"name": "a"}])
    with pytest.raises(DibsError, match="study s: no evaluation of any variant exists yet; run the workflow first"):
        made(path)
    one, other = evaluation(tmp_path / "a", 0, "110001"), evaluation(tmp_path / "b", 0, "110001", delta=0.5)
    variants = [{"name": "a", "evaluations": [one]}, {"name": "b", "evaluations": [other]}]
    message = rf"{other}: a task counts as solved above 0\.5, but above 0\.9 in {one}"
    with pytest.raises(DibsError, match=message):
        made(written(path, name="s", kind="ablation", question="?", variants=variants))


def test_the_figure_of_an_ablation(ablation_file):
    study, measured, _ = made(ablation_file)
    figure = study_figures.ablation_figure(study, measured)
    assert figure.get_suptitle() == study.question
    above, below = figure.axes
    means = {
        (float(line.get_xdata()[0]), line.get_markerfacecolor()) for line in above.lines if line.get_marker() == "X"
    }
    assert means == {(0.5, "#D62728"), (0.75, "#D62728"), (1.0, "white")}
    assert not any(2 - 0.5 < line.get_ydata()[0] < 2 + 0.5 for ax in figure.axes for line in ax.lines)  # not run
    drifts = sorted(float(line.get_xdata()[0]) for line in below.lines if line.get_marker() == "s")
    assert drifts == [1.0, 5.0] and len(figure.legends) == 1


def test_a_method_that_is_missing_hides_no_other(tmp_path):
    both = [evaluation(tmp_path / "a", 0, "110001", method) for method in ("dibs", "dibs-plus")]
    variants = [
        {"name": "a", "evaluations": both},
        {"name": "b", "evaluations": [str(tmp_path / "nowhere.parquet"), both[1]]},
    ]
    study, measured, _ = made(written(tmp_path / "s.json", name="s", kind="ablation", question="?", variants=variants))
    (ax,) = study_figures.ablation_figure(study, measured).axes
    drawn = [(line.get_marker(), round(line.get_ydata()[0])) for line in ax.lines]
    assert drawn == [("X", 0), ("X", 0), ("*", 0), ("*", 0), ("*", 1), ("*", 1)]


def test_equal_teachers_have_no_panel_of_drift(tmp_path):
    same = [taught(tmp_path, 5, 1.0, 2.0)]
    variants = [
        {"name": n, "evaluations": [evaluation(tmp_path / n, 0, "110001")], "teachers": same} for n in ("a", "b")
    ]
    study, measured, _ = made(written(tmp_path / "s.json", name="s", kind="ablation", question="?", variants=variants))
    assert len(study_figures.ablation_figure(study, measured).axes) == 1


def overlapping(figure, texts) -> bool:
    renderer = figure.canvas.get_renderer()
    boxes = [t.get_window_extent(renderer) for t in texts if t.get_text()]
    return any(a.overlaps(b) for n, a in enumerate(boxes) for b in boxes[n + 1 :])


def test_long_names_of_variants_do_not_overlap(tmp_path):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    name = "teachers that know nothing of one another, each from its own random weights, variant "
    variants = [
        {"name": f"v{n}", "label": name + str(n), "evaluations": [evaluation(tmp_path / str(n), 0, "110001")]}
        for n in range(5)
    ]
    path = written(tmp_path / "s.json", name="s", kind="ablation", question=name * 2, variants=variants)
    study, measured, _ = made(path)
    figure = study_figures.ablation_figure(study, measured)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (ax,) = figure.axes
    assert not overlapping(figure, [*ax.get_yticklabels(), ax.title, figure._suptitle])
    assert min(t.get_window_extent(canvas.get_renderer()).x0 for t in ax.get_yticklabels()) >= 0.0


# --- the paper's rules -----------------------------------------------------------------------------------


def grid(*rows: dict[str, object]) -> pd.DataFrame:
    usual = {"success": 1.0, "acceptance": 0.5, "drift": 1.0, "loss": 0.1, "satisfaction": 0.9}
    return pd.DataFrame([{**usual, "held": False, "missing": "", **row} for row in rows])


def picked(rule: str, *rows: dict[str, object]) -> tuple[object, list[bool]]:
    """The chosen value of x and who was eligible."""
    frame = grid(*rows)
    points = [studies.VariantFiles(f"p{n}", point={"x": row["x"]}) for n, row in enumerate(rows)]
    choice = sweeps.choose(studies.StudyFile("s", "sweep", "?", points, rule=rule), frame)
    assert choice.why and "\n" not in choice.why
    chosen = None if choice.chosen is None else frame.loc[choice.chosen, "x"]
    return chosen, [label in choice.eligible for label in frame.index]


@pytest.mark.parametrize(
    "rows, chosen, eligible",
    [
        # The largest of those that lower drift; order does not matter.
        ([(0.01, 0.5, 1.0), (0, 2.0, 1.0), (0.001, 1.0, 1.0)], 0.01, [True, True, True]),
        # Exactly 0.01 below is harmless, more is not.
        ([(0, 2.0, 1.0), (0.001, 1.0, 0.99), (0.01, 0.5, 0.98)], 0.001, [True, True, False]),
        # As much drift as at 0 is no reduction, nor is less by rounding.
        ([(0, 2.0, 1.0), (0.001, 2.0 - 1e-12, 1.0)], 0, [True, False]),
        ([(0, 2.0, 1.0), (0.001, 2.0, 1.0), (0.01, 3.0, 1.0)], 0, [True, False, False]),
        # Better teachers than at 0 are harmless, too.
        ([(0, 2.0, 0.9), (0.001, 1.0, 1.0)], 0.001, [True, True]),
    ],
)
def test_largest_harmless(rows, chosen, eligible):
    points = [{"x": x, "drift": drift, "success": success} for x, drift, success in rows]
    assert picked("largest-harmless", *points) == (chosen, eligible)


def test_largest_harmless_never_takes_a_missing_point():
    points = [
        {"x": 0, "drift": 2.0},
        {"x": 0.001, "drift": 1.0},
        {"x": 0.01, "drift": 0.1, "missing": "1 file missing"},
    ]
    assert picked("largest-harmless", *points) == (0.001, [True, True, False])
    points[0]["missing"] = "1 file missing"
    assert picked("largest-harmless", *points) == (None, [False, False, False])


@pytest.mark.parametrize(
    "rows, chosen, eligible",
    [
        # The highest satisfaction.
        ([{"x": 1, "satisfaction": 0.9}, {"x": 2, "satisfaction": 0.95}], 2, [True, True]),
        # Weak teachers and thin coverage exclude; exactly on the border they do not.
        (
            [
                {"x": 1, "success": 0.98, "satisfaction": 0.99},
                {"x": 2, "acceptance": 0.049, "satisfaction": 0.99},
                {"x": 3, "success": 0.99, "acceptance": 0.05, "satisfaction": 0.8},
            ],
            3,
            [False, False, True],
        ),
        # A tie keeps the held point, whatever its loss.
        (
            [{"x": 1, "satisfaction": 0.905, "loss": 0.01}, {"x": 2, "satisfaction": 0.9, "held": True}],
            2,
            [True, True],
        ),
        # A held point that is worse by more than a tie goes.
        ([{"x": 1, "satisfaction": 0.91}, {"x": 2, "satisfaction": 0.9, "held": True}], 1, [True, True]),
        # A tie without the held point goes to the lowest loss, not to the highest satisfaction.
        (
            [{"x": 1, "satisfaction": 0.905}, {"x": 2, "satisfaction": 0.901, "loss": 0.05}, {"x": 3, "loss": 0.2}],
            2,
            [True, True, True],
        ),
        # Unknown losses come last; equal ones leave it to satisfaction, then to the order.
        ([{"x": 1, "loss": np.nan, "satisfaction": 0.901}, {"x": 2}], 2, [True, True]),
        ([{"x": 1}, {"x": 2, "satisfaction": 0.902}], 2, [True, True]),
        ([{"x": 1}, {"x": 2}], 1, [True, True]),
        # A missing point neither wins nor sets the bar.
        ([{"x": 1, "satisfaction": 0.99, "missing": "no drift"}, {"x": 2, "success": 0.5}], 2, [False, True]),
        ([{"x": 1, "missing": "no drift"}], None, [False]),
        ([{"x": 1, "acceptance": 0.01}], None, [False]),
    ],
)
def test_best_training(rows, chosen, eligible):
    assert picked("best-training", *rows) == (chosen, eligible)


@pytest.mark.parametrize(
    "rows, chosen, eligible",
    [
        ([(50000, 0.95), (500, 0.8), (5000, 0.945)], 5000, [True, False, True]),  # exactly 0.005 below suffices
        ([(1, 0.895 - 1e-12), (2, 0.9)], 1, [True, True]),  # but for rounding
        ([(1, 0.9), (2, 0.9), (3, 0.9)], 1, [True, True, True]),
        ([(1, 0.8), (2, 0.9)], 2, [False, True]),
        ([(1, None), (2, 0.9)], 2, [False, True]),
        ([(1, None)], None, [False]),
    ],
)
def test_smallest_sufficient(rows, chosen, eligible):
    points = [{"x": x, "satisfaction": rate, "missing": "" if rate else "no satisfaction"} for x, rate in rows]
    assert picked("smallest-sufficient", *points) == (chosen, eligible)


# --- sweeps ----------------------------------------------------------------------------------------------


def test_a_sweep_by_hand(tmp_path, fitted):
    study = studies.read_study(sweep_file(tmp_path, fitted))
    frame = sweeps.measured_points(study)
    assert frame["missing"].tolist() == ["1 file missing", "", ""]
    third = frame.iloc[2]
    assert third["satisfaction"] == pytest.approx(0.955) and third["training_ratio"] == 1.0 and third["seeds"] == 2
    assert (third["drift"], third["success"], third["share"], third["accuracy"]) == (1.0, 1.0, 1.0, 0.8)
    assert third["loss"] == pytest.approx(0.003)
    assert third["acceptance"] == pytest.approx(0.8)
    choice = sweeps.choose(study, frame)
    assert sweeps.decision(study, frame, choice) == {
        "study": "cross-index",
        "family": FAMILY,
        "rule": "largest-harmless",
        "chosen": {"teachers.cross_index": 0.001},
        "held": {"teachers.cross_index": 0.001},
        "agrees": True,
        "why": choice.why,
    }
    text = formats.to_markdown(sweeps.sweep(study, frame, choice))
    assert "chosen λ_x = 0.001; which the config holds" in text
    assert "| 1 file missing |" in " ".join(text.split())


def test_a_choice_other_than_the_held_point(tmp_path, fitted):
    study = studies.read_study(sweep_file(tmp_path, fitted, held={"teachers.cross_index": 0.5}))
    frame = sweeps.measured_points(study)
    choice = sweeps.choose(study, frame)
    assert sweeps.decision(study, frame, choice)["agrees"] is False
    text = formats.to_markdown(sweeps.sweep(study, frame, choice))
    assert "the config holds λ_x = 0.5" in text and "not among those swept" in text


def test_acceptance_is_what_the_datasets_say(tmp_path):
    files = [Path(dataset(tmp_path, 0, 0.2, 0.6)), Path(dataset(tmp_path, 5, 0.4, 0.8))]
    assert sweeps.acceptance(files) == pytest.approx(0.5)
    assert sweeps.acceptance([]) is None


def summarized(path: Path, outputs: list[Path]) -> list[bytes]:
    """Write the summary of a study in several formats."""
    summary = summaries.summarize_study(studies.read_study(path))
    for output in outputs:
        summary.write(output)
    return [output.read_bytes() for output in outputs]


def test_unseen_indices_are_never_used_to_choose(tmp_path, fitted, quick):
    """What a sweep says is the same whether unseen tasks are solved, failed, or not there at all."""
    path = sweep_file(tmp_path, fitted, rule="best-training")
    outputs = [tmp_path / f"out.{suffix}" for suffix in ("csv", "md", "html", "tex", "json", "png")]

    def said() -> list[bytes]:
        return summarized(path, outputs)

    before = said()
    for number, file in enumerate(sorted(tmp_path.glob("*/evaluations/*.parquet"))):
        solved = "111111" if number % 2 else "100001"
        method, seed = file.stem.split("-")
        evaluation(file.parent.parent, int(seed), solved, method, rate=0.95 + 0.01 * int(seed))
    assert said() == before
    for file in tmp_path.glob("*/evaluations/*.parquet"):
        table, meta = read_table(file)
        write_table(file, table.filter([role == "train" for role in table["role"].to_pylist()]), meta)
    assert said() == before


def test_a_point_lacks_what_its_rule_needs(tmp_path, fitted):
    path = sweep_file(tmp_path, fitted, rule="best-training")
    data = json.loads(path.read_text())
    data["variants"][1]["datasets"] = []
    data["variants"][2]["models"] = []
    frame = sweeps.measured_points(studies.read_study(written(path, **data)))
    assert frame["missing"].tolist() == ["1 file missing", "no acceptance", ""]


def test_a_sweep_is_about_one_family(tmp_path, fitted):
    path = sweep_file(tmp_path, fitted)
    other = next(tmp_path.glob("1/teachers/*-5.json"))
    write_json(other, {**json.loads(other.read_text()), "family": "car2d-choice"})
    with pytest.raises(DibsError, match="a sweep is about one family, found car2d-choice, car2d-reach"):
        sweeps.measured_points(studies.read_study(path))


def swept(**values: list[float]) -> tuple[studies.StudyFile, pd.DataFrame]:
    """A full grid of made-up points, the first one missing and the second one held."""
    mesh = np.meshgrid(*values.values(), indexing="ij")
    combined = np.stack([axis.ravel() for axis in mesh], axis=1)
    points = [dict(zip(values, map(float, row), strict=True)) for row in combined]
    variants = [studies.VariantFiles(f"p{n}", point=point) for n, point in enumerate(points)]
    study = studies.StudyFile("s", "sweep", "Which?", variants, rule="best-training", held=points[1])
    rows = [{**point, "family": FAMILY, "satisfaction": 0.8 + 0.01 * n % 0.2} for n, point in enumerate(points)]
    frame = grid(*rows)
    return study, frame.assign(held=frame.index == 1, missing=["no success", *[""] * (len(frame) - 1)])


@pytest.mark.parametrize(
    "values, panels",
    [
        ({"a": [0.0, 0.001, 0.01]}, 4),
        ({"a": [1, 2, 3], "b": [1, 2]}, 2 + 2),  # and two scales of color
        ({"a": [1, 2, 3], "b": [1, 2, 3], "c": [1, 2]}, 2 * 2 + 2),
        ({"a": [1, 2], "b": [1, 2], "c": [1, 2], "d": [1, 2]}, 4),
    ],
)
def test_figures_of_sweeps(values, panels, tmp_path, quick):
    study, frame = swept(**values)
    figure = study_figures.sweep_figure(study, frame, sweeps.choose(study, frame))
    assert len([ax for ax in figure.axes if ax.axison]) == panels
    assert figure.get_suptitle() == f"Which? ({FAMILY})"
    labels = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert labels[:2] == ["chosen by the rule", "held by the config"]
    save(figure, tmp_path / "f.png")
    assert matplotlib.image.imread(tmp_path / "f.png")[..., :3].std() > 0.02


def test_a_missing_point_is_not_drawn(tmp_path):
    study, frame = swept(a=[0.0, 0.001, 0.01])
    figure = study_figures.sweep_figure(study, frame, sweeps.choose(study, frame))
    for ax in figure.axes:
        (line,) = [line for line in ax.lines if len(line.get_xdata()) == 3]
        assert np.isnan(line.get_ydata()[0]) and not np.isnan(line.get_ydata()[1:]).any()
        assert not ax.texts
    assert figure.get_supxlabel() == "not run: 0"
    assert [t.get_text() for t in figure.axes[-1].get_xticklabels()] == ["0", "0.001", "0.01"]


def test_a_sweep_without_any_result_still_reports(tmp_path, quick):
    variants = [{"name": f"p{n}", "point": {"a": n}, "evaluations": [f"{tmp_path}/{n}.parquet"]} for n in (0, 1)]
    study = {**sweep_of(), "variants": variants, "rule": "smallest-sufficient"}
    path = written(tmp_path / "s.json", **study)
    outputs = [tmp_path / f"out.{suffix}" for suffix in ("md", "json", "pdf")]
    summarized(path, outputs)
    said = json.loads(outputs[1].read_text())
    assert (said["chosen"], said["agrees"], said["why"]) == ({}, False, "every point is missing")


# --- summaries -------------------------------------------------------------------------------------------


def test_all_outputs_of_an_ablation(ablation_file, tmp_path, quick):
    files = [tmp_path / f"out.{suffix}" for suffix in ("csv", "md", "html", "tex", "pdf", "png")]
    summarized(ablation_file, files)
    rows = list(csv.DictReader(files[0].read_text().splitlines()))
    assert [row["seeds"] for row in rows] == ["2", "3", "0"] and rows[2]["zero_shot_ratio_mean"] == ""
    assert files[3].read_text().isascii()  # nothing that LaTeX does not know
    assert files[4].read_bytes().startswith(b"%PDF")


def test_the_rows_of_an_ablation_for_programs(ablation_file, tmp_path):
    summarized(ablation_file, [tmp_path / "out.json"])
    data = json.loads((tmp_path / "out.json").read_text())
    assert (data["name"], data["base"]) == ("cross-index", "anchored")
    assert [row["variant"] for row in data["rows"]] == ["independent", "anchored", "later"]


def test_outputs_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(DibsError, match=r"c\.txt: expected a name that ends in \.csv, .*\.json$"):
        check_suffix(tmp_path / "c.txt", summaries.FORMATS)
    with pytest.raises(DibsError, match=r"nowhere\.json: no such file"):
        studies.read_study(tmp_path / "nowhere.json")
