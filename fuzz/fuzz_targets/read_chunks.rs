//! Feeds any bytes to what puts the chunks of ReadRows together, and to what looks in a status for a time to wait.
//! It may refuse them; it must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_transfer::fuzzing::read_chunks(data);
});
