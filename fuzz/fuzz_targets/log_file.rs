//! Feeds any bytes to the decoder of a whole commit-log segment: header, records, torn tails.
//! It may refuse them; it must not panic, hang, or allocate more than the input can justify.
//! And writes a log of what the bytes say, damages it once, opens it and repairs it: what was synced and is whole must be there.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_engine::fuzzing::log_file(data);
});
