# Every target sets itself up: needs Python >= 3.11 with pip, and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check
STAMP := $(VENV)/.installed
TORCH := $(shell sed -n 's/^torch==//p' constraints.txt)
# An environment of its own with the lowest versions that pyproject.toml admits, and what it admits at least.
LOWEST := .venv-lowest
FLOOR = $(shell sed -n 's/.*"$(1)>=\([0-9.]*\)".*/\1/p' pyproject.toml)

# Another one, of trainers that others wrote. Some ask for GPUs or a torch of their own: of these the package alone.
TRAINERS := .venv-trainers
WHOLE := accelerate==1.15.0 lightning==2.6.6 datasets==5.2.0 ray[train] grain==0.2.18
ALONE := scikit-image trl verl==0.9.1 torchtitan==0.3.0 tyro docstring-parser typeguard megatron-core==0.16.1 \
  tensordict==0.10.0 pyvers cloudpickle codetiming hydra-core antlr4-python3-runtime==4.9.3 cachetools peft uvicorn fastapi \
  starlette opentelemetry-api opentelemetry-semantic-conventions

# Another one, of peers in figures; what they share with us is that of $(VENV). Both name torchvision, which neither needs here.
PEERS := .venv-peers
PURELIB := import sysconfig; print(sysconfig.get_path('purelib'))
PEER_PACKAGES := litdata==0.2.76 mosaicml-streaming==0.13.0 lightning-utilities boto3 botocore jmespath s3transfer Brotli \
  python-snappy cramjam zstd catalogue==2.0.10 torchdata==0.11.0

# Another one, for the pages in a browser: Debian's chromium and chromium-driver, and npm, are of the machine's packages.
# Where one of them is missing, these tests are skipped with its name.
BROWSER := .venv-browser

# Tests start hundreds of processes: what one has compiled, the others need not, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

# mypy looks for garbage after each 200,000 objects, which is 40 % of its time without a cache; after ten times as many it
# is 15 %, for 150 MB more.
MYPY := $(BIN)/python -c "import gc; limit = gc.set_threshold; gc.set_threshold = lambda *_: limit(2_000_000, 30, 30); \
  from mypy.__main__ import console_entry; console_entry()"

# Nothing is asked about versions that may follow.
export NO_MKDOCS_2_WARNING := 1

.PHONY: demo dist docs test test-browser test-long test-lowest test-trainers bench venv

demo: venv
	$(BIN)/python examples/make_demo_data.py demo_data
	$(BIN)/python examples/demo.py demo_data

# The wheel and the sdist, checked: metadata by twine, the wheel in an empty environment.
dist: venv
	$(PIP) install -q build==1.6.1 twine==7.0.0
	rm -rf dist
	$(BIN)/python -m build -q .
	$(BIN)/twine check --strict dist/*
	$(BIN)/python -m tests.dist dist

# Without -q, which hides from --strict the warnings that it counts.
docs: venv
	$(BIN)/mkdocs build --strict

test: venv
	$(BIN)/ruff check .
	@# mypy, and then the site, have a core to themselves while the first tests wait for theirs; all must pass.
	{ $(MYPY) && $(BIN)/mkdocs build --strict; } & checked=$$!; $(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder; tested=$$?; wait $$checked && exit $$tested

# Tests that are too dear for `make test` and properties with more examples, which are others each time; random jobs over
# many topologies, real processes that are killed, what an elastic resume costs in large jobs, what the processes hold over
# millions of samples, and files that are damaged at random.
test-long: venv
	$(BIN)/pytest -q -n 2 --dist loadfile -m "long or hypothesis" --hypothesis-profile=long
	$(BIN)/python -m tests.elastic.soak --steps 100000
	$(BIN)/python -m tests.elastic.lives --jobs 5000
	$(BIN)/python -m tests.elastic.torchrun_soak --kills 10
	$(BIN)/python -m tests.elastic.scale
	$(BIN)/python -m tests.io.cache_soak
	$(BIN)/python -m tests.io.remote_equals_local --cases 100
	$(BIN)/python -m tests.benchmarks.soak
	$(BIN)/python -m tests.fuzz --cases 2000
	$(BIN)/python -m tests.faults.killed_trainers
	$(BIN)/python -m tests.faults.killed_workers
	$(BIN)/python -m tests.faults.killed_clients
	$(BIN)/python -m tests.faults.interrupts
	$(BIN)/python -m tests.faults.changed_files
	$(BIN)/python -m tests.faults.power_loss
	$(BIN)/python -m tests.shards.many_local_shards
	$(BIN)/python -m tests.tools.plan.compare --recipes 30

# What these versions need in turn comes as new as they take it: uv knows how to resolve so, pip does not. A torch that is
# there before uv runs stays, and brings no CUDA if it is the CPU build.
test-lowest: $(LOWEST)/bin/python
	$(LOWEST)/bin/pip install -q "uv==0.13.9"
	$(LOWEST)/bin/pip install -q "torch==$(call FLOOR,torch)+cpu" || $(LOWEST)/bin/pip install -q "torch==$(call FLOOR,torch)"
	$(LOWEST)/bin/uv pip install -q --python $(LOWEST) --resolution lowest-direct -e '.[test]'
	$(LOWEST)/bin/uv pip install -q --python $(LOWEST) --no-deps "scikit-image==$(call FLOOR,scikit-image)"
	$(LOWEST)/bin/pip install -q -c constraints.txt --no-deps trl axolotl
	$(LOWEST)/bin/pytest -q -n 2 --dist loadfile $(TESTS)

# A trainer that does not install is named with pip's reason, and its tests are skipped. torch stays the one of the pin.
test-trainers: $(TRAINERS)/bin/python
	$(TRAINERS)/bin/pip install -q -c constraints.txt "torch==$(TORCH)+cpu" || $(TRAINERS)/bin/pip install -q -c constraints.txt "torch==$(TORCH)"
	$(TRAINERS)/bin/pip install -q -c constraints.txt -e '.[test]'
	@for name in $(WHOLE); do $(TRAINERS)/bin/pip install -q -c constraints.txt $$name || echo "missing: $$name, see above"; done
	@for name in $(ALONE); do $(TRAINERS)/bin/pip install -q -c constraints.txt --no-deps $$name || echo "missing: $$name, see above"; done
	$(TRAINERS)/bin/pytest -q tests/compat tests/examples/test_plain_loop.py tests/examples/test_group_loops.py tests/examples/moving_over tests/stores/test_megatron_samples.py

test-browser: venv $(BROWSER)/bin/python
	$(BROWSER)/bin/pip install -q selenium==4.51.0 || echo "missing: selenium, see above"
	npm install --silent --no-audit --no-fund --prefix $(BROWSER)/npm axe-core@4.14.1 || echo "missing: axe-core, see above"
	$(BIN)/python -c "$(PURELIB)" > $$($(BROWSER)/bin/python -c "$(PURELIB)")/beneath.pth
	$(BROWSER)/bin/python -m pytest -q tests/browser

# Megatron-Core is a peer in one figure; nothing of what it depends on is needed for that. py-spy looks into rows for
# `python -m tests.benchmarks.profiles`. Peers that do not install have rows that say so, and so has nginx, which is of
# the machine's packages.
bench: venv $(PEERS)/bin/python
	$(PIP) install -q --no-deps megatron-core==0.16.1 py-spy==0.4.3
	$(BIN)/python -c "$(PURELIB)" > $$($(PEERS)/bin/python -c "$(PURELIB)")/beneath.pth
	@for name in $(PEER_PACKAGES); do $(PEERS)/bin/pip install -q --no-deps $$name || echo "missing: $$name, see above"; done
	$(BIN)/python -m tests.benchmarks $(BENCH)

venv: $(STAMP)

$(BIN)/python $(LOWEST)/bin/python $(TRAINERS)/bin/python $(PEERS)/bin/python $(BROWSER)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is $$($(PYTHON) -V 2>&1), expected Python 3.11 or newer: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(@:/bin/python=)

# torch comes first, its CPU build where pip knows one: the CUDA build brings some GB of packages that nothing here needs.
# Of scikit-image only the photographs are wanted, of trl and axolotl the chat templates, all of which are read as files:
# nothing of what these packages import is installed.
$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) install -q -c constraints.txt "torch==$(TORCH)+cpu" || $(PIP) install -q -c constraints.txt "torch==$(TORCH)"
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	$(PIP) install -q -c constraints.txt --no-deps scikit-image trl axolotl
	@touch $@
