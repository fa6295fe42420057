"""Teachers by augmented random search (Mania et al. 2018), batched over everything (paper, appendix E: Car2D).

Directions × signs × rollouts × edges × restarts advance in one array program. ±δ meet the same initial
states and the same noise, so their difference is due to δ alone. The anchor λ_x‖θ − θ_prev‖² and the
confidence loss enter the score of every candidate, which is how a derivative-free method minimises the joint
objective L_RL + λ_x L_xreg + λ_conf L_conf; the confidence head itself is fitted by gradient (Newton) on the
trunk's features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dibs.envs import Array
from dibs.teachers.base import Learnt, Lesson
from dibs.teachers.confidence import ConfidenceHead, candidate_losses
from dibs.teachers.rollouts import Rows, draw, roll


@dataclass(frozen=True)
class ArsSettings:
    """Settings of the search; the first four are those of the authors' public code."""

    directions: int = 20
    """Perturbations tried per iteration, each with both signs."""
    best: int = 8
    """Directions kept for the update: those whose better sign scores highest."""
    exploration: float = 0.05
    """Standard deviation ν of the perturbations."""
    step: float = 0.05
    """Step size before division by (best · standard deviation of the scores)."""
    rollouts: int = 16
    """Rollouts per candidate and iteration, common to all candidates of an edge."""
    iterations: int = 300
    """Most iterations."""
    restarts: int = 6
    """Independent searches when there is no previous teacher; the best one is kept."""
    check_every: int = 5
    """Iterations between two estimates of the current iterate's success."""
    check_rollouts: int = 200
    """Rollouts of such an estimate."""
    patience: int = 6
    """Checks without a better iterate, at full success, after which the search has converged."""
    initial_gain: float = 1.0
    """Scale of random initial weights."""


def train(lesson: Lesson, settings: ArsSettings) -> Learnt:
    """Search one actor per edge; all edges and restarts share one array program."""
    tasks, network, scaling, rng = lesson.tasks, lesson.network, lesson.scaling, lesson.rng
    start, buffers = lesson.start, lesson.buffers
    edges, restarts = tasks.tasks, 1 if start is not None else settings.restarts
    wide = tasks.take([e for e in range(edges) for _ in range(restarts)])  # (edges · restarts) searches
    center, half = (np.repeat(a, restarts, axis=0)[:, None] for a in (scaling.center, scaling.half))
    if start is None:
        theta = network.initial(rng, (wide.tasks,), settings.initial_gain)
    else:
        theta = start.astype(np.float32).copy()
    pull = None
    if lesson.previous is not None and lesson.anchor > 0.0:
        pull = np.repeat(lesson.previous.astype(np.float32), restarts, axis=0)

    best_theta = theta.copy()
    best_success = np.full(wide.tasks, -1.0)
    best_returns = np.full(wide.tasks, -np.inf)
    stale = np.zeros(wide.tasks, dtype=int)
    head = ConfidenceHead.zeros(wide.tasks, network.hidden[-1])
    active = np.arange(wide.tasks)
    steps, iteration = 0, 0
    curve: list[dict[str, float]] = []
    for iteration in range(settings.iterations + 1):
        if iteration % settings.check_every == 0 or iteration == settings.iterations:
            sub = wide.take(active.tolist())
            folded = network.fold(theta[active], center[active, 0], half[active, 0])[:, None]
            checked = roll(network, folded, sub, draw(sub, settings.check_rollouts, rng), lesson.depth)
            steps += checked.steps
            success, returns = checked.success[:, 0], checked.returns[:, 0]
            better = (success > best_success[active]) | (
                (success == best_success[active]) & (returns > best_returns[active])
            )
            chosen = active[better]
            gained = returns[better] - best_returns[chosen]
            stale[active] += 1
            # A better return counts as progress only if it is more than noise around the best.
            stale[chosen[(gained > 0.01 * np.abs(returns[better])) | (success[better] < 1.0)]] = 0
            best_theta[chosen] = theta[chosen]
            best_success[chosen], best_returns[chosen] = success[better], returns[better]
            curve.append(
                {
                    "iteration": float(iteration),
                    "success": float(best_success.reshape(edges, restarts).max(axis=1).min()),
                    "return": float(best_returns.reshape(edges, restarts).max(axis=1).mean()),
                    "steps": float(steps),
                }
            )
            if lesson.progress is not None:
                lesson.progress(f"iteration {iteration}: worst edge {curve[-1]['success']:.3f}")
            converged = (best_success[active] >= 1.0) & (stale[active] >= settings.patience)
            # Once a restart has converged, its siblings have nothing left to win.
            done = {int(a) // restarts for a in active[converged]}
            active = np.array([a for a in active if a // restarts not in done], dtype=int)
            if len(active) == 0 or iteration == settings.iterations:
                break

        sub = wide.take(active.tolist())
        n = len(active)
        delta = rng.standard_normal((n, settings.directions, network.size), dtype=np.float32)
        spread = np.float32(settings.exploration) * delta
        candidates = np.concatenate([theta[active, None] + spread, theta[active, None] - spread], axis=1)
        folded = network.fold(candidates, center[active], half[active])
        outcome = roll(
            network,
            folded,
            sub,
            draw(sub, settings.rollouts, rng),
            lesson.depth,
            record=int(rng.integers(2 * settings.directions)),
        )
        steps += outcome.steps
        buffers.add(active // restarts, outcome)
        scores: Array = outcome.returns
        if pull is not None:
            scores = scores - lesson.anchor * np.sum((candidates - pull[active, None]) ** 2, axis=-1)
        if lesson.confidence > 0.0 and buffers.ready(active // restarts):
            scores = scores - lesson.confidence * candidate_losses(
                network, candidates, head.take(active), scaling, active // restarts, buffers, rng
            )
            if iteration % settings.check_every == 0:
                fresh = head.take(active).refit(network, theta[active], scaling, active // restarts, buffers, rng)
                head.weights[active] = fresh.weights
        plus, minus = scores[:, : settings.directions], scores[:, settings.directions :]
        order = np.argsort(-np.maximum(plus, minus), axis=1)[:, : settings.best]
        gain = np.take_along_axis(plus - minus, order, axis=1)
        spread_of_scores = np.concatenate(
            [np.take_along_axis(plus, order, axis=1), np.take_along_axis(minus, order, axis=1)], axis=1
        ).std(axis=1)
        update = np.einsum("nb,nbp->np", gain, np.take_along_axis(delta, order[..., None], axis=1))
        scale = settings.step / (order.shape[1] * np.maximum(spread_of_scores, 1e-6))
        theta[active] += (scale[:, None] * update).astype(np.float32)

    pick = _best_restart(best_success, best_returns, edges, restarts)
    return Learnt(best_theta[pick], None, steps, iteration, curve)


def _best_restart(success: Array, returns: Array, edges: int, restarts: int) -> Rows:
    """Row of the best restart per edge: by success, then by return."""
    rows = np.arange(edges * restarts).reshape(edges, restarts)
    keys = np.lexsort((returns.reshape(edges, restarts), success.reshape(edges, restarts)), axis=1)
    return rows[np.arange(edges), keys[:, -1]]
