#!/usr/bin/env bash
# The Java client's tests, then YCSB over it, on the server that BIGTABLE_EMULATOR_HOST names.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
work=$PWD/../../../.cache/java
mkdir -p "$work"
maven() { mvn --batch-mode --no-transfer-progress -Dbuild.into="$work" -Dmaven.repo.local="$work/repository" "$@"; }
maven --quiet dependency:build-classpath -Dmdep.outputFile="$work/classpath"
maven test
python3 ycsb.py "$work/classes:$(<"$work/classpath")"
