"""Teachers by augmented random search (Mania et al. 2018), batched over everything (paper, appendix E: Car2D).

Directions × signs × rollouts × edges × restarts advance in one array program. ±δ meet the same initial states and the
same noise, so their difference is due to δ alone. The anchor λ_x‖θ − θ_prev‖² and the confidence loss enter the score
of every candidate: this is how a derivative-free method minimizes the joint objective L_RL + λ_x L_xreg + λ_conf
L_conf. Among iterates with equal success, the best has the largest return minus anchor, and a search has converged
when that no longer rises. The confidence head itself is fitted by Newton's method on the trunk's features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from dibs.envs import Array
from dibs.policies.search import ascent, perturbed
from dibs.settings import Count, Natural, Positive
from dibs.simulation import EdgeTask, Rows, StateRecorder, draw, rollout
from dibs.teachers.base import Algorithm, Assignment, Learned
from dibs.teachers.confidence import ConfidenceHead, candidate_losses

SAVED = ("theta", "best_theta", "best_success", "best_value", "best_returns", "stale", "steps", "curve", "active")
"""Attributes of a search that a checkpoint contains."""


@dataclass(frozen=True)
class ArsSettings:
    """Settings of the search; the first four are those of the authors' public code."""

    directions: Count = 20
    """Perturbations tried per iteration, each with both signs."""
    best: Count = 8
    """Directions kept for the update: those whose better sign scores highest."""
    exploration: Positive = 0.05
    """Standard deviation ν of the perturbations."""
    step: Positive = 0.05
    """Step size before division by (best · standard deviation of the scores)."""
    rollouts: Count = 16
    """Rollouts per candidate and iteration, common to all candidates of an edge."""
    iterations: Natural = 300
    """Most iterations."""
    restarts: Count = 6
    """Independent searches when there is no previous teacher; the best one is kept."""
    check_every: Count = 5
    """Iterations between two estimates of the current iterate's success."""
    check_rollouts: Count = 200
    """Rollouts of such an estimate."""
    patience: Natural = 6
    """Checks without a better iterate, at full success, after which the search has converged."""
    initial_gain: Positive = 1.0
    """Scale of random initial weights."""


def train(assignment: Assignment, settings: ArsSettings) -> Learned:
    """Search one actor per edge; all edges and restarts share one array program."""
    return Learned(**assignment.journal.once(f"{assignment.piece}search", lambda: _run(assignment, settings)))


def _run(assignment: Assignment, settings: ArsSettings) -> dict[str, Any]:
    """Search to the end; returns the fields of `Learned`."""
    search, journal, piece = _Search(assignment, settings), assignment.journal, f"{assignment.piece}search"
    saved = journal.resume(piece)
    for iteration in range(0 if saved is None else search.restore(saved), settings.iterations + 1):
        journal.tick(piece, partial(search.saved, iteration))
        check = iteration % settings.check_every == 0
        if check or iteration == settings.iterations:
            search.check(iteration)
            if search.converged or iteration == settings.iterations:
                break
        search.climb(refit=check)
    best = _best_restart(search.best_success, search.best_value, search.edges, search.restarts)
    found = {"theta": search.best_theta[best], "head": None, "steps": search.steps}
    return {**found, "iterations": iteration, "curve": search.curve}


class _Search:
    """Searches of all edges, `restarts` of each, in rows: edge 0 first."""

    def __init__(self, assignment: Assignment, settings: ArsSettings) -> None:
        self.assignment, self.settings, self.network = assignment, settings, assignment.network
        self.edges = assignment.edges.tasks
        self.restarts = 1 if assignment.start is not None else settings.restarts
        self.edge = np.repeat(np.arange(self.edges), self.restarts)  # of each row
        rows = len(self.edge)
        if assignment.start is None:
            self.theta = self.network.initial(assignment.rng, (rows,), settings.initial_gain)
        else:
            self.theta = assignment.start.astype(np.float32).copy()
        self.head = ConfidenceHead.zeros(rows, self.network.hidden[-1])
        self.best_theta = self.theta.copy()
        self.best_success = np.full(rows, -1.0)
        self.best_value, self.best_returns = np.full((2, rows), -np.inf)  # return with and without the anchor's cost
        self.stale = np.zeros(rows, dtype=int)
        self.steps = 0
        self.curve: list[dict[str, float]] = []
        self._go_on(np.arange(rows))

    @property
    def converged(self) -> bool:
        return len(self.active) == 0

    def saved(self, iteration: int) -> dict[str, Any]:
        """Return the state before an iteration."""
        return {"iteration": iteration, "head": self.head.weights, **{name: getattr(self, name) for name in SAVED}}

    def restore(self, saved: dict[str, Any]) -> int:
        """Put the search into a saved state; returns the iteration that comes next."""
        for name in SAVED:
            setattr(self, name, saved[name])
        self.head = ConfidenceHead(saved["head"])
        self._go_on(saved["active"])
        return int(saved["iteration"])

    def _go_on(self, active: Rows) -> None:
        """Go on with the given rows only."""
        self.active = active
        edges = self.assignment.edges.take(self.edge[active].tolist())
        self.task = EdgeTask(edges, self.assignment.depth)

    def check(self, iteration: int) -> None:
        """Estimate the success of the current iterates, keep the best, and drop the searches that have converged."""
        assignment, active = self.assignment, self.active
        policy = assignment.policy(self.theta[active], self.edge[active])
        outcome = rollout(self.task, policy, draw(self.task, self.settings.check_rollouts, assignment.rng))
        self.steps += outcome.steps
        success, returns = outcome.success.mean(axis=-1), outcome.returns.mean(axis=-1)
        value = returns - assignment.pull(self.theta[active], self.edge[active])
        better = (success > self.best_success[active]) | (
            (success == self.best_success[active]) & (value > self.best_value[active])
        )
        chosen = active[better]
        gained = value[better] - self.best_value[chosen]
        self.stale[active] += 1
        # A better value counts as progress only if it is more than noise around the best.
        self.stale[chosen[(gained > 0.01 * np.abs(value[better])) | (success[better] < 1.0)]] = 0
        self.best_theta[chosen] = self.theta[chosen]
        self.best_success[chosen], self.best_value[chosen] = success[better], value[better]
        self.best_returns[chosen] = returns[better]
        shape = (self.edges, self.restarts)
        self.curve.append(
            {
                "iteration": float(iteration),
                "success": float(self.best_success.reshape(shape).max(axis=1).min()),
                "return": float(self.best_returns.reshape(shape).max(axis=1).mean()),
                "steps": float(self.steps),
            }
        )
        if assignment.progress is not None:
            row = self.curve[-1]
            assignment.progress(
                f"iteration {iteration}: success {row['success']:.3f} on the worst edge",
                iteration / max(self.settings.iterations, 1),
                self.steps,
                {f"{assignment.piece}{name}": row[name] for name in ("success", "return")},
            )
        converged = (self.best_success[active] >= 1.0) & (self.stale[active] >= self.settings.patience)
        if converged.any():
            # Once one restart of an edge has converged, the others have nothing left to win.
            self._go_on(active[~np.isin(self.edge[active], self.edge[active[converged]])])

    def climb(self, refit: bool) -> None:
        """Move all active rows by one iteration of random search; with `refit`, fit their confidence heads again."""
        assignment, settings, active = self.assignment, self.settings, self.active
        rng, buffers, edges, count = assignment.rng, assignment.buffers, self.edge[active], 2 * settings.directions
        # (rows, directions, size), (rows, count, size)
        delta, candidates = perturbed(self.theta[active], settings.directions, settings.exploration, rng)
        draws = draw(self.task, settings.rollouts, rng)
        shown = int(rng.integers(count))  # the candidate whose states the buffers get
        recorder = StateRecorder(shown)
        policy = assignment.policy(np.ascontiguousarray(np.moveaxis(candidates, 1, 0)), edges)
        outcome = rollout(self.task, policy, draws, candidates=(count,), recorder=recorder)
        self.steps += outcome.steps
        buffers.add(edges, recorder.states(), outcome.lengths[shown], outcome.success[shown])
        scores: Array = np.ascontiguousarray(outcome.returns.mean(axis=-1).T)  # (rows, count)
        scores = scores - assignment.pull(candidates, edges)
        if assignment.confidence > 0.0 and buffers.ready(edges):
            head = self.head.take(active)
            scores = scores - assignment.confidence * candidate_losses(assignment, candidates, head, edges)
            if refit:
                self.head.weights[active] = head.refit(assignment, self.theta[active], edges).weights
        self.theta[active] += ascent(scores, delta, settings.best, settings.step, "best").astype(np.float32)


def _best_restart(success: Array, value: Array, edges: int, restarts: int) -> Rows:
    """Return the row of the best restart of each edge: by success, then by return minus anchor."""
    rows = np.arange(edges * restarts).reshape(edges, restarts)
    keys = np.lexsort((value.reshape(edges, restarts), success.reshape(edges, restarts)), axis=1)
    return rows[np.arange(edges), keys[:, -1]]


ALGORITHM = Algorithm("ars", ArsSettings, train, memory_mb=2000, minutes=20)
