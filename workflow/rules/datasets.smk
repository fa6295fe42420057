# One dataset per teacher.


rule base_dataset:
    input:
        unpack(quick(lambda w: read_of(PLANS[w.root].teacher(w.family, "", 0, w.seed)))),
    output:
        PLACES.dataset("{family}", "", 0, "{seed}"),
    log:
        LOGS / "datasets/{family}/base/seed{seed}/0.log",
    benchmark:
        TIMES / "datasets/{family}/base/seed{seed}/0.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    params:
        family=quick(lambda w: PLANS[w.root].family_source(w.family)),
        gap=quick(lambda w: PLANS[w.root].family(w.family).last_index),
        settings=quick(lambda w: PLANS[w.root].dataset_settings(w.family)),
        depends=quick(lambda w: PLANS[w.root].depends("datasets", w.family)),
        places=quick(lambda w: PLANS[w.root].where),
    message:
        "dataset of {wildcards.family}, index 0, seed {wildcards.seed}, in {wildcards.root}"
    shell:
        "dibs dataset {params.family:q} --gap {params.gap} --index 0 --seed {wildcards.seed}"
        " {params.places:q} --settings {params.settings:q} > {log:q} 2>&1"


rule dataset:
    input:
        unpack(quick(lambda w: read_of(PLANS[w.root].teacher(w.family, w.gap, w.index, w.seed)))),
    output:
        PLACES.dataset("{family}", "{gap}", "{index}", "{seed}"),
    log:
        LOGS / "datasets/{family}/gap{gap}/seed{seed}/{index}.log",
    benchmark:
        TIMES / "datasets/{family}/gap{gap}/seed{seed}/{index}.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    params:
        family=quick(lambda w: PLANS[w.root].family_source(w.family)),
        settings=quick(lambda w: PLANS[w.root].dataset_settings(w.family)),
        depends=quick(lambda w: PLANS[w.root].depends("datasets", w.family)),
        places=quick(lambda w: PLANS[w.root].where),
    message:
        "dataset of {wildcards.family}, gap {wildcards.gap}, index {wildcards.index}, seed {wildcards.seed}, in {wildcards.root}"
    shell:
        "dibs dataset {params.family:q} --gap {wildcards.gap} --index {wildcards.index} --seed {wildcards.seed}"
        " {params.places:q} --settings {params.settings:q} > {log:q} 2>&1"
