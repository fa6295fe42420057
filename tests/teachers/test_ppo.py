"""PPO's teachers: if a search from scratch fails, another begins, and the best attempt is kept."""

from __future__ import annotations

import pytest

from dibs.families import get_family, load_family
from dibs.teachers.train import TeacherSettings, resolve, train_teacher

SHORT = {"n_envs": 16, "batch": 256, "iterations": 2, "checks": 20}  # too short to learn anything


@pytest.fixture(scope="module")
def family():
    whole = get_family("simpledrone-reach").description_data()
    one = {"name": "one", "specification": "achieve reach(g1)", "regions": {"g1": whole["regions"]["g1"]}}
    return load_family({**whole, **one, "benchmarks": {}, "network": {"hidden": [8]}})


def course(family, index=0, previous=None, **options):
    settings = TeacherSettings(options={**SHORT, **options}, rollouts=20, probes=20)
    settings = resolve(settings, family.teacher, family.teacher_options)
    tasks = family.tasks(sorted({0, index, family.last_index}))
    teacher, _, _ = train_teacher(tasks, family.split("gap5"), index, 0, previous, settings)
    return teacher, teacher.metrics["curve"]


def test_an_edge_that_fails_is_started_again_elsewhere(family):
    _, once = course(family, restarts=1)
    _, twice = course(family, restarts=2)
    assert twice[: len(once)] == once
    assert len(twice) == 2 * len(once)
    assert [look["steps"] for look in twice[len(once) :]] == [look["steps"] for look in once]
    assert twice[len(once) :] != once  # from other weights


def test_a_warm_start_is_not_repeated(family):
    """An edge on which the previous teacher failed has no warm start: it begins afresh, with restarts."""
    base, curve = course(family, restarts=1)
    (edge,) = base.metrics["edges"].values()
    assert edge["success"] < 0.5
    edge["success"] = 1.0
    assert len(course(family, 5, base, restarts=3)[1]) == len(curve)
    edge["success"] = 0.0
    assert len(course(family, 5, base, restarts=3)[1]) == 3 * len(curve)


def test_an_edge_that_succeeds_is_not_started_again(family, monkeypatch):
    from dibs.teachers import on_policy

    monkeypatch.setattr(on_policy, "GOOD", 0.0)
    _, curve = course(family, restarts=3)
    assert [look["steps"] for look in curve] == sorted(look["steps"] for look in curve)


def test_the_best_attempt_is_kept(family, monkeypatch):
    from dibs.teachers import on_policy

    bests, search = [], on_policy._search

    def spy(*args, **settings):
        found = search(*args, **settings)
        bests.append({**found, "best": ((0.2, 0.8, 0.5)[len(bests)], 0.0)})
        return bests[-1]

    monkeypatch.setattr(on_policy, "_search", spy)
    teacher, _ = course(family, restarts=3)
    assert (teacher.actor[0] == bests[1]["theta"]).all()
    assert not (teacher.actor[0] == bests[2]["theta"]).all()
