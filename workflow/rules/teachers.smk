# Stage I. A teacher needs that of the previous training index; the one of index 0 needs none and serves all gaps.


rule base_teacher:
    output:
        **PLAN.teacher("{family}", "", 0, "{seed}"),
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
        family=quick(lambda w: PLAN.family_source(w.family)),
        gap=quick(lambda w: PLAN.family(w.family).last_index),
        settings=quick(lambda w: PLAN.teacher_settings(w.family)),
        depends=quick(lambda w: PLAN.depends("teachers", w.family)),
        results=PLACES.root,
    message:
        "teacher of {wildcards.family}, index 0, seed {wildcards.seed}"
    shell:
        "dibs teacher {params.family:q} --gap {params.gap} --index 0 --seed {wildcards.seed}"
        " --results {params.results:q} --settings {params.settings:q} > {log:q} 2>&1"


rule teacher:
    input:
        quick(lambda w: PLAN.previous_teacher(w.family, w.gap, w.index, w.seed)),
    output:
        **PLAN.teacher("{family}", "{gap}", "{index}", "{seed}"),
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
        family=quick(lambda w: PLAN.family_source(w.family)),
        settings=quick(lambda w: PLAN.teacher_settings(w.family)),
        depends=quick(lambda w: PLAN.depends("teachers", w.family)),
        results=PLACES.root,
        resume=RESUME,
    message:
        "teacher of {wildcards.family}, gap {wildcards.gap}, index {wildcards.index}, seed {wildcards.seed}"
    shell:
        "dibs teacher {params.family:q} --gap {wildcards.gap} --index {wildcards.index} --seed {wildcards.seed}"
        " --results {params.results:q} --settings {params.settings:q} {params.resume} > {log:q} 2>&1"
