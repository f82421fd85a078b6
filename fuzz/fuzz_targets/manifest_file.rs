//! Feeds any bytes to the decoder of a whole manifest of a tablet: its version edits.
//! It may refuse them; it must not panic, hang, or allocate more than the input can justify.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    tepui_engine::fuzzing::manifest_file(data);
});
