# Stage II and the baselines: one model per method, (family or benchmark), split and seed. The method's record says which of the two its
# models are of, what they are made from, and what training one takes.


rule model:
    input:
        unpack(quick(lambda w: plan(w).model_inputs(w.method, w.unit, w.split, int(w.seed)))),
    output:
        **with_metrics(LAYOUT.model("{method}", "{unit}", "{split}", "{seed}")),
    log:
        LOGS / "models/{method}/{unit}/{split}/seed{seed}.log",
    benchmark:
        TIMES / "models/{method}/{unit}/{split}/seed{seed}.tsv"
    threads: 1
    resources:
        **asked(lambda w: plan(w).model_resources(w.method, w.unit)),
    params:
        unit=quick(lambda w: plan(w).unit(w.method, w.unit).source),
        split=quick(lambda w: plan(w).split_arguments(plan(w).unit(w.method, w.unit).family.name, w.split)),
        teachers=quick(lambda w, input: option("--teachers", input.get("teachers", []))),
        datasets=quick(lambda w, input: option("--datasets", input.get("datasets", []))),
        settings=quick(lambda w: plan(w).method_settings(w.method, plan(w).unit(w.method, w.unit).family.name)),
        expect=quick(lambda w: plan(w).model_id(w.method, w.unit, w.split, int(w.seed))),
    message:
        "model of {wildcards.method} on {wildcards.unit}, {wildcards.split}, seed {wildcards.seed}, in {wildcards.root}"
    shell:
        "dibs fit {params.unit:q} --method {wildcards.method} {params.split:q} --seed {wildcards.seed}"
        " {params.teachers:q} {params.datasets:q} --settings {params.settings:q} --expect {params.expect}"
        " --output {output.weights:q} --log {log:q}"
