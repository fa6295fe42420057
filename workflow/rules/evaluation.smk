# One evaluation per (method, benchmark, gap, seed), whatever the method.


rule evaluation:
    input:
        quick(lambda w: PLANS[w.root].artefact(w.method, w.benchmark, w.gap, w.seed)),
    output:
        PLACES.evaluation("{method}", "{benchmark}", "{gap}", "{seed}"),
    log:
        LOGS / "evaluations/{method}/{benchmark}/gap{gap}/seed{seed}.log",
    benchmark:
        TIMES / "evaluations/{method}/{benchmark}/gap{gap}/seed{seed}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    params:
        benchmark=quick(lambda w: PLANS[w.root].benchmark(w.benchmark).source),
        settings=quick(lambda w: PLANS[w.root].evaluation_settings),
        depends=quick(
            lambda w: PLANS[w.root].depends("evaluations", PLANS[w.root].benchmark(w.benchmark).family.name, w.method)
        ),
        places=quick(lambda w: PLANS[w.root].where),
    message:
        "evaluation of {wildcards.method} on {wildcards.benchmark}, gap {wildcards.gap}, seed {wildcards.seed}, in {wildcards.root}"
    shell:
        "dibs evaluate {params.benchmark:q} --method {wildcards.method} --gap {wildcards.gap} --seed {wildcards.seed}"
        " {params.places:q} --settings {params.settings:q} > {log:q} 2>&1"


# What tables and figures are told instead of thousands of paths: a benchmark's evaluations, a path a line, with
# their checksums, so that the list changes when one of them does.
rule evaluation_list:
    input:
        quick(lambda w: PLANS[w.root].evaluations_of(w.benchmark)),
    output:
        str(PLACES.root / "inputs/{benchmark}.txt"),
    log:
        LOGS / "inputs/{benchmark}.log",
    localrule: True
    conda:
        "../../environment.yml"
    message:
        "list of the evaluations on {wildcards.benchmark}"
    script:
        "../scripts/evaluation_list.py"
