//! Feeds any bytes to the decoder of HLL++ sketches, and merges what it finds.
//! It may refuse them; it must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_bigtable::fuzzing::sketch(data);
});
