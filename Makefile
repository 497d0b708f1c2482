# Everything starts from make, python3 (3.11+, with venv) and Node 20: no other tool is assumed.

PYTHON ?= python3
NODE ?= node
NPM ?= npm
JOBS ?= auto
UV_VERSION ?= 0.13.7

VENV := .venv
BIN := $(VENV)/bin
SDK := tests/sdk/node
LOCKED := $(VENV)/.locked
INSTALLED := $(VENV)/.installed
SDK_INSTALLED := $(SDK)/node_modules/.installed
CLAUDE := tests/clients/claude
CLAUDE_INSTALLED := $(CLAUDE)/node_modules/.installed
WHEELS := build/wheel
# What reads tool results and builds histories has every branch tried (document 000, success metric 1).
EXACT := src/dragoman/dialects/kiro/quirks/results.py,src/dragoman/dialects/kiro/quirks/history.py,src/dragoman/dialects/kiro/turns.py,src/dragoman/dialects/kiro/request.py
EXACT_TESTS := tests/unit/dialects/test_kiro_*.py

export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv node test check fmt cover laws-long bench wheel lock clean need-python need-node

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' Makefile

venv: $(INSTALLED) ## make .venv from the hash-locked requirements

node: $(SDK_INSTALLED) $(CLAUDE_INSTALLED) ## install the pinned TypeScript clients and Claude Code

.PHONY: demo
demo: need-python $(INSTALLED) ## two conversations with tools through the gateway, both sides shown: no account, no network
	@$(BIN)/dragoman demo

test: need-python need-node $(INSTALLED) $(SDK_INSTALLED) $(CLAUDE_INSTALLED) ## set everything up, run the suite, then `make check`
	$(BIN)/python -m pytest -n $(JOBS)
	@$(MAKE) --no-print-directory check

check: $(INSTALLED) ## format, lint, strict types, import contracts, branch coverage where it must be whole, clean locks
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/coverage run --data-file=.coverage.exact -m pytest -q --no-header -p no:cacheprovider $(EXACT_TESTS)
	$(BIN)/coverage report --data-file=.coverage.exact --include='$(EXACT)' --fail-under=100
	@! grep -nE '://|^(-i|-f|--index-url|--extra-index-url|--find-links)' requirements/*.lock || { echo "A lock of requirements/ names a host." >&2; exit 1; }
	@! grep -n '"resolved"' $(SDK)/package-lock.json $(CLAUDE)/package-lock.json || { echo "A package-lock.json names a host." >&2; exit 1; }

fmt: $(INSTALLED) ## rewrite the code in the house format, and fix what can be fixed
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

cover: $(INSTALLED) $(SDK_INSTALLED) $(CLAUDE_INSTALLED) ## run the suite in one process and report branch coverage
	$(BIN)/coverage run -m pytest -n 0
	$(BIN)/coverage report

laws-long: $(INSTALLED) ## run the laws with the hypothesis profile `long`
	$(BIN)/python -m pytest tests/laws tests/unit/raw_tools -n $(JOBS) --hypothesis-profile=long

bench: $(INSTALLED) ## measure what a translation costs
	@test -d bench || { echo "There is no bench/ yet." >&2; exit 1; }
	$(BIN)/python -m bench

wheel: $(INSTALLED) ## build the wheel, install it into an empty environment, time `dragoman --version`
	rm -rf $(WHEELS)
	$(BIN)/python -m build --wheel --no-isolation --outdir $(WHEELS)
	$(BIN)/python .ci/check_wheel.py $(WHEELS)/*.whl requirements/run.lock

lock: | need-python need-node ## choose versions anew and write the locks
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet uv==$(UV_VERSION)
	$(call compile,run,pyproject.toml)
	$(call compile,dev,pyproject.toml requirements/dev.in)
	for place in $(SDK) $(CLAUDE); do \
		rm -rf $$place/package-lock.json $$place/node_modules; \
		(cd $$place && $(NPM) install --package-lock-only --ignore-scripts --no-audit --no-fund) || exit 1; \
	done

compile = build/lock/bin/uv pip compile $(2) --output-file requirements/$(1).lock --upgrade --quiet \
	--universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links

clean: ## remove the environments, builds and caches
	rm -rf $(VENV) $(SDK)/node_modules $(CLAUDE)/node_modules build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(LOCKED): requirements/dev.lock | need-python
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.lock
	@touch $@

$(INSTALLED): $(LOCKED) pyproject.toml src/dragoman/_version.py
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --no-index -e .
	@touch $@

$(SDK_INSTALLED): $(SDK)/package.json $(SDK)/package-lock.json $(SDK)/.npmrc | need-node
	cd $(SDK) && $(NPM) ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(CLAUDE_INSTALLED): $(CLAUDE)/package.json $(CLAUDE)/package-lock.json $(CLAUDE)/.npmrc | need-node
	cd $(CLAUDE) && $(NPM) ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

need-python:
	@"$(PYTHON)" -c '' >/dev/null 2>&1 || { echo "Dragoman needs Python 3.11 or newer, and '$(PYTHON)' does not run (PYTHON=... names another)." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Dragoman needs Python 3.11 or newer, and '$(PYTHON)' is older (PYTHON=... names another)." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' >/dev/null 2>&1 || { echo "Dragoman needs Python's venv module, and '$(PYTHON)' has none (on Debian and Ubuntu it is the package python3-venv)." >&2; exit 1; }

need-node:
	@"$(NODE)" -e '' >/dev/null 2>&1 || { echo "Dragoman's tests need Node 20 or newer, and '$(NODE)' does not run (NODE=... names another)." >&2; exit 1; }
	@"$(NODE)" -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || { echo "Dragoman's tests need Node 20 or newer, and '$(NODE)' is older (NODE=... names another)." >&2; exit 1; }
	@"$(NPM)" --version >/dev/null 2>&1 || { echo "Dragoman's tests need npm, which comes with Node, and '$(NPM)' does not run (NPM=... names another)." >&2; exit 1; }
