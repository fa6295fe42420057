# Ablations: variants of the config beside each other, each made by the rules of the stages below a root of its own
# (results/ablations/NAME/VARIANT). What a variant has in common with the config is not made again (dibs/variants.py).

FORMATS = {"csv": "csv", "markdown": "md", "latex": "tex", "pdf": "pdf", "png": "png"}
MAIN = PLAN.config.results


def summaries(kind):
    """Tables and figures of all ablations or sweeps, and the figures of single variants that ablations ask for."""
    made = [f"{MAIN}/{kind}/{name}.{suffix}" for name in PLANS.names[kind] for suffix in FORMATS.values()]
    if kind == "ablations":
        for name, ablation in PLAN.config.ablations.items():
            roots = dict.fromkeys(variant.plan.places.root for variant in PLANS.measured(kind, name))
            made += [f"{root}/figures/{figure}.png" for root in roots for figure in ablation.figures]
    return made


def read_by(kind, name):
    """What the summary of an ablation or a sweep is made from."""
    found = [stage for variant in PLANS.measured(kind, name) for stage in variant.files.values()]
    return list(dict.fromkeys(file for stage in found for file in stage))


rule ablation_list:
    input:
        lambda w: read_by("ablations", w.study),
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
