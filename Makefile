# Every target sets itself up: needs Python >= 3.11 with pip, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
STAMP := $(VENV)/.installed
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)

.PHONY: demo test bench venv

demo: venv
	$(BIN)/python examples/make_demo_data.py demo_data
	$(BIN)/python examples/demo.py demo_data

test: venv
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q -n 2 --dist loadfile

# Megatron-Core is a peer in one figure; nothing of what it depends on is needed for that.
bench: venv
	$(PIP) install -q --no-deps megatron-core==0.16.1
	$(BIN)/python -m tests.benchmarks

venv: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), expected Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# torch comes first, its CPU build where pip knows one: the CUDA build brings some GB of packages that nothing here needs.
# Of scikit-image only the photographs are wanted, of trl and axolotl the chat templates, all of which are read as files:
# nothing of what these packages import is installed.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt "torch==$(TORCH)+cpu" || $(PIP) install -q -c constraints.txt "torch==$(TORCH)"
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	$(PIP) install -q -c constraints.txt --no-deps scikit-image trl axolotl
	@touch $@
