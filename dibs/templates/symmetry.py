"""Whether the dynamics are symmetric under a motion g, and how it acts on actions (docs/method.md).

If f is the dynamics without noise, look for the affine map ρ of actions with g(f(s, a)) = f(g(s), ρ(a)). It is fitted
by least squares to transitions from given states (those that the base teacher visits) and from their images gⁱ(s) at
training indices, with actions ρⁱ(a). The residual is the root mean square of what is left, relative to that of a step,
at the worst training index. So that clipping does not hide the law, these transitions use actions in the interior of
the range. What clipping costs the teacher's own actions, whether images stay within the bounds of the environment, and
how the noise compares are measured separately.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from dibs.envs import Array, Environment, sample_noise
from dibs.simulation import Bools
from dibs.templates.alignment import EXACT, Alias, apply, difference, power, wrapped

RESIDUAL = 0.05  # largest residual, relative to a step, at any training index
NOISE = 1.5  # largest noise, relative to the regions, compared with index 0
INTERIOR = 0.6  # actions of the transitions that estimate ρ
TRANSITIONS = 64
STATES, DRAWS = 8, 256  # of the noise
OUTSIDE = 1e-3  # how far an image may lie outside the bounds, in steps
FITTED = 4  # training indices at which ρ is refined, spread evenly


@dataclass(eq=False)
class Dynamics:
    """The environment as motion asks it: steps without noise, moved states, and a count of the steps."""

    environment: Environment
    steps: int = 0
    """Environment steps taken."""
    periods: Array = field(init=False)  # (dim,)
    action_periods: Array = field(init=False)  # (m,)
    low: Array = field(init=False)  # (dim,)
    high: Array = field(init=False)  # (dim,)
    free: Bools = field(init=False)  # (dim,): not derived from others

    def __post_init__(self) -> None:
        env = self.environment
        self.periods, self.action_periods = np.array(env.periods), np.array(env.action_periods)
        self.low, self.high = (np.array(bound, dtype=float) for bound in env.bounds)
        self.free = ~env.is_derived

    def step(self, states: Array, actions: Array, noise: Array | None = None) -> Array:
        """Return the next states (..., dim), without noise by default."""
        self.steps += int(np.prod(states.shape[:-1]))
        return np.asarray(self.environment.step(states, actions, np.zeros_like(states) if noise is None else noise))

    def move(self, states: Array, matrix: Array) -> Array:
        """Return the images of states under an affine map; angles wrap, derived variables are computed again."""
        return moved_states(self.environment, states, matrix)

    def act(self, actions: Array, matrix: Array) -> Array:
        """Return the images of actions under an affine map; angles wrap."""
        return wrapped(apply(matrix, actions), self.action_periods, -1.0)

    def change(self, after: Array, before: Array) -> Array:
        """Return after − before in the variables that are not derived; of angles the smaller way around."""
        return np.where(self.free, difference(after, before, self.periods), 0.0)


def moved_states(environment: Environment, states: Array, matrix: Array) -> Array:
    """Return the images of states under an affine map; angles wrap, derived variables are computed again."""
    low = np.array(environment.bounds[0], dtype=float)
    image = wrapped(apply(matrix, states), np.array(environment.periods), low)
    return environment.project(image) if environment.derived else image


@dataclass(frozen=True, eq=False)
class Transitions:
    """States of an edge at index 0 and what happens there."""

    dynamics: Dynamics
    states: Array  # (n, dim)
    actions: Array  # (n, m)
    after: Array  # (n, dim)

    @classmethod
    def of(cls, dynamics: Dynamics, states: Array, actions: Array) -> Transitions:
        states, actions = states.astype(np.float64), actions.astype(np.float64)
        return cls(dynamics, states, actions, dynamics.step(states, actions))

    def errors(self, motion: Array, law: Array, index: int) -> Array:
        """Return gⁱ(f(s, a)) − f(gⁱ(s), ρⁱ(a)) as (n, dim), relative to a step of the image."""
        d = self.dynamics
        image, acting = power(motion, index), power(law, index)
        moved = d.step(d.move(self.states, image), d.act(self.actions, acting))
        step = d.change(self.after, self.states) @ image[:-1, :-1].T
        length = np.sqrt(np.square(step).sum(axis=-1).mean())
        return d.change(d.move(self.after, image), moved) / max(float(length), 1e-12)

    def residual(self, motion: Array, law: Array, indices: Sequence[int]) -> float:
        """Return the root mean square of the errors at the worst index."""
        squares = [np.square(self.errors(motion, law, index)).sum(axis=-1).mean() for index in indices]
        worst = float(np.sqrt(np.max(squares, initial=0.0)))
        return worst if np.isfinite(worst) else float("inf")


def probes(dynamics: Dynamics, states: Array, actions: Array, rng: np.random.Generator) -> Transitions:
    """Return transitions with interior actions: half of them the teacher's, scaled down, half of them random."""
    chosen = INTERIOR * rng.uniform(-1.0, 1.0, actions.shape)
    chosen[::2] = INTERIOR * actions[::2]
    return Transitions.of(dynamics, states, chosen)


# --- how a motion acts on actions ------------------------------------------------------------------------


def find_law(transitions: Transitions, motion: Array, indices: Sequence[int]) -> tuple[Array, float]:
    """Return the simplest ρ (m + 1, m + 1) that explains the transitions, and its residual at the training indices.

    Tried in turn: the identity, a turn of the actions that are angles, and an affine map of the others as well.
    """
    m = transitions.actions.shape[1]
    after = [index for index in indices if index > 0]
    best: Array = np.eye(m + 1)
    least = transitions.residual(motion, best, after)
    angles = transitions.dynamics.action_periods > 0.0
    turning, mapping = np.zeros((m, m + 1), dtype=bool), np.zeros((m, m + 1), dtype=bool)
    turning[angles, -1] = True
    mapping[~angles] = True
    for unknown in ([turning] if angles.any() else []) + ([turning | mapping] if (~angles).any() else []):
        if least <= EXACT:
            break
        law = _fitted(transitions, motion, after, best, unknown)
        residual = transitions.residual(motion, law, after)
        if residual < least - EXACT:
            best, least = law, residual
    return best, least


def _fitted(transitions: Transitions, motion: Array, indices: Sequence[int], start: Array, unknown: Array) -> Array:
    """Return the ρ with least squared errors, first of a single index step, then of several training indices."""
    from scipy.optimize import least_squares

    def law(x: Array) -> Array:
        matrix = start.copy()
        matrix[:-1][unknown] = x
        return matrix

    picks = np.unique(np.linspace(0, len(indices) - 1, FITTED).round().astype(int))
    x = start[:-1][unknown]
    for some in ([1], [indices[n] for n in picks]):

        def errors(x: Array, some: Sequence[int] = some) -> Array:
            found = np.concatenate([transitions.errors(motion, law(x), index).ravel() for index in some])
            return np.nan_to_num(found, nan=1e6, posinf=1e6, neginf=-1e6)

        solved = least_squares(errors, x, xtol=1e-14, ftol=1e-14, gtol=1e-14, max_nfev=30)
        x = solved.x
    return law(x)


# --- what may go wrong although the law holds ------------------------------------------------------------


def outside(dynamics: Dynamics, states: Array, motion: Array, index: int) -> tuple[int, float]:
    """Return the variable whose images at an index lie farthest outside the environment's bounds, and how far."""
    image = dynamics.move(states, power(motion, index))
    excess = np.maximum(np.maximum(dynamics.low - image, image - dynamics.high), 0.0)
    excess = np.where(np.isfinite(image), excess, np.inf)
    excess[:, ~dynamics.free] = 0.0
    worst = excess.max(axis=0)
    v = int(worst.argmax())
    return v, float(worst[v])


def noise_ratio(
    transitions: Transitions, motion: Array, law: Array, indices: Sequence[int], rng: np.random.Generator
) -> float:
    """Return the largest standard deviation of a step's noise at the given indices, compared with that of index 0.

    Both are seen from index 0: noise at index i is mapped back by g⁻ⁱ. In a task that shrinks, noise grows.
    """
    d, dim = transitions.dynamics, transitions.states.shape[1]
    if not np.any(d.environment.noise_scale):
        return 1.0
    rows = np.linspace(0, len(transitions.states) - 1, STATES).round().astype(int)
    states, actions = transitions.states[rows], transitions.actions[rows]
    noise = sample_noise(rng, (DRAWS, STATES, dim), np.float64)

    def spread(index: int) -> Array:
        image = power(motion, index)
        moved, acting = d.move(states, image), d.act(actions, power(law, index))
        shape = (DRAWS, *moved.shape)
        after = d.step(np.broadcast_to(moved, shape), np.broadcast_to(acting, (DRAWS, *acting.shape)), noise)
        change = d.change(after, np.broadcast_to(moved, shape))
        change = change - change.mean(axis=0)
        back = np.linalg.pinv(image[:-1, :-1])
        return np.asarray(np.sqrt(np.square(change @ back.T).mean(axis=(0, 1))))

    base = spread(0)
    tiny = 1e-9 + 1e-6 * base.max()
    ratios = [np.where((base < tiny) & (s < tiny), 1.0, s / np.maximum(base, tiny)).max() for s in map(spread, indices)]
    return float(max(ratios, default=1.0))


# --- what can be set and what can be seen ----------------------------------------------------------------


def find_aliases(environment: Environment, states: Array) -> Alias:
    """Return the derived variables that are a multiple of a settable one plus a constant, judged by given states."""
    derived = environment.is_derived
    found: dict[int, tuple[int, float, float]] = {}
    for v in np.flatnonzero(derived).tolist():
        for u in np.flatnonzero(~derived).tolist():
            x, y = states[:, u].astype(float), states[:, v].astype(float)
            if np.ptp(x) < 1e-3 or np.ptp(y) < 1e-3:
                continue
            a, b = np.polyfit(x, y, 1)
            if np.abs(a * x + b - y).max() <= 1e-4 * np.ptp(y):
                found[v] = (u, float(a), float(b))
                break
    return found


def state_from_observation(environment: Environment, states: Array) -> Array | None:
    """Return the affine map (dim, inputs + 1) from observations to states; None: the states show none.

    Derived variables are left at 0: they are computed again.
    """
    seen = environment.observe(states).astype(float)
    inputs = np.concatenate([seen, np.ones((len(seen), 1))], axis=1)
    wanted = np.where(environment.is_derived, 0.0, states.astype(float))
    found = np.linalg.lstsq(inputs, wanted, rcond=1e-7)[0]
    error = np.abs(inputs @ found - wanted).max(axis=0)
    return found.T if (error <= 1e-3 * np.maximum(np.ptp(wanted, axis=0), 1e-2)).all() else None
