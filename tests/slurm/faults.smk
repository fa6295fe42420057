# Jobs that do nothing but wait, until a test cancels them, runs them out of time or cuts their node's power.
#
#   {name}.txt      is made at once if allowed/{name} exists, else its job waits for longer than any test; that
#                   of overtime.txt has a minute, all others have ten
#   hungry.txt      is made if its job got twice the memory and time that it asks for at first
#
# Beside it the profiles under test: what is tried here is Snakemake and SLURM, not the rules of this project.


rule all:
    input:
        expand("{name}.txt", name=config["names"].split("+")),


def growing(value):
    return lambda wildcards, attempt: value * attempt


rule wait:
    output:
        "{name}.txt",
    log:
        "logs/{name}.log",
    resources:
        mem_mb=100,
        runtime=lambda wildcards: 1 if wildcards.name == "overtime" else 10,
    retries: 0
    shell:
        "echo the job of {wildcards.name} waits > {log}; mkdir -p started; touch started/{wildcards.name};"
        " test -e allowed/{wildcards.name} || sleep 900; echo {wildcards.name} > {output}"


rule hungry:
    output:
        "hungry.txt",
    log:
        "logs/hungry.log",
    resources:
        mem_mb=growing(100),
        runtime=growing(1),
    shell:
        "echo {resources.mem_mb} MB, {resources.runtime} minutes >> {log};"
        " test {resources.mem_mb} -ge 200 -a {resources.runtime} -ge 2; echo done > {output}"


ruleorder: hungry > wait
