# make demo          translate, look inside a model, and train one
# make test          all tests, after lint and type checks
# make test-fast     the fast tier: about three minutes on two cores
# make test-slow     the slow tests with all trials and cases; `make test` runs a sample of them
# make lint          ruff and mypy only
# make page          build the explorer's page from web/
# make stubs         write the types of the task methods and of the server's bodies
# make docs          build the documentation and the explorer's stories as a site
# make bench         compare speed with other libraries
# make experiments   print the commands that reproduce docs/results.md
# make lock          write requirements.lock: the tested versions with the hashes of their files
# make sbom          write sbom.cdx.json, a CycloneDX bill of materials of the lock
# make clean         remove everything that make created
#
# Every target creates .venv if it is missing or out of date. PYTHON=python3.12 selects the interpreter.

VENV := .venv
PY := $(VENV)/bin/python
# Print one line per package, since installation takes minutes.
PIP := PYTHONUNBUFFERED=1 $(PY) -m pip install --progress-bar off -c constraints.txt
PROGRESS := awk '/^Collecting/ { print "  " $$2; fflush() } /^Installing coll/ { print "  installing"; fflush() }'
SHELL := bash

# The stamp files contain a checksum of everything that affects the environment: the pinned versions, the path of
# the checkout (the install is editable), and the sources of the explorer's page. If one of them changes, the
# environment is updated.
PAGE := $(shell find web -type f -not -path '*/node_modules/*' 2>/dev/null | LC_ALL=C sort)
KEY := $(shell { pwd; cat pyproject.toml constraints.txt hatch_build.py $(PAGE); } | cksum | tr ' ' '-')
DEV := $(VENV)/.dev-$(KEY)
# A development environment contains everything that a lean one does.
LEAN := $(or $(wildcard $(DEV)),$(VENV)/.lean-$(KEY))

.PHONY: demo test test-fast test-slow lint page stubs docs bench experiments lock sbom clean

demo: $(LEAN)
	@$(PY) -m glassformer.cli.main demo --out demo_out

# The tests start hundreds of Python processes, so keep the compiled bytecode even if the environment disables it.
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

stubs: $(DEV)
	$(PY) -m docs.task_stubs
	$(PY) web/scripts/generate_types.py

docs: $(DEV)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict --quiet
	$(PY) -m glassformer.cli.main explore --site site/explorer --overwrite
	@echo "open site/index.html and site/explorer/index.html, or serve the folder to search in it: $(PY) -m http.server -d site"

bench: $(DEV)
	$(PY) benchmarks/core.py

experiments: $(DEV)
	@$(PY) -m experiments

# Linux on x86-64 with the CUDA build of torch, as on PyPI. Install it with pip install --require-hashes -r requirements.lock
lock: $(DEV)
	$(PY) -m uv pip compile pyproject.toml --extra dev --extra docs -c constraints.txt --generate-hashes --no-emit-index-url \
	  --no-annotate --no-header --quiet --python-version 3.11.9 --python-platform x86_64-manylinux_2_28 -o requirements.lock

sbom: $(DEV)
	$(PY) -m cyclonedx_py requirements requirements.lock --pyproject pyproject.toml --output-file sbom.cdx.json

clean:
	rm -rf $(VENV) build dist site demo_out sbom.cdx.json web/node_modules glassformer/explorer/page .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find glassformer tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.dev-$(KEY): $(PY)
	@echo "installing Glassformer with its development tools into $(VENV) (takes minutes, only once)"
	@set -o pipefail; $(PIP) -e '.[dev,docs]' | $(PROGRESS)
	@rm -f $(VENV)/.dev-* $(VENV)/.lean-*
	@touch $@

$(VENV)/.lean-$(KEY): $(PY)
	@echo "installing Glassformer into $(VENV) (takes minutes, only once)"
	@set -o pipefail; $(PIP) -e '.[serve]' | $(PROGRESS)
	@rm -f $(VENV)/.dev-* $(VENV)/.lean-*
	@touch $@

# There is no interpreter, or its symbolic link is broken.
$(PY):
	@for python in $(PYTHON) python3 python3.13 python3.12 python3.11; do \
	  if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then \
	    "$$python" -m venv --clear $(VENV) || { rm -rf $(VENV); exit 1; }; exit 0; \
	  fi; \
	done; \
	echo "Glassformer needs Python 3.11, 3.12 or 3.13, but none was found: install one, or set PYTHON=/path/to/python." >&2; \
	exit 1
