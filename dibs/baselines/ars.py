"""ARS: one policy for all training tasks, augmented random search on their mean reward (paper, section 5.1).

The policy sees the scaled state and the stage of the specification, never the index: there is no template and
no graph. Candidates × tasks × rollouts advance in one array program; ±δ meet the same initial states and noise.
Searches from scratch often get stuck, so a few start together and the best one goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from dibs.baselines.flat import FlatTask, Last, RewardKind, evaluate_flat, rollout
from dibs.baselines.registry import Run, Trained
from dibs.baselines.search import ascent
from dibs.envs import Array
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family
from dibs.files import read_tensors
from dibs.policies.network import Network
from dibs.seeding import stream
from dibs.settings import STRICT
from dibs.spectrl import graph, parse
from dibs.teachers.budget import dibs_steps


@dataclass(frozen=True)
class Settings:
    """Settings of the search."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    steps: int = 0
    """Most environment steps; 0: as many as DIBS's teachers used on the benchmark's edges."""
    hidden: tuple[int, ...] = ()
    """Hidden layers; empty: those of the family's network."""
    observe_stage: bool = True
    """Whether the policy sees how many stages lie behind it."""
    depth: float = 0.0
    """How deep inside a target counts as reached while training."""
    bonus: float = 1.0
    """Reward for every completed stage."""
    reward: RewardKind = "distance"
    """Reward per step: minus the distance to go, or how much of it the step has covered."""
    directions: int = 20
    """Perturbations tried per iteration, each with both signs."""
    best: int = 8
    """Directions kept for the update."""
    exploration: float = 0.05
    """Standard deviation ν of the perturbations."""
    step: float = 0.02
    """Step size before division by (best · standard deviation of the scores)."""
    initial_gain: float = 0.1
    """Scale of random initial weights: small, as close to ARS's start at zero as a tanh network allows."""
    rollouts: int = 1
    """Rollouts per candidate and task."""
    restarts: int = 4
    """Searches that start together; the best one goes on."""
    trial: int = 60
    """Iterations after which only the best search goes on."""
    check_every: int = 10
    """Iterations between two estimates of the success on the training tasks."""
    check_rollouts: int = 50
    """Rollouts per task of such an estimate."""
    patience: int = 6
    """Checks in a row without a better iterate, at full success, after which the search has converged."""


def train(run: Run, settings: Settings) -> Trained:
    """Search one policy for all training tasks of a benchmark."""
    edges = [edge.name for edge in graph(parse(run.text)).edges]
    budget = settings.steps or dibs_steps(run.places, run.family, run.gap, run.seed, edges)
    task = FlatTask(
        run.family, run.text, run.train, settings.observe_stage, settings.reward, settings.bonus, settings.depth
    )
    rng = stream("baseline", "ars", run.benchmark, run.gap, run.seed)
    found = search(task, settings, budget, rng, run.progress)
    return Trained(
        {"theta": found.theta},
        {"network": asdict(found.network), "observe_stage": settings.observe_stage},
        found.steps,
        {"budget": budget, "iterations": found.iterations, "success": found.success, "curve": found.curve},
    )


@dataclass(frozen=True, eq=False)
class Found:
    """The best policy of a search."""

    network: Network
    theta: Array  # (size,)
    success: float
    steps: int
    iterations: int
    curve: list[dict[str, float]]


def search(
    task: FlatTask,
    settings: Settings,
    budget: int,
    rng: np.random.Generator,
    progress: Callable[[str], None] | None = None,
) -> Found:
    """Search one policy for all tasks within a budget of environment steps."""
    network = flat_network(task, settings.hidden)
    theta = network.initial(rng, (settings.restarts,), settings.initial_gain)
    best_theta, best_score = theta.copy(), [(-1.0, -np.inf)] * settings.restarts
    curve: list[dict[str, float]] = []
    steps = iteration = stale = top = 0
    while True:
        if iteration % settings.check_every == 0:
            draws = task.draw(settings.check_rollouts, rng)
            checked = rollout(task, Shared(network, theta), draws, candidates=(len(theta),))
            steps += checked.steps
            success, returns = checked.success.mean(axis=(1, 2)), checked.returns.mean(axis=(1, 2))
            stale += 1
            for r, score in enumerate(zip(success.tolist(), returns.tolist(), strict=True)):
                if score > best_score[r]:
                    # A better return counts as progress only if it is more than noise around the best.
                    gained = score[0] > best_score[r][0] or score[1] > best_score[r][1] + 0.01 * abs(score[1])
                    stale = 0 if gained else stale
                    best_theta[r], best_score[r] = theta[r], score
            top = max(range(len(theta)), key=lambda r: best_score[r])
            stage = float(checked.stage[top].mean())
            curve.append(
                {"steps": steps, "success": float(success[top]), "return": float(returns[top]), "stage": stage}
            )
            if progress is not None:
                progress(f"iteration {iteration}: success {best_score[top][0]:.3f}, stage {stage:.2f}, {steps} steps")
            if len(theta) > 1 and (iteration >= settings.trial or best_score[top][0] >= 1.0):
                theta, best_theta, best_score, top = theta[[top]], best_theta[[top]], [best_score[top]], 0
            if (best_score[top][0] >= 1.0 and stale >= settings.patience) or steps >= budget:
                break
        delta = rng.standard_normal((len(theta), settings.directions, network.size), dtype=np.float32)
        spread = np.float32(settings.exploration) * delta
        candidates = np.concatenate([theta[:, None] + spread, theta[:, None] - spread], axis=1)
        rows = candidates.reshape(-1, network.size)
        outcome = rollout(task, Shared(network, rows), task.draw(settings.rollouts, rng), candidates=(len(rows),))
        steps += outcome.steps
        scores = outcome.returns.mean(axis=(1, 2), dtype=np.float64).reshape(len(theta), -1)
        if not np.isfinite(scores).all():
            raise DibsError(f"{task.text}: the search diverged after {steps} steps; use a smaller step")
        theta += ascent(scores, delta, settings.best, settings.step, "best").astype(np.float32)
        iteration += 1
    return Found(network, best_theta[top], best_score[top][0], steps, iteration, curve)


def count(
    family: Family, text: str, artefact: Path, seed: int, indices: Sequence[int], settings: EvaluationSettings
) -> dict[int, int]:
    """Satisfying rollouts per index of the one policy."""
    tensors, meta = read_tensors(artefact)
    network = Network(**{**meta["network"], "hidden": tuple(meta["network"]["hidden"])})
    policy = Shared(network, tensors["theta"])
    return evaluate_flat(family, text, policy, indices, settings, seed, meta["observe_stage"])


class Shared:
    """A policy of one network for all indices; with parameters (candidates, size), one per candidate."""

    def __init__(self, network: Network, theta: Array) -> None:
        self.network, self.theta = network, theta

    def start(self, indices: Sequence[int], rollouts: int) -> None:
        """Nothing to remember."""

    def act(self, observations: Array, last: Last | None) -> Array:
        if self.theta.ndim == 1:
            return self.network.forward(self.theta, observations)
        rows = observations.reshape(len(self.theta), -1, observations.shape[-1])
        return self.network.forward(self.theta, rows).reshape(*observations.shape[:-1], -1)


def flat_network(task: FlatTask, hidden: tuple[int, ...]) -> Network:
    """The network of a policy for the whole specification."""
    family = task.family
    sizes = hidden or tuple(family.network.hidden)
    return Network(task.observation_dim, sizes, task.action_dim, family.network.activation)
