"""Figures of rollouts: choice trajectories, and the single and the branched template over the index."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from dibs.drawing.regions import ROLES
from dibs.drawing.style import save
from dibs.errors import DibsError
from dibs.evaluation.evaluate import EvaluationSettings, count_satisfied
from dibs.families import get_benchmark, get_family
from dibs.methods import get_method, load_model, save_model
from dibs.paper import trajectories
from dibs.policies.network import Network
from dibs.policies.scaling import edge_scaling
from dibs.seeding import stream
from dibs.settings import parse_settings
from dibs.stages import Unit, model_origin
from dibs.studies import style
from dibs.studies.reports import USUAL, Options, make
from dibs.templates.branched import Branched
from dibs.templates.guards import EdgeRecord
from dibs.templates.polynomial import identity
from dibs.templates.template import Template

QUICK = EvaluationSettings(rollouts=20)
pytestmark = pytest.mark.usefixtures("quick")


def template(family_name: str, split: str, seed: int = 0) -> Template:
    """Random base policies that stay as they are."""
    family = get_family(family_name)
    tasks, train = family.tasks([0, family.last_index]), family.split(split).indices
    environment = family.environment
    hidden = tuple(family.network.hidden)
    network = Network(environment.observation_dim, hidden, environment.action_dim, family.network.activation)
    names, one = tasks.edge_names, tuple(1.0 for _ in train)
    base = stream("random template", family_name, split, seed).normal(size=(len(names), network.size))
    records = {name: EdgeRecord(train, one, one) for name in names}
    zeros = np.zeros(len(names), dtype=int)
    return Template(train, names, network, edge_scaling(tasks), identity(1, base.shape), base, zeros, records)


def written(path: Path, of: Template | Branched, family: str, split: str, method: str = "dibs", seed: int = 0) -> Path:
    record, chosen = get_method(method), get_family(family)
    unit = Unit(family, chosen, chosen.specification, family)
    settings = parse_settings(record.settings, record.defaults)
    origin = model_origin(record, unit, chosen.split(split), seed, settings, ())
    save_model(path, of.to_model({}, {}), origin, asdict(settings))
    return path


# --- choice ----------------------------------------------------------------------------------------------


def test_trajectories_are_blue_where_trained(tmp_path):
    file = written(tmp_path / "t.safetensors", template("car2d-choice", "gap5"), "car2d-choice", "gap5")
    figure = make("choice_trajectories", [file])
    ax = figure.axes[0]
    colors = [to_rgb(line.get_color()) for line in ax.lines if line.get_marker() == "None"]
    blue, red = (colors.count(to_rgb(ROLES[role][0])) for role in ("train", "unseen"))
    assert (blue, red) == (5, 16)
    assert ax.get_title() == "DIBS, gap5, seed 0"
    save(figure, tmp_path / "t.png")
    assert (tmp_path / "t.png").stat().st_size > 5_000


def test_trajectories_of_one_template_among_many(tmp_path):
    files = [
        written(tmp_path / f"{n}.safetensors", template(family, split), family, split, method)
        for n, (family, split, method) in enumerate(
            [
                ("car2d-reach", "gap10", "dibs"),
                ("car2d-choice", "gap10", "dibs-plus"),
                ("car2d-choice", "gap10", "dibs"),
                ("car2d-choice", "gap5", "dibs"),
            ]
        )
    ]
    title = make("choice_trajectories", files, Options(split="gap10")).axes[0].get_title()
    assert title == "DIBS, gap10, seed 0"
    plus = make("choice_trajectories", files, Options(methods=("dibs-plus",))).axes[0].get_title()
    assert plus == "DIBS+, gap10, seed 0"
    with pytest.raises(DibsError, match="no template of car2d-switch among the inputs"):
        make("choice_trajectories", files, Options(benchmark="car2d-switch"))
    with pytest.raises(DibsError, match="no input has split gap4; they have gap10, gap5"):
        make("choice_trajectories", files, Options(split="gap4"))


# --- branching -------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path, monkeypatch) -> list[Path]:
    """A single template (never satisfying) and a branched one of two random modes, two seeds each."""
    monkeypatch.setattr(trajectories, "MEASURE", QUICK)
    found = []
    for seed in (0, 1):
        one = template("car2d-switch", "gap5", seed)
        other = replace(one, train=(15, 20), base=one.base[:, ::-1].copy(), base_index=np.array([15]))
        branched = Branched((0, 5, 10, 15, 20), (0, 0, 0, 1, 1), (replace(one, train=(0, 5, 10)), other))
        for method, of in (("dibs", one), ("dibs-branched", branched)):
            found.append(written(tmp_path / f"{method}-{seed}.safetensors", of, "car2d-switch", "gap5", method, seed))
    return found


def routes(ax) -> list:
    """Lines of routes, not of marks."""
    return [line for line in ax.lines if line.get_marker() == "None"]


def test_routes_and_rates_of_both(files, tmp_path):
    figure = make("branching", files)
    above, below = figure.axes[:2], figure.axes[2:4]
    assert [ax.get_title() for ax in above] == ["DIBS", "DIBS (branched)"]
    assert figure.get_figwidth() == style.WIDTH
    assert figure.get_suptitle() == "car2d-switch, gap5; routes of seed 0, rates of 2 seeds"
    colors = trajectories._colors(20)
    benchmark = get_benchmark("car2d-switch")
    for column, (up, down) in enumerate(zip(above, below, strict=True)):
        assert len(routes(up)) == 21
        dashed = [i for i, line in enumerate(routes(up)) if line.get_linestyle() != "-"]
        assert dashed == [i for i in range(21) if i % 5]  # unseen
        for i, line in enumerate(routes(up)):
            np.testing.assert_allclose(to_rgb(line.get_color()), to_rgb(tuple(colors.to_rgba(np.array(i)))))
        mean = next(line for line in down.lines if line.get_color() == trajectories.INK)
        method = get_method(("dibs", "dibs-branched")[column])
        seeds = [
            count_satisfied(
                method,
                load_model(files[column + 2 * s])[0],
                benchmark.family,
                benchmark.specification,
                range(21),
                20,
                s,
            )
            for s in (0, 1)
        ]
        np.testing.assert_allclose(mean.get_ydata(), [np.mean([counts[i] for counts in seeds]) / 20 for i in range(21)])
        seen, unseen = down.collections
        assert (len(seen.get_offsets()), len(unseen.get_offsets())) == (5, 16)
    switch = [line for line in below[1].lines if list(line.get_xdata()) == [12.5, 12.5]]
    assert len(switch) == 2  # one per seed
    save(figure, tmp_path / "b.png")
    save(figure, tmp_path / "b.pdf")
    assert (tmp_path / "b.png").stat().st_size > 10_000


def test_a_route_that_fails_is_marked_where_it_fails():
    benchmark = get_benchmark("car2d-switch")
    through = np.array([[0.0, 0.0], [0.0, 3.0], [0.0, 5.0], [0.0, 7.0]])
    assert trajectories._failed_at(benchmark, 10, through) == 2
    assert trajectories._failed_at(benchmark, 10, through[:2]) == 1


def test_only_what_was_run_appears(files):
    assert [ax.get_title() for ax in make("branching", files[:1]).axes[:1]] == ["DIBS"]
    figure = trajectories.branching(files, Options(methods=("dibs-branched",)))
    assert [ax.get_title() for ax in figure.axes[:1]] == ["DIBS (branched)"]
    with pytest.raises(DibsError, match="no input has split gap4; they have gap5"):
        make("branching", files, Options(split="gap4"))
    with pytest.raises(DibsError, match="no template of car2d-switch by dibs-plus among the inputs"):
        make("branching", files, Options(methods=("dibs-plus",)))
    assert trajectories.branching(files[1:2], USUAL).get_suptitle().endswith("rates of 1 seed")
