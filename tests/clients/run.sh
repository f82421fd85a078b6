#!/usr/bin/env bash
# Runs every client's tests on the server that BIGTABLE_EMULATOR_HOST names, and goes on after a failure, so
# that one run shows them all. `make clients` calls it with $PYTHON, $CBT and $NODE_PATH set.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
: "${BIGTABLE_EMULATOR_HOST:?run this by make clients}"
# The clients look for Google's metadata service otherwise, and wait for an answer.
export METADATA_SERVER_DETECTION=none GCE_METADATA_HOST=127.0.0.1:1

ran=() failed=()
suite() { # NAME COMMAND...
  if [[ -n ${CLIENTS:-} && " $CLIENTS " != *" $1 "* ]]; then return; fi
  local began=$SECONDS
  echo "--- $1"
  "${@:2}" || failed+=("$1")
  ran+=("$1")
  echo "--- $1: $((SECONDS - began)) s"
}

in_dir() { # DIRECTORY COMMAND...
  (cd "$1" && "${@:2}")
}

suite python in_dir python "${PYTHON:-python3}" -m pytest -q
suite go in_dir go go test -count=1 -v .
suite cbt in_dir cbt "${PYTHON:-python3}" -m pytest -q
suite node in_dir node node --test --test-reporter=spec --test-force-exit --test-timeout=60000
suite java java/run.sh
suite rust env PROTOC="$PWD/rust/protoc" python3 rust/bigtable_rs.py
suite go-integration python3 go/integration.py
suite go-integration-real python3 go/integration.py --real
suite python-system "${SYSTEM_PYTHON:-python3}" python/system/system.py

if ((${#failed[@]})); then
  echo "clients: failed: ${failed[*]}"
  exit 1
fi
if ! ((${#ran[@]})); then
  echo "clients: no suite is named as CLIENTS has it: $CLIENTS"
  exit 2
fi
echo "clients: passed: ${ran[*]}"
