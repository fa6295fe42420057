"""ARS: one policy for all training tasks, augmented random search on their mean reward (paper, section 5.1).

The policy sees the scaled state and the stage of the specification, never the index: there is no template and no
graph. Candidates × tasks × rollouts advance in one array program; ±δ meet the same initial states and noise. Searches
from scratch often get stuck, so a few start together and the best one continues.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from dibs.baselines.flat import FlatPolicy, FlatView, flat_policy
from dibs.envs import Array
from dibs.errors import DibsError
from dibs.methods import Method, Model, Training, teachers_for_budget
from dibs.policies.network import network_of
from dibs.policies.search import ascent, perturbed
from dibs.progress import Reporter
from dibs.seeding import stream
from dibs.settings import STRICT
from dibs.simulation import Outcome, RewardKind, Rewards, SpecTask, draw, rollout


@dataclass(frozen=True)
class Settings:
    """Settings of the search."""

    __pydantic_config__: ClassVar[dict[str, Any]] = STRICT

    steps: int = 0
    """Most environment steps; 0: as many as DIBS's teachers used on the benchmark's edges."""
    hidden: tuple[int, ...] = ()
    """Hidden layers; empty: those of the family's network."""
    observe_stage: bool = True
    """Whether the policy sees how many stages are completed."""
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
    """Searches that start together; the best one continues."""
    trial: int = 60
    """Iterations after which only the best search continues."""
    check_every: int = 10
    """Iterations between two estimates of the success on the training tasks."""
    check_rollouts: int = 50
    """Rollouts per task of such an estimate."""
    patience: int = 6
    """Checks in a row without a better iterate, at full success, after which the search has converged."""


def train(training: Training, settings: Settings) -> Model:
    """Search one policy for all training tasks of a benchmark."""
    settings = replace(settings, steps=settings.steps or training.teacher_steps())
    task = SpecTask(training.tasks, Rewards(settings.reward, settings.bonus), settings.depth)
    view = FlatView.of_tasks(training.tasks, settings.observe_stage)
    rng = stream("baseline", "ars", training.benchmark, training.split.key, training.seed)
    return search(task, view, settings, rng, training.progress)


def search(
    task: SpecTask, view: FlatView, settings: Settings, rng: np.random.Generator, progress: Reporter | None = None
) -> Model:
    """Search one policy for all tasks within the budget of environment steps in the settings."""
    network = network_of(task.grounded, settings.hidden, view.size)

    def run(theta: Array, rollouts: int) -> Outcome:
        """Run networks (candidates, size) on all tasks."""
        return rollout(task, FlatPolicy(network, theta, view), draw(task, rollouts, rng), candidates=(len(theta),))

    theta = network.initial(rng, (settings.restarts,), settings.initial_gain)  # (searches, size)
    best_theta, best_score = theta.copy(), [(-1.0, -np.inf)] * settings.restarts
    curve: list[dict[str, float]] = []
    steps = iteration = stale = top = 0
    while True:
        if iteration % settings.check_every == 0:
            checked = run(theta, settings.check_rollouts)
            steps += checked.steps
            means = (x.mean(axis=(1, 2)).tolist() for x in (checked.success, checked.returns, checked.stage))
            success, returns, stage = means
            stale += 1
            for r, score in enumerate(zip(success, returns, strict=True)):
                if score > best_score[r]:
                    # A better return counts as progress only if it is more than noise around the best.
                    gained = score[0] > best_score[r][0] or score[1] > best_score[r][1] + 0.01 * abs(score[1])
                    stale = 0 if gained else stale
                    best_theta[r], best_score[r] = theta[r], score
            top = max(range(len(theta)), key=lambda r: best_score[r])
            curve.append({"steps": steps, "success": success[top], "return": returns[top], "stage": stage[top]})
            solved = best_score[top][0] >= 1.0
            if progress is not None:
                reached = f"success {best_score[top][0]:.3f}, stage {stage[top]:.2f}"
                measured = {name: value for name, value in curve[-1].items() if name != "steps"}
                progress(
                    f"iteration {iteration}: {reached}, {steps} steps", steps / max(settings.steps, 1), steps, measured
                )
            if len(theta) > 1 and (iteration >= settings.trial or solved):
                theta, best_theta, best_score, top = theta[[top]], best_theta[[top]], [best_score[top]], 0
            if (solved and stale >= settings.patience) or steps >= settings.steps:
                break
        delta, candidates = perturbed(theta, settings.directions, settings.exploration, rng)
        outcome = run(candidates.reshape(-1, network.size), settings.rollouts)
        steps += outcome.steps
        scores = outcome.returns.mean(axis=(1, 2), dtype=np.float64).reshape(len(theta), -1)
        if not np.isfinite(scores).all():
            raise DibsError(f"{task.grounded.name}: the search diverged after {steps} steps; use a smaller step")
        theta += ascent(scores, delta, settings.best, settings.step, "best").astype(np.float32)
        iteration += 1
    metrics = {"budget": settings.steps, "iterations": iteration, "success": best_score[top][0], "curve": curve}
    return view.model({"theta": best_theta[top]}, {"network": asdict(network)}, steps, metrics)


LOOK: dict[str, Any] = {"color": "#1F77B4", "marker": "o", "hatch": "...", "dashes": (), "order": 1}


KIND: dict[str, Any] = {"needs": ("teachers",), "reads": teachers_for_budget}
METHOD = Method("ars", "ARS", Settings, train, flat_policy, **KIND, memory_mb=2000, minutes=30, **LOOK)
LOOK = {"color": "#7FB1D9", "marker": "o", "hatch": "..", "dashes": (1.5, 1.0), "hollow": True, "order": 30}
PLAIN = replace(METHOD, name="ars-plain", label="ARS (plain)", defaults={"observe_stage": False}, **LOOK)
"""As the paper seems to have run it: the policy sees the state only."""
