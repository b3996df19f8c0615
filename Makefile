PYTHON := .venv/bin/python
READY := .venv/ready
TYPES := $(PYTHON) -m mypy
LAYERS := .venv/bin/lint-imports --no-logo
SEEDS ?= 1000
SEED ?=
KILLS ?= 1000

.DEFAULT_GOAL := help
.PHONY: help setup run test style lint bench simulate mutants soak

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## Set up .venv; every other target does so when needed

run: $(READY) ## Play a day in the example shop; DIR=data keeps its messages there, KEEP=1 its dashboard up
	@$(PYTHON) -m examples.shop $(if $(KEEP),--keep) $(DIR)

# Types take a minute to check; the tests wait a lot, so both run at the same time.
test: style ## Lint and run all tests
	@( nice -n 19 $(TYPES) && nice -n 19 $(LAYERS) ) >.venv/lint.txt 2>&1 & lint=$$!; \
	$(PYTHON) -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0; tests=$$?; \
	wait $$lint || { cat .venv/lint.txt; exit 1; }; exit $$tests

style: $(READY)
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check

lint: style ## Check style, types and import layers
	$(TYPES)
	$(LAYERS)

bench: $(READY) ## Measure Remuda against its peers
	@$(PYTHON) -m benchmarks

simulate: $(READY) ## Run SEEDS=1000 seeds of the simulation, or replay only SEED=n
	@$(PYTHON) -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

mutants: $(READY) ## Plant bugs, one change each, and check that tests find every one
	@$(PYTHON) -m tests.mutants

soak: $(READY) ## Kill KILLS=1000 brokers under load, and count what is lost
	@$(PYTHON) -m tests.soak --kills $(KILLS)

$(READY): requirements.lock pyproject.toml tools/setup.sh hatch_build.py $(wildcard src/remuda/native/*.[ch])
	@bash tools/setup.sh
	@touch $@
