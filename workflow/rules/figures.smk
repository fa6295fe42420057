# Figures, each as PDF for print and PNG for screens. One whose data is partly missing says so itself.


rule figure:
    input:
        lambda w: PLANS[w.root].figure_inputs(w.name),
    output:
        pdf=PLACES.figure("{name}.pdf"),
        png=report(
            PLACES.figure("{name}.png"),
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{name}"},
        ),
    log:
        LOGS / "figures/{name}.log",
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(20),
    params:
        inputs=lambda w, input: ["--inputs", *input] if input else [],
        depends=lambda w: PLANS[w.root].figure_depends(w.name),
    message:
        "figure {wildcards.name}"
    shell:
        "dibs figure {wildcards.name} {params.inputs:q} --output {output:q} > {log:q} 2>&1"
