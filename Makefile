# Each target is all the set-up there is: python3 (3.11 or newer) and make are enough. What a target needs is installed
# once, into .venv in this folder; a second call installs nothing and needs no network.
#
#   make demo      train on handwritten digits with NumPy alone     ARGS="--epochs 5 --seed 1"
#   make test      the tests, on all engines, within 8 minutes      ARGS="tests/data -x"
#   make test-all  the whole cross product of them, which CI runs   ARGS="tests/data -x"
#   make lint      formatting, style, types, floors
#   make docs      build the site in docs/_build/html, and test it
#   make floors    try the lowest versions of all dependencies
#   make versions  smoke tests, oldest and newest NumPy, JAX, torch ARGS="newest torch-newest"
#   make release   build an sdist and a wheel, and check both      ARGS=--full, ARGS=--files
#   make bench     speed against the peers, in .venv-bench          ARGS=--quick, ARGS="gpt-4x256 cnn", ARGS=--check
#   make clean     remove what the above made, except runs/
#
# Another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
ARGS ?=

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all lint docs floors versions release bench clean

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The environments hold what this file puts there, not what the caller's shell adds.
unexport PYTHONPATH PYTHONHOME

BIN := .venv/bin
PIP_INSTALL := python -m pip install --quiet

help:
	@sed -n 's/^#   //p' Makefile

# One thread: for matrices as small as the demo's, NumPy's threads cost more than they bring, and ten times as much on a
# machine that is busy.
demo: .venv/installed-train
	@OPENBLAS_NUM_THREADS=$${OPENBLAS_NUM_THREADS:-1} $(BIN)/phlox demo --out runs/demo --overwrite $(ARGS)

PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist worksteal

# With ARGS=--costs=check, what it costs is printed at the end, and may not double: see tests/costs.py.
test: .venv/installed-test
	$(PYTEST) -m "not full" $(ARGS)

test-all: .venv/installed-test
	$(PYTEST) $(ARGS)

lint: .venv/installed-lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --threads 2 --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-logo

# A warning is an error. The built pages are opened in Chromium where it is installed.
docs: .venv/installed-docs
	rm -rf docs/_build
	$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs docs/_build/html
	$(BIN)/python -m pytest --quiet tests/site
	@echo "phlox: open docs/_build/html/index.html"

# Each set of versions has an environment of its own in .venv-versions, which the tool makes once.
floors: .venv/made-for
	@$(BIN)/python -m tools.floors

versions: .venv/made-for
	@$(BIN)/python -m tools.versions $(ARGS)

# The sdist's own tests take the packages of .venv; the wheel is tried in environments of .venv-versions.
release: .venv/installed-test
	@$(BIN)/python -m tools.release $(ARGS)

bench: .venv-bench/installed-bench
	.venv-bench/bin/python -m benchmarks $(ARGS)

clean:
	rm -rf .venv .venv-bench .venv-versions .venv-floors .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find src tests tools -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that somebody made as .venv is taken as it is, and never cleared. After `pip install .` in it, the tests
# would test that copy: Phlox is then installed anew, so that the files of the checkout are what runs.
ifneq (,$(wildcard .venv/lib/python3*/site-packages/phlox/__init__.py))
$(shell rm -f .venv/installed-*)
endif

# An environment remembers where it was made and for which Python. A moved checkout, or another Python named by PYTHON,
# makes it anew; without PYTHON, an environment that is there keeps its own.
TELL := -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null
python_of = $(if $(and $(filter file,$(origin PYTHON)),$(wildcard $(1)/bin/python)),$(1)/bin/python,$(PYTHON))
made_for = $(shell "$(call python_of,$(1))" $(TELL)) in $(CURDIR)
ifneq ($(call made_for,.venv),$(shell cat .venv/made-for 2>/dev/null))
.PHONY: .venv/made-for
endif
ifneq ($(call made_for,.venv-bench),$(shell cat .venv-bench/made-for 2>/dev/null))
.PHONY: .venv-bench/made-for
endif

.venv/made-for .venv-bench/made-for:
	@command -v "$(PYTHON)" >/dev/null || { \
	    echo "phlox: '$(PYTHON)' is not there; install Python 3.11 or newer, or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "phlox: Python 3.11 or newer is needed, but '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1); name a newer one: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	    echo "phlox: '$(PYTHON)' cannot make virtual environments; install its venv module (on Debian and Ubuntu: apt install python3-venv)" >&2; exit 1; }
	@if [ -x $(@D)/bin/python ] && { [ ! -e $@ ] || [ -e $(@D)/taken ]; }; then \
	    $(@D)/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	        echo "phlox: $(@D) is there, but its Python does not run or is older than 3.11; remove it, or move it away" >&2; exit 1; }; \
	    [ "$(origin PYTHON)" = file ] || [ "$$("$(PYTHON)" $(TELL))" = "$$($(@D)/bin/python $(TELL))" ] || { \
	        echo "phlox: $(@D), which is yours, has Python $$($(@D)/bin/python $(TELL)), not that of $(PYTHON); remove it, or move it away" >&2; exit 1; }; \
	    echo "phlox: taking $(@D), which is there"; touch $(@D)/taken; \
	    $(@D)/bin/python -m pip --version >/dev/null 2>&1 || $(@D)/bin/python -m ensurepip >/dev/null; \
	    echo "$$($(@D)/bin/python $(TELL)) in $(CURDIR)" >$@; \
	else \
	    echo "phlox: making $(@D) with $$("$(PYTHON)" --version)"; \
	    "$(PYTHON)" -m venv --clear $(@D) && echo "$$("$(PYTHON)" $(TELL)) in $(CURDIR)" >$@; \
	fi

.venv/installed-%: pyproject.toml .venv/made-for
	@echo "phlox: installing what this needs into .venv (once)"
	@$(BIN)/$(PIP_INSTALL) --editable '.[$*]'
	@touch $@

# The peers have an environment of their own, so that their dependencies never hide a missing one of ours. Where they
# cannot be installed together, each is tried; the benchmarks go on without those that are missing.
PEERS := torch==2.13.0 flax optax equinox keras safetensors onnx onnxruntime lightning grain torchvision \
    orbax-checkpoint transformers
.venv-bench/installed-bench: pyproject.toml .venv-bench/made-for
	@echo "phlox: installing Phlox and its peers into .venv-bench (once)"
	@install=".venv-bench/bin/$(PIP_INSTALL)"; $$install --editable '.[fast,jax,zstd]' $(PEERS) || { \
	    $$install --editable '.[fast,jax,zstd]' && for peer in $(PEERS); do \
	        $$install "$$peer" || echo "phlox: the benchmarks go on without $$peer" >&2; done; }
	@touch $@
