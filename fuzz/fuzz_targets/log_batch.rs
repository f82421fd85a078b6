//! Feeds any bytes to the decoder of the payload of one log record: a batch of mutations to a row.
//! It may refuse them; it must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_engine::fuzzing::log_batch(data);
});
