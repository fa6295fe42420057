"""Recorded rollouts as drawings (.png, .pdf), films (.gif, .mp4) and tables (.parquet)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.figure import Figure
from PIL import Image

from dibs.drawing.film import Frame, Scene
from dibs.drawing.regions import ROLES, Trajectory
from dibs.drawing.style import save
from dibs.drawing.tasks import figure_task
from dibs.errors import DibsError
from dibs.families import Tasks
from dibs.files import atomic, check_suffix, write_table
from dibs.spectrl import Monitor

SUFFIXES = (".png", ".pdf", ".gif", ".mp4", ".parquet")
FRAME = 120  # milliseconds
HOLD = 8  # frames for which a film shows the outcome


def write_rollouts(output: str | Path, tasks: Tasks, trajectories: Sequence[Trajectory]) -> None:
    """Write rollouts in the form that the output's suffix asks for; a film shows the first one only."""
    suffix = check_suffix(output, SUFFIXES)
    if not trajectories:
        raise DibsError(f"{output}: there is no rollout to write")
    if suffix == ".gif":
        images = [Image.fromarray(frame) for frame in film(tasks, trajectories[0])]
        times = [FRAME] * (len(images) - 1) + [FRAME * HOLD]
        with atomic(output) as temporary:
            images[0].save(temporary, format="GIF", save_all=True, append_images=images[1:], duration=times, loop=0)
    elif suffix == ".mp4":
        import imageio_ffmpeg

        frames = [np.ascontiguousarray(frame) for frame in film(tasks, trajectories[0])]
        height, width = frames[0].shape[:2]
        with atomic(output) as temporary:
            options = ["-f", "mp4"]
            writer = imageio_ffmpeg.write_frames(
                str(temporary), (width, height), fps=8, macro_block_size=2, output_params=options
            )
            writer.send(None)
            for frame in [*frames, *[frames[-1]] * (HOLD - 1)]:
                writer.send(frame)
            writer.close()
    elif suffix == ".parquet":
        record(output, tasks, trajectories)
    else:
        save(drawing(tasks, trajectories), output)


def drawing(tasks: Tasks, trajectories: Sequence[Trajectory]) -> Figure:
    """Return a figure of rollouts; if it is known which ones succeed, its title counts them."""
    figure = figure_task(tasks.at([t.index for t in trajectories]), trajectories)
    if all(t.success is not None for t in trajectories):
        first, won = trajectories[0], sum(bool(t.success) for t in trajectories)
        count = f"{won} of {len(trajectories)} satisfy the specification"
        figure.suptitle(f"{tasks.name}, index {first.index} ({first.role}): {count}", fontsize=8.5)
    return figure


def film(tasks: Tasks, trajectory: Trajectory) -> list[Frame]:
    """Return one frame per recorded state, with the monitor's verdict on the rollout up to there.

    The trail and a mark in the banner have the color of the rollout's role. The last frame of a rollout that failed
    says so.
    """
    index, states = trajectory.index, trajectory.states
    task = tasks.at([index])
    scene = Scene(task, f"{task.name}  i = {index} ({trajectory.role})", ROLES[trajectory.role][0], states=states)
    monitor = Monitor(task.spec, task.regions_at(index))
    known, frames = monitor.start(states[0]), []
    for time, state in enumerate(states):
        known = monitor.advance(known, state) if time else known
        outcome = "success" if monitor.satisfied(known) else "unsafe" if monitor.violated(known) else "running"
        if trajectory.success is False and outcome == "running" and time == len(states) - 1:
            outcome = "failed"
        progress = f"stage {monitor.stage(known)}   step {time} / {monitor.stages * task.horizon}"
        frames.append(scene.paint(states[: time + 1], outcome, progress))
    return frames


def record(output: str | Path, tasks: Tasks, trajectories: Sequence[Trajectory]) -> None:
    """Write rollouts as a table: index, role, rollout, time, and one column per state variable."""
    lengths = [len(t.states) for t in trajectories]
    states = np.concatenate([t.states for t in trajectories])
    columns = {
        "index": np.repeat([t.index for t in trajectories], lengths),
        "role": pa.array(np.repeat([t.role for t in trajectories], lengths)),
        "rollout": np.repeat(np.arange(len(trajectories)), lengths),
        "time": np.concatenate([np.arange(length) for length in lengths]),
    }
    columns |= {name: states[:, d] for d, name in enumerate(tasks.environment.state_names)}
    metadata = {"kind": "trajectories", "family": tasks.name, "specification": tasks.specification}
    write_table(output, pa.table(columns), metadata)


def read_trajectories(path: str | Path, tasks: Tasks) -> list[Trajectory]:
    """Read the rollouts at the indices of `tasks` from a table as `record` writes it; rows may have any order."""
    if not Path(path).is_file():
        raise DibsError(f"{path}: no such file of trajectories")
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DibsError(f"{path}: not a readable Parquet file ({error})") from None
    names = list(tasks.environment.state_names)
    missing = [c for c in ("index", "role", "rollout", "time", *names) if c not in table.column_names]
    if missing:
        raise DibsError(f"{path}: no column {', '.join(missing)}; found {', '.join(table.column_names)}")
    frame = table.to_pandas()
    other = sorted(set(frame["role"]) - set(ROLES))
    if other:
        raise DibsError(f"{path}: column role: expected {' or '.join(ROLES)}, found {other[0]!r}")
    chosen = frame[frame["index"].isin(tasks.indices)].sort_values(["index", "rollout", "time"])
    if chosen.empty:
        wanted, found = (", ".join(map(str, indices)) for indices in (tasks.indices, sorted(set(frame["index"]))))
        raise DibsError(f"{path}: no trajectory at index {wanted}; it has {found}")
    return [
        Trajectory(int(index), str(role), rows[names].to_numpy(float))
        for (index, role, _), rows in chosen.groupby(["index", "role", "rollout"], sort=True)
    ]
