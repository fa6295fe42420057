# Tables from all evaluations: CSV for machines, Markdown and LaTeX for readers.


rule table:
    input:
        lambda w: PLANS[w.root].table_inputs(w.name),
    output:
        csv=report(
            PLACES.table("{name}.csv"),
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{name}"},
        ),
        markdown=PLACES.table("{name}.md"),
        latex=PLACES.table("{name}.tex"),
    log:
        LOGS / "tables/{name}.log",
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(20),
    params:
        depends=lambda w: PLANS[w.root].table_depends(),
    message:
        "table {wildcards.name}"
    shell:
        "dibs table {wildcards.name} --inputs {input:q} --output {output:q} > {log:q} 2>&1"
