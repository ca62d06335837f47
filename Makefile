# Needs Python 3.11 or newer, git and make. Everything else is installed into .venv.
#
#   make demo PYTHON=python3.12    another interpreter
#   make test PYTEST_ARGS="-k retry -x"
#   make test COMMANDBUS_TEST=everything
#   make simulate SEEDS=100000

PYTHON ?=
# Neighbours stay in one worker, so that servers, browsers and wheels of a module are made once.
PYTEST_ARGS ?= -n 4 --dist worksteal -q
SEEDS ?= 1000
SEED ?= 1
EXAMPLES ?= 2000
SECONDS ?= 60
HOURS ?= 2
SAMPLE ?= 200
BENCH_ARGS ?=
COMMANDBUS_TEST ?=

VENV := .venv
RUN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP_INSTALL := $(RUN)/python -m pip install --quiet --no-cache-dir --disable-pip-version-check -c constraints.txt

# pyright keeps what it may have to download inside the project.
export PYRIGHT_PYTHON_CACHE_DIR := $(CURDIR)/$(VENV)/.cache
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# Where a container forbids bytecode files, every run of the tests rewrites all assertions again, and every process that a test
# starts compiles what was edited since the installation. Empty means: write them.
export PYTHONDONTWRITEBYTECODE :=

# A version of Python as "3.12", failing where it is too old.
VERSION := import sys; print(*sys.version_info[:2], sep="."); sys.exit(sys.version_info < (3, 11))

# `make test PYTHON=python3.12` builds .venv anew when it holds another version.
ifneq ($(PYTHON),)
ifneq ($(shell $(PYTHON) -c '$(VERSION)' 2>/dev/null),$(shell $(RUN)/python -c '$(VERSION)' 2>/dev/null))
ANEW := anew
endif
endif

# The stamp of the richest set of extras that is installed already, else of the last one named.
installed = $(firstword $(if $(ANEW),,$(wildcard $(1:%=$(VENV)/.installed-%))) $(VENV)/.installed-$(lastword $(1)))
NEEDS_DEMO = $(call installed,dev test cli)
NEEDS_TEST = $(call installed,dev test)
NEEDS_DEV = $(VENV)/.installed-dev

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test coverage lint types check docs bench chaos soak fuzz simulate mutate sbom audit
.PHONY: embedded postgres dist release-check publish screenshots clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(NEEDS_DEMO) ## send, fail, retry and finish some commands before your eyes
	@$(RUN)/commandbus demo

test: $(NEEDS_TEST) ## run the tests (PYTEST_ARGS="-k retry")
	@$(RUN)/python -m pytest $(PYTEST_ARGS)

# Of the thread runtime, health, watchdog and probes, by the tests that are about them.
COVERED := src/commandbus/runtimes/threads/*,src/commandbus/runtimes/worker.py,src/commandbus/runtimes/services.py
COVERED := $(COVERED),src/commandbus/runtimes/watchdog.py,src/commandbus/runtimes/probes.py
COVERED := $(COVERED),src/commandbus/worker/health.py,src/commandbus/worker/watchdog.py,src/commandbus/worker/keeper.py
coverage: $(NEEDS_DEV) ## branch coverage of the thread runtime, health and watchdog: at least 90 %
	@$(RUN)/coverage erase
	@$(RUN)/coverage run -m pytest -n 2 -q tests/health tests/cli/test_worker.py tests/cli/test_worker_care.py \
		tests/postgres/test_layers.py tests/postgres/test_outage.py tests/postgres/test_transactional.py \
		tests/pgmq/test_client.py tests/conformance -k "not asyncio or health or layers"
	@$(RUN)/coverage combine --quiet
	@$(RUN)/coverage report --include="$(COVERED)" --fail-under=90

# What every operating system has to pass.
embedded: $(NEEDS_TEST) ## the tests that need no server: memory and SQLite
	@COMMANDBUS_TEST=everything $(RUN)/python -m pytest -q -n 3 -m "not postgres" \
		tests/unit tests/conformance tests/platforms

# COMMANDBUS_TEST_POSTGRES=postgresql://… names a server; tests that stop a server are not among these.
postgres: $(NEEDS_TEST) ## the tests of the PostgreSQL engine on any server
	@$(RUN)/python -m pytest -q -n 3 -m "postgres and not pgmq" tests/conformance tests/postgres/test_sql.py \
		tests/postgres/test_roles.py tests/postgres/test_transactional.py tests/postgres/test_callers.py

check: lint test ## linters, type checkers, import contracts and tests

lint: $(NEEDS_DEV) types
	@$(RUN)/ruff check .
	@$(RUN)/ruff format --check .
	@$(RUN)/lint-imports

# Both at a time, because each uses one core. pyright runs on Node, which comes from PyPI where the machine has none. Where it
# cannot start at all, mypy's verdict has to do; an error that pyright reports always counts.
types: $(NEEDS_DEV)
	@$(RUN)/mypy & mypy=$$!; failed=0; \
	if $(RUN)/pyright --version >/dev/null 2>&1; then $(RUN)/pyright || failed=1; \
	else echo "!!! SKIPPED: pyright cannot start on this machine; the types are checked by mypy alone" >&2; fi; \
	wait $$mypy || failed=1; exit $$failed

docs: $(NEEDS_TEST) ## build the documentation site into build/site
	@$(RUN)/mkdocs build --quiet && echo "build/site/index.html"

bench: $(NEEDS_DEV) ## measure ours beside every peer, and write docs/benchmarks.md (BENCH_ARGS="--only commandbus")
	@$(RUN)/python -m bench --page $(BENCH_ARGS)

# Both keep their totals, and write docs/reliability.md from all that are kept.
CHAOS = $(RUN)/python -m tests.chaos --all --seed $(SEED) --record tests/chaos/results.jsonl --write docs/reliability.md

chaos: $(NEEDS_TEST) ## kill, cut and freeze real processes, then check every promise (SEED=1)
	@$(CHAOS) --seconds $(SECONDS)

soak: $(NEEDS_TEST) ## the same with one seed after another (HOURS=2)
	@$(CHAOS) --hours $(HOURS)

fuzz: $(NEEDS_TEST) ## hostile payloads, names, arguments, requests and rows (EXAMPLES=2000)
	@FUZZ=$(EXAMPLES) FUZZ_SEED=$(SEED) $(RUN)/python -m pytest -q tests/fuzz

sbom: $(NEEDS_TEST) ## the list of all parts as CycloneDX, into build/sbom.json
	@$(RUN)/python -m tests.support.supply sbom build/sbom.json

audit: $(NEEDS_TEST) ## ask pip-audit for known vulnerabilities of the parts
	@$(RUN)/python -m tests.support.supply audit

simulate: $(NEEDS_TEST) ## random interleavings of the core and the routers (SEEDS=1000)
	@$(RUN)/python -m tests.simulation $(SEEDS)

mutate: $(NEEDS_DEV) ## change the source in small ways: do tests notice? (SAMPLE=200)
	@$(RUN)/python -m tests.mutation --sample $(SAMPLE) --seed $(SEED)

dist: $(NEEDS_TEST) ## wheels of both distributions and the sdist, into dist
	@rm -rf dist
	@$(RUN)/python -m hatchling build -t sdist -t wheel -d dist
	@cd lab && ../$(RUN)/python -m hatchling build -t wheel -d ../dist

release-check: $(NEEDS_TEST) ## whether TAG, the version and the changelog agree (TAG=v1.2.3)
	@$(RUN)/python -m tests.wheels.release $(TAG)

publish: ## upload what is in dist, by the identity of the release workflow
	@uv publish --trusted-publishing always dist/*

screenshots: $(NEEDS_TEST) ## pictures of every page of the dashboard, into docs/screenshots (needs chromium)
	@$(RUN)/python -m tests.web.screenshots

clean: ## remove .venv, caches and build products
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage .coverage.* htmlcov
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed-%: pyproject.toml constraints.txt $(ANEW) | interpreter
	@echo "Installing the project with [$*] into $(VENV)"
	@$(PIP_INSTALL) -e '.[$*]'
	@$(RUN)/python -m compileall -q src # programs start quicker, also where Python may write no bytecode itself
	@touch $@

.PHONY: anew interpreter
anew:

interpreter:
	@if [ -z "$(ANEW)" ] && [ -x $(RUN)/python ]; then exit 0; fi; \
	for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11); do \
		if found=$$($$python -c '$(VERSION)' 2>/dev/null); then \
			echo "Creating $(VENV) with Python $$found"; \
			exec $$python -m venv --clear $(VENV); \
		fi; \
		tried="$$tried $$python ($${found:-not usable})"; \
	done; \
	echo "Python 3.11 or newer is needed; tried:$$tried." >&2; \
	echo "Name one with: make PYTHON=/path/to/python3.12" >&2; \
	exit 1
