SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check format setup clean

setup: $(STAMP)

$(STAMP): requirements/dev.txt pyproject.toml scripts/setup
	@PYTHON=$(PYTHON) VENV=$(VENV) scripts/setup && touch $@

demo: setup
	@$(BIN)/omnizen demo

test: setup
	@scripts/test $(BIN)

check: setup
	@scripts/check $(BIN)

format: setup
	@$(BIN)/ruff format src tests scripts && $(BIN)/ruff check --fix src tests

clean:
	rm -rf $(VENV) build dist runs
