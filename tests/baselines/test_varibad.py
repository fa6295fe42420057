"""VariBAD: its bound against closed forms, its files, and 2-D navigation, where a belief must help at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from dibs.baselines import varibad
from dibs.baselines.flat import FlatView
from dibs.baselines.ppo_core import collect, gaussian_noise
from dibs.families import Family
from dibs.methods import Model
from dibs.simulation import Rewards, SpecTask, Task, draw, rollout

from .navigation import VIEW, Navigation
from .small import SETTINGS, Small

torch = pytest.importorskip("torch")

SMALL: varibad.Settings = SETTINGS["varibad"]
SHAPE = varibad.Sizes(3, 2, SMALL)
LATENT = SMALL.latent


def parameters(seed: int = 0) -> dict[str, np.ndarray]:
    return varibad.initial(SHAPE, np.random.default_rng(seed))


def history(time: int, episodes: int, seed: int = 0) -> varibad.History:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, time + 1, episodes)
    lengths[0] = time
    arrays = (
        rng.standard_normal((time + 1, episodes, 3)),
        rng.uniform(-1, 1, (time, episodes, 2)),
        rng.standard_normal((time, episodes)),
        np.arange(time)[:, None] < lengths,
    )
    return varibad.History(*(torch.from_numpy(np.asarray(a, dtype=np.float32)) for a in arrays))


# --- the bound -------------------------------------------------------------------------------------------


def test_divergence_is_that_of_gaussians() -> None:
    rng = np.random.default_rng(0)
    mean, log_var = (torch.from_numpy(rng.standard_normal((4, 3, 2))) for _ in range(2))
    found = varibad.divergence(mean, log_var)
    normal = torch.distributions.Normal
    before = normal(torch.zeros(3, 2).double(), torch.ones(3, 2).double())
    for t in range(4):
        now = normal(mean[t], (0.5 * log_var[t]).exp())
        expected = torch.distributions.kl_divergence(now, before).sum(-1)
        assert torch.allclose(found[t], expected)
        before = now


def test_the_bound_is_the_full_sum_where_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """With every posterior and every reward used, and latents at their means, against a plain double loop."""
    p = {name: torch.from_numpy(array) for name, array in parameters().items()}
    p["belief"][:, LATENT:] = 0.0
    p["belief_bias"][LATENT:] = -60.0  # no spread
    episode = history(5, 1)
    monkeypatch.setattr(varibad, "_some", lambda rng, count, below: torch.arange(int(below[0]))[:, None])
    reconstruction, kl = varibad.elbo_loss(SHAPE, p, episode, np.random.default_rng(0))
    mean, log_var = varibad.encode(p, episode.actions, episode.inputs[1:], episode.rewards)
    decoder = p["decoder"].numpy()
    losses = []
    for t in range(6):
        inputs = [
            torch.cat([mean[t, 0], episode.inputs[s, 0], episode.inputs[s + 1, 0], episode.actions[s, 0]])
            for s in range(5)
        ]
        predicted = SHAPE.decoder.linear(decoder, torch.stack(inputs).numpy())[:, 0]
        losses.append(((predicted - episode.rewards[:, 0].numpy()) ** 2).sum())
    assert float(reconstruction) == pytest.approx(np.mean(losses), rel=1e-4)
    assert float(kl) == pytest.approx(float(varibad.divergence(mean, log_var).mean()), rel=1e-4)


def test_what_follows_an_episodes_end_does_not_matter() -> None:
    p = {name: torch.from_numpy(array) for name, array in parameters().items()}
    first = history(6, 5)
    over = first.alive == 0
    assert over.any()
    second = varibad.History(
        torch.cat([first.inputs[:1], torch.where(over[..., None], 99.0, first.inputs[1:])]),
        torch.where(over[..., None], 0.5, first.actions),
        torch.where(over, -3.0, first.rewards),
        first.alive,
    )
    losses = [varibad.elbo_loss(SHAPE, p, x, np.random.default_rng(0)) for x in (first, second)]
    assert torch.allclose(losses[0][0], losses[1][0])
    assert torch.allclose(losses[0][1], losses[1][1])


def test_draws_are_below_their_bounds() -> None:
    below = torch.tensor([1.0, 3.0, 7.0])
    drawn = varibad._some(np.random.default_rng(0), 500, below)
    assert [sorted(set(drawn[:, i].tolist())) for i in range(3)] == [[0], [0, 1, 2], list(range(7))]


def test_numpy_and_torch_believe_the_same() -> None:
    arrays = parameters()
    rng = np.random.default_rng(1)
    for name in ("embed_bias", "gru_input_bias", "gru_hidden_bias", "belief_bias"):
        arrays[name] = rng.standard_normal(arrays[name].shape).astype(np.float32)
    arrays["reward_scale"][:] = 2.0
    episode = history(7, 4)
    mean, log_var = varibad.encode(
        {name: torch.from_numpy(array) for name, array in arrays.items()},
        episode.actions,
        episode.inputs[1:],
        episode.rewards / 2.0,
    )
    policy = varibad.BeliefPolicy(SHAPE, arrays, VIEW)
    memory, reward = policy.begin((1, 4)), None
    for t in range(8):
        inputs, units = policy.believe(episode.inputs[t].numpy()[None], reward, memory)
        belief = np.concatenate([mean[t].numpy(), log_var[t].numpy()], axis=-1)
        assert inputs[0, :, 3:] == pytest.approx(belief, abs=1e-5)
        if t < 7:
            memory = varibad.Memory(units, episode.actions[t].numpy()[None])
            reward = episode.rewards[t].numpy()[None]


@pytest.mark.parametrize("latent", [0, 2])
def test_the_belief_follows_from_the_drawn_actions_and_the_rewards(tiny: Family, latent: int) -> None:
    """Replay recorded episodes: the same beliefs, so the memory holds what was drawn and not the mean."""
    task = SpecTask(tiny.tasks([0, 3]), Rewards("progress", 0.3, 0.1))
    view, rng = FlatView.of_tasks(tiny.tasks([0, 4]), True), np.random.default_rng(0)
    sizes = varibad.Sizes(view.size, 2, replace(SMALL, latent=latent))
    parameters = varibad.initial(sizes, rng)
    policy = varibad.BeliefPolicy(sizes, parameters, view, explore=gaussian_noise(rng, parameters["log_std"]))
    episodes = collect(task, policy, view.seen(task.environment), draw(task, 5, rng))
    kept = policy.believed
    assert len(kept) == len(episodes.actions) > 1
    memory, reward = policy.begin((2, 5)), None
    for t, actions in enumerate(episodes.actions):
        inputs, units = policy.believe(episodes.inputs[t], reward, memory)
        assert np.array_equal(inputs, kept[t])
        assert np.abs(actions - sizes.actor.forward(parameters["actor"], inputs)).mean() > 0.1
        memory, reward = varibad.Memory(units, actions), episodes.rewards[t]


def test_the_policy_does_not_train_the_encoder() -> None:
    rng = np.random.default_rng(0)
    task = Navigation(arc(rng, 3))
    learner = varibad.Learner(task, VIEW, replace(SMALL, vae_updates=0), rng)
    before = {name: array.copy() for name, array in learner.parameters.items()}
    learner.iterate(task)
    changed = {name for name, array in learner.parameters.items() if (array != before[name]).any()}
    assert changed == {"actor", "critic", "log_std", "reward_scale"}


def test_the_most_recent_episodes_are_kept_in_whole_iterations() -> None:
    learner = varibad.Learner(Navigation(arc(np.random.default_rng(0), 3)), VIEW, SMALL, np.random.default_rng(0))
    learner.settings = replace(SMALL, vae_buffer=10)
    for n in range(4):  # six episodes each
        arrays = (np.full((5, 3, 2, *rest), n, dtype=np.float32) for rest in ((2,), (2,), (), (), ()))
        inputs, actions, rewards, alive, ended = arrays
        inputs = np.concatenate([inputs, inputs[:1]])
        learner._remember(varibad.ppo.Experience(inputs, actions, rewards, alive, ended), horizon=7)
    assert learner.history is not None and learner.history.inputs.shape == (8, 12, 2)
    assert learner.history.rewards[0].tolist() == [2.0] * 6 + [3.0] * 6
    assert learner.history.actions.max() == 1.0 and not learner.history.rewards[5:].any()  # clipped, padded


# --- on a family -----------------------------------------------------------------------------------------


def test_the_budget_is_kept_and_steps_are_counted(tiny: Family, trained: Callable[[str], Model]) -> None:
    # One iteration and one check may begin before the budget is spent.
    model = trained("varibad")
    most = tiny.horizon * 2 * 3 * (SMALL.rollouts + SMALL.check_rollouts)
    assert model.metrics["converged"] or SMALL.steps <= model.steps <= SMALL.steps + most  # type: ignore[operator]
    assert model.metrics["curve"][-1]["steps"] == model.steps


def test_divergence_is_recorded_and_solves_nothing(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    iterate = varibad.Learner.iterate

    def explode(learner: varibad.Learner, task: Task) -> int:
        steps = iterate(learner, task)
        learner.parameters["actor"][0] = np.nan
        return steps

    monkeypatch.setattr(varibad.Learner, "iterate", explode)
    model = small.train("varibad")
    assert model.metrics["diverged"] and model.metadata["diverged"]
    assert all(np.isfinite(tensor).all() for tensor in model.tensors.values())


# --- where its own literature says it must succeed -------------------------------------------------------


def arc(rng: np.random.Generator, count: int) -> np.ndarray:
    angle = rng.uniform(0.0, np.pi, count)
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32)


@pytest.mark.slow
def test_a_belief_finds_unseen_goals_within_the_first_episode() -> None:
    returns = {}
    unseen = Navigation(arc(np.random.default_rng(9), 60))
    for latent in (0, 5):
        rng = np.random.default_rng(0)
        learner = varibad.Learner(unseen, VIEW, varibad.Settings(latent=latent), rng)
        for _ in range(60):
            learner.iterate(Navigation(arc(rng, 16)))
        policy = varibad.BeliefPolicy(learner.sizes, learner.parameters, VIEW)
        returns[latent] = rollout(unseen, policy, draw(unseen, 1, rng)).returns.mean()
    print(f"mean return of the first episode without belief {returns[0]:.2f}, with {returns[5]:.2f}")
    assert returns[5] > 0.7 * returns[0]  # returns are negative
