"""The figure of single and branched template over the index."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.colors import to_rgb

from dibs.analysis import branching, figures
from dibs.analysis.collect import in_results
from dibs.errors import DibsError
from dibs.evaluation.branched import count_template
from dibs.evaluation.evaluate import EvaluationSettings
from dibs.families import get_benchmark
from dibs.paths import Layout
from dibs.templates.branched import Branched, save_branched
from dibs.templates.template import load_template

QUICK = EvaluationSettings(rollouts=20)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(branching, "MEASURE", QUICK)


@pytest.fixture
def files(template, tmp_path):
    """A single template (never satisfying) and a branched one of two random modes, two seeds each."""
    places, found = Layout(tmp_path), []
    for seed in (0, 1):
        single = template(places.template("dibs", "car2d-switch", 5, seed), "car2d-switch", 5, seed=seed)
        one = replace(load_template(single), method="dibs-branched")
        modes = (
            replace(one, train=(0, 5, 10)),
            replace(one, train=(15, 20), base=one.base[:, ::-1].copy(), base_index=np.array([15])),
        )
        path = places.template("dibs-branched", "car2d-switch", 5, seed)
        save_branched(path, Branched((0, 5, 10, 15, 20), (0, 0, 0, 1, 1), modes), {})
        found += [single, path]
    return found


def ways(ax) -> list:
    """Lines of ways, not of marks."""
    return [line for line in ax.lines if line.get_marker() == "None"]


def test_ways_and_rates_of_both(files, tmp_path):
    figure, save = figures.make("branching", lambda kind: files, figures.Options())
    above, below = figure.axes[:2], figure.axes[2:4]
    assert [ax.get_title() for ax in above] == ["DIBS", "DIBS (branched)"]
    assert figure.get_figwidth() == figures.WIDTH
    assert figure._suptitle.get_text() == "car2d-switch, gap 5; ways of seed 0, rates of 2 seeds"
    colors = branching._colors(20)
    family, text = get_benchmark("car2d-switch")
    for column, (up, down) in enumerate(zip(above, below, strict=True)):
        assert len(ways(up)) == 21
        dashed = [i for i, line in enumerate(ways(up)) if line.get_linestyle() != "-"]
        assert dashed == [i for i in range(21) if i % 5]  # unseen
        for i, line in enumerate(ways(up)):
            np.testing.assert_allclose(to_rgb(line.get_color()), to_rgb(tuple(colors.to_rgba(np.array(i)))))
        mean = next(line for line in down.lines if line.get_color() == "#444444")
        seeds = [count_template(family, text, files[column + 2 * s], s, range(21), QUICK) for s in (0, 1)]
        expected = [np.mean([counts[i] for counts in seeds]) / QUICK.rollouts for i in range(21)]
        np.testing.assert_allclose(mean.get_ydata(), expected)
        seen, unseen = down.collections
        assert (len(seen.get_offsets()), len(unseen.get_offsets())) == (5, 16)
    switch = [line for line in below[1].lines if list(line.get_xdata()) == [12.5, 12.5]]
    assert len(switch) == 2  # one per seed
    save(figure, tmp_path / "b.png")
    save(figure, tmp_path / "b.pdf")
    assert (tmp_path / "b.png").stat().st_size > 10_000


def test_a_way_that_fails_is_marked_where_it_fails():
    family, text = get_benchmark("car2d-switch")
    through = np.array([[0.0, 0.0], [0.0, 3.0], [0.0, 5.0], [0.0, 7.0]])
    assert branching._failed_at(family, text, 10, through) == 2
    assert branching._failed_at(family, text, 10, through[:2]) == 1


def test_what_was_not_run_is_said(files):
    figure, _ = figures.make("branching", lambda kind: files[:1], figures.Options())
    assert [t.get_text() for t in figure.axes[3].texts] == ["not run"]
    figure, _ = figures.make("branching", lambda kind: files, figures.Options(methods=("dibs-branched",)))
    assert [ax.get_title() for ax in figure.axes[:2]] == ["DIBS (branched)", ""]
    with pytest.raises(DibsError, match=r"no input has gap 4; they have \[5\]"):
        figures.make("branching", lambda kind: files, figures.Options(gap=4))
    with pytest.raises(DibsError, match="no template of dibs-plus among the inputs"):
        figures.make("branching", lambda kind: files, figures.Options(methods=("dibs-plus",)))


def test_its_inputs_are_found(files, tmp_path):
    assert sorted(in_results(tmp_path, "branched template")) == sorted(files)
    assert in_results(tmp_path, "template") == [file for file in files if "templates-branched" not in str(file)]
