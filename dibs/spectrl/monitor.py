"""Satisfaction while the rollout is still going on, one state of every rollout at a time.

A `Monitor` runs the equations of `dibs.spectrl.stages` step by step, so after every state its answer is
that of `satisfied` on the rollout so far. Its states are values: nothing is changed in place, and
`where` joins two of them, which is how some rollouts of a batch are started again:

    state = where(restarted, monitor.start(states), monitor.advance(state, states))
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dibs.errors import DibsError
from dibs.spectrl.regions import Bools, Floats, Region
from dibs.spectrl.semantics import checked_states, chosen, joint_shape, refuse_nan
from dibs.spectrl.stages import BOOLEAN, QUANTITATIVE, Scan, evaluate, stages_of
from dibs.spectrl.syntax import Spec


@dataclass(frozen=True, eq=False)
class MonitorState:
    """What the monitor remembers of a batch of rollouts."""

    waiting: Bools  # (stages, *batch): the stage has begun and all was safe since
    done: Bools  # (stages, *batch): the stage has also reached its target since
    states: Floats  # (*batch, dim): the last state seen


class Monitor:
    """Follows a batch of rollouts through the stages of a specification."""

    def __init__(self, spec: Spec, regions: Mapping[str, Region]) -> None:
        """Prepare to decide `spec`; regions may differ from rollout to rollout, as (*batch, dim)."""
        self.spec = spec
        self._program = stages_of(spec)
        self._boxes = chosen(regions, self._program.regions)

    @property
    def stages(self) -> int:
        """Return the number of stages on the longest way through the specification."""
        return self._program.depth

    def start(self, states: npt.ArrayLike) -> MonitorState:
        """Return the monitor's state after the first states (*batch, dim)."""
        array, batch = self._checked(states)
        return self._step(Scan.before_start(self._program, BOOLEAN, batch), array)

    def advance(self, state: MonitorState, states: npt.ArrayLike) -> MonitorState:
        """Return the monitor's state after the next states (*batch, dim)."""
        array, batch = self._checked(states)
        if batch != state.done.shape[1:]:
            raise DibsError(f"states: expected a batch of {state.done.shape[1:]}, found {batch}.")
        scan = Scan(self._program, BOOLEAN, state.waiting.copy(), state.done.copy())
        return self._step(scan, array)

    def satisfied(self, state: MonitorState) -> Bools:
        """Return which rollouts satisfy the specification so far; unsafe states may undo it."""
        return self._scan(state).result()

    def violated(self, state: MonitorState) -> Bools:
        """Return which rollouts no continuation can make satisfy the specification.

        Every way through it has been cut off by a state that was not safe.
        """
        return np.asarray(~state.waiting.any(axis=0))

    def stage(self, state: MonitorState) -> npt.NDArray[np.int64]:
        """Return how many stages lie behind each rollout on its furthest surviving way.

        It is `stages` exactly if the rollout is satisfied: a short branch of a choice skips levels. A
        violated rollout has no surviving way and is at 0.
        """
        levels, entries = self._per_stage(self._program.levels, state), self._entries(state)
        behind = np.where(state.done, levels, np.where(state.waiting, entries, 0))
        return np.asarray(behind.max(axis=0))

    def progress_robustness(self, state: MonitorState) -> Floats:
        """Return the signed distance to the nearest target among the stages that come next.

        It is 0 for satisfied rollouts, with nothing left to reach, and the distance to the furthest of
        all targets for violated ones, so it is finite and can be summed into a reward.
        """
        atoms = {name: box.signed_distance(state.states) for name, box in self._boxes.items()}
        distances = np.stack([evaluate(stage.target, atoms, QUANTITATIVE) for stage in self._program.stages])
        begun = state.waiting.copy()
        for before, after in self._program.links:
            begun[after] |= state.done[before]
        frontier = begun & ~state.done & (self._entries(state) == self.stage(state))
        best = np.where(frontier, distances, -np.inf).max(axis=0)
        best = np.where(self.violated(state), distances.min(axis=0), best)
        return np.asarray(np.where(self.satisfied(state), 0.0, best))

    def _checked(self, states: npt.ArrayLike) -> tuple[Floats, tuple[int, ...]]:
        array = checked_states(states, self._boxes, "(..., dim)")
        refuse_nan(array)
        batch = joint_shape(array, self._boxes)
        # A copy: simulators like to reuse their arrays.
        return np.array(np.broadcast_to(array, (*batch, array.shape[-1])), dtype=np.float64), batch

    def _step(self, scan: Scan, states: Floats) -> MonitorState:
        atoms = {name: box.contains(states)[..., None] for name, box in self._boxes.items()}
        scan.run(*scan.signals(atoms))
        return MonitorState(scan.waiting, scan.done, states)

    def _scan(self, state: MonitorState) -> Scan:
        return Scan(self._program, BOOLEAN, state.waiting, state.done)

    def _entries(self, state: MonitorState) -> npt.NDArray[np.int64]:
        return self._per_stage(self._program.entries, state)

    @staticmethod
    def _per_stage(values: tuple[int, ...], state: MonitorState) -> npt.NDArray[np.int64]:
        """Return one number per stage, shaped to broadcast against (stages, *batch)."""
        return np.array(values).reshape(-1, *[1] * (state.done.ndim - 1))


def where(mask: npt.ArrayLike, new: MonitorState, old: MonitorState) -> MonitorState:
    """Return the state that is `new` for the rollouts in `mask` (*batch,) and `old` elsewhere."""
    rows = np.asarray(mask, dtype=bool)
    return MonitorState(
        np.where(rows, new.waiting, old.waiting),
        np.where(rows, new.done, old.done),
        np.where(rows[..., None], new.states, old.states),
    )
