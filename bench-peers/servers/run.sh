#!/usr/bin/env bash
# YCSB on Tepui's server beside Cassandra and HBase: run.sh CACHE [arguments of bench-servers-peers]
#
# Fetches the jars of both from Maven Central into CACHE, where they stay, builds the program, and runs it with its data in
# CACHE/bench-servers-peers-data, where what an earlier run left is removed. Needs a JDK 17 with Maven, and 12 GiB of memory.
# TEPUI names the binary to measure. TASK=test|clippy runs that instead, TASK=build fetches and builds. Exits with 1 when a
# bar is short, with 2 when it could not run.
set -Eeuo pipefail
trap 'exit 2' ERR

if (($# == 0)); then
    echo "usage: $0 CACHE [arguments of bench-servers-peers]" >&2
    exit 2
fi
cache=$1
shift
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${CARGO_TARGET_DIR:-$here/target}
cargo=${CARGO:-cargo}
task=${TASK:-run}
# What takes minutes comes after what can be seen at once.
case $task in
    run | build) "$here/../../scripts/needs.sh" rust jdk17 ;;
    test | clippy) ;;
    *) echo "TASK is one of run, build, test, clippy" >&2; exit 2 ;;
esac
if [[ $task == run && ! (-f ${TEPUI:-} && -x ${TEPUI:-}) ]]; then
    echo "TEPUI=${TEPUI:-} is no program: it names the binary to measure, as make build or make build-pgo leaves it" >&2
    exit 2
fi

export CARGO_TARGET_DIR=$target
case $task in
    run | build) "$cargo" build --release --locked --manifest-path "$here/Cargo.toml" >&2 ;;
    test) exec "$cargo" test --locked --manifest-path "$here/Cargo.toml" ;;
    clippy) exec "$cargo" clippy --locked --manifest-path "$here/Cargo.toml" --all-targets -- -D warnings ;;
esac
cache=$(mkdir -p "$cache" && cd "$cache" && pwd)
for peer in cassandra hbase; do
    # Anew where another version is asked for.
    if [[ ! $cache/$peer.classpath -nt $here/$peer/pom.xml ]]; then
        echo "fetching $peer" >&2
        mvn --batch-mode --no-transfer-progress --quiet -Dmaven.repo.local="$cache/repository" \
            -f "$here/$peer/pom.xml" dependency:build-classpath -Dmdep.outputFile="$cache/$peer.classpath" >&2
    fi
done
if [[ $task == build ]]; then exit 0; fi
data=$cache/bench-servers-peers-data
rm -rf "$data"
exec "$target/release/bench-servers-peers" --dir "$data" --tepui "$TEPUI" \
    --cassandra "$cache/cassandra.classpath" --hbase "$cache/hbase.classpath" "$@"
