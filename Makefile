# The one task runner: what CI runs is `make test`. `make` alone lists the targets.
#
# What must be there is in the README, and scripts/needs.sh says what is missing; everything else is fetched from package registries
# into .cache/ in this directory, and into the caches of Go and Cargo.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# Targets and what they depend on are lists of words and patterns to make, and a shell reads them too: a path with a blank is two, and would
# be removed as two, one with a colon a target and what that depends on. Only characters that mean nothing to either are taken.
PATH_CHARACTERS := a b c d e f g h i j k l m n o p q r s t u v w x y z A B C D E F G H I J K L M N O P Q R S T U V W X Y Z \
	0 1 2 3 4 5 6 7 8 9 _ . / + @ , = ~ -
without = $(if $(1),$(call without,$(wordlist 2,$(words $(1)),$(1)),$(subst $(firstword $(1)),,$(2))),$(2))
check_path = $(if $(filter-out xx,x$(call without,$(PATH_CHARACTERS),$(value $(1)))x),$(error \
	$(if $(filter CURDIR,$(1)),the path of this directory,$(1)) has a character that make or a shell may take for something else: \
	$(value $(1)). Letters of ASCII, digits and _ . / + @ , = ~ - are taken))
$(foreach name,CURDIR CARGO_TARGET_DIR BENCH_READ_DIR BENCH_WRITE_DIR BENCH_SERVER_DIR EMULATOR,$(call check_path,$(name)))

CARGO ?= cargo
CACHE := $(CURDIR)/.cache
TARGET_DIR := $(or $(CARGO_TARGET_DIR),$(CURDIR)/target)
VENV := $(CACHE)/venv
SYSTEM_VENV := $(CACHE)/venv-system
PYTHON := $(VENV)/bin/python
# The binary that the clients' and the crash tests run.
TEST_BINARY := $(TARGET_DIR)/test-release/tepui
RELEASE_BINARY := $(TARGET_DIR)/release/tepui
# The same laid out by what it does under load, which takes ten minutes. It stands beside Cassandra and HBase, since a JVM compiles
# them by what they do, too; make bench-servers-peers PGO=0 takes the one above.
PGO_BINARY := $(TARGET_DIR)/pgo/tepui
PGO ?= 1
NEEDS_PGO := $(if $(filter 0,$(PGO)),,profdata)
# Those besides the first that need nothing of the system to be compiled: RocksDB's wrapper needs its header. libFuzzer's sources are not
# compiled where the variable names a library, which nothing is linked with here.
CHECKED_MANIFESTS := fuzz/Cargo.toml bench-peers/servers/Cargo.toml
CHECK = CUSTOM_LIBFUZZER_PATH=/dev/null $(CARGO) check --quiet --locked --target-dir "$(TARGET_DIR)"
# Every workspace with a lock file; the others have to know what the crates of the first depend on.
LOCKED_MANIFESTS := $(addsuffix /Cargo.toml,. fuzz bench-peers bench-peers/newest bench-peers/newest/librocksdb bench-peers/servers)
# make test CRASH_ROUNDS=10; make soak SOAK_ROUNDS=200 FUZZ_SECONDS=600
CRASH_ROUNDS ?= 3
SOAK_ROUNDS ?= 50
FUZZ_SECONDS ?= 60
# make bench-read ROWS=10000000 SECONDS_EACH=3 PEER=newest: the full run; distro is quicker to build
ROWS ?= 1000000
SECONDS_EACH ?= 2
ROUNDS ?= 3
PEER ?= distro
BENCH_READ_DIR ?= $(CACHE)/bench-read-$(ROWS)
# make bench-write WRITE_SECONDS=10 PEER=newest ARGS='--only sync'
WRITE_ROWS ?= 1000000
WRITE_SECONDS ?= 2
BENCH_WRITE_DIR ?= $(CACHE)/bench-write
# make bench-server ARGS='--rows 1000000 --seconds 20'. What an earlier run left in the directory below is removed; another one, named by
# BENCH_SERVER_DIR, must not exist.
BENCH_SERVER_DIR ?= $(CACHE)/bench-server
EMULATOR_VERSION := v1.58.0
# The last Go module that carries cbt and is on the module proxy; its own repository has later ones.
CBT_VERSION := v1.13.0
CBT := $(CACHE)/cbt-$(CBT_VERSION)/cbt
EMULATOR ?= $(if $(filter emulator,$(LEFT_OUT)),,$(CACHE)/emulator-$(EMULATOR_VERSION)/emulator)
# make run ARGS='--data /srv/tepui'; make bench ARGS='--help'
ARGS ?=
# make bench-server SKIP='emulator peers'; make bench-write SKIP=large-values. With --only or --help among the ARGS nothing else runs.
SKIP ?=
LEFT_OUT := $(sort $(SKIP) $(if $(findstring --only,$(ARGS))$(findstring --help,$(ARGS)),peers large-values $(if $(findstring emulator,$(ARGS)),,emulator)))
ifneq ($(filter-out emulator peers large-values,$(SKIP)),)
$(error SKIP takes emulator, peers and large-values: $(SKIP))
endif
# Sizes of bench-read that another target would leave unread.
SIZED := bench-read bench-backup bench-transfer
ifneq ($(filter bench-write bench-server,$(MAKECMDGOALS)),)
ifeq ($(filter $(SIZED),$(MAKECMDGOALS)),)
$(foreach name,ROWS SECONDS_EACH,$(if $(filter command,$(firstword $(origin $(name)))),$(error \
	$(name) is of bench-read: bench-write takes WRITE_ROWS, WRITE_SECONDS and ROUNDS, and bench-server ARGS='--rows N --seconds S --rounds R')))
endif
endif
# For recipes that run several commands whatever came of the first: `run COMMAND` keeps the worst exit code, with which the end exits.
IN_TURN = trap 'exit 130' INT; worst=0; run() { "$$@" || { code=$$?; ((code <= worst)) || worst=$$code; }; }
END_WITHOUT = echo "$@: $(if $(1),left out: $(1),nothing was left out)"; exit $$worst

SERVERS_PEERS_BINARY := $(if $(filter 0,$(PGO)),$(RELEASE_BINARY),$(PGO_BINARY))
SERVERS_PEERS = env TEPUI="$(SERVERS_PEERS_BINARY)" bench-peers/servers/run.sh $(CACHE)/servers-peers
LARGE_VALUES = env TEPUI="$(RELEASE_BINARY)" bench-peers/large-values/run.sh $(CACHE)/large-values

# Each target uses every core by itself, and its closing lines are to be read.
.NOTPARALLEL:

.PHONY: help needs-test needs-soak needs-fuzz needs-server needs-peers run build build-pgo servers-peers-binary test-binary fmt lint test unit process crash clients bench bench-read bench-write bench-read-test bench-server bench-servers-peers bench-large-values bench-backup bench-transfer demo soak fuzz clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Said before anything is built or fetched.
needs-test:
	@CARGO="$(CARGO)" scripts/needs.sh rust clippy python node go $(if $(CLIENTS),$(filter java,$(CLIENTS)),java)

needs-soak:
	@CARGO="$(CARGO)" scripts/needs.sh rust python cxx

needs-fuzz:
	@CARGO="$(CARGO)" scripts/needs.sh rust cxx

needs-server:
	@CARGO="$(CARGO)" scripts/needs.sh rust $(if $(EMULATOR),$(if $(wildcard $(EMULATOR)),,go)) $(if $(filter peers,$(LEFT_OUT)),,jdk17 $(NEEDS_PGO)) \
		|| { echo "SKIP='emulator peers' leaves out Google's emulator, Cassandra and HBase; PGO=0 takes the plain build beside these" >&2; exit 2; }

needs-peers:
	@CARGO="$(CARGO)" scripts/needs.sh rust jdk17 $(NEEDS_PGO) || { echo "PGO=0 takes the plain build" >&2; exit 2; }

run: ## build and start a server on 127.0.0.1:8086, data in ./tepui-data
	$(CARGO) run --locked --release --bin tepui -- serve $(ARGS)

build: ## build the release binary
	$(CARGO) build --locked --release --bin tepui

build-pgo: $(PGO_BINARY) ## build it laid out by what it does under load, in ten minutes: target/pgo/tepui

test-binary: ## build the binary that the clients' and the crash tests run
	$(CARGO) build --locked --profile test-release --bin tepui

fmt: ## format the Rust code
	$(CARGO) fmt --all

lint: ## check the formatting and the lock files, run clippy with warnings as errors, compile the fuzz targets and the bench of servers, check that the README shows the examples and docs the exceptions
	$(CARGO) fmt --all -- --check
	for manifest in $(LOCKED_MANIFESTS); do $(CARGO) update --quiet --workspace --locked --manifest-path $$manifest; done
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	for manifest in $(CHECKED_MANIFESTS); do $(CHECK) --all-targets --manifest-path $$manifest; done
	python3 scripts/check_readme.py
	python3 scripts/check_exceptions.py

test: needs-test lint unit process crash clients ## all that CI runs: lint, unit, process, crash, clients

unit: ## the Rust tests, those of the benchmarks' reports and of the scripts that run them, servers and the clients
	$(CARGO) test --workspace
	cd bench-peers/large-values && python3 -m unittest -q
	cd tests && python3 -m unittest -q
	cd tests/clients && python3 -m unittest -q
	cd tests/clients/python/system && python3 -m unittest -q

process: test-binary $(VENV)/.done ## what an operator meets: start, stop, damage, a full disk
	HARNESS_BINARY="$(TEST_BINARY)" $(PYTHON) -m pytest -q tests/process

crash: test-binary $(VENV)/.done ## SIGKILL the server under load, CRASH_ROUNDS times, and check every acknowledged write
	$(PYTHON) tests/crash/crash.py --rounds $(CRASH_ROUNDS) --binary "$(TEST_BINARY)"

clients: needs-test test-binary $(VENV)/.done $(SYSTEM_VENV)/.done $(CACHE)/node/.done $(CBT) ## the official clients and their own suites against the real server; CLIENTS picks suites
	NODE_PATH=$(CACHE)/node/node_modules PYTHON=$(PYTHON) CBT=$(CBT) SYSTEM_PYTHON=$(SYSTEM_VENV)/bin/python \
		python3 tests/harness.py --binary "$(TEST_BINARY)" -- tests/clients/run.sh

bench: ## tepui bench ARGS: load, engine or server; ARGS=--help says what each takes
	$(CARGO) run --locked --release --bin tepui -- bench $(ARGS)

bench-read: ## the read path beside RocksDB and the device, a line a bar; ROWS, SECONDS_EACH, ROUNDS, PEER=distro|newest, ARGS
	BENCH_READ_DIR="$(BENCH_READ_DIR)" bench-peers/run.sh $(PEER) --rows $(ROWS) --seconds $(SECONDS_EACH) \
		--rounds $(ROUNDS) $(ARGS)

bench-write: $(if $(filter large-values,$(LEFT_OUT)),,build) ## the write path beside RocksDB, a line a bar, then bench-large-values; WRITE_ROWS, WRITE_SECONDS, ROUNDS, PEER=distro|newest, SKIP, ARGS
	mkdir -p $(CACHE) && rm -rf "$(CACHE)/large-values"
	$(if $(filter large-values,$(LEFT_OUT)),,TASK=check $(LARGE_VALUES))
	$(IN_TURN); \
	run bench-peers/run.sh $(PEER) write --dir "$(BENCH_WRITE_DIR)" --rows $(WRITE_ROWS) --seconds $(WRITE_SECONDS) --rounds $(ROUNDS) $(ARGS); \
	$(if $(filter large-values,$(LEFT_OUT)),,run $(LARGE_VALUES);) \
	$(call END_WITHOUT,$(filter large-values,$(LEFT_OUT)))

bench-read-test: ## that the peers of make bench-read and bench-write do what they are asked: reads compared byte by byte
	TASK=test bench-peers/run.sh $(PEER)

bench-server: needs-server $(EMULATOR) $(if $(filter peers,$(LEFT_OUT)),,servers-peers-binary) ## the server beside a bare echo, hot rows, a slow device, Google's emulator, a line a bar, then bench-servers-peers; EMULATOR, SKIP, ARGS
	$(CARGO) build --locked --release --bin tepui --bin bench-server
	mkdir -p $(CACHE) && rm -rf "$(CACHE)/bench-server"
	$(IN_TURN); \
	run "$(TARGET_DIR)/release/bench-server" --dir "$(BENCH_SERVER_DIR)" $(if $(EMULATOR),--emulator "$(EMULATOR)") \
		$(if $(filter emulator,$(LEFT_OUT)),--skip emulator) $(ARGS); \
	$(if $(filter peers,$(LEFT_OUT)),,run $(SERVERS_PEERS);) \
	$(call END_WITHOUT,$(filter emulator peers,$(LEFT_OUT)))

servers-peers-binary: $(if $(filter 0,$(PGO)),build,$(PGO_BINARY))

bench-servers-peers: needs-peers servers-peers-binary ## the server beside Cassandra and HBase, a line a workload and peer; needs a JDK 17 with Maven; PGO, ARGS
	$(SERVERS_PEERS) $(ARGS)

bench-large-values: build ## values of 10 KB beside Bitcask, Tokyo Cabinet and RocksDB; DATA_BYTES, MEMORY_BYTES, STORES
	mkdir -p $(CACHE) && rm -rf "$(CACHE)/large-values"
	$(LARGE_VALUES)

bench-backup: build $(VENV)/.done ## time a backup and its restore; ROWS of a kilobyte each
	python3 tests/harness.py --binary "$(RELEASE_BINARY)" -- bash -c \
		'$(PYTHON) scripts/bench_backup.py --binary "$(RELEASE_BINARY)" --host $$BIGTABLE_EMULATOR_HOST --rows $(ROWS)'

bench-transfer: build ## time `tepui export` and `tepui import` of each format; ROWS of a kilobyte each, ROUNDS
	python3 scripts/bench_transfer.py --binary "$(RELEASE_BINARY)" --rows $(ROWS) --rounds $(ROUNDS)

demo: build $(VENV)/.demo ## load 336,776 flights, kill the server, read them back
	$(PYTHON) scripts/demo.py --binary "$(RELEASE_BINARY)"

soak: needs-soak test-binary $(VENV)/.done ## SOAK_ROUNDS rounds of the crash test, then every fuzz target for FUZZ_SECONDS
	$(PYTHON) tests/crash/crash.py --rounds $(SOAK_ROUNDS) --binary "$(TEST_BINARY)"
	$(MAKE) fuzz

fuzz: needs-fuzz ## every fuzz target for FUZZ_SECONDS
	scripts/fuzz.sh $(FUZZ_SECONDS)

clean: ## remove what was built and fetched
	$(CARGO) clean
	rm -rf "$(CACHE)" fuzz/target bench-peers/target bench-peers/servers/target

$(PGO_BINARY): scripts/build-pgo.sh Cargo.toml Cargo.lock $(shell find crates -path crates/bench-server -prune -o '(' -path '*/src/*.rs' -o -name build.rs -o -name Cargo.toml -o -name '*.bin' ')' -print)
	CARGO="$(CARGO)" scripts/build-pgo.sh

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
