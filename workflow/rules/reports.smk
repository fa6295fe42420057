# Tables and figures. dibs/studies/reports.py and dibs/paper/reports.py list them with their captions.


rule table:
    input:
        lambda w: PLANS.report_inputs(w.root, w.name),
    output:
        csv=LAYOUT.table("{name}.csv"),
        markdown=LAYOUT.table("{name}.md"),
        html=report(
            LAYOUT.table("{name}.html"),
            caption="../report/table.rst",
            category="Tables",
            labels={"table": "{name}"},
        ),
        latex=LAYOUT.table("{name}.tex"),
    log:
        LOGS / "tables/{name}.log",
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(20),
    params:
        # Not an argument of the command: with another version of the report, or other answers of `dibs requires`, it is made again.
        id=lambda w: plan(w).report_id(w.name),
    message:
        "table {wildcards.name}"
    shell:
        "dibs table {wildcards.name} --inputs {input:q} --output {output:q} --log {log:q}"


rule figure:
    input:
        lambda w: plan(w).report_inputs(w.name),
    output:
        pdf=LAYOUT.figure("{name}.pdf"),
        png=report(
            LAYOUT.figure("{name}.png"),
            caption="../report/figure.rst",
            category="Figures",
            labels={"figure": "{name}"},
        ),
    log:
        LOGS / "figures/{name}.log",
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(20),
    params:
        inputs=lambda w, input: option("--inputs", input),
        id=lambda w: plan(w).report_id(w.name),
    message:
        "figure {wildcards.name}"
    shell:
        "dibs figure {wildcards.name} {params.inputs:q} --output {output:q} --log {log:q}"


# Ablations and sweeps: variants of the config, each made by the rules of the stages below a root of its own
# (results/ablations/NAME/VARIANT, results/sweeps/NAME/KEY~VALUE). dibs/studies/variants.py says what they share with the config.


rule study_list:
    input:
        lambda w: PLANS.inputs(w.kind, w.study),
    output:
        f"{MAIN}/{{kind}}/inputs/{{study}}.json",
    log:
        f"{MAIN}/logs/{{kind}}/{{study}}.list.log",
    localrule: True
    message:
        "list of what {wildcards.kind}/{wildcards.study} is made from"
    script:
        "../scripts/study_list.py"


rule study:
    input:
        f"{MAIN}/{{kind}}/inputs/{{study}}.json",
    output:
        **{
            kind: f"{MAIN}/{{kind}}/{{study}}.{suffix}"
            for kind, suffix in FORMATS.items()
            if kind not in ("html", "png")
        },
        html=report(
            f"{MAIN}/{{kind}}/{{study}}.html",
            caption="../report/study.rst",
            category="Ablations and sweeps",
            labels={"study": "{kind}/{study}", "kind": "table"},
        ),
        png=report(
            f"{MAIN}/{{kind}}/{{study}}.png",
            caption="../report/study.rst",
            category="Ablations and sweeps",
            labels={"study": "{kind}/{study}", "kind": "figure"},
        ),
    log:
        f"{MAIN}/logs/{{kind}}/{{study}}.log",
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(20),
    params:
        version=studies.VERSION,
    message:
        "table and figure of {wildcards.kind}/{wildcards.study}"
    shell:
        "dibs study {input:q} --output {output:q} --log {log:q}"
