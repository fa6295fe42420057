# The whole paper as one DAG: config, validation, includes and targets. The rules are in workflow/rules.
#
#   snakemake -n --quiet                        count the jobs
#   snakemake --cores all figures               everything that the figures need
#   snakemake --configfile config/demo.yaml …   a smaller study, merged over config.yaml
#   snakemake ablations --cores all --configfile config/paper-ablations.yaml
#   snakemake sweeps --cores all --configfile config/paper-sweeps.yaml

import sys

from snakemake.utils import min_version

min_version("9.13")

# The package next to this file, whatever else is installed: the plan and its jobs must use the same code.
sys.path.insert(0, workflow.basedir)


configfile: "config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/teachers.smk"
include: "workflow/rules/datasets.smk"
include: "workflow/rules/models.smk"
include: "workflow/rules/evaluation.smk"
include: "workflow/rules/reports.smk"


report: "workflow/report/workflow.rst"


# Targets name the evaluations next to what is made from them, so that a missing one is made again: Snakemake ignores a missing
# intermediate file as long as everything made from it exists.
rule all:
    default_target: True
    input:
        TABLES,
        FIGURES,
        EVALUATIONS,


rule demo:
    input:
        TABLES,
        FIGURES,
        EVALUATIONS,


# Another study with a family of the same name, in the same folder, must not go unnoticed; see check_description.
onstart:
    if workflow.is_main_process:
        for family in PLAN.described:
            keep_description(PLAN.layout, family)


# The end of a study that is small enough to be read: its ratios.
onsuccess:
    if not workflow.remote_exec and len(EVALUATIONS) <= 200 and all(map(os.path.exists, EVALUATIONS)):
        shell(f"dibs results --inputs {shlex.join(EVALUATIONS)}")


rule tables:
    input:
        TABLES,
        EVALUATIONS,


rule figures:
    input:
        FIGURES,
        EVALUATIONS,


rule ablations:
    input:
        lambda w: summaries("ablations"),


rule sweeps:
    input:
        lambda w: summaries("sweeps"),


rule evaluations:
    input:
        EVALUATIONS,


rule requirements:
    input:
        REQUIREMENTS,


rule teachers:
    input:
        TEACHERS,


rule datasets:
    input:
        DATASETS,
