"""Motion: the policy moves as its task moves, π_i(s) = ρⁱ(π_0(g⁻ⁱ(s))) (docs/method.md).

If g takes the regions of task 0 to those of every task, and the dynamics are symmetric under g with ρ acting on
actions, then π_i behaves in task i as π_0 does in task 0. `find_motion` decides for one edge, from training tasks and
dynamics alone: it finds g (`dibs.templates.alignment`) and ρ (`dibs.templates.symmetry`), and gives the reason if there
are none. `dibs.templates.moved` makes a template of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dibs.envs import Array
from dibs.families import Tasks
from dibs.seeding import stream
from dibs.simulation import EdgeTask, draw
from dibs.spectrl import Edge
from dibs.templates.alignment import EXACT, MISFIT, align, edge_shapes, power
from dibs.templates.symmetry import (
    NOISE,
    OUTSIDE,
    RESIDUAL,
    TRANSITIONS,
    Dynamics,
    Transitions,
    find_aliases,
    find_law,
    noise_ratio,
    outside,
    probes,
    state_from_observation,
)

FARTHEST = 1_000_000  # index up to which images are checked


@dataclass(frozen=True, eq=False)
class Motion:
    """What is known of the motion of one edge. It holds unless there is a reason why not."""

    edge: str
    motion: Array  # (dim + 1, dim + 1): g
    law: Array  # (m + 1, m + 1): ρ
    kind: str = "identity"
    words: str = ""
    """What moves."""
    reason: str = ""
    """Why it does not hold; empty if it does."""
    misfit: float = float("nan")
    residual: float = float("nan")
    clipped: float = float("nan")
    """Residual of the teacher's own actions, which may be clipped."""
    noise: float = float("nan")
    last: int = 0
    """Index up to which images stay in bounds, with the same law and noise."""
    solved: int = 0
    """Training tasks solved, of those that rollouts have tried."""
    tried: int = 0
    warnings: tuple[str, ...] = ()
    recover: Array | None = None
    """Map (dim, inputs + 1) from observations to states; None: they are the same."""

    @property
    def holds(self) -> bool:
        return not self.reason

    @property
    def sentence(self) -> str:
        """All of it in plain words."""
        if self.reason:
            text = f"no motion: {self.reason}"
        else:
            text = f"{self.words}, symmetry residual {self.residual:.3f}"
            if self.tried:
                text += f", {self.solved} of {self.tried} training tasks solved"
        return "; ".join([text, *self.warnings])

    @property
    def trust(self) -> str:
        """How far to trust it."""
        if self.reason:
            return "trust it at index 0 only"
        return "trust it at any index" if self.last >= FARTHEST else f"trust it up to index {self.last:,}"

    def facts(self) -> dict[str, Any]:
        """Return what metrics and files say about it."""
        numbers = {key: getattr(self, key) for key in ("misfit", "residual", "clipped", "noise", "last")}
        facts: dict[str, Any] = {"holds": self.holds, "kind": self.kind, "words": self.sentence, "trust": self.trust}
        return facts | {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in numbers.items()}


def find_motion(
    tasks: Tasks, edge: Edge, corridor: Array, actions: Array, dynamics: Dynamics, rng: np.random.Generator
) -> Motion:
    """Return the motion of an edge; `corridor` (n, dim) are states at index 0 and `actions` (n, m) those taken there.

    Nothing is rolled out: transitions are asked of the dynamics one by one.
    """
    environment, names = tasks.environment, tasks.environment.state_names
    dim, train = len(names), tasks.indices
    found = Motion(edge.name, np.eye(dim + 1), np.eye(environment.action_dim + 1))
    aliases = find_aliases(environment, corridor) if environment.derived else {}
    shapes = edge_shapes(tasks, edge, aliases)
    hidden = [names[v] for s in shapes for v in np.flatnonzero(np.isfinite(s.width).any(axis=0) & ~dynamics.free)]
    if hidden:
        return replace(found, reason=f"the regions constrain {hidden[0]}, which cannot be set in the simulator")
    aligned = align(shapes, train, names, dynamics.periods)
    found = replace(found, motion=aligned.matrix, kind=aligned.kind, words=aligned.words, misfit=aligned.misfit)
    if aligned.misfit > MISFIT:
        text = f"no single motion relates the regions of the training tasks (misfit {aligned.misfit:.2g} half-widths)"
        return replace(found, reason=text)
    found = replace(found, warnings=aligned.notes)
    moves = f"the regions move by a {aligned.words}" if aligned.kind != "identity" else "the regions stay"
    for name in aligned.loose:
        if not _clear(tasks, edge, corridor, found.motion, dynamics):
            return replace(found, reason=f"{moves}, but {name} does not move along, and it is in the way")
        text = f"{name} does not move along; the way is clear of it at training indices only"
        found = replace(found, warnings=(*found.warnings, text))
    chosen = np.linspace(0, len(corridor) - 1, min(TRANSITIONS, len(corridor))).round().astype(int)
    own = Transitions.of(dynamics, corridor[chosen], actions[chosen])
    step = float(np.sqrt(np.square(dynamics.change(own.after, own.states)).sum(axis=-1).mean()))
    for index in train:
        v, excess = outside(dynamics, corridor, found.motion, index)
        if excess > OUTSIDE * max(step, 1e-9):
            return replace(found, reason=f"{moves}, but at index {index} {names[v]} leaves the environment's bounds")
    law, residual = find_law(probes(dynamics, own.states, own.actions, rng), found.motion, train)
    found = replace(found, law=law, residual=residual)
    if residual > RESIDUAL:
        return replace(found, reason=f"{moves}, but the dynamics are not symmetric (residual {residual:.2f})")
    if not environment.observes_states:
        found = replace(found, recover=_recovered(tasks, corridor[chosen], found.motion, dynamics))
        if found.recover is None:
            return replace(found, reason=f"{moves}, but the state cannot be recovered from an observation")
    noise = noise_ratio(own, found.motion, law, train[1:], rng)
    found = replace(found, noise=noise, clipped=own.residual(found.motion, law, train))
    if noise > NOISE:
        text = f"{moves}, but noise grows {noise:.1f}-fold relative to the regions"
        return replace(found, reason=text)
    if found.clipped > RESIDUAL:
        text = f"actions are clipped, which changes up to {found.clipped:.0%} of a step"
        found = replace(found, warnings=(*found.warnings, text))
    if aligned.loose:  # nothing says where it is at other indices
        return replace(found, last=train[-1])
    last = _last(found, own, train[-1], step, rng)
    return replace(found, last=min(last, _aligned_until(found.misfit, train[-1])))


def _aligned_until(misfit: float, last: int) -> int:
    """Return the index up to which the misfit stays below its limit if it grows with the square of the index."""
    return FARTHEST if misfit <= EXACT else min(int(last * np.sqrt(MISFIT / misfit)), FARTHEST)


def _clear(tasks: Tasks, edge: Edge, corridor: Array, motion: Array, dynamics: Dynamics) -> bool:
    """Whether the images of the corridor at all training indices are safe."""
    for index in tasks.indices:
        image = dynamics.move(corridor, power(motion, index))
        safety = EdgeTask(tasks.ground([(index, edge.name)])).safe_distance(image[None])
        if safety is not None and not (safety >= 0.0).all():
            return False
    return True


def _recovered(tasks: Tasks, states: Array, motion: Array, dynamics: Dynamics) -> Array | None:
    images = [dynamics.move(states, power(motion, index)) for index in tasks.indices]
    return state_from_observation(tasks.environment, np.concatenate(images))


def _last(found: Motion, own: Transitions, last: int, step: float, rng: np.random.Generator) -> int:
    """Return the last index, of those tried in steps of doubled size, up to which the checks hold."""
    good, worst = last, max(found.clipped, RESIDUAL) + RESIDUAL

    def fine(index: int) -> bool:
        if outside(own.dynamics, own.states, found.motion, index)[1] > OUTSIDE * max(step, 1e-9):
            return False
        if not own.residual(found.motion, found.law, [index]) <= worst:
            return False
        return noise_ratio(own, found.motion, found.law, [index], rng) <= NOISE

    while good < FARTHEST:
        trial = min(2 * good, FARTHEST)
        if not fine(trial):
            bad = trial
            while bad - good > 1:  # the first index that fails, if all after it fail
                middle = (good + bad) // 2
                good, bad = (middle, bad) if fine(middle) else (good, middle)
            return good
        good = trial
    return good


# --- without a teacher -----------------------------------------------------------------------------------


def relations(tasks: Tasks, seed: int = 0) -> dict[str, Motion]:
    """Say for every edge whether a motion relates the training tasks and whether the dynamics are symmetric under it.

    Without a teacher, the states are drawn on straight ways from the source to the target (in a Gymnasium environment,
    along random actions), and the actions at random.
    """
    rng, found = stream("relations", tasks.name, seed), {}
    for edge in tasks.edges:
        dynamics = Dynamics(tasks.environment)
        corridor, actions = _straight(tasks, edge, dynamics, rng)
        found[edge.name] = find_motion(tasks, edge, corridor, actions, dynamics, rng)
    return found


def _straight(tasks: Tasks, edge: Edge, dynamics: Dynamics, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return states on the way from source to target of an edge at index 0, and random actions."""
    environment = tasks.environment
    task = EdgeTask(tasks.ground([(tasks.indices[0], edge.name)]))
    states = draw(task, TRANSITIONS, rng).starts[0].astype(np.float64)
    shape = (len(states), environment.action_dim)
    if environment.derived:
        leaves = np.arange(len(states)) % task.horizon  # state n after this many random steps
        for time in range(task.horizon):
            going = leaves > time
            states[going] = dynamics.step(states[going], rng.uniform(-1.0, 1.0, shape)[going])
    else:
        goal = states.copy()
        target, sign = task.edges.target.arrays(), task.edges.target_sign[0]
        for center, half, inside in zip(target["center"][0], target["half_width"][0], sign > 0, strict=True):
            if inside:
                goal[:, np.isfinite(half)] = center[np.isfinite(half)]
        way = np.linspace(0.0, 1.0, len(states))[:, None]
        states = environment.project((1.0 - way) * states + way * goal)
    return states, rng.uniform(-1.0, 1.0, shape)


def share(motions: Sequence[Motion]) -> float:
    """Return the share of edges whose motion holds."""
    return float(np.mean([motion.holds for motion in motions])) if motions else 0.0
