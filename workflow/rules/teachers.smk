# Stage I. A teacher needs that of the previous training index. That of index 0 needs none and serves all splits, as split `base`.


rule teacher:
    input:
        previous=quick(lambda w: plan(w).previous(*numbers(w))),
    output:
        **teacher_files(LAYOUT.teacher("{family}", "{split}", "{index}", "{seed}")),
    log:
        LOGS / "teachers/{family}/{split}/seed{seed}/{index}.log",
    benchmark:
        TIMES / "teachers/{family}/{split}/seed{seed}/{index}.tsv"
    group:
        CHAIN
    threads: 1
    resources:
        **asked(lambda w: plan(w).teacher_resources(w.family)),
    params:
        family=quick(lambda w: plan(w).family_source(w.family)),
        split=quick(lambda w: plan(w).split_arguments(w.family, w.split)),
        previous=quick(lambda w: option("--previous", plan(w).previous(*numbers(w)))),
        settings=quick(lambda w: plan(w).teacher_settings(w.family)),
        expect=quick(lambda w: plan(w).teacher_id(*numbers(w))),
    message:
        "teacher of {wildcards.family}, {wildcards.split}, index {wildcards.index}, seed {wildcards.seed}, in {wildcards.root}"
    shell:
        "dibs teacher {params.family:q} {params.split:q} --index {wildcards.index} --seed {wildcards.seed}"
        " {params.previous:q} --settings {params.settings:q} --expect {params.expect} --output {output.weights:q} --log {log:q}"
