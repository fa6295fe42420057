"""Teachers by Stable-Baselines3: the joint objective, the exact actor, and that they learn and repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from dibs.families import get_family
from dibs.policies.torch import Actor, forward, linears
from dibs.registry import resolved
from dibs.teachers.base import Assignment, Learned, get_algorithm
from dibs.teachers.joint import EdgeAssignment, JointObjective
from dibs.teachers.train import algorithm_settings, network_of

Assign = Callable[..., Assignment]


@pytest.fixture
def first_edge(assign: Assign) -> Assign:
    """An assignment of the first edge of SimpleDrone at index 0."""
    family = get_family("simpledrone-reach")

    def make(**changes: Any) -> Assignment:
        more: dict[str, Any] = {"depth": family.reward.depth, "confidence": 0.1, **changes}
        return assign(family, seed=7, edges=[family.edges[0].name], **more)

    return make


def train(algorithm: str, assignment: Assignment, options: dict[str, Any]) -> Learned:
    return resolved(get_algorithm(algorithm).train)(assignment, algorithm_settings(algorithm, options))


def test_the_torch_actor_is_the_network() -> None:
    network = network_of(get_family("simpledrone-reach").tasks([0]))
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


def test_the_hook_steps_on_the_joint_objective(first_edge: Assign) -> None:
    network = first_edge().network
    previous = network.initial(np.random.default_rng(3), (1,))
    given = first_edge(previous=previous, anchor=0.5, confidence=0.3)
    buffers = given.buffers.edges[0]
    buffers["high"].add(np.random.default_rng(4).normal(0, 1, (400, 3)).astype(np.float32))
    buffers["low"].add(np.random.default_rng(5).normal(3, 1, (400, 3)).astype(np.float32))
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    moved = previous[0] + 0.1
    gradients = []
    for by_hook in (True, False):
        part = EdgeAssignment(given, 0, 4)
        part.rng = np.random.default_rng(9)  # the same sample of the buffers both times
        actor = Actor(network)
        actor.load_flat(moved)
        optimizer = torch.optim.SGD(actor.parameters(), lr=1.0)
        torch.manual_seed(0)
        joint = JointObjective(part, linears(actor), actor.trunk, optimizer)
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


def test_every_optimizer_step_of_ppo_calls_the_hook(monkeypatch: pytest.MonkeyPatch, first_edge: Assign) -> None:
    calls: list[int] = []
    monkeypatch.setattr(JointObjective, "add", lambda self: calls.append(1))
    options = {"iterations": 2, "n_envs": 8, "n_steps": 16, "batch": 64, "epochs": 3, "checks": 10, "restarts": 1}
    train("ppo", first_edge(), options)
    assert len(calls) == 2 * 3 * (8 * 16 // 64)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_the_same_seed_gives_the_same_bytes(algorithm: str, first_edge: Assign) -> None:
    options = {"ppo": {"iterations": 2, "n_envs": 32, "checks": 20}, "a2c": {"steps": 1000, "checks": 20}}[algorithm]
    first, second = (train(algorithm, first_edge(), options) for _ in range(2))
    np.testing.assert_array_equal(first.theta, second.theta)
    assert first.head is not None and second.head is not None
    np.testing.assert_array_equal(first.head, second.head)


@pytest.mark.slow
def test_ppo_learns_a_drone_edge(first_edge: Assign, quality: Callable[..., Any]) -> None:
    given = first_edge()
    assert quality(given, train("ppo", given, {}).theta)[0].min() >= 0.99
