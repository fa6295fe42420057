"""MAML: its gradients against plain loops, its files, and 2-D navigation, where one step of adaptation must help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dibs.baselines import maml
from dibs.baselines.ppo_core import Episodes, Watch, advantages, collect, standardise
from dibs.baselines.registry import Run, Trained
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family
from dibs.files import write_tensors
from dibs.paths import Layout
from dibs.policies.network import Network

from .navigation import Navigation

torch = pytest.importorskip("torch")

SMALL = maml.Settings(steps=4000, hidden=(8,), rollouts=4, epochs=2, check_every=2, check_rollouts=5)


# --- gradients -------------------------------------------------------------------------------------------


def some_batch(network: Network, theta: np.ndarray, tasks: int, rng: np.random.Generator) -> maml.Batch:
    observations = rng.standard_normal((tasks, 12, network.inputs))
    actions = rng.standard_normal((tasks, 12, network.outputs))
    mean = network.forward(theta[: network.size], observations.copy())
    sampled = maml.log_probability(mean, theta[network.size :], actions, np.exp)
    weight = (rng.random((tasks, 12)) < 0.8).astype(float)
    arrays = (observations, actions, rng.standard_normal((tasks, 12)), weight, sampled)
    return maml.Batch(*(torch.from_numpy(np.asarray(a, dtype=np.float64)) for a in arrays))


@pytest.fixture
def problem() -> tuple[Network, Any, maml.Batch, maml.Batch, maml.Settings]:
    rng = np.random.default_rng(0)
    network = Network(3, (5, 4), 2)
    theta = maml.initial(network, 0.5, rng).astype(np.float64) + 0.1 * rng.standard_normal(network.size + 2)
    batches = [some_batch(network, theta, 3, rng) for _ in range(2)]
    settings = replace(SMALL, inner_step=0.3, entropy=0.01, before=0.25)
    return network, torch.from_numpy(theta), *batches, settings


def naive_meta_loss(network: Network, theta: Any, before: maml.Batch, after: maml.Batch, s: maml.Settings) -> Any:
    """The same loss as a loop over tasks with `create_graph`."""
    total = 0.0
    for t in range(len(before.weight)):
        b, fresh = (maml.Batch(*(x[t] for x in batch)) for batch in (before, after))
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
    own = maml.adapt_all(network, theta, before, s.inner_step)
    still = replace(s, inner_step=0.0)
    first_order = torch.stack(
        [
            torch.func.grad(
                lambda x, t=t: maml.meta_loss(
                    network, x, *(maml.Batch(*(a[t : t + 1] for a in b)) for b in (before, after)), still
                )
            )(own[t])
            for t in range(3)
        ]
    ).mean(0)
    assert not torch.allclose(found, first_order, rtol=1e-3)


def test_adaptation_is_one_policy_gradient_step(problem: Any) -> None:
    network, theta, before, _, s = problem
    own = maml.adapt_all(network, theta, before, s.inner_step)
    for t in range(3):
        b = maml.Batch(*(x[t] for x in before))
        start = theta.clone().requires_grad_()
        log_probability = maml.log_ratio(network, start, b) + b.sampled
        loss = -(b.weight * log_probability * b.advantages).sum() / b.weight.sum()
        (slope,) = torch.autograd.grad(loss, start)
        assert torch.allclose(own[t], theta - s.inner_step * slope, atol=1e-10)


# --- the shared helpers ----------------------------------------------------------------------------------


def episodes(rewards: np.ndarray, alive: np.ndarray, ended: np.ndarray) -> Episodes:
    """One task, one rollout."""
    column = [np.asarray(x, dtype=np.float32)[:, None, None] for x in (rewards, alive, ended)]
    seen = np.zeros((len(rewards) + 1, 1, 1, 1), dtype=np.float32)
    return Episodes(seen, seen[:-1], *column, success=np.zeros((1, 1), dtype=bool))


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


def test_standardise_heeds_the_weight() -> None:
    rng = np.random.default_rng(0)
    values, weight = rng.random((6, 2, 5)), (rng.random((6, 2, 5)) < 0.7).astype(float)
    found = standardise(values, weight, axes=(0, 2))
    for t in range(2):
        kept = found[:, t][weight[:, t] > 0]
        assert (kept.mean(), kept.std()) == pytest.approx((0.0, 1.0), abs=1e-6)
        assert not found[:, t][weight[:, t] == 0].any()


def test_watch_keeps_the_best_and_stops_when_converged() -> None:
    watch = Watch(rate=0.99, patience=2)

    def report(rate: float, value: float) -> bool:
        success = np.arange(100)[None] < 100 * rate
        return watch.report(0, [success], {"theta": np.array([value])})

    assert not report(0.95, 1.0)
    assert not report(0.5, 2.0)
    assert watch.tensors["theta"] == 1.0
    assert not report(1.0, 3.0)
    assert report(1.0, 4.0)
    assert watch.tensors["theta"] == 4.0


# --- on a family -----------------------------------------------------------------------------------------


def run_of(family: Family, seed: int = 0) -> Run:
    return Run(family, family.name, family.specification, 2, seed, Layout(Path("unused")))


def saved(trained: Trained, path: Path) -> Path:
    write_tensors(path, trained.tensors, trained.metadata)
    return path


@pytest.fixture(scope="module")
def trained(tiny: Family) -> Trained:
    return maml.train(run_of(tiny), SMALL)


def test_the_same_seed_gives_the_same_bytes(tiny: Family, trained: Trained, tmp_path: Path) -> None:
    first, again = saved(trained, tmp_path / "1"), saved(maml.train(run_of(tiny), SMALL), tmp_path / "2")
    other = saved(maml.train(run_of(tiny, seed=1), SMALL), tmp_path / "3")
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes() != other.read_bytes()


def test_the_budget_is_kept_and_steps_are_counted(tiny: Family, trained: Trained) -> None:
    # One iteration and one check may begin before the budget is spent.
    most = tiny.horizon * 2 * 3 * (2 * SMALL.rollouts + SMALL.rollouts + 2 * SMALL.check_rollouts)
    assert trained.metrics["converged"] or SMALL.steps <= trained.steps <= SMALL.steps + most
    assert trained.metrics["curve"][-1]["steps"] == trained.steps


@pytest.mark.parametrize("counter", [maml.count, maml.count_adapted])
def test_an_index_is_measured_alike_in_any_company(
    tiny: Family, trained: Trained, tmp_path: Path, counter: Any
) -> None:
    path = saved(trained, tmp_path / "maml.safetensors")
    settings = EvaluationSettings(rollouts=50)
    together = counter(tiny, tiny.specification, path, 0, [0, 1, 2, 3, 4, 7], settings)
    apart = counter(tiny, tiny.specification, path, 0, [3], settings)
    assert together[3] == apart[3]
    assert list(together) == [0, 1, 2, 3, 4, 7]


def test_saved_parameters_are_the_trained_ones(trained: Trained, tmp_path: Path) -> None:
    network, theta, settings, diverged = maml._load(saved(trained, tmp_path / "maml.safetensors"))
    assert theta.tobytes() == trained.tensors["theta"].tobytes()
    assert (settings, diverged) == (SMALL, False)
    assert theta.size == network.size + network.outputs


def test_divergence_is_told_and_solves_nothing(tiny: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(learner: maml.Learner, task: Any) -> Any:
        met, _, _ = maml.explore(learner.network, learner.theta, task, learner.settings, learner.rng)
        learner.theta[0] = np.nan
        return met, met

    monkeypatch.setattr(maml.Learner, "iterate", explode)
    result = maml.train(run_of(tiny), SMALL)
    assert result.metrics["diverged"] and result.metadata["diverged"]
    path = saved(result, tmp_path / "maml.safetensors")
    for counter in (maml.count, maml.count_adapted):
        assert counter(tiny, tiny.specification, path, 0, [0, 1], EvaluationSettings(rollouts=5)) == {0: 0, 1: 0}


# --- where its own literature says it must succeed -------------------------------------------------------


def goals(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.uniform(-0.5, 0.5, (count, 2)).astype(np.float32)


@pytest.mark.slow
def test_one_step_of_adaptation_finds_unseen_goals() -> None:
    settings = maml.Settings(before=0.0, inner_step=0.1, gamma=0.99, rollouts=20, epochs=5)
    rng = np.random.default_rng(0)
    learner = maml.Learner(Navigation(goals(rng, 20)), settings, rng)
    for _ in range(60):
        learner.iterate(Navigation(goals(rng, 20)))
    unseen = Navigation(goals(np.random.default_rng(9), 40))
    _, _, own = maml.explore(learner.network, learner.theta, unseen, settings, rng)
    before, after = (
        collect(unseen, maml.Acting(learner.network, theta), unseen.draw(1, rng), lambda mean: mean).returns.mean()
        for theta in (learner.theta, dict(enumerate(own)))
    )
    print(f"mean return before adaptation {before:.2f}, after {after:.2f}")
    assert after > 0.75 * before  # returns are negative: at least a quarter of the way is saved
