"""Recorded rollouts: drawings, films and tables of them, and what they are read back as."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from PIL import Image

from dibs.drawing import style
from dibs.drawing.film import BANNER, FAILURE, QUIET
from dibs.drawing.regions import ROLES, Trajectory
from dibs.drawing.rollouts import drawing, film, read_trajectories, record, write_rollouts
from dibs.errors import DibsError
from dibs.families import Tasks, get_benchmark
from dibs.files import read_table

GREEN, RED, GRAY = (tuple(round(255 * c) for c in to_rgb(color)) for color in (style.COLORS["reach"], FAILURE, QUIET))
NAMES = ["car2d-switch", "droneattitude-reach-k2", "reacher-stack-opposite-8"]


def tasks_of(name: str, indices: list[int]) -> Tasks:
    benchmark = get_benchmark(name)
    return benchmark.family.tasks(indices, benchmark.specification)


def visits(tasks: Tasks, index: int, role: str = "train", steps: int = 4) -> Trajectory:
    """States on straight lines from the start through the targets of the first path."""
    row = tasks.indices.index(index)
    centers = [tasks.regions_at(index)[edge.head].center for edge in tasks.graph.paths()[0]]
    states = [tasks.start_center[row]]
    for center in centers:
        states += [states[-1] + (center - states[-1]) * t for t in np.linspace(0, 1, steps + 1)[1:]]
    return Trajectory(index, role, np.stack(states).astype(np.float32))


# --- all forms -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", ["png", "pdf", "gif", "parquet"])
@pytest.mark.parametrize("name", NAMES)
def test_every_form_of_every_kind_of_environment(name, suffix, tmp_path, monkeypatch):
    monkeypatch.setitem(style.STYLE, "savefig.dpi", 60)
    tasks = tasks_of(name, [0, 3])
    files = [tmp_path / f"{n}.{suffix}" for n in "ab"]
    for file in files:
        write_rollouts(file, tasks, [visits(tasks, 0), visits(tasks, 3, "unseen")])
    assert files[0].stat().st_size > 1000
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("output", ["x.avi", "x", "x.gif.txt"])
def test_other_forms_are_rejected_before_anything_else(output, tmp_path):
    with pytest.raises(
        DibsError, match=rf"{output}: expected a name that ends in \.png, \.pdf, \.gif, \.mp4 or \.parquet"
    ):
        write_rollouts(tmp_path / output, None, None)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_there_must_be_a_rollout(tmp_path):
    with pytest.raises(DibsError, match=r"x\.gif: there is no rollout to write"):
        write_rollouts(tmp_path / "x.gif", tasks_of("car2d-reach-k1", [0]), [])


# --- films -----------------------------------------------------------------------------------------------


def pill(frame: np.ndarray) -> list[tuple[int, ...]]:
    """Colors of the outcome in a frame's banner."""
    return [color for color in (GREEN, RED, GRAY) if ((frame[:BANNER, 300:] == color).all(axis=-1)).sum() > 200]


def test_a_film_has_a_frame_for_every_state_and_ends_with_the_outcome(tmp_path):
    tasks = tasks_of("car2d-reach-k2", [0, 7])
    run = visits(tasks, 7)
    frames = film(tasks, run)
    assert len(frames) == len(run.states) == 9
    assert [pill(frame) for frame in frames] == [[GRAY]] * 8 + [[GREEN]]
    file = tmp_path / "new" / "film.GIF"
    write_rollouts(file, tasks, [run, visits(tasks, 0)])
    with Image.open(file) as gif:
        assert gif.n_frames == 9 and gif.info["duration"] == 120 and gif.info["loop"] == 0
        assert gif.size == frames[0].shape[1::-1]


def test_a_film_of_a_violation_turns_red_and_stays_so():
    tasks = tasks_of("car2d-switch", [10])
    x, y = tasks.start_center[0]
    states = np.array([[x, y], [x, 3.0], [x, 5.0], [x, 8.0], [0.0, 10.0]])  # straight through the block
    assert [pill(frame) for frame in film(tasks, Trajectory(10, "train", states))] == [[GRAY]] * 2 + [[RED]] * 3


def test_a_rollout_that_failed_says_so_at_its_end():
    tasks = tasks_of("car2d-reach-k2", [7])
    run = visits(tasks, 7, "unseen")
    short = Trajectory(7, "unseen", run.states[:5], False)
    assert [pill(frame) for frame in film(tasks, short)] == [[GRAY]] * 4 + [[RED]]


def test_roles_have_colors_in_films():
    """The trail and the mark in the banner are blue at training indices, red at unseen ones."""
    tasks = tasks_of("car2d-reach-k2", [7])
    frames = {role: film(tasks, visits(tasks, 7, role))[-1] for role in ROLES}
    for role, (color, _) in ROLES.items():
        mark = frames[role][4, 1]
        assert np.array_equal(mark, np.round(255 * np.array(to_rgb(color))))


def test_drawings_name_role_and_success_and_mark_failures():
    tasks = tasks_of("car2d-reach-k2", [7])
    run = visits(tasks, 7, "unseen")
    figure = drawing(tasks, [replace(run, success=True), replace(run, states=run.states[:5], success=False)])
    assert figure.get_suptitle() == "car2d-reach, index 7 (unseen): 1 of 2 satisfy the specification"
    styles = [line.get_linestyle() for line in figure.axes[0].get_lines() if line.get_color() == ROLES["unseen"][0]]
    assert styles.count(":") == 1 and "-" in styles
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()][-2:] == ["unseen", "not satisfied"]


def test_an_mp4_shows_the_outcome_for_a_second(tmp_path):
    import imageio_ffmpeg

    tasks = tasks_of("car2d-reach-k2", [7])
    run = visits(tasks, 7, "unseen")
    write_rollouts(tmp_path / "f.mp4", tasks, [run])
    frames = imageio_ffmpeg.read_frames(str(tmp_path / "f.mp4"))
    width, height = next(frames)["size"]
    shown = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in frames]
    assert len(shown) == len(run.states) + 7
    wanted = film(tasks, run)
    for frame, expected in ((shown[0], wanted[0]), (shown[-1], wanted[-1])):
        assert np.abs(frame.astype(int) - expected[:height, :width]).mean() < 4  # compressed


# --- tables ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_read_back(name, tmp_path):
    tasks = tasks_of(name, [0, 3, 5])
    runs = [visits(tasks, 0), visits(tasks, 3, "unseen"), visits(tasks, 3, "unseen", 7), visits(tasks, 5)]
    record(tmp_path / "r.parquet", tasks, runs)
    found = read_trajectories(tmp_path / "r.parquet", tasks.at([0, 3]))
    assert [(t.index, t.role) for t in found] == [(0, "train"), (3, "unseen"), (3, "unseen")]
    for run, again in zip(runs, found, strict=False):
        np.testing.assert_array_equal(run.states, again.states)
    table, metadata = read_table(tmp_path / "r.parquet")
    assert metadata == {"kind": "trajectories", "family": tasks.name, "specification": tasks.specification}
    assert table.column_names == ["index", "role", "rollout", "time", *tasks.environment.state_names]
    assert table["rollout"].to_pylist() == [n for n, run in enumerate(runs) for _ in run.states]
    assert table["time"].to_pylist() == [t for run in runs for t in range(len(run.states))]


def recorded(tmp_path, change=lambda frame: frame):
    """A table of two rollouts, changed."""
    tasks, file = tasks_of("car2d-reach-k1", [0, 5]), tmp_path / "rollouts.parquet"
    record(file, tasks, [visits(tasks, 0), visits(tasks, 5, "unseen")])
    change(pd.read_parquet(file)).to_parquet(file)
    return file, tasks


def test_the_order_of_rows_does_not_matter(tmp_path):
    file, tasks = recorded(tmp_path, lambda frame: frame.sample(frac=1.0, random_state=0))
    for index, found in zip((0, 5), read_trajectories(file, tasks), strict=True):
        np.testing.assert_array_equal(found.states, visits(tasks, index).states)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda frame: frame.drop(columns=["role", "y"]), r"no column role, y; found index, rollout, time, x"),
        (
            lambda frame: frame.assign(role="test"),
            r"column role: expected .* or far, found 'test'",
        ),
        (lambda frame: frame.assign(index=7), r"no trajectory at index 0, 5; it has 7"),
    ],
)
def test_a_table_that_does_not_fit(change, message, tmp_path):
    file, tasks = recorded(tmp_path, change)
    with pytest.raises(DibsError, match=message) as error:
        read_trajectories(file, tasks)
    assert str(error.value).startswith(f"{file}: ")


def test_a_file_that_is_not_parquet(tmp_path):
    file = tmp_path / "rollouts.parquet"
    file.write_text("index,role\n")
    with pytest.raises(DibsError, match=r"rollouts\.parquet: not a readable Parquet file"):
        read_trajectories(file, tasks_of("car2d-reach-k1", [0]))
    with pytest.raises(DibsError, match=r"none\.parquet: no such file of trajectories"):
        read_trajectories(tmp_path / "none.parquet", tasks_of("car2d-reach-k1", [0]))
