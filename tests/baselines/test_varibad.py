"""VariBAD: its bound against closed forms, its files, and 2-D navigation, where a belief must help at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dibs.baselines import varibad
from dibs.baselines.flat import Last
from dibs.baselines.ppo_core import collect
from dibs.baselines.registry import Run, Trained
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import Family
from dibs.files import write_tensors
from dibs.paths import Layout

from .navigation import Navigation

torch = pytest.importorskip("torch")

SMALL = varibad.Settings(
    steps=2000,
    hidden=(8,),
    rollouts=4,
    epochs=2,
    minibatch=256,
    latent=2,
    recurrent=6,
    embedding=4,
    decoder=(8,),
    vae_updates=2,
    vae_episodes=8,
    check_every=2,
    check_rollouts=5,
)
SHAPE = varibad.Shape(3, 2, 2, 6, 4, (8,), (8,))


def parameters(seed: int = 0) -> dict[str, np.ndarray]:
    return varibad.initial(SHAPE, 0.5, np.random.default_rng(seed))


def told(time: int, episodes: int, seed: int = 0) -> varibad.Told:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, time + 1, episodes)
    lengths[0] = time
    arrays = (
        rng.standard_normal((time + 1, episodes, 3)),
        rng.uniform(-1, 1, (time, episodes, 2)),
        rng.standard_normal((time, episodes)),
        np.arange(time)[:, None] < lengths,
    )
    return varibad.Told(*(torch.from_numpy(np.asarray(a, dtype=np.float32)) for a in arrays))


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
    p["belief"][:, SHAPE.latent :] = 0.0
    p["belief_bias"][SHAPE.latent :] = -60.0  # no spread
    episode = told(5, 1)
    monkeypatch.setattr(varibad, "_some", lambda rng, count, below: torch.arange(int(below[0]))[:, None])
    reconstruction, kl = varibad.elbo_loss(SHAPE, p, episode, SMALL, np.random.default_rng(0))
    mean, log_var = varibad.encode(p, episode.actions, episode.observations[1:], episode.rewards)
    decoder = p["decoder"].numpy()
    losses = []
    for t in range(6):
        inputs = [
            torch.cat([mean[t, 0], episode.observations[s, 0], episode.observations[s + 1, 0], episode.actions[s, 0]])
            for s in range(5)
        ]
        predicted = varibad.linear(SHAPE.decoder, decoder, torch.stack(inputs).numpy())
        losses.append(((predicted - episode.rewards[:, 0].numpy()) ** 2).sum())
    assert float(reconstruction) == pytest.approx(np.mean(losses), rel=1e-4)
    assert float(kl) == pytest.approx(float(varibad.divergence(mean, log_var).mean()), rel=1e-4)


def test_what_follows_an_episodes_end_does_not_matter() -> None:
    p = {name: torch.from_numpy(array) for name, array in parameters().items()}
    first = told(6, 5)
    over = first.alive == 0
    assert over.any()
    second = varibad.Told(
        torch.cat([first.observations[:1], torch.where(over[..., None], 99.0, first.observations[1:])]),
        torch.where(over[..., None], 0.5, first.actions),
        torch.where(over, -3.0, first.rewards),
        first.alive,
    )
    losses = [varibad.elbo_loss(SHAPE, p, x, SMALL, np.random.default_rng(0)) for x in (first, second)]
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
    episode = told(7, 4)
    mean, log_var = varibad.encode(
        {name: torch.from_numpy(array) for name, array in arrays.items()},
        episode.actions,
        episode.observations[1:],
        episode.rewards / 2.0,
    )
    acting = varibad.Acting(SHAPE, arrays)
    acting.start([0], 4)
    last = None
    for t in range(8):
        seen = acting.look(episode.observations[t].numpy()[None], last)
        belief = np.concatenate([mean[t].numpy(), log_var[t].numpy()], axis=-1)
        assert seen[0, :, 3:] == pytest.approx(belief, abs=1e-5)
        if t < 7:
            last = Last(episode.actions[t].numpy()[None], episode.rewards[t].numpy()[None], np.ones((1, 4), dtype=bool))


def test_the_policy_does_not_train_the_encoder() -> None:
    rng = np.random.default_rng(0)
    task = Navigation(arc(rng, 3))
    learner = varibad.Learner(task, replace(SMALL, vae_updates=0), rng)
    before = {name: array.copy() for name, array in learner.parameters.items()}
    learner.iterate(task)
    changed = {name for name, array in learner.parameters.items() if (array != before[name]).any()}
    assert changed == {*varibad.POLICY, "reward_scale"}


# --- on a family -----------------------------------------------------------------------------------------


def run_of(family: Family, seed: int = 0) -> Run:
    return Run(family, family.name, family.specification, 2, seed, Layout(Path("unused")))


def saved(trained: Trained, path: Path) -> Path:
    write_tensors(path, trained.tensors, trained.metadata)
    return path


@pytest.fixture(scope="module")
def trained(tiny: Family) -> Trained:
    return varibad.train(run_of(tiny), SMALL)


def test_the_same_seed_gives_the_same_bytes(tiny: Family, trained: Trained, tmp_path: Path) -> None:
    first, again = saved(trained, tmp_path / "1"), saved(varibad.train(run_of(tiny), SMALL), tmp_path / "2")
    other = saved(varibad.train(run_of(tiny, seed=1), SMALL), tmp_path / "3")
    assert first.read_bytes() == again.read_bytes()
    assert first.read_bytes() != other.read_bytes()


def test_an_index_is_measured_alike_in_any_company(tiny: Family, trained: Trained, tmp_path: Path) -> None:
    path = saved(trained, tmp_path / "varibad.safetensors")
    settings = EvaluationSettings(rollouts=50)
    together = varibad.count(tiny, tiny.specification, path, 0, [0, 1, 2, 3, 4, 7], settings)
    apart = varibad.count(tiny, tiny.specification, path, 0, [3], settings)
    assert together[3] == apart[3]
    assert list(together) == [0, 1, 2, 3, 4, 7]


def test_divergence_is_told_and_solves_nothing(tiny: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    iterate = varibad.Learner.iterate

    def explode(learner: varibad.Learner, task: Any) -> Any:
        episodes = iterate(learner, task)
        learner.parameters["actor"][0] = np.nan
        return episodes

    monkeypatch.setattr(varibad.Learner, "iterate", explode)
    result = varibad.train(run_of(tiny), SMALL)
    assert result.metrics["diverged"] and result.metadata["diverged"]
    path = saved(result, tmp_path / "varibad.safetensors")
    counts = varibad.count(tiny, tiny.specification, path, 0, [0, 1], EvaluationSettings(rollouts=5))
    assert counts == {0: 0, 1: 0}


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
        learner = varibad.Learner(unseen, varibad.Settings(latent=latent), rng)
        for _ in range(60):
            learner.iterate(Navigation(arc(rng, 16)))
        acting = varibad.Acting(learner.shape, learner.parameters)
        returns[latent] = collect(unseen, acting, unseen.draw(1, rng), lambda mean: mean).returns.mean()
    print(f"mean return of the first episode without belief {returns[0]:.2f}, with {returns[5]:.2f}")
    assert returns[5] > 0.7 * returns[0]  # returns are negative
