"""Teachers by the cross-entropy method: keep the best candidates and draw the next ones around them."""

from dataclasses import dataclass

import numpy as np

from dibs.simulation import EdgeTask, StateRecorder, draw, rollout
from dibs.teachers.base import Algorithm, Assignment, Learned


@dataclass(frozen=True)
class CemSettings:
    """Settings of the cross-entropy method."""

    population: int = 64
    """Candidates per iteration."""
    elite: int = 8
    """Candidates kept."""
    rollouts: int = 16
    """Rollouts per candidate, common to all of them."""
    iterations: int = 40
    """Iterations."""
    spread: float = 0.5
    """Initial standard deviation of the candidates."""


def train(assignment: Assignment, settings: CemSettings) -> Learned:
    """Search one actor per edge, all edges in one array program."""
    network, rng, previous = assignment.network, assignment.rng, assignment.previous
    task = EdgeTask(assignment.edges, assignment.depth)
    # `start` is the previous teacher; None at index 0, or if the settings say `warm_start: false`.
    mean = network.initial(rng, (task.tasks,)) if assignment.start is None else assignment.start
    spread = np.full_like(mean, settings.spread)
    steps = 0
    for _ in range(settings.iterations):
        noise = rng.standard_normal((settings.population, *mean.shape), dtype=np.float32)
        theta = mean + spread * noise  # (population, edges, size)
        recorder = StateRecorder(candidate=0)
        draws = draw(task, settings.rollouts, rng)
        outcome = rollout(task, assignment.policy(theta), draws, (settings.population,), recorder)
        assignment.buffers.add(np.arange(task.tasks), recorder.states(), outcome.lengths[0], outcome.success[0])
        steps += outcome.steps
        score = outcome.returns.mean(axis=-1)  # (population, edges)
        if previous is not None:
            score = score - assignment.anchor * np.sum((theta - previous) ** 2, axis=-1)
        best = np.argsort(-score, axis=0)[: settings.elite]
        elite = np.take_along_axis(theta, best[..., None], axis=0)
        mean, spread = elite.mean(axis=0), elite.std(axis=0)
    return Learned(mean, None, steps, settings.iterations)


ALGORITHM = Algorithm("cem", CemSettings, train, minutes=10)
