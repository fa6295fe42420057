# What the rules share: the validated config, paths, the command, resources, groups.

import gc
import inspect
import re
import shlex

from snakemake.exceptions import WorkflowError
from snakemake.logging import logger
from snakemake.settings.enums import Quietness

from dibs import registry, studies
from dibs.errors import DibsError
from dibs.paths import Layout, curve, metrics, timing
from dibs.pipeline import check_description, keep_description
from dibs.studies import console
from dibs.studies.checks import parse_config
from dibs.studies.plan import teacher_files
from dibs.studies.variants import ROOT, Variants

# Plans by root of results: the config's own, and those of the variants of its ablations and sweeps. All rules work for any root.
try:
    PLANS = Variants(
        parse_config(
            config,
            " + ".join(["config.yaml", *map(os.path.relpath, workflow.overwrite_configfiles)]),
        )
    )
    PLAN = PLANS.main
    TABLES, FIGURES = PLAN.reports("table"), PLAN.reports("figure")
    EVALUATIONS = [file for benchmark in PLAN.config.chosen for file in PLAN.evaluations_of(benchmark)]
    REQUIREMENTS = sorted({str(PLAN.layout.requirements(PLAN.benchmark(b).family.name)) for b in PLAN.config.chosen})
    TEACHERS = sorted({file for split in PLAN.splits for file in PLAN.teachers(*split)})
    DATASETS = sorted({file for split in PLAN.splits for file in PLAN.datasets(*split)})
    if workflow.is_main_process:
        for family in PLAN.described:
            check_description(PLAN.layout, family)
except DibsError as error:
    raise WorkflowError(str(error))

if workflow.is_main_process and registry.outdated():
    logger.warning(f"warning: {registry.outdated()}")

# The plan of the full paper is millions of objects that live to the end. Searching them for garbage as often as Python does by
# default takes an eighth of the time.
gc.set_threshold(100_000, 50, 100)

MAIN = PLAN.config.results
# Captions for the report. They are not parameters of a rule: a new wording must not rerun anything.
config["captions"] = PLAN.captions
# What the report opens with: the main table, and a figure per benchmark if there are few, otherwise the first one of two that is made.
MADE = {os.path.basename(file) for file in [*TABLES, *FIGURES]}
OPENING = [f"success_by_index-{benchmark}.png" for benchmark in PLAN.config.chosen]
if len(OPENING) > 3:
    OPENING = [name for name in ("scalability_k5.png", "ratios.png") if name in MADE][:1]
config["opens_with"] = [name for name in ("overview.html", *OPENING) if name in MADE]
LAYOUT = Layout(Path("{root}"))
LOGS = LAYOUT.root / "logs"
TIMES = LAYOUT.root / "times"

# `dibs` in the rules is the package next to the Snakefile, run by the interpreter that runs Snakemake: no activated environment is
# needed, on a cluster's node either.
PYTHON = shlex.quote(sys.executable)
HERE = shlex.quote(str(workflow.basedir))
# Cluster jobs set DIBS_RESUME. A parameter would differ between the main process and its jobs and trigger reruns.
RESUME = "export DIBS_RESUME=1; " if workflow.remote_exec else ""
# A family file may name code to run only if the config allows it.
CODE = "export DIBS_ALLOW_CODE=1; " if PLAN.config.allow_code else ""
shell.prefix(
    'set -euo pipefail; {RESUME}{CODE}dibs() {{ PYTHONPATH={HERE}"${{PYTHONPATH:+:$PYTHONPATH}}" {PYTHON} -m dibs "$@"; }}; '
)


wildcard_constraints:
    root=re.escape(MAIN) + ROOT,
    family="[a-z0-9]+(-[a-z0-9]+)*",
    benchmark="[a-z0-9]+(-[a-z0-9]+)*",
    unit="[a-z0-9]+(-[a-z0-9]+)*",
    method="[a-z0-9]+(-[a-z0-9]+)*",
    split="[a-z0-9]+([-_][a-z0-9]+)*",
    index=r"\d+",
    seed=r"\d+",
    name="[a-z0-9_-]+",
    kind="ablations|sweeps",
    study="[a-z0-9-]+",


def plan(wildcards):
    """The plan of a job."""
    return PLANS[wildcards.root]


def numbers(wildcards):
    """Split, index and seed of a teacher or dataset, as its plan takes them."""
    return wildcards.family, wildcards.split, int(wildcards.index), int(wildcards.seed)


def with_metrics(weights):
    """The files of a model."""
    return {"weights": weights, "metrics": metrics(weights), "curve": curve(weights), "timing": timing(weights)}


def growing(value):
    """A resource that grows with the attempt: a job that failed for lack of it gets more on its retry."""
    return lambda wildcards, attempt: value * attempt


def asked(function):
    """Memory and run time that a function of the wildcards returns, and that grow with the attempt."""
    return {
        "mem_mb": lambda wildcards, attempt: function(wildcards)[0] * attempt,
        "runtime": lambda wildcards, attempt: function(wildcards)[1] * attempt,
    }


def quick(function):
    """The function with its signature attached: Snakemake asks for it three times per call."""
    function.__signature__ = inspect.signature(function)
    return function


def option(name, files):
    """A command's option with its files; nothing if there are none."""
    return [name, *files] if files else []


FORMATS = {
    **{"csv": "csv", "markdown": "md", "html": "html", "latex": "tex"},
    **{"pdf": "pdf", "png": "png", "summary": "json"},
}


def summaries(kind):
    """Tables and figures of all ablations or sweeps, and the figures of single variants that ablations ask for."""
    if not PLANS.names[kind]:
        raise WorkflowError(
            f"the config has no {kind}: pass one that has, such as --configfile config/paper-{kind}.yaml"
        )
    made = [f"{MAIN}/{kind}/{name}.{suffix}" for name in PLANS.names[kind] for suffix in FORMATS.values()]
    if kind == "ablations":
        for name, ablation in PLAN.config.ablations.items():
            roots = dict.fromkeys(variant.plan.layout.root for variant in PLANS.variants(kind, name))
            made += [f"{root}/figures/{figure}.png" for root in roots for figure in ablation.figures]
    return made


# On a cluster, the chain of teachers of one (family, split, seed) is one job: each link takes seconds, and submitting a job takes
# longer. Local runs ignore groups. If a member of a group fails, Snakemake deletes what the finished ones have made. So in cluster
# jobs `dibs teacher` keeps a copy outside the declared outputs and restores it, verified, on the next attempt (RESUME above).
CHAIN = "chain_{family}_{split}_seed{seed}"


# `snakemake -n --quiet` should print the counted plan and stop; Snakemake 9.27 silences the plan as well.
if workflow.output_settings.dryrun:
    for handler in logger.handlers:
        for shown in handler.filters:
            shown.quiet = {*getattr(shown, "quiet", ())} - {Quietness.PROGRESS}


# Progress and results instead of several lines per job. The full output is in .snakemake/log.
OUTPUT = workflow.output_settings
OWN_OUTPUT = OUTPUT.dryrun or OUTPUT.verbose or OUTPUT.printshellcmds or OUTPUT.debug_dag
if workflow.is_main_process and not OWN_OUTPUT and {*(OUTPUT.quiet or ())} <= {Quietness.REASON}:
    console.install(logger)
