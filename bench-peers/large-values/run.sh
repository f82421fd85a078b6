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
# binary), STORES; TASK=check says only what is missing. Exits with 1 when a bar is short, with 2 when it could not run.
set -Eeuo pipefail
trap 'exit 2' ERR
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if (($# == 0)); then
    echo "usage: $0 DIRECTORY" >&2
    exit 2
fi
directory=$1
# Eighteen digits are what the arithmetic below takes.
for name in DATA_BYTES MEMORY_BYTES VALUE_BYTES OPERATIONS; do
    if [[ -n ${!name:-} && ! ${!name} =~ ^[1-9][0-9]{0,17}$ ]]; then
        echo "$name=${!name}: a number above 0, in digits alone" >&2
        exit 2
    fi
done
data=${DATA_BYTES:-4000000000}
memory=${MEMORY_BYTES:-1000000000}
value=${VALUE_BYTES:-10000}
rows=$((data / value))
operations=${OPERATIONS:-$rows}
known=(tepui bitcask tokyo rocksdb)
read -ra stores <<<"${STORES:-${known[*]}}"
chosen=" "
for store in "${stores[@]}"; do
    if [[ " ${known[*]} " != *" $store "* || $chosen == *" $store "* ]]; then
        echo "STORES=$STORES: some of ${known[*]}, each once" >&2
        exit 2
    fi
    chosen+="$store "
done
if ((${#stores[@]} == 0)); then
    echo "STORES names none: some of ${known[*]}" >&2
    exit 2
fi
if ((rows == 0)); then
    echo "DATA_BYTES=$data: not one row of $value bytes" >&2
    exit 2
fi
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
if [[ $chosen == *" bitcask "* ]]; then needs erlang-bitcask "/usr/lib/erlang/lib/bitcask-*/ebin/bitcask.beam"; fi
if [[ $chosen == *" tokyo "* || $chosen == *" rocksdb "* ]]; then
    needs libtokyocabinet-dev /usr/include/tchdb.h
    needs librocksdb-dev /usr/include/rocksdb/c.h
fi
command -v cc >/dev/null || missing+=(gcc)
if ((${#missing[@]})); then
    echo "missing: ${missing[*]} (Debian's names). Install them as root: apt-get install ${missing[*]}" >&2
    exit 2
fi
[[ -x $tepui ]] || { echo "no $tepui: build it with make build, or name it by TEPUI" >&2; exit 2; }

# What makes the control group: version 1 or 2 of them by hand, else systemd.
groups=/sys/fs/cgroup
cannot=()
if [[ -w $groups/memory ]]; then
    by=version-1
elif [[ -w $groups ]] && grep -qsw memory "$groups/cgroup.subtree_control"; then
    by=version-2
elif command -v systemd-run >/dev/null && [[ -d /run/systemd/system ]]; then
    by=systemd
else
    if [[ -d $groups/memory ]]; then cannot+=("$groups/memory cannot be written"); fi
    if [[ ! -w $groups ]]; then
        cannot+=("$groups cannot be written")
    elif [[ ! -d $groups/memory ]]; then
        cannot+=("memory is not in $groups/cgroup.subtree_control")
    fi
    cannot+=("systemd does not run here, or there is no systemd-run")
    printf 'no control group can limit memory here: %s\n' "${cannot[@]}" >&2
    echo "Run this as root; a container has to be given the groups of its host (docker run --privileged --cgroupns=host)" >&2
    exit 2
fi

if [[ ${TASK:-run} == check ]]; then exit 0; fi
mkdir "$directory"
group=tepui-large-values-$$
# What runs in the group ends first: it would go on writing where it is ended from outside, and a group with a process stays.
finish() {
    local procs left
    for procs in "$groups/memory/$group/cgroup.procs" "$groups/$group/cgroup.procs"; do
        [[ -e $procs ]] || continue
        for _ in {1..100}; do
            mapfile -t left <"$procs"
            ((${#left[@]})) || break
            kill -KILL "${left[@]}" 2>/dev/null || true
            sleep 0.1
        done
    done
    rm -rf "$directory"
    rmdir "$groups/memory/$group" "$groups/$group" 2>/dev/null || true
}
trap finish EXIT

# Runs a command within the limit.
limited() {
    local procs
    case $by in
    version-1)
        mkdir -p "$groups/memory/$group"
        echo "$memory" >"$groups/memory/$group/memory.limit_in_bytes"
        # As the others have it: none of it goes to a swap device in place of the files.
        echo 0 >"$groups/memory/$group/memory.swappiness" 2>/dev/null || true
        procs=$groups/memory/$group/cgroup.procs
        ;;
    version-2)
        mkdir -p "$groups/$group"
        echo "$memory" >"$groups/$group/memory.max"
        echo 0 >"$groups/$group/memory.swap.max" 2>/dev/null || true
        procs=$groups/$group/cgroup.procs
        ;;
    systemd)
        systemd-run --quiet --scope --property="MemoryMax=$memory" --property=MemorySwapMax=0 "$@"
        return
        ;;
    esac
    (echo $BASHPID >"$procs" && exec "$@")
}

lines=$directory/lines
if [[ $chosen == *" tokyo "* || $chosen == *" rocksdb "* ]]; then
    cc -O2 -Wall -Wextra -o "$directory/peers" "$here/peers.c" -ltokyocabinet -lrocksdb
fi
for store in "${stores[@]}"; do
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
    esac
    rm -rf "$place"
done
python3 "$here/report.py" "$directory" "${stores[@]}" || exit $?
