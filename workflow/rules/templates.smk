# Stage II: a template per method of the template stage and (family, gap, seed), from all of its split's datasets.

for fitted in TEMPLATE_METHODS:

    rule:
        name:
            f"template_{fitted.replace('-', '_')}"
        input:
            teachers=quick(lambda w: PLANS[w.root].teachers(w.family, w.gap, w.seed)),
            datasets=quick(lambda w: PLANS[w.root].datasets(w.family, w.gap, w.seed)),
        output:
            **with_metrics(PLACES.template(fitted, "{family}", "{gap}", "{seed}")),
        log:
            LOGS / "templates" / fitted / "{family}/gap{gap}/seed{seed}.log",
        benchmark:
            TIMES / "templates" / fitted / "{family}/gap{gap}/seed{seed}.tsv"
        conda:
            "../../environment.yml"
        threads: 1
        resources:
            mem_mb=growing(4000),
            runtime=growing(60),
        params:
            family=quick(lambda w: PLANS[w.root].family_source(w.family)),
            method=fitted,
            settings=quick(lambda w, method=fitted: PLANS[w.root].template_settings(method, w.family)),
            depends=quick(lambda w, method=fitted: PLANS[w.root].depends("templates", w.family, method)),
            places=quick(lambda w: PLANS[w.root].where),
        message:
            "template {params.method} of {wildcards.family}, gap {wildcards.gap}, seed {wildcards.seed}, in {wildcards.root}"
        shell:
            "dibs fit {params.family:q} --method {params.method} --gap {wildcards.gap} --seed {wildcards.seed}"
            " {params.places:q} --settings {params.settings:q} > {log:q} 2>&1"
