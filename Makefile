# What is done every day; needs python3 with venv. `make lab` needs what docs/lab.md says.
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: unit lint format references site package-trial lab lower-bounds

$(VENV)/.installed: pyproject.toml
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

unit: $(VENV)/.installed
	$(BIN)/pytest -q tests/unit

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy zsnapdb tests packaging

format: $(VENV)/.installed
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

# Write the pages of docs that are made from the code.
references: $(VENV)/.installed
	PYTHONPATH=packaging $(BIN)/python -m tools.references

# Build the site of the documentation; a link that leads nowhere fails.
site: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[docs]'
	$(BIN)/mkdocs build --strict --site-dir $(VENV)/site

# Install and purge the package in bare roots of Debian. Needs root.
package-trial:
	python3 packaging/tools/package_trial.py bookworm trixie

lab:
	python3 tests/lab build
	python3 tests/lab test

# The unit tests on the lower bounds of the dependencies, installed exactly. The oldest typer imports what click deprecates.
LOWEST = import tomllib; print(*(d.replace(">=", "==") for d in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]))

lower-bounds:
	python3 -m venv $(VENV)-lowest
	$(VENV)-lowest/bin/pip install --quiet $$(python3 -c '$(LOWEST)') --editable '.[dev]'
	$(VENV)-lowest/bin/python -m zsnapdb backup --help
	$(VENV)-lowest/bin/pytest -q -W "ignore:'click:DeprecationWarning" tests/unit
