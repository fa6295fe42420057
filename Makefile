# Needs python3.11 and make, nothing else. `make help` lists the targets.
PYTHON ?= python3.11
VENV ?= .venv
# Extra arguments for installing torch, for example an index of CPU builds.
TORCH_PIP_ARGS ?=
PYTEST_ARGS ?=
WORKERS ?= 2

BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO := results/demo
TORCH := $(shell sed -n 's/^ *"\(torch==[^"]*\)",$$/\1/p' pyproject.toml)
SMK := $(wildcard Snakefile workflow/rules/*.smk)
SOURCES := $(wildcard dibs tests benchmarks workflow/scripts)

.DEFAULT_GOAL := help
.PHONY: help env demo test slurm lint format clean

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile

env: $(STAMP) ## make .venv with everything in it (again only when pyproject.toml changes)

# torch goes first and alone, so that no other requirement can choose its build.
$(STAMP): pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) not found; name one with make PYTHON=…" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH) $(TORCH_PIP_ARGS)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

# Interrupted, it goes on where it was; finished, it only shows the results again.
demo: env ## the whole method end to end on a small config: about five minutes
	@$(BIN)/python workflow/scripts/unlock.py
	$(BIN)/snakemake demo --profile profiles/local --configfile config/demo.yaml --quiet reason
	@echo && cat $(DEMO)/tables/relative.md && echo && $(BIN)/dibs results --results $(DEMO)
	@printf '\nfigures:\n' && ls $(DEMO)/figures/*.png
	@printf '\nnext, after `. $(BIN)/activate`:\n'
	@printf '  %-86s %s\n' \
		'snakemake -n --quiet' 'the plan of the full paper' \
		'snakemake --cores all --configfile config/laptop.yaml' 'every environment, about two hours' \
		'dibs policy car2d-reach-obs-k3 --gap 5 --index 13 --results $(DEMO)' 'a policy for an index never trained on'

test: env ## all tests but those on a cluster
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -n $(WORKERS) -m "not slurm" $(PYTEST_ARGS)

slurm: env ## tests on a real two-node SLURM cluster, which they install and start (Debian, root)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pytest -m slurm tests/slurm $(PYTEST_ARGS)

lint: env ## formatting, lint and types
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(if $(SMK),$(BIN)/snakefmt --check $(SMK))
	$(BIN)/mypy dibs

format: env ## rewrite the sources as `make lint` wants them
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)
	$(if $(SMK),$(BIN)/snakefmt $(SMK))

clean: ## remove caches and builds; .venv and results stay
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find dibs tests -name __pycache__ -type d -prune -exec rm -rf {} +
