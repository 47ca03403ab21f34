# Two commands matter: `make demo` and `make test`. Both start from nothing but Python 3.11.
# `make` alone lists the rest.

VENV ?= .venv
PY := $(VENV)/bin/python
# Which Python makes the virtual environment; empty: the first below that is 3.11 or newer.
PYTHON ?=
# Most tests wait for processes, not for a core.
TEST_WORKERS ?= 4
TEST_OPTIONS ?=
SEED ?= $(shell date +%Y%m%d)

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-coordination services lint lint-quick lint-types format docs coverage test test-compile test-run test-engines test-gpu proofs simulate mutants mutants-code chaos proto bench bench-serving clean distclean \
	proof-kazoo proof-differential proof-crash proof-fuzz proof-linearizability \
	proof-control proof-preemption proof-training proof-scripts proof-serving proof-topics
export PYTHONPATH := $(CURDIR)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A package index that does not answer once is asked again.
export PIP_RETRIES ?= 10
export PIP_DEFAULT_TIMEOUT ?= 60
# Where it is set, each process that a test or a demo starts compiles all that it imports anew.
unexport PYTHONDONTWRITEBYTECODE

help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-22s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## make .venv and install Holdfast with what its tests need

$(VENV)/.made:
	@VENV="$(VENV)" PYTHON="$(PYTHON)" sh .ci/make-venv
	@touch $@

# Of 1.9 GB most is never imported: what is, is compiled then, which takes a fifth of the time.
$(VENV)/.installed: pyproject.toml constraints.txt | $(VENV)/.made
	@echo "installing Holdfast and its tools into $(VENV) ..."
	@$(PY) -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	@$(PY) -c 'import torch'
	@touch $@

demo: setup ## train while everything is killed, then serve it while versions change (two minutes)
	@$(PY) examples/training_demo.py
	@$(PY) examples/serving_demo.py

demo-coordination: setup ## watch a leader die and nothing get lost (about 20 s)
	@$(PY) examples/coordination_demo.py

services: $(VENV)/.made ## install the real servers and clients that tests need (servers as root)
	@sh .ci/services
	@VENV="$(VENV)" sh .ci/clients

lint: lint-quick lint-types ## ruff, mypy --strict, import direction, owners of threads and tasks, no sleep without a reason

lint-types: setup
	$(PY) -m mypy

lint-quick: setup
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -c 'import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())'
	$(PY) -m tests.lint.owners
	$(PY) -m tests.lint.sleeps
	$(PY) -m tests.lint.cycles

format: setup ## let ruff put the code in order
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

# mkdocs-material says at each build that it has a successor: docs/decisions/0025.
docs: export NO_MKDOCS_2_WARNING := 1
docs: setup ## the site with the API reference, into build/site; fails for a link that leads nowhere
	$(PY) -m mkdocs build --strict --quiet

# More than eight workers only compete for the disk.
# Threads of many processes that share a few cores wait for one another: one each is faster.
# A core that is free while another is waited for is used: what is installed comes from elsewhere, and
# mypy takes one core. What all workers import is compiled once before, not by each of them at once.
test: export OMP_NUM_THREADS := 1
test: ## lint, and all tests but the large ones, in parallel
	@$(MAKE) --no-print-directory -j 2 services lint-quick test-compile
	@$(MAKE) --no-print-directory -j 2 lint-types test-run

test-compile: setup
	@$(PY) -m pytest --collect-only -qq -n 0 >/dev/null 2>&1 || $(PY) -m pytest --collect-only -qq -n 0

test-run:
	$(PY) -m pytest -n $(TEST_WORKERS) --maxprocesses 8 -m "not engines" $(TEST_OPTIONS)

test-engines: export OMP_NUM_THREADS := 1
test-engines: export PYTEST_DEBUG_TEMPROOT ?= /tmp
test-engines: setup services ## the large tests: proofs, other people's suites, users' scripts, every block of the docs
	$(PY) -m pytest -n $(TEST_WORKERS) --maxprocesses 8 -m engines $(TEST_OPTIONS)

# One forks processes that use CUDA, the other uses it itself: not in one process.
test-gpu: export OMP_NUM_THREADS := 1
test-gpu: setup ## what only a machine with a GPU can try: captured lanes, sums over its memory
	$(PY) -m pytest -p no:cacheprovider -n 0 tests/gpu/test_capture.py $(TEST_OPTIONS)
	$(PY) -m pytest -p no:cacheprovider -n 0 tests/gpu/test_cuda_exchange.py $(TEST_OPTIONS)
	$(PY) -m pytest -p no:cacheprovider -n 0 tests/gpu/test_nccl.py $(TEST_OPTIONS)
	$(PY) -m pytest -p no:cacheprovider -n 0 tests/gpu/test_kills.py $(TEST_OPTIONS)
	$(PY) -m pytest -p no:cacheprovider -n 0 tests/gpu/test_training_kills.py $(TEST_OPTIONS)

# Before Python 3.12 tracing doubles the processor's time of the unit tests, five minutes more on two
# cores: so it is a job of its own beside .ci/run, not a part of it. Since 3.12 sys.monitoring traces for
# next to nothing. Tests of benches, proofs and simulation run little of holdfast/ that others do not.
coverage: export OMP_NUM_THREADS := 1
coverage: setup ## which lines of holdfast/ the unit tests do not run; fails below the floor of pyproject.toml
	COVERAGE_CORE=$$($(PY) -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")') \
	$(PY) -m pytest -n $(TEST_WORKERS) --maxprocesses 8 -m "not engines" tests/unit \
		--ignore tests/unit/simulation --ignore tests/unit/proofs \
		--cov --cov-report=term:skip-covered --cov-report=html:build/coverage $(TEST_OPTIONS)

PROOFS := kazoo differential linearizability crash fuzz control preemption training scripts serving topics
proofs: $(PROOFS:%=proof-%) ## all long proofs

proof-kazoo: setup services ## kazoo's own test suite against the embedded server
	$(PY) -m tests.proofs.kazoo_suite

proof-differential: setup services ## 20,000 random operations, ours beside a real ZooKeeper
	$(PY) -m tests.proofs.differential --operations 20000 --clients 4 --seed $(SEED)

proof-crash: setup ## kill -9 of the server 200 times under writers; again with torn tails
	$(PY) -m tests.proofs.crash --kills 200 --tails both --seed $(SEED)

proof-fuzz: setup ## ten million hostile bytes
	$(PY) -m tests.proofs.fuzz --megabytes 10 --seed $(SEED)
	$(PY) -m tests.proofs.topics.fuzz --megabytes 10 --seed $(SEED)

proof-linearizability: setup ## registers under concurrent clients and kills
	$(PY) -m tests.proofs.linearizability --seconds 60 --clients 6 --kills --seed $(SEED)

# KILLS=300 SEED=… PLANE=embedded|ensemble STORE=folder|moto|rclone|minio
proof-control: setup services ## kill a whole cluster everywhere, 300 times, and check its history
	$(PY) -m tests.proofs.control --kills $(or $(KILLS),300) --seed $(SEED) \
		--plane $(or $(PLANE),embedded) --store $(or $(STORE),folder)

proof-preemption: setup ## ten slots: an experiment shrinks for production, and grows back
	$(PY) -m pytest -n 0 -s tests/faults/test_preemption.py

# SCHEDULES=30 SEED=…
proof-training: setup ## train under kills, pauses and resizes; every SHA-256 must be the same
	$(PY) -m tests.proofs.training --schedules $(or $(SCHEDULES),30) --seed $(SEED)

# FUZZ=200 SEED=…
proof-scripts: setup ## users' scripts and random ones on 2, 3 and 5 workers with kills: one SHA-256 each
	$(PY) -m tests.proofs.scripts --seed $(SEED)
	$(PY) -m tests.proofs.scripts --seed $(SEED) --fuzz $(or $(FUZZ),200)

proof-serving: setup services ## 200,000 requests while everything dies and changes; bad versions, overload, bodies of 200 MB
	$(PY) -m tests.proofs.serving --requests $(or $(REQUESTS),200000) --seed $(SEED)
	$(PY) -m tests.proofs.serving.bad_versions
	$(PY) -m tests.proofs.serving.overload
	$(PY) -m tests.proofs.serving.envoys
	$(PY) -m tests.proofs.serving.bodies

# KILLS=200 SEED=…
proof-topics: setup services ## kill -9 of the broker 200 times under writers, transactions and groups; then three real Kafkas
	$(PY) -m tests.proofs.topics --kills $(or $(KILLS),200) --seed $(SEED)
	$(PY) -m tests.proofs.topics --kafka --kills $(or $(NODE_KILLS),20) --seed $(SEED)

simulate: setup ## look for trouble in the simulated worlds (SEEDS=20000 of each)
	$(PY) -m simulation --seeds $(or $(SEEDS),20000) --jobs 2
	$(PY) -m simulation.serving --seeds $(or $(SEEDS),20000) --jobs 2
	$(PY) -m simulation.topics --seeds $(or $(SEEDS),20000) --jobs 2

chaos: setup services ## kill, cut, pause, slow and fill a real cluster, and check its history (MINUTES=30)
	$(PY) -m tests.proofs.chaos --minutes $(or $(MINUTES),30) --seed $(SEED)

mutants: setup ## break the decisions on purpose; the simulator must find each
	$(PY) -m simulation.mutants --jobs 2

# MUTANTS="server journal": those with one of these in their names
mutants-code: setup ## break the code itself on purpose; a named test must find each
	$(PY) -m tests.mutants $(MUTANTS)

proto: setup ## make the code of the schema again
	@PY=$(PY) sh .ci/proto

bench: setup services ## measure beside a real ZooKeeper
	$(PY) -m bench

# Needs wrk (Debian: apt-get install wrk). .ci/peers installs about 6 GB below bench/results.
bench-serving: setup ## measure serving beside Ray Serve, LitServe, BentoML, MLServer, Triton
	@command -v wrk >/dev/null || { echo "wrk is missing: apt-get install wrk" >&2; exit 1; }
	.ci/peers rayserve litserve bentoml mlserver triton
	$(PY) -m bench.serving.throughput
	$(PY) -m bench.serving.throughput --format binary
	$(PY) -m bench.serving.throughput --model heavy
	$(PY) -m bench.serving.loading
	$(PY) -m bench.serving.overload
	$(PY) -m bench.serving.prediction_topic

clean: ## remove caches and what the demo left
	rm -rf build dist .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean ## clean, and remove the virtual environment too
	rm -rf $(VENV) *.egg-info
