//! Feeds any bytes to the decoder of a filter partition, and probes of it.
//! It may refuse them; it must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_engine::fuzzing::filter_block(data);
});
