# Requires only python3.11 and make. `make help` lists the targets.
PYTHON ?= python3.11
VENV ?= .venv
# Extra pip arguments for torch, for example an index with CPU builds.
TORCH_PIP_ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 2

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := results/demo
TORCH := $(shell grep '^torch==' constraints.txt)
SMK := $(wildcard Snakefile workflow/rules/*.smk)
SOURCES := $(wildcard dibs tests benchmarks examples workflow/scripts)

.DEFAULT_GOAL := help
.PHONY: help env demo test slurm lint format clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile

env: $(STAMP) ## create .venv, or update it when pyproject.toml or constraints.txt has changed

# Install torch first and without its dependencies, so that TORCH_PIP_ARGS alone decides which build is used and
# everything else comes from the usual index.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found; set it with make PYTHON=…" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-deps $(TORCH) $(TORCH_PIP_ARGS)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# An interrupted run resumes. The run prints its results when it ends.
demo: env ## run the whole method on a small config, a few minutes
	@$(BIN)/python workflow/scripts/unlock.py
	@$(BIN)/snakemake demo --profile profiles/local --configfile config/demo.yaml
	@printf '\ntables:  %s\nfigures: %s\n' '$(DEMO)/tables' '$(DEMO)/figures'
	@printf 'picture: %s\n' '$(DEMO)/figures/success_by_index-suite-car2d-orbit.png'
	@printf '\nnext, after `. $(BIN)/activate`:\n'
	@printf '  %-92s %s\n' \
		'snakemake --report demo.html --configfile config/demo.yaml' 'all tables and figures in one page' \
		'dibs results --results $(DEMO)' 'the ratios again' \
		'dibs policy suite-car2d-orbit --method dibs-plus --gap 10 --index 13 --results $(DEMO) --output p.safetensors' 'an unseen index' \
		'dibs rollout p.safetensors --output p.gif' 'watch it' \
		'snakemake --cores all --configfile config/laptop.yaml' 'all environments'

test: env ## run all tests except those on a cluster
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n $(WORKERS) -m "not slurm" $(PYTEST_ARGS)

slurm: env ## install and start a two-node SLURM cluster and test on it (Debian, root)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -m slurm tests/slurm $(PYTEST_ARGS)

lint: env ## check formatting, style, types and import layers
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(if $(SMK),$(BIN)/snakefmt --check $(SMK))
	$(BIN)/mypy dibs
	$(BIN)/lint-imports --no-logo

format: env ## format the sources and apply automatic fixes
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)
	$(if $(SMK),$(BIN)/snakefmt $(SMK))

clean: ## remove caches and builds, keep .venv and results
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find dibs tests -name __pycache__ -type d -prune -exec rm -rf {} +
