#!/usr/bin/env bash
# Runs the comparison with RocksDB: run.sh distro|newest [arguments of bench-peers]
#
# Installs what is missing where it may (Debian, as root), else says what to install. `newest` compiles RocksDB from
# source the first time: 20 to 40 minutes on two cores, kept in the target directory. TASK=test|clippy|build runs
# that instead of the program. Exits with 1 when a bar is short, with 2 when it could not run.
set -Eeuo pipefail
trap 'exit 2' ERR

peer=${1:-}
case $peer in distro | newest) shift ;; *) echo "usage: $0 distro|newest [arguments of bench-peers]" >&2; exit 2 ;; esac
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=$(realpath --canonicalize-missing "${CARGO_TARGET_DIR:-$here/target}")
cargo=${CARGO:-cargo}

# Package and the file that shows it is there. libclang reads RocksDB's header for the bindings, with headers of its own: the library
# alone (libclang.so.1) is in another package.
needs=("fio=/usr/bin/fio" "libclang-dev=/usr/lib/llvm-*/lib/libclang.so")
if [[ $peer == distro ]]; then
    needs+=("librocksdb-dev=/usr/include/rocksdb/c.h")
else
    needs+=("g++=/usr/bin/g++" "liburing-dev=/usr/include/liburing.h" "pkg-config=/usr/bin/pkg-config")
fi
missing=()
for need in "${needs[@]}"; do
    compgen -G "${need#*=}" >/dev/null || missing+=("${need%%=*}")
done
if ((${#missing[@]})); then
    if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
        echo "installing ${missing[*]}" >&2
        apt-get install --yes --quiet "${missing[@]}" >&2 || {
            echo "apt-get could not install ${missing[*]}; apt-get update may help" >&2
            exit 2
        }
    else
        echo "missing: ${missing[*]} (Debian's names). Install them as root: apt-get install ${missing[*]}" >&2
        exit 2
    fi
fi

if [[ $peer == distro ]]; then
    manifest=$here/Cargo.toml
    binary=bench-peers
    # On Debian the library is in the folder of the machine's triplet, and ldconfig not on the path of an ordinary user.
    library=$(PATH=$PATH:/usr/sbin:/sbin ldconfig -p | awk '!found && /librocksdb\.so / {found = $NF} END {print found}')
    [[ -n $library ]] || { echo "librocksdb.so is not known to ldconfig" >&2; exit 2; }
    ROCKSDB_LIB_DIR=$(dirname "$library")
    export ROCKSDB_LIB_DIR ROCKSDB_INCLUDE_DIR=/usr/include
else
    manifest=$here/newest/Cargo.toml
    binary=bench-peers-newest
    # Elsewhere where somebody wants to keep it apart from what is rebuilt more often.
    built=$(realpath --canonicalize-missing "${ROCKSDB_TARGET_DIR:-$target/librocksdb}")
    # For this processor, as RocksDB's own Makefile compiles it: its filters and checksums want AVX2 and PCLMUL.
    (
        export CARGO_TARGET_DIR=$built CXXFLAGS="${CXXFLAGS:+$CXXFLAGS }-march=native"
        cd "$here/newest/librocksdb"
        "$cargo" build --release --locked
    ) >&2
    archives=("$built"/release/build/librocksdb-sys-*/out/librocksdb.a)
    archive=$(ls -t "${archives[@]}" | head -n 1)
    ROCKSDB_LIB_DIR=$(dirname "$archive")
    export ROCKSDB_LIB_DIR ROCKSDB_STATIC=1
fi

export CARGO_TARGET_DIR=$target
case ${TASK:-run} in
    run) "$cargo" build --release --locked --manifest-path "$manifest" >&2 ;;
    build) exec "$cargo" build --release --locked --manifest-path "$manifest" ;;
    test) exec "$cargo" test --locked --manifest-path "$manifest" ;;
    clippy) exec "$cargo" clippy --locked --manifest-path "$manifest" --all-targets -- -D warnings ;;
    *) echo "TASK is one of run, build, test, clippy" >&2; exit 2 ;;
esac
exec "$target/release/$binary" "$@"
