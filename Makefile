# Everything starts from make, python3 (3.11+, with venv) and Node 20: no other tool is assumed.

PYTHON ?= python3
NODE ?= node
NPM ?= npm
# Two more than processors, because many tests wait.
JOBS ?= $(shell $(PYTHON) -c 'import os; print(2 + (os.cpu_count() or 1))' 2>/dev/null || echo 4)
UV_VERSION ?= 0.13.7

VENV := .venv
BIN := $(VENV)/bin
SDK := tests/sdk/node
LOCKED := $(VENV)/.locked
INSTALLED := $(VENV)/.installed
DEMO := build/demo
SDK_INSTALLED := $(SDK)/node_modules/.installed
CSPELL := tests/words/cspell
CSPELL_INSTALLED := $(CSPELL)/node_modules/.installed
# Whose prose is checked: pages, and comments, docstrings and messages of modules (src tests bench) and of other files.
PROSE ?= docs '*.md' 'tests/**/*.md' Makefile pyproject.toml '.ci/*' '.github/*.md' 'src/**/*.sql' 'src/**/*.toml' src tests bench
INSPECTOR := tests/inspector/node
INSPECTOR_INSTALLED := $(INSPECTOR)/node_modules/.installed
PRETTIER = $(NODE) $(INSPECTOR)/node_modules/prettier/bin/prettier.cjs --config $(INSPECTOR)/prettier.json src/dragoman/gateway/inspector/page
PINS := tests/clients/pins
# What `make test-clients` runs: clients by their name, or one of the sets quick, ci and all.
CLIENTS ?= all
WHEELS := build/wheel
# What reads tool results and builds histories has every branch tried (docs/mission.md, row 000.16).
EXACT := src/dragoman/dialects/kiro/quirks/turns.py,src/dragoman/dialects/kiro/request_parser.py,src/dragoman/dialects/kiro/request.py
EXACT_TESTS := $(foreach part,cases conversion history quirks request tool_results,tests/unit/dialects/test_kiro_$(part).py)

export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONPATH PYTHONHOME
unexport PYTHONDONTWRITEBYTECODE # compiled files save minutes in tests that start processes

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help venv node test check fmt cover laws-long bench wheel lock clean need-python need-node

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile

venv: $(INSTALLED) ## make .venv from the hash-locked requirements

node: $(SDK_INSTALLED) quick-clients ## install the pinned TypeScript clients and Claude Code

.PHONY: demo
demo: | need-python ## two conversations with tools through the gateway, both sides shown: no account, and no network once installed
	@$(MAKE) --no-print-directory --silent $(DEMO)/.installed
	@$(DEMO)/bin/dragoman demo

test: need-python need-node $(INSTALLED) $(SDK_INSTALLED) quick-clients ## set everything up, run the suite, then `make check`
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal
	@$(MAKE) --no-print-directory check

.PHONY: test-clients quick-clients
test-clients: need-python need-node $(INSTALLED) $(SDK_INSTALLED) ## install the real clients, run each through the gateway over every dialect, print a table; CLIENTS="codex gemini" runs some
	-NPM='$(NPM)' $(BIN)/python -m tests.clients.install $(CLIENTS)
	DRAGOMAN_CLIENTS='$(CLIENTS)' $(BIN)/python -m pytest -n $(JOBS) tests/clients

.PHONY: newest test-newest
newest: $(INSTALLED) ## which pinned clients are behind the newest versions
	@NPM='$(NPM)' $(BIN)/python -m tests.clients.newest $(CLIENTS)

test-newest: need-node $(INSTALLED) $(SDK_INSTALLED) ## `make test-clients` with the newest versions of the clients
	-NPM='$(NPM)' $(BIN)/python -m tests.clients.install $(CLIENTS)
	NPM='$(NPM)' $(BIN)/python -m tests.clients.newest --install $(CLIENTS)
	DRAGOMAN_CLIENTS_NEWEST=1 DRAGOMAN_CLIENTS='$(CLIENTS)' $(BIN)/python -m pytest -n $(JOBS) tests/clients

quick-clients: $(INSTALLED)
	@NPM='$(NPM)' $(BIN)/python -m tests.clients.install quick

check: $(INSTALLED) $(CSPELL_INSTALLED) $(INSPECTOR_INSTALLED) ## format, lint, strict types, import contracts, branch coverage where it must be whole, codecs no slower, clean locks, plain words, spelling
	@$(MAKE) --no-print-directory --output-sync=target -j 2 check-types check-page check-style check-branches check-codecs check-walk check-locks check-messages check-subjects words spell

.PHONY: check-types check-page check-style check-branches check-codecs check-walk check-locks
check-types:
	$(BIN)/mypy

check-page: $(INSPECTOR_INSTALLED) ## format and strict types of the inspector's page
	$(PRETTIER) --check
	$(NODE) $(INSPECTOR)/node_modules/typescript/bin/tsc --project $(INSPECTOR)/tsconfig.json

check-style:
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.check_getattr

check-branches:
	$(BIN)/coverage run --data-file=.coverage.exact -m pytest -q --no-header -n 0 -p no:cacheprovider $(EXACT_TESTS)
	$(BIN)/coverage report --data-file=.coverage.exact --include='$(EXACT)' --fail-under=100

check-codecs:
	$(BIN)/python -m bench.codec_costs

check-walk:
	$(BIN)/python -m bench.walk --brief

check-locks:
	@! grep -nE '://|^(-i|-f|--index-url|--extra-index-url|--find-links)' requirements/*.lock $(PINS)/*/*.lock || { echo "A lock of Python packages names a host." >&2; exit 1; }
	@! grep -nE '"resolved"|://' $(SDK)/package-lock.json $(CSPELL)/package-lock.json $(INSPECTOR)/package-lock.json $(PINS)/*/package-lock.json || { echo "A package-lock.json names a host." >&2; exit 1; }

.PHONY: words spell messages check-messages
words: $(INSTALLED) ## banned words and lines over 120 characters in the prose of PROSE
	$(BIN)/python -m tests.words $(PROSE)

spell: $(INSTALLED) $(CSPELL_INSTALLED) ## the spelling of the prose of PROSE; new names go into tests/words/cspell/project-words.txt
	@$(BIN)/python -m tests.words --extract build/prose $(PROSE)
	$(NODE) $(CSPELL)/node_modules/cspell/bin.mjs lint --config $(CSPELL)/cspell.json --no-progress --root build/prose '**/*.txt'

messages: $(INSTALLED) ## write docs/messages.md: every message that a user can see
	$(BIN)/python -m tests.messages

.PHONY: screens tmux
screens: $(INSTALLED) ## write tests/screens: what commands print at 80 and 120 columns; read the diff
	$(BIN)/python -m tests.screens

tmux: ## install tmux, in which `dragoman top` is tested, where apt-get can
	@command -v tmux >/dev/null || apt-get install --yes --no-install-recommends tmux

# The subjects of commits that are not on `main` yet; without a repository or a `main` there are none.
.PHONY: check-subjects
check-subjects:
	@git log --format=%s main..HEAD 2>/dev/null | awk 'length > 72 { print "The subject of this commit has more than 72 characters: " $$0; bad = 1 } END { exit bad }'

.PHONY: chromium test-inspector
chromium: ## install Chromium, in which the page of the inspector is tested, where apt-get can
	@command -v chromium >/dev/null || apt-get install --yes --no-install-recommends chromium fonts-dejavu-core

test-inspector: need-node $(INSTALLED) $(INSPECTOR_INSTALLED) quick-clients ## test the page of the inspector in Chromium, whole: each view in both themes, a story with Claude Code; writes the pictures of docs/inspector
	DRAGOMAN_INSPECTOR=whole $(BIN)/python -m pytest -n 2 --dist loadfile tests/inspector

check-messages: $(INSTALLED)
	$(BIN)/python -m tests.messages --check

fmt: $(INSTALLED) $(INSPECTOR_INSTALLED) ## rewrite the code in the house format, and fix what can be fixed
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format
	$(PRETTIER) --write --log-level=warn

cover: $(INSTALLED) $(SDK_INSTALLED) quick-clients ## run the suite in one process and report branch coverage
	$(BIN)/coverage run -m pytest -n 0
	$(BIN)/coverage report

.PHONY: fuzz fuzz-fixed
FUZZ_SECONDS ?= 600
FUZZ_RUNS ?= 4000
fuzz: $(INSTALLED) ## fuzz every reader by coverage, FUZZ_SECONDS each; what breaks becomes a vector
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

fuzz-fixed: $(INSTALLED) ## the same without chance: FUZZ_RUNS inputs each, the same every time
	$(BIN)/python -m tests.fuzz --runs $(FUZZ_RUNS)

.PHONY: faults
faults: $(INSTALLED) ## cause every fault of the catalogue in every way; the table of what was lost, wrong or hung
	@$(BIN)/python -m tests.faults

# The property tests, and how many examples each of them gets.
LAWS := tests/laws tests/disk tests/unit/raw_tools tests/unit/filters tests/unit/test_fast_paths.py tests/unit/replies/test_usage.py \
	tests/unit/dialects/test_kiro_faults.py tests/unit/dialects/test_gemini_rules.py
EXAMPLES ?= 10000
laws-long: $(INSTALLED) ## run the laws with many examples, chosen at random: EXAMPLES=1000 (10000 take many hours)
	DRAGOMAN_EXAMPLES=$(EXAMPLES) DRAGOMAN_KILLS=400 $(BIN)/python -m pytest $(LAWS) -n $(JOBS) --hypothesis-profile=long

.PHONY: equality
equality: $(INSTALLED) ## whether every translation gives the same bytes as at the commit REV: stories, generated and fuzz documents
	PYTHONHASHSEED=0 $(BIN)/python -m tests.equality --against $(REV) $(EQUALITY)

.PHONY: load soak
load: $(INSTALLED) ## 256 streams of mixed dialects for two minutes, each response checked, then fair turns; LOAD="--streams 64 --seconds 20", LOAD=--fairness
	$(BIN)/python -m tests.load $(LOAD)

soak: $(INSTALLED) ## ten minutes of load with clients that disconnect or read slowly; SOAK="--seconds 7200"
	$(BIN)/python -m tests.load --soak $(SOAK)

.PHONY: attack
attack: $(INSTALLED) ## hostile clients and upstreams against a real gateway, and a table of what a well-behaved client got; ATTACK="--short"
	$(BIN)/python -m tests.attack $(ATTACK)

bench: $(INSTALLED) ## Dragoman and the peers that are installed, side by side; BENCH="--only A,B --rounds 3"
	$(BIN)/python -m bench $(BENCH)

.PHONY: bench-peers bench-docs bench-codecs bench-record
bench-peers: $(INSTALLED) ## install the pinned peers into build/peers (or where DRAGOMAN_PEERS says)
	$(BIN)/python -m bench.peers

bench-docs: $(INSTALLED) ## `make bench`, and write its figures into docs/performance.md
	$(BIN)/python -m bench --docs $(BENCH)

bench-codecs: $(INSTALLED) ## the codecs alone, without a network
	$(BIN)/python -m bench.codecs

bench-record: $(INSTALLED) ## record what the codecs cost now: what `make check` compares with
	$(BIN)/python -m bench.codec_costs --record

wheel: $(INSTALLED) ## build the wheel, install it into an empty environment, time `dragoman --version`
	rm -rf $(WHEELS)
	$(BIN)/python -m build --wheel --no-isolation --outdir $(WHEELS)
	$(BIN)/python .ci/check_wheel.py $(WHEELS)/*.whl requirements/run.lock

lock: | need-python need-node ## choose versions anew and write the locks
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet uv==$(UV_VERSION)
	$(call compile,run,pyproject.toml)
	$(call compile,dev,pyproject.toml requirements/dev.in)
	rm -rf $(SDK)/package-lock.json $(SDK)/node_modules
	cd $(SDK) && $(NPM) install --package-lock-only --ignore-scripts --no-audit --no-fund
	rm -rf $(CSPELL)/package-lock.json $(CSPELL)/node_modules
	cd $(CSPELL) && $(NPM) install --package-lock-only --ignore-scripts --no-audit --no-fund
	rm -rf $(INSPECTOR)/package-lock.json $(INSPECTOR)/node_modules
	cd $(INSPECTOR) && $(NPM) install --package-lock-only --ignore-scripts --no-audit --no-fund
	$(PYTHON) $(CSPELL)/strip_funding.py $(CSPELL)/package-lock.json $(SDK)/package-lock.json $(INSPECTOR)/package-lock.json
	$(PYTHON) -m tests.clients.install --lock build/lock/bin/uv

compile = build/lock/bin/uv pip compile $(2) --output-file requirements/$(1).lock --upgrade --quiet \
	--universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --no-emit-find-links

clean: ## remove the environments, builds and caches
	rm -rf $(VENV) $(SDK)/node_modules $(CSPELL)/node_modules $(INSPECTOR)/node_modules build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(LOCKED): requirements/dev.lock | need-python
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.lock
	@touch $@

$(INSTALLED): $(LOCKED) pyproject.toml src/dragoman/_version.py
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --no-index -e .
	@touch $@

# Only what Dragoman needs to run: a .pth file and a script do without the build backend.
$(DEMO)/.installed: requirements/run.lock
	@echo "Installing Dragoman into $(DEMO), once. It needs five packages, and takes some seconds."
	@echo "  1/2 make the environment"
	$(PYTHON) -m venv --clear $(DEMO)
	@echo "  2/2 install requirements/run.lock"
	$(DEMO)/bin/python -m pip install --quiet --require-hashes -r requirements/run.lock
	echo '$(CURDIR)/src' >"$$($(DEMO)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/dragoman.pth"
	printf '#!%s\nimport sys\n\nfrom dragoman.cli import main\n\nsys.exit(main())\n' '$(CURDIR)/$(DEMO)/bin/python' >$(DEMO)/bin/dragoman
	chmod +x $(DEMO)/bin/dragoman
	@touch $@

$(SDK_INSTALLED): $(SDK)/package.json $(SDK)/package-lock.json $(SDK)/.npmrc | need-node
	cd $(SDK) && $(NPM) ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(CSPELL_INSTALLED): $(CSPELL)/package.json $(CSPELL)/package-lock.json $(CSPELL)/.npmrc | need-node
	cd $(CSPELL) && $(NPM) ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(INSPECTOR_INSTALLED): $(INSPECTOR)/package.json $(INSPECTOR)/package-lock.json $(INSPECTOR)/.npmrc | need-node
	cd $(INSPECTOR) && $(NPM) ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

need-python:
	@"$(PYTHON)" -c '' >/dev/null 2>&1 || { echo "Dragoman needs Python 3.11 or newer, and '$(PYTHON)' does not run (PYTHON=... names another)." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Dragoman needs Python 3.11 or newer, and '$(PYTHON)' is older (PYTHON=... names another)." >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' >/dev/null 2>&1 || { echo "Dragoman needs Python's venv module, and '$(PYTHON)' has none (on Debian and Ubuntu it is the package python3-venv)." >&2; exit 1; }

need-node:
	@"$(NODE)" -e '' >/dev/null 2>&1 || { echo "Dragoman's tests need Node 20 or newer, and '$(NODE)' does not run (NODE=... names another)." >&2; exit 1; }
	@"$(NODE)" -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' || { echo "Dragoman's tests need Node 20 or newer, and '$(NODE)' is older (NODE=... names another)." >&2; exit 1; }
	@"$(NPM)" --version >/dev/null 2>&1 || { echo "Dragoman's tests need npm, which comes with Node, and '$(NPM)' does not run (NPM=... names another)." >&2; exit 1; }
