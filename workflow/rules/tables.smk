# Tables from all evaluations: CSV for machines, Markdown and LaTeX for readers.


rule table:
    input:
        evaluations=EVALUATIONS,
        list=INPUTS / "tables.txt",
    output:
        csv=report(
            PLACES.table("{name}.csv"),
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{name}", "format": "CSV"},
        ),
        markdown=PLACES.table("{name}.md"),
        latex=PLACES.table("{name}.tex"),
    params:
        depends=PLAN.depends("tables"),
    log:
        LOGS / "tables/{name}.log",
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(20),
    conda:
        "../../environment.yml"
    message:
        "table {wildcards.name}"
    shell:
        "(for output in {output:q}; do"
        " dibs table {wildcards.name} --inputs {input.list:q} --output $output; done) > {log:q} 2>&1"
