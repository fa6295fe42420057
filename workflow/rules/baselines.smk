# The methods DIBS is compared with. What one reads, and whether it is trained per benchmark or once per family
# (`benchmark` is then the family's name), stands in its registry entry.


rule baseline:
    input:
        quick(lambda w: PLANS[w.root].baseline_inputs(w.method, w.benchmark, w.gap, w.seed)),
    output:
        **with_metrics(PLACES.baseline("{method}", "{benchmark}", "{gap}", "{seed}")),
    log:
        LOGS / "baselines/{method}/{benchmark}/gap{gap}/seed{seed}.log",
    benchmark:
        TIMES / "baselines/{method}/{benchmark}/gap{gap}/seed{seed}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=growing(3000),
        runtime=growing(120),
    params:
        benchmark=quick(lambda w: PLANS[w.root].benchmark(w.benchmark).source),
        settings=quick(lambda w: PLANS[w.root].baseline_settings(w.method)),
        depends=quick(
            lambda w: PLANS[w.root].depends("baselines", PLANS[w.root].benchmark(w.benchmark).family.name, w.method)
        ),
        places=quick(lambda w: PLANS[w.root].where),
    message:
        "baseline {wildcards.method} on {wildcards.benchmark}, gap {wildcards.gap}, seed {wildcards.seed}, in {wildcards.root}"
    shell:
        "dibs baseline {wildcards.method} {params.benchmark:q} --gap {wildcards.gap} --seed {wildcards.seed}"
        " {params.places:q} --settings {params.settings:q} > {log:q} 2>&1"
