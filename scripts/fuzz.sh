#!/usr/bin/env bash
# Runs every fuzz target for some seconds each: scripts/fuzz.sh [SECONDS] [TARGET...]
#
# A stable compiler does it: RUSTC_BOOTSTRAP lets cargo-fuzz ask for coverage instrumentation, and there is no
# sanitizer, since the decoders have no unsafe code of ours and what is looked for is panics, hangs and allocations
# that a length in the input makes unbounded (-rss_limit_mb, -malloc_limit_mb, -timeout). Under them are two libraries in C, zstd
# and, for Avro's xz, liblzma, which are instrumented by nothing here: what they would do wrong shows only where it ends the process.
# Corpora grow in fuzz/corpus, those of the engine's formats from the inputs of its own tests, those of import formats and of transfers' states
# from the files of crates/transfer/testdata, that of schema bundles from the server's own descriptors; an input that failed is kept in
# fuzz/artifacts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
CARGO_FUZZ_VERSION=0.13.2
root=$PWD/.cache/cargo-fuzz-$CARGO_FUZZ_VERSION
if [[ ! -x $root/bin/cargo-fuzz ]]; then
  cargo install --quiet --locked --version "$CARGO_FUZZ_VERSION" --root "$root" cargo-fuzz
fi
TEPUI_FUZZ_SEEDS=$PWD/fuzz/corpus cargo test --quiet --locked -p tepui-engine --lib -- \
  --ignored --exact fuzzing::tests::the_valid_encodings_are_written_as_seeds
export PATH=$root/bin:$PATH RUSTC_BOOTSTRAP=1
if (($# > 1)); then
  targets=("${@:2}")
else
  mapfile -t targets < <(cargo fuzz list)
fi
passed=0 failed=()
for target in "${targets[@]}"; do
  echo "--- fuzz $target, $seconds s"
  corpus=("fuzz/corpus/$target") rss_mb=2048 malloc_mb=1024 bytes_max=65536 seeds=()
  mkdir -p "${corpus[0]}"
  case $target in
  import_parquet)
    # A page says what it is once decompressed, up to 2 GiB, and its reader takes its word.
    rss_mb=6144 malloc_mb=2200
    ;;&
  import_*) corpus+=(crates/transfer/testdata/golden) ;;
  transfer_state) corpus+=(crates/transfer/testdata/state) ;;
  schema_bundle)
    # A file of 90 KB, whole, and room for more.
    seeds=(-seed_inputs=crates/server/descriptors.bin) bytes_max=131072
    ;;
  esac
  if cargo fuzz run --sanitizer none "$target" "${corpus[@]}" -- "-max_total_time=$seconds" "-max_len=$bytes_max" \
    "${seeds[@]}" -timeout=10 "-rss_limit_mb=$rss_mb" "-malloc_limit_mb=$malloc_mb" -print_final_stats=0 2>&1 | grep -vE 'pulse|REDUCE|NEW |RELOAD|WARNING: Failed to find'; then
    passed=$((passed + 1))
  else
    failed+=("$target")
  fi
done
echo "fuzz: $passed passed, ${#failed[@]} failed${failed[*]:+: ${failed[*]}}"
((${#failed[@]} == 0 && passed > 0))
