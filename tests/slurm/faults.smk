# Jobs that do nothing but wait until a test cancels them, lets them run out of time or kills their node. They test
# Snakemake, SLURM and the profiles, not the rules of this project.
#
#   {name}.txt      is made as soon as allowed/{name} exists; the job of overtime.txt has a minute to wait for it, all
#                   others have half an hour
#   hungry.txt      needs more memory than its job requests at first, and less than twice as much; with too little, it
#                   waits to be killed


from pathlib import Path


rule all:
    input:
        expand("{name}.txt", name=config["names"].split("+")),


def minutes(wildcards):
    return 1 if wildcards.name == "overtime" and not Path("allowed/overtime").exists() else 30


def growing(value):
    return lambda wildcards, attempt: value * attempt


rule wait:
    output:
        "{name}.txt",
    log:
        "logs/{name}.log",
    retries: 0
    resources:
        mem_mb=600,
        runtime=minutes,
    shell:
        "echo the job of {wildcards.name} waits > {log}; mkdir -p started; touch started/{wildcards.name};"
        " until test -e allowed/{wildcards.name}; do sleep 0.5; done; echo {wildcards.name} > {output}"


rule hungry:
    output:
        "hungry.txt",
    log:
        "logs/hungry.log",
    resources:
        mem_mb=growing(600),
        runtime=growing(10),
    shell:
        "echo {resources.mem_mb} MB, {resources.runtime} minutes >> {log};"
        " python3 -c 'import time; eaten = b\"x\" * 700_000_000; time.sleep({resources.mem_mb} < 700 and 1800)';"
        " echo done > {output}"


ruleorder: hungry > wait
