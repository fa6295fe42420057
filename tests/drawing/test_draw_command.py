"""`dibs draw`: files it writes, and errors it reports before it writes any."""

from __future__ import annotations

import numpy as np
import pytest

from dibs import cli
from dibs.drawing import style
from dibs.drawing.regions import Trajectory
from dibs.drawing.rollouts import record
from dibs.families import families, get_benchmark, get_family

DRAWN = [name for name in families() if not name.endswith(("-9", "-10"))]  # towers differ in height only


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer dots."""
    monkeypatch.setitem(style.STYLE, "savefig.dpi", 60)


@pytest.mark.parametrize("name", DRAWN)
def test_every_family_can_be_drawn(name, tmp_path, capsys):
    family = get_family(name)
    file = tmp_path / "new" / "task.png"
    indices = [str(i) for i in (0, family.last_index // 2, family.last_index)]
    assert cli.main(["draw", family.benchmark_ids[-1], "--index", *indices, "--output", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}\n"
    assert file.stat().st_size > 1000


@pytest.mark.parametrize("output", ["task.svg", "task", "task.png.txt"])
def test_other_kinds_of_output_are_rejected(output, tmp_path, capsys):
    assert cli.main(["draw", "car2d-reach-k1", "--output", str(tmp_path / output)]) == 1
    assert f"{output}: expected a name that ends in .png or .pdf" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "argv, message",
    [
        (["car2d-reach-k9"], "unknown benchmark 'car2d-reach-k9'"),
        (["car2d-reach-k1", "--index", "0", "-1"], "index -1 of car2d-reach: expected a whole number"),
        (["car2d-reach-k1", "--trajectories", "none.parquet"], "none.parquet: no such file of trajectories"),
    ],
)
def test_errors_name_what_is_wrong(argv, message, tmp_path, capsys):
    assert cli.main(["draw", *argv, "--output", str(tmp_path / "f.png")]) == 1
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["car2d-switch", "droneattitude-reach-k1", "reacher-stack-opposite-8"])
def test_rollouts_change_the_drawing(name, tmp_path):
    benchmark = get_benchmark(name)
    tasks = benchmark.family.tasks([0, 3], benchmark.specification)
    runs = [
        Trajectory(i, role, start + np.linspace(0.0, 0.4, 5)[:, None])
        for i, role, start in zip((0, 3), ("train", "unseen"), tasks.start_center, strict=True)
    ]
    record(tmp_path / "rollouts.parquet", tasks, runs)
    command = ["draw", name, "--index", "0", "3", "--output"]
    assert cli.main([*command, str(tmp_path / "plain.png")]) == 0
    rollouts = ["--trajectories", str(tmp_path / "rollouts.parquet")]
    assert cli.main([*command, str(tmp_path / "f.png"), *rollouts]) == 0
    assert (tmp_path / "f.png").read_bytes() != (tmp_path / "plain.png").read_bytes()
