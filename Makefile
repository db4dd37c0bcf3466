# What is done every day; needs python3 with venv. `make lab` needs what docs/lab.md says.
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: unit laws lint format references pictures site package-trial readme-trial image-trial lab lower-bounds newest

$(VENV)/.installed: pyproject.toml
	python3 -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'
	touch $@

unit: $(VENV)/.installed
	$(BIN)/pytest -q tests/unit

# Look for examples that break a law of the unit tests: other ones each time, twenty times as many.
laws: $(VENV)/.installed
	$(BIN)/pytest -q -n auto -m '' --hypothesis-profile=search $$(grep -rl 'hypothesis' --include='test_*.py' tests/unit)

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

# Make the pictures of the pages that docs show; needs chromium and fonts-dejavu of Debian.
pictures: $(VENV)/.installed
	PYTHONPATH=packaging:. $(BIN)/python -m tools.pictures

# Build the site of the documentation; a link that leads nowhere fails.
site: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable '.[docs]'
	$(BIN)/mkdocs build --strict --site-dir $(VENV)/site

# Install and purge the package in bare roots of Debian. Needs root.
package-trial:
	python3 packaging/tools/package_trial.py bookworm trixie

# Run the commands of docs/install.md that install zsnapdb in bare roots of Debian. Needs root.
readme-trial:
	python3 packaging/tools/readme_trial.py bookworm trixie

# Run the steps of the Dockerfile in bare roots of Debian, and try the result. Needs root.
image-trial:
	python3 packaging/tools/image_trial.py

lab:
	python3 tests/lab build
	python3 tests/lab test

# Unit tests on the lower bounds of the dependencies, with the oldest Python that has wheels for them. Needs root.
lower-bounds:
	python3 packaging/tools/python_trial.py --lowest bookworm

# Unit tests on the newest release of everything, with the newest Python of Debian. Needs root.
newest:
	python3 packaging/tools/python_trial.py sid
