# What is done every day; needs python3 with venv. `make lab` needs what docs/lab.md says.
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: unit lint format lab

$(VENV)/.installed: pyproject.toml
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

unit: $(VENV)/.installed
	$(BIN)/pytest -q tests/unit

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy zsnapdb tests

format: $(VENV)/.installed
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

lab:
	python3 tests/lab build
	python3 tests/lab test
