"""`dibs teacher` … `dibs rollout`: a custom family through all commands, and what they refuse."""

from __future__ import annotations

import json

import numpy as np
import pyarrow.parquet as pq
import pytest

from dibs import cli


@pytest.fixture
def dibs(capsys, pipeline):
    """Run `dibs COMMAND … --results …` on the pipeline's results and return what it printed."""

    def run(*argv: str, status: int = 0) -> str:
        assert cli.main(list(argv)) == status
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return err if status else out

    return run


@pytest.fixture
def common(pipeline) -> list[str]:
    return [str(pipeline.file), "--gap", "2", "--results", str(pipeline.root)]


def test_every_stage_leaves_its_files(pipeline):
    found = {str(file.relative_to(pipeline.root)) for file in pipeline.root.rglob("*") if file.is_file()}
    stems = ["teachers/tiny/base/seed0/0", "teachers/tiny/gap2/seed0/2", "teachers/tiny/gap2/seed0/4"]
    common = (".safetensors", ".curve.parquet", ".json", ".timing.json")
    expected = {s + e for s in stems for e in (*common, ".buffers.parquet")}
    expected |= {s.replace("teachers", "datasets") + ".parquet" for s in stems}
    expected |= {f"models/dibs/tiny/gap2/seed0{e}" for e in common}
    expected |= {"evaluations/dibs/tiny/gap2/seed0.parquet", "families/tiny.yaml"}
    assert found == expected  # and nothing temporary is left


def test_timing_of_a_model_includes_its_teachers(pipeline):
    """In files of their own, because equal runs give equal bytes but take different times."""
    times = [json.loads(file.read_text())["seconds"] for file in (pipeline.root / "teachers").rglob("*.timing.json")]
    (model,) = (json.loads(file.read_text()) for file in (pipeline.root / "models").rglob("*.timing.json"))
    assert len(times) == 3 and model["teachers"] == pytest.approx(sum(times)) and model["seconds"] > 0.0


def test_what_the_stages_print(pipeline):
    teachers = pipeline.printed["teacher"]
    assert teachers.count("start>a  success ") == 3 and teachers.count("a>b  success ") == 3
    assert "FAILED" not in teachers and teachers.count("drift") == 4
    assert pipeline.printed["dataset"].count("300 rows") == 6
    assert pipeline.printed["fit"].count("loss 0.") == 2
    assert pipeline.printed["evaluate"].startswith("dibs tiny gap2 seed 0: training 1.000, zero-shot 1.000, beyond ")


def test_the_evaluation_is_one_row_per_index(pipeline):
    table = pq.read_table(pipeline.layout.evaluation("dibs", "tiny", "gap2", 0))
    assert table["index"].to_pylist() == list(range(9))
    assert table["role"].to_pylist() == ["train", "unseen"] * 2 + ["train"] + ["beyond"] * 4
    assert table["rollouts"].to_pylist() == [200] * 9
    assert all(table["succeeds"].to_pylist()[:5])
    meta = json.loads(table.schema.metadata[b"dibs"])
    assert (meta["method"], meta["benchmark"], meta["split"], meta["seed"]) == ("dibs", "tiny", "gap2", 0)
    assert meta["delta"] == 0.9 and meta["train"] == [0, 2, 4] and meta["steps"] > 0
    assert meta["specification"] == "achieve reach(a); achieve reach(b)"


def test_running_a_stage_again_gives_the_same_bytes(pipeline, common, dibs, tmp_path):
    again = {
        "teacher": ["--index", "2", "--output", str(tmp_path / "2.safetensors")],
        "dataset": ["--index", "2", "--output", str(tmp_path / "2.parquet")],
        "fit": ["--output", str(tmp_path / "t.safetensors")],
        "evaluate": ["--output", str(tmp_path / "e.parquet")],
    }
    for command, rest in again.items():
        dibs(command, *common, *rest, "--settings", pipeline.settings[command])
    files = pipeline.layout
    pairs = [
        (files.teacher("tiny", "gap2", 2, 0), tmp_path / "2.safetensors"),
        (files.teacher("tiny", "gap2", 2, 0).with_suffix(".buffers.parquet"), tmp_path / "2.buffers.parquet"),
        (files.teacher("tiny", "gap2", 2, 0).with_suffix(".json"), tmp_path / "2.json"),
        (files.dataset("tiny", "gap2", 2, 0), tmp_path / "2.parquet"),
        (files.model("dibs", "tiny", "gap2", 0), tmp_path / "t.safetensors"),
        (files.model("dibs", "tiny", "gap2", 0).with_suffix(".json"), tmp_path / "t.json"),
        (files.evaluation("dibs", "tiny", "gap2", 0), tmp_path / "e.parquet"),
    ]
    for first, second in pairs:
        assert first.read_bytes() == second.read_bytes(), second.name


def test_a_policy_of_an_unseen_index_runs(pipeline, common, dibs, tmp_path):
    file = tmp_path / "policy.safetensors"
    assert "index 3: start>a a>b" in dibs("policy", *common, "--index", "3", "--output", str(file))
    shown = dibs("rollout", str(file), "--episodes", "4", "--seed", "7")
    assert shown.count("episode ") == 4 and "4 of 4 episodes satisfy index 3" in shown
    assert dibs("rollout", str(file), "--episodes", "4", "--seed", "7") == shown


@pytest.mark.parametrize("suffix", ["png", "gif", "parquet"])
def test_a_rollout_is_drawn_filmed_or_recorded(pipeline, common, dibs, tmp_path, suffix):
    file, output = tmp_path / "policy.safetensors", tmp_path / f"shown.{suffix}"
    dibs("policy", *common, "--index", "2", "--output", str(file))
    dibs("rollout", str(file), "--episodes", "2", "--output", str(output))
    if suffix != "parquet":
        from PIL import Image

        with Image.open(output) as image:
            assert min(image.size) > 50 and (suffix == "png" or image.n_frames > 3)
        return
    table = pq.read_table(output).to_pandas()
    assert list(table.columns) == ["index", "role", "rollout", "time", "x", "y"]
    assert set(table["role"]) == {"train"}  # index 2 is one
    assert set(table["rollout"]) == {0, 1} and np.isfinite(table[["x", "y"]]).all().all()


def test_a_policy_is_named_after_its_benchmark_by_default(pipeline, common, dibs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert dibs("policy", *common, "--index", "1").rstrip().endswith("→ tiny-1.safetensors")
    assert (tmp_path / "tiny-1.safetensors").is_file()


# --- a model's file instead of a benchmark and a split --------------------------------------------------


def test_a_model_file_says_what_it_is_of(pipeline, dibs, tmp_path):
    model = str(pipeline.layout.model("dibs", "tiny", "gap2", 0))
    family = ["--family", str(pipeline.file)]
    told = dibs("evaluate", model, *family, "--output", str(tmp_path / "e.parquet"), "--settings", '{"rollouts": 200}')
    assert told.startswith("dibs tiny gap2 seed 0: training 1.000, zero-shot 1.000")
    assert (tmp_path / "e.parquet").read_bytes() == pipeline.layout.evaluation("dibs", "tiny", "gap2", 0).read_bytes()
    dibs("policy", model, *family, "--index", "3", "--output", str(tmp_path / "p.safetensors"))
    shown = dibs("rollout", str(tmp_path / "p.safetensors"), "--episodes", "3")
    assert dibs("rollout", model, *family, "--index", "3", "--episodes", "3") == shown
    assert "3 of 3 episodes satisfy index 3 (unseen)" in shown


def test_a_model_in_results_finds_its_family_there(pipeline, dibs, tmp_path):
    import shutil

    shutil.copytree(pipeline.root, tmp_path / "results")
    model = tmp_path / "results" / "models" / "dibs" / "tiny" / "gap2" / "seed0.safetensors"
    kept = tmp_path / "results" / "families" / "tiny.yaml"
    kept.rename(tmp_path / "tiny.yaml")
    said = dibs("evaluate", str(model), status=1)
    assert "is of the family 'tiny', which is not registered; name its file with --family" in said
    (tmp_path / "tiny.yaml").rename(kept)
    (tmp_path / "results" / "evaluations" / "dibs" / "tiny" / "gap2" / "seed0.parquet").unlink()
    told = dibs("evaluate", str(model), "--settings", '{"rollouts": 20}')
    assert told.rstrip().endswith("results/evaluations/dibs/tiny/gap2/seed0.parquet")
    # What it was made from is checked there.
    dataset = tmp_path / "results" / "datasets" / "tiny" / "gap2" / "seed0" / "4.parquet"
    dibs("dataset", str(pipeline.file), "--gap", "2", "--index", "4", "--results", str(tmp_path / "results"))
    assert f"was not made from {dataset} as it is now" in dibs("evaluate", str(model), status=1)


def test_a_model_of_a_named_split(pipeline, dibs, tmp_path):
    """Its training indices are in the metrics next to it."""
    named = [str(pipeline.file), "--split", "two", "--train", "0,4", "--results", str(tmp_path)]
    few = '{"steps": 2000, "restarts": 1, "trial": 1, "check_rollouts": 2}'
    dibs("fit", *named, "--method", "ars", "--settings", few)
    model = tmp_path / "models" / "ars" / "tiny" / "two" / "seed0.safetensors"
    told = dibs("evaluate", str(model), "--family", str(pipeline.file), "--settings", '{"rollouts": 5}')
    assert told.startswith("ars tiny two seed 0: ")


@pytest.mark.parametrize(
    "argv, message",
    [
        (["evaluate", "{model}", "--gap", "2"], "a model's file names its split"),
        (["evaluate", "car2d-reach-k1", "--gap", "5", "--family", "x.yaml"], "--family and --benchmark describe"),
        (["evaluate", "car2d-reach-k1"], "name the training set by one of --gap 5, --train 0,3,7,20 and --split gap5"),
    ],
)
def test_wrong_usage_of_model_files(pipeline, capsys, argv, message):
    model = str(pipeline.layout.model("dibs", "tiny", "gap2", 0))
    with pytest.raises(SystemExit):
        cli.main([part.format(model=model) for part in argv])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv, message",
    [
        (["rollout", "{model}", "--family", "{family}"], "is a model; name an index of a task with --index"),
        (["rollout", "{teacher}"], "expected kind 'policy', found 'teacher'"),
        (
            ["evaluate", "{model}", "--family", "{family}", "--method", "bc"],
            "is a model of dibs, which bc is not measured",
        ),
        (["evaluate", "{model}", "--family", "{family}", "--benchmark", "x"], "unknown benchmark of tiny 'x'"),
        (["evaluate", "{teacher}"], "expected kind 'model', found 'teacher'"),
        (["rollout", "missing.safetensors", "--output", "x.avi"], "x.avi: expected a name that ends in .png"),
    ],
)
def test_mistakes_with_model_files_are_reported(pipeline, dibs, argv, message):
    files = {"model": pipeline.layout.model("dibs", "tiny", "gap2", 0), "family": pipeline.file}
    files |= {"teacher": pipeline.layout.teacher("tiny", "gap2", 2, 0)}
    assert message in dibs(*[part.format(**files) for part in argv], status=1)


# --- what is refused -------------------------------------------------------------------------------------


def refused(pipeline, dibs, command: str, *rest: str) -> str:
    return dibs(command, *rest, "--results", str(pipeline.root), status=1)


def test_the_previous_teacher_must_be_there(pipeline, dibs, tmp_path):
    said = dibs("teacher", str(pipeline.file), "--gap", "2", "--index", "2", "--results", str(tmp_path), status=1)
    assert "teachers/tiny/base/seed0/0.safetensors: no such file; run `dibs teacher " in said
    assert "tiny.yaml --index 0 --split gap2 --seed 0` first" in said


@pytest.mark.parametrize(
    "gap, index, seed, previous, expected, found",
    [
        (2, 4, 0, 4, "split gap2 index 2 seed 0", "split gap2 index 4 seed 0"),
        (2, 2, 1, 0, "split base index 0 seed 1", "split base index 0 seed 0"),
        (1, 3, 0, 2, "split gap1 index 2 seed 0", "split gap2 index 2 seed 0"),
    ],
)
def test_another_teacher_is_not_taken_for_the_previous_one(
    pipeline, dibs, tmp_path, gap, index, seed, previous, expected, found
):
    path = pipeline.layout.teacher("tiny", "gap2", previous, 0)
    said = dibs(
        *("teacher", str(pipeline.file), "--gap", str(gap), "--index", str(index), "--seed", str(seed)),
        *("--previous", str(path), "--output", str(tmp_path / "x.safetensors")),
        status=1,
    )
    assert said.startswith(f"error: {path}: expected the teacher of family tiny {expected}, found ")
    assert f"the teacher of family tiny {found}" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "argv, message",
    [
        (["teacher", "--gap", "2", "--index", "3"], "index 3 is not a training index of split gap2: [0, 2, 4]"),
        (["teacher", "--gap", "2", "--index", "6"], "index 6 is not a training index of split gap2: [0, 2, 4]"),
        (["teacher", "--gap", "5", "--index", "0"], "the gap is larger than the last index 4"),
        (["dataset", "--gap", "2", "--index", "2", "--seed", "9"], "seed9/2.safetensors: no such file"),
        (["fit", "--gap", "1"], "gap1/seed0/1.safetensors: no such file"),
        (["evaluate", "--gap", "4"], "gap4/seed0.safetensors: no such file"),
        (["evaluate", "--gap", "2", "--method", "dips"], "unknown method 'dips'. Did you mean 'dibs'?"),
        (["policy", "--gap", "2", "--index", "-1"], "index -1 of tiny: expected a whole number in 0 …"),
        (["teacher", "--gap", "2", "--index", "0", "--settings", '{"require": 2}'], "require: Input should be less"),
        (
            ["teacher", "--gap", "2", "--index", "0", "--settings", '{"lambda": 2}'],
            "lambda: unknown key 'lambda'. Known: algorithm",
        ),
        (["evaluate", "--gap", "2", "--settings", '{"rollouts": 0}'], "rollouts: Input should be greater"),
        (["dataset", "--gap", "2", "--index", "0", "--settings", '{"size": -1}'], "size: Input should be greater"),
        (["fit", "--gap", "2", "--settings", "none.yaml"], "'none.yaml' is neither JSON text nor a file"),
    ],
)
def test_mistakes_are_reported(pipeline, dibs, argv, message):
    said = dibs(argv[0], str(pipeline.file), *argv[1:], "--results", str(pipeline.root), status=1)
    assert message in said


def test_require_writes_nothing(pipeline, dibs, tmp_path):
    settings = json.loads(pipeline.settings["teacher"])
    settings |= {"require": 0.9, "options": {**settings["options"], "iterations": 0, "restarts": 1}}
    said = dibs(
        *("teacher", str(pipeline.file), "--gap", "2", "--index", "0", "--results", str(tmp_path)),
        *("--settings", json.dumps(settings)),
        status=1,
    )
    assert "below teachers.require = 0.9; train longer (teachers.options) or lower it" in said
    assert list(tmp_path.rglob("*")) == []


def test_a_dataset_of_another_seed_is_not_fitted(pipeline, dibs, tmp_path):
    import shutil

    shutil.copytree(pipeline.root, tmp_path / "results")
    shutil.move(
        tmp_path / "results/datasets/tiny/gap2/seed0/2.parquet", tmp_path / "results/datasets/tiny/gap2/seed0/4.parquet"
    )
    shutil.copy(
        tmp_path / "results/datasets/tiny/gap2/seed0/4.parquet", tmp_path / "results/datasets/tiny/gap2/seed0/2.parquet"
    )
    said = dibs("fit", str(pipeline.file), "--gap", "2", "--results", str(tmp_path / "results"), status=1)
    assert "4.parquet: expected the dataset of family tiny split gap2 index 4 seed 0, found" in said
