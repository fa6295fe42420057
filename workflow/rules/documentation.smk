# The picture of the rules in docs/, made again when a rules file changes: `snakemake --cores 1 rulegraph`.


rule rulegraph:
    input:
        "Snakefile",
        sorted(Path("workflow/rules").glob("*.smk")),
    output:
        svg="docs/rulegraph.svg",
        png="docs/rulegraph.png",
    log:
        f"{PLAN.config.results}/logs/rulegraph.log",
    localrule: True
    conda:
        "../../environment.yml"
    message:
        "picture of the rules"
    script:
        "../scripts/rulegraph.py"
