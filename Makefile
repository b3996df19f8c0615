PYTHON := .venv/bin/python
READY := .venv/ready
SEEDS ?= 1000
SEED ?=
KILLS ?= 1000

.DEFAULT_GOAL := help
.PHONY: help setup run test lint bench simulate mutants soak

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## Prepare .venv; every other target does this by itself

run: $(READY) ## Play a day in the example shop; DIR=data keeps its messages there
	@$(PYTHON) -m examples.shop $(DIR)

test: lint ## Lint, then run all tests
	$(PYTHON) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

lint: $(READY) ## Check style, types and the layers of imports
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check
	$(PYTHON) -m mypy
	.venv/bin/lint-imports --no-logo

bench: $(READY) ## Measure Remuda beside its peers
	@$(PYTHON) -m benchmarks

simulate: $(READY) ## Play SEEDS=1000 seeds of the simulation, or replay SEED=n alone
	@$(PYTHON) -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

mutants: $(READY) ## Plant bugs, one change each, and see every one found by its test
	@$(PYTHON) -m tests.mutants

soak: $(READY) ## Kill KILLS=1000 brokers under load, and count what is lost
	@$(PYTHON) -m tests.soak --kills $(KILLS)

$(READY): requirements.lock pyproject.toml tools/setup.sh hatch_build.py src/remuda/native/tail.c
	@bash tools/setup.sh
	@touch $@
