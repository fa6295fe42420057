"""Baselines as the paper seems to have run them: variants by their defaults, nothing else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from dibs.baselines import ars, bc, genrl
from dibs.families import Family
from dibs.methods import Training, get_method
from dibs.settings import parse_settings

from .small import Small


@pytest.mark.parametrize("name", ["ars-plain", "bc-plain"])
def test_plain_policies_see_the_state_only(small: Small, name: str) -> None:
    method = get_method(name)
    few = {"steps": 3000, "restarts": 1, "check_rollouts": 5} if name == "ars-plain" else {"max_steps": 5}
    settings = parse_settings(method.settings, {**method.defaults, **few})
    model = method.train(small.training(), settings)
    assert model.metadata["observe_stage"] is False
    assert model.metadata["network"]["inputs"] == 2
    assert get_method(name.removesuffix("-plain")).settings is method.settings


def test_plain_methods_share_training_and_version_with_the_strong_ones() -> None:
    for plain, strong in ((ars.PLAIN, ars.METHOD), (bc.PLAIN, bc.METHOD), (genrl.PUBLIC, genrl.METHOD)):
        assert plain.train is strong.train and plain.policy is strong.policy and plain.version == strong.version
        assert plain.defaults and not strong.defaults
        assert (plain.color, plain.label, plain.name) != (strong.color, strong.label, strong.name)


def test_the_public_softmin_is_that_of_unscaled_returns() -> None:
    returns = np.array([[[-0.1], [-0.3], [-50.0]]])
    there = np.array([[True, True, False]])
    settings = genrl.Settings(aggregation="log-sum", beta=1.0)
    found = genrl._combined(returns, there, settings, 10.0)[0, 0]
    assert found == pytest.approx(-math.log(math.exp(1.0) + math.exp(3.0)))
    far = genrl._combined(returns * 1e4, there, settings, 10.0)[0, 0]
    assert far == pytest.approx(-3e4)  # no overflow


def test_the_public_genrl_trains_its_own_base_of_its_own_shape(tiny: Family) -> None:
    split = tiny.split("gap2")
    training = Training(tiny.tasks(split.indices), "tiny", split, 0)
    settings = parse_settings(genrl.Settings, {**genrl.PUBLIC.defaults, "hidden": [5, 4]})
    start, steps = genrl.own_base(training, settings)
    assert start.network.hidden == (5, 4) and start.network.activation == "relu"
    assert start.train == (0, 2, 4) and start.base_index.tolist() == [0, 0] and steps > 0
    quick = {"rollouts": 1, "check_rollouts": 4, "check_every": 1, "directions": 2, "best": 1, "steps": 500}
    model = genrl.train(training, replace(settings, **quick))
    searched = model.metrics["variants"]["own"]["steps"]
    assert model.metrics["base_steps"] == steps > 500 <= searched  # the base does not eat up the budget for κ
    assert model.steps_on(["start>a", "a>b"]) == pytest.approx(steps + searched, abs=2)
    search = genrl.KappaSearch(training.tasks, start, settings, np.random.default_rng(0))
    assert search.origin.shape == (2, 2, start.network.size) and (search.scale == 1.0).all()
    assert np.abs(search.origin - np.eye(2)[:, :1, None]).max() > 0.5  # κ starts at random, not at the identity
