"""The paper's tables and figures, each for its benchmarks only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dibs.paper.numbers import AS_PUBLISHED, BENCHMARKS, BLOCKS, MAIN, REACH, TOWERS
from dibs.studies.reports import Report

_TRAIN = "training ratio and zero-shot ratio over the number of training tasks"
_SHADES = "Lines are means over seeds, shades one standard deviation."
_BARS = "unseen tasks solved, mean over seeds with one standard deviation."
_REGIONS = "regions at several indices."
CAPTIONS = {
    "table1": "How many times as many training and unseen tasks DIBS solves as each baseline, over all benchmarks and "
    "splits, next to the paper's numbers (Table 1). A dash: the baseline solves none.",
    "table1-versions": "Table 1 in two versions: how many times as many tasks DIBS solves as ARS, BC and GenRL, as "
    "strong as they get here and as the paper seems to have run them (state only; the public code).",
    "claims": "What the paper says and what was measured.",
    "scalability_k5": f"5-reachability: {_TRAIN}, and unseen tasks solved over k. {_SHADES}",
    **{f"scalability_k{k}": f"{k}-reachability: {_TRAIN}. {_SHADES}" for k in (4, 3, 2, 1)},
    "obstacles": f"Car2D 5-reachability with obstacles: {_TRAIN}, and unseen tasks solved over k. {_SHADES}",
    "choice": f"Choice with one and two levels of branching: {_TRAIN}, and unseen tasks solved. {_SHADES}",
    **{f"reacher_{blocks}": f"Reacher, towers of {blocks} blocks: {_BARS}" for blocks in BLOCKS},
    "choice_trajectories": "Rollouts of a template's policies on Choice: training indices in blue, unseen ones in red.",
    "branching": "Routes and satisfaction rates over the index of one template, and of one template per routing mode.",
    "environments": "The four environments.",
    "spec-reach": f"k-reachability: {_REGIONS}",
    "spec-reach-obs": f"k-reachability with obstacles: {_REGIONS}",
    "spec-choice-l1": f"Choice with one level: {_REGIONS}",
    "spec-choice-l2": f"Choice with two levels: {_REGIONS}",
    "switch": f"The obstacle switch: {_REGIONS}",
    "flow-genrl": "GenRL learns policies and κ in one loop of random search on rewards.",
    "flow-dibs": "DIBS learns teachers first and fits κ to their labeled states.",
    "reacher-environment": "The arm of Reacher.",
    "reacher-family": "Reacher: the tasks of one family.",
    **{f"spec-reacher-{tower}": f"Reacher, {tower}: {_REGIONS}" for tower in TOWERS},
}


def _figure(
    name: str, make: str, *benchmarks: str, inputs: Any = "evaluations", methods: tuple[str, ...] = (), **arguments: Any
) -> Report:
    return Report(name, "figure", CAPTIONS[name], f"dibs.paper.{make}", benchmarks, inputs, methods, False, arguments)


def _regions(name: str, shown: str, *benchmarks: str, indices: tuple[int, ...], **more: Any) -> Report:
    """A drawing of the regions of one benchmark."""
    more |= {"benchmark": shown, "indices": indices}
    return _figure(name, "illustrations:specification", *(benchmarks or [shown]), inputs="none", **more)


_MAIN = [f"{family}-k*" for family in MAIN]
_REPORTS = (
    Report("table1", "table", CAPTIONS["table1"], "dibs.paper.tables:table1", BENCHMARKS),
    Report(
        "table1-versions",
        "table",
        CAPTIONS["table1-versions"],
        "dibs.paper.tables:table1_versions",
        BENCHMARKS,
        methods=("dibs", *AS_PUBLISHED, *AS_PUBLISHED.values()),
    ),
    Report("claims", "table", CAPTIONS["claims"], "dibs.paper.tables:claims", BENCHMARKS, ablation="cross-index"),
    _figure("scalability_k5", "figures:scalability", *_MAIN, k=5, counts=True),
    *(_figure(f"scalability_k{k}", "figures:scalability", *(f"{f}-k{k}" for f in REACH), k=k) for k in (4, 3, 2, 1)),
    _figure("obstacles", "figures:scalability", "car2d-reach-obs-k*", k=5, counts=True),
    _figure("choice", "figures:choice", "car2d-choice-l*"),
    *(_figure(f"reacher_{blocks}", "figures:reacher", f"reacher-*-{blocks}", blocks=blocks) for blocks in BLOCKS),
    _figure("choice_trajectories", "trajectories:choice_trajectories", "car2d-choice-l*", inputs="models"),
    _figure("branching", "trajectories:branching", "car2d-switch", inputs="models", methods=("dibs", "dibs-branched")),
    _figure("environments", "illustrations:environments", *BENCHMARKS, inputs="none"),
    _regions("spec-reach", "car2d-reach-k5", *_MAIN, indices=(0, 20, 40)),
    _regions("spec-reach-obs", "car2d-reach-obs-k5", "car2d-reach-obs-k*", indices=(0, 20, 40)),
    _regions("spec-choice-l1", "car2d-choice-l1", indices=(0, 10, 20), routes=(0, 10, 20)),
    _regions("spec-choice-l2", "car2d-choice-l2", indices=(0, 10, 20), routes=(0, 20)),
    _regions("switch", "car2d-switch", indices=(0, 5, 10, 15, 20), routes=(0, 5, 15, 20), width=4.2),
    *(_figure(f"flow-{m}", f"flows:{m}", *BENCHMARKS, inputs="none") for m in ("genrl", "dibs")),
    _figure("reacher-environment", "illustrations:reacher", "reacher-*", inputs="none"),
    _figure("reacher-family", "illustrations:tower_family", "reacher-*", inputs="none"),
    *(_figure(f"spec-reacher-{t}", "illustrations:tower", f"reacher-{t}-*", inputs="none", kind=t) for t in TOWERS),
)
"""Reports that only the paper's benchmarks get."""

# Exact ids instead of patterns, so that another family with a similar name gets none of these.
REPORTS = tuple(
    replace(r, benchmarks=tuple(b for b in BENCHMARKS if r.matching([b])) or r.benchmarks) for r in _REPORTS
)
