#!/usr/bin/env bash
# Values of 10 KB in less memory than they take, as in the post that introduced Bitcask: Tepui beside Bitcask, Tokyo Cabinet and
# RocksDB with blob files. Each loads the rows, overwrites rows at random and reads rows at random, one operation at a
# time, nothing synced, in a control group with a limit on memory, one after the other. Each does so with one store that stays
# open: what its writes leave to be merged or collected falls into the next phase.
#
#   bench-peers/large-values/run.sh DIRECTORY
#
# Installs nothing. Needs, by Debian's names: erlang-bitcask, libtokyocabinet-dev, librocksdb-dev, gcc; and root, or
# systemd-run, for the control group. Variables: DATA_BYTES (4 GB), MEMORY_BYTES (1 GB), VALUE_BYTES, OPERATIONS, TEPUI (the
# binary), STORES. Exits with 1 when a bar is short, with 2 when it could not run.
set -Eeuo pipefail
trap 'exit 2' ERR
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
directory=${1:?usage: $0 DIRECTORY}
data=${DATA_BYTES:-4000000000}
memory=${MEMORY_BYTES:-1000000000}
value=${VALUE_BYTES:-10000}
rows=$((data / value))
operations=${OPERATIONS:-$rows}
stores=${STORES:-tepui bitcask tokyo rocksdb}
if ((operations < 10)); then
    echo "OPERATIONS=$operations: at least 10, of which the first and the last tenth are compared" >&2
    exit 2
fi
target=${CARGO_TARGET_DIR:-$here/../../target}
tepui=${TEPUI:-$target/release/tepui}
# A store's own cache. Tepui reads past the page cache, so what it does not take for itself lies idle: all but what it holds besides,
# memtables of 64 MB each, compaction and the pages of its log. RocksDB reads through the page cache: a quarter, as
# its authors advise there. Bitcask and Tokyo Cabinet have the page cache alone.
tepui_besides=400000000
tepui_cache=$((memory - tepui_besides))
rocksdb_cache=$((memory / 4))

# Below, what it holds besides would leave it next to no cache, and more memory than there is while it writes.
memory_min=600000000
if ((memory < memory_min)); then
    echo "MEMORY_BYTES=$memory: at least $memory_min" >&2
    exit 2
fi

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
        # As its peers are driven: one store, open from the load to the last read, which pays for its own compactions.
        rmdir "$place"
        limited "$tepui" bench engine --data "$place" --rows "$rows" --key-bytes 24 --value-bytes "$value" --cache "$tepui_cache" \
            --threads 1 --in-flight 1 --workload put,get-row --ops "$operations" --settle never --sync never --verify \
            --json "$directory/tepui.json" >&2
        ;;
    bitcask) limited escript "$here/bitcask.escript" "$place" "$rows" "$operations" "$value" >>"$lines" ;;
    tokyo | rocksdb) limited "$directory/peers" "$store" "$place" "$rows" "$operations" "$value" "$rocksdb_cache" >>"$lines" ;;
    *) echo "no store is called $store" >&2; exit 2 ;;
    esac
    rm -rf "$place"
done
python3 "$here/report.py" "$directory" $stores || exit $?
