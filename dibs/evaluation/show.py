"""Episodes of a policy in its Gymnasium environment: drawn, filmed or recorded."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dibs.envs import Array
from dibs.errors import DibsError
from dibs.evaluation.policy import Policy
from dibs.files import atomic, write_table
from dibs.spectrl import parse, satisfied

SUFFIXES = (".png", ".pdf", ".gif", ".parquet")


@dataclass(frozen=True, eq=False)
class Episode:
    """One episode: its states (time, dim), the verdict of the semantics on them, and frames if filmed."""

    states: Array
    satisfied: bool
    frames: list[np.ndarray] = field(default_factory=list)


def episodes(policy: Policy, count: int, seed: int, film: bool = False) -> list[Episode]:
    """Run `count` episodes; only the first is filmed."""
    if count < 1:
        raise DibsError(f"--episodes: expected at least 1, found {count}")
    runs = []
    for n in range(count):
        env = policy.make_env(render_mode="rgb_array" if film and n == 0 else None)
        state, _ = env.reset(seed=seed + n)
        policy.reset()
        states, frames, over = [state], [], False
        while not over:
            if film and n == 0:
                frames.append(env.render())
            state, _, terminated, truncated, _ = env.step(policy(state))
            states.append(state)
            over = terminated or truncated
        if film and n == 0:
            frames.append(env.render())
        env.close()
        recorded = np.stack(states)
        verdict = satisfied(parse(policy.specification), policy.family.boxes(policy.index), recorded[None])[0]
        runs.append(Episode(recorded, bool(verdict), frames))
    return runs


def show(policy: Policy, runs: list[Episode], output: str | Path) -> None:
    """Write the episodes in the form that the output's suffix asks for."""
    suffix = Path(output).suffix.lower()
    if suffix not in SUFFIXES:
        raise DibsError(f"{output}: expected a name that ends in one of {', '.join(SUFFIXES)}")
    if suffix == ".gif":
        _film(runs[0], output)
    elif suffix == ".parquet":
        _record(policy, runs, output)
    else:
        from dibs.analysis.draw import Trajectory, figure_task, save

        drawn = [Trajectory(policy.index, policy.role, run.states) for run in runs]
        save(figure_task(policy.family, parse(policy.specification), [policy.index], drawn), output)


def _film(run: Episode, output: str | Path) -> None:
    from PIL import Image

    images = [Image.fromarray(frame) for frame in run.frames]
    with atomic(output) as temporary:
        images[0].save(temporary, format="GIF", save_all=True, append_images=images[1:], duration=120, loop=0)


def _record(policy: Policy, runs: list[Episode], output: str | Path) -> None:
    import pyarrow as pa

    lengths = [len(run.states) for run in runs]
    states = np.concatenate([run.states for run in runs])
    columns = {
        "index": np.full(len(states), policy.index),
        "role": pa.array([policy.role] * len(states)),
        "rollout": np.repeat(np.arange(len(runs)), lengths),
        "time": np.concatenate([np.arange(n) for n in lengths]),
    }
    columns |= {name: states[:, d] for d, name in enumerate(policy.family.dynamics.state_names)}
    write_table(Path(output), pa.table(columns), {"kind": "trajectories"})
