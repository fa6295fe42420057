# Stage I. A teacher needs that of the previous training index; the one of index 0 needs none and serves all gaps.


rule base_teacher:
    output:
        **teacher_files(PLACES.teacher("{family}", "", 0, "{seed}")),
    log:
        LOGS / "teachers/{family}/base/seed{seed}/0.log",
    benchmark:
        TIMES / "teachers/{family}/base/seed{seed}/0.tsv"
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(60),
    params:
        family=quick(lambda w: PLANS[w.root].family_source(w.family)),
        gap=quick(lambda w: PLANS[w.root].family(w.family).last_index),
        settings=quick(lambda w: PLANS[w.root].teacher_settings(w.family)),
        depends=quick(lambda w: PLANS[w.root].depends("teachers", w.family)),
        places=quick(lambda w: PLANS[w.root].where),
    message:
        "teacher of {wildcards.family}, index 0, seed {wildcards.seed}, in {wildcards.root}"
    shell:
        "dibs teacher {params.family:q} --gap {params.gap} --index 0 --seed {wildcards.seed}"
        " {params.places:q} --settings {params.settings:q} > {log:q} 2>&1"


rule teacher:
    input:
        quick(lambda w: PLANS[w.root].previous_teacher(w.family, w.gap, w.index, w.seed)),
    output:
        **teacher_files(PLACES.teacher("{family}", "{gap}", "{index}", "{seed}")),
    log:
        LOGS / "teachers/{family}/gap{gap}/seed{seed}/{index}.log",
    benchmark:
        TIMES / "teachers/{family}/gap{gap}/seed{seed}/{index}.tsv"
    group:
        CHAIN
    conda:
        "../../environment.yml"
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(30),
    params:
        family=quick(lambda w: PLANS[w.root].family_source(w.family)),
        settings=quick(lambda w: PLANS[w.root].teacher_settings(w.family)),
        depends=quick(lambda w: PLANS[w.root].depends("teachers", w.family)),
        places=quick(lambda w: PLANS[w.root].where),
    message:
        "teacher of {wildcards.family}, gap {wildcards.gap}, index {wildcards.index}, seed {wildcards.seed}, in {wildcards.root}"
    shell:
        "dibs teacher {params.family:q} --gap {wildcards.gap} --index {wildcards.index} --seed {wildcards.seed}"
        " {params.places:q} --settings {params.settings:q} > {log:q} 2>&1"
