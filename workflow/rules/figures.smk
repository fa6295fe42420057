# Figures, each as PDF for print and PNG for screens. One whose data is partly missing says so itself.


rule figure:
    input:
        files=lambda w: PLAN.figure_inputs(w.name),
        list=INPUTS / "figures/{name}.txt",
    output:
        pdf=PLACES.figure("{name}.pdf"),
        png=report(
            PLACES.figure("{name}.png"),
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{name}"},
        ),
    params:
        depends=PLAN.depends("figures"),
        results=results,
    log:
        LOGS / "figures/{name}.log",
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(20),
    conda:
        "../../environment.yml"
    message:
        "figure {wildcards.name}"
    shell:
        "dibs figure {wildcards.name} --results {params.results:q} --inputs {input.list:q}"
        " --output {output:q} > {log:q} 2>&1"


# What a table or figure is made of, a path a line: too many for a command line. The files themselves are inputs
# of the table or figure, so that this list changes only when another set of them is wanted.
rule inputs:
    output:
        INPUTS / "{list}.txt",
    params:
        paths=lambda w: PLAN.listed(w.list),
    log:
        LOGS / "inputs/{list}.log",
    localrule: True
    conda:
        "../../environment.yml"
    message:
        "list of inputs of {wildcards.list}"
    script:
        "../scripts/list_inputs.py"
