# What the rules share: the validated config, the paths, the command, memory and time, groups.

import gc
import inspect
import re
import shlex
from functools import cache

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snakemake.settings.enums import Quietness
from snakemake.utils import Paramspace

from dibs.config import TEMPLATE_METHODS, parse_config
from dibs.errors import DibsError
from dibs.paths import Layout, metrics, teacher_files, timing
from dibs.variants import ROOT, Variants, columns, files, points

# Plans by root of results: the config's own, and those of its ablations' and sweeps' variants. All rules are written for
# any of them.
try:
    PLANS = Variants(
        parse_config(
            config,
            " + ".join(["config.yaml", *map(os.path.relpath, workflow.overwrite_configfiles)]),
        )
    )
except DibsError as error:
    raise WorkflowError(str(error))

# The plan of the full paper is millions of objects that live to the end: looking for garbage among them as often
# as Python does by default takes an eighth of the time.
gc.set_threshold(100_000, 50, 100)

PLAN = PLANS.main
PLACES = Layout(Path("{root}"))
LOGS = PLACES.root / "logs"
TIMES = PLACES.root / "times"

TABLES, FIGURES = PLAN.tables, PLAN.figures
EVALUATIONS = [file for benchmark in PLAN.config.chosen for file in PLAN.evaluations_of(benchmark)]
TEACHERS = sorted({file for s in PLAN.splits for file in PLAN.teachers(s.family, s.gap, s.seed)})
DATASETS = sorted({file for s in PLAN.splits for file in PLAN.datasets(s.family, s.gap, s.seed)})

# `dibs` in the rules is the package beside the Snakefile, wherever that is run from, by the interpreter that runs
# Snakemake: no activated environment is needed, on a cluster's node neither.
PYTHON = shlex.quote(sys.executable)
BESIDE = shlex.quote(str(workflow.basedir))
# Jobs of a cluster are told to keep what they make by a variable: a parameter that differs between Snakemake and its jobs
# would make these redo what others have made.
RESUME = "export DIBS_RESUME=1; " if workflow.remote_exec else ""
shell.prefix(
    'set -euo pipefail; {RESUME}dibs() {{ PYTHONPATH={BESIDE}"${{PYTHONPATH:+:$PYTHONPATH}}" {PYTHON} -m dibs "$@"; }}; '
)


wildcard_constraints:
    root=re.escape(PLAN.config.results) + ROOT,
    family="[a-z0-9]+(-[a-z0-9]+)*",
    benchmark="[a-z0-9]+(-[a-z0-9]+)*",
    method="[a-z0-9]+(-[a-z0-9]+)*",
    gap=r"[1-9]\d*",
    index=r"[1-9]\d*",
    seed=r"\d+",
    name="[a-z0-9_-]+",
    study="[a-z0-9-]+",


def read_of(teacher):
    """The files of a teacher that its dataset is made from."""
    return {kind: teacher[kind] for kind in ("weights", "buffers", "metrics")}


def with_metrics(weights):
    """The files of a template or baseline."""
    return {"weights": weights, "metrics": metrics(weights), "timing": timing(weights)}


def growing(value):
    """A resource that grows with the attempt: what failed for want of it gets more on its retry."""
    return lambda wildcards, attempt: value * attempt


def quick(function):
    """The function with its signature at hand: Snakemake asks for it three times for each of its calls."""
    function.__signature__ = inspect.signature(function)
    return function


# Ablations and sweeps.
FORMATS = {"csv": "csv", "markdown": "md", "latex": "tex", "pdf": "pdf", "png": "png"}
MAIN = PLAN.config.results


def summaries(kind):
    """Tables and figures of all ablations or sweeps, and the figures of single variants that ablations ask for."""
    made = [f"{MAIN}/{kind}/{name}.{suffix}" for name in PLANS.names[kind] for suffix in FORMATS.values()]
    if kind == "ablations":
        for name, ablation in PLAN.config.ablations.items():
            roots = dict.fromkeys(variant.plan.places.root for variant in PLANS.measured(kind, name))
            made += [f"{root}/figures/{figure}.png" for root in roots for figure in ablation.figures]
    return made


def each_file(variants):
    """All files of some variants, given by stage, each once."""
    return list(dict.fromkeys(file for stages in variants for found in stages.values() for file in found))


@cache
def space(sweep):
    """A sweep's grid as Snakemake knows it; pandas is imported for whoever asks."""
    import pandas as pd

    names = {key: name for name, key in columns(PLAN.config.sweeps[sweep]).items()}
    return Paramspace(pd.DataFrame(points(PLAN.config.sweeps[sweep]), dtype=object).rename(columns=names))


def points_of(study):
    """What is read at all points of the sweep that a summary named SWEEP-FAMILY is about."""
    sweep, family = PLANS.swept(study)
    roots = [f"{MAIN}/sweeps/{sweep}/{folder}" for folder in space(sweep).instance_patterns]
    return each_file(files(PLANS[root], family) for root in roots)


# On a cluster, the chain of teachers of one (family, gap, seed) is one job: each link takes seconds, submitting
# one takes longer. Local runs ignore groups. Teachers of index 0 stay out: they would tie all gaps together.
# When a member of a group fails, Snakemake deletes what the finished ones have made. So in cluster jobs `dibs
# teacher` keeps a copy outside the declared outputs, and brings it back, verified, on the next attempt (RESUME above).
CHAIN = "chain_{family}_gap{gap}_seed{seed}"


# `snakemake -n --quiet` is meant to print the counted plan and stop; Snakemake 9.27 silences the plan as well.
if workflow.output_settings.dryrun:
    for handler in logger.handlers:
        for shown in handler.filters:
            shown.quiet = {*getattr(shown, "quiet", ())} - {Quietness.PROGRESS}
