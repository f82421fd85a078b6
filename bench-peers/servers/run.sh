#!/usr/bin/env bash
# YCSB on Tepui's server beside Cassandra and HBase: run.sh CACHE [arguments of bench-servers-peers]
#
# Fetches the jars of both from Maven Central into CACHE, where they stay, builds the program, and runs it with its data in
# CACHE. TEPUI names the binary to measure. TASK=test|clippy runs that instead, TASK=build fetches and builds.
set -euo pipefail

cache=$(mkdir -p "${1:?usage: $0 CACHE [arguments]}" && cd "$1" && pwd)
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
cargo=${CARGO:-cargo}
export CARGO_TARGET_DIR=$target
case ${TASK:-run} in
    run | build) "$cargo" build --release --locked --manifest-path "$here/Cargo.toml" >&2 ;;
    test) exec "$cargo" test --locked --manifest-path "$here/Cargo.toml" ;;
    clippy) exec "$cargo" clippy --locked --manifest-path "$here/Cargo.toml" --all-targets -- -D warnings ;;
    *) echo "TASK is one of run, build, test, clippy" >&2; exit 2 ;;
esac
for peer in cassandra hbase; do
    # Anew where another version is asked for.
    if [[ ! $cache/$peer.classpath -nt $here/$peer/pom.xml ]]; then
        echo "fetching $peer" >&2
        mvn --batch-mode --no-transfer-progress --quiet -Dmaven.repo.local="$cache/repository" \
            -f "$here/$peer/pom.xml" dependency:build-classpath -Dmdep.outputFile="$cache/$peer.classpath" >&2
    fi
done
if [[ ${TASK:-run} == build ]]; then exit 0; fi
rm -rf "$cache/data"
exec "$target/release/bench-servers-peers" --dir "$cache/data" --tepui "${TEPUI:?TEPUI names the binary to measure}" \
    --cassandra "$cache/cassandra.classpath" --hbase "$cache/hbase.classpath" "$@"
