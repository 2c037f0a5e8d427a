# make help lists the targets. A fresh machine needs Python 3.11 or newer and make; the rest is fetched.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST_ARGS ?=
# Files at a time, in the order that tests/conftest.py gives. Tests that start brokers, JVMs and clients come last.
WORKERS ?= 2
PARALLEL := -n $(WORKERS) --dist loadgroup --no-loadscope-reorder
# make compat and make sim run the long forms.
SHORT := -m "not long"
IN_PROCESS := $(addprefix tests/,tidy unit wire property transcripts sim)
WITH_PROCESSES := $(addprefix tests/,cluster clients hostile viewer spark dist)
QUICK ?=
PEER ?=
NAME ?=
SEEDS ?= 2000
DIST ?= dist
SITE ?= site

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format bench compat docs dist site sim lock clean java browser compat-tools

help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## the environment in .venv, from requirements/test.lock

# The lock decides: the environment is made again when it changes.
$(STAMP): requirements/test.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "klamm needs Python 3.11 or newer; name one with make PYTHON=..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "The venv module is missing: apt-get install python3-venv"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements/test.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

demo: $(STAMP) ## start three brokers, kill a leader under load, and check that no record is lost
	$(BIN)/klamm demo

test: $(STAMP) java browser .cache/pyodide/.installed ## format, lint, types, and all of tests/ but the long forms
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest $(PARALLEL) $(SHORT) $(IN_PROCESS) $(PYTEST_ARGS)
	$(BIN)/pytest $(PARALLEL) $(SHORT) $(WITH_PROCESSES) $(PYTEST_ARGS)

check: $(STAMP) ## format, lint, types and the tidy tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q $(SHORT) tests/tidy

format: $(STAMP) ## format the code and apply lint fixes
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## the broker beside its ceiling, the control plane, Spark; PEER=kafka beside Apache Kafka; QUICK=1 short
	$(BIN)/python -m bench $(if $(PEER),--peer $(PEER)) $(if $(QUICK),--quick)

compat: $(STAMP) java browser .cache/pyodide/.installed compat-tools ## clients of other languages, long forms of tests; NAME=kcat for one, QUICK=1 short
	$(BIN)/python compat/run.py $(if $(QUICK),--quick) $(NAME)

docs: $(STAMP) ## write the generated parts of docs/
	$(BIN)/python -m docgen

dist: .cache/dist/.installed ## build the sdist and the wheel into dist/
	.cache/dist/bin/python -m build --outdir $(DIST) .

# An environment of its own: the tools that build a release are not needed to test one.
.cache/dist/.installed: requirements/dist.lock
	$(PYTHON) -m venv --clear .cache/dist
	.cache/dist/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements/dist.lock
	@touch $@

site: .cache/site/.installed .cache/pyodide/.installed ## build the documentation as a web site into site/, with the browser edition
	NO_MKDOCS_2_WARNING=1 .cache/site/bin/mkdocs build --quiet --strict --clean --site-dir $(SITE)
	PYTHONPATH=src .cache/site/bin/python -m docgen.playground $(SITE) .cache/pyodide/node_modules/pyodide

.cache/site/.installed: requirements/site.lock
	$(PYTHON) -m venv --clear .cache/site
	.cache/site/bin/python -m pip install --quiet --disable-pip-version-check --requirement requirements/site.lock
	@touch $@

# Python for the browser, from npm by its name; the lock has its digest.
.cache/pyodide/.installed: requirements/pyodide/package-lock.json
	@command -v npm >/dev/null || ./requirements/debian.sh nodejs npm
	@mkdir -p .cache/pyodide
	cp requirements/pyodide/package.json requirements/pyodide/package-lock.json .cache/pyodide/
	cd .cache/pyodide && npm ci --silent --no-audit --no-fund --ignore-scripts
	@touch $@

sim: $(STAMP) ## the simulator: SEED=7 for one seed; without it the long form of its tests, then SEEDS=2000; QUICK=1 the tests only
ifdef SEED
	$(BIN)/klamm simulate --seed $(SEED)
else
	KLAMM_SIM=long $(BIN)/pytest $(PARALLEL) tests/sim $(PYTEST_ARGS)
	$(if $(QUICK),,$(BIN)/klamm simulate --seeds $(SEEDS))
endif

lock: ## write the lock files again from pyproject.toml (needs uv)
	uv pip compile --quiet --no-header --no-annotate --python-version 3.11 pyproject.toml -o requirements/core.lock
	uv pip compile --quiet --no-header --no-annotate --python-version 3.11 --extra test pyproject.toml -o requirements/test.lock
	uv pip compile --quiet --no-header --no-annotate --python-version 3.11 --group dist -o requirements/dist.lock
	uv pip compile --quiet --no-header --no-annotate --python-version 3.11 --group site -o requirements/site.lock

clean: ## remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist site src/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian packages, only where they are missing and only for what needs them.
java:
	@command -v javac >/dev/null || ./requirements/debian.sh openjdk-17-jdk-headless
	@command -v mvn >/dev/null || ./requirements/debian.sh maven
	@$(PYTHON) requirements/fetch_jars.py

browser:
	@command -v chromium >/dev/null || ./requirements/debian.sh chromium

compat-tools:
	@command -v kcat >/dev/null || ./requirements/debian.sh kcat
	@command -v npm >/dev/null || ./requirements/debian.sh nodejs npm
