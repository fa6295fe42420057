# Sweeps (appendix E): settings over a grid, measured on training indices only, a point below a root of its own
# (results/sweeps/NAME/SETTING~VALUE/…). One table, figure and choice per sweep and family.


@cache
def space(sweep):
    """A sweep's grid as Snakemake knows it; pandas is imported for whoever asks."""
    import pandas as pd

    names = {key: name for name, key in columns(PLAN.config.sweeps[sweep]).items()}
    return Paramspace(pd.DataFrame(points(PLAN.config.sweeps[sweep]), dtype=object).rename(columns=names))


def points_of(study):
    """Evaluations at all points of the sweep that a summary named SWEEP-FAMILY is about."""
    sweep, family = PLANS.swept(study)
    roots = [f"{MAIN}/sweeps/{sweep}/{folder}" for folder in space(sweep).instance_patterns]
    return [file for root in roots for file in files(PLANS[root], family)["evaluations"]]


rule sweep_list:
    input:
        lambda w: points_of(w.study),
        lambda w: read_by("sweeps", w.study),
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
