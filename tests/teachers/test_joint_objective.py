"""Teachers by Stable-Baselines3: the joint objective, the exact actor, and that they learn and repeat."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dibs.families import Family, get_family, reach_avoid
from dibs.policies.scaling import edge_scaling
from dibs.policies.torch import Actor, forward, linears
from dibs.teachers.base import Learnt, Lesson
from dibs.teachers.buffers import StateBuffers
from dibs.teachers.registry import train_with
from dibs.teachers.rollouts import draw, roll
from dibs.teachers.sb3 import JointObjective, Pupil
from dibs.teachers.train import network_of


def lesson(family: Family, edges: int = 1, **changes: Any) -> Lesson:
    """A lesson on the first edges of a family at index 0."""
    rng = np.random.default_rng(0)
    names = [edge.name for edge in family.edges[:edges]]
    scaling = edge_scaling(family).take(np.arange(edges))
    buffers = StateBuffers(edges, len(family.dynamics.state_names), rng, 500)
    settings: dict[str, Any] = {"depth": family.reward.depth, "confidence": 0.1} | changes
    return Lesson(reach_avoid(family, [0], names), network_of(family), scaling, buffers, rng, 7, **settings)


def success(given: Lesson, learnt: Learnt) -> float:
    folded = given.network.fold(learnt.theta, given.scaling.center, given.scaling.half)[:, None]
    drawn = draw(given.tasks, 500, np.random.default_rng(1))
    return float(roll(given.network, folded, given.tasks, drawn).success.min())


def test_the_torch_actor_is_the_network() -> None:
    network = network_of(get_family("simpledrone-reach"))
    rng = np.random.default_rng(0)
    theta = network.initial(rng, (3,))
    x = rng.uniform(-1, 1, (3, 50, 3)).astype(np.float32)
    expected = network.forward(theta, x)
    batched = forward(network, torch.from_numpy(theta), torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(batched, expected, atol=1e-6)
    actor = Actor(network)
    actor.load_flat(theta[1])
    np.testing.assert_array_equal(actor.flat(), theta[1])
    np.testing.assert_allclose(actor(torch.from_numpy(x[1])).detach().numpy(), expected[1], atol=1e-6)


def test_the_hook_steps_on_the_joint_objective() -> None:
    family = get_family("simpledrone-reach")
    network = network_of(family)
    previous = network.initial(np.random.default_rng(3), (1,))
    given = lesson(family, previous=previous, anchor=0.5, confidence=0.3)
    buffers = given.buffers.edges[0]
    buffers["high"].add(np.random.default_rng(4).normal(0, 1, (400, 3)).astype(np.float32))
    buffers["low"].add(np.random.default_rng(5).normal(3, 1, (400, 3)).astype(np.float32))
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    moved = previous[0] + 0.1
    gradients = []
    for by_hook in (True, False):
        pupil = Pupil(given, 0, 4)
        pupil.rng = np.random.default_rng(9)  # the same sample of the buffers both times
        actor = Actor(network)
        actor.load_flat(moved)
        optimizer = torch.optim.SGD(actor.parameters(), lr=1.0)
        torch.manual_seed(0)
        joint = JointObjective(pupil, linears(actor), actor.trunk, optimizer)
        loss = actor(x).square().mean()
        if not by_hook:
            confidence = joint.confidence_loss()
            assert confidence is not None
            reference = Actor(network)
            reference.load_flat(previous[0])
            anchors = zip(actor.parameters(), reference.parameters(), strict=True)
            distance = sum((p - q.detach()).square().sum() for p, q in anchors)
            loss = loss + 0.5 * distance + 0.3 * confidence
        loss.backward()
        if by_hook:
            joint.add()
        gradients.append([p.grad.clone() for p in actor.parameters() if p.grad is not None])
    for hooked, in_loss in zip(*gradients, strict=True):
        torch.testing.assert_close(hooked, in_loss, atol=1e-5, rtol=1e-4)


def test_every_optimiser_step_of_ppo_calls_the_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(JointObjective, "add", lambda self: calls.append(1))
    options = {"iterations": 2, "n_envs": 8, "n_steps": 16, "batch": 64, "epochs": 3, "checks": 10, "restarts": 1}
    train_with("ppo", lesson(get_family("simpledrone-reach")), options)
    assert len(calls) == 2 * 3 * (8 * 16 // 64)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_the_same_seed_gives_the_same_bytes(algorithm: str) -> None:
    options = {"ppo": {"iterations": 2, "n_envs": 32, "checks": 20}, "a2c": {"steps": 1000, "checks": 20}}[algorithm]
    family = get_family("simpledrone-reach")
    first, second = (train_with(algorithm, lesson(family), options) for _ in range(2))
    np.testing.assert_array_equal(first.theta, second.theta)
    assert first.head is not None and second.head is not None
    np.testing.assert_array_equal(first.head, second.head)


@pytest.mark.slow
def test_ppo_learns_a_drone_edge() -> None:
    given = lesson(get_family("simpledrone-reach"))
    assert success(given, train_with("ppo", given, {})) >= 0.99
