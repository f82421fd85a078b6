# The one task runner: what CI runs is `make test`. `make` alone lists the targets.
#
# Rust, Go, Python 3.11+, Node 20.11+, a JDK 17+ with Maven and a C compiler are all that must be there, and a C++ compiler for fuzz
# and soak; everything else is fetched from package registries into .cache/ in this directory, and into the caches of Go and Cargo.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
CACHE := $(CURDIR)/.cache
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
VENV := $(CACHE)/venv
SYSTEM_VENV := $(CACHE)/venv-system
PYTHON := $(VENV)/bin/python
# The binary that the clients' and the crash tests run.
TEST_BINARY := $(TARGET_DIR)/test-release/tepui
RELEASE_BINARY := $(TARGET_DIR)/release/tepui
# Every workspace with a lock file; the others have to know what the crates of the first depend on.
LOCKED_MANIFESTS := $(addsuffix /Cargo.toml,. fuzz bench-peers bench-peers/newest bench-peers/newest/librocksdb bench-peers/servers)
# make test CRASH_ROUNDS=10; make soak SOAK_ROUNDS=200 FUZZ_SECONDS=600
CRASH_ROUNDS ?= 3
SOAK_ROUNDS ?= 50
FUZZ_SECONDS ?= 60
# make bench-read ROWS=10000000 SECONDS_EACH=10 PEER=newest: the full run; distro is quicker to build
ROWS ?= 1000000
SECONDS_EACH ?= 2
ROUNDS ?= 3
PEER ?= distro
BENCH_READ_DIR ?= $(CACHE)/bench-read
# make bench-write WRITE_SECONDS=10 PEER=newest ARGS='--only sync'
WRITE_ROWS ?= 1000000
WRITE_SECONDS ?= 2
BENCH_WRITE_DIR ?= $(CACHE)/bench-write
# make bench-server ARGS='--rows 1000000 --seconds 20'; EMULATOR= leaves Google's emulator out
BENCH_SERVER_DIR ?= $(CACHE)/bench-server
EMULATOR_VERSION := v1.58.0
# The last Go module that carries cbt and is on the module proxy; its own repository has later ones.
CBT_VERSION := v1.13.0
CBT := $(CACHE)/cbt-$(CBT_VERSION)/cbt
EMULATOR ?= $(if $(shell command -v go),$(CACHE)/emulator-$(EMULATOR_VERSION)/emulator)
# make run ARGS='--data /srv/tepui'; make bench ARGS='--help'
ARGS ?=

# Each target uses every core by itself, and its closing lines are to be read.
.NOTPARALLEL:

.PHONY: help run build test-binary fmt lint test unit process crash clients bench bench-read bench-write bench-read-test bench-server bench-servers-peers bench-large-values bench-backup bench-transfer demo soak fuzz clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## build and start a server on 127.0.0.1:8086, data in ./tepui-data
	$(CARGO) run --locked --release --bin tepui -- serve $(ARGS)

build: ## build the release binary
	$(CARGO) build --locked --release --bin tepui

test-binary: ## build the binary that the clients' and the crash tests run
	$(CARGO) build --locked --profile test-release --bin tepui

fmt: ## format the Rust code
	$(CARGO) fmt --all

lint: ## check the formatting and the lock files, run clippy with warnings as errors, check that the README shows the examples and docs the exceptions
	$(CARGO) fmt --all -- --check
	for manifest in $(LOCKED_MANIFESTS); do $(CARGO) update --quiet --workspace --locked --manifest-path $$manifest; done
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	python3 scripts/check_readme.py
	python3 scripts/check_exceptions.py

test: lint unit process crash clients ## all that CI runs: lint, unit, process, crash, clients

unit: ## the Rust tests, and those of the benchmarks' reports
	$(CARGO) test --workspace
	cd bench-peers/large-values && python3 -m unittest -q

process: test-binary $(VENV)/.done ## what an operator meets: start, stop, damage, a full disk
	HARNESS_BINARY=$(TEST_BINARY) $(PYTHON) -m pytest -q tests/process

crash: test-binary $(VENV)/.done ## SIGKILL the server under load, CRASH_ROUNDS times, and check every acknowledged write
	$(PYTHON) tests/crash/crash.py --rounds $(CRASH_ROUNDS) --binary $(TEST_BINARY)

clients: test-binary $(VENV)/.done $(SYSTEM_VENV)/.done $(CACHE)/node/.done $(CBT) ## the official clients and their own suites against the real server; CLIENTS picks suites
	NODE_PATH=$(CACHE)/node/node_modules PYTHON=$(PYTHON) CBT=$(CBT) SYSTEM_PYTHON=$(SYSTEM_VENV)/bin/python \
		python3 tests/harness.py --binary $(TEST_BINARY) -- tests/clients/run.sh

bench: ## the benchmarks of docs/benchmarks.md; ARGS picks one
	$(CARGO) run --locked --release --bin tepui -- bench $(ARGS)

bench-read: ## the read path beside RocksDB and the device, a line a bar; ROWS, SECONDS_EACH, ROUNDS, PEER=distro|newest, ARGS
	BENCH_READ_DIR=$(BENCH_READ_DIR) bench-peers/run.sh $(PEER) --rows $(ROWS) --seconds $(SECONDS_EACH) \
		--rounds $(ROUNDS) $(ARGS)

bench-write: ## the write path beside RocksDB, a line a bar; WRITE_ROWS, WRITE_SECONDS, ROUNDS, PEER=distro|newest, ARGS
	bench-peers/run.sh $(PEER) write --dir $(BENCH_WRITE_DIR) --rows $(WRITE_ROWS) --seconds $(WRITE_SECONDS) \
		--rounds $(ROUNDS) $(ARGS)

bench-read-test: ## that the peers of make bench-read and bench-write do what they are asked: reads compared byte by byte
	TASK=test bench-peers/run.sh $(PEER)

bench-server: $(EMULATOR) ## the server beside a bare echo, hot rows, a slow device, Google's emulator, a line a bar; EMULATOR, ARGS
	$(CARGO) build --locked --release --bin tepui --bin bench-server
	mkdir -p $(dir $(BENCH_SERVER_DIR)) && rm -rf $(BENCH_SERVER_DIR)
	$(TARGET_DIR)/release/bench-server --dir $(BENCH_SERVER_DIR) $(if $(EMULATOR),--emulator $(EMULATOR)) $(ARGS)

bench-servers-peers: build ## the server beside Cassandra and HBase, a line a workload and peer; needs a JDK 17+ with Maven; ARGS
	TEPUI=$(RELEASE_BINARY) bench-peers/servers/run.sh $(CACHE)/servers-peers $(ARGS)

bench-large-values: build ## values of 10 KB beside Bitcask, Tokyo Cabinet and RocksDB; DATA_BYTES, MEMORY_BYTES, STORES
	mkdir -p $(CACHE) && rm -rf $(CACHE)/large-values
	TEPUI=$(RELEASE_BINARY) bench-peers/large-values/run.sh $(CACHE)/large-values

bench-backup: build $(VENV)/.done ## time a backup and its restore; ROWS of a kilobyte each
	python3 tests/harness.py --binary $(RELEASE_BINARY) -- bash -c \
		'$(PYTHON) scripts/bench_backup.py --binary $(RELEASE_BINARY) --host $$BIGTABLE_EMULATOR_HOST --rows $(ROWS)'

bench-transfer: build ## time `tepui export` and `tepui import` of each format; ROWS of a kilobyte each
	python3 scripts/bench_transfer.py --binary $(RELEASE_BINARY) --rows $(ROWS)

demo: build $(VENV)/.demo ## load 336,776 flights, kill the server, read them back
	$(PYTHON) scripts/demo.py --binary $(RELEASE_BINARY)

soak: test-binary $(VENV)/.done ## SOAK_ROUNDS rounds of the crash test, then every fuzz target for FUZZ_SECONDS
	$(PYTHON) tests/crash/crash.py --rounds $(SOAK_ROUNDS) --binary $(TEST_BINARY)
	$(MAKE) fuzz

fuzz: ## every fuzz target for FUZZ_SECONDS
	scripts/fuzz.sh $(FUZZ_SECONDS)

clean: ## remove what was built and fetched
	$(CARGO) clean
	rm -rf $(CACHE) fuzz/target bench-peers/target bench-peers/servers/target

$(VENV)/.done: tests/clients/python/requirements.txt
$(SYSTEM_VENV)/.done: tests/clients/python/system/requirements.txt
$(VENV)/.done $(SYSTEM_VENV)/.done:
	python3 -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

$(VENV)/.demo: scripts/demo-requirements.txt $(VENV)/.done
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-deps -r $<
	touch $@

$(CACHE)/emulator-$(EMULATOR_VERSION)/emulator:
	mkdir -p $(@D)
	GOBIN=$(@D) go install cloud.google.com/go/bigtable/cmd/emulator@$(EMULATOR_VERSION)

$(CBT):
	GOBIN=$(@D) go install cloud.google.com/go/bigtable/cmd/cbt@$(CBT_VERSION)

$(CACHE)/node/.done: tests/clients/node/package.json tests/clients/node/package-lock.json
	mkdir -p $(CACHE)/node
	cp $^ $(CACHE)/node/
	cd $(CACHE)/node && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	touch $@
