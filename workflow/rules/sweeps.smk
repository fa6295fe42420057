# Sweeps (appendix E): settings over a grid, measured on training indices only, a point below a root of its own
# (results/sweeps/NAME/SETTING~VALUE/…). One table, figure and choice per sweep and family.


rule sweep_list:
    input:
        lambda w: points_of(w.study),
    output:
        f"{MAIN}/sweeps/inputs/{{study}}.json",
    log:
        f"{MAIN}/logs/sweeps/{{study}}.list.log",
    localrule: True
    conda:
        "../../environment.yml"
    message:
        "list of what sweep {wildcards.study} is made from"
    script:
        "../scripts/study_list.py"


rule sweep:
    input:
        f"{MAIN}/sweeps/inputs/{{study}}.json",
    output:
        **{kind: f"{MAIN}/sweeps/{{study}}.{suffix}" for kind, suffix in FORMATS.items() if kind not in ("csv", "png")},
        csv=report(
            f"{MAIN}/sweeps/{{study}}.csv",
            caption="../report/study.rst",
            category="Sweeps",
            labels={"sweep": "{study}", "kind": "table"},
        ),
        png=report(
            f"{MAIN}/sweeps/{{study}}.png",
            caption="../report/study.rst",
            category="Sweeps",
            labels={"sweep": "{study}", "kind": "figure"},
        ),
        choice=f"{MAIN}/sweeps/{{study}}.json",
    log:
        f"{MAIN}/logs/sweeps/{{study}}.log",
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(20),
    params:
        depends=lambda w: PLANS.depends("sweeps", w.study),
    message:
        "table, figure and choice of sweep {wildcards.study}"
    shell:
        "dibs study {input:q} --output {output:q} > {log:q} 2>&1"
