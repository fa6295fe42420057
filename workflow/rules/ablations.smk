# Ablations: variants of the config beside each other, each made by the rules of the stages below a root of its own
# (results/ablations/NAME/VARIANT). What a variant has in common with the config is not made again (dibs/variants.py).


rule ablation_list:
    input:
        lambda w: each_file(variant.files for variant in PLANS.measured("ablations", w.study)),
    output:
        f"{MAIN}/ablations/inputs/{{study}}.json",
    log:
        f"{MAIN}/logs/ablations/{{study}}.list.log",
    localrule: True
    conda:
        "../../environment.yml"
    message:
        "list of what ablation {wildcards.study} is made from"
    script:
        "../scripts/study_list.py"


rule ablation:
    input:
        f"{MAIN}/ablations/inputs/{{study}}.json",
    output:
        **{
            kind: f"{MAIN}/ablations/{{study}}.{suffix}"
            for kind, suffix in FORMATS.items()
            if kind not in ("csv", "png")
        },
        csv=report(
            f"{MAIN}/ablations/{{study}}.csv",
            caption="../report/study.rst",
            category="Ablations",
            labels={"ablation": "{study}", "kind": "table"},
        ),
        png=report(
            f"{MAIN}/ablations/{{study}}.png",
            caption="../report/study.rst",
            category="Ablations",
            labels={"ablation": "{study}", "kind": "figure"},
        ),
    log:
        f"{MAIN}/logs/ablations/{{study}}.log",
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(20),
    params:
        depends=lambda w: PLANS.depends("ablations", w.study),
    message:
        "table and figure of ablation {wildcards.study}"
    shell:
        "dibs study {input:q} --output {output:q} > {log:q} 2>&1"
