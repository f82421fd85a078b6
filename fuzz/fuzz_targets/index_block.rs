//! Feeds any bytes to the decoder of an index partition or a top-level index.
//! It may refuse them; it must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_engine::fuzzing::index_block(data);
});
