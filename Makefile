# One command for each thing; `make help` lists them. Everything a target needs, it makes.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := models/smollm2-135m-instruct

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  \1\t\2/' | expand -t 20

$(VENV)/.installed: pyproject.toml requirements/constraints.txt proto/build_stubs.py $(wildcard proto/weir/v1/*.proto)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 -c requirements/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c requirements/constraints.txt -e '.[dev]'
	$(BIN)/python proto/build_stubs.py
	@touch $@

.PHONY: venv
venv: $(VENV)/.installed ## create .venv with everything development needs

.PHONY: proto
proto: $(VENV)/.installed ## lint the API and generate its Python stubs
	cd proto && ../$(BIN)/buf lint
	$(BIN)/python proto/build_stubs.py

.PHONY: lint
lint: $(VENV)/.installed ## ruff, mypy, import rules, buf
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy service kernels
	$(BIN)/lint-imports
	cd proto && ../$(BIN)/buf lint
