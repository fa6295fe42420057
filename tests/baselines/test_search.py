"""The update of the random searches, and how GenRL unrolls and joins."""

from __future__ import annotations

import numpy as np
import pytest

from dibs.baselines import genrl
from dibs.baselines.ars import Shared
from dibs.baselines.search import ascent
from dibs.families import Family
from dibs.policies.network import Network
from dibs.policies.scaling import edge_scaling
from dibs.templates.template import Template


def test_the_update_follows_the_best_directions() -> None:
    rng = np.random.default_rng(0)
    scores, delta = rng.normal(size=(3, 10)), rng.normal(size=(3, 5, 4))
    for spread in ("best", "all"):
        found = ascent(scores, delta, 2, 0.5, spread)  # type: ignore[arg-type]
        for n in range(3):
            plus, minus = scores[n, :5], scores[n, 5:]
            top = sorted(range(5), key=lambda d: -max(plus[d], minus[d]))[:2]
            sigma = scores[n].std() if spread == "all" else np.r_[plus[top], minus[top]].std()
            expected = sum((plus[d] - minus[d]) * delta[n, d] for d in top) * 0.5 / (2 * sigma)
            np.testing.assert_allclose(found[n], expected)


def test_equal_scores_move_nothing() -> None:
    assert not ascent(np.ones((1, 6)), np.ones((1, 3, 2)), 2, 1.0, "all").any()


def test_candidates_act_each_with_its_own_parameters() -> None:
    network, rng = Network(3, (4,), 2), np.random.default_rng(0)
    theta = network.initial(rng, (5,))
    seen = rng.normal(size=(5, 2, 3, 3)).astype(np.float32)
    together = Shared(network, theta).act(seen, None)
    for c in range(5):
        np.testing.assert_allclose(together[c], Shared(network, theta[c]).act(seen[c], None), rtol=1e-5, atol=1e-6)


def test_softmin_leans_to_the_worst_task_and_ignores_tasks_without_a_policy() -> None:
    returns = np.array([[[-1.0], [-5.0], [-100.0]]])
    there = np.array([[True, True, False]])
    soft = genrl._join(returns, there, genrl.Settings(aggregation="softmin"))[0, 0]
    mean = genrl._join(returns, there, genrl.Settings(aggregation="mean"))[0, 0]
    assert mean == -3.0
    assert -5.0 < soft < -4.8


@pytest.mark.parametrize("start", ["random", "identity", "additive"])
def test_candidates_are_unrolled_as_the_template_will_be(tiny: Family, start: str) -> None:
    rng = np.random.default_rng(0)
    network, scaling = Network(2, (8,), 2), edge_scaling(tiny)
    names = tuple(edge.name for edge in tiny.edges)
    base, base_index = network.initial(rng, (2,)), np.array([0, 2])
    problem = genrl.Problem(tiny, names, (0, 2, 4), network, scaling, base, base_index)
    settings = genrl.Settings(start=start, rescale=start != "random")  # type: ignore[arg-type]
    search = genrl.Search(problem, settings, rng)
    z = rng.normal(size=search.origin.shape)
    kappa = search.origin + z / search.scale
    edges = np.arange(2)
    folded = genrl._policies(problem, edges, kappa[:, :, None]).reshape(2, 3, network.size)
    template = Template("genrl", "tiny", 2, 0, (0, 2, 4), names, network, scaling, kappa, base, base_index, {})
    for t, actors in enumerate(template.actors([0, 2, 4]).values()):
        np.testing.assert_allclose(folded[:, t], network.fold(actors, scaling.center, scaling.half), rtol=1e-5)
    assert search._there(edges).tolist() == [[True, True, True], [False, True, True]]


def test_a_search_goes_on_where_it_stopped(tiny: Family) -> None:
    rng = np.random.default_rng(0)
    network = Network(2, (8,), 2)
    names = tuple(edge.name for edge in tiny.edges)
    problem = genrl.Problem(
        tiny, names, (0, 4), network, edge_scaling(tiny), network.initial(rng, (2,)), np.zeros(2, dtype=np.int64)
    )
    settings = genrl.Settings(directions=2, best=2, check_every=1, check_rollouts=5, rollouts=1)

    def searched(*stops: int) -> genrl.Search:
        search = genrl.Search(problem, settings, np.random.default_rng(1))
        for stop in stops:
            search.advance(stop)
        return search

    assert np.array_equal(searched(3000).best_kappa, searched(1000, 3000).best_kappa)
    assert searched(3000).steps >= 3000
