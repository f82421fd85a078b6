#!/usr/bin/env bash
# Runs every client's tests on the server that BIGTABLE_EMULATOR_HOST names, and goes on after a failure, so
# that one run shows them all. `make clients` calls it with $PYTHON, $CBT and $NODE_PATH set.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
: "${BIGTABLE_EMULATOR_HOST:?run this by make clients}"
# The clients look for Google's metadata service otherwise, and wait for an answer.
export METADATA_SERVER_DETECTION=none GCE_METADATA_HOST=127.0.0.1:1

failed=()
suite() { # NAME COMMAND...
  echo "--- $1"
  "${@:2}" || failed+=("$1")
}

in_dir() { # DIRECTORY COMMAND...
  (cd "$1" && "${@:2}")
}

suite "python" in_dir python "${PYTHON:-python3}" -m pytest -q
suite "go" in_dir go go test -count=1 -v ./...
suite "go integration" python3 go/integration.py
suite "cbt" in_dir cbt "${PYTHON:-python3}" -m pytest -q
suite "node" in_dir node node --test --test-reporter=spec --test-force-exit

if ((${#failed[@]})); then
  echo "clients: failed: ${failed[*]}"
  exit 1
fi
echo "clients: python, go, go integration, cbt and node passed"
