# One word a command; CI runs the same ones.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help setup run test lint bench e2e format lock clean

help:
	@echo "make run     the worked example, explained step by step (ONCE=1: exit by itself)"
	@echo "make test    all tests            make lint    ruff, mypy, import rules"
	@echo "make bench   benchmarks beside their budgets"
	@echo "make e2e     what needs QEMU (skips with the reason where it is missing)"

setup: $(READY)

$(READY): lock/dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "alignup needs Python 3.11 or newer; $(PYTHON) is older. Say which: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r lock/dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run: $(READY)
	@$(BIN)/python examples/announcement.py

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m bench

e2e: $(READY)
	$(BIN)/python -m pytest e2e

format: $(READY)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Needs uv on the PATH; writes exact versions and hashes, and names no host.
lock:
	uv pip compile pyproject.toml --extra dev --extra agent --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-emit-find-links --no-header --upgrade -o lock/dev.txt

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
