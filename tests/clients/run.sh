#!/usr/bin/env bash
# Runs every client's tests on the server that BIGTABLE_EMULATOR_HOST names, and goes on after a failure, so
# that one run shows them all. `make clients` calls it with $PYTHON, $CBT and $NODE_PATH set.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
: "${BIGTABLE_EMULATOR_HOST:?run this by make clients}"
# The clients look for Google's metadata service otherwise, and wait for an answer.
export METADATA_SERVER_DETECTION=none GCE_METADATA_HOST=127.0.0.1:1
# Python's gRPC and Node's would look for the server through a proxy that the environment names, and know no NO_PROXY.
export no_grpc_proxy=${BIGTABLE_EMULATOR_HOST%:*}

in_dir() { # DIRECTORY COMMAND...
  (cd "$1" && "${@:2}")
}

suites() { # VISIT: is called with NAME COMMAND... of each
  "$1" python in_dir python "${PYTHON:-python3}" -m pytest -q
  "$1" go in_dir go go test -count=1 -v .
  "$1" cbt in_dir cbt "${PYTHON:-python3}" -m pytest -q
  "$1" node in_dir node node --test --test-reporter=spec --test-force-exit --test-timeout=60000
  "$1" java java/run.sh
  "$1" rust env PROTOC="$PWD/rust/protoc" python3 rust/bigtable_rs.py
  "$1" go-integration python3 go/integration.py
  "$1" go-integration-real python3 go/integration.py --real
  "$1" python-system "${SYSTEM_PYTHON:-python3}" python/system/system.py
}

known=()
note() { known+=("$1"); }
suites note
read -ra asked <<<"${CLIENTS:-}"
((${#asked[@]})) || asked=("${known[@]}")
unknown=()
for name in "${asked[@]}"; do
  [[ " ${known[*]} " == *" $name "* ]] || unknown+=("$name")
done
if ((${#unknown[@]})); then
  echo "clients: no suite is called ${unknown[*]}: CLIENTS takes ${known[*]}" >&2
  exit 2
fi

ran=() failed=()
suite() { # NAME COMMAND...
  [[ " ${asked[*]} " == *" $1 "* ]] || return 0
  local began=$SECONDS
  echo "--- $1"
  "${@:2}" || failed+=("$1")
  ran+=("$1")
  echo "--- $1: $((SECONDS - began)) s"
}
suites suite

if ((${#failed[@]})); then
  echo "clients: failed: ${failed[*]}"
  exit 1
fi
echo "clients: passed: ${ran[*]}"
