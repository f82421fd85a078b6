#!/usr/bin/env bash
# Says what must be installed and is not, before a target of the Makefile begins: needs.sh TOOL...
#
# TOOL is a function needs_TOOL below. Exits with 2 where something is missing or too old, and says what would do.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cargo=${CARGO:-cargo}
missing=()

# The first version that a command prints; nothing where it fails.
version_of() { # COMMAND...
    local text
    text=$("$@" 2>/dev/null) || return 0
    if [[ $text =~ [0-9]+(\.[0-9]+)* ]]; then echo "${BASH_REMATCH[0]}"; fi
}

want() { # WHAT LEAST FOUND ADVICE
    if [[ -z $3 ]]; then
        missing+=("$1 $2 or newer: $4")
    elif [[ $(printf '%s\n' "$2" "$3" | sort -V | sed -n 1p) != "$2" ]]; then
        missing+=("$1 $2 or newer, here is $3: $4")
    fi
}

works() { # WHAT ADVICE COMMAND...
    "${@:3}" >/dev/null 2>&1 || missing+=("$1: $2")
}

needs_rust() {
    want Rust "$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)" "$(version_of "$cargo" --version)" https://rustup.rs
    works "a C compiler" "Debian's gcc" "${CC:-cc}" --version
}

needs_clippy() {
    works rustfmt "rustup component add rustfmt" "$cargo" fmt --version
    works clippy "rustup component add clippy" "$cargo" clippy --version
}

# Other versions than the compiler's do not read its counts.
needs_profdata() {
    works "the compiler's llvm-profdata" "rustup component add llvm-tools" \
        test -x "$(rustc --print target-libdir)/../bin/llvm-profdata"
}

needs_python() {
    want Python 3.11 "$(version_of python3 --version)" "Debian's python3"
    works "Python's venv" "Debian's python3-venv" python3 -c "import ensurepip, venv"
}

needs_node() {
    want Node 20.14 "$(version_of node --version)" "https://nodejs.org, since Debian 12 has 18"
    works npm "it comes with Node" npm --version
}

# In the directory of a module an older Go fetches what the module asks for, from Go 1.21 on.
needs_go() {
    want Go "$(sed -n 's/^go //p' tests/clients/go/go.mod)" "$(cd tests/clients/go && version_of go env GOVERSION)" \
        "https://go.dev/dl, since Debian 12 has 1.19"
}

needs_java() {
    want "a JDK" 17 "$(version_of javac -version)" "Debian's openjdk-17-jdk-headless"
    works Maven "Debian's maven" mvn --version
}

# Cassandra 5.0 sets a security manager when it starts, which later ones refuse; its flags are those of 17.
needs_jdk17() {
    local found
    found=$(version_of java --version)
    if [[ ${found%%.*} != 17 ]]; then
        missing+=("a JDK 17, no other, here is ${found:-none}: Debian's openjdk-17-jdk-headless, first in PATH")
    fi
    works Maven "Debian's maven" mvn --version
}

needs_cxx() {
    works "a C++ compiler" "Debian's g++" "${CXX:-c++}" --version
}

for tool in "$@"; do "needs_$tool"; done
if ((${#missing[@]})); then
    printf 'missing: %s\n' "${missing[@]}" >&2
    exit 2
fi
