# Every target installs what it lacks and says so. `make help` lists them.
.DEFAULT_GOAL := help
UV := tools/uv
RUN := $(UV) run --locked
SOURCES := operator tests e2e bench examples tools conftest.py
PRESENT = $(wildcard $(SOURCES))
# Source roots have no __init__.py, so types are checked by package below them.
TYPED = $(wildcard operator/stepfence tests e2e bench examples tools conftest.py)

.PHONY: help setup demo demo-cluster test lint lint-format lint-style lint-types lint-layers unit e2e bench cluster cluster-down format

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: ## Install the locked dependencies into .venv
	@echo "==> installing the locked dependencies into .venv"
	@$(UV) sync --locked --quiet

# What is in .venv already stays: the demo needs less than the tests, and takes nothing away from them.
demo: ## Kill an agent between a payment and the record of it: under a minute, no cluster
	@echo "==> installing what runs without a cluster into .venv: the locked dependencies of stepfence[local]"
	@$(UV) sync --locked --quiet --inexact --no-dev --extra local
	@$(UV) run --no-sync python -m e2e.demo

demo-cluster: setup ## The same on Kubernetes, on a cluster of yours or one of its own
	@$(RUN) python -m e2e.demo_cluster

test: setup ## Run every tier that this machine can
	@$(RUN) python -m tools.tiers

lint: setup ## Check format, style, types and layers
	@$(MAKE) --no-print-directory --keep-going lint-format lint-style lint-types lint-layers

lint-format:
	@echo "==> format"
	@$(RUN) ruff format --check $(PRESENT)

lint-style:
	@echo "==> style"
	@$(RUN) ruff check $(PRESENT)

lint-types:
	@echo "==> types"
	@$(RUN) mypy $(TYPED)

lint-layers:
	@echo "==> layers"
	@$(RUN) lint-imports --no-logo

unit: setup ## Run the fast tests and print the coverage: a minute or two, no network
	@$(RUN) python -m tools.tiers --only unit

e2e: setup ## Run the tests against a real API server and real pods
	@$(RUN) python -m tools.tiers --only contract --only e2e

bench: setup ## Measure step latency, apply-to-claim time and the idle controller
	@$(RUN) python -m bench

cluster: setup ## Start the cluster that needs no Docker, anew, and leave it running
	@$(RUN) python -m e2e.cluster up

cluster-down: setup ## Stop that cluster and remove its traces
	@$(RUN) python -m e2e.cluster down

format: setup ## Format the sources and mend what ruff can
	@$(RUN) ruff check --fix $(PRESENT)
	@$(RUN) ruff format $(PRESENT)
