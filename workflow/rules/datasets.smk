# One dataset per teacher.


rule dataset:
    input:
        unpack(
            quick(
                lambda w: {
                    kind: file
                    for kind, file in teacher_files(plan(w).layout.teacher(w.family, w.split, w.index, w.seed)).items()
                    if kind not in ("curve", "timing")
                }
            )
        ),
    output:
        LAYOUT.dataset("{family}", "{split}", "{index}", "{seed}"),
    log:
        LOGS / "datasets/{family}/{split}/seed{seed}/{index}.log",
    benchmark:
        TIMES / "datasets/{family}/{split}/seed{seed}/{index}.tsv"
    threads: 1
    resources:
        **asked(lambda w: plan(w).dataset_resources(w.family)),
    params:
        family=quick(lambda w: plan(w).family_source(w.family)),
        split=quick(lambda w: plan(w).split_arguments(w.family, w.split)),
        settings=quick(lambda w: plan(w).dataset_settings(w.family)),
        expect=quick(lambda w: plan(w).dataset_id(*numbers(w))),
    message:
        "dataset of {wildcards.family}, {wildcards.split}, index {wildcards.index}, seed {wildcards.seed}, in {wildcards.root}"
    shell:
        "dibs dataset {params.family:q} {params.split:q} --index {wildcards.index} --seed {wildcards.seed}"
        " --teacher {input.weights:q} --settings {params.settings:q} --expect {params.expect} --output {output:q} --log {log:q}"
