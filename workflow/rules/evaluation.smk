# One evaluation per (method, benchmark, gap, seed), whatever the method.


rule evaluation:
    input:
        lambda w: PLAN.artefact(w.method, w.benchmark, w.gap, w.seed),
    output:
        PLACES.evaluation("{method}", "{benchmark}", "{gap}", "{seed}"),
    params:
        benchmark=lambda w: PLAN.benchmark(w.benchmark).source,
        settings=PLAN.evaluation_settings,
        depends=lambda w: PLAN.depends("evaluations", PLAN.benchmark(w.benchmark).family.name, w.method),
        results=results,
    log:
        LOGS / "evaluations/{method}/{benchmark}/gap{gap}/seed{seed}.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    conda:
        "../../environment.yml"
    message:
        "evaluation of {wildcards.method} on {wildcards.benchmark}, gap {wildcards.gap}, seed {wildcards.seed}"
    shell:
        "dibs evaluate {params.benchmark:q} --method {wildcards.method} --gap {wildcards.gap} --seed {wildcards.seed}"
        " --results {params.results:q} --settings {params.settings:q} > {log:q} 2>&1"
