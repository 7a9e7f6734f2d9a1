# make demo          translate, look inside, watch a model learn
# make test          everything that must hold, with lint and types
# make test-fast     the fast tier: under three minutes on two cores
# make test-slow     the slow tests with every trial, of which `make test` takes a sample
# make lint          ruff and mypy only
# make page          build the explorer's page from web/
# make docs          build the documentation as a site
# make bench         compare speed with other libraries
# make experiments   the commands that reproduce docs/results.md; make test-experiments tests them
# make clean         remove what make created
#
# Each target makes .venv when it is missing or stale. PYTHON=python3.12 picks the interpreter.

VENV := .venv
PY := $(VENV)/bin/python
# A line for each thing that pip fetches, so that minutes of installing are seen to go on.
PIP := PYTHONUNBUFFERED=1 $(PY) -m pip install --progress-bar off -c constraints.txt
TOLD := awk '/^Collecting/ { print "  " $$2; fflush() } /^Installing coll/ { print "  installing them"; fflush() }'
SHELL := bash

# The stamps carry a checksum of what the environment was made from: the pins, the checkout's own place (the
# install is editable), and the sources of the explorer's page, which installing builds. When one of them changes
# a new stamp is asked for; otherwise make does nothing.
PAGE := $(shell find web -type f -not -path '*/node_modules/*' 2>/dev/null | LC_ALL=C sort)
KEY := $(shell { pwd; cat pyproject.toml constraints.txt hatch_build.py $(PAGE); } | cksum | tr ' ' '-')
DEV := $(VENV)/.dev-$(KEY)
# A development environment holds all that a lean one does.
LEAN := $(or $(wildcard $(DEV)),$(VENV)/.lean-$(KEY))

.PHONY: demo test test-fast test-slow test-experiments lint page docs bench experiments clean

demo: $(LEAN)
	@$(PY) -m glassformer.cli.main demo --out demo_out

# The tests start some hundred programs; what the first of them compiles is kept for the others, also where
# the environment asks Python to keep nothing.
test: lint
	PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n 2

test-fast: $(DEV)
	PYTHONDONTWRITEBYTECODE= $(PY) -m pytest -n 2 -m "not slow"

test-slow: $(DEV)
	GLASSFORMER_FAULTS=whole $(PY) -m pytest -m slow

lint: $(DEV)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

page: $(DEV)
	$(PY) hatch_build.py

docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	@echo "open site/index.html, or serve the folder to search in it: $(PY) -m http.server -d site"

bench: $(DEV)
	$(PY) benchmarks/core.py

experiments: $(DEV)
	@$(PY) -m experiments

test-experiments: $(DEV)
	$(PY) -m pytest -n 2 experiments

clean:
	rm -rf $(VENV) build dist site demo_out web/node_modules glassformer/explorer/page .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find glassformer tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.dev-$(KEY): $(PY)
	@echo "installing Glassformer with its development tools into $(VENV) (minutes, once)"
	@set -o pipefail; $(PIP) -e '.[dev,docs]' | $(TOLD)
	@rm -f $(VENV)/.dev-* $(VENV)/.lean-*
	@touch $@

$(VENV)/.lean-$(KEY): $(PY)
	@echo "installing Glassformer into $(VENV) (minutes, once)"
	@set -o pipefail; $(PIP) -e '.[serve]' | $(TOLD)
	@rm -f $(VENV)/.dev-* $(VENV)/.lean-*
	@touch $@

# Reached when there is no interpreter, or its link has gone dangling.
$(PY):
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then \
	    "$$python" -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }; exit 0; \
	  fi; \
	done; \
	echo "Glassformer needs Python 3.11, 3.12 or 3.13, and none was found: install one, or name it with PYTHON=/path/to/python." >&2; \
	exit 1
