"""What a specification says about finite rollouts (paper, appendix "SPECTRL Specification Language").

`satisfied` decides and `robustness` measures. Both read the equations of `dibs.spectrl.stages`, linear in
the length of the rollout, so their signs agree: a robustness above 0 means satisfied, below 0 violated; 0
lies on the boundary of a region and can be either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dibs.errors import DibsError, unknown
from dibs.spectrl.regions import Bools, Floats, Region
from dibs.spectrl.stages import BOOLEAN, QUANTITATIVE, Logic, Scan, Signal, evaluate, stages_of
from dibs.spectrl.syntax import Predicate, Spec, regions_of

# States are worked on in blocks of time of about this many, so that their signals stay in the cache.
_BLOCK = 1 << 16


def satisfied(
    spec: Spec,
    regions: Mapping[str, Region],
    states: npt.ArrayLike,
    lengths: npt.ArrayLike | None = None,
) -> Bools:
    """Return which rollouts satisfy `spec`.

    `states` is (..., time, dim); only the first `lengths` states of a rollout count, what follows may
    hold anything. The answer has the shape (...), joined with the batch shape of the regions if these
    differ from rollout to rollout.
    """
    return _value(spec, regions, states, lengths, BOOLEAN)


def robustness(
    spec: Spec,
    regions: Mapping[str, Region],
    states: npt.ArrayLike,
    lengths: npt.ArrayLike | None = None,
) -> Floats:
    """Return how strongly each rollout satisfies (above 0) or violates (below 0) `spec`.

    A rollout too short for the sequence of `spec` has a robustness of minus infinity.
    """
    return _value(spec, regions, states, lengths, QUANTITATIVE)


def holds(predicate: Predicate, regions: Mapping[str, Region], states: npt.ArrayLike) -> Bools:
    """Return in which states (..., dim) the predicate holds."""
    return _predicate_value(predicate, regions, states, BOOLEAN)


def predicate_robustness(predicate: Predicate, regions: Mapping[str, Region], states: npt.ArrayLike) -> Floats:
    """Return the signed distance of each state (..., dim) to where `predicate` changes its value."""
    return _predicate_value(predicate, regions, states, QUANTITATIVE)


def chosen(regions: Mapping[str, Region], names: Iterable[str]) -> dict[str, Region]:
    """Return the regions of these names, or say which is missing."""
    boxes = {}
    for name in names:
        if name not in regions:
            raise unknown("region", name, regions)
        boxes[name] = regions[name]
    return boxes


def checked_states(states: npt.ArrayLike, boxes: Mapping[str, Region], axes: str) -> npt.NDArray[np.floating[Any]]:
    """Return `states` as floating-point numbers whose shape fits `axes` and the regions."""
    try:
        array = np.asarray(states)
    except ValueError as error:
        raise DibsError(f"states: expected an array of shape {axes}: {error}") from error
    if array.dtype.kind not in "fiub":
        raise DibsError(f"states: expected numbers of shape {axes}, found dtype {array.dtype}.")
    if array.dtype.kind != "f":
        array = array.astype(np.float64)
    if array.ndim < axes.count(",") or 0 in array.shape[-axes.count(",") :]:
        raise DibsError(f"states: expected shape {axes}, none of them 0, found {array.shape}.")
    for name, box in boxes.items():
        if box.dim != array.shape[-1]:
            raise DibsError(
                f"region '{name}' has {box.dim} dimensions, but the states have "
                f"{array.shape[-1]} (shape {array.shape})."
            )
    return array


def refuse_nan(states: npt.NDArray[Any], ends: npt.NDArray[np.intp] | None = None) -> None:
    """Raise an error that says where the first NaN is, before the `ends` of the rollouts if given."""
    if not np.isnan(states).any():
        return
    bad = np.isnan(states).any(axis=-1)
    if ends is not None:
        bad = bad & (np.arange(states.shape[-2]) < ends[..., None])
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        state = np.broadcast_to(states, (*bad.shape, states.shape[-1]))[where].tolist()
        raise DibsError(
            f"states{list(where)} is {state}: NaN in {int(bad.sum())} of the states, and no region "
            "can be decided there. Check the simulator, or `lengths` if this is padding."
        )


def joint_shape(states: npt.NDArray[Any], boxes: Mapping[str, Region]) -> tuple[int, ...]:
    """Return the shape of a predicate's value: that of the states, joined with that of the regions."""
    shape = states.shape[:-1]
    for name, box in boxes.items():
        if not box.batch_shape:
            continue
        try:
            shape = np.broadcast_shapes(shape, box.batch_shape)
        except ValueError:
            raise DibsError(
                f"region '{name}' is an array of boxes of shape {box.batch_shape}, which does not "
                f"broadcast against states of shape {states.shape}."
            ) from None
    return shape


def _predicate_value(
    predicate: Predicate, regions: Mapping[str, Region], states: npt.ArrayLike, logic: Logic
) -> Signal:
    boxes = chosen(regions, sorted(regions_of(predicate)))
    array = checked_states(states, boxes, "(..., dim)")
    refuse_nan(array)
    joint_shape(array, boxes)
    atoms = {name: logic.atom(box, array) for name, box in boxes.items()}
    return np.asarray(evaluate(predicate, atoms, logic))


def _value(
    spec: Spec,
    regions: Mapping[str, Region],
    states: npt.ArrayLike,
    lengths: npt.ArrayLike | None,
    logic: Logic,
) -> Signal:
    program = stages_of(spec)
    boxes = chosen(regions, program.regions)
    array = checked_states(states, boxes, "(..., time, dim)")
    *batch, time = joint_shape(array, boxes)
    if time != array.shape[-2]:
        raise DibsError(f"regions vary over {time} steps, but the rollouts have {array.shape[-2]}.")
    ends = _checked_lengths(lengths, tuple(batch), time)
    refuse_nan(array, ends)

    scan = Scan.before_start(program, logic, tuple(batch))
    value = np.full(batch, logic.bottom, dtype=logic.dtype)
    if value.size == 0:
        return value
    stops = np.unique(ends).tolist()
    block, last = max(1, _BLOCK // value.size), stops[-1]
    if any(box.batch_shape[-1:] > (1,) for box in boxes.values()):
        block = last = time  # a region that moves comes as one array over all of time
    for start in range(0, last, block):
        window = _contiguous(array[..., start : min(start + block, last), :])
        atoms = {name: logic.atom(box, window) for name, box in boxes.items()}
        targets, safe = scan.signals(atoms)
        seen, steps = 0, len(targets)
        for cut in sorted({stop - start for stop in stops if 0 < stop - start < steps} | {steps}):
            scan.run(targets[seen:cut], None if safe is None else safe[seen:cut])
            np.copyto(value, scan.result(), where=ends == start + cut)
            seen = cut
    return value


def _contiguous(states: npt.NDArray[Any]) -> Floats:
    """Return a copy that is stored dimension by dimension, then time by time.

    Its shape is unchanged, so regions still broadcast; numpy keeps the layout in all that follows.
    """
    stored = np.array(np.moveaxis(states, (-1, -2), (0, 1)), dtype=np.float64, order="C")
    return np.moveaxis(stored, (0, 1), (-1, -2))


def _checked_lengths(lengths: npt.ArrayLike | None, batch: tuple[int, ...], time: int) -> npt.NDArray[np.intp]:
    """Return the number of valid states of each rollout."""
    if lengths is None:
        return np.full(batch, time)
    array = np.asarray(lengths)
    if array.dtype.kind not in "iu":
        raise DibsError(f"lengths: expected integers, found dtype {array.dtype}.")
    try:
        ends = np.broadcast_to(array, batch).astype(np.intp)
    except ValueError:
        raise DibsError(f"lengths: expected one per rollout, shape {batch}, found shape {array.shape}.") from None
    wrong = (ends < 1) | (ends > time)
    if wrong.any():
        where = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise DibsError(f"lengths{list(where)} is {int(ends[where])}; expected 1 to {time}, the number of states.")
    return ends
