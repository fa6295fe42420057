# The whole paper as one DAG. Config, validation, includes and names of targets; all else is in workflow/rules.
#
#   snakemake -n --quiet                        the plan, counted
#   snakemake --cores all figures               everything that the figures need
#   snakemake --configfile config/demo.yaml …   a smaller study, merged over config.yaml

import sys

from snakemake.utils import min_version

min_version("9.0")

# The package that lies beside this file, whatever else is installed: digests and jobs must see the same code.
sys.path.insert(0, workflow.basedir)


configfile: "config.yaml"


include: "workflow/rules/common.smk"
include: "workflow/rules/teachers.smk"
include: "workflow/rules/datasets.smk"
include: "workflow/rules/templates.smk"
include: "workflow/rules/baselines.smk"
include: "workflow/rules/evaluation.smk"
include: "workflow/rules/tables.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/ablations.smk"
include: "workflow/rules/sweeps.smk"
include: "workflow/rules/documentation.smk"


report: "workflow/report/workflow.rst"


# The evaluations are named beside what is made from them, so that one that is missing is made again: Snakemake looks
# for a file that only lies between others when what follows from it is to be made.
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


rule teachers:
    input:
        TEACHERS,


rule datasets:
    input:
        DATASETS,
