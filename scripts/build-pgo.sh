#!/usr/bin/env bash
# Builds tepui with a profile of itself at work: scripts/build-pgo.sh
#
# Three steps: a build that counts what runs, that build under the loads of its own benchmarks, and a build that is laid out by the
# counts. The last one is DIRECTORY/tepui, where DIRECTORY is target/pgo, or pgo in CARGO_TARGET_DIR. Counts that are there from an
# earlier run are replaced.
#
# Variables: CARGO, CARGO_TARGET_DIR, RUSTFLAGS (added to), PGO_ROWS and PGO_SECONDS of each load.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo=${CARGO:-cargo}
rows=${PGO_ROWS:-100000}
seconds=${PGO_SECONDS:-3}
# Absolute: the compiler is called in the directory of each crate.
out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/pgo
counts=$out/counts
if [[ $out == *[[:space:]]* ]]; then
    echo "the path of $out has a blank, which RUSTFLAGS cannot do" >&2
    exit 2
fi

scripts/needs.sh rust profdata
host=$(rustc --print host-tuple)
profdata=$(rustc --print target-libdir)/../bin/llvm-profdata

# With a target named, build scripts and macros are built without the flags: they are no part of what is measured.
build() { # NAME FLAG
    CARGO_TARGET_DIR=$out/$1 RUSTFLAGS="${RUSTFLAGS:-} $2" "$cargo" build --locked --release --bin tepui --target "$host"
    binary=$out/$1/$host/release/tepui
}

rm -rf "$counts"
mkdir -p "$counts"
# What is changed from now on is newer than what is built.
touch "$out/began"
build counting "-Cprofile-generate=$counts"

# What each function is called with decides how it is laid out, so what is missing here is built as if it never ran: besides
# YCSB's loads, wide writes and reads, increments, and of the engine what the disk is read for, and compactions.
data=$out/data
rm -rf "$data"
mkdir "$data"
trap 'rm -rf "$data"' EXIT
load() { LLVM_PROFILE_FILE="$counts/%p.profraw" "$binary" bench "$@"; }
echo "counting under loads of $rows rows and more" >&2
load server --rows "$rows" --seconds "$seconds" --warm-up 0 --connections 4 --data "$data/server" \
    --workload a,b,c,d,e,f,increment,increment-row,read,read-many,update,put,put-many,a >&2
load engine --rows "$rows" --seconds 1 --warm-up 0 --data "$data/engine" --columns 10 --value-bytes 100 --workload all --cache 1/60,all >&2
load load --rows $((rows * 5)) --point-reads "$rows" --data "$data/load" >&2
rm -rf "$data"
"$profdata" merge --output "$out/tepui.profdata" "$counts"

build by-counts "-Cprofile-use=$out/tepui.profdata"
# In one step, also where the one before is running.
cp "$binary" "$out/tepui.new"
touch -r "$out/began" "$out/tepui.new"
mv -f "$out/tepui.new" "$out/tepui"
echo "$out/tepui"
