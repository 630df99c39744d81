# Every target sets up what it needs: a virtual environment in .venv, from the hash-pinned lock files in requirements/.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

IS_NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= python3
# `python3` where it is new enough, or else a newer one that stands beside it.
INTERPRETER = $(shell for python in "$(PYTHON)" python3.13 python3.12 python3.11; do \
	if "$$python" -c '$(IS_NEW_ENOUGH)' >/dev/null 2>&1; then echo "$$python"; break; fi; done)

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BENCH_READY := $(VENV)/.bench-ready
PIP := $(BIN)/python -m pip --disable-pip-version-check
PIP_INSTALL := $(PIP) install -qq --no-input
# What the type checker reads; benchmarks/ once it holds a script.
TYPED := streamctx tests $(if $(wildcard benchmarks/*.py),benchmarks)
# More arguments for pytest or a benchmark: make test ARGS="-k delivery"
ARGS ?=
# How long to fuzz: make fuzz SECONDS=3600
SECONDS ?= 600
# How long each of the long tests of `make chaos` runs.
MINUTES ?= 1
# How often `make kill-rounds` kills the server.
ROUNDS ?= 60
# How often `make power-cuts` cuts.
CUTS ?= 5000
# How many seeds `make sim` runs.
SEEDS ?= 10000

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## Make .venv with everything that the other targets need

.PHONY: demo
demo: $(READY) ## See a lossy connection lose nothing
	@$(BIN)/streamctx demo

.PHONY: test
test: $(READY) ## Run all tests (ARGS= for more arguments to pytest)
	$(BIN)/python -m pytest $(ARGS)

.PHONY: coverage
coverage: $(READY) ## Run all tests and show the lines they leave out
	$(BIN)/python -m pytest --cov --cov-report=term-missing $(ARGS)

.PHONY: check
check: $(READY) ## Check format, lint, types, import rules, the schema and what proves the specification
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(TYPED)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m streamctx.wire.schema --check
	$(BIN)/python -m tests.vectors.proof

.PHONY: format
format: $(READY) ## Format the code and apply the safe fixes of the linter
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

.PHONY: schema
schema: $(READY) ## Write protocol/schema/ anew from the message structs
	$(BIN)/python -m streamctx.wire.schema

.PHONY: proof
proof: $(READY) ## Write the last section of protocol/SPEC.md anew: what proves each requirement
	$(BIN)/python -m tests.vectors.proof --write

.PHONY: replay-matrix
replay-matrix: $(READY) ## Replay recorded editing over every kind of bad connection
	$(BIN)/python -m tests.e2e.replay_matrix $(ARGS)

.PHONY: autobahn
autobahn: $(READY) ## Test WebSocket conformance with Autobahn (needs a Python 2.7, such as pyenv's)
	$(BIN)/python -m tests.autobahn.run fast

.PHONY: autobahn-all
autobahn-all: $(READY) ## The same with all 517 cases, in minutes
	$(BIN)/python -m tests.autobahn.run all

.PHONY: chaos
chaos: $(READY) ## Break networks, processes and clocks for MINUTES=1
	STREAMCTX_CHAOS_MINUTES=$(MINUTES) $(BIN)/python -m pytest tests/chaos --timeout=0 -rs -s $(ARGS)

.PHONY: kill-rounds
kill-rounds: $(READY) ## Kill the server under load ROUNDS=60 times, and at every fail point; nothing may be lost
	STREAMCTX_KILL_ROUNDS=$(ROUNDS) $(BIN)/python -m pytest tests/e2e/test_kill.py tests/e2e/test_disk_full.py --timeout=0 -rs -s $(ARGS)

.PHONY: power-cuts
power-cuts: $(READY) ## Cut the power of the store CUTS=5000 times, at any write or sync; nothing acknowledged may be lost
	$(BIN)/python -m tests.engine.power_cut --cuts $(CUTS)

.PHONY: sim
sim: $(READY) ## Simulate SEEDS=10000 plans of faults, and demand every promise
	$(BIN)/python -m tests.sim run --seeds $(SEEDS) $(ARGS)

.PHONY: mutants
mutants: $(READY) ## Prove that the simulator finds code that is known to be bad
	$(BIN)/python -m tests.sim mutants $(ARGS)

.PHONY: soak
soak: $(READY) ## Simulate, and edit over a bad network, for MINUTES=30; nothing may grow
	$(BIN)/python -m tests.soak --minutes $(MINUTES)

.PHONY: fuzz
fuzz: $(READY) ## Fuzz what reads the bytes of others (SECONDS=600, ARGS="--target hub")
	$(BIN)/python -m tests.fuzz run --seconds $(SECONDS) $(ARGS)

.PHONY: bench-text
bench-text: $(BENCH_READY) ## Compare the document text with other text structures
	$(BIN)/python -m benchmarks.bench_text_buffer $(ARGS)

.PHONY: bench-event-path
bench-event-path: $(BENCH_READY) ## Measure an event's way from socket to applied
	$(BIN)/python -m benchmarks.bench_event_path $(ARGS)

.PHONY: bench-outbox
bench-outbox: $(READY) ## Measure what an outbox on disk costs a client
	$(BIN)/python -m benchmarks.bench_outbox $(ARGS)

.PHONY: bench-durability
bench-durability: $(BENCH_READY) ## Measure what it costs to store what is acknowledged
	$(BIN)/python -m benchmarks.bench_durability $(ARGS)

.PHONY: lock
lock: ## Pin the newest allowed versions anew in requirements/*.txt
	$(MAKE) .venv-lock
	$(LOCK) --extra watch --output-file requirements/dev.txt pyproject.toml requirements/dev.in
	$(LOCK) --output-file requirements/bench.txt requirements/bench.in

.PHONY: clean
clean: ## Remove .venv and everything else that was made here
	rm -rf $(VENV) .venv-lock .venv-autobahn build dist htmlcov .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache \
		.import_linter_cache
	find streamctx tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The project is installed as a link to this folder, so its code needs no new setup when it changes.
$(READY): requirements/dev.txt pyproject.toml
	@test -n "$(INTERPRETER)" || { \
		echo "streamctx needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1)." >&2; \
		echo "Name a newer one: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(INTERPRETER)" -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(INTERPRETER) has no venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@echo "Setting up $(VENV) with $$("$(INTERPRETER)" --version) ..."
	@"$(INTERPRETER)" -m venv $(VENV)
	@$(PIP_INSTALL) --require-hashes --only-binary :all: -r requirements/dev.txt
	@$(PIP_INSTALL) --no-deps --no-build-isolation -e .
	@touch $@

$(BENCH_READY): requirements/bench.txt $(READY)
	@$(PIP_INSTALL) --require-hashes --only-binary :all: -r requirements/bench.txt
	@touch $@

# The locks are made on the oldest Python, whose needs include those of the newer ones, and hold no addresses. What the
# machine's pip is set to add from its own disk stays out of them.
LOCK = env -u PIP_FIND_LINKS PIP_CONFIG_FILE=/dev/null CUSTOM_COMPILE_COMMAND="make lock" .venv-lock/bin/pip-compile --quiet --upgrade --generate-hashes \
	--strip-extras --allow-unsafe --no-emit-index-url --no-emit-trusted-host --no-emit-find-links

.venv-lock:
	python3.11 -m venv $@
	$@/bin/python -m pip install --quiet --disable-pip-version-check pip-tools==7.6.2
