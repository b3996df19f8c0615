PYTHON := .venv/bin/python
READY := .venv/ready
COMPILED := .venv/compiled
TYPES := $(PYTHON) -m mypy
LAYERS := .venv/bin/lint-imports --no-logo
SEEDS ?= 1000
SEED ?=
KILLS ?= 1000

.DEFAULT_GOAL := help
.PHONY: help setup run test quick style lint docs bench simulate pairs mutants soak workflows

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## Set up .venv; every other target does so when needed

run: $(COMPILED) ## Play a day in the example shop; DIR=data keeps its messages there, KEEP=1 its dashboard up
	@$(PYTHON) -m examples.shop $(if $(KEEP),--keep) $(DIR)

# Types take a minute to check; the tests wait a lot, so both run at the same time.
test: style $(COMPILED) ## Lint and run all tests; ALL=1 plays everything on every face
	@( nice -n 19 $(TYPES) && nice -n 19 $(LAYERS) ) >.venv/lint.txt 2>&1 & lint=$$!; \
	bash tools/test.sh $(if $(ALL),--all); tests=$$?; \
	wait $$lint || { cat .venv/lint.txt; exit 1; }; exit $$tests

quick: style ## A minute: style, types, and the tests that need no server; for every change
	@( nice -n 5 $(TYPES) ) >.venv/types.txt 2>&1 & types=$$!; \
	$(PYTHON) -m pytest -q -n 3 --quick --dist load; tests=$$?; \
	wait $$types || { cat .venv/types.txt; exit 1; }; exit $$tests

style: $(READY)
	$(PYTHON) -m ruff check
	$(PYTHON) -m ruff format --check

lint: style ## Check style, types and import layers
	$(TYPES)
	$(LAYERS)

docs: $(READY) ## Write what is generated in docs/ anew, and build the site in .venv/site
	@$(PYTHON) -m tools.docs.surface
	@$(PYTHON) -m tools.docs.spec
	@$(PYTHON) -m tools.docs.flow
	@PYTHONPATH=. NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet --strict
	@echo "open .venv/site/index.html, or run: $(PYTHON) -m http.server --bind 127.0.0.1 --directory .venv/site"

bench: $(COMPILED) ## Measure Remuda against its peers
	@$(PYTHON) -m benchmarks

simulate: $(COMPILED) ## Run SEEDS=1000 seeds of the simulation, or replay only SEED=n; RULES=1 for rules of flow
	@$(PYTHON) -m tests.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(RULES),--rules)

pairs: $(READY) ## Play scenes in which all pairs of features meet, or one again: PAIR="testing 12"
	@$(PYTHON) -m tests.pairs $(PAIR)

mutants: $(READY) ## Plant bugs, one change each, and check that tests find every one
	@$(PYTHON) -m tests.mutants

soak: $(COMPILED) ## Kill KILLS=1000 brokers under load, and count what is lost
	@$(PYTHON) -m tests.soak --kills $(KILLS)

workflows: $(COMPILED) ## Kill KILLS=1000 workers of each kind in the middle of workflows, and count what is lost or done twice
	@REMUDA_WORKFLOW_KILLS=$(KILLS) $(PYTHON) -m pytest -q -rP --timeout 0 tests/faults/test_workflow_kills.py

$(READY): requirements.lock pyproject.toml tools/setup.sh hatch_build.py $(wildcard src/remuda/native/*.[ch])
	@bash tools/setup.sh
	@touch $@ $(COMPILED)

# After an edit everything is played from source until this is made again.
$(COMPILED): $(READY) $(shell find src/remuda/core src/remuda/model src/remuda/log src/remuda/broker/embedded -name '*.py')
	@$(PYTHON) hatch_build.py
	@touch $@
