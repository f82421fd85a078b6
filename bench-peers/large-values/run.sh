#!/usr/bin/env bash
# Values of 10 KB in less memory than they take, as in the post that introduced Bitcask: Tepui beside Bitcask, Tokyo Cabinet and
# RocksDB with blob files. Each loads the rows, overwrites rows at random and reads rows at random, one operation at a
# time, nothing synced, in a control group with a limit on memory, one after the other.
#
#   bench-peers/large-values/run.sh DIRECTORY
#
# Installs nothing. Needs, by Debian's names: erlang-bitcask, libtokyocabinet-dev, librocksdb-dev, gcc; and root, or
# systemd-run, for the control group. Variables: DATA_BYTES (4 GB), MEMORY_BYTES (1 GB), VALUE_BYTES, OPERATIONS, TEPUI (the
# binary), STORES.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
directory=${1:?usage: $0 DIRECTORY}
data=${DATA_BYTES:-4000000000}
memory=${MEMORY_BYTES:-1000000000}
value=${VALUE_BYTES:-10000}
rows=$((data / value))
operations=${OPERATIONS:-$rows}
stores=${STORES:-tepui bitcask tokyo rocksdb}
target=${CARGO_TARGET_DIR:-$here/../../target}
tepui=${TEPUI:-$target/release/tepui}
# A store's own cache. Tepui reads past the page cache, so what it does not take for itself lies idle: four fifths, which
# leaves room for memtables, compaction and the pages of its log. RocksDB reads through the page cache: a quarter, as
# its authors advise there. Bitcask and Tokyo Cabinet have the page cache alone.
tepui_cache=$((memory / 5 * 4))
rocksdb_cache=$((memory / 4))

missing=()
needs() { # PACKAGE FILE
    compgen -G "$2" >/dev/null || missing+=("$1")
}
if [[ $stores == *bitcask* ]]; then needs erlang-bitcask "/usr/lib/erlang/lib/bitcask-*/ebin/bitcask.beam"; fi
if [[ $stores == *tokyo* || $stores == *rocksdb* ]]; then
    needs libtokyocabinet-dev /usr/include/tchdb.h
    needs librocksdb-dev /usr/include/rocksdb/c.h
fi
command -v cc >/dev/null || missing+=(gcc)
if ((${#missing[@]})); then
    echo "missing: ${missing[*]} (Debian's names). Install them as root: apt-get install ${missing[*]}" >&2
    exit 2
fi
[[ -x $tepui ]] || { echo "no $tepui: build it with make build, or name it by TEPUI" >&2; exit 2; }

mkdir "$directory"
group=tepui-large-values-$$
finish() {
    rm -rf "$directory"
    rmdir "/sys/fs/cgroup/memory/$group" "/sys/fs/cgroup/$group" 2>/dev/null || true
}
trap finish EXIT

# Runs a command within the limit: by control groups version 2 or 1, else by systemd.
limited() {
    local procs
    if [[ -w /sys/fs/cgroup/memory ]]; then
        mkdir -p "/sys/fs/cgroup/memory/$group"
        echo "$memory" >"/sys/fs/cgroup/memory/$group/memory.limit_in_bytes"
        procs=/sys/fs/cgroup/memory/$group/cgroup.procs
    elif grep -qs memory /sys/fs/cgroup/cgroup.subtree_control && [[ -w /sys/fs/cgroup ]]; then
        mkdir -p "/sys/fs/cgroup/$group"
        echo "$memory" >"/sys/fs/cgroup/$group/memory.max"
        echo 0 >"/sys/fs/cgroup/$group/memory.swap.max" 2>/dev/null || true
        procs=/sys/fs/cgroup/$group/cgroup.procs
    elif command -v systemd-run >/dev/null; then
        systemd-run --quiet --scope --property="MemoryMax=$memory" --property=MemorySwapMax=0 "$@"
        return
    else
        echo "no control group can be made here: run this as root" >&2
        return 2
    fi
    (echo $BASHPID >"$procs" && exec "$@")
}

lines=$directory/lines
if [[ $stores == *tokyo* || $stores == *rocksdb* ]]; then
    cc -O2 -Wall -Wextra -o "$directory/peers" "$here/peers.c" -ltokyocabinet -lrocksdb
fi
for store in $stores; do
    place=$directory/$store
    mkdir "$place"
    echo "$store: $rows rows of $value bytes, $operations operations of each kind" >&2
    case $store in
    tepui)
        # Ten runs of each kind, so that the last tenth can be told from the first. Each opens the store anew, so its reads are warmed up
        # until the cache is full, as the page cache of the others is by their writes.
        warm_up=$((tepui_cache / 80000000 + 2))
        rmdir "$place"
        limited "$tepui" bench engine --data "$place" --rows "$rows" --key-bytes 24 --value-bytes "$value" --cache "$tepui_cache" \
            --threads 1 --in-flight 1 --workload put --ops "$((operations / 10))" --warm-up 0 --repeat 10 --sync never \
            --json "$directory/tepui-put.json" >&2
        limited "$tepui" bench engine --data "$place" --rows "$rows" --key-bytes 24 --value-bytes "$value" --cache "$tepui_cache" \
            --threads 1 --in-flight 1 --workload get-row --ops "$((operations / 10))" --warm-up "$warm_up" --repeat 10 \
            --json "$directory/tepui-get.json" >&2
        ;;
    bitcask) limited escript "$here/bitcask.escript" "$place" "$rows" "$operations" "$value" >>"$lines" ;;
    tokyo | rocksdb) limited "$directory/peers" "$store" "$place" "$rows" "$operations" "$value" "$rocksdb_cache" >>"$lines" ;;
    *) echo "no store is called $store" >&2; exit 2 ;;
    esac
    rm -rf "$place"
done
python3 "$here/report.py" "$directory"
