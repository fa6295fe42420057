"""MAML: its gradients against plain loops, its files, and 2-D navigation, where one step of adaptation must help."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dibs.baselines import maml
from dibs.baselines.flat import FlatView
from dibs.baselines.ppo_core import (
    Experience,
    advantages,
    collect,
    discounted,
    gaussian_noise,
    log_probability,
    meta_train,
    standardize,
)
from dibs.families import Family
from dibs.methods import Model
from dibs.policies.network import Network
from dibs.simulation import SpecTask, Task, draw, rollout

from .navigation import VIEW, Navigation
from .small import SETTINGS, Small

torch = pytest.importorskip("torch")

SMALL: maml.Settings = SETTINGS["maml"]


# --- gradients -------------------------------------------------------------------------------------------


def some_batch(network: Network, theta: np.ndarray, tasks: int, rng: np.random.Generator) -> maml.PolicyBatch:
    inputs = rng.standard_normal((tasks, 12, network.inputs))
    actions = rng.standard_normal((tasks, 12, network.outputs))
    mean = network.forward(theta[: network.size], inputs.copy())
    sampled = log_probability(mean, theta[network.size :], actions)
    weight = (rng.random((tasks, 12)) < 0.8).astype(float)
    arrays = (inputs, actions, rng.standard_normal((tasks, 12)), weight, sampled)
    return maml.PolicyBatch(*(torch.from_numpy(np.asarray(a, dtype=np.float64)) for a in arrays))


@pytest.fixture
def problem() -> tuple[Network, Any, maml.PolicyBatch, maml.PolicyBatch, maml.Settings]:
    rng = np.random.default_rng(0)
    network = Network(3, (5, 4), 2)
    theta = maml.initial(network, 0.5, rng).astype(np.float64) + 0.1 * rng.standard_normal(network.size + 2)
    batches = [some_batch(network, theta, 3, rng) for _ in range(2)]
    settings = replace(SMALL, inner_step=0.3, entropy=0.01, before=0.25)
    return network, torch.from_numpy(theta), *batches, settings


def naive_meta_loss(
    network: Network, theta: Any, before: maml.PolicyBatch, after: maml.PolicyBatch, s: maml.Settings
) -> Any:
    """The same loss as a loop over tasks with `create_graph`."""
    total = 0.0
    for t in range(len(before.weight)):
        b, fresh = (maml.PolicyBatch(*(x[t] for x in batch)) for batch in (before, after))
        ratio = maml.log_ratio(network, theta, b).exp()
        inner = -(b.weight * ratio * b.advantages).sum() / b.weight.sum()
        (slope,) = torch.autograd.grad(inner, theta, create_graph=True)
        own = theta - s.inner_step * slope
        new = maml.log_ratio(network, own, fresh).exp()
        gain = torch.minimum(new * fresh.advantages, new.clamp(1 - s.clip, 1 + s.clip) * fresh.advantages)
        loss = -(fresh.weight * gain).sum() / fresh.weight.sum() - s.entropy * own[network.size :].sum()
        gain = torch.minimum(ratio * b.advantages, ratio.clamp(1 - s.clip, 1 + s.clip) * b.advantages)
        total = total + (1 - s.before) * loss - s.before * (b.weight * gain).sum() / b.weight.sum()
    return total / len(before.weight)


def test_meta_gradient_is_that_of_a_plain_loop(problem: Any) -> None:
    network, theta, before, after, s = problem
    found = torch.func.grad(lambda x: maml.meta_loss(network, x, before, after, s))(theta)
    start = theta.clone().requires_grad_()
    (expected,) = torch.autograd.grad(naive_meta_loss(network, start, before, after, s), start)
    assert torch.allclose(found, expected, atol=1e-10)


def test_meta_gradient_is_the_slope_of_the_loss(problem: Any) -> None:
    network, theta, before, after, s = problem
    s = replace(s, clip=100.0)  # without kinks
    found = torch.func.grad(lambda x: maml.meta_loss(network, x, before, after, s))(theta)
    rng = np.random.default_rng(1)
    for _ in range(5):
        along = torch.from_numpy(rng.standard_normal(len(theta)))
        up, down = (maml.meta_loss(network, theta + e * along, before, after, s) for e in (1e-5, -1e-5))
        assert float((up - down) / 2e-5) == pytest.approx(float(found @ along), rel=1e-5, abs=1e-7)


def test_the_gradient_is_of_second_order(problem: Any) -> None:
    network, theta, before, after, s = problem
    s = replace(s, before=0.0)
    found = torch.func.grad(lambda x: maml.meta_loss(network, x, before, after, s))(theta)
    own = maml.adapt(network, theta, before, s.inner_step)
    still = replace(s, inner_step=0.0)
    first_order = torch.stack(
        [
            torch.func.grad(
                lambda x, t=t: maml.meta_loss(
                    network, x, *(maml.PolicyBatch(*(a[t : t + 1] for a in b)) for b in (before, after)), still
                )
            )(own[t])
            for t in range(3)
        ]
    ).mean(0)
    assert not torch.allclose(found, first_order, rtol=1e-3)


def test_adaptation_is_one_policy_gradient_step(problem: Any) -> None:
    network, theta, before, _, s = problem
    own = maml.adapt(network, theta, before, s.inner_step)
    for t in range(3):
        b = maml.PolicyBatch(*(x[t] for x in before))
        start = theta.clone().requires_grad_()
        probability = maml.log_ratio(network, start, b) + b.sampled  # as a logarithm
        loss = -(b.weight * probability * b.advantages).sum() / b.weight.sum()
        (slope,) = torch.autograd.grad(loss, start)
        assert torch.allclose(own[t], theta - s.inner_step * slope, atol=1e-10)


# --- the shared helpers ----------------------------------------------------------------------------------


def episodes(rewards: np.ndarray, alive: np.ndarray, ended: np.ndarray) -> Experience:
    """One task, one rollout."""
    column = [np.asarray(x, dtype=np.float32)[:, None, None] for x in (rewards, alive, ended)]
    inputs = np.zeros((len(rewards) + 1, 1, 1, 1), dtype=np.float32)
    return Experience(inputs, inputs[:-1], *column)


@pytest.mark.parametrize("cut_off", [True, False])
def test_advantages_follow_their_definition(cut_off: bool) -> None:
    rng = np.random.default_rng(0)
    rewards, values = rng.random(4), rng.random(5)
    gamma, trace = 0.9, 0.8
    found = advantages(
        episodes(rewards, np.ones(4), np.zeros(4)), values[:, None, None].astype(np.float32), gamma, trace, cut_off
    )[:, 0, 0]
    after = np.append(values[1:4], values[4] if cut_off else 0.0)
    errors = rewards + gamma * after - values[:4]
    expected = [sum((gamma * trace) ** (k - t) * errors[k] for k in range(t, 4)) for t in range(4)]
    assert found == pytest.approx(expected, rel=1e-5)


def test_nothing_counts_after_the_end() -> None:
    alive, ended = np.array([1, 1, 0, 0]), np.array([0, 1, 0, 0])
    values = np.full((5, 1, 1), 7.0, dtype=np.float32)
    found = advantages(episodes(np.array([1.0, 2.0, 0, 0]), alive, ended), values, 1.0, 1.0, True)[:, 0, 0]
    assert found == pytest.approx([3.0 - 7.0, 2.0 - 7.0, 0.0, 0.0])


def test_standardize_uses_the_weight() -> None:
    rng = np.random.default_rng(0)
    values, weight = rng.random((6, 2, 5)), (rng.random((6, 2, 5)) < 0.7).astype(float)
    found = standardize(values, weight, axes=(0, 2))
    for t in range(2):
        kept = found[:, t][weight[:, t] > 0]
        assert (kept.mean(), kept.std()) == pytest.approx((0.0, 1.0), abs=1e-6)
        assert not found[:, t][weight[:, t] == 0].any()


class Planned:
    """A learner whose success is planned; its parameter counts iterations."""

    def __init__(self, rates: list[float]) -> None:
        self.rates, self.parameters = rates, {"theta": np.zeros(1)}

    def iterate(self, task: SpecTask) -> int:
        self.parameters["theta"] += 1.0
        return 10

    def check(self, task: SpecTask) -> tuple[list[np.ndarray], int]:
        return [np.arange(100)[None] < 100 * self.rates[int(self.parameters["theta"][0]) - 1]], 1


@pytest.mark.parametrize(
    ("rates", "best", "converged"),
    [([0.95, 0.5, 1.0, 1.0, 1.0], 4, True), ([0.95, 0.5, 1.0, 0.98, 0.98], 3, False), ([0.5, 0.95, 0.1], 2, False)],
)
def test_training_keeps_the_best_and_stops_when_converged(
    small: Small, rates: list[float], best: int, converged: bool
) -> None:
    settings = replace(SMALL, steps=11 * len(rates), check_every=1, converged=0.99, patience=2)
    messages: list[str] = []
    training = replace(small.training(), progress=lambda message, *_: messages.append(message))
    model = meta_train(training, settings, "planned", lambda *_: Planned(rates))
    assert model.tensors["theta"].tolist() == [best] and model.metrics["best"]["rate"] == rates[best - 1]
    assert model.metrics["converged"] is converged and not model.metrics["diverged"]
    assert len(messages) == len(model.metrics["curve"]) == model.metrics["iterations"] == len(rates) - converged
    assert model.steps == 11 * model.metrics["iterations"] == model.metrics["curve"][-1]["steps"]


def test_discounted_sums_are_those_of_a_loop() -> None:
    rewards = np.random.default_rng(0).normal(size=(6, 2, 3))
    found = discounted(rewards, 0.9)
    for t in range(6):
        np.testing.assert_allclose(found[t], sum(0.9 ** (t - s) * rewards[s] for s in range(t + 1)))


def test_collected_episodes_are_what_was_done_and_met(tiny: Family) -> None:
    """Replay the recorded actions with the task itself, step by step."""
    task = SpecTask(tiny.tasks([0, 3]))
    view = FlatView.of_tasks(tiny.tasks([0, 4]), observe_stage=True)
    network, rng = Network(view.size, (8,), 2), np.random.default_rng(0)
    theta = maml.initial(network, 0.5, rng)
    theta[network.size - 2 : network.size] = [2.0, 0.7]
    draws = draw(task, 6, rng)
    policy = maml.acting(network, theta, view, np.random.default_rng(1))
    found = collect(task, policy, view.seen(task.environment), draws)
    noise = gaussian_noise(np.random.default_rng(1), theta[network.size :])
    states, progress = draws.starts, task.begin(draws.starts)
    for t in range(len(found.rewards)):
        inputs = view.inputs(states, progress.stage)
        assert np.array_equal(found.inputs[t], inputs)
        assert np.array_equal(found.actions[t], noise(network.forward(theta[: network.size], inputs)))
        states = task.environment.step(states, found.actions[t], draws.noise[t])
        after = task.advance(progress, states)
        assert np.array_equal(found.rewards[t], task.reward(progress, after, t))
        assert np.array_equal(found.alive[t], progress.alive)
        assert np.array_equal(found.ended[t], progress.alive & ~after.alive)
        progress = after
    assert np.array_equal(found.inputs[-1], view.inputs(states, progress.stage))
    assert found.steps == found.alive.sum() and found.ended.any()


# --- on a family -----------------------------------------------------------------------------------------


def test_the_budget_is_kept_and_steps_are_counted(tiny: Family, trained: Callable[[str], Model]) -> None:
    # One iteration and one check may begin before the budget is spent.
    model = trained("maml")
    most = tiny.horizon * 2 * 3 * (2 * SMALL.rollouts + SMALL.rollouts + 2 * SMALL.check_rollouts)
    assert model.metrics["converged"] or SMALL.steps <= model.steps <= SMALL.steps + most  # type: ignore[operator]
    assert model.metrics["curve"][-1]["steps"] == model.steps


def test_each_index_is_adapted_to_on_its_own(tiny: Family, trained: Callable[[str], Model]) -> None:
    model = trained("maml")
    together = maml.adapted_policy(model, tiny.tasks([1, 3, 7]))
    apart = maml.adapted_policy(model, tiny.tasks([3]))
    assert isinstance(together, maml.FlatPolicy) and isinstance(apart, maml.FlatPolicy)
    assert np.array_equal(together.theta[1], apart.theta[0])
    zero_shot = maml.policy(model, tiny.tasks([3]))
    assert isinstance(zero_shot, maml.FlatPolicy)
    assert not np.array_equal(zero_shot.theta, apart.theta[0])


def test_parameters_are_those_of_the_network_and_of_the_exploration(trained: Callable[[str], Model]) -> None:
    model = trained("maml")
    network = Network(len(model.tensors["center"]) + 1, SMALL.hidden, 2, SMALL.activation)
    assert model.tensors["theta"].shape == (network.size + network.outputs,)
    assert not model.metadata["diverged"] and model.metadata["seed"] == 0


def test_divergence_is_recorded_and_solves_nothing(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(learner: maml.Learner, task: Task) -> int:
        learner.theta[0] = np.nan
        return 1

    monkeypatch.setattr(maml.Learner, "iterate", explode)
    model = small.train("maml")
    assert model.metrics["diverged"] and model.metadata["diverged"]
    assert np.isfinite(model.tensors["theta"]).all()


def test_few_of_many_tasks_are_drawn_each_time(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[tuple[int, ...]] = []
    iterate = maml.Learner.iterate

    def listen(learner: maml.Learner, task: SpecTask) -> int:
        met.append(task.indices)
        return iterate(learner, task)

    monkeypatch.setattr(maml.Learner, "iterate", listen)
    maml.train(small.training(), replace(SMALL, tasks=2))
    assert {len(indices) for indices in met} == {2} and {i for indices in met for i in indices} == {0, 2, 4}
    assert all(list(indices) == sorted(indices) for indices in met)


# --- where its own literature says it must succeed -------------------------------------------------------


def goals(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.uniform(-0.5, 0.5, (count, 2)).astype(np.float32)


@pytest.mark.slow
def test_one_step_of_adaptation_finds_unseen_goals() -> None:
    settings = maml.Settings(before=0.0, inner_step=0.1, gamma=0.99, rollouts=20, epochs=5)
    rng = np.random.default_rng(0)
    learner = maml.Learner(Navigation(goals(rng, 20)), VIEW, settings, rng)
    for _ in range(60):
        learner.iterate(Navigation(goals(rng, 20)))
    unseen = Navigation(goals(np.random.default_rng(9), 40))
    _, _, own = learner.explore(unseen)
    draws = draw(unseen, 1, rng)
    before, after = (
        rollout(unseen, maml.acting(learner.network, theta, VIEW), draws).returns.mean()
        for theta in (learner.theta, own)
    )
    print(f"mean return before adaptation {before:.2f}, after {after:.2f}")
    assert after > 0.75 * before  # returns are negative: at least a quarter of the way is saved
