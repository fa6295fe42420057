# One evaluation per (method, benchmark, split, seed), for any method.


rule evaluation:
    input:
        model=quick(lambda w: plan(w).model(w.method, w.benchmark, w.split, int(w.seed))),
    output:
        LAYOUT.evaluation("{method}", "{benchmark}", "{split}", "{seed}"),
    log:
        LOGS / "evaluations/{method}/{benchmark}/{split}/seed{seed}.log",
    benchmark:
        TIMES / "evaluations/{method}/{benchmark}/{split}/seed{seed}.tsv"
    threads: 1
    resources:
        **asked(lambda w: plan(w).evaluation_resources(w.method, w.benchmark, w.split)),
    params:
        benchmark=quick(lambda w: plan(w).benchmark(w.benchmark).source),
        split=quick(lambda w: plan(w).split_arguments(plan(w).benchmark(w.benchmark).family.name, w.split)),
        settings=quick(lambda w: plan(w).evaluation_settings),
        expect=quick(lambda w: plan(w).evaluation_id(w.method, w.benchmark, w.split, int(w.seed))),
    message:
        "evaluation of {wildcards.method} on {wildcards.benchmark}, {wildcards.split}, seed {wildcards.seed}, in {wildcards.root}"
    shell:
        "dibs evaluate {params.benchmark:q} --method {wildcards.method} {params.split:q} --seed {wildcards.seed}"
        " --model {input.model:q} --settings {params.settings:q} --expect {params.expect} --output {output:q} --log {log:q}"


# Tables and figures read a list instead of thousands of paths: a benchmark's evaluations, one path per line, with their checksums, so that
# the list changes if one of them does.
rule evaluation_list:
    input:
        quick(lambda w: plan(w).evaluations_of(w.benchmark)),
    output:
        str(LAYOUT.root / "inputs/{benchmark}.txt"),
    log:
        LOGS / "inputs/{benchmark}.log",
    localrule: True
    params:
        **{kind: (lambda w, kind=kind: plan(w).measured(w.benchmark)[kind]) for kind in ("methods", "splits", "seeds")},
    message:
        "list of the evaluations on {wildcards.benchmark}"
    shell:
        "dibs list {wildcards.benchmark} --methods {params.methods:q} --splits {params.splits:q} --seeds {params.seeds:q}"
        " --results {wildcards.root:q} --output {output:q} --log {log:q}"


# What the benchmarks of a family require. Tables show it; for the paper's benchmarks, the package has the answers.
rule requirements_of:
    output:
        LAYOUT.requirements("{family}"),
    log:
        LOGS / "requirements/{family}.log",
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=growing(120),
    params:
        family=quick(lambda w: plan(w).family_source(w.family)),
        # Not an argument of the command: with another family, settings or version, the answers are measured again.
        id=quick(lambda w: plan(w).requirements_id(w.family)),
    message:
        "what the benchmarks of {wildcards.family} require"
    shell:
        "dibs requires {params.family:q} --results {wildcards.root:q} --output {output:q} --log {log:q}"
